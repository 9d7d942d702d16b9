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
use core::time::Duration;

use shoal_crypto::{Aead, Flaw, MaskKey, Secret, Suite, kdf};
use shoal_mix::Delays;
use shoal_session::noise::Split;
use shoal_wire::leg::{BODY_AT, CELL_LEN, Shape};
use shoal_wire::{DropReason, MixTime, Strategy, TAG_LEN, Time};

use crate::leg::{Direction, Lane, encrypt};

/// The secrets of one layer; keys are expanded from them.
#[derive(Clone)]
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

    fn key(&self, direction: Direction, lane: Lane) -> Secret<32> {
        let base = match direction {
            Direction::Forward => &self.forth,
            Direction::Backward => &self.back,
        };
        let about = [self.suite as u8, direction as u8, lane as u8];
        Secret::new(kdf(base.expose(), "shoal v1 layer", &[&about]))
    }

    /// How long cells wait at a hop with this strategy.
    fn delays(&self, strategy: Strategy) -> Delays {
        let key = kdf(self.forth.expose(), "shoal v1 mix", &[self.back.expose()]);
        Delays::new(strategy, Secret::new(key).expose())
    }

    /// The layer of a hop at `place`.
    pub(crate) fn layer<A: Aead>(&self, shape: Shape, place: u8) -> Layer<A> {
        Layer {
            shape,
            place,
            secrets: self.clone(),
            keys: Default::default(),
            strategy: Strategy::Pass,
            delays: None,
        }
    }
}

/// One layer. Its keys are expanded when they are used.
pub(crate) struct Layer<A> {
    shape: Shape,
    place: u8,
    secrets: LayerSecrets,
    /// By direction and lane.
    keys: [[Option<A>; 2]; 2],
    /// What the hop does with cells before they leave.
    strategy: Strategy,
    delays: Option<Box<Delays>>,
}

impl<A: Aead> Layer<A> {
    pub(crate) fn place(&self) -> u8 {
        self.place
    }

    fn key(&mut self, direction: Direction, lane: Lane) -> &A {
        let key = &mut self.keys[direction as usize][lane as usize];
        let secrets = &self.secrets;
        key.get_or_insert_with(|| A::new(secrets.suite, secrets.key(direction, lane).expose()))
    }

    /// The direction and lane in which the layer uses a key, if it is one of its own.
    pub(crate) fn use_of(&self, key: &[u8; 32]) -> Option<(Direction, Lane)> {
        let lanes = [Lane::Data, Lane::Control];
        let all =
            [Direction::Forward, Direction::Backward].map(|way| lanes.map(|lane| (way, lane)));
        let mut all = all.into_iter().flatten();
        all.find(|&(direction, lane)| self.secrets.key(direction, lane).expose() == key)
    }

    /// The same layer of a hop that delays cells.
    pub(crate) fn mixed(self, strategy: Strategy) -> Layer<A> {
        Layer { strategy, delays: None, ..self }
    }

    fn delays(&mut self) -> &mut Delays {
        let drawn = self.drawn();
        let Layer { secrets, delays, .. } = self;
        delays.get_or_insert_with(|| Box::new(secrets.delays(drawn)))
    }

    /// The strategy from which delays are drawn.
    fn drawn(&self) -> Strategy {
        match self.strategy {
            Strategy::StopAndGo { mean, most } if A::flaw() == Some(Flaw::MixHasty) => {
                let hasty = MixTime::from_units(mean.units() * 3 / 4);
                Strategy::StopAndGo { mean: hasty.unwrap_or(mean), most }
            }
            strategy => strategy,
        }
    }

    /// What the hop does with cells, and how long each waits.
    pub(crate) fn waits(&self) -> (Strategy, Delays) {
        (self.strategy, self.secrets.delays(self.drawn()))
    }

    /// When a cell that the hop worked on at `now` may leave it; none if it need not wait.
    pub(crate) fn due(
        &mut self,
        now: Time,
        direction: Direction,
        lane: Lane,
        number: u64,
    ) -> Option<Time> {
        let skips = A::flaw() == Some(Flaw::ControlUnmixed) && lane == Lane::Control;
        let holds = self.strategy.holds() && !skips;
        holds.then(|| self.delays().due(now, direction as u8, lane as u8, number))
    }

    /// Computes at once how long a run of cells waits for which [`Self::due`] is about to be asked.
    pub(crate) fn foresee(
        &mut self,
        direction: Direction,
        lane: Lane,
        numbers: &[Result<u64, DropReason>],
    ) {
        if self.strategy.holds() {
            let numbers = numbers.iter().flatten().copied();
            self.delays().foresee(direction as u8, lane as u8, numbers);
        }
    }

    /// How long it waits there: what the origin and the hop agree on. None of a hop whose delays
    /// depend on its clock.
    pub(crate) fn delay(
        &mut self,
        direction: Direction,
        lane: Lane,
        number: u64,
    ) -> Option<Duration> {
        match self.strategy {
            Strategy::Pass => Some(Duration::ZERO),
            Strategy::Timed { .. } => None,
            Strategy::StopAndGo { .. } => {
                Some(self.delays().delay(direction as u8, lane as u8, number))
            }
        }
    }

    /// Forgets the expanded keys.
    pub(crate) fn cool(&mut self) {
        self.keys = Default::default();
        self.delays = None;
    }

    /// What the leg to the hop behind this one is set up with.
    pub(crate) fn next_leg(&self) -> Secret<32> {
        self.secrets.next_leg()
    }

    fn is_left_open(&self) -> bool {
        A::flaw() == Some(Flaw::LayerOpen) && self.place == 1
    }

    /// Where the sealed part starts.
    pub(crate) fn start(&self, lane: Lane) -> usize {
        match lane {
            Lane::Data => BODY_AT,
            Lane::Control => self.shape.flag_at(self.place),
        }
    }

    /// Seals the layer's part of a cell and writes its tag.
    pub(crate) fn seal(&mut self, direction: Direction, lane: Lane, counter: u64, cell: &mut [u8]) {
        if self.is_left_open() {
            return;
        }
        let (start, end) = (self.start(lane), self.shape.tag_at(self.place));
        let (body, rest) = cell[start..].split_at_mut(end - start);
        let tag = (&mut rest[..TAG_LEN]).try_into().expect("tags have places of their own");
        self.key(direction, lane).seal(counter, &[], body, tag);
    }

    /// Opens the layer's part of a cell.
    ///
    /// # Errors
    ///
    /// `bad_layer`; the cell is of no use then.
    pub(crate) fn open(
        &mut self,
        direction: Direction,
        lane: Lane,
        counter: u64,
        cell: &mut [u8],
    ) -> Result<(), DropReason> {
        if self.is_left_open() {
            return Ok(());
        }
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

    /// What the next node must not read of a cell that was opened: the tag and all behind it, and
    /// in a control cell the flags up to this hop's.
    pub(crate) fn opened(&self, lane: Lane) -> [Range<usize>; 2] {
        let flags = match lane {
            Lane::Data => BODY_AT..BODY_AT,
            Lane::Control => BODY_AT..self.flag_at() + 1,
        };
        [flags, self.shape.tag_at(self.place)..CELL_LEN]
    }

    /// What this hop does not seal of a cell: tag places behind its own, and in a control cell the
    /// flags of hops before it.
    pub(crate) fn unsealed(&self, lane: Lane) -> [Range<usize>; 2] {
        let flags = match lane {
            Lane::Data => BODY_AT..BODY_AT,
            Lane::Control => BODY_AT..self.flag_at(),
        };
        [flags, self.shape.tag_at(self.place) + TAG_LEN..CELL_LEN]
    }
}

/// A node's own source of bytes that mean nothing, under a key that nobody else has.
pub(crate) struct Filler {
    key: MaskKey,
    /// Ranges that were filled.
    count: u64,
}

/// Parts of cells that are to be filled: where in the buffer, and how long.
#[derive(Default)]
pub(crate) struct Filling {
    parts: Vec<(u32, u32)>,
    blocks: Vec<[u8; 16]>,
}

impl Filling {
    /// Notes a part of the cell that starts at `start`.
    pub(crate) fn note(&mut self, start: u32, part: &Range<usize>) {
        if !part.is_empty() {
            self.parts.push((start + part.start as u32, part.len() as u32));
        }
    }
}

impl Filler {
    pub(crate) fn new(key: &Secret<32>) -> Filler {
        Filler { key: MaskKey::new(key.expose()), count: 0 }
    }

    /// Fills all parts that were noted. No two blocks are ever equal.
    pub(crate) fn fill(&mut self, buf: &mut [u8], filling: &mut Filling) {
        let Filling { parts, blocks } = filling;
        let count: usize = parts.iter().map(|part| part.1.div_ceil(16) as usize).sum();
        blocks.clear();
        blocks.extend((self.count..).take(count).map(|n| u128::from(n).to_be_bytes()));
        self.count += count as u64;
        encrypt(&self.key, blocks);
        let mut rest = &blocks[..];
        for (start, len) in parts.drain(..) {
            let (start, len) = (start as usize, len as usize);
            let (filled, behind) = rest.split_at(len.div_ceil(16));
            buf[start..start + len].copy_from_slice(&filled.as_flattened()[..len]);
            rest = behind;
        }
    }
}
