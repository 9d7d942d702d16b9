//! The delay that the mixes of a path add to a packet.

use core::time::Duration;

use shoal_wire::{HopDelay, MixStrategy, MixTime};

/// Probability that a packet takes longer than the hold: one packet in 10,000.
const LATER: f64 = 1e-4;
const UNITS_MAX: usize = MixTime::MAX.units() as usize;

/// Delay that a sequence of strategies adds to a packet, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddedDelay {
    /// The mean, capped at one second.
    pub mean: MixTime,
    /// The delay that all but one packet in 10,000 stay within, capped at one second. A receiver
    /// waits this long for a packet that others overtook.
    pub hold: MixTime,
    /// The longest possible delay.
    pub most: Duration,
}

impl AddedDelay {
    /// True if the cap of one second on `hold` applies. Then more than one packet in 10,000 may be
    /// later.
    pub fn is_too_long(&self) -> bool {
        self.hold == MixTime::MAX && self.most > MixTime::MAX.duration()
    }

    /// The form in which the destination of a circuit is told.
    pub fn mixing(self) -> HopDelay {
        HopDelay::Path { mean: self.mean, hold: self.hold }
    }
}

/// Mean delay that these strategies add together.
pub fn mean(strategies: impl IntoIterator<Item = MixStrategy>) -> Duration {
    let holding = strategies.into_iter().filter(|s| s.holds() && s.is_valid());
    let units: f64 = holding.map(|strategy| DelayDistribution::of(strategy).mean).sum();
    Duration::from_nanos((units * 1e5) as u64)
}

/// Delay that these strategies add together.
///
/// Computes the distribution of the sum in steps of 100 us, the unit of all strategy times. This
/// takes up to 10,000 steps for each strategy.
pub fn path(strategies: impl IntoIterator<Item = MixStrategy>) -> AddedDelay {
    let mut mean = 0.0;
    let mut most = Duration::ZERO;
    let mut mixes = 0;
    // Probability of each sum of delays so far, by units of time.
    let mut sum = vec![1.0];
    for strategy in strategies.into_iter().filter(|s| s.holds() && s.is_valid()) {
        let law = DelayDistribution::of(strategy);
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
    // Each strategy's delay is rounded down to a step, so the true sum may be one unit longer per
    // strategy.
    let hold = within.map_or(UNITS_MAX, |step| step + mixes);
    let hold = u16::try_from(hold).ok().and_then(MixTime::from_units);
    AddedDelay {
        mean: MixTime::from_units((mean.ceil() as u16).min(MixTime::MAX.units()))
            .unwrap_or(MixTime::MAX),
        hold: hold
            .unwrap_or(MixTime::MAX)
            .min(MixTime::from_duration(most).unwrap_or(MixTime::MAX)),
        most,
    }
}

/// The delay distribution of one strategy, in units of 100 us.
///
/// Each unit's probability is `ratio` times that of the unit before it. All strategies have this
/// form, so adding one costs one step per unit, for any `units`.
struct DelayDistribution {
    units: usize,
    ratio: f64,
    mean: f64,
}

impl DelayDistribution {
    fn of(strategy: MixStrategy) -> DelayDistribution {
        let units = strategy.most().units();
        let most = f64::from(units);
        let (ratio, mean) = match strategy {
            MixStrategy::StopAndGo { mean, .. } => {
                let mean = f64::from(mean.units());
                // Times above the longest are drawn again.
                ((-1.0 / mean).exp(), mean - most / (most / mean).exp_m1())
            }
            MixStrategy::Pass | MixStrategy::Timed { .. } => (1.0, most / 2.0),
        };
        DelayDistribution { units: units.into(), ratio, mean }
    }

    /// Distribution of the sum of this delay and another one, up to [`UNITS_MAX`].
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
