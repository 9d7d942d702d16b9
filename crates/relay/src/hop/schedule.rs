//! Interface identifiers that follow from a secret and an epoch, and the lengths of epochs.
//!
//! Epochs of one length would have a phase that outlives every address: whoever sees many links
//! could follow each by the time of its shifts. So the secret draws each length, and the time of a
//! shift says nothing of the time of a later one but for its mean.

use core::cell::Cell;
use core::time::Duration;

use shoal_crypto::{Secret, kdf};
use shoal_wire::Time;

/// One of the two ends of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum End {
    /// The one with the smaller key, which leads.
    Leading = 0,
    /// The other one.
    Following = 1,
}

impl End {
    /// The end across.
    pub fn other(self) -> End {
        match self {
            End::Leading => End::Following,
            End::Following => End::Leading,
        }
    }
}

/// Interface identifiers that have a meaning of their own (RFC 5453 and its registry), first and
/// last: the routers' anycast address, the block of IANA's Ethernet numbers, anycast groups.
const RESERVED: [(u64, u64); 3] = [
    (0, 0),
    (0x0200_5eff_fe00_0000, 0x0200_5eff_feff_ffff),
    (0xfdff_ffff_ffff_ff80, 0xfdff_ffff_ffff_ffff),
];

/// Whether no machine may use this interface identifier.
pub fn is_reserved(identifier: u64) -> bool {
    RESERVED.iter().any(|(first, last)| (*first..=*last).contains(&identifier))
}

/// Parts of an interval.
const UNIT: u64 = 1 << 16;
/// Lengths that one key derivation gives.
const BLOCK: usize = 16;
/// Blocks of epochs whose lengths are drawn; later epochs last one interval. With the shortest
/// interval these blocks last 18 hours, and sessions get new keys after minutes.
const BLOCKS_MAX: u16 = 1 << 12;

/// A block of epochs: when it begins, and how long each of its epochs is, in units.
#[derive(Clone, Copy)]
struct Block {
    number: u16,
    begins: u64,
    /// Beyond three quarters of an interval.
    more: [u16; BLOCK],
}

/// The addresses that follow from one secret, and the lengths of their epochs.
pub struct Schedule {
    key: Secret<32>,
    tag: [u8; 4],
    /// The block that was asked for last. Whoever asks for the next one goes on from there.
    last: Cell<Option<Block>>,
}

impl Schedule {
    /// Of this secret.
    pub fn new(key: &[u8; 32]) -> Schedule {
        let [a, b, c, d, ..] = kdf(key, "shoal v1 hop tag", &[]);
        Schedule { key: Secret::new(*key), tag: [a, b, c, d], last: Cell::new(None) }
    }

    /// By what both ends name it.
    pub fn tag(&self) -> [u8; 4] {
        self.tag
    }

    /// The interface identifier of an end in an epoch; each lane may have its own.
    pub fn identifier(&self, end: End, epoch: u32, lane: u8) -> u64 {
        let epoch = epoch.to_be_bytes();
        let at = |again: u8| {
            let parts: [&[u8]; 2] = [&[end as u8, lane, again], &epoch];
            let [a, b, c, d, e, f, g, h, ..] =
                kdf(self.key.expose(), "shoal v1 hop address", &parts);
            u64::from_be_bytes([a, b, c, d, e, f, g, h])
        };
        // Of 2^40 identifiers one is reserved, so the first is nearly always it.
        let first = at(0);
        let others = || (1..u8::MAX).map(at).find(|again| !is_reserved(*again));
        if is_reserved(first) { others().unwrap_or(1) } else { first }
    }
}

impl Schedule {
    /// The epoch at `now`, if the first one began at `since` and lengths are about `interval`.
    pub(super) fn epoch(&self, since: Time, now: Time, interval: Duration) -> u32 {
        let passed = now.since(since).as_micros() * u128::from(UNIT);
        let passed = u64::try_from(passed / interval.as_micros().max(1)).unwrap_or(u64::MAX);
        let mut block = self.last();
        while passed < block.begins {
            block = self.before(&block);
        }
        while passed >= block.ends() {
            if block.number == BLOCKS_MAX - 1 {
                let drawn = u64::from(BLOCKS_MAX) * BLOCK as u64;
                let epoch = drawn + (passed - block.ends()) / UNIT;
                return u32::try_from(epoch).unwrap_or(u32::MAX);
            }
            block = self.after(&block);
        }
        let mut left = passed - block.begins;
        let mut epoch = u32::from(block.number) * BLOCK as u32;
        for length in block.lengths() {
            let Some(rest) = left.checked_sub(length) else { break };
            (left, epoch) = (rest, epoch + 1);
        }
        epoch
    }

    /// How long after the first epoch this one begins.
    pub(super) fn begins(&self, epoch: u32, interval: Duration) -> Duration {
        let number = epoch / BLOCK as u32;
        let mut block = self.last();
        // The end of a block is the beginning of the next one, and costs no step to it.
        let end = (u32::from(block.number) + 1) * BLOCK as u32;
        if epoch != end {
            while u32::from(block.number) > number {
                block = self.before(&block);
            }
            while u32::from(block.number) < number && block.number < BLOCKS_MAX - 1 {
                block = self.after(&block);
            }
        }
        let place = epoch - u32::from(block.number) * BLOCK as u32;
        let within: u64 = block.lengths().take(place as usize).sum();
        let beyond = u64::from(place.saturating_sub(BLOCK as u32)) * UNIT;
        let units = block.begins + within + beyond;
        let micros = (u128::from(units) * interval.as_micros()).div_ceil(u128::from(UNIT));
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    fn last(&self) -> Block {
        self.last.get().unwrap_or_else(|| self.block(0, |_| 0))
    }

    fn after(&self, block: &Block) -> Block {
        self.block(block.number + 1, |_| block.ends())
    }

    fn before(&self, block: &Block) -> Block {
        self.block(block.number - 1, |lengths| block.begins - lengths)
    }

    /// The block of this number, which begins as its whole length says.
    fn block(&self, number: u16, begins: impl FnOnce(u64) -> u64) -> Block {
        let drawn =
            kdf(self.key.expose(), "shoal v1 hop length", &[&u32::from(number).to_be_bytes()]);
        let more =
            core::array::from_fn(|at| u16::from_be_bytes([drawn[2 * at], drawn[2 * at + 1]]) / 2);
        let mut block = Block { number, begins: 0, more };
        block.begins = begins(block.lengths().sum());
        self.last.set(Some(block));
        block
    }
}

impl Block {
    /// From three to five quarters of an interval each.
    fn lengths(&self) -> impl Iterator<Item = u64> {
        self.more.iter().map(|more| UNIT * 3 / 4 + u64::from(*more))
    }

    fn ends(&self) -> u64 {
        self.begins + self.lengths().sum::<u64>()
    }
}

#[cfg(test)]
#[path = "../../../wire/tests/vectors/mod.rs"]
pub(super) mod vectors;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn identifiers_are_those_of_the_document() {
        let schedule = Schedule::new(&[7; 32]);
        let places = [
            (End::Leading, 0, 0),
            (End::Following, 0, 0),
            (End::Leading, 1, 0),
            (End::Leading, 0, 1),
            (End::Following, u32::MAX, 15),
        ];
        let of = |(end, epoch, lane)| schedule.identifier(end, epoch, lane).to_be_bytes();
        let identifiers = places.into_iter().flat_map(of);
        let made: Vec<u8> = schedule.tag().into_iter().chain(identifiers).collect();
        assert_eq!(made, vectors::vector("hop", "schedule"));
    }

    #[test]
    fn reserved_identifiers_are_known() {
        for reserved in [0, 0x0200_5eff_fe00_5213, 0x0200_5eff_feff_ffff, 0xfdff_ffff_ffff_ff80] {
            assert!(is_reserved(reserved));
        }
        for free in [1, 0x0200_5eff_fdff_ffff, 0x0200_5eff_ff00_0000, 0xfdff_ffff_ffff_ff7f] {
            assert!(!is_reserved(free));
        }
    }

    #[test]
    fn no_address_comes_twice_in_a_day_of_one_second() {
        let (one, other) = (Schedule::new(&[1; 32]), Schedule::new(&[2; 32]));
        let mut seen = BTreeSet::new();
        for epoch in 0..86_400 {
            for schedule in [&one, &other] {
                for end in [End::Leading, End::Following] {
                    assert!(seen.insert(schedule.identifier(end, epoch, 0)));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn identifiers_are_never_reserved_and_differ_by_all_that_names_them(
            key: [u8; 32], epoch: u32, lane in 0..16u8,
        ) {
            let schedule = Schedule::new(&key);
            let own = schedule.identifier(End::Leading, epoch, lane);
            prop_assert!(!is_reserved(own));
            prop_assert_ne!(own, schedule.identifier(End::Following, epoch, lane));
            prop_assert_ne!(own, schedule.identifier(End::Leading, epoch.wrapping_add(1), lane));
            prop_assert_ne!(own, schedule.identifier(End::Leading, epoch, lane + 1));
            prop_assert_eq!(own, schedule.identifier(End::Leading, epoch, lane));
        }

        #[test]
        fn each_epoch_is_from_three_to_five_quarters_of_the_interval(
            key: [u8; 32], since: u32, epoch in 0u32..3_000, ms in 1_000..3_600_000u64,
        ) {
            let schedule = Schedule::new(&key);
            let (since, interval) = (Time::from_millis(since.into()), Duration::from_millis(ms));
            let [begins, ends] = [0, 1].map(|more| since + schedule.begins(epoch + more, interval));
            let length = ends.since(begins);
            prop_assert!(length >= interval * 3 / 4 - Duration::from_micros(1), "{length:?}");
            prop_assert!(length <= interval * 5 / 4 + Duration::from_micros(1), "{length:?}");
            let at = |time| Schedule::new(&key).epoch(since, time, interval);
            prop_assert_eq!((at(begins), at(ends)), (epoch, epoch + 1));
            prop_assert_eq!(at(Time(ends.0 - 1)), epoch);
            let early = schedule.epoch(since + interval, since, interval);
            prop_assert_eq!(early, 0, "before it began");
        }
    }

    /// Shifts of one link say nothing of its shifts later: their phase, taken over many intervals,
    /// is anywhere.
    #[test]
    fn shifts_have_no_phase() {
        let interval = Duration::from_secs(5);
        let (mut sines, mut cosines) = (0.0, 0.0);
        for link in 0..200 {
            let begins = Schedule::new(&[link; 32]).begins(360, interval);
            let phase = begins.as_secs_f64() / interval.as_secs_f64() * core::f64::consts::TAU;
            (sines, cosines) = (sines + phase.sin(), cosines + phase.cos());
        }
        // Rayleigh's test: of 200 phases at random the mean is longer than this in one of 10^4.
        let mean = (sines * sines + cosines * cosines).sqrt() / 200.0;
        assert!(mean < 0.215, "{mean}");
    }

    #[test]
    fn lengths_are_those_of_the_document() {
        let block = Schedule::new(&[7; 32]).last();
        let made: Vec<u8> =
            block.lengths().flat_map(|length| (length as u32).to_be_bytes()).collect();
        assert_eq!(made, vectors::vector("hop", "lengths"));
    }

    #[test]
    fn later_and_earlier_epochs_are_the_same_in_any_order() {
        let (schedule, second) = (Schedule::new(&[7; 32]), Duration::from_secs(1));
        let fresh = |epoch| Schedule::new(&[7; 32]).begins(epoch, second);
        let drawn = u32::from(BLOCKS_MAX) * BLOCK as u32;
        let epochs =
            [0, 1, 15, 16, 17, 31, 32, 33, 500, 499, 32, 31, 16, drawn - 1, drawn, drawn + 1, 0];
        for epoch in epochs {
            let begins = schedule.begins(epoch, second);
            assert_eq!(begins, fresh(epoch), "{epoch}");
            assert_eq!(schedule.epoch(Time::ZERO, Time::ZERO + begins, second), epoch);
        }
    }

    #[test]
    fn epochs_that_nobody_reaches_are_numbered_too() {
        let (schedule, second) = (Schedule::new(&[7; 32]), Duration::from_secs(1));
        let years = schedule.epoch(Time::ZERO, Time::from_millis(200_000_000_000), second);
        assert!(years > 190_000_000);
        let begins = Time::ZERO + schedule.begins(years, second);
        assert_eq!(schedule.epoch(Time::ZERO, begins, second), years);
    }
}
