//! Rules of endpoints where frames come in and leave: what comes from inside the network's own
//! addresses is dropped at the head of a batch, and no frame leaves to there, whoever named the
//! place. What others name passes [`Relay::may_learn`] besides.

use std::net::SocketAddr;
use std::sync::Arc;

use shoal_crypto::Ciphers;
use shoal_session::{EndpointOrigin, EndpointRules, Endpoints, PeerId};
use shoal_wire::{DropReason, LinkId, Time};

use crate::io::{Incoming, Path, SendOutcome, Sink, Stop};
use crate::{Forwarder, Relay};

impl Stop {
    /// The counter of frames that were dropped for it.
    pub(crate) fn reason(self) -> DropReason {
        match self {
            Stop::Inside => DropReason::EndpointInside,
            Stop::Full | Stop::Failed | Stop::TooLong => DropReason::SendFailed,
        }
    }
}

impl Forwarder {
    /// Sends frames of `len` bytes at `offsets` of `buf`, unless their endpoint leads into this
    /// node's own interface: each would come back as a longer one, without end.
    pub(crate) fn send_outside(
        &self,
        sink: &mut impl Sink,
        path: Path,
        (buf, offsets, len): (&[u8], &[u32], usize),
    ) -> SendOutcome {
        if self.view.rules.is_inside(path.ends.remote.ip()) {
            return SendOutcome { sent: 0, stop: Some(Stop::Inside) };
        }
        sink.send(path, buf, offsets, len)
    }

    /// Drops frames whose source is no endpoint, before any key is touched: an answer would go
    /// there. Frames of one run have one source.
    pub(crate) fn drop_inside(&mut self, incoming: &[Incoming], frames: &mut Vec<(u32, u32)>) {
        let rules = &self.view.rules;
        let check = |run: &Incoming| rules.check(run.from.remote, EndpointOrigin::Source);
        if incoming.iter().all(|run| check(run).is_ok()) {
            return;
        }
        let mut dropped = Vec::new();
        frames.retain(|&(_, source)| match check(&incoming[source as usize]) {
            Ok(()) => true,
            Err(reason) => {
                dropped.push(reason);
                false
            }
        });
        dropped.into_iter().for_each(|reason| self.counters.drop_in(reason, 1));
    }
}

/// Places of one neighbour that are called in turn.
const PLACES_MAX: usize = 8;

impl<C: Ciphers> Relay<C> {
    /// As [`Relay::set_endpoint`], for a neighbour that may be at any of these places, as at the
    /// addresses of a name, the likeliest first: requests of handshakes go there in turn while the
    /// link is down (RFC 8305). At most 8 places are called.
    pub fn set_endpoints(&mut self, now: Time, link: LinkId, places: &[SocketAddr]) {
        let Some(&first) = places.first() else { return };
        self.set_endpoint(now, link, Some(first));
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            let places = places.iter().take(PLACES_MAX);
            neighbour.places = places.copied().map(Endpoints::from).collect();
        }
        self.set_calls(now, link);
        self.refresh();
    }

    /// Has requests of handshakes go to all places where a neighbour may be, while it is at none.
    /// There and back again: so each place gets requests of both forms, whole and in parts.
    pub(crate) fn call_in_turn(&mut self, link: LinkId) {
        let known = self.neighbours.get(link).filter(|neighbour| neighbour.places.len() > 1);
        let Some(known) = known else { return };
        let calls = match known.established && known.liveness.is_up() {
            true => Vec::new(),
            false => known.places.iter().chain(known.places.iter().rev()).copied().collect(),
        };
        self.sessions.set_calls(PeerId::from(link), calls);
    }

    /// A neighbour answered at one of its places: that one is called first from now on.
    pub(crate) fn note_place(&mut self, link: LinkId, at: Option<Endpoints>) {
        let Some(neighbour) = self.neighbours.get_quietly(link) else { return };
        let found =
            neighbour.places.iter().position(|place| Some(place.remote) == at.map(|at| at.remote));
        if let Some(found) = found {
            let place = neighbour.places.remove(found);
            neighbour.places.insert(0, place);
            self.sessions.set_home(PeerId::from(link), Some(place));
        }
    }

    /// Says which endpoints frames may go to and come from, from now on.
    pub fn set_endpoint_rules(&mut self, rules: Arc<EndpointRules>) {
        if *rules != *self.rules {
            self.rules = rules;
            self.refresh();
        }
    }

    /// The rules in force.
    pub fn endpoint_rules(&self) -> &EndpointRules {
        &self.rules
    }

    /// Whether an endpoint of this origin is taken in; one that is not is counted.
    pub(crate) fn may_learn(&mut self, at: SocketAddr, origin: EndpointOrigin) -> bool {
        let checked = self.rules.check(at, origin);
        if let Err(reason) = checked {
            self.own.counters.drop(reason, 1);
        }
        checked.is_ok()
    }
}
