//! G2 and the pairing equation.

use core::fmt;

use blst::{blst_fp6, blst_fp12, blst_p2, blst_p2_affine};
use zeroize::Zeroize;

use super::{BadElement, G1, Scalar, check};

/// Length of an encoded (compressed) point of G2 in bytes.
pub const G2_LEN: usize = 96;
/// Lines of one Miller loop (blst's `blst_precompute_lines`).
const LINES: usize = 68;

/// A point of G2 other than the neutral element.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct G2(blst_p2_affine);

impl G2 {
    /// The standard generator.
    pub fn generator() -> G2 {
        // SAFETY: blst's pointer is to a constant.
        G2(unsafe { *blst::blst_p2_affine_generator() })
    }

    /// `k` times the standard generator, in constant time; `k` must not be zero.
    pub fn generate(k: &Scalar) -> G2 {
        assert!(!k.is_zero(), "a key is not zero");
        let mut out = blst_p2::default();
        let mut affine = blst_p2_affine::default();
        let mut raw = k.raw();
        // SAFETY: 255 bits, 32 bytes, are read of the scalar; the rest are plain values.
        unsafe {
            blst::blst_p2_mult(&mut out, blst::blst_p2_generator(), raw.b.as_ptr(), 255);
            blst::blst_p2_to_affine(&mut affine, &out);
        }
        raw.b.zeroize();
        G2(affine)
    }

    /// `self + k G`, for checking a credential; None if the sum is the neutral element.
    pub fn plus_generated(&self, k: &Scalar) -> Option<G2> {
        let mut sum = blst_p2::default();
        let mut part = blst_p2::default();
        let mut affine = blst_p2_affine::default();
        let raw = k.raw();
        // SAFETY: 255 bits, 32 bytes, are read of the scalar; the rest are plain values.
        unsafe {
            blst::blst_p2_mult(&mut part, blst::blst_p2_generator(), raw.b.as_ptr(), 255);
            blst::blst_p2_add_or_double_affine(&mut sum, &part, &self.0);
            if blst::blst_p2_is_inf(&sum) {
                return None;
            }
            blst::blst_p2_to_affine(&mut affine, &sum);
        }
        Some(G2(affine))
    }

    /// Reads the canonical encoding of a point of the subgroup other than the neutral element.
    pub fn decode(bytes: &[u8; G2_LEN]) -> Result<G2, BadElement> {
        let mut point = blst_p2_affine::default();
        if bytes[0] & 0x80 == 0 {
            return Err(BadElement::Encoding);
        }
        // SAFETY: the first byte's top bit says "compressed", so blst reads 96 bytes.
        unsafe {
            check(blst::blst_p2_uncompress(&mut point, bytes.as_ptr()))?;
            if blst::blst_p2_affine_is_inf(&point) {
                return Err(BadElement::Identity);
            }
            if !blst::blst_p2_affine_in_g2(&point) {
                return Err(BadElement::NotInSubgroup);
            }
        }
        Ok(G2(point))
    }

    /// The canonical encoding.
    pub fn encode(&self) -> [u8; G2_LEN] {
        let mut out = [0; G2_LEN];
        // SAFETY: 96 bytes are written.
        unsafe { blst::blst_p2_affine_compress(out.as_mut_ptr(), &self.0) };
        out
    }
}

impl fmt::Debug for G2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("G2(hidden)")
    }
}

/// A point of G2 with the precomputed lines of its Miller loop.
#[derive(Clone)]
pub struct G2Lines(Box<[blst_fp6]>);

impl G2Lines {
    /// Precomputes the lines of `point`.
    pub fn new(point: &G2) -> G2Lines {
        let mut lines = vec![blst_fp6::default(); LINES];
        // SAFETY: blst writes 68 lines.
        unsafe { blst::blst_precompute_lines(lines.as_mut_ptr(), &point.0) };
        G2Lines(lines.into())
    }
}

/// True if the product of all pairings is one.
pub fn pairing_product_is_one(pairs: &[(&G1, &G2Lines)]) -> bool {
    let mut product: Option<blst_fp12> = None;
    for (point, lines) in pairs {
        // A pairing with the neutral element is one, and blst's loop does not accept that element.
        if point.is_identity() {
            continue;
        }
        let affine = point.affine();
        let mut value = blst_fp12::default();
        // SAFETY: 68 lines are read.
        unsafe { blst::blst_miller_loop_lines(&mut value, lines.0.as_ptr(), &affine) };
        product = Some(match product {
            None => value,
            Some(last) => {
                let mut out = blst_fp12::default();
                // SAFETY: plain values in and out.
                unsafe { blst::blst_fp12_mul(&mut out, &last, &value) };
                out
            }
        });
    }
    let Some(product) = product else { return true };
    let mut out = blst_fp12::default();
    // SAFETY: plain values in and out.
    unsafe {
        blst::blst_final_exp(&mut out, &product);
        blst::blst_fp12_is_one(&out)
    }
}
