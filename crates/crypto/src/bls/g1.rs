//! Points of G1.

use core::fmt;

use blst::{blst_p1, blst_p1_affine};
use zeroize::Zeroize;

use super::{BadElement, Scalar, check};

/// Length of an encoded (compressed) point in bytes.
pub const G1_LEN: usize = 48;

/// A point of the subgroup G1 of prime order, the neutral element included.
#[derive(Clone, Copy)]
pub struct G1(pub(super) blst_p1);

/// A point of the curve whose membership in G1 is still to be checked: the cheap half of decoding.
#[derive(Clone, Copy)]
pub struct G1Unchecked(blst_p1_affine);

impl G1Unchecked {
    /// Reads the encoding of a point of the curve other than the neutral element.
    pub fn decode(bytes: &[u8; G1_LEN]) -> Result<G1Unchecked, BadElement> {
        let mut point = blst_p1_affine::default();
        // SAFETY: the first byte's top bit says "compressed", so blst reads 48 bytes. Without that
        // bit it would read 96.
        unsafe {
            if bytes[0] & 0x80 == 0 {
                return Err(BadElement::Encoding);
            }
            check(blst::blst_p1_uncompress(&mut point, bytes.as_ptr()))?;
            if blst::blst_p1_affine_is_inf(&point) {
                return Err(BadElement::Identity);
            }
        }
        Ok(G1Unchecked(point))
    }

    /// Checks that the point is in the subgroup, the costly half of decoding.
    pub fn check(&self) -> Result<G1, BadElement> {
        // SAFETY: plain values in and out.
        unsafe {
            if !blst::blst_p1_affine_in_g1(&self.0) {
                return Err(BadElement::NotInSubgroup);
            }
        }
        Ok(G1::from_affine(&self.0))
    }

    /// The point without a membership check. Results computed from it with public numbers may be
    /// hashed and compared, which is cheaper than [`G1Unchecked::check`] when most points fail
    /// there. A secret must not be used with it: a multiple of a point of small order reveals the
    /// secret modulo that order.
    pub fn unproved(&self) -> G1 {
        G1::from_affine(&self.0)
    }
}

impl G1 {
    /// The neutral element.
    pub fn identity() -> G1 {
        G1(blst_p1::default())
    }

    /// A point whose logarithm nobody knows (RFC 9380, domain `dst`).
    pub fn hash(message: &[u8], dst: &[u8]) -> G1 {
        let mut out = blst_p1::default();
        // SAFETY: pointers and lengths belong together; no augmentation.
        unsafe {
            blst::blst_hash_to_g1(
                &mut out,
                message.as_ptr(),
                message.len(),
                dst.as_ptr(),
                dst.len(),
                core::ptr::null(),
                0,
            );
        }
        G1(out)
    }

    /// Reads the canonical encoding of a point of the subgroup other than the neutral element.
    pub fn decode(bytes: &[u8; G1_LEN]) -> Result<G1, BadElement> {
        G1Unchecked::decode(bytes)?.check()
    }

    /// The canonical encoding.
    pub fn encode(&self) -> [u8; G1_LEN] {
        let mut out = [0; G1_LEN];
        // SAFETY: 48 bytes are written.
        unsafe { blst::blst_p1_compress(out.as_mut_ptr(), &self.0) };
        out
    }

    /// `self + other`, in constant time.
    pub fn add(&self, other: &G1) -> G1 {
        let mut out = blst_p1::default();
        // SAFETY: plain values in and out.
        unsafe { blst::blst_p1_add_or_double(&mut out, &self.0, &other.0) };
        G1(out)
    }

    /// `-self`.
    pub fn neg(&self) -> G1 {
        let mut out = self.0;
        // SAFETY: a plain value, changed in place.
        unsafe { blst::blst_p1_cneg(&mut out, true) };
        G1(out)
    }

    /// `self - other`, in constant time.
    pub fn sub(&self, other: &G1) -> G1 {
        self.add(&other.neg())
    }

    /// `2 self`.
    pub fn double(&self) -> G1 {
        let mut out = blst_p1::default();
        // SAFETY: plain values in and out.
        unsafe { blst::blst_p1_double(&mut out, &self.0) };
        G1(out)
    }

    /// `k` times this point, in constant time.
    pub fn mul(&self, k: &Scalar) -> G1 {
        let mut out = blst_p1::default();
        let mut raw = k.raw();
        // SAFETY: 255 bits, 32 bytes, are read of the scalar.
        unsafe { blst::blst_p1_mult(&mut out, &self.0, raw.b.as_ptr(), 255) };
        raw.b.zeroize();
        G1(out)
    }

    /// True for the neutral element.
    pub fn is_identity(&self) -> bool {
        // SAFETY: a plain value is read.
        unsafe { blst::blst_p1_is_inf(&self.0) }
    }

    pub(super) fn in_subgroup(&self) -> bool {
        // SAFETY: a plain value is read.
        unsafe { blst::blst_p1_in_g1(&self.0) }
    }

    pub(super) fn from_affine(point: &blst_p1_affine) -> G1 {
        let mut out = blst_p1::default();
        // SAFETY: plain values in and out.
        unsafe { blst::blst_p1_from_affine(&mut out, point) };
        G1(out)
    }

    pub(super) fn affine(&self) -> blst_p1_affine {
        let mut out = blst_p1_affine::default();
        // SAFETY: plain values in and out.
        unsafe { blst::blst_p1_to_affine(&mut out, &self.0) };
        out
    }
}

impl PartialEq for G1 {
    fn eq(&self, other: &G1) -> bool {
        // SAFETY: plain values are read.
        unsafe { blst::blst_p1_is_equal(&self.0, &other.0) }
    }
}

impl Eq for G1 {}

impl Zeroize for G1 {
    fn zeroize(&mut self) {
        self.0.x.l.zeroize();
        self.0.y.l.zeroize();
        self.0.z.l.zeroize();
    }
}

impl fmt::Debug for G1 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("G1(hidden)")
    }
}

/// Brings points to affine form with a single inversion. No point may be the neutral element.
pub(super) fn affine_all(points: &[blst_p1]) -> Vec<blst_p1_affine> {
    let mut out = vec![blst_p1_affine::default(); points.len()];
    if !points.is_empty() {
        let list = [points.as_ptr(), core::ptr::null()];
        // SAFETY: a null after the first pointer tells blst that the points are contiguous. It
        // writes as many points as it reads.
        unsafe { blst::blst_p1s_to_affine(out.as_mut_ptr(), list.as_ptr(), points.len()) };
    }
    out
}

/// Encodings of several points, cheaper than single ones.
pub fn encode_all<const N: usize>(points: &[G1; N]) -> [[u8; G1_LEN]; N] {
    if points.iter().any(G1::is_identity) {
        // The shared inversion can't divide by the zero coordinate of a neutral point.
        return points.map(|p| p.encode());
    }
    let raw: [blst_p1; N] = points.map(|p| p.0);
    let affine = affine_all(&raw);
    let mut out = [[0; G1_LEN]; N];
    for (bytes, point) in out.iter_mut().zip(&affine) {
        // SAFETY: 48 bytes are written.
        unsafe { blst::blst_p1_affine_compress(bytes.as_mut_ptr(), point) };
    }
    out
}
