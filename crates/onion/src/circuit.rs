//! One circuit at its origin: every layer, and the set-up of the next hop.

use core::time::Duration;
use shoal_crypto::{Aead, Flaw, Secret};
use shoal_session::noise::Initiator;
use shoal_session::replay::Window;
use shoal_wire::leg::{BODY_AT, CELL_LEN, Flag, Message, Shape};

use shoal_wire::{Address, DropReason, Strategy, Time};

use crate::hop::{Tools, WINDOW, WINDOW_MIXED, take_numbers};
use crate::inbox::Inbox;
use crate::layer::{Layer, LayerSecrets};
use crate::leg::{Direction, Lane, Leg, is_new};
use crate::setup::malformed;

/// A handshake with the next hop that waits for its answer.
pub(crate) struct Building {
    /// Tells its work from that of an earlier one.
    pub(crate) attempt: u64,
    /// None while the handshake is worked on.
    pub(crate) initiator: Option<Initiator>,
    /// The number of the control message that asked for it; none for the first hop.
    pub(crate) number: Option<u64>,
}

/// A circuit's state at its origin.
pub(crate) struct Circuit<A> {
    pub(crate) shape: Shape,
    /// The relays in their order, and the destination behind them.
    pub(crate) path: Vec<Address>,
    /// What each relay does with cells; none beyond its end.
    pub(crate) mixes: Vec<Strategy>,
    /// Of the hops that are there, in their order.
    layers: Vec<Layer<A>>,
    /// The leg to the first of them.
    first: Option<Leg>,
    /// What the leg to the hop that is being set up is protected with.
    pub(crate) next_leg: Secret<32>,
    pub(crate) building: Option<Building>,
    /// Next numbers by lane.
    next: [u64; 2],
    /// What came back, by lane.
    windows: [Window; 2],
    /// Handshakes that were sent, modulo 256.
    pub(crate) handshakes: u8,
    /// Of a handshake that comes from the destination's session.
    pub(crate) inbox: Inbox,
    pub(crate) used: Time,
    /// When it last carried a unit.
    pub(crate) carried: Option<Time>,
    pub(crate) until: Time,
}

/// What a cell that came back was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtOrigin {
    /// A unit of the destination.
    Unit,
    /// A control message of this hop, counted from 1, that answers the one of this number.
    Message(u8, u64),
}

impl<A: Aead> Circuit<A> {
    pub(crate) fn new(
        shape: Shape,
        (path, mixes): (Vec<Address>, Vec<Strategy>),
        next_leg: Secret<32>,
        (used, until): (Time, Time),
    ) -> Circuit<A> {
        let window = if mixes.iter().any(|mix| mix.holds()) { WINDOW_MIXED } else { WINDOW };
        Circuit {
            shape,
            path,
            mixes,
            layers: Vec::new(),
            first: None,
            next_leg,
            building: None,
            next: [0; 2],
            windows: [Window::new(window), Window::new(window)],
            handshakes: 0,
            inbox: Inbox::default(),
            used,
            carried: None,
            until,
        }
    }

    /// Hops that are there.
    pub(crate) fn hops(&self) -> usize {
        self.layers.len()
    }

    /// Whether the destination is there.
    pub(crate) fn is_built(&self) -> bool {
        self.layers.len() == self.path.len()
    }

    /// Where the first hop is.
    pub(crate) fn set_first(&mut self, leg: Leg) {
        self.first = Some(leg);
    }

    /// The first leg.
    pub(crate) fn first(&self) -> Option<&Leg> {
        self.first.as_ref()
    }

    /// The number that is expected next of this node; none if it is not the first hop.
    pub(crate) fn expected(&self, from: Address, lane: Lane) -> Option<u64> {
        self.first.as_ref().filter(|leg| leg.node == from)?;
        Some(self.windows[lane as usize].next().into())
    }

    /// Adds the hop whose handshake is done.
    pub(crate) fn add(&mut self, secrets: &LayerSecrets) {
        let hop = self.layers.len() as u8 + 1;
        // A path is never longer than the shape has places, and one.
        let Some(place) = self.shape.place(hop) else { return };
        self.next_leg = secrets.next_leg();
        let mix = self.mix(self.layers.len());
        self.layers.push(secrets.layer(self.shape, place).mixed(mix));
        self.building = None;
    }

    /// What the hop behind `hops` others does with cells.
    pub(crate) fn mix(&self, hops: usize) -> Strategy {
        self.mixes.get(hops).copied().unwrap_or_default()
    }

    /// How long an echo waits in mixes until its answer is here, if it is the control message
    /// `number` to this hop, counted from 1; none where that depends on a relay's clock.
    pub(crate) fn delay(&mut self, hop: usize, number: u64) -> Option<Duration> {
        let mut sum = Duration::ZERO;
        for (at, layer) in (1..=hop).zip(&mut self.layers) {
            if at < hop {
                sum += layer.delay(Direction::Forward, Lane::Control, number)?;
            }
            sum += layer.delay(Direction::Backward, Lane::Control, number)?;
        }
        Some(sum)
    }

    /// Seals the layers of the first `hops` hops around cells that are filled, the innermost first,
    /// and writes the heads of `tools.scratch.going`.
    fn wrap(&mut self, hops: usize, lane: Lane, buf: &mut [u8], tools: &mut Tools<'_>) {
        let layers = &mut self.layers[..hops];
        for cell in &tools.scratch.going {
            let (start, number) = (cell.start as usize, cell.number);
            let bytes = &mut buf[start..start + CELL_LEN];
            for (at, layer) in layers.iter_mut().enumerate().rev() {
                if lane == Lane::Control && at + 1 < hops {
                    bytes[layer.flag_at()] = Flag::Pass as u8;
                }
                layer.seal(Direction::Forward, lane, number, bytes);
            }
        }
        tools.finish(buf);
    }

    /// Wraps the units in cells for the destination. Says where the cells go.
    ///
    /// # Errors
    ///
    /// `unknown_circuit`: it is not built. `circuit_expired`: no numbers are left. Nothing was
    /// changed.
    pub(crate) fn seal_units(
        &mut self,
        now: Time,
        buf: &mut [u8],
        offsets: &[u32],
        tools: &mut Tools<'_>,
    ) -> Result<Address, DropReason> {
        let first = self.first.filter(|_| self.is_built()).ok_or(DropReason::UnknownCircuit)?;
        let mut numbers = take_numbers(&mut self.next[Lane::Data as usize], offsets.len())?..;
        if A::flaw() == Some(Flaw::NumberTwice) {
            numbers.start = numbers.start.saturating_sub(1);
        }
        (self.used, self.carried) = (now, Some(now));
        let tags = BODY_AT + self.shape.unit_len()..CELL_LEN;
        let Tools { filler, scratch, .. } = tools;
        scratch.going.clear();
        for (&start, number) in offsets.iter().zip(numbers) {
            scratch.going.push(first.going(Lane::Data, start, number));
            scratch.fill.note(start, &tags);
        }
        filler.fill(buf, &mut scratch.fill);
        // The destination has no layer around units: they have the seal of the two hosts.
        self.wrap(self.layers.len() - 1, Lane::Data, buf, tools);
        Ok(first.node)
    }

    /// Wraps a control message for a hop, counted from 1. Says where the cell goes, and its number.
    ///
    /// # Errors
    ///
    /// `unknown_circuit`: there is no such hop yet. `circuit_expired`: no number is left.
    pub(crate) fn seal_message(
        &mut self,
        hop: usize,
        message: &Message<'_>,
        cell: &mut [u8],
        tools: &mut Tools<'_>,
    ) -> Result<(Address, u64), DropReason> {
        let layer = hop.checked_sub(1).and_then(|at| self.layers.get(at));
        let (flag_at, range) = layer
            .map(|layer| (layer.flag_at(), layer.message_range()))
            .ok_or(DropReason::UnknownCircuit)?;
        let first = self.first.ok_or(DropReason::UnknownCircuit)?;
        let number = take_numbers(&mut self.next[Lane::Control as usize], 1)?;
        let Tools { filler, scratch, .. } = tools;
        scratch.fill.note(0, &(BODY_AT..CELL_LEN));
        filler.fill(cell, &mut scratch.fill);
        cell[flag_at] = Flag::Yours as u8;
        message.write(&mut cell[range]).map_err(malformed)?;
        scratch.going.clear();
        scratch.going.push(first.going(Lane::Control, 0, number));
        self.wrap(hop, Lane::Control, cell, tools);
        Ok((first.node, number))
    }

    /// Where the control message of a hop stands in a cell that [`Circuit::open`] opened.
    pub(crate) fn message_range(&self, hop: u8) -> core::ops::Range<usize> {
        self.layers[usize::from(hop) - 1].message_range()
    }

    /// Opens a run of cells that came back from the first hop, whose checks held or not, as
    /// `numbers` says. One result for each is added to `out`.
    ///
    /// Results: those of `numbers`, `replayed`, `too_old`, `bad_layer`, `malformed`,
    /// `unexpected_reply`.
    pub(crate) fn handle_run(
        &mut self,
        now: Time,
        lane: Lane,
        buf: &mut [u8],
        (offsets, numbers): (&[u32], &[Result<u64, DropReason>]),
        out: &mut Vec<Result<AtOrigin, DropReason>>,
    ) {
        for (&start, number) in offsets.iter().zip(numbers) {
            let cell = &mut buf[start as usize..start as usize + CELL_LEN];
            let opened = number.and_then(|number| self.open(lane, number, cell));
            if opened.is_ok() {
                self.used = now;
            }
            if opened == Ok(AtOrigin::Unit) {
                self.carried = Some(now);
            }
            out.push(opened);
        }
    }

    fn open(&mut self, lane: Lane, number: u64, cell: &mut [u8]) -> Result<AtOrigin, DropReason> {
        if lane == Lane::Control && number >= self.next[lane as usize] {
            // No request had this number: the window must not follow it.
            return Err(DropReason::UnexpectedReply);
        }
        let window = &mut self.windows[lane as usize];
        is_new(window, number)?;
        window.accept(number as u32);
        let layers = match lane {
            Lane::Data if !self.is_built() => return Err(DropReason::UnknownCircuit),
            Lane::Data => {
                let last = self.layers.len() - 1;
                &mut self.layers[..last]
            }
            Lane::Control => &mut self.layers[..],
        };
        for (hop, layer) in (1..).zip(layers) {
            layer.open(Direction::Backward, lane, number, cell)?;
            if lane == Lane::Control {
                let flag = Flag::from_byte(cell[layer.flag_at()]).map_err(malformed)?;
                if flag == Flag::Yours {
                    return Ok(AtOrigin::Message(hop, number));
                }
            }
        }
        match lane {
            Lane::Data => Ok(AtOrigin::Unit),
            Lane::Control => Err(DropReason::Malformed),
        }
    }
}
