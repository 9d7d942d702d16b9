//! The members after all steps so far, indexed by digest, key, name and addresses. The changes of a
//! step can be undone, so that a step applies entirely or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use shoal_crypto::{PublicKey, hash};
use shoal_wire::Address;

use super::MandateViolation;
use crate::mandate::{Mandate, MandateId, MandateRights};
use crate::{DoorEndpoint, Member, fold};

/// Least time between two statements of endpoints, in seconds. Each one is a step of the chain,
/// whose length is bounded.
const DOOR_EVERY_S: u64 = 3_600;

/// BLAKE3 of a public key's 64 bytes.
type Digest = [u8; 32];

#[derive(Clone, Debug)]
enum TableUndo {
    Set(Digest, Option<RankedMember>),
    Admitted(Digest),
    Removed(Digest),
    /// A router number, and the key that had it before.
    Number(u32, Option<Digest>),
    Family(String),
    Door(Option<DoorStatement>),
    Delegations(Vec<Delegation>),
}

/// A part of the mandate that another registrar has.
#[derive(Clone, Debug)]
pub(super) struct Delegation {
    pub(super) mandate: Arc<Mandate>,
    /// True if the registrar was withdrawn. Its part goes to nobody else.
    pub(super) is_withdrawn: bool,
}

/// Endpoints of the registrar, as one of its steps states them.
#[derive(Clone, Debug)]
struct DoorStatement {
    endpoints: Vec<DoorEndpoint>,
    /// Time of the step in seconds since 1970.
    unix_s: u64,
}

/// A member, and the rank of its name.
#[derive(Clone, Debug)]
pub(super) struct RankedMember {
    pub(super) member: Arc<Member>,
    /// Rank: members with smaller numbers got their names earlier. A new key keeps the number.
    pub(super) named: u64,
}

/// A key that was removed for good.
#[derive(Clone, Copy, Debug)]
struct RemovedKey {
    /// The key; none if another member had got its name or address before.
    key: Option<PublicKey>,
    /// Time of the step that removed it, in seconds since 1970.
    unix_s: u64,
}

/// The members of one mandate, including those whose membership has expired.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberTable {
    members: BTreeMap<Digest, RankedMember>,
    by_half: BTreeMap<[u8; 32], Digest>,
    by_name: BTreeMap<String, Digest>,
    by_address: BTreeMap<Address, Digest>,
    by_ipv4: BTreeMap<Ipv4Addr, Digest>,
    by_endpoint: BTreeMap<SocketAddr, Digest>,
    /// Router numbers ever given, and the last key of each. No number goes to another router, so
    /// nobody takes the place of a former one.
    numbers: BTreeMap<u32, Digest>,
    /// Families ever given, folded.
    families: BTreeSet<String>,
    /// Keys that were ever members.
    admitted: BTreeSet<Digest>,
    /// Keys among them that were removed for good, and when.
    removed: BTreeMap<Digest, RemovedKey>,
    /// The newest endpoints that the registrar signed.
    door: Option<DoorStatement>,
    /// Registrars that this one made, in order; withdrawn ones included.
    delegations: Vec<Delegation>,
    /// The last rank given to a name.
    next_named: u64,
    /// The former values of this step's changes, undone from the last to the first.
    undo: Vec<TableUndo>,
}

impl MemberTable {
    pub(super) fn holders(&self) -> impl Iterator<Item = &RankedMember> {
        self.members.values()
    }

    /// Number of keys that were ever members.
    pub(super) fn admitted(&self) -> usize {
        self.admitted.len()
    }

    pub(super) fn numbers(&self) -> &BTreeMap<u32, Digest> {
        &self.numbers
    }

    pub(super) fn families(&self) -> &BTreeSet<String> {
        &self.families
    }

    pub(super) fn is_removed(&self, key: &PublicKey) -> bool {
        self.removed_at(key).is_some()
    }

    /// Time at which this key was removed, in seconds since 1970.
    pub(super) fn removed_at(&self, key: &PublicKey) -> Option<u64> {
        self.removed.get(&hash(&key.to_bytes())).map(|removed| removed.unix_s)
    }

    /// Removed keys, as far as they are known, and the times of their removal.
    pub(super) fn removed(&self) -> impl Iterator<Item = (&PublicKey, u64)> {
        self.removed.values().filter_map(|gone| Some((gone.key.as_ref()?, gone.unix_s)))
    }

    /// Makes the changes since the last call permanent.
    pub(super) fn keep(&mut self) {
        self.undo.clear();
    }

    /// Undoes the changes since [`MemberTable::keep`].
    pub(super) fn undo(&mut self) {
        while let Some(last) = self.undo.pop() {
            match last {
                TableUndo::Set(digest, before) => {
                    self.replace(digest, before);
                }
                TableUndo::Admitted(digest) => {
                    self.admitted.remove(&digest);
                }
                TableUndo::Removed(digest) => {
                    self.removed.remove(&digest);
                }
                TableUndo::Number(number, before) => {
                    self.numbers.remove(&number);
                    self.numbers.extend(before.map(|digest| (number, digest)));
                }
                TableUndo::Family(family) => {
                    self.families.remove(&family);
                }
                TableUndo::Door(before) => self.door = before,
                TableUndo::Delegations(before) => self.delegations = before,
            }
        }
    }

    /// The newest endpoints that the registrar signed.
    pub(super) fn door(&self) -> Option<&[DoorEndpoint]> {
        self.door.as_ref().map(|door| door.endpoints.as_slice())
    }

    /// Earliest time at which the registrar may state other endpoints, in seconds since 1970.
    pub(super) fn next_door_unix_s(&self) -> u64 {
        self.door.as_ref().map_or(0, |door| door.unix_s.saturating_add(DOOR_EVERY_S))
    }

    /// Replaces the registrar's endpoints, by a step of this time.
    pub(super) fn set_door(
        &mut self,
        endpoints: &[DoorEndpoint],
        unix_s: u64,
    ) -> Result<(), MandateViolation> {
        if unix_s < self.next_door_unix_s() {
            return Err(MandateViolation::DoorSoon);
        }
        let door = DoorStatement { endpoints: endpoints.to_vec(), unix_s };
        let before = self.door.replace(door);
        self.undo.push(TableUndo::Door(before));
        Ok(())
    }

    pub(super) fn delegations(&self) -> &[Delegation] {
        &self.delegations
    }

    /// Sum of a limit over all parts of the mandate that other registrars have.
    pub(super) fn delegated(&self, limit: impl Fn(&Mandate) -> u32) -> usize {
        self.delegations.iter().map(|made| limit(&made.mandate) as usize).sum()
    }

    /// Gives a part of the mandate to another registrar.
    pub(super) fn delegate(&mut self, mandate: &Mandate) {
        self.undo.push(TableUndo::Delegations(self.delegations.clone()));
        let mandate = Arc::new(mandate.clone());
        self.delegations.push(Delegation { mandate, is_withdrawn: false });
    }

    /// Withdraws a registrar that this one made.
    pub(super) fn withdraw(&mut self, id: &MandateId) -> Result<(), MandateViolation> {
        let before = self.delegations.clone();
        let mut made = self.delegations.iter_mut();
        let made = made.find(|made| made.mandate.id() == *id && !made.is_withdrawn);
        made.ok_or(MandateViolation::NoRegistrar)?.is_withdrawn = true;
        self.undo.push(TableUndo::Delegations(before));
        Ok(())
    }

    /// Ends a membership for good, by a step of this time.
    pub(super) fn remove(&mut self, digest: Digest, unix_s: u64) -> Result<(), MandateViolation> {
        if !self.admitted.contains(&digest) || self.removed.contains_key(&digest) {
            return Err(MandateViolation::Stranger);
        }
        let key = self.members.get(&digest).map(|holder| holder.member.key);
        self.removed.insert(digest, RemovedKey { key, unix_s });
        self.undo.push(TableUndo::Removed(digest));
        self.set(digest, None);
        Ok(())
    }

    /// Adds or renews a member within the mandate's limits of keys, routers and families. A member
    /// that had expired at `unix_s`, in seconds since 1970, loses its name and addresses to the new
    /// one.
    pub(super) fn put(
        &mut self,
        member: &Member,
        unix_s: u64,
        mandate: &Mandate,
    ) -> Result<(), MandateViolation> {
        let digest = hash(&member.key.to_bytes());
        if self.removed.contains_key(&digest) {
            return Err(MandateViolation::Returned);
        }
        // Sessions identify a peer by the first half of its key.
        if self.by_half.get(&member.key.dh).is_some_and(|other| *other != digest) {
            return Err(MandateViolation::Descriptor);
        }
        if self.members.get(&digest).is_some_and(|b| b.member.version >= member.version) {
            return Err(MandateViolation::Version);
        }
        let holders = [
            (self.by_name.get(&member.name), MandateViolation::Name),
            (self.by_address.get(&member.address), MandateViolation::Taken),
            (
                member.second.and_then(|second| self.by_address.get(&second)),
                MandateViolation::Taken,
            ),
            (member.ipv4.and_then(|ipv4| self.by_ipv4.get(&ipv4)), MandateViolation::TakenIpv4),
            (
                member.endpoint.and_then(|at| self.by_endpoint.get(&at)),
                MandateViolation::TakenEndpoint,
            ),
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
            if self.admitted.len() + self.delegated(|part| part.most) >= mandate.most as usize {
                return Err(MandateViolation::Most);
            }
            self.admitted.insert(digest);
            self.undo.push(TableUndo::Admitted(digest));
        }
        if member.address.is_router() {
            self.reserve_router(digest, member, &mandate.rights)?;
        }
        expired.into_iter().for_each(|holder| self.set(holder, None));
        let named = self.named_before(&digest, &member.name).unwrap_or_else(|| {
            self.next_named += 1;
            self.next_named
        });
        self.set(digest, Some(RankedMember { member: Arc::new(member.clone()), named }));
        Ok(())
    }

    /// Reserves a router's number and family, for good.
    fn reserve_router(
        &mut self,
        digest: Digest,
        member: &Member,
        rights: &MandateRights,
    ) -> Result<(), MandateViolation> {
        let number = member.address.router;
        let before = self.numbers.get(&number).copied();
        let routers = self.delegated(|part| part.rights.routers_most.into());
        let families = self.delegated(|part| part.rights.families_most.into());
        let gone = |key: &Digest| {
            self.undo.iter().any(|undo| matches!(undo, TableUndo::Removed(gone) if gone == key))
        };
        match before {
            Some(holder) if holder != digest && !gone(&holder) => {
                return Err(MandateViolation::Number);
            }
            None if self.numbers.len() + routers >= usize::from(rights.routers_most) => {
                return Err(MandateViolation::Routers);
            }
            _ => {}
        }
        self.numbers.insert(number, digest);
        self.undo.push(TableUndo::Number(number, before));
        let family = fold(member.carrier.family.as_deref().unwrap_or_default());
        if !self.families.contains(&family) {
            if self.families.len() + families >= usize::from(rights.families_most) {
                return Err(MandateViolation::Family);
            }
            self.families.insert(family.clone());
            self.undo.push(TableUndo::Family(family));
        }
        Ok(())
    }

    /// The rank of the name, if this key has the name already or this step removed its former key.
    fn named_before(&self, digest: &Digest, name: &str) -> Option<u64> {
        let gone = self.undo.iter().rev().filter_map(|undo| match undo {
            TableUndo::Set(gone, Some(before)) if self.removed.contains_key(gone) => Some(before),
            _ => None,
        });
        let mut before = self.members.get(digest).into_iter().chain(gone);
        before.find(|before| before.member.name == name).map(|before| before.named)
    }

    fn set(&mut self, digest: Digest, holder: Option<RankedMember>) {
        let before = self.replace(digest, holder);
        self.undo.push(TableUndo::Set(digest, before));
    }

    fn replace(&mut self, digest: Digest, holder: Option<RankedMember>) -> Option<RankedMember> {
        let before = self.members.remove(&digest);
        if let Some(RankedMember { member: before, .. }) = &before {
            self.by_half.remove(&before.key.dh);
            self.by_name.remove(&before.name);
            before.addresses().iter().for_each(|address| {
                self.by_address.remove(&address);
            });
            before.ipv4.map(|ipv4| self.by_ipv4.remove(&ipv4));
            before.endpoint.map(|at| self.by_endpoint.remove(&at));
        }
        if let Some(holder) = holder {
            let member = &holder.member;
            self.by_half.insert(member.key.dh, digest);
            self.by_name.insert(member.name.clone(), digest);
            self.by_address.extend(member.addresses().iter().map(|address| (address, digest)));
            member.ipv4.map(|ipv4| self.by_ipv4.insert(ipv4, digest));
            member.endpoint.map(|at| self.by_endpoint.insert(at, digest));
            self.members.insert(digest, holder);
        }
        before
    }
}
