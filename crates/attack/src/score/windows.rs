//! Correlation of counts in windows.

use core::fmt;

use crate::matrix::Matrix;
use crate::score::COUNT_NS;

/// Lags that are tried on each side of the mean delay: for windows up to 100 ms, and for longer
/// ones.
const LAGS_SHORT: usize = 3;
const LAGS_LONG: usize = 1;
const SHORT_NS: u64 = 100_000_000;

/// Measure for comparing two rows of counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Correlation of counts.
    Pearson,
    /// Correlation of the ranks of counts.
    Spearman,
    /// Angle between rows of counts.
    Cosine,
}

impl Measure {
    pub const ALL: [Measure; 3] = [Measure::Pearson, Measure::Spearman, Measure::Cosine];

    /// Counts as a vector of length 1: the product of two such vectors is the measure. All zeros if
    /// the counts don't vary.
    pub(crate) fn unit(self, counts: &[f32]) -> Vec<f32> {
        let mut row = if self == Measure::Spearman { ranks(counts) } else { counts.to_vec() };
        if self != Measure::Cosine {
            let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / row.len().max(1) as f64;
            row.iter_mut().for_each(|x| *x -= mean as f32);
        }
        let length = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let scale = if length > 1e-6 { 1.0 / length } else { 0.0 };
        row.iter_mut().for_each(|x| *x *= scale as f32);
        row
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Measure::Pearson => "Pearson",
            Measure::Spearman => "Spearman",
            Measure::Cosine => "cosine",
        })
    }
}

/// Sums counts in steps of [`COUNT_NS`] over longer windows.
pub(crate) fn longer(counts: &[f32], window_ns: u64) -> Vec<f32> {
    let steps = (window_ns / COUNT_NS).max(1) as usize;
    counts.chunks_exact(steps).map(|window| window.iter().sum()).collect()
}

/// The measure over windows of `window_ns` between ingress and egress, at the best lag around the
/// mean delay. Counts are in steps of [`COUNT_NS`].
pub fn correlation(
    measure: Measure,
    entered: &[Vec<f32>],
    left: &[Vec<f32>],
    window_ns: u64,
    delay_ns: f64,
) -> Matrix {
    let units = |counts: &[Vec<f32>]| -> Vec<Vec<f32>> {
        counts.iter().map(|counts| measure.unit(&longer(counts, window_ns))).collect()
    };
    let (entered, left) = (units(entered), units(left));
    let centre = (delay_ns / window_ns as f64).round() as usize;
    let around = if window_ns <= SHORT_NS { LAGS_SHORT } else { LAGS_LONG };
    let lags = centre.saturating_sub(around)..=centre + around;
    Matrix::new(entered.len(), |row, column| {
        let at = |lag: usize| match left[column].get(lag..) {
            Some(later) => f64::from(product(&entered[row], later)),
            None => 0.0,
        };
        lags.clone().map(at).fold(f64::NEG_INFINITY, f64::max)
    })
}

/// Sum of products, up to the end of the shorter row. Eight independent sums let the compiler use
/// wide registers.
pub(crate) fn product(a: &[f32], b: &[f32]) -> f32 {
    let n = a.len().min(b.len());
    let (a, b) = (a[..n].chunks_exact(8), b[..n].chunks_exact(8));
    let rest: f32 = a.remainder().iter().zip(b.remainder()).map(|(x, y)| x * y).sum();
    let mut sums = [0.0_f32; 8];
    for (x, y) in a.zip(b) {
        for i in 0..8 {
            sums[i] += x[i] * y[i];
        }
    }
    rest + sums.iter().sum::<f32>()
}

/// Ranks from 0; equal values get the mean of their ranks.
pub fn ranks(values: &[f32]) -> Vec<f32> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_unstable_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut from = 0;
    while from < order.len() {
        let equal = |i: &&usize| values[**i] == values[order[from]];
        let many = order[from..].iter().take_while(equal).count();
        for &i in &order[from..from + many] {
            ranks[i] = from as f32 + (many - 1) as f32 / 2.0;
        }
        from += many;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{LineTrace, Span};

    const MS: u64 = 1_000_000;

    #[test]
    fn measures_have_their_known_values() {
        let of = |m: Measure, a: &[f32], b: &[f32]| product(&m.unit(a), &m.unit(b));
        let (a, b) = ([1.0, 2.0, 3.0, 4.0, 9.0], [2.0, 4.0, 6.0, 8.0, 81.0]);
        assert!((of(Measure::Pearson, &a, &b) - 0.954_9).abs() < 1e-3);
        assert!((of(Measure::Spearman, &a, &b) - 1.0).abs() < 1e-6);
        assert!((of(Measure::Cosine, &[3.0, 4.0], &[4.0, 3.0]) - 0.96).abs() < 1e-6);
        assert_eq!(of(Measure::Pearson, &[5.0; 9], &[1.0; 9]), 0.0);
        assert_eq!(ranks(&[5.0, 1.0, 5.0, 9.0]), [1.5, 0.0, 1.5, 3.0]);
        let many: Vec<f32> = (0..21).map(|i| i as f32).collect();
        assert_eq!(product(&many, &many[..20]), 2_470.0);
    }

    #[test]
    fn the_best_lag_is_found() {
        let enter = [1, 2, 5, 11, 12, 17].map(|i| i * 100 * MS);
        let count = |times: &[u64]| {
            LineTrace::full(times.iter().copied()).binned(Span::seconds(2), COUNT_NS)
        };
        let left = count(&enter.map(|at| at + 230 * MS));
        let other = count(&[400 * MS, 900 * MS, 1_500 * MS]);
        let entered = [count(&enter), other.clone()];
        let found = correlation(Measure::Pearson, &entered, &[left, other], 100 * MS, 1e8);
        assert!(found.at(0, 0) > 0.95 && found.at(0, 1) < 0.5, "{found:?}");
    }
}
