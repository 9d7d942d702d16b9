//! One experiment: the attack is chosen on some networks, and measured on others.

use core::ops::Range;

use serde::Serialize;

use crate::delay::Density;
use crate::fusion::{Example, Fusion};
use crate::mark::Mark;
use crate::matrix::Matrix;
use crate::members;
use crate::metrics::{Interval, Judged, Rates, factor, measure};
use crate::network::{Cost, Network, SEEDS_MAX, Scene, Wrong};
use crate::random::Draws;
use crate::score::{Attack, Known, Scorer, View};
use crate::trace::Span;

/// Parts of the time watched whose votes the fusion adds up, and how long each lasts at least.
const PARTS_MAX: u32 = 5;
const PART_S: u32 = 2;
/// Wrong pairs of each link that the fusion learns from.
const WRONG_OF_EACH: usize = 10;

/// What is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The network, and how long it is watched.
    pub scene: Scene,
    /// What an active attacker does; none for one who only watches.
    pub mark: Option<Mark>,
    /// What it sees at the far end.
    pub view: View,
    /// Networks on which the fusion learns (the first half) and the attack is chosen (the rest).
    pub training: Range<u64>,
    /// Networks on which the chosen attack is measured.
    pub seeds: Range<u64>,
}

/// How an attack did on the networks on which one was chosen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// Which.
    pub attack: String,
    /// Area under the curve.
    pub auc: f64,
    /// How often it named the right link first.
    pub top1: f64,
}

/// What an experiment showed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// The attack that is measured, chosen on the training networks.
    pub attack: String,
    /// How all attacks did there, the best one first.
    pub candidates: Vec<Candidate>,
    /// How often it was right.
    pub rates: Rates,
    /// Negative control: area under the curve when it is drawn at random which pairs are true.
    pub shuffled: Interval,
    /// What the network sent, and how much later cells came.
    pub cost: Cost,
    /// Full frames on a link per cell of its flow.
    pub overhead: f64,
}

/// The scores of one network under all attacks.
struct Scored {
    /// By attack, over the whole time.
    whole: Vec<Matrix>,
    /// By part of the time, then by attack.
    parts: Vec<Vec<Matrix>>,
}

/// An attack, and whether its scores are taken against their best rivals.
type Choice = (Attack, bool);

fn name((attack, rivals): Choice) -> String {
    format!("{attack}{}", if rivals { ", against rivals" } else { "" })
}

/// One fusion for the whole time, and one for parts of it.
#[derive(Default)]
struct Fused {
    whole: Fusion,
    part: Fusion,
}

/// An attacker that has learnt and chosen.
pub struct Trained {
    view: View,
    seconds: u32,
    attacks: Vec<Attack>,
    known: Known,
    fused: Fused,
    choice: Choice,
    /// Between scores and the logarithm of odds.
    factor: f64,
    candidates: Vec<Candidate>,
}

/// Chooses an attack on the training networks and measures it on the others.
///
/// # Errors
/// A bound of the scene or of the seeds is broken; nothing was computed.
pub fn experiment(setup: &Setup) -> Result<Outcome, Wrong> {
    setup.check()?;
    match setup.view {
        View::Wire | View::Router | View::Lines => {}
        View::Members => return members::experiment(setup, true),
        View::MembersInLine => return members::experiment(setup, false),
    }
    let trained = Trained::new(setup)?;
    let new = |seed| Network::new(&setup.scene, seed, setup.mark);
    let mut measured = trained.begin();
    for seed in setup.seeds.clone() {
        measured.see(&new(seed)?);
    }
    Ok(measured.outcome(setup.seeds.start))
}

impl Trained {
    /// Learns and chooses on the training networks of a setup.
    ///
    /// # Errors
    /// A bound of the scene is broken.
    pub fn new(setup: &Setup) -> Result<Trained, Wrong> {
        setup.scene.check()?;
        let training = &setup.training;
        if training.is_empty() || training.end - training.start < 2 {
            return Err(Wrong::Seeds);
        }
        let mut attacks = Attack::passive();
        if setup.mark.is_some() {
            attacks.insert(0, Attack::Mark);
        }
        let mut trained = Trained {
            view: setup.view,
            seconds: setup.scene.seconds,
            known: setup.known()?,
            fused: Fused::default(),
            choice: (Attack::Likelihood, false),
            factor: 0.0,
            candidates: Vec::new(),
            attacks,
        };
        let scored = |trained: &Trained, seeds: Range<u64>| -> Result<Vec<Scored>, Wrong> {
            let new = |seed| Network::new(&setup.scene, seed, setup.mark);
            seeds.map(|seed| Ok(trained.scored(&new(seed)?))).collect()
        };
        let half = training.start + (training.end - training.start) / 2;
        trained.fused = Fused::train(&scored(&trained, training.start..half)?);
        let choosing = scored(&trained, half..training.end)?;
        trained.choose(&choosing);
        Ok(trained)
    }

    fn choose(&mut self, networks: &[Scored]) {
        let choices = self.attacks.iter().copied().chain([Attack::Fusion]);
        let choices = choices.flat_map(|attack| [false, true].map(|rivals| (attack, rivals)));
        let judge = |choice: Choice| {
            let all: Vec<Matrix> = networks.iter().map(|n| self.of(choice, n)).collect();
            let judged: Vec<Judged> = all.iter().map(|m| (m, paired(m))).collect();
            let odds = factor(&judged);
            let rates = measure(&judged, odds, 0);
            let (auc, top1) = (rates.auc.value, rates.top1.value);
            (Candidate { attack: name(choice), auc, top1 }, choice, odds)
        };
        let mut best: Vec<(Candidate, Choice, f64)> = choices.map(judge).collect();
        best.sort_by(|(a, ..), (b, ..)| (b.auc + b.top1).total_cmp(&(a.auc + a.top1)));
        (_, self.choice, self.factor) = best[0];
        self.candidates = best.into_iter().map(|(candidate, ..)| candidate).collect();
    }

    /// The scores of a network under a choice.
    fn of(&self, (attack, rivals): Choice, network: &Scored) -> Matrix {
        let at = self.attacks.iter().position(|a| *a == attack);
        let scores = at.map_or_else(|| self.fused.scores(network), |at| network.whole[at].clone());
        if rivals { scores.against_rivals() } else { scores }
    }

    fn scored(&self, network: &Network) -> Scored {
        let of = |span: Span| -> Vec<Matrix> {
            let scorer = Scorer::new(network, self.view, &self.known, span);
            self.attacks.iter().map(|attack| scorer.scores(*attack)).collect()
        };
        let span = Span::seconds(self.seconds);
        let parts = (self.seconds / PART_S).min(PARTS_MAX) as usize;
        let parts = if parts > 1 { span.parts(parts).map(of).collect() } else { Vec::new() };
        Scored { whole: of(span), parts }
    }

    /// Begins to measure the chosen attack.
    pub fn begin(&self) -> Measured<'_> {
        Measured { trained: self, scores: Vec::new(), cost: Cost::default() }
    }
}

/// Networks that a trained attacker has seen.
pub struct Measured<'a> {
    trained: &'a Trained,
    scores: Vec<Matrix>,
    /// The sum over networks.
    cost: Cost,
}

impl Measured<'_> {
    /// Attacks one more network.
    pub fn see(&mut self, network: &Network) {
        let Trained { choice, .. } = *self.trained;
        self.scores.push(self.trained.of(choice, &self.trained.scored(network)));
        self.cost.cells_per_s += network.cost.cells_per_s;
        self.cost.frames_per_s += network.cost.frames_per_s;
        self.cost.added_ms += network.cost.added_ms;
    }

    /// How often the attacker was right. `seed` is for intervals and for the shuffled labels.
    pub fn outcome(self, seed: u64) -> Outcome {
        let trained = self.trained;
        let judged: Vec<Judged> = self.scores.iter().map(|m| (m, paired(m))).collect();
        let mut draws = Draws::new(seed, "shuffled", 0);
        let shuffled: Vec<Judged> =
            self.scores.iter().map(|m| (m, draws.permutation(m.len()))).collect();
        let networks = self.scores.len().max(1) as f64;
        let cost = Cost {
            cells_per_s: self.cost.cells_per_s / networks,
            frames_per_s: self.cost.frames_per_s / networks,
            added_ms: self.cost.added_ms / networks,
        };
        Outcome {
            attack: name(trained.choice),
            candidates: trained.candidates.clone(),
            rates: measure(&judged, trained.factor, seed),
            shuffled: measure(&shuffled, trained.factor, seed).auc,
            cost,
            overhead: cost.frames_per_s / cost.cells_per_s.max(1e-9),
        }
    }
}

/// The true pairs: each row's column has its number.
fn paired(matrix: &Matrix) -> Vec<usize> {
    (0..matrix.len()).collect()
}

impl Setup {
    /// Checks all bounds.
    ///
    /// # Errors
    /// The first that is broken.
    pub fn check(&self) -> Result<(), Wrong> {
        self.scene.check()?;
        let count = |seeds: &Range<u64>| seeds.end.saturating_sub(seeds.start);
        let apart = self.training.end <= self.seeds.start || self.seeds.end <= self.training.start;
        let enough = (2..=SEEDS_MAX).contains(&count(&self.training))
            && (1..=SEEDS_MAX).contains(&count(&self.seeds));
        if apart && enough { Ok(()) } else { Err(Wrong::Seeds) }
    }

    /// What the attacker knows: the law of delays, and from the first training network how many
    /// frames of a link are cells of its flow.
    fn known(&self) -> Result<Known, Wrong> {
        let cost = Network::new(&self.scene, self.training.start, self.mark)?.cost;
        let share = (cost.cells_per_s / cost.frames_per_s.max(1e-9)).clamp(0.01, 1.0);
        Ok(Known { delay: Density::of(&self.scene), share })
    }
}

impl Fused {
    fn train(networks: &[Scored]) -> Fused {
        let mut draws = Draws::new(0, "examples", networks.len() as u64);
        let (mut whole, mut part) = (Vec::new(), Vec::new());
        for network in networks {
            learn(&mut whole, &network.whole, &mut draws);
            network.parts.iter().for_each(|matrices| learn(&mut part, matrices, &mut draws));
        }
        Fused { whole: Fusion::train(&whole), part: Fusion::train(&part) }
    }

    /// The sum of the odds over the whole time, and those of each part: its vote.
    fn scores(&self, network: &Scored) -> Matrix {
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

/// All true pairs as examples, and some wrong ones of each row.
fn learn(examples: &mut Vec<Example>, all: &[Matrix], draws: &mut Draws) {
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
