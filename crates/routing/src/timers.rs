//! The machine's timers: one entry per reason and object.

use std::collections::{BTreeMap, BTreeSet};

use shoal_wire::{LinkId, Time};

/// A timer's reason and object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// Send the link's next query, or close its cycle.
    Query(LinkId),
    /// Repeat the link's hello.
    Hello(LinkId),
    /// Send changed routes on the link.
    Flush(LinkId),
    /// Count the oldest unacknowledged update on the link as lost.
    Retransmit(LinkId),
    /// Repeat the sequence number request for the destination.
    Request(u32),
    /// Sign our own proof anew, since it ages.
    Refresh,
    /// Make the new sequence number that a neighbour requested.
    Seqno,
    /// Check proofs for age, and request sequence numbers for destinations without a route.
    Housekeeping,
}

impl Timer {
    fn reason(self) -> &'static str {
        match self {
            Timer::Query(_) => "route query",
            Timer::Hello(_) => "route hello",
            Timer::Flush(_) => "route update",
            Timer::Retransmit(_) => "route retransmit",
            Timer::Request(_) => "route request",
            Timer::Refresh => "route refresh",
            Timer::Seqno => "route seqno",
            Timer::Housekeeping => "route housekeeping",
        }
    }
}

/// Timers by due time.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    at: BTreeMap<Timer, Time>,
    order: BTreeSet<(Time, Timer)>,
}

impl Timers {
    /// Arms `timer` for `at`, and replaces an earlier setting.
    pub(crate) fn set(&mut self, timer: Timer, at: Time) {
        if let Some(old) = self.at.insert(timer, at) {
            self.order.remove(&(old, timer));
        }
        self.order.insert((at, timer));
    }

    /// Arms `timer` for `at`, unless it is due earlier.
    pub(crate) fn set_by(&mut self, timer: Timer, at: Time) {
        if self.at.get(&timer).is_none_or(|old| *old > at) {
            self.set(timer, at);
        }
    }

    pub(crate) fn clear(&mut self, timer: Timer) {
        if let Some(old) = self.at.remove(&timer) {
            self.order.remove(&(old, timer));
        }
    }

    pub(crate) fn is_set(&self, timer: Timer) -> bool {
        self.at.contains_key(&timer)
    }

    /// Removes and returns the first timer due at `now`.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<Timer> {
        let (at, timer) = *self.order.first()?;
        if at > now {
            return None;
        }
        self.clear(timer);
        Some(timer)
    }

    pub(crate) fn next(&self) -> Option<(Time, &'static str)> {
        self.order.first().map(|(at, timer)| (*at, timer.reason()))
    }
}
