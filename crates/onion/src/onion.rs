//! The machine of one node: circuits that it began, circuits that it carries, and their set-up.

mod build;
mod end;
mod messages;
mod places;
mod queue;
mod shake;
#[cfg(test)]
mod test;
mod view;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use places::Places;
use queue::Queue;
use shoal_crypto::{
    Ciphers, Identity, Means, NetworkSecret, NetworkSecrets, PublicKey, Rng, Secret,
};
use shoal_mix::Added;
use shoal_session::cookie::Cookies;
use shoal_session::outer::{Lead, OuterSeal, OuterSeals};
use shoal_wire::leg::{CELL_LEN, FIRST_LEN, Refusal, Shape};
use shoal_wire::{Address, CircuitId, DropReason, Mixing, Strategy, Time};
pub use view::{Fill, Waits};

use crate::circuit::{AtOrigin, Circuit};
use crate::hop::{AtHop, Hop, Leaving, Tools, WARM_LEN};
use crate::job::Common;
use crate::layer::Filler;
use crate::leg::{Lane, Scratch, SendKeys};
use crate::limits::{Asked, Seen};
use crate::room::{Limits, Room};
use crate::setup::{self, Bond, Cell, Sides};
use crate::slots::Slots;

/// How long a set-up waits for its answer, and a new hop for its first cell.
const HALF_OPEN: Duration = Duration::from_secs(10);
/// A circuit that carries nothing for so long is forgotten.
const IDLE: Duration = Duration::from_secs(60);
/// Circuits live no longer than this, whatever their origin asked for.
const LIFE_MAX: Duration = Duration::from_secs(20 * 60);
/// A hop that carries nothing for so long gives its memory back, but for what it must keep.
const COOL: Duration = Duration::from_secs(10);
/// Places of warm hops: they share 32 MB. A hop takes one, three where relays delay cells. Others
/// carry cells, too, with keys that are expanded each time and a window that is short: what was
/// overtaken far is `too_old`. Those over which most goes are warm.
const WARM_MAX: usize = 32 * 1_000_000 / WARM_LEN;
/// How often circuits are looked through for those whose time is over.
const SWEEP: Duration = Duration::from_secs(1);
/// Cells and events that wait to be taken at most.
const QUEUE_MAX: usize = 1_024;
/// The number of the machine's own echoes, which nobody is told of.
const OWN_ECHO: u64 = 0;
/// Strategies of a list before are taken for so long, ...
const FORMER_KEPT: Duration = Duration::from_secs(12 * 60);
/// ... and so many: as many as a list has.
const FORMER_MAX: usize = 4;

/// What a node is told at its start.
pub struct Config {
    /// The node's own address.
    pub address: Address,
    /// Circuits at most: [`Limits::of`] the address.
    pub limits: Limits,
    /// The AEAD suites that this node takes, and the class of its processor.
    pub means: Means,
    /// Whether circuits may go on from here.
    pub relay: bool,
}

/// What became of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// The cell was changed in place and goes on to this node.
    On(Address, Carried),
    /// So was this one, and it may not leave before this time.
    Mixed(Address, Carried, Time),
    /// It holds a unit for this node.
    Unit(CircuitId),
    /// It was for this machine.
    Taken,
}

/// On which circuit a cell goes on, and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// The circuit.
    pub circuit: CircuitId,
    /// Whether the cell holds a unit, and no message of the circuit's control lane.
    pub unit: bool,
}

/// A cell that this machine sends of its own.
pub struct Own {
    /// Where it goes.
    pub to: Address,
    /// The leg cell.
    pub cell: Cell,
    /// How it waits before it leaves, if it does.
    pub wait: Option<Wait>,
    /// The circuit that it belongs to; none for an answer to a node that has none.
    pub circuit: Option<CircuitId>,
}

/// How a cell waits in a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// When it may leave.
    pub due: Time,
    /// The node that it was sent for: the cells of each have a share of the mix.
    pub from: Address,
}

/// What happened to circuits that this node began or is the destination of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// All hops are there, the destination too.
    Built(CircuitId),
    /// This hop, counted from 1, can't be set up; the circuit is gone.
    Failed(CircuitId, u8, Failure),
    /// A circuit of another host ends here, and relays on it delay cells: see [`Onion::waits`].
    Mixed(CircuitId),
    /// A hop, counted from 1, answered the echo of this number. Question and answer together were
    /// to wait so long in mixes; none where that depends on a relay's clock.
    Echoed(CircuitId, u8, u64, Option<Duration>),
    /// Its lifetime is over, or nothing went over it for long.
    Ended(CircuitId),
    /// A handshake of the other end's session came, at either end of the circuit: the newest, if
    /// others came before and were not taken.
    Handshake(CircuitId, Box<[u8]>),
}

/// Why a hop can't be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It did not answer.
    Silent,
    /// The relay before it refused.
    Refused(Refusal),
    /// It answered with a handshake that is wrong.
    BadHandshake,
    /// This node itself has no room, or its list lacks the hop.
    Here,
}

/// What the wall clock showed at time zero, in seconds since 1970.
pub(crate) fn unix_s_at_zero(now: Time, unix_ms: u64) -> u64 {
    (unix_ms / 1_000).saturating_sub(now.since(Time::ZERO).as_secs())
}

enum Entry<A> {
    Origin(Box<Circuit<A>>),
    Hop(Box<Hop<A>>),
}

/// A create cell that was sent and waits for its answer.
struct Waiting {
    id: CircuitId,
    /// The node before on a circuit of others.
    asker: Option<Address>,
    to: Address,
    lead: Lead,
    leg: Secret<32>,
    bond: Bond,
    outer: OuterSeal,
    noise: Box<[u8; FIRST_LEN]>,
    /// How often it was sent again with a cookie.
    repeats: u8,
    until: Time,
}

impl Waiting {
    fn sides(&self) -> Sides<'_> {
        Sides { outer: &self.outer, bond: &self.bond, leg: &self.leg }
    }
}

/// All circuits of one node.
pub struct Onion<C: Ciphers> {
    config: Config,
    /// Circuits are set up under the first.
    secrets: NetworkSecrets,
    own: PublicKey,
    outer: OuterSeals,
    rng: Rng,
    /// Keys of the nodes that circuits may go through or to.
    nodes: BTreeMap<Address, PublicKey>,
    /// With some of them.
    bonds: BTreeMap<Address, Bond>,
    /// The strategies that the network offers.
    mixes: Vec<Strategy>,
    /// Those of lists before, and until when circuits may still name them.
    former: Vec<(Strategy, Time)>,
    /// What this node does with the cells of all circuits that it carries, if it has a strategy of
    /// its own.
    own_mix: Option<Strategy>,
    slots: Slots<Entry<C::Aead>>,
    /// By the token that the answer begins with.
    waiting: BTreeMap<Lead, Waiting>,
    /// What circuits of others take.
    room: Room,
    queue: Queue,
    /// Handshakes that were begun with hops of own circuits.
    attempts: u64,
    asked: Asked,
    seen: Seen,
    /// Unix seconds at time zero.
    unix_s: u64,
    sweep_at: Time,
    transmits: VecDeque<Own>,
    /// Of own circuits, each of which makes a few.
    events: VecDeque<Event>,
    /// So many found no room there.
    lost: u64,
    /// Handshakes that nobody took yet, the newest of each circuit.
    handshakes: BTreeMap<CircuitId, Box<[u8]>>,
    keys: SendKeys,
    filler: Filler,
    /// So many more hops may be warm.
    warm_left: usize,
    scratch: Scratch,
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
        let (own_key, secrets) = (identity.public(), NetworkSecrets::from(secret));
        let outer = OuterSeals::new(setup::ROLE, &secrets, &own_key);
        let Limits { own, others, .. } = config.limits;
        let slots = Slots::new(Secret::new(rng.fork("leg keys")), own + others);
        let room = Room::new(config.limits);
        let filler = Filler::new(&Secret::new(rng.fork("filler")));
        let cookies = Cookies::new(rng.fork("cookies"), now);
        let queue = Queue::new(Common { identity, means: config.means }, cookies);
        Onion {
            config,
            secrets,
            own: own_key,
            outer,
            rng,
            nodes: BTreeMap::new(),
            bonds: BTreeMap::new(),
            mixes: Vec::new(),
            former: Vec::new(),
            own_mix: None,
            slots,
            waiting: BTreeMap::new(),
            room,
            queue,
            attempts: 0,
            asked: Asked::default(),
            seen: Seen::default(),
            unix_s: unix_s_at_zero(now, unix_ms),
            sweep_at: Time::ZERO,
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            lost: 0,
            handshakes: BTreeMap::new(),
            keys: SendKeys::default(),
            filler,
            warm_left: WARM_MAX,
            scratch: Scratch::default(),
            at_hop: Vec::new(),
            at_origin: Vec::new(),
        }
    }

    /// Sets circuits up under the first of these secrets, and takes part in those under both.
    pub fn set_secrets(&mut self, secrets: NetworkSecrets) {
        self.outer = OuterSeals::new(setup::ROLE, &secrets, &self.own);
        self.secrets = secrets;
    }

    /// Says through which nodes circuits may go, and to which hosts.
    pub fn set_nodes(&mut self, nodes: BTreeMap<Address, PublicKey>) {
        let old = core::mem::replace(&mut self.nodes, nodes);
        self.bonds.retain(|at, _| old.get(at) == self.nodes.get(at));
    }

    /// Says whether circuits may go on from here.
    pub fn set_relay(&mut self, relay: bool) {
        self.config.relay = relay;
    }

    /// Says which strategies the network offers: circuits may name no others, but for twelve
    /// minutes those of the list before, which hosts may still have.
    pub fn set_mixes(&mut self, now: Time, mixes: Vec<Strategy>) {
        let before = core::mem::replace(&mut self.mixes, mixes);
        let gone = before.into_iter().map(|strategy| (strategy, now + FORMER_KEPT));
        let mut former: Vec<_> = gone.chain(self.former.drain(..)).collect();
        former.retain(|(strategy, until)| *until > now && !self.mixes.contains(strategy));
        former.truncate(FORMER_MAX);
        self.former = former;
    }

    /// Says that this node delays cells of all circuits that it carries, whatever they name.
    pub fn set_own_mix(&mut self, own: Option<Strategy>) {
        self.own_mix = own;
    }

    /// The strategies that the network offers.
    pub fn mixes(&self) -> &[Strategy] {
        &self.mixes
    }

    /// When a circuit that this node began last carried a unit, in either direction.
    pub fn carried_at(&self, id: CircuitId) -> Option<Time> {
        match self.slots.get(id)? {
            Entry::Origin(circuit) => circuit.carried,
            Entry::Hop(_) => None,
        }
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

    /// How the cells of a circuit are divided.
    pub fn shape(&self, id: CircuitId) -> Option<Shape> {
        match self.slots.get(id)? {
            Entry::Origin(circuit) => Some(circuit.shape),
            Entry::Hop(hop) => Some(hop.shape),
        }
    }

    /// What mixes on a circuit that ends at this node, or began here, add to each cell one way.
    pub fn waits(&self, id: CircuitId) -> Option<Added> {
        match self.slots.get(id)? {
            Entry::Origin(circuit) => Some(shoal_mix::path(circuit.mixes.iter().copied())),
            Entry::Hop(hop) => match hop.mixing {
                Mixing::Path { mean, hold } => Some(Added { mean, hold, most: hold.duration() }),
                Mixing::Relay(_) => Some(Added::default()),
            },
        }
    }

    /// The node to which units go that this node sends as an end of a circuit.
    pub fn next_node(&self, id: CircuitId) -> Option<Address> {
        match self.slots.get(id)? {
            Entry::Origin(circuit) => circuit.first().map(|leg| leg.node),
            Entry::Hop(hop) => Some(hop.prev.node),
        }
    }

    /// Says what the wall clock shows, in milliseconds since 1970.
    pub fn set_unix_time(&mut self, now: Time, unix_ms: u64) {
        self.unix_s = unix_s_at_zero(now, unix_ms);
    }

    /// The next cell to send.
    pub fn poll_transmit(&mut self) -> Option<Own> {
        self.transmits.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        let told = self.events.pop_front();
        told.or_else(|| self.handshakes.pop_first().map(|(id, bytes)| Event::Handshake(id, bytes)))
    }

    /// When [`Onion::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        let is_quiet = self.events.is_empty() && self.handshakes.is_empty();
        if !self.transmits.is_empty() || !is_quiet || self.queue.is_due() {
            return Some(Time::ZERO);
        }
        (!self.is_empty()).then_some(self.sweep_at)
    }

    fn transmit(
        &mut self,
        to: Address,
        cell: Cell,
        wait: Option<Wait>,
        circuit: Option<CircuitId>,
    ) -> Result<(), DropReason> {
        if self.transmits.len() >= QUEUE_MAX {
            return Err(DropReason::QueueFull);
        }
        self.transmits.push_back(Own { to, cell, wait, circuit });
        Ok(())
    }

    fn tell(&mut self, event: Event) {
        // Whoever drives this takes all events after each call. Only own circuits make some, and
        // no hop's answers make more than it was asked for.
        match self.events.len() < QUEUE_MAX {
            true => self.events.push_back(event),
            false => self.lost += 1,
        }
    }

    /// Events since the last call that found too many others waiting, and are lost: `queue_full`.
    pub fn take_lost(&mut self) -> u64 {
        core::mem::take(&mut self.lost)
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
    /// `too_old`, `bad_layer`, `malformed`, `not_allowed`, `unexpected_reply`; of a set-up also
    /// `bad_handshake`, `bad_version`, `wrong_clock`, `replayed_handshake`, `circuit_limit`,
    /// `cookie_required`, `handshake_budget`, `queue_full`.
    pub fn handle_batch(
        &mut self,
        now: Time,
        from: Address,
        buf: &mut [u8],
        offsets: &[u32],
        out: &mut Vec<Result<Passed, DropReason>>,
    ) {
        // Its own while the batch is worked on: answers that leave meanwhile use another.
        let mut scratch = core::mem::take(&mut self.scratch);
        match self.slots.key_of(from) {
            Some(key) => {
                key.read(buf, offsets, &mut scratch);
                key.check(&mut scratch, |index| self.expected(from, index));
            }
            None => scratch.read_nothing(offsets.len()),
        }
        let Scratch { heads, numbers, going, fill, blocks, .. } = &mut scratch;
        let mut at = 0;
        for run in heads.chunk_by(|a, b| a.index == b.index) {
            let cells = at..at + run.len();
            at = cells.end;
            let cells = (&offsets[cells.clone()], &numbers[cells]);
            let leaving = &mut Leaving { going, fill };
            self.handle_run(now, from, run[0].index, buf, cells, leaving, out);
        }
        self.filler.fill(buf, fill);
        self.keys.write(buf, going, blocks);
        self.keys.forget();
        going.clear();
        self.scratch = scratch;
    }

    /// The number that is expected next of `from` under an index.
    fn expected(&self, from: Address, index: u32) -> Option<u64> {
        let (id, lane) = self.slots.find(index)?;
        match self.slots.get(id)? {
            Entry::Origin(circuit) => circuit.expected(from, lane),
            Entry::Hop(hop) => hop.expected(from, lane),
        }
    }

    /// Takes in cells that name one circuit and lane, or none.
    #[allow(clippy::too_many_arguments, reason = "all are of one batch")]
    fn handle_run(
        &mut self,
        now: Time,
        from: Address,
        index: u32,
        buf: &mut [u8],
        cells: (&[u32], &[Result<u64, DropReason>]),
        leaving: &mut Leaving<'_>,
        out: &mut Vec<Result<Passed, DropReason>>,
    ) {
        let run = cells.0;
        let Some((id, lane)) = self.slots.find(index) else {
            let taken = run.iter().map(|&start| {
                let (cell, _) = buf[start as usize..].split_first_chunk_mut().expect("a cell");
                self.handle_setup(now, from, cell).map(|()| Passed::Taken)
            });
            return out.extend(taken);
        };
        let Self { config, slots, at_hop, at_origin, room, warm_left, .. } = self;
        match slots.get_mut(id) {
            Some(Entry::Hop(hop)) => {
                at_hop.clear();
                let was_open = hop.confirmed;
                hop.handle_run(now, (from, lane), buf, cells, leaving, at_hop);
                if hop.confirmed && !was_open {
                    room.close_half(hop.prev.node);
                }
                if lane == Lane::Data {
                    let is_router = config.address.is_router();
                    let count = at_hop.iter().filter(|went| went.is_ok()).count();
                    Places { room, warm_left, is_router }.note_data(id, hop, count);
                }
                let went = core::mem::take(at_hop);
                for (&start, went) in run.iter().zip(&went) {
                    out.push(went.and_then(|went| match went {
                        AtHop::On(to, due) => {
                            let data = Carried { circuit: id, unit: lane == Lane::Data };
                            Ok(due.map_or(Passed::On(to, data), |due| Passed::Mixed(to, data, due)))
                        }
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
                circuit.handle_run(now, lane, buf, cells, at_origin);
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
        let Self { slots, filler, keys, scratch, .. } = self;
        let tools = &mut Tools { filler, keys, scratch };
        match slots.get_mut(id) {
            Some(Entry::Origin(circuit)) => circuit.seal_units(now, buf, offsets, tools),
            Some(Entry::Hop(hop)) => hop.seal_units(now, buf, offsets, tools),
            None => Err(DropReason::UnknownCircuit),
        }
    }
}
