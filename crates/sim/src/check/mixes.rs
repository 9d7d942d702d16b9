//! What relays do with cells of mixed circuits: each leaves when its time has come, the times are
//! distributed as the strategy says, and what leaves together leaves in a random order.
//!
//! ```text
//! layer opened or sealed --works--> waiting --link's seal--leaves--> compared with its due time
//! ```
//!
//! A cell is known again by sixteen bytes that stand in it when its layer is done and when the link
//! seals it. What a layer does at a relay, and with which delays, its key says: the relay is asked
//! once for each. How long a cell then waits is worked out here anew. All times are those of the
//! relay's clock.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_mix::QUANTUM;
use shoal_onion::Waits;
use shoal_wire::leg::{BODY_AT, CELL_LEN, Flag, RELAYS_MAX};
use shoal_wire::{Address, LinkKind, MixTime, RoutedHeader, Strategy, Time, link};

use super::statistics::{Turns, quantile, uniform};
use super::streams;
use crate::ciphers::mix;
use crate::outcome::Mixed;

pub(crate) const TIMES: &str = "mixed cells leave when they are due";
pub(crate) const LAW: &str = "delays are distributed as asked";
pub(crate) const TURNS: &str = "cells that leave a mix together leave in a random order";

/// Where the bytes stand by which a cell is known, in the cell.
const MARK_AT: usize = 64;
/// Bytes that hold them, in the part that a layer covers, wherever that starts.
const BODY: core::ops::Range<usize> =
    MARK_AT - BODY_AT - RELAYS_MAX as usize..MARK_AT + 16 - BODY_AT;
/// By how much a clock that runs too fast misses the time for which it was set.
const CLOCK: Duration = Duration::from_nanos(2);
/// Cells that were dropped are forgotten so long after their time.
const FORGET: Duration = Duration::from_secs(2);
/// Samples of one strategy.
const SAMPLES_MAX: usize = 1 << 17;

type Mark = [u8; 16];

/// What a relay did since it was looked at last.
enum Seen {
    /// A layer of a cell was opened or sealed under the key of this number.
    Works { key: u64, number: u64, came: Time, flag: u8, body: [u8; BODY.end - BODY.start] },
    /// A link sealed a cell of the relay's own under the key of this number.
    Leaves { link: u64, mark: Mark, at: Time },
}

/// What excuses that a cell leaves late.
#[derive(Clone, Copy)]
pub(crate) struct Excuse {
    /// Cells waited in an egress of the relay.
    pub(crate) busy: bool,
    /// When it stood still for the last time.
    pub(crate) resumed: Time,
}

/// A cell that waits.
struct Cell {
    key: u64,
    came: Time,
    /// When it was to leave by the strategy alone, and at the quantum next to that.
    target: Time,
    due: Time,
    /// Its number among all.
    count: u64,
}

/// How long cells of one strategy waited.
#[derive(Default)]
struct Waited {
    cells: u64,
    /// Cells that waited for their line, too, or for a relay that stood still.
    excused: u64,
    /// Of the others, nanoseconds in all, and how much later they left than their strategy says,
    /// before that is rounded to quanta.
    sum_ns: u64,
    late_ns: Vec<f64>,
}

impl Waited {
    fn note(&mut self, cell: &Cell, left: Option<Time>) {
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

    fn mixed(&self, strategy: Strategy) -> Mixed {
        let cells = self.cells - self.excused;
        Mixed {
            strategy: strategy.to_string(),
            cells,
            excused: self.excused,
            mean_ms: self.sum_ns as f64 / cells.max(1) as f64 / 1e6,
            law_ms: mean_ms(strategy),
            late_p99_ms: quantile(&self.late_ns, 0.99) / 1e6,
        }
    }
}

/// What was seen of mixed cells.
pub(crate) struct Mixes {
    routers: Vec<Address>,
    seen: Vec<Seen>,
    /// Packets that hosts opened, by flow and number, and when.
    pub(crate) opened: Vec<(u32, u32, Time)>,
    /// Keys of layers by number, and those of which nobody was asked yet.
    keys: BTreeMap<u64, Option<Waits>>,
    unknown: BTreeMap<u64, [u8; 32]>,
    waiting: BTreeMap<(usize, Mark), Cell>,
    /// What leaves in the present quantum of a relay, by the key of the link.
    together: BTreeMap<(usize, u64), (Time, Vec<u64>)>,
    /// By strategy: how probable shorter delays were.
    samples: BTreeMap<Strategy, Vec<f64>>,
    waits: BTreeMap<Strategy, Waited>,
    turns: Turns,
    count: u64,
    /// Mixed cells that left.
    pub(crate) left: u64,
    /// Whether all circuits are mixed by all relays.
    mix_all: bool,
    broken: Option<(&'static str, String)>,
}

impl Mixes {
    pub(crate) fn new(routers: &[Address], mix_all: bool) -> Mixes {
        Mixes {
            routers: routers.to_vec(),
            seen: Vec::new(),
            opened: Vec::new(),
            keys: BTreeMap::new(),
            unknown: BTreeMap::new(),
            waiting: BTreeMap::new(),
            together: BTreeMap::new(),
            samples: BTreeMap::new(),
            waits: BTreeMap::new(),
            turns: Turns::default(),
            count: 0,
            left: 0,
            mix_all,
            broken: None,
        }
    }

    /// A node opened or sealed something of two hosts or of a circuit, under a key and its number:
    /// `body` stands as the next node gets it.
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
        self.seen.push(Seen::Works { key, number, came, flag: body[0], body: body_part });
    }

    /// A node opened what another host sealed for it, which came over a circuit.
    pub(crate) fn opens(&mut self, (node, at): (usize, Time), plaintext: &[u8]) {
        if node >= self.routers.len()
            && let Some((flow, number)) = streams::label(plaintext)
        {
            self.opened.push((flow, number, at));
        }
    }

    /// A node seals a link plaintext under the key of a link.
    pub(crate) fn leaves(&mut self, (node, at): (usize, Time), link: u64, plaintext: &[u8]) {
        let Some(me) = self.routers.get(node) else { return };
        let (head, cell) = plaintext.split_at(link::CELL_AT - link::KIND_AT);
        let header = RoutedHeader::parse(&head[link::ROUTED_AT - link::KIND_AT..]);
        let is_own = header.is_ok_and(|header| header.src() == *me);
        if head[0] == LinkKind::Leg as u8 && cell.len() == CELL_LEN && is_own {
            let mark = cell[MARK_AT..MARK_AT + 16].try_into().expect("sixteen bytes");
            self.seen.push(Seen::Leaves { link, mark, at });
        }
    }

    /// Keys of layers that a relay must be asked about before [`Mixes::settle`].
    pub(crate) fn unknown(&mut self) -> BTreeMap<u64, [u8; 32]> {
        core::mem::take(&mut self.unknown)
    }

    /// What a relay says of the key of this number.
    pub(crate) fn learn(&mut self, key: u64, waits: Option<Waits>) {
        self.keys.insert(key, waits.filter(|waits| waits.strategy.holds()));
    }

    /// Compares what a relay did in its last step with what it should have done.
    pub(crate) fn settle(&mut self, node: usize, excuse: Excuse) {
        for seen in core::mem::take(&mut self.seen) {
            match seen {
                Seen::Works { key, number, came, flag, body } => {
                    self.enter(node, (key, number), came, flag, &body);
                }
                Seen::Leaves { link, mark, at } => match self.waiting.remove(&(node, mark)) {
                    Some(cell) => self.leave(node, link, at, &cell, excuse),
                    None if self.mix_all => self.set_up(node, at, excuse),
                    None => {}
                },
            }
        }
    }

    fn enter(&mut self, node: usize, of: (u64, u64), came: Time, flag: u8, body: &[u8]) {
        let (key, number) = of;
        let Some(Some(waits)) = self.keys.get(&key) else { return };
        // A control cell forward that is for this relay itself ends here.
        if waits.way == (0, 1) && flag == Flag::Yours as u8 {
            return;
        }
        let at = MARK_AT - waits.start - BODY.start;
        let mark: Mark = body[at..at + 16].try_into().expect("sixteen bytes");
        let (target, due) = due(waits, came, number);
        self.count += 1;
        let cell = Cell { key, came, target, due, count: self.count };
        self.waiting.insert((node, mark), cell);
    }

    /// A cell leaves that no layer covers: it sets a circuit up. When it came is not known; but it
    /// leaves at the end of a quantum, as all do.
    fn set_up(&mut self, node: usize, at: Time, excuse: Excuse) {
        let beyond = Duration::from_nanos(at.0 % QUANTUM.as_nanos() as u64);
        if beyond > CLOCK && !excuse.busy && at != excuse.resumed {
            let seen = format!("node {node}: a set-up cell left {beyond:?} behind a quantum");
            self.broken.get_or_insert((TIMES, seen));
        }
    }

    /// A cell leaves: the link seals it.
    fn leave(&mut self, node: usize, link: u64, at: Time, cell: &Cell, excuse: Excuse) {
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

    /// Notes how probable a shorter wait was. Waits end at quanta: of those that end at one, one is
    /// picked.
    fn sample(&mut self, cell: &Cell, at: Time) {
        let Some(Some(waits)) = self.keys.get(&cell.key) else { return };
        let Strategy::StopAndGo { mean, most } = waits.strategy else { return };
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

    /// Notes which cells leave in one quantum over one link, and in which order.
    fn note_turn(&mut self, node: usize, link: u64, cell: &Cell) {
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

    /// Forgets what a relay had that crashed.
    pub(crate) fn crash(&mut self, node: usize) {
        self.waiting.retain(|at, _| at.0 != node);
        self.together.retain(|at, _| at.0 != node);
    }

    /// Forgets cells of a relay that will not leave any more.
    pub(crate) fn forget_lost(&mut self, node: usize, now: Time) {
        self.waiting.retain(|at, cell| at.0 != node || cell.due + FORGET > now);
    }

    /// How long cells waited, by strategy.
    pub(crate) fn mixed(&self) -> Vec<Mixed> {
        self.waits.iter().map(|(strategy, waited)| waited.mixed(*strategy)).collect()
    }

    /// What is wrong, if anything is: the rule, and what was seen.
    pub(crate) fn broken(&self) -> Option<(&'static str, String)> {
        self.broken.clone()
    }

    /// Looks at all that left in the run.
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

/// What a cell waits for in the mean, in milliseconds: if it comes at any time, or by the
/// exponential law without what is above its longest time.
fn mean_ms(strategy: Strategy) -> f64 {
    let ms = |time: MixTime| time.duration().as_secs_f64() * 1e3;
    match strategy {
        Strategy::Pass => 0.0,
        Strategy::Timed { every } => ms(every) / 2.0,
        Strategy::StopAndGo { mean, most } => ms(mean) - ms(most) / (ms(most) / ms(mean)).exp_m1(),
    }
}

/// When a cell is to leave that came then: the time that its strategy gives, and the quantum next
/// to that, or the first that there is.
fn due(waits: &Waits, came: Time, number: u64) -> (Time, Time) {
    let quantum = QUANTUM.as_nanos() as u64;
    let (target, first) = match waits.strategy {
        Strategy::Pass => return (came, came),
        Strategy::Timed { every } => {
            let every = every.duration().as_nanos() as u64;
            ((came.0 / every + 1) * every, came.0 + 1)
        }
        Strategy::StopAndGo { .. } => {
            let delay = waits.delays.delay(waits.way.0, waits.way.1, number);
            (came.0 + delay.as_nanos() as u64, came.0)
        }
    };
    let near = (target + quantum / 2) / quantum * quantum;
    (Time(target), Time(near.max(first.div_ceil(quantum) * quantum)))
}
