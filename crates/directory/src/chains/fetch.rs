//! Transfer of steps of one chain to this node: requests and time limits.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_wire::{ChainMark, ChainMessage, DropReason, LinkId, Time};

use crate::{Directory, MandateId, Register, Supplement};

/// Maximum number of steps requested at once.
pub(super) const WINDOW: usize = 64;
/// Time until missing steps are requested again: first and longest interval.
const ASK_AGAIN: Duration = Duration::from_millis(200);
const ASK_AGAIN_MAX: Duration = Duration::from_millis(1_600);
/// Time without a new step after which a transfer has failed.
const STILL: Duration = Duration::from_secs(5);
/// Maximum duration of a transfer. It doubles with each failure of the neighbour, so that a slow
/// link succeeds in the end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Purpose of a transfer.
#[derive(Clone, Copy, Debug)]
pub(super) enum FetchGoal {
    /// Get the next steps.
    Follow { first: u64, count: u64 },
    /// Get both steps of a fork.
    Fork { at: u64 },
    /// Find the first step that differs, by bisection. Step `same` is the same at both nodes (0 is
    /// the mandate), step `other` differs.
    Search { same: u64, other: u64 },
}

impl FetchGoal {
    /// The transfer to begin with a neighbour that claims `theirs`, if any.
    pub(super) fn of(ours: &Register, theirs: &ChainMark) -> Option<FetchGoal> {
        let (len, frozen) = (ours.len(), frozen_at(ours));
        let (fork, steps) = (u64::from(theirs.fork), u64::from(theirs.steps));
        if fork != 0 && frozen.is_none_or(|at| fork < at) && fork <= len + 1 {
            return Some(FetchGoal::Fork { at: fork });
        }
        if steps <= len {
            let differs = ours.step(steps).is_some_and(|step| step.digest() != theirs.head);
            return differs.then_some(FetchGoal::Search { same: 0, other: steps });
        }
        let until = frozen.map_or(steps, |at| steps.min(at - 1));
        let count = until.saturating_sub(len).min(WINDOW as u64);
        (count > 0).then_some(FetchGoal::Follow { first: len + 1, count })
    }
}

/// Effect of received steps.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FetchProgress {
    /// More steps are needed.
    More,
    /// The transfer is complete.
    All(Vec<Vec<u8>>),
    /// The neighbour's claim was wrong.
    Useless,
}

/// A running transfer.
#[derive(Debug)]
pub(super) struct ChainFetch {
    pub(super) link: LinkId,
    pub(super) mandate: MandateId,
    aim: FetchGoal,
    began: Time,
    /// Time of the last new step.
    moved: Time,
    pub(super) ask_at: Time,
    gap: Duration,
    /// Received steps by number; of a search, step `other` only.
    got: BTreeMap<u64, Vec<u8>>,
}

impl ChainFetch {
    pub(super) fn new(
        now: Time,
        (link, mandate): (LinkId, MandateId),
        aim: FetchGoal,
    ) -> ChainFetch {
        ChainFetch {
            link,
            mandate,
            aim,
            began: now,
            moved: now,
            ask_at: now,
            gap: ASK_AGAIN,
            got: BTreeMap::new(),
        }
    }

    pub(super) fn is_of_fork(&self) -> bool {
        !matches!(self.aim, FetchGoal::Follow { .. })
    }

    /// True if the transfer is still useful for this directory.
    pub(super) fn is_wanted(&self, directory: &Directory) -> bool {
        let Some(register) = directory.register(&self.mandate) else { return false };
        let (len, frozen) = (register.len(), frozen_at(register));
        let before = |number| frozen.is_none_or(|at| number < at);
        match self.aim {
            FetchGoal::Follow { first, .. } => first == len + 1 && before(first),
            FetchGoal::Fork { at } => before(at) && at <= len + 1,
            FetchGoal::Search { other, .. } => before(other) && other <= len,
        }
    }

    /// First number and count of the requested steps.
    fn asked(&self) -> (u64, u64) {
        match self.aim {
            FetchGoal::Follow { first, count } => (first, count),
            FetchGoal::Fork { at } => (at, 1),
            FetchGoal::Search { same, other } if other - same > 1 => (same + (other - same) / 2, 1),
            FetchGoal::Search { other, .. } => (other, 1),
        }
    }

    /// Handles received steps.
    ///
    /// Errors: the steps were not requested or can't be decoded; nothing has changed then.
    pub(super) fn take(
        &mut self,
        now: Time,
        steps: Vec<Vec<u8>>,
        directory: &Directory,
    ) -> Result<FetchProgress, DropReason> {
        let register = directory.register(&self.mandate).ok_or(DropReason::UnknownFlow)?;
        let (first, count) = self.asked();
        let mut read = Vec::with_capacity(steps.len());
        for step in steps {
            let peeked = Supplement::peek(&step).map_err(|_| DropReason::Malformed)?;
            let digest = Supplement::digest_of(&step).ok_or(DropReason::Malformed)?;
            if peeked.0 != self.mandate || !(first..first + count).contains(&peeked.1) {
                return Err(DropReason::UnknownFlow);
            }
            read.push((peeked.1, digest, step));
        }
        // Steps arrive in a row. Missing ones are requested again after a pause.
        (self.moved, self.gap) = (now, ASK_AGAIN);
        self.ask_at = now + self.gap;
        for (number, digest, step) in read {
            let took = match self.aim {
                FetchGoal::Follow { .. } => self.follow(number, step, count),
                FetchGoal::Fork { .. } => self.fork(register.step(number), digest, step),
                FetchGoal::Search { same, other } => {
                    let ours = register.step(number).map(Supplement::digest);
                    self.search((same, other), number, ours != Some(digest), step)
                }
            };
            if took != FetchProgress::More {
                return Ok(took);
            }
        }
        if let FetchGoal::Search { .. } = self.aim {
            self.ask_at = now;
        }
        Ok(FetchProgress::More)
    }

    fn follow(&mut self, number: u64, step: Vec<u8>, count: u64) -> FetchProgress {
        self.got.entry(number).or_insert(step);
        if self.got.len() as u64 == count {
            FetchProgress::All(core::mem::take(&mut self.got).into_values().collect())
        } else {
            FetchProgress::More
        }
    }

    fn fork(&mut self, own: Option<&Supplement>, digest: [u8; 32], step: Vec<u8>) -> FetchProgress {
        if let Some(own) = own {
            return if own.digest() == digest {
                FetchProgress::More
            } else {
                FetchProgress::All(vec![step])
            };
        }
        let first = self.got.values().next();
        if first.is_some_and(|first| Supplement::digest_of(first) != Some(digest)) {
            let mut both: Vec<_> = core::mem::take(&mut self.got).into_values().collect();
            both.push(step);
            return FetchProgress::All(both);
        }
        self.got.insert(0, step);
        FetchProgress::More
    }

    fn search(
        &mut self,
        (same, other): (u64, u64),
        at: u64,
        differs: bool,
        step: Vec<u8>,
    ) -> FetchProgress {
        let (same, other) = match differs {
            true => (same, at),
            // The neighbour claimed that this step differs.
            false if at == other => return FetchProgress::Useless,
            false => (at, other),
        };
        if differs {
            self.got = BTreeMap::from([(other, step)]);
        }
        self.aim = FetchGoal::Search { same, other };
        match self.got.remove(&other) {
            Some(step) if other - same == 1 => FetchProgress::All(vec![step]),
            Some(step) => {
                self.got.insert(other, step);
                FetchProgress::More
            }
            None => FetchProgress::More,
        }
    }

    /// The request that is due, if any.
    pub(super) fn ask(&mut self, now: Time) -> Option<ChainMessage> {
        if self.ask_at > now {
            return None;
        }
        self.ask_at = now + self.gap;
        self.gap = (self.gap * 2).min(ASK_AGAIN_MAX);
        let (mut first, count) = self.asked();
        let mut last = first + count - 1;
        if let FetchGoal::Follow { .. } = self.aim {
            while first < last && self.got.contains_key(&first) {
                first += 1;
            }
            while first < last && self.got.contains_key(&last) {
                last -= 1;
            }
        }
        // At most `STEPS_MAX`, and `WINDOW` of them.
        let (first, count) = (first as u32, (last - first + 1) as u8);
        Some(ChainMessage::Want { mandate: self.mandate.0, first, count })
    }

    /// Time at which the transfer fails if no new step arrives.
    pub(super) fn ends_at(&self, failures: u32) -> Time {
        (self.moved + STILL).min(self.began + PATIENCE * 2u32.pow(failures.min(5)))
    }
}

fn frozen_at(register: &Register) -> Option<u64> {
    register.fork().map(|fork| fork[0].step().number)
}
