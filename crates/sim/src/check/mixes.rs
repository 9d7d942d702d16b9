//! Relays delay the cells of mixed circuits correctly. Each cell leaves when it is due, delays
//! follow the strategy's distribution, and cells that leave together leave in random order.
//!
//! ```text
//! layer opened or sealed --works--> waiting --link's seal--leaves--> compared with its due time
//! ```
//!
//! A cell is recognised by sixteen bytes that are the same when its layer is processed and when the
//! link seals it. The relay is asked once per layer key for the strategy and the delays. The
//! checker computes each delay itself. All times are by the relay's clock.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_crypto::quantile::quantile;
use shoal_mix::QUANTUM;
use shoal_onion::KeyDelays;
use shoal_wire::leg::{BODY_AT, CELL_LEN, LayerFlag, RELAYS_MAX};
use shoal_wire::{Address, LinkKind, MixStrategy, MixTime, RoutedHeader, Time, link};

use super::statistics::{DepartureOrders, uniform};
use super::streams;
use crate::ciphers::mix;
use crate::outcome::StrategyWaits;

pub(crate) const TIMES: &str = "mixed cells leave when they are due";
pub(crate) const LAW: &str = "delays are distributed as asked";
pub(crate) const TURNS: &str = "cells that leave a mix together leave in a random order";

/// Offset of the identifying bytes within the cell.
const MARK_AT: usize = 64;
/// Range that contains these bytes within the body of a layer, for each start of that body.
const BODY: core::ops::Range<usize> =
    MARK_AT - BODY_AT - RELAYS_MAX as usize..MARK_AT + 16 - BODY_AT;
/// Error of a timer on a clock that runs too fast.
const CLOCK: Duration = Duration::from_nanos(2);
/// Time after the due time at which dropped cells are forgotten.
const FORGET: Duration = Duration::from_secs(2);
/// Largest number of samples per strategy.
const SAMPLES_MAX: usize = 1 << 17;

type CellFingerprint = [u8; 16];

/// An action of a relay since the last check.
enum RelayAction {
    /// A layer of a cell was opened or sealed, under the key with this number.
    Works { key: u64, number: u64, came: Time, flag: u8, body: [u8; BODY.end - BODY.start] },
    /// A link sealed a cell of the relay itself, under the key with this number.
    Leaves { link: u64, mark: CellFingerprint, at: Time },
}

/// Circumstances that excuse a late cell.
#[derive(Clone, Copy)]
pub(crate) struct LateExcuse {
    /// True if cells waited in an egress of the relay.
    pub(crate) busy: bool,
    /// End of the relay's last pause.
    pub(crate) resumed: Time,
}

struct PendingCell {
    key: u64,
    came: Time,
    /// Departure time by the strategy alone, and (`due`) rounded to a quantum.
    target: Time,
    due: Time,
    /// Number of the cell among all cells.
    count: u64,
}

/// Waiting times of the cells of one strategy.
#[derive(Default)]
struct MixWaits {
    cells: u64,
    /// Cells that also waited for their link, or for a paused relay.
    excused: u64,
    /// Sum of the other cells' waits in nanoseconds, and their lateness against the strategy's time
    /// before rounding to quanta.
    sum_ns: u64,
    late_ns: Vec<f64>,
}

impl MixWaits {
    fn note(&mut self, cell: &PendingCell, left: Option<Time>) {
        self.cells += 1;
        let Some(left) = left else {
            self.excused += 1;
            return;
        };
        self.sum_ns += left.since(cell.came).as_nanos() as u64;
        if self.late_ns.len() < SAMPLES_MAX {
            self.late_ns.push(left.0 as f64 - cell.target.0 as f64);
        }
    }

    fn mixed(&self, strategy: MixStrategy) -> StrategyWaits {
        let cells = self.cells - self.excused;
        StrategyWaits {
            strategy: strategy.to_string(),
            cells,
            excused: self.excused,
            mean_ms: self.sum_ns as f64 / cells.max(1) as f64 / 1e6,
            law_ms: mean_ms(strategy),
            late_p99_ms: quantile(&self.late_ns, 0.99).unwrap_or(0.0) / 1e6,
        }
    }
}

/// The observed mixed cells.
pub(crate) struct MixChecker {
    routers: Vec<Address>,
    seen: Vec<RelayAction>,
    /// Packets that hosts opened: flow, number and time.
    pub(crate) opened: Vec<(u32, u32, Time)>,
    /// Layer keys by number; None as value if the relay does not delay the key's cells. `unknown`
    /// holds keys that were not asked about yet.
    keys: BTreeMap<u64, Option<KeyDelays>>,
    unknown: BTreeMap<u64, [u8; 32]>,
    waiting: BTreeMap<(usize, CellFingerprint), PendingCell>,
    /// Cells that leave in the present quantum of a relay, by the key of the link.
    together: BTreeMap<(usize, u64), (Time, Vec<u64>)>,
    /// Probabilities of a shorter delay, by strategy.
    samples: BTreeMap<MixStrategy, Vec<f64>>,
    waits: BTreeMap<MixStrategy, MixWaits>,
    turns: DepartureOrders,
    count: u64,
    /// Number of mixed cells that left.
    pub(crate) left: u64,
    /// True if all relays mix all circuits.
    mix_all: bool,
    broken: Option<(&'static str, String)>,
}

impl MixChecker {
    pub(crate) fn new(routers: &[Address], mix_all: bool) -> MixChecker {
        MixChecker {
            routers: routers.to_vec(),
            seen: Vec::new(),
            opened: Vec::new(),
            keys: BTreeMap::new(),
            unknown: BTreeMap::new(),
            waiting: BTreeMap::new(),
            together: BTreeMap::new(),
            samples: BTreeMap::new(),
            waits: BTreeMap::new(),
            turns: DepartureOrders::default(),
            count: 0,
            left: 0,
            mix_all,
            broken: None,
        }
    }

    /// Notes that a node opened or sealed something under a key and counter: data between two
    /// hosts, or a layer of a circuit. `body` is in the form that the next node gets.
    pub(crate) fn works(
        &mut self,
        (node, came): (usize, Time),
        (key, bytes): (u64, &[u8; 32]),
        number: u64,
        body: &[u8],
    ) {
        let Some(part) = body.get(BODY).filter(|_| node < self.routers.len()) else { return };
        if !self.keys.contains_key(&key) {
            self.unknown.insert(key, *bytes);
        }
        let body_part = part.try_into().expect("as long as the range");
        self.seen.push(RelayAction::Works { key, number, came, flag: body[0], body: body_part });
    }

    /// Notes that a node opened data of another host that came over a circuit.
    pub(crate) fn opens(&mut self, (node, at): (usize, Time), plaintext: &[u8]) {
        if node >= self.routers.len()
            && let Some((flow, number)) = streams::label(plaintext)
        {
            self.opened.push((flow, number, at));
        }
    }

    /// Notes that a node seals a link plaintext under the key of a link.
    pub(crate) fn leaves(&mut self, (node, at): (usize, Time), link: u64, plaintext: &[u8]) {
        let Some(me) = self.routers.get(node) else { return };
        let (head, cell) = plaintext.split_at(link::CELL_AT - link::KIND_AT);
        let header = RoutedHeader::parse(&head[link::ROUTED_AT - link::KIND_AT..]);
        let is_own = header.is_ok_and(|header| header.src() == *me);
        if head[0] == LinkKind::Leg as u8 && cell.len() == CELL_LEN && is_own {
            let mark = cell[MARK_AT..MARK_AT + 16].try_into().expect("sixteen bytes");
            self.seen.push(RelayAction::Leaves { link, mark, at });
        }
    }

    /// Takes the layer keys that a relay must be asked about before [`MixChecker::settle`].
    pub(crate) fn unknown(&mut self) -> BTreeMap<u64, [u8; 32]> {
        core::mem::take(&mut self.unknown)
    }

    /// Stores a relay's answer about the key with this number.
    pub(crate) fn learn(&mut self, key: u64, waits: Option<KeyDelays>) {
        self.keys.insert(key, waits.filter(|waits| waits.strategy.holds()));
    }

    /// Compares a relay's actions in its last step with the expected ones.
    pub(crate) fn settle(&mut self, node: usize, excuse: LateExcuse) {
        for seen in core::mem::take(&mut self.seen) {
            match seen {
                RelayAction::Works { key, number, came, flag, body } => {
                    self.enter(node, (key, number), came, flag, &body);
                }
                RelayAction::Leaves { link, mark, at } => {
                    match self.waiting.remove(&(node, mark)) {
                        Some(cell) => self.leave(node, link, at, &cell, excuse),
                        None if self.mix_all => self.set_up(node, at, excuse),
                        None => {}
                    }
                }
            }
        }
    }

    fn enter(&mut self, node: usize, of: (u64, u64), came: Time, flag: u8, body: &[u8]) {
        let (key, number) = of;
        let Some(Some(waits)) = self.keys.get(&key) else { return };
        // A forward control cell for this relay itself ends here.
        if waits.way == (0, 1) && flag == LayerFlag::Yours as u8 {
            return;
        }
        let at = MARK_AT - waits.start - BODY.start;
        let mark: CellFingerprint = body[at..at + 16].try_into().expect("sixteen bytes");
        let (target, due) = due(waits, came, number);
        self.count += 1;
        let cell = PendingCell { key, came, target, due, count: self.count };
        self.waiting.insert((node, mark), cell);
    }

    /// Checks a cell that no layer covers, which sets up a circuit. Its arrival time is unknown,
    /// but it must leave at the end of a quantum.
    fn set_up(&mut self, node: usize, at: Time, excuse: LateExcuse) {
        let beyond = Duration::from_nanos(at.0 % QUANTUM.as_nanos() as u64);
        if beyond > CLOCK && !excuse.busy && at != excuse.resumed {
            let seen = format!("node {node}: a set-up cell left {beyond:?} behind a quantum");
            self.broken.get_or_insert((TIMES, seen));
        }
    }

    /// Checks a cell that leaves, when the link seals it.
    fn leave(&mut self, node: usize, link: u64, at: Time, cell: &PendingCell, excuse: LateExcuse) {
        let Some(Some(waits)) = self.keys.get(&cell.key) else { return };
        self.left += 1;
        let waited = at.since(cell.came);
        let what = if waits.way.1 == 1 { "a control cell" } else { "a cell" };
        let is_excused = excuse.busy || cell.due <= excuse.resumed;
        let (early, late) = (cell.due.since(at), at.since(cell.due));
        if at < cell.due || late > CLOCK && !is_excused {
            let how =
                if at < cell.due { format!("{early:?} early") } else { format!("{late:?} late") };
            let strategy = waits.strategy;
            let seen =
                format!("node {node}: {what} left {how}, after {waited:?}, under {strategy}");
            self.broken.get_or_insert((TIMES, seen));
        }
        let most = waits.strategy.most().duration() + QUANTUM + CLOCK;
        if waited > most && !is_excused {
            let seen = format!("node {node}: {what} waited for {waited:?}, at most {most:?}");
            self.broken.get_or_insert((TIMES, seen));
        }
        let waits = self.waits.entry(waits.strategy).or_default();
        waits.note(cell, (!is_excused).then_some(at));
        let at = if is_excused { cell.due } else { at };
        self.sample(cell, at);
        self.note_turn(node, link, cell);
    }

    /// Records the probability of a shorter wait. Since waits end at quanta, a random wait within
    /// the quantum is used.
    fn sample(&mut self, cell: &PendingCell, at: Time) {
        let Some(Some(waits)) = self.keys.get(&cell.key) else { return };
        let MixStrategy::StopAndGo { mean, most } = waits.strategy else { return };
        let [mean, most] = [mean, most].map(|time| time.duration().as_secs_f64());
        let shorter = |wait: f64| (1.0 - (-wait / mean).exp()) / (1.0 - (-most / mean).exp());
        let (wait, half) = (at.since(cell.came).as_secs_f64(), QUANTUM.as_secs_f64() / 2.0);
        let is_first = wait < 2.0 * half;
        let from = if is_first { 0.0 } else { wait - half };
        let [from, to] = [from, wait + half].map(|w| shorter(w.min(most)));
        let pick = (mix(cell.count) >> 11) as f64 / (1_u64 << 53) as f64;
        let samples = self.samples.entry(waits.strategy).or_default();
        if samples.len() < SAMPLES_MAX {
            samples.push(from + (to - from) * pick);
        }
    }

    /// Records the order of the cells that leave in one quantum over one link.
    fn note_turn(&mut self, node: usize, link: u64, cell: &PendingCell) {
        let (due, group) = self.together.entry((node, link)).or_default();
        if *due != cell.due {
            let group = core::mem::take(group);
            *due = cell.due;
            self.turns.note(&group);
        }
        if let Some((_, group)) = self.together.get_mut(&(node, link)) {
            group.push(cell.count);
        }
    }

    /// Forgets the cells of a relay that crashed.
    pub(crate) fn crash(&mut self, node: usize) {
        self.waiting.retain(|at, _| at.0 != node);
        self.together.retain(|at, _| at.0 != node);
    }

    /// Forgets cells of a relay that were dropped.
    pub(crate) fn forget_lost(&mut self, node: usize, now: Time) {
        self.waiting.retain(|at, cell| at.0 != node || cell.due + FORGET > now);
    }

    /// Waiting times by strategy.
    pub(crate) fn mixed(&self) -> Vec<StrategyWaits> {
        self.waits.iter().map(|(strategy, waited)| waited.mixed(*strategy)).collect()
    }

    /// The first violation: its rule and the observation.
    pub(crate) fn broken(&self) -> Option<(&'static str, String)> {
        self.broken.clone()
    }

    /// Checks the distributions over the whole run.
    pub(crate) fn check_end(&mut self) -> Result<(), (&'static str, String)> {
        for (_, group) in core::mem::take(&mut self.together).into_values() {
            self.turns.note(&group);
        }
        for (strategy, samples) in &self.samples {
            uniform(samples).map_err(|seen| (LAW, format!("{strategy}: {seen}")))?;
        }
        self.turns.check().map_err(|seen| (TURNS, seen))
    }
}

/// Mean wait in milliseconds: of a cell that arrives at a random time, or by the truncated
/// exponential law.
fn mean_ms(strategy: MixStrategy) -> f64 {
    let ms = |time: MixTime| time.duration().as_secs_f64() * 1e3;
    match strategy {
        MixStrategy::Pass => 0.0,
        MixStrategy::Timed { every } => ms(every) / 2.0,
        MixStrategy::StopAndGo { mean, most } => {
            ms(mean) - ms(most) / (ms(most) / ms(mean)).exp_m1()
        }
    }
}

/// Departure time of a cell that came at `came`: the strategy's time, and that time rounded to a
/// quantum. The second is not before the first possible quantum.
fn due(waits: &KeyDelays, came: Time, number: u64) -> (Time, Time) {
    let quantum = QUANTUM.as_nanos() as u64;
    let (target, first) = match waits.strategy {
        MixStrategy::Pass => return (came, came),
        MixStrategy::Timed { every } => {
            let every = every.duration().as_nanos() as u64;
            ((came.0 / every + 1) * every, came.0 + 1)
        }
        MixStrategy::StopAndGo { .. } => {
            let delay = waits.delays.delay(waits.way.0, waits.way.1, number);
            (came.0 + delay.as_nanos() as u64, came.0)
        }
    };
    let near = (target + quantum / 2) / quantum * quantum;
    (Time(target), Time(near.max(first.div_ceil(quantum) * quantum)))
}
