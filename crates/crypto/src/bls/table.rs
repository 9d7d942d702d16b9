//! Multiplication of a fixed point by secret numbers: no doublings, one table row for each five
//! bits.

use core::fmt;
use core::hint::black_box;

use blst::{blst_p1, blst_p1_affine};
use zeroize::Zeroize;

use super::G1;
use super::Scalar;
use super::g1::affine_all;

/// Bits of one digit.
const WIDTH: usize = 5;
/// Multiples per row: digits run from -16 to 16.
const ROW: usize = 1 << (WIDTH - 1);
/// Digits of a number of 255 bits, including the last carry.
const ROWS: usize = 52;

/// A fixed point, prepared for multiplication in constant time: about a third of the work of
/// [`G1::mul`], with a table of 80 KiB.
#[derive(Clone)]
pub struct G1Table(Box<[[blst_p1_affine; ROW]]>);

impl G1Table {
    /// Precomputes the multiples of `base`, which must not be the neutral element.
    pub fn new(base: &G1) -> G1Table {
        assert!(!base.is_identity(), "the neutral element has no table");
        let mut points = Vec::with_capacity(ROWS * ROW);
        let mut unit = *base;
        for _ in 0..ROWS {
            let mut multiple = unit;
            for _ in 0..ROW {
                points.push(multiple.0);
                multiple = multiple.add(&unit);
            }
            for _ in 0..WIDTH {
                unit = unit.double();
            }
        }
        let affine = affine_all(&points);
        let rows = affine.chunks_exact(ROW).map(|row| {
            let mut out = [blst_p1_affine::default(); ROW];
            out.copy_from_slice(row);
            out
        });
        G1Table(rows.collect())
    }

    /// `k` times the point. Neither the sequence of operations nor any memory address depends on
    /// `k`.
    pub fn mul(&self, k: &Scalar) -> G1 {
        let mut digits = recode(k);
        let mut sum = blst_p1::default();
        for (row, digit) in self.0.iter().zip(&digits) {
            let term = select(row, *digit);
            let last = sum;
            // SAFETY: plain values in and out. blst's mixed addition handles equal and neutral
            // points by masks, in constant time (its ec_ops.h, POINT_DADD_AFFINE).
            unsafe { blst::blst_p1_add_or_double_affine(&mut sum, &last, &term) };
        }
        digits.zeroize();
        G1(sum)
    }
}

impl Drop for G1Table {
    fn drop(&mut self) {
        // A table of a credential would tell whose credential it is.
        for point in self.0.iter_mut().flatten() {
            point.x.l.zeroize();
            point.y.l.zeroize();
        }
    }
}

impl fmt::Debug for G1Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("G1Table(hidden)")
    }
}

/// Digits of `k` to the base 32, from -16 to 16, lowest first.
fn recode(k: &Scalar) -> [i8; ROWS] {
    let mut raw = k.raw();
    let mut out = [0i8; ROWS];
    let mut carry = 0i16;
    for (n, digit) in out.iter_mut().enumerate() {
        let bit = n * WIDTH;
        let low = i16::from(raw.b.get(bit / 8).copied().unwrap_or(0));
        let high = i16::from(raw.b.get(bit / 8 + 1).copied().unwrap_or(0));
        let word = ((low | (high << 8)) as u16 >> (bit % 8)) as i16 & 31;
        let value = word + carry;
        // 1 if value is above 16, from the sign of the difference, without a branch on a secret.
        carry = ((16 - value) >> 15) & 1;
        *digit = (value - (carry << WIDTH)) as i8;
    }
    raw.b.zeroize();
    out
}

/// `digit` times the row's unit. Reads every entry whatever the digit.
fn select(row: &[blst_p1_affine; ROW], digit: i8) -> blst_p1_affine {
    let sign = digit >> 7;
    let magnitude = u64::from(((digit ^ sign) - sign) as u8);
    let mut out = blst_p1_affine::default();
    for (n, entry) in row.iter().enumerate() {
        let difference = magnitude ^ (n as u64 + 1);
        // All ones if the difference is zero. `black_box` prevents the compiler from adding a
        // branch.
        let mask = black_box((difference.wrapping_sub(1) >> 63).wrapping_neg());
        for (to, from) in out.x.l.iter_mut().zip(&entry.x.l) {
            *to |= from & mask;
        }
        for (to, from) in out.y.l.iter_mut().zip(&entry.y.l) {
            *to |= from & mask;
        }
    }
    let y = out.y;
    // SAFETY: plain values in and out; negates by mask.
    unsafe { blst::blst_fp_cneg(&mut out.y, &y, black_box(sign & 1) == 1) };
    out
}
