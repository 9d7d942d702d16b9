//! One circuit at a node that is not its origin: a relay on the way, or the host at its end.

use shoal_crypto::{Aead, MaskKey, Secret};
use shoal_session::replay::Window;
use shoal_wire::leg::{BODY_AT, CELL_LEN, Flag, Grant, Message, Shape};
use shoal_wire::{Address, DropReason, Time};

use crate::layer::{Filler, Layer};
use crate::leg::{CELLS_MAX, Direction, Lane, LegKeys};
use crate::setup::malformed;
use crate::slots::for_lane;

/// Counters that the window of a lane spans: how far cells may overtake each other.
pub(crate) const WINDOW: u32 = 8_192;

/// What is needed to send over a leg and to receive from it.
pub(crate) struct Leg {
    /// The node at the other end.
    pub(crate) node: Address,
    send: LegKeys,
    receive: LegKeys,
    index: u32,
    index_mask: MaskKey,
}

impl Leg {
    /// The leg to `node`, which told us `grant`. `sends` is the direction of what we send.
    pub(crate) fn new(node: Address, secret: &Secret<32>, grant: &Grant, sends: Direction) -> Leg {
        let (send, receive) = match sends {
            Direction::Forward => (Direction::Forward, Direction::Backward),
            Direction::Backward => (Direction::Backward, Direction::Forward),
        };
        Leg {
            node,
            send: LegKeys::new(secret, send),
            receive: LegKeys::new(secret, receive),
            index: grant.index,
            index_mask: MaskKey::new(&grant.mask),
        }
    }

    /// Writes the header of a cell that leaves over the leg.
    pub(crate) fn write(&self, lane: Lane, counter: u64, cell: &mut [u8]) {
        self.send.write(&self.index_mask, for_lane(self.index, lane), counter, cell);
    }

    /// See [`LegKeys::read`].
    pub(crate) fn read(&self, index: u32, window: &Window, cell: &[u8]) -> Result<u64, DropReason> {
        self.receive.read(index, window, cell)
    }
}

/// What goes on behind this node.
pub(crate) enum Next {
    /// Nothing: the circuit ends here.
    End,
    /// A create cell was sent, asked for by the control message of this number.
    Asked {
        /// The number that the answer to the origin has.
        number: u64,
    },
    /// The next hop.
    Leg(Box<Leg>),
}

/// A circuit's state at one hop.
pub(crate) struct Hop<A> {
    pub(crate) shape: Shape,
    pub(crate) layer: Layer<A>,
    filler: Filler,
    /// What the leg to the next hop is protected with.
    pub(crate) next_leg: Secret<32>,
    pub(crate) prev: Leg,
    pub(crate) next: Next,
    /// By direction and lane.
    windows: [[Window; 2]; 2],
    /// Units that this node has sent back as the end of the circuit.
    sent: u64,
    /// A cell came, so that the one who asked has the keys.
    pub(crate) confirmed: bool,
    pub(crate) used: Time,
    pub(crate) until: Time,
}

/// What became of a cell at a hop.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AtHop {
    /// It goes on to this node.
    On(Address),
    /// Its unit is for this node.
    Unit,
    /// Its control message of this number is for this node.
    Message(u64),
}

impl<A: Aead> Hop<A> {
    pub(crate) fn new(
        shape: Shape,
        layer: Layer<A>,
        filler: &Secret<32>,
        next_leg: Secret<32>,
        prev: Leg,
        (used, until): (Time, Time),
    ) -> Hop<A> {
        let window = || Window::new(WINDOW);
        Hop {
            shape,
            layer,
            filler: Filler::new(filler),
            next_leg,
            prev,
            next: Next::End,
            windows: [[window(), window()], [window(), window()]],
            sent: 0,
            confirmed: false,
            used,
            until,
        }
    }

    /// Takes a cell of `from` in and changes it in place. `index` is what it named.
    ///
    /// # Errors
    ///
    /// `unknown_circuit`: it is of a node that is no neighbour on this circuit. `bad_leg`,
    /// `replayed`, `too_old`, `bad_layer`, `malformed`.
    pub(crate) fn handle(
        &mut self,
        now: Time,
        from: Address,
        lane: Lane,
        index: u32,
        cell: &mut [u8],
    ) -> Result<AtHop, DropReason> {
        let went = if from == self.prev.node {
            self.forward(lane, index, cell)?
        } else {
            self.backward(from, lane, index, cell)?
        };
        self.confirmed = true;
        self.used = now;
        Ok(went)
    }

    fn forward(&mut self, lane: Lane, index: u32, cell: &mut [u8]) -> Result<AtHop, DropReason> {
        let window = &mut self.windows[Direction::Forward as usize][lane as usize];
        let number = self.prev.read(index, window, cell)?;
        let ends = !matches!(self.next, Next::Leg(_));
        if ends && lane == Lane::Data {
            // The unit has a seal of its own, between the two hosts.
            window.accept(number as u32);
            return Ok(AtHop::Unit);
        }
        self.layer.open(Direction::Forward, lane, number, cell)?;
        window.accept(number as u32);
        if lane == Lane::Control
            && Flag::from_byte(cell[self.layer.flag_at()]).map_err(malformed)? == Flag::Yours
        {
            return Ok(AtHop::Message(number));
        }
        let Next::Leg(next) = &self.next else { return Err(DropReason::UnknownCircuit) };
        self.layer.fill_opened(&self.filler, lane, number, cell);
        next.write(lane, number, cell);
        Ok(AtHop::On(next.node))
    }

    fn backward(
        &mut self,
        from: Address,
        lane: Lane,
        index: u32,
        cell: &mut [u8],
    ) -> Result<AtHop, DropReason> {
        let Next::Leg(next) = &self.next else { return Err(DropReason::UnknownCircuit) };
        if next.node != from {
            return Err(DropReason::UnknownCircuit);
        }
        let window = &mut self.windows[Direction::Backward as usize][lane as usize];
        let number = next.read(index, window, cell)?;
        // Before anything is sealed: no number seals twice.
        window.accept(number as u32);
        if lane == Lane::Control {
            cell[self.layer.flag_at()] = Flag::Pass as u8;
        }
        self.send_back(lane, number, cell);
        Ok(AtHop::On(self.prev.node))
    }

    /// Seals a cell on its way back and writes the header of the leg to the node before.
    fn send_back(&self, lane: Lane, number: u64, cell: &mut [u8]) {
        self.layer.fill_sealed(&self.filler, lane, number, cell);
        self.layer.seal(Direction::Backward, lane, number, cell);
        self.prev.write(lane, number, cell);
    }

    /// Sends a unit back as the end of the circuit; it stands in the cell. Says to whom.
    ///
    /// # Errors
    ///
    /// `circuit_expired`: no number is left. `unknown_circuit`: the circuit goes on behind us.
    pub(crate) fn seal_unit(&mut self, now: Time, cell: &mut [u8]) -> Result<Address, DropReason> {
        if !matches!(self.next, Next::End) {
            return Err(DropReason::UnknownCircuit);
        }
        let number = self.sent;
        if number >= CELLS_MAX {
            return Err(DropReason::CircuitExpired);
        }
        self.sent += 1;
        self.used = now;
        let about = (Direction::Backward, Lane::Data, number);
        self.filler.fill(about, 2, &mut cell[BODY_AT + self.shape.unit_len()..]);
        self.prev.write(Lane::Data, number, cell);
        Ok(self.prev.node)
    }

    /// The cell that answers the control message `number`. Each is answered at most once.
    ///
    /// # Errors
    ///
    /// `replayed`, `too_old`: the number was used.
    pub(crate) fn reply(
        &mut self,
        number: u64,
        message: &Message<'_>,
    ) -> Result<Box<[u8; CELL_LEN]>, DropReason> {
        let window = &mut self.windows[Direction::Backward as usize][Lane::Control as usize];
        window.check(number as u32).map_err(|_| DropReason::Replayed)?;
        window.accept(number as u32);
        let mut cell = Box::new([0; CELL_LEN]);
        let about = (Direction::Backward, Lane::Control, number);
        self.filler.fill(about, 2, &mut cell[BODY_AT..]);
        cell[self.layer.flag_at()] = Flag::Yours as u8;
        message.write(&mut cell[self.layer.message_range()]).map_err(malformed)?;
        self.send_back(Lane::Control, number, &mut cell[..]);
        Ok(cell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::LayerSecrets;
    use shoal_crypto::{AeadKey, Suite};
    use shoal_session::noise::Split;

    /// A hop answers a control message under its number. The node behind it must not get that
    /// number sealed again.
    #[test]
    fn a_number_that_was_answered_is_not_sealed_again() {
        let secret = |n| Secret::new([n; 32]);
        let grant = |n| Grant { index: 5, mask: [n; 32] };
        let shape = Shape::new(3).unwrap();
        let (prev, next) = (Address::new(1, 0), Address::new(2, 0));
        let split = Split { forth: secret(1), back: secret(2) };
        let layer = LayerSecrets::new(Suite::Aes256Gcm, &split).expand::<AeadKey>(shape, 2);
        let times = (Time::ZERO, Time::ZERO);
        let leg = Leg::new(prev, &secret(3), &grant(3), Direction::Backward);
        let mut hop = Hop::new(shape, layer, &secret(4), secret(5), leg, times);
        hop.next = Next::Leg(Box::new(Leg::new(next, &secret(5), &grant(5), Direction::Forward)));
        let behind = Leg::new(Address::new(3, 0), &secret(5), &grant(6), Direction::Backward);
        let send = |hop: &mut Hop<AeadKey>, number| {
            let mut cell = [9; CELL_LEN];
            behind.write(Lane::Control, number, &mut cell);
            let index = for_lane(5, Lane::Control);
            hop.handle(Time::ZERO, next, Lane::Control, index, &mut cell)
        };
        assert_eq!(send(&mut hop, 6), Ok(AtHop::On(prev)));
        assert!(hop.reply(6, &Message::Echoed(1)).is_err());
        assert!(hop.reply(7, &Message::Echoed(1)).is_ok());
        assert!(hop.reply(7, &Message::Echoed(1)).is_err());
        assert_eq!(send(&mut hop, 7), Err(DropReason::Replayed));
    }
}
