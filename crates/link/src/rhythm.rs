//! The period of keepalives on an idle link. It is as long as the translators and firewalls on the
//! path allow, since these forget a silent flow after a timeout.
//!
//! ```text
//! answered after half of the period or more, 6 times in a row --> 5/4 of the period
//! unanswered after a silence, and so the link goes down ------------> 3/4 of that silence
//! ```
//!
//! A silence that proved too long is not tried again for [`REMEMBERED`].

use core::time::Duration;

use shoal_wire::Time;

/// Lower bound of the period, unless a shorter period is configured.
const LEAST: Duration = Duration::from_secs(5);
/// Upper bound of the period, unless a longer period is configured.
const MOST: Duration = Duration::from_secs(55);
/// Number of answers in a row that lengthen the period.
const GOOD: u32 = 6;
/// Time for which a silence that was too long bounds the period.
const REMEMBERED: Duration = Duration::from_secs(3_600);
/// Shorter silences prove nothing about translators: these keepalives had other causes.
const TELLING: Duration = Duration::from_secs(3);

/// The adaptive period between keepalives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepalivePeriod {
    configured: Duration,
    period: Duration,
    good: u32,
    /// The shortest silence that was too long, and the time of the last failure.
    too_long: Option<(Duration, Time)>,
}

impl KeepalivePeriod {
    /// Starts with the configured period.
    pub(crate) fn new(configured: Duration) -> KeepalivePeriod {
        KeepalivePeriod { configured, period: configured, good: 0, too_long: None }
    }

    /// The mean period.
    pub(crate) fn period(&self) -> Duration {
        self.period
    }

    /// Notes that a keepalive after `silence` was answered.
    pub(crate) fn answered(&mut self, now: Time, silence: Duration) {
        if silence < TELLING.max(self.period / 2) {
            return;
        }
        self.good += 1;
        if self.good < GOOD {
            return;
        }
        self.good = 0;
        self.too_long.take_if(|(_, at)| now.since(*at) >= REMEMBERED);
        // A drawn period is up to a quarter longer than the mean.
        let bound = self.too_long.map_or(MOST, |(silence, _)| silence * 3 / 4);
        let bound = bound.min(MOST.max(self.configured));
        self.period = (self.period * 5 / 4).min(bound).max(self.period);
    }

    /// Notes that a keepalive after `silence` was not answered, nor were its repeats.
    pub(crate) fn unanswered(&mut self, now: Time, silence: Duration) {
        self.good = 0;
        if silence < TELLING {
            return;
        }
        let shortest = self.too_long.map_or(silence, |(known, _)| known.min(silence));
        self.too_long = Some((shortest, now));
        let least = LEAST.min(self.configured);
        self.period = self.period.min(silence * 3 / 4).max(least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    /// Simulates a link that a translator forgets after `timeout`. Returns the rhythm, and the
    /// number of failures in the second half.
    fn live(configured: Duration, timeout: Duration, rounds: u32) -> (KeepalivePeriod, u32) {
        let mut jitter = shoal_wire::Jitter::new(7);
        let (mut rhythm, mut now, mut late) = (KeepalivePeriod::new(configured), Time::ZERO, 0);
        for round in 0..rounds {
            let silence = jitter.around(rhythm.period());
            now = now + silence;
            match silence < timeout {
                true => rhythm.answered(now, silence),
                false => {
                    rhythm.unanswered(now, silence);
                    late += u32::from(round >= rounds / 2);
                }
            }
        }
        (rhythm, late)
    }

    #[test]
    fn the_keepalive_period_approaches_the_timeout_of_the_path() {
        let (rhythm, late) = live(S(20), S(1_000), 200);
        assert_eq!((rhythm.period(), late), (S(55), 0));
        for timeout in [10, 20, 30, 45] {
            let (rhythm, late) = live(S(20), S(timeout), 200);
            let longest = rhythm.period() * 5 / 4;
            println!("{timeout} s: {:?}, {late} times late", rhythm.period());
            assert!(longest <= S(timeout) * 13 / 10 && rhythm.period() >= S(5), "{rhythm:?}");
            assert!(late <= 2, "{timeout} s: late {late} times");
        }
    }

    #[test]
    fn bounds_hold_and_shorter_ones_that_were_configured_stay() {
        assert_eq!(live(S(20), S(3), 100).0.period(), S(5));
        assert_eq!(live(S(2), S(2), 100).0.period(), S(2));
        assert_eq!(live(S(300), S(1_000), 100).0.period(), S(300));
    }

    #[test]
    fn a_neighbour_that_was_away_costs_little() {
        let mut rhythm = KeepalivePeriod::new(S(20));
        rhythm.unanswered(Time::ZERO, S(20));
        assert_eq!(rhythm.period(), S(15));
        rhythm.unanswered(Time::ZERO, Duration::from_millis(400));
        assert_eq!(rhythm.period(), S(15), "a short silence changes nothing");
        let later = Time::ZERO + S(4_000);
        (0..2 * GOOD).for_each(|_| rhythm.answered(later, rhythm.period()));
        assert!(rhythm.period() > S(20), "{rhythm:?}");
    }
}
