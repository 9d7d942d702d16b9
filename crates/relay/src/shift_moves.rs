//! Changes of the prefix, of this node or a neighbour (`shift/prefixes.rs` decides). Also: a link's
//! data leaves a fixed endpoint that is on trial, and returns to it.

use shoal_crypto::Ciphers;
use shoal_session::{EndpointOrigin, Endpoints, PeerId};
use shoal_wire::{
    CONTROL_PATH_CHALLENGE, CONTROL_SHIFT_PLACE, DropReason, LinkId, PathToken, ShiftAnnouncement,
    Time,
};

use crate::neighbours::Neighbour;
use crate::shift::{AddressProbe, PrefixChange};
use crate::shifts::{FORMER_KEPT, FormerPrefix, ShiftLink};
use crate::trial::EndpointTrial;
use crate::{FrameSink, Relay};

fn under(at: Endpoints) -> Option<[u8; 8]> {
    ShiftAnnouncement::split(at.remote).map(|(prefix, _)| prefix)
}

/// Maximum number of different places that a neighbour may announce in 10 s.
const TOLD_MAX: u32 = 32;

impl ShiftLink {
    /// True if this announced place is accepted: a repeated one, or one within the budget.
    pub(crate) fn may_tell(&mut self, now: Time, place: Option<ShiftAnnouncement>) -> bool {
        self.shift.said() == place || self.told.spend(now, 1, TOLD_MAX)
    }

    /// True if `at` is a scheduled address of the neighbour while the link's data does not shift.
    /// Then it proves only the neighbour's prefix.
    pub(crate) fn says_prefix(&self, now: Time, at: Endpoints) -> bool {
        let shift = &self.shift;
        self.shown.is_none()
            && (shift.knows(now, at.remote) || shift.roamed(now, at.remote).is_some())
    }

    /// Notes that data leaves the fixed endpoint. An unsettled move to that endpoint is set aside.
    pub(crate) fn leave_fixed(&mut self, now: Time, neighbour: &mut Neighbour) {
        if self.shown.is_none() {
            let aside = neighbour.trial.put_aside(now, neighbour.endpoint);
            self.aside = aside.or(self.aside.take());
        }
    }

    /// Notes that data returns to the fixed endpoint `at`, whose trial may have to resume.
    pub(crate) fn come_back(
        &mut self,
        now: Time,
        at: Option<Endpoints>,
        trial: &mut EndpointTrial,
    ) {
        if let Some(aside) = self.aside.take().filter(|aside| aside.counts(now, at)) {
            trial.resume(now, *aside);
        }
    }
}

impl<C: Ciphers> Relay<C> {
    /// True if the neighbour is at a scheduled address under the prefix that it announced.
    pub(crate) fn is_where_it_said(&self, now: Time, link: LinkId, at: Endpoints) -> bool {
        let known = self.shifts.links.get(&link);
        known.is_some_and(|known| {
            under(at).is_some_and(|prefix| known.shift.claims(now, prefix))
                && known.shift.roamed(now, at.remote).is_some()
        })
    }

    /// Changes the prefix of this node's shifting addresses.
    ///
    /// All links with shifts continue their schedules under the new prefix, and neighbours follow.
    /// The fixed identifiers must be set again ([`Relay::set_staying`]). Former ones stay valid for
    /// 30 s under each prefix.
    pub fn move_shift_prefix(&mut self, now: Time, prefix: [u8; 8]) {
        let Some((own, _)) = &mut self.shifts.own else { return };
        let former = core::mem::replace(own, prefix);
        if former == prefix {
            return;
        }
        let staying = core::mem::take(&mut self.shifts.staying);
        self.shifts.leave(FormerPrefix { prefix: former, staying, until: now + FORMER_KEPT });
        self.sessions.set_wide_prefix(Some(prefix));
        self.shifts.gather();
        for link in self.shifts.links.keys().copied().collect::<Vec<_>>() {
            if let Some(known) = self.shifts.links.get_mut(&link) {
                known.shift.move_to(now, prefix);
                known.meet.iter_mut().for_each(|meet| meet.move_to(now, prefix));
                known.probe.iter_mut().for_each(AddressProbe::move_to);
            }
            self.follow_shift(now, link);
        }
        self.refresh();
    }

    /// Handles an answer of the neighbour at `at`. If that is a scheduled address under another
    /// prefix, the neighbour has moved to this prefix. Returns true if `at` is a scheduled address.
    pub(crate) fn shift_roamed(&mut self, now: Time, link: LinkId, at: Endpoints) -> bool {
        let Some(known) = self.shifts.links.get_mut(&link) else { return false };
        match known.shift.roamed(now, at.remote) {
            Some(prefix) => known.shift.roam(prefix),
            // A second answer of one move: the steps decide which addresses are used.
            None if known.shift.knows(now, at.remote) => {}
            None => return false,
        }
        let place = known.shift.place();
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            // A trial of the fixed endpoint continues.
            if known.shown.is_some() && place.is_some() {
                (known.shown, neighbour.endpoint) = (place, place);
            }
            self.sessions.set_endpoint(PeerId::from(link), neighbour.endpoint);
        }
        if known.shown.is_some() && place.is_none() {
            self.shifts.hear(link);
        }
        true
    }

    /// Handles a neighbour's announcement of the place of its shifting addresses.
    ///
    /// Errors: `shift_budget` for too many announcements. `endpoint_inside` and `endpoint_refused`
    /// for a prefix that can't contain another machine.
    pub(crate) fn hear_shift_place(
        &mut self,
        now: Time,
        link: LinkId,
        place: Option<ShiftAnnouncement>,
    ) -> Result<(), DropReason> {
        let Some(known) = self.shifts.links.get_mut(&link) else {
            // Tells the neighbour that this end's addresses don't shift (any more).
            if place.is_some() {
                self.shifts.list(link);
            }
            return Ok(());
        };
        if !known.may_tell(now, place) {
            return Err(DropReason::ShiftBudget);
        }
        if let Some(place) = place {
            self.rules.check(place.endpoint(0), EndpointOrigin::View)?;
        }
        known.shift.told(now, place);
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            let prefix = place.map(|place| place.prefix);
            let is_at = |at: Option<Endpoints>| at.is_some() && at.and_then(under) == prefix;
            if known.shown == neighbour.endpoint && is_at(known.shown) {
                // The neighbour has already answered there, and has announced the place itself. So
                // the trial ends.
                neighbour.trial.end();
            } else if prefix.is_some_and(|prefix| known.shift.claims(now, prefix))
                && is_at(neighbour.trial.tried())
            {
                neighbour.trial.announced();
            }
        }
        self.shifts.hear(link);
        Ok(())
    }

    /// Handles a neighbour's frame between these addresses.
    pub(crate) fn shift_came(&mut self, now: Time, link: LinkId, from: &Endpoints) {
        let Some(known) = self.shifts.links.get_mut(&link) else { return };
        if known.shift.came(from) {
            self.follow_shift(now, link);
        }
    }

    /// Handles the answer to a challenge to the announced place or to the former fixed endpoint.
    /// Returns false if the token matches neither.
    pub(crate) fn shift_answered(&mut self, now: Time, link: LinkId, token: PathToken) -> bool {
        let Some(known) = self.shifts.links.get_mut(&link) else { return false };
        let former = known.aside.as_ref().and_then(|aside| aside.answered(token));
        if let (Some(former), Some(neighbour)) = (former, self.neighbours.get_mut(link)) {
            neighbour.trial.take_back(now);
            (known.fixed, known.aside) = (Some(former), None);
            if known.shown.is_none() {
                // The step that arrived with the answer is evaluated later.
                neighbour.endpoint = known.fixed;
                self.sessions.set_endpoint(PeerId::from(link), known.fixed);
            }
            return true;
        }
        let Some(followed) = known.shift.answered(now, token) else { return false };
        if followed == PrefixChange::Moved {
            self.shift_followed(now, link);
        }
        self.follow_shift(now, link);
        true
    }

    /// Handles a neighbour that answered under another of its prefixes. Only the neighbour itself
    /// can announce this, so the trial ends.
    pub(crate) fn shift_followed(&mut self, now: Time, link: LinkId) {
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        if let Some(known) = self.shifts.links.get_mut(&link) {
            known.leave_fixed(now, neighbour);
        }
        neighbour.trial.end();
        neighbour.trial.announced();
    }

    /// Announces this node's place to a neighbour, and challenges the place that the neighbour
    /// announced.
    pub(crate) fn send_moves(
        &mut self,
        now: Time,
        link: LinkId,
        established: bool,
        sink: &mut impl FrameSink,
    ) {
        let token = self.rng.array();
        let Some(known) = self.shifts.links.get_mut(&link) else { return };
        let (opens, asks) = (known.shift.poll_opens(now), known.shift.poll_ask(now, token));
        let again = known.shift.poll_tell_again();
        let former = known.aside.as_mut().and_then(|aside| aside.poll_ask(now));
        if !established {
            return;
        }
        let body = ShiftAnnouncement::to_bytes(Some(known.shift.own()));
        let endpoint = self.neighbours.get(link).and_then(|neighbour| neighbour.endpoint);
        let opens = opens.into_iter().chain(endpoint.filter(|_| again));
        for ends in opens {
            self.send_beside(now, link, ends, (CONTROL_SHIFT_PLACE, &body), sink);
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
