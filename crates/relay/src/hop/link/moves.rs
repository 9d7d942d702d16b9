//! What a link's two ends tell each other of their prefixes, and how the link follows.

use shoal_session::Endpoints;
use shoal_wire::{HopPlace, PathToken, Time};

use super::{Hop, HopStage, Spot};
use crate::hop::prefixes::{Answered, CLAIMED_MAX, OPENS_MAX};
use crate::hop::schedule::End;

/// What an answer comes to: to a challenge of a place that the neighbour named, or to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    /// The neighbour's addresses are under another prefix than was thought.
    Moved,
    /// Nothing.
    Stayed,
}

impl Hop {
    /// The neighbour said where its addresses are; none if they don't hop (any more). While data
    /// hops, it follows to another prefix when the neighbour has answered there.
    pub fn told(&mut self, now: Time, place: Option<HopPlace>) {
        let roams = |from: HopPlace, to: HopPlace| HopPlace { prefix: to.prefix, ..from } == to;
        let only_roams = self.said.zip(place).is_some_and(|(from, to)| roams(from, to));
        let is_new = self.said != place;
        self.said = place;
        if let Some(place) = place.filter(|_| only_roams && self.at.is_some()) {
            return self.claimed(now, place);
        }
        if !is_new {
            return;
        }
        let before = core::mem::replace(&mut self.peer, place);
        self.forget_claim();
        // A neighbour that only now lets its addresses hop may not know this end's.
        if place.is_some() {
            self.own.tell();
        }
        // Epochs count anew, and addresses may be elsewhere. Who names one prefix after the other
        // is called at each no more often than at one that does not answer.
        match self.next.is_some() {
            true => self.fail(now),
            false => self.fall(now),
        }
        self.back(now);
        if let Some(before) = before.filter(|_| only_roams) {
            self.far.get_or_insert_default().leave(now, before.prefix, false, None);
        }
    }

    /// The neighbour said that its addresses are there from now on. Also if it said so before:
    /// something may have led the link elsewhere since, or nothing have led it there.
    fn claimed(&mut self, now: Time, place: HopPlace) {
        if self.peer.is_some_and(|peer| peer.prefix == place.prefix) {
            return self.forget_claim();
        }
        self.far.get_or_insert_default().claim(now, place);
        self.step_again();
    }

    /// Has the step of the hop that is under way sent again, since prefixes are others: firewalls
    /// must know the addresses under these before data goes there.
    fn step_again(&mut self) {
        if let Some((to, echo)) = self.next.as_ref().map(|next| (next.to, next.echo)) {
            let leads = self.end == End::Leading;
            self.push(to, if leads { HopStage::Call } else { HopStage::Answer }, echo);
        }
    }

    /// Whether this end's place is to be told again, where the link is now. As a step, that is no
    /// sign of life of the link.
    pub fn poll_tell_again(&mut self) -> bool {
        self.own.poll_again()
    }

    /// Takes this end's place, if it is to be told.
    pub fn poll_tell(&mut self) -> Option<HopPlace> {
        self.own.poll_tell()
    }

    /// Takes between which addresses it is to be told besides.
    pub fn poll_opens(&mut self, now: Time) -> Vec<Endpoints> {
        let opens = self.own.poll_open();
        let Some((at, peer)) = self.at.zip(self.peer).filter(|_| opens) else { return Vec::new() };
        let far = self.far.as_mut();
        let other = far.and_then(|far| far.copy(now, peer.prefix, &mut self.unproven, CLAIMED_MAX));
        let other = other.map(|prefix| HopPlace { prefix, ..peer });
        let all = [Some(peer), other].into_iter().flatten();
        all.filter_map(|far| self.between(at, self.own.place(), far)).collect()
    }

    /// Takes the challenge of the place that the neighbour named, if it is to leave: between which
    /// addresses. `token` is a new one.
    pub fn poll_ask(&mut self, now: Time, token: PathToken) -> Option<(Vec<Endpoints>, PathToken)> {
        let Some(at) = self.at else {
            self.forget_claim();
            return None;
        };
        // The neighbour may move, too: both its firewall and this one must know this end's other
        // prefix.
        let frames = self.own.sources().count() as u32;
        let (far, token) = self.far.as_mut()?.ask(now, at, frames, token, &mut self.unproven)?;
        let all = self.own.sources().filter_map(|near| self.between(at, near, far));
        Some((all.collect(), token))
    }

    /// Takes the answer to a challenge; none if it is not one of a place that the neighbour named.
    pub fn answered(&mut self, now: Time, token: PathToken) -> Option<Followed> {
        match self.far.as_mut()?.answered(now, self.at, token)? {
            Answered::Here(place) => {
                if let Some(peer) = &mut self.peer {
                    let during = self.next.as_ref().map(|next| next.to);
                    self.far.get_or_insert_default().leave(now, peer.prefix, true, during);
                    peer.prefix = place.prefix;
                }
                Some(Followed::Moved)
            }
            Answered::Late => Some(Followed::Stayed),
        }
    }

    /// A frame of the neighbour's came between these addresses. Says whether data leaves from
    /// elsewhere for that.
    pub fn came(&mut self, from: &Endpoints) -> bool {
        let local = from.local.filter(|_| self.own.is_moving()).and_then(HopPlace::split);
        let Some((prefix, identifier)) = local else { return false };
        let place = self.own.place();
        let new = self.at.zip(self.peer).and_then(|(at, peer)| self.between(at, place, peer));
        let there = new.is_some_and(|new| {
            let near = new.local.and_then(HopPlace::split);
            let is_far = HopPlace::split(new.remote) == HopPlace::split(from.remote);
            near == Some((prefix, identifier)) && is_far
        });
        self.own.came(prefix, there)
    }

    /// The prefix under which an address is the neighbour's by its schedule, if that is another
    /// than the one in use.
    pub fn roamed(&self, now: Time, remote: std::net::SocketAddr) -> Option<[u8; 8]> {
        let (prefix, id) = HopPlace::split(remote)?;
        let elsewhere = |peer: &HopPlace| peer.port == remote.port() && peer.prefix != prefix;
        let is_its = self.peer.as_ref().is_some_and(elsewhere)
            && HopPlace::is_usable(prefix)
            && self.spots(now).any(|spot: Spot| self.is(spot, id));
        is_its.then_some(prefix)
    }

    /// Whether an address is under the prefix from which this end followed the neighbour lately.
    pub fn has_left(&self, now: Time, remote: std::net::SocketAddr) -> bool {
        let prefix = HopPlace::split(remote).map(|(prefix, _)| prefix);
        prefix.zip(self.far.as_ref()).is_some_and(|(prefix, far)| far.has_left(now, prefix))
    }

    /// Whether the neighbour said that its addresses are under this prefix from now on.
    pub fn claims(&self, now: Time, prefix: [u8; 8]) -> bool {
        self.claim(now).is_some_and(|place| place.prefix == prefix)
    }

    /// Takes where the neighbour says its addresses to be, if that is not where they are used and a
    /// frame may be sent there now.
    pub(crate) fn poll_said(&mut self, now: Time) -> Option<HopPlace> {
        let (said, peer) = self.said.zip(self.peer)?;
        let may = said.prefix != peer.prefix && self.unproven.spend(now, 1, OPENS_MAX);
        may.then_some(said)
    }

    /// The neighbour's addresses are under this prefix: frames pass there and back. Its schedule
    /// stays what it is.
    pub fn roam(&mut self, prefix: [u8; 8]) {
        self.forget_claim();
        if let Some(peer) = &mut self.peer {
            peer.prefix = prefix;
        }
    }

    /// This end's addresses are under this prefix from now on, and its schedule stays what it is.
    pub fn move_to(&mut self, now: Time, prefix: [u8; 8]) {
        self.own.move_to(now, prefix);
        self.step_again();
    }
}
