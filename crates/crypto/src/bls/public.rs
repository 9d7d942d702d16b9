//! Multiplications whose time depends on the numbers. They are for verifiers, which see only public
//! values.

use blst::{blst_fp, blst_p1, blst_p1_affine};

use super::G1;
use super::g1::affine_all;
use super::scalar::{Scalar, SplitChallenge, Z};

/// Bits of one digit of [`G1PublicTable`].
const WIDTH: usize = 8;
/// Multiples per row: digits run from -128 to 128.
const ROW: usize = 1 << (WIDTH - 1);
/// Rows for a number of 255 bits. The top byte of r is 0x73, so the last digit needs no carry.
const ROWS: usize = 32;
/// Width in bits of the signed digits for a variable point.
const DIGIT: u32 = 5;
/// Width in bits of the signed digits for a prepared point.
const DIGIT_PREPARED: u32 = 7;

/// The x coordinate of `z^2 P` is this number times that of `P`, and y changes its sign. BETA is
/// the other cube root of one than `beta` in blst's e1.c, in Montgomery form.
const BETA: blst_fp = blst_fp {
    l: [
        0x30f1_361b_798a_64e8,
        0xf3b8_ddab_7ece_5a2a,
        0x16a8_ca3a_c615_77f7,
        0xc26a_2ff8_74fd_029b,
        0x3636_b766_6070_1c6e,
        0x051b_a4ab_241b_6160,
    ],
};

/// A fixed point, prepared for multiplication by public numbers: 32 additions, with a table of 384
/// KiB.
#[derive(Clone)]
pub struct G1PublicTable(Box<[blst_p1_affine]>);

impl G1PublicTable {
    /// Precomputes the multiples of `base`, which must not be the neutral element.
    pub fn new(base: &G1) -> G1PublicTable {
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
        G1PublicTable(affine_all(&points).into())
    }

    /// `k` times the point.
    pub fn mul(&self, k: &Scalar) -> G1 {
        let mut sum = G1::identity();
        let mut carry = 0i16;
        for (row, byte) in self.0.chunks_exact(ROW).zip(k.raw().b) {
            let value = i16::from(byte) + carry;
            carry = i16::from(value > 128);
            let digit = value - (carry << WIDTH);
            if digit != 0 {
                let entry = row[usize::from(digit.unsigned_abs()) - 1];
                sum = add_signed(&sum, &entry, digit < 0);
            }
        }
        sum
    }
}

/// A point with its first odd multiples and their images under the endomorphism.
#[derive(Clone)]
pub struct PublicBase {
    plain: Vec<blst_p1_affine>,
    turned: Vec<blst_p1_affine>,
}

impl PublicBase {
    /// Prepares `base`, which must not be the neutral element.
    pub fn new(base: &G1) -> PublicBase {
        assert!(!base.is_identity(), "the neutral element has no table");
        let plain = affine_all(&odd_multiples(base, 1 << (DIGIT_PREPARED - 2)));
        let turned = plain
            .iter()
            .map(|p| {
                let mut out = *p;
                out.x = times_beta(&p.x);
                // SAFETY: plain values in and out.
                unsafe { blst::blst_fp_cneg(&mut out.y, &p.y, true) };
                out
            })
            .collect();
        PublicBase { plain, turned }
    }
}

/// `Σ s P` over the terms, minus `c` times the prepared point.
pub fn sum_of_products(
    terms: &[(&G1, &Scalar)],
    prepared: &PublicBase,
    challenge: SplitChallenge,
) -> G1 {
    let mut rows: Vec<OddMultiples> = Vec::with_capacity(2 * terms.len());
    for (point, scalar) in terms {
        let (low, high) = split(scalar);
        push_rows(&mut rows, point, low, high);
    }
    let digits = |n: u64| signed_digits(u128::from(n), DIGIT_PREPARED);
    let fixed = [
        (prepared.plain.as_slice(), digits(challenge.low)),
        (prepared.turned.as_slice(), digits(challenge.high)),
    ];
    sum_rows(&rows, &fixed)
}

/// `c` times a point, without a prepared table.
pub fn mul_public(point: &G1, c: SplitChallenge) -> G1 {
    let mut rows = Vec::with_capacity(2);
    push_rows(&mut rows, point, u128::from(c.low), u128::from(c.high));
    sum_rows(&rows, &[])
}

/// Odd multiples of a point, and the digits that select among them.
type OddMultiples = (Vec<blst_p1>, Vec<i8>);

/// Adds the rows and subtracts the fixed rows, with shared doublings (Straus).
fn sum_rows(rows: &[OddMultiples], fixed: &[(&[blst_p1_affine], Vec<i8>)]) -> G1 {
    let lengths = rows.iter().map(|(_, d)| d.len()).chain(fixed.iter().map(|(_, d)| d.len()));
    let bits = lengths.max().unwrap_or(0);
    let at = |digits: &Vec<i8>, bit: usize| digits.get(bit).copied().unwrap_or(0);
    let mut sum = G1::identity();
    for bit in (0..bits).rev() {
        sum = sum.double();
        for (table, digits) in rows {
            let digit = at(digits, bit);
            if digit != 0 {
                let entry = G1(table[usize::from(digit.unsigned_abs() / 2)]);
                sum = if digit < 0 { sum.sub(&entry) } else { sum.add(&entry) };
            }
        }
        for (table, digits) in fixed {
            let digit = at(digits, bit);
            if digit != 0 {
                let entry = table[usize::from(digit.unsigned_abs() / 2)];
                sum = add_signed(&sum, &entry, digit > 0);
            }
        }
    }
    sum
}

/// Adds the two half-length rows of one point.
fn push_rows(rows: &mut Vec<(Vec<blst_p1>, Vec<i8>)>, point: &G1, low: u128, high: u128) {
    let plain = odd_multiples(point, 1 << (DIGIT - 2));
    let turned = plain.iter().map(turn).collect();
    rows.push((plain, signed_digits(low, DIGIT)));
    rows.push((turned, signed_digits(high, DIGIT)));
}

/// `P, 3P, 5P, ...`: the first `count` odd multiples.
fn odd_multiples(point: &G1, count: usize) -> Vec<blst_p1> {
    let twice = point.double();
    let mut out = Vec::with_capacity(count);
    let mut multiple = *point;
    for _ in 0..count {
        out.push(multiple.0);
        multiple = multiple.add(&twice);
    }
    out
}

/// `z^2 P`.
fn turn(p: &blst_p1) -> blst_p1 {
    let mut out = *p;
    out.x = times_beta(&p.x);
    // SAFETY: plain values in and out.
    unsafe { blst::blst_fp_cneg(&mut out.y, &p.y, true) };
    out
}

fn times_beta(x: &blst_fp) -> blst_fp {
    let mut out = blst_fp::default();
    // SAFETY: plain values in and out.
    unsafe { blst::blst_fp_mul(&mut out, x, &BETA) };
    out
}

pub(super) fn add_signed(sum: &G1, entry: &blst_p1_affine, negative: bool) -> G1 {
    let mut entry = *entry;
    let mut out = blst_p1::default();
    let y = entry.y;
    // SAFETY: plain values in and out.
    unsafe {
        blst::blst_fp_cneg(&mut entry.y, &y, negative);
        blst::blst_p1_add_or_double_affine(&mut out, &sum.0, &entry);
    }
    G1(out)
}

/// `k = low + high z^2` with both halves below 2^128.
pub(super) fn split(k: &Scalar) -> (u128, u128) {
    let raw = k.raw();
    let mut limbs = [0u64; 4];
    for (limb, bytes) in limbs.iter_mut().zip(raw.b.chunks_exact(8)) {
        *limb = bytes.iter().rev().fold(0, |n, byte| (n << 8) | u64::from(*byte));
    }
    let mut digits = [0u64; 2];
    for digit in &mut digits {
        let mut rest = 0u128;
        for limb in limbs.iter_mut().rev() {
            let part = (rest << 64) | u128::from(*limb);
            *limb = (part / u128::from(Z)) as u64;
            rest = part % u128::from(Z);
        }
        *digit = rest as u64;
    }
    let low = u128::from(digits[1]) * u128::from(Z) + u128::from(digits[0]);
    // r / z^2 is below 2^128, so the two upper limbs are zero here.
    (low, (u128::from(limbs[1]) << 64) | u128::from(limbs[0]))
}

/// Odd signed digits of at most `width` bits with zeros between (wNAF), lowest first.
fn signed_digits(k: u128, width: u32) -> Vec<i8> {
    let mut out = Vec::with_capacity(130);
    // The sum below can't overflow: k is below 2^127.5 or a u64.
    let mut k = k;
    let span = 1i16 << width;
    while k != 0 {
        let mut digit = 0i16;
        if k & 1 == 1 {
            digit = (k & (span as u128 - 1)) as i16;
            if digit >= span / 2 {
                digit -= span;
            }
            k = if digit < 0 {
                k + u128::from(digit.unsigned_abs())
            } else {
                k - u128::from(digit.unsigned_abs())
            };
        }
        out.push(digit as i8);
        k >>= 1;
    }
    out
}

/// `Σ ρ P` with coefficients of 128 bits (blst's Pippenger).
pub fn sum_of_short_products(points: &[G1], coefficients: &[[u8; 16]]) -> G1 {
    assert_eq!(points.len(), coefficients.len(), "one coefficient for each point");
    if points.iter().any(G1::is_identity) {
        // The shared inversion can't divide by zero, and neutral points add nothing. The other
        // points must still be summed: for good signatures the equation's sum is neutral.
        let rest = || points.iter().zip(coefficients).filter(|(p, _)| !p.is_identity());
        let points: Vec<G1> = rest().map(|(p, _)| *p).collect();
        let coefficients: Vec<[u8; 16]> = rest().map(|(_, c)| *c).collect();
        return sum_of_short_products(&points, &coefficients);
    }
    if points.is_empty() {
        return G1::identity();
    }
    let raw: Vec<blst_p1> = points.iter().map(|p| p.0).collect();
    let affine = affine_all(&raw);
    let mut out = blst_p1::default();
    let point_list = [affine.as_ptr(), core::ptr::null()];
    let scalar_list = [coefficients.as_ptr().cast::<u8>(), core::ptr::null()];
    // SAFETY: a null after the first pointer says contiguous. Coefficients are 128 bits, 16 bytes
    // apart. The scratch space has the size in bytes that blst asks for, in limbs of 8 bytes.
    unsafe {
        let bytes = blst::blst_p1s_mult_pippenger_scratch_sizeof(points.len());
        let mut scratch = vec![0u64; bytes.div_ceil(8)];
        blst::blst_p1s_mult_pippenger(
            &mut out,
            point_list.as_ptr(),
            points.len(),
            scalar_list.as_ptr(),
            128,
            scratch.as_mut_ptr(),
        );
    }
    G1(out)
}
