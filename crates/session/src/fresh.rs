//! Fresh randomness, and an end of all sessions at once.
//!
//! A machine that was copied while it ran (a snapshot or a clone of a virtual machine) goes on
//! twice: both copies draw the same random bytes, and seal with the same counters under the same
//! keys. Two things stand against that. Every handshake job is given fresh bytes of the operating
//! system, which reach the machine with the job's result; and when the shell finds out that it was
//! stopped and resumed, [`Sessions::rekey_all`] forgets all keys.

use shoal_crypto::{Ciphers, Rng, Secret, kdf};
use shoal_wire::Time;

use crate::config::{Endpoint, Event, PeerId};
use crate::job::{Job, Work};
use crate::sessions::Sessions;

impl<E, C> Job<E, C> {
    /// Mixes fresh randomness of the operating system into all that the job draws, and all that the
    /// machine draws after its result. To be called by the thread that runs the job, just before.
    pub fn freshen(&mut self, fresh: &[u8; 32]) {
        let half = |label, old: &[u8; 16]| {
            let long = kdf(fresh, label, &[old]);
            let mut short = [0; 16];
            short.copy_from_slice(&long[..16]);
            short
        };
        let key = |old: &Secret<32>| Secret::new(kdf(fresh, "ephemeral", &[old.expose()]));
        match &mut self.work {
            Work::Start(start) => {
                start.ephemeral = key(&start.ephemeral);
                start.lead = half("lead", &start.lead);
            }
            Work::Answer(answer) => {
                answer.ephemeral = key(&answer.ephemeral);
                answer.salt = half("salt", &answer.salt);
            }
            Work::Finish(_) => {}
        }
        self.fresh = Some(Secret::new(kdf(fresh, "machine", &[])));
    }
}

impl<E: Endpoint, C: Ciphers> Sessions<E, C> {
    /// Mixes fresh randomness into all that is drawn from now on.
    pub(crate) fn freshen(&mut self, fresh: &[u8; 32]) {
        let old: [u8; 32] = self.rng.array();
        self.rng = Rng::new(kdf(fresh, "shoal session rng", &[&old]));
    }

    /// Forgets all keys and begins new handshakes wherever there was a session or a handshake: for
    /// an owner whose state may exist twice. `fresh` must be new randomness of the operating
    /// system. Nothing is sealed or opened under the old keys from now on, and no handshake that
    /// was begun before comes to anything.
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
            self.events.push_back(Event::Expired { peer });
        }
        if wanted {
            self.begin(peer);
        }
        self.refresh_timer(peer);
    }
}
