//! Which covered link has its next slot when.

use core::time::Duration;
use std::collections::BTreeSet;

use shoal_wire::{LinkId, Time};

use crate::neighbours::Neighbours;

/// Which links have their next slot when.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    due: BTreeSet<(Time, LinkId)>,
}

impl Slots {
    pub(crate) fn next(&self) -> Option<Time> {
        self.due.first().map(|&(at, _)| at)
    }

    /// Links that have an entry.
    pub(crate) fn links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.due.iter().map(|&(_, link)| link)
    }

    pub(super) fn pop(&mut self, now: Time) -> Option<LinkId> {
        let due = self.due.first().is_some_and(|&(at, _)| at <= now);
        if due { self.due.pop_first().map(|(_, link)| link) } else { None }
    }

    pub(super) fn set(&mut self, link: LinkId, listed: &mut Option<Time>, at: Option<Time>) {
        if let Some(old) = core::mem::replace(listed, at) {
            self.due.remove(&(old, link));
        }
        self.due.extend(at.map(|at| (at, link)));
    }

    /// Makes an entry for a link that should have one and has none.
    pub(crate) fn refresh(&mut self, neighbours: &mut Neighbours, link: LinkId) {
        let Some(neighbour) = neighbours.get_quietly(link) else { return };
        let scheduled = neighbour.is_scheduled();
        let Some(cover) = neighbour.cover.as_mut().filter(|cover| cover.listed.is_none()) else {
            return;
        };
        let at = match cover.off {
            Some((_, again)) => Some(again),
            None => scheduled.then_some(Time::ZERO),
        };
        self.set(link, &mut cover.listed, at);
    }
}

/// Has frames leave equally late in the mean, however busy the node is: the time between a slot and
/// its frames is load, and who averages over a minute would see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Punctual {
    /// Nanoseconds that a timer is late, in the mean of its last times.
    late_ns: u64,
}

impl Default for Punctual {
    fn default() -> Punctual {
        Punctual { late_ns: Punctual::MEAN.as_nanos() as u64 / 2 }
    }
}

impl Punctual {
    /// How late frames are to be.
    const MEAN: Duration = Duration::from_micros(120);
    /// A timer that is later than this counts as one that is so late.
    const LATE_MAX: Duration = Duration::from_millis(1);
    /// A new value has this share of the mean.
    const SHARE: u64 = 32;

    pub(super) fn woke(&mut self, late: Duration) {
        let late = late.min(Punctual::LATE_MAX).as_nanos() as u64;
        self.late_ns = (self.late_ns * (Punctual::SHARE - 1) + late) / Punctual::SHARE;
    }

    /// When the timer is to end for a slot.
    pub(super) fn wake_for(self, slot: Time) -> Time {
        slot + Punctual::MEAN.saturating_sub(Duration::from_nanos(self.late_ns))
    }
}
