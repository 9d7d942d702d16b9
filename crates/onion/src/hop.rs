//! One circuit at a node other than its origin: a relay, or the host at its end.

use shoal_crypto::{Aead, PlantedFault};
use shoal_session::replay::ReplayWindow;
use shoal_wire::leg::{BODY_AT, CELL_LEN, CellShape, LayerFlag, LegMessage};
use shoal_wire::{Address, CircuitId, DropReason, HopDelay, MixStrategy, Time};

use crate::inbox::Inbox;
use crate::layer::{Filler, FillerParts, Layer};
use crate::leg::{CELLS_MAX, Direction, Leg, LegLane, OutboundCell, Scratch, SendKeys, is_new};
use crate::room::{CircuitTenant, TenantUse};
use crate::setup::{BoxedCell, malformed};

/// Counters that the window of the data lane spans: the most by which cells may overtake each
/// other.
pub(crate) const WINDOW: u32 = 8_192;
/// Like [`WINDOW`], if relays delay cells: 0.39 s of full cells at 1 Gbit/s.
pub(crate) const WINDOW_MIXED: u32 = 32_768;
/// Like [`WINDOW`], while the hop is cold.
const WINDOW_COLD: u32 = 64;
/// Like [`WINDOW`], for the control lane, which carries few cells.
const WINDOW_CONTROL: u32 = 512;
/// Additional bytes of a warm hop: two data windows, and the expanded keys of both directions and
/// lanes.
pub(crate) const WARM_LEN: usize = 2 * 2_048 + 4 * 1_024;
/// Most warm places of one hop.
pub(crate) const WARM_PLACES_MAX: usize = 3;

/// Window of the data lane, for the mixing that the origin set.
fn window(mixing: HopDelay) -> u32 {
    if mixing == HopDelay::Relay(MixStrategy::Pass) { WINDOW } else { WINDOW_MIXED }
}

/// State of the circuit behind this node.
pub(crate) enum CircuitNext {
    /// The circuit ends here.
    End,
    /// A create cell was sent, as the control message of this number asked.
    Asked {
        /// Number for the answer to the origin.
        number: u64,
    },
    /// The leg to the next hop.
    Leg(Leg),
}

/// The newest handshake of the origin's session that has no answer yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingHandshake {
    /// Handshake number on the circuit.
    pub(crate) number: u8,
    /// Numbers of its two cells, which the answer uses too.
    pub(crate) cells: [u64; 2],
}

/// A circuit's state at one hop.
pub(crate) struct CircuitHop<A> {
    /// Own address from which cells leave towards the origin; none for the node's first one.
    pub(crate) home: Option<Address>,
    pub(crate) shape: CellShape,
    pub(crate) layer: Layer<A>,
    pub(crate) prev: Leg,
    pub(crate) next: CircuitNext,
    /// Replay windows, by direction and lane.
    windows: [[ReplayWindow; 2]; 2],
    /// Number of units that this node has sent back, as the end of the circuit.
    sent: u64,
    /// A handshake from the origin's session, if the circuit ends here.
    pub(crate) inbox: Inbox,
    pub(crate) asked: Option<PendingHandshake>,
    /// True once a cell has come, which proves that the asking node has the keys.
    pub(crate) confirmed: bool,
    /// True if its windows may grow and its keys stay expanded.
    pub(crate) warm: bool,
    /// Recent cells of the data lane; the count is halved each second.
    pub(crate) lately: u32,
    /// Use of the circuit, which decides if it keeps its place when others need one.
    pub(crate) carried: TenantUse,
    pub(crate) born: Time,
    pub(crate) used: Time,
    pub(crate) until: Time,
    pub(crate) mixing: HopDelay,
}

/// Result for a cell at a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HopResult {
    /// The cell goes on to this node; at this time, if it must wait.
    On(Address, Option<Time>),
    /// The cell's unit is for this node.
    Unit,
    /// The cell has a control message of this number for this node.
    Message(u64),
}

/// Cells of a batch that leave, and their parts to be filled.
pub(crate) struct OutboundBatch<'a> {
    pub(crate) going: &'a mut Vec<OutboundCell>,
    pub(crate) fill: &'a mut FillerParts,
}

impl<A: Aead> CircuitHop<A> {
    pub(crate) fn new(
        shape: CellShape,
        layer: Layer<A>,
        prev: Leg,
        (born, until): (Time, Time),
        mixing: HopDelay,
    ) -> CircuitHop<A> {
        let windows = || [ReplayWindow::new(WINDOW_COLD), ReplayWindow::new(WINDOW_CONTROL)];
        let layer = match mixing {
            HopDelay::Relay(strategy) => layer.mixed(strategy),
            HopDelay::Path { .. } => layer,
        };
        CircuitHop {
            home: None,
            shape,
            layer,
            prev,
            next: CircuitNext::End,
            windows: [windows(), windows()],
            sent: 0,
            inbox: Inbox::default(),
            asked: None,
            confirmed: false,
            warm: false,
            lately: 0,
            carried: TenantUse::Nothing,
            born,
            used: born,
            until,
            mixing,
        }
    }

    /// The circuit's entry in [`crate::room`], under the id `id`.
    pub(crate) fn tenant(&self, id: CircuitId) -> CircuitTenant {
        CircuitTenant { id, from: self.prev.node, born: self.born }
    }

    /// Places of [`WARM_LEN`] bytes that it uses while warm. If relays delay cells, its windows are
    /// four times as long.
    pub(crate) fn warm_places(&self) -> usize {
        if window(self.mixing) == WINDOW { 1 } else { WARM_PLACES_MAX }
    }

    /// Makes the hop warm: windows may grow, and keys stay expanded.
    pub(crate) fn heat(&mut self) {
        self.warm = true;
        for windows in &mut self.windows {
            windows[LegLane::Data as usize].set_span(window(self.mixing));
        }
    }

    /// Makes the hop cold. Counters that a window has forgotten are `too_old` after that.
    pub(crate) fn cool(&mut self) {
        self.warm = false;
        self.layer.cool();
        for windows in &mut self.windows {
            windows[LegLane::Data as usize].set_span(WINDOW_COLD);
        }
    }

    fn direction(&self, from: Address) -> Option<Direction> {
        match &self.next {
            _ if from == self.prev.node => Some(Direction::Forward),
            CircuitNext::Leg(next) if next.node == from => Some(Direction::Backward),
            _ => None,
        }
    }

    /// The next expected number from this node; none if it is no neighbour on this circuit.
    pub(crate) fn expected(&self, from: Address, lane: LegLane) -> Option<u64> {
        let direction = self.direction(from)?;
        Some(self.windows[direction as usize][lane as usize].next().into())
    }

    /// Processes a run of cells from `from`, and changes them in place. `numbers` has the result of
    /// each cell's leg check. One result per cell is added to `out`.
    ///
    /// Results: those of `numbers`, and `replayed`, `too_old`, `bad_layer`, `malformed`,
    /// `unexpected_reply`.
    pub(crate) fn handle_run(
        &mut self,
        now: Time,
        (from, lane): (Address, LegLane),
        buf: &mut [u8],
        cells: (&[u32], &[Result<u64, DropReason>]),
        leaving: &mut OutboundBatch<'_>,
        out: &mut Vec<Result<HopResult, DropReason>>,
    ) {
        let before = out.len();
        match self.direction(from) {
            Some(Direction::Forward) => self.forward(now, lane, buf, cells, leaving, out),
            Some(Direction::Backward) => self.backward(now, lane, buf, cells, leaving, out),
            None => out.extend(cells.0.iter().map(|_| Err(DropReason::UnknownCircuit))),
        }
        if out[before..].iter().any(Result::is_ok) {
            self.confirmed = true;
            self.used = now;
        }
        if !self.warm {
            self.layer.cool();
        }
    }

    fn forward(
        &mut self,
        now: Time,
        lane: LegLane,
        buf: &mut [u8],
        (offsets, numbers): (&[u32], &[Result<u64, DropReason>]),
        leaving: &mut OutboundBatch<'_>,
        out: &mut Vec<Result<HopResult, DropReason>>,
    ) {
        let parts = self.layer.opened(lane);
        self.layer.foresee(Direction::Forward, lane, numbers);
        for (&start, number) in offsets.iter().zip(numbers) {
            let cell = &mut buf[start as usize..start as usize + CELL_LEN];
            let went = number.and_then(|number| self.open(now, lane, number, cell));
            if let (Ok(HopResult::On(..)), Ok(number), CircuitNext::Leg(next)) =
                (&went, *number, &self.next)
            {
                leaving.going.push(next.going(lane, start, number));
                if A::flaw() != Some(PlantedFault::NoFiller) {
                    parts.iter().for_each(|part| leaving.fill.note(start, part));
                }
            }
            out.push(went);
        }
    }

    /// Opens this hop's layer of a cell whose check was right, and returns the cell's next step.
    fn open(
        &mut self,
        now: Time,
        lane: LegLane,
        number: u64,
        cell: &mut [u8],
    ) -> Result<HopResult, DropReason> {
        let window = &mut self.windows[Direction::Forward as usize][lane as usize];
        if A::flaw() != Some(PlantedFault::LayerReplayed) {
            is_new(window, number)?;
        }
        if !matches!(self.next, CircuitNext::Leg(_)) && lane == LegLane::Data {
            // The unit has its own seal, between the two hosts.
            window.accept(number as u32);
            return Ok(HopResult::Unit);
        }
        let opened = self.layer.open(Direction::Forward, lane, number, cell);
        if A::flaw() != Some(PlantedFault::LayerUnverified) {
            opened?;
        }
        window.accept(number as u32);
        if lane == LegLane::Control {
            let flag = LayerFlag::from_byte(cell[self.layer.flag_at()]).map_err(malformed)?;
            if flag == LayerFlag::Yours {
                return Ok(HopResult::Message(number));
            }
        }
        match &self.next {
            CircuitNext::Leg(next) => {
                let due = self.layer.due(now, Direction::Forward, lane, number);
                Ok(HopResult::On(next.node, due))
            }
            _ => Err(DropReason::UnknownCircuit),
        }
    }

    fn backward(
        &mut self,
        now: Time,
        lane: LegLane,
        buf: &mut [u8],
        (offsets, numbers): (&[u32], &[Result<u64, DropReason>]),
        leaving: &mut OutboundBatch<'_>,
        out: &mut Vec<Result<HopResult, DropReason>>,
    ) {
        let parts = self.layer.unsealed(lane);
        self.layer.foresee(Direction::Backward, lane, numbers);
        // A cell that comes back on the control lane answers a request that passed here, and has
        // its number. A number further ahead would make the window refuse this hop's own answers.
        let end = match lane {
            LegLane::Data => CELLS_MAX,
            LegLane::Control => {
                self.windows[Direction::Forward as usize][lane as usize].next().into()
            }
        };
        let window = &mut self.windows[Direction::Backward as usize][lane as usize];
        for (&start, number) in offsets.iter().zip(numbers) {
            let asked = number.and_then(|number| match number < end {
                true => Ok(number),
                false => Err(DropReason::UnexpectedReply),
            });
            let new = asked.and_then(|number| match A::flaw() {
                Some(PlantedFault::BackReplayed) => Ok(number),
                _ => is_new(window, number).map(|()| number),
            });
            out.push(new.map(|number| {
                // The number is used up before anything is sealed, so that no number seals twice.
                window.accept(number as u32);
                let cell = &mut buf[start as usize..start as usize + CELL_LEN];
                if lane == LegLane::Control {
                    cell[self.layer.flag_at()] = LayerFlag::Pass as u8;
                }
                self.layer.seal(Direction::Backward, lane, number, cell);
                leaving.going.push(self.prev.going(lane, start, number));
                parts.iter().for_each(|part| leaving.fill.note(start, part));
                HopResult::On(
                    self.prev.node,
                    self.layer.due(now, Direction::Backward, lane, number),
                )
            }));
        }
    }

    /// Sends units, which are in the cells, back as the end of the circuit. Returns the node that
    /// they go to.
    ///
    /// # Errors
    ///
    /// `circuit_expired`: no numbers are left. `unknown_circuit`: the circuit does not end here.
    /// Nothing was changed.
    pub(crate) fn seal_units(
        &mut self,
        now: Time,
        buf: &mut [u8],
        offsets: &[u32],
        tools: &mut SealTools<'_>,
    ) -> Result<Address, DropReason> {
        if !matches!(self.next, CircuitNext::End) {
            return Err(DropReason::UnknownCircuit);
        }
        let first = take_numbers(&mut self.sent, offsets.len())?;
        self.used = now;
        let tags = BODY_AT + self.shape.unit_len()..CELL_LEN;
        tools.scratch.going.clear();
        for (&start, number) in offsets.iter().zip(first..) {
            tools.scratch.going.push(self.prev.going(LegLane::Data, start, number));
            tools.scratch.fill.note(start, &tags);
        }
        tools.finish(buf);
        Ok(self.prev.node)
    }

    /// The cell that answers the control message `number`, and the time at which it may leave if it
    /// must wait. Each message is answered at most once.
    ///
    /// # Errors
    ///
    /// `replayed`, `too_old`: the number was used before.
    pub(crate) fn reply(
        &mut self,
        now: Time,
        number: u64,
        message: &LegMessage<'_>,
        tools: &mut SealTools<'_>,
    ) -> Result<(BoxedCell, Option<Time>), DropReason> {
        let window = &mut self.windows[Direction::Backward as usize][LegLane::Control as usize];
        is_new(window, number)?;
        window.accept(number as u32);
        let mut cell: BoxedCell = Box::new([0; CELL_LEN]);
        tools.scratch.fill.note(0, &(BODY_AT..CELL_LEN));
        tools.filler.fill(&mut cell[..], &mut tools.scratch.fill);
        cell[self.layer.flag_at()] = LayerFlag::Yours as u8;
        message.write(&mut cell[self.layer.message_range()]).map_err(malformed)?;
        self.layer.seal(Direction::Backward, LegLane::Control, number, &mut cell[..]);
        tools.scratch.going.clear();
        tools.scratch.going.push(self.prev.going(LegLane::Control, 0, number));
        tools.finish(&mut cell[..]);
        let due = self.layer.due(now, Direction::Backward, LegLane::Control, number);
        if !self.warm {
            self.layer.cool();
        }
        Ok((cell, due))
    }
}

/// Tools for sending cells at once.
pub(crate) struct SealTools<'a> {
    pub(crate) filler: &'a mut Filler,
    pub(crate) keys: &'a SendKeys,
    pub(crate) scratch: &'a mut Scratch,
}

impl SealTools<'_> {
    /// Fills all noted parts, and writes the heads of all leaving cells.
    pub(crate) fn finish(&mut self, buf: &mut [u8]) {
        let Scratch { fill, going, blocks, .. } = &mut *self.scratch;
        self.filler.fill(buf, fill);
        self.keys.write(buf, going, blocks);
        going.clear();
    }
}

/// Reserves numbers for `count` cells, and returns the first.
///
/// # Errors
///
/// `circuit_expired`: fewer numbers are left. None is reserved.
pub(crate) fn take_numbers(next: &mut u64, count: usize) -> Result<u64, DropReason> {
    let first = *next;
    let after = first + count as u64;
    if after > CELLS_MAX {
        return Err(DropReason::CircuitExpired);
    }
    *next = after;
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::LayerSecrets;
    use crate::leg::LegKey;
    use shoal_crypto::{AeadKey, Secret, Suite};
    use shoal_session::noise::Split;
    use shoal_wire::MixTime;
    use shoal_wire::leg::LegGrant;

    impl<A> CircuitHop<A> {
        fn windows_len(&self) -> usize {
            self.windows.iter().flatten().map(ReplayWindow::heap_len).sum()
        }
    }

    fn hop(keys: &mut SendKeys, suite: Suite) -> CircuitHop<AeadKey> {
        let split = Split { forth: Secret::new([1; 32]), back: Secret::new([2; 32]) };
        let shape = CellShape::new(3).unwrap();
        let layer = LayerSecrets::new(suite, &split).layer(shape, 2);
        let grant = LegGrant { index: 5, key: [3; 32] };
        let prev = Leg::new(Address::new(1, 0), &grant, keys);
        let times = (Time::ZERO, Time::ZERO);
        let mut hop = CircuitHop::new(shape, layer, prev, times, HopDelay::default());
        hop.next = CircuitNext::Leg(Leg::new(Address::new(2, 0), &grant, keys));
        hop
    }

    /// 16,384 circuits must fit 96 MB: a kilobyte each while no cells pass, and the pool of warm
    /// places.
    #[test]
    fn a_cold_hop_is_small_and_a_warm_one_what_the_pool_counts() {
        // Besides the hop: the allocator's overhead, the slot, and two entries in the order of
        // unused circuits, in trees that are half full.
        let beside =
            16 + 24 + 2 * (size_of::<(Time, CircuitId)>() + size_of::<CircuitTenant>() + 2);
        let cold = size_of::<CircuitHop<AeadKey>>() + beside;
        let mut keys = SendKeys::default();
        let mut hop = hop(&mut keys, Suite::Aes256Gcm);
        assert_eq!(hop.windows_len(), 0);
        let traffic = |hop: &mut CircuitHop<AeadKey>| {
            for window in hop.windows.iter_mut().flatten() {
                let first = window.next();
                (first..first + 20_000).for_each(|number| _ = window.accept(number));
            }
        };
        traffic(&mut hop);
        let cold = cold + hop.windows_len();
        assert!(cold <= 1_000, "{cold}");
        // In the worst case each leg has its own key.
        let keys_len = 2 * (size_of::<LegKey>() + 200);
        assert!(16_384 * (cold + keys_len) + 32_000_000 < 96_000_000);
        hop.heat();
        traffic(&mut hop);
        // Four expanded keys of AES-256-GCM take about 600 bytes each.
        assert!(hop.windows_len() + 4 * 1_000 <= WARM_LEN + 300, "{}", hop.windows_len());
        let mut mixed = self::hop(&mut keys, Suite::Aes256Gcm);
        mixed.mixing = HopDelay::Path { mean: MixTime::MAX, hold: MixTime::MAX };
        mixed.heat();
        let first = mixed.windows[0][0].next();
        for window in mixed.windows.iter_mut().flatten() {
            (first..first + 60_000).for_each(|number| _ = window.accept(number));
        }
        let len = mixed.windows_len() + 4 * 1_000;
        assert!(len <= mixed.warm_places() * WARM_LEN && hop.warm_places() == 1, "{len}");
        hop.cool();
        assert!(size_of::<CircuitHop<AeadKey>>() + beside + hop.windows_len() <= cold);
    }

    /// A hop answers a control message under its number. It must not seal that number again for the
    /// node behind it.
    #[test]
    fn a_number_that_was_answered_is_not_sealed_again() {
        let mut keys = SendKeys::default();
        let (mut filler, mut scratch) = (Filler::new(&Secret::new([4; 32])), Scratch::default());
        let (prev, next) = (Address::new(1, 0), Address::new(2, 0));
        let mut hop = hop(&mut keys, Suite::Aes256Gcm);
        let send = |hop: &mut CircuitHop<AeadKey>, number| {
            let (mut cell, mut out) = ([9; CELL_LEN], Vec::new());
            let (mut going, mut fill) = (Vec::new(), FillerParts::default());
            let mut leaving = OutboundBatch { going: &mut going, fill: &mut fill };
            let cells: (&[u32], &[_]) = (&[0], &[Ok(number)]);
            let about = (next, LegLane::Control);
            hop.handle_run(Time::ZERO, about, &mut cell, cells, &mut leaving, &mut out);
            assert_eq!(going.len(), usize::from(out[0].is_ok()));
            out[0]
        };
        let mut reply = |hop: &mut CircuitHop<AeadKey>, number| {
            let mut tools = SealTools { filler: &mut filler, keys: &keys, scratch: &mut scratch };
            hop.reply(Time::ZERO, number, &LegMessage::Echoed(1), &mut tools)
        };
        assert_eq!(send(&mut hop, 6), Err(DropReason::UnexpectedReply), "nothing was asked");
        // The requests pass here.
        (0..8).for_each(|number| _ = hop.windows[0][1].accept(number));
        assert_eq!(send(&mut hop, 8), Err(DropReason::UnexpectedReply));
        assert_eq!(send(&mut hop, 6), Ok(HopResult::On(prev, None)));
        assert!(reply(&mut hop, 6).is_err());
        assert!(reply(&mut hop, 7).is_ok());
        assert!(reply(&mut hop, 7).is_err());
        assert_eq!(send(&mut hop, 7), Err(DropReason::Replayed));
    }
}
