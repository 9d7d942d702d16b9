//! Logistic regression over the scores of other attacks. It stands in for the neural networks that
//! correlate flows.

/// Rounds of gradient descent, and the step length.
const ROUNDS: usize = 300;
const STEP: f64 = 0.5;
/// Penalty of large weights (ridge regression).
const RIDGE: f64 = 1e-3;

/// Weights of the features.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fusion {
    weights: Vec<f64>,
    bias: f64,
}

/// Training example: features, and whether the pair is a true one.
pub type PairExample = (Vec<f64>, bool);

impl Fusion {
    /// Trains on examples. True pairs as a whole weigh as much as all wrong pairs.
    pub fn train(examples: &[PairExample]) -> Fusion {
        let width = examples.first().map_or(0, |(features, _)| features.len());
        let mut fusion = Fusion { weights: vec![0.0; width], bias: 0.0 };
        let positive = examples.iter().filter(|(_, is)| *is).count() as f64;
        let weight =
            |is| 0.5 / if is { positive } else { examples.len() as f64 - positive }.max(1.0);
        for _ in 0..ROUNDS {
            let mut slope = vec![0.0; width];
            let mut bias = 0.0;
            for (features, is) in examples {
                let off = weight(*is) * (chance(fusion.score(features)) - f64::from(u8::from(*is)));
                slope.iter_mut().zip(features).for_each(|(s, x)| *s += off * x);
                bias += off;
            }
            for (w, s) in fusion.weights.iter_mut().zip(slope) {
                *w -= STEP * (s + RIDGE * *w);
            }
            fusion.bias -= STEP * bias;
        }
        fusion
    }

    /// Logarithm of the odds that a pair is a true one.
    pub fn score(&self, features: &[f64]) -> f64 {
        self.bias + self.weights.iter().zip(features).map(|(w, x)| w * x).sum::<f64>()
    }
}

fn chance(odds: f64) -> f64 {
    1.0 / (1.0 + (-odds).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Draws;

    #[test]
    fn a_feature_that_separates_the_classes_gets_the_weight() {
        let mut draws = Draws::new(1, "fusion", 0);
        let mut example = |is: bool| {
            let told = draws.between(-1.0, 1.0) + if is { 1.0 } else { -1.0 };
            (vec![told, draws.between(-1.0, 1.0)], is)
        };
        let examples: Vec<PairExample> = (0..400).map(|i| example(i % 4 == 0)).collect();
        let fusion = Fusion::train(&examples);
        assert!(fusion.weights[0] > 1.0 && fusion.weights[1].abs() < 0.3, "{fusion:?}");
        assert!(fusion.score(&[1.0, 0.0]) > 0.0 && fusion.score(&[-1.0, 0.0]) < 0.0);
        // Without examples, the score is neutral.
        assert_eq!(Fusion::train(&[]).score(&[3.0]), 0.0);
    }
}
