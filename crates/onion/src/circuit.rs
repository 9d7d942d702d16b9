//! One circuit at its origin: every layer, and the set-up of the next hop.

use shoal_crypto::{Aead, Secret};
use shoal_session::noise::Initiator;
use shoal_session::replay::Window;
use shoal_wire::leg::{BODY_AT, CELL_LEN, Flag, Message, Shape};
use shoal_wire::{Address, DropReason, Time};

use crate::hop::{Leg, WINDOW, take_numbers};
use crate::layer::{Filler, Layer, LayerSecrets};
use crate::leg::{Direction, Lane, Scratch, is_new};
use crate::setup::malformed;

/// A handshake with the next hop that waits for its answer.
pub(crate) struct Building {
    pub(crate) initiator: Initiator,
    /// The number of the control message that asked for it; none for the first hop.
    pub(crate) number: Option<u64>,
}

/// A circuit's state at its origin.
pub(crate) struct Circuit<A> {
    pub(crate) shape: Shape,
    /// The relays in their order, and the destination behind them.
    pub(crate) path: Vec<Address>,
    /// Of the hops that are there, in their order.
    layers: Vec<Layer<A>>,
    /// The leg to the first of them.
    first: Option<Leg>,
    /// What the leg to the hop that is being set up is protected with.
    pub(crate) next_leg: Secret<32>,
    pub(crate) building: Option<Building>,
    filler: Filler,
    /// Next numbers by lane.
    next: [u64; 2],
    /// What came back, by lane.
    windows: [Window; 2],
    pub(crate) used: Time,
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
        path: Vec<Address>,
        next_leg: Secret<32>,
        filler: &Secret<32>,
        (used, until): (Time, Time),
    ) -> Circuit<A> {
        Circuit {
            shape,
            path,
            layers: Vec::new(),
            first: None,
            next_leg,
            building: None,
            filler: Filler::new(filler),
            next: [0; 2],
            windows: [Window::new(WINDOW), Window::new(WINDOW)],
            used,
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

    /// The node at the other end of the first leg.
    pub(crate) fn first_node(&self) -> Option<Address> {
        self.first.as_ref().map(|leg| leg.node)
    }

    /// Adds the hop whose handshake is done.
    pub(crate) fn add(&mut self, secrets: &LayerSecrets) {
        let hop = self.layers.len() as u8 + 1;
        // A path is never longer than the shape has places, and one.
        let Some(place) = self.shape.place(hop) else { return };
        self.next_leg = secrets.next_leg();
        self.layers.push(secrets.expand(self.shape, place));
        self.building = None;
    }

    /// Seals the layers of the first `hops` hops, the innermost first, and writes the leg headers.
    fn wrap(
        &self,
        hops: usize,
        lane: Lane,
        buf: &mut [u8],
        cells: &[(u32, u64)],
        scratch: &mut Scratch,
    ) -> Result<Address, DropReason> {
        let first = self.first.as_ref().ok_or(DropReason::UnknownCircuit)?;
        let layers = &self.layers[..hops];
        for &(start, number) in cells {
            let cell = &mut buf[start as usize..start as usize + CELL_LEN];
            for (at, layer) in layers.iter().enumerate().rev() {
                if lane == Lane::Control && at + 1 < hops {
                    cell[layer.flag_at()] = Flag::Pass as u8;
                }
                layer.seal(Direction::Forward, lane, number, cell);
            }
        }
        first.write(lane, buf, cells, scratch);
        Ok(first.node)
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
        scratch: &mut Scratch,
    ) -> Result<Address, DropReason> {
        if !self.is_built() {
            return Err(DropReason::UnknownCircuit);
        }
        let first = take_numbers(&mut self.next[Lane::Data as usize], offsets.len())?;
        self.used = now;
        let mut live = core::mem::take(&mut scratch.live);
        live.clear();
        live.extend(offsets.iter().copied().zip(first..));
        let tags = BODY_AT + self.shape.unit_len()..CELL_LEN;
        let about = (Direction::Forward, Lane::Data);
        self.filler.fill(about, 2, tags, buf, &live, &mut scratch.blocks);
        // The destination has no layer around units: they have the seal of the two hosts.
        let to = self.wrap(self.layers.len() - 1, Lane::Data, buf, &live, scratch);
        scratch.live = live;
        to
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
        scratch: &mut Scratch,
    ) -> Result<(Address, u64), DropReason> {
        let layer = hop.checked_sub(1).and_then(|at| self.layers.get(at));
        let (flag_at, range) = layer
            .map(|layer| (layer.flag_at(), layer.message_range()))
            .ok_or(DropReason::UnknownCircuit)?;
        let number = take_numbers(&mut self.next[Lane::Control as usize], 1)?;
        let (about, cells) = ((Direction::Forward, Lane::Control), [(0, number)]);
        self.filler.fill(about, 2, BODY_AT..CELL_LEN, cell, &cells, &mut scratch.blocks);
        cell[flag_at] = Flag::Yours as u8;
        message.write(&mut cell[range]).map_err(malformed)?;
        Ok((self.wrap(hop, Lane::Control, cell, &cells, scratch)?, number))
    }

    /// Where the control message of a hop stands in a cell that [`Circuit::open`] opened.
    pub(crate) fn message_range(&self, hop: u8) -> core::ops::Range<usize> {
        self.layers[usize::from(hop) - 1].message_range()
    }

    /// Opens a run of cells that came back from the first hop. `index` is what all of them named,
    /// with its lane. One result for each is added to `out`.
    ///
    /// Results: `unknown_circuit`: it is of another node. `bad_leg`, `replayed`, `too_old`,
    /// `bad_layer`, `malformed`.
    pub(crate) fn handle_run(
        &mut self,
        now: Time,
        (from, lane, index): (Address, Lane, u32),
        buf: &mut [u8],
        offsets: &[u32],
        scratch: &mut Scratch,
        out: &mut Vec<Result<AtOrigin, DropReason>>,
    ) {
        let Some(first) = self.first.as_ref().filter(|leg| leg.node == from) else {
            return out.extend(offsets.iter().map(|_| Err(DropReason::UnknownCircuit)));
        };
        first.read(index, &self.windows[lane as usize], buf, offsets, scratch);
        for (&start, number) in offsets.iter().zip(&scratch.numbers) {
            let cell = &mut buf[start as usize..start as usize + CELL_LEN];
            let opened = number.and_then(|number| self.open(lane, number, cell));
            if opened.is_ok() {
                self.used = now;
            }
            out.push(opened);
        }
    }

    fn open(&mut self, lane: Lane, number: u64, cell: &mut [u8]) -> Result<AtOrigin, DropReason> {
        let window = &mut self.windows[lane as usize];
        is_new(window, number)?;
        window.accept(number as u32);
        let layers = match lane {
            Lane::Data if !self.is_built() => return Err(DropReason::UnknownCircuit),
            Lane::Data => &self.layers[..self.layers.len() - 1],
            Lane::Control => &self.layers[..],
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
