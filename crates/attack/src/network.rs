//! Hosts in pairs, and what an observer of all their access links records.

use serde::Serialize;
use shoal_wire::{SizeClass, Strategy};

use crate::cover::{Cover, Leak, Sent, What, trace};
use crate::flow::Traffic;
use crate::mark::{Code, Mark};
use crate::path::{Line, MIXES_MAX, Way};
use crate::random::Draws;
use crate::trace::Trace;

/// Most flows of a network.
pub const FLOWS_MAX: usize = 200;
/// Longest time that is watched.
pub const SECONDS_MAX: u32 = 600;
/// Most frames a second of a schedule: 50 Mbit/s are 4,340.
const FRAMES_MAX_PER_S: f64 = 5_000.0;
/// Most networks of an experiment.
pub const SEEDS_MAX: u64 = 100;
/// Most frames of a network, on all access links and in both directions: 2 GB of memory.
const FRAMES_MAX: f64 = 100e6;
/// What programs send on a direction of a link, at most, in frames a second.
const CELLS_PER_S: f64 = 200.0;
/// Relays of a network. Each flow takes other ones of them.
const RELAYS: usize = 8;
/// How long after the time that is watched frames are still carried.
const REST_NS: u64 = 5_000_000_000;

/// What a network does while it is watched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scene {
    /// The programs behind the flows.
    pub traffic: Traffic,
    /// Further programs behind each access link, which talk to others.
    pub cross: Option<Traffic>,
    /// What each relay of a circuit does.
    pub strategy: Strategy,
    /// Relays of each circuit that do it.
    pub mixes: u32,
    /// Every line, between relays too.
    pub line: Line,
    /// What access links send beside cells, at both ends and in both directions.
    pub cover: Cover,
    /// Cover that lines between routers send beside cells.
    pub core: Cover,
    /// A planted fault of the cover.
    pub leak: Leak,
    /// Pairs of hosts.
    pub flows: usize,
    /// How long the attacker watches.
    pub seconds: u32,
}

/// Why a scene can't be played. Nothing was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// Fewer than two flows, or too many.
    #[error("a network has 2 to {FLOWS_MAX} flows")]
    Flows,
    /// No seconds, or too many.
    #[error("1 to {SECONDS_MAX} seconds are watched")]
    Seconds,
    /// More relays than a circuit has, or times that no strategy has.
    #[error("a way has at most {MIXES_MAX} mixes, whose times are not zero")]
    Mixes,
    /// A schedule that is faster than a line.
    #[error("an access link sends at most {FRAMES_MAX_PER_S} frames a second")]
    Cover,
    /// More frames than fit into memory.
    #[error("at most {FRAMES_MAX:.0} frames: watch fewer flows, or for a shorter time")]
    Frames,
    /// Too few seeds, or too many.
    #[error("an attack needs 2 to {SEEDS_MAX} seeds to train, and 1 to {SEEDS_MAX} others")]
    Seeds,
}

/// What passes an access link: `up` is from the host to its router.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Access {
    /// From the host.
    pub up: Trace,
    /// To the host.
    pub down: Trace,
}

/// The access links of a network, by flow: the pair of `callers[i]` is `called[i]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Network {
    /// Wires of the hosts that begin.
    pub callers: Vec<Access>,
    /// Wires of those that answer.
    pub called: Vec<Access>,
    /// The cells alone on the wires of the first, as their routers see them.
    pub callers_cells: Vec<Access>,
    /// The cells alone on the wires of the second.
    pub called_cells: Vec<Access>,
    /// Lines between routers over which these come to the routers of the second, and leave them.
    pub called_lines: Vec<Access>,
    /// The marks on what callers send, and on what the called send; empty without a mark.
    pub codes: [Vec<Code>; 2],
    /// Means that say what the scene costs.
    pub cost: Cost,
}

/// What a scene costs, in means over its flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Cells a second of one flow, both directions.
    pub cells_per_s: f64,
    /// Full frames a second on an access link, both directions.
    pub frames_per_s: f64,
    /// How long a cell takes more than over lines alone, in milliseconds: mixes, and waits for
    /// slots.
    pub added_ms: f64,
}

/// One direction of a flow.
struct Crossing {
    ingress: Trace,
    ingress_cells: Trace,
    egress: Trace,
    egress_cells: Trace,
    /// Frames on the last line between routers.
    line: Trace,
    /// When each cell is delivered in order; none where it was lost.
    delivered: Vec<Option<u64>>,
    code: Option<Code>,
    added_ns: f64,
    cells: usize,
}

impl Scene {
    /// Checks the bounds of all fields.
    ///
    /// # Errors
    /// The first that is out of its bounds.
    pub fn check(&self) -> Result<(), Wrong> {
        let lines = 4.0 * self.flows as f64;
        let frames = lines * f64::from(self.seconds) * (self.cover.per_s() + CELLS_PER_S);
        let all = [
            ((2..=FLOWS_MAX).contains(&self.flows), Wrong::Flows),
            ((1..=SECONDS_MAX).contains(&self.seconds), Wrong::Seconds),
            (self.mixes <= MIXES_MAX && self.strategy.is_valid(), Wrong::Mixes),
            ((0.0..=FRAMES_MAX_PER_S).contains(&self.cover.per_s()), Wrong::Cover),
            (frames <= FRAMES_MAX, Wrong::Frames),
        ];
        all.into_iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, wrong)| Err(wrong))
    }

    /// Lines of a way, in nanoseconds.
    pub(crate) fn lines_ns(&self) -> u64 {
        u64::from(self.mixes + 1) * (self.line.delay + self.line.jitter).as_nanos() as u64
    }

    /// What mixes add to a way in the mean, in nanoseconds.
    pub(crate) fn mixes_ns(&self) -> u64 {
        let strategies = core::iter::repeat_n(self.strategy, self.mixes as usize);
        shoal_mix::mean(strategies).as_nanos() as u64
    }

    fn watched_ns(&self) -> u64 {
        u64::from(self.seconds) * 1_000_000_000
    }

    /// Cells of other flows on a direction of an access link.
    fn others(&self, draws: &mut Draws) -> Vec<(u64, What)> {
        let Some(cross) = self.cross else { return Vec::new() };
        let rtt_s = 2.0 * (self.lines_ns() + self.mixes_ns()) as f64 / 1e9;
        let plan = cross.plan(f64::from(self.seconds), rtt_s, draws);
        plan.data.into_iter().map(|at| (at, What::Cross)).collect()
    }

    /// One direction of a flow, from access link to access link.
    fn cross_over(
        &self,
        cells: &[u64],
        clocks: &[u64],
        mark: Option<Mark>,
        draws: &mut Draws,
    ) -> Crossing {
        let until = self.watched_ns() + REST_NS;
        let mut queue: Vec<_> = cells.iter().zip(0..).map(|(&at, n)| (at, What::Cell(n))).collect();
        queue.extend(self.others(draws));
        let mut sent = self.cover.carry(queue, until, self.leak, &self.line, draws);
        let code = mark.map(|mark| {
            let mut code = Code::new(mark, self.seconds, draws);
            code.apply(mark, &mut sent, draws);
            code
        });
        let mut way = Way::new(self.strategy, clocks, self.line, Draws::of(draws.key()));
        let mut queue = Vec::new();
        for frame in &sent {
            if let What::Cell(number) = frame.what {
                queue.push((way.pass(frame.at, number.into()), frame.what));
            }
        }
        let line = match self.core.scheduled() {
            true => self.core.carry(queue, until, Leak::None, &self.line, draws),
            false => bare(queue),
        };
        let carried = line.iter().filter(|frame| frame.what != What::Dummy);
        let mut queue: Vec<_> = carried.map(|frame| (frame.at, frame.what)).collect();
        queue.extend(self.others(draws));
        let mut came = self.cover.carry(queue, until, self.leak, &self.line, draws);
        let mut delivered = vec![None; cells.len()];
        for frame in &came {
            if let What::Cell(number) = frame.what {
                delivered[number as usize] = Some(frame.at);
            }
        }
        let took = cells.iter().zip(&delivered).filter_map(|(&at, end)| Some(((*end)?) - at));
        let (count, sum) = took.fold((0, 0.0), |(n, sum), ns| (n + 1, sum + ns as f64));
        let (ingress_cells, egress_cells) = (real(&sent), real(&came));
        if self.leak == Leak::PassesGaps {
            came.clone_from(&sent);
            came.iter_mut().for_each(|f| f.at += self.lines_ns() + self.line.wait(draws));
        }
        Crossing {
            ingress: trace(&sent),
            ingress_cells,
            egress: trace(&came),
            line: trace(&line),
            egress_cells,
            delivered: in_order(delivered),
            code,
            added_ns: if count > 0 { sum / f64::from(count) - self.lines_ns() as f64 } else { 0.0 },
            cells: cells.len(),
        }
    }
}

impl Network {
    /// What observers record in a network of this seed, with a mark on everything that hosts send
    /// if one is named.
    ///
    /// # Errors
    /// Those of [`Scene::check`].
    pub fn new(scene: &Scene, seed: u64, mark: Option<Mark>) -> Result<Network, Wrong> {
        scene.check()?;
        let mut draws = Draws::new(seed, "relays", 0);
        let clocks: Vec<u64> = (0..RELAYS).map(|_| (draws.uniform() * 1e9) as u64).collect();
        let mut network = Network::default();
        for flow in 0..scene.flows {
            network.add(scene, seed, flow, &clocks, mark);
        }
        let flows = scene.flows as f64;
        let Cost { cells_per_s, frames_per_s, added_ms } = &mut network.cost;
        [cells_per_s, frames_per_s, added_ms].into_iter().for_each(|mean| *mean /= flows);
        Ok(network)
    }

    /// What was recorded elsewhere, in so many seconds: the pair of `callers[i]` is `called[i]`.
    /// Nobody knows which frames are cells.
    ///
    /// # Errors
    /// Numbers of links that differ or are out of bounds, or seconds that are.
    pub fn recorded(
        callers: Vec<Access>,
        called: Vec<Access>,
        seconds: u32,
    ) -> Result<Network, Wrong> {
        if callers.len() != called.len() || !(2..=FLOWS_MAX).contains(&callers.len()) {
            return Err(Wrong::Flows);
        }
        if !(1..=SECONDS_MAX).contains(&seconds) {
            return Err(Wrong::Seconds);
        }
        let frames = |link: &Access| full_within(&[&link.up, &link.down], seconds);
        let sum: f64 = callers.iter().map(frames).sum();
        let frames_per_s = sum / callers.len() as f64;
        let cost = Cost { cells_per_s: 0.0, frames_per_s, added_ms: 0.0 };
        let [callers_cells, called_cells] = [callers.clone(), called.clone()];
        let (called_lines, codes) = (called.clone(), Default::default());
        Ok(Network { callers, called, callers_cells, called_cells, called_lines, codes, cost })
    }

    fn add(&mut self, scene: &Scene, seed: u64, flow: usize, clocks: &[u64], mark: Option<Mark>) {
        let mut draws = Draws::new(seed, "flow", flow as u64);
        let order = draws.permutation(clocks.len());
        let mut clocks: Vec<u64> =
            order.into_iter().take(scene.mixes as usize).map(|relay| clocks[relay]).collect();
        let rtt_s = 0.02 + 2.0 * (scene.lines_ns() + scene.mixes_ns()) as f64 / 1e9;
        let plan = scene.traffic.plan(f64::from(scene.seconds), rtt_s, &mut draws);
        let data = scene.cross_over(&plan.data, &clocks, mark, &mut draws);
        let mut back = plan.other;
        back.extend(acknowledgements(&data.delivered, plan.acks_every));
        back.sort_unstable();
        clocks.reverse();
        let back = scene.cross_over(&back, &clocks, mark, &mut draws);
        let seconds = f64::from(scene.seconds);
        self.cost.cells_per_s += (data.cells + back.cells) as f64 / seconds;
        self.cost.frames_per_s += full_within(&[&data.ingress, &back.ingress], scene.seconds);
        self.cost.added_ms += data.added_ns / 1e6;
        let (up, down) = if plan.down { (back, data) } else { (data, back) };
        self.callers.push(Access { up: up.ingress, down: down.egress });
        self.called.push(Access { up: down.ingress, down: up.egress });
        self.called_lines.push(Access { up: down.line.clone(), down: up.line.clone() });
        self.callers_cells.push(Access { up: up.ingress_cells, down: down.egress_cells });
        self.called_cells.push(Access { up: down.ingress_cells, down: up.egress_cells });
        self.codes[0].extend(up.code);
        self.codes[1].extend(down.code);
    }
}

/// Full frames a second while it is watched.
fn full_within(traces: &[&Trace], seconds: u32) -> f64 {
    let span = crate::trace::Span::seconds(seconds);
    let frames: usize = traces.iter().map(|trace| trace.cells(span).count()).sum();
    frames as f64 / f64::from(seconds)
}

/// Cells as they come.
fn bare(mut queue: Vec<(u64, What)>) -> Vec<Sent> {
    queue.sort_unstable();
    queue.into_iter().map(|(at, what)| Sent { at, class: SizeClass::Full, what }).collect()
}

/// The cells alone.
fn real(frames: &[Sent]) -> Trace {
    Trace::full(frames.iter().filter(|f| f.what != What::Dummy).map(|f| f.at))
}

/// Each cell is delivered when those before it are: the host at the end restores the order.
fn in_order(came: Vec<Option<u64>>) -> Vec<Option<u64>> {
    let mut last = 0;
    let later = |at: Option<u64>| {
        last = last.max(at?);
        Some(last)
    };
    came.into_iter().map(later).collect()
}

/// When a receiver acknowledges: at once, with every so many cells.
fn acknowledgements(delivered: &[Option<u64>], every: usize) -> Vec<u64> {
    if every == 0 {
        return Vec::new();
    }
    delivered.iter().flatten().copied().skip(every - 1).step_by(every).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Span;
    use core::time::Duration;
    use shoal_wire::MixTime;

    fn scene() -> Scene {
        Scene {
            traffic: Traffic::Mixed,
            cross: None,
            strategy: Strategy::Pass,
            mixes: 3,
            line: Line::default(),
            cover: Cover::None,
            core: Cover::None,
            leak: Leak::None,
            flows: 6,
            seconds: 5,
        }
    }

    #[test]
    fn a_network_follows_from_its_seed() {
        let new = |seed| Network::new(&scene(), seed, Some(Mark::Rate)).unwrap();
        assert_eq!(new(1), new(1));
        assert_ne!(new(1), new(2));
        assert_eq!(new(1).codes[0].len(), 6);
    }

    #[test]
    fn what_enters_leaves_behind_lines_and_mixes() {
        let span = Span::seconds(5);
        let bare = Network::new(&scene(), 1, None).unwrap();
        for (from, to) in bare.callers.iter().zip(&bare.called) {
            let (sent, came) = (from.up.cells(span).count(), to.down.cells(span).count());
            assert!(sent.abs_diff(came) < 20, "{sent} {came}");
            let first = |trace: &Trace| trace.cells(span).next().unwrap_or_default();
            let later = first(&to.down).saturating_sub(first(&from.up));
            assert!((19_900_000..23_000_000).contains(&later), "{later}");
        }
        assert!(bare.cost.added_ms < 0.5, "{:?}", bare.cost);
        let mean = MixTime::from_duration(Duration::from_millis(5)).unwrap();
        let most = MixTime::from_duration(Duration::from_millis(25)).unwrap();
        let strategy = Strategy::StopAndGo { mean, most };
        let mixed = Network::new(&Scene { strategy, ..scene() }, 1, None).unwrap();
        assert!((mixed.cost.added_ms - 14.5).abs() < 0.7, "{:?}", mixed.cost);
    }

    #[test]
    fn covered_links_carry_the_tier_whatever_the_traffic() {
        let cover = Cover::Constant { per_s: 174.0 };
        let all = Traffic::SINGLE.map(|traffic| Scene { traffic, cover, ..scene() });
        for scene in all {
            let network = Network::new(&scene, 1, None).unwrap();
            assert!((network.cost.frames_per_s - 348.0).abs() < 2.0, "{:?}", network.cost);
            assert!(network.cost.cells_per_s < 348.0);
        }
    }

    #[test]
    fn bounds_are_kept() {
        let flows = Scene { flows: 1, ..scene() };
        assert_eq!(flows.check(), Err(Wrong::Flows));
        assert_eq!(Scene { seconds: 0, ..scene() }.check(), Err(Wrong::Seconds));
        assert_eq!(Scene { mixes: 9, ..scene() }.check(), Err(Wrong::Mixes));
        let cover = Cover::Constant { per_s: f64::NAN };
        assert_eq!(Scene { cover, ..scene() }.check(), Err(Wrong::Cover));
        let cover = Cover::Constant { per_s: 5_000.0 };
        let large = Scene { cover, flows: FLOWS_MAX, seconds: SECONDS_MAX, ..scene() };
        assert_eq!(large.check(), Err(Wrong::Frames));
    }
}
