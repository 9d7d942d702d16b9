//! Layers: the seal that the origin of a circuit shares with one hop.
//!
//! ```text
//!             10                     tag_at(place)      next tag places
//! data:       |<------- sealed ------>| tag  | filler of the hop |
//! control:    |f|<----- sealed ------>| tag  | filler of the hop |
//!             f: flags of the hops before, filler
//! ```
//!
//! Each hop opens (forward) or seals (backward) its part in place. Every byte of a cell changes,
//! and none moves.

use core::ops::Range;
use core::time::Duration;

use shoal_crypto::{Aead, MaskKey, PlantedFault, Secret, Suite, kdf};
use shoal_mix::DepartureTimes;
use shoal_session::noise::Split;
use shoal_wire::leg::{BODY_AT, CELL_LEN, CellShape};
use shoal_wire::{DropReason, MixStrategy, MixTime, TAG_LEN, Time};

use crate::leg::{Direction, LegLane, encrypt};

/// Secrets of one layer, from which its keys are expanded.
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

    /// Secret from which the keys of the leg to the hop behind this one follow.
    pub(crate) fn next_leg(&self) -> Secret<32> {
        Secret::new(kdf(self.forth.expose(), "shoal v1 next leg", &[self.back.expose()]))
    }

    fn key(&self, direction: Direction, lane: LegLane) -> Secret<32> {
        let base = match direction {
            Direction::Forward => &self.forth,
            Direction::Backward => &self.back,
        };
        let about = [self.suite as u8, direction as u8, lane as u8];
        Secret::new(kdf(base.expose(), "shoal v1 layer", &[&about]))
    }

    /// Delays of cells at a hop with this strategy.
    fn delays(&self, strategy: MixStrategy) -> DepartureTimes {
        let key = kdf(self.forth.expose(), "shoal v1 mix", &[self.back.expose()]);
        DepartureTimes::new(strategy, Secret::new(key).expose())
    }

    /// The layer of a hop at `place`.
    pub(crate) fn layer<A: Aead>(&self, shape: CellShape, place: u8) -> Layer<A> {
        Layer {
            shape,
            place,
            secrets: self.clone(),
            keys: Default::default(),
            strategy: MixStrategy::Pass,
            delays: None,
        }
    }
}

/// One layer. Its keys are expanded on demand.
pub(crate) struct Layer<A> {
    shape: CellShape,
    place: u8,
    secrets: LayerSecrets,
    /// Expanded keys, by direction and lane.
    keys: [[Option<A>; 2]; 2],
    /// The hop's strategy.
    strategy: MixStrategy,
    delays: Option<Box<DepartureTimes>>,
}

impl<A: Aead> Layer<A> {
    pub(crate) fn place(&self) -> u8 {
        self.place
    }

    fn key(&mut self, direction: Direction, lane: LegLane) -> &A {
        let key = &mut self.keys[direction as usize][lane as usize];
        let secrets = &self.secrets;
        key.get_or_insert_with(|| A::new(secrets.suite, secrets.key(direction, lane).expose()))
    }

    /// The direction and lane of a key, if it is one of this layer's.
    pub(crate) fn use_of(&self, key: &[u8; 32]) -> Option<(Direction, LegLane)> {
        let lanes = [LegLane::Data, LegLane::Control];
        let all =
            [Direction::Forward, Direction::Backward].map(|way| lanes.map(|lane| (way, lane)));
        let mut all = all.into_iter().flatten();
        all.find(|&(direction, lane)| self.secrets.key(direction, lane).expose() == key)
    }

    /// The layer with this mix strategy.
    pub(crate) fn mixed(self, strategy: MixStrategy) -> Layer<A> {
        Layer { strategy, delays: None, ..self }
    }

    fn delays(&mut self) -> &mut DepartureTimes {
        let drawn = self.drawn();
        let Layer { secrets, delays, .. } = self;
        delays.get_or_insert_with(|| Box::new(secrets.delays(drawn)))
    }

    /// Strategy from which delays are drawn.
    fn drawn(&self) -> MixStrategy {
        match self.strategy {
            MixStrategy::StopAndGo { mean, most } if A::flaw() == Some(PlantedFault::MixHasty) => {
                let hasty = MixTime::from_units(mean.units() * 3 / 4);
                MixStrategy::StopAndGo { mean: hasty.unwrap_or(mean), most }
            }
            strategy => strategy,
        }
    }

    /// The hop's strategy, and the delay of each cell.
    pub(crate) fn waits(&self) -> (MixStrategy, DepartureTimes) {
        (self.strategy, self.secrets.delays(self.drawn()))
    }

    /// Time at which a cell that was processed at `now` may leave; none if it need not wait.
    pub(crate) fn due(
        &mut self,
        now: Time,
        direction: Direction,
        lane: LegLane,
        number: u64,
    ) -> Option<Time> {
        let skips = A::flaw() == Some(PlantedFault::ControlUnmixed) && lane == LegLane::Control;
        let holds = self.strategy.holds() && !skips;
        holds.then(|| self.delays().due(now, direction as u8, lane as u8, number))
    }

    /// Computes the delays of a run of cells together, before [`Self::due`] is called for each.
    pub(crate) fn foresee(
        &mut self,
        direction: Direction,
        lane: LegLane,
        numbers: &[Result<u64, DropReason>],
    ) {
        if self.strategy.holds() {
            let numbers = numbers.iter().flatten().copied();
            self.delays().foresee(direction as u8, lane as u8, numbers);
        }
    }

    /// Delay at the hop, which origin and hop compute alike. None if it depends on the hop's clock.
    pub(crate) fn delay(
        &mut self,
        direction: Direction,
        lane: LegLane,
        number: u64,
    ) -> Option<Duration> {
        match self.strategy {
            MixStrategy::Pass => Some(Duration::ZERO),
            MixStrategy::Timed { .. } => None,
            MixStrategy::StopAndGo { .. } => {
                Some(self.delays().delay(direction as u8, lane as u8, number))
            }
        }
    }

    /// Forgets the expanded keys.
    pub(crate) fn cool(&mut self) {
        self.keys = Default::default();
        self.delays = None;
    }

    /// Secret from which the keys of the leg to the hop behind this one follow.
    pub(crate) fn next_leg(&self) -> Secret<32> {
        self.secrets.next_leg()
    }

    fn is_left_open(&self) -> bool {
        A::flaw() == Some(PlantedFault::LayerOpen) && self.place == 1
    }

    /// Start of the sealed part.
    pub(crate) fn start(&self, lane: LegLane) -> usize {
        match lane {
            LegLane::Data => BODY_AT,
            LegLane::Control => self.shape.flag_at(self.place),
        }
    }

    /// Seals the layer's part of a cell and writes its tag.
    pub(crate) fn seal(
        &mut self,
        direction: Direction,
        lane: LegLane,
        counter: u64,
        cell: &mut [u8],
    ) {
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
    /// `bad_layer`: the cell is then unusable.
    pub(crate) fn open(
        &mut self,
        direction: Direction,
        lane: LegLane,
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

    /// Offset of this hop's flag in a control cell.
    pub(crate) fn flag_at(&self) -> usize {
        self.shape.flag_at(self.place)
    }

    /// Range of a control message for this hop.
    pub(crate) fn message_range(&self) -> Range<usize> {
        self.flag_at() + 1..self.shape.tag_at(self.place)
    }

    /// Ranges of an opened cell that the next node must not read: the tag and all after it. In a
    /// control cell, also the flags up to this hop's.
    pub(crate) fn opened(&self, lane: LegLane) -> [Range<usize>; 2] {
        let flags = match lane {
            LegLane::Data => BODY_AT..BODY_AT,
            LegLane::Control => BODY_AT..self.flag_at() + 1,
        };
        [flags, self.shape.tag_at(self.place)..CELL_LEN]
    }

    /// Ranges of a cell that this hop does not seal: the tag places after its own. In a control
    /// cell, also the flags of hops before it.
    pub(crate) fn unsealed(&self, lane: LegLane) -> [Range<usize>; 2] {
        let flags = match lane {
            LegLane::Data => BODY_AT..BODY_AT,
            LegLane::Control => BODY_AT..self.flag_at(),
        };
        [flags, self.shape.tag_at(self.place) + TAG_LEN..CELL_LEN]
    }
}

/// A node's source of filler: bytes without meaning, from a key that no other node has.
pub(crate) struct Filler {
    key: MaskKey,
    /// Number of blocks used.
    count: u64,
}

/// Parts of cells to be filled: offset in the buffer, and length.
#[derive(Default)]
pub(crate) struct FillerParts {
    parts: Vec<(u32, u32)>,
    blocks: Vec<[u8; 16]>,
}

impl FillerParts {
    /// Adds a part of the cell that starts at `start`.
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

    /// Fills all noted parts. No two blocks are ever equal.
    pub(crate) fn fill(&mut self, buf: &mut [u8], filling: &mut FillerParts) {
        let FillerParts { parts, blocks } = filling;
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
