//! Which cells leave in which quantum.

use crate::slots::{NONE, Slots};

/// Quanta that the wheel tells apart: 1,024 ms. No mix keeps a cell for longer than a second.
pub(crate) const QUANTA: usize = 4_096;

/// Lists of slots by the quantum in which they leave.
pub(crate) struct Wheel {
    /// By quantum, modulo [`QUANTA`]: the slot that came last. Empty until the first one comes.
    last: Vec<u32>,
    /// A bit for each list that is not empty.
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
    /// The first quantum in which something leaves.
    pub(crate) fn first(&self) -> Option<u64> {
        self.first
    }

    /// Adds a slot to the list of a quantum. All quanta in the wheel lie within [`QUANTA`] of each
    /// other.
    pub(crate) fn push(&mut self, quantum: u64, slot: u32, slots: &mut Slots) {
        if self.last.is_empty() {
            self.last.resize(QUANTA, NONE);
        }
        debug_assert!(self.first.is_none_or(|first| quantum < first + QUANTA as u64));
        let at = quantum as usize % QUANTA;
        slots.get_mut(slot).next = core::mem::replace(&mut self.last[at], slot);
        self.occupied[at / 64] |= 1 << (at % 64);
        self.first = Some(self.first.map_or(quantum, |first| first.min(quantum)));
    }

    /// Takes the list of the first quantum: the slot that came last, from which the others follow.
    pub(crate) fn take_first(&mut self) -> Option<(u64, u32)> {
        let quantum = self.first?;
        let at = quantum as usize % QUANTA;
        self.occupied[at / 64] &= !(1 << (at % 64));
        self.first = self.after(at).map(|distance| quantum + distance as u64);
        Some((quantum, core::mem::replace(&mut self.last[at], NONE)))
    }

    /// How far behind a list the next one is that is not empty.
    fn after(&self, at: usize) -> Option<usize> {
        let words = self.occupied.len();
        // The word of `at` is looked at twice: what stands behind it, and in the end all of it.
        let behind = self.occupied[at / 64] & (!0 << (at % 64));
        let words = (0..=words).map(|i| match i {
            0 => (at / 64, behind),
            i => ((at / 64 + i) % words, self.occupied[(at / 64 + i) % words]),
        });
        let (word, bits) = words.into_iter().find(|(_, bits)| *bits != 0)?;
        let next = word * 64 + bits.trailing_zeros() as usize;
        Some((next + QUANTA - at) % QUANTA)
    }

    /// All lists: their quanta, and the slots that came last.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (u64, u32)> + '_ {
        core::iter::from_fn(|| self.take_first())
    }
}
