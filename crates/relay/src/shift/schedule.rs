//! Interface identifiers derived from a secret and an epoch, and lengths of epochs.
//!
//! Epochs of equal length would have a phase that outlives every address. An observer of many links
//! could recognise each by the times of its shifts. So each length is derived from the secret. The
//! time of a shift then reveals nothing about later shifts but their mean.

use core::cell::Cell;
use core::time::Duration;

use shoal_crypto::{Secret, kdf};
use shoal_wire::Time;

/// One of the two ends of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ShiftRole {
    /// The end with the smaller key. It leads.
    Leading = 0,
    Following = 1,
}

impl ShiftRole {
    /// The opposite end.
    pub fn other(self) -> ShiftRole {
        match self {
            ShiftRole::Leading => ShiftRole::Following,
            ShiftRole::Following => ShiftRole::Leading,
        }
    }
}

/// Reserved interface identifiers (RFC 5453 and its registry), first and last: the routers' anycast
/// address, the block of IANA's Ethernet numbers, anycast groups.
const RESERVED: [(u64, u64); 3] = [
    (0, 0),
    (0x0200_5eff_fe00_0000, 0x0200_5eff_feff_ffff),
    (0xfdff_ffff_ffff_ff80, 0xfdff_ffff_ffff_ffff),
];

/// True if this interface identifier is reserved and no machine may use it.
pub fn is_reserved(identifier: u64) -> bool {
    RESERVED.iter().any(|(first, last)| (*first..=*last).contains(&identifier))
}

/// Units per interval.
const UNIT: u64 = 1 << 16;
/// Number of lengths per key derivation.
const BLOCK: usize = 16;
/// Number of blocks with derived lengths. Later epochs have the length of one interval. At the
/// shortest interval these blocks cover 18 hours, and sessions get new keys after minutes.
const BLOCKS_MAX: u16 = 1 << 12;

/// A block of epochs: its start, and the length of each epoch, in units.
#[derive(Clone, Copy)]
struct EpochBlock {
    number: u16,
    begins: u64,
    /// Length of each epoch beyond three quarters of an interval.
    more: [u16; BLOCK],
}

/// The addresses and epoch lengths that follow from one secret.
pub struct ShiftSchedule {
    key: Secret<32>,
    tag: [u8; 4],
    /// The block that was used last, cached because the next call mostly needs it or its successor.
    last: Cell<Option<EpochBlock>>,
}

impl ShiftSchedule {
    /// The schedule of this secret.
    pub fn new(key: &[u8; 32]) -> ShiftSchedule {
        let [a, b, c, d, ..] = kdf(key, "shoal v1 hop tag", &[]);
        ShiftSchedule { key: Secret::new(*key), tag: [a, b, c, d], last: Cell::new(None) }
    }

    /// The name of the schedule at both ends.
    pub fn tag(&self) -> [u8; 4] {
        self.tag
    }

    /// The interface identifier of an end in an epoch. Each lane may have its own.
    pub fn identifier(&self, end: ShiftRole, epoch: u32, lane: u8) -> u64 {
        let epoch = epoch.to_be_bytes();
        let at = |again: u8| {
            let parts: [&[u8]; 2] = [&[end as u8, lane, again], &epoch];
            let [a, b, c, d, e, f, g, h, ..] =
                kdf(self.key.expose(), "shoal v1 hop address", &parts);
            u64::from_be_bytes([a, b, c, d, e, f, g, h])
        };
        // One of 2^40 identifiers is reserved, so the first candidate nearly always serves.
        let first = at(0);
        let others = || (1..u8::MAX).map(at).find(|again| !is_reserved(*again));
        if is_reserved(first) { others().unwrap_or(1) } else { first }
    }
}

impl ShiftSchedule {
    /// The epoch at `now`, if epoch 0 began at `since` and the mean length is `interval`.
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

    /// Time from the start of epoch 0 to the start of this epoch.
    pub(super) fn begins(&self, epoch: u32, interval: Duration) -> Duration {
        let number = epoch / BLOCK as u32;
        let mut block = self.last();
        // The end of the cached block is the start of the next one, which saves a step to it.
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

    fn last(&self) -> EpochBlock {
        self.last.get().unwrap_or_else(|| self.block(0, |_| 0))
    }

    fn after(&self, block: &EpochBlock) -> EpochBlock {
        self.block(block.number + 1, |_| block.ends())
    }

    fn before(&self, block: &EpochBlock) -> EpochBlock {
        self.block(block.number - 1, |lengths| block.begins - lengths)
    }

    /// Derives the block of this number. `begins` maps its total length to its start.
    fn block(&self, number: u16, begins: impl FnOnce(u64) -> u64) -> EpochBlock {
        let drawn =
            kdf(self.key.expose(), "shoal v1 hop length", &[&u32::from(number).to_be_bytes()]);
        let more =
            core::array::from_fn(|at| u16::from_be_bytes([drawn[2 * at], drawn[2 * at + 1]]) / 2);
        let mut block = EpochBlock { number, begins: 0, more };
        block.begins = begins(block.lengths().sum());
        self.last.set(Some(block));
        block
    }
}

impl EpochBlock {
    /// Lengths of its epochs, each from three to five quarters of an interval.
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
        let schedule = ShiftSchedule::new(&[7; 32]);
        let places = [
            (ShiftRole::Leading, 0, 0),
            (ShiftRole::Following, 0, 0),
            (ShiftRole::Leading, 1, 0),
            (ShiftRole::Leading, 0, 1),
            (ShiftRole::Following, u32::MAX, 15),
        ];
        let of = |(end, epoch, lane)| schedule.identifier(end, epoch, lane).to_be_bytes();
        let identifiers = places.into_iter().flat_map(of);
        let made: Vec<u8> = schedule.tag().into_iter().chain(identifiers).collect();
        assert_eq!(made, vectors::vector("shift", "schedule"));
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
        let (one, other) = (ShiftSchedule::new(&[1; 32]), ShiftSchedule::new(&[2; 32]));
        let mut seen = BTreeSet::new();
        for epoch in 0..86_400 {
            for schedule in [&one, &other] {
                for end in [ShiftRole::Leading, ShiftRole::Following] {
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
            let schedule = ShiftSchedule::new(&key);
            let own = schedule.identifier(ShiftRole::Leading, epoch, lane);
            prop_assert!(!is_reserved(own));
            prop_assert_ne!(own, schedule.identifier(ShiftRole::Following, epoch, lane));
            let next = epoch.wrapping_add(1);
            prop_assert_ne!(own, schedule.identifier(ShiftRole::Leading, next, lane));
            prop_assert_ne!(own, schedule.identifier(ShiftRole::Leading, epoch, lane + 1));
            prop_assert_eq!(own, schedule.identifier(ShiftRole::Leading, epoch, lane));
        }

        #[test]
        fn each_epoch_is_from_three_to_five_quarters_of_the_interval(
            key: [u8; 32], since: u32, epoch in 0u32..3_000, ms in 1_000..3_600_000u64,
        ) {
            let schedule = ShiftSchedule::new(&key);
            let (since, interval) = (Time::from_millis(since.into()), Duration::from_millis(ms));
            let [begins, ends] = [0, 1].map(|more| since + schedule.begins(epoch + more, interval));
            let length = ends.since(begins);
            prop_assert!(length >= interval * 3 / 4 - Duration::from_micros(1), "{length:?}");
            prop_assert!(length <= interval * 5 / 4 + Duration::from_micros(1), "{length:?}");
            let at = |time| ShiftSchedule::new(&key).epoch(since, time, interval);
            prop_assert_eq!((at(begins), at(ends)), (epoch, epoch + 1));
            prop_assert_eq!(at(Time(ends.0 - 1)), epoch);
            let early = schedule.epoch(since + interval, since, interval);
            prop_assert_eq!(early, 0, "before it began");
        }
    }

    /// Shifts of a link reveal nothing about its later shifts: after many intervals, any phase is
    /// possible.
    #[test]
    fn shifts_have_no_phase() {
        let interval = Duration::from_secs(5);
        let (mut sines, mut cosines) = (0.0, 0.0);
        for link in 0..200 {
            let begins = ShiftSchedule::new(&[link; 32]).begins(360, interval);
            let phase = begins.as_secs_f64() / interval.as_secs_f64() * core::f64::consts::TAU;
            (sines, cosines) = (sines + phase.sin(), cosines + phase.cos());
        }
        // Rayleigh's test: for 200 random phases, the mean exceeds this value once in 10^4 runs.
        let mean = (sines * sines + cosines * cosines).sqrt() / 200.0;
        assert!(mean < 0.215, "{mean}");
    }

    #[test]
    fn lengths_are_those_of_the_document() {
        let block = ShiftSchedule::new(&[7; 32]).last();
        let made: Vec<u8> =
            block.lengths().flat_map(|length| (length as u32).to_be_bytes()).collect();
        assert_eq!(made, vectors::vector("shift", "lengths"));
    }

    #[test]
    fn later_and_earlier_epochs_are_the_same_in_any_order() {
        let (schedule, second) = (ShiftSchedule::new(&[7; 32]), Duration::from_secs(1));
        let fresh = |epoch| ShiftSchedule::new(&[7; 32]).begins(epoch, second);
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
        let (schedule, second) = (ShiftSchedule::new(&[7; 32]), Duration::from_secs(1));
        let years = schedule.epoch(Time::ZERO, Time::from_millis(200_000_000_000), second);
        assert!(years > 190_000_000);
        let begins = Time::ZERO + schedule.begins(years, second);
        assert_eq!(schedule.epoch(Time::ZERO, begins, second), years);
    }
}
