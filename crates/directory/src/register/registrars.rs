//! Registrars that a registrar made. Each one has a part of the mandate, for good: the parts are
//! disjoint, and no part is greater than what the mandate has left.
//!
//! ```text
//! authority --mandate--> first registrar --a part of it, in its chain--> second registrar
//! ```
//!
//! Nodes check the second one's chain against its part, as they check the first one's against the
//! mandate. So whatever a thief of either key signs, no number or address belongs to two members.

use std::net::Ipv4Addr;
use std::sync::Arc;

use shoal_wire::Address;

use super::{MandateViolation, Register};
use crate::mandate::{HostRange, Mandate, MandateId, RouterRange, overlap};
use crate::{Member, door};

/// The limits that a registrar has left for its own members and for other registrars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MandateRemainder {
    /// Keys that may still be admitted.
    pub keys: u32,
    /// Router numbers that may still be given.
    pub routers: u16,
    /// Families that may still be given.
    pub families: u8,
    /// Registrars that may still be made.
    pub registrars: u8,
}

impl Register {
    /// The mandates of registrars that this one made and has not withdrawn, in order.
    pub fn delegated(&self) -> impl Iterator<Item = &Arc<Mandate>> {
        let made = self.table.delegations().iter().filter(|made| !made.is_withdrawn);
        made.map(|made| &made.mandate)
    }

    /// The mandates of all registrars that this one ever made, in order. The part, key and name of
    /// a withdrawn one go to nobody else.
    pub fn ever_delegated(&self) -> impl Iterator<Item = &Arc<Mandate>> {
        self.table.delegations().iter().map(|made| &made.mandate)
    }

    /// True if a router number of the range was ever given.
    pub fn has_given_in(&self, range: &RouterRange) -> bool {
        self.table.numbers().keys().any(|number| range.holds(*number))
    }

    /// True if the address, or the IPv4 address, is in the part of another registrar that this one
    /// made, withdrawn ones included.
    pub fn is_delegated(&self, address: Address, ipv4: Option<Ipv4Addr>) -> bool {
        self.table.delegations().iter().any(|made| may_give(&made.mandate, address, ipv4))
    }

    /// The limits that are left.
    pub fn remainder(&self) -> MandateRemainder {
        let (rights, table) = (&self.mandate.rights, &self.table);
        let left = |most: u32, given: usize, delegated: usize| {
            most.saturating_sub(u32::try_from(given + delegated).unwrap_or(u32::MAX))
        };
        let routers = table.delegated(|part| part.rights.routers_most.into());
        let families = table.delegated(|part| part.rights.families_most.into());
        let routers = left(rights.routers_most.into(), table.numbers().len(), routers);
        let families = left(rights.families_most.into(), table.families().len(), families);
        let registrars = left(rights.registrars.into(), table.delegations().len(), 0);
        MandateRemainder {
            keys: left(self.mandate.most, table.admitted(), table.delegated(|part| part.most)),
            // Each value is at most its limit.
            routers: u16::try_from(routers).unwrap_or(u16::MAX),
            families: u8::try_from(families).unwrap_or(u8::MAX),
            registrars: u8::try_from(registrars).unwrap_or(u8::MAX),
        }
    }

    /// Checks that this registrar may make one with this mandate.
    ///
    /// Errors: the reason why not.
    pub fn permits_registrar(&self, new: &Mandate) -> Result<(), MandateViolation> {
        let made = self.table.delegations();
        if self.remainder().registrars == 0 {
            return Err(MandateViolation::Registrars);
        }
        if new.rights.registrars > 0 {
            return Err(MandateViolation::SubRegistrar);
        }
        if new.clone().checked().as_ref() != Ok(new) {
            return Err(MandateViolation::Descriptor);
        }
        let others = || made.iter().map(|made| &*made.mandate).chain([&self.mandate]);
        let is_taken = others().any(|other| other.key.dh == new.key.dh)
            || self.members().any(|member| member.key.dh == new.key.dh)
            || self.is_removed(&new.key);
        if is_taken {
            return Err(MandateViolation::RegistrarKey);
        }
        if others().any(|other| other.name == new.name) {
            return Err(MandateViolation::Name);
        }
        if !self.has_left(new) {
            return Err(MandateViolation::Exceeds);
        }
        let given = |member: &Member| {
            member.addresses().iter().any(|address| may_give(new, address, member.ipv4))
        };
        let numbers = self.table.numbers().keys().any(|number| new.rights.may_number(*number));
        let shared = made.iter().any(|made| overlap(new, &made.mandate).is_some());
        if numbers || shared || self.members().any(given) {
            return Err(MandateViolation::Given);
        }
        Ok(())
    }

    /// True if the mandate has all that the new one would get, and has enough of it left.
    fn has_left(&self, new: &Mandate) -> bool {
        let (mandate, ours, theirs) = (&self.mandate, &self.mandate.rights, &new.rights);
        let hosts = |range: &HostRange| {
            mandate.hosts.iter().any(|own| own.covers(range))
                || ours.numbers.is_some_and(|own| own.covers(range.first, range.last))
        };
        let routers = |range: &RouterRange| ours.routers.iter().any(|own| own.covers(range));
        let ipv4 = |part| mandate.ipv4.is_some_and(|own| own.covers(part));
        let inside = |ip| mandate.ipv4.is_some_and(|own| own.holds(ip));
        let bits = [(theirs.relay, ours.relay), (theirs.mix, ours.mix), (theirs.cover, ours.cover)];
        let is_every_tier = theirs.cover && theirs.tiers.is_empty();
        let has_tiers = ours.tiers.is_empty()
            || (!is_every_tier && theirs.tiers.iter().all(|tier| ours.may_cover(tier)));
        let left = self.remainder();
        new.hosts.iter().all(hosts)
            // Numbers behind all routers would be shared with this registrar.
            && theirs.numbers.is_none()
            && theirs.routers.iter().all(routers)
            && new.ipv4.as_ref().is_none_or(ipv4)
            && new.groups.iter().all(|group| mandate.groups.contains(group))
            && new.longest_s <= mandate.longest_s
            && new.until_unix_s <= mandate.until_unix_s
            && bits.iter().all(|(theirs, ours)| !theirs || *ours)
            && has_tiers
            && !door::is_any_inside(&theirs.door, inside)
            && new.most <= left.keys
            && theirs.routers_most <= left.routers
            && theirs.families_most <= left.families
    }

    /// The id of the registrar with this name that this one made and has not withdrawn.
    pub fn delegated_by_name(&self, name: &str) -> Option<MandateId> {
        self.delegated().find(|mandate| mandate.name == name).map(|mandate| mandate.id())
    }

    /// The id of the registrar behind the router with this number, if this one made it and has not
    /// withdrawn it. The registrar's name may differ from the router's.
    pub fn delegated_at(&self, router: u32) -> Option<MandateId> {
        let at = |made: &&Arc<Mandate>| made.hosts.iter().any(|range| range.router == router);
        self.delegated().find(at).map(|made| made.id())
    }

    /// True if this registrar, or one that it made, has this name; withdrawn ones included.
    pub fn has_registrar_name(&self, name: &str) -> bool {
        self.mandate.name == name || self.ever_delegated().any(|made| made.name == name)
    }
}

/// True if a member of this mandate may have the address or the IPv4 address.
fn may_give(mandate: &Mandate, address: Address, ipv4: Option<Ipv4Addr>) -> bool {
    let has = |ip: Ipv4Addr| mandate.ipv4.is_some_and(|prefix| prefix.holds(ip.into()));
    mandate.may_give(address) || ipv4.is_some_and(has)
}
