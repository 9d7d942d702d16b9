//! Random numbers from the workspace's seeded generator.

use shoal_crypto::Rng;

/// 2^53, the number of steps of a double between 0 and 1.
const STEPS: f64 = (1u64 << 53) as f64;

pub fn rng(seed: u64) -> Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    Rng::new(key)
}

/// A uniform number strictly between 0 and 1, so that its logarithm is finite.
pub(crate) fn uniform(rng: &mut Rng) -> f64 {
    ((rng.u64() >> 11) as f64 + 0.5) / STEPS
}

/// Shuffles `items` uniformly (Fisher and Yates).
pub fn permute<T>(items: &mut [T], rng: &mut Rng) {
    for last in (1..items.len()).rev() {
        let other = rng.below(last as u64 + 1) as usize;
        items.swap(last, other);
    }
}
