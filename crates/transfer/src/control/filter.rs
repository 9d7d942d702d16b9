//! Filters over time: minimum over about ten seconds, minimum over a few milliseconds, slope.

use std::collections::VecDeque;

use shoal_wire::Time;

use crate::control::constants::BASE_BUCKET_NS;

/// Minimum over the last 7.5 to 10 s, in four buckets.
#[derive(Debug)]
pub(crate) struct BaseFilter {
    buckets: [i64; 4],
    turn: usize,
    next: Time,
}

impl BaseFilter {
    pub(crate) fn new() -> BaseFilter {
        BaseFilter { buckets: [i64::MAX; 4], turn: 0, next: Time::ZERO }
    }

    pub(crate) fn insert(&mut self, now: Time, value: i64) {
        while now >= self.next {
            self.turn = (self.turn + 1) % 4;
            // After a silence each bucket that begins is emptied, so that none has old values.
            self.buckets[self.turn] = i64::MAX;
            let late = now.0.saturating_sub(self.next.0) > 4 * BASE_BUCKET_NS;
            self.next = Time(if late { now.0 } else { self.next.0 } + BASE_BUCKET_NS);
        }
        let bucket = &mut self.buckets[self.turn];
        *bucket = value.min(*bucket);
    }

    /// Forgets everything except `value`.
    pub(crate) fn reset(&mut self, value: i64) {
        self.buckets = [i64::MAX; 4];
        self.buckets[self.turn] = value;
    }

    pub(crate) fn get(&self) -> Option<i64> {
        self.buckets.iter().copied().min().filter(|&v| v != i64::MAX)
    }
}

/// Minimum over the reports of a given recent time.
#[derive(Debug, Default)]
pub(crate) struct RecentMinimum {
    values: VecDeque<(Time, i64)>,
}

impl RecentMinimum {
    const LEN_MAX: usize = 64;

    /// Adds a value and drops those older than `span_ns`.
    pub(crate) fn insert(&mut self, now: Time, value: i64, span_ns: u64) {
        while self.values.back().is_some_and(|&(_, v)| v >= value) {
            self.values.pop_back();
        }
        self.values.push_back((now, value));
        let old = now.0.saturating_sub(span_ns);
        while self.values.len() > Self::LEN_MAX
            || self.values.front().is_some_and(|&(at, _)| at.0 < old)
        {
            self.values.pop_front();
        }
    }

    pub(crate) fn clear(&mut self) {
        self.values.clear();
    }

    pub(crate) fn min(&self) -> Option<i64> {
        self.values.front().map(|&(_, v)| v)
    }
}

/// Recent values, and their slope.
#[derive(Debug, Default)]
pub(crate) struct SlopeFilter {
    values: VecDeque<(Time, f64)>,
}

impl SlopeFilter {
    const LEN_MAX: usize = 64;

    pub(crate) fn insert(&mut self, now: Time, value: f64) {
        self.values.push_back((now, value));
        if self.values.len() > Self::LEN_MAX {
            self.values.pop_front();
        }
    }

    pub(crate) fn clear(&mut self) {
        self.values.clear();
    }

    /// Change per second over the last `over_s` seconds or a little more; None if less is known.
    pub(crate) fn slope(&self, over_s: f64) -> Option<f64> {
        let &(end, last) = self.values.back()?;
        let age_s = |at: Time| end.since(at).as_secs_f64();
        let old = self.values.iter().rev().find(|&&(at, _)| age_s(at) >= over_s);
        old.filter(|&&(at, _)| at < end).map(|&(at, first)| (last - first) / age_s(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trend_is_the_change_over_the_time_asked_for() {
        let mut trend = SlopeFilter::default();
        assert_eq!(trend.slope(0.0), None);
        for i in 0..100u64 {
            // Flat, then 2 per second.
            trend.insert(Time(i * 10_000_000), 0.02 * i.saturating_sub(90) as f64);
        }
        assert!((trend.slope(0.05).unwrap() - 2.0).abs() < 1e-9);
        assert!((trend.slope(0.18).unwrap() - 1.0).abs() < 1e-9);
        assert_eq!(trend.slope(0.0), None, "no time has passed");
        assert_eq!(trend.slope(2.0), None, "nothing is that old");
        trend.clear();
        assert_eq!(trend.slope(0.01), None);
    }
}
