//! Set-up of circuits: of this node's own circuits, and of those that it carries.

use core::time::Duration;

use shoal_crypto::{Ciphers, Secret};
use shoal_session::outer::{Lead, OuterSeal};
use shoal_wire::leg::{
    CELL_LEN, CellShape, ExtendRefusal, FIRST_LEN, LegGrant, LegMessage, SECOND_LEN,
};
use shoal_wire::{Address, CircuitId, DropReason, HopDelay, MixStrategy, Time};

use super::queue::WAITING_MAX;
use super::{
    CircuitEntry, HALF_OPEN, LIFE_MAX, MixWait, OWN_ECHO, Onion, OnionEvent, PendingCreate,
    SetupFailure,
};
use crate::circuit::{OriginCircuit, PendingHop};
use crate::hop::{CircuitHop, CircuitNext};
use crate::job::{FirstMessageInput, FirstMessageState, SetupAttempt, SetupWork};
use crate::layer::LayerSecrets;
use crate::leg::{Direction, Leg, LegLane};
use crate::limits::CreateReplayCache;
use crate::room::CircuitTenant;
use crate::setup::{self, Bond, Cookie, CreateAnswer, CreateCell, CreateReply};

/// Times that a create cell is repeated with a cookie, whatever the asked node answers.
const REPEATS_MAX: u8 = 2;
/// Number from which a created cell's delay is drawn, since it has no number of its own.
const CREATED: u64 = u64::MAX;

impl<C: Ciphers> Onion<C> {
    /// Begins a circuit over the relays of `path` to the last node in it.
    ///
    /// # Errors
    ///
    /// `unknown_peer`: the path is empty or too long for the shape, contains this node or one node
    /// twice, or has an unknown node. `circuit_limit`: this node has too many circuits.
    pub fn build(
        &mut self,
        now: Time,
        path: &[Address],
        shape: CellShape,
        life: Duration,
    ) -> Result<CircuitId, DropReason> {
        self.build_mixed(now, path, &[], shape, life)
    }

    /// Like [`Onion::build`], with a mix strategy for each relay. Relays without an entry in
    /// `mixes` don't delay cells.
    ///
    /// # Errors
    ///
    /// The errors of [`Onion::build`].
    pub fn build_mixed(
        &mut self,
        now: Time,
        path: &[Address],
        mixes: &[MixStrategy],
        shape: CellShape,
        life: Duration,
    ) -> Result<CircuitId, DropReason> {
        let fits = (2..=usize::from(shape.tags()) + 1).contains(&path.len());
        let known = |at: &Address| self.nodes.contains_key(at) && *at != self.config.address;
        let twice = |at: usize| path[..at].contains(&path[at]);
        if !fits || !path.iter().all(known) || (0..path.len()).any(twice) {
            return Err(DropReason::UnknownPeer);
        }
        if self.slots.len() - self.room.len() >= self.config.limits.own {
            return Err(DropReason::CircuitLimit);
        }
        let leg = Secret::new(self.rng.array());
        let until = now + life.min(LIFE_MAX);
        let relays = path.len() - 1;
        let mixes = mixes[..mixes.len().min(relays)].to_vec();
        let circuit = OriginCircuit::new(shape, (path.to_vec(), mixes), leg.clone(), (now, until));
        let id = self.insert(now, CircuitEntry::Origin(Box::new(circuit)))?;
        let begun = self.attempt(id, 0).and_then(|(attempt, first)| {
            self.queue.add_own(SetupWork::Begin { attempt, leg, first })
        });
        if let Err(reason) = begun {
            self.remove(id);
            return Err(reason);
        }
        Ok(id)
    }

    /// A new handshake of a circuit of this node, with the hop after `hops` others. Returns the
    /// content of its first message.
    fn attempt(
        &mut self,
        id: CircuitId,
        hops: usize,
    ) -> Result<(SetupAttempt, FirstMessageInput), DropReason> {
        let ephemeral = Secret::new(self.rng.array());
        self.attempts += 1;
        let number = self.attempts;
        let Some(CircuitEntry::Origin(circuit)) = self.slots.get_mut(id) else {
            return Err(DropReason::UnknownCircuit);
        };
        let to = circuit.path.get(hops).ok_or(DropReason::UnknownPeer)?;
        let responder = self.nodes.get(to).ok_or(DropReason::UnknownPeer)?.dh;
        let place = circuit.shape.place(hops as u8 + 1).ok_or(DropReason::UnknownPeer)?;
        let life = circuit.until.since(circuit.used).as_secs().div_ceil(10);
        let (shape, lifetime) = (circuit.shape, life.min(255) as u8);
        let added = shoal_mix::path(circuit.mixes.iter().copied());
        let mixing = match hops + 1 == circuit.path.len() && !added.most.is_zero() {
            true => added.mixing(),
            false => HopDelay::Relay(circuit.mix(hops)),
        };
        circuit.building = Some(PendingHop { attempt: number, initiator: None, number: None });
        let attempt = SetupAttempt { circuit: id, number };
        Ok((attempt, FirstMessageInput { responder, ephemeral, shape, place, lifetime, mixing }))
    }

    /// The circuit's open handshake, if it is still this attempt.
    fn building(&mut self, attempt: SetupAttempt) -> Result<&mut PendingHop, DropReason> {
        let circuit = self.origin(attempt.circuit).map_err(|_| DropReason::UnexpectedReply)?;
        let building = circuit.building.as_mut();
        building.filter(|b| b.attempt == attempt.number).ok_or(DropReason::UnexpectedReply)
    }

    /// Called when the first message to the first hop is made.
    pub(super) fn begun(
        &mut self,
        now: Time,
        attempt: SetupAttempt,
        made: Result<FirstMessageState, DropReason>,
    ) -> Result<(), DropReason> {
        let id = attempt.circuit;
        self.building(attempt)?;
        let asked = made.and_then(|(initiator, noise)| {
            self.building(attempt)?.initiator = Some(initiator);
            let circuit = self.origin(id)?;
            let (to, leg) = (circuit.path[0], circuit.next_leg.clone());
            self.ask(now, (id, None), to, leg, noise)
        });
        asked.inspect_err(|_| self.fail(id, 1, SetupFailure::Here))
    }

    /// Asks `to` to be the next hop of a circuit. `asker` is the previous node, if another node
    /// began it.
    fn ask(
        &mut self,
        now: Time,
        (id, asker): (CircuitId, Option<Address>),
        to: Address,
        leg: Secret<32>,
        noise: Box<[u8; FIRST_LEN]>,
    ) -> Result<(), DropReason> {
        if asker.is_some_and(|asker| !self.room.may_open_half(asker, 0)) {
            return Err(DropReason::CircuitLimit);
        }
        let key = self.nodes.get(&to).ok_or(DropReason::UnknownPeer)?;
        let outer = OuterSeal::new(setup::ROLE, &self.secrets.first, key);
        let bond = self.bond(to)?;
        let (lead, until) = (self.rng.array(), now + HALF_OPEN);
        self.slots.grant(id, to);
        asker.into_iter().for_each(|asker| self.room.open_half(asker));
        let waiting =
            PendingCreate { id, asker, to, lead, leg, bond, outer, noise, repeats: 0, until };
        let sent = self.send_create(now, waiting, &Cookie::default());
        sent.inspect_err(|_| self.drop_waiting(id))
    }

    /// Sends the create cell of `waiting`, with its leading bytes.
    fn send_create(
        &mut self,
        now: Time,
        waiting: PendingCreate,
        cookie: &Cookie,
    ) -> Result<(), DropReason> {
        let PendingCreate { id, to, ref lead, ref noise, .. } = waiting;
        let shown = (self.source(id), cookie, self.shown_s(now));
        let grant = self.slots.granted(id, to);
        let cell = setup::write_create(&waiting.sides(), lead, shown, &grant, noise);
        let wait = waiting.asker.and_then(|from| {
            let hop = self.hop(id).ok()?;
            let CircuitNext::Asked { number } = hop.next else { return None };
            let due = hop.layer.due(now, Direction::Forward, LegLane::Control, number)?;
            Some(MixWait { due, from })
        });
        self.waiting.insert(waiting.outer.token(lead), waiting);
        self.transmit(to, cell, wait, Some(id))
    }

    fn shown_s(&self, now: Time) -> u32 {
        // The lower four bytes, as in other handshakes.
        (self.unix_s + now.since(Time::ZERO).as_secs()) as u32
    }

    /// Processes a cell that names no circuit: the answer of a node that was asked, or a request
    /// from another node.
    pub(super) fn handle_setup(
        &mut self,
        now: Time,
        from: Address,
        cell: &mut [u8; CELL_LEN],
    ) -> Result<(), DropReason> {
        let token: Lead = cell[..16].try_into().expect("a cell is longer");
        match self.waiting.get(&token).filter(|waiting| waiting.to == from) {
            Some(_) => self.handle_reply(now, token, cell),
            None => self.handle_create(now, from, cell),
        }
    }

    /// Processes a create cell: becomes a hop of another node's circuit.
    fn handle_create(
        &mut self,
        now: Time,
        from: Address,
        cell: &mut [u8; CELL_LEN],
    ) -> Result<(), DropReason> {
        // Most cells without a known index belong to a circuit that is gone.
        let (create, opener) =
            CreateCell::open(&self.outer, cell).map_err(|reason| match reason {
                DropReason::BadHandshake => DropReason::UnknownCircuit,
                other => other,
            })?;
        let age = i64::from(self.shown_s(now).wrapping_sub(create.shown_s) as i32);
        if age.abs() > 600 {
            return Err(DropReason::WrongClock);
        }
        let name = CreateReplayCache::name(&create.noise[..]);
        if self.seen.contains(&name) {
            return Err(DropReason::ReplayedHandshake);
        }
        let bond = self.bond(from)?;
        self.find_room(now, from, self.queue.answers())?;
        self.check_proof(now, from, (&create, &opener), &bond)?;
        if self.queue.answers() >= WAITING_MAX || !self.asked.take(now, from) {
            return Err(DropReason::HandshakeBudget);
        }
        self.seen.insert(name);
        let ephemeral = Secret::new(self.rng.array());
        let ends = (from, self.arrival);
        self.queue.add_answer(SetupWork::Answer { ends, opener, create, bond, ephemeral });
        Ok(())
    }

    /// Checks that a create cell was made by the node that it names. Under load it also needs a
    /// cookie. A copy of an earlier cell has none, or an old one.
    fn check_proof(
        &mut self,
        now: Time,
        from: Address,
        (create, opener): (&CreateCell, &OuterSeal),
        bond: &Bond,
    ) -> Result<(), DropReason> {
        if !create.shows(bond, from, &Cookie::default()) {
            let cookies = self.queue.cookies.issued(now, &from);
            let shows = cookies.iter().any(|cookie| create.shows(bond, from, cookie));
            return if shows { Ok(()) } else { Err(DropReason::BadHandshake) };
        }
        if !self.queue.is_loaded(now) {
            return Ok(());
        }
        let cookies = &mut self.queue.cookies;
        if !cookies.may_answer(now) {
            return Err(DropReason::HandshakeBudget);
        }
        let cookie = cookies.issue(now, &from);
        let seals = (opener, bond);
        let cell = setup::write_cookie(seals, &create.lead, &cookie, &mut self.rng);
        self.transmit(from, cell, None, None)?;
        Err(DropReason::CookieRequired)
    }

    /// Bond with another node that is next to this one on a circuit. The first call for each node
    /// costs one X25519, about 30 us. It happens at most once per node of the list.
    fn bond(&mut self, node: Address) -> Result<Bond, DropReason> {
        if let Some(bond) = self.bonds.get(&node) {
            return Ok(bond.clone());
        }
        let key = self.nodes.get(&node).ok_or(DropReason::UnknownPeer)?;
        let bond = self.queue.bond(&key.dh)?;
        self.bonds.insert(node, bond.clone());
        Ok(bond)
    }

    /// Called when the answer to a create cell from `from` is made. If there is no room, an unused
    /// circuit is closed, which counts as `circuit_limit`.
    pub(super) fn answered(
        &mut self,
        now: Time,
        (from, home): (Address, Option<Address>),
        opener: &OuterSeal,
        answer: &CreateAnswer,
    ) -> Result<(), DropReason> {
        let mixing = self.agreed(now, answer.offer.mixing)?;
        let gives_way = self.find_room(now, from, 0)?;
        gives_way.into_iter().for_each(|id| self.remove(id));
        let (shape, place) = (answer.offer.shape, answer.offer.place);
        let life = Duration::from_secs(u64::from(answer.offer.lifetime) * 10);
        let times = (now, now + life.min(LIFE_MAX));
        let prev = Leg::new(from, &answer.back, &mut self.keys);
        let mut hop =
            CircuitHop::new(shape, answer.secrets.layer(shape, place), prev, times, mixing);
        hop.home = home;
        let due = hop.layer.due(now, Direction::Backward, LegLane::Control, CREATED);
        hop.layer.cool();
        let id = self
            .insert(now, CircuitEntry::Hop(Box::new(hop)))
            .inspect_err(|_| self.keys.give_back(prev.key))?;
        self.room.add(CircuitTenant { id, from, born: now });
        self.room.open_half(from);
        let grant = self.slots.grant(id, from);
        let cell = answer.write(opener, &grant, &mut self.rng);
        let wait = due.map(|due| MixWait { due, from });
        self.transmit(from, cell, wait, Some(id)).inspect_err(|_| self.remove(id))?;
        if matches!(mixing, HopDelay::Path { .. }) {
            self.tell(OnionEvent::Mixed(id));
        }
        gives_way.map_or(Ok(()), |_| Err(DropReason::CircuitLimit))
    }

    /// This node's strategy for a circuit, given the origin's request.
    ///
    /// Errors: `not_allowed`: the network's list does not have the strategy.
    fn agreed(&self, now: Time, asked: HopDelay) -> Result<HopDelay, DropReason> {
        let is_former = |strategy| {
            self.former.iter().any(|(former, until)| *former == strategy && now < *until)
        };
        match (asked, self.own_mix) {
            (HopDelay::Relay(_), Some(own)) => Ok(HopDelay::Relay(own)),
            (HopDelay::Relay(strategy), None)
                if strategy.holds() && !self.mixes.contains(&strategy) && !is_former(strategy) =>
            {
                Err(DropReason::NotAllowed)
            }
            _ => Ok(asked),
        }
    }

    /// Processes the answer of a node that was asked to be a hop.
    fn handle_reply(
        &mut self,
        now: Time,
        token: Lead,
        cell: &mut [u8; CELL_LEN],
    ) -> Result<(), DropReason> {
        let waiting = self.waiting.get(&token).ok_or(DropReason::UnknownCircuit)?;
        match setup::open_reply(&waiting.sides(), &waiting.lead, cell)? {
            CreateReply::Created(grant, noise) => self.handle_created(now, token, &grant, noise),
            CreateReply::Cookie(_) if waiting.repeats >= REPEATS_MAX => {
                Err(DropReason::HandshakeBudget)
            }
            CreateReply::Cookie(cookie) => {
                let mut waiting = self.waiting.remove(&token).expect("the entry was found above");
                // A new lead, since the lead makes the key, and a key seals only one frame.
                waiting.lead = self.rng.array();
                waiting.repeats += 1;
                self.send_create(now, waiting, &cookie)
            }
        }
    }

    /// The asked node has become a hop: of a circuit of this node, or of one that it carries.
    fn handle_created(
        &mut self,
        now: Time,
        token: Lead,
        grant: &LegGrant,
        noise: Box<[u8; SECOND_LEN]>,
    ) -> Result<(), DropReason> {
        let waiting = self.waiting.remove(&token).ok_or(DropReason::UnknownCircuit)?;
        waiting.asker.into_iter().for_each(|asker| self.room.close_half(asker));
        let leg = Leg::new(waiting.to, grant, &mut self.keys);
        match self.slots.get_mut(waiting.id) {
            Some(CircuitEntry::Origin(circuit)) => {
                circuit.set_first(leg);
                self.finish_hop(waiting.id, noise)
            }
            Some(CircuitEntry::Hop(hop)) => {
                let CircuitNext::Asked { number } = hop.next else {
                    self.keys.give_back(leg.key);
                    return Err(DropReason::UnknownCircuit);
                };
                hop.next = CircuitNext::Leg(leg);
                self.reply(now, waiting.id, number, &LegMessage::Extended(&noise))
            }
            None => {
                self.keys.give_back(leg.key);
                Err(DropReason::UnknownCircuit)
            }
        }
    }

    /// Queues a job that reads the answer of the newest hop and makes the first message to the hop
    /// behind it.
    pub(super) fn finish_hop(
        &mut self,
        id: CircuitId,
        noise: Box<[u8; SECOND_LEN]>,
    ) -> Result<(), DropReason> {
        let circuit = self.origin(id)?;
        let hop = circuit.hops() + 1;
        let is_last = hop == circuit.path.len();
        let building = circuit.building.as_mut().ok_or(DropReason::UnknownCircuit)?;
        let initiator = building.initiator.take().ok_or(DropReason::UnknownCircuit)?;
        let attempt = SetupAttempt { circuit: id, number: building.attempt };
        let queued = match is_last {
            true => Ok((attempt, None)),
            false => self.attempt(id, hop).map(|(attempt, first)| (attempt, Some(first))),
        };
        let queued = queued.and_then(|(attempt, next)| {
            self.queue.add_own(SetupWork::Extend { attempt, initiator, noise, next })
        });
        queued.inspect_err(|_| self.fail(id, hop as u8, SetupFailure::Here))
    }

    /// Called when the handshake with the newest hop of a circuit of this node is done.
    pub(super) fn added(
        &mut self,
        now: Time,
        attempt: SetupAttempt,
        made: Result<(LayerSecrets, Option<FirstMessageState>), DropReason>,
    ) -> Result<(), DropReason> {
        let id = attempt.circuit;
        self.building(attempt)?;
        let circuit = self.origin(id)?;
        let (secrets, next) = match made {
            Ok(made) => made,
            Err(reason) => {
                let hop = circuit.hops() as u8 + 1;
                self.fail(id, hop, SetupFailure::BadHandshake);
                return Err(reason);
            }
        };
        circuit.add(&secrets);
        circuit.used = now;
        let hops = circuit.hops();
        let Some((initiator, noise)) = next else {
            self.tell(OnionEvent::Built(id));
            // The last hop keeps a circuit only after a first cell.
            return self.say(id, hops, &LegMessage::Echo(OWN_ECHO)).map(|_| ());
        };
        let to = circuit.path[hops];
        let number = Some(self.say(id, hops, &LegMessage::Extend { to, noise: &noise })?);
        let building = PendingHop { attempt: attempt.number, initiator: Some(initiator), number };
        self.origin(id)?.building = Some(building);
        Ok(())
    }

    pub(super) fn fail(&mut self, id: CircuitId, hop: u8, why: SetupFailure) {
        self.close(id);
        self.tell(OnionEvent::Failed(id, hop, why));
    }

    /// Sets up the next hop of a carried circuit.
    pub(super) fn extend(
        &mut self,
        now: Time,
        id: CircuitId,
        number: u64,
        to: Address,
        noise: &[u8; FIRST_LEN],
    ) -> Result<(), ExtendRefusal> {
        let own = self.config.address;
        let (relay, is_known) = (self.config.relay, self.nodes.contains_key(&to));
        let hop = self.hop(id).map_err(|_| ExtendRefusal::NotAllowed)?;
        // Behind the last place there can only be a host. A circuit can't go back to where it came
        // from.
        let fits = !to.is_router() || hop.layer.place() > 1;
        // A relay that was told to be the destination mixes nothing, so it may not extend the
        // circuit.
        let fits = fits && !matches!(hop.mixing, HopDelay::Path { .. });
        let goes = fits && to != own && to != hop.prev.node;
        if !relay
            || !is_known
            || !goes
            || !matches!(hop.next, CircuitNext::End)
            || hop.layer.place() == 0
        {
            return Err(ExtendRefusal::NotAllowed);
        }
        let leg = hop.layer.next_leg();
        hop.next = CircuitNext::Asked { number };
        let asker = Some(hop.prev.node);
        self.ask(now, (id, asker), to, leg, Box::new(*noise)).map_err(|_| {
            if let Ok(hop) = self.hop(id) {
                hop.next = CircuitNext::End;
            }
            ExtendRefusal::Full
        })
    }

    /// Called when the node that was asked to be the next hop did not answer.
    pub(super) fn give_up(&mut self, now: Time, id: CircuitId) {
        self.drop_waiting(id);
        match self.slots.get_mut(id) {
            Some(CircuitEntry::Origin(_)) => self.fail(id, 1, SetupFailure::Silent),
            Some(CircuitEntry::Hop(hop)) => {
                if let CircuitNext::Asked { number } = hop.next {
                    hop.next = CircuitNext::End;
                    // If this can't be sent, the origin gives up by itself.
                    let _ =
                        self.reply(now, id, number, &LegMessage::Refused(ExtendRefusal::Silent));
                }
            }
            None => {}
        }
    }
}
