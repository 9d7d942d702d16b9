//! The machine's timers: one entry per reason and object.

use std::collections::{BTreeMap, BTreeSet};

use shoal_wire::{LinkId, Time};

/// What may fall due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// When the link's next query is to be sent, or its cycle to be closed.
    Query(LinkId),
    /// When the link's hello is to be repeated.
    Hello(LinkId),
    /// When changed routes may go out on the link.
    Flush(LinkId),
    /// When the oldest unacknowledged update on the link counts as lost.
    Retransmit(LinkId),
    /// When a sequence number request for the destination is to be repeated.
    Request(u32),
    /// When our own route is to be signed afresh because its proof ages.
    Refresh,
    /// When a new sequence number that somebody asked for may be made.
    Seqno,
    /// When proofs are checked for age, and destinations without a route asked for again.
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

/// Timers in the order in which they fall due.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    at: BTreeMap<Timer, Time>,
    order: BTreeSet<(Time, Timer)>,
}

impl Timers {
    /// Arms `timer` for `at`, in place of whatever it was armed for.
    pub(crate) fn set(&mut self, timer: Timer, at: Time) {
        if let Some(old) = self.at.insert(timer, at) {
            self.order.remove(&(old, timer));
        }
        self.order.insert((at, timer));
    }

    /// Arms `timer` for `at` unless it is due earlier already.
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

    /// Takes out the first timer that is due at `now`.
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
