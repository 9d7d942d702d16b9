//! Members who ask covered hosts for answers, and pair hosts by how long these take.
//!
//! The members see no wire and run no relay.
//! A question waits on the access links of the host for which
//! it is, behind what the host itself sends and gets, as far as the link's queue lets it. The queue
//! is the one that nodes have: [`shoal_link::Egress`], drained by [`shoal_link::Schedule`].
//!
//! ```text
//! member --mixes--> down link --> host --> up link --mixes--> member: a round trip
//! host   --> up link --mixes--> down link --> its partner: what is to be hidden
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use shoal_link::{Egress, EgressConfig, Priority, Schedule};
use shoal_wire::{CoverKind, CoverTier, SizeClass, Time};

use crate::experiment::{Candidate, Outcome, Setup};
use crate::matrix::Matrix;
use crate::metrics::{Judged, factor, measure};
use crate::network::{Cost, Scene, Wrong};
use crate::path::Way;
use crate::random::Draws;
use crate::score::{Measure, product};

/// Questions to each host.
const ASKED_PER_S: f64 = 8.0;
/// Members, each of which asks every fourth host.
const MEMBERS: usize = 4;
/// Windows over which round trips are averaged, in milliseconds.
const WINDOWS_MS: [u64; 5] = [250, 500, 1_000, 2_000, 4_000];
/// Cells that wait of all peers together, or of each: 44 are one run of a file.
const WAITING_MAX: usize = 44;
/// A peer that sends nothing for so many rounds of 32 frames loses its turns.
const IDLE_ROUNDS: u32 = 27;
const FULL: usize = SizeClass::Full.frame_len();
const S: u64 = 1_000_000_000;

/// How an attack reads round trips: by their ranks or as they are, averaged over a window.
#[derive(Clone, Copy)]
struct Reading {
    window_ns: u64,
    ranked: bool,
}

/// A cell on its way over access links.
#[derive(Clone, Copy)]
enum What {
    /// A cell of this pair's flow, from the caller or to it.
    Cell {
        pair: usize,
        data: bool,
    },
    /// Asked at this time.
    Question {
        host: usize,
        asked: u64,
    },
    Answer {
        host: usize,
        asked: u64,
    },
}

/// Something that happens at a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Slot(usize),
    /// A cell comes to be sent.
    Cell(usize, u32),
}

struct Link {
    egress: Egress,
    schedule: Schedule,
}

/// One network while it is played. Host `2 * pair` calls, the next one answers; the up link of a
/// host is `2 * host`, its down link the one behind that.
struct Play<'a> {
    scene: &'a Scene,
    links: Vec<Link>,
    cells: Vec<What>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    /// To each host and back from it.
    ways: Vec<[Way; 2]>,
    /// Data and the other direction, for each pair.
    flows: Vec<[Way; 2]>,
    /// Acknowledgements of each pair: true if data goes to the caller, cells of data that came,
    /// and cells that one acknowledgement covers.
    acks: Vec<(bool, usize, usize)>,
    /// Times of questions and round trips, for each host.
    seen: Vec<Vec<(u64, u64)>>,
    draws: Draws,
}

impl<'a> Play<'a> {
    fn new(scene: &'a Scene, seed: u64, shared: bool) -> Play<'a> {
        let mut draws = Draws::new(seed, "members", 0);
        let mbit = (scene.cover.per_s() * FULL as f64 * 8.0 / 1e6).round().max(1.0) as u16;
        let tier = CoverTier::new(mbit, CoverKind::Constant);
        let tier = tier.expect("a scene has 5,000 frames a second at most: 58 Mbit/s");
        let config = EgressConfig { data_frames_max: WAITING_MAX, ..EgressConfig::default() };
        let hosts = 2 * scene.flows;
        let link = |draws: &mut Draws| {
            let mut egress = Egress::new(config);
            egress.set_shares(shared.then_some(IDLE_ROUNDS));
            Link { egress, schedule: Schedule::new(tier, draws.below(1 << 30) as u64, Time(0)) }
        };
        let way = |draws: &mut Draws| {
            let clocks: Vec<u64> =
                (0..scene.mixes).map(|_| (draws.uniform() * 1e9) as u64).collect();
            Way::new(scene.strategy, &clocks, scene.line, Draws::of(draws.key()))
        };
        let links = (0..2 * hosts).map(|_| link(&mut draws)).collect();
        let ways = (0..hosts).map(|_| [way(&mut draws), way(&mut draws)]).collect();
        let flows = (0..scene.flows).map(|_| [way(&mut draws), way(&mut draws)]).collect();
        let mut play = Play {
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
                self.come(at, up(sender(pair, plan.down == data)), What::Cell { pair, data });
            }
        }
    }

    /// All questions to a host, at times that are a little random.
    fn ask(&mut self, host: usize) {
        let gap = S as f64 / ASKED_PER_S;
        let mut asked = self.draws.uniform() * gap;
        while asked < f64::from(self.scene.seconds) * 1e9 {
            let question = What::Question { host, asked: asked as u64 };
            let number = self.cells.len() as u64;
            let at = self.ways[host][0].pass(asked as u64, number);
            self.come(at, up(host) + 1, question);
            asked += gap * self.draws.between(0.7, 1.3);
        }
    }

    fn come(&mut self, at: u64, link: usize, what: What) {
        self.cells.push(what);
        self.events.push(Reverse((at, Event::Cell(link, self.cells.len() as u32 - 1))));
    }

    fn next_slot(&mut self, link: usize) {
        let at = self.links[link].schedule.next().0;
        self.events.push(Reverse((at, Event::Slot(link))));
    }

    fn run(mut self) -> Vec<Vec<(u64, u64)>> {
        let until = (u64::from(self.scene.seconds) + 5) * S;
        let mut frame = vec![0; FULL];
        while let Some(Reverse((now, event))) = self.events.pop()
            && now < until
        {
            match event {
                Event::Cell(link, number) => {
                    frame[..4].copy_from_slice(&number.to_be_bytes());
                    let peer = self.peer(number);
                    // One that finds no room is lost.
                    let _ = self.links[link].egress.push_of(
                        peer,
                        Priority::Data,
                        SizeClass::Full,
                        &frame,
                    );
                }
                Event::Slot(link) => {
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

    /// The peer whose turns a cell takes.
    fn peer(&self, number: u32) -> u64 {
        match self.cells[number as usize] {
            What::Cell { .. } => 0,
            What::Question { host, .. } | What::Answer { host, .. } => 1 + (host % MEMBERS) as u64,
        }
    }

    fn leave(&mut self, now: u64, link: usize, number: u32) {
        let (host, is_up) = (link / 2, link.is_multiple_of(2));
        let what = self.cells[number as usize];
        match what {
            What::Cell { pair, data } if is_up => {
                let at = self.flows[pair][usize::from(data)].pass(now, number.into());
                self.come(at, up(host ^ 1) + 1, what);
            }
            What::Cell { pair, data: true } => {
                let (down, came, every) = &mut self.acks[pair];
                *came += 1;
                if *every > 0 && came.is_multiple_of(*every) {
                    let back = up(sender(pair, !*down));
                    let at = self.scene.line.pass(now, &mut self.draws);
                    self.come(at, back, What::Cell { pair, data: false });
                }
            }
            What::Cell { .. } => {}
            What::Question { host, asked } => {
                let at = self.scene.line.pass(now, &mut self.draws);
                self.come(at, up(host), What::Answer { host, asked });
            }
            What::Answer { host, asked } => {
                let at = self.ways[host][1].pass(now, number.into());
                self.seen[host].push((asked, at - asked));
            }
        }
    }
}

fn up(host: usize) -> usize {
    2 * host
}

/// The host of a pair that sends: the one that was called, or its caller.
fn sender(pair: usize, called: bool) -> usize {
    2 * pair + usize::from(called)
}

impl Reading {
    fn all() -> Vec<Reading> {
        let of = |ms| [false, true].map(|ranked| Reading { window_ns: ms * 1_000_000, ranked });
        WINDOWS_MS.into_iter().flat_map(of).collect()
    }

    fn measure(self) -> Measure {
        if self.ranked { Measure::Spearman } else { Measure::Pearson }
    }

    fn name(self) -> String {
        format!("round trips, {}, {} ms", self.measure(), self.window_ns / 1_000_000)
    }

    /// The mean round trip of each window; one without any has the mean of all.
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

/// Chooses how to read round trips on the training networks, and measures it on the others.
///
/// # Errors
/// A bound of the scene or of the seeds is broken; nothing was computed.
pub(crate) fn experiment(setup: &Setup, shared: bool) -> Result<Outcome, Wrong> {
    let (scene, seconds) = (&setup.scene, setup.scene.seconds);
    let play = |seed| Play::new(scene, seed, shared).run();
    let learnt: Vec<_> = setup.training.clone().map(play).collect();
    let judge = |reading: Reading| {
        let all: Vec<Matrix> = learnt.iter().map(|seen| reading.scores(seen, seconds)).collect();
        let judged: Vec<Judged> = all.iter().map(|m| (m, paired(m))).collect();
        let odds = factor(&judged);
        let rates = measure(&judged, odds, 0);
        let (auc, top1) = (rates.auc.value, rates.top1.value);
        (Candidate { attack: reading.name(), auc, top1 }, reading, odds)
    };
    let mut best: Vec<_> = Reading::all().into_iter().map(judge).collect();
    best.sort_by(|(a, ..), (b, ..)| (b.auc + b.top1).total_cmp(&(a.auc + a.top1)));
    let (_, reading, odds) = best[0];
    let seen: Vec<_> = setup.seeds.clone().map(play).collect();
    let all: Vec<Matrix> = seen.iter().map(|seen| reading.scores(seen, seconds)).collect();
    let seed = setup.seeds.start;
    let mut draws = Draws::new(seed, "shuffled", 0);
    let judged: Vec<Judged> = all.iter().map(|m| (m, paired(m))).collect();
    let shuffled: Vec<Judged> = all.iter().map(|m| (m, draws.permutation(m.len()))).collect();
    let took: Vec<f64> = seen.iter().flatten().flatten().map(|s| s.1 as f64 / 1e6).collect();
    let lines_ms = 2.0 * scene.lines_ns() as f64 / 1e6;
    let mean_ms = took.iter().sum::<f64>() / took.len().max(1) as f64;
    Ok(Outcome {
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
    use crate::cover::{Cover, Leak};
    use crate::flow::Traffic;
    use crate::path::Line;
    use crate::score::View;
    use shoal_wire::Strategy;

    fn found(traffic: Traffic, shared: bool) -> f64 {
        let scene = Scene {
            traffic,
            cross: None,
            strategy: Strategy::Pass,
            mixes: 3,
            line: Line::default(),
            cover: Cover::Constant { per_s: 174.0 },
            core: Cover::None,
            leak: Leak::None,
            flows: 8,
            seconds: 40,
        };
        let view = View::Members;
        let setup = Setup { scene, mark: None, view, training: 0..3, seeds: 100..106 };
        experiment(&setup, shared).unwrap().rates.auc.value
    }

    #[test]
    fn one_line_for_all_peers_shows_who_speaks_with_whom() {
        for (traffic, least) in [(Traffic::Web, 0.9), (Traffic::Video, 0.9), (Traffic::Wget, 0.8)] {
            let area = found(traffic, false);
            assert!(area > least, "{traffic}: {area}");
        }
    }

    /// 48 pairs: a guess has a standard error of 0.04.
    #[test]
    fn turns_of_each_peer_hide_it() {
        for traffic in [Traffic::Web, Traffic::Video, Traffic::Wget, Traffic::Ssh] {
            let area = found(traffic, true);
            assert!((0.36..0.64).contains(&area), "{traffic}: {area}");
        }
    }
}
