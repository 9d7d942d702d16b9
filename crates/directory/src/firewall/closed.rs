//! Services of this host whose flows with a member were closed, since it may begin them no more.
//!
//! A program that goes on answering must not turn the member's flow into one of its own. An answer
//! on TCP or ICMP does not look like a beginning; one on UDP does. So from such a service nothing
//! to this member begins a flow, until the program has been silent towards it for a while.
//!
//! Invariant: bounded. Where there is no room more services are closed, never fewer.

use core::ops::Bound;
use std::collections::BTreeMap;

use shoal_wire::Time;

/// Services of one member that are known one by one; if there are more, all of them are closed.
const SERVICES_MAX: usize = 256;
/// As [`SERVICES_MAX`], of all members together.
const ALL_MAX: usize = 16_384;
/// Entries that are looked at for each flow that begins.
const TIDIED: usize = 2;

/// A protocol and this host's port.
type Service = (u8, u16);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Closed {
    /// Until when a member's service is closed; `None` stands for all its services.
    until: BTreeMap<(u32, Option<Service>), Time>,
    tidied: (u32, Option<Service>),
}

impl Closed {
    /// Closes a service for a member.
    pub(crate) fn close(&mut self, member: u32, service: Service, until: Time) {
        let all = (member, None);
        let one = (member, Some(service));
        let known = self.until.contains_key(&one);
        let at = match self.until.contains_key(&all) || !known && self.is_full(member) {
            false => one,
            true => {
                self.join(member);
                all
            }
        };
        let kept = self.until.entry(at).or_insert(until);
        *kept = until.max(*kept);
    }

    fn is_full(&self, member: u32) -> bool {
        self.until.len() >= ALL_MAX || self.services(member).count() >= SERVICES_MAX
    }

    fn services(&self, member: u32) -> impl Iterator<Item = (&(u32, Option<Service>), &Time)> {
        self.until.range((member, None)..=(member, Some((u8::MAX, u16::MAX))))
    }

    /// Makes one entry of all those of a member.
    fn join(&mut self, member: u32) {
        let last = self.services(member).map(|(_, until)| *until).max();
        self.forget(member);
        self.until.insert((member, None), last.unwrap_or(Time::ZERO));
    }

    /// Whether `service` is closed for a member, so that its packets begin no flow. If it is, it
    /// stays so until `keep_until` at least.
    pub(crate) fn bars(
        &mut self,
        now: Time,
        member: u32,
        service: Service,
        keep_until: Time,
    ) -> bool {
        let mut barred = false;
        for of in [None, Some(service)] {
            if let Some(until) = self.until.get_mut(&(member, of)).filter(|until| **until > now) {
                *until = keep_until.max(*until);
                barred = true;
            }
        }
        barred
    }

    /// Opens what a member may begin again: `may` says that of a service, or of all.
    pub(crate) fn review(&mut self, may: impl Fn(u32, Option<Service>) -> bool) {
        self.until.retain(|(member, service), _| !may(*member, *service));
    }

    /// Forgets what is closed for a member.
    pub(crate) fn forget(&mut self, member: u32) {
        let all: Vec<_> = self.services(member).map(|(at, _)| *at).collect();
        for at in all {
            self.until.remove(&at);
        }
    }

    /// Forgets some entries whose time is over, each in its turn.
    pub(crate) fn tidy(&mut self, now: Time) {
        for _ in 0..TIDIED {
            let rest = (Bound::Excluded(self.tidied), Bound::Unbounded);
            let next = self.until.range(rest).next().or(self.until.first_key_value());
            let Some((&at, &until)) = next else { return };
            self.tidied = at;
            if until <= now {
                self.until.remove(&at);
            }
        }
    }
}

#[cfg(test)]
impl Closed {
    pub(crate) fn len(&self) -> usize {
        self.until.len()
    }
}
