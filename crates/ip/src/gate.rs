//! Address checks: finds the host that a packet is for or from, and refuses wrong addresses.

use core::net::Ipv6Addr;
use std::collections::BTreeMap;

use shoal_wire::{DropReason, ip};

use crate::icmp::IcmpError;
use crate::packet::Packet;
use crate::split::PacketSegmenter;
use crate::subnets::Subnets;
use crate::vnet::VNET_LEN;

/// Error: the address or prefix belongs to another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressInUse;

/// Reason why a packet of this host's programs is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboundRefusal {
    pub reason: DropReason,
    /// The ICMP error for the program, if one is sent, and the offending packet.
    pub complaint: Option<(IcmpError, Packet)>,
}

/// Owner of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressOwner {
    /// This host, or a machine behind it.
    Ours,
    /// Another host, or a machine behind that.
    Theirs(u32),
}

/// The addresses of this host and of its peers, and the prefixes behind them. IPv4 addresses are
/// written as `::ffff:a.b.c.d`.
///
/// A host's own address takes precedence over prefixes, and a longer prefix over a shorter one.
#[derive(Clone)]
pub struct AddressGate {
    own: Vec<Ipv6Addr>,
    hosts: BTreeMap<Ipv6Addr, u32>,
    subnets: Subnets<AddressOwner>,
    mtu: usize,
}

impl AddressGate {
    /// A gate for a host with the addresses `own`, whose interface has an MTU of `mtu` bytes.
    pub fn new(own: Vec<Ipv6Addr>, mtu: usize) -> AddressGate {
        let subnets = Subnets::default();
        AddressGate { own, hosts: BTreeMap::new(), subnets, mtu: mtu.min(ip::PACKET_MAX) }
    }

    /// Adds an address of the host with this number.
    ///
    /// Errors: the address belongs to another host or to this one. Nothing has changed.
    pub fn add(&mut self, host: u32, address: Ipv6Addr) -> Result<(), AddressInUse> {
        if self.own.contains(&address) || self.hosts.get(&address).is_some_and(|h| *h != host) {
            return Err(AddressInUse);
        }
        self.hosts.insert(address, host);
        Ok(())
    }

    /// Adds the prefix `address`/`bits` behind the host with this number, or behind this host.
    ///
    /// Errors: the prefix is behind another host. Nothing has changed.
    pub fn add_prefix(
        &mut self,
        host: Option<u32>,
        address: Ipv6Addr,
        bits: u8,
    ) -> Result<(), AddressInUse> {
        let whose = host.map_or(AddressOwner::Ours, AddressOwner::Theirs);
        if self.subnets.insert(address, bits, whose) { Ok(()) } else { Err(AddressInUse) }
    }

    /// Forgets every host and prefix.
    pub fn clear(&mut self) {
        self.hosts.clear();
        self.subnets.clear();
    }

    fn whose(&self, address: Ipv6Addr) -> Option<AddressOwner> {
        if self.own.contains(&address) {
            return Some(AddressOwner::Ours);
        }
        let host = self.hosts.get(&address).map(|host| AddressOwner::Theirs(*host));
        host.or_else(|| self.subnets.find(address))
    }

    /// The destination host of a read of the interface, and its packets.
    ///
    /// Errors: the reason for the drop, and the ICMP error for the program.
    pub fn outbound<'a>(
        &self,
        read: &'a [u8],
    ) -> Result<(u32, PacketSegmenter<'a>), OutboundRefusal> {
        let silent = |reason| OutboundRefusal { reason, complaint: None };
        let bytes = read.get(VNET_LEN..).ok_or(silent(DropReason::IpMalformed))?;
        let packet = Packet::parse(bytes).map_err(silent)?;
        let told =
            |reason, complaint| OutboundRefusal { reason, complaint: Some((complaint, packet)) };
        if self.whose(packet.source) != Some(AddressOwner::Ours) {
            return Err(silent(DropReason::IpSpoofedSource));
        }
        let host = match self.whose(packet.destination) {
            Some(AddressOwner::Ours) => return Err(silent(DropReason::IpToSelf)),
            Some(AddressOwner::Theirs(host)) => host,
            None => return Err(told(DropReason::IpNoHost, IcmpError::NoHost)),
        };
        match PacketSegmenter::new(read, self.mtu) {
            Ok(split) => Ok((host, split)),
            Err(DropReason::IpTooBig) => {
                let complaint = IcmpError::TooBig { mtu: self.mtu as u16 };
                Err(told(DropReason::IpTooBig, complaint))
            }
            Err(reason) => Err(silent(reason)),
        }
    }

    /// Checks a packet from `host`. `bytes` begin after the flags in the cell, and may include
    /// padding.
    ///
    /// Errors: the reason for the drop.
    pub fn inbound(&self, host: u32, bytes: &[u8]) -> Result<Packet, DropReason> {
        let packet = Packet::parse(bytes)?;
        if self.own.contains(&packet.source) {
            return Err(DropReason::IpToSelf);
        }
        if self.whose(packet.source) != Some(AddressOwner::Theirs(host)) {
            return Err(DropReason::IpSpoofedSource);
        }
        if self.whose(packet.destination) != Some(AddressOwner::Ours) {
            return Err(DropReason::IpNoHost);
        }
        if packet.is_error(bytes) {
            // Kernels never fragment an error, which is short, and a quote in pieces can't be
            // checked.
            if packet.fragment.is_some() {
                return Err(DropReason::IpStrayError);
            }
            self.check_error(host, &packet, bytes)?;
        }
        Ok(packet)
    }

    /// Checks an ICMP error from `host`. Kernels act on the quoted packet, so it must be one sent
    /// to that host or to a network behind it. Any machine of that network may send the error.
    fn check_error(&self, host: u32, packet: &Packet, bytes: &[u8]) -> Result<(), DropReason> {
        let quote = packet.quote(bytes)?;
        let ours = self.whose(quote.source) == Some(AddressOwner::Ours);
        let to_sender = self.whose(quote.destination) == Some(AddressOwner::Theirs(host));
        if ours && to_sender { Ok(()) } else { Err(DropReason::IpStrayError) }
    }
}
