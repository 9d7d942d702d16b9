//! Draws from the workspace's seeded generator.

use shoal_crypto::Rng;

/// 2^53, the number of steps of a double between 0 and 1.
const STEPS: f64 = (1u64 << 53) as f64;

/// A sequence of draws.
pub struct Draws(Rng);

impl Draws {
    /// The sequence of a seed for one use. Sequences of different uses are independent.
    pub fn new(seed: u64, label: &str, number: u64) -> Draws {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        Draws(Rng::new(shoal_crypto::kdf(&key, label, &[&number.to_le_bytes()])))
    }

    /// The sequence of a key.
    pub(crate) fn of(key: [u8; 32]) -> Draws {
        Draws(Rng::new(key))
    }

    /// A new key.
    pub fn key(&mut self) -> [u8; 32] {
        self.0.array()
    }

    /// Uniform strictly between 0 and 1, so that its logarithm is finite.
    pub fn uniform(&mut self) -> f64 {
        ((self.0.u64() >> 11) as f64 + 0.5) / STEPS
    }

    /// Uniform between two numbers.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// A whole number from 0 to `n - 1`; 0 when `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.0.below(n as u64) as usize
    }

    /// Exponential with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.uniform().ln()
    }

    /// Lognormal with this median; one standard deviation multiplies by `factor`. The sum of twelve
    /// uniform numbers stands in for a normal one.
    pub fn lognormal(&mut self, median: f64, factor: f64) -> f64 {
        let normal: f64 = (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0;
        median * factor.powf(normal)
    }

    /// True with probability `of`.
    pub fn chance(&mut self, of: f64) -> bool {
        self.uniform() < of
    }

    /// The numbers from 0 to `n - 1` in a uniformly random order (Fisher and Yates).
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..n).collect();
        for last in (1..n).rev() {
            let other = self.below(last + 1);
            all.swap(last, other);
        }
        all
    }
}
