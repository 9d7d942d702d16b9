//! The paper's computation of the window at the moment of halving: equations (5) to (12), (15) to
//! (18) and (38) to (64).
//!
//! W is the number of packets in flight when the sender first gets D duplicate acknowledgements for
//! one packet. The window starts small and grows by one packet per round trip. D is the duplicate
//! threshold; the paper calls it dupthresh.
//!
//! Factorials would overflow at D = 171. All of them are in quotients, which are computed as
//! products of factors of at most 1.

/// A series ends when a bound of its rest is below this.
pub const TOLERANCE: f64 = 1e-12;
/// Largest number of terms. The slowest series needs about 300 at the largest threshold.
pub const TERMS_MAX: u32 = 10_000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeriesSum {
    /// The sum of the terms that were added.
    pub value: f64,
    /// Number of terms added; [`TERMS_MAX`] if the tolerance was not reached.
    pub terms: u32,
    /// Bound of the omitted terms: [`TOLERANCE`] or less, unless the terms ran out.
    pub rest: f64,
}

/// Adds terms to `start` until all later ones together are within [`TOLERANCE`].
///
/// Each item is a term, and a bound of the quotient of any later term and its predecessor.
pub(crate) fn add_up(start: f64, terms: impl Iterator<Item = (f64, f64)>) -> SeriesSum {
    let mut sum = SeriesSum { value: start, terms: 0, rest: f64::INFINITY };
    for (term, quotient) in terms.take(TERMS_MAX as usize) {
        sum.value += term;
        sum.terms += 1;
        // The geometric series that begins after this term.
        sum.rest = if quotient < 1.0 { term * quotient / (1.0 - quotient) } else { f64::INFINITY };
        if sum.rest <= TOLERANCE {
            break;
        }
    }
    sum
}

/// (8) and (20): the paper's probability that a window of `n` packets in random order gives at most
/// two duplicate acknowledgements for any packet. It is 2 x 3^(n-2) / n!, and 1 for windows of up
/// to 3.
///
/// The formula counts the orders of Lemma 1, in which no packet moves back by more than two places.
/// Such orders are sufficient but not necessary. [`crate::permutation::CalmProbabilities`] counts
/// all calm orders.
pub fn calm_at_three(n: u32) -> f64 {
    calm(n, 3)
}

/// (9) and (21): the complement of (8).
pub fn retransmit_at_three(n: u32) -> f64 {
    1.0 - calm_at_three(n)
}

/// (40): the paper's probability of at most D - 1 duplicate acknowledgements in a window of `n`. It
/// is D^(n-D+1) (D-1)! / n!, the product of D / j over j from D + 1 to n. 1 for `n` up to D.
pub fn calm(n: u32, dupthresh: u32) -> f64 {
    (dupthresh + 1..=n).map(|j| f64::from(dupthresh) / f64::from(j)).product()
}

/// (41): the complement of (40).
pub fn retransmit(n: u32, dupthresh: u32) -> f64 {
    1.0 - calm(n, dupthresh)
}

/// (5) and (16) for any probability of a calm window: the window is halved at `n` and not before.
pub fn halved_at_with(n: u32, dupthresh: u32, calm: impl Fn(u32) -> f64) -> f64 {
    if n <= dupthresh {
        return 0.0;
    }
    (dupthresh + 1..n).map(&calm).product::<f64>() * (1.0 - calm(n))
}

/// (10) for D = 3, and (42): the paper's probability that the window is halved at `n`.
pub fn halved_at(n: u32, dupthresh: u32) -> f64 {
    halved_at_with(n, dupthresh, |k| calm(k, dupthresh))
}

/// g(n, D) of (50): the probability that no window up to `n` was halved.
pub fn g(n: u32, dupthresh: u32) -> f64 {
    (dupthresh + 1..=n).map(|k| calm(k, dupthresh)).product()
}

/// g(n, D + 1) as (58) prints it: D^(k-D) D! / k!, multiplied over k from D + 2 to n.
///
/// The base is wrong. Each factor is the probability (40) for D, so the product is g(n, D) (D + 1)
/// / D.
pub fn g_next_as_printed(n: u32, dupthresh: u32) -> f64 {
    (dupthresh + 2..=n).map(|k| calm(k, dupthresh)).product()
}

/// g(n, D + 1) corrected: (D+1)^(k-D) D! / k!, which follows from (40) and (50).
///
/// The value exceeds g(n, D) by more than (63) says, so Theorem 3 holds for the window.
pub fn g_next(n: u32, dupthresh: u32) -> f64 {
    let base = f64::from(dupthresh + 1);
    let factor = |k| (dupthresh + 2..=k).map(|j| base / f64::from(j)).product::<f64>();
    (dupthresh + 2..=n).map(factor).product()
}

/// E(W) of (6), (15) and Theorem 3, (56): D + 1 plus the sum of g(n, D) over all n above D.
///
/// Theorem 1 gives 8.27 for D = 3, but the sum is 5.17.
pub fn mean_window(dupthresh: u32) -> SeriesSum {
    let start = (1.0, 1.0);
    let terms = (dupthresh + 1..).scan(start, |(chance, g), n| {
        *chance *= f64::from(dupthresh) / f64::from(n);
        *g *= *chance;
        // The next quotient is (40) at n + 1, and (40) falls with n.
        Some((*g, *chance))
    });
    add_up(f64::from(dupthresh + 1), terms)
}

/// The bound of Theorem 1 in closed form, (12) and (24): 8/9 e^3 - 41/9.
pub fn theorem_1_bound() -> f64 {
    8.0 / 9.0 * 3.0f64.exp() - 41.0 / 9.0
}

/// The bound of Theorem 2, (18) and (39): the sum of n D^(n-D) (D-1)! / (n-1)! over all n above D.
pub fn theorem_2_bound(dupthresh: u32) -> SeriesSum {
    let d = f64::from(dupthresh);
    let terms = (dupthresh + 1..).scan(1.0, |product, n| {
        let n = f64::from(n);
        *product *= d / (n - 1.0);
        // (46): the quotient of the next term and this one, which falls with n.
        Some((n * *product, d * (n + 1.0) / (n * n)))
    });
    add_up(0.0, terms)
}
