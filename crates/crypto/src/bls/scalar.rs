//! Numbers modulo the group order r.

use core::fmt;

use blst::{blst_fr, blst_scalar};
use zeroize::Zeroize;

use super::BadElement;
use crate::Rng;

/// Length of an encoded scalar in bytes, big-endian.
pub const SCALAR_LEN: usize = 32;

/// The BLS parameter |z|. r = z^4 - z^2 + 1, and multiplication by z^2 is an endomorphism of G1.
pub(super) const Z: u64 = 0xd201_0000_0001_0000;

/// A number modulo r. Every operation takes equal time for every value. Wiped on drop.
#[derive(Clone)]
pub struct Scalar(pub(super) blst_fr);

impl Scalar {
    /// The number `n`.
    pub fn from_u64(n: u64) -> Scalar {
        let mut out = blst_fr::default();
        let limbs = [n, 0, 0, 0];
        // SAFETY: `limbs` holds the four limbs that are read, and `out` is written.
        unsafe { blst::blst_fr_from_uint64(&mut out, limbs.as_ptr()) };
        Scalar(out)
    }

    /// Reads the canonical encoding.
    pub fn decode(bytes: &[u8; SCALAR_LEN]) -> Result<Scalar, BadElement> {
        let mut raw = blst_scalar::default();
        // SAFETY: 32 bytes are read.
        let in_range = unsafe {
            blst::blst_scalar_from_bendian(&mut raw, bytes.as_ptr());
            blst::blst_scalar_fr_check(&raw)
        };
        let out = Scalar::from_raw(&raw);
        raw.b.zeroize();
        if in_range { Ok(out) } else { Err(BadElement::ScalarRange) }
    }

    /// The 64 bytes as a big-endian number, modulo r. Uniform to within 2^-257 if the bytes are
    /// uniform.
    pub fn from_wide(bytes: &[u8; 64]) -> Scalar {
        let mut raw = blst_scalar::default();
        // SAFETY: 64 bytes are read. The result is false if the number is zero, which is no error.
        unsafe { blst::blst_scalar_from_be_bytes(&mut raw, bytes.as_ptr(), 64) };
        let out = Scalar::from_raw(&raw);
        raw.b.zeroize();
        out
    }

    /// A uniform number, not zero.
    pub fn random(rng: &mut Rng) -> Scalar {
        loop {
            let mut wide: [u8; 64] = rng.array();
            let out = Scalar::from_wide(&wide);
            wide.zeroize();
            // Zero is drawn once in 2^255 draws.
            if !out.is_zero() {
                return out;
            }
        }
    }

    /// The canonical encoding.
    pub fn encode(&self) -> [u8; SCALAR_LEN] {
        let mut raw = self.raw();
        let mut out = [0; SCALAR_LEN];
        // SAFETY: 32 bytes are written.
        unsafe { blst::blst_bendian_from_scalar(out.as_mut_ptr(), &raw) };
        raw.b.zeroize();
        out
    }

    /// `self + other`.
    pub fn add(&self, other: &Scalar) -> Scalar {
        let mut out = blst_fr::default();
        // SAFETY: plain values in and out.
        unsafe { blst::blst_fr_add(&mut out, &self.0, &other.0) };
        Scalar(out)
    }

    /// `self - other`.
    pub fn sub(&self, other: &Scalar) -> Scalar {
        let mut out = blst_fr::default();
        // SAFETY: plain values in and out.
        unsafe { blst::blst_fr_sub(&mut out, &self.0, &other.0) };
        Scalar(out)
    }

    /// `self * other`.
    pub fn mul(&self, other: &Scalar) -> Scalar {
        let mut out = blst_fr::default();
        // SAFETY: plain values in and out.
        unsafe { blst::blst_fr_mul(&mut out, &self.0, &other.0) };
        Scalar(out)
    }

    /// `-self`.
    pub fn neg(&self) -> Scalar {
        let mut out = blst_fr::default();
        // SAFETY: plain values in and out.
        unsafe { blst::blst_fr_cneg(&mut out, &self.0, true) };
        Scalar(out)
    }

    /// `1 / self`; zero if `self` is zero.
    pub fn invert(&self) -> Scalar {
        let mut out = blst_fr::default();
        // SAFETY: plain values in and out.
        unsafe { blst::blst_fr_eucl_inverse(&mut out, &self.0) };
        Scalar(out)
    }

    /// True for zero.
    pub fn is_zero(&self) -> bool {
        self.0.l.iter().fold(0, |all, limb| all | limb) == 0
    }

    pub(super) fn raw(&self) -> blst_scalar {
        let mut raw = blst_scalar::default();
        // SAFETY: plain values in and out.
        unsafe { blst::blst_scalar_from_fr(&mut raw, &self.0) };
        raw
    }

    fn from_raw(raw: &blst_scalar) -> Scalar {
        let mut out = blst_fr::default();
        // SAFETY: plain values in and out.
        unsafe { blst::blst_fr_from_scalar(&mut out, raw) };
        Scalar(out)
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Scalar) -> bool {
        self.sub(other).is_zero()
    }
}

impl Eq for Scalar {}

impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scalar(hidden)")
    }
}

impl Drop for Scalar {
    fn drop(&mut self) {
        self.0.l.zeroize();
    }
}

/// A challenge of 128 bits, `low + high * z^2` modulo r.
///
/// This form halves the length of the verifier's multiplications by the challenge, since `z^2` is
/// an endomorphism of G1. `low + high * z^2` is below r over the integers, so distinct pairs stay
/// distinct modulo r. No entropy is lost, and the difference of two challenges is invertible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitChallenge {
    pub(super) low: u64,
    pub(super) high: u64,
}

impl SplitChallenge {
    /// From the first 16 bytes of a hash.
    pub fn from_hash(hash: &[u8; 32]) -> SplitChallenge {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&hash[at..at + 8]);
            u64::from_be_bytes(bytes)
        };
        SplitChallenge { low: word(0), high: word(8) }
    }

    /// The number that the challenge stands for.
    pub fn scalar(self) -> Scalar {
        let z = Scalar::from_u64(Z);
        let high = Scalar::from_u64(self.high).mul(&z).mul(&z);
        Scalar::from_u64(self.low).add(&high)
    }
}
