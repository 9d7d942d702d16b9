//! Departure times of frames on a covered link: slots that depend only on a seed and the clock.

use core::time::Duration;

use shoal_wire::{CoverKind, CoverTier, Jitter, Time};

/// The slots of one direction of a covered link.
///
/// ```text
/// constant   |--x---------|x-----------|----x-------|   one slot in the first half of each gap
/// Poisson    -x--x------------x-x-----------x---------   gaps are exponential
/// ```
///
/// Slots are not at exact multiples of the gap, for this reason: a frame leaves some microseconds
/// late if the node has other work. With equal gaps, an observer would see only that lateness, and
/// thereby the work. Random gaps conceal it.
#[derive(Debug)]
pub struct SlotSchedule {
    tier: CoverTier,
    jitter: Jitter,
    /// Start of the gap that contains the next slot.
    from: Time,
    next: Time,
    skipped: u64,
}

/// Maximum suspension whose missed slots are made up by sending their frames at once. After a
/// longer one, such as a machine's sleep, only this last second is made up.
const MADE_GOOD: Duration = Duration::from_secs(1);

impl SlotSchedule {
    /// A schedule that begins at `now`. `seed` determines the slots' times. It needs no secrecy,
    /// since an observer of the link sees these times anyway.
    pub fn new(tier: CoverTier, seed: u64, now: Time) -> SlotSchedule {
        let mut schedule =
            SlotSchedule { tier, jitter: Jitter::new(seed), from: now, next: now, skipped: 0 };
        schedule.next = schedule.draw(now);
        schedule
    }

    /// Restarts the schedule at `now`. Earlier slots are dropped.
    pub fn begin(&mut self, now: Time) {
        self.from = now;
        self.next = self.draw(now);
    }

    pub fn tier(&self) -> CoverTier {
        self.tier
    }

    /// Time of the next slot.
    pub fn next(&self) -> Time {
        self.next
    }

    /// Number of slots skipped because the node was suspended for more than a second.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Takes a slot if one is due. Returns true if it did.
    pub fn take(&mut self, now: Time) -> bool {
        if self.next > now {
            return false;
        }
        if now.since(self.next) > MADE_GOOD {
            // Skips all slots but those of the last second.
            let lost = (now.since(self.from) - MADE_GOOD).as_nanos() / self.tier.gap().as_nanos();
            let lost = u64::try_from(lost).unwrap_or(u64::MAX);
            self.skipped += lost;
            self.from = now - MADE_GOOD;
        } else {
            self.from = match self.tier.kind() {
                CoverKind::Constant => self.from + self.tier.gap(),
                CoverKind::Poisson => self.next,
            };
        }
        self.next = self.draw(self.from);
        true
    }

    fn draw(&mut self, from: Time) -> Time {
        let gap = self.tier.gap();
        from + match self.tier.kind() {
            CoverKind::Constant => self.jitter.below(gap / 2),
            CoverKind::Poisson => self.jitter.exponential(gap),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_millis(5_000);

    fn schedule(kind: CoverKind) -> SlotSchedule {
        SlotSchedule::new(CoverTier::new(10, kind).unwrap(), 7, START)
    }

    /// Times of the slots that a node takes if it calls at the times `looks`.
    fn taken(kind: CoverKind, looks: impl Iterator<Item = Time>) -> Vec<Time> {
        let mut schedule = schedule(kind);
        let mut slots = Vec::new();
        for now in looks {
            loop {
                let at = schedule.next();
                if !schedule.take(now) {
                    break;
                }
                slots.push(at);
            }
        }
        assert_eq!(schedule.skipped(), 0);
        slots
    }

    #[test]
    fn slots_are_the_same_however_often_and_late_somebody_looks() {
        for kind in [CoverKind::Constant, CoverKind::Poisson] {
            let end = START + Duration::from_secs(20);
            let each_us =
                |us: u64| (0..=20_000_000 / us).map(move |n| START + Duration::from_micros(n * us));
            let often = taken(kind, each_us(50).chain([end]));
            let seldom = taken(kind, each_us(700_000).chain([end]));
            assert_eq!(often, seldom);
            let wanted = 20e9 / CoverTier::new(10, kind).unwrap().gap().as_nanos() as f64;
            let few = if kind == CoverKind::Constant { 1.0 } else { 5.0 * wanted.sqrt() };
            assert!((often.len() as f64 - wanted).abs() <= few, "{} of {wanted}", often.len());
        }
    }

    #[test]
    fn a_constant_schedule_has_one_slot_in_each_gap() {
        let gap = schedule(CoverKind::Constant).tier().gap();
        let slots = taken(CoverKind::Constant, [START + Duration::from_millis(900)].into_iter());
        for (n, slot) in (0..).zip(&slots) {
            let begins = START + gap * n;
            assert!(*slot >= begins && slot.since(begins) < gap / 2, "slot {n}");
        }
    }

    #[test]
    fn gaps_of_a_poisson_schedule_are_exponential() {
        let looks = (1..=40).map(|n| START + Duration::from_millis(n * 900));
        let slots = taken(CoverKind::Poisson, looks);
        let mean = schedule(CoverKind::Poisson).tier().gap().as_secs_f64();
        let gaps: Vec<f64> =
            slots.windows(2).map(|two| two[1].since(two[0]).as_secs_f64() / mean).collect();
        for (above, share) in [(0.1f64, 0.9048), (0.693, 0.5), (2.303, 0.1), (4.605, 0.01)] {
            let seen = gaps.iter().filter(|gap| **gap > above).count() as f64 / gaps.len() as f64;
            assert!((seen - share).abs() < 0.015, "{seen} above {above}");
        }
    }

    #[test]
    fn a_node_that_slept_sends_no_more_than_a_second_of_slots() {
        for kind in [CoverKind::Constant, CoverKind::Poisson] {
            let mut schedule = schedule(kind);
            let hour = Duration::from_secs(3_600);
            let now = START + hour;
            let taken = (0..).take_while(|_| schedule.take(now)).count() as f64;
            let second = 1e9 / schedule.tier().gap().as_nanos() as f64;
            assert!((taken - second).abs() < 0.2 * second, "{taken}");
            let all = hour.as_secs_f64() * second;
            assert!((schedule.skipped() as f64 + taken - all).abs() < 0.01 * all);
        }
    }
}
