//! The set-up of circuits: of this node's own, and of those that it carries.

use core::time::Duration;

use shoal_crypto::{Ciphers, Secret};
use shoal_session::outer::{Lead, OuterSeal};
use shoal_wire::leg::{CELL_LEN, FIRST_LEN, Grant, Message, Refusal, SECOND_LEN, Shape};
use shoal_wire::{Address, CircuitId, DropReason, Mixing, Strategy, Time};

use super::queue::WAITING_MAX;
use super::{Entry, Event, Failure, HALF_OPEN, LIFE_MAX, OWN_ECHO, Onion, Wait, Waiting};
use crate::circuit::{Building, Circuit};
use crate::hop::{Hop, Next};
use crate::job::{Attempt, Begun, First, Work};
use crate::layer::LayerSecrets;
use crate::leg::{Direction, Lane, Leg};
use crate::limits::Seen;
use crate::room::Tenant;
use crate::setup::{self, Answer, Bond, Cookie, Create, Reply};

/// How often a create cell is sent again with a cookie, whatever the node that was asked says.
const REPEATS_MAX: u8 = 2;
/// What stands for the number of a created cell, which has none, where its delay is drawn.
const CREATED: u64 = u64::MAX;

impl<C: Ciphers> Onion<C> {
    /// Begins a circuit over the relays of `path` to the node that stands last in it.
    ///
    /// # Errors
    ///
    /// `unknown_peer`: the path is empty or longer than the shape has places, leads through this
    /// node or through one node twice, or a node in it is not known. `circuit_limit`: too many.
    pub fn build(
        &mut self,
        now: Time,
        path: &[Address],
        shape: Shape,
        life: Duration,
    ) -> Result<CircuitId, DropReason> {
        self.build_mixed(now, path, &[], shape, life)
    }

    /// As [`Onion::build`], and has the relays delay cells as `mixes` says of each; relays beyond
    /// its end don't.
    ///
    /// # Errors
    ///
    /// As of [`Onion::build`].
    pub fn build_mixed(
        &mut self,
        now: Time,
        path: &[Address],
        mixes: &[Strategy],
        shape: Shape,
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
        let circuit = Circuit::new(shape, (path.to_vec(), mixes), leg.clone(), (now, until));
        let id = self.insert(now, Entry::Origin(Box::new(circuit)))?;
        let begun = self
            .attempt(id, 0)
            .and_then(|(attempt, first)| self.queue.add_own(Work::Begin { attempt, leg, first }));
        if let Err(reason) = begun {
            self.remove(id);
            return Err(reason);
        }
        Ok(id)
    }

    /// A new handshake of a circuit of this node, with the hop behind `hops`, and what its first
    /// message is made of.
    fn attempt(&mut self, id: CircuitId, hops: usize) -> Result<(Attempt, First), DropReason> {
        let ephemeral = Secret::new(self.rng.array());
        self.attempts += 1;
        let number = self.attempts;
        let Some(Entry::Origin(circuit)) = self.slots.get_mut(id) else {
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
            false => Mixing::Relay(circuit.mix(hops)),
        };
        circuit.building = Some(Building { attempt: number, initiator: None, number: None });
        let attempt = Attempt { circuit: id, number };
        Ok((attempt, First { responder, ephemeral, shape, place, lifetime, mixing }))
    }

    /// What a circuit of this node waits for, if it is still this handshake.
    fn building(&mut self, attempt: Attempt) -> Result<&mut Building, DropReason> {
        let circuit = self.origin(attempt.circuit).map_err(|_| DropReason::UnexpectedReply)?;
        let building = circuit.building.as_mut();
        building.filter(|b| b.attempt == attempt.number).ok_or(DropReason::UnexpectedReply)
    }

    /// The first message to the first hop is made.
    pub(super) fn begun(
        &mut self,
        now: Time,
        attempt: Attempt,
        made: Result<Begun, DropReason>,
    ) -> Result<(), DropReason> {
        let id = attempt.circuit;
        self.building(attempt)?;
        let asked = made.and_then(|(initiator, noise)| {
            self.building(attempt)?.initiator = Some(initiator);
            let circuit = self.origin(id)?;
            let (to, leg) = (circuit.path[0], circuit.next_leg.clone());
            self.ask(now, (id, None), to, leg, noise)
        });
        asked.inspect_err(|_| self.fail(id, 1, Failure::Here))
    }

    /// Asks `to` to be the next hop of a circuit: of one of others with the node before.
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
        let waiting = Waiting { id, asker, to, lead, leg, bond, outer, noise, repeats: 0, until };
        let sent = self.send_create(now, waiting, &Cookie::default());
        sent.inspect_err(|_| self.drop_waiting(id))
    }

    /// Sends the create cell of `waiting`, under its leading bytes.
    fn send_create(
        &mut self,
        now: Time,
        waiting: Waiting,
        cookie: &Cookie,
    ) -> Result<(), DropReason> {
        let Waiting { id, to, ref lead, ref noise, .. } = waiting;
        let shown = (self.config.address, cookie, self.shown_s(now));
        let grant = self.slots.granted(id, to);
        let cell = setup::write_create(&waiting.sides(), lead, shown, &grant, noise);
        let wait = waiting.asker.and_then(|from| {
            let hop = self.hop(id).ok()?;
            let Next::Asked { number } = hop.next else { return None };
            let due = hop.layer.due(now, Direction::Forward, Lane::Control, number)?;
            Some(Wait { due, from })
        });
        self.waiting.insert(waiting.outer.token(lead), waiting);
        self.transmit(to, cell, wait, Some(id))
    }

    fn shown_s(&self, now: Time) -> u32 {
        // The lower four bytes, as in other handshakes.
        (self.unix_s + now.since(Time::ZERO).as_secs()) as u32
    }

    /// Takes in a cell that names no circuit: the answer of a node that we asked, or a node that
    /// asks us.
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

    /// Becomes a hop of somebody's circuit.
    fn handle_create(
        &mut self,
        now: Time,
        from: Address,
        cell: &mut [u8; CELL_LEN],
    ) -> Result<(), DropReason> {
        // Most of what comes here without a circuit's index is a cell of one that is gone.
        let (create, opener) = Create::open(&self.outer, cell).map_err(|reason| match reason {
            DropReason::BadHandshake => DropReason::UnknownCircuit,
            other => other,
        })?;
        let age = i64::from(self.shown_s(now).wrapping_sub(create.shown_s) as i32);
        if age.abs() > 600 {
            return Err(DropReason::WrongClock);
        }
        let name = Seen::name(&create.noise[..]);
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
        self.queue.add_answer(Work::Answer { from, opener, create, bond, ephemeral });
        Ok(())
    }

    /// Whether a create cell is of the node that it names. Under load it must show a cookie, too: a
    /// copy of an earlier one has none, or one that is too old.
    fn check_proof(
        &mut self,
        now: Time,
        from: Address,
        (create, opener): (&Create, &OuterSeal),
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

    /// What this node shares with another that stands beside it on a circuit. The first time for
    /// each it costs one X25519, some 30 us, which nobody can have done more often than the list
    /// has nodes.
    fn bond(&mut self, node: Address) -> Result<Bond, DropReason> {
        if let Some(bond) = self.bonds.get(&node) {
            return Ok(bond.clone());
        }
        let key = self.nodes.get(&node).ok_or(DropReason::UnknownPeer)?;
        let bond = self.queue.bond(&key.dh)?;
        self.bonds.insert(node, bond.clone());
        Ok(bond)
    }

    /// The answer to a create cell of `from` is made. Where there is no room, a circuit that
    /// carried nothing ends, and counts as `circuit_limit`.
    pub(super) fn answered(
        &mut self,
        now: Time,
        from: Address,
        opener: &OuterSeal,
        answer: &Answer,
    ) -> Result<(), DropReason> {
        let mixing = self.agreed(now, answer.offer.mixing)?;
        let gives_way = self.find_room(now, from, 0)?;
        gives_way.into_iter().for_each(|id| self.remove(id));
        let (shape, place) = (answer.offer.shape, answer.offer.place);
        let life = Duration::from_secs(u64::from(answer.offer.lifetime) * 10);
        let times = (now, now + life.min(LIFE_MAX));
        let prev = Leg::new(from, &answer.back, &mut self.keys);
        let mut hop = Hop::new(shape, answer.secrets.layer(shape, place), prev, times, mixing);
        let due = hop.layer.due(now, Direction::Backward, Lane::Control, CREATED);
        hop.layer.cool();
        let id = self
            .insert(now, Entry::Hop(Box::new(hop)))
            .inspect_err(|_| self.keys.give_back(prev.key))?;
        self.room.add(Tenant { id, from, born: now });
        self.room.open_half(from);
        let grant = self.slots.grant(id, from);
        let cell = answer.write(opener, &grant, &mut self.rng);
        let wait = due.map(|due| Wait { due, from });
        self.transmit(from, cell, wait, Some(id)).inspect_err(|_| self.remove(id))?;
        if matches!(mixing, Mixing::Path { .. }) {
            self.tell(Event::Mixed(id));
        }
        gives_way.map_or(Ok(()), |_| Err(DropReason::CircuitLimit))
    }

    /// What this node does with cells of a circuit whose origin asks for this.
    ///
    /// Errors: `not_allowed`: the network's list has no such strategy.
    fn agreed(&self, now: Time, asked: Mixing) -> Result<Mixing, DropReason> {
        let is_former = |strategy| {
            self.former.iter().any(|(former, until)| *former == strategy && now < *until)
        };
        match (asked, self.own_mix) {
            (Mixing::Relay(_), Some(own)) => Ok(Mixing::Relay(own)),
            (Mixing::Relay(strategy), None)
                if strategy.holds() && !self.mixes.contains(&strategy) && !is_former(strategy) =>
            {
                Err(DropReason::NotAllowed)
            }
            _ => Ok(asked),
        }
    }

    /// Takes in what a node that we asked answers.
    fn handle_reply(
        &mut self,
        now: Time,
        token: Lead,
        cell: &mut [u8; CELL_LEN],
    ) -> Result<(), DropReason> {
        let waiting = self.waiting.get(&token).ok_or(DropReason::UnknownCircuit)?;
        match setup::open_reply(&waiting.sides(), &waiting.lead, cell)? {
            Reply::Created(grant, noise) => self.handle_created(now, token, &grant, noise),
            Reply::Cookie(_) if waiting.repeats >= REPEATS_MAX => Err(DropReason::HandshakeBudget),
            Reply::Cookie(cookie) => {
                let mut waiting = self.waiting.remove(&token).expect("it was just there");
                // Another lead, since it makes the key, and a key seals one frame.
                waiting.lead = self.rng.array();
                waiting.repeats += 1;
                self.send_create(now, waiting, &cookie)
            }
        }
    }

    /// The node that we asked is a hop: of a circuit of ours, or of one that we carry.
    fn handle_created(
        &mut self,
        now: Time,
        token: Lead,
        grant: &Grant,
        noise: Box<[u8; SECOND_LEN]>,
    ) -> Result<(), DropReason> {
        let waiting = self.waiting.remove(&token).ok_or(DropReason::UnknownCircuit)?;
        waiting.asker.into_iter().for_each(|asker| self.room.close_half(asker));
        let leg = Leg::new(waiting.to, grant, &mut self.keys);
        match self.slots.get_mut(waiting.id) {
            Some(Entry::Origin(circuit)) => {
                circuit.set_first(leg);
                self.finish_hop(waiting.id, noise)
            }
            Some(Entry::Hop(hop)) => {
                let Next::Asked { number } = hop.next else {
                    self.keys.give_back(leg.key);
                    return Err(DropReason::UnknownCircuit);
                };
                hop.next = Next::Leg(leg);
                self.reply(now, waiting.id, number, &Message::Extended(&noise))
            }
            None => {
                self.keys.give_back(leg.key);
                Err(DropReason::UnknownCircuit)
            }
        }
    }

    /// Has the answer of the newest hop of a circuit of this node read, and the first message to
    /// the hop behind it made.
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
        let attempt = Attempt { circuit: id, number: building.attempt };
        let queued = match is_last {
            true => Ok((attempt, None)),
            false => self.attempt(id, hop).map(|(attempt, first)| (attempt, Some(first))),
        };
        let queued = queued.and_then(|(attempt, next)| {
            self.queue.add_own(Work::Extend { attempt, initiator, noise, next })
        });
        queued.inspect_err(|_| self.fail(id, hop as u8, Failure::Here))
    }

    /// The handshake with the newest hop of a circuit of this node is done.
    pub(super) fn added(
        &mut self,
        now: Time,
        attempt: Attempt,
        made: Result<(LayerSecrets, Option<Begun>), DropReason>,
    ) -> Result<(), DropReason> {
        let id = attempt.circuit;
        self.building(attempt)?;
        let circuit = self.origin(id)?;
        let (secrets, next) = match made {
            Ok(made) => made,
            Err(reason) => {
                let hop = circuit.hops() as u8 + 1;
                self.fail(id, hop, Failure::BadHandshake);
                return Err(reason);
            }
        };
        circuit.add(&secrets);
        circuit.used = now;
        let hops = circuit.hops();
        let Some((initiator, noise)) = next else {
            self.tell(Event::Built(id));
            // The last hop keeps a circuit only after a first cell.
            return self.say(id, hops, &Message::Echo(OWN_ECHO)).map(|_| ());
        };
        let to = circuit.path[hops];
        let number = Some(self.say(id, hops, &Message::Extend { to, noise: &noise })?);
        let building = Building { attempt: attempt.number, initiator: Some(initiator), number };
        self.origin(id)?.building = Some(building);
        Ok(())
    }

    pub(super) fn fail(&mut self, id: CircuitId, hop: u8, why: Failure) {
        self.close(id);
        self.tell(Event::Failed(id, hop, why));
    }

    /// Sets the next hop of a carried circuit up.
    pub(super) fn extend(
        &mut self,
        now: Time,
        id: CircuitId,
        number: u64,
        to: Address,
        noise: &[u8; FIRST_LEN],
    ) -> Result<(), Refusal> {
        let own = self.config.address;
        let (relay, is_known) = (self.config.relay, self.nodes.contains_key(&to));
        let hop = self.hop(id).map_err(|_| Refusal::NotAllowed)?;
        // Behind the last place there is only a host; a circuit does not turn round.
        let fits = !to.is_router() || hop.layer.place() > 1;
        // A relay that was called a destination mixes nothing, whatever the network's list says.
        let fits = fits && !matches!(hop.mixing, Mixing::Path { .. });
        let goes = fits && to != own && to != hop.prev.node;
        if !relay || !is_known || !goes || !matches!(hop.next, Next::End) || hop.layer.place() == 0
        {
            return Err(Refusal::NotAllowed);
        }
        let leg = hop.layer.next_leg();
        hop.next = Next::Asked { number };
        let asker = Some(hop.prev.node);
        self.ask(now, (id, asker), to, leg, Box::new(*noise)).map_err(|_| {
            if let Ok(hop) = self.hop(id) {
                hop.next = Next::End;
            }
            Refusal::Full
        })
    }

    /// The node that was asked to be the next hop did not answer.
    pub(super) fn give_up(&mut self, now: Time, id: CircuitId) {
        self.drop_waiting(id);
        match self.slots.get_mut(id) {
            Some(Entry::Origin(_)) => self.fail(id, 1, Failure::Silent),
            Some(Entry::Hop(hop)) => {
                if let Next::Asked { number } = hop.next {
                    hop.next = Next::End;
                    // The origin gives up by itself if this can't be sent.
                    let _ = self.reply(now, id, number, &Message::Refused(Refusal::Silent));
                }
            }
            None => {}
        }
    }
}
