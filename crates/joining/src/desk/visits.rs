//! Present visits: handshakes that the registrar has answered.

use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shoal_crypto::PublicKey;
use shoal_directory::Supplement;
use shoal_session::outer::Lead;
use shoal_wire::{DropReason, Time};

use crate::frame::{Channel, is_sealed_len};
use crate::messages::{NameRequest, RouterRequest};
use crate::tokens::TokenHash;

use super::registrars::RegistrarWish;
use super::routers::ReachProof;
use super::sources::{SourcePrefix, most_frequent};

/// Maximum number of visits.
const VISITS_MAX: usize = 4_096;
/// Visits reserved for members, out of [`VISITS_MAX`].
const FOR_MEMBERS: usize = 512;
/// Maximum number of visits from one address and port. The keys of all of them are tried on each
/// frame.
const VISITS_FROM: usize = 4;
/// Maximum number of visits per member.
const OF_MEMBER: usize = 4;
/// A visit without progress for this long ends. The check runs when somebody knocks, at most every
/// [`LOOK`].
const IDLE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_secs(10);
/// Times that a welcome is repeated, at most every [`REPEAT_EVERY`].
const REPEATS: u8 = 8;
const REPEAT_EVERY: Duration = Duration::from_millis(200);

pub(super) type VisitId = u64;

/// The registrar's supplements, as visitors get them: each preceded by its length (2 bytes).
#[derive(Default)]
pub(super) struct EncodedChain {
    bytes: Vec<u8>,
    /// Number of times that the chain changed other than by growing.
    cuts: u64,
}

impl EncodedChain {
    /// Adds the next supplement.
    pub(super) fn push(&mut self, step: &Supplement) {
        self.bytes.extend_from_slice(&(step.bytes().len() as u16).to_be_bytes());
        self.bytes.extend_from_slice(step.bytes());
    }

    /// Replaces the chain.
    pub(super) fn set(&mut self, steps: &[Supplement]) {
        let before = core::mem::take(&mut self.bytes);
        steps.iter().for_each(|step| self.push(step));
        self.cuts += u64::from(!self.bytes.starts_with(&before));
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// Data that a visitor may fetch: a list, and the chain at its length when the grant was sent. The
/// chain is long, so all visits share one copy; it grows with each change of a membership.
#[derive(Clone)]
pub(super) struct Bundle {
    list: Arc<[u8]>,
    chain_len: usize,
    cuts: u64,
}

impl Bundle {
    pub(super) fn new(list: Arc<[u8]>, chain: &EncodedChain) -> Bundle {
        Bundle { list, chain_len: chain.len(), cuts: chain.cuts }
    }

    /// At most `most` bytes of list and chain, concatenated, from `offset` on. Empty behind the
    /// end, or if the chain changed other than by growing.
    pub(super) fn part(&self, chain: &EncodedChain, offset: usize, most: usize) -> Vec<u8> {
        let ours = chain.bytes.get(..self.chain_len).filter(|_| chain.cuts == self.cuts);
        let Some(ours) = ours else { return Vec::new() };
        let both = [&self.list[..], ours];
        let mut out = Vec::new();
        let mut skip = offset;
        for bytes in both {
            let rest = bytes.get(skip..).unwrap_or_default();
            out.extend_from_slice(&rest[..rest.len().min(most - out.len())]);
            skip = skip.saturating_sub(bytes.len());
        }
        out
    }
}

/// Owner of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum VisitOwner {
    /// A member, by the first half of its key.
    Member([u8; 32]),
    /// A token.
    Token(TokenHash),
}

/// Stages of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum VisitStage {
    Welcomed,
    Waiting,
    Answered,
    /// The part of list and chain at this offset was sent.
    Part(u32),
}

/// A visitor whose handshake is complete.
pub(super) struct Visit {
    from: SocketAddr,
    number: Lead,
    holder: VisitOwner,
    welcome: Vec<Vec<u8>>,
    /// Time of the last progress.
    moved: Time,
    progress: VisitStage,
    /// Number of repeated welcomes, and the time of the last one.
    repeats: (u8, Time),
    pub(super) channel: Channel,
    /// First half of the visitor's public key, proved by the handshake.
    pub(super) half: [u8; 32],
    pub(super) token: TokenHash,
    /// The visitor's whole key, after it asked to join.
    pub(super) key: Option<PublicKey>,
    pub(super) wish: NameRequest,
    /// The visitor's last request to become a router.
    pub(super) router: Option<RouterRequest>,
    /// The registrar that the visitor asked for with it.
    pub(super) registrar: Option<RegistrarWish>,
    pub(super) reach: Option<ReachProof>,
    pub(super) bundle: Option<Bundle>,
}

impl Visit {
    pub(super) fn new(
        now: Time,
        (from, number): (SocketAddr, Lead),
        holder: VisitOwner,
        (channel, welcome): (Channel, Vec<Vec<u8>>),
        half: [u8; 32],
        token: TokenHash,
    ) -> Visit {
        Visit {
            from,
            number,
            holder,
            welcome,
            moved: now,
            progress: VisitStage::Welcomed,
            repeats: (0, now),
            channel,
            half,
            token,
            key: None,
            wish: NameRequest::default(),
            router: None,
            registrar: None,
            reach: None,
            bundle: None,
        }
    }

    pub(super) fn from(&self) -> SocketAddr {
        self.from
    }

    /// The visitor's address, as rate limits count addresses.
    pub(super) fn source(&self) -> SourcePrefix {
        SourcePrefix::of(self.from)
    }
}

/// Visits, indexed by address.
#[derive(Default)]
pub(super) struct Visits {
    all: BTreeMap<VisitId, Visit>,
    by_address: BTreeMap<SocketAddr, Vec<VisitId>>,
    next: VisitId,
    looked: Time,
}

impl Visits {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn get_mut(&mut self, id: VisitId) -> Option<&mut Visit> {
        self.all.get_mut(&id)
    }

    fn remove(&mut self, id: VisitId) {
        let Some(visit) = self.all.remove(&id) else { return };
        if let Some(there) = self.by_address.get_mut(&visit.from) {
            there.retain(|other| *other != id);
            if there.is_empty() {
                self.by_address.remove(&visit.from);
            }
        }
    }

    fn ids_from(&self, from: SocketAddr) -> Vec<VisitId> {
        self.by_address.get(&from).cloned().unwrap_or_default()
    }

    /// The earlier answer to this knock, if there was one. An empty answer means: repeated too
    /// recently or too often.
    pub(super) fn again(
        &mut self,
        now: Time,
        from: SocketAddr,
        number: &Lead,
    ) -> Option<Vec<Vec<u8>>> {
        let ids = self.ids_from(from);
        let id =
            ids.into_iter().find(|id| self.all.get(id).is_some_and(|v| v.number == *number))?;
        let visit = self.all.get_mut(&id)?;
        let (count, last) = visit.repeats;
        if count >= REPEATS || last + REPEAT_EVERY > now {
            return Some(Vec::new());
        }
        visit.repeats = (count + 1, now);
        Some(visit.welcome.clone())
    }

    /// Records the stage of a visit. A visit without progress ends after a while.
    pub(super) fn progress(&mut self, id: VisitId, now: Time, progress: VisitStage) {
        if let Some(visit) = self.all.get_mut(&id)
            // Waiting counts as progress each time. A visitor that stops asking loses its place.
            && (progress > visit.progress || progress == VisitStage::Waiting)
        {
            (visit.progress, visit.moved) = (progress, now);
        }
    }

    /// Ends visits without progress, if the last check was long enough ago.
    fn look_through(&mut self, now: Time) {
        if self.looked + LOOK > now {
            return;
        }
        self.looked = now;
        let idle = self.all.iter().filter(|(_, visit)| visit.moved + IDLE <= now);
        let idle: Vec<_> = idle.map(|(id, _)| *id).collect();
        idle.into_iter().for_each(|id| self.remove(id));
    }

    /// Adds a visit. When all places are taken, the token with the most visits loses one: the
    /// oldest from the address with the most of these. Members have places of their own. Returns
    /// true if another visit ended.
    pub(super) fn insert(&mut self, now: Time, visit: Visit) -> bool {
        self.look_through(now);
        let there = self.ids_from(visit.from);
        if there.len() >= VISITS_FROM {
            self.remove(there[0]);
        }
        let ended = self.superfluous(&visit.holder);
        ended.into_iter().for_each(|id| self.remove(id));
        let id = self.next;
        self.next += 1;
        self.by_address.entry(visit.from).or_default().push(id);
        self.all.insert(id, visit);
        ended.is_some()
    }

    /// The visit to end for another visit of this holder.
    fn superfluous(&self, holder: &VisitOwner) -> Option<VisitId> {
        let oldest = |of: &dyn Fn(&Visit) -> bool| {
            let its = self.all.iter().filter(|(_, visit)| of(visit));
            its.min_by_key(|(_, visit)| visit.moved).map(|(id, _)| *id)
        };
        let is_member = |visit: &Visit| matches!(visit.holder, VisitOwner::Member(_));
        let members = self.all.values().filter(|visit| is_member(visit)).count();
        if matches!(holder, VisitOwner::Member(_)) {
            let its = self.all.values().filter(|visit| visit.holder == *holder).count();
            if its >= OF_MEMBER {
                return oldest(&|visit| visit.holder == *holder);
            }
            if self.all.len() < VISITS_MAX {
                return None;
            }
            if members >= FOR_MEMBERS {
                return oldest(&is_member);
            }
        } else if self.all.len() - members < VISITS_MAX - FOR_MEMBERS {
            // Visits of members beyond their reserved places end first.
            return oldest(&is_member).filter(|_| self.all.len() >= VISITS_MAX);
        }
        let others = || self.all.values().filter(|visit| !is_member(visit));
        let most = most_frequent(others().map(|visit| visit.holder))?;
        let its = others().filter(|visit| visit.holder == most);
        let source = most_frequent(its.map(Visit::source))?;
        oldest(&|visit| visit.holder == most && visit.source() == source)
    }

    /// Opens a sealed frame. Returns the visit and the message.
    ///
    /// Errors: `bad_size`, `unknown_index` (no visit from this address), `bad_tag`, `replayed`,
    /// `too_old`.
    pub(super) fn open(
        &mut self,
        from: SocketAddr,
        frame: &[u8],
    ) -> Result<(VisitId, Vec<u8>), DropReason> {
        if !is_sealed_len(frame.len()) {
            return Err(DropReason::BadSize);
        }
        let mut reason = DropReason::UnknownIndex;
        for id in self.ids_from(from) {
            let Some(visit) = self.all.get_mut(&id) else { continue };
            match visit.channel.open(frame) {
                Ok(message) => return Ok((id, message)),
                Err(DropReason::BadTag) if reason != DropReason::UnknownIndex => {}
                Err(why) => reason = why,
            }
        }
        Err(reason)
    }

    /// Seals an answer. Returns the visitor's address and the datagram.
    pub(super) fn seal(
        &mut self,
        id: VisitId,
        lead: Lead,
        message: &[u8],
    ) -> Option<(SocketAddr, Vec<u8>)> {
        let visit = self.all.get_mut(&id)?;
        Some((visit.from, visit.channel.seal(lead, message)?))
    }
}

#[cfg(test)]
mod tests {
    use shoal_crypto::Secret;
    use shoal_session::noise::Split;

    use super::*;

    fn visit(n: u32, holder: VisitOwner) -> Visit {
        let split = Split { forth: Secret::new([1; 32]), back: Secret::new([2; 32]) };
        let from = SocketAddr::from((n.to_be_bytes(), 7));
        let welcome = (Channel::new(split, false), Vec::new());
        Visit::new(Time::ZERO, (from, [0; 16]), holder, welcome, [0; 32], TokenHash([0; 32]))
    }

    fn member(n: u32) -> VisitOwner {
        let mut half = [0; 32];
        half[..4].copy_from_slice(&n.to_be_bytes());
        VisitOwner::Member(half)
    }

    #[test]
    fn places_are_bounded_whoever_takes_them_first() {
        let mut visits = Visits::default();
        for n in 0..VISITS_MAX as u32 {
            assert!(!visits.insert(Time::ZERO, visit(n, member(n))), "{n}");
        }
        let token = || VisitOwner::Token(TokenHash([3; 32]));
        for n in 0..VISITS_MAX as u32 {
            assert!(visits.insert(Time::ZERO, visit(1 << 24 | n, token())), "{n}");
            assert!(visits.len() <= VISITS_MAX);
        }
        let members = visits.all.values().filter(|one| matches!(one.holder, VisitOwner::Member(_)));
        assert_eq!(members.count(), FOR_MEMBERS, "members keep places of their own");
    }
}
