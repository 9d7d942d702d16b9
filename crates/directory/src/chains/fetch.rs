//! Steps of one chain on their way here: what is asked for, and how long that may take.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_wire::{ChainMark, ChainMessage, DropReason, LinkId, Time};

use crate::{Directory, MandateId, Register, Supplement};

/// Steps asked for at once.
pub(super) const WINDOW: usize = 64;
/// Wait before steps that did not come are asked for again: the first time, and the longest.
const ASK_AGAIN: Duration = Duration::from_millis(200);
const ASK_AGAIN_MAX: Duration = Duration::from_millis(1_600);
/// A transfer without a new step for so long has failed.
const STILL: Duration = Duration::from_secs(5);
/// A transfer that takes longer has failed; doubled with each failure of the neighbour, so that a
/// slow line wins in the end.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Aim {
    /// The next steps.
    Follow { first: u64, count: u64 },
    /// Two steps with this number.
    Fork { at: u64 },
    /// The first step that differs from the one here. Step `same` is the same (0: the mandate),
    /// step `other` is not.
    Search { same: u64, other: u64 },
}

impl Aim {
    /// What to ask a neighbour for, by what it says that it has.
    pub(super) fn of(ours: &Register, theirs: &ChainMark) -> Option<Aim> {
        let (len, frozen) = (ours.len(), frozen_at(ours));
        let (fork, steps) = (u64::from(theirs.fork), u64::from(theirs.steps));
        if fork != 0 && frozen.is_none_or(|at| fork < at) && fork <= len + 1 {
            return Some(Aim::Fork { at: fork });
        }
        if steps <= len {
            let differs = ours.step(steps).is_some_and(|step| step.digest() != theirs.head);
            return differs.then_some(Aim::Search { same: 0, other: steps });
        }
        let until = frozen.map_or(steps, |at| steps.min(at - 1));
        let count = until.saturating_sub(len).min(WINDOW as u64);
        (count > 0).then_some(Aim::Follow { first: len + 1, count })
    }
}

/// What steps that came did.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Took {
    /// More are wanted.
    More,
    /// These are all.
    All(Vec<Vec<u8>>),
    /// The neighbour has nothing of use, whatever it said.
    Useless,
}

/// Steps that are being fetched.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) link: LinkId,
    pub(super) mandate: MandateId,
    aim: Aim,
    began: Time,
    /// When a new step came last.
    moved: Time,
    pub(super) ask_at: Time,
    gap: Duration,
    /// By number; of a search that of `other`.
    got: BTreeMap<u64, Vec<u8>>,
}

impl Fetch {
    pub(super) fn new(now: Time, (link, mandate): (LinkId, MandateId), aim: Aim) -> Fetch {
        Fetch {
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
        !matches!(self.aim, Aim::Follow { .. })
    }

    /// Whether what counts here leaves it of use.
    pub(super) fn is_wanted(&self, directory: &Directory) -> bool {
        let Some(register) = directory.register(&self.mandate) else { return false };
        let (len, frozen) = (register.len(), frozen_at(register));
        let before = |number| frozen.is_none_or(|at| number < at);
        match self.aim {
            Aim::Follow { first, .. } => first == len + 1 && before(first),
            Aim::Fork { at } => before(at) && at <= len + 1,
            Aim::Search { other, .. } => before(other) && other <= len,
        }
    }

    /// The first number asked for, and how many.
    fn asked(&self) -> (u64, u64) {
        match self.aim {
            Aim::Follow { first, count } => (first, count),
            Aim::Fork { at } => (at, 1),
            Aim::Search { same, other } if other - same > 1 => (same + (other - same) / 2, 1),
            Aim::Search { other, .. } => (other, 1),
        }
    }

    /// Takes in steps.
    ///
    /// Errors: they were not asked for, or are none; nothing has changed then.
    pub(super) fn take(
        &mut self,
        now: Time,
        steps: Vec<Vec<u8>>,
        directory: &Directory,
    ) -> Result<Took, DropReason> {
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
        // Steps come in a row: the missing ones are asked for when no more do.
        (self.moved, self.gap) = (now, ASK_AGAIN);
        self.ask_at = now + self.gap;
        for (number, digest, step) in read {
            let took = match self.aim {
                Aim::Follow { .. } => self.follow(number, step, count),
                Aim::Fork { .. } => self.fork(register.step(number), digest, step),
                Aim::Search { same, other } => {
                    let ours = register.step(number).map(Supplement::digest);
                    self.search((same, other), number, ours != Some(digest), step)
                }
            };
            if took != Took::More {
                return Ok(took);
            }
        }
        if let Aim::Search { .. } = self.aim {
            self.ask_at = now;
        }
        Ok(Took::More)
    }

    fn follow(&mut self, number: u64, step: Vec<u8>, count: u64) -> Took {
        self.got.entry(number).or_insert(step);
        if self.got.len() as u64 == count {
            Took::All(core::mem::take(&mut self.got).into_values().collect())
        } else {
            Took::More
        }
    }

    fn fork(&mut self, own: Option<&Supplement>, digest: [u8; 32], step: Vec<u8>) -> Took {
        if let Some(own) = own {
            return if own.digest() == digest { Took::More } else { Took::All(vec![step]) };
        }
        let first = self.got.values().next();
        if first.is_some_and(|first| Supplement::digest_of(first) != Some(digest)) {
            let mut both: Vec<_> = core::mem::take(&mut self.got).into_values().collect();
            both.push(step);
            return Took::All(both);
        }
        self.got.insert(0, step);
        Took::More
    }

    fn search(&mut self, (same, other): (u64, u64), at: u64, differs: bool, step: Vec<u8>) -> Took {
        let (same, other) = match differs {
            true => (same, at),
            // It is said to differ there.
            false if at == other => return Took::Useless,
            false => (at, other),
        };
        if differs {
            self.got = BTreeMap::from([(other, step)]);
        }
        self.aim = Aim::Search { same, other };
        match self.got.remove(&other) {
            Some(step) if other - same == 1 => Took::All(vec![step]),
            Some(step) => {
                self.got.insert(other, step);
                Took::More
            }
            None => Took::More,
        }
    }

    /// The question that is due, if one is.
    pub(super) fn ask(&mut self, now: Time) -> Option<ChainMessage> {
        if self.ask_at > now {
            return None;
        }
        self.ask_at = now + self.gap;
        self.gap = (self.gap * 2).min(ASK_AGAIN_MAX);
        let (mut first, count) = self.asked();
        let mut last = first + count - 1;
        if let Aim::Follow { .. } = self.aim {
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

    /// When it has failed, if no new step comes.
    pub(super) fn ends_at(&self, failures: u32) -> Time {
        (self.moved + STILL).min(self.began + PATIENCE * 2u32.pow(failures.min(5)))
    }
}

fn frozen_at(register: &Register) -> Option<u64> {
    register.fork().map(|fork| fork[0].step().number)
}
