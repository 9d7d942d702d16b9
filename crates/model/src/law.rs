//! Delay distribution of a mix.

use core::ops::Add;
use core::time::Duration;

use shoal_crypto::Rng;

use crate::random::uniform;

/// Mean and variance of a time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MeanAndVariance {
    /// Mean in seconds.
    pub mean_s: f64,
    /// Variance in seconds squared.
    pub variance_s2: f64,
}

impl MeanAndVariance {
    /// A constant time.
    pub fn exactly(time: Duration) -> MeanAndVariance {
        MeanAndVariance { mean_s: time.as_secs_f64(), variance_s2: 0.0 }
    }

    /// The sum of `n` independent times of this kind.
    pub fn times(self, n: u32) -> MeanAndVariance {
        let n = f64::from(n);
        MeanAndVariance { mean_s: self.mean_s * n, variance_s2: self.variance_s2 * n }
    }
}

impl Add for MeanAndVariance {
    type Output = MeanAndVariance;

    /// The sum of two independent times.
    fn add(self, rhs: MeanAndVariance) -> MeanAndVariance {
        MeanAndVariance {
            mean_s: self.mean_s + rhs.mean_s,
            variance_s2: self.variance_s2 + rhs.variance_s2,
        }
    }
}

/// A batching strategy of a mix (the paper's Table I).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BatchingStrategy {
    /// S0: packets pass at once and in order.
    None,
    /// S1: at each `period`, all waiting packets leave in random order.
    Timed {
        /// Time between two flushes.
        period: Duration,
    },
    /// S2: each packet has its own exponential delay.
    StopAndGo {
        /// Mean of the exponential distribution, before the cap.
        mean: Duration,
        /// Largest delay, as a multiple of the mean; a longer one is drawn again. The paper has no
        /// cap.
        cap: Option<f64>,
    },
}

impl BatchingStrategy {
    /// Mean and variance of a packet's delay in one direction. At a timed mix, the arrival is
    /// uniform between two flushes.
    pub fn delay(&self) -> MeanAndVariance {
        match *self {
            BatchingStrategy::None => MeanAndVariance::default(),
            BatchingStrategy::Timed { period } => {
                let t = period.as_secs_f64();
                MeanAndVariance { mean_s: t / 2.0, variance_s2: t * t / 12.0 }
            }
            BatchingStrategy::StopAndGo { mean, cap } => {
                let (mean, (m, v)) = (mean.as_secs_f64(), cap.map_or((1.0, 1.0), capped));
                MeanAndVariance { mean_s: mean * m, variance_s2: mean * mean * v }
            }
        }
    }

    /// Draws the delay of the next packet of a stop-and-go mix. Zero for other laws, whose delays
    /// depend only on the clock.
    ///
    /// One draw from the inverse of the capped distribution is equivalent to repeated draws.
    pub fn draw(&self, rng: &mut Rng) -> Duration {
        let BatchingStrategy::StopAndGo { mean, cap } = *self else { return Duration::ZERO };
        let below_cap = cap.map_or(1.0, |c| -(-c).exp_m1());
        mean.mul_f64(-(-uniform(rng) * below_cap).ln_1p())
    }
}

/// Mean and variance of an exponential of mean 1 that is drawn again above `cap`.
fn capped(cap: f64) -> (f64, f64) {
    // e^c - 1. The mean loses c / (e^c - 1).
    let above = cap.exp_m1();
    let lost = cap / above;
    (1.0 - lost, 1.0 - lost * lost * cap.exp())
}
