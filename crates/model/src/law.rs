//! What a mix does with a packet: the law of its delay.

use core::ops::Add;
use core::time::Duration;

use shoal_crypto::Rng;

use crate::random::uniform;

/// Mean and variance of a time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Mean in seconds.
    pub mean_s: f64,
    /// Variance in seconds squared.
    pub variance_s2: f64,
}

impl Spread {
    /// A time that is always the same.
    pub fn exactly(time: Duration) -> Spread {
        Spread { mean_s: time.as_secs_f64(), variance_s2: 0.0 }
    }

    /// The sum of `n` independent times of this kind.
    pub fn times(self, n: u32) -> Spread {
        let n = f64::from(n);
        Spread { mean_s: self.mean_s * n, variance_s2: self.variance_s2 * n }
    }
}

impl Add for Spread {
    type Output = Spread;

    /// The sum of two independent times.
    fn add(self, rhs: Spread) -> Spread {
        Spread { mean_s: self.mean_s + rhs.mean_s, variance_s2: self.variance_s2 + rhs.variance_s2 }
    }
}

/// A batching strategy of a mix (the paper's Table I).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Law {
    /// S0: packets pass at once and in order.
    None,
    /// S1: each `period`, everything that arrived leaves in a random order.
    Timed {
        /// Time between two flushes.
        period: Duration,
    },
    /// S2: each packet has an exponential delay of its own.
    StopAndGo {
        /// Mean of the exponential distribution, before the cap.
        mean: Duration,
        /// No delay is longer than this many means; a longer one is drawn again. The paper has no
        /// cap.
        cap: Option<f64>,
    },
}

impl Law {
    /// Mean and variance of the delay of one packet on one way. For a timed mix the time of
    /// arrival is uniform between two flushes.
    pub fn delay(&self) -> Spread {
        match *self {
            Law::None => Spread::default(),
            Law::Timed { period } => {
                let t = period.as_secs_f64();
                Spread { mean_s: t / 2.0, variance_s2: t * t / 12.0 }
            }
            Law::StopAndGo { mean, cap } => {
                let (mean, (m, v)) = (mean.as_secs_f64(), cap.map_or((1.0, 1.0), capped));
                Spread { mean_s: mean * m, variance_s2: mean * mean * v }
            }
        }
    }

    /// The delay of the next packet of a stop-and-go mix; zero for other laws, whose delays depend
    /// on the clock alone.
    ///
    /// The inverse of the capped distribution gives in one draw what drawing again would give.
    pub fn draw(&self, rng: &mut Rng) -> Duration {
        let Law::StopAndGo { mean, cap } = *self else { return Duration::ZERO };
        let below_cap = cap.map_or(1.0, |c| -(-c).exp_m1());
        mean.mul_f64(-(-uniform(rng) * below_cap).ln_1p())
    }
}

/// Mean and variance of an exponential of mean 1 that is drawn again above `cap`.
fn capped(cap: f64) -> (f64, f64) {
    // e^c - 1, of which the mean loses c / (e^c - 1).
    let above = cap.exp_m1();
    let lost = cap / above;
    (1.0 - lost, 1.0 - lost * lost * cap.exp())
}
