//! Effect of mixes on the path on the delays that a control law reads.
//!
//! A mix delays each segment for a random time. Although nothing queues, the smallest delay of a
//! few milliseconds is then above that of ten seconds, and varies. Both follow from the
//! distribution of the delays: from the probability of a short one.

use crate::control::constants::{MIX_SEEN, MIX_SHAPE_MAX, MIX_TAIL};
use crate::types::MixDelay;

/// The delays that the mixes of a path add, as an Erlang distribution with their mean and about
/// their spread. Its delays are sums of `shape` exponential times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MixDelays {
    /// Mean in seconds; zero without mixes.
    pub(crate) mean_s: f64,
    pub(crate) hold_s: f64,
    shape: f64,
    /// `shape` factorial.
    ways: f64,
}

impl MixDelays {
    pub(crate) fn new(added: MixDelay) -> MixDelays {
        let (mean_s, hold_s) = (added.mean.as_secs_f64(), added.hold.as_secs_f64());
        // With more mixes, the hold is fewer means above the mean.
        let shape = (MIX_TAIL * mean_s / (hold_s - mean_s).max(1e-9)).powi(2).round();
        let shape = shape.clamp(1.0, MIX_SHAPE_MAX);
        let ways = (1..=shape as u32).map(f64::from).product();
        MixDelays { mean_s, hold_s, shape, ways }
    }

    /// Expected smallest delay of this many arrivals, in seconds.
    pub(crate) fn least_s(&self, arrivals: f64) -> f64 {
        // The smallest of n is where the distribution reaches 1/n: x^k / k! * exp(-x k / (k + 1)).
        let seen = (arrivals * MIX_SEEN).max(1.0);
        let first = (self.ways / seen).powf(1.0 / self.shape);
        let near = |x: f64| first * (x / (self.shape + 1.0)).exp();
        let least = near(near(near(first))).min(self.shape);
        least * self.mean_s / self.shape
    }

    /// Standard deviation of the smallest delay of this many arrivals, in seconds.
    pub(crate) fn wobble_s(&self, arrivals: f64) -> f64 {
        self.least_s(arrivals) / self.shape
    }
}
