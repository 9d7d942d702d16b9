//! Endpoint rules where frames arrive and leave. A frame whose source is inside the network's own
//! addresses is dropped at the start of a batch. No frame is sent to such an address, whoever named
//! it. Endpoints named by others must also pass [`Relay::may_learn`].

use std::net::SocketAddr;
use std::sync::Arc;

use shoal_crypto::Ciphers;
use shoal_session::{EndpointOrigin, EndpointRules, Endpoints, PeerId};
use shoal_wire::{DropReason, LinkId, Time};

use crate::io::{FrameSink, ReceivedRun, SendError, SendOutcome, SendPath};
use crate::{Forwarder, Relay};

impl SendError {
    /// The drop reason for these frames.
    pub(crate) fn reason(self) -> DropReason {
        match self {
            SendError::Inside => DropReason::EndpointInside,
            SendError::Full | SendError::Failed | SendError::TooLong => DropReason::SendFailed,
        }
    }
}

impl Forwarder {
    /// Sends frames of `len` bytes at `offsets` of `buf`, unless their endpoint is inside this
    /// node's own interface. Each such frame would return as a longer one, without end.
    pub(crate) fn send_outside(
        &self,
        sink: &mut impl FrameSink,
        path: SendPath,
        (buf, offsets, len): (&[u8], &[u32], usize),
    ) -> SendOutcome {
        if self.view.rules.is_inside(path.ends.remote.ip()) {
            return SendOutcome { sent: 0, stop: Some(SendError::Inside) };
        }
        sink.send(path, buf, offsets, len)
    }

    /// Drops frames with a forbidden source before any decryption, since answers would go there.
    /// Frames of one run have one source.
    pub(crate) fn drop_inside(&mut self, incoming: &[ReceivedRun], frames: &mut Vec<(u32, u32)>) {
        let rules = &self.view.rules;
        let check = |run: &ReceivedRun| rules.check(run.from.remote, EndpointOrigin::Source);
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

/// Maximum number of endpoints of one neighbour that are called in turn.
const PLACES_MAX: usize = 8;

impl<C: Ciphers> Relay<C> {
    /// Sets several candidate endpoints of a neighbour, the likeliest first, for example the
    /// addresses of a name.
    ///
    /// While the link is down, handshake requests go to them in turn (RFC 8305). At most 8 are
    /// called. See [`Relay::set_endpoint`].
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

    /// Directs handshake requests to all candidate endpoints while the link is down. The order runs
    /// forth and back, so each endpoint gets requests of both forms, whole and in parts.
    pub(crate) fn call_in_turn(&mut self, link: LinkId) {
        let known = self.neighbours.get(link).filter(|neighbour| neighbour.places.len() > 1);
        let Some(known) = known else { return };
        let calls = match known.established && known.liveness.is_up() {
            true => Vec::new(),
            false => known.places.iter().chain(known.places.iter().rev()).copied().collect(),
        };
        self.sessions.set_calls(PeerId::from(link), calls);
    }

    /// Moves a candidate endpoint at which the neighbour answered to the front, to be called first.
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

    /// Sets the rules for endpoints from and to which frames may go.
    pub fn set_endpoint_rules(&mut self, rules: Arc<EndpointRules>) {
        if *rules != *self.rules {
            self.rules = rules;
            self.refresh();
        }
    }

    pub fn endpoint_rules(&self) -> &EndpointRules {
        &self.rules
    }

    /// Returns true if the rules accept an endpoint of this origin. Counts refusals.
    pub(crate) fn may_learn(&mut self, at: SocketAddr, origin: EndpointOrigin) -> bool {
        let checked = self.rules.check(at, origin);
        if let Err(reason) = checked {
            self.own.counters.drop(reason, 1);
        }
        checked.is_ok()
    }
}
