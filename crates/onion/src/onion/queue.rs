//! Set-up work that waits for a thread, and its limits.

use core::marker::PhantomData;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use shoal_crypto::{Ciphers, Rng, Secret, kdf};
use shoal_session::cookie::Cookies;
use shoal_wire::{DropReason, Time};

use super::{Entry, Event, Onion};
use crate::job::{Common, Done, Job, Outcome, Work};
use crate::layer::Filler;
use crate::setup::Bond;

/// Pieces of work of others that wait or run at most, and of this node's own circuits.
pub(super) const WAITING_MAX: usize = 64;
/// With so many waiting, a create cell needs a cookie.
const LOADED_AT: usize = WAITING_MAX / 4;
/// For how long after that it does.
const LOAD_HOLD: Duration = Duration::from_secs(1);

/// Work that waits.
pub(super) struct Queue {
    common: Arc<Common>,
    /// Of circuits that this node begins: it goes first, and is as much as this node wants.
    own: VecDeque<Work>,
    /// Of create cells.
    answers: VecDeque<Work>,
    /// Answers that a thread works on.
    running: usize,
    /// Pieces of work that were taken and did not come back.
    taken: usize,
    loaded_until: Time,
    /// How often all keys were forgotten.
    age: u64,
    /// Bound to the address of the node that asks.
    pub(super) cookies: Cookies,
}

impl Queue {
    pub(super) fn new(common: Common, cookies: Cookies) -> Queue {
        Queue {
            common: Arc::new(common),
            own: VecDeque::new(),
            answers: VecDeque::new(),
            running: 0,
            taken: 0,
            loaded_until: Time::ZERO,
            age: 0,
            cookies,
        }
    }

    /// The bond with the node whose X25519 key is `other`.
    ///
    /// # Errors
    ///
    /// `bad_handshake`: it is no key.
    pub(super) fn bond(&self, other: &[u8; 32]) -> Result<Bond, DropReason> {
        Bond::new(self.common.identity.dh(), other)
    }

    /// Pieces of work that wait: of own circuits, and of others, those that run included.
    pub(super) fn waiting(&self) -> (usize, usize) {
        (self.own.len(), self.answers())
    }

    /// Create cells whose answers wait, or are being worked on.
    pub(super) fn answers(&self) -> usize {
        self.answers.len() + self.running
    }

    /// Whether work is to be taken now. Where some was taken, the call that brings its result takes
    /// the next.
    pub(super) fn is_due(&self) -> bool {
        self.taken == 0 && !(self.own.is_empty() && self.answers.is_empty())
    }

    /// Whether create cells need a cookie now.
    pub(super) fn is_loaded(&mut self, now: Time) -> bool {
        if self.answers() >= LOADED_AT {
            self.loaded_until = now + LOAD_HOLD;
        }
        now < self.loaded_until
    }

    /// Adds work for a circuit of this node.
    ///
    /// # Errors
    ///
    /// `handshake_budget`: too much waits.
    pub(super) fn add_own(&mut self, work: Work) -> Result<(), DropReason> {
        if self.own.len() >= WAITING_MAX {
            return Err(DropReason::HandshakeBudget);
        }
        self.own.push_back(work);
        Ok(())
    }

    /// Adds the answer to a create cell; whoever asks looked at [`Queue::answers`].
    pub(super) fn add_answer(&mut self, work: Work) {
        self.answers.push_back(work);
    }
}

impl<C: Ciphers> Onion<C> {
    /// The next piece of set-up work, for another thread. Its result goes to
    /// [`Onion::handle_done`].
    pub fn poll_job(&mut self) -> Option<Job<C>> {
        let queue = &mut self.queue;
        let work = match queue.own.pop_front() {
            Some(work) => work,
            None => {
                let work = queue.answers.pop_front()?;
                queue.running += 1;
                work
            }
        };
        queue.taken += 1;
        let (common, age) = (Arc::clone(&queue.common), queue.age);
        Some(Job { common, work, age, fresh: None, ciphers: PhantomData })
    }

    /// Takes back what [`Job::run`] made. What it was for may be gone.
    ///
    /// # Errors
    ///
    /// Why it came to nothing: `bad_handshake`, `bad_version`, `malformed`, `circuit_limit`,
    /// `queue_full`; `unexpected_reply`: its circuit is gone. `circuit_limit` also where it came to
    /// something and another circuit, which had carried nothing, ended for it.
    pub fn handle_done(&mut self, now: Time, done: Done) -> Result<(), DropReason> {
        self.queue.taken = self.queue.taken.saturating_sub(1);
        if let Some(fresh) = &done.fresh {
            self.freshen(fresh.expose());
        }
        if matches!(done.outcome, Outcome::Answer { .. }) {
            self.queue.running = self.queue.running.saturating_sub(1);
        }
        if done.age != self.queue.age {
            // Its keys may exist twice.
            return Err(DropReason::UnexpectedReply);
        }
        match done.outcome {
            Outcome::Begin { attempt, made } => self.begun(now, attempt, made),
            Outcome::Extend { attempt, made } => self.added(now, attempt, made),
            Outcome::Answer { from, opener, made } => self.answered(now, from, &opener, &*made?),
        }
    }

    /// Mixes fresh randomness into all that is drawn from now on.
    fn freshen(&mut self, fresh: &[u8; 32]) {
        let old: [u8; 32] = self.rng.array();
        self.rng = Rng::new(kdf(fresh, "shoal onion rng", &[&old]));
    }

    /// Ends all circuits and forgets all keys: for an owner whose state may exist twice, as after a
    /// copy of a virtual machine. `fresh` must be new randomness of the operating system. Nothing
    /// is sealed or opened under the old keys from now on, and nobody is told, since that would
    /// seal.
    pub fn forget_all(&mut self, now: Time, fresh: &[u8; 32]) {
        self.freshen(fresh);
        self.filler = Filler::new(&Secret::new(self.rng.fork("filler")));
        self.queue.cookies = Cookies::new(self.rng.fork("cookies"), now);
        self.queue.age += 1;
        self.queue.own.clear();
        self.queue.answers.clear();
        self.transmits.clear();
        self.events.clear();
        self.handshakes.clear();
        let all = self.slots.iter().map(|(id, entry)| (id, entry.is_own()));
        for (id, is_own) in all.collect::<Vec<_>>() {
            self.remove(id);
            if is_own {
                self.tell(Event::Ended(id));
            }
        }
    }
}

impl<A> Entry<A> {
    /// Whether this node began the circuit.
    fn is_own(&self) -> bool {
        matches!(self, Entry::Origin(_))
    }
}
