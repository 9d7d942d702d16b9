//! A node's prefix becomes another one, this one's or a neighbour's (`hop/prefixes.rs` says how);
//! and a link's data leaves a fixed endpoint that is on trial, and comes back there.

use shoal_crypto::Ciphers;
use shoal_session::{EndpointOrigin, Endpoints, PeerId};
use shoal_wire::{
    CONTROL_HOP_PLACE, CONTROL_PATH_CHALLENGE, DropReason, HopPlace, LinkId, PathToken, Time,
};

use crate::hop::{Followed, Probe};
use crate::hops::{FORMER_KEPT, Former, Hopping};
use crate::neighbours::Neighbour;
use crate::trial::Trial;
use crate::{Relay, Sink};

/// The prefix of the neighbour's address.
fn under(at: Endpoints) -> Option<[u8; 8]> {
    HopPlace::split(at.remote).map(|(prefix, _)| prefix)
}

/// How often in 10 s a neighbour may say something new of where its addresses hop.
const TOLD_MAX: u32 = 32;

impl Hopping {
    /// Whether this place of the neighbour's is to be taken in: few new ones are.
    pub(crate) fn may_tell(&mut self, now: Time, place: Option<HopPlace>) -> bool {
        self.hop.said() == place || self.told.spend(now, 1, TOLD_MAX)
    }

    /// Whether that the neighbour is here says under which prefix its schedule is, and no more: the
    /// link does not hop.
    pub(crate) fn says_prefix(&self, now: Time, at: Endpoints) -> bool {
        let hop = &self.hop;
        self.shown.is_none() && (hop.knows(now, at.remote) || hop.roamed(now, at.remote).is_some())
    }

    /// Data leaves the fixed endpoint. A move there that is not settled is judged meanwhile.
    pub(crate) fn leave_fixed(&mut self, now: Time, neighbour: &mut Neighbour) {
        if self.shown.is_none() {
            let aside = neighbour.trial.put_aside(now, neighbour.endpoint);
            self.aside = aside.or(self.aside.take());
        }
    }

    /// Frames go to the fixed endpoint `at`, which may be on trial yet.
    pub(crate) fn come_back(&mut self, now: Time, at: Option<Endpoints>, trial: &mut Trial) {
        if let Some(aside) = self.aside.take().filter(|aside| aside.counts(now, at)) {
            trial.resume(now, *aside);
        }
    }
}

impl<C: Ciphers> Relay<C> {
    /// Whether a neighbour is at an address of its schedule, under the prefix at which it said
    /// itself to be from now on.
    pub(crate) fn is_where_it_said(&self, now: Time, link: LinkId, at: Endpoints) -> bool {
        let known = self.hops.links.get(&link);
        known.is_some_and(|known| {
            under(at).is_some_and(|prefix| known.hop.claims(now, prefix))
                && known.hop.roamed(now, at.remote).is_some()
        })
    }

    /// This node's addresses are under another prefix from now on: all links that hop go on there
    /// by their schedules, and neighbours follow. Identifiers that don't hop are to be told anew
    /// ([`Relay::set_staying`]); the former ones count for half a minute more, under each prefix.
    pub fn move_hop_prefix(&mut self, now: Time, prefix: [u8; 8]) {
        let Some((own, _)) = &mut self.hops.own else { return };
        let former = core::mem::replace(own, prefix);
        if former == prefix {
            return;
        }
        let staying = core::mem::take(&mut self.hops.staying);
        self.hops.leave(Former { prefix: former, staying, until: now + FORMER_KEPT });
        self.sessions.set_wide_prefix(Some(prefix));
        self.hops.gather();
        for link in self.hops.links.keys().copied().collect::<Vec<_>>() {
            if let Some(known) = self.hops.links.get_mut(&link) {
                known.hop.move_to(now, prefix);
                known.meet.iter_mut().for_each(|meet| meet.move_to(now, prefix));
                known.probe.iter_mut().for_each(Probe::move_to);
            }
            self.follow_hop(now, link);
        }
        self.refresh();
    }

    /// A neighbour is reached at `at`, and answered there: if that is an address of its schedule
    /// under another prefix, its prefix is that one. Says whether it is one of its schedule.
    pub(crate) fn hop_roamed(&mut self, now: Time, link: LinkId, at: Endpoints) -> bool {
        let Some(known) = self.hops.links.get_mut(&link) else { return false };
        match known.hop.roamed(now, at.remote) {
            Some(prefix) => known.hop.roam(prefix),
            // Another answer of the same move: which of its addresses are used, steps decide.
            None if known.hop.knows(now, at.remote) => {}
            None => return false,
        }
        let place = known.hop.place();
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            // What is on trial of the endpoint stays so.
            if known.shown.is_some() && place.is_some() {
                (known.shown, neighbour.endpoint) = (place, place);
            }
            self.sessions.set_endpoint(PeerId::from(link), neighbour.endpoint);
        }
        if known.shown.is_some() && place.is_none() {
            self.hops.hear(link);
        }
        true
    }

    /// The neighbour says where its addresses hop.
    ///
    /// Errors: `hop_budget` if it has said too much of that lately; `endpoint_inside` and
    /// `endpoint_refused` for a prefix under which no other machine is.
    pub(crate) fn hear_hop_place(
        &mut self,
        now: Time,
        link: LinkId,
        place: Option<HopPlace>,
    ) -> Result<(), DropReason> {
        let Some(known) = self.hops.links.get_mut(&link) else {
            // It is to know that this end's don't hop (any more).
            if place.is_some() {
                self.hops.list(link);
            }
            return Ok(());
        };
        if !known.may_tell(now, place) {
            return Err(DropReason::HopBudget);
        }
        if let Some(place) = place {
            self.rules.check(place.endpoint(0), EndpointOrigin::View)?;
        }
        known.hop.told(now, place);
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            let prefix = place.map(|place| place.prefix);
            let is_at = |at: Option<Endpoints>| at.is_some() && at.and_then(under) == prefix;
            if known.shown == neighbour.endpoint && is_at(known.shown) {
                // It has answered there already, and now says itself that it went there: the move
                // is on trial no more.
                neighbour.trial.end();
            } else if prefix.is_some_and(|prefix| known.hop.claims(now, prefix))
                && is_at(neighbour.trial.tried())
            {
                neighbour.trial.announced();
            }
        }
        self.hops.hear(link);
        Ok(())
    }

    /// A frame of the neighbour's came between these addresses.
    pub(crate) fn hop_came(&mut self, now: Time, link: LinkId, from: &Endpoints) {
        let Some(known) = self.hops.links.get_mut(&link) else { return };
        if known.hop.came(from) {
            self.follow_hop(now, link);
        }
    }

    /// Takes the answer to a challenge of the place that the neighbour named, or of the one before
    /// the fixed endpoint; false if it is neither.
    pub(crate) fn hop_answered(&mut self, now: Time, link: LinkId, token: PathToken) -> bool {
        let Some(known) = self.hops.links.get_mut(&link) else { return false };
        let former = known.aside.as_ref().and_then(|aside| aside.answered(token));
        if let (Some(former), Some(neighbour)) = (former, self.neighbours.get_mut(link)) {
            neighbour.trial.take_back(now);
            (known.fixed, known.aside) = (Some(former), None);
            if known.shown.is_none() {
                // What the step that came with the answer says is yet to be followed.
                neighbour.endpoint = known.fixed;
                self.sessions.set_endpoint(PeerId::from(link), known.fixed);
            }
            return true;
        }
        let Some(followed) = known.hop.answered(now, token) else { return false };
        if followed == Followed::Moved {
            self.hop_followed(now, link);
        }
        self.follow_hop(now, link);
        true
    }

    /// A neighbour was found under another prefix of its own. It alone can say where it goes, and
    /// has answered there.
    pub(crate) fn hop_followed(&mut self, now: Time, link: LinkId) {
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        if let Some(known) = self.hops.links.get_mut(&link) {
            known.leave_fixed(now, neighbour);
        }
        neighbour.trial.end();
        neighbour.trial.announced();
    }

    /// Tells a neighbour where this node's addresses are, and challenges the place that it named.
    pub(crate) fn send_moves(
        &mut self,
        now: Time,
        link: LinkId,
        established: bool,
        sink: &mut impl Sink,
    ) {
        let token = self.rng.array();
        let Some(known) = self.hops.links.get_mut(&link) else { return };
        let (opens, asks) = (known.hop.poll_opens(now), known.hop.poll_ask(now, token));
        let again = known.hop.poll_tell_again();
        let former = known.aside.as_mut().and_then(|aside| aside.poll_ask(now));
        if !established {
            return;
        }
        let body = HopPlace::to_bytes(Some(known.hop.own()));
        let endpoint = self.neighbours.get(link).and_then(|neighbour| neighbour.endpoint);
        let opens = opens.into_iter().chain(endpoint.filter(|_| again));
        for ends in opens {
            self.send_beside(now, link, ends, (CONTROL_HOP_PLACE, &body), sink);
        }
        if let Some((at, token)) = former {
            self.send_beside(now, link, at, (CONTROL_PATH_CHALLENGE, &token), sink);
        }
        let (asks, token) = asks.unwrap_or_default();
        for ends in asks {
            self.send_beside(now, link, ends, (CONTROL_PATH_CHALLENGE, &token), sink);
        }
    }
}
