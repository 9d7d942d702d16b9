//! The matched filter.

use crate::matrix::Matrix;
use crate::score::Known;
use crate::trace::{Span, Trace};

/// The part of all frames that the law of delays does not explain, at least.
const STRAY: f64 = 0.02;

/// The logarithm of how much more probable each egress is as a Poisson stream whose rate follows
/// from the ingress and the law of delays than as one of even rate.
pub fn likelihood(ingress: &[&Trace], egress: &[&Trace], known: &Known, span: Span) -> Matrix {
    let bin_ns = known.delay.bin_ns;
    let bins = (span.ns() / bin_ns) as usize;
    let seen: Vec<Vec<u32>> = egress
        .iter()
        .map(|trace| {
            let places = trace.cells(span).map(|at| (at / bin_ns) as u32);
            places.filter(|place| (*place as usize) < bins).collect()
        })
        .collect();
    let frames: usize = seen.iter().map(Vec::len).sum();
    let even = (frames.max(1) as f64) / (egress.len().max(1) * bins.max(1)) as f64;
    let others = even * (1.0 - known.share).max(STRAY);
    let mut rows = ingress.iter().map(|trace| {
        let expected = known.delay.spread(&trace.binned(span, bin_ns));
        let rates = expected.iter().map(|e| f64::from(*e) * known.share + others);
        let logs: Vec<f32> = rates.clone().map(|rate| rate.ln() as f32).collect();
        (logs, rates.sum::<f64>())
    });
    let mut row = (Vec::new(), 0.0);
    Matrix::new(ingress.len(), |_, column| {
        if column == 0 {
            row = rows.next().unwrap_or_default();
        }
        let (logs, sum) = &row;
        let places = &seen[column];
        let n = places.len() as f64;
        total(logs, places) - sum - n * (n.max(1.0) / bins.max(1) as f64).ln() + n
    })
}

/// The sum of logarithms at these places. Four sums side by side don't wait for each other.
fn total(logs: &[f32], places: &[u32]) -> f64 {
    let at = |place: u32| f64::from(logs[place as usize]);
    let fours = places.chunks_exact(4);
    let rest: f64 = fours.remainder().iter().map(|place| at(*place)).sum();
    let sums = fours
        .fold([0.0; 4], |sums: [f64; 4], four| core::array::from_fn(|i| sums[i] + at(four[i])));
    rest + sums.iter().sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delay::Density;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_score_is_the_ratio_of_two_likelihoods() {
        // One frame leaves a step after it entered; ten steps, all frames are the flow's.
        let delay = Density::drawn(&[MS], MS);
        let known = Known { delay, share: 1.0 };
        let span = Span { from: shoal_wire::Time(0), to: shoal_wire::Time(10 * MS) };
        let entered = Trace::full([3 * MS]);
        let stray = 0.02 / 10.0;
        let score = |at: u64| likelihood(&[&entered], &[&Trace::full([at])], &known, span).at(0, 0);
        let sum = 1.0 + 10.0 * stray;
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-4, "{a} {b}");
        close(score(4 * MS), (1.0_f64 + stray).ln() - sum - 0.1_f64.ln() + 1.0);
        close(score(5 * MS), stray.ln() - sum - 0.1_f64.ln() + 1.0);
    }
}
