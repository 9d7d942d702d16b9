//! Pairs of hosts, and the record of an observer of all their access links.

use serde::Serialize;
use shoal_wire::{MixStrategy, SizeClass};

use crate::cover::{CoverSchedule, FrameContent, Leak, LineFrame, trace};
use crate::flow::ProgramKind;
use crate::mark::{MarkCode, MarkKind};
use crate::path::{CircuitPath, LineDelay, MIXES_MAX};
use crate::random::Draws;
use crate::trace::LineTrace;

/// Maximum number of flows in a network.
pub const FLOWS_MAX: usize = 200;
/// Longest watched time, in seconds.
pub const SECONDS_MAX: u32 = 600;
/// Most frames per second of a schedule: 50 Mbit/s are 4,340.
const FRAMES_MAX_PER_S: f64 = 5_000.0;
/// Maximum number of networks in an experiment.
pub const SEEDS_MAX: u64 = 100;
/// Most frames of a network, on all access links and in both directions: 2 GB of memory.
const FRAMES_MAX: f64 = 100e6;
/// Highest rate of programs on one direction of a link, in frames per second.
const CELLS_PER_S: f64 = 200.0;
/// Relays of a network. Each flow uses a random subset of them.
const RELAYS: usize = 8;
/// Time after the watched one in which frames are still carried.
const REST_NS: u64 = 5_000_000_000;

/// Parameters of a watched network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scene {
    /// Programs behind the flows.
    pub traffic: ProgramKind,
    /// Further programs behind each access link, which talk to other hosts.
    pub cross: Option<ProgramKind>,
    /// Mixing strategy of each relay.
    pub strategy: MixStrategy,
    /// Number of mixing relays of each circuit.
    pub mixes: u32,
    /// Delay and jitter of every line, between relays too.
    pub line: LineDelay,
    /// Cover of access links, at both ends and in both directions.
    pub cover: CoverSchedule,
    /// Cover of lines between routers.
    pub core: CoverSchedule,
    /// Planted fault of the cover.
    pub leak: Leak,
    /// Number of pairs of hosts.
    pub flows: usize,
    /// Seconds for which the attacker watches.
    pub seconds: u32,
}

/// Reason why a scene can't be simulated. Nothing was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SceneError {
    /// Fewer than two flows, or too many.
    #[error("a network has 2 to {FLOWS_MAX} flows")]
    Flows,
    /// No seconds, or too many.
    #[error("expected 1 to {SECONDS_MAX} seconds")]
    Seconds,
    /// More relays than a circuit has, or invalid times of the strategy.
    #[error("a path has at most {MIXES_MAX} mixes, whose times are not zero")]
    Mixes,
    /// A schedule that is too fast for a line.
    #[error("an access link sends at most {FRAMES_MAX_PER_S} frames a second")]
    Cover,
    /// More frames than fit into memory.
    #[error("at most {FRAMES_MAX:.0} frames: watch fewer flows, or for a shorter time")]
    Frames,
    /// Too few seeds, or too many.
    #[error("an attack needs 2 to {SEEDS_MAX} seeds to train, and 1 to {SEEDS_MAX} others")]
    Seeds,
}

/// Traffic on an access link; `up` is from the host to its router.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccessTraces {
    pub up: LineTrace,
    pub down: LineTrace,
}

/// The access links of a network, by flow: `called[i]` is the partner of `callers[i]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedNetwork {
    /// Links of the hosts that call.
    pub callers: Vec<AccessTraces>,
    /// Links of the hosts that are called.
    pub called: Vec<AccessTraces>,
    /// Cells alone on the callers' links, as their routers see them.
    pub callers_cells: Vec<AccessTraces>,
    /// Cells alone on the called hosts' links, as their routers see them.
    pub called_cells: Vec<AccessTraces>,
    /// Lines between routers that lead to and from the called hosts' routers.
    pub called_lines: Vec<AccessTraces>,
    /// Marks on the traffic from callers, and from the called; empty without a mark.
    pub codes: [Vec<MarkCode>; 2],
    /// Mean costs of the scene.
    pub cost: Cost,
}

/// Costs of a scene, as means over its flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Cells per second of one flow, in both directions.
    pub cells_per_s: f64,
    /// Full frames per second on an access link, in both directions.
    pub frames_per_s: f64,
    /// Delay of a cell beyond that of lines alone, in milliseconds: mixes, and waits for slots.
    pub added_ms: f64,
}

/// One direction of a flow.
struct FlowDirection {
    ingress: LineTrace,
    ingress_cells: LineTrace,
    egress: LineTrace,
    egress_cells: LineTrace,
    /// Frames on the last line between routers.
    line: LineTrace,
    /// Time at which each cell is delivered in order; none if it was lost.
    delivered: Vec<Option<u64>>,
    code: Option<MarkCode>,
    added_ns: f64,
    cells: usize,
}

impl Scene {
    /// Checks the bounds of all fields.
    ///
    /// # Errors
    /// The first field that is out of its bounds.
    pub fn check(&self) -> Result<(), SceneError> {
        let lines = 4.0 * self.flows as f64;
        let frames = lines * f64::from(self.seconds) * (self.cover.per_s() + CELLS_PER_S);
        let all = [
            ((2..=FLOWS_MAX).contains(&self.flows), SceneError::Flows),
            ((1..=SECONDS_MAX).contains(&self.seconds), SceneError::Seconds),
            (self.mixes <= MIXES_MAX && self.strategy.is_valid(), SceneError::Mixes),
            ((0.0..=FRAMES_MAX_PER_S).contains(&self.cover.per_s()), SceneError::Cover),
            (frames <= FRAMES_MAX, SceneError::Frames),
        ];
        all.into_iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, wrong)| Err(wrong))
    }

    /// Delay of all lines of a path, in nanoseconds.
    pub(crate) fn lines_ns(&self) -> u64 {
        u64::from(self.mixes + 1) * (self.line.delay + self.line.jitter).as_nanos() as u64
    }

    /// Mean delay of the mixes of a path, in nanoseconds.
    pub(crate) fn mixes_ns(&self) -> u64 {
        let strategies = core::iter::repeat_n(self.strategy, self.mixes as usize);
        shoal_mix::mean(strategies).as_nanos() as u64
    }

    fn watched_ns(&self) -> u64 {
        u64::from(self.seconds) * 1_000_000_000
    }

    /// Cells of other flows on one direction of an access link.
    fn others(&self, draws: &mut Draws) -> Vec<(u64, FrameContent)> {
        let Some(cross) = self.cross else { return Vec::new() };
        let rtt_s = 2.0 * (self.lines_ns() + self.mixes_ns()) as f64 / 1e9;
        let plan = cross.plan(f64::from(self.seconds), rtt_s, draws);
        plan.data.into_iter().map(|at| (at, FrameContent::Cross)).collect()
    }

    /// Simulates one direction of a flow, from access link to access link.
    fn cross_over(
        &self,
        cells: &[u64],
        clocks: &[u64],
        mark: Option<MarkKind>,
        draws: &mut Draws,
    ) -> FlowDirection {
        let until = self.watched_ns() + REST_NS;
        let mut queue: Vec<_> =
            cells.iter().zip(0..).map(|(&at, n)| (at, FrameContent::Cell(n))).collect();
        queue.extend(self.others(draws));
        let mut sent = self.cover.carry(queue, until, self.leak, &self.line, draws);
        let code = mark.map(|mark| {
            let mut code = MarkCode::new(mark, self.seconds, draws);
            code.apply(mark, &mut sent, draws);
            code
        });
        let mut way = CircuitPath::new(self.strategy, clocks, self.line, Draws::of(draws.key()));
        let mut queue = Vec::new();
        for frame in &sent {
            if let FrameContent::Cell(number) = frame.what {
                queue.push((way.pass(frame.at, number.into()), frame.what));
            }
        }
        let line = match self.core.scheduled() {
            true => self.core.carry(queue, until, Leak::None, &self.line, draws),
            false => bare(queue),
        };
        let carried = line.iter().filter(|frame| frame.what != FrameContent::Dummy);
        let mut queue: Vec<_> = carried.map(|frame| (frame.at, frame.what)).collect();
        queue.extend(self.others(draws));
        let mut came = self.cover.carry(queue, until, self.leak, &self.line, draws);
        let mut delivered = vec![None; cells.len()];
        for frame in &came {
            if let FrameContent::Cell(number) = frame.what {
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
        FlowDirection {
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

impl ObservedNetwork {
    /// Record of observers in a network with this seed. With a mark, it is on everything that hosts
    /// send.
    ///
    /// # Errors
    /// Errors of [`Scene::check`].
    pub fn new(
        scene: &Scene,
        seed: u64,
        mark: Option<MarkKind>,
    ) -> Result<ObservedNetwork, SceneError> {
        scene.check()?;
        let mut draws = Draws::new(seed, "relays", 0);
        let clocks: Vec<u64> = (0..RELAYS).map(|_| (draws.uniform() * 1e9) as u64).collect();
        let mut network = ObservedNetwork::default();
        for flow in 0..scene.flows {
            network.add(scene, seed, flow, &clocks, mark);
        }
        let flows = scene.flows as f64;
        let Cost { cells_per_s, frames_per_s, added_ms } = &mut network.cost;
        [cells_per_s, frames_per_s, added_ms].into_iter().for_each(|mean| *mean /= flows);
        Ok(network)
    }

    /// A record from elsewhere, `seconds` long: `called[i]` is the partner of `callers[i]`. Nobody
    /// knows which frames are cells.
    ///
    /// # Errors
    /// The numbers of links differ or are out of bounds, or `seconds` is.
    pub fn recorded(
        callers: Vec<AccessTraces>,
        called: Vec<AccessTraces>,
        seconds: u32,
    ) -> Result<ObservedNetwork, SceneError> {
        if callers.len() != called.len() || !(2..=FLOWS_MAX).contains(&callers.len()) {
            return Err(SceneError::Flows);
        }
        if !(1..=SECONDS_MAX).contains(&seconds) {
            return Err(SceneError::Seconds);
        }
        let frames = |link: &AccessTraces| full_within(&[&link.up, &link.down], seconds);
        let sum: f64 = callers.iter().map(frames).sum();
        let frames_per_s = sum / callers.len() as f64;
        let cost = Cost { cells_per_s: 0.0, frames_per_s, added_ms: 0.0 };
        let [callers_cells, called_cells] = [callers.clone(), called.clone()];
        let (called_lines, codes) = (called.clone(), Default::default());
        Ok(ObservedNetwork {
            callers,
            called,
            callers_cells,
            called_cells,
            called_lines,
            codes,
            cost,
        })
    }

    fn add(
        &mut self,
        scene: &Scene,
        seed: u64,
        flow: usize,
        clocks: &[u64],
        mark: Option<MarkKind>,
    ) {
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
        self.callers.push(AccessTraces { up: up.ingress, down: down.egress });
        self.called.push(AccessTraces { up: down.ingress, down: up.egress });
        self.called_lines.push(AccessTraces { up: down.line.clone(), down: up.line.clone() });
        self.callers_cells.push(AccessTraces { up: up.ingress_cells, down: down.egress_cells });
        self.called_cells.push(AccessTraces { up: down.ingress_cells, down: up.egress_cells });
        self.codes[0].extend(up.code);
        self.codes[1].extend(down.code);
    }
}

/// Full frames per second within the watched time.
fn full_within(traces: &[&LineTrace], seconds: u32) -> f64 {
    let span = crate::trace::Span::seconds(seconds);
    let frames: usize = traces.iter().map(|trace| trace.cells(span).count()).sum();
    frames as f64 / f64::from(seconds)
}

/// Frames of cells that leave as they come.
fn bare(mut queue: Vec<(u64, FrameContent)>) -> Vec<LineFrame> {
    queue.sort_unstable();
    queue.into_iter().map(|(at, what)| LineFrame { at, class: SizeClass::Full, what }).collect()
}

/// Cells without dummies.
fn real(frames: &[LineFrame]) -> LineTrace {
    LineTrace::full(frames.iter().filter(|f| f.what != FrameContent::Dummy).map(|f| f.at))
}

/// Delivers each cell after all cells before it: the host at the end restores the order.
fn in_order(came: Vec<Option<u64>>) -> Vec<Option<u64>> {
    let mut last = 0;
    let later = |at: Option<u64>| {
        last = last.max(at?);
        Some(last)
    };
    came.into_iter().map(later).collect()
}

/// Times at which a receiver acknowledges: at once, with every `every`-th cell.
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
            traffic: ProgramKind::Mixed,
            cross: None,
            strategy: MixStrategy::Pass,
            mixes: 3,
            line: LineDelay::default(),
            cover: CoverSchedule::None,
            core: CoverSchedule::None,
            leak: Leak::None,
            flows: 6,
            seconds: 5,
        }
    }

    #[test]
    fn a_network_follows_from_its_seed() {
        let new = |seed| ObservedNetwork::new(&scene(), seed, Some(MarkKind::Rate)).unwrap();
        assert_eq!(new(1), new(1));
        assert_ne!(new(1), new(2));
        assert_eq!(new(1).codes[0].len(), 6);
    }

    #[test]
    fn cells_arrive_late_by_the_delays_of_lines_and_mixes() {
        let span = Span::seconds(5);
        let bare = ObservedNetwork::new(&scene(), 1, None).unwrap();
        for (from, to) in bare.callers.iter().zip(&bare.called) {
            let (sent, came) = (from.up.cells(span).count(), to.down.cells(span).count());
            assert!(sent.abs_diff(came) < 20, "{sent} {came}");
            let first = |trace: &LineTrace| trace.cells(span).next().unwrap_or_default();
            let later = first(&to.down).saturating_sub(first(&from.up));
            assert!((19_900_000..23_000_000).contains(&later), "{later}");
        }
        assert!(bare.cost.added_ms < 0.5, "{:?}", bare.cost);
        let mean = MixTime::from_duration(Duration::from_millis(5)).unwrap();
        let most = MixTime::from_duration(Duration::from_millis(25)).unwrap();
        let strategy = MixStrategy::StopAndGo { mean, most };
        let mixed = ObservedNetwork::new(&Scene { strategy, ..scene() }, 1, None).unwrap();
        assert!((mixed.cost.added_ms - 14.5).abs() < 0.7, "{:?}", mixed.cost);
    }

    #[test]
    fn covered_links_carry_the_tier_whatever_the_traffic() {
        let cover = CoverSchedule::Constant { per_s: 174.0 };
        let all = ProgramKind::SINGLE.map(|traffic| Scene { traffic, cover, ..scene() });
        for scene in all {
            let network = ObservedNetwork::new(&scene, 1, None).unwrap();
            assert!((network.cost.frames_per_s - 348.0).abs() < 2.0, "{:?}", network.cost);
            assert!(network.cost.cells_per_s < 348.0);
        }
    }

    #[test]
    fn bounds_are_kept() {
        let flows = Scene { flows: 1, ..scene() };
        assert_eq!(flows.check(), Err(SceneError::Flows));
        assert_eq!(Scene { seconds: 0, ..scene() }.check(), Err(SceneError::Seconds));
        assert_eq!(Scene { mixes: 9, ..scene() }.check(), Err(SceneError::Mixes));
        let cover = CoverSchedule::Constant { per_s: f64::NAN };
        assert_eq!(Scene { cover, ..scene() }.check(), Err(SceneError::Cover));
        let cover = CoverSchedule::Constant { per_s: 5_000.0 };
        let large = Scene { cover, flows: FLOWS_MAX, seconds: SECONDS_MAX, ..scene() };
        assert_eq!(large.check(), Err(SceneError::Frames));
    }
}
