//! What the mixes of a path add to the way of a packet.

use core::time::Duration;

use shoal_wire::{MixTime, Mixing, Strategy};

/// Of a hundred thousand packets ten are on the way for longer than the hold.
const LATER: f64 = 1e-4;
const UNITS_MAX: usize = MixTime::MAX.units() as usize;

/// What strategies that a packet meets one after the other add to its way, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Added {
    /// In the mean; one second if it is more.
    pub mean: MixTime,
    /// How long a packet is worth waiting for that others overtook: all but one in 10,000 take at
    /// most as long. One second if it is more.
    pub hold: MixTime,
    /// The longest that is possible.
    pub most: Duration,
}

impl Added {
    /// Whether more packets than that take longer than `hold`: it is as long as can be said.
    pub fn is_too_long(&self) -> bool {
        self.hold == MixTime::MAX && self.most > MixTime::MAX.duration()
    }

    /// As the destination of a circuit is told.
    pub fn mixing(self) -> Mixing {
        Mixing::Path { mean: self.mean, hold: self.hold }
    }
}

/// What these strategies add together in the mean.
pub fn mean(strategies: impl IntoIterator<Item = Strategy>) -> Duration {
    let holding = strategies.into_iter().filter(|s| s.holds() && s.is_valid());
    let units: f64 = holding.map(|strategy| Law::of(strategy).mean).sum();
    Duration::from_nanos((units * 1e5) as u64)
}

/// What these strategies add together.
///
/// The distribution of the sum is computed in steps of 100 us, in which all times of strategies are
/// given: at worst 10,000 steps for each strategy.
pub fn path(strategies: impl IntoIterator<Item = Strategy>) -> Added {
    let mut mean = 0.0;
    let mut most = Duration::ZERO;
    let mut mixes = 0;
    // By units of time: how probable it is that the strategies so far add so many.
    let mut sum = vec![1.0];
    for strategy in strategies.into_iter().filter(|s| s.holds() && s.is_valid()) {
        let law = Law::of(strategy);
        mean += law.mean;
        most += strategy.most().duration();
        mixes += 1;
        sum = law.added_to(&sum);
    }
    let mut later = 1.0;
    let within = sum.iter().position(|probability| {
        later -= probability;
        later <= LATER
    });
    // A step of the sum stands for up to one unit more of each strategy.
    let hold = within.map_or(UNITS_MAX, |step| step + mixes);
    let hold = u16::try_from(hold).ok().and_then(MixTime::from_units);
    Added {
        mean: MixTime::from_units((mean.ceil() as u16).min(MixTime::MAX.units()))
            .unwrap_or(MixTime::MAX),
        hold: hold
            .unwrap_or(MixTime::MAX)
            .min(MixTime::from_duration(most).unwrap_or(MixTime::MAX)),
        most,
    }
}

/// The times of one strategy: each unit is so many times as probable as the one before it. All
/// strategies are like this, so that adding one takes a step for each unit, however long it is.
struct Law {
    units: usize,
    ratio: f64,
    mean: f64,
}

impl Law {
    fn of(strategy: Strategy) -> Law {
        let units = strategy.most().units();
        let most = f64::from(units);
        let (ratio, mean) = match strategy {
            Strategy::StopAndGo { mean, .. } => {
                let mean = f64::from(mean.units());
                // What is above the longest time is drawn again.
                ((-1.0 / mean).exp(), mean - most / (most / mean).exp_m1())
            }
            Strategy::Pass | Strategy::Timed { .. } => (1.0, most / 2.0),
        };
        Law { units: units.into(), ratio, mean }
    }

    /// The distribution of a time of this law and another together, up to [`UNITS_MAX`].
    fn added_to(&self, other: &[f64]) -> Vec<f64> {
        let ends = self.ratio.powi(self.units as i32);
        let first = if self.ratio < 1.0 {
            (1.0 - self.ratio) / (1.0 - ends)
        } else {
            1.0 / self.units as f64
        };
        let of = |at: Option<usize>| at.and_then(|at| other.get(at)).copied().unwrap_or(0.0);
        let mut running = 0.0;
        let steps = (other.len() + self.units - 1).min(UNITS_MAX + 1);
        let add = |step: usize| {
            running =
                running * self.ratio + of(Some(step)) - ends * of(step.checked_sub(self.units));
            first * running
        };
        (0..steps).map(add).collect()
    }
}
