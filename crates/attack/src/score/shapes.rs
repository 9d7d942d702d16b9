//! Cumulative counts, starts and stops, mutual information.

use crate::delay::DelayDensity;
use crate::matrix::Matrix;
use crate::score::windows::{longer, ranks};
use crate::trace::{LineTrace, Span};

const MS: u64 = 1_000_000;
/// Steps of cumulative counts.
const SUM_NS: u64 = 60 * MS;
/// Shortest pause, absolute and in mean distances of frames.
const PAUSE_NS: u64 = 100 * MS;
const PAUSE_DISTANCES: f64 = 5.0;
/// Least tolerance for the time of a start.
const NEAR_NS: f64 = 30e6;
/// Bins for mutual information, and levels of counts.
const BIN_NS: u64 = 100 * MS;
const LEVELS: usize = 4;

/// Distance between the cumulative numbers of frames in and out, in standard deviations of a
/// Poisson count. Negative, so that a higher score means nearer.
pub fn cumulative(entered: &[Vec<f32>], left: &[Vec<f32>], delay_ns: f64) -> Matrix {
    let sums = |all: &[Vec<f32>]| -> Vec<Vec<f32>> {
        let sum = |counts: &Vec<f32>| {
            let mut so_far = 0.0;
            let add = |count: f32| {
                so_far += count;
                so_far
            };
            longer(counts, SUM_NS).into_iter().map(add).collect()
        };
        all.iter().map(sum).collect()
    };
    let (entered, left) = (sums(entered), sums(left));
    let lag = (delay_ns / SUM_NS as f64).round() as usize;
    Matrix::new(entered.len(), |row, column| {
        let later = left[column].get(lag..).unwrap_or_default();
        let apart = entered[row].iter().zip(later).map(|(a, b)| f64::from(a - b).powi(2));
        let most = entered[row].last().copied().unwrap_or(0.0);
        let most = f64::from(most.max(left[column].last().copied().unwrap_or(0.0)));
        -(apart.sum::<f64>() / later.len().max(1) as f64 / (most + 1.0)).sqrt()
    })
}

/// Starts after pauses, and stops before them.
struct PauseEdges {
    starts: Vec<u64>,
    stops: Vec<u64>,
}

impl PauseEdges {
    fn of(trace: &LineTrace, span: Span) -> PauseEdges {
        let cells: Vec<u64> = trace.cells(span).collect();
        let distance = span.ns() as f64 / cells.len().max(1) as f64;
        let pause = PAUSE_NS.max((PAUSE_DISTANCES * distance) as u64);
        let (mut starts, mut stops, mut last) = (Vec::new(), Vec::new(), 0);
        for (i, &at) in cells.iter().enumerate() {
            if at - last > pause {
                starts.push(at);
                stops.extend((i > 0).then_some(last));
            }
            last = at;
        }
        stops.extend((!cells.is_empty() && span.ns() - last > pause).then_some(last));
        PauseEdges { starts, stops }
    }
}

/// Excess of starts and stops at both ends together over the number expected by chance, in standard
/// deviations.
pub fn onsets(
    ingress: &[&LineTrace],
    egress: &[&LineTrace],
    delay: &DelayDensity,
    span: Span,
) -> Matrix {
    let edges = |traces: &[&LineTrace]| -> Vec<PauseEdges> {
        traces.iter().map(|trace| PauseEdges::of(trace, span)).collect()
    };
    let (entered, left) = (edges(ingress), edges(egress));
    let reach = (3.0 * delay.deviation_ns).max(NEAR_NS);
    let near = |from: &[u64], to: &[u64]| -> f64 {
        let found = |at: &&u64| {
            let expected = **at as f64 + delay.mean_ns;
            let first = to.partition_point(|t| (*t as f64) < expected - reach);
            to.get(first).is_some_and(|t| (*t as f64) <= expected + reach)
        };
        let found = from.iter().filter(found).count() as f64;
        let by_chance = -(-(to.len() as f64) * 2.0 * reach / span.ns().max(1) as f64).exp_m1();
        (found - from.len() as f64 * by_chance) / (from.len() as f64 * by_chance + 1.0).sqrt()
    };
    Matrix::new(ingress.len(), |row, column| {
        let (from, to) = (&entered[row], &left[column]);
        near(&from.starts, &to.starts) + near(&from.stops, &to.stops)
    })
}

/// Mutual information of counts in bins of 100 ms, in bits, at the best of three lags around the
/// mean delay.
pub fn information(entered: &[Vec<f32>], left: &[Vec<f32>], delay_ns: f64) -> Matrix {
    let levels = |all: &[Vec<f32>]| -> Vec<Vec<u8>> {
        all.iter().map(|counts| levels(&longer(counts, BIN_NS))).collect()
    };
    let (entered, left) = (levels(entered), levels(left));
    let centre = (delay_ns / BIN_NS as f64).round() as usize;
    Matrix::new(entered.len(), |row, column| {
        let lags = centre.saturating_sub(1)..=centre + 1;
        let at = |lag: usize| shared(&entered[row], left[column].get(lag..).unwrap_or_default());
        lags.map(at).fold(0.0, f64::max)
    })
}

/// Maps each count to one of four levels, by its rank.
fn levels(counts: &[f32]) -> Vec<u8> {
    let n = counts.len().max(1) as f32;
    ranks(counts).into_iter().map(|rank| (rank / n * LEVELS as f32) as u8).collect()
}

/// Mutual information of two rows of levels, in bits.
fn shared(a: &[u8], b: &[u8]) -> f64 {
    let mut table = [[0.0; LEVELS]; LEVELS];
    a.iter().zip(b).for_each(|(a, b)| table[usize::from(*a)][usize::from(*b)] += 1.0);
    let n = a.len().min(b.len()).max(1) as f64;
    let rows: [f64; LEVELS] = core::array::from_fn(|i| table[i].iter().sum());
    let columns: [f64; LEVELS] = core::array::from_fn(|j| table.iter().map(|row| row[j]).sum());
    let mut bits = 0.0;
    for (i, row) in table.iter().enumerate() {
        for (j, &count) in row.iter().enumerate().filter(|(_, count)| **count > 0.0) {
            bits += count / n * (count * n / (rows[i] * columns[j])).log2();
        }
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score::COUNT_NS;

    #[test]
    fn equal_levels_share_all_their_bits() {
        let a: Vec<u8> = (0..400).map(|i| (i % 4) as u8).collect();
        let b: Vec<u8> = (0..400).map(|i| (i / 4 % 4) as u8).collect();
        assert!((shared(&a, &a) - 2.0).abs() < 1e-12);
        assert!(shared(&a, &b).abs() < 1e-12);
        assert_eq!(levels(&[3.0, 1.0, 2.0, 4.0]), [2, 0, 1, 3]);
    }

    #[test]
    fn counts_that_stay_together_are_near() {
        let a = LineTrace::full((0..40).map(|i| i * 20 * MS));
        let later = LineTrace::full((0..40).map(|i| i * 20 * MS + 60 * MS));
        let b = LineTrace::full((0..40).map(|i| 400 * MS + i * 10 * MS));
        let span = Span::seconds(1);
        let count = |trace: &LineTrace| trace.binned(span, COUNT_NS);
        let found = cumulative(&[count(&a), count(&b)], &[count(&later), count(&b)], 6e7);
        assert!(found.at(0, 0) > -0.1 && found.at(0, 1) < -1.0, "{found:?}");
    }

    #[test]
    fn starts_and_stops_behind_the_delay_are_found() {
        let talk = |starts: &[u64]| {
            let word = |&at: &u64| (0..10).map(move |i| (at + i * 10) * MS);
            LineTrace::full(starts.iter().flat_map(word))
        };
        let entered = talk(&[500, 1_500, 2_900, 4_100]);
        let left = talk(&[600, 1_600, 3_000, 4_200]);
        let other = talk(&[100, 1_200, 2_300, 3_500]);
        let span = Span::seconds(5);
        let delay = DelayDensity::drawn(&[100 * MS], MS);
        let found = onsets(&[&entered, &entered], &[&left, &other], &delay, span);
        assert!(found.at(0, 0) > 6.0 && found.at(0, 1) < 1.0, "{found:?}");
    }
}
