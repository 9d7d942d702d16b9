//! The machine of one node: circuits that it began, circuits that it carries, and their set-up.

mod build;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use shoal_crypto::{Ciphers, Identity, NetworkSecret, PublicKey, Rng, Secret, Suite};
use shoal_session::outer::{Lead, OuterSeal};
use shoal_wire::leg::{CELL_LEN, Message, Refusal};
use shoal_wire::{Address, DropReason, Time};

use crate::circuit::{AtOrigin, Circuit};
use crate::hop::{AtHop, Hop, Next};
use crate::leg::{self, Scratch};
use crate::limits::{Asked, Seen};
use crate::setup::{self, Cell, malformed};
use crate::slots::{CircuitId, Slots};

/// How long a set-up waits for its answer, and a new hop for its first cell.
const HALF_OPEN: Duration = Duration::from_secs(10);
/// Half-open circuits at most.
const HALF_OPEN_MAX: usize = 1_024;
/// A circuit that carries nothing for so long is forgotten.
const IDLE: Duration = Duration::from_secs(60);
/// Circuits live no longer than this, whatever their origin asked for.
const LIFE_MAX: Duration = Duration::from_secs(20 * 60);
/// How often circuits are looked through for those whose time is over.
const SWEEP: Duration = Duration::from_secs(1);
/// Cells and events that wait to be taken at most.
const QUEUE_MAX: usize = 1_024;
/// The number of the machine's own echoes, which nobody is told of.
const OWN_ECHO: u64 = 0;
/// Of all circuits, one neighbour may have this share.
const SHARE: usize = 4;

/// What a node is told at its start.
pub struct Config {
    /// The node's own address.
    pub address: Address,
    /// Circuits at most: as a relay, 16,384; as a host, 64.
    pub circuits_max: usize,
    /// The AEAD suites that this node takes, best first.
    pub suites: Vec<Suite>,
    /// Whether circuits may go on from here.
    pub relay: bool,
}

/// What became of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// It was changed in place and goes on to this node.
    On(Address),
    /// It holds a unit for this node.
    Unit(CircuitId),
    /// It was for this machine.
    Taken,
}

/// What happened to circuits that this node began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// All hops are there, the destination too.
    Built(CircuitId),
    /// The set-up ended at this hop, counted from 1; the circuit is gone.
    Failed(CircuitId, u8, Refusal),
    /// A hop answered an echo.
    Echoed(CircuitId, u8, u64),
    /// Its lifetime is over, or nothing went over it for long.
    Ended(CircuitId),
}

enum Entry<A> {
    Origin(Box<Circuit<A>>),
    Hop(Box<Hop<A>>),
}

/// A create cell that was sent and waits for its answer.
struct Waiting {
    id: CircuitId,
    to: Address,
    lead: Lead,
    leg: Secret<32>,
    outer: OuterSeal,
    until: Time,
}

/// All circuits of one node.
pub struct Onion<C: Ciphers> {
    config: Config,
    identity: Identity,
    secret: NetworkSecret,
    outer: OuterSeal,
    rng: Rng,
    /// Keys of the nodes that circuits may go through or to.
    nodes: BTreeMap<Address, PublicKey>,
    slots: Slots<Entry<C::Aead>>,
    /// By the token that the answer begins with.
    waiting: BTreeMap<Lead, Waiting>,
    half_open: usize,
    asked: Asked,
    seen: Seen,
    /// Unix seconds at time zero.
    unix_s: u64,
    sweep_at: Time,
    transmits: VecDeque<(Address, Cell)>,
    events: VecDeque<Event>,
    scratch: Scratch,
    indexes: Vec<u32>,
    at_hop: Vec<Result<AtHop, DropReason>>,
    at_origin: Vec<Result<AtOrigin, DropReason>>,
}

impl<C: Ciphers> Onion<C> {
    /// A node without circuits. Everything random comes from `seed`, but for ML-KEM; `unix_ms` is
    /// the wall clock that goes with `now`.
    pub fn new(
        config: Config,
        identity: Identity,
        secret: NetworkSecret,
        seed: [u8; 32],
        now: Time,
        unix_ms: u64,
    ) -> Self {
        let mut rng = Rng::new(seed);
        let outer = OuterSeal::new(setup::ROLE, &secret, &identity.public());
        let slots = Slots::new(Secret::new(rng.fork("index masks")), config.circuits_max);
        Onion {
            config,
            identity,
            secret,
            outer,
            rng,
            nodes: BTreeMap::new(),
            slots,
            waiting: BTreeMap::new(),
            half_open: 0,
            asked: Asked::default(),
            seen: Seen::default(),
            unix_s: (unix_ms / 1_000).saturating_sub(now.since(Time::ZERO).as_secs()),
            sweep_at: Time::ZERO,
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            scratch: Scratch::default(),
            indexes: Vec::new(),
            at_hop: Vec::new(),
            at_origin: Vec::new(),
        }
    }

    /// Says through which nodes circuits may go, and to which hosts.
    pub fn set_nodes(&mut self, nodes: BTreeMap<Address, PublicKey>) {
        self.nodes = nodes;
    }

    #[cfg(test)]
    pub(crate) fn nodes_of_test(&self) -> BTreeMap<Address, PublicKey> {
        self.nodes.clone()
    }

    /// Circuits at this node, as their origin or as a hop.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Hops of a circuit that this node began, and whether all are there.
    pub fn progress(&self, id: CircuitId) -> Option<(usize, bool)> {
        match self.slots.get(id)? {
            Entry::Origin(circuit) => Some((circuit.hops(), circuit.is_built())),
            Entry::Hop(_) => None,
        }
    }

    /// The next cell to send, and to which node.
    pub fn poll_transmit(&mut self) -> Option<(Address, Cell)> {
        self.transmits.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Onion::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        (!self.is_empty()).then_some(self.sweep_at)
    }

    fn transmit(&mut self, to: Address, cell: Cell) -> Result<(), DropReason> {
        if self.transmits.len() >= QUEUE_MAX {
            return Err(DropReason::QueueFull);
        }
        self.transmits.push_back((to, cell));
        Ok(())
    }

    fn tell(&mut self, event: Event) {
        // Whoever drives this takes all events after each call, which makes a few at most.
        if self.events.len() < QUEUE_MAX {
            self.events.push_back(event);
        }
    }

    fn insert(&mut self, now: Time, entry: Entry<C::Aead>) -> Result<CircuitId, DropReason> {
        if self.is_empty() {
            self.sweep_at = now + SWEEP;
        }
        self.slots.insert(entry).ok_or(DropReason::CircuitLimit)
    }

    fn origin(&mut self, id: CircuitId) -> Result<&mut Circuit<C::Aead>, DropReason> {
        match self.slots.get_mut(id) {
            Some(Entry::Origin(circuit)) => Ok(circuit),
            _ => Err(DropReason::UnknownCircuit),
        }
    }

    fn hop(&mut self, id: CircuitId) -> Result<&mut Hop<C::Aead>, DropReason> {
        match self.slots.get_mut(id) {
            Some(Entry::Hop(hop)) => Ok(hop),
            _ => Err(DropReason::UnknownCircuit),
        }
    }

    /// Takes leg cells of `from` in, which may change in place: `offsets` says where in `buf` they
    /// start. One result for each is added to `out`.
    ///
    /// Results: what became of it, or why it was dropped: `unknown_circuit`, `bad_leg`, `replayed`,
    /// `too_old`, `bad_layer`, `malformed`; of a set-up also `bad_handshake`, `bad_version`,
    /// `wrong_clock`, `replayed_handshake`, `circuit_limit`, `handshake_budget`, `queue_full`.
    pub fn handle_batch(
        &mut self,
        now: Time,
        from: Address,
        buf: &mut [u8],
        offsets: &[u32],
        out: &mut Vec<Result<Passed, DropReason>>,
    ) {
        let mut indexes = core::mem::take(&mut self.indexes);
        indexes.clear();
        match self.slots.mask_of(from) {
            Some(mask) => leg::indexes(mask, buf, offsets, &mut self.scratch, &mut indexes),
            // No index has all bits set in its lane.
            None => indexes.extend(offsets.iter().map(|_| u32::MAX)),
        }
        let mut rest = offsets;
        for equal in indexes.chunk_by(|a, b| a == b) {
            let (run, behind) = rest.split_at(equal.len());
            rest = behind;
            self.handle_run(now, from, equal[0], buf, run, out);
        }
        self.indexes = indexes;
    }

    /// Takes in cells that name one circuit and lane, or none.
    fn handle_run(
        &mut self,
        now: Time,
        from: Address,
        index: u32,
        buf: &mut [u8],
        run: &[u32],
        out: &mut Vec<Result<Passed, DropReason>>,
    ) {
        let Some((id, lane)) = self.slots.find(index) else {
            let taken = run.iter().map(|&start| {
                let (cell, _) = buf[start as usize..].split_first_chunk_mut().expect("a cell");
                self.handle_setup(now, from, cell).map(|()| Passed::Taken)
            });
            return out.extend(taken);
        };
        let about = (from, lane, index);
        let Self { slots, scratch, at_hop, at_origin, half_open, .. } = self;
        match slots.get_mut(id) {
            Some(Entry::Hop(hop)) => {
                at_hop.clear();
                let was_open = hop.confirmed;
                hop.handle_run(now, about, buf, run, scratch, at_hop);
                *half_open -= usize::from(hop.confirmed && !was_open);
                let went = core::mem::take(at_hop);
                for (&start, went) in run.iter().zip(&went) {
                    out.push(went.and_then(|went| match went {
                        AtHop::On(to) => Ok(Passed::On(to)),
                        AtHop::Unit => Ok(Passed::Unit(id)),
                        AtHop::Message(number) => {
                            let cell = &buf[start as usize..start as usize + CELL_LEN];
                            self.handle_request(now, id, number, cell).map(|()| Passed::Taken)
                        }
                    }));
                }
                self.at_hop = went;
            }
            Some(Entry::Origin(circuit)) => {
                at_origin.clear();
                circuit.handle_run(now, about, buf, run, scratch, at_origin);
                let opened = core::mem::take(at_origin);
                for (&start, opened) in run.iter().zip(&opened) {
                    out.push(opened.and_then(|opened| match opened {
                        AtOrigin::Unit => Ok(Passed::Unit(id)),
                        AtOrigin::Message(hop, number) => {
                            let cell = &buf[start as usize..start as usize + CELL_LEN];
                            let taken = self.handle_answer(now, id, (hop, number), cell);
                            taken.map(|()| Passed::Taken)
                        }
                    }));
                }
                self.at_origin = opened;
            }
            None => out.extend(run.iter().map(|_| Err(DropReason::UnknownCircuit))),
        }
    }

    /// Wraps units, which stand in cells behind the leg header, for the other end of a circuit.
    /// `offsets` says where in `buf` the cells start. Says where they go.
    ///
    /// # Errors
    ///
    /// `unknown_circuit`: it is gone, not built yet, or does not end here. `circuit_expired`.
    /// Nothing was changed.
    pub fn seal_units(
        &mut self,
        now: Time,
        id: CircuitId,
        buf: &mut [u8],
        offsets: &[u32],
    ) -> Result<Address, DropReason> {
        let scratch = &mut self.scratch;
        match self.slots.get_mut(id) {
            Some(Entry::Origin(circuit)) => circuit.seal_units(now, buf, offsets, scratch),
            Some(Entry::Hop(hop)) => hop.seal_units(now, buf, offsets, scratch),
            None => Err(DropReason::UnknownCircuit),
        }
    }

    /// Asks a hop of a circuit of this node, counted from 1, to answer with `number`, which is
    /// not 0.
    ///
    /// # Errors
    ///
    /// `unknown_circuit`: there is no such hop. `circuit_expired`, `queue_full`.
    pub fn echo(&mut self, id: CircuitId, hop: u8, number: u64) -> Result<(), DropReason> {
        self.say(id, hop.into(), &Message::Echo(number)).map(|_| ())
    }

    /// Sends a control message to a hop; returns its number.
    fn say(&mut self, id: CircuitId, hop: usize, message: &Message<'_>) -> Result<u64, DropReason> {
        let mut cell: Cell = Box::new([0; CELL_LEN]);
        let mut scratch = core::mem::take(&mut self.scratch);
        let sealed = self
            .origin(id)
            .and_then(|circuit| circuit.seal_message(hop, message, &mut cell[..], &mut scratch));
        self.scratch = scratch;
        let (to, number) = sealed?;
        self.transmit(to, cell)?;
        Ok(number)
    }

    /// Ends a circuit of this node: its hops are told, the farthest first.
    pub fn close(&mut self, id: CircuitId) {
        let hops = self.origin(id).map_or(0, |circuit| circuit.hops());
        for hop in (1..=hops).rev() {
            // A hop that is not told forgets the circuit when it was idle for long.
            let _ = self.say(id, hop, &Message::Close);
        }
        self.remove(id);
    }

    /// Forgets a circuit and everything that waits for it.
    fn remove(&mut self, id: CircuitId) {
        let Some(entry) = self.slots.remove(id) else { return };
        let tokens: Vec<Lead> =
            self.waiting.iter().filter(|(_, w)| w.id == id).map(|(token, _)| *token).collect();
        for token in tokens {
            if let Some(waiting) = self.waiting.remove(&token) {
                self.half_open -= 1;
                self.slots.forget(waiting.to);
            }
        }
        match entry {
            Entry::Origin(circuit) => {
                if let Some(node) = circuit.first_node() {
                    self.slots.forget(node);
                }
            }
            Entry::Hop(hop) => {
                self.half_open -= usize::from(!hop.confirmed);
                self.slots.forget(hop.prev.node);
                if let Next::Leg(leg) = &hop.next {
                    self.slots.forget(leg.node);
                }
            }
        }
    }

    fn reply(
        &mut self,
        id: CircuitId,
        number: u64,
        message: &Message<'_>,
    ) -> Result<(), DropReason> {
        let mut scratch = core::mem::take(&mut self.scratch);
        let replied = self.hop(id).and_then(|hop| {
            hop.reply(number, message, &mut scratch).map(|cell| (hop.prev.node, cell))
        });
        self.scratch = scratch;
        let (to, cell) = replied?;
        self.transmit(to, cell)
    }

    /// Takes in what the origin of a circuit says to this hop.
    fn handle_request(
        &mut self,
        now: Time,
        id: CircuitId,
        number: u64,
        cell: &[u8],
    ) -> Result<(), DropReason> {
        let range = self.hop(id)?.layer.message_range();
        match Message::parse(&cell[range]).map_err(malformed)? {
            Message::Extend { to, noise } => match self.extend(now, id, number, to, noise) {
                Ok(()) => Ok(()),
                Err(refusal) => self.reply(id, number, &Message::Refused(refusal)),
            },
            Message::Echo(n) => self.reply(id, number, &Message::Echoed(n)),
            Message::Close => {
                self.remove(id);
                Ok(())
            }
            Message::Extended(_) | Message::Refused(_) | Message::Echoed(_) => {
                Err(DropReason::Malformed)
            }
        }
    }

    /// Takes in what a hop answers to this origin.
    fn handle_answer(
        &mut self,
        now: Time,
        id: CircuitId,
        (hop, number): (u8, u64),
        cell: &[u8],
    ) -> Result<(), DropReason> {
        let circuit = self.origin(id)?;
        let message = Message::parse(&cell[circuit.message_range(hop)]).map_err(malformed)?;
        let asked = circuit.building.as_ref().and_then(|building| building.number);
        let is_due = usize::from(hop) == circuit.hops() && asked == Some(number);
        match message {
            Message::Extended(noise) if is_due => self.added(now, id, noise),
            Message::Refused(why) if is_due => {
                self.fail(id, hop + 1, why);
                Ok(())
            }
            Message::Echoed(OWN_ECHO) => Ok(()),
            Message::Echoed(n) => {
                self.tell(Event::Echoed(id, hop, n));
                Ok(())
            }
            Message::Extended(_) | Message::Refused(_) => Err(DropReason::UnknownCircuit),
            Message::Extend { .. } | Message::Close | Message::Echo(_) => {
                Err(DropReason::Malformed)
            }
        }
    }

    /// Gives up set-ups that got no answer, and forgets circuits whose time is over.
    pub fn handle_timeout(&mut self, now: Time) {
        if now < self.sweep_at {
            return;
        }
        self.sweep_at = now + SWEEP;
        let silent = self.waiting.values().filter(|w| w.until <= now).map(|w| w.id);
        for id in silent.collect::<Vec<_>>() {
            self.give_up(id);
        }
        let over = |entry: &Entry<C::Aead>| match entry {
            Entry::Origin(circuit) => {
                circuit.until <= now
                    || circuit.used + if circuit.is_built() { IDLE } else { HALF_OPEN } <= now
            }
            Entry::Hop(hop) => {
                let wait = if hop.confirmed { IDLE } else { HALF_OPEN };
                hop.until <= now || hop.used + wait <= now
            }
        };
        let over = self.slots.iter().filter(|(_, entry)| over(entry));
        for id in over.map(|(id, _)| id).collect::<Vec<_>>() {
            match self.origin(id).map(|circuit| (circuit.is_built(), circuit.hops())) {
                Ok((true, _)) => {
                    self.close(id);
                    self.tell(Event::Ended(id));
                }
                Ok((false, hops)) => self.fail(id, hops as u8 + 1, Refusal::Silent),
                Err(_) => self.remove(id),
            }
        }
    }
}
