//! How often an idle link sends a keepalive: as rarely as the translators of addresses and
//! firewalls on its way allow, which forget what has been silent for too long.
//!
//! ```text
//! answered after half of the period or more, 6 times in a row --> 5/4 of the period
//! unanswered after a silence, and so the link goes down ------------> 3/4 of that silence
//! ```
//!
//! A silence that was too long is not tried again for [`REMEMBERED`].

use core::time::Duration;

use shoal_wire::Time;

/// The shortest period, unless a shorter one was configured.
const LEAST: Duration = Duration::from_secs(5);
/// The longest period, unless a longer one was configured.
const MOST: Duration = Duration::from_secs(55);
/// Answers in a row that make the period longer.
const GOOD: u32 = 6;
/// How long a silence that was too long bounds the period.
const REMEMBERED: Duration = Duration::from_secs(3_600);
/// Shorter silences say nothing: the keepalive asked something else.
const TELLING: Duration = Duration::from_secs(3);

/// The period between keepalives, as it adapts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rhythm {
    configured: Duration,
    period: Duration,
    good: u32,
    /// What was too long, and when that was seen.
    too_long: Option<(Duration, Time)>,
}

impl Rhythm {
    /// Begins with the period that is configured.
    pub(crate) fn new(configured: Duration) -> Rhythm {
        Rhythm { configured, period: configured, good: 0, too_long: None }
    }

    /// The period, on average.
    pub(crate) fn period(&self) -> Duration {
        self.period
    }

    /// A keepalive after `silence` was answered.
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
        // Periods are drawn up to a quarter longer.
        let bound = self.too_long.map_or(MOST, |(silence, _)| silence * 3 / 4);
        let bound = bound.min(MOST.max(self.configured));
        self.period = (self.period * 5 / 4).min(bound).max(self.period);
    }

    /// A keepalive after `silence` was not answered, nor were its repeats.
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

    /// Lives on a link that forgets what was silent for `timeout`; returns the rhythm and how often
    /// it was forgotten in the last half.
    fn live(configured: Duration, timeout: Duration, rounds: u32) -> (Rhythm, u32) {
        let mut jitter = shoal_wire::Jitter::new(7);
        let (mut rhythm, mut now, mut late) = (Rhythm::new(configured), Time::ZERO, 0);
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
    fn it_is_as_rare_as_the_way_allows() {
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
        let mut rhythm = Rhythm::new(S(20));
        rhythm.unanswered(Time::ZERO, S(20));
        assert_eq!(rhythm.period(), S(15));
        rhythm.unanswered(Time::ZERO, Duration::from_millis(400));
        assert_eq!(rhythm.period(), S(15), "that was no silence");
        let later = Time::ZERO + S(4_000);
        (0..2 * GOOD).for_each(|_| rhythm.answered(later, rhythm.period()));
        assert!(rhythm.period() > S(20), "{rhythm:?}");
    }
}
