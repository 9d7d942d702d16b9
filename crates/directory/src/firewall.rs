//! The inbound firewall of one host: which packets of other members reach its programs.
//!
//! ```text
//! outbound packet -> note: what this host began may be answered
//! inbound packet  -> of a known flow? else: may its sender begin it? else: dropped by name
//! ```
//!
//! A flow belongs to whoever began it. When rights change, flows that their sender might not begin
//! any more are closed, and stay closed while this host's own programs still answer them: their
//! packets must not pass for a flow that this host began. A closed flow takes no room.
//!
//! An ICMP error passes where it is about a live flow of its sender's.
//!
//! Where the table is full, a new flow takes the place of one that is over, or silent for long
//! enough: of the same member, or of the one that has most, if that has more. So a member that
//! opens flows without end takes room from itself before others.
//!
//! Invariant: bounded in all and per member.

use core::net::Ipv6Addr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use shoal_wire::{DropReason, Time};

use crate::Access;

mod closed;
mod table;

use closed::Closed;
use table::{Standing, Table};

const TCP: u8 = 6;
const UDP: u8 = 17;

/// What a packet's headers say about its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// TCP.
    Tcp(Segment),
    /// UDP.
    Udp,
    /// ICMP of either version: a question that may begin, such as an echo request.
    Question,
    /// ICMP: the answer to one.
    Answer,
    /// ICMP: an error about a packet of the flow that the tuple names.
    Trouble,
    /// Another protocol; flows of those have no ports.
    Other,
}

/// What a TCP segment does to its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// SYN without ACK.
    Begins,
    /// Neither.
    Goes,
    /// FIN: its sender has said everything.
    Leaves,
    /// RST.
    Resets,
}

/// One direction of a flow, seen from this host. IPv4 addresses stand as `::ffff:a.b.c.d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// IP protocol.
    pub protocol: u8,
    /// This host's end.
    pub ours: (Ipv6Addr, u16),
    /// The member's end. ICMP has its identifier as both ports.
    pub theirs: (Ipv6Addr, u16),
    /// What the packet does to its flow.
    pub opening: Opening,
}

/// How much is remembered, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Flows in all; each takes about 190 bytes.
    pub flows: usize,
    /// Flows with one member.
    pub flows_per_member: usize,
    /// TCP that both ends spoke on (RFC 5382 section 5: at least 2 h 4 min).
    pub tcp: Duration,
    /// TCP that one end left, or that only one end spoke on.
    pub tcp_transient: Duration,
    /// TCP that both ends left, or one reset: what is still on the way may arrive.
    pub tcp_over: Duration,
    /// UDP that both ends spoke on (RFC 4787 section 4.3: at least 2 min).
    pub udp: Duration,
    /// Everything else.
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
enum Owner {
    Us,
    Them,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flow {
    owner: Owner,
    /// Who spoke: this host, the member.
    spoke: (bool, bool),
    /// Who left a TCP connection.
    left: (bool, bool),
    reset: bool,
    heard: Time,
    until: Time,
}

/// Members' rights and flows, as this host sees them.
#[derive(Debug, Default)]
pub struct Firewall {
    limits: Limits,
    access: BTreeMap<u32, Arc<Access>>,
    table: Table,
    closed: Closed,
    displaced: u64,
}

impl Firewall {
    /// Nobody has rights.
    pub fn new(limits: Limits) -> Firewall {
        Firewall { limits, ..Firewall::default() }
    }

    /// Puts other rights in force. Members that are not in `access` have none, and their flows are
    /// forgotten; flows that a member might not begin any more are closed.
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
            let stays = flow.owner == Owner::Us || may_begin(access, protocol, port);
            if !stays && answers_may_begin(protocol) {
                closed.close(key.member, (protocol, port), flow.until);
            }
            stays.then_some(flow)
        });
    }

    /// Forgets a member, since another may get its number.
    pub fn forget(&mut self, member: u32) {
        self.access.remove(&member);
        self.table.forget(member);
        self.closed.forget(member);
    }

    /// Notes a packet of this host's programs to `member`.
    ///
    /// Errors: the table is full, or has too many flows of this member: an answer would not pass,
    /// so the packet need not leave.
    pub fn outbound(&mut self, now: Time, member: u32, tuple: &Tuple) -> Result<(), DropReason> {
        let key = key(member, tuple);
        let begins = match tuple.opening {
            Opening::Tcp(segment) => segment == Segment::Begins,
            Opening::Udp | Opening::Question | Opening::Other => true,
            Opening::Answer => false,
            Opening::Trouble => return Ok(()),
        };
        let anew = tuple.opening == Opening::Tcp(Segment::Begins);
        match self.alive(now, &key) {
            Some(flow) if anew && flow.is_over() => {
                self.note(now, key, Flow::new(Owner::Us), tuple.opening, true);
                Ok(())
            }
            Some(flow) => {
                self.note(now, key, flow, tuple.opening, true);
                Ok(())
            }
            None if begins && self.is_closed(now, &key) => Ok(()),
            None if begins => self.begin(now, key, Owner::Us, tuple.opening),
            // No flow is needed: answers pass by the rights of the member, or not at all.
            None => Ok(()),
        }
    }

    /// Whether a packet from `member` may pass to this host's programs.
    ///
    /// Errors: what is counted.
    pub fn inbound(&mut self, now: Time, member: u32, tuple: &Tuple) -> Result<(), DropReason> {
        let key = key(member, tuple);
        let Some(access) = self.access.get(&member) else { return Err(DropReason::PolicyDenied) };
        let may = may_begin(access, tuple.protocol, tuple.ours.1);
        let flow = self.alive(now, &key);
        if tuple.opening == Opening::Trouble {
            return flow.map(|_| ()).ok_or(DropReason::IpStrayError);
        }
        let anew = tuple.opening == Opening::Tcp(Segment::Begins);
        match flow {
            Some(flow) if anew && may && flow.is_over() => {
                self.note(now, key, Flow::new(Owner::Them), tuple.opening, false);
                Ok(())
            }
            // Without the right a member can't begin one in the place of a flow that is over.
            Some(flow) if anew && flow.is_over() => Err(DropReason::PolicyDenied),
            Some(flow) => {
                self.note(now, key, flow, tuple.opening, false);
                Ok(())
            }
            // An answer, or the middle of a connection, is fine where its beginning would be: this
            // host may have restarted since.
            None if may => self.begin(now, key, Owner::Them, tuple.opening),
            None => Err(DropReason::PolicyDenied),
        }
    }

    /// A flow that has not run out.
    fn alive(&self, now: Time, key: &Key) -> Option<Flow> {
        self.table.get(key).filter(|flow| flow.until > now)
    }

    /// Whether a packet of this host's programs answers what a member may not ask any more.
    fn is_closed(&mut self, now: Time, key: &Key) -> bool {
        let service = (key.protocol, key.ports.0);
        let until = now + self.limits.udp;
        answers_may_begin(key.protocol) && self.closed.bars(now, key.member, service, until)
    }

    fn note(&mut self, now: Time, key: Key, flow: Flow, opening: Opening, ours: bool) {
        self.table.put(key, flow.noted(now, &self.limits, &key, opening, ours));
    }

    fn begin(
        &mut self,
        now: Time,
        key: Key,
        owner: Owner,
        opening: Opening,
    ) -> Result<(), DropReason> {
        self.table.tidy(now, key.member);
        self.closed.tidy(now);
        if self.table.get(&key).is_none() && !self.has_room(now, key.member) {
            return Err(DropReason::IpFlows);
        }
        self.note(now, key, Flow::new(owner), opening, owner == Owner::Us);
        Ok(())
    }

    /// Makes room for one flow of `member`, where there is none.
    fn has_room(&mut self, now: Time, member: u32) -> bool {
        let share = self.table.share(member);
        let gone = if share >= self.limits.flows_per_member {
            self.table.make_room(now, member, false)
        } else if self.table.len() < self.limits.flows {
            return true;
        } else {
            match self.table.largest() {
                // A member that has less than another gets what it asks for.
                Some((most, other)) if share < most => self.table.make_room(now, other, true),
                _ => self.table.make_room(now, member, false),
            }
        };
        self.displaced += u64::from(gone == Some(true));
        gone.is_some()
    }

    /// Flows remembered, including those that ran out and were not looked at since.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// True when no flow is remembered.
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Flows that were forgotten before their time, since others needed room.
    pub fn displaced(&self) -> u64 {
        self.displaced
    }
}

impl Flow {
    fn new(owner: Owner) -> Flow {
        let nobody = (false, false);
        Flow {
            owner,
            spoke: nobody,
            left: nobody,
            reset: false,
            heard: Time::ZERO,
            until: Time::ZERO,
        }
    }

    /// The flow after one more packet: of this host if `ours`, else of the member.
    fn noted(
        mut self,
        now: Time,
        limits: &Limits,
        key: &Key,
        opening: Opening,
        ours: bool,
    ) -> Flow {
        let end = |(us, them): &mut (bool, bool)| if ours { *us = true } else { *them = true };
        end(&mut self.spoke);
        match opening {
            // A new connection may use the ports of one that has ended.
            Opening::Tcp(Segment::Begins) => (self.left, self.reset) = ((false, false), false),
            Opening::Tcp(Segment::Leaves) => end(&mut self.left),
            Opening::Tcp(Segment::Resets) => self.reset = true,
            // This host's kernel goes on sending, so it did not accept the reset.
            Opening::Tcp(Segment::Goes) if ours => self.reset = false,
            _ => {}
        }
        let keep = match self.standing(key.protocol) {
            Standing::Over => limits.tcp_over,
            Standing::Tcp => limits.tcp,
            Standing::Udp => limits.udp,
            _ if key.protocol == TCP => limits.tcp_transient,
            _ => limits.other,
        };
        (self.heard, self.until) = (now, now + keep);
        self
    }

    /// Both ends have left, or one has reset it.
    fn is_over(&self) -> bool {
        self.reset || self.left == (true, true)
    }

    fn standing(&self, protocol: u8) -> Standing {
        match protocol {
            TCP if self.is_over() => Standing::Over,
            _ if self.spoke != (true, true) => Standing::Unanswered,
            TCP if self.left == (false, false) => Standing::Tcp,
            UDP => Standing::Udp,
            _ => Standing::Brief,
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

/// Whether an answer of this protocol looks like the beginning of a flow.
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
