//! One circuit at its origin: every layer, and the set-up of the next hop.

use shoal_crypto::{Aead, Secret};
use shoal_session::noise::Initiator;
use shoal_session::replay::Window;
use shoal_wire::leg::{BODY_AT, Flag, Message, Shape};
use shoal_wire::{Address, DropReason, Time};

use crate::hop::{Leg, WINDOW};
use crate::layer::{Filler, Layer, LayerSecrets};
use crate::leg::{CELLS_MAX, Direction, Lane};
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
#[derive(Debug, PartialEq, Eq)]
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

    fn take_number(&mut self, lane: Lane) -> Result<u64, DropReason> {
        let number = self.next[lane as usize];
        if number >= CELLS_MAX {
            return Err(DropReason::CircuitExpired);
        }
        self.next[lane as usize] += 1;
        Ok(number)
    }

    /// Seals the layers of the first `hops` hops, the innermost first, and writes the leg header.
    fn wrap(
        &self,
        hops: usize,
        lane: Lane,
        number: u64,
        cell: &mut [u8],
    ) -> Result<Address, DropReason> {
        for layer in self.layers[..hops].iter().rev() {
            if lane == Lane::Control && layer.place() != self.layers[hops - 1].place() {
                cell[layer.flag_at()] = Flag::Pass as u8;
            }
            layer.seal(Direction::Forward, lane, number, cell);
        }
        let first = self.first.as_ref().ok_or(DropReason::UnknownCircuit)?;
        first.write(lane, number, cell);
        Ok(first.node)
    }

    /// Wraps the unit in a cell for the destination. Says where the cell goes.
    ///
    /// # Errors
    ///
    /// `unknown_circuit`: it is not built. `circuit_expired`: no number is left.
    pub(crate) fn seal_unit(&mut self, now: Time, cell: &mut [u8]) -> Result<Address, DropReason> {
        if !self.is_built() {
            return Err(DropReason::UnknownCircuit);
        }
        let number = self.take_number(Lane::Data)?;
        self.used = now;
        let about = (Direction::Forward, Lane::Data, number);
        self.filler.fill(about, 2, &mut cell[BODY_AT + self.shape.unit_len()..]);
        // The destination has no layer around units: they have the seal of the two hosts.
        self.wrap(self.layers.len() - 1, Lane::Data, number, cell)
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
    ) -> Result<(Address, u64), DropReason> {
        let layer = hop.checked_sub(1).and_then(|at| self.layers.get(at));
        let (flag_at, range) = layer
            .map(|layer| (layer.flag_at(), layer.message_range()))
            .ok_or(DropReason::UnknownCircuit)?;
        let number = self.take_number(Lane::Control)?;
        self.filler.fill((Direction::Forward, Lane::Control, number), 2, &mut cell[BODY_AT..]);
        cell[flag_at] = Flag::Yours as u8;
        message.write(&mut cell[range]).map_err(malformed)?;
        Ok((self.wrap(hop, Lane::Control, number, cell)?, number))
    }

    /// Where the control message of a hop stands in a cell that [`Circuit::open`] opened.
    pub(crate) fn message_range(&self, hop: u8) -> core::ops::Range<usize> {
        self.layers[usize::from(hop) - 1].message_range()
    }

    /// Opens what came back from the first hop.
    ///
    /// # Errors
    ///
    /// `unknown_circuit`: it is of another node. `bad_leg`, `replayed`, `too_old`, `bad_layer`,
    /// `malformed`.
    pub(crate) fn open(
        &mut self,
        now: Time,
        from: Address,
        lane: Lane,
        index: u32,
        cell: &mut [u8],
    ) -> Result<AtOrigin, DropReason> {
        let first = self.first.as_ref().filter(|leg| leg.node == from);
        let window = &mut self.windows[lane as usize];
        let number = first.ok_or(DropReason::UnknownCircuit)?.read(index, window, cell)?;
        window.accept(number as u32);
        let layers = match lane {
            Lane::Data if !self.is_built() => return Err(DropReason::UnknownCircuit),
            Lane::Data => &self.layers[..self.layers.len() - 1],
            Lane::Control => &self.layers[..],
        };
        for (hop, layer) in (1..).zip(layers) {
            layer.open(Direction::Backward, lane, number, cell)?;
            if lane == Lane::Control
                && Flag::from_byte(cell[layer.flag_at()]).map_err(malformed)? == Flag::Yours
            {
                self.used = now;
                return Ok(AtOrigin::Message(hop, number));
            }
        }
        match lane {
            Lane::Data => {
                self.used = now;
                Ok(AtOrigin::Unit)
            }
            Lane::Control => Err(DropReason::Malformed),
        }
    }
}
