//! Members that send questions to covered hosts, and pair hosts by the round trips of the answers.
//!
//! The members see no wire and run no relay. On the access links of the asked host, a question
//! waits behind the host's own traffic, unless the link's queue gives each peer its own turns. The
//! queue is that of nodes: [`shoal_link::Egress`], drained by [`shoal_link::SlotSchedule`].
//!
//! ```text
//! member --mixes--> down link --> host --> up link --mixes--> member: a round trip
//! host   --> up link --mixes--> down link --> its partner: the secret
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use shoal_link::{Egress, EgressConfig, Priority, SlotSchedule};
use shoal_wire::{CoverKind, CoverTier, SizeClass, Time};

use crate::experiment::{AttackRanking, AttackResult, ExperimentSetup};
use crate::matrix::Matrix;
use crate::metrics::{LabelledScores, factor, measure};
use crate::network::{Cost, Scene, SceneError};
use crate::path::CircuitPath;
use crate::random::Draws;
use crate::score::{Measure, product};

/// Questions per second to each host.
const ASKED_PER_S: f64 = 8.0;
/// Number of members; each asks every fourth host.
const MEMBERS: usize = 4;
/// Windows over which round trips are averaged, in milliseconds.
const WINDOWS_MS: [u64; 5] = [250, 500, 1_000, 2_000, 4_000];
/// Most waiting cells of a link: of all peers together, or of each peer if each has its own turns.
/// 44 are one run of a file.
const WAITING_MAX: usize = 44;
/// Rounds of 32 frames without a cell after which a peer loses its turns.
const IDLE_ROUNDS: u32 = 27;
const FULL: usize = SizeClass::Full.frame_len();
const S: u64 = 1_000_000_000;

/// Use of round trips: their ranks or their values, averaged over a window.
#[derive(Clone, Copy)]
struct RoundTripReading {
    window_ns: u64,
    ranked: bool,
}

/// A cell on its way over access links.
#[derive(Clone, Copy)]
enum ProbeCell {
    /// Cell of this pair's flow, from the caller or to it.
    Cell {
        pair: usize,
        data: bool,
    },
    /// Question that was sent at the time `asked`.
    Question {
        host: usize,
        asked: u64,
    },
    Answer {
        host: usize,
        asked: u64,
    },
}

/// Event at a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AccessEvent {
    Slot(usize),
    /// A cell arrives to be sent.
    Cell(usize, u32),
}

struct CoveredQueue {
    egress: Egress,
    schedule: SlotSchedule,
}

/// Simulation of one network. Host `2 * pair` calls, the next one answers. The up link of a host is
/// `2 * host`, its down link the one after that.
struct MemberSimulation<'a> {
    scene: &'a Scene,
    links: Vec<CoveredQueue>,
    cells: Vec<ProbeCell>,
    events: BinaryHeap<Reverse<(u64, AccessEvent)>>,
    /// Paths to each host and back from it.
    ways: Vec<[CircuitPath; 2]>,
    /// Paths of data and of the other direction, for each pair.
    flows: Vec<[CircuitPath; 2]>,
    /// Acknowledgements of each pair: true if data goes to the caller, data cells that came, and
    /// data cells per acknowledgement.
    acks: Vec<(bool, usize, usize)>,
    /// Times of questions with their round trips, for each host.
    seen: Vec<Vec<(u64, u64)>>,
    draws: Draws,
}

impl<'a> MemberSimulation<'a> {
    fn new(scene: &'a Scene, seed: u64, shared: bool) -> MemberSimulation<'a> {
        let mut draws = Draws::new(seed, "members", 0);
        let mbit = (scene.cover.per_s() * FULL as f64 * 8.0 / 1e6).round().max(1.0) as u16;
        let tier = CoverTier::new(mbit, CoverKind::Constant);
        let tier = tier.expect("a scene has 5,000 frames a second at most: 58 Mbit/s");
        let config = EgressConfig { data_frames_max: WAITING_MAX, ..EgressConfig::default() };
        let hosts = 2 * scene.flows;
        let link = |draws: &mut Draws| {
            let mut egress = Egress::new(config);
            egress.set_shares(shared.then_some(IDLE_ROUNDS));
            CoveredQueue {
                egress,
                schedule: SlotSchedule::new(tier, draws.below(1 << 30) as u64, Time(0)),
            }
        };
        let way = |draws: &mut Draws| {
            let clocks: Vec<u64> =
                (0..scene.mixes).map(|_| (draws.uniform() * 1e9) as u64).collect();
            CircuitPath::new(scene.strategy, &clocks, scene.line, Draws::of(draws.key()))
        };
        let links = (0..2 * hosts).map(|_| link(&mut draws)).collect();
        let ways = (0..hosts).map(|_| [way(&mut draws), way(&mut draws)]).collect();
        let flows = (0..scene.flows).map(|_| [way(&mut draws), way(&mut draws)]).collect();
        let mut play = MemberSimulation {
            scene,
            links,
            cells: Vec::new(),
            events: BinaryHeap::new(),
            ways,
            flows,
            acks: Vec::new(),
            seen: vec![Vec::new(); hosts],
            draws,
        };
        (0..2 * hosts).for_each(|link| play.next_slot(link));
        (0..scene.flows).for_each(|pair| play.plan(pair));
        (0..hosts).for_each(|host| play.ask(host));
        play
    }

    fn plan(&mut self, pair: usize) {
        let seconds = f64::from(self.scene.seconds);
        let rtt_s = 2.0 * (self.scene.lines_ns() + self.scene.mixes_ns()) as f64 / 1e9;
        let plan = self.scene.traffic.plan(seconds, rtt_s, &mut self.draws);
        self.acks.push((plan.down, 0, plan.acks_every));
        for (data, times) in [(true, plan.data), (false, plan.other)] {
            for at in times {
                self.come(at, up(sender(pair, plan.down == data)), ProbeCell::Cell { pair, data });
            }
        }
    }

    /// Sends all questions to a host, at slightly random times.
    fn ask(&mut self, host: usize) {
        let gap = S as f64 / ASKED_PER_S;
        let mut asked = self.draws.uniform() * gap;
        while asked < f64::from(self.scene.seconds) * 1e9 {
            let question = ProbeCell::Question { host, asked: asked as u64 };
            let number = self.cells.len() as u64;
            let at = self.ways[host][0].pass(asked as u64, number);
            self.come(at, up(host) + 1, question);
            asked += gap * self.draws.between(0.7, 1.3);
        }
    }

    fn come(&mut self, at: u64, link: usize, what: ProbeCell) {
        self.cells.push(what);
        self.events.push(Reverse((at, AccessEvent::Cell(link, self.cells.len() as u32 - 1))));
    }

    fn next_slot(&mut self, link: usize) {
        let at = self.links[link].schedule.next().0;
        self.events.push(Reverse((at, AccessEvent::Slot(link))));
    }

    fn run(mut self) -> Vec<Vec<(u64, u64)>> {
        let until = (u64::from(self.scene.seconds) + 5) * S;
        let mut frame = vec![0; FULL];
        while let Some(Reverse((now, event))) = self.events.pop()
            && now < until
        {
            match event {
                AccessEvent::Cell(link, number) => {
                    frame[..4].copy_from_slice(&number.to_be_bytes());
                    let peer = self.peer(number);
                    // A cell that finds no room is lost.
                    let _ = self.links[link].egress.push_of(
                        peer,
                        Priority::Data,
                        SizeClass::Full,
                        &frame,
                    );
                }
                AccessEvent::Slot(link) => {
                    self.links[link].schedule.take(Time(now));
                    for _ in 0..self.links[link].schedule.tier().frames() {
                        if self.links[link].egress.take_turn(&mut frame).is_some() {
                            let number = frame[..4].iter().fold(0, |n, b| n << 8 | u32::from(*b));
                            self.leave(now, link, number);
                        }
                    }
                    self.next_slot(link);
                }
            }
        }
        self.seen
    }

    /// The peer whose turns a cell uses.
    fn peer(&self, number: u32) -> u64 {
        match self.cells[number as usize] {
            ProbeCell::Cell { .. } => 0,
            ProbeCell::Question { host, .. } | ProbeCell::Answer { host, .. } => {
                1 + (host % MEMBERS) as u64
            }
        }
    }

    fn leave(&mut self, now: u64, link: usize, number: u32) {
        let (host, is_up) = (link / 2, link.is_multiple_of(2));
        let what = self.cells[number as usize];
        match what {
            ProbeCell::Cell { pair, data } if is_up => {
                let at = self.flows[pair][usize::from(data)].pass(now, number.into());
                self.come(at, up(host ^ 1) + 1, what);
            }
            ProbeCell::Cell { pair, data: true } => {
                let (down, came, every) = &mut self.acks[pair];
                *came += 1;
                if *every > 0 && came.is_multiple_of(*every) {
                    let back = up(sender(pair, !*down));
                    let at = self.scene.line.pass(now, &mut self.draws);
                    self.come(at, back, ProbeCell::Cell { pair, data: false });
                }
            }
            ProbeCell::Cell { .. } => {}
            ProbeCell::Question { host, asked } => {
                let at = self.scene.line.pass(now, &mut self.draws);
                self.come(at, up(host), ProbeCell::Answer { host, asked });
            }
            ProbeCell::Answer { host, asked } => {
                let at = self.ways[host][1].pass(now, number.into());
                self.seen[host].push((asked, at - asked));
            }
        }
    }
}

fn up(host: usize) -> usize {
    2 * host
}

/// The sending host of a pair: the called one, or its caller.
fn sender(pair: usize, called: bool) -> usize {
    2 * pair + usize::from(called)
}

impl RoundTripReading {
    fn all() -> Vec<RoundTripReading> {
        let of =
            |ms| [false, true].map(|ranked| RoundTripReading { window_ns: ms * 1_000_000, ranked });
        WINDOWS_MS.into_iter().flat_map(of).collect()
    }

    fn measure(self) -> Measure {
        if self.ranked { Measure::Spearman } else { Measure::Pearson }
    }

    fn name(self) -> String {
        format!("round trips, {}, {} ms", self.measure(), self.window_ns / 1_000_000)
    }

    /// Mean round trip of each window; a window without any has the mean of all.
    fn series(self, seen: &[(u64, u64)], seconds: u32) -> Vec<f32> {
        let bins = (u64::from(seconds) * S / self.window_ns) as usize;
        let mean = seen.iter().map(|s| s.1 as f64).sum::<f64>() / seen.len().max(1) as f64;
        let mut sums = vec![(0.0, 0u32); bins];
        for &(asked, took) in seen {
            if let Some((sum, n)) = sums.get_mut((asked / self.window_ns) as usize) {
                *sum += took as f64;
                *n += 1;
            }
        }
        let value = |(sum, n): (f64, u32)| if n > 0 { sum / f64::from(n) } else { mean };
        let series: Vec<f32> = sums.into_iter().map(|s| (value(s) / 1e6) as f32).collect();
        self.measure().unit(&series)
    }

    fn scores(self, seen: &[Vec<(u64, u64)>], seconds: u32) -> Matrix {
        let series: Vec<Vec<f32>> = seen.iter().map(|s| self.series(s, seconds)).collect();
        let score = |row: usize, column: usize| {
            f64::from(product(&series[sender(row, false)], &series[sender(column, true)]))
        };
        Matrix::new(seen.len() / 2, score)
    }
}

/// Chooses the use of round trips on the training networks, and measures it on the others.
///
/// # Errors
/// A bound of the scene or of the seeds is broken; nothing was computed.
pub(crate) fn experiment(
    setup: &ExperimentSetup,
    shared: bool,
) -> Result<AttackResult, SceneError> {
    let (scene, seconds) = (&setup.scene, setup.scene.seconds);
    let play = |seed| MemberSimulation::new(scene, seed, shared).run();
    let learnt: Vec<_> = setup.training.clone().map(play).collect();
    let judge = |reading: RoundTripReading| {
        let all: Vec<Matrix> = learnt.iter().map(|seen| reading.scores(seen, seconds)).collect();
        let judged: Vec<LabelledScores> = all.iter().map(|m| (m, paired(m))).collect();
        let odds = factor(&judged);
        let rates = measure(&judged, odds, 0);
        let (auc, top1) = (rates.auc.value, rates.top1.value);
        (AttackRanking { attack: reading.name(), auc, top1 }, reading, odds)
    };
    let mut best: Vec<_> = RoundTripReading::all().into_iter().map(judge).collect();
    best.sort_by(|(a, ..), (b, ..)| (b.auc + b.top1).total_cmp(&(a.auc + a.top1)));
    let (_, reading, odds) = best[0];
    let seen: Vec<_> = setup.seeds.clone().map(play).collect();
    let all: Vec<Matrix> = seen.iter().map(|seen| reading.scores(seen, seconds)).collect();
    let seed = setup.seeds.start;
    let mut draws = Draws::new(seed, "shuffled", 0);
    let judged: Vec<LabelledScores> = all.iter().map(|m| (m, paired(m))).collect();
    let shuffled: Vec<LabelledScores> =
        all.iter().map(|m| (m, draws.permutation(m.len()))).collect();
    let took: Vec<f64> = seen.iter().flatten().flatten().map(|s| s.1 as f64 / 1e6).collect();
    let lines_ms = 2.0 * scene.lines_ns() as f64 / 1e6;
    let mean_ms = took.iter().sum::<f64>() / took.len().max(1) as f64;
    Ok(AttackResult {
        attack: reading.name(),
        candidates: best.into_iter().map(|(candidate, ..)| candidate).collect(),
        rates: measure(&judged, odds, seed),
        shuffled: measure(&shuffled, odds, seed).auc,
        cost: Cost {
            cells_per_s: 2.0 * ASKED_PER_S,
            frames_per_s: 2.0 * scene.cover.per_s(),
            added_ms: (mean_ms - lines_ms) / 2.0,
        },
        overhead: scene.cover.per_s() / ASKED_PER_S,
    })
}

fn paired(matrix: &Matrix) -> Vec<usize> {
    (0..matrix.len()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cover::{CoverSchedule, Leak};
    use crate::flow::ProgramKind;
    use crate::path::LineDelay;
    use crate::score::VantagePoint;
    use shoal_wire::MixStrategy;

    fn found(traffic: ProgramKind, shared: bool) -> f64 {
        let scene = Scene {
            traffic,
            cross: None,
            strategy: MixStrategy::Pass,
            mixes: 3,
            line: LineDelay::default(),
            cover: CoverSchedule::Constant { per_s: 174.0 },
            core: CoverSchedule::None,
            leak: Leak::None,
            flows: 8,
            seconds: 40,
        };
        let view = VantagePoint::Members;
        let setup = ExperimentSetup { scene, mark: None, view, training: 0..3, seeds: 100..106 };
        experiment(&setup, shared).unwrap().rates.auc.value
    }

    #[test]
    fn one_line_for_all_peers_shows_who_speaks_with_whom() {
        for (traffic, least) in
            [(ProgramKind::Web, 0.9), (ProgramKind::Video, 0.9), (ProgramKind::Wget, 0.8)]
        {
            let area = found(traffic, false);
            assert!(area > least, "{traffic}: {area}");
        }
    }

    /// With 48 pairs, a guess has a standard error of 0.04.
    #[test]
    fn turns_for_each_peer_hide_who_speaks_with_whom() {
        for traffic in [ProgramKind::Web, ProgramKind::Video, ProgramKind::Wget, ProgramKind::Ssh] {
            let area = found(traffic, true);
            assert!((0.36..0.64).contains(&area), "{traffic}: {area}");
        }
    }
}
