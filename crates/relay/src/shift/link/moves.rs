//! Announcements of prefixes between a link's two ends, and moves to them.

use shoal_session::Endpoints;
use shoal_wire::{PathToken, ShiftAnnouncement, Time};

use super::{ShiftAddresses, ShiftStage, ShiftState};
use crate::shift::prefixes::{CLAIMED_MAX, ChallengeResult, OPENS_MAX};
use crate::shift::schedule::ShiftRole;

/// Result of an answer: to a challenge of an announced place, or to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixChange {
    /// The neighbour's addresses are under a different prefix than assumed.
    Moved,
    /// No change.
    Stayed,
}

impl ShiftState {
    /// Handles the neighbour's announcement of its place. None if its addresses don't shift (any
    /// more). While data uses shifting addresses, it follows to another prefix once the neighbour
    /// has answered there.
    pub fn told(&mut self, now: Time, place: Option<ShiftAnnouncement>) {
        let roams = |from: ShiftAnnouncement, to: ShiftAnnouncement| {
            ShiftAnnouncement { prefix: to.prefix, ..from } == to
        };
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
        // A neighbour that has just enabled shifts may not know this end's place.
        if place.is_some() {
            self.own.tell();
        }
        // Epochs are counted anew, and addresses may have changed. A neighbour that names one
        // prefix after the other is called at each no more often than at an unresponsive one.
        match self.next.is_some() {
            true => self.fail(now),
            false => self.fall(now),
        }
        self.back(now);
        if let Some(before) = before.filter(|_| only_roams) {
            self.far.get_or_insert_default().leave(now, before.prefix, false, None);
        }
    }

    /// Handles an announced place. A repeated announcement counts as well: the link may have moved
    /// elsewhere since, or never there.
    fn claimed(&mut self, now: Time, place: ShiftAnnouncement) {
        if self.peer.is_some_and(|peer| peer.prefix == place.prefix) {
            return self.forget_claim();
        }
        self.far.get_or_insert_default().claim(now, place);
        self.step_again();
    }

    /// Repeats the current step because prefixes changed. Firewalls must know the addresses under
    /// the new prefixes before data uses them.
    fn step_again(&mut self) {
        if let Some((to, echo)) = self.next.as_ref().map(|next| (next.to, next.echo)) {
            let leads = self.end == ShiftRole::Leading;
            self.push(to, if leads { ShiftStage::Call } else { ShiftStage::Answer }, echo);
        }
    }

    /// True if this end's place must be announced again on the link. Like a step, this does not
    /// count as a sign of life of the link.
    pub fn poll_tell_again(&mut self) -> bool {
        self.own.poll_again()
    }

    /// Takes this end's place if it must be announced.
    pub fn poll_tell(&mut self) -> Option<ShiftAnnouncement> {
        self.own.poll_tell()
    }

    /// Takes the additional addresses between which it must be announced.
    pub fn poll_opens(&mut self, now: Time) -> Vec<Endpoints> {
        let opens = self.own.poll_open();
        let Some((at, peer)) = self.at.zip(self.peer).filter(|_| opens) else { return Vec::new() };
        let far = self.far.as_mut();
        let other = far.and_then(|far| far.copy(now, peer.prefix, &mut self.unproven, CLAIMED_MAX));
        let other = other.map(|prefix| ShiftAnnouncement { prefix, ..peer });
        let all = [Some(peer), other].into_iter().flatten();
        all.filter_map(|far| self.between(at, self.own.place(), far)).collect()
    }

    /// Takes the challenge to the announced place if it must leave, with its addresses. `token` is
    /// a new one.
    pub fn poll_ask(&mut self, now: Time, token: PathToken) -> Option<(Vec<Endpoints>, PathToken)> {
        let Some(at) = self.at else {
            self.forget_claim();
            return None;
        };
        // The neighbour may move too, so both firewalls must know this end's other prefix.
        let frames = self.own.sources().count() as u32;
        let (far, token) = self.far.as_mut()?.ask(now, at, frames, token, &mut self.unproven)?;
        let all = self.own.sources().filter_map(|near| self.between(at, near, far));
        Some((all.collect(), token))
    }

    /// Handles the answer to a challenge. None if it matches no announced place.
    pub fn answered(&mut self, now: Time, token: PathToken) -> Option<PrefixChange> {
        match self.far.as_mut()?.answered(now, self.at, token)? {
            ChallengeResult::Here(place) => {
                if let Some(peer) = &mut self.peer {
                    let during = self.next.as_ref().map(|next| next.to);
                    self.far.get_or_insert_default().leave(now, peer.prefix, true, during);
                    peer.prefix = place.prefix;
                }
                Some(PrefixChange::Moved)
            }
            ChallengeResult::Late => Some(PrefixChange::Stayed),
        }
    }

    /// Handles a frame of the neighbour between these addresses. Returns true if that changes the
    /// source of data.
    pub fn came(&mut self, from: &Endpoints) -> bool {
        let local = from.local.filter(|_| self.own.is_moving()).and_then(ShiftAnnouncement::split);
        let Some((prefix, identifier)) = local else { return false };
        let place = self.own.place();
        let new = self.at.zip(self.peer).and_then(|(at, peer)| self.between(at, place, peer));
        let there = new.is_some_and(|new| {
            let near = new.local.and_then(ShiftAnnouncement::split);
            let is_far =
                ShiftAnnouncement::split(new.remote) == ShiftAnnouncement::split(from.remote);
            near == Some((prefix, identifier)) && is_far
        });
        self.own.came(prefix, there)
    }

    /// The prefix of this address, if it is a scheduled address of the neighbour under a prefix
    /// other than the current one.
    pub fn roamed(&self, now: Time, remote: std::net::SocketAddr) -> Option<[u8; 8]> {
        let (prefix, id) = ShiftAnnouncement::split(remote)?;
        let elsewhere =
            |peer: &ShiftAnnouncement| peer.port == remote.port() && peer.prefix != prefix;
        let is_its = self.peer.as_ref().is_some_and(elsewhere)
            && ShiftAnnouncement::is_usable(prefix)
            && self.spots(now).any(|spot: ShiftAddresses| self.is(spot, id));
        is_its.then_some(prefix)
    }

    /// True if this address is under the neighbour's prefix that this end left recently.
    pub fn has_left(&self, now: Time, remote: std::net::SocketAddr) -> bool {
        let prefix = ShiftAnnouncement::split(remote).map(|(prefix, _)| prefix);
        prefix.zip(self.far.as_ref()).is_some_and(|(prefix, far)| far.has_left(now, prefix))
    }

    /// True if the neighbour has announced this prefix.
    pub fn claims(&self, now: Time, prefix: [u8; 8]) -> bool {
        self.claim(now).is_some_and(|place| place.prefix == prefix)
    }

    /// Takes the announced place if it differs from the current one and the budget allows a frame
    /// there.
    pub(crate) fn poll_said(&mut self, now: Time) -> Option<ShiftAnnouncement> {
        let (said, peer) = self.said.zip(self.peer)?;
        let may = said.prefix != peer.prefix && self.unproven.spend(now, 1, OPENS_MAX);
        may.then_some(said)
    }

    /// Sets the neighbour's prefix after frames passed there and back. Its schedule stays.
    pub fn roam(&mut self, prefix: [u8; 8]) {
        self.forget_claim();
        if let Some(peer) = &mut self.peer {
            peer.prefix = prefix;
        }
    }

    /// Sets this end's prefix. The schedule stays.
    pub fn move_to(&mut self, now: Time, prefix: [u8; 8]) {
        self.own.move_to(now, prefix);
        self.step_again();
    }
}
