//! Who is at the registrar's door at the moment.

use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shoal_crypto::PublicKey;
use shoal_directory::Supplement;
use shoal_session::outer::Lead;
use shoal_wire::{DropReason, Time};

use crate::frame::{Channel, is_sealed_len};
use crate::messages::Wish;
use crate::tokens::TokenHash;

use super::sources::{Source, most_frequent};

/// Visits at once.
const VISITS_MAX: usize = 4_096;
/// Places of those that only members get.
const FOR_MEMBERS: usize = 512;
/// Visits from one address and port; each frame from there is tried with all their keys.
const VISITS_FROM: usize = 4;
/// Visits of one member.
const OF_MEMBER: usize = 4;
/// A visit that gets no further for so long ends, ...
const IDLE: Duration = Duration::from_secs(60);
/// ... when somebody knocks and they were looked through so long ago.
const LOOK: Duration = Duration::from_secs(10);
/// Times that a welcome is repeated, ...
const REPEATS: u8 = 8;
/// ... each so long after the last one.
const REPEAT_EVERY: Duration = Duration::from_millis(200);

pub(super) type VisitId = u64;

/// The registrar's supplements, as visitors get them: each behind its length (2 bytes).
#[derive(Default)]
pub(super) struct Chain {
    bytes: Vec<u8>,
    /// How often the chain became another one, and not just longer.
    cuts: u64,
}

impl Chain {
    /// Adds the next supplement.
    pub(super) fn push(&mut self, step: &Supplement) {
        self.bytes.extend_from_slice(&(step.bytes().len() as u16).to_be_bytes());
        self.bytes.extend_from_slice(step.bytes());
    }

    /// It consists of these from now on.
    pub(super) fn set(&mut self, steps: &[Supplement]) {
        let before = core::mem::take(&mut self.bytes);
        steps.iter().for_each(|step| self.push(step));
        self.cuts += u64::from(!self.bytes.starts_with(&before));
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// What a visitor may fetch: a list, and as much of the chain as there was. The chain itself is one
/// for all, since it is long, and another one after each that joins.
#[derive(Clone)]
pub(super) struct Bundle {
    list: Arc<[u8]>,
    chain_len: usize,
    cuts: u64,
}

impl Bundle {
    pub(super) fn new(list: Arc<[u8]>, chain: &Chain) -> Bundle {
        Bundle { list, chain_len: chain.len(), cuts: chain.cuts }
    }

    /// Bytes of list and chain, one behind the other, from `offset` on; none behind the end, or
    /// when the chain is another one by now.
    pub(super) fn part(&self, chain: &Chain, offset: usize, most: usize) -> Vec<u8> {
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
pub(super) enum Holder {
    /// A member, by the first half of its key.
    Member([u8; 32]),
    /// Somebody with a token.
    Token(TokenHash),
}

/// How far a visit has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    Welcomed,
    Waiting,
    Answered,
    /// A part of list and chain from this offset on was given.
    Part(u32),
}

/// Somebody whom the registrar welcomed.
pub(super) struct Visit {
    from: SocketAddr,
    number: Lead,
    holder: Holder,
    welcome: Vec<Vec<u8>>,
    /// When it got further last.
    moved: Time,
    progress: Progress,
    /// Times that the welcome was repeated, and when it was sent last.
    repeats: (u8, Time),
    pub(super) channel: Channel,
    /// The half of its key that the handshake proved.
    pub(super) half: [u8; 32],
    pub(super) token: TokenHash,
    /// Its whole key, once it has asked to join.
    pub(super) key: Option<PublicKey>,
    pub(super) wish: Wish,
    pub(super) bundle: Option<Bundle>,
}

impl Visit {
    pub(super) fn new(
        now: Time,
        (from, number): (SocketAddr, Lead),
        holder: Holder,
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
            progress: Progress::Welcomed,
            repeats: (0, now),
            channel,
            half,
            token,
            key: None,
            wish: Wish::default(),
            bundle: None,
        }
    }

    /// Place of the visitor, as shares count places.
    pub(super) fn source(&self) -> Source {
        Source::of(self.from)
    }
}

/// The visits, found by address.
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

    /// Former answer to this knock, if it was answered before; none if that was a moment ago, or
    /// often enough.
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

    /// Notes that a visit got so far. One that gets no further ends.
    pub(super) fn progress(&mut self, id: VisitId, now: Time, progress: Progress) {
        if let Some(visit) = self.all.get_mut(&id)
            // Places of those who wait are few, and who asks no more loses his.
            && (progress > visit.progress || progress == Progress::Waiting)
        {
            (visit.progress, visit.moved) = (progress, now);
        }
    }

    /// Ends visits that got no further for long, if it is time to look.
    fn look_through(&mut self, now: Time) {
        if self.looked + LOOK > now {
            return;
        }
        self.looked = now;
        let idle = self.all.iter().filter(|(_, visit)| visit.moved + IDLE <= now);
        let idle: Vec<_> = idle.map(|(id, _)| *id).collect();
        idle.into_iter().for_each(|id| self.remove(id));
    }

    /// Adds a visit. Where there is no place for it, one of the token that has most visits ends,
    /// there the oldest of the address that has most; members have places of their own. Whether one
    /// ended for it.
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

    /// The visit that has to end for one more of this holder.
    fn superfluous(&self, holder: &Holder) -> Option<VisitId> {
        let oldest = |of: &dyn Fn(&Visit) -> bool| {
            let its = self.all.iter().filter(|(_, visit)| of(visit));
            its.min_by_key(|(_, visit)| visit.moved).map(|(id, _)| *id)
        };
        let is_member = |visit: &Visit| matches!(visit.holder, Holder::Member(_));
        let members = self.all.values().filter(|visit| is_member(visit)).count();
        if matches!(holder, Holder::Member(_)) {
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
            // Members in places that others may have make room for them.
            return oldest(&is_member).filter(|_| self.all.len() >= VISITS_MAX);
        }
        let others = || self.all.values().filter(|visit| !is_member(visit));
        let most = most_frequent(others().map(|visit| visit.holder))?;
        let its = others().filter(|visit| visit.holder == most);
        let source = most_frequent(its.map(Visit::source))?;
        oldest(&|visit| visit.holder == most && visit.source() == source)
    }

    /// Opens what a visitor sealed: whose it is, and the message.
    ///
    /// Errors: `bad_size`, `unknown_index` (nobody visits from there), `bad_tag`, `replayed`,
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

    /// Seals an answer for a visitor: where it goes, and the datagram.
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

    fn visit(n: u32, holder: Holder) -> Visit {
        let split = Split { forth: Secret::new([1; 32]), back: Secret::new([2; 32]) };
        let from = SocketAddr::from((n.to_be_bytes(), 7));
        let welcome = (Channel::new(split, false), Vec::new());
        Visit::new(Time::ZERO, (from, [0; 16]), holder, welcome, [0; 32], TokenHash([0; 32]))
    }

    fn member(n: u32) -> Holder {
        let mut half = [0; 32];
        half[..4].copy_from_slice(&n.to_be_bytes());
        Holder::Member(half)
    }

    #[test]
    fn places_are_bounded_whoever_takes_them_first() {
        let mut visits = Visits::default();
        for n in 0..VISITS_MAX as u32 {
            assert!(!visits.insert(Time::ZERO, visit(n, member(n))), "{n}");
        }
        let token = || Holder::Token(TokenHash([3; 32]));
        for n in 0..VISITS_MAX as u32 {
            assert!(visits.insert(Time::ZERO, visit(1 << 24 | n, token())), "{n}");
            assert!(visits.len() <= VISITS_MAX);
        }
        let members = visits.all.values().filter(|one| matches!(one.holder, Holder::Member(_)));
        assert_eq!(members.count(), FOR_MEMBERS, "members keep places of their own");
    }
}
