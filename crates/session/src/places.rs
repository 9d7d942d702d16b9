//! Where a peer is called: where it was last, where its owner says that it is, and when it said
//! that it stops.

use core::time::Duration;

use shoal_crypto::{Ciphers, NetworkSecret, Secret, kdf};
use shoal_wire::Time;

use crate::config::{Endpoint, PeerId, Role};
use crate::sessions::Sessions;
use crate::slots::Index;

impl<E: Endpoint, C: Ciphers> Sessions<E, C> {
    /// Sets where the owner says that the peer is. Requests go there in turn with the endpoint,
    /// which stays what it is; see [`Sessions::call_home`].
    pub fn set_home(&mut self, peer: PeerId, home: Option<E>) {
        if let Some(peer) = self.peer_mut(peer) {
            peer.home = home;
        }
    }

    /// Where the owner says that the peer is.
    pub fn home(&self, peer: PeerId) -> Option<E> {
        self.peer(peer)?.home
    }

    /// Sets where the requests of handshakes with the peer go, in turn, and over again if there are
    /// more of them; with none, endpoint and home decide. While the network's secret changes, the
    /// third and fourth of every four are under the other one.
    pub fn set_calls(&mut self, peer: PeerId, calls: Vec<E>) {
        if let Some(peer) = self.peer_mut(peer) {
            peer.calls = calls;
        }
    }

    /// What two neighbours share before they ever met, under each of the network's secrets: for
    /// addresses at which they find each other. It is the same as long as their keys and the secret
    /// are: who learns one of the keys knows it for all times. None without such a peer.
    pub fn meeting_secrets(&self, peer: PeerId) -> Option<(Secret<32>, Option<Secret<32>>)> {
        let shared = self.common.identity.dh().agree(&self.peer(peer)?.key.dh).ok()?;
        let under = |secret: &NetworkSecret| {
            let parts: [&[u8]; 2] = [self.config.role.label(), &secret.0];
            Secret::new(kdf(shared.expose(), "shoal v1 rendezvous", &parts))
        };
        let secrets = &self.common.secrets;
        Some((under(&secrets.first), secrets.other.as_ref().map(under)))
    }

    /// Has cookies of requests that come to an address under this prefix hold for all addresses of
    /// their sender's /64, since both addresses change with time; with none they hold for one
    /// alone.
    pub fn set_wide_prefix(&mut self, prefix: Option<[u8; 8]>) {
        self.cookies.set_wide_prefix(prefix);
    }

    /// Begins a handshake whose first request goes to the home of the peer, whatever its endpoint
    /// is. The live session stays where it is in use until that answers.
    pub fn call_home(&mut self, now: Time, peer: PeerId) {
        self.reconnect(now, peer);
        if let Some(dial) = self.peer_mut(peer).and_then(|p| p.dial.as_mut()) {
            dial.home_first |= dial.sent == 0;
        }
    }

    /// Has the handshake that begins with a peer wait only so long for its first reply, if it has
    /// sent no request yet. Later waits double as ever.
    pub fn hurry(&mut self, peer: PeerId, wait: Duration) {
        if let Some(dial) = self.peer_mut(peer).and_then(|p| p.dial.as_mut()) {
            dial.wait = if dial.sent == 0 { dial.wait.min(wait) } else { dial.wait };
        }
    }

    /// Ends all sessions with a peer that said that it stops. `call` has it called soon and often,
    /// since it may be about to start again.
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

    /// Remembers the address through which the handshake of this session went. Hosts do not move:
    /// their address is part of who they are.
    pub(crate) fn note_reached(&mut self, peer: PeerId, index: Index, at: E) {
        if self.config.role == Role::Link
            && let Some(found) = self.peer_mut(peer)
        {
            found.note_reached(index, at);
        }
    }
}
