//! The matched filter.

use crate::matrix::Matrix;
use crate::score::PriorKnowledge;
use crate::trace::{LineTrace, Span};

/// Least share of frames that the distribution of delays does not explain.
const STRAY: f64 = 0.02;

/// Log likelihood ratio of each egress under two Poisson streams. The rate of the first follows
/// from the ingress and the distribution of delays; the second has an even rate.
pub fn likelihood(
    ingress: &[&LineTrace],
    egress: &[&LineTrace],
    known: &PriorKnowledge,
    span: Span,
) -> Matrix {
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

/// Sum of logarithms at these places. Four independent sums let the processor work in parallel.
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
    use crate::delay::DelayDensity;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_score_is_the_ratio_of_two_likelihoods() {
        // One frame leaves a step after it entered; ten steps, all frames are the flow's.
        let delay = DelayDensity::drawn(&[MS], MS);
        let known = PriorKnowledge { delay, share: 1.0 };
        let span = Span { from: shoal_wire::Time(0), to: shoal_wire::Time(10 * MS) };
        let entered = LineTrace::full([3 * MS]);
        let stray = 0.02 / 10.0;
        let score =
            |at: u64| likelihood(&[&entered], &[&LineTrace::full([at])], &known, span).at(0, 0);
        let sum = 1.0 + 10.0 * stray;
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-4, "{a} {b}");
        close(score(4 * MS), (1.0_f64 + stray).ln() - sum - 0.1_f64.ln() + 1.0);
        close(score(5 * MS), stray.ln() - sum - 0.1_f64.ln() + 1.0);
    }
}
