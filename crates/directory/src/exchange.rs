//! Exchange of the newest list between neighbours (docs/design/membership.md).
//!
//! ```text
//! A, newer:  have(7) -->            part, part, part -->
//! B, older:              <-- want                        <-- have(7), once it is in force
//! ```
//!
//! A node announces its list when a link comes up and when the list changes, and repeats that until
//! the neighbour has the list. A neighbour with an older list requests it, part by part, from one
//! neighbour at a time. The caller gets a complete list and checks the authority's signature. Only
//! lists set by [`ListExchange::set_list`] are sent on.
//!
//! Invariant: neighbours' claims are not trusted. A false claim costs one transfer, whose memory
//! grows only with received bytes.

use core::cmp::Reverse;
use core::time::Duration;
use std::sync::Arc;

use shoal_wire::{Address, DropReason, LIST_PART_LEN, LinkId, ListInventory, ListMessage, Time};

use crate::ListMark;
use crate::fetch::{ListFetch, parts_of};
use crate::ledger::{PeerLedger, TransferRecord};
use crate::peers::{self, AnnouncementTimer, PeerSchedule};

/// Interval between two parts to one neighbour: 23 Mbit/s.
const PACE: Duration = Duration::from_micros(500);
/// Interval between two parts to any neighbours: 290 Mbit/s.
const PACE_ALL: Duration = Duration::from_micros(40);
/// Burst of parts after a pause, so that the node need not wake for each part.
const BURST: u32 = 8;
/// Like [`BURST`], for all neighbours together.
const BURST_ALL: u32 = 128;
/// Time without requests to a neighbour after it sent a list that the authority did not sign.
const AGAIN_FORGED: Duration = Duration::from_secs(300);

/// Counters of the exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExchangeStats {
    /// Complete lists that were put in force.
    pub taken: u64,
    /// Complete lists that were refused.
    pub refused: u64,
    /// Transfers that stalled, or were abandoned for another neighbour.
    pub given_up: u64,
    /// Parts sent.
    pub parts_sent: u64,
    /// Requested parts received.
    pub parts_received: u64,
    /// Announcements of a different list with the version of this node's list.
    pub twins: u64,
}

/// The caller's verdict on an arrived list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListVerdict {
    /// The list is in force.
    Taken,
    /// The authority signed the list, but it has no effect at present.
    Refused,
    /// The bytes are no list signed by the authority.
    Forged,
}

/// A list that arrived. Nothing more is requested until [`ListExchange::settled`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedList {
    /// The neighbour that sent the list.
    pub neighbour: Address,
    /// The list's bytes, not checked yet.
    pub bytes: Vec<u8>,
}

/// Parts requested by a neighbour.
#[derive(Clone, Copy, Debug)]
struct PartTransfer {
    first: u32,
    bits: u64,
}

#[derive(Debug)]
struct ListPeer {
    neighbour: Address,
    /// The neighbour's newest `have`.
    heard: Option<ListInventory>,
    words: AnnouncementTimer,
    serving: Option<PartTransfer>,
    /// Earliest time of the next part.
    part_at: Time,
}

/// Exchange of lists by one node.
#[derive(Debug, Default)]
pub struct ListExchange {
    own: Option<(ListMark, Arc<[u8]>)>,
    peers: PeerSchedule<ListPeer>,
    ledger: PeerLedger,
    /// Earliest time of the next part to any neighbour.
    paced: Time,
    fetch: Option<ListFetch>,
    /// A complete list that the caller has not taken yet.
    arrived: Option<ReceivedList>,
    /// The sender of the list that the caller is checking.
    checking: Option<Address>,
    /// Time at which a neighbour that failed may be asked again.
    retry_at: Option<Time>,
    stats: ExchangeStats,
}

impl ListPeer {
    fn new(now: Time, neighbour: Address) -> ListPeer {
        ListPeer {
            neighbour,
            heard: None,
            words: AnnouncementTimer::new(now),
            serving: None,
            part_at: Time::ZERO,
        }
    }

    /// True if the neighbour is known to have version `ours` or a newer one.
    fn has(&self, ours: u64) -> bool {
        self.heard.is_some_and(|heard| heard.version >= ours)
    }
}

impl peers::ExchangePeer for ListPeer {
    fn due(&self) -> Option<Time> {
        let parts = self.serving.map(|PartTransfer { bits, .. }| {
            self.part_at + PACE * bits.count_ones().min(BURST).saturating_sub(1)
        });
        [self.words.due(), parts].into_iter().flatten().min()
    }
}

impl ListExchange {
    /// An exchange without a list and without neighbours.
    pub fn new() -> ListExchange {
        ListExchange::default()
    }

    /// Counters since the start.
    pub fn stats(&self) -> ExchangeStats {
        self.stats
    }

    fn version(&self) -> u64 {
        self.own.as_ref().map_or(0, |(mark, _)| mark.version)
    }

    /// Sets the list in force, whose signature was checked, and tells every neighbour.
    pub fn set_list(&mut self, now: Time, mark: ListMark, bytes: Arc<[u8]>) {
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

    /// Adds a link to a neighbour. Messages on unknown links are refused.
    pub fn link_up(&mut self, now: Time, link: LinkId, neighbour: Address) {
        self.link_down(now, link);
        self.peers.insert(link, ListPeer::new(now, neighbour));
    }

    /// True if the link is up.
    pub fn is_up(&self, link: LinkId) -> bool {
        self.peers.is_up(link)
    }

    /// Removes a link.
    pub fn link_down(&mut self, now: Time, link: LinkId) {
        let Some(peer) = self.peers.remove(link) else { return };
        if self.fetch.as_ref().is_some_and(|fetch| fetch.link == link) {
            self.give_up(now, peer.neighbour);
        }
    }

    /// Ends the current transfer as failed.
    fn give_up(&mut self, now: Time, neighbour: Address) {
        self.fetch = None;
        self.stats.given_up += 1;
        self.ledger.punish(now, neighbour, Duration::ZERO);
        self.choose(now);
    }

    /// Handles a neighbour's message.
    ///
    /// Errors: the reason why the message is dropped; nothing has changed then. `list_budget` if
    /// the neighbour requests the list too often; `unknown_flow` if the link is not up.
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

    fn hear(&mut self, now: Time, link: LinkId, have: ListInventory) {
        let (ours, digest) =
            self.own.as_ref().map_or((0, [0; 32]), |(mark, _)| (mark.version, mark.digest));
        self.stats.twins += u64::from(have.version == ours && have.digest != digest);
        self.peers.change(link, |peer| {
            peer.heard = Some(have);
            if have.ask {
                // Answers are rate-limited.
                peer.words.answer(now);
            } else if have.version >= ours && peer.words.have_begun() {
                peer.words.end();
            }
        });
        if let Some(fetch) = &mut self.fetch
            && fetch.link == link
            && fetch.is_of_another(&have)
        {
            // A transfer of another list begins, within the time of the former one.
            let began = fetch.began;
            self.fetch = (have.version > ours).then(|| ListFetch::new(now, link, have));
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
            // The requested list is not this node's list, or no longer.
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
        self.peers.change(link, |peer| peer.serving = Some(PartTransfer { first, bits }));
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
            self.arrived = Some(ReceivedList { neighbour, bytes: fetch.into_bytes() });
        }
        Ok(())
    }

    /// Takes the verdict on the list from [`ListExchange::poll_arrived`]. If the list counts, call
    /// [`ListExchange::set_list`] first.
    pub fn settled(&mut self, now: Time, outcome: ListVerdict) {
        let Some(neighbour) = self.checking.take() else { return };
        match outcome {
            ListVerdict::Taken => {
                self.stats.taken += 1;
                self.ledger.forgive(neighbour);
            }
            ListVerdict::Refused | ListVerdict::Forged => {
                self.stats.refused += 1;
                let forged = outcome == ListVerdict::Forged;
                let least = if forged { AGAIN_FORGED } else { Duration::ZERO };
                self.ledger.punish(now, neighbour, least);
            }
        }
        self.choose(now);
    }

    /// The neighbour to ask for a newer list: the one with the fewest failures, then the one with
    /// the newest list. Also returns when another neighbour may be asked.
    fn candidate(
        &self,
        now: Time,
        but: Option<LinkId>,
    ) -> (Option<(LinkId, ListInventory)>, Option<Time>) {
        let ours = self.version();
        let newer = || {
            let others = self.peers.iter().filter(|(link, _)| Some(*link) != but);
            others.filter_map(|(link, peer)| {
                let heard = peer.heard.filter(|heard| heard.version > ours)?;
                Some((link, self.ledger.conduct(peer.neighbour), heard))
            })
        };
        let may =
            |(_, conduct, _): &(LinkId, TransferRecord, ListInventory)| conduct.not_before <= now;
        let first = newer()
            .filter(may)
            .min_by_key(|(_, conduct, heard)| (conduct.failures, Reverse(heard.version)));
        let later =
            newer().filter(|newer| !may(newer)).map(|(_, conduct, _)| conduct.not_before).min();
        (first.map(|(link, _, heard)| (link, heard)), later)
    }

    /// Number of failures of the neighbour at this link.
    fn failures(&self, link: LinkId) -> u32 {
        self.peers.get(link).map_or(0, |peer| self.ledger.conduct(peer.neighbour).failures)
    }

    /// Begins a transfer if none is running and a neighbour has a newer list.
    fn choose(&mut self, now: Time) {
        if self.fetch.is_some() || self.arrived.is_some() || self.checking.is_some() {
            self.retry_at = None;
            return;
        }
        let (found, later) = self.candidate(now, None);
        self.retry_at = later.filter(|_| found.is_none());
        self.fetch = found.map(|(link, have)| ListFetch::new(now, link, have));
    }

    /// Does what is due at `now`.
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
                // No other neighbour has a newer list, so the time limit begins anew.
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

    /// Time and reason of the next [`ListExchange::handle_timeout`] or poll.
    pub fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        let fetch = self.fetch.as_ref().map(|fetch| fetch.due(self.failures(fetch.link)));
        [
            self.arrived.as_ref().map(|_| (Time::ZERO, "list arrived")),
            self.peers.first_due().map(|at| (at, "announcement or part of a list due")),
            self.retry_at.map(|at| (at, "neighbour may be asked again")),
            fetch,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Returns an arrived list. The caller must call [`ListExchange::settled`].
    pub fn poll_arrived(&mut self) -> Option<ReceivedList> {
        let arrived = self.arrived.take()?;
        self.checking = Some(arrived.neighbour);
        Some(arrived)
    }

    /// The next message to send, and its link.
    pub fn poll_transmit(&mut self, now: Time) -> Option<(LinkId, ListMessage)> {
        if let Some(fetch) = &mut self.fetch
            && let Some(message) = fetch.ask(now)
        {
            return Some((fetch.link, message));
        }
        // Each iteration without a message moves the neighbour's due time past `now`.
        while let Some(link) = self.peers.next_due(now) {
            if let Some(message) = self.speak(now, link) {
                return Some((link, message));
            }
        }
        None
    }

    /// The message due for a neighbour, if it may leave now.
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
            // A pause allows a burst of at most `BURST` parts.
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

impl ListPeer {
    fn say(&mut self, now: Time, mark: Option<ListMark>, bytes: &[u8]) -> ListMessage {
        let ours = mark.map_or(0, |mark| mark.version);
        let ask = !self.has(ours);
        self.words.say(now, ask);
        ListMessage::Have(mark.map_or(ListInventory { ask, ..ListInventory::default() }, |mark| {
            ListInventory {
                ask,
                version: mark.version,
                digest: mark.digest,
                len: bytes.len() as u32,
            }
        }))
    }
}
