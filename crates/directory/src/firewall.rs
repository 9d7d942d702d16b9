//! The inbound firewall of a host: decides which packets of other members reach its programs.
//!
//! ```text
//! outbound packet -> note: what this host began may be answered
//! inbound packet  -> of a known flow? else: may its sender begin it? else: dropped by name
//! ```
//!
//! A flow belongs to the end that began it. When a member loses the right to a flow, the flow is
//! closed. It stays closed while this host's programs still answer, since those answers must not
//! look like a flow of this host. A closed flow takes no room in the table.
//!
//! An ICMP error passes if it is about a live flow with its sender.
//!
//! When the table is full, a new flow replaces one that has ended or was silent for long enough.
//! The replaced flow belongs to the same member, or to the member with the most flows if that has
//! more. So a member that opens flows without end displaces its own flows first.
//!
//! Invariant: the number of flows is bounded, in total and per member.

use core::net::Ipv6Addr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use shoal_wire::{DropReason, Time};

use crate::Access;

mod closed;
mod table;

use closed::ClosedServices;
use table::{FlowState, FlowTable};

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Kind of a packet, by its transport headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// TCP.
    Tcp(TcpSegment),
    /// UDP.
    Udp,
    /// ICMP of either version: a request such as an echo request.
    Question,
    /// ICMP: the answer to a request.
    Answer,
    /// ICMP: an error about a packet of the flow that the tuple names.
    Trouble,
    /// Another protocol, whose flows have no ports.
    Other,
}

/// Effect of a TCP segment on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpSegment {
    /// SYN without ACK.
    Begins,
    /// Neither SYN, FIN nor RST, or SYN with ACK.
    Goes,
    /// FIN: the sender has no more data.
    Leaves,
    /// RST.
    Resets,
}

/// Addresses and ports of a flow, seen from this host. IPv4 addresses are written as
/// `::ffff:a.b.c.d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// IP protocol.
    pub protocol: u8,
    /// This host's end.
    pub ours: (Ipv6Addr, u16),
    /// The member's end. ICMP has its identifier as both ports.
    pub theirs: (Ipv6Addr, u16),
    /// Effect of the packet on its flow.
    pub opening: PacketKind,
}

/// Limits of the table, and lifetimes of flows without packets.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of flows; each takes about 190 bytes.
    pub flows: usize,
    /// Maximum number of flows per member.
    pub flows_per_member: usize,
    /// TCP with packets of both ends (RFC 5382 section 5: at least 2 h 4 min).
    pub tcp: Duration,
    /// TCP with a FIN of one end, or packets of one end only.
    pub tcp_transient: Duration,
    /// TCP with FINs of both ends, or a reset: delayed packets may still arrive.
    pub tcp_over: Duration,
    /// UDP with packets of both ends (RFC 4787 section 4.3: at least 2 min).
    pub udp: Duration,
    /// All other flows.
    pub other: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            flows: 131_072,
            flows_per_member: 32_768,
            tcp: Duration::from_secs(7_440),
            tcp_transient: Duration::from_secs(60),
            tcp_over: Duration::from_secs(5),
            udp: Duration::from_secs(300),
            other: Duration::from_secs(60),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    member: u32,
    protocol: u8,
    ports: (u16, u16),
    theirs: Ipv6Addr,
    ours: Ipv6Addr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlowInitiator {
    Us,
    Them,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TrackedFlow {
    owner: FlowInitiator,
    /// True for an end that has sent packets: this host, the member.
    spoke: (bool, bool),
    /// True for an end that has sent a FIN: this host, the member.
    left: (bool, bool),
    reset: bool,
    heard: Time,
    until: Time,
}

/// Rights of members towards this host, and their flows with it.
#[derive(Debug, Default)]
pub struct Firewall {
    limits: Limits,
    access: BTreeMap<u32, Arc<Access>>,
    table: FlowTable,
    closed: ClosedServices,
    displaced: u64,
}

impl Firewall {
    /// A firewall without any rights.
    pub fn new(limits: Limits) -> Firewall {
        Firewall { limits, ..Firewall::default() }
    }

    /// Replaces all rights. Members missing in `access` have no rights, and their flows are
    /// forgotten. Flows that a member may no longer begin are closed.
    pub fn set_access(&mut self, access: BTreeMap<u32, Arc<Access>>) {
        self.access = access;
        let Firewall { access, table, closed, .. } = self;
        closed.review(|member, service| match (access.get(&member), service) {
            (None, _) => true,
            (Some(access), None) => access.is_everything(),
            (Some(access), Some((protocol, port))) => may_begin(access, protocol, port),
        });
        table.review(|key, flow| {
            let access = access.get(&key.member)?;
            let (protocol, port) = (key.protocol, key.ports.0);
            let stays = flow.owner == FlowInitiator::Us || may_begin(access, protocol, port);
            if !stays && answers_may_begin(protocol) {
                closed.close(key.member, (protocol, port), flow.until);
            }
            stays.then_some(flow)
        });
    }

    /// Forgets a member: its number may be reused.
    pub fn forget(&mut self, member: u32) {
        self.access.remove(&member);
        self.table.forget(member);
        self.closed.forget(member);
    }

    /// Records a packet from this host's programs to `member`.
    ///
    /// Errors: the table is full, or the member has too many flows. An answer would not pass, so
    /// the packet need not leave.
    pub fn outbound(&mut self, now: Time, member: u32, tuple: &Tuple) -> Result<(), DropReason> {
        let key = key(member, tuple);
        let begins = match tuple.opening {
            PacketKind::Tcp(segment) => segment == TcpSegment::Begins,
            PacketKind::Udp | PacketKind::Question | PacketKind::Other => true,
            PacketKind::Answer => false,
            PacketKind::Trouble => return Ok(()),
        };
        let anew = tuple.opening == PacketKind::Tcp(TcpSegment::Begins);
        match self.alive(now, &key) {
            Some(flow) if anew && flow.is_over() => {
                self.note(now, key, TrackedFlow::new(FlowInitiator::Us), tuple.opening, true);
                Ok(())
            }
            Some(flow) => {
                self.note(now, key, flow, tuple.opening, true);
                Ok(())
            }
            None if begins && self.is_closed(now, &key) => Ok(()),
            None if begins => self.begin(now, key, FlowInitiator::Us, tuple.opening),
            // No flow is needed: further packets pass by the member's rights, or not at all.
            None => Ok(()),
        }
    }

    /// Checks a packet from `member` to this host's programs.
    ///
    /// Errors: the reason for the drop.
    pub fn inbound(&mut self, now: Time, member: u32, tuple: &Tuple) -> Result<(), DropReason> {
        let key = key(member, tuple);
        let Some(access) = self.access.get(&member) else { return Err(DropReason::PolicyDenied) };
        let may = may_begin(access, tuple.protocol, tuple.ours.1);
        let flow = self.alive(now, &key);
        if tuple.opening == PacketKind::Trouble {
            return flow.map(|_| ()).ok_or(DropReason::IpStrayError);
        }
        let anew = tuple.opening == PacketKind::Tcp(TcpSegment::Begins);
        match flow {
            Some(flow) if anew && may && flow.is_over() => {
                self.note(now, key, TrackedFlow::new(FlowInitiator::Them), tuple.opening, false);
                Ok(())
            }
            // A member without the right can't reuse the ports of an ended flow.
            Some(flow) if anew && flow.is_over() => Err(DropReason::PolicyDenied),
            Some(flow) => {
                self.note(now, key, flow, tuple.opening, false);
                Ok(())
            }
            // If the member may begin such a flow, packets from its middle pass too: this host may
            // have restarted.
            None if may => self.begin(now, key, FlowInitiator::Them, tuple.opening),
            None => Err(DropReason::PolicyDenied),
        }
    }

    /// The flow, if it has not expired.
    fn alive(&self, now: Time, key: &Key) -> Option<TrackedFlow> {
        self.table.get(key).filter(|flow| flow.until > now)
    }

    /// True if a packet from this host's programs answers a service that the member may no longer
    /// use.
    fn is_closed(&mut self, now: Time, key: &Key) -> bool {
        let service = (key.protocol, key.ports.0);
        let until = now + self.limits.udp;
        answers_may_begin(key.protocol) && self.closed.bars(now, key.member, service, until)
    }

    fn note(&mut self, now: Time, key: Key, flow: TrackedFlow, opening: PacketKind, ours: bool) {
        self.table.put(key, flow.noted(now, &self.limits, &key, opening, ours));
    }

    fn begin(
        &mut self,
        now: Time,
        key: Key,
        owner: FlowInitiator,
        opening: PacketKind,
    ) -> Result<(), DropReason> {
        self.table.tidy(now, key.member);
        self.closed.tidy(now);
        if self.table.get(&key).is_none() && !self.has_room(now, key.member) {
            return Err(DropReason::IpFlows);
        }
        self.note(now, key, TrackedFlow::new(owner), opening, owner == FlowInitiator::Us);
        Ok(())
    }

    /// Makes room for one flow of `member`, if needed. Returns false if there is none.
    fn has_room(&mut self, now: Time, member: u32) -> bool {
        let share = self.table.share(member);
        let gone = if share >= self.limits.flows_per_member {
            self.table.make_room(now, member, false)
        } else if self.table.len() < self.limits.flows {
            return true;
        } else {
            match self.table.largest() {
                // A member with fewer flows than the largest one displaces a flow of that one.
                Some((most, other)) if share < most => self.table.make_room(now, other, true),
                _ => self.table.make_room(now, member, false),
            }
        };
        self.displaced += u64::from(gone == Some(true));
        gone.is_some()
    }

    /// Number of flows, including expired ones that were not removed yet.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// True if there are no flows.
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Number of live flows that were displaced by others.
    pub fn displaced(&self) -> u64 {
        self.displaced
    }
}

impl TrackedFlow {
    fn new(owner: FlowInitiator) -> TrackedFlow {
        let nobody = (false, false);
        TrackedFlow {
            owner,
            spoke: nobody,
            left: nobody,
            reset: false,
            heard: Time::ZERO,
            until: Time::ZERO,
        }
    }

    /// The flow after another packet: from this host if `ours`, else from the member.
    fn noted(
        mut self,
        now: Time,
        limits: &Limits,
        key: &Key,
        opening: PacketKind,
        ours: bool,
    ) -> TrackedFlow {
        let end = |(us, them): &mut (bool, bool)| if ours { *us = true } else { *them = true };
        end(&mut self.spoke);
        match opening {
            // A new connection may reuse the ports of an ended one.
            PacketKind::Tcp(TcpSegment::Begins) => {
                (self.left, self.reset) = ((false, false), false)
            }
            PacketKind::Tcp(TcpSegment::Leaves) => end(&mut self.left),
            PacketKind::Tcp(TcpSegment::Resets) => self.reset = true,
            // This host's kernel still sends, so it did not accept the reset.
            PacketKind::Tcp(TcpSegment::Goes) if ours => self.reset = false,
            _ => {}
        }
        let keep = match self.standing(key.protocol) {
            FlowState::Over => limits.tcp_over,
            FlowState::Tcp => limits.tcp,
            FlowState::Udp => limits.udp,
            _ if key.protocol == TCP => limits.tcp_transient,
            _ => limits.other,
        };
        (self.heard, self.until) = (now, now + keep);
        self
    }

    /// True if both ends sent a FIN, or one sent a reset.
    fn is_over(&self) -> bool {
        self.reset || self.left == (true, true)
    }

    fn standing(&self, protocol: u8) -> FlowState {
        match protocol {
            TCP if self.is_over() => FlowState::Over,
            _ if self.spoke != (true, true) => FlowState::Unanswered,
            TCP if self.left == (false, false) => FlowState::Tcp,
            UDP => FlowState::Udp,
            _ => FlowState::Brief,
        }
    }
}

pub(crate) fn key(member: u32, tuple: &Tuple) -> Key {
    Key {
        member,
        protocol: tuple.protocol,
        ports: (tuple.ours.1, tuple.theirs.1),
        theirs: tuple.theirs.0,
        ours: tuple.ours.0,
    }
}

impl Key {
    /// A hash for tables.
    pub(crate) fn hash(&self) -> u64 {
        let address = |a: Ipv6Addr| a.to_bits() as u64;
        let ports = u64::from(self.ports.0) << 16 | u64::from(self.ports.1);
        let seen = address(self.theirs) ^ address(self.ours).rotate_left(17);
        let seen = seen ^ ports << 13 ^ u64::from(self.member) << 45;
        // Fibonacci hashing.
        seen.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
    }
}

/// True if an answer of this protocol looks like the beginning of a flow.
fn answers_may_begin(protocol: u8) -> bool {
    !matches!(protocol, TCP | 1 | 58)
}

fn may_begin(access: &Access, protocol: u8, port: u16) -> bool {
    match protocol {
        TCP => access.has_tcp(port),
        UDP => access.has_udp(port),
        1 | 58 => access.has_icmp(),
        _ => access.is_everything(),
    }
}

#[cfg(test)]
mod tests;
