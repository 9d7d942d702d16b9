//! The interface's firewall. It extracts the tuples from packets on which the firewall of
//! `shoal_directory` decides.

use std::collections::BTreeMap;
use std::sync::Arc;

use shoal_directory as directory;
use shoal_directory::{Access, FlowCache, Limits, PacketKind, TcpSegment, Tuple};
use shoal_edge::HostId;
use shoal_ip::Packet;
use shoal_wire::{DropReason, Time};

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// The firewall's table of flows, shared by all workers of a node and guarded by the shell. It is
/// `None` until rights are set.
pub trait SharedFlowTable: Clone {
    /// Zero without rights. It grows by one with each [`SharedFlowTable::change`] that sets rights.
    fn epoch(&self) -> u64;
    /// Queries the table.
    fn ask<T>(&self, ask: impl FnOnce(&mut Option<directory::Firewall>) -> T) -> T;
    /// Changes the table. Queries that begin after the return use the new rules.
    fn change(&self, change: impl FnOnce(&mut Option<directory::Firewall>));
}

/// The firewall of one interface, for one worker. It queries the shared table ten times a second
/// per flow, and for every packet that begins or ends a flow. Without rights, all packets pass.
pub struct InterfaceFirewall<F> {
    shared: F,
    arrived: FlowCache,
    sent: FlowCache,
}

impl<F: SharedFlowTable> InterfaceFirewall<F> {
    pub(crate) fn new(shared: F) -> InterfaceFirewall<F> {
        InterfaceFirewall { shared, arrived: FlowCache::default(), sent: FlowCache::default() }
    }

    /// Sets the rights for all workers.
    pub(crate) fn set_rights(&self, to_us: &BTreeMap<HostId, Arc<Access>>) {
        let access = to_us.iter().map(|(id, access)| (id.bits(), access.clone()));
        self.shared.change(|machine| {
            let machine =
                machine.get_or_insert_with(|| directory::Firewall::new(Limits::default()));
            machine.set_access(access.collect());
        });
    }

    /// Number of remembered flows. None without rights.
    pub fn flows(&self) -> Option<usize> {
        self.shared.ask(|machine| machine.as_ref().map(directory::Firewall::len))
    }

    /// Number of active flows that were removed to make room for others. `None` without rights.
    pub fn displaced(&self) -> Option<u64> {
        self.shared.ask(|machine| machine.as_ref().map(directory::Firewall::displaced))
    }

    /// Removes a host and its flows, for all workers.
    pub(crate) fn forget(&self, host: HostId) {
        self.shared.change(|machine| {
            if let Some(machine) = machine {
                machine.forget(host.bits());
            }
        });
    }

    /// Checks whether a packet of `host` may pass to programs. `bytes` contain the packet.
    ///
    /// # Errors
    ///
    /// The drop reason if it may not.
    pub(crate) fn inbound(
        &mut self,
        now: Time,
        host: HostId,
        packet: &Packet,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        let tuple = || tuple(packet, bytes, false);
        ask(&self.shared, &mut self.arrived, (now, host), tuple, directory::Firewall::inbound)
    }

    /// Notes a packet or super-frame of this host's programs for `host`.
    ///
    /// # Errors
    ///
    /// The drop reason if the packet may not leave.
    pub(crate) fn outbound(
        &mut self,
        now: Time,
        host: HostId,
        packet: &Packet,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        let tuple = || tuple(packet, bytes, true);
        ask(&self.shared, &mut self.sent, (now, host), tuple, directory::Firewall::outbound)
    }
}

/// Queries the table about a packet, unless its flow passed recently.
fn ask<F: SharedFlowTable>(
    shared: &F,
    recent: &mut FlowCache,
    (now, host): (Time, HostId),
    tuple: impl FnOnce() -> Result<Tuple, DropReason>,
    judge: impl FnOnce(&mut directory::Firewall, Time, u32, &Tuple) -> Result<(), DropReason>,
) -> Result<(), DropReason> {
    // The epoch is read before the rules. If the rules change in between, the verdict counts for
    // the old epoch.
    let epoch = shared.epoch();
    if epoch == 0 {
        return Ok(());
    }
    let tuple = tuple()?;
    if recent.passes(now, epoch, host.bits(), &tuple) {
        return Ok(());
    }
    shared.ask(|machine| match machine {
        Some(machine) => judge(machine, now, host.bits(), &tuple),
        None => Ok(()),
    })?;
    recent.note(now, epoch, host.bits(), &tuple);
    Ok(())
}

fn tuple(packet: &Packet, bytes: &[u8], ours: bool) -> Result<Tuple, DropReason> {
    if packet.is_error(bytes) {
        return about(packet, bytes, ours);
    }
    let transport = packet.transport(bytes)?;
    let (from, to) = transport.ports;
    let opening = opening(packet.protocol, transport.detail);
    let (source, destination) = ((packet.source, from), (packet.destination, to));
    let (ours, theirs) = if ours { (source, destination) } else { (destination, source) };
    Ok(Tuple { protocol: packet.protocol, ours, theirs, opening })
}

/// The flow that an ICMP error refers to. The quoted packet has the opposite direction.
fn about(packet: &Packet, bytes: &[u8], ours: bool) -> Result<Tuple, DropReason> {
    let quote = packet.quote(bytes)?;
    let (from, to) = quote.ports;
    let (source, destination) = ((quote.source, from), (quote.destination, to));
    let (ours, theirs) = if ours { (destination, source) } else { (source, destination) };
    Ok(Tuple { protocol: quote.protocol, ours, theirs, opening: PacketKind::Trouble })
}

fn opening(protocol: u8, detail: u8) -> PacketKind {
    match (protocol, detail) {
        (TCP, flags) => PacketKind::Tcp(segment(flags)),
        (UDP, _) => PacketKind::Udp,
        (ICMP, 0) | (ICMPV6, 129) => PacketKind::Answer,
        (ICMP | ICMPV6, _) => PacketKind::Question,
        _ => PacketKind::Other,
    }
}

fn segment(flags: u8) -> TcpSegment {
    match flags {
        _ if flags & RST != 0 => TcpSegment::Resets,
        _ if flags & (SYN | ACK) == SYN => TcpSegment::Begins,
        _ if flags & FIN != 0 => TcpSegment::Leaves,
        _ => TcpSegment::Goes,
    }
}

#[cfg(test)]
mod tests;
