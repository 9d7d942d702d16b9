//! Passing the newest list on from neighbour to neighbour (docs/authority.md section 5).
//!
//! ```text
//! A, newer:  have(7) -->            part, part, part -->
//! B, older:              <-- want                        <-- have(7), once it is in force
//! ```
//!
//! Whoever has a list says so when a link comes up and when the list changes, and again until the
//! neighbour has it too. Whoever hears of a newer one asks for it, part by part, from one neighbour
//! at a time. What has arrived whole is given to the caller, who checks the authority's signature;
//! only what the caller gives back by [`Exchange::set_list`] is passed on.
//!
//! Invariant: this machine believes nothing that a neighbour says. A false word costs one transfer,
//! whose memory grows only with bytes that came.

use core::cmp::Reverse;
use core::time::Duration;
use std::sync::Arc;

use shoal_wire::{Address, DropReason, LIST_PART_LEN, LinkId, ListHave, ListMessage, Time};

use crate::Mark;
use crate::fetch::{Fetch, parts_of};
use crate::ledger::{Conduct, Ledger};
use crate::peers::{self, Peers, Words};

/// Between two parts for one neighbour: 23 Mbit/s.
const PACE: Duration = Duration::from_micros(500);
/// Between two parts for any neighbours: 290 Mbit/s.
const PACE_ALL: Duration = Duration::from_micros(40);
/// Parts that may leave at once after a pause, so that not each of them wakes the node.
const BURST: u32 = 8;
/// As [`BURST`], for all neighbours together.
const BURST_ALL: u32 = 128;
/// Time for which a neighbour is not asked after a list that the authority did not sign.
const AGAIN_FORGED: Duration = Duration::from_secs(300);

/// What the machine counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExchangeStats {
    /// Lists that arrived whole and were put in force.
    pub taken: u64,
    /// Lists that arrived whole and were refused.
    pub refused: u64,
    /// Transfers that stood still, or gave way to another neighbour's.
    pub given_up: u64,
    /// Parts sent.
    pub parts_sent: u64,
    /// Parts received that were asked for.
    pub parts_received: u64,
    /// Messages of neighbours about another list that has the version of ours.
    pub twins: u64,
}

/// What became of a list that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is in force.
    Taken,
    /// The authority signed it, but it has no effect (now).
    Refused,
    /// It is no list of the authority's.
    Forged,
}

/// A list that arrived whole. Nothing else is asked for until [`Exchange::settled`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// From whom.
    pub neighbour: Address,
    /// Its bytes; nothing about them is known.
    pub bytes: Vec<u8>,
}

/// Parts that a neighbour asked for.
#[derive(Clone, Copy, Debug)]
struct Serving {
    first: u32,
    bits: u64,
}

#[derive(Debug)]
struct Peer {
    neighbour: Address,
    /// Its newest `have`.
    heard: Option<ListHave>,
    words: Words,
    serving: Option<Serving>,
    /// When the next part may leave.
    part_at: Time,
}

/// One node's part in passing lists on.
#[derive(Debug, Default)]
pub struct Exchange {
    own: Option<(Mark, Arc<[u8]>)>,
    peers: Peers<Peer>,
    ledger: Ledger,
    /// When the next part may leave to anybody.
    paced: Time,
    fetch: Option<Fetch>,
    /// Whole, and not given to the caller yet.
    arrived: Option<Arrived>,
    /// Given to the caller, who has not said yet what it is.
    checking: Option<Address>,
    /// When a neighbour that failed may be asked again.
    retry_at: Option<Time>,
    stats: ExchangeStats,
}

impl Peer {
    fn new(now: Time, neighbour: Address) -> Peer {
        Peer { neighbour, heard: None, words: Words::new(now), serving: None, part_at: Time::ZERO }
    }

    /// Whether it is known to have version `ours` or a newer one.
    fn has(&self, ours: u64) -> bool {
        self.heard.is_some_and(|heard| heard.version >= ours)
    }
}

impl peers::Peer for Peer {
    fn due(&self) -> Option<Time> {
        let parts = self.serving.map(|Serving { bits, .. }| {
            self.part_at + PACE * bits.count_ones().min(BURST).saturating_sub(1)
        });
        [self.words.due(), parts].into_iter().flatten().min()
    }
}

impl Exchange {
    /// Without a list and without neighbours.
    pub fn new() -> Exchange {
        Exchange::default()
    }

    /// What happened since the start.
    pub fn stats(&self) -> ExchangeStats {
        self.stats
    }

    fn version(&self) -> u64 {
        self.own.as_ref().map_or(0, |(mark, _)| mark.version)
    }

    /// The list in force is this one, signed by the authority: every neighbour is told.
    pub fn set_list(&mut self, now: Time, mark: Mark, bytes: Arc<[u8]>) {
        self.own = Some((mark, bytes));
        self.ledger.begin_list();
        if self.fetch.as_ref().is_some_and(|fetch| fetch.of.version <= mark.version) {
            self.fetch = None;
        }
        for link in self.peers.links() {
            self.peers.change(link, |peer| {
                peer.words.begin(Some(now));
                peer.serving = None;
            });
        }
        self.choose(now);
    }

    /// The neighbour with this address hears us. Messages of links that are not up have no effect.
    pub fn link_up(&mut self, now: Time, link: LinkId, neighbour: Address) {
        self.link_down(now, link);
        self.peers.insert(link, Peer::new(now, neighbour));
    }

    /// Whether a link is up.
    pub fn is_up(&self, link: LinkId) -> bool {
        self.peers.is_up(link)
    }

    /// A neighbour is lost.
    pub fn link_down(&mut self, now: Time, link: LinkId) {
        let Some(peer) = self.peers.remove(link) else { return };
        if self.fetch.as_ref().is_some_and(|fetch| fetch.link == link) {
            self.give_up(now, peer.neighbour);
        }
    }

    /// The transfer that goes on has failed.
    fn give_up(&mut self, now: Time, neighbour: Address) {
        self.fetch = None;
        self.stats.given_up += 1;
        self.ledger.punish(now, neighbour, Duration::ZERO);
        self.choose(now);
    }

    /// Takes in a message of a neighbour.
    ///
    /// Errors: why it has no effect; nothing has changed then. `list_budget` to one who asks for
    /// the list again and again, `unknown_flow` where the link is not up.
    pub fn handle_message(
        &mut self,
        now: Time,
        link: LinkId,
        message: ListMessage,
    ) -> Result<(), DropReason> {
        let neighbour = self.peers.get(link).ok_or(DropReason::UnknownFlow)?.neighbour;
        match message {
            ListMessage::Have(have) => {
                self.hear(now, link, have);
                Ok(())
            }
            ListMessage::Want { version, first, bits } => {
                self.serve(now, (link, neighbour), version, first, bits)
            }
            ListMessage::Part { version, number, bytes } => {
                self.take_part(now, (link, neighbour), version, number, &bytes)
            }
        }
    }

    fn hear(&mut self, now: Time, link: LinkId, have: ListHave) {
        let (ours, digest) =
            self.own.as_ref().map_or((0, [0; 32]), |(mark, _)| (mark.version, mark.digest));
        self.stats.twins += u64::from(have.version == ours && have.digest != digest);
        self.peers.change(link, |peer| {
            peer.heard = Some(have);
            if have.ask {
                // Answers are spaced out, whatever it asks.
                peer.words.answer(now);
            } else if have.version >= ours && peer.words.have_begun() {
                peer.words.end();
            }
        });
        if let Some(fetch) = &mut self.fetch
            && fetch.link == link
            && fetch.is_of_another(&have)
        {
            // Another list begins anew, but within the time of the one before.
            let began = fetch.began;
            self.fetch = (have.version > ours).then(|| Fetch::new(now, link, have));
            if let Some(fetch) = &mut self.fetch {
                fetch.began = began;
            }
        }
        self.choose(now);
    }

    fn serve(
        &mut self,
        now: Time,
        (link, neighbour): (LinkId, Address),
        version: u64,
        first: u32,
        bits: u64,
    ) -> Result<(), DropReason> {
        let (ours, count) =
            self.own.as_ref().map_or((0, 0), |(mark, bytes)| (mark.version, parts_of(bytes.len())));
        if version != ours || count == 0 {
            // It asks for a list that is not ours, or not any more.
            self.peers.change(link, |peer| {
                peer.words.answer(now);
            });
            return Ok(());
        }
        let within = count.checked_sub(first).filter(|left| *left > 0);
        let within = within.ok_or(DropReason::Malformed)?;
        let bits = if within < u64::BITS { bits & ((1 << within) - 1) } else { bits };
        if bits == 0 {
            return Err(DropReason::Malformed);
        }
        if !self.ledger.may_have(now, neighbour, count) {
            return Err(DropReason::ListBudget);
        }
        self.peers.change(link, |peer| peer.serving = Some(Serving { first, bits }));
        Ok(())
    }

    fn take_part(
        &mut self,
        now: Time,
        (link, neighbour): (LinkId, Address),
        version: u64,
        number: u32,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        let fetch = self.fetch.as_mut();
        let fetch = fetch.filter(|fetch| fetch.link == link && fetch.of.version == version);
        let fetch = fetch.ok_or(DropReason::UnknownFlow)?;
        fetch.take(now, number, bytes)?;
        self.stats.parts_received += 1;
        if fetch.is_whole()
            && let Some(fetch) = self.fetch.take()
        {
            self.arrived = Some(Arrived { neighbour, bytes: fetch.into_bytes() });
        }
        Ok(())
    }

    /// Says what the list was that [`Exchange::poll_arrived`] gave. One that counts is to be given
    /// to [`Exchange::set_list`] first.
    pub fn settled(&mut self, now: Time, outcome: Outcome) {
        let Some(neighbour) = self.checking.take() else { return };
        match outcome {
            Outcome::Taken => {
                self.stats.taken += 1;
                self.ledger.forgive(neighbour);
            }
            Outcome::Refused | Outcome::Forged => {
                self.stats.refused += 1;
                let forged = outcome == Outcome::Forged;
                let least = if forged { AGAIN_FORGED } else { Duration::ZERO };
                self.ledger.punish(now, neighbour, least);
            }
        }
        self.choose(now);
    }

    /// The neighbour to be asked: of those who say they have a newer list the one that failed
    /// least, then the one with the newest. Also when another may be asked.
    fn candidate(
        &self,
        now: Time,
        but: Option<LinkId>,
    ) -> (Option<(LinkId, ListHave)>, Option<Time>) {
        let ours = self.version();
        let newer = || {
            let others = self.peers.iter().filter(|(link, _)| Some(*link) != but);
            others.filter_map(|(link, peer)| {
                let heard = peer.heard.filter(|heard| heard.version > ours)?;
                Some((link, self.ledger.conduct(peer.neighbour), heard))
            })
        };
        let may = |(_, conduct, _): &(LinkId, Conduct, ListHave)| conduct.not_before <= now;
        let first = newer()
            .filter(may)
            .min_by_key(|(_, conduct, heard)| (conduct.failures, Reverse(heard.version)));
        let later =
            newer().filter(|newer| !may(newer)).map(|(_, conduct, _)| conduct.not_before).min();
        (first.map(|(link, _, heard)| (link, heard)), later)
    }

    /// How often the neighbour failed that a link leads to.
    fn failures(&self, link: LinkId) -> u32 {
        self.peers.get(link).map_or(0, |peer| self.ledger.conduct(peer.neighbour).failures)
    }

    /// Begins a transfer, if none goes on and there is one to begin.
    fn choose(&mut self, now: Time) {
        if self.fetch.is_some() || self.arrived.is_some() || self.checking.is_some() {
            self.retry_at = None;
            return;
        }
        let (found, later) = self.candidate(now, None);
        self.retry_at = later.filter(|_| found.is_none());
        self.fetch = found.map(|(link, have)| Fetch::new(now, link, have));
    }

    /// Does what time asks for.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.choose(now);
        }
        let Some(fetch) = &self.fetch else { return };
        let link = fetch.link;
        let stands_still = fetch.stands_still(now);
        if !stands_still {
            if !fetch.is_slow(now, self.failures(link)) {
                return;
            }
            if self.candidate(now, Some(link)).0.is_none() {
                // Nobody else has it, so this neighbour gets its whole time again.
                if let Some(fetch) = &mut self.fetch {
                    fetch.began = now;
                }
                return;
            }
        }
        if let Some(neighbour) = self.peers.get(link).map(|peer| peer.neighbour) {
            self.give_up(now, neighbour);
        }
    }

    /// When [`Exchange::handle_timeout`] or a poll has something to do, and why.
    pub fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        let fetch = self.fetch.as_ref().map(|fetch| fetch.due(self.failures(fetch.link)));
        [
            self.arrived.as_ref().map(|_| (Time::ZERO, "list arrived")),
            self.peers.first_due().map(|at| (at, "word or part of the list due")),
            self.retry_at.map(|at| (at, "neighbour may be asked again")),
            fetch,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Takes a list that arrived whole; the caller owes [`Exchange::settled`].
    pub fn poll_arrived(&mut self) -> Option<Arrived> {
        let arrived = self.arrived.take()?;
        self.checking = Some(arrived.neighbour);
        Some(arrived)
    }

    /// The next message to send, and to whom.
    pub fn poll_transmit(&mut self, now: Time) -> Option<(LinkId, ListMessage)> {
        if let Some(fetch) = &mut self.fetch
            && let Some(message) = fetch.ask(now)
        {
            return Some((fetch.link, message));
        }
        // Each turn without a message moves a neighbour behind `now`.
        while let Some(link) = self.peers.next_due(now) {
            if let Some(message) = self.speak(now, link) {
                return Some((link, message));
            }
        }
        None
    }

    /// What is due for a neighbour, if it may leave now.
    fn speak(&mut self, now: Time, link: LinkId) -> Option<ListMessage> {
        let (own, paced) = (self.own.clone(), self.paced);
        let (mark, bytes) = own.unzip();
        let neighbour = self.peers.get(link).map(|peer| peer.neighbour);
        let sent = self.peers.change(link, |peer| {
            if peer.words.is_due(now) {
                return Some(peer.say(now, mark, bytes.as_deref().unwrap_or_default()));
            }
            let serving = peer.serving.as_mut()?;
            if peer.part_at > now || paced > now {
                peer.part_at = peer.part_at.max(paced);
                return None;
            }
            let offset = serving.bits.trailing_zeros();
            let number = serving.first + offset;
            serving.bits &= serving.bits - 1;
            // A pause lets a few leave at once, and no more.
            peer.part_at = peer.part_at.max(now - PACE * BURST) + PACE;
            if serving.bits == 0 {
                peer.serving = None;
            }
            let whole = bytes.as_deref().unwrap_or_default();
            let from = (number as usize * LIST_PART_LEN).min(whole.len());
            let until = (from + LIST_PART_LEN).min(whole.len());
            let version = mark.map_or(0, |mark| mark.version);
            Some(ListMessage::Part { version, number, bytes: whole[from..until].to_vec() })
        });
        let message = sent.flatten()?;
        if matches!(message, ListMessage::Part { .. }) {
            self.stats.parts_sent += 1;
            if let Some(neighbour) = neighbour {
                self.ledger.spend(now, neighbour);
            }
            self.paced = self.paced.max(now - PACE_ALL * BURST_ALL) + PACE_ALL;
        }
        Some(message)
    }
}

impl Peer {
    fn say(&mut self, now: Time, mark: Option<Mark>, bytes: &[u8]) -> ListMessage {
        let ours = mark.map_or(0, |mark| mark.version);
        let ask = !self.has(ours);
        self.words.say(now, ask);
        ListMessage::Have(mark.map_or(ListHave { ask, ..ListHave::default() }, |mark| ListHave {
            ask,
            version: mark.version,
            digest: mark.digest,
            len: bytes.len() as u32,
        }))
    }
}
