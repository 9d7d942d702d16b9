//! What registrars signed, in this node: checked, put in force, kept, passed on
//! (docs/authority.md section 6).
//!
//! ```text
//! neighbours, programs -> Unchecked -> thread: signatures -> Checked -> Directory -> members
//!                                                                    -> file, neighbours
//! ```
//!
//! Invariant: a supplement counts by its registrar's signature and the mandate of the list in
//! force, whoever brought it.

use std::collections::BTreeMap;
use std::time::Duration;

use shoal_crypto::PublicKey;
use shoal_directory::{
    ArrivedSteps, ChainOutcome, ChainStats, Chains, Directory, Error, MandateId, Register,
    Supplement, Unapplied,
};
use shoal_wire::{DropReason, Time};

use crate::control::api::{ErrorCode, Reply};
use crate::control::journal;
use crate::control::socket::Pending;
use crate::membership::authority::{Authority, unix_s};
use crate::worker::first::{Parts, Worker};

mod file;

pub use file::{ChainFile, chain_file};

/// Least time between two changes of members that supplements bring: those that come one by one are
/// put in force together.
const APPLY_EVERY: Duration = Duration::from_millis(500);
/// Most supplements that a program may hand over at once.
pub const STEPS_MAX: usize = 64;

/// Who brought supplements.
#[derive(Debug)]
pub(crate) enum From {
    /// A neighbour.
    Neighbour,
    /// A program, which waits for an answer.
    Program(Pending),
}

/// Supplements of one mandate, whose signatures are to be checked.
#[derive(Debug)]
pub struct Unchecked {
    from: From,
    key: PublicKey,
    mandate: MandateId,
    is_fork: bool,
    steps: Vec<Vec<u8>>,
}

/// Supplements whose signatures were checked.
#[derive(Debug)]
pub struct Checked {
    from: From,
    mandate: MandateId,
    is_fork: bool,
    steps: Result<Vec<Supplement>, Error>,
}

impl Unchecked {
    /// Checks the signatures: up to the first wrong one, if all before it may count.
    pub(crate) fn check(self) -> Checked {
        let Unchecked { from, key, mandate, is_fork, steps } = self;
        let steps = steps.iter().map(|bytes| Supplement::open(&key, bytes)).collect();
        Checked { from, mandate, is_fork, steps }
    }
}

/// What the node's directory has from registrars, and how it passes on.
#[derive(Debug)]
pub struct Supplements {
    /// Passes them on, if this node does.
    exchange: Option<Chains>,
    /// What came from a neighbour and waits for the thread that checks it.
    unchecked: Option<Box<Unchecked>>,
    /// Refused ones from neighbours that are not yet counted as drops.
    bad: u64,
    /// How much of each chain the file has; none if it is to be written anew.
    saved: Option<BTreeMap<MandateId, Saved>>,
    /// Members have changed, and are to be put in force then.
    apply_at: Option<Time>,
    applied: Option<Time>,
    /// Why not all that was kept counts.
    pub(super) fault: Option<String>,
}

/// What the file has of one chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Saved {
    steps: u64,
    head: [u8; 32],
    forks: bool,
}

impl Saved {
    fn of(register: &Register) -> Saved {
        let forks = register.fork().is_some();
        Saved { steps: register.len(), head: register.head(), forks }
    }

    /// The steps that the file lacks; none if it has others.
    fn lacks(self, register: &Register) -> Option<&[Supplement]> {
        let known = match self.steps {
            0 => register.id().0,
            steps => register.step(steps)?.digest(),
        };
        let goes_on = known == self.head && self.forks == register.fork().is_some();
        // No more than there are: `step` found the last one.
        goes_on.then(|| &register.steps()[self.steps as usize..])
    }
}

impl Supplements {
    /// Puts in force what was kept, as far as the list's mandates allow it.
    pub(super) fn load(
        directory: &mut Directory,
        at: (Time, u64),
        (steps, fault): (Vec<Vec<u8>>, Option<String>),
        pass_on: bool,
    ) -> Supplements {
        let fault = fault.or(file::load(directory, at, &steps));
        let all = directory.registers().map(|register| (register.id(), Saved::of(register)));
        let saved = all.collect::<BTreeMap<_, _>>();
        let forks = directory.registers().filter(|register| register.fork().is_some()).count();
        let has: u64 = saved.values().map(|saved| saved.steps).sum();
        let is_whole = has + 2 * forks as u64 == steps.len() as u64;
        Supplements {
            exchange: pass_on.then(Chains::new),
            unchecked: None,
            bad: 0,
            saved: (fault.is_none() && is_whole).then_some(saved),
            apply_at: None,
            applied: None,
            fault,
        }
    }

    /// Other steps count than before, or another list.
    pub(super) fn changed(&mut self, now: Time, directory: &Directory) {
        if let Some(exchange) = &mut self.exchange {
            exchange.changed(now, directory);
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        let exchange = self.exchange.as_ref().and_then(Chains::poll_timeout);
        [exchange, self.apply_at].into_iter().flatten().min()
    }
}

impl Authority {
    /// When lists, supplements or secrets have something to do.
    pub fn exchange_timeout(&self) -> Option<Time> {
        let lists = self.exchange.as_ref().and_then(|exchange| exchange.poll_timeout());
        let steps = self.supplements.poll_timeout();
        [lists.map(|(at, _)| at), steps, self.secret_timeout()].into_iter().flatten().min()
    }

    /// True if a neighbour has said what supplements it has, and none of them is missing here.
    pub fn has_caught_up(&self) -> bool {
        self.supplements.exchange.as_ref().is_some_and(Chains::has_caught_up)
    }

    /// What became of supplements between neighbours.
    pub fn chain_stats(&self) -> ChainStats {
        self.supplements.exchange.as_ref().map(Chains::stats).unwrap_or_default()
    }

    /// Whether members that supplements brought are to be put in force now. Says so once.
    pub(crate) fn is_apply_due(&mut self, now: Time) -> bool {
        let due = self.supplements.apply_at.is_some_and(|at| at <= now);
        if due {
            (self.supplements.apply_at, self.supplements.applied) = (None, Some(now));
            self.look(now);
        }
        due
    }

    /// Takes in supplements whose signatures were checked, and says what became of them to whoever
    /// brought them. Members change when [`Authority::is_apply_due`] says so.
    pub(crate) fn take_steps(&mut self, now: Time, checked: Checked) {
        let Checked { from, mandate, is_fork, steps } = checked;
        let (changed, outcome) = match steps {
            Err(error) => (false, Err(Why::Forged(error))),
            Ok(steps) => {
                let (changed, outcome) = self.put_steps_in_force(now, is_fork, steps);
                (changed, outcome.map_err(Why::Unapplied))
            }
        };
        if changed {
            self.supplements.changed(now, &self.directory);
            let soonest = self.supplements.applied.map_or(now, |at| (at + APPLY_EVERY).max(now));
            self.supplements.apply_at.get_or_insert(soonest);
        }
        match from {
            From::Neighbour => self.settle_steps(now, mandate, outcome),
            From::Program(pending) => pending.reply(match outcome {
                Ok(()) => {
                    let register = self.directory.register(&mandate);
                    Reply::Supplements { steps: register.map_or(0, Register::len) }
                }
                Err(why) => Reply::error(ErrorCode::Mandate, format!("the supplement: {why}")),
            }),
        }
    }

    fn put_steps_in_force(
        &mut self,
        now: Time,
        is_fork: bool,
        steps: Vec<Supplement>,
    ) -> (bool, Result<(), Unapplied>) {
        match <[Supplement; 2]>::try_from(steps) {
            Ok(fork) if is_fork => match self.directory.show_fork(fork) {
                Ok(_) => (true, Ok(())),
                Err(why) => (false, Err(why)),
            },
            Ok(steps) => self.directory.supplements(now, unix_s(), &steps),
            Err(steps) => self.directory.supplements(now, unix_s(), &steps),
        }
    }

    /// Says what became of a neighbour's supplements.
    fn settle_steps(&mut self, now: Time, mandate: MandateId, outcome: Result<(), Why>) {
        let outcome = match outcome {
            Ok(()) => ChainOutcome::Taken,
            // Another neighbour was faster, or a newer list has another mandate.
            Err(Why::Unapplied(Unapplied::Unchained)) => ChainOutcome::Diverged,
            Err(why) => {
                self.supplements.bad += 1;
                let what = "supplements from a neighbour do not count";
                let faults = [format!("mandate {mandate:?}: {why}")];
                tracing::warn!("{}", journal::unnamed(what, journal::DEBUG, &faults));
                match why {
                    Why::Forged(_) => ChainOutcome::Forged,
                    Why::Unapplied(_) => ChainOutcome::Refused,
                }
            }
        };
        if let Some(exchange) = &mut self.supplements.exchange {
            exchange.settled(now, outcome, &self.directory);
        }
    }

    /// Has supplements of a program checked and put in force; the answer follows.
    pub(crate) fn submit(&mut self, pending: Pending, steps: Vec<Vec<u8>>) {
        match self.unchecked(&steps) {
            Err(why) => pending.reply(Reply::error(ErrorCode::Mandate, why)),
            Ok((mandate, key)) => {
                let from = From::Program(pending);
                let unchecked = Unchecked { from, key, mandate, is_fork: false, steps };
                let unchecked = Box::new(unchecked);
                let back = self.watcher.as_ref().map(|watcher| watcher.check_steps(unchecked));
                if let Some(Err(back)) = back
                    && let From::Program(pending) = back.from
                {
                    let text = "the node checks other lists and supplements: try again";
                    pending.reply(Reply::error(ErrorCode::Busy, text));
                }
            }
        }
    }

    /// Whose supplements these say they are.
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
            "the authority's list here has no such mandate: is it the newest one, and was the \
             mandate taken back?",
        )?;
        Ok((mandate, register.mandate().key))
    }

    /// Gives supplements that have arrived to the thread that checks them.
    fn check_arrived_steps(&mut self, now: Time) {
        let Supplements { exchange, unchecked, .. } = &mut self.supplements;
        if let (None, Some(exchange)) = (&unchecked, exchange)
            && let Some(arrived) = exchange.poll_arrived()
        {
            let ArrivedSteps { mandate, is_fork, steps, .. } = arrived;
            match self.directory.register(&mandate) {
                Some(register) => {
                    let (from, key) = (From::Neighbour, register.mandate().key);
                    let steps = Unchecked { from, key, mandate, is_fork, steps };
                    *unchecked = Some(Box::new(steps));
                }
                // A newer list took the mandate back meanwhile.
                None => exchange.settled(now, ChainOutcome::Taken, &self.directory),
            }
        }
        if let (Some(steps), Some(watcher)) = (unchecked.take(), &self.watcher) {
            *unchecked = watcher.check_steps(steps).err();
        }
    }

    /// Has the thread keep what the file lacks.
    pub(super) fn save_steps(&mut self) {
        let Some(watcher) = &self.watcher else { return };
        let registers = || self.directory.registers();
        let now: BTreeMap<_, _> = registers().map(|r| (r.id(), Saved::of(r))).collect();
        let saved = self.supplements.saved.as_ref().filter(|_| !watcher.lost_steps());
        if saved == Some(&now) {
            return;
        }
        let none = |register: &Register| Saved { steps: 0, head: register.id().0, forks: false };
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

/// Why supplements have no effect.
enum Why {
    Forged(Error),
    Unapplied(Unapplied),
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Why::Forged(Error::Signature) => f.write_str("not signed by the mandate's registrar"),
            Why::Forged(error) => error.fmt(f),
            Why::Unapplied(why) => why.fmt(f),
        }
    }
}

impl Worker {
    /// Takes in what neighbours say about supplements, and says what is due.
    pub(crate) fn pass_steps_on(&mut self, now: Time) {
        let Parts { node, ports, authority, .. } = &mut self.parts;
        let Some(authority) = authority else { return };
        let bad = std::mem::take(&mut authority.supplements.bad);
        node.relay.count_drop(DropReason::BadMandate, bad);
        authority.check_arrived_steps(now);
        let Authority { supplements, directory, .. } = authority;
        let Some(exchange) = &mut supplements.exchange else { return };
        while let Some((link, message)) = node.relay.poll_chain() {
            if !exchange.is_up(link)
                && let Some(neighbour) = node.relay.view(link)
            {
                // Its message came before the event that the link is up.
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

    /// Notes that a neighbour hears us, or is lost.
    pub(crate) fn note_chain(&mut self, now: Time, link: shoal_wire::LinkId, up: bool) {
        let Parts { node, authority, .. } = &mut self.parts;
        let Some(Authority { supplements, directory, .. }) = authority else { return };
        let Some(exchange) = &mut supplements.exchange else { return };
        match node.relay.view(link) {
            Some(neighbour) if up => exchange.link_up(now, link, neighbour.address, directory),
            _ => exchange.link_down(now, link, directory),
        }
    }
}

#[cfg(test)]
mod tests;
