//! Passing registrars' supplements on from neighbour to neighbour (docs/authority.md section 6).
//!
//! ```text
//! A, more steps:  have(7) -->              steps 5, 6, 7 -->
//! B, fewer:                  <-- want 5..7                   <-- have(7), once they count
//! ```
//!
//! Whoever has steps of a mandate of its list says how many and what the last one is. Whoever hears
//! of more asks for them, from one neighbour at a time. Where two have different steps with one
//! number, the one asks for steps by halves until it has the first that differs: then both have
//! both, and nothing from there on counts. What has arrived is given to the caller, who checks
//! signatures and mandates, and says by [`Chains::changed`] what counts.
//!
//! Invariant: this machine believes nothing that a neighbour says. A false word costs one transfer
//! of at most 64 steps.

mod fetch;

use core::cmp::Reverse;
use core::time::Duration;

use shoal_wire::{
    Address, CHAIN_STEPS_MAX, CONTROL_BODY_MAX, ChainHave, ChainMark, ChainMessage, DropReason,
    LinkId, STEPS_ASKED_MAX, Time,
};

use crate::ledger::Ledger;
use crate::peers::{self, Peers, Words};
use crate::{Directory, MandateId, Register};
use fetch::{Aim, Fetch, Took};

/// Between two messages with steps for one neighbour.
const PACE: Duration = Duration::from_micros(500);
/// Between two such messages for any neighbours.
const PACE_ALL: Duration = Duration::from_micros(40);
/// Time for which a neighbour is not asked after a step that the registrar did not sign.
const AGAIN_FORGED: Duration = Duration::from_secs(300);

/// What the machine counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainStats {
    /// Transfers whose steps count.
    pub taken: u64,
    /// Transfers whose steps were refused.
    pub refused: u64,
    /// Transfers that stood still or took too long.
    pub given_up: u64,
    /// Steps sent.
    pub steps_sent: u64,
}

/// What became of steps that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainOutcome {
    /// They count.
    Taken,
    /// The registrar signed them, but one has no effect (now).
    Refused,
    /// They follow from other steps than those that are here.
    Diverged,
    /// One is not the registrar's.
    Forged,
}

/// Steps that arrived. Nothing else is asked for until [`Chains::settled`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrivedSteps {
    /// From whom.
    pub neighbour: Address,
    /// Of which mandate.
    pub mandate: MandateId,
    /// They are said to show that the registrar signed two steps with one number: two of them, or
    /// one that differs from the one that is here.
    pub is_fork: bool,
    /// Their bytes, in the order of their numbers; nothing about them is known.
    pub steps: Vec<Vec<u8>>,
}

/// Steps that a neighbour asked for.
#[derive(Clone, Copy, Debug)]
struct Serving {
    mandate: MandateId,
    next: u64,
    /// The second one of a fork's two steps is next.
    other: bool,
    last: u64,
}

#[derive(Debug)]
struct Peer {
    neighbour: Address,
    /// Its newest `have`.
    heard: Option<ChainHave>,
    words: Words,
    serving: Option<Serving>,
    /// When the next steps may leave.
    steps_at: Time,
}

/// Asked for, and not answered yet by the caller.
#[derive(Clone, Copy, Debug)]
struct Checking {
    link: LinkId,
    neighbour: Address,
    mandate: MandateId,
}

/// One node's part in passing supplements on. What it has is its [`Directory`]'s registers, which
/// each call is given.
#[derive(Debug, Default)]
pub struct Chains {
    peers: Peers<Peer>,
    ledger: Ledger,
    /// When the next steps may leave to anybody.
    paced: Time,
    fetch: Option<Fetch>,
    arrived: Option<(LinkId, ArrivedSteps)>,
    checking: Option<Checking>,
    /// When a neighbour that failed may be asked again.
    retry_at: Option<Time>,
    /// A neighbour has said what it has.
    heard: bool,
    stats: ChainStats,
}

impl Chains {
    /// Without neighbours.
    pub fn new() -> Chains {
        Chains::default()
    }

    /// What happened since the start.
    pub fn stats(&self) -> ChainStats {
        self.stats
    }

    /// True if a neighbour has said since the start what it has, and nothing of that is on its way
    /// here.
    pub fn has_caught_up(&self) -> bool {
        let idle = self.fetch.is_none() && self.arrived.is_none() && self.checking.is_none();
        self.heard && idle && self.retry_at.is_none()
    }

    /// Other steps count than before, or another list is in force: every neighbour is told.
    pub fn changed(&mut self, now: Time, directory: &Directory) {
        if let Some(fetch) = &self.fetch
            && !fetch.is_wanted(directory)
        {
            self.fetch = None;
        }
        for link in self.peers.links() {
            self.peers.change(link, |peer| {
                peer.words.begin(Some(peer.words.earliest(now)));
            });
        }
        self.choose(now, directory);
    }

    /// The neighbour with this address hears us. Messages of links that are not up have no effect.
    pub fn link_up(&mut self, now: Time, link: LinkId, neighbour: Address, directory: &Directory) {
        self.link_down(now, link, directory);
        self.peers.insert(link, Peer::new(now, neighbour));
    }

    /// Whether a link is up.
    pub fn is_up(&self, link: LinkId) -> bool {
        self.peers.is_up(link)
    }

    /// A neighbour is lost.
    pub fn link_down(&mut self, now: Time, link: LinkId, directory: &Directory) {
        let Some(peer) = self.peers.remove(link) else { return };
        if self.fetch.as_ref().is_some_and(|fetch| fetch.link == link) {
            self.give_up(now, peer.neighbour, directory);
        }
    }

    /// The transfer that goes on has failed.
    fn give_up(&mut self, now: Time, neighbour: Address, directory: &Directory) {
        self.fetch = None;
        self.stats.given_up += 1;
        self.ledger.punish(now, neighbour, Duration::ZERO);
        self.choose(now, directory);
    }

    /// Takes in a message of a neighbour.
    ///
    /// Errors: why it has no effect; nothing has changed then. `list_budget` to one who asks for
    /// steps again and again, `unknown_flow` where the link is not up or nobody asked.
    pub fn handle_message(
        &mut self,
        now: Time,
        link: LinkId,
        message: ChainMessage,
        directory: &Directory,
    ) -> Result<(), DropReason> {
        let neighbour = self.peers.get(link).ok_or(DropReason::UnknownFlow)?.neighbour;
        match message {
            ChainMessage::Have(have) => {
                self.hear(now, link, have, directory);
                Ok(())
            }
            ChainMessage::Want { mandate, first, count } => {
                let asked = (MandateId(mandate), first.into(), count.into());
                self.serve(now, (link, neighbour), asked, directory)
            }
            ChainMessage::Steps(steps) => {
                let fetch = self.fetch.as_mut().filter(|fetch| fetch.link == link);
                let fetch = fetch.ok_or(DropReason::UnknownFlow)?;
                match fetch.take(now, steps, directory)? {
                    Took::More => {}
                    Took::All(steps) => {
                        let (mandate, is_fork) = (fetch.mandate, fetch.is_of_fork());
                        let arrived = ArrivedSteps { neighbour, mandate, is_fork, steps };
                        (self.fetch, self.arrived) = (None, Some((link, arrived)));
                    }
                    Took::Useless => self.give_up(now, neighbour, directory),
                }
                Ok(())
            }
        }
    }

    fn hear(&mut self, now: Time, link: LinkId, have: ChainHave, directory: &Directory) {
        self.heard = true;
        self.peers.change(link, |peer| {
            if have.ask {
                // Answers are spaced out, whatever it asks.
                peer.words.answer(now);
            }
            let asks = have.ask;
            peer.heard = Some(have);
            if !asks && peer.words.have_begun() && peer.has_all(directory) {
                peer.words.end();
            }
        });
        self.choose(now, directory);
    }

    fn serve(
        &mut self,
        now: Time,
        (link, neighbour): (LinkId, Address),
        (mandate, first, count): (MandateId, u64, u64),
        directory: &Directory,
    ) -> Result<(), DropReason> {
        let register = directory.register(&mandate);
        let register = register.filter(|register| first <= served(register));
        let Some(register) = register else {
            // It asks for what is not here, or not any more.
            self.peers.change(link, |peer| {
                peer.words.answer(now);
            });
            return Ok(());
        };
        if !self.ledger.may_have(now, neighbour, served(register) as u32) {
            return Err(DropReason::ListBudget);
        }
        let last = (first + count - 1).min(served(register));
        let serving = Serving { mandate, next: first, other: false, last };
        self.peers.change(link, |peer| peer.serving = Some(serving));
        Ok(())
    }

    /// Says what the steps were that [`Chains::poll_arrived`] gave. Those that count are to be put
    /// in force first, and [`Chains::changed`] called.
    pub fn settled(&mut self, now: Time, outcome: ChainOutcome, directory: &Directory) {
        let Some(Checking { link, neighbour, mandate }) = self.checking.take() else { return };
        let len = directory.register(&mandate).map_or(0, Register::len);
        match outcome {
            ChainOutcome::Taken => {
                self.stats.taken += 1;
                self.ledger.forgive(neighbour);
            }
            ChainOutcome::Diverged if len > 0 && self.is_up(link) => {
                let aim = Aim::Search { same: 0, other: len };
                self.fetch = Some(Fetch::new(now, (link, mandate), aim));
            }
            ChainOutcome::Diverged | ChainOutcome::Refused | ChainOutcome::Forged => {
                self.stats.refused += 1;
                let forged = outcome == ChainOutcome::Forged;
                let least = if forged { AGAIN_FORGED } else { Duration::ZERO };
                self.ledger.punish(now, neighbour, least);
            }
        }
        self.choose(now, directory);
    }

    /// Begins a transfer, if none goes on and there is one to begin: from the neighbour that failed
    /// least, then from the one with most steps.
    fn choose(&mut self, now: Time, directory: &Directory) {
        if self.fetch.is_some() || self.arrived.is_some() || self.checking.is_some() {
            self.retry_at = None;
            return;
        }
        let offers = || {
            self.peers.iter().flat_map(|(link, peer)| {
                let conduct = self.ledger.conduct(peer.neighbour);
                let marks = peer.heard.iter().flat_map(|have| &have.chains);
                marks.filter_map(move |mark| {
                    let register = directory.register(&MandateId(mark.mandate))?;
                    Some((link, conduct, Aim::of(register, mark)?, mark))
                })
            })
        };
        let first = offers()
            .filter(|(_, conduct, ..)| conduct.not_before <= now)
            .min_by_key(|(_, conduct, _, mark)| (conduct.failures, Reverse(mark.steps)))
            .map(|(link, _, aim, mark)| Fetch::new(now, (link, MandateId(mark.mandate)), aim));
        let later = || offers().map(|(_, conduct, ..)| conduct.not_before).min();
        self.retry_at = if first.is_none() { later() } else { None };
        self.fetch = first;
    }

    /// How often the neighbour failed that a link leads to.
    fn failures(&self, link: LinkId) -> u32 {
        self.peers.get(link).map_or(0, |peer| self.ledger.conduct(peer.neighbour).failures)
    }

    /// Does what time asks for.
    pub fn handle_timeout(&mut self, now: Time, directory: &Directory) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.choose(now, directory);
        }
        let Some(fetch) = &self.fetch else { return };
        let link = fetch.link;
        if fetch.ends_at(self.failures(link)) <= now
            && let Some(neighbour) = self.peers.get(link).map(|peer| peer.neighbour)
        {
            self.give_up(now, neighbour, directory);
        }
    }

    /// When [`Chains::handle_timeout`] or a poll has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        let fetch = self.fetch.as_ref();
        [
            self.arrived.as_ref().map(|_| Time::ZERO),
            self.peers.first_due(),
            self.retry_at,
            fetch.map(|fetch| fetch.ask_at.min(fetch.ends_at(self.failures(fetch.link)))),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Takes steps that arrived; the caller owes [`Chains::settled`].
    pub fn poll_arrived(&mut self) -> Option<ArrivedSteps> {
        let (link, arrived) = self.arrived.take()?;
        let ArrivedSteps { neighbour, mandate, .. } = arrived;
        self.checking = Some(Checking { link, neighbour, mandate });
        Some(arrived)
    }

    /// The next message to send, and to whom.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        directory: &Directory,
    ) -> Option<(LinkId, ChainMessage)> {
        if let Some(fetch) = &mut self.fetch
            && let Some(message) = fetch.ask(now)
        {
            return Some((fetch.link, message));
        }
        // Each turn without a message moves a neighbour behind `now`.
        while let Some(link) = self.peers.next_due(now) {
            if let Some(message) = self.speak(now, link, directory) {
                return Some((link, message));
            }
        }
        None
    }

    /// What is due for a neighbour, if it may leave now.
    fn speak(&mut self, now: Time, link: LinkId, directory: &Directory) -> Option<ChainMessage> {
        let paced = self.paced;
        let sent = self.peers.change(link, |peer| {
            if peer.words.is_due(now) {
                return peer.say(now, directory);
            }
            let serving = peer.serving.as_mut()?;
            if peer.steps_at > now || paced > now {
                peer.steps_at = peer.steps_at.max(paced);
                return None;
            }
            let steps = serving.steps(directory);
            peer.steps_at = now + PACE;
            if steps.is_empty() || serving.next > serving.last {
                peer.serving = None;
            }
            (!steps.is_empty()).then_some(ChainMessage::Steps(steps))
        });
        let message = sent.flatten()?;
        if let ChainMessage::Steps(steps) = &message {
            self.stats.steps_sent += steps.len() as u64;
            self.paced = now + PACE_ALL;
            if let Some(neighbour) = self.peers.get(link).map(|peer| peer.neighbour) {
                steps.iter().for_each(|_| self.ledger.spend(now, neighbour));
            }
        }
        Some(message)
    }
}

impl Peer {
    fn new(now: Time, neighbour: Address) -> Peer {
        Peer { neighbour, heard: None, words: Words::new(now), serving: None, steps_at: Time::ZERO }
    }

    /// Whether it is known to have what counts here.
    fn has_all(&self, directory: &Directory) -> bool {
        let Some(heard) = &self.heard else { return false };
        directory.registers().all(|register| {
            let theirs = heard.chains.iter().find(|mark| mark.mandate == register.id().0);
            let ours = mark_of(register);
            theirs.is_some_and(|theirs| {
                let forks = ours.fork == 0 || (1..=ours.fork).contains(&theirs.fork);
                forks && (theirs.steps >= ours.steps || theirs.fork == theirs.steps + 1)
            })
        })
    }

    /// Nothing is said by a node whose list has no mandates.
    fn say(&mut self, now: Time, directory: &Directory) -> Option<ChainMessage> {
        let chains: Vec<ChainMark> = directory.registers().map(mark_of).collect();
        if chains.is_empty() {
            self.words.end();
            return None;
        }
        let ask = !self.has_all(directory);
        self.words.say(now, ask);
        Some(ChainMessage::Have(ChainHave { ask, chains }))
    }
}

impl peers::Peer for Peer {
    fn due(&self) -> Option<Time> {
        let steps = self.serving.map(|_| self.steps_at);
        [self.words.due(), steps].into_iter().flatten().min()
    }
}

impl Serving {
    /// As many of the steps as one message holds. A fork's number has two.
    fn steps(&mut self, directory: &Directory) -> Vec<Vec<u8>> {
        let (mut out, mut left) = (Vec::new(), CONTROL_BODY_MAX);
        let Some(register) = directory.register(&self.mandate) else { return out };
        while self.next <= self.last {
            let fork = register.fork().filter(|fork| fork[0].step().number == self.next);
            let step = match fork {
                Some(fork) => Some(&fork[usize::from(self.other)]),
                None => register.step(self.next),
            };
            let Some(step) = step else {
                self.next = self.last + 1;
                break;
            };
            let len = ChainMessage::STEP_HEAD_LEN + step.bytes().len();
            if len > left {
                break;
            }
            left -= len;
            out.push(step.bytes().to_vec());
            self.other = fork.is_some() && !self.other;
            self.next += u64::from(!self.other);
        }
        out
    }
}

/// The last number of which this node has a step to give.
fn served(register: &Register) -> u64 {
    register.fork().map_or(register.len(), |fork| fork[0].step().number)
}

fn mark_of(register: &Register) -> ChainMark {
    ChainMark {
        mandate: register.id().0,
        // At most `STEPS_MAX`.
        steps: register.len() as u32,
        head: register.head(),
        fork: register.fork().map_or(0, |fork| fork[0].step().number as u32),
    }
}

const _: () = assert!(crate::register::STEPS_MAX == CHAIN_STEPS_MAX as usize);
const _: () = assert!(crate::MANDATES_MAX == shoal_wire::CHAINS_MAX);
const _: () = assert!(crate::SUPPLEMENT_LEN_MAX == shoal_wire::STEP_LEN_MAX);
const _: () = assert!(STEPS_ASKED_MAX as usize == fetch::WINDOW);
