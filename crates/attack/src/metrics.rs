//! Rates at which an attacker is right.

use serde::Serialize;

use crate::assignment::assign;
use crate::matrix::Matrix;
use crate::random::Draws;

/// Number of resamples of networks and pairs for an interval.
const RESAMPLES: usize = 400;
/// Points of a curve.
const CURVE: usize = 40;
/// Factors that are tried between scores and the logarithm of odds.
const FACTORS: [f64; 12] = [0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0];

/// A figure with its bootstrap interval: the middle 95% over resampled networks and pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Interval {
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Rates at which an attacker is right, over networks.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SuccessRates {
    /// Number of true pairs.
    pub pairs: usize,
    /// Number of wrong pairs to compare with.
    pub wrong: usize,
    /// Area under the ROC curve: share of comparisons in which a true pair scores above a wrong
    /// one.
    pub auc: Interval,
    /// Share of links whose true partner has the highest score of all candidates.
    pub top1: Interval,
    /// Rate of `top1` for a guess.
    pub guess: f64,
    /// Share of true pairs in the best one-to-one assignment.
    pub assigned: f64,
    /// Bits of information that the attacker believes to have gained per link: log2 N less the
    /// entropy of its posterior, as a mean.
    pub bits: f64,
    /// Share of true pairs above the threshold that one wrong pair in 100 passes.
    pub at_1_in_100: Interval,
    /// Share of true pairs above the threshold that one wrong pair in 1,000 passes.
    pub at_1_in_1000: Interval,
    /// ROC curve: shares of wrong and of true pairs that pass each threshold.
    pub curve: Vec<(f64, f64)>,
}

/// Scores of one network, and the true column of each row.
pub type LabelledScores<'a> = (&'a Matrix, Vec<usize>);

/// Comparison of one true pair with wrong ones.
struct PairRanking {
    /// Share of wrong pairs with a lower score.
    above: f64,
    /// 1 if the pair has the highest score of its row; 1 / n if n scores are equally high.
    first: f64,
    at_1_in_100: f64,
    at_1_in_1000: f64,
}

/// Measures scores. `factor` converts them to the logarithm of odds (see [`factor`]); `seed` is for
/// the intervals.
pub fn measure(networks: &[LabelledScores], factor: f64, seed: u64) -> SuccessRates {
    let mut wrong: Vec<f64> = networks.iter().flat_map(wrong_scores).collect();
    wrong.sort_unstable_by(f64::total_cmp);
    let threshold = |share: f64| {
        let passing = (share * wrong.len() as f64) as usize;
        wrong.len().checked_sub(passing + 1).map_or(f64::INFINITY, |at| wrong[at])
    };
    let (t100, t1000) = (threshold(1e-2), threshold(1e-3));
    let standing = |matrix: &Matrix, row: usize, column: usize| {
        let score = matrix.at(row, column);
        let below = wrong.partition_point(|w| *w < score);
        let equal = wrong[below..].partition_point(|w| *w <= score);
        let better = matrix.row(row).iter().filter(|s| **s > score).count();
        let same = matrix.row(row).iter().filter(|s| **s == score).count().max(1);
        PairRanking {
            above: (below as f64 + equal as f64 / 2.0) / wrong.len().max(1) as f64,
            first: if better == 0 { 1.0 / same as f64 } else { 0.0 },
            at_1_in_100: f64::from(u8::from(score > t100)),
            at_1_in_1000: f64::from(u8::from(score > t1000)),
        }
    };
    let standings: Vec<Vec<PairRanking>> = networks
        .iter()
        .map(|(matrix, truth)| {
            truth.iter().enumerate().map(|(row, column)| standing(matrix, row, *column)).collect()
        })
        .collect();
    let [auc, top1, at_1_in_100, at_1_in_1000] = intervals(&standings, seed);
    let each = networks.iter().map(|(m, _)| m.len()).sum::<usize>() as f64;
    SuccessRates {
        pairs: standings.iter().map(Vec::len).sum(),
        wrong: wrong.len(),
        auc,
        top1,
        guess: networks.len() as f64 / each.max(1.0),
        assigned: networks.iter().map(assigned).sum::<f64>() / each.max(1.0),
        bits: bits(networks, factor),
        at_1_in_100,
        at_1_in_1000,
        curve: curve(&wrong, networks),
    }
}

fn wrong_scores(network: &LabelledScores) -> Vec<f64> {
    let (matrix, truth) = network;
    let row = |row: usize| (0..matrix.len()).filter(move |c| *c != truth[row]);
    (0..matrix.len()).flat_map(|r| row(r).map(move |c| matrix.at(r, c))).collect()
}

/// Means over pairs, with intervals: networks are drawn with replacement, and pairs in each.
fn intervals(standings: &[Vec<PairRanking>], seed: u64) -> [Interval; 4] {
    let of = |s: &PairRanking| [s.above, s.first, s.at_1_in_100, s.at_1_in_1000];
    let mean = |drawn: &mut dyn Iterator<Item = &PairRanking>| {
        let (mut sums, mut n) = ([0.0; 4], 0.0_f64);
        for standing in drawn {
            of(standing).iter().zip(&mut sums).for_each(|(x, sum)| *sum += x);
            n += 1.0;
        }
        sums.map(|sum| sum / n.max(1.0))
    };
    let values = mean(&mut standings.iter().flatten());
    let mut draws = Draws::new(seed, "bootstrap", 0);
    let mut seen: [Vec<f64>; 4] = Default::default();
    for _ in 0..RESAMPLES {
        let mut drawn = Vec::new();
        for _ in 0..standings.len() {
            let network = &standings[draws.below(standings.len())];
            drawn.extend((0..network.len()).map(|_| &network[draws.below(network.len())]));
        }
        let means = mean(&mut drawn.into_iter());
        means.into_iter().zip(&mut seen).for_each(|(x, seen)| seen.push(x));
    }
    core::array::from_fn(|i| {
        seen[i].sort_unstable_by(f64::total_cmp);
        let at = |share: f64| seen[i][(share * (RESAMPLES - 1) as f64).round() as usize];
        Interval { value: values[i], low: at(0.025), high: at(0.975) }
    })
}

/// Number of right pairs in the best assignment.
fn assigned(network: &LabelledScores) -> f64 {
    let (matrix, truth) = network;
    assign(matrix).iter().zip(truth).filter(|(found, is)| found == is).count() as f64
}

/// Posterior of a row: exponentials of scores, normalised to the sum 1.
fn posterior(row: &[f64], factor: f64) -> Vec<f64> {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let odds: Vec<f64> = row.iter().map(|score| (factor * (score - most)).exp()).collect();
    let sum: f64 = odds.iter().sum();
    odds.into_iter().map(|odds| odds / sum).collect()
}

fn bits(networks: &[LabelledScores], factor: f64) -> f64 {
    let gained = |row: &[f64]| {
        let entropy = |p: &f64| if *p > 0.0 { -p * p.log2() } else { 0.0 };
        (row.len() as f64).log2() - posterior(row, factor).iter().map(entropy).sum::<f64>()
    };
    let rows = || networks.iter().flat_map(|(m, _)| (0..m.len()).map(|r| m.row(r)));
    // Rounding may yield a value below zero.
    (rows().map(gained).sum::<f64>() / rows().count().max(1) as f64).max(0.0)
}

/// Factor between scores and the logarithm of odds that makes the true pairs of these networks most
/// probable. Must be found on other networks than the measured ones.
pub fn factor(networks: &[LabelledScores]) -> f64 {
    let fit = |factor: f64| -> f64 {
        let row = |m: &Matrix, r: usize, c: usize| posterior(m.row(r), factor)[c].max(1e-300).ln();
        let network = |(m, truth): &LabelledScores| -> f64 {
            truth.iter().enumerate().map(|(r, c)| row(m, r, *c)).sum()
        };
        networks.iter().map(network).sum()
    };
    FACTORS.into_iter().max_by(|a, b| fit(*a).total_cmp(&fit(*b))).unwrap_or(0.0)
}

fn curve(wrong: &[f64], networks: &[LabelledScores]) -> Vec<(f64, f64)> {
    let scores = |(matrix, truth): &LabelledScores| -> Vec<f64> {
        truth.iter().enumerate().map(|(row, column)| matrix.at(row, *column)).collect()
    };
    let mut right: Vec<f64> = networks.iter().flat_map(scores).collect();
    right.sort_unstable_by(f64::total_cmp);
    let share = |sorted: &[f64], from: f64| {
        (sorted.len() - sorted.partition_point(|s| *s <= from)) as f64 / sorted.len().max(1) as f64
    };
    let point = |i: usize| {
        // More points where few wrong pairs pass.
        let passing = (i as f64 / CURVE as f64).powi(3);
        let at = (passing * wrong.len() as f64) as usize;
        let threshold = wrong.len().checked_sub(at + 1).map_or(f64::NEG_INFINITY, |at| wrong[at]);
        (share(wrong, threshold), share(&right, threshold))
    };
    (0..=CURVE).map(point).collect()
}

#[cfg(test)]
mod tests;
