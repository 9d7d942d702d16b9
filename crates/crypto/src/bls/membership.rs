//! Membership in the subgroup of prime order, for many points at once.
//!
//! The usual way to check many points at once is a random combination of them. One combination is
//! not sound here: the curve's cofactor is divisible by 3, so a combination hides a point outside
//! the subgroup with probability 1/3. Many independent combinations are therefore checked, with
//! coefficients -1, 0 and 1.
//!
//! Let one point be outside, and let the other points be arbitrary. At most one of the three
//! coefficients then puts a combination into the subgroup. If two did, their difference times the
//! point would lie in the subgroup. Since the cofactor is odd, the point itself would too.

use blst::blst_p1;

use super::G1;
use super::g1::{G1Unchecked, affine_all};
use super::public::add_signed;
use crate::Rng;

/// Number of combinations. Bad points pass all with probability 3^-51, below 2^-80.
const ROWS: usize = 51;
/// Number of points that share a table of their combinations.
const GROUP: usize = 3;
/// Combinations of a group without the empty one; a combination and its negative share an entry.
const ENTRIES: usize = 13;
/// Up to this many points, single checks are cheaper.
const ALONE_MAX: usize = 80;

/// True if all points lie in the subgroup. False is always right. True is wrong with a probability
/// below 2^-80, provided that the points were chosen without knowledge of `rng`.
pub fn all_in_subgroup(points: &[G1Unchecked], rng: &mut Rng) -> bool {
    let each = || points.iter().all(|p| p.check().is_ok());
    if points.len() <= ALONE_MAX {
        return each();
    }
    let tables: Vec<blst_p1> = points.chunks(GROUP).flat_map(combinations).collect();
    if tables.iter().any(|p| G1(*p).is_identity()) {
        // The shared inversion can't divide by zero. Only points sent twice lead here.
        return each();
    }
    let tables = affine_all(&tables);
    let mut sums = [G1::identity(); ROWS];
    for (table, group) in tables.chunks_exact(ENTRIES).zip(points.chunks(GROUP)) {
        // A group of n points has 3^n combinations, numbered from -(3^n - 1)/2 on.
        let count = 3u8.pow(group.len() as u32);
        for sum in &mut sums {
            let combination = below(count, rng) as i8 - (count / 2) as i8;
            if combination != 0 {
                let entry = &table[usize::from(combination.unsigned_abs()) - 1];
                *sum = add_signed(sum, entry, combination < 0);
            }
        }
    }
    sums.iter().all(G1::in_subgroup)
}

/// A uniform number below a divisor of 243.
fn below(count: u8, rng: &mut Rng) -> u8 {
    loop {
        let [byte] = rng.array();
        if byte < 243 {
            return byte % count;
        }
    }
}

/// Table of combinations. The coefficients of entry `n - 1` are the digits of `n` in balanced
/// ternary.
fn combinations(group: &[G1Unchecked]) -> [blst_p1; ENTRIES] {
    // The last entries of a short group are never used, but must not be neutral.
    let mut out = [group[0].unproved().0; ENTRIES];
    let mut unit = 1;
    for point in group {
        let point = point.unproved();
        out[unit - 1] = point.0;
        for lower in 1..=unit / 2 {
            let other = G1(out[lower - 1]);
            out[unit + lower - 1] = point.add(&other).0;
            out[unit - lower - 1] = point.sub(&other).0;
        }
        unit *= 3;
    }
    out
}
