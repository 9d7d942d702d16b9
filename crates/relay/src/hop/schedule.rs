//! Which interface identifiers a secret and an epoch give.

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

/// The addresses that follow from one secret.
pub struct Schedule {
    key: Secret<32>,
    tag: [u8; 4],
}

impl Schedule {
    /// Of this secret.
    pub fn new(key: &[u8; 32]) -> Schedule {
        let [a, b, c, d, ..] = kdf(key, "shoal v1 hop tag", &[]);
        Schedule { key: Secret::new(*key), tag: [a, b, c, d] }
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

/// How many intervals passed since a time: the epoch.
pub fn epoch(since: Time, now: Time, interval: Duration) -> u32 {
    let passed = now.since(since).as_micros() / interval.as_micros().max(1);
    u32::try_from(passed).unwrap_or(u32::MAX)
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
        fn an_epoch_is_as_long_as_the_interval(since: u32, passed: u32, ms in 1_000..3_600_000u64) {
            let (since, interval) = (Time::from_millis(since.into()), Duration::from_millis(ms));
            let at = |passed| epoch(since, since + Duration::from_millis(passed), interval);
            let now = at(u64::from(passed));
            prop_assert_eq!(at(u64::from(passed) + ms), now + 1);
            prop_assert_eq!(epoch(since + interval, since, interval), 0, "before it began");
        }
    }
}
