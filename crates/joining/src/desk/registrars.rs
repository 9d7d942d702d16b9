//! Registrars that this one makes: each gets a free part of the mandate, for good.
//!
//! ```text
//! registrar --> token for a registrar? signed by both keys? as a router: endpoint, name, number
//!           --> a free part of the mandate --> one step: the router, and the registrar's mandate
//! ```
//!
//! The new registrar's members are behind its own router. So they stay reachable without this
//! machine.

use core::net::IpAddr;

use shoal_crypto::PublicKey;
use shoal_directory::{
    DoorEndpoint, HostRange, Mandate, MandateId, MandateRights, Prefix, Register, RouterRange,
    StepEntry, Supplement, numbered,
};
use shoal_wire::{Address, Time};

use super::visits::VisitId;
use super::{Desk, Disk, OwnerError, own_mandate};
use crate::messages::{Answer, NewRegistrarRequest, Refusal, registrar_said};
use crate::record::{LedgerRecord, StepCause};
use crate::tokens::TokenKind;

/// Maximum count of router numbers in the part of a new registrar, unless the invite names a range.
const NUMBERS: u32 = 1_024;
/// Maximum number of blocks of router numbers that are tried. More than a mandate can have with a
/// number that was given, so a free block is found.
const BLOCKS_MAX: usize = 8_192;
/// Bits by which the IPv4 prefix of a new registrar is longer than the mandate's.
const IPV4_BITS: u8 = 2;

/// A registrar that a visitor asks for.
#[derive(Clone)]
pub(super) struct RegistrarWish {
    pub(super) key: PublicKey,
    pub(super) door: DoorEndpoint,
}

impl<D: Disk> Desk<D> {
    /// Handles a request to join as a router with a registrar.
    pub(super) fn join_registrar(
        &mut self,
        at: (Time, u64),
        id: VisitId,
        (request, sign): (NewRegistrarRequest, [u8; 32]),
        [by_router, by_registrar]: &[[u8; 64]; 2],
    ) -> Result<Answer, Refusal> {
        let visit = self.visits.get_mut(id).ok_or(Refusal::Registrar)?;
        let key = PublicKey { dh: visit.half, sign };
        let said = registrar_said(visit.channel.binding(), &request, &sign);
        let is_weak = key.is_weak() || request.key.is_weak();
        let is_signed = key.verify(&said, by_router) && request.key.verify(&said, by_registrar);
        if is_weak || !is_signed {
            return Err(Refusal::Key);
        }
        let NewRegistrarRequest { router, key: registrar, door } = request;
        if door.address().is_some_and(|at| self.directory.is_inside(at.ip())) {
            return Err(Refusal::Endpoint);
        }
        let visit = self.visits.get_mut(id).ok_or(Refusal::Registrar)?;
        visit.key = Some(key);
        visit.wish = router.name.clone();
        visit.router = Some(router);
        visit.registrar = Some(RegistrarWish { key: registrar, door });
        self.settle(at, id)
    }

    /// The entry that makes the registrar of a visitor, if the visitor asks for one. The router at
    /// `address` is not in the chain yet.
    pub(super) fn registrar_entry(
        &mut self,
        id: VisitId,
        kind: &TokenKind,
        (name, address): (&str, Address),
        family: Option<&str>,
    ) -> Result<Option<StepEntry>, Refusal> {
        let TokenKind::Registrar { range, .. } = kind else { return Ok(None) };
        let visit = self.visits.get_mut(id).ok_or(Refusal::Registrar)?;
        let wish = visit.registrar.clone().ok_or(Refusal::OtherKind)?;
        let register = self.register().ok_or(Refusal::MandateEnded)?;
        let mandate = part(register, (name, address), family, &wish);
        let mandate = mandate.ok_or(Refusal::NoRegistrar)?;
        let mandate = with_routers(register, mandate, *range, address.router);
        register.permits_registrar(&mandate).map_err(|_| Refusal::NoRegistrar)?;
        Ok(Some(StepEntry::Registrar(Box::new(mandate))))
    }

    /// Names and mandates of the registrars that this one made and has not withdrawn.
    pub fn registrars(&self) -> impl Iterator<Item = &Mandate> {
        self.register().into_iter().flat_map(Register::delegated).map(|mandate| &**mandate)
    }

    /// The entry that withdraws the registrar behind a router, if the member at this address has
    /// one.
    pub(super) fn withdrawal(&self, at: Address) -> Option<StepEntry> {
        let router = Some(at).filter(|at| at.is_router())?.router;
        self.register()?.delegated_at(router).map(StepEntry::Withdrawn)
    }

    /// Withdraws a registrar that this one made, for good. Its memberships end; its router stays.
    /// The name is the registrar's, or else that of its router.
    ///
    /// # Errors
    ///
    /// This registrar has made none of this name, or the ledger can't be written.
    pub fn withdraw_registrar(&mut self, name: &str, at: (Time, u64)) -> Result<(), OwnerError> {
        let register = self.register().ok_or(OwnerError::NoMandate)?;
        let by_router = || {
            let router = register.members().find(|member| member.name == name)?;
            self.withdrawal(router.address)
        };
        let entry = register.delegated_by_name(name).map(StepEntry::Withdrawn);
        let entry = entry.or_else(by_router).ok_or(OwnerError::NotMade)?;
        let own = self.config.identity.public();
        self.step(StepCause::Removed, own, vec![entry], at)
    }

    /// The mandate whose registrar made this one; `None` for a registrar of the list.
    fn parent(&self) -> Option<MandateId> {
        self.directory.parent_of(&self.mandate?)
    }

    /// True if another registrar made this one.
    pub fn is_made(&self) -> bool {
        self.parent().is_some()
    }

    /// Applies a supplement of another registrar in the list, passed on by the node beside this
    /// one. Names and addresses of its members are then taken. An invalid supplement has no effect.
    ///
    /// The chain of the registrar that made this one is kept in the ledger: this one's own steps
    /// count only behind it.
    pub fn learn(&mut self, step: &[u8], (now, unix_s): (Time, u64)) {
        let Ok((mandate, number)) = Supplement::peek(step) else { return };
        let other = self.directory.register(&mandate).filter(|_| self.mandate != Some(mandate));
        let Some(other) = other else { return };
        if number <= other.len() {
            return;
        }
        let Ok(opened) = Supplement::open(&other.mandate().key, step) else { return };
        // A registrar without a mandate may be one that this chain makes.
        let is_needed = self.mandate.is_none() || self.parent() == Some(mandate);
        if is_needed {
            if self.directory.check_supplement(now, unix_s, &opened).is_err() {
                return;
            }
            let record = LedgerRecord::Learnt { supplement: step.to_vec() };
            // A step that is missing in the ledger is learnt again later.
            if self.write(&record).is_err() {
                return;
            }
        }
        let _unapplied = self.directory.supplement(now, unix_s, &opened);
        if is_needed {
            let before = self.mandate;
            self.mandate = own_mandate(&self.directory, &self.config.identity);
            match before == self.mandate && self.parent() == Some(mandate) {
                true => self.chain.push(&opened),
                false => self.set_chain(),
            }
        }
    }

    /// Replays a supplement of the registrar that made this one.
    pub(super) fn recall_learnt(&mut self, step: &[u8], now: Time, unix_s: u64) {
        let register = Supplement::peek(step).ok().and_then(|(id, _)| self.directory.register(&id));
        let opened = register.and_then(|r| Supplement::open(&r.mandate().key, step).ok());
        // A newer list may have no such mandate.
        if let Some(opened) = opened {
            let at = unix_s.max(opened.step().issued_unix_s);
            let _unapplied = self.directory.supplement(now, at, &opened);
            self.mandate = own_mandate(&self.directory, &self.config.identity);
        }
    }

    /// Makes anew what visitors get: the chain of the registrar that made this one, and then this
    /// one's own.
    pub(super) fn set_chain(&mut self) {
        let of = |id: &MandateId| {
            self.directory.register(id).map(Register::steps).unwrap_or_default().to_vec()
        };
        let all = self.parent().iter().chain(&self.mandate).flat_map(of).collect::<Vec<_>>();
        self.chain.set(&all);
    }
}

/// A part of the mandate without routers, for the registrar beside the router at `address`: half
/// of the keys that are left, all host numbers behind that router alone, the tiers of cover, and
/// free IPv4 addresses.
fn part(
    register: &Register,
    (name, address): (&str, Address),
    family: Option<&str>,
    wish: &RegistrarWish,
) -> Option<Mandate> {
    let mandate = register.mandate();
    // The router itself takes one key.
    let most = register.remainder().keys.checked_sub(1)? / 2;
    let numbers = mandate.rights.numbers?;
    let hosts = HostRange { router: address.router, first: numbers.first, last: numbers.last };
    let is_taken = |name: &str| register.has_registrar_name(name);
    let name = match is_taken(name) {
        true => numbered(name, is_taken)?,
        false => name.to_owned(),
    };
    let rights = MandateRights {
        relay: false,
        mix: false,
        cover: mandate.rights.cover,
        tiers: mandate.rights.tiers.clone(),
        door: vec![wish.door.clone()],
        family: family.map(str::to_owned),
        ..MandateRights::default()
    };
    (most > 0).then(|| Mandate {
        name,
        serial: 1,
        key: wish.key,
        groups: mandate.groups.clone(),
        hosts: vec![hosts],
        ipv4: free_ipv4(register),
        most,
        longest_s: mandate.longest_s,
        until_unix_s: mandate.until_unix_s,
        rights,
    })
}

/// The part with half of the routers and families that are left, and free router numbers. Without
/// any the new registrar admits no routers.
fn with_routers(
    register: &Register,
    mut new: Mandate,
    range: Option<RouterRange>,
    own: u32,
) -> Mandate {
    let (left, ours) = (register.remainder(), &register.mandate().rights);
    // The router itself takes one of each.
    let routers_most = left.routers.saturating_sub(1) / 2;
    let families_most = left.families.saturating_sub(1) / 2;
    let found = range.or_else(|| free_numbers(register, &new, own));
    let found = found.filter(|_| routers_most > 0 && families_most > 0);
    match found {
        None => new.rights.family = None,
        Some(range) => {
            let count = u64::from(range.last - range.first) + 1;
            new.rights.routers = vec![range];
            new.rights.routers_most = u64::from(routers_most).min(count) as u16;
            new.rights.families_most = families_most;
            (new.rights.relay, new.rights.mix) = (ours.relay, ours.mix);
            let family = new.rights.family.take();
            new.rights.family = family.or_else(|| ours.family.clone());
        }
    }
    new
}

/// The highest free block of router numbers, without the new registrar's own router.
fn free_numbers(register: &Register, new: &Mandate, own: u32) -> Option<RouterRange> {
    let permits = |range: &RouterRange| {
        let rights = MandateRights {
            routers: vec![*range],
            routers_most: 1,
            families_most: 1,
            family: Some("any".into()),
            ..new.rights.clone()
        };
        let candidate = Mandate { rights, ..new.clone() };
        !range.holds(own) && register.permits_registrar(&candidate).is_ok()
    };
    let blocks = |all: &RouterRange| {
        let RouterRange { first, last } = *all;
        let count = u64::from(last - first) + 1;
        // Small mandates are cut into four blocks.
        let size = u64::from(NUMBERS).min(count.div_ceil(4)) as u32;
        (0..count / u64::from(size)).map(move |n| {
            let last = last - n as u32 * size;
            RouterRange { first: last - (size - 1), last }
        })
    };
    register.mandate().rights.routers.iter().rev().flat_map(blocks).take(BLOCKS_MAX).find(permits)
}

/// A quarter of the mandate's IPv4 addresses that no member has and no other registrar had, the
/// highest first.
fn free_ipv4(register: &Register) -> Option<Prefix> {
    let all = register.mandate().ipv4?;
    let bits = all.bits() + IPV4_BITS;
    let IpAddr::V4(first) = all.ip() else { return None };
    let size = 1_u32.checked_shl(32_u32.checked_sub(bits.into())?)?;
    let parts = (0..1_u32 << IPV4_BITS).rev();
    let mut parts = parts.filter_map(|n| {
        let ip = u32::from(first).checked_add(n * size)?;
        Prefix::new(IpAddr::V4(ip.into()), bits)
    });
    let is_free = |part: &Prefix| {
        let holds = |ip: std::net::Ipv4Addr| part.holds(ip.into());
        let given = |other: &Prefix| other.covers(part) || part.covers(other);
        !register.members().any(|member| member.ipv4.is_some_and(holds))
            && !register.ever_delegated().any(|made| made.ipv4.as_ref().is_some_and(given))
    };
    parts.find(is_free)
}

#[cfg(test)]
#[path = "registrars_tests.rs"]
mod tests;
