//! Limits each sender's files that are being received, and chooses a file to put off.
//!
//! Each file that is being received takes a place. A sender with few places gets one more. If none
//! is free, a file of another sender is put off: a slow one, or one of a sender with more than a
//! few places. Its data is kept.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use shoal_daemon::control::api::TransferId;

/// Most files that are received at once; further offers are refused as busy.
pub const MAX_ACTIVE: usize = 64;
/// Places that a sender gets while any is free, and the most places of one sender.
pub const SHARE_MIN: usize = 4;
const SHARE_MAX: usize = 32;
/// A file with fewer bytes per second, over one to two spans, is slow: it is put off for a sender
/// that waits.
const SLOW_BYTES: u64 = 10_000;
const SLOW_SPAN: Duration = Duration::from_secs(10);

/// True if a sender with `own` of the `all` places in use may have one more. A few are always
/// granted if one is free. More are granted only while at least as many as it holds stay free.
pub fn may_hold(own: usize, all: usize) -> bool {
    let free = MAX_ACTIVE.saturating_sub(all);
    free > 0 && own < SHARE_MAX && (own < SHARE_MIN || own < free)
}

/// The recent rate of a file.
#[derive(Clone, Copy, Debug)]
pub struct RecentRate {
    /// Bytes arrived at two times, which are at least a span apart after the first span.
    older: (Instant, u64),
    newer: (Instant, u64),
    bytes: u64,
}

impl RecentRate {
    pub fn new(now: Instant) -> RecentRate {
        RecentRate { older: (now, 0), newer: (now, 0), bytes: 0 }
    }

    /// Records the number of bytes that have arrived.
    pub fn note(&mut self, now: Instant, bytes: u64) {
        self.bytes = bytes;
        if now.duration_since(self.newer.0) >= SLOW_SPAN {
            (self.older, self.newer) = (self.newer, (now, bytes));
        }
    }

    /// Recent bytes per second, and true if that is slow.
    fn of_late(&self, now: Instant) -> (u64, bool) {
        let passed = now.duration_since(self.older.0);
        let ms = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = self.bytes.saturating_sub(self.older.1).saturating_mul(1_000) / ms;
        (rate, passed >= SLOW_SPAN && rate < SLOW_BYTES)
    }
}

/// A place in use.
pub struct OccupiedPlace<'a> {
    pub transfer: TransferId,
    pub from: &'a str,
    pub pace: RecentRate,
    /// The file is whole and being renamed: its place is free in a moment.
    pub finishing: bool,
}

/// Transfer to put off when no place is free, for the sender `asks`, if that has few places.
/// Slow transfers come first: the slowest of the sender with most places. If none is slow and
/// `shares` is true, the slowest of a sender with more than a few places.
pub fn gives_way(
    held: &[OccupiedPlace],
    asks: &str,
    shares: bool,
    now: Instant,
) -> Option<TransferId> {
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for place in held {
        *places.entry(place.from).or_default() += 1;
    }
    let count = |from: &str| places.get(from).copied().unwrap_or(0);
    let own = count(asks);
    if own >= SHARE_MIN {
        return None;
    }
    let candidates = held.iter().filter(|place| !place.finishing).filter_map(|place| {
        let (places, (rate, slow)) = (count(place.from), place.pace.of_late(now));
        let yields = if slow { places > own } else { shares && places > SHARE_MIN };
        yields.then_some(((slow, places, std::cmp::Reverse(rate)), place.transfer))
    });
    candidates.max_by_key(|(rank, _)| *rank).map(|(_, transfer)| transfer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(senders: usize) -> Vec<String> {
        (0..senders).map(|n| format!("h{n}")).collect()
    }

    /// Places whose files began `age_s` ago, with `rate` bytes per second.
    fn table<'a>(now: Instant, rows: &[(&'a str, usize, u64, u64)]) -> Vec<OccupiedPlace<'a>> {
        let mut held = Vec::new();
        for &(from, count, age_s, rate) in rows {
            for _ in 0..count {
                let began = now - Duration::from_secs(age_s);
                let mut pace = RecentRate::new(began);
                for second in 1..=age_s {
                    pace.note(began + Duration::from_secs(second), second * rate);
                }
                let transfer = held.len() as TransferId;
                held.push(OccupiedPlace { transfer, from, pace, finishing: false });
            }
        }
        held
    }

    #[test]
    fn no_sender_takes_every_place() {
        let greedy = |all: usize| (0..MAX_ACTIVE).find(|own| !may_hold(*own, all + own)).unwrap();
        let mut held = Vec::new();
        for _ in 0..5 {
            held.push(greedy(held.iter().sum()));
        }
        assert_eq!(held, [32, 16, 8, 4, 4]);
        assert!(!may_hold(0, MAX_ACTIVE));
    }

    #[test]
    fn senders_that_fill_every_place_keep_nobody_out() {
        let now = Instant::now() + Duration::from_secs(1_000);
        // From the first moment on, and also if every file is fast.
        for (age_s, rate) in [(0, 0), (5, 6), (60, 6), (60, 1_000_000)] {
            let names = names(5);
            let shares = [32, 16, 8, 4, 4];
            let rows: Vec<_> =
                names.iter().zip(shares).map(|(name, n)| (name.as_str(), n, age_s, rate)).collect();
            let mut held = table(now, &rows);
            for got in 0..SHARE_MIN {
                let who = gives_way(&held, "honest", true, now);
                let at = held.iter().position(|place| Some(place.transfer) == who);
                let at = at.unwrap_or_else(|| panic!("{got} places of {age_s} s, {rate} B/s"));
                assert_eq!(held[at].from, "h0");
                held[at].from = "honest";
            }
            // A sender with a few places waits for a free one.
            assert_eq!(gives_way(&held, "honest", true, now), None);
        }
        // Sixteen senders with few places each: slow files are put off, others aren't.
        let names = names(16);
        for (age_s, rate, gives) in
            [(9, 6, false), (10, 6, true), (60, 6, true), (60, 20_000, false)]
        {
            let rows: Vec<_> = names.iter().map(|name| (name.as_str(), 4, age_s, rate)).collect();
            let held = table(now, &rows);
            assert_eq!(gives_way(&held, "honest", true, now).is_some(), gives, "{age_s} {rate}");
        }
    }

    #[test]
    fn the_slowest_of_the_sender_with_most_gives_way() {
        let now = Instant::now() + Duration::from_secs(1_000);
        let rows = [("fast", 40, 60, 1 << 20), ("a", 3, 60, 9_000), ("b", 6, 60, 5_000)];
        let mut held = table(now, &rows);
        held.extend(table(now, &[("b", 1, 60, 6)]));
        held.last_mut().unwrap().transfer = 100;
        assert_eq!(gives_way(&held, "honest", true, now), Some(100));
        // A sender takes no place from a slow sender with as few places as itself.
        held.truncate(43);
        held.extend(table(now, &[("honest", 3, 60, 9_000)]));
        assert_eq!(gives_way(&held, "honest", false, now), None);
        assert!(gives_way(&held, "honest", true, now).is_some_and(|t| t < 40));
        // A file that is being renamed is not put off.
        held.iter_mut().for_each(|place| place.finishing = true);
        assert_eq!(gives_way(&held, "other", true, now), None);
    }

    #[test]
    fn the_pace_is_of_the_last_span() {
        let began = Instant::now();
        let mut pace = RecentRate::new(began);
        // Fast for a minute, and then a trickle.
        for ms in (0..90_000).step_by(200) {
            let at = began + Duration::from_millis(ms);
            pace.note(at, ms.min(60_000) * 1_000);
            let (rate, slow) = pace.of_late(at);
            assert_eq!(slow, ms >= 70_000, "{ms} {rate}");
        }
        // Bursts of 100 kB every 4 s count by their mean rate.
        let mut pace = RecentRate::new(began);
        for burst in 0..20 {
            let at = began + Duration::from_secs(4 * burst);
            pace.note(at, burst * 100_000);
            assert!(!pace.of_late(at + Duration::from_secs(3)).1, "{burst}");
        }
    }
}
