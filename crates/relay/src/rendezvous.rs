//! Links whose handshakes begin at addresses that follow from the time (`hop/rendezvous.rs` says
//! which): where requests go, and where a link's data goes that does not hop.

use shoal_crypto::{Aead, Ciphers, Flaw, Secret};
use shoal_session::{Endpoints, PeerId};
use shoal_wire::{LinkId, Time};

use crate::Relay;
use crate::hop::Rendezvous;
use crate::hops::Hopping;

impl Hopping {
    /// Whether a handshake that was answered between these addresses was where both ends meet.
    pub(crate) fn meets(&mut self, now: Time, to: Option<Endpoints>) -> bool {
        self.meet.as_mut().zip(to).is_some_and(|(meet, to)| meet.met(now, &to))
    }
}

impl<C: Ciphers> Relay<C> {
    /// Has handshakes with a neighbour begin at addresses under this prefix of the neighbour's, at
    /// this port, and of this node's prefix, which follow from both keys, the network's secret and
    /// the wall clock; an endpoint that is known is called if nobody answers there. With none they
    /// begin at that endpoint. To be said after [`Relay::set_hop`]; a link that doesn't hop has no
    /// such addresses.
    pub fn set_rendezvous(&mut self, now: Time, link: LinkId, place: Option<([u8; 8], u16)>) {
        let Some(known) = self.hops.links.get(&link) else { return };
        if known.meet.as_ref().map(|meet| meet.peer()) == place {
            return;
        }
        // A former place leaves its endpoint.
        let _before = self.take_meeting(now, link, false);
        let Some(place) = place else {
            self.follow_hop(now, link);
            return self.refresh();
        };
        let peer = PeerId::from(link);
        let fallback = self.sessions.home(peer);
        let made = self.meeting(now, peer, place);
        let (Some(mut meet), Some(known)) = (made, self.hops.links.get_mut(&link)) else {
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
        self.follow_hop(now, link);
        self.sessions.connect(now, peer);
        self.refresh();
    }

    fn meeting(&self, now: Time, peer: PeerId, place: ([u8; 8], u16)) -> Option<Box<Rendezvous>> {
        let secrets = match C::Aead::flaw() {
            Some(Flaw::MeetOneSecret) => (Secret::new([7; 32]), None),
            _ => self.sessions.meeting_secrets(peer)?,
        };
        let leads = self.sessions.own_key().dh < self.sessions.peer_key(peer)?.dh;
        let places = (self.hops.own?, place);
        Some(Box::new(Rendezvous::new(leads, places, &secrets, now, self.unix_ms(now))))
    }

    /// Takes a link's addresses from it, for the link made anew if it `stays` to hop; else its
    /// handshakes begin at the endpoint that stays.
    pub(crate) fn take_meeting(
        &mut self,
        now: Time,
        link: LinkId,
        stays: bool,
    ) -> Option<Box<Rendezvous>> {
        let meet = self.hops.links.get_mut(&link)?.meet.take()?;
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

    /// Says where a neighbour is called if nobody answers where both meet; false if they don't.
    pub(crate) fn set_fallback(&mut self, now: Time, link: LinkId, at: Option<Endpoints>) -> bool {
        let meet = self.hops.links.get_mut(&link).and_then(|known| known.meet.as_mut());
        let Some(meet) = meet else { return false };
        meet.fallback = at;
        self.set_calls(now, link);
        self.refresh();
        true
    }

    /// Where a link's frames go besides its schedules: what others may be told of it. Of a
    /// neighbour that is met, no more than is configured: where else it calls from may follow from
    /// the time, by another prefix than this node has for it.
    pub(crate) fn told_endpoint(&self, link: LinkId) -> Option<Endpoints> {
        let fixed = self.fixed_endpoint(link);
        let Some(meet) = self.hops.links.get(&link).and_then(|known| known.meet.as_ref()) else {
            return fixed;
        };
        let called = meet.fallback.filter(|_| !meet.has_base());
        fixed.filter(|at| called.is_some_and(|called| called.remote == at.remote))
    }

    /// Has a link's data that does not hop go where both ends met last, or, if it has hopped since,
    /// where they would meet now.
    pub(crate) fn follow_meeting(&mut self, now: Time, link: LinkId) {
        let Some(known) = self.hops.links.get_mut(&link) else { return };
        let hops = known.shown.is_some();
        let base = known.meet.as_mut().and_then(|meet| meet.base(now, hops));
        if hops && base.is_some() {
            known.fixed = base;
        }
    }

    /// Has handshakes with a neighbour go where both ends meet, unless the link hops or is at its
    /// fixed endpoint, and is up.
    pub(crate) fn set_calls(&mut self, now: Time, link: LinkId) {
        let Some((known, meet)) =
            self.hops.links.get(&link).and_then(|known| Some((known, known.meet.as_ref()?)))
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

    /// The network's secret is another.
    pub(crate) fn renew_meetings(&mut self) {
        let Relay { hops, sessions, .. } = self;
        let mut other = Vec::new();
        for (link, known) in &mut hops.links {
            let Some(meet) = &mut known.meet else { continue };
            if let Some(secrets) = sessions.meeting_secrets(PeerId::from(*link)) {
                meet.set_secrets(&secrets);
                other.push(*link);
            }
        }
        // What follows from it is done with the next call that says what time it is, at once.
        other.into_iter().for_each(|link| self.hops.set_alarm(link, Some(Time::ZERO)));
    }

    /// The wall clock may have been set.
    pub(crate) fn set_meeting_clock(&mut self, now: Time) {
        let unix_ms = self.wall.1;
        let links = self.hops.links.iter_mut();
        let is_set = |meet: &mut Box<Rendezvous>| meet.set_clock(now, unix_ms);
        let other = links
            .filter_map(|(link, known)| known.meet.as_mut().is_some_and(is_set).then_some(*link));
        let other: Vec<LinkId> = other.collect();
        if other.is_empty() {
            return;
        }
        for link in other {
            self.follow_hop(now, link);
        }
        self.refresh();
    }
}
