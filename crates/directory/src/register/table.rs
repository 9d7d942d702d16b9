//! Who is a member by the steps so far, found by digest, key, name and addresses. What a step
//! changed can be undone, so that a step counts whole or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use shoal_crypto::{PublicKey, hash};
use shoal_wire::Address;

use super::BadMandate;
use crate::Member;

/// BLAKE3 of a public key's 64 bytes.
type Digest = [u8; 32];

#[derive(Clone, Debug)]
enum Undo {
    Set(Digest, Option<Holder>),
    Admitted(Digest),
    Removed(Digest),
}

/// A member, and its rank among those who have names.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    pub(super) member: Arc<Member>,
    /// Members with a smaller number had their names earlier. A new key keeps the number.
    pub(super) named: u64,
}

/// The members of one mandate, those included whose membership has expired.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    members: BTreeMap<Digest, Holder>,
    by_half: BTreeMap<[u8; 32], Digest>,
    by_name: BTreeMap<String, Digest>,
    by_address: BTreeMap<Address, Digest>,
    by_ipv4: BTreeMap<Ipv4Addr, Digest>,
    /// Keys that were members once.
    admitted: BTreeSet<Digest>,
    /// Those of them that may not come back.
    removed: BTreeSet<Digest>,
    /// The number of the next name.
    next_named: u64,
    /// What brings back the state before this step; the last change first to be undone.
    undo: Vec<Undo>,
}

impl Table {
    pub(super) fn holders(&self) -> impl Iterator<Item = &Holder> {
        self.members.values()
    }

    /// How many keys were ever members.
    pub(super) fn admitted(&self) -> usize {
        self.admitted.len()
    }

    pub(super) fn is_removed(&self, key: &PublicKey) -> bool {
        self.removed.contains(&hash(&key.to_bytes()))
    }

    /// The changes since the last call stay.
    pub(super) fn keep(&mut self) {
        self.undo.clear();
    }

    /// The changes since [`Table::keep`] never were.
    pub(super) fn undo(&mut self) {
        while let Some(last) = self.undo.pop() {
            match last {
                Undo::Set(digest, before) => {
                    self.replace(digest, before);
                }
                Undo::Admitted(digest) => {
                    self.admitted.remove(&digest);
                }
                Undo::Removed(digest) => {
                    self.removed.remove(&digest);
                }
            }
        }
    }

    /// Ends a membership for good.
    pub(super) fn remove(&mut self, digest: Digest) -> Result<(), BadMandate> {
        if !self.admitted.contains(&digest) || !self.removed.insert(digest) {
            return Err(BadMandate::Stranger);
        }
        self.undo.push(Undo::Removed(digest));
        self.set(digest, None);
        Ok(())
    }

    /// Adds or renews a member, of at most `most` keys. One whose membership had expired at this
    /// time, in seconds since 1970, gives its name and addresses to another.
    pub(super) fn put(
        &mut self,
        member: &Member,
        unix_s: u64,
        most: usize,
    ) -> Result<(), BadMandate> {
        let digest = hash(&member.key.to_bytes());
        if self.removed.contains(&digest) {
            return Err(BadMandate::Returned);
        }
        // Sessions know a peer by the first half of its key.
        if self.by_half.get(&member.key.dh).is_some_and(|other| *other != digest) {
            return Err(BadMandate::Descriptor);
        }
        if self.members.get(&digest).is_some_and(|b| b.member.version >= member.version) {
            return Err(BadMandate::Version);
        }
        let holders = [
            (self.by_name.get(&member.name), BadMandate::Name),
            (self.by_address.get(&member.address), BadMandate::Taken),
            (member.ipv4.and_then(|ipv4| self.by_ipv4.get(&ipv4)), BadMandate::TakenIpv4),
        ];
        let mut expired = BTreeSet::new();
        for (holder, clash) in holders {
            let Some(holder) = holder.filter(|holder| **holder != digest) else { continue };
            if self.members.get(holder).is_some_and(|held| held.member.expires_unix_s > unix_s) {
                return Err(clash);
            }
            expired.insert(*holder);
        }
        if !self.admitted.contains(&digest) {
            if self.admitted.len() >= most {
                return Err(BadMandate::Most);
            }
            self.admitted.insert(digest);
            self.undo.push(Undo::Admitted(digest));
        }
        expired.into_iter().for_each(|holder| self.set(holder, None));
        let named = self.named_before(&digest, &member.name).unwrap_or_else(|| {
            self.next_named += 1;
            self.next_named
        });
        self.set(digest, Some(Holder { member: Arc::new(member.clone()), named }));
        Ok(())
    }

    /// The number of a name that this key has already, or that this step took from another key.
    fn named_before(&self, digest: &Digest, name: &str) -> Option<u64> {
        let gone = self.undo.iter().rev().filter_map(|undo| match undo {
            Undo::Set(gone, Some(before)) if self.removed.contains(gone) => Some(before),
            _ => None,
        });
        let mut before = self.members.get(digest).into_iter().chain(gone);
        before.find(|before| before.member.name == name).map(|before| before.named)
    }

    fn set(&mut self, digest: Digest, holder: Option<Holder>) {
        let before = self.replace(digest, holder);
        self.undo.push(Undo::Set(digest, before));
    }

    fn replace(&mut self, digest: Digest, holder: Option<Holder>) -> Option<Holder> {
        let before = self.members.remove(&digest);
        if let Some(Holder { member: before, .. }) = &before {
            self.by_half.remove(&before.key.dh);
            self.by_name.remove(&before.name);
            self.by_address.remove(&before.address);
            before.ipv4.map(|ipv4| self.by_ipv4.remove(&ipv4));
        }
        if let Some(holder) = holder {
            let member = &holder.member;
            self.by_half.insert(member.key.dh, digest);
            self.by_name.insert(member.name.clone(), digest);
            self.by_address.insert(member.address, digest);
            member.ipv4.map(|ipv4| self.by_ipv4.insert(ipv4, digest));
            self.members.insert(digest, holder);
        }
        before
    }
}
