//! One circuit at a node that is not its origin: a relay on the way, or the host at its end.

use shoal_crypto::{Aead, Flaw};
use shoal_session::replay::Window;
use shoal_wire::leg::{BODY_AT, CELL_LEN, Flag, Message, Shape};
use shoal_wire::{Address, CircuitId, DropReason, Mixing, Strategy, Time};

use crate::inbox::Inbox;
use crate::layer::{Filler, Filling, Layer};
use crate::leg::{CELLS_MAX, Direction, Going, Lane, Leg, Scratch, SendKeys, is_new};
use crate::room::{Carried, Tenant};
use crate::setup::{Cell, malformed};

/// Counters that the window of the data lane spans: how far cells may overtake each other.
pub(crate) const WINDOW: u32 = 8_192;
/// The same where relays delay cells: 0.39 s of full cells at 1 Gbit/s.
pub(crate) const WINDOW_MIXED: u32 = 32_768;
/// The same while the hop is cold.
const WINDOW_COLD: u32 = 64;
/// The same of the control lane, which carries few cells.
const WINDOW_CONTROL: u32 = 512;
/// What a warm hop takes beside what a cold one does, in bytes: two data windows, and the expanded
/// keys of both directions and lanes.
pub(crate) const WARM_LEN: usize = 2 * 2_048 + 4 * 1_024;
/// Places that a hop takes at most.
pub(crate) const WARM_PLACES_MAX: usize = 3;

/// How far cells of the data lane may overtake each other where the origin said this.
fn window(mixing: Mixing) -> u32 {
    if mixing == Mixing::Relay(Strategy::Pass) { WINDOW } else { WINDOW_MIXED }
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
    Leg(Leg),
}

/// The newest handshake of the origin's session that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Its number on the circuit.
    pub(crate) number: u8,
    /// The numbers of its two cells, under which the answer leaves.
    pub(crate) cells: [u64; 2],
}

/// A circuit's state at one hop.
pub(crate) struct Hop<A> {
    pub(crate) shape: Shape,
    pub(crate) layer: Layer<A>,
    pub(crate) prev: Leg,
    pub(crate) next: Next,
    /// By direction and lane.
    windows: [[Window; 2]; 2],
    /// Units that this node has sent back as the end of the circuit.
    sent: u64,
    /// Of a handshake that comes from the origin's session, as the end of the circuit.
    pub(crate) inbox: Inbox,
    pub(crate) asked: Option<Asked>,
    /// A cell came, so that the one who asked has the keys.
    pub(crate) confirmed: bool,
    /// Its windows may grow, and its keys stay expanded.
    pub(crate) warm: bool,
    /// Cells of the data lane that passed of late: half as many each second.
    pub(crate) lately: u32,
    /// What keeps its place when others need one.
    pub(crate) carried: Carried,
    pub(crate) born: Time,
    pub(crate) used: Time,
    pub(crate) until: Time,
    pub(crate) mixing: Mixing,
}

/// What became of a cell at a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtHop {
    /// It goes on to this node, at this time if it has to wait.
    On(Address, Option<Time>),
    /// Its unit is for this node.
    Unit,
    /// Its control message of this number is for this node.
    Message(u64),
}

/// Where cells of a batch go that leave.
pub(crate) struct Leaving<'a> {
    pub(crate) going: &'a mut Vec<Going>,
    pub(crate) fill: &'a mut Filling,
}

impl<A: Aead> Hop<A> {
    pub(crate) fn new(
        shape: Shape,
        layer: Layer<A>,
        prev: Leg,
        (born, until): (Time, Time),
        mixing: Mixing,
    ) -> Hop<A> {
        let windows = || [Window::new(WINDOW_COLD), Window::new(WINDOW_CONTROL)];
        let layer = match mixing {
            Mixing::Relay(strategy) => layer.mixed(strategy),
            Mixing::Path { .. } => layer,
        };
        Hop {
            shape,
            layer,
            prev,
            next: Next::End,
            windows: [windows(), windows()],
            sent: 0,
            inbox: Inbox::default(),
            asked: None,
            confirmed: false,
            warm: false,
            lately: 0,
            carried: Carried::Nothing,
            born,
            used: born,
            until,
            mixing,
        }
    }

    /// What its place depends on, if it is the circuit `id`.
    pub(crate) fn tenant(&self, id: CircuitId) -> Tenant {
        Tenant { id, from: self.prev.node, born: self.born }
    }

    /// How many places of [`WARM_LEN`] bytes it takes while it is warm: its windows are four times
    /// as long where relays delay cells.
    pub(crate) fn warm_places(&self) -> usize {
        if window(self.mixing) == WINDOW { 1 } else { WARM_PLACES_MAX }
    }

    /// Lets the windows grow and the keys stay.
    pub(crate) fn heat(&mut self) {
        self.warm = true;
        for windows in &mut self.windows {
            windows[Lane::Data as usize].set_span(window(self.mixing));
        }
    }

    /// Shrinks the hop to what it must keep. What a window has forgotten is too old from then on.
    pub(crate) fn cool(&mut self) {
        self.warm = false;
        self.layer.cool();
        for windows in &mut self.windows {
            windows[Lane::Data as usize].set_span(WINDOW_COLD);
        }
    }

    fn direction(&self, from: Address) -> Option<Direction> {
        match &self.next {
            _ if from == self.prev.node => Some(Direction::Forward),
            Next::Leg(next) if next.node == from => Some(Direction::Backward),
            _ => None,
        }
    }

    /// The number that is expected next of this node; none if it is no neighbour on this circuit.
    pub(crate) fn expected(&self, from: Address, lane: Lane) -> Option<u64> {
        let direction = self.direction(from)?;
        Some(self.windows[direction as usize][lane as usize].next().into())
    }

    /// Takes a run of cells of `from` in, whose checks held or not, as `numbers` says, and changes
    /// them in place. One result for each is added to `out`.
    ///
    /// Results: those of `numbers`, `replayed`, `too_old`, `bad_layer`, `malformed`,
    /// `unexpected_reply`.
    pub(crate) fn handle_run(
        &mut self,
        now: Time,
        (from, lane): (Address, Lane),
        buf: &mut [u8],
        cells: (&[u32], &[Result<u64, DropReason>]),
        leaving: &mut Leaving<'_>,
        out: &mut Vec<Result<AtHop, DropReason>>,
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
        lane: Lane,
        buf: &mut [u8],
        (offsets, numbers): (&[u32], &[Result<u64, DropReason>]),
        leaving: &mut Leaving<'_>,
        out: &mut Vec<Result<AtHop, DropReason>>,
    ) {
        let parts = self.layer.opened(lane);
        self.layer.foresee(Direction::Forward, lane, numbers);
        for (&start, number) in offsets.iter().zip(numbers) {
            let cell = &mut buf[start as usize..start as usize + CELL_LEN];
            let went = number.and_then(|number| self.open(now, lane, number, cell));
            if let (Ok(AtHop::On(..)), Ok(number), Next::Leg(next)) = (&went, *number, &self.next) {
                leaving.going.push(next.going(lane, start, number));
                if A::flaw() != Some(Flaw::NoFiller) {
                    parts.iter().for_each(|part| leaving.fill.note(start, part));
                }
            }
            out.push(went);
        }
    }

    /// Opens this hop's layer of a cell whose check held, and says where the cell goes.
    fn open(
        &mut self,
        now: Time,
        lane: Lane,
        number: u64,
        cell: &mut [u8],
    ) -> Result<AtHop, DropReason> {
        let window = &mut self.windows[Direction::Forward as usize][lane as usize];
        if A::flaw() != Some(Flaw::LayerReplayed) {
            is_new(window, number)?;
        }
        if !matches!(self.next, Next::Leg(_)) && lane == Lane::Data {
            // The unit has a seal of its own, between the two hosts.
            window.accept(number as u32);
            return Ok(AtHop::Unit);
        }
        let opened = self.layer.open(Direction::Forward, lane, number, cell);
        if A::flaw() != Some(Flaw::LayerUnverified) {
            opened?;
        }
        window.accept(number as u32);
        if lane == Lane::Control {
            let flag = Flag::from_byte(cell[self.layer.flag_at()]).map_err(malformed)?;
            if flag == Flag::Yours {
                return Ok(AtHop::Message(number));
            }
        }
        match &self.next {
            Next::Leg(next) => {
                let due = self.layer.due(now, Direction::Forward, lane, number);
                Ok(AtHop::On(next.node, due))
            }
            _ => Err(DropReason::UnknownCircuit),
        }
    }

    fn backward(
        &mut self,
        now: Time,
        lane: Lane,
        buf: &mut [u8],
        (offsets, numbers): (&[u32], &[Result<u64, DropReason>]),
        leaving: &mut Leaving<'_>,
        out: &mut Vec<Result<AtHop, DropReason>>,
    ) {
        let parts = self.layer.unsealed(lane);
        self.layer.foresee(Direction::Backward, lane, numbers);
        // What comes back on the control lane answers a request that passed here, and has its
        // number. One that is ahead would leave the answers of this hop behind the window.
        let end = match lane {
            Lane::Data => CELLS_MAX,
            Lane::Control => self.windows[Direction::Forward as usize][lane as usize].next().into(),
        };
        let window = &mut self.windows[Direction::Backward as usize][lane as usize];
        for (&start, number) in offsets.iter().zip(numbers) {
            let asked = number.and_then(|number| match number < end {
                true => Ok(number),
                false => Err(DropReason::UnexpectedReply),
            });
            let new = asked.and_then(|number| match A::flaw() {
                Some(Flaw::BackReplayed) => Ok(number),
                _ => is_new(window, number).map(|()| number),
            });
            out.push(new.map(|number| {
                // Before anything is sealed: no number seals twice.
                window.accept(number as u32);
                let cell = &mut buf[start as usize..start as usize + CELL_LEN];
                if lane == Lane::Control {
                    cell[self.layer.flag_at()] = Flag::Pass as u8;
                }
                self.layer.seal(Direction::Backward, lane, number, cell);
                leaving.going.push(self.prev.going(lane, start, number));
                parts.iter().for_each(|part| leaving.fill.note(start, part));
                AtHop::On(self.prev.node, self.layer.due(now, Direction::Backward, lane, number))
            }));
        }
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
        tools: &mut Tools<'_>,
    ) -> Result<Address, DropReason> {
        if !matches!(self.next, Next::End) {
            return Err(DropReason::UnknownCircuit);
        }
        let first = take_numbers(&mut self.sent, offsets.len())?;
        self.used = now;
        let tags = BODY_AT + self.shape.unit_len()..CELL_LEN;
        tools.scratch.going.clear();
        for (&start, number) in offsets.iter().zip(first..) {
            tools.scratch.going.push(self.prev.going(Lane::Data, start, number));
            tools.scratch.fill.note(start, &tags);
        }
        tools.finish(buf);
        Ok(self.prev.node)
    }

    /// The cell that answers the control message `number`, and when it leaves if it has to wait.
    /// Each is answered at most once.
    ///
    /// # Errors
    ///
    /// `replayed`, `too_old`: the number was used.
    pub(crate) fn reply(
        &mut self,
        now: Time,
        number: u64,
        message: &Message<'_>,
        tools: &mut Tools<'_>,
    ) -> Result<(Cell, Option<Time>), DropReason> {
        let window = &mut self.windows[Direction::Backward as usize][Lane::Control as usize];
        is_new(window, number)?;
        window.accept(number as u32);
        let mut cell: Cell = Box::new([0; CELL_LEN]);
        tools.scratch.fill.note(0, &(BODY_AT..CELL_LEN));
        tools.filler.fill(&mut cell[..], &mut tools.scratch.fill);
        cell[self.layer.flag_at()] = Flag::Yours as u8;
        message.write(&mut cell[self.layer.message_range()]).map_err(malformed)?;
        self.layer.seal(Direction::Backward, Lane::Control, number, &mut cell[..]);
        tools.scratch.going.clear();
        tools.scratch.going.push(self.prev.going(Lane::Control, 0, number));
        tools.finish(&mut cell[..]);
        let due = self.layer.due(now, Direction::Backward, Lane::Control, number);
        if !self.warm {
            self.layer.cool();
        }
        Ok((cell, due))
    }
}

/// What is needed to send cells at once.
pub(crate) struct Tools<'a> {
    pub(crate) filler: &'a mut Filler,
    pub(crate) keys: &'a SendKeys,
    pub(crate) scratch: &'a mut Scratch,
}

impl Tools<'_> {
    /// Fills what is noted, and writes the heads of what is going.
    pub(crate) fn finish(&mut self, buf: &mut [u8]) {
        let Scratch { fill, going, blocks, .. } = &mut *self.scratch;
        self.filler.fill(buf, fill);
        self.keys.write(buf, going, blocks);
        going.clear();
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
    use crate::leg::LegKey;
    use shoal_crypto::{AeadKey, Secret, Suite};
    use shoal_session::noise::Split;
    use shoal_wire::MixTime;
    use shoal_wire::leg::Grant;

    impl<A> Hop<A> {
        fn windows_len(&self) -> usize {
            self.windows.iter().flatten().map(Window::heap_len).sum()
        }
    }

    fn hop(keys: &mut SendKeys, suite: Suite) -> Hop<AeadKey> {
        let split = Split { forth: Secret::new([1; 32]), back: Secret::new([2; 32]) };
        let shape = Shape::new(3).unwrap();
        let layer = LayerSecrets::new(suite, &split).layer(shape, 2);
        let grant = Grant { index: 5, key: [3; 32] };
        let prev = Leg::new(Address::new(1, 0), &grant, keys);
        let times = (Time::ZERO, Time::ZERO);
        let mut hop = Hop::new(shape, layer, prev, times, Mixing::default());
        hop.next = Next::Leg(Leg::new(Address::new(2, 0), &grant, keys));
        hop
    }

    /// 16,384 circuits must fit 96 MB: a kilobyte each while nothing passes, and the pool.
    #[test]
    fn a_cold_hop_is_small_and_a_warm_one_what_the_pool_counts() {
        // Beside itself what the allocator adds, the slot, and two places in the order in which
        // unused circuits give way: trees that are half full.
        let beside = 16 + 24 + 2 * (size_of::<(Time, CircuitId)>() + size_of::<Tenant>() + 2);
        let cold = size_of::<Hop<AeadKey>>() + beside;
        let mut keys = SendKeys::default();
        let mut hop = hop(&mut keys, Suite::Aes256Gcm);
        assert_eq!(hop.windows_len(), 0);
        let traffic = |hop: &mut Hop<AeadKey>| {
            for window in hop.windows.iter_mut().flatten() {
                let first = window.next();
                (first..first + 20_000).for_each(|number| _ = window.accept(number));
            }
        };
        traffic(&mut hop);
        let cold = cold + hop.windows_len();
        assert!(cold <= 1_000, "{cold}");
        // At worst no two legs have one key.
        let keys_len = 2 * (size_of::<LegKey>() + 200);
        assert!(16_384 * (cold + keys_len) + 32_000_000 < 96_000_000);
        hop.heat();
        traffic(&mut hop);
        // Four expanded keys of AES-256-GCM take some 600 bytes each.
        assert!(hop.windows_len() + 4 * 1_000 <= WARM_LEN + 300, "{}", hop.windows_len());
        let mut mixed = self::hop(&mut keys, Suite::Aes256Gcm);
        mixed.mixing = Mixing::Path { mean: MixTime::MAX, hold: MixTime::MAX };
        mixed.heat();
        let first = mixed.windows[0][0].next();
        for window in mixed.windows.iter_mut().flatten() {
            (first..first + 60_000).for_each(|number| _ = window.accept(number));
        }
        let len = mixed.windows_len() + 4 * 1_000;
        assert!(len <= mixed.warm_places() * WARM_LEN && hop.warm_places() == 1, "{len}");
        hop.cool();
        assert!(size_of::<Hop<AeadKey>>() + beside + hop.windows_len() <= cold);
    }

    /// A hop answers a control message under its number. The node behind it must not get that
    /// number sealed again.
    #[test]
    fn a_number_that_was_answered_is_not_sealed_again() {
        let mut keys = SendKeys::default();
        let (mut filler, mut scratch) = (Filler::new(&Secret::new([4; 32])), Scratch::default());
        let (prev, next) = (Address::new(1, 0), Address::new(2, 0));
        let mut hop = hop(&mut keys, Suite::Aes256Gcm);
        let send = |hop: &mut Hop<AeadKey>, number| {
            let (mut cell, mut out) = ([9; CELL_LEN], Vec::new());
            let (mut going, mut fill) = (Vec::new(), Filling::default());
            let mut leaving = Leaving { going: &mut going, fill: &mut fill };
            let cells: (&[u32], &[_]) = (&[0], &[Ok(number)]);
            let about = (next, Lane::Control);
            hop.handle_run(Time::ZERO, about, &mut cell, cells, &mut leaving, &mut out);
            assert_eq!(going.len(), usize::from(out[0].is_ok()));
            out[0]
        };
        let mut reply = |hop: &mut Hop<AeadKey>, number| {
            let mut tools = Tools { filler: &mut filler, keys: &keys, scratch: &mut scratch };
            hop.reply(Time::ZERO, number, &Message::Echoed(1), &mut tools)
        };
        assert_eq!(send(&mut hop, 6), Err(DropReason::UnexpectedReply), "nothing was asked");
        // The requests passed.
        (0..8).for_each(|number| _ = hop.windows[0][1].accept(number));
        assert_eq!(send(&mut hop, 8), Err(DropReason::UnexpectedReply));
        assert_eq!(send(&mut hop, 6), Ok(AtHop::On(prev, None)));
        assert!(reply(&mut hop, 6).is_err());
        assert!(reply(&mut hop, 7).is_ok());
        assert!(reply(&mut hop, 7).is_err());
        assert_eq!(send(&mut hop, 7), Err(DropReason::Replayed));
    }
}
