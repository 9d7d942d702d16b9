//! The set-up of circuits: of this node's own, and of those that it carries.

use core::time::Duration;

use shoal_crypto::{Ciphers, Secret};
use shoal_session::outer::{Lead, OuterSeal};
use shoal_wire::leg::{CELL_LEN, FIRST_LEN, Message, Offer, Refusal, Shape};
use shoal_wire::{Address, DropReason, Time};

use super::{Entry, Event, HALF_OPEN, HALF_OPEN_MAX, LIFE_MAX, OWN_ECHO, Onion, SHARE, Waiting};
use crate::circuit::{Building, Circuit};
use crate::hop::{Hop, Leg, Next};
use crate::leg::Direction;
use crate::setup::{self, Create};
use crate::slots::CircuitId;

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
        let fits = (2..=usize::from(shape.tags()) + 1).contains(&path.len());
        let known = |at: &Address| self.nodes.contains_key(at) && *at != self.config.address;
        let twice = |at: usize| path[..at].contains(&path[at]);
        if !fits || !path.iter().all(known) || (0..path.len()).any(twice) {
            return Err(DropReason::UnknownPeer);
        }
        let leg = Secret::new(self.rng.array());
        let filler = Secret::new(self.rng.array());
        let until = now + life.min(LIFE_MAX);
        let circuit = Circuit::new(shape, path.to_vec(), leg.clone(), &filler, (now, until));
        let id = self.insert(now, Entry::Origin(Box::new(circuit)))?;
        let begun =
            self.first_message(id).and_then(|noise| self.ask(now, id, path[0], leg, &noise));
        if let Err(reason) = begun {
            self.remove(id);
            return Err(reason);
        }
        Ok(id)
    }

    /// Makes the first Noise message for the next hop of a circuit of this node.
    fn first_message(&mut self, id: CircuitId) -> Result<Box<[u8; FIRST_LEN]>, DropReason> {
        let ephemeral = Secret::new(self.rng.array());
        let suites = setup::suite_bits(&self.config.suites);
        let circuit = self.origin(id)?;
        let hop = circuit.hops();
        let to = *circuit.path.get(hop).ok_or(DropReason::UnknownPeer)?;
        let place = circuit.shape.place(hop as u8 + 1).ok_or(DropReason::UnknownPeer)?;
        let life = circuit.until.since(circuit.used).as_secs().div_ceil(10);
        let offer = Offer {
            leg: *circuit.next_leg.expose(),
            suites,
            shape: circuit.shape,
            place,
            lifetime: life.min(255) as u8,
        };
        let key = self.nodes.get(&to).ok_or(DropReason::UnknownPeer)?;
        let (initiator, noise) = setup::begin(&key.dh, &offer, &ephemeral)?;
        self.origin(id)?.building = Some(Building { initiator, number: None });
        Ok(noise)
    }

    /// Asks `to` to be the next hop of a circuit.
    fn ask(
        &mut self,
        now: Time,
        id: CircuitId,
        to: Address,
        leg: Secret<32>,
        noise: &[u8; FIRST_LEN],
    ) -> Result<(), DropReason> {
        if self.half_open >= HALF_OPEN_MAX {
            return Err(DropReason::CircuitLimit);
        }
        let key = self.nodes.get(&to).ok_or(DropReason::UnknownPeer)?;
        let outer = OuterSeal::new(setup::ROLE, &self.secret, key);
        let lead = self.rng.array();
        let shown_s = self.shown_s(now);
        let grant = self.slots.grant(id, to);
        let cell = setup::write_create(&outer, &lead, shown_s, &leg, &grant, noise);
        let token = outer.token(&lead);
        let until = now + HALF_OPEN;
        self.waiting.insert(token, Waiting { id, to, lead, leg, outer, until });
        self.half_open += 1;
        self.transmit(to, cell)
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
            Some(_) => self.handle_created(now, token, cell),
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
        let create = Create::open(&self.outer, cell).map_err(|reason| match reason {
            DropReason::BadHandshake => DropReason::UnknownCircuit,
            other => other,
        })?;
        let age = i64::from(self.shown_s(now).wrapping_sub(create.shown_s) as i32);
        if age.abs() > 600 {
            return Err(DropReason::WrongClock);
        }
        if self.half_open >= HALF_OPEN_MAX
            || self.slots.of(from) >= self.config.circuits_max / SHARE
        {
            return Err(DropReason::CircuitLimit);
        }
        if !self.asked.take(now, from) {
            return Err(DropReason::HandshakeBudget);
        }
        if !self.seen.is_new(&create.noise[..]) {
            return Err(DropReason::ReplayedHandshake);
        }
        let ephemeral = Secret::new(self.rng.array());
        let answer = create.answer(self.identity.dh(), &self.config.suites, &ephemeral)?;
        let (shape, place) = (answer.offer.shape, answer.offer.place);
        let life = Duration::from_secs(u64::from(answer.offer.lifetime) * 10);
        let times = (now, now + life.min(LIFE_MAX));
        let prev = Leg::new(from, &answer.leg, &answer.back, Direction::Backward);
        let filler = Secret::new(self.rng.array());
        let layer = answer.secrets.expand(shape, place);
        let hop = Hop::new(shape, layer, &filler, answer.secrets.next_leg(), prev, times);
        let id = self.insert(now, Entry::Hop(Box::new(hop)))?;
        self.half_open += 1;
        let grant = self.slots.grant(id, from);
        let cell = answer.write(&self.outer, &grant, &mut self.rng);
        self.transmit(from, cell).inspect_err(|_| self.remove(id))
    }

    /// The node that we asked is a hop: of a circuit of ours, or of one that we carry.
    fn handle_created(
        &mut self,
        now: Time,
        token: Lead,
        cell: &mut [u8; CELL_LEN],
    ) -> Result<(), DropReason> {
        let waiting = self.waiting.get(&token).ok_or(DropReason::UnknownCircuit)?;
        let Waiting { id, to, ref lead, ref leg, ref outer, .. } = *waiting;
        let (grant, noise) = setup::open_created(outer, lead, leg, cell)?;
        let leg = Leg::new(to, leg, &grant, Direction::Forward);
        self.waiting.remove(&token);
        self.half_open -= 1;
        match self.slots.get_mut(id) {
            Some(Entry::Origin(circuit)) => {
                circuit.set_first(leg);
                self.added(now, id, &noise[..])
            }
            Some(Entry::Hop(hop)) => {
                let Next::Asked { number } = hop.next else {
                    return Err(DropReason::UnknownCircuit);
                };
                hop.next = Next::Leg(Box::new(leg));
                self.reply(id, number, &Message::Extended(&noise))
            }
            None => Err(DropReason::UnknownCircuit),
        }
    }

    /// The handshake with the newest hop of a circuit of this node is answered.
    pub(super) fn added(
        &mut self,
        now: Time,
        id: CircuitId,
        noise: &[u8],
    ) -> Result<(), DropReason> {
        let Self { config, slots, .. } = self;
        let Some(Entry::Origin(circuit)) = slots.get_mut(id) else {
            return Err(DropReason::UnknownCircuit);
        };
        let building = circuit.building.as_ref().ok_or(DropReason::UnknownCircuit)?;
        let added = setup::finish(&building.initiator, noise, &config.suites);
        let hop = circuit.hops() as u8 + 1;
        let secrets = match added {
            Ok(secrets) => secrets,
            Err(reason) => {
                self.fail(id, hop, Refusal::NotAllowed);
                return Err(reason);
            }
        };
        circuit.add(&secrets);
        circuit.used = now;
        let hops = circuit.hops();
        if circuit.is_built() {
            self.tell(Event::Built(id));
            // The last hop keeps a circuit only after a first cell.
            return self.say(id, hops, &Message::Echo(OWN_ECHO)).map(|_| ());
        }
        let to = circuit.path[hops];
        let noise = self.first_message(id)?;
        let number = self.say(id, hops, &Message::Extend { to, noise: &noise })?;
        if let Some(building) = &mut self.origin(id)?.building {
            building.number = Some(number);
        }
        Ok(())
    }

    pub(super) fn fail(&mut self, id: CircuitId, hop: u8, why: Refusal) {
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
        let goes = fits && to != own && to != hop.prev.node;
        if !relay || !is_known || !goes || !matches!(hop.next, Next::End) || hop.layer.place() == 0
        {
            return Err(Refusal::NotAllowed);
        }
        let leg = hop.next_leg.clone();
        hop.next = Next::Asked { number };
        self.ask(now, id, to, leg, noise).map_err(|_| {
            if let Ok(hop) = self.hop(id) {
                hop.next = Next::End;
            }
            Refusal::Full
        })
    }

    /// The node that was asked to be the next hop did not answer.
    pub(super) fn give_up(&mut self, id: CircuitId) {
        let tokens = self.waiting.iter().filter(|(_, w)| w.id == id).map(|(token, _)| *token);
        for token in tokens.collect::<Vec<_>>() {
            if let Some(waiting) = self.waiting.remove(&token) {
                self.half_open -= 1;
                self.slots.forget(waiting.to);
            }
        }
        match self.slots.get_mut(id) {
            Some(Entry::Origin(_)) => self.fail(id, 1, Refusal::Silent),
            Some(Entry::Hop(hop)) => {
                let asked = core::mem::replace(&mut hop.next, Next::End);
                if let Next::Asked { number } = asked {
                    // The origin gives up by itself if this can't be sent.
                    let _ = self.reply(id, number, &Message::Refused(Refusal::Silent));
                }
            }
            None => {}
        }
    }
}
