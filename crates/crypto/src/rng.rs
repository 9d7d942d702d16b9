//! Deterministic random generator for the workspace's state machines.

use core::fmt;

use zeroize::Zeroize;

/// Bytes generated at once: four outputs of BLAKE3, which its SIMD code makes together.
const BLOCK: usize = 256;

/// A generator whose whole output follows from its seed (BLAKE3 in XOF mode, keyed by the seed).
///
/// A seed from the operating system's randomness makes it fit for keys. A test's seed makes it
/// repeatable.
pub struct Rng {
    xof: blake3::OutputReader,
    block: [u8; BLOCK],
    used: usize,
}

impl Rng {
    /// Starts the sequence that follows from `seed`.
    pub fn new(seed: [u8; 32]) -> Rng {
        let mut hasher = blake3::Hasher::new_keyed(&seed);
        hasher.update(b"shoal rng v1");
        let xof = hasher.finalize_xof();
        hasher.zeroize();
        Rng { xof, block: [0; BLOCK], used: BLOCK }
    }

    /// Fills `out` with the next bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        if out.len() > BLOCK {
            // A large request reads past the block. Later small ones get the rest of the block, so
            // no byte repeats.
            self.xof.fill(out);
            return;
        }
        let mut out = out;
        while !out.is_empty() {
            if self.used == BLOCK {
                self.xof.fill(&mut self.block);
                self.used = 0;
            }
            let n = out.len().min(BLOCK - self.used);
            let (head, tail) = out.split_at_mut(n);
            let fresh = &mut self.block[self.used..self.used + n];
            head.copy_from_slice(fresh);
            fresh.zeroize();
            self.used += n;
            out = tail;
        }
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        self.fill(&mut out);
        out
    }

    /// A uniform `u32`.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// A uniform `u64`.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A number from 0 to `n - 1`; 0 if `n` is 0. The bias is below `n / 2^64`.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.u64()) * u128::from(n)) >> 64) as u64
    }

    /// A seed for another generator, bound to `label`.
    pub fn fork(&mut self, label: &str) -> [u8; 32] {
        let base: [u8; 32] = self.array();
        crate::kdf(&base, label, &[])
    }
}

impl fmt::Debug for Rng {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rng(hidden)")
    }
}

impl Drop for Rng {
    fn drop(&mut self) {
        self.block.zeroize();
        self.xof.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_bytes_in_any_cut() {
        let mut a = Rng::new([7; 32]);
        let mut b = Rng::new([7; 32]);
        let whole: [u8; 200] = a.array();
        let mut cut = Vec::new();
        for _ in 0..10 {
            cut.extend_from_slice(&b.array::<20>());
        }
        assert_eq!(whole.as_slice(), cut.as_slice());
        assert_ne!(Rng::new([8; 32]).u64(), Rng::new([7; 32]).u64());
    }

    #[test]
    fn below_stays_below_and_reaches_both_ends() {
        let mut rng = Rng::new([1; 32]);
        let seen: Vec<u64> = (0..200).map(|_| rng.below(3)).collect();
        assert!(seen.iter().all(|&n| n < 3));
        assert!((0..3).all(|n| seen.contains(&n)));
        assert_eq!(rng.below(0), 0);
    }

    #[test]
    fn forks_differ_by_label_and_by_turn() {
        let fork = |label| Rng::new([2; 32]).fork(label);
        assert_ne!(fork("a"), fork("b"));
        let mut rng = Rng::new([2; 32]);
        assert_ne!(rng.fork("a"), rng.fork("a"));
    }

    #[test]
    fn big_fills_are_not_repeats() {
        let mut rng = Rng::new([3; 32]);
        let first = rng.u64().to_le_bytes();
        let mut big = vec![0; 4_096];
        rng.fill(&mut big);
        assert!(!big.windows(8).any(|w| w == first));
    }
}
