//! Whose packet it is, and whether it may pass.

use core::net::Ipv6Addr;
use std::collections::BTreeMap;

use shoal_wire::{DropReason, ip};

use crate::icmp::Complaint;
use crate::packet::Packet;
use crate::split::Split;
use crate::vnet::VNET_LEN;

/// The address is taken by another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken;

/// Why a packet of this host's programs does not leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What is counted.
    pub reason: DropReason,
    /// What the program is told, where it can be; about which packet.
    pub complaint: Option<(Complaint, Packet)>,
}

/// The addresses of this host and of those it may speak with. IPv4 addresses stand as
/// `::ffff:a.b.c.d`.
pub struct Gate {
    own: Vec<Ipv6Addr>,
    hosts: BTreeMap<Ipv6Addr, u32>,
    mtu: usize,
}

impl Gate {
    /// A host with these addresses, and an interface whose packets have at most `mtu` bytes.
    pub fn new(own: Vec<Ipv6Addr>, mtu: usize) -> Gate {
        Gate { own, hosts: BTreeMap::new(), mtu: mtu.min(ip::PACKET_MAX) }
    }

    /// The host with the number `host` has this address.
    ///
    /// Errors: another has it, or this host itself; nothing has changed.
    pub fn add(&mut self, host: u32, address: Ipv6Addr) -> Result<(), Taken> {
        if self.own.contains(&address) || self.hosts.get(&address).is_some_and(|h| *h != host) {
            return Err(Taken);
        }
        self.hosts.insert(address, host);
        Ok(())
    }

    /// Forgets every host.
    pub fn clear(&mut self) {
        self.hosts.clear();
    }

    /// Which host a read of the interface is for, and what it makes.
    ///
    /// Errors: what is counted, and what the program is told.
    pub fn outbound<'a>(&self, read: &'a [u8]) -> Result<(u32, Split<'a>), Refusal> {
        let silent = |reason| Refusal { reason, complaint: None };
        let bytes = read.get(VNET_LEN..).ok_or(silent(DropReason::IpMalformed))?;
        let packet = Packet::parse(bytes).map_err(silent)?;
        let told = |reason, complaint| Refusal { reason, complaint: Some((complaint, packet)) };
        if !self.own.contains(&packet.source) {
            return Err(silent(DropReason::IpSpoofedSource));
        }
        if self.own.contains(&packet.destination) {
            return Err(silent(DropReason::IpToSelf));
        }
        let Some(&host) = self.hosts.get(&packet.destination) else {
            return Err(told(DropReason::IpNoHost, Complaint::NoHost));
        };
        match Split::new(read, self.mtu) {
            Ok(split) => Ok((host, split)),
            Err(DropReason::IpTooBig) => {
                let complaint = Complaint::TooBig { mtu: self.mtu as u16 };
                Err(told(DropReason::IpTooBig, complaint))
            }
            Err(reason) => Err(silent(reason)),
        }
    }

    /// Checks a packet that `host` sent: `bytes` is what its cell held behind the flags.
    ///
    /// Errors: what is counted.
    pub fn inbound(&self, host: u32, bytes: &[u8]) -> Result<Packet, DropReason> {
        let packet = Packet::parse(bytes)?;
        if self.own.contains(&packet.source) {
            return Err(DropReason::IpToSelf);
        }
        if self.hosts.get(&packet.source) != Some(&host) {
            return Err(DropReason::IpSpoofedSource);
        }
        if !self.own.contains(&packet.destination) {
            return Err(DropReason::IpNoHost);
        }
        Ok(packet)
    }
}
