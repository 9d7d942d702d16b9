//! The list of covered links by the time of their next slot.

use core::time::Duration;
use std::collections::BTreeSet;

use shoal_wire::{LinkId, Time};

use crate::neighbours::Neighbours;

/// Covered links in the order of their next slots.
#[derive(Debug, Default)]
pub(crate) struct SlotQueue {
    due: BTreeSet<(Time, LinkId)>,
}

impl SlotQueue {
    pub(crate) fn next(&self) -> Option<Time> {
        self.due.first().map(|&(at, _)| at)
    }

    /// Links with an entry.
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

    /// Makes an entry for a link that needs one and has none.
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

/// Equalises the mean delay of frames, however busy the node is. The time between a slot and its
/// frames shows load, and an observer could average it over a minute.
#[derive(Clone, Copy, Debug)]
pub(super) struct LatenessEqualizer {
    /// Mean lateness of recent timers in nanoseconds.
    late_ns: u64,
}

impl Default for LatenessEqualizer {
    fn default() -> LatenessEqualizer {
        LatenessEqualizer { late_ns: LatenessEqualizer::MEAN.as_nanos() as u64 / 2 }
    }
}

impl LatenessEqualizer {
    /// Intended mean delay of frames.
    const MEAN: Duration = Duration::from_micros(120);
    /// Upper bound of one timer's lateness as it enters the mean.
    const LATE_MAX: Duration = Duration::from_millis(1);
    /// Divisor of a new value's weight in the mean.
    const SHARE: u64 = 32;

    pub(super) fn woke(&mut self, late: Duration) {
        let late = late.min(LatenessEqualizer::LATE_MAX).as_nanos() as u64;
        self.late_ns =
            (self.late_ns * (LatenessEqualizer::SHARE - 1) + late) / LatenessEqualizer::SHARE;
    }

    /// Wake-up time for a slot.
    pub(super) fn wake_for(self, slot: Time) -> Time {
        slot + LatenessEqualizer::MEAN.saturating_sub(Duration::from_nanos(self.late_ns))
    }
}
