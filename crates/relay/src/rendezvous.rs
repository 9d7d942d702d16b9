//! Links whose handshakes begin at time-dependent rendezvous addresses (`shift/rendezvous.rs`
//! derives them): destinations of handshakes, and of data that does not use shifting addresses.

use shoal_crypto::{Aead, Ciphers, PlantedFault, Secret};
use shoal_session::{Endpoints, PeerId};
use shoal_wire::{LinkId, Time};

use crate::Relay;
use crate::shift::Rendezvous;
use crate::shifts::ShiftLink;

impl ShiftLink {
    /// True if a handshake answered between these addresses used the rendezvous.
    pub(crate) fn meets(&mut self, now: Time, to: Option<Endpoints>) -> bool {
        self.meet.as_mut().zip(to).is_some_and(|(meet, to)| meet.met(now, &to))
    }
}

impl<C: Ciphers> Relay<C> {
    /// Makes handshakes with a neighbour begin at rendezvous addresses, or with None at its fixed
    /// endpoint.
    ///
    /// The addresses are under the neighbour's given prefix and port, and under this node's prefix.
    /// Both keys, the network secret and the wall clock determine them. If nobody answers
    /// there, a known endpoint is called. Call this after [`Relay::set_shift`]; a link without
    /// address shifts has no rendezvous.
    pub fn set_rendezvous(&mut self, now: Time, link: LinkId, place: Option<([u8; 8], u16)>) {
        let Some(known) = self.shifts.links.get(&link) else { return };
        if known.meet.as_ref().map(|meet| meet.peer()) == place {
            return;
        }
        // Removes the previous rendezvous and restores its endpoint.
        let _before = self.take_meeting(now, link, false);
        let Some(place) = place else {
            self.follow_shift(now, link);
            return self.refresh();
        };
        let peer = PeerId::from(link);
        let fallback = self.sessions.home(peer);
        let made = self.meeting(now, peer, place);
        let (Some(mut meet), Some(known)) = (made, self.shifts.links.get_mut(&link)) else {
            return self.refresh();
        };
        meet.fallback = fallback;
        known.meet = Some(meet);
        self.sessions.set_home(peer, None);
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            neighbour.called = true;
            if !neighbour.established {
                neighbour.endpoint = None;
                self.sessions.set_endpoint(peer, None);
            }
        }
        self.follow_shift(now, link);
        self.sessions.connect(now, peer);
        self.refresh();
    }

    fn meeting(&self, now: Time, peer: PeerId, place: ([u8; 8], u16)) -> Option<Box<Rendezvous>> {
        let secrets = match C::Aead::flaw() {
            Some(PlantedFault::MeetOneSecret) => (Secret::new([7; 32]), None),
            _ => self.sessions.meeting_secrets(peer)?,
        };
        let leads = self.sessions.own_key().dh < self.sessions.peer_key(peer)?.dh;
        let places = (self.shifts.own?, place);
        Some(Box::new(Rendezvous::new(leads, places, &secrets, now, self.unix_ms(now))))
    }

    /// Removes a link's rendezvous. If it `stays`, the caller installs it in the recreated link.
    /// Otherwise handshakes begin at the fixed endpoint.
    pub(crate) fn take_meeting(
        &mut self,
        now: Time,
        link: LinkId,
        stays: bool,
    ) -> Option<Box<Rendezvous>> {
        let meet = self.shifts.links.get_mut(&link)?.meet.take()?;
        if stays {
            return Some(meet);
        }
        let peer = PeerId::from(link);
        self.sessions.set_calls(peer, Vec::new());
        self.sessions.set_home(peer, meet.fallback);
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            neighbour.called = meet.fallback.is_some() || neighbour.address.is_router();
            if neighbour.established && meet.fallback.is_some() {
                self.sessions.call_home(now, peer);
            } else if !neighbour.established {
                neighbour.endpoint = meet.fallback;
                self.sessions.set_endpoint(peer, meet.fallback);
                self.sessions.connect(now, peer);
            }
        }
        Some(meet)
    }

    /// Sets the endpoint to call if nobody answers at the rendezvous. Returns false if the link has
    /// none.
    pub(crate) fn set_fallback(&mut self, now: Time, link: LinkId, at: Option<Endpoints>) -> bool {
        let meet = self.shifts.links.get_mut(&link).and_then(|known| known.meet.as_mut());
        let Some(meet) = meet else { return false };
        meet.fallback = at;
        self.set_calls(now, link);
        self.refresh();
        true
    }

    /// The link's endpoint outside of its schedules, as far as others may learn it. For a neighbour
    /// with a rendezvous, that is only the configured endpoint. Any other source may be an address
    /// that follows from the time, under a prefix unknown to this node.
    pub(crate) fn told_endpoint(&self, link: LinkId) -> Option<Endpoints> {
        let fixed = self.fixed_endpoint(link);
        let Some(meet) = self.shifts.links.get(&link).and_then(|known| known.meet.as_ref()) else {
            return fixed;
        };
        let called = meet.fallback.filter(|_| !meet.has_base());
        fixed.filter(|at| called.is_some_and(|called| called.remote == at.remote))
    }

    /// Moves a link's unscheduled data to the addresses of the last rendezvous. If the data has
    /// shifted since, these are the current epoch's addresses.
    pub(crate) fn follow_meeting(&mut self, now: Time, link: LinkId) {
        let Some(known) = self.shifts.links.get_mut(&link) else { return };
        let shifts = known.shown.is_some();
        let base = known.meet.as_mut().and_then(|meet| meet.base(now, shifts));
        if shifts && base.is_some() {
            known.fixed = base;
        }
    }

    /// Directs handshakes with a neighbour to the rendezvous, unless the link is up and uses
    /// shifting addresses or its fixed endpoint.
    pub(crate) fn set_calls(&mut self, now: Time, link: LinkId) {
        let Some((known, meet)) =
            self.shifts.links.get(&link).and_then(|known| Some((known, known.meet.as_ref()?)))
        else {
            return self.call_in_turn(link);
        };
        let neighbour = self.neighbours.get(link);
        let up = neighbour.filter(|known| known.established && known.liveness.is_up());
        let calls = match (up, neighbour.and_then(|known| known.endpoint)) {
            (None, _) => meet.calls(now, self.fixed_endpoint(link)),
            (Some(_), _) if known.shown.is_some() || !meet.has_base() => Vec::new(),
            (Some(_), Some(data)) => meet.calls_beside(now, data),
            (Some(_), None) => meet.calls(now, None),
        };
        self.sessions.set_calls(PeerId::from(link), calls);
    }

    /// Derives all rendezvous anew after a change of the network secret.
    pub(crate) fn renew_meetings(&mut self) {
        let Relay { shifts, sessions, .. } = self;
        let mut other = Vec::new();
        for (link, known) in &mut shifts.links {
            let Some(meet) = &mut known.meet else { continue };
            if let Some(secrets) = sessions.meeting_secrets(PeerId::from(*link)) {
                meet.set_secrets(&secrets);
                other.push(*link);
            }
        }
        // The consequences follow at once, with the next call that gives the time.
        other.into_iter().for_each(|link| self.shifts.set_alarm(link, Some(Time::ZERO)));
    }

    /// Adapts all rendezvous to a wall clock that may have been set.
    pub(crate) fn set_meeting_clock(&mut self, now: Time) {
        let unix_ms = self.wall.1;
        let links = self.shifts.links.iter_mut();
        let is_set = |meet: &mut Box<Rendezvous>| meet.set_clock(now, unix_ms);
        let other = links
            .filter_map(|(link, known)| known.meet.as_mut().is_some_and(is_set).then_some(*link));
        let other: Vec<LinkId> = other.collect();
        if other.is_empty() {
            return;
        }
        for link in other {
            self.follow_shift(now, link);
        }
        self.refresh();
    }
}
