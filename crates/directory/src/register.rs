//! The register of a mandate: the members that its registrar added, step by step
//! (docs/design/membership.md).
//!
//! ```text
//! Supplement --> next in the chain? --> each entry within the mandate? --> members
//!                  | another step with this number        | no
//!                  v                                      v
//!                frozen                                refused, nothing changed
//! ```
//!
//! Invariant: the members follow from the mandate and the steps alone, not from the order or time
//! of arrival. So nodes with the same steps have the same members. A member outside the mandate's
//! limits is never accepted.

mod registrars;
mod table;

use core::fmt;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use shoal_crypto::PublicKey;

use crate::directory::CLOCK_SKEW_S;
use crate::mandate::{Mandate, MandateId};
use crate::span::span;
use crate::supplement::{Step, StepEntry, Supplement};
use crate::{CircuitRole, DoorEndpoint, Member, door, is_callable, is_host};
pub use registrars::MandateRemainder;
use table::MemberTable;

/// Maximum number of steps of a chain. After that the authority adopts the members and signs
/// another mandate.
pub const STEPS_MAX: usize = 65_536;

/// Effect of a supplement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepEffect {
    /// Members may have changed.
    Changed,
    /// The step was already known.
    Known,
    /// The registrar signed two steps with one number: from that number on nothing counts.
    Frozen,
}

/// Reasons why a supplement has no effect. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepRejection {
    #[error("the step belongs to another mandate")]
    Foreign,
    /// Earlier steps are missing, from this number on.
    #[error("steps from {0} on are missing")]
    Missing(u64),
    /// The chain is frozen at an earlier step or this one.
    #[error("the registrar signed two different steps with the number {0}")]
    Frozen(u64),
    /// The step's `previous` is not the hash of the last step.
    #[error("the step does not follow from the last one")]
    Unchained,
    #[error("a mandate has at most 65536 steps: let the authority adopt its members")]
    Full,
    #[error("the step was signed {} in the future: is this machine's clock right?", span(*.0))]
    Future(u64),
    #[error("{0}")]
    Bad(MandateViolation),
}

/// Violations of a mandate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MandateViolation {
    Over,
    Backwards,
    Address,
    /// The router's number is outside the mandate's ranges, or was another key's before.
    Number,
    /// The mandate has given as many router numbers as it may.
    Routers,
    /// A router has no family, a host has one, or the family is one more than the mandate may give.
    Family,
    Relay,
    Mix,
    Cover,
    /// A router has no endpoint that others can call, or a host has an endpoint.
    Endpoint,
    Ipv4,
    Group,
    TooLong,
    /// The descriptor has a field that only the authority may set.
    Beyond,
    /// The descriptor is invalid.
    Descriptor,
    Version,
    /// The key was removed before.
    Returned,
    Name,
    Taken,
    TakenIpv4,
    TakenEndpoint,
    Most,
    /// The removed key is no member of the mandate.
    Stranger,
    /// The registrar may state no endpoints, or one of them is invalid or inside the network.
    Door,
    /// The endpoints were stated less than an hour before.
    DoorSoon,
    /// The mandate has made as many registrars as it may.
    Registrars,
    /// A registrar that another one made would make registrars.
    SubRegistrar,
    /// The key of a new registrar is this one's, another registrar's or a member's.
    RegistrarKey,
    /// A new registrar would get more than this one has left.
    Exceeds,
    /// The address, number or IPv4 address is another registrar's, or a member's already.
    Given,
    /// The withdrawn registrar is none that this one made.
    NoRegistrar,
}

impl fmt::Display for MandateViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MandateViolation::Over => "the step was signed after the mandate's end",
            MandateViolation::Backwards => "the step was signed before the one that it follows",
            MandateViolation::Address => "a member's address is not one of the mandate's hosts",
            MandateViolation::Number => {
                "a router's number is not one of the mandate's, or was another router's before"
            }
            MandateViolation::Routers => "the mandate has given as many router numbers as it may",
            MandateViolation::Family => {
                "a router has no family, a host has one, or the mandate has given as many families \
                 as it may"
            }
            MandateViolation::Relay => "the mandate allows no relays",
            MandateViolation::Mix => "the mandate allows no relays with a mix of their own",
            MandateViolation::Cover => "the mandate allows no hosts with this tier of cover",
            MandateViolation::Endpoint => {
                "a router has no endpoint that others can call, or a host has an endpoint"
            }
            MandateViolation::Ipv4 => "a member's IPv4 address is not one of the mandate's",
            MandateViolation::Group => "a member is in a group that the mandate does not have",
            MandateViolation::TooLong => "a membership lasts longer than the mandate allows",
            MandateViolation::Beyond => "a descriptor says what only the authority may say",
            MandateViolation::Descriptor => "a descriptor is invalid",
            MandateViolation::Version => "a descriptor has no greater version than the one before",
            MandateViolation::Returned => "a removed key is added again",
            MandateViolation::Name => "two members have the same name",
            MandateViolation::Taken => "two members have the same address",
            MandateViolation::TakenIpv4 => "two members have the same IPv4 address",
            MandateViolation::TakenEndpoint => "two members have the same endpoint",
            MandateViolation::Most => "the mandate has admitted as many keys as it may",
            MandateViolation::Stranger => "the removed key is no member of this mandate",
            MandateViolation::Door => {
                "the mandate lets the registrar state no endpoints, or one can't be called or is \
                 one of the mandate's IPv4 addresses"
            }
            MandateViolation::DoorSoon => "the registrar's endpoints changed less than an hour ago",
            MandateViolation::Registrars => "the mandate has made as many registrars as it may",
            MandateViolation::SubRegistrar => {
                "a registrar that another one makes may make no registrars"
            }
            MandateViolation::RegistrarKey => {
                "the key of a new registrar is that of another registrar or of a member"
            }
            MandateViolation::Exceeds => {
                "a new registrar would get addresses, groups, rights, keys or time that the \
                 mandate does not have, or has no longer"
            }
            MandateViolation::Given => {
                "an address or a router's number belongs to another registrar, or to a member"
            }
            MandateViolation::NoRegistrar => "the withdrawn registrar is none of this mandate",
        })
    }
}

/// The members of one mandate.
#[derive(Clone, Debug)]
pub struct Register {
    mandate: Mandate,
    id: MandateId,
    steps: Vec<Supplement>,
    /// The two steps of a fork; steps from their number on don't count.
    fork: Option<Box<[Supplement; 2]>>,
    table: MemberTable,
}

impl Register {
    /// A register without members.
    pub fn new(mandate: Mandate) -> Register {
        Register {
            id: mandate.id(),
            mandate,
            steps: Vec::new(),
            fork: None,
            table: MemberTable::default(),
        }
    }

    pub fn mandate(&self) -> &Mandate {
        &self.mandate
    }

    pub fn id(&self) -> MandateId {
        self.id
    }

    /// The chain under a newer version of its mandate. It ends before the first step that the
    /// mandate no longer allows.
    ///
    /// Panics if the mandate has a different id.
    pub fn under(&self, mandate: Mandate) -> Register {
        let mut newer = Register::new(mandate);
        assert_eq!(newer.id, self.id, "a chain is of one mandate");
        newer.fork.clone_from(&self.fork);
        for step in &self.steps {
            if newer.take(step).is_err() {
                break;
            }
        }
        newer
    }

    /// Number of steps that count.
    pub fn len(&self) -> u64 {
        self.steps.len() as u64
    }

    /// True if there are no steps.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The hash that the next step must have as `previous`.
    pub fn head(&self) -> [u8; 32] {
        self.steps.last().map_or(self.id.0, Supplement::digest)
    }

    /// The steps that count, in order.
    pub fn steps(&self) -> &[Supplement] {
        &self.steps
    }

    /// The step with this number, from 1 on.
    pub fn step(&self, number: u64) -> Option<&Supplement> {
        self.steps.get(usize::try_from(number.checked_sub(1)?).ok()?)
    }

    /// The two steps of a fork, if the registrar signed two with one number. From that number on
    /// nothing counts.
    pub fn fork(&self) -> Option<&[Supplement; 2]> {
        self.fork.as_deref()
    }

    /// Number of keys ever admitted.
    pub fn admitted(&self) -> usize {
        self.table.admitted()
    }

    /// Number of router numbers ever given. A new key of a router keeps its number.
    pub fn routers_given(&self) -> usize {
        self.table.numbers().len()
    }

    /// True if this router number was ever given.
    pub fn is_given(&self, router: u32) -> bool {
        self.table.numbers().contains_key(&router)
    }

    /// Families ever given, folded by [`crate::fold`].
    pub fn families(&self) -> &BTreeSet<String> {
        self.table.families()
    }

    /// Endpoints of the registrar: the newest that it signed, or else the mandate's. Empty if the
    /// list says none.
    pub fn door(&self) -> &[DoorEndpoint] {
        self.table.door().unwrap_or(&self.mandate.rights.door)
    }

    /// Earliest time at which the registrar may state other endpoints, in seconds since 1970;
    /// `None` if it may state none.
    pub fn next_door_unix_s(&self) -> Option<u64> {
        (!self.mandate.rights.door.is_empty()).then(|| self.table.next_door_unix_s())
    }

    /// True if this key was admitted and then removed.
    pub fn is_removed(&self, key: &PublicKey) -> bool {
        self.table.is_removed(key)
    }

    /// Time of the step that removed this key, in seconds since 1970.
    pub fn removed_at(&self, key: &PublicKey) -> Option<u64> {
        self.table.removed_at(key)
    }

    /// Keys that were removed, and the times of the steps that removed them. A key is missing if
    /// its membership had expired before and another member got its name or address.
    pub fn removed(&self) -> impl Iterator<Item = (&PublicKey, u64)> {
        self.table.removed()
    }

    /// The members, including those whose membership has expired.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.table.holders().map(|holder| &*holder.member)
    }

    /// All members, in the order in which they got their names.
    pub fn members_by_age(&self) -> Vec<&Arc<Member>> {
        let mut holders: Vec<_> = self.table.holders().collect();
        holders.sort_by_key(|holder| holder.named);
        holders.into_iter().map(|holder| &holder.member).collect()
    }

    /// Applies a supplement from [`Supplement::open`]; `unix_s` is the present time.
    ///
    /// Errors: the supplement has no effect.
    pub fn apply(
        &mut self,
        unix_s: u64,
        supplement: &Supplement,
    ) -> Result<StepEffect, StepRejection> {
        let step = supplement.step();
        if step.mandate != self.id {
            return Err(StepRejection::Foreign);
        }
        if let Some(known) = self.step(step.number) {
            if known.digest() == supplement.digest() {
                return Ok(StepEffect::Known);
            }
            let fork = [known.clone(), supplement.clone()];
            return Ok(self.freeze(fork));
        }
        self.look_at(unix_s, step)?;
        self.take(supplement)?;
        Ok(StepEffect::Changed)
    }

    /// Checks that [`Register::apply`] would accept this as the next step. Nothing changes.
    ///
    /// Errors: the reason why not.
    pub fn check(&mut self, unix_s: u64, supplement: &Supplement) -> Result<(), StepRejection> {
        self.look_at(unix_s, supplement.step())?;
        self.look_behind(supplement.step())?;
        let entered = self.enter(supplement.step());
        self.table.undo();
        entered.map_err(StepRejection::Bad)
    }

    /// Applies evidence of a fork. This node may have neither of the two steps.
    ///
    /// Errors: the steps are no fork of this mandate, or an earlier fork is known.
    pub fn show_fork(&mut self, fork: [Supplement; 2]) -> Result<StepEffect, StepRejection> {
        let [one, other] = [fork[0].step(), fork[1].step()];
        if one.mandate != self.id || other.mandate != self.id {
            return Err(StepRejection::Foreign);
        }
        if one.number != other.number || fork[0].digest() == fork[1].digest() {
            return Err(StepRejection::Unchained);
        }
        match self.frozen_at() {
            Some(at) if at < one.number => Err(StepRejection::Frozen(at)),
            Some(at) if at == one.number => Ok(StepEffect::Known),
            _ => Ok(self.freeze(fork)),
        }
    }

    /// Checks a step's mandate and time, and that the chain is not frozen before it.
    fn look_at(&self, unix_s: u64, step: &Step) -> Result<(), StepRejection> {
        if step.mandate != self.id {
            return Err(StepRejection::Foreign);
        }
        if let Some(at) = self.frozen_at().filter(|at| step.number >= *at) {
            return Err(StepRejection::Frozen(at));
        }
        if step.issued_unix_s > unix_s.saturating_add(CLOCK_SKEW_S) {
            return Err(StepRejection::Future(step.issued_unix_s - unix_s));
        }
        Ok(())
    }

    /// Checks that a step follows from the last one.
    fn look_behind(&self, step: &Step) -> Result<(), StepRejection> {
        let next = self.len() + 1;
        if step.number > next {
            return Err(StepRejection::Missing(next));
        }
        if step.number < next || step.previous != self.head() {
            return Err(StepRejection::Unchained);
        }
        if self.steps.len() >= STEPS_MAX {
            return Err(StepRejection::Full);
        }
        Ok(())
    }

    fn frozen_at(&self) -> Option<u64> {
        self.fork.as_ref().map(|fork| fork[0].step().number)
    }

    /// Freezes the chain before the number of these two steps.
    fn freeze(&mut self, fork: [Supplement; 2]) -> StepEffect {
        let before = (fork[0].step().number - 1) as usize;
        let mut older = Register::new(self.mandate.clone());
        for step in self.steps.iter().take(before) {
            // Every step was accepted before in this order.
            let _ = older.take(step);
        }
        *self = Register { fork: Some(Box::new(fork)), ..older };
        StepEffect::Frozen
    }

    /// Applies the next step of the chain, entirely or not at all.
    fn take(&mut self, supplement: &Supplement) -> Result<(), StepRejection> {
        let step = supplement.step();
        self.look_behind(step)?;
        if let Err(why) = self.enter(step) {
            self.table.undo();
            return Err(StepRejection::Bad(why));
        }
        self.table.keep();
        self.steps.push(supplement.clone());
        Ok(())
    }

    /// Applies the entries of a step.
    ///
    /// Errors: an entry is not allowed. Entries before it have changed the table.
    fn enter(&mut self, step: &Step) -> Result<(), MandateViolation> {
        let at = step.issued_unix_s;
        if at >= self.mandate.until_unix_s {
            return Err(MandateViolation::Over);
        }
        if at < self.steps.last().map_or(0, |last| last.step().issued_unix_s) {
            return Err(MandateViolation::Backwards);
        }
        for entry in &step.entries {
            match entry {
                StepEntry::Removed(digest) => self.table.remove(*digest, at)?,
                StepEntry::Door(endpoints) => {
                    self.permits_door(endpoints)?;
                    self.table.set_door(endpoints, at)?;
                }
                StepEntry::Registrar(mandate) => {
                    self.permits_registrar(mandate)?;
                    self.table.delegate(mandate);
                }
                StepEntry::Withdrawn(id) => self.table.withdraw(id)?,
                StepEntry::Member(member) => {
                    self.permits(member, at)?;
                    self.table.put(member, at, &self.mandate)?;
                }
            }
        }
        Ok(())
    }

    /// Checks endpoints of the registrar against the mandate.
    fn permits_door(&self, endpoints: &[DoorEndpoint]) -> Result<(), MandateViolation> {
        let inside = |ip| self.mandate.ipv4.is_some_and(|prefix| prefix.holds(ip));
        let is_refused = self.mandate.rights.door.is_empty()
            || !door::is_valid(endpoints)
            || door::is_any_inside(endpoints, inside);
        if is_refused { Err(MandateViolation::Door) } else { Ok(()) }
    }

    /// Checks a descriptor signed at this time against the mandate.
    fn permits(&self, member: &Member, issued_unix_s: u64) -> Result<(), MandateViolation> {
        let mandate = &self.mandate;
        if member.clone().checked().as_ref() != Ok(member) || member.key.is_weak() {
            return Err(MandateViolation::Descriptor);
        }
        let beyond = !member.security_groups.is_empty()
            || !member.prefixes.is_empty()
            || member.carrier.exit
            || !member.unknown.is_empty()
            || member.key == mandate.key
            || self.table.delegations().iter().any(|made| made.mandate.key == member.key);
        if beyond {
            return Err(MandateViolation::Beyond);
        }
        match member.address.is_router() {
            true => self.permits_router(member)?,
            false => self.permits_host(member)?,
        }
        if member.addresses().iter().any(|address| self.is_delegated(address, member.ipv4)) {
            return Err(MandateViolation::Given);
        }
        let may_give = |ip: IpAddr| mandate.ipv4.is_some_and(|prefix| prefix.holds(ip));
        if member.ipv4.is_some_and(|ipv4| !is_host(&ipv4) || !may_give(ipv4.into())) {
            return Err(MandateViolation::Ipv4);
        }
        if !member.groups.iter().all(|group| mandate.groups.contains(group)) {
            return Err(MandateViolation::Group);
        }
        let longest = issued_unix_s.saturating_add(mandate.longest_s.into());
        if member.expires_unix_s > longest.min(mandate.until_unix_s) {
            return Err(MandateViolation::TooLong);
        }
        Ok(())
    }

    /// Checks what a router's descriptor says beyond a host's.
    fn permits_router(&self, member: &Member) -> Result<(), MandateViolation> {
        let (rights, carrier) = (&self.mandate.rights, &member.carrier);
        if !self.mandate.may_give(member.address) {
            return Err(MandateViolation::Number);
        }
        let inside = |ip: IpAddr| self.mandate.ipv4.is_some_and(|prefix| prefix.holds(ip));
        if !member.endpoint.is_some_and(|at| is_callable(&at) && !inside(at.ip())) {
            return Err(MandateViolation::Endpoint);
        }
        if carrier.family.is_none() {
            return Err(MandateViolation::Family);
        }
        if carrier.relay && !rights.relay {
            return Err(MandateViolation::Relay);
        }
        if carrier.mix.is_some() && !rights.mix {
            return Err(MandateViolation::Mix);
        }
        Ok(())
    }

    /// Checks that a host's descriptor says nothing that is for routers.
    fn permits_host(&self, member: &Member) -> Result<(), MandateViolation> {
        if !member.addresses().iter().all(|address| self.mandate.may_give(address)) {
            return Err(MandateViolation::Address);
        }
        if member.endpoint.is_some() {
            return Err(MandateViolation::Endpoint);
        }
        if member.carrier.family.is_some() {
            return Err(MandateViolation::Family);
        }
        if member.carrier != CircuitRole::default() {
            return Err(MandateViolation::Beyond);
        }
        if member.cover.as_ref().is_some_and(|tier| !self.mandate.rights.may_cover(tier)) {
            return Err(MandateViolation::Cover);
        }
        Ok(())
    }
}

#[cfg(test)]
mod door_tests;
#[cfg(test)]
mod registrar_tests;
#[cfg(test)]
mod router_tests;
#[cfg(test)]
mod tests;
