//! Queue of set-up work for another thread, and its limits.

use core::marker::PhantomData;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use shoal_crypto::{Ciphers, Rng, Secret, kdf};
use shoal_session::cookie::Cookies;
use shoal_wire::{DropReason, Time};

use super::{CircuitEntry, Onion, OnionEvent};
use crate::job::{SetupContext, SetupJob, SetupJobOutcome, SetupJobResult, SetupWork};
use crate::layer::Filler;
use crate::setup::Bond;

/// Maximum number of other nodes' pieces of work that wait or run. This node's own work has the
/// same limit.
pub(super) const WAITING_MAX: usize = 64;
/// From this number of waiting answers on, a create cell needs a cookie.
const LOADED_AT: usize = WAITING_MAX / 4;
/// Time for which cookies are required after the number has fallen again.
const LOAD_HOLD: Duration = Duration::from_secs(1);

pub(super) struct SetupQueue {
    common: Arc<SetupContext>,
    /// Work for circuits that this node begins. This work goes first; only this node adds to it.
    own: VecDeque<SetupWork>,
    /// Answers to create cells.
    answers: VecDeque<SetupWork>,
    /// Number of answers that a thread works on.
    running: usize,
    /// Number of pieces of work that were taken and have not come back.
    taken: usize,
    loaded_until: Time,
    /// Number of times that all keys were forgotten.
    age: u64,
    /// Cookies, which are bound to the address of the asking node.
    pub(super) cookies: Cookies,
}

impl SetupQueue {
    pub(super) fn new(common: SetupContext, cookies: Cookies) -> SetupQueue {
        SetupQueue {
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

    /// Bond with the node whose X25519 key is `other`.
    ///
    /// # Errors
    ///
    /// `bad_handshake`: `other` is not a valid key.
    pub(super) fn bond(&self, other: &[u8; 32]) -> Result<Bond, DropReason> {
        Bond::new(self.common.identity.dh(), other)
    }

    /// Number of waiting pieces of own work, and number of waiting or running pieces of others'
    /// work.
    pub(super) fn waiting(&self) -> (usize, usize) {
        (self.own.len(), self.answers())
    }

    /// Number of create cells whose answers wait or are being made.
    pub(super) fn answers(&self) -> usize {
        self.answers.len() + self.running
    }

    /// True if the caller should take a piece of work now. False while a piece runs: the caller
    /// takes the next piece when it returns the result.
    pub(super) fn is_due(&self) -> bool {
        self.taken == 0 && !(self.own.is_empty() && self.answers.is_empty())
    }

    /// True if create cells need a cookie.
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
    /// `handshake_budget`: too much work waits.
    pub(super) fn add_own(&mut self, work: SetupWork) -> Result<(), DropReason> {
        if self.own.len() >= WAITING_MAX {
            return Err(DropReason::HandshakeBudget);
        }
        self.own.push_back(work);
        Ok(())
    }

    /// Adds the answer to a create cell. The caller must have checked [`SetupQueue::answers`].
    pub(super) fn add_answer(&mut self, work: SetupWork) {
        self.answers.push_back(work);
    }
}

impl<C: Ciphers> Onion<C> {
    /// The next piece of set-up work, for another thread. Pass its result to
    /// [`Onion::handle_done`].
    pub fn poll_job(&mut self) -> Option<SetupJob<C>> {
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
        Some(SetupJob { common, work, age, fresh: None, ciphers: PhantomData })
    }

    /// Processes the result of [`SetupJob::run`]. The job's circuit may be gone.
    ///
    /// # Errors
    ///
    /// Reason for the failure: `bad_handshake`, `bad_version`, `malformed`, `circuit_limit`,
    /// `queue_full`, or `unexpected_reply` if its circuit is gone. `circuit_limit` is also returned
    /// after success, if an unused circuit was closed to make room.
    pub fn handle_done(&mut self, now: Time, done: SetupJobResult) -> Result<(), DropReason> {
        self.queue.taken = self.queue.taken.saturating_sub(1);
        if let Some(fresh) = &done.fresh {
            self.freshen(fresh.expose());
        }
        if matches!(done.outcome, SetupJobOutcome::Answer { .. }) {
            self.queue.running = self.queue.running.saturating_sub(1);
        }
        if done.age != self.queue.age {
            // All keys were forgotten since: a copy of this machine may have the result's keys.
            return Err(DropReason::UnexpectedReply);
        }
        match done.outcome {
            SetupJobOutcome::Begin { attempt, made } => self.begun(now, attempt, made),
            SetupJobOutcome::Extend { attempt, made } => self.added(now, attempt, made),
            SetupJobOutcome::Answer { ends, opener, made } => {
                self.answered(now, ends, &opener, &*made?)
            }
        }
    }

    /// Mixes fresh randomness into all later draws.
    fn freshen(&mut self, fresh: &[u8; 32]) {
        let old: [u8; 32] = self.rng.array();
        self.rng = Rng::new(kdf(fresh, "shoal onion rng", &[&old]));
    }

    /// Ends all circuits and forgets all keys. Call this if a second copy of this node's state may
    /// exist, for example after a virtual machine was copied. `fresh` must be new randomness of the
    /// operating system. After the call nothing is sealed or opened under the old keys. Other nodes
    /// are not told, since that would need a seal.
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
                self.tell(OnionEvent::Ended(id));
            }
        }
    }
}

impl<A> CircuitEntry<A> {
    /// True if this node began the circuit.
    fn is_own(&self) -> bool {
        matches!(self, CircuitEntry::Origin(_))
    }
}
