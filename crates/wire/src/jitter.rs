//! Periods with a random part.

use core::time::Duration;

/// Spreads the times of a periodic event. An exact period on the wire tells an observer which
/// program sends it; a spread one tells less. The sequence follows from the seed and is not secret.
#[derive(Clone, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// Starts the sequence that follows from `seed`.
    pub const fn new(seed: u64) -> Jitter {
        Jitter(seed)
    }

    /// SplitMix64 (Steele, Lea and Flood, 2014).
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A duration below `most`, uniformly distributed.
    pub fn below(&mut self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(((u128::from(self.next()) * u128::from(most)) >> 64) as u64)
    }

    /// An exponentially distributed duration with this mean, at most 37 times the mean.
    pub fn exponential(&mut self, mean: Duration) -> Duration {
        // `u` is between 2^-53 and 1.
        let u = ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        mean.mul_f64(-u.ln())
    }

    /// A duration from three to five quarters of `period`; its mean is `period`.
    pub fn around(&mut self, period: Duration) -> Duration {
        period - period / 4 + self.below(period / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_fill_their_range_evenly() {
        let mut jitter = Jitter::new(7);
        let period = Duration::from_millis(100);
        let mut bins = [0; 50];
        for _ in 0..50_000 {
            let span = jitter.around(period);
            assert!(span >= period * 3 / 4 && span < period * 5 / 4);
            bins[(span - period * 3 / 4).as_millis() as usize] += 1;
        }
        assert!(bins.iter().all(|n| (800..1_200).contains(n)), "{bins:?}");
        assert_eq!(jitter.around(Duration::ZERO), Duration::ZERO);
        assert!(jitter.below(Duration::MAX) <= Duration::MAX);
    }
}
