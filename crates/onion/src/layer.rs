//! Layers: what the origin of a circuit shares with one hop.
//!
//! ```text
//!             10                     tag_at(place)      next tag places
//! data:       |<------- sealed ------>| tag  | filler of the hop |
//! control:    |f|<----- sealed ------>| tag  | filler of the hop |
//!             f: flags of the hops before, filler
//! ```
//!
//! Each hop opens (forward) or seals (backward) its part in place, so that no byte of a cell stays
//! what it was, and nothing moves.

use core::ops::Range;

use shoal_crypto::{Aead, MaskKey, Secret, Suite, kdf};
use shoal_session::noise::Split;
use shoal_wire::leg::{BODY_AT, CELL_LEN, Shape};
use shoal_wire::{DropReason, TAG_LEN};

use crate::leg::{Direction, Lane};

/// The secrets of one layer; keys are expanded from them.
pub(crate) struct LayerSecrets {
    suite: Suite,
    forth: Secret<32>,
    back: Secret<32>,
}

impl LayerSecrets {
    pub(crate) fn new(suite: Suite, split: &Split) -> LayerSecrets {
        LayerSecrets { suite, forth: split.forth.clone(), back: split.back.clone() }
    }

    /// What the leg to the hop behind this one is protected with.
    pub(crate) fn next_leg(&self) -> Secret<32> {
        Secret::new(kdf(self.forth.expose(), "shoal v1 next leg", &[self.back.expose()]))
    }

    fn key<A: Aead>(&self, direction: Direction, lane: Lane) -> A {
        let base = match direction {
            Direction::Forward => &self.forth,
            Direction::Backward => &self.back,
        };
        let about = [self.suite as u8, direction as u8, lane as u8];
        A::new(
            self.suite,
            &Secret::new(kdf(base.expose(), "shoal v1 layer", &[&about])).expose()[..]
                .try_into()
                .expect("32 bytes"),
        )
    }

    /// Expands the keys for a hop at `place`.
    pub(crate) fn expand<A: Aead>(&self, shape: Shape, place: u8) -> Layer<A> {
        let keys =
            |direction| [self.key(direction, Lane::Data), self.key(direction, Lane::Control)];
        Layer { shape, place, forth: keys(Direction::Forward), back: keys(Direction::Backward) }
    }
}

/// One layer, expanded: its AEAD keys by direction and lane.
pub(crate) struct Layer<A> {
    shape: Shape,
    place: u8,
    forth: [A; 2],
    back: [A; 2],
}

impl<A: Aead> Layer<A> {
    pub(crate) fn place(&self) -> u8 {
        self.place
    }

    fn key(&self, direction: Direction, lane: Lane) -> &A {
        match direction {
            Direction::Forward => &self.forth[lane as usize],
            Direction::Backward => &self.back[lane as usize],
        }
    }

    /// Where the sealed part starts.
    fn start(&self, lane: Lane) -> usize {
        match lane {
            Lane::Data => BODY_AT,
            Lane::Control => self.shape.flag_at(self.place),
        }
    }

    /// Seals the layer's part of a cell and writes its tag.
    pub(crate) fn seal(&self, direction: Direction, lane: Lane, counter: u64, cell: &mut [u8]) {
        let end = self.shape.tag_at(self.place);
        let (body, rest) = cell[self.start(lane)..].split_at_mut(end - self.start(lane));
        let tag = (&mut rest[..TAG_LEN]).try_into().expect("tags have places of their own");
        self.key(direction, lane).seal(counter, &[], body, tag);
    }

    /// Opens the layer's part of a cell.
    ///
    /// # Errors
    ///
    /// `bad_layer`; the cell is of no use then.
    pub(crate) fn open(
        &self,
        direction: Direction,
        lane: Lane,
        counter: u64,
        cell: &mut [u8],
    ) -> Result<(), DropReason> {
        let end = self.shape.tag_at(self.place) + TAG_LEN;
        let part = &mut cell[self.start(lane)..end];
        let opened = self.key(direction, lane).open(counter, &[], part);
        opened.map_err(|_| DropReason::BadLayer)
    }

    /// The control cell's byte for this hop.
    pub(crate) fn flag_at(&self) -> usize {
        self.shape.flag_at(self.place)
    }

    /// Where a control message of this hop stands.
    pub(crate) fn message_range(&self) -> Range<usize> {
        self.flag_at() + 1..self.shape.tag_at(self.place)
    }

    /// Overwrites what the next node must not read: the tag that was opened and all behind it, and
    /// in a control cell the flags up to this hop's.
    pub(crate) fn fill_opened(
        &self,
        filler: &Filler,
        lane: Lane,
        buf: &mut [u8],
        cells: &[(u32, u64)],
        blocks: &mut Vec<[u8; 16]>,
    ) {
        let about = (Direction::Forward, lane);
        if lane == Lane::Control {
            filler.fill(about, 0, BODY_AT..self.flag_at() + 1, buf, cells, blocks);
        }
        filler.fill(about, 1, self.shape.tag_at(self.place)..CELL_LEN, buf, cells, blocks);
    }

    /// Overwrites what this hop does not seal: tag places behind its own, and in a control cell the
    /// flags of hops before it.
    pub(crate) fn fill_sealed(
        &self,
        filler: &Filler,
        lane: Lane,
        buf: &mut [u8],
        cells: &[(u32, u64)],
        blocks: &mut Vec<[u8; 16]>,
    ) {
        let about = (Direction::Backward, lane);
        if lane == Lane::Control {
            filler.fill(about, 0, BODY_AT..self.flag_at(), buf, cells, blocks);
        }
        let behind = self.shape.tag_at(self.place) + TAG_LEN;
        filler.fill(about, 1, behind..CELL_LEN, buf, cells, blocks);
    }
}

/// A hop's own source of bytes that mean nothing, under a key that nobody else has.
pub(crate) struct Filler(MaskKey);

impl Filler {
    pub(crate) fn new(key: &Secret<32>) -> Filler {
        Filler(MaskKey::new(key.expose()))
    }

    /// Fills `range` of each cell, which is part `part` of it. Each cell and part has bytes of its
    /// own.
    pub(crate) fn fill(
        &self,
        (direction, lane): (Direction, Lane),
        part: u8,
        range: Range<usize>,
        buf: &mut [u8],
        cells: &[(u32, u64)],
        blocks: &mut Vec<[u8; 16]>,
    ) {
        let count = range.len().div_ceil(16);
        blocks.clear();
        for &(_, number) in cells {
            blocks.extend((0..count).map(|at| {
                let mut block = [0; 16];
                block[..4].copy_from_slice(&[direction as u8, lane as u8, part, at as u8]);
                block[8..].copy_from_slice(&number.to_be_bytes());
                block
            }));
        }
        self.0.mask_batch(blocks);
        for (&(start, _), filled) in cells.iter().zip(blocks.chunks_exact(count.max(1))) {
            let start = start as usize;
            buf[start + range.start..start + range.end]
                .copy_from_slice(&filled.as_flattened()[..range.len()]);
        }
    }
}
