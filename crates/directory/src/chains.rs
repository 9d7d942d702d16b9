//! Exchange of registrars' supplements between neighbours (docs/design/membership.md).
//!
//! ```text
//! A, more steps:  have(7) -->              steps 5, 6, 7 -->
//! B, fewer:                  <-- want 5..7                   <-- have(7), once they count
//! ```
//!
//! A node tells its neighbours how many steps of each mandate it has, and the hash of the last one.
//! A neighbour with fewer steps requests them, from one neighbour at a time. If two nodes have
//! different steps with one number, the first such step is found by bisection. Then both nodes have
//! both steps, and no step from there on counts. The caller gets arrived steps, checks signatures
//! and mandates, and reports by [`ChainExchange::changed`] which ones count.
//!
//! Invariant: neighbours' claims are not trusted. A false claim costs one transfer of at most 64
//! steps.

mod fetch;

use core::cmp::Reverse;
use core::time::Duration;

use shoal_wire::{
    Address, CHAIN_STEPS_MAX, CONTROL_BODY_MAX, ChainInventory, ChainMark, ChainMessage,
    DropReason, LinkId, STEPS_ASKED_MAX, Time,
};

use crate::ledger::PeerLedger;
use crate::peers::{self, AnnouncementTimer, PeerSchedule};
use crate::{Directory, MandateId, Register};
use fetch::{ChainFetch, FetchGoal, FetchProgress};

/// Interval between two messages with steps to one neighbour.
const PACE: Duration = Duration::from_micros(500);
/// Interval between two messages with steps to any neighbours.
const PACE_ALL: Duration = Duration::from_micros(40);
/// Time without requests to a neighbour after it sent a step that the registrar did not sign.
const AGAIN_FORGED: Duration = Duration::from_secs(300);

/// Counters of the exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainStats {
    /// Transfers whose steps were accepted.
    pub taken: u64,
    /// Transfers whose steps were refused.
    pub refused: u64,
    /// Transfers that stalled or took too long.
    pub given_up: u64,
    /// Steps sent.
    pub steps_sent: u64,
}

/// The caller's verdict on arrived steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainOutcome {
    /// The steps count.
    Taken,
    /// The registrar signed the steps, but one has no effect at present.
    Refused,
    /// The steps follow from other steps than this node's.
    Diverged,
    /// The registrar did not sign one of the steps.
    Forged,
}

/// Steps that arrived. Nothing more is requested until [`ChainExchange::settled`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedSteps {
    /// The neighbour that sent the steps.
    pub neighbour: Address,
    pub mandate: MandateId,
    /// Claimed evidence of a fork: two different steps with one number, or one step that differs
    /// from this node's step.
    pub is_fork: bool,
    /// The encoded steps, in the order of their numbers; not checked yet.
    pub steps: Vec<Vec<u8>>,
}

/// Steps requested by a neighbour.
#[derive(Clone, Copy, Debug)]
struct StepTransfer {
    mandate: MandateId,
    next: u64,
    /// True if the second of a fork's two steps is next.
    other: bool,
    last: u64,
}

#[derive(Debug)]
struct ChainPeer {
    neighbour: Address,
    /// The neighbour's newest `have`.
    heard: Option<ChainInventory>,
    words: AnnouncementTimer,
    serving: Option<StepTransfer>,
    /// Earliest time of the next message with steps.
    steps_at: Time,
}

/// A transfer whose verdict the caller has not given yet.
#[derive(Clone, Copy, Debug)]
struct PendingVerdict {
    link: LinkId,
    neighbour: Address,
    mandate: MandateId,
}

/// Exchange of supplements by one node. Each call gets the [`Directory`] with the node's registers.
#[derive(Debug, Default)]
pub struct ChainExchange {
    peers: PeerSchedule<ChainPeer>,
    ledger: PeerLedger,
    /// Earliest time of the next message with steps to any neighbour.
    paced: Time,
    fetch: Option<ChainFetch>,
    arrived: Option<(LinkId, ReceivedSteps)>,
    checking: Option<PendingVerdict>,
    /// Time at which a neighbour that failed may be asked again.
    retry_at: Option<Time>,
    /// True after a neighbour's first `have`.
    heard: bool,
    stats: ChainStats,
}

impl ChainExchange {
    /// An exchange without neighbours.
    pub fn new() -> ChainExchange {
        ChainExchange::default()
    }

    /// Counters since the start.
    pub fn stats(&self) -> ChainStats {
        self.stats
    }

    /// True if a neighbour has sent a `have` since the start and no transfer is pending.
    pub fn has_caught_up(&self) -> bool {
        let idle = self.fetch.is_none() && self.arrived.is_none() && self.checking.is_none();
        self.heard && idle && self.retry_at.is_none()
    }

    /// Handles a change of steps or list: drops a useless transfer and tells every neighbour.
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

    /// Adds a link to a neighbour. Messages on unknown links are refused.
    pub fn link_up(&mut self, now: Time, link: LinkId, neighbour: Address, directory: &Directory) {
        self.link_down(now, link, directory);
        self.peers.insert(link, ChainPeer::new(now, neighbour));
    }

    /// True if the link is up.
    pub fn is_up(&self, link: LinkId) -> bool {
        self.peers.is_up(link)
    }

    /// Removes a link.
    pub fn link_down(&mut self, now: Time, link: LinkId, directory: &Directory) {
        let Some(peer) = self.peers.remove(link) else { return };
        if self.fetch.as_ref().is_some_and(|fetch| fetch.link == link) {
            self.give_up(now, peer.neighbour, directory);
        }
    }

    /// Ends the current transfer as failed.
    fn give_up(&mut self, now: Time, neighbour: Address, directory: &Directory) {
        self.fetch = None;
        self.stats.given_up += 1;
        self.ledger.punish(now, neighbour, Duration::ZERO);
        self.choose(now, directory);
    }

    /// Handles a neighbour's message.
    ///
    /// Errors: the reason why the message is dropped; nothing has changed then. `list_budget` if
    /// the neighbour requests too many steps; `unknown_flow` if the link is not up or the steps
    /// were not requested.
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
                    FetchProgress::More => {}
                    FetchProgress::All(steps) => {
                        let (mandate, is_fork) = (fetch.mandate, fetch.is_of_fork());
                        let arrived = ReceivedSteps { neighbour, mandate, is_fork, steps };
                        (self.fetch, self.arrived) = (None, Some((link, arrived)));
                    }
                    FetchProgress::Useless => self.give_up(now, neighbour, directory),
                }
                Ok(())
            }
        }
    }

    fn hear(&mut self, now: Time, link: LinkId, have: ChainInventory, directory: &Directory) {
        self.heard = true;
        self.peers.change(link, |peer| {
            if have.ask {
                // Answers are rate-limited.
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
            // The requested steps are not available, or no longer.
            self.peers.change(link, |peer| {
                peer.words.answer(now);
            });
            return Ok(());
        };
        if !self.ledger.may_have(now, neighbour, served(register) as u32) {
            return Err(DropReason::ListBudget);
        }
        let last = (first + count - 1).min(served(register));
        let serving = StepTransfer { mandate, next: first, other: false, last };
        self.peers.change(link, |peer| peer.serving = Some(serving));
        Ok(())
    }

    /// Takes the verdict on the steps from [`ChainExchange::poll_arrived`]. If they count, apply
    /// them and call [`ChainExchange::changed`] first.
    pub fn settled(&mut self, now: Time, outcome: ChainOutcome, directory: &Directory) {
        let Some(PendingVerdict { link, neighbour, mandate }) = self.checking.take() else {
            return;
        };
        let len = directory.register(&mandate).map_or(0, Register::len);
        match outcome {
            ChainOutcome::Taken => {
                self.stats.taken += 1;
                self.ledger.forgive(neighbour);
            }
            ChainOutcome::Diverged if len > 0 && self.is_up(link) => {
                let aim = FetchGoal::Search { same: 0, other: len };
                self.fetch = Some(ChainFetch::new(now, (link, mandate), aim));
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

    /// Begins a transfer if none is running and a neighbour has something to offer. The neighbour
    /// with the fewest failures is asked first, then the one with the most steps.
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
                    Some((link, conduct, FetchGoal::of(register, mark)?, mark))
                })
            })
        };
        let first = offers()
            .filter(|(_, conduct, ..)| conduct.not_before <= now)
            .min_by_key(|(_, conduct, _, mark)| (conduct.failures, Reverse(mark.steps)))
            .map(|(link, _, aim, mark)| ChainFetch::new(now, (link, MandateId(mark.mandate)), aim));
        let later = || offers().map(|(_, conduct, ..)| conduct.not_before).min();
        self.retry_at = if first.is_none() { later() } else { None };
        self.fetch = first;
    }

    /// Number of failures of the neighbour at this link.
    fn failures(&self, link: LinkId) -> u32 {
        self.peers.get(link).map_or(0, |peer| self.ledger.conduct(peer.neighbour).failures)
    }

    /// Does what is due at `now`.
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

    /// Time of the next [`ChainExchange::handle_timeout`] or poll.
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

    /// Returns arrived steps. The caller must call [`ChainExchange::settled`].
    pub fn poll_arrived(&mut self) -> Option<ReceivedSteps> {
        let (link, arrived) = self.arrived.take()?;
        let ReceivedSteps { neighbour, mandate, .. } = arrived;
        self.checking = Some(PendingVerdict { link, neighbour, mandate });
        Some(arrived)
    }

    /// The next message to send, and its link.
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
        // Each iteration without a message moves the neighbour's due time past `now`.
        while let Some(link) = self.peers.next_due(now) {
            if let Some(message) = self.speak(now, link, directory) {
                return Some((link, message));
            }
        }
        None
    }

    /// The message due for a neighbour, if it may leave now.
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

impl ChainPeer {
    fn new(now: Time, neighbour: Address) -> ChainPeer {
        ChainPeer {
            neighbour,
            heard: None,
            words: AnnouncementTimer::new(now),
            serving: None,
            steps_at: Time::ZERO,
        }
    }

    /// True if the neighbour is known to have all steps that count at this node.
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

    /// The `have` for a neighbour; `None` if the list has no mandates.
    fn say(&mut self, now: Time, directory: &Directory) -> Option<ChainMessage> {
        let chains: Vec<ChainMark> = directory.registers().map(mark_of).collect();
        if chains.is_empty() {
            self.words.end();
            return None;
        }
        let ask = !self.has_all(directory);
        self.words.say(now, ask);
        Some(ChainMessage::Have(ChainInventory { ask, chains }))
    }
}

impl peers::ExchangePeer for ChainPeer {
    fn due(&self) -> Option<Time> {
        let steps = self.serving.map(|_| self.steps_at);
        [self.words.due(), steps].into_iter().flatten().min()
    }
}

impl StepTransfer {
    /// The next steps, as many as fit in one message. The number of a fork has two steps.
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

/// The highest step number that this node can send.
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
