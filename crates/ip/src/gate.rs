//! Which host a packet is for or from, and whether its addresses let it pass.

use core::net::Ipv6Addr;
use std::collections::BTreeMap;

use shoal_wire::{DropReason, ip};

use crate::icmp::Complaint;
use crate::packet::Packet;
use crate::split::Split;
use crate::subnets::Subnets;
use crate::vnet::VNET_LEN;

/// Error: the address or prefix belongs to another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken;

/// Why a packet of this host's programs does not leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason under which the drop is counted.
    pub reason: DropReason,
    /// The ICMP error for the program, if one is sent, and the packet that it is about.
    pub complaint: Option<(Complaint, Packet)>,
}

/// Where an address belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// This host, or a machine behind it.
    Ours,
    /// Another host, or a machine behind that.
    Theirs(u32),
}

/// The addresses of this host and of those it may speak with, and the prefixes of the networks
/// behind them. IPv4 addresses stand as `::ffff:a.b.c.d`.
///
/// A host's own address comes before all prefixes, and a longer prefix before a shorter one.
#[derive(Clone)]
pub struct Gate {
    own: Vec<Ipv6Addr>,
    hosts: BTreeMap<Ipv6Addr, u32>,
    subnets: Subnets<Whose>,
    mtu: usize,
}

impl Gate {
    /// The gate of a host with the addresses `own`, whose interface has an MTU of `mtu` bytes.
    pub fn new(own: Vec<Ipv6Addr>, mtu: usize) -> Gate {
        let subnets = Subnets::default();
        Gate { own, hosts: BTreeMap::new(), subnets, mtu: mtu.min(ip::PACKET_MAX) }
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

    /// The network `address`/`bits` lies behind the host with this number, or behind this host.
    ///
    /// Errors: it lies behind another one; nothing has changed.
    pub fn add_prefix(
        &mut self,
        host: Option<u32>,
        address: Ipv6Addr,
        bits: u8,
    ) -> Result<(), Taken> {
        let whose = host.map_or(Whose::Ours, Whose::Theirs);
        if self.subnets.insert(address, bits, whose) { Ok(()) } else { Err(Taken) }
    }

    /// Forgets every host and prefix.
    pub fn clear(&mut self) {
        self.hosts.clear();
        self.subnets.clear();
    }

    fn whose(&self, address: Ipv6Addr) -> Option<Whose> {
        if self.own.contains(&address) {
            return Some(Whose::Ours);
        }
        let host = self.hosts.get(&address).map(|host| Whose::Theirs(*host));
        host.or_else(|| self.subnets.find(address))
    }

    /// Which host a read of the interface is for, and its packets.
    ///
    /// Errors: the reason to count and the ICMP error for the program.
    pub fn outbound<'a>(&self, read: &'a [u8]) -> Result<(u32, Split<'a>), Refusal> {
        let silent = |reason| Refusal { reason, complaint: None };
        let bytes = read.get(VNET_LEN..).ok_or(silent(DropReason::IpMalformed))?;
        let packet = Packet::parse(bytes).map_err(silent)?;
        let told = |reason, complaint| Refusal { reason, complaint: Some((complaint, packet)) };
        if self.whose(packet.source) != Some(Whose::Ours) {
            return Err(silent(DropReason::IpSpoofedSource));
        }
        let host = match self.whose(packet.destination) {
            Some(Whose::Ours) => return Err(silent(DropReason::IpToSelf)),
            Some(Whose::Theirs(host)) => host,
            None => return Err(told(DropReason::IpNoHost, Complaint::NoHost)),
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
    /// Errors: the reason to count.
    pub fn inbound(&self, host: u32, bytes: &[u8]) -> Result<Packet, DropReason> {
        let packet = Packet::parse(bytes)?;
        if self.own.contains(&packet.source) {
            return Err(DropReason::IpToSelf);
        }
        if self.whose(packet.source) != Some(Whose::Theirs(host)) {
            return Err(DropReason::IpSpoofedSource);
        }
        if self.whose(packet.destination) != Some(Whose::Ours) {
            return Err(DropReason::IpNoHost);
        }
        if packet.is_error(bytes) {
            // An error is short: a kernel never cuts one, and a quote in pieces can't be checked.
            if packet.fragment.is_some() {
                return Err(DropReason::IpStrayError);
            }
            self.check_error(host, &packet, bytes)?;
        }
        Ok(packet)
    }

    /// Checks an ICMP error of `host`: it may quote only a packet that was sent to that host or to
    /// a network behind it, since kernels act on the quote. Which machine of that network sent the
    /// error does not matter.
    fn check_error(&self, host: u32, packet: &Packet, bytes: &[u8]) -> Result<(), DropReason> {
        let quote = packet.quote(bytes)?;
        let ours = self.whose(quote.source) == Some(Whose::Ours);
        let to_sender = self.whose(quote.destination) == Some(Whose::Theirs(host));
        if ours && to_sender { Ok(()) } else { Err(DropReason::IpStrayError) }
    }
}
