//! Onion machine of one node: circuits that it began, circuits that it carries, and their set-up.

mod build;
mod end;
mod homes;
mod messages;
mod places;
mod queue;
mod shake;
#[cfg(test)]
mod test;
mod view;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use places::CircuitPlaces;
use queue::SetupQueue;
use shoal_crypto::{
    Ciphers, Identity, NetworkSecret, NetworkSecrets, PublicKey, Rng, Secret, SuiteSupport,
};
use shoal_mix::AddedDelay;
use shoal_session::cookie::Cookies;
use shoal_session::outer::{Lead, OuterSeal, OuterSeals};
use shoal_wire::leg::{CELL_LEN, CellShape, ExtendRefusal, FIRST_LEN};
use shoal_wire::{Address, CircuitId, DropReason, HopDelay, MixStrategy, Time};
pub use view::{KeyDelays, TableFill};

use crate::circuit::{OriginCircuit, OriginResult};
use crate::echo::EchoDelays;
use crate::hop::{CircuitHop, HopResult, OutboundBatch, SealTools, WARM_LEN};
use crate::job::SetupContext;
use crate::layer::Filler;
use crate::leg::{LegLane, Scratch, SendKeys};
use crate::limits::{CreateReplayCache, SetupRates};
use crate::room::{CircuitLimits, CircuitRoom};
use crate::setup::{self, Bond, BoxedCell, LegSetup};
use crate::slots::CircuitSlots;

/// Time for which a set-up waits for its answer, and a new hop for its first cell.
const HALF_OPEN: Duration = Duration::from_secs(10);
/// Idle time after which a circuit is forgotten.
const IDLE: Duration = Duration::from_secs(60);
/// Longest life of a circuit, whatever its origin asked for.
const LIFE_MAX: Duration = Duration::from_secs(20 * 60);
/// Idle time after which a hop becomes cold.
const COOL: Duration = Duration::from_secs(10);
/// Places of warm hops, which share 32 MB. A hop uses one, or three if relays delay cells. Cold
/// hops carry cells too, but expand their keys each time and have a short window, so that cells
/// overtaken by many are `too_old`. The hops with the most traffic are warm.
const WARM_MAX: usize = 32 * 1_000_000 / WARM_LEN;
/// Time between two searches for circuits to forget.
const SWEEP: Duration = Duration::from_secs(1);
/// Most cells, or events, that wait to be taken.
const QUEUE_MAX: usize = 1_024;
/// Number of the machine's own echoes, which are not reported.
const OWN_ECHO: u64 = 0;
/// Time for which strategies of earlier lists are still accepted.
const FORMER_KEPT: Duration = Duration::from_secs(12 * 60);
/// Most strategies of earlier lists: as many as one list has.
const FORMER_MAX: usize = 4;

/// Configuration of a node at its start.
pub struct OnionConfig {
    /// The node's own address.
    pub address: Address,
    /// Limits on circuits: [`CircuitLimits::of`] the address.
    pub limits: CircuitLimits,
    /// The AEAD suites that this node accepts, and its processor class.
    pub means: SuiteSupport,
    /// True if circuits may continue from this node.
    pub relay: bool,
}

/// Result for a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellResult {
    /// The cell was changed in place and goes on to this node.
    On(Address, ForwardedCell),
    /// Like `On`, but the cell may not leave before this time.
    Mixed(Address, ForwardedCell, Time),
    /// The cell has a unit for this node.
    Unit(CircuitId),
    /// The cell was for this machine.
    Taken,
}

/// Circuit and content of a cell that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardedCell {
    pub circuit: CircuitId,
    /// True for a unit, false for a message of the control lane.
    pub unit: bool,
}

/// A cell that this machine itself sends.
pub struct OriginatedCell {
    /// Own address from which it leaves; none for the node's first one.
    pub home: Option<Address>,
    /// Node that it goes to.
    pub to: Address,
    pub cell: BoxedCell,
    /// Wait of the cell in a mix, if any.
    pub wait: Option<MixWait>,
    /// Circuit of the cell; none for an answer to a node without one.
    pub circuit: Option<CircuitId>,
}

/// Wait of a cell in a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixWait {
    /// Time at which it may leave.
    pub due: Time,
    /// Node that sent the cell, for its share of the mix.
    pub from: Address,
}

/// Event of a circuit that this node began, or that ends here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnionEvent {
    /// All hops are set up, including the destination.
    Built(CircuitId),
    /// This hop, counted from 1, can't be set up. The circuit has been closed.
    Failed(CircuitId, u8, SetupFailure),
    /// A circuit of another host ends here, and relays on it delay cells: see [`Onion::waits`].
    Mixed(CircuitId),
    /// A hop, counted from 1, answered the echo of this number. Mixes add these delays to echo and
    /// answer.
    Echoed(CircuitId, u8, u64, EchoDelays),
    /// The circuit's lifetime is over, or it was idle for too long.
    Ended(CircuitId),
    /// A handshake of the other end's session came, at either end of the circuit. Only the newest
    /// is reported, if earlier ones were not taken.
    Handshake(CircuitId, Box<[u8]>),
}

/// Reason why a hop can't be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetupFailure {
    /// The hop did not answer.
    Silent,
    /// The relay before it refused.
    Refused(ExtendRefusal),
    /// The hop's handshake is wrong.
    BadHandshake,
    /// This node has no room, or its list lacks the hop.
    Here,
}

/// Wall clock at machine time zero, in seconds since 1970.
pub(crate) fn unix_s_at_zero(now: Time, unix_ms: u64) -> u64 {
    (unix_ms / 1_000).saturating_sub(now.since(Time::ZERO).as_secs())
}

enum CircuitEntry<A> {
    Origin(Box<OriginCircuit<A>>),
    Hop(Box<CircuitHop<A>>),
}

/// A create cell that has no answer yet.
struct PendingCreate {
    id: CircuitId,
    /// The previous node, if the circuit is another node's.
    asker: Option<Address>,
    to: Address,
    lead: Lead,
    leg: Secret<32>,
    bond: Bond,
    outer: OuterSeal,
    noise: Box<[u8; FIRST_LEN]>,
    /// Times that it was repeated with a cookie.
    repeats: u8,
    until: Time,
}

impl PendingCreate {
    fn sides(&self) -> LegSetup<'_> {
        LegSetup { outer: &self.outer, bond: &self.bond, leg: &self.leg }
    }
}

pub struct Onion<C: Ciphers> {
    config: OnionConfig,
    /// Circuits are set up under the first secret.
    secrets: NetworkSecrets,
    own: PublicKey,
    outer: OuterSeals,
    rng: Rng,
    /// Keys of the nodes that circuits may go through or to.
    nodes: BTreeMap<Address, PublicKey>,
    /// Bonds with some of those nodes.
    bonds: BTreeMap<Address, Bond>,
    /// Strategies that the network offers.
    mixes: Vec<MixStrategy>,
    /// Strategies of earlier lists, and the time until which circuits may still name them.
    former: Vec<(MixStrategy, Time)>,
    /// This node's own strategy for all circuits that it carries, if it has one.
    own_mix: Option<MixStrategy>,
    slots: CircuitSlots<CircuitEntry<C::Aead>>,
    /// Own address to which the current batch came; none for the node's first one.
    arrival: Option<Address>,
    /// By the token at the start of the answer.
    waiting: BTreeMap<Lead, PendingCreate>,
    /// Places of other nodes' circuits.
    room: CircuitRoom,
    queue: SetupQueue,
    /// Number of handshakes begun with hops of own circuits.
    attempts: u64,
    asked: SetupRates,
    seen: CreateReplayCache,
    /// Unix seconds at time zero.
    unix_s: u64,
    sweep_at: Time,
    transmits: VecDeque<OriginatedCell>,
    /// Events of own circuits, each of which makes a few.
    events: VecDeque<OnionEvent>,
    /// Number of events that found no room.
    lost: u64,
    /// Handshakes that were not taken yet, the newest of each circuit.
    handshakes: BTreeMap<CircuitId, Box<[u8]>>,
    keys: SendKeys,
    filler: Filler,
    /// Number of further hops that may be warm.
    warm_left: usize,
    scratch: Scratch,
    at_hop: Vec<Result<HopResult, DropReason>>,
    at_origin: Vec<Result<OriginResult, DropReason>>,
}

impl<C: Ciphers> Onion<C> {
    /// A node without circuits. All its randomness, except that of ML-KEM, follows from `seed`.
    /// `unix_ms` is the wall clock at `now`.
    pub fn new(
        config: OnionConfig,
        identity: Identity,
        secret: NetworkSecret,
        seed: [u8; 32],
        now: Time,
        unix_ms: u64,
    ) -> Self {
        let mut rng = Rng::new(seed);
        let (own_key, secrets) = (identity.public(), NetworkSecrets::from(secret));
        let outer = OuterSeals::new(setup::ROLE, &secrets, &own_key);
        let CircuitLimits { own, others, .. } = config.limits;
        let slots = CircuitSlots::new(Secret::new(rng.fork("leg keys")), own + others);
        let room = CircuitRoom::new(config.limits);
        let filler = Filler::new(&Secret::new(rng.fork("filler")));
        let cookies = Cookies::new(rng.fork("cookies"), now);
        let queue = SetupQueue::new(SetupContext { identity, means: config.means }, cookies);
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
            arrival: None,
            waiting: BTreeMap::new(),
            room,
            queue,
            attempts: 0,
            asked: SetupRates::default(),
            seen: CreateReplayCache::default(),
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

    /// Sets the network's secrets: circuits are set up under the first, and carried under both.
    pub fn set_secrets(&mut self, secrets: NetworkSecrets) {
        self.outer = OuterSeals::new(setup::ROLE, &secrets, &self.own);
        self.secrets = secrets;
    }

    /// Sets the nodes that circuits may go through, and the hosts that they may lead to.
    pub fn set_nodes(&mut self, nodes: BTreeMap<Address, PublicKey>) {
        let old = core::mem::replace(&mut self.nodes, nodes);
        self.bonds.retain(|at, _| old.get(at) == self.nodes.get(at));
    }

    /// Sets if circuits may continue from this node.
    pub fn set_relay(&mut self, relay: bool) {
        self.config.relay = relay;
    }

    /// Sets the strategies that the network offers. Circuits may name only these. For twelve
    /// minutes they may also name those of the previous list, which other hosts may still have.
    pub fn set_mixes(&mut self, now: Time, mixes: Vec<MixStrategy>) {
        let before = core::mem::replace(&mut self.mixes, mixes);
        let gone = before.into_iter().map(|strategy| (strategy, now + FORMER_KEPT));
        let mut former: Vec<_> = gone.chain(self.former.drain(..)).collect();
        former.retain(|(strategy, until)| *until > now && !self.mixes.contains(strategy));
        former.truncate(FORMER_MAX);
        self.former = former;
    }

    /// Sets a strategy for the cells of all circuits that this node carries, whatever they name.
    pub fn set_own_mix(&mut self, own: Option<MixStrategy>) {
        self.own_mix = own;
    }

    pub fn mixes(&self) -> &[MixStrategy] {
        &self.mixes
    }

    /// Last time at which a circuit of this node carried a unit, in either direction.
    pub fn carried_at(&self, id: CircuitId) -> Option<Time> {
        match self.slots.get(id)? {
            CircuitEntry::Origin(circuit) => circuit.carried,
            CircuitEntry::Hop(_) => None,
        }
    }

    /// Number of circuits at this node, as their origin or as a hop.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of hops that a circuit of this node has, and true if it is complete.
    pub fn progress(&self, id: CircuitId) -> Option<(usize, bool)> {
        match self.slots.get(id)? {
            CircuitEntry::Origin(circuit) => Some((circuit.hops(), circuit.is_built())),
            CircuitEntry::Hop(_) => None,
        }
    }

    /// Division of a circuit's cells.
    pub fn shape(&self, id: CircuitId) -> Option<CellShape> {
        match self.slots.get(id)? {
            CircuitEntry::Origin(circuit) => Some(circuit.shape),
            CircuitEntry::Hop(hop) => Some(hop.shape),
        }
    }

    /// Delay that mixes add to each cell in one direction, on a circuit that ends or began here.
    pub fn waits(&self, id: CircuitId) -> Option<AddedDelay> {
        match self.slots.get(id)? {
            CircuitEntry::Origin(circuit) => Some(shoal_mix::path(circuit.mixes.iter().copied())),
            CircuitEntry::Hop(hop) => match hop.mixing {
                HopDelay::Path { mean, hold } => {
                    Some(AddedDelay { mean, hold, most: hold.duration() })
                }
                HopDelay::Relay(_) => Some(AddedDelay::default()),
            },
        }
    }

    /// Node to which this node sends units as an end of the circuit.
    pub fn next_node(&self, id: CircuitId) -> Option<Address> {
        match self.slots.get(id)? {
            CircuitEntry::Origin(circuit) => circuit.first().map(|leg| leg.node),
            CircuitEntry::Hop(hop) => Some(hop.prev.node),
        }
    }

    /// Sets the wall clock, in milliseconds since 1970.
    pub fn set_unix_time(&mut self, now: Time, unix_ms: u64) {
        self.unix_s = unix_s_at_zero(now, unix_ms);
    }

    /// The next cell to send.
    pub fn poll_transmit(&mut self) -> Option<OriginatedCell> {
        self.transmits.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<OnionEvent> {
        let told = self.events.pop_front();
        told.or_else(|| {
            self.handshakes.pop_first().map(|(id, bytes)| OnionEvent::Handshake(id, bytes))
        })
    }

    /// Time of the next call of [`Onion::handle_timeout`].
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
        cell: BoxedCell,
        wait: Option<MixWait>,
        circuit: Option<CircuitId>,
    ) -> Result<(), DropReason> {
        if self.transmits.len() >= QUEUE_MAX {
            return Err(DropReason::QueueFull);
        }
        // A cell without a circuit answers one of the current batch.
        let home = circuit.map_or(self.arrival, |id| self.home(id));
        self.transmits.push_back(OriginatedCell { home, to, cell, wait, circuit });
        Ok(())
    }

    fn tell(&mut self, event: OnionEvent) {
        // The caller takes all events after each call. Only own circuits make events, and a hop
        // can't answer more often than it was asked.
        match self.events.len() < QUEUE_MAX {
            true => self.events.push_back(event),
            false => self.lost += 1,
        }
    }

    /// Returns and resets the number of events that were lost because too many waited:
    /// `queue_full`.
    pub fn take_lost(&mut self) -> u64 {
        core::mem::take(&mut self.lost)
    }

    fn insert(&mut self, now: Time, entry: CircuitEntry<C::Aead>) -> Result<CircuitId, DropReason> {
        if self.is_empty() {
            self.sweep_at = now + SWEEP;
        }
        self.slots.insert(entry).ok_or(DropReason::CircuitLimit)
    }

    fn origin(&mut self, id: CircuitId) -> Result<&mut OriginCircuit<C::Aead>, DropReason> {
        match self.slots.get_mut(id) {
            Some(CircuitEntry::Origin(circuit)) => Ok(circuit),
            _ => Err(DropReason::UnknownCircuit),
        }
    }

    fn hop(&mut self, id: CircuitId) -> Result<&mut CircuitHop<C::Aead>, DropReason> {
        match self.slots.get_mut(id) {
            Some(CircuitEntry::Hop(hop)) => Ok(hop),
            _ => Err(DropReason::UnknownCircuit),
        }
    }

    /// Processes leg cells from `from`, which may change in place. `offsets` are their starts in
    /// `buf`. One result per cell is added to `out`.
    ///
    /// Errors: `unknown_circuit`, `bad_leg`, `replayed`, `too_old`, `bad_layer`, `malformed`,
    /// `not_allowed`, `unexpected_reply`. For set-up cells also `bad_handshake`, `bad_version`,
    /// `wrong_clock`, `replayed_handshake`, `circuit_limit`, `cookie_required`, `handshake_budget`,
    /// `queue_full`.
    pub fn handle_batch(
        &mut self,
        now: Time,
        from: Address,
        buf: &mut [u8],
        offsets: &[u32],
        out: &mut Vec<Result<CellResult, DropReason>>,
    ) {
        // Answers that are sent during the batch use another scratch.
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
            let leaving = &mut OutboundBatch { going, fill };
            self.handle_run(now, from, run[0].index, buf, cells, leaving, out);
        }
        self.filler.fill(buf, fill);
        self.keys.write(buf, going, blocks);
        self.keys.forget();
        going.clear();
        self.scratch = scratch;
    }

    /// The next expected number from `from` under an index.
    fn expected(&self, from: Address, index: u32) -> Option<u64> {
        let (id, lane) = self.slots.find(index)?;
        match self.slots.get(id)? {
            CircuitEntry::Origin(circuit) => circuit.expected(from, lane),
            CircuitEntry::Hop(hop) => hop.expected(from, lane),
        }
    }

    /// Processes cells that name one circuit and lane, or none.
    #[allow(clippy::too_many_arguments, reason = "all are of one batch")]
    fn handle_run(
        &mut self,
        now: Time,
        from: Address,
        index: u32,
        buf: &mut [u8],
        cells: (&[u32], &[Result<u64, DropReason>]),
        leaving: &mut OutboundBatch<'_>,
        out: &mut Vec<Result<CellResult, DropReason>>,
    ) {
        let run = cells.0;
        let Some((id, lane)) = self.slots.find(index) else {
            let taken = run.iter().map(|&start| {
                let (cell, _) = buf[start as usize..].split_first_chunk_mut().expect("a cell");
                self.handle_setup(now, from, cell).map(|()| CellResult::Taken)
            });
            return out.extend(taken);
        };
        let Self { config, slots, at_hop, at_origin, room, warm_left, .. } = self;
        match slots.get_mut(id) {
            Some(CircuitEntry::Hop(hop)) => {
                at_hop.clear();
                let was_open = hop.confirmed;
                hop.handle_run(now, (from, lane), buf, cells, leaving, at_hop);
                if hop.confirmed && !was_open {
                    room.close_half(hop.prev.node);
                }
                if lane == LegLane::Data {
                    let is_router = config.address.is_router();
                    let count = at_hop.iter().filter(|went| went.is_ok()).count();
                    CircuitPlaces { room, warm_left, is_router }.note_data(id, hop, count);
                }
                let went = core::mem::take(at_hop);
                for (&start, went) in run.iter().zip(&went) {
                    out.push(went.and_then(|went| match went {
                        HopResult::On(to, due) => {
                            let data = ForwardedCell { circuit: id, unit: lane == LegLane::Data };
                            Ok(due.map_or(CellResult::On(to, data), |due| {
                                CellResult::Mixed(to, data, due)
                            }))
                        }
                        HopResult::Unit => Ok(CellResult::Unit(id)),
                        HopResult::Message(number) => {
                            let cell = &buf[start as usize..start as usize + CELL_LEN];
                            self.handle_request(now, id, number, cell).map(|()| CellResult::Taken)
                        }
                    }));
                }
                self.at_hop = went;
            }
            Some(CircuitEntry::Origin(circuit)) => {
                at_origin.clear();
                circuit.handle_run(now, lane, buf, cells, at_origin);
                let opened = core::mem::take(at_origin);
                for (&start, opened) in run.iter().zip(&opened) {
                    out.push(opened.and_then(|opened| match opened {
                        OriginResult::Unit => Ok(CellResult::Unit(id)),
                        OriginResult::Message(hop, number) => {
                            let cell = &buf[start as usize..start as usize + CELL_LEN];
                            let taken = self.handle_answer(now, id, (hop, number), cell);
                            taken.map(|()| CellResult::Taken)
                        }
                    }));
                }
                self.at_origin = opened;
            }
            None => out.extend(run.iter().map(|_| Err(DropReason::UnknownCircuit))),
        }
    }

    /// Wraps units for the other end of a circuit. Each is in a cell, after the leg header;
    /// `offsets` are the cells' starts in `buf`. Returns the node that they go to.
    ///
    /// # Errors
    ///
    /// `unknown_circuit`: the circuit is gone, not built yet, or does not end here.
    /// `circuit_expired`: no numbers are left. Nothing was changed.
    pub fn seal_units(
        &mut self,
        now: Time,
        id: CircuitId,
        buf: &mut [u8],
        offsets: &[u32],
    ) -> Result<Address, DropReason> {
        let Self { slots, filler, keys, scratch, .. } = self;
        let tools = &mut SealTools { filler, keys, scratch };
        match slots.get_mut(id) {
            Some(CircuitEntry::Origin(circuit)) => circuit.seal_units(now, buf, offsets, tools),
            Some(CircuitEntry::Hop(hop)) => hop.seal_units(now, buf, offsets, tools),
            None => Err(DropReason::UnknownCircuit),
        }
    }
}
