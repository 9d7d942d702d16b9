//! One circuit at its origin: all layers, and the set-up of the next hop.

use core::time::Duration;
use shoal_crypto::{Aead, PlantedFault, Secret};
use shoal_session::noise::Initiator;
use shoal_session::replay::ReplayWindow;
use shoal_wire::leg::{BODY_AT, CELL_LEN, CellShape, LayerFlag, LegMessage};

use shoal_wire::{Address, DropReason, MixStrategy, Time};

use crate::echo::EchoDelays;
use crate::hop::{SealTools, WINDOW, WINDOW_MIXED, take_numbers};
use crate::inbox::Inbox;
use crate::layer::{Layer, LayerSecrets};
use crate::leg::{Direction, Leg, LegLane, is_new};
use crate::setup::malformed;

/// A handshake with the next hop that has no answer yet.
pub(crate) struct PendingHop {
    /// Number of the handshake, so that results of an earlier one are recognized.
    pub(crate) attempt: u64,
    /// None while a job works on the handshake.
    pub(crate) initiator: Option<Initiator>,
    /// Number of the control message that asked for the hop; none for the first hop.
    pub(crate) number: Option<u64>,
}

/// A circuit's state at its origin.
pub(crate) struct OriginCircuit<A> {
    /// Own address from which cells leave; none for the node's first one.
    pub(crate) home: Option<Address>,
    pub(crate) shape: CellShape,
    /// The relays in order, then the destination.
    pub(crate) path: Vec<Address>,
    /// Strategy of each relay; a missing entry means none.
    pub(crate) mixes: Vec<MixStrategy>,
    /// Layers of the hops that are set up, in order.
    layers: Vec<Layer<A>>,
    /// Leg to the first hop.
    first: Option<Leg>,
    /// Secret from which the keys of the leg to the next hop follow.
    pub(crate) next_leg: Secret<32>,
    pub(crate) building: Option<PendingHop>,
    /// Next number of each lane.
    next: [u64; 2],
    /// Windows of backward cells, by lane.
    windows: [ReplayWindow; 2],
    /// Number of handshakes sent, modulo 256.
    pub(crate) handshakes: u8,
    /// A handshake from the destination's session.
    pub(crate) inbox: Inbox,
    pub(crate) used: Time,
    /// Last time at which it carried a unit.
    pub(crate) carried: Option<Time>,
    pub(crate) until: Time,
}

/// Content of a cell that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OriginResult {
    /// A unit from the destination.
    Unit,
    /// Hop, counted from 1, and number of a control message. The number is that of the request that
    /// it answers.
    Message(u8, u64),
}

impl<A: Aead> OriginCircuit<A> {
    pub(crate) fn new(
        shape: CellShape,
        (path, mixes): (Vec<Address>, Vec<MixStrategy>),
        next_leg: Secret<32>,
        (used, until): (Time, Time),
    ) -> OriginCircuit<A> {
        let window = if mixes.iter().any(|mix| mix.holds()) { WINDOW_MIXED } else { WINDOW };
        OriginCircuit {
            home: None,
            shape,
            path,
            mixes,
            layers: Vec::new(),
            first: None,
            next_leg,
            building: None,
            next: [0; 2],
            windows: [ReplayWindow::new(window), ReplayWindow::new(window)],
            handshakes: 0,
            inbox: Inbox::default(),
            used,
            carried: None,
            until,
        }
    }

    /// Number of hops that are set up.
    pub(crate) fn hops(&self) -> usize {
        self.layers.len()
    }

    /// True if the destination is set up.
    pub(crate) fn is_built(&self) -> bool {
        self.layers.len() == self.path.len()
    }

    /// Sets the leg to the first hop.
    pub(crate) fn set_first(&mut self, leg: Leg) {
        self.first = Some(leg);
    }

    pub(crate) fn first(&self) -> Option<&Leg> {
        self.first.as_ref()
    }

    /// The next expected number from this node; none if it is not the first hop.
    pub(crate) fn expected(&self, from: Address, lane: LegLane) -> Option<u64> {
        self.first.as_ref().filter(|leg| leg.node == from)?;
        Some(self.windows[lane as usize].next().into())
    }

    /// Adds the hop whose handshake is done.
    pub(crate) fn add(&mut self, secrets: &LayerSecrets) {
        let hop = self.layers.len() as u8 + 1;
        // A path has at most one node more than the shape has tag places.
        let Some(place) = self.shape.place(hop) else { return };
        self.next_leg = secrets.next_leg();
        let mix = self.mix(self.layers.len());
        self.layers.push(secrets.layer(self.shape, place).mixed(mix));
        self.building = None;
    }

    /// Strategy of the hop after `hops` others.
    pub(crate) fn mix(&self, hops: usize) -> MixStrategy {
        self.mixes.get(hops).copied().unwrap_or_default()
    }

    /// Delays that mixes add to an echo and its answer, if the echo is the control message
    /// `number` to this hop, counted from 1.
    pub(crate) fn delays(&mut self, hop: usize, number: u64) -> EchoDelays {
        let mut delays = EchoDelays::default();
        for (at, layer) in (1..=hop).zip(&mut self.layers) {
            let back = layer.delay(Direction::Backward, LegLane::Control, number);
            let there = match at < hop {
                true => layer.delay(Direction::Forward, LegLane::Control, number),
                false => Some(Duration::ZERO),
            };
            delays.set(at, there.zip(back));
        }
        delays
    }

    /// Seals the layers of the first `hops` hops around filled cells, the innermost first, and
    /// writes the heads of `tools.scratch.going`.
    fn wrap(&mut self, hops: usize, lane: LegLane, buf: &mut [u8], tools: &mut SealTools<'_>) {
        let layers = &mut self.layers[..hops];
        for cell in &tools.scratch.going {
            let (start, number) = (cell.start as usize, cell.number);
            let bytes = &mut buf[start..start + CELL_LEN];
            for (at, layer) in layers.iter_mut().enumerate().rev() {
                if lane == LegLane::Control && at + 1 < hops {
                    bytes[layer.flag_at()] = LayerFlag::Pass as u8;
                }
                layer.seal(Direction::Forward, lane, number, bytes);
            }
        }
        tools.finish(buf);
    }

    /// Wraps the units in cells for the destination. Returns the node that the cells go to.
    ///
    /// # Errors
    ///
    /// `unknown_circuit`: the circuit is not built. `circuit_expired`: no numbers are left. Nothing
    /// was changed.
    pub(crate) fn seal_units(
        &mut self,
        now: Time,
        buf: &mut [u8],
        offsets: &[u32],
        tools: &mut SealTools<'_>,
    ) -> Result<Address, DropReason> {
        let first = self.first.filter(|_| self.is_built()).ok_or(DropReason::UnknownCircuit)?;
        let mut numbers = take_numbers(&mut self.next[LegLane::Data as usize], offsets.len())?..;
        if A::flaw() == Some(PlantedFault::NumberTwice) {
            numbers.start = numbers.start.saturating_sub(1);
        }
        (self.used, self.carried) = (now, Some(now));
        let tags = BODY_AT + self.shape.unit_len()..CELL_LEN;
        let SealTools { filler, scratch, .. } = tools;
        scratch.going.clear();
        for (&start, number) in offsets.iter().zip(numbers) {
            scratch.going.push(first.going(LegLane::Data, start, number));
            scratch.fill.note(start, &tags);
        }
        filler.fill(buf, &mut scratch.fill);
        // The destination has no layer around units: they have the two hosts' own seal.
        self.wrap(self.layers.len() - 1, LegLane::Data, buf, tools);
        Ok(first.node)
    }

    /// Wraps a control message for a hop, counted from 1. Returns the node that the cell goes to,
    /// and the message's number.
    ///
    /// # Errors
    ///
    /// `unknown_circuit`: the hop is not set up. `circuit_expired`: no number is left.
    pub(crate) fn seal_message(
        &mut self,
        hop: usize,
        message: &LegMessage<'_>,
        cell: &mut [u8],
        tools: &mut SealTools<'_>,
    ) -> Result<(Address, u64), DropReason> {
        let layer = hop.checked_sub(1).and_then(|at| self.layers.get(at));
        let (flag_at, range) = layer
            .map(|layer| (layer.flag_at(), layer.message_range()))
            .ok_or(DropReason::UnknownCircuit)?;
        let first = self.first.ok_or(DropReason::UnknownCircuit)?;
        let number = take_numbers(&mut self.next[LegLane::Control as usize], 1)?;
        let SealTools { filler, scratch, .. } = tools;
        scratch.fill.note(0, &(BODY_AT..CELL_LEN));
        filler.fill(cell, &mut scratch.fill);
        cell[flag_at] = LayerFlag::Yours as u8;
        message.write(&mut cell[range]).map_err(malformed)?;
        scratch.going.clear();
        scratch.going.push(first.going(LegLane::Control, 0, number));
        self.wrap(hop, LegLane::Control, cell, tools);
        Ok((first.node, number))
    }

    /// Range of a hop's control message in a cell that [`OriginCircuit::open`] opened.
    pub(crate) fn message_range(&self, hop: u8) -> core::ops::Range<usize> {
        self.layers[usize::from(hop) - 1].message_range()
    }

    /// Opens a run of cells that came back from the first hop. `numbers` has the result of each
    /// cell's leg check. One result per cell is added to `out`.
    ///
    /// Results: those of `numbers`, and `replayed`, `too_old`, `bad_layer`, `malformed`,
    /// `unexpected_reply`.
    pub(crate) fn handle_run(
        &mut self,
        now: Time,
        lane: LegLane,
        buf: &mut [u8],
        (offsets, numbers): (&[u32], &[Result<u64, DropReason>]),
        out: &mut Vec<Result<OriginResult, DropReason>>,
    ) {
        for (&start, number) in offsets.iter().zip(numbers) {
            let cell = &mut buf[start as usize..start as usize + CELL_LEN];
            let opened = number.and_then(|number| self.open(lane, number, cell));
            if opened.is_ok() {
                self.used = now;
            }
            if opened == Ok(OriginResult::Unit) {
                self.carried = Some(now);
            }
            out.push(opened);
        }
    }

    fn open(
        &mut self,
        lane: LegLane,
        number: u64,
        cell: &mut [u8],
    ) -> Result<OriginResult, DropReason> {
        if lane == LegLane::Control && number >= self.next[lane as usize] {
            // No request had this number, so the window must not move to it.
            return Err(DropReason::UnexpectedReply);
        }
        let window = &mut self.windows[lane as usize];
        is_new(window, number)?;
        window.accept(number as u32);
        let layers = match lane {
            LegLane::Data if !self.is_built() => return Err(DropReason::UnknownCircuit),
            LegLane::Data => {
                let last = self.layers.len() - 1;
                &mut self.layers[..last]
            }
            LegLane::Control => &mut self.layers[..],
        };
        for (hop, layer) in (1..).zip(layers) {
            layer.open(Direction::Backward, lane, number, cell)?;
            if lane == LegLane::Control {
                let flag = LayerFlag::from_byte(cell[layer.flag_at()]).map_err(malformed)?;
                if flag == LayerFlag::Yours {
                    return Ok(OriginResult::Message(hop, number));
                }
            }
        }
        match lane {
            LegLane::Data => Ok(OriginResult::Unit),
            LegLane::Control => Err(DropReason::Malformed),
        }
    }
}
