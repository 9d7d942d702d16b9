//! Services of this host that a member may no longer use, but whose programs may still answer.
//!
//! Answers of such a program must not turn the member's flow into a flow of this host. A TCP or
//! ICMP answer does not look like a beginning; a UDP answer does. So packets from a closed service
//! to the member begin no flow, until the program has been silent for a while.
//!
//! Invariant: the number of entries is bounded. When there is no room, more services are closed,
//! never fewer.

use core::ops::Bound;
use std::collections::BTreeMap;

use shoal_wire::Time;

/// Maximum number of entries per member. Above it, all services are closed for the member.
const SERVICES_MAX: usize = 256;
/// Maximum number of entries of all members together.
const ALL_MAX: usize = 16_384;
/// Entries checked for expiry whenever a flow begins.
const TIDIED: usize = 2;

/// IP protocol, and port of this host.
type Service = (u8, u16);

#[derive(Debug, Default)]
pub(crate) struct ClosedServices {
    /// End of the closure, by member and service; `None` means all services.
    until: BTreeMap<(u32, Option<Service>), Time>,
    tidied: (u32, Option<Service>),
}

impl ClosedServices {
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

    /// Replaces a member's entries by one for all services.
    fn join(&mut self, member: u32) {
        let last = self.services(member).map(|(_, until)| *until).max();
        self.forget(member);
        self.until.insert((member, None), last.unwrap_or(Time::ZERO));
    }

    /// True if `service` is closed for a member, so that its packets begin no flow. Such a closure
    /// is extended to at least `keep_until`.
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

    /// Removes closures of services that a member may use again, by `may`; `None` asks for all
    /// services.
    pub(crate) fn review(&mut self, may: impl Fn(u32, Option<Service>) -> bool) {
        self.until.retain(|(member, service), _| !may(*member, *service));
    }

    /// Removes a member's closures.
    pub(crate) fn forget(&mut self, member: u32) {
        let all: Vec<_> = self.services(member).map(|(at, _)| *at).collect();
        for at in all {
            self.until.remove(&at);
        }
    }

    /// Removes some expired entries, in turn.
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
impl ClosedServices {
    pub(crate) fn len(&self) -> usize {
        self.until.len()
    }
}
