//! Targets for calling a peer: its last endpoint, the owner's setting, and a peer that announced
//! its stop.

use core::time::Duration;

use shoal_crypto::{Ciphers, NetworkSecret, Secret, kdf};
use shoal_wire::Time;

use crate::config::{Endpoint, PeerId, SessionRole};
use crate::sessions::Sessions;
use crate::slots::SessionIndex;

impl<E: Endpoint, C: Ciphers> Sessions<E, C> {
    /// Sets the owner's endpoint for the peer. Requests alternate between it and the endpoint,
    /// which does not change; see [`Sessions::call_home`].
    pub fn set_home(&mut self, peer: PeerId, home: Option<E>) {
        if let Some(peer) = self.peer_mut(peer) {
            peer.home = home;
        }
    }

    /// The owner's endpoint for the peer.
    pub fn home(&self, peer: PeerId) -> Option<E> {
        self.peer(peer)?.home
    }

    /// Sets the targets of handshake requests to the peer, used in turn and repeated as needed. If
    /// empty, endpoint and home are used. During a change of the network's secret, the third and
    /// fourth request of every four use the other secret.
    pub fn set_calls(&mut self, peer: PeerId, calls: Vec<E>) {
        if let Some(peer) = self.peer_mut(peer) {
            peer.calls = calls;
        }
    }

    /// Secrets that two neighbours share before they ever met, one for each of the network's
    /// secrets. The addresses at which they find each other follow from them. They stay constant
    /// while both keys and the network's secret do, so a leaked key reveals them for all times.
    /// None if there is no such peer.
    pub fn meeting_secrets(&self, peer: PeerId) -> Option<(Secret<32>, Option<Secret<32>>)> {
        let shared = self.common.identity.dh().agree(&self.peer(peer)?.key.dh).ok()?;
        let under = |secret: &NetworkSecret| {
            let parts: [&[u8]; 2] = [self.config.role.label(), &secret.0];
            Secret::new(kdf(shared.expose(), "shoal v1 rendezvous", &parts))
        };
        let secrets = &self.common.secrets;
        Some((under(&secrets.first), secrets.other.as_ref().map(under)))
    }

    /// Makes cookies for requests to addresses under this prefix valid for the sender's whole /64,
    /// since both addresses change with time. With `None` a cookie is valid for one address.
    pub fn set_wide_prefix(&mut self, prefix: Option<[u8; 8]>) {
        self.cookies.set_wide_prefix(prefix);
    }

    /// Begins a handshake whose first request goes to the peer's home, not its endpoint. The live
    /// session stays in use until that request is answered.
    pub fn call_home(&mut self, now: Time, peer: PeerId) {
        self.reconnect(now, peer);
        if let Some(dial) = self.peer_mut(peer).and_then(|p| p.dial.as_mut()) {
            dial.home_first |= dial.sent == 0;
        }
    }

    /// Shortens the wait for the first reply of the handshake with a peer to `wait`, if no request
    /// was sent yet. Later waits double as usual.
    pub fn hurry(&mut self, peer: PeerId, wait: Duration) {
        if let Some(dial) = self.peer_mut(peer).and_then(|p| p.dial.as_mut()) {
            dial.wait = if dial.sent == 0 { dial.wait.min(wait) } else { dial.wait };
        }
    }

    /// Ends all sessions with a peer that announced its stop. With `call`, begins a handshake with
    /// short, even waits, since the peer may be about to start again.
    pub fn end(&mut self, now: Time, peer: PeerId, call: bool) {
        self.now = self.now.max(now);
        self.drop_dial(peer);
        let Some(found) = self.peer_mut(peer) else { return };
        let gone = found.take_sessions();
        (found.nudge, found.cool_at, found.resume_at) = (None, None, None);
        for index in gone {
            self.slots.release(index);
        }
        if call {
            self.reconnect(now, peer);
            let wait = self.config.retry_eager;
            if let Some(dial) = self.peer_mut(peer).and_then(|p| p.dial.as_mut()) {
                (dial.eager, dial.wait) = (true, wait);
            }
        }
        self.refresh_timer(peer);
    }

    /// Records the target of this node's own request for this session. A host with one address is
    /// left out, since that does not move.
    pub(crate) fn note_called(&mut self, peer: PeerId, index: SessionIndex, at: E) {
        let is_link = self.config.role == SessionRole::Link;
        if let Some(found) = self.peer_mut(peer)
            && (is_link || found.home.is_some())
        {
            found.note_reached(index, at);
        }
    }

    /// Records the source of the neighbour's request for this session. Hosts are left out: only
    /// the seal of their cells proves a source.
    pub(crate) fn note_reached(&mut self, peer: PeerId, index: SessionIndex, at: E) {
        if self.config.role == SessionRole::Link
            && let Some(found) = self.peer_mut(peer)
        {
            found.note_reached(index, at);
        }
    }
}
