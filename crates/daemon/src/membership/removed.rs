//! Memberships that ended before their time: the former members that this router tells, and what
//! this node knows of its own removal.
//!
//! Only a signature of the registrar or the authority proves a removal. A neighbour's word is a
//! hint for people: the node keeps its links, keys and files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::SignedDuration;
use jiff::civil::Date;
use shoal_crypto::PublicKey;
use shoal_directory::{Directory, Freshness, List, Register};
use shoal_relay::LinkView;
use shoal_session::{FormerKeys, FormerPeer};
use shoal_wire::{Removal, RemovalReason, Time};

use crate::control::api::{AuthorityStatus, RemovedStatus};
use crate::membership::authority::{AuthorityState, unix_s};
use crate::worker::first::{FirstWorker, WorkerParts};

const DAY_S: u64 = 86_400;
const EPOCH: Date = Date::constant(1970, 1, 1);
/// Most vanished members that are remembered; the last ones.
const GONE_MAX: usize = 4_096;
/// Advice for a member whose membership has ended.
const AGAIN: &str = "`shoal up INVITE`, with a new invite, joins anew (a router by invite runs \
                     `shoal leave --force` before, and adds --endpoint IP); without a registrar, \
                     have the authority sign another key";

/// Members that vanished from the list and its mandates while this process ran. Most of them have
/// no signed proof of their removal: the authority removed them, or a whole mandate.
#[derive(Debug, Default)]
pub struct RemovalLog {
    /// Members at the last look, and the ends of their memberships in seconds since 1970.
    listed: BTreeMap<PublicKey, u64>,
    /// Version of the list at the last look.
    version: u64,
    gone: Vec<FormerPeer>,
}

fn day_of(unix_s: u64) -> u32 {
    u32::try_from(unix_s / DAY_S).unwrap_or(u32::MAX)
}

/// The removal that a list makes.
fn by_list(list: &List) -> Removal {
    let day = day_of(list.content().issued_unix_s);
    Removal { reason: RemovalReason::Authority, day }
}

/// The removal that a registrar's step of this time makes.
fn by_step(unix_s: u64) -> Removal {
    Removal { reason: RemovalReason::Registrar, day: day_of(unix_s) }
}

impl RemovalLog {
    /// Notes the members that have vanished since the last look.
    fn look(&mut self, directory: &Directory, at_unix_s: u64) {
        let Some(list) = directory.list() else { return };
        let members = directory.listed();
        let listed: BTreeMap<_, _> = members.map(|m| (m.key, m.expires_unix_s)).collect();
        let same = self.version == list.content().version;
        let removal = if same { by_step(at_unix_s) } else { by_list(list) };
        // The owner of an expired membership knows its end.
        let ends = |(key, end): &(PublicKey, u64)| *end > at_unix_s && !listed.contains_key(key);
        let before = std::mem::take(&mut self.listed);
        self.gone.retain(|peer| !listed.contains_key(&peer.key));
        let gone = before.into_iter().filter(ends).map(|(key, _)| FormerPeer { key, removal });
        self.gone.extend(gone);
        self.gone.drain(..self.gone.len().saturating_sub(GONE_MAX));
        (self.listed, self.version) = (listed, list.content().version);
    }

    /// All former members: those that the list or a registrar's step removed, and those that have
    /// vanished.
    fn former(&self, directory: &Directory) -> FormerKeys {
        let Some(list) = directory.list() else { return FormerKeys::default() };
        let removed = directory.registers().flat_map(Register::removed);
        let removed = removed.map(|(key, unix_s)| (*key, by_step(unix_s)));
        let has_revoked = !list.content().revoked.is_empty();
        let holders = directory.registers().filter(|_| has_revoked).flat_map(Register::members);
        let revoked = holders.filter(|member| list.content().is_revoked(&member.key));
        let revoked = revoked.map(|member| (member.key, by_list(list)));
        let mut all: BTreeMap<PublicKey, Removal> = revoked.chain(removed).collect();
        for peer in &self.gone {
            all.entry(peer.key).or_insert(peer.removal);
        }
        // Handshakes prove only the first half of a key.
        let halves: BTreeSet<[u8; 32]> = self.listed.keys().map(|key| key.dh).collect();
        let former = all.into_iter().filter(|(key, _)| !halves.contains(&key.dh));
        FormerKeys::new(former.map(|(key, removal)| FormerPeer { key, removal }))
    }
}

impl AuthorityState {
    /// The former members that this router tells of their removal: none while its own membership is
    /// not in force.
    fn former(&mut self, now: Time) -> FormerKeys {
        let at = unix_s() + self.directory.behind_s(now, unix_s());
        self.removals.look(&self.directory, at);
        let is_fresh = self.directory.standing(now, unix_s()) == Freshness::Fresh;
        match is_fresh && self.is_member(now) {
            true => self.removals.former(&self.directory),
            false => FormerKeys::default(),
        }
    }

    /// The removal of this node's key, if the registrar or the authority signed one that this node
    /// has.
    pub fn own_removal(&self) -> Option<Removal> {
        let key = &self.me.key;
        let list = self.directory.list()?;
        if self.directory.listed().any(|member| member.key == *key) {
            return None;
        }
        let mut steps = self.directory.registers().filter_map(|register| register.removed_at(key));
        let revoked = || list.content().is_revoked(key).then(|| by_list(list));
        steps.next().map(by_step).or_else(revoked)
    }

    /// True if a member with another key has this node's name and address: `shoal rekey` replaced
    /// the key, or the machine joined again.
    pub(super) fn is_replaced(&self) -> bool {
        let mut listed = self.directory.listed();
        listed.any(|member| member.name == self.me.name && member.address == self.me.address)
    }

    /// Words for this node's own removal.
    pub fn removal_words(&self, removal: Removal) -> String {
        let ended = ended(removal);
        match self.is_replaced() {
            true => format!(
                "this node's key {ended}, and its name has another key now: if `shoal rekey` ran \
                 here, restart the node; else {AGAIN}"
            ),
            false => format!("this machine {ended}: {AGAIN}"),
        }
    }
}

/// "was removed from the network on 2026-11-28", or by the authority's list.
fn ended(removal: Removal) -> String {
    let on = date(removal.day).map_or(String::new(), |date| format!(" on {date}"));
    match removal.reason {
        RemovalReason::Registrar => format!("was removed from the network{on}"),
        RemovalReason::Authority => format!("was removed from the authority's list{on}"),
    }
}

/// Words for a removal that a neighbour tells of.
pub fn told_words(neighbour: &str, removal: Removal) -> String {
    let ended = ended(removal);
    format!("{neighbour} says that this machine {ended}: {AGAIN}")
}

/// Year, month and day of a day since 1970; none beyond the year 9999.
fn date(day: u32) -> Option<Date> {
    let since = SignedDuration::from_secs(i64::from(day) * DAY_S.cast_signed());
    EPOCH.checked_add(since).ok()
}

/// True if a neighbour's word about a removal tells nothing new: this node has the signed one.
pub fn is_proved(parts: &WorkerParts) -> bool {
    parts.authority.as_ref().is_some_and(|authority| authority.own_removal().is_some())
}

fn status(removal: Removal, said_by: Option<String>) -> RemovedStatus {
    let by = match removal.reason {
        RemovalReason::Registrar => "registrar",
        RemovalReason::Authority => "authority",
    };
    let on = date(removal.day).map(|date| date.to_string());
    RemovedStatus { by: by.into(), on, said_by }
}

/// State of the authority's list, with this node's own removal: by a signature, or else by the word
/// of a neighbour.
pub fn authority_status(parts: &WorkerParts, now: Time) -> Option<AuthorityStatus> {
    let authority = parts.authority.as_ref()?;
    let told = |link: LinkView| {
        let (_, removal) = link.notices.removed?;
        Some(status(removal, Some(parts.names.link(link.link))))
    };
    let own = authority.own_removal().map(|removal| status(removal, None));
    let removed = own.or_else(|| parts.node.relay.links().find_map(told));
    Some(AuthorityStatus { removed, ..authority.status(now) })
}

impl FirstWorker {
    /// Applies the former members that this node tells. A router whose addresses shift tells
    /// nobody: it would show who asks that something answers there.
    pub(crate) fn apply_former(&mut self, now: Time) {
        let WorkerParts { authority, config, node, .. } = &mut self.parts;
        let Some(authority) = authority else { return };
        let former = match config.is_router() && config.shift.is_none() {
            true => authority.former(now),
            false => FormerKeys::default(),
        };
        node.relay.set_former(Arc::new(former));
    }
}

#[cfg(test)]
mod tests;
