//! A timer wheel: the cells that leave in each quantum.

use crate::slots::{CellSlab, NONE};

/// Quanta in the wheel: 1,024 ms. No mix delays a cell for longer than a second.
pub(crate) const QUANTA: usize = 4_096;

/// Lists of slots by the quantum in which they leave.
pub(crate) struct Wheel {
    /// The slot added last to each list, by quantum modulo [`QUANTA`]. Empty until the first cell
    /// comes.
    last: Vec<u32>,
    /// One bit per list, set if the list is not empty.
    occupied: [u64; QUANTA / 64],
    /// The first quantum whose list is not empty.
    first: Option<u64>,
}

impl Default for Wheel {
    fn default() -> Wheel {
        Wheel { last: Vec::new(), occupied: [0; QUANTA / 64], first: None }
    }
}

impl Wheel {
    /// The first quantum in which a cell leaves.
    pub(crate) fn first(&self) -> Option<u64> {
        self.first
    }

    /// Adds a slot to the list of a quantum. All quanta in the wheel must lie within [`QUANTA`] of
    /// each other.
    pub(crate) fn push(&mut self, quantum: u64, slot: u32, slots: &mut CellSlab) {
        if self.last.is_empty() {
            self.last.resize(QUANTA, NONE);
        }
        debug_assert!(self.first.is_none_or(|first| quantum < first + QUANTA as u64));
        let at = quantum as usize % QUANTA;
        slots.get_mut(slot).next = core::mem::replace(&mut self.last[at], slot);
        self.occupied[at / 64] |= 1 << (at % 64);
        self.first = Some(self.first.map_or(quantum, |first| first.min(quantum)));
    }

    /// Takes the list of the first quantum: the slot added last, which links to the slots added
    /// before.
    pub(crate) fn take_first(&mut self) -> Option<(u64, u32)> {
        let quantum = self.first?;
        let at = quantum as usize % QUANTA;
        self.occupied[at / 64] &= !(1 << (at % 64));
        self.first = self.after(at).map(|distance| quantum + distance as u64);
        Some((quantum, core::mem::replace(&mut self.last[at], NONE)))
    }

    /// Distance from list `at` to the next list that is not empty, in quanta.
    fn after(&self, at: usize) -> Option<usize> {
        let words = self.occupied.len();
        // Looks at the word of `at` twice: first at the bits from `at` on, last at the whole word.
        let behind = self.occupied[at / 64] & (!0 << (at % 64));
        let words = (0..=words).map(|i| match i {
            0 => (at / 64, behind),
            i => ((at / 64 + i) % words, self.occupied[(at / 64 + i) % words]),
        });
        let (word, bits) = words.into_iter().find(|(_, bits)| *bits != 0)?;
        let next = word * 64 + bits.trailing_zeros() as usize;
        Some((next + QUANTA - at) % QUANTA)
    }

    /// Takes all lists: each quantum with the slot added last.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (u64, u32)> + '_ {
        core::iter::from_fn(|| self.take_first())
    }
}
