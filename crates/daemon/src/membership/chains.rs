//! Registrars' supplements in this node: they are checked, applied, stored and passed on
//! (docs/design/membership.md).
//!
//! ```text
//! neighbours, programs -> Unchecked -> thread: signatures -> Checked -> Directory -> members
//!                                                                    -> file, neighbours
//! ```
//!
//! Invariant: a supplement counts if its registrar signed it under a mandate of the list in force,
//! no matter who delivered it.

use std::collections::BTreeMap;
use std::time::Duration;

use shoal_crypto::PublicKey;
use shoal_directory::{
    ChainExchange, ChainOutcome, ChainStats, Directory, Error, MandateId, ReceivedSteps, Register,
    StepRejection, Supplement,
};
use shoal_wire::{DropReason, Time};

use crate::control::api::{ControlReply, ErrorCode};
use crate::control::journal;
use crate::control::socket::PendingReply;
use crate::membership::authority::{AuthorityState, unix_s};
use crate::worker::first::{FirstWorker, WorkerParts};

mod file;

pub use file::{ChainFile, chain_file};

/// Least time between two changes of members. Supplements that arrive one by one within it take
/// effect together.
const APPLY_EVERY: Duration = Duration::from_millis(500);
/// Most supplements in one request of a program.
pub const STEPS_MAX: usize = 64;

/// Source of supplements.
#[derive(Debug)]
pub(crate) enum SupplementSource {
    Neighbour,
    /// A program that waits for an answer.
    Program(PendingReply),
}

/// Supplements of one mandate whose signatures are not checked yet.
#[derive(Debug)]
pub struct UncheckedSupplements {
    from: SupplementSource,
    key: PublicKey,
    mandate: MandateId,
    is_fork: bool,
    steps: Vec<Vec<u8>>,
}

/// Supplements whose signatures were checked.
#[derive(Debug)]
pub struct CheckedSupplements {
    from: SupplementSource,
    mandate: MandateId,
    is_fork: bool,
    steps: Result<Vec<Supplement>, Error>,
}

impl UncheckedSupplements {
    /// Checks the signatures. The first wrong one makes the whole batch an error.
    pub(crate) fn check(self) -> CheckedSupplements {
        let UncheckedSupplements { from, key, mandate, is_fork, steps } = self;
        let steps = steps.iter().map(|bytes| Supplement::open(&key, bytes)).collect();
        CheckedSupplements { from, mandate, is_fork, steps }
    }
}

/// Registrars' supplements in the node's directory, and their exchange with neighbours.
#[derive(Debug)]
pub struct Supplements {
    /// Exchange with neighbours; none if this node passes no supplements on.
    exchange: Option<ChainExchange>,
    /// Supplements of a neighbour that wait for the checking thread.
    unchecked: Option<Box<UncheckedSupplements>>,
    /// Refused batches of neighbours that are not yet counted as drops.
    bad: u64,
    /// Part of each chain that the file holds; none if the file must be written anew.
    saved: Option<BTreeMap<MandateId, StoredChain>>,
    /// Time at which changed members take effect.
    apply_at: Option<Time>,
    applied: Option<Time>,
    /// Reason why some stored supplements do not count.
    pub(super) fault: Option<String>,
}

/// Part of one chain that the file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StoredChain {
    steps: u64,
    head: [u8; 32],
    forks: bool,
}

impl StoredChain {
    fn of(register: &Register) -> StoredChain {
        let forks = register.fork().is_some();
        StoredChain { steps: register.len(), head: register.head(), forks }
    }

    /// The steps that the file lacks; none if its steps differ.
    fn lacks(self, register: &Register) -> Option<&[Supplement]> {
        let known = match self.steps {
            0 => register.id().0,
            steps => register.step(steps)?.digest(),
        };
        let goes_on = known == self.head && self.forks == register.fork().is_some();
        // The index is in range: `step` found the last stored step.
        goes_on.then(|| &register.steps()[self.steps as usize..])
    }
}

impl Supplements {
    /// Applies the stored supplements, as far as the list's mandates allow.
    pub(super) fn load(
        directory: &mut Directory,
        at: (Time, u64),
        (steps, fault): (Vec<Vec<u8>>, Option<String>),
        pass_on: bool,
    ) -> Supplements {
        let fault = fault.or(file::load(directory, at, &steps));
        let all = directory.registers().map(|register| (register.id(), StoredChain::of(register)));
        let saved = all.collect::<BTreeMap<_, _>>();
        let forks = directory.registers().filter(|register| register.fork().is_some()).count();
        let has: u64 = saved.values().map(|saved| saved.steps).sum();
        let is_whole = has + 2 * forks as u64 == steps.len() as u64;
        Supplements {
            exchange: pass_on.then(ChainExchange::new),
            unchecked: None,
            bad: 0,
            saved: (fault.is_none() && is_whole).then_some(saved),
            apply_at: None,
            applied: None,
            fault,
        }
    }

    /// Informs the exchange that the applied steps or the list changed.
    pub(super) fn changed(&mut self, now: Time, directory: &Directory) {
        if let Some(exchange) = &mut self.exchange {
            exchange.changed(now, directory);
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        let exchange = self.exchange.as_ref().and_then(ChainExchange::poll_timeout);
        [exchange, self.apply_at].into_iter().flatten().min()
    }
}

impl AuthorityState {
    /// Time at which the exchange of lists, supplements or secrets has work.
    pub fn exchange_timeout(&self) -> Option<Time> {
        let lists = self.exchange.as_ref().and_then(|exchange| exchange.poll_timeout());
        let steps = self.supplements.poll_timeout();
        [lists.map(|(at, _)| at), steps, self.secret_timeout()].into_iter().flatten().min()
    }

    /// True if a neighbour has reported its supplements, and this node has all of them.
    pub fn has_caught_up(&self) -> bool {
        self.supplements.exchange.as_ref().is_some_and(ChainExchange::has_caught_up)
    }

    /// Outcomes of supplements exchanged with neighbours.
    pub fn chain_stats(&self) -> ChainStats {
        self.supplements.exchange.as_ref().map(ChainExchange::stats).unwrap_or_default()
    }

    /// True if changed members must take effect. Returns true once for each change.
    pub(crate) fn is_apply_due(&mut self, now: Time) -> bool {
        let due = self.supplements.apply_at.is_some_and(|at| at <= now);
        if due {
            (self.supplements.apply_at, self.supplements.applied) = (None, Some(now));
            self.look(now);
        }
        due
    }

    /// Applies supplements whose signatures were checked, and reports the outcome to their source.
    /// Members change when [`AuthorityState::is_apply_due`] returns true.
    pub(crate) fn take_steps(&mut self, now: Time, checked: CheckedSupplements) {
        let CheckedSupplements { from, mandate, is_fork, steps } = checked;
        let (changed, outcome) = match steps {
            Err(error) => (false, Err(SupplementError::Forged(error))),
            Ok(steps) => {
                let (changed, outcome) = self.put_steps_in_force(now, is_fork, steps);
                (changed, outcome.map_err(SupplementError::Unapplied))
            }
        };
        if changed {
            self.supplements.changed(now, &self.directory);
            let soonest = self.supplements.applied.map_or(now, |at| (at + APPLY_EVERY).max(now));
            self.supplements.apply_at.get_or_insert(soonest);
        }
        match from {
            SupplementSource::Neighbour => self.settle_steps(now, mandate, outcome),
            SupplementSource::Program(pending) => pending.reply(match outcome {
                Ok(()) => {
                    let register = self.directory.register(&mandate);
                    ControlReply::Supplements { steps: register.map_or(0, Register::len) }
                }
                Err(why) => {
                    ControlReply::error(ErrorCode::Mandate, format!("the supplement: {why}"))
                }
            }),
        }
    }

    fn put_steps_in_force(
        &mut self,
        now: Time,
        is_fork: bool,
        steps: Vec<Supplement>,
    ) -> (bool, Result<(), StepRejection>) {
        match <[Supplement; 2]>::try_from(steps) {
            Ok(fork) if is_fork => match self.directory.show_fork(fork) {
                Ok(_) => (true, Ok(())),
                Err(why) => (false, Err(why)),
            },
            Ok(steps) => self.directory.supplements(now, unix_s(), &steps),
            Err(steps) => self.directory.supplements(now, unix_s(), &steps),
        }
    }

    /// Reports the outcome of a neighbour's supplements.
    fn settle_steps(
        &mut self,
        now: Time,
        mandate: MandateId,
        outcome: Result<(), SupplementError>,
    ) {
        let outcome = match outcome {
            Ok(()) => ChainOutcome::Taken,
            // Another neighbour was faster, or a newer list has another mandate.
            Err(SupplementError::Unapplied(StepRejection::Unchained)) => ChainOutcome::Diverged,
            Err(why) => {
                self.supplements.bad += 1;
                let what = "supplements from a neighbour do not count";
                let faults = [format!("mandate {mandate:?}: {why}")];
                tracing::warn!("{}", journal::unnamed(what, journal::DEBUG, &faults));
                match why {
                    SupplementError::Forged(_) => ChainOutcome::Forged,
                    SupplementError::Unapplied(_) => ChainOutcome::Refused,
                }
            }
        };
        if let Some(exchange) = &mut self.supplements.exchange {
            exchange.settled(now, outcome, &self.directory);
        }
    }

    /// Starts the check of a program's supplements. The answer follows after they are applied.
    pub(crate) fn submit(&mut self, pending: PendingReply, steps: Vec<Vec<u8>>) {
        match self.unchecked(&steps) {
            Err(why) => pending.reply(ControlReply::error(ErrorCode::Mandate, why)),
            Ok((mandate, key)) => {
                let from = SupplementSource::Program(pending);
                let unchecked = UncheckedSupplements { from, key, mandate, is_fork: false, steps };
                let unchecked = Box::new(unchecked);
                let back = self.watcher.as_ref().map(|watcher| watcher.check_steps(unchecked));
                if let Some(Err(back)) = back
                    && let SupplementSource::Program(pending) = back.from
                {
                    let text = "the node is busy with other lists and supplements: try again";
                    pending.reply(ControlReply::error(ErrorCode::Busy, text));
                }
            }
        }
    }

    /// Mandate that the supplements claim, and its registrar's key.
    fn unchecked(&self, steps: &[Vec<u8>]) -> Result<(MandateId, PublicKey), String> {
        let Some(first) = steps.first().filter(|_| steps.len() <= STEPS_MAX) else {
            return Err(format!("expected 1 to {STEPS_MAX} supplements"));
        };
        let peek = |step: &[u8]| Supplement::peek(step).map(|(mandate, _)| mandate);
        let mandate = peek(first).map_err(|error| format!("the supplement {error}"))?;
        if steps.iter().any(|step| peek(step) != Ok(mandate)) {
            return Err("the supplements are not all of one mandate".into());
        }
        let register = self.directory.register(&mandate).ok_or(
            "the authority's list on this node has no such mandate: check that the list is the \
             newest one, and that the mandate was not taken back",
        )?;
        Ok((mandate, register.mandate().key))
    }

    /// Hands supplements that have arrived to the checking thread.
    fn check_arrived_steps(&mut self, now: Time) {
        let Supplements { exchange, unchecked, .. } = &mut self.supplements;
        if let (None, Some(exchange)) = (&unchecked, exchange)
            && let Some(arrived) = exchange.poll_arrived()
        {
            let ReceivedSteps { mandate, is_fork, steps, .. } = arrived;
            match self.directory.register(&mandate) {
                Some(register) => {
                    let (from, key) = (SupplementSource::Neighbour, register.mandate().key);
                    let steps = UncheckedSupplements { from, key, mandate, is_fork, steps };
                    *unchecked = Some(Box::new(steps));
                }
                // A newer list removed the mandate meanwhile.
                None => exchange.settled(now, ChainOutcome::Taken, &self.directory),
            }
        }
        if let (Some(steps), Some(watcher)) = (unchecked.take(), &self.watcher) {
            *unchecked = watcher.check_steps(steps).err();
        }
    }

    /// Asks the thread to store the steps that the file lacks.
    pub(super) fn save_steps(&mut self) {
        let Some(watcher) = &self.watcher else { return };
        let registers = || self.directory.registers();
        let now: BTreeMap<_, _> = registers().map(|r| (r.id(), StoredChain::of(r))).collect();
        let saved = self.supplements.saved.as_ref().filter(|_| !watcher.lost_steps());
        if saved == Some(&now) {
            return;
        }
        let none =
            |register: &Register| StoredChain { steps: 0, head: register.id().0, forks: false };
        let lacking: Option<Vec<&[Supplement]>> =
            saved.filter(|saved| saved.keys().all(|id| now.contains_key(id))).and_then(|saved| {
                let of = |r| saved.get(&Register::id(r)).copied().unwrap_or(none(r)).lacks(r);
                registers().map(of).collect()
            });
        let kept = match lacking {
            Some(lacking) => {
                let bytes = file::records(lacking.into_iter().flatten());
                watcher.keep_steps(bytes, false)
            }
            None => watcher.keep_steps(file::whole(&self.directory), true),
        };
        if kept {
            self.supplements.saved = Some(now);
        }
    }
}

/// Reason why supplements have no effect.
enum SupplementError {
    Forged(Error),
    Unapplied(StepRejection),
}

impl std::fmt::Display for SupplementError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SupplementError::Forged(Error::Signature) => {
                f.write_str("not signed by the mandate's registrar")
            }
            SupplementError::Forged(error) => error.fmt(f),
            SupplementError::Unapplied(why) => why.fmt(f),
        }
    }
}

impl FirstWorker {
    /// Handles neighbours' messages about supplements, and sends those that are due.
    pub(crate) fn pass_steps_on(&mut self, now: Time) {
        let WorkerParts { node, ports, authority, .. } = &mut self.parts;
        let Some(authority) = authority else { return };
        let bad = std::mem::take(&mut authority.supplements.bad);
        node.relay.count_drop(DropReason::BadMandate, bad);
        authority.check_arrived_steps(now);
        let AuthorityState { supplements, directory, .. } = authority;
        let Some(exchange) = &mut supplements.exchange else { return };
        while let Some((link, message)) = node.relay.poll_chain() {
            if !exchange.is_up(link)
                && let Some(neighbour) = node.relay.view(link)
            {
                // The message arrived before the event that the link is up.
                exchange.link_up(now, link, neighbour.address, directory);
            }
            if let Err(reason) = exchange.handle_message(now, link, message, directory) {
                node.relay.count_drop(reason, 1);
            }
        }
        exchange.handle_timeout(now, directory);
        while let Some((link, message)) = exchange.poll_transmit(now, directory) {
            node.relay.send_chain(now, link, &message, ports.at(now));
        }
        authority.check_arrived_steps(now);
    }

    /// Notes that the link to a neighbour is up or down.
    pub(crate) fn note_chain(&mut self, now: Time, link: shoal_wire::LinkId, up: bool) {
        let WorkerParts { node, authority, .. } = &mut self.parts;
        let Some(AuthorityState { supplements, directory, .. }) = authority else { return };
        let Some(exchange) = &mut supplements.exchange else { return };
        match node.relay.view(link) {
            Some(neighbour) if up => exchange.link_up(now, link, neighbour.address, directory),
            _ => exchange.link_down(now, link, directory),
        }
    }
}

#[cfg(test)]
mod tests;
