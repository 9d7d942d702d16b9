//! The inbound firewall of one host: which packets of other members reach its programs.
//!
//! ```text
//! outbound packet -> note: what this host began may be answered
//! inbound packet  -> of a known flow? else: may its sender begin it? else: dropped by name
//! ```
//!
//! A flow belongs to whoever began it. When rights change, flows that their sender might not begin
//! any more are closed, and stay closed while this host's own programs still answer them: their
//! packets must not pass for a flow that this host began.
//!
//! Invariant: bounded in all and per member, so that one member can fill its own share only.

use core::net::Ipv6Addr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use shoal_wire::{DropReason, Time};

use crate::Access;

/// What a packet's headers say about its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// TCP: SYN without ACK begins, FIN or RST ends.
    Tcp {
        /// It begins a connection.
        begins: bool,
        /// It ends one.
        ends: bool,
    },
    /// UDP.
    Udp,
    /// ICMP of either version: a question that may begin, such as an echo request.
    Question,
    /// ICMP: the answer to one.
    Answer,
    /// ICMP: an error about another packet.
    Trouble,
    /// Another protocol; flows of those have no ports.
    Other,
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
    /// Flows in all.
    pub flows: usize,
    /// Flows with one member.
    pub flows_per_member: usize,
    /// TCP that both ends spoke on (RFC 5382 section 5: at least 2 h 4 min).
    pub tcp: Duration,
    /// TCP that one end left, or that only one end spoke on.
    pub tcp_transient: Duration,
    /// UDP that both ends spoke on (RFC 4787 section 4.3: at least 2 min).
    pub udp: Duration,
    /// Everything else.
    pub other: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            flows: 65_536,
            flows_per_member: 8_192,
            tcp: Duration::from_secs(7_440),
            tcp_transient: Duration::from_secs(60),
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
    /// Whoever began it may not any more.
    Closed,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    owner: Owner,
    /// Who spoke: this host, the member.
    spoke: (bool, bool),
    ended: bool,
    until: Time,
}

/// Members' rights and flows, as this host sees them.
#[derive(Debug, Default)]
pub struct Firewall {
    limits: Limits,
    access: BTreeMap<u32, Arc<Access>>,
    flows: BTreeMap<Key, Flow>,
    per_member: BTreeMap<u32, usize>,
    swept: Time,
}

/// A full table is searched for flows that ran out at most this often.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

impl Firewall {
    /// Nobody has rights.
    pub fn new(limits: Limits) -> Firewall {
        Firewall { limits, ..Firewall::default() }
    }

    /// Puts other rights in force. Members that are not in `access` have none, and their flows are
    /// forgotten; flows that a member might not begin any more are closed.
    pub fn set_access(&mut self, access: BTreeMap<u32, Arc<Access>>) {
        self.access = access;
        let Firewall { access, flows, per_member, .. } = self;
        flows.retain(|key, flow| {
            let Some(access) = access.get(&key.member) else { return false };
            if flow.owner == Owner::Them && !may_begin(access, key.protocol, key.ports.0) {
                flow.owner = Owner::Closed;
            }
            true
        });
        per_member.clear();
        for key in flows.keys() {
            *per_member.entry(key.member).or_default() += 1;
        }
    }

    /// Forgets a member, since another may get its number.
    pub fn forget(&mut self, member: u32) {
        self.access.remove(&member);
        self.flows.retain(|key, _| key.member != member);
        self.per_member.remove(&member);
    }

    /// Notes a packet of this host's programs to `member`.
    ///
    /// Errors: the table is full, or has too many flows of this member: an answer would not pass,
    /// so the packet need not leave.
    pub fn outbound(&mut self, now: Time, member: u32, tuple: &Tuple) -> Result<(), DropReason> {
        let key = key(member, tuple);
        let begins = match tuple.opening {
            Opening::Tcp { begins, .. } => begins,
            Opening::Udp | Opening::Question | Opening::Other => true,
            Opening::Answer => false,
            Opening::Trouble => return Ok(()),
        };
        let limits = self.limits;
        if let Some(flow) = self.flows.get_mut(&key).filter(|flow| flow.until > now) {
            let tcp = matches!(tuple.opening, Opening::Tcp { .. });
            if flow.owner == Owner::Closed && tcp && begins {
                *flow = Flow { owner: Owner::Us, spoke: (false, false), ended: false, ..*flow };
            }
            flow.note(now, &limits, tuple.opening, true);
            return Ok(());
        }
        if !begins {
            // Without rights of the member nothing would come back; with them nothing is needed.
            return Ok(());
        }
        self.begin(now, key, Owner::Us, tuple.opening)
    }

    /// Whether a packet from `member` may pass to this host's programs.
    ///
    /// Errors: what is counted.
    pub fn inbound(&mut self, now: Time, member: u32, tuple: &Tuple) -> Result<(), DropReason> {
        let key = key(member, tuple);
        let Some(access) = self.access.get(&member) else { return Err(DropReason::PolicyDenied) };
        if tuple.opening == Opening::Trouble {
            // The kernel checks which of its flows an error is about; here it is enough that there
            // may be one.
            let flows = self.per_member.get(&member).is_some_and(|flows| *flows > 0);
            let may = flows || access.has_icmp();
            return if may { Ok(()) } else { Err(DropReason::PolicyDenied) };
        }
        let limits = self.limits;
        let may = may_begin(access, tuple.protocol, tuple.ours.1);
        if let Some(flow) = self.flows.get_mut(&key).filter(|flow| flow.until > now) {
            match flow.owner {
                Owner::Closed if !may => return Err(DropReason::PolicyDenied),
                Owner::Closed => flow.owner = Owner::Them,
                Owner::Us | Owner::Them => {}
            }
            flow.note(now, &limits, tuple.opening, false);
            return Ok(());
        }
        // An answer, or the middle of a connection, is fine where its beginning would be: this
        // host may have restarted since.
        if !may {
            return Err(DropReason::PolicyDenied);
        }
        self.begin(now, key, Owner::Them, tuple.opening)
    }

    fn begin(
        &mut self,
        now: Time,
        key: Key,
        owner: Owner,
        opening: Opening,
    ) -> Result<(), DropReason> {
        let share = self.per_member.get(&key.member).copied().unwrap_or(0);
        let full = share >= self.limits.flows_per_member || self.flows.len() >= self.limits.flows;
        if full && !self.flows.contains_key(&key) && !self.sweep(now, key.member) {
            return Err(DropReason::IpFlows);
        }
        let mut flow = Flow { owner, spoke: (false, false), ended: false, until: now };
        flow.note(now, &self.limits, opening, owner == Owner::Us);
        if self.flows.insert(key, flow).is_none() {
            *self.per_member.entry(key.member).or_default() += 1;
        }
        Ok(())
    }

    /// Forgets flows that ran out; says whether `member` may have one more now.
    fn sweep(&mut self, now: Time, member: u32) -> bool {
        if now.since(self.swept) < SWEEP_EVERY && self.swept != Time::ZERO {
            return false;
        }
        self.swept = now;
        let per_member = &mut self.per_member;
        self.flows.retain(|key, flow| {
            let keep = flow.until > now;
            if !keep && let Some(count) = per_member.get_mut(&key.member) {
                *count -= 1;
            }
            keep
        });
        let share = self.per_member.get(&member).copied().unwrap_or(0);
        share < self.limits.flows_per_member && self.flows.len() < self.limits.flows
    }

    /// Flows remembered, those that ran out and were not met since among them.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// True when no flow is remembered.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }
}

impl Flow {
    fn note(&mut self, now: Time, limits: &Limits, opening: Opening, ours: bool) {
        if ours {
            self.spoke.0 = true;
        } else {
            self.spoke.1 = true;
        }
        let both = self.spoke == (true, true);
        let keep = match opening {
            Opening::Tcp { begins, ends } => {
                // A new connection may use the ports of one that has ended.
                self.ended = ends || (self.ended && !begins);
                if both && !self.ended { limits.tcp } else { limits.tcp_transient }
            }
            Opening::Udp if both => limits.udp,
            _ => limits.other,
        };
        self.until = now + keep;
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
    /// A number that spreads.
    pub(crate) fn hash(&self) -> u64 {
        let address = |a: Ipv6Addr| a.to_bits() as u64;
        let ports = u64::from(self.ports.0) << 16 | u64::from(self.ports.1);
        let seen = address(self.theirs) ^ address(self.ours).rotate_left(17);
        let seen = seen ^ ports << 13 ^ u64::from(self.member) << 45;
        // Fibonacci hashing.
        seen.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
    }
}

fn may_begin(access: &Access, protocol: u8, port: u16) -> bool {
    match protocol {
        6 => access.has_tcp(port),
        17 => access.has_udp(port),
        1 | 58 => access.has_icmp(),
        _ => access.is_everything(),
    }
}

#[cfg(test)]
mod tests;
