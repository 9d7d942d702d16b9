//! The pool of one worker: cells that wait for their departure time.
//!
//! All links of the worker share one pool. A uniform permutation of a quantum's cells also permutes
//! each link's cells uniformly, and one wheel needs only one timer.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_crypto::{PlantedFault, Rng};
use shoal_wire::{Address, DropReason, LinkId, SizeClass, Time};

use crate::law::QUANTUM_NS;
use crate::slots::{CellSlab, CellSlot, NONE};
use crate::wheel::{QUANTA, Wheel};

/// Maximum numbers of waiting cells. A cell beyond them is dropped as `mix_full`. Each waiting cell
/// takes 1,440 bytes, the length of a full frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixLimits {
    /// Maximum for one link. The mixed cells that came from one node may take a quarter of it,
    /// counted over all links: 5,000. A 50 ms mix at 1 Gbit/s holds 4,217 cells on average.
    pub per_link: usize,
    /// Maximum for all links together.
    pub in_all: usize,
}

impl Default for MixLimits {
    fn default() -> MixLimits {
        MixLimits { per_link: 20_000, in_all: 40_000 }
    }
}

/// Lateness limits. A counter for each limit counts the cells that leave later than this after the
/// start of their quantum. If a worker was suspended for several quanta, the start of the first one
/// counts for all.
pub const LATE: [Duration; 3] =
    [Duration::from_micros(500), Duration::from_millis(2), Duration::from_millis(10)];

/// Counts of the cells that wait for one link.
#[derive(Clone, Copy, Default)]
struct LinkOccupancy {
    cells: usize,
    /// Number of these cells that leave in order of arrival.
    in_order: usize,
    /// The quantum of the last cell that leaves in order.
    last: u64,
}

/// A cell whose time has come. The order of departure is by link, then random.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct DueCell {
    link: LinkId,
    turn: u32,
    slot: u32,
}

/// A pool of waiting, unsealed cells.
pub struct MixPool {
    limits: MixLimits,
    rng: Rng,
    flaw: Option<PlantedFault>,
    slots: CellSlab,
    wheel: Wheel,
    links: BTreeMap<LinkId, LinkOccupancy>,
    /// Number of waiting mixed cells from each node.
    from: BTreeMap<Address, usize>,
    /// Cells that leave in this quantum. The first `left` of them are gone.
    leaving: Vec<DueCell>,
    left: usize,
    /// The first quantum of the cells in `leaving`.
    opened: u64,
    late: [u64; LATE.len()],
    /// Scratch memory, used again in every quantum.
    slot_list: Vec<u32>,
}

impl MixPool {
    /// An empty pool. The seed determines the order in which cells leave and must be secret.
    pub fn new(limits: MixLimits, seed: [u8; 32]) -> MixPool {
        MixPool::flawed(limits, seed, None)
    }

    /// An empty pool with a deliberate flaw, for the simulator.
    #[doc(hidden)]
    pub fn flawed(limits: MixLimits, seed: [u8; 32], flaw: Option<PlantedFault>) -> MixPool {
        MixPool {
            limits,
            rng: Rng::new(seed),
            flaw,
            slots: CellSlab::default(),
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

    /// Copies an unsealed cell for a link into the pool.
    ///
    /// The cell leaves in the first quantum that begins at `due` or later, at a random position
    /// among the cells of that quantum. A `due` more than a second ahead counts as one second
    /// ahead. `from` is the node that sent the cell here.
    ///
    /// # Errors
    ///
    /// `mix_full`: the cell is dropped.
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
        let has_share = of_sender < self.share() || self.flaw == Some(PlantedFault::MixNoShare);
        if !has_share || self.is_full(link) {
            if self.flaw != Some(PlantedFault::MixOverflows) {
                return Err(DropReason::MixFull);
            }
            quantum = 0;
        }
        quantum += u64::from(self.flaw == Some(PlantedFault::MixLate));
        self.from.insert(from, of_sender + 1);
        self.links.entry(link).or_default().cells += 1;
        let held = self.store(now, quantum, cell);
        (held.link, held.from, held.class) = (link, Some(from), class);
        Ok(())
    }

    /// Copies an unsealed cell for a link into the pool.
    ///
    /// The cell leaves as [`MixPool::admit`] says, but after all cells queued for the link before
    /// it.
    ///
    /// # Errors
    ///
    /// `mix_full`: the cell is dropped.
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

    /// Maximum number of waiting cells from one node.
    fn share(&self) -> usize {
        self.limits.per_link / 4
    }

    fn is_full(&self, link: LinkId) -> bool {
        self.slots.used() >= self.limits.in_all || self.held(link) >= self.limits.per_link
    }

    fn store(&mut self, now: Time, quantum: u64, cell: &[u8]) -> &mut CellSlot {
        let now = now.0 / QUANTUM_NS;
        // After a long suspension, the wheel still contains quanta that are over.
        while self.wheel.first().is_some_and(|first| first < now) {
            self.open_quantum();
        }
        let quantum = quantum.clamp(now, now + QUANTA as u64 - 1);
        let slot = self.slots.store(cell);
        self.wheel.push(quantum, slot, &mut self.slots);
        self.slots.get_mut(slot)
    }

    /// Time at which the next cell is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        let open = || Some(Time(self.wheel.first()?.saturating_mul(QUANTUM_NS)));
        if self.left < self.leaving.len() { Some(Time::ZERO) } else { open() }
    }

    /// Moves the next due cells of one link and class into `buf`: at most `max`, as many as fit.
    ///
    /// Returns their link, number and class. Cell `i` starts at `i * class.frame_len()`. Call this
    /// until it returns None.
    pub fn release(
        &mut self,
        now: Time,
        buf: &mut [u8],
        max: usize,
    ) -> Option<(LinkId, usize, SizeClass)> {
        if self.left == self.leaving.len() {
            let early = u64::from(self.flaw == Some(PlantedFault::MixEarly));
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

    /// Appends the cells of the wheel's first quantum to the cells that leave, in random order.
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
        // Cells that must stay in order leave first.
        let in_order = list.iter().filter(|slot| !is_mixed(slot)).count();
        if in_order > 0 {
            list.sort_by_key(is_mixed);
        }
        match self.flaw {
            Some(PlantedFault::MixInOrder) => {}
            Some(PlantedFault::MixMoves) => derange(&mut self.rng, &mut list[in_order..]),
            _ => shuffle(&mut self.rng, &mut list[in_order..]),
        }
        let start = self.leaving.len();
        let leaving = (0..).zip(&list);
        self.leaving.extend(leaving.map(|(turn, &slot)| {
            let link = self.slots.get(slot).link;
            DueCell { link, turn, slot }
        }));
        self.leaving[start..].sort_unstable();
        self.slot_list = list;
    }

    /// Frees a slot and uncounts its cell.
    fn forget_slot(&mut self, slot: u32) {
        let CellSlot { link, from, .. } = *self.slots.get(slot);
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

    /// Drops the cells of links that no longer exist. Returns how many cells it dropped.
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

    /// Frees all memory if no cell waits.
    pub fn rest(&mut self) {
        if self.is_empty() {
            (self.slots, self.wheel) = Default::default();
            (self.leaving, self.left, self.slot_list) = Default::default();
        }
    }

    /// Takes the counts of late cells since the last call, one for each limit in [`LATE`].
    pub fn take_late(&mut self) -> [u64; LATE.len()] {
        core::mem::take(&mut self.late)
    }

    /// Number of cells that wait for a link.
    pub fn held(&self, link: LinkId) -> usize {
        self.links.get(&link).map_or(0, |waiting| waiting.cells)
    }

    /// True if cells that leave in order of arrival wait for a link.
    pub fn is_queued(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|waiting| waiting.in_order > 0)
    }

    /// The largest number of waiting mixed cells from one node, and the maximum.
    pub fn largest_share(&self) -> (usize, usize) {
        (self.from.values().copied().max().unwrap_or(0), self.share())
    }

    /// Number of waiting cells.
    pub fn len(&self) -> usize {
        self.slots.used()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.used() == 0
    }

    /// Bytes allocated for cells. They are freed by [`MixPool::rest`].
    pub fn bytes(&self) -> usize {
        self.slots.bytes()
    }
}

/// The slots of a list, beginning with the one added last.
fn walk(slots: &CellSlab, last: u32) -> impl Iterator<Item = u32> + '_ {
    let next = |slot: &u32| Some(slots.get(*slot).next).filter(|next| *next != NONE);
    core::iter::successors(Some(last), next)
}

/// A shuffle with an off-by-one error: no item stays at its position (Sattolo).
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
