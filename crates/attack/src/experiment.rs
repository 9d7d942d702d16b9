//! An experiment: chooses the attack on some networks, and measures it on others.

use core::ops::Range;

use serde::Serialize;

use crate::delay::DelayDensity;
use crate::fusion::{Fusion, PairExample};
use crate::mark::MarkKind;
use crate::matrix::Matrix;
use crate::members;
use crate::metrics::{Interval, LabelledScores, SuccessRates, factor, measure};
use crate::network::{Cost, ObservedNetwork, SEEDS_MAX, Scene, SceneError};
use crate::random::Draws;
use crate::score::{AttackMethod, PriorKnowledge, Scorer, VantagePoint};
use crate::trace::Span;

/// Parts of the watched time whose votes the fusion adds up, and the shortest length of a part.
const PARTS_MAX: u32 = 5;
const PART_S: u32 = 2;
/// Wrong pairs of each link from which the fusion learns.
const WRONG_OF_EACH: usize = 10;

/// Setup of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct ExperimentSetup {
    /// Network, and the time for which it is watched.
    pub scene: Scene,
    /// Action of an active attacker; none for a passive one.
    pub mark: Option<MarkKind>,
    /// Data that the attacker sees at the far end.
    pub view: VantagePoint,
    /// Seeds of networks on which the fusion learns (first half) and the attack is chosen (second
    /// half).
    pub training: Range<u64>,
    /// Seeds of networks on which the chosen attack is measured.
    pub seeds: Range<u64>,
}

/// Results of an attack on the networks on which the choice is made.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AttackRanking {
    pub attack: String,
    /// Area under the ROC curve.
    pub auc: f64,
    /// Share of links for which the right one came first.
    pub top1: f64,
}

/// Result of an experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct AttackResult {
    /// Attack that is measured, chosen on the training networks.
    pub attack: String,
    /// Results of all attacks on the training networks, the best one first.
    pub candidates: Vec<AttackRanking>,
    /// Rates at which the attack was right.
    pub rates: SuccessRates,
    /// Negative control: area under the curve when the labels of pairs are shuffled.
    pub shuffled: Interval,
    /// Frames that the network sent, and the delay that it added.
    pub cost: Cost,
    /// Full frames on a link per cell of its flow.
    pub overhead: f64,
}

/// Scores of one network under all attacks.
struct NetworkScores {
    /// Scores over the whole time, by attack.
    whole: Vec<Matrix>,
    /// Scores by part of the time, then by attack.
    parts: Vec<Vec<Matrix>>,
}

/// Attack, and whether its scores are compared with those of the best rivals.
type Choice = (AttackMethod, bool);

fn name((attack, rivals): Choice) -> String {
    format!("{attack}{}", if rivals { ", against rivals" } else { "" })
}

/// Two fusions: for the whole time, and for parts of it.
#[derive(Default)]
struct FusionPair {
    whole: Fusion,
    part: Fusion,
}

/// An attacker after training, with its chosen attack.
pub struct TrainedAttacker {
    view: VantagePoint,
    seconds: u32,
    attacks: Vec<AttackMethod>,
    known: PriorKnowledge,
    fused: FusionPair,
    choice: Choice,
    /// Factor between scores and the logarithm of odds.
    factor: f64,
    candidates: Vec<AttackRanking>,
}

/// Chooses an attack on the training networks and measures it on the others.
/// # Errors
/// A bound of the scene or of the seeds is broken; nothing was computed.
pub fn experiment(setup: &ExperimentSetup) -> Result<AttackResult, SceneError> {
    setup.check()?;
    match setup.view {
        VantagePoint::Wire | VantagePoint::Router | VantagePoint::Lines => {}
        VantagePoint::Members => return members::experiment(setup, true),
        VantagePoint::MembersInLine => return members::experiment(setup, false),
    }
    let trained = TrainedAttacker::new(setup)?;
    let new = |seed| ObservedNetwork::new(&setup.scene, seed, setup.mark);
    let mut measured = trained.begin();
    for seed in setup.seeds.clone() {
        measured.see(&new(seed)?);
    }
    Ok(measured.outcome(setup.seeds.start))
}

impl TrainedAttacker {
    /// Trains on the training networks of a setup, and chooses the attack.
    ///
    /// # Errors
    /// A bound of the scene is broken.
    pub fn new(setup: &ExperimentSetup) -> Result<TrainedAttacker, SceneError> {
        setup.scene.check()?;
        let training = &setup.training;
        if training.is_empty() || training.end - training.start < 2 {
            return Err(SceneError::Seeds);
        }
        let mut attacks = AttackMethod::passive();
        if setup.mark.is_some() {
            attacks.insert(0, AttackMethod::Mark);
        }
        let mut trained = TrainedAttacker {
            view: setup.view,
            seconds: setup.scene.seconds,
            known: setup.known()?,
            fused: FusionPair::default(),
            choice: (AttackMethod::Likelihood, false),
            factor: 0.0,
            candidates: Vec::new(),
            attacks,
        };
        let scored = |trained: &TrainedAttacker,
                      seeds: Range<u64>|
         -> Result<Vec<NetworkScores>, SceneError> {
            let new = |seed| ObservedNetwork::new(&setup.scene, seed, setup.mark);
            seeds.map(|seed| Ok(trained.scored(&new(seed)?))).collect()
        };
        let half = training.start + (training.end - training.start) / 2;
        trained.fused = FusionPair::train(&scored(&trained, training.start..half)?);
        let choosing = scored(&trained, half..training.end)?;
        trained.choose(&choosing);
        Ok(trained)
    }

    fn choose(&mut self, networks: &[NetworkScores]) {
        let choices = self.attacks.iter().copied().chain([AttackMethod::Fusion]);
        let choices = choices.flat_map(|attack| [false, true].map(|rivals| (attack, rivals)));
        let judge = |choice: Choice| {
            let all: Vec<Matrix> = networks.iter().map(|n| self.of(choice, n)).collect();
            let judged: Vec<LabelledScores> = all.iter().map(|m| (m, paired(m))).collect();
            let odds = factor(&judged);
            let rates = measure(&judged, odds, 0);
            let (auc, top1) = (rates.auc.value, rates.top1.value);
            (AttackRanking { attack: name(choice), auc, top1 }, choice, odds)
        };
        let mut best: Vec<(AttackRanking, Choice, f64)> = choices.map(judge).collect();
        best.sort_by(|(a, ..), (b, ..)| (b.auc + b.top1).total_cmp(&(a.auc + a.top1)));
        (_, self.choice, self.factor) = best[0];
        self.candidates = best.into_iter().map(|(candidate, ..)| candidate).collect();
    }

    /// Scores of a network under a choice.
    fn of(&self, (attack, rivals): Choice, network: &NetworkScores) -> Matrix {
        let at = self.attacks.iter().position(|a| *a == attack);
        let scores = at.map_or_else(|| self.fused.scores(network), |at| network.whole[at].clone());
        if rivals { scores.against_rivals() } else { scores }
    }

    fn scored(&self, network: &ObservedNetwork) -> NetworkScores {
        let of = |span: Span| -> Vec<Matrix> {
            let scorer = Scorer::new(network, self.view, &self.known, span);
            self.attacks.iter().map(|attack| scorer.scores(*attack)).collect()
        };
        let span = Span::seconds(self.seconds);
        let parts = (self.seconds / PART_S).min(PARTS_MAX) as usize;
        let parts = if parts > 1 { span.parts(parts).map(of).collect() } else { Vec::new() };
        NetworkScores { whole: of(span), parts }
    }

    /// Begins to measure the chosen attack.
    pub fn begin(&self) -> AttackMeasurement<'_> {
        AttackMeasurement { trained: self, scores: Vec::new(), cost: Cost::default() }
    }
}

/// Measurement of a trained attacker on networks.
pub struct AttackMeasurement<'a> {
    trained: &'a TrainedAttacker,
    scores: Vec<Matrix>,
    /// Sum over networks.
    cost: Cost,
}

impl AttackMeasurement<'_> {
    /// Attacks one more network.
    pub fn see(&mut self, network: &ObservedNetwork) {
        let TrainedAttacker { choice, .. } = *self.trained;
        self.scores.push(self.trained.of(choice, &self.trained.scored(network)));
        self.cost.cells_per_s += network.cost.cells_per_s;
        self.cost.frames_per_s += network.cost.frames_per_s;
        self.cost.added_ms += network.cost.added_ms;
    }

    /// Result of the measurement. `seed` is for the intervals and the shuffled labels.
    pub fn outcome(self, seed: u64) -> AttackResult {
        let trained = self.trained;
        let judged: Vec<LabelledScores> = self.scores.iter().map(|m| (m, paired(m))).collect();
        let mut draws = Draws::new(seed, "shuffled", 0);
        let shuffled: Vec<LabelledScores> =
            self.scores.iter().map(|m| (m, draws.permutation(m.len()))).collect();
        let networks = self.scores.len().max(1) as f64;
        let cost = Cost {
            cells_per_s: self.cost.cells_per_s / networks,
            frames_per_s: self.cost.frames_per_s / networks,
            added_ms: self.cost.added_ms / networks,
        };
        AttackResult {
            attack: name(trained.choice),
            candidates: trained.candidates.clone(),
            rates: measure(&judged, trained.factor, seed),
            shuffled: measure(&shuffled, trained.factor, seed).auc,
            cost,
            overhead: cost.frames_per_s / cost.cells_per_s.max(1e-9),
        }
    }
}

/// The true pairs: each row belongs to the column of its number.
fn paired(matrix: &Matrix) -> Vec<usize> {
    (0..matrix.len()).collect()
}

impl ExperimentSetup {
    /// Checks all bounds.
    ///
    /// # Errors
    /// The first bound that is broken.
    pub fn check(&self) -> Result<(), SceneError> {
        self.scene.check()?;
        let count = |seeds: &Range<u64>| seeds.end.saturating_sub(seeds.start);
        let apart = self.training.end <= self.seeds.start || self.seeds.end <= self.training.start;
        let enough = (2..=SEEDS_MAX).contains(&count(&self.training))
            && (1..=SEEDS_MAX).contains(&count(&self.seeds));
        if apart && enough { Ok(()) } else { Err(SceneError::Seeds) }
    }

    /// Prior knowledge of the attacker: the distribution of delays, and the share of a link's
    /// frames that are cells of its flow. The share is taken from the first training network.
    fn known(&self) -> Result<PriorKnowledge, SceneError> {
        let cost = ObservedNetwork::new(&self.scene, self.training.start, self.mark)?.cost;
        let share = (cost.cells_per_s / cost.frames_per_s.max(1e-9)).clamp(0.01, 1.0);
        Ok(PriorKnowledge { delay: DelayDensity::of(&self.scene), share })
    }
}

impl FusionPair {
    fn train(networks: &[NetworkScores]) -> FusionPair {
        let mut draws = Draws::new(0, "examples", networks.len() as u64);
        let (mut whole, mut part) = (Vec::new(), Vec::new());
        for network in networks {
            learn(&mut whole, &network.whole, &mut draws);
            network.parts.iter().for_each(|matrices| learn(&mut part, matrices, &mut draws));
        }
        FusionPair { whole: Fusion::train(&whole), part: Fusion::train(&part) }
    }

    /// Sum of the log odds over the whole time and over each part.
    fn scores(&self, network: &NetworkScores) -> Matrix {
        let n = network.whole[0].len();
        let odds = |fusion: &Fusion, all: &[Matrix], row, column| {
            fusion.score(&features(all, row, column))
        };
        let score = |row: usize, column: usize| {
            let votes = network.parts.iter().map(|part| odds(&self.part, part, row, column));
            odds(&self.whole, &network.whole, row, column) + votes.sum::<f64>()
        };
        Matrix::new(n, score).standardised()
    }
}

fn features(all: &[Matrix], row: usize, column: usize) -> Vec<f64> {
    all.iter().map(|matrix| matrix.at(row, column)).collect()
}

/// All true pairs as examples, and some wrong pairs of each row.
fn learn(examples: &mut Vec<PairExample>, all: &[Matrix], draws: &mut Draws) {
    let n = all.first().map_or(0, Matrix::len);
    for row in 0..n {
        examples.push((features(all, row, row), true));
        for _ in 0..WRONG_OF_EACH {
            let column = (row + 1 + draws.below(n - 1)) % n;
            examples.push((features(all, row, column), false));
        }
    }
}

#[cfg(test)]
mod tests;
