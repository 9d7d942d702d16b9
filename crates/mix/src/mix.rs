//! The pool of one worker: cells that wait for their time.
//!
//! All links of the worker share it. A uniform permutation of what leaves in a quantum is one of
//! each link's part, and one wheel needs one timer.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_crypto::{Flaw, Rng};
use shoal_wire::{Address, DropReason, LinkId, SizeClass, Time};

use crate::law::QUANTUM_NS;
use crate::slots::{Held, NONE, Slots};
use crate::wheel::{QUANTA, Wheel};

/// How many cells may wait; one more is dropped as `mix_full`. Each takes the room of a full frame,
/// 1,440 bytes, while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For one link. A quarter of it is what may wait of one node's mixed cells, for all links
    /// together: 5,000, while 1 Gbit/s for 50 ms brings 4,217 in the mean.
    pub per_link: usize,
    /// For all links.
    pub in_all: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { per_link: 20_000, in_all: 40_000 }
    }
}

/// Cells that left later than this after the beginning of their quantum are counted, for each of
/// these times. Where a worker was away for several quanta, all count from the first one's.
pub const LATE: [Duration; 3] =
    [Duration::from_micros(500), Duration::from_millis(2), Duration::from_millis(10)];

/// What waits for one link.
#[derive(Clone, Copy, Default)]
struct Waiting {
    cells: usize,
    /// Of them, those that leave in the order in which they came.
    in_order: usize,
    /// The quantum of the last of these.
    last: u64,
}

/// A cell whose time has come. They leave by link, then in the order that was drawn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Leaving {
    link: LinkId,
    turn: u32,
    slot: u32,
}

/// Cells that wait, unsealed.
pub struct Mix {
    limits: Limits,
    rng: Rng,
    flaw: Option<Flaw>,
    slots: Slots,
    wheel: Wheel,
    links: BTreeMap<LinkId, Waiting>,
    /// Mixed cells that wait, by the node that sent them here.
    from: BTreeMap<Address, usize>,
    /// What leaves now, and how much of it is gone.
    leaving: Vec<Leaving>,
    left: usize,
    /// The first quantum of what leaves now.
    opened: u64,
    late: [u64; LATE.len()],
    /// Memory that every quantum uses again.
    slot_list: Vec<u32>,
}

impl Mix {
    /// An empty pool. The order in which cells leave follows from the seed, which must be secret.
    pub fn new(limits: Limits, seed: [u8; 32]) -> Mix {
        Mix::flawed(limits, seed, None)
    }

    /// An empty pool of a simulation, which does something wrong on purpose.
    #[doc(hidden)]
    pub fn flawed(limits: Limits, seed: [u8; 32], flaw: Option<Flaw>) -> Mix {
        Mix {
            limits,
            rng: Rng::new(seed),
            flaw,
            slots: Slots::default(),
            wheel: Wheel::default(),
            links: BTreeMap::new(),
            from: BTreeMap::new(),
            leaving: Vec::new(),
            left: 0,
            opened: 0,
            late: [0; LATE.len()],
            slot_list: Vec::new(),
        }
    }

    /// Copies one unsealed cell for a link into the pool. It leaves in the first quantum that does
    /// not lie before `due`, at a random place among those of its quantum; a time that lies more
    /// than a second ahead counts as one second ahead. `from` is the node that sent it here.
    ///
    /// # Errors
    ///
    /// `mix_full`, and the cell is forgotten.
    pub fn admit(
        &mut self,
        now: Time,
        due: Time,
        from: Address,
        link: LinkId,
        class: SizeClass,
        cell: &[u8],
    ) -> Result<(), DropReason> {
        let of_sender = self.from.get(&from).copied().unwrap_or(0);
        let mut quantum = due.0.div_ceil(QUANTUM_NS);
        let has_share = of_sender < self.share() || self.flaw == Some(Flaw::MixNoShare);
        if !has_share || self.is_full(link) {
            if self.flaw != Some(Flaw::MixOverflows) {
                return Err(DropReason::MixFull);
            }
            quantum = 0;
        }
        quantum += u64::from(self.flaw == Some(Flaw::MixLate));
        self.from.insert(from, of_sender + 1);
        self.links.entry(link).or_default().cells += 1;
        let held = self.store(now, quantum, cell);
        (held.link, held.from, held.class) = (link, Some(from), class);
        Ok(())
    }

    /// Copies one unsealed cell for a link into the pool. It leaves as [`Mix::admit`] says, but
    /// behind all that was queued for the link before.
    ///
    /// # Errors
    ///
    /// `mix_full`, and the cell is forgotten.
    pub fn queue(
        &mut self,
        now: Time,
        due: Time,
        link: LinkId,
        class: SizeClass,
        cell: &[u8],
    ) -> Result<(), DropReason> {
        if self.is_full(link) {
            return Err(DropReason::MixFull);
        }
        let waiting = self.links.entry(link).or_default();
        waiting.cells += 1;
        waiting.in_order += 1;
        waiting.last = waiting.last.max(due.0.div_ceil(QUANTUM_NS));
        let quantum = waiting.last;
        let held = self.store(now, quantum, cell);
        (held.link, held.from, held.class) = (link, None, class);
        Ok(())
    }

    /// How many cells of one node may wait.
    fn share(&self) -> usize {
        self.limits.per_link / 4
    }

    fn is_full(&self, link: LinkId) -> bool {
        self.slots.used() >= self.limits.in_all || self.held(link) >= self.limits.per_link
    }

    fn store(&mut self, now: Time, quantum: u64, cell: &[u8]) -> &mut Held {
        let now = now.0 / QUANTUM_NS;
        // A worker that was away for long finds quanta in the wheel whose time is over.
        while self.wheel.first().is_some_and(|first| first < now) {
            self.open_quantum();
        }
        let quantum = quantum.clamp(now, now + QUANTA as u64 - 1);
        let slot = self.slots.store(cell);
        self.wheel.push(quantum, slot, &mut self.slots);
        self.slots.get_mut(slot)
    }

    /// When the next cell is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        let open = || Some(Time(self.wheel.first()?.saturating_mul(QUANTUM_NS)));
        if self.left < self.leaving.len() { Some(Time::ZERO) } else { open() }
    }

    /// Moves the next due cells of one link and class into `buf`, at most `max`, as many as fit.
    /// Returns their link, number and class; cell `i` starts at `i * class.frame_len()`. Call until
    /// None.
    pub fn release(
        &mut self,
        now: Time,
        buf: &mut [u8],
        max: usize,
    ) -> Option<(LinkId, usize, SizeClass)> {
        if self.left == self.leaving.len() {
            let early = u64::from(self.flaw == Some(Flaw::MixEarly));
            self.wheel.first().filter(|first| *first <= now.0 / QUANTUM_NS + early)?;
            self.open_quantum();
        }
        let first = self.leaving[self.left];
        let (link, class) = (first.link, self.slots.get(first.slot).class);
        let mut count = 0;
        for cell in buf.chunks_exact_mut(class.frame_len()).take(max) {
            let next = self.leaving.get(self.left).filter(|next| next.link == link);
            let Some(next) = next.filter(|next| self.slots.get(next.slot).class == class) else {
                break;
            };
            let slot = next.slot;
            self.slots.copy(slot, cell);
            self.forget_slot(slot);
            self.left += 1;
            count += 1;
        }
        let late = now.since(Time(self.opened.saturating_mul(QUANTUM_NS)));
        for (sum, limit) in self.late.iter_mut().zip(LATE) {
            *sum += if late > limit { count as u64 } else { 0 };
        }
        Some((link, count, class))
    }

    /// Puts what leaves in the first quantum of the wheel behind what leaves already, in an order
    /// that is drawn at random.
    fn open_quantum(&mut self) {
        let Some((quantum, last)) = self.wheel.take_first() else { return };
        if self.left == self.leaving.len() {
            self.leaving.clear();
            (self.left, self.opened) = (0, quantum);
        }
        let mut list = core::mem::take(&mut self.slot_list);
        list.clear();
        list.extend(walk(&self.slots, last));
        list.reverse();
        let is_mixed = |slot: &u32| self.slots.get(*slot).from.is_some();
        // What keeps its order leaves first.
        let in_order = list.iter().filter(|slot| !is_mixed(slot)).count();
        if in_order > 0 {
            list.sort_by_key(is_mixed);
        }
        match self.flaw {
            Some(Flaw::MixInOrder) => {}
            Some(Flaw::MixMoves) => derange(&mut self.rng, &mut list[in_order..]),
            _ => shuffle(&mut self.rng, &mut list[in_order..]),
        }
        let start = self.leaving.len();
        let leaving = (0..).zip(&list);
        self.leaving.extend(leaving.map(|(turn, &slot)| {
            let link = self.slots.get(slot).link;
            Leaving { link, turn, slot }
        }));
        self.leaving[start..].sort_unstable();
        self.slot_list = list;
    }

    /// Frees a slot, and the place that its cell had.
    fn forget_slot(&mut self, slot: u32) {
        let Held { link, from, .. } = *self.slots.get(slot);
        if let Some(waiting) = self.links.get_mut(&link) {
            waiting.cells -= 1;
            waiting.in_order -= usize::from(from.is_none());
            if waiting.cells == 0 {
                self.links.remove(&link);
            }
        }
        if let Some(from) = from
            && let Some(cells) = self.from.get_mut(&from)
        {
            *cells -= 1;
            if *cells == 0 {
                self.from.remove(&from);
            }
        }
        self.slots.free(slot);
    }

    /// Forgets the cells of links that are gone; returns how many they were.
    pub fn forget(&mut self, is_there: impl Fn(LinkId) -> bool) -> u64 {
        if self.links.keys().all(|&link| is_there(link)) {
            return 0;
        }
        let before = self.slots.used();
        let leaving = self.leaving.split_off(self.left);
        let lists: Vec<(u64, u32)> = self.wheel.drain().collect();
        (self.leaving, self.left) = (Vec::new(), 0);
        for next in leaving {
            match is_there(next.link) {
                true => self.leaving.push(next),
                false => self.forget_slot(next.slot),
            }
        }
        for (quantum, last) in lists {
            let mut list: Vec<u32> = walk(&self.slots, last).collect();
            list.reverse();
            for slot in list {
                match is_there(self.slots.get(slot).link) {
                    true => self.wheel.push(quantum, slot, &mut self.slots),
                    false => self.forget_slot(slot),
                }
            }
        }
        (before - self.slots.used()) as u64
    }

    /// Gives back all memory if no cell waits.
    pub fn rest(&mut self) {
        if self.is_empty() {
            (self.slots, self.wheel) = Default::default();
            (self.leaving, self.left, self.slot_list) = Default::default();
        }
    }

    /// Takes the numbers of cells that left late since this was asked last: later than each of
    /// [`LATE`].
    pub fn take_late(&mut self) -> [u64; LATE.len()] {
        core::mem::take(&mut self.late)
    }

    /// Cells that wait for a link.
    pub fn held(&self, link: LinkId) -> usize {
        self.links.get(&link).map_or(0, |waiting| waiting.cells)
    }

    /// Whether cells wait for a link that leave in the order in which they came.
    pub fn is_queued(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|waiting| waiting.in_order > 0)
    }

    /// Mixed cells that wait of the node of which most do, and how many may.
    pub fn largest_share(&self) -> (usize, usize) {
        (self.from.values().copied().max().unwrap_or(0), self.share())
    }

    /// Cells that wait.
    pub fn len(&self) -> usize {
        self.slots.used()
    }

    /// True when none waits.
    pub fn is_empty(&self) -> bool {
        self.slots.used() == 0
    }

    /// Bytes of memory that cells take or have taken, until [`Mix::rest`].
    pub fn bytes(&self) -> usize {
        self.slots.bytes()
    }
}

/// The slots of a list, from the one that came last.
fn walk(slots: &Slots, last: u32) -> impl Iterator<Item = u32> + '_ {
    let next = |slot: &u32| Some(slots.get(*slot).next).filter(|next| *next != NONE);
    core::iter::successors(Some(last), next)
}

/// What a shuffle becomes that is off by one: nothing stays in its place (Sattolo).
fn derange(rng: &mut Rng, list: &mut [u32]) {
    for i in (1..list.len()).rev() {
        list.swap(i, rng.below(i as u64) as usize);
    }
}

/// Permutes uniformly (Fisher and Yates).
fn shuffle(rng: &mut Rng, list: &mut [u32]) {
    for i in (1..list.len()).rev() {
        list.swap(i, rng.below(i as u64 + 1) as usize);
    }
}
