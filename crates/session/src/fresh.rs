//! Fresh randomness, and the end of all sessions at once.
//!
//! A machine may be copied while it runs, by a snapshot or a clone of a virtual machine. Both
//! copies then draw equal random bytes, and seal with equal counters under equal keys. Two measures
//! prevent that. Every handshake job gets fresh bytes from the operating system, which reach the
//! machine with the job's result. And when the shell notices that it was stopped and resumed,
//! [`Sessions::rekey_all`] forgets all keys.

use shoal_crypto::{Ciphers, Rng, Secret, kdf};
use shoal_wire::Time;

use crate::config::{Endpoint, PeerId, SessionEvent};
use crate::job::{HandshakeTask, HandshakeWork};
use crate::sessions::Sessions;

impl<E, C> HandshakeTask<E, C> {
    /// Mixes fresh randomness of the operating system into all that the job draws, and into all
    /// that the machine draws after its result. The thread that runs the job must call this just
    /// before.
    pub fn freshen(&mut self, fresh: &[u8; 32]) {
        let half = |label, old: &[u8; 16]| {
            let long = kdf(fresh, label, &[old]);
            let mut short = [0; 16];
            short.copy_from_slice(&long[..16]);
            short
        };
        let key = |old: &Secret<32>| Secret::new(kdf(fresh, "ephemeral", &[old.expose()]));
        match &mut self.work {
            HandshakeWork::Start(start) => {
                start.ephemeral = key(&start.ephemeral);
                start.lead = half("lead", &start.lead);
            }
            HandshakeWork::Answer(answer) => {
                answer.ephemeral = key(&answer.ephemeral);
                answer.salt = half("salt", &answer.salt);
            }
            HandshakeWork::Finish(_) => {}
        }
        self.fresh = Some(Secret::new(kdf(fresh, "machine", &[])));
    }
}

impl<E: Endpoint, C: Ciphers> Sessions<E, C> {
    /// Mixes fresh randomness into all later draws.
    pub(crate) fn freshen(&mut self, fresh: &[u8; 32]) {
        let old: [u8; 32] = self.rng.array();
        self.rng = Rng::new(kdf(fresh, "shoal session rng", &[&old]));
    }

    /// Forgets all keys, for an owner whose state may exist twice. Begins a new handshake with each
    /// peer that had a session or a handshake. `fresh` must be new randomness of the operating
    /// system. After the call no frame is sealed or opened under the old keys, and no earlier
    /// handshake completes.
    pub fn rekey_all(&mut self, now: Time, fresh: &[u8; 32]) {
        self.now = self.now.max(now);
        self.freshen(fresh);
        self.new_incarnation();
        self.cookies = self.cookies.anew(self.rng.fork("cookies"), now);
        self.masks.freshen(self.rng.fork("index masks"));
        self.age = self.age.wrapping_add(1);
        self.out.clear();
        self.events.clear();
        for peer in self.peers.ids().collect::<Vec<_>>() {
            self.rekey(now, peer);
        }
    }

    fn rekey(&mut self, now: Time, peer: PeerId) {
        let Some(found) = self.peer_mut(peer) else { return };
        let had = found.current.is_some();
        let wanted = had || found.dial.is_some() || found.resume_at.is_some();
        let gone = found.take_sessions();
        (found.nudge, found.cool_at, found.resume_at, found.cookie) = (None, None, None, None);
        found.dial_again = now;
        self.drop_dial(peer);
        for index in gone {
            self.slots.release(index);
        }
        if had {
            self.events.push_back(SessionEvent::Expired { peer });
        }
        if wanted {
            self.begin(peer);
        }
        self.refresh_timer(peer);
    }
}
