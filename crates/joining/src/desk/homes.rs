//! Routers of hosts: each host gets an address at two routers.
//!
//! A router sees all traffic of its hosts, so nobody should be behind one router with everybody
//! else. A host gets the routers with the fewest addresses. The second one is of another family
//! than the first, so that both seldom fail together. A second router stays for the life of the
//! membership, as a guard does: each further router would learn when the host is online.

use std::collections::{BTreeMap, BTreeSet};

use shoal_crypto::{PublicKey, Rng};
use shoal_directory::{ENTRIES_MAX, Mandate, Member, Register, fold};
use shoal_wire::{Address, Time};

use super::owner::OwnerError;
use super::places::{self, FreeSlot, NameChoice};
use super::{Desk, Disk};
use crate::messages::Refusal;
use crate::record::StepCause;

/// Number of relays that a network with a preset needs before hosts get a second router: three in
/// a circuit, and two routers of each of both hosts. With fewer, circuits would lead through the
/// hosts' own routers, and the preset would not hold.
const RELAYS_MIN: usize = 7;

/// A router in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostRouter {
    pub(super) number: u32,
    /// Folded name of the operator. A router without one counts as a family of its own.
    family: Option<String>,
    /// True if others call it by IPv4.
    is_ipv4: bool,
    /// True if the mandate may give addresses behind it, as far as is known.
    pub(super) is_open: bool,
    /// Number of hosts' addresses behind it, and of moves away from it. A dead router that hosts
    /// left would otherwise be the emptiest one, and get all newcomers.
    load: usize,
    /// Load of all routers of its family. Hosts at one operator's routers are not hidden from it.
    family_load: usize,
    /// Number of moves away from it.
    left: usize,
    /// Number of first addresses behind it.
    firsts: usize,
}

impl HostRouter {
    /// True if both are one router, or of one family.
    pub(super) fn is_related(&self, other: &HostRouter) -> bool {
        self.number == other.number || (self.family.is_some() && self.family == other.family)
    }

    /// Rank for a first address: the least one is chosen.
    pub(super) fn rank(&self) -> (usize, usize, usize, usize) {
        (self.load, self.family_load, self.left, self.firsts)
    }
}

/// Choice of second addresses for several hosts in a row.
struct SecondAddresses<'a> {
    register: &'a Register,
    routers: Vec<HostRouter>,
    /// Addresses of all members, and the chosen ones.
    taken: BTreeSet<Address>,
}

impl SecondAddresses<'_> {
    /// A free address at another router than the first one. Routers of another family come first,
    /// then those that are called by the first one's IP version, then those with the fewest
    /// addresses. Equal ones are in random order.
    fn choose(&mut self, first: Address, rng: &mut Rng) -> Option<Address> {
        loop {
            let own = self.routers.iter().find(|router| router.number == first.router);
            let mut rank = |router: &HostRouter| {
                let is_related = own.is_some_and(|own| own.is_related(router));
                // A host that listens by one IP version can't call a router of the other one.
                let is_apart = own.is_some_and(|own| own.is_ipv4 != router.is_ipv4);
                (is_related, is_apart, router.load, rng.u64())
            };
            let others = self.routers.iter().enumerate();
            let others = others.filter(|(_, other)| other.is_open && other.number != first.router);
            let (_, at) = others.map(|(at, other)| (rank(other), at)).min()?;
            let router = &mut self.routers[at];
            let Some(address) = places::free_behind(self.register, &self.taken, &[router.number])
            else {
                // This router has no room for any host.
                router.is_open = false;
                continue;
            };
            router.load += 1;
            self.taken.insert(address);
            return Some(address);
        }
    }
}

impl<D: Disk> Desk<D> {
    /// All routers in force. Those are open that others can call and that the mandate may use:
    /// routers of its host ranges, and routers that joined by invites.
    pub(super) fn host_routers(
        &self,
        mandate: &Mandate,
        (now, unix_s): (Time, u64),
    ) -> Vec<HostRouter> {
        // A host that the authority took over is in the list and in the register.
        let hosts = || self.holders(unix_s).filter(|member| !member.address.is_router());
        let all: BTreeSet<Address> = hosts().flat_map(|host| host.addresses().iter()).collect();
        let firsts: BTreeSet<Address> = hosts().map(|host| host.address).collect();
        let [behind, firsts] = [all, firsts].map(|all| count(all.iter().map(|at| at.router)));
        let left = count(self.moves.left(unix_s));
        let own = self.register().into_iter().flat_map(Register::members);
        let own = own.filter(|member| member.address.is_router());
        let own: BTreeSet<u32> = own.map(|member| member.address.router).collect();
        // Another registrar has all hosts behind its own router.
        let is_kept = |router: u32, first: u16| {
            let first = Address::new(router, first);
            self.register().is_some_and(|register| !register.is_delegated(first, None))
        };
        let may_hold = |router: u32| {
            let numbers = mandate.rights.numbers.filter(|_| own.contains(&router));
            let mut ranges = mandate.hosts.iter().filter(|range| range.router == router);
            numbers.is_some_and(|numbers| is_kept(router, numbers.first))
                || ranges.any(|range| is_kept(router, range.first))
        };
        let router = |member: &Member| {
            let number = member.address.router;
            let of = |counts: &BTreeMap<u32, usize>| counts.get(&number).copied().unwrap_or(0);
            HostRouter {
                number,
                family: member.carrier.family.as_deref().map(fold),
                is_ipv4: member.endpoint.is_some_and(|at| at.is_ipv4()),
                is_open: member.endpoint.is_some() && may_hold(number),
                load: of(&behind) + of(&left),
                family_load: 0,
                left: of(&left),
                firsts: of(&firsts),
            }
        };
        let members = self.directory.members(now, unix_s);
        let members = members.filter(|member| member.address.is_router());
        let mut routers: Vec<HostRouter> = members.map(router).collect();
        count_families(&mut routers);
        routers
    }

    /// Numbers of the open routers, the least rank first, equal ones in random order.
    pub(super) fn in_order<K: Ord>(
        &mut self,
        routers: &[HostRouter],
        rank: impl Fn(&HostRouter) -> K,
    ) -> Vec<u32> {
        let open: Vec<&HostRouter> = routers.iter().filter(|router| router.is_open).collect();
        // A single router needs no lot.
        let has_choice = open.len() > 1;
        let mut lot = || if has_choice { self.rng.u64() } else { 0 };
        let lots = open.into_iter().map(|router| (rank(router), lot(), router.number));
        let mut lots: Vec<(K, u64, u32)> = lots.collect();
        lots.sort_unstable();
        lots.into_iter().map(|(_, _, number)| number).collect()
    }

    /// Free addresses for a new host, and a free name.
    pub(super) fn place_host(
        &mut self,
        mandate: &Mandate,
        naming: NameChoice,
        at: (Time, u64),
    ) -> Result<FreeSlot, Refusal> {
        let routers = self.host_routers(mandate, at);
        let order = self.in_order(&routers, HostRouter::rank);
        let register = self.register().ok_or(Refusal::MandateEnded)?;
        let place = places::choose(register, self.holders(at.1), &order, naming)?;
        if routers.len() < 2 || !self.may_have_second(at) {
            return Ok(place);
        }
        let mut rng = Rng::new(self.rng.array());
        let seconds = self.seconds(routers, at.1);
        let second = seconds.and_then(|mut all| all.choose(place.address, &mut rng));
        Ok(FreeSlot { second, ..place })
    }

    /// The choice among these routers; `None` without a mandate.
    fn seconds(&self, routers: Vec<HostRouter>, unix_s: u64) -> Option<SecondAddresses<'_>> {
        let register = self.register()?;
        let taken = self.holders(unix_s).flat_map(|member| member.addresses().iter()).collect();
        Some(SecondAddresses { register, routers, taken })
    }

    /// True if hosts get a second router. A second router is in no circuit of its host, so a
    /// network with a preset needs relays enough.
    fn may_have_second(&self, (now, unix_s): (Time, u64)) -> bool {
        let list = self.directory.list();
        if list.is_none_or(|list| list.content().preset.is_none()) {
            return true;
        }
        let members = self.directory.members(now, unix_s);
        let relays = members.filter(|member| member.address.is_router() && member.carrier.relay);
        relays.count() >= RELAYS_MIN
    }

    /// Gives a second address to hosts of the mandate that have none at a router in force. Signs
    /// at most one supplement. Returns the number of changed hosts; call again until it is 0.
    ///
    /// # Errors
    ///
    /// The supplement can't be signed.
    pub fn follow_routers(&mut self, at: (Time, u64)) -> Result<usize, OwnerError> {
        let Ok(mandate) = self.mandate_now(at.0, at.1) else { return Ok(0) };
        if self.hold.is_early || self.doubt().is_some() || !self.may_have_second(at) {
            return Ok(0);
        }
        let mut rng = Rng::new(self.rng.array());
        let routers = self.host_routers(&mandate, at);
        if routers.len() < 2 {
            return Ok(0);
        }
        let in_force: BTreeSet<u32> = routers.iter().map(|router| router.number).collect();
        let list = self.directory.list().into_iter().flat_map(|list| &list.content().members);
        let adopted: BTreeSet<PublicKey> = list.map(|signed| signed.member.key).collect();
        let is_due = |member: &&Member| {
            let is_own = !member.address.is_router() && member.expires_unix_s > at.1;
            let second = member.second.filter(|second| in_force.contains(&second.router));
            // A member that the list revoked costs no more steps.
            let may = || !adopted.contains(&member.key) && !self.is_removed(&member.key);
            is_own && second.is_none() && may()
        };
        let own = self.register().into_iter().flat_map(Register::members);
        let mut due = own.filter(is_due).peekable();
        if due.peek().is_none() {
            return Ok(0);
        }
        let Some(mut seconds) = self.seconds(routers, at.1) else { return Ok(0) };
        let with_second = |member: &Member| {
            let second = seconds.choose(member.address, &mut rng)?;
            Some(Member { second: Some(second), ..member.clone() })
        };
        let some: Vec<Member> = due.filter_map(with_second).take(ENTRIES_MAX).collect();
        self.sign_seconds(&some, at)
    }

    /// Signs descriptors with second addresses in one supplement: all of them, or the first one
    /// that fits. Returns the number of signed ones; an error if none fits.
    fn sign_seconds(&mut self, some: &[Member], at: (Time, u64)) -> Result<usize, OwnerError> {
        for members in core::iter::once(some).chain(some.chunks(1)) {
            match self.sign_again(StepCause::SecondRouter, members, at) {
                // Descriptors with many groups don't fit one supplement together.
                Err(OwnerError::Descriptor) => {}
                signed => return signed.map(|()| members.len()),
            }
        }
        // A host whose descriptor has no room for the address does without one.
        Err(OwnerError::Descriptor)
    }
}

/// Sets the load of each router's family.
fn count_families(routers: &mut [HostRouter]) {
    let mut loads = BTreeMap::<Option<String>, usize>::new();
    for router in &*routers {
        *loads.entry(router.family.clone()).or_default() += router.load;
    }
    for router in routers {
        router.family_load = match &router.family {
            None => router.load,
            family => loads.get(family).copied().unwrap_or(0),
        };
    }
}

/// Number of times that each router occurs.
fn count(routers: impl Iterator<Item = u32>) -> BTreeMap<u32, usize> {
    let mut counts = BTreeMap::new();
    for router in routers {
        *counts.entry(router).or_default() += 1;
    }
    counts
}

#[cfg(test)]
#[path = "homes_tests.rs"]
mod tests;
