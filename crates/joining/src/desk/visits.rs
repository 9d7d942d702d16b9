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

/// Visits at once.
const VISITS_MAX: usize = 4_096;
/// Visits from one address and port; each frame from there is tried with all their keys.
const VISITS_FROM: usize = 4;
/// A visit that says nothing for so long ends, ...
const IDLE: Duration = Duration::from_secs(60);
/// ... when somebody knocks and they were looked through so long ago.
const LOOK: Duration = Duration::from_secs(10);

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

/// Somebody whom the registrar welcomed.
pub(super) struct Visit {
    from: SocketAddr,
    lead: Lead,
    welcome: Vec<u8>,
    heard: Time,
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
        heard: Time,
        from: SocketAddr,
        lead: Lead,
        welcome: Vec<u8>,
        channel: Channel,
        half: [u8; 32],
        token: TokenHash,
    ) -> Visit {
        let (key, wish, bundle) = (None, Wish::default(), None);
        Visit { from, lead, welcome, heard, channel, half, token, key, wish, bundle }
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

    /// What was answered to this knock, if it is one that was answered before.
    pub(super) fn again(&mut self, now: Time, from: SocketAddr, lead: &Lead) -> Option<Vec<u8>> {
        let ids = self.ids_from(from);
        let id = ids.into_iter().find(|id| self.all.get(id).is_some_and(|v| v.lead == *lead))?;
        let visit = self.all.get_mut(&id)?;
        visit.heard = now;
        Some(visit.welcome.clone())
    }

    /// Sees to it that there is a place for one more visit: idle ones end.
    ///
    /// Errors: `table_full`.
    pub(super) fn make_room(&mut self, now: Time) -> Result<(), DropReason> {
        let is_full = self.all.len() >= VISITS_MAX;
        if is_full || self.looked + LOOK <= now {
            self.looked = now;
            let is_idle = |other: &Visit| other.heard + IDLE <= now;
            let idle: Vec<_> =
                self.all.iter().filter(|(_, v)| is_idle(v)).map(|(id, _)| *id).collect();
            if is_full && idle.is_empty() {
                return Err(DropReason::TableFull);
            }
            idle.into_iter().for_each(|id| self.remove(id));
        }
        Ok(())
    }

    /// Adds a visit. Another one from the same address gives way to it, if there are too many.
    ///
    /// Errors: `table_full`.
    pub(super) fn insert(&mut self, visit: Visit) -> Result<(), DropReason> {
        let there = self.ids_from(visit.from);
        if there.len() >= VISITS_FROM {
            self.remove(there[0]);
        }
        self.make_room(visit.heard)?;
        let id = self.next;
        self.next += 1;
        self.by_address.entry(visit.from).or_default().push(id);
        self.all.insert(id, visit);
        Ok(())
    }

    /// Opens what a visitor sealed: whose it is, and the message.
    ///
    /// Errors: `bad_size`, `unknown_index` (nobody visits from there), `bad_tag`, `replayed`,
    /// `too_old`.
    pub(super) fn open(
        &mut self,
        now: Time,
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
                Ok(message) => {
                    visit.heard = now;
                    return Ok((id, message));
                }
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
