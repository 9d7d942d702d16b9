//! One circuit at a node that is not its origin: a relay on the way, or the host at its end.

use shoal_crypto::{Aead, MaskKey, Secret};
use shoal_session::replay::Window;
use shoal_wire::leg::{BODY_AT, CELL_LEN, Flag, Grant, Message, Shape};
use shoal_wire::{Address, DropReason, Time};

use crate::layer::{Filler, Layer};
use crate::leg::{CELLS_MAX, Direction, Lane, LegKeys, Scratch, is_new};
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

    /// Writes the headers of cells that leave over the leg: see [`LegKeys::write_run`].
    pub(crate) fn write(
        &self,
        lane: Lane,
        buf: &mut [u8],
        cells: &[(u32, u64)],
        scratch: &mut Scratch,
    ) {
        let index = for_lane(self.index, lane);
        self.send.write_run(&self.index_mask, index, buf, cells, scratch);
    }

    /// See [`LegKeys::read_run`].
    pub(crate) fn read(
        &self,
        index: u32,
        window: &Window,
        buf: &[u8],
        offsets: &[u32],
        scratch: &mut Scratch,
    ) {
        self.receive.read_run(index, window, buf, offsets, scratch);
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    /// Takes a run of cells of `from` in and changes them in place. `index` is what all of them
    /// named, with its lane. One result for each is added to `out`.
    ///
    /// Results: `unknown_circuit`: it is of a node that is no neighbour on this circuit. `bad_leg`,
    /// `replayed`, `too_old`, `bad_layer`, `malformed`.
    pub(crate) fn handle_run(
        &mut self,
        now: Time,
        (from, lane, index): (Address, Lane, u32),
        buf: &mut [u8],
        offsets: &[u32],
        scratch: &mut Scratch,
        out: &mut Vec<Result<AtHop, DropReason>>,
    ) {
        let before = out.len();
        let from_next = matches!(&self.next, Next::Leg(next) if next.node == from);
        if from == self.prev.node {
            self.forward(lane, index, buf, offsets, scratch, out);
        } else if from_next {
            self.backward(lane, index, buf, offsets, scratch, out);
        } else {
            out.extend(offsets.iter().map(|_| Err(DropReason::UnknownCircuit)));
        }
        if out[before..].iter().any(Result::is_ok) {
            self.confirmed = true;
            self.used = now;
        }
    }

    fn forward(
        &mut self,
        lane: Lane,
        index: u32,
        buf: &mut [u8],
        offsets: &[u32],
        scratch: &mut Scratch,
        out: &mut Vec<Result<AtHop, DropReason>>,
    ) {
        let window = &self.windows[Direction::Forward as usize][lane as usize];
        self.prev.read(index, window, buf, offsets, scratch);
        scratch.live.clear();
        for (&start, number) in offsets.iter().zip(&scratch.numbers) {
            let cell = &mut buf[start as usize..start as usize + CELL_LEN];
            let went = number.and_then(|number| self.open(lane, number, cell));
            if let (Ok(AtHop::On(_)), Ok(number)) = (&went, *number) {
                scratch.live.push((start, number));
            }
            out.push(went);
        }
        if let Next::Leg(next) = &self.next {
            let live = core::mem::take(&mut scratch.live);
            self.layer.fill_opened(&self.filler, lane, buf, &live, &mut scratch.blocks);
            next.write(lane, buf, &live, scratch);
            scratch.live = live;
        }
    }

    /// Opens this hop's layer of a cell whose check held, and says where the cell goes.
    fn open(&mut self, lane: Lane, number: u64, cell: &mut [u8]) -> Result<AtHop, DropReason> {
        let window = &mut self.windows[Direction::Forward as usize][lane as usize];
        // Two cells of a run may have one number.
        is_new(window, number)?;
        if !matches!(self.next, Next::Leg(_)) && lane == Lane::Data {
            // The unit has a seal of its own, between the two hosts.
            window.accept(number as u32);
            return Ok(AtHop::Unit);
        }
        self.layer.open(Direction::Forward, lane, number, cell)?;
        window.accept(number as u32);
        if lane == Lane::Control {
            let flag = Flag::from_byte(cell[self.layer.flag_at()]).map_err(malformed)?;
            if flag == Flag::Yours {
                return Ok(AtHop::Message(number));
            }
        }
        match &self.next {
            Next::Leg(next) => Ok(AtHop::On(next.node)),
            _ => Err(DropReason::UnknownCircuit),
        }
    }

    fn backward(
        &mut self,
        lane: Lane,
        index: u32,
        buf: &mut [u8],
        offsets: &[u32],
        scratch: &mut Scratch,
        out: &mut Vec<Result<AtHop, DropReason>>,
    ) {
        let Next::Leg(next) = &self.next else { return };
        let window = &mut self.windows[Direction::Backward as usize][lane as usize];
        next.read(index, window, buf, offsets, scratch);
        scratch.live.clear();
        for (&start, number) in offsets.iter().zip(&scratch.numbers) {
            let new = number.and_then(|number| is_new(window, number).map(|()| number));
            out.push(new.map(|number| {
                // Before anything is sealed: no number seals twice.
                window.accept(number as u32);
                scratch.live.push((start, number));
                AtHop::On(self.prev.node)
            }));
        }
        let live = core::mem::take(&mut scratch.live);
        if lane == Lane::Control {
            for &(start, _) in &live {
                buf[start as usize + self.layer.flag_at()] = Flag::Pass as u8;
            }
        }
        self.send_back(lane, buf, &live, scratch);
        scratch.live = live;
    }

    /// Seals cells on their way back and writes the header of the leg to the node before.
    fn send_back(&self, lane: Lane, buf: &mut [u8], cells: &[(u32, u64)], scratch: &mut Scratch) {
        self.layer.fill_sealed(&self.filler, lane, buf, cells, &mut scratch.blocks);
        for &(start, number) in cells {
            let cell = &mut buf[start as usize..start as usize + CELL_LEN];
            self.layer.seal(Direction::Backward, lane, number, cell);
        }
        self.prev.write(lane, buf, cells, scratch);
    }

    /// Sends units back as the end of the circuit; they stand in the cells. Says to whom.
    ///
    /// # Errors
    ///
    /// `circuit_expired`: no numbers are left. `unknown_circuit`: the circuit goes on behind us.
    /// Nothing was changed.
    pub(crate) fn seal_units(
        &mut self,
        now: Time,
        buf: &mut [u8],
        offsets: &[u32],
        scratch: &mut Scratch,
    ) -> Result<Address, DropReason> {
        if !matches!(self.next, Next::End) {
            return Err(DropReason::UnknownCircuit);
        }
        let first = take_numbers(&mut self.sent, offsets.len())?;
        self.used = now;
        let about = (Direction::Backward, Lane::Data);
        let mut live = core::mem::take(&mut scratch.live);
        live.clear();
        live.extend(offsets.iter().copied().zip(first..));
        let tags = BODY_AT + self.shape.unit_len()..CELL_LEN;
        self.filler.fill(about, 2, tags, buf, &live, &mut scratch.blocks);
        self.prev.write(Lane::Data, buf, &live, scratch);
        scratch.live = live;
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
        scratch: &mut Scratch,
    ) -> Result<Box<[u8; CELL_LEN]>, DropReason> {
        let window = &mut self.windows[Direction::Backward as usize][Lane::Control as usize];
        is_new(window, number)?;
        window.accept(number as u32);
        let mut cell = Box::new([0; CELL_LEN]);
        let (about, cells) = ((Direction::Backward, Lane::Control), [(0, number)]);
        let blocks = &mut scratch.blocks;
        self.filler.fill(about, 2, BODY_AT..CELL_LEN, &mut cell[..], &cells, blocks);
        cell[self.layer.flag_at()] = Flag::Yours as u8;
        message.write(&mut cell[self.layer.message_range()]).map_err(malformed)?;
        self.send_back(Lane::Control, &mut cell[..], &cells, scratch);
        Ok(cell)
    }
}

/// Takes numbers for `count` cells: the first of them.
///
/// # Errors
///
/// `circuit_expired`: so many are not left. None is taken.
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
            let (mut cell, mut out) = ([9; CELL_LEN], Vec::new());
            let mut scratch = Scratch::default();
            behind.write(Lane::Control, &mut cell, &[(0, number)], &mut scratch);
            let about = (next, Lane::Control, for_lane(5, Lane::Control));
            hop.handle_run(Time::ZERO, about, &mut cell, &[0], &mut scratch, &mut out);
            out[0]
        };
        assert_eq!(send(&mut hop, 6), Ok(AtHop::On(prev)));
        assert!(hop.reply(6, &Message::Echoed(1), &mut Scratch::default()).is_err());
        assert!(hop.reply(7, &Message::Echoed(1), &mut Scratch::default()).is_ok());
        assert!(hop.reply(7, &Message::Echoed(1), &mut Scratch::default()).is_err());
        assert_eq!(send(&mut hop, 7), Err(DropReason::Replayed));
    }
}
