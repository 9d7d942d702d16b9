//! Random forest (Breiman, Random Forests, 2001).
//!
//! Trees compare values with thresholds, so features need no common scale: lengths, logarithms of
//! times, and shares. A few hundred examples are enough. Each program has equal weight, however
//! many captures it has.

use crate::random::Draws;

/// Number of trees in a forest.
const TREES: usize = 60;
/// Examples of each class that each tree draws.
const DRAWN: usize = 40;
/// Greatest depth. With [`DRAWN`] examples of a few classes, trees end long before it.
const DEPTH_MAX: usize = 24;

/// Training example.
#[derive(Clone, Copy, Debug)]
pub struct LabelledExcerpt<'a> {
    pub class: usize,
    /// Capture from which the example comes.
    pub capture: usize,
    pub values: &'a [f64],
}

/// Trees that vote.
pub struct Forest {
    trees: Vec<Vec<TreeNode>>,
    classes: usize,
    gains: Vec<f64>,
}

enum TreeNode {
    Leaf(usize),
    /// Values up to `at` continue at the next node, others at `other`.
    Split {
        feature: usize,
        at: f64,
        other: usize,
    },
}

/// State of a growing tree.
struct Grower<'a> {
    classes: usize,
    features: &'a [usize],
    /// Number of features that each split tries.
    tried: usize,
    nodes: Vec<TreeNode>,
    gains: &'a mut [f64],
}

impl Forest {
    /// Trains a forest on these features of the examples.
    pub fn grow(
        examples: &[LabelledExcerpt<'_>],
        classes: usize,
        features: &[usize],
        seed: u64,
    ) -> Forest {
        let width = examples.first().map_or(0, |example| example.values.len());
        let mut gains = vec![0.0; width];
        let by_class = captures(examples, classes);
        let tried = (features.len() as f64).sqrt().ceil() as usize;
        let tree = |number: usize| {
            let mut draws = Draws::new(seed, "forest", number as u64);
            let drawn = draw(&by_class, &mut draws);
            let mut grower =
                Grower { classes, features, tried, nodes: Vec::new(), gains: &mut gains };
            grower.grow(drawn, 0, &mut draws);
            grower.nodes
        };
        let trees = (0..TREES).map(tree).collect();
        Forest { trees, classes, gains }
    }

    /// The class with the most votes.
    pub fn class(&self, values: &[f64]) -> usize {
        let mut votes = vec![0; self.classes];
        for tree in &self.trees {
            let mut at = 0;
            let class = loop {
                match tree[at] {
                    TreeNode::Leaf(class) => break class,
                    TreeNode::Split { feature, at: bound, .. } if values[feature] <= bound => {
                        at += 1
                    }
                    TreeNode::Split { other, .. } => at = other,
                }
            };
            votes[class] += 1;
        }
        (0..self.classes).max_by_key(|class| votes[*class]).unwrap_or(0)
    }

    /// Decrease of impurity by each feature, normalised to the sum 1.
    pub fn gains(&self) -> Vec<f64> {
        let sum = self.gains.iter().sum::<f64>().max(1e-12);
        self.gains.iter().map(|gain| gain / sum).collect()
    }
}

/// Examples by class and capture.
fn captures<'a>(
    examples: &[LabelledExcerpt<'a>],
    classes: usize,
) -> Vec<Vec<Vec<LabelledExcerpt<'a>>>> {
    let of = |class: usize| -> Vec<Vec<LabelledExcerpt<'a>>> {
        let own: Vec<LabelledExcerpt<'a>> =
            examples.iter().copied().filter(|e| e.class == class).collect();
        own.chunk_by(|a, b| a.capture == b.capture).map(<[_]>::to_vec).collect()
    };
    (0..classes).map(of).filter(|captures| !captures.is_empty()).collect()
}

/// Draws equally many examples of each class: first a capture, then an example of it, both with
/// replacement.
fn draw<'a>(
    by_class: &[Vec<Vec<LabelledExcerpt<'a>>>],
    draws: &mut Draws,
) -> Vec<LabelledExcerpt<'a>> {
    let mut drawn = Vec::with_capacity(by_class.len() * DRAWN);
    for captures in by_class {
        for _ in 0..DRAWN {
            let capture = &captures[draws.below(captures.len())];
            drawn.push(capture[draws.below(capture.len())]);
        }
    }
    drawn
}

/// Gini impurity times the number of examples.
fn impurity(counts: &[usize]) -> f64 {
    let n = counts.iter().sum::<usize>().max(1) as f64;
    n - counts.iter().map(|count| (*count as f64).powi(2)).sum::<f64>() / n
}

impl Grower<'_> {
    fn grow(&mut self, examples: Vec<LabelledExcerpt<'_>>, depth: usize, draws: &mut Draws) {
        let mut counts = vec![0; self.classes];
        examples.iter().for_each(|example| counts[example.class] += 1);
        let most = (0..self.classes).max_by_key(|class| counts[*class]).unwrap_or(0);
        let best = (depth < DEPTH_MAX).then(|| self.best(&examples, &counts, draws)).flatten();
        let Some((gain, feature, at)) = best else {
            self.nodes.push(TreeNode::Leaf(most));
            return;
        };
        self.gains[feature] += gain;
        let (low, high) = examples.into_iter().partition(|example| example.values[feature] <= at);
        let own = self.nodes.len();
        self.nodes.push(TreeNode::Leaf(most));
        self.grow(low, depth + 1, draws);
        let other = self.nodes.len();
        self.nodes[own] = TreeNode::Split { feature, at, other };
        self.grow(high, depth + 1, draws);
    }

    /// Split that decreases impurity most: the decrease, the feature, and the threshold.
    fn best(
        &self,
        examples: &[LabelledExcerpt<'_>],
        counts: &[usize],
        draws: &mut Draws,
    ) -> Option<(f64, usize, f64)> {
        let whole = impurity(counts);
        let mut best: Option<(f64, usize, f64)> = None;
        let order = draws.permutation(self.features.len());
        for feature in order.into_iter().take(self.tried).map(|at| self.features[at]) {
            let mut values: Vec<(f64, usize)> =
                examples.iter().map(|e| (e.values[feature], e.class)).collect();
            values.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
            let (mut low, mut high) = (vec![0; self.classes], counts.to_vec());
            for pair in values.windows(2) {
                let [(value, class), (next, _)] = [pair[0], pair[1]];
                low[class] += 1;
                high[class] -= 1;
                if value == next {
                    continue;
                }
                let gain = whole - impurity(&low) - impurity(&high);
                // Gains below rounding errors do not count.
                if gain > best.map_or(1e-9, |(most, ..)| most) {
                    best = Some((gain, feature, value + (next - value) / 2.0));
                }
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forest_learns_the_exclusive_or_of_two_values() {
        // Class 1 if exactly one of the first two values is high; the third is noise.
        let mut draws = Draws::new(1, "forest-test", 0);
        let mut point = || -> Vec<f64> { (0..3).map(|_| draws.uniform()).collect() };
        let points: Vec<Vec<f64>> = (0..400).map(|_| point()).collect();
        let class = |p: &[f64]| usize::from((p[0] > 0.5) != (p[1] > 0.5));
        let example =
            |(capture, values): (usize, &'_ Vec<f64>)| (class(values), capture, values.clone());
        let all: Vec<(usize, usize, Vec<f64>)> = points.iter().enumerate().map(example).collect();
        let lessons: Vec<LabelledExcerpt<'_>> = all[..300]
            .iter()
            .map(|(class, capture, values)| LabelledExcerpt {
                class: *class,
                capture: *capture,
                values,
            })
            .collect();
        let forest = Forest::grow(&lessons, 2, &[0, 1, 2], 7);
        let right = all[300..].iter().filter(|(class, _, v)| forest.class(v) == *class).count();
        assert!(right >= 90, "{right}");
        let gains = forest.gains();
        assert!((gains.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        assert!(gains[2] < gains[0] && gains[2] < gains[1], "{gains:?}");
        // With noise alone, the forest guesses.
        let blind = Forest::grow(&lessons, 2, &[2], 7);
        let right = all[300..].iter().filter(|(class, _, v)| blind.class(v) == *class).count();
        assert!((30..70).contains(&right), "{right}");
    }

    #[test]
    fn a_forest_without_examples_returns_a_valid_class() {
        let forest = Forest::grow(&[], 3, &[0], 1);
        assert!(forest.class(&[0.5]) < 3);
    }
}
