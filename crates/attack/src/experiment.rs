//! One experiment: the attack is chosen on some networks, and measured on others.

use core::ops::Range;

use serde::Serialize;

use crate::delay::Density;
use crate::fusion::{Example, Fusion};
use crate::mark::Mark;
use crate::matrix::Matrix;
use crate::metrics::{Interval, Judged, Rates, factor, measure};
use crate::network::{Cost, Network, SEEDS_MAX, Scene, Wrong};
use crate::random::Draws;
use crate::score::{Attack, Known, View, scores};
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
#[derive(Clone, Debug, PartialEq, Serialize)]
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
    cost: Cost,
}

/// An attack, and whether its scores are taken against their best rivals.
type Choice = (Attack, bool);

fn name((attack, rivals): Choice) -> String {
    format!("{attack}{}", if rivals { ", against rivals" } else { "" })
}

/// One fusion for the whole time, and one for parts of it.
struct Fused {
    whole: Fusion,
    part: Fusion,
}

/// Chooses an attack on the training networks and measures it on the others.
///
/// # Errors
/// A bound of the scene or of the seeds is broken; nothing was computed.
pub fn experiment(setup: &Setup) -> Result<Outcome, Wrong> {
    setup.check()?;
    let mut attacks = Attack::passive();
    if setup.mark.is_some() {
        attacks.insert(0, Attack::Mark);
    }
    let half = setup.training.start + (setup.training.end - setup.training.start) / 2;
    let known = setup.known()?;
    let scored = |seeds: Range<u64>| -> Result<Vec<Scored>, Wrong> {
        seeds.map(|seed| setup.scored(seed, &attacks, &known)).collect()
    };
    let fused = Fused::train(&scored(setup.training.start..half)?);
    let choosing = scored(half..setup.training.end)?;
    let of = |(attack, rivals): Choice, network: &Scored| {
        let scores = attacks.iter().position(|a| *a == attack);
        let scores = scores.map_or_else(|| fused.scores(network), |at| network.whole[at].clone());
        if rivals { scores.against_rivals() } else { scores }
    };
    let choices = attacks.iter().copied().chain([Attack::Fusion]);
    let choices = choices.flat_map(|attack| [false, true].map(|rivals| (attack, rivals)));
    let mut best: Vec<(Candidate, Choice, f64)> = choices
        .map(|choice| {
            let all: Vec<Matrix> = choosing.iter().map(|network| of(choice, network)).collect();
            let judged: Vec<Judged> = all.iter().map(|m| (m, paired(m))).collect();
            let odds = factor(&judged);
            let rates = measure(&judged, odds, 0);
            let (auc, top1) = (rates.auc.value, rates.top1.value);
            (Candidate { attack: name(choice), auc, top1 }, choice, odds)
        })
        .collect();
    best.sort_by(|(a, ..), (b, ..)| (b.auc + b.top1).total_cmp(&(a.auc + a.top1)));
    let (_, choice, odds) = best[0];
    let mut cost = Cost::default();
    let mut all = Vec::new();
    let seeds = (setup.seeds.end - setup.seeds.start) as f64;
    for seed in setup.seeds.clone() {
        let network = setup.scored(seed, &attacks, &known)?;
        cost.cells_per_s += network.cost.cells_per_s / seeds;
        cost.frames_per_s += network.cost.frames_per_s / seeds;
        cost.added_ms += network.cost.added_ms / seeds;
        all.push(of(choice, &network));
    }
    let judged: Vec<Judged> = all.iter().map(|m| (m, paired(m))).collect();
    let mut draws = Draws::new(setup.seeds.start, "shuffled", 0);
    let shuffled: Vec<Judged> = all.iter().map(|m| (m, draws.permutation(m.len()))).collect();
    Ok(Outcome {
        attack: name(choice),
        rates: measure(&judged, odds, setup.seeds.start),
        shuffled: measure(&shuffled, odds, setup.seeds.start).auc,
        candidates: best.into_iter().map(|(candidate, ..)| candidate).collect(),
        cost,
        overhead: cost.frames_per_s / cost.cells_per_s.max(1e-9),
    })
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

    fn scored(&self, seed: u64, attacks: &[Attack], known: &Known) -> Result<Scored, Wrong> {
        let network = Network::new(&self.scene, seed, self.mark)?;
        let of = |span: Span| -> Vec<Matrix> {
            attacks.iter().map(|a| scores(*a, &network, self.view, known, span)).collect()
        };
        let span = Span::seconds(self.scene.seconds);
        let parts = (self.scene.seconds / PART_S).min(PARTS_MAX);
        let parts =
            if parts > 1 { span.parts(parts as usize).map(of).collect() } else { Vec::new() };
        Ok(Scored { whole: of(span), parts, cost: network.cost })
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
