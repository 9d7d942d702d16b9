//! What mixes on the path do to the delays that a control law reads.
//!
//! A mix delays each segment for a time of its own. The smallest delay of a few milliseconds is
//! then above that of ten seconds, though nothing queues, and it wobbles. Both follow from the law
//! of the delays: how probable a short one is.

use crate::control::constants::{MIX_SEEN, MIX_SHAPE_MAX, MIX_TAIL};
use crate::types::Added;

/// The delays that the mixes of a path add, as the law of Erlang with the mean and about the
/// spread of theirs: `shape` exponential times one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mixes {
    /// In seconds; zero without mixes.
    pub(crate) mean_s: f64,
    pub(crate) hold_s: f64,
    shape: f64,
    /// `shape` factorial.
    ways: f64,
}

impl Mixes {
    pub(crate) fn new(added: Added) -> Mixes {
        let (mean_s, hold_s) = (added.mean.as_secs_f64(), added.hold.as_secs_f64());
        // The more mixes, the fewer means lie between the mean and the hold.
        let shape = (MIX_TAIL * mean_s / (hold_s - mean_s).max(1e-9)).powi(2).round();
        let shape = shape.clamp(1.0, MIX_SHAPE_MAX);
        let ways = (1..=shape as u32).map(f64::from).product();
        Mixes { mean_s, hold_s, shape, ways }
    }

    /// The smallest delay in seconds that so many arrivals show in the mean.
    pub(crate) fn least_s(&self, arrivals: f64) -> f64 {
        // The first of n lies where the law has grown to 1/n: x^k / k! * exp(-x k / (k + 1)).
        let seen = (arrivals * MIX_SEEN).max(1.0);
        let first = (self.ways / seen).powf(1.0 / self.shape);
        let near = |x: f64| first * (x / (self.shape + 1.0)).exp();
        let least = near(near(near(first))).min(self.shape);
        least * self.mean_s / self.shape
    }

    /// By how many seconds the smallest delay of so many arrivals wobbles: its standard deviation.
    pub(crate) fn wobble_s(&self, arrivals: f64) -> f64 {
        self.least_s(arrivals) / self.shape
    }
}
