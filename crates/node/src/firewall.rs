//! The interface's firewall: reads from packets the tuples on which `shoal_directory`'s decides.

use std::collections::BTreeMap;
use std::sync::Arc;

use shoal_directory as directory;
use shoal_directory::{Access, Limits, Opening, Recent, Segment, Tuple};
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

/// The firewall's table of flows, one for all workers of a node: the shell guards it. It holds
/// `None` until there are rights.
pub trait Flows: Clone {
    /// 0 without rights; one more after every [`Flows::change`] with rights in force.
    fn epoch(&self) -> u64;
    /// Asks the table.
    fn ask<T>(&self, ask: impl FnOnce(&mut Option<directory::Firewall>) -> T) -> T;
    /// Changes the table. Whoever asks after this returned is answered by the new rules.
    fn change(&self, change: impl FnOnce(&mut Option<directory::Firewall>));
}

/// The firewall of one interface, as one worker sees it. It asks the table of all workers about a
/// flow ten times a second and about every packet that begins or ends one. Without rights in force
/// everything passes.
pub struct Firewall<F> {
    shared: F,
    arrived: Recent,
    sent: Recent,
}

impl<F: Flows> Firewall<F> {
    /// A firewall that asks `shared`.
    pub(crate) fn new(shared: F) -> Firewall<F> {
        Firewall { shared, arrived: Recent::default(), sent: Recent::default() }
    }

    /// Puts other rights in force, for all workers.
    pub(crate) fn set_rights(&self, to_us: &BTreeMap<HostId, Arc<Access>>) {
        let access = to_us.iter().map(|(id, access)| (id.bits(), access.clone()));
        self.shared.change(|machine| {
            let machine =
                machine.get_or_insert_with(|| directory::Firewall::new(Limits::default()));
            machine.set_access(access.collect());
        });
    }

    /// Flows that are remembered, if there are rights in force.
    pub fn flows(&self) -> Option<usize> {
        self.shared.ask(|machine| machine.as_ref().map(directory::Firewall::len))
    }

    /// Flows that were removed while alive, to make room for others; `None` without rights.
    pub fn displaced(&self) -> Option<u64> {
        self.shared.ask(|machine| machine.as_ref().map(directory::Firewall::displaced))
    }

    /// Forgets a host and its flows, for all workers.
    pub(crate) fn forget(&self, host: HostId) {
        self.shared.change(|machine| {
            if let Some(machine) = machine {
                machine.forget(host.bits());
            }
        });
    }

    /// Checks whether a packet of `host` may pass to programs; `bytes` hold it.
    ///
    /// Errors: the reason to count if it may not.
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

    /// Notes a packet, or a super-frame, of this host's programs to `host`.
    ///
    /// Errors: the reason to count if the packet may not leave.
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

/// Asks the machine about a packet, unless its flow passed a moment ago.
fn ask<F: Flows>(
    shared: &F,
    recent: &mut Recent,
    (now, host): (Time, HostId),
    tuple: impl FnOnce() -> Result<Tuple, DropReason>,
    judge: impl FnOnce(&mut directory::Firewall, Time, u32, &Tuple) -> Result<(), DropReason>,
) -> Result<(), DropReason> {
    // Read before the rules: if they change meanwhile, the verdict is remembered for the old epoch.
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

/// The flow that an ICMP error is about: the quoted packet went the other way.
fn about(packet: &Packet, bytes: &[u8], ours: bool) -> Result<Tuple, DropReason> {
    let quote = packet.quote(bytes)?;
    let (from, to) = quote.ports;
    let (source, destination) = ((quote.source, from), (quote.destination, to));
    let (ours, theirs) = if ours { (destination, source) } else { (source, destination) };
    Ok(Tuple { protocol: quote.protocol, ours, theirs, opening: Opening::Trouble })
}

fn opening(protocol: u8, detail: u8) -> Opening {
    match (protocol, detail) {
        (TCP, flags) => Opening::Tcp(segment(flags)),
        (UDP, _) => Opening::Udp,
        (ICMP, 0) | (ICMPV6, 129) => Opening::Answer,
        (ICMP | ICMPV6, _) => Opening::Question,
        _ => Opening::Other,
    }
}

fn segment(flags: u8) -> Segment {
    match flags {
        _ if flags & RST != 0 => Segment::Resets,
        _ if flags & (SYN | ACK) == SYN => Segment::Begins,
        _ if flags & FIN != 0 => Segment::Leaves,
        _ => Segment::Goes,
    }
}

#[cfg(test)]
mod tests;
