//! Addresses at which circuits begin and end. Hosts at two routers have two each.
//!
//! The circuit in use and the standby have different ends where they can. If a router of either
//! host dies, echoes find the dead circuit, and the standby takes over.

use std::collections::BTreeMap;

use shoal_wire::{Address, CircuitId, NodeAddresses, Time};

use super::live::{BuildingCircuit, LiveCircuit};
use super::{CircuitPool, DestinationCircuits};

/// Addresses of this host, and the routers that it reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostHomes {
    pub addresses: NodeAddresses,
    /// Address at the router through which other traffic leaves.
    pub in_use: Address,
    /// True if the link to the other router is up.
    pub other_is_up: bool,
}

impl HostHomes {
    /// A host with one address.
    pub const fn one(address: Address) -> HostHomes {
        let addresses = NodeAddresses::one(address);
        HostHomes { addresses, in_use: address, other_is_up: false }
    }

    /// True if cells from this address can leave.
    fn is_up(&self, home: Address) -> bool {
        home == self.in_use || (self.other_is_up && self.addresses.has(home))
    }

    /// Routers of this host and of another. `seconds` are second addresses of hosts by the first.
    pub(super) fn own_routers(
        &self,
        seconds: &BTreeMap<Address, Address>,
        to: Address,
    ) -> Vec<Address> {
        let far = NodeAddresses { first: to, second: seconds.get(&to).copied() };
        let all = self.addresses.iter().chain(far.iter());
        all.map(|address| Address::new(address.router, 0)).collect()
    }
}

impl LiveCircuit {
    /// The destination's address at which the circuit ends.
    pub(super) fn end(&self) -> Option<Address> {
        self.path.last().copied()
    }
}

impl CircuitPool {
    /// Sets this host's addresses and the routers that it reaches. Circuits that begin at a router
    /// behind a dead link are replaced at once.
    pub fn set_homes(&mut self, now: Time, homes: HostHomes) {
        if core::mem::replace(&mut self.homes, homes) == homes {
            return;
        }
        self.blame.set_own(Address::new(homes.in_use.router, 0));
        // No relay failed, so no wait grows, and the next set-up begins at once.
        let is_cut = |building: &mut BuildingCircuit| !homes.is_up(building.home);
        let mut cut: Vec<CircuitId> = Vec::new();
        for host in self.hosts.values_mut() {
            let building = [host.building.take_if(is_cut), host.tries.building.take_if(is_cut)];
            let tried = host.tries.live.take_if(|live| !homes.is_up(live.home));
            cut.extend(building.into_iter().flatten().filter_map(|building| building.id));
            cut.extend(tried.map(|live| live.id));
        }
        cut.into_iter().for_each(|id| self.close(id));
        // A standby goes first, since it takes over from the circuit in use otherwise.
        let live = self.hosts.values().flat_map(|host| host.standby.iter().chain(&host.in_use));
        let dead = live.filter(|live| !homes.is_up(live.home)).map(|live| live.id);
        for id in dead.collect::<Vec<CircuitId>>() {
            self.die(now, id);
        }
        self.settle(now);
    }

    /// Sets the second addresses of other hosts, by the first.
    pub fn set_seconds(&mut self, seconds: BTreeMap<Address, Address>) {
        self.seconds = seconds;
    }

    /// Routers of this host and of the one at `to`.
    pub(super) fn own_routers(&self, to: Address) -> Vec<Address> {
        self.homes.own_routers(&self.seconds, to)
    }

    /// Addresses at which the next circuit to a host begins and ends: others than those of the
    /// circuit in use. After a set-up that the destination or its router did not answer, its other
    /// address is used.
    pub(super) fn ends(&self, to: Address, host: &DestinationCircuits) -> [Address; 2] {
        let HostHomes { addresses, in_use: home, .. } = self.homes;
        let beside = host.in_use.as_ref().filter(|live| live.silent_since.is_none());
        let other = addresses.other(home).filter(|other| self.homes.is_up(*other));
        let other = other.filter(|_| beside.is_some_and(|live| live.home == home));
        let far = NodeAddresses { first: to, second: self.seconds.get(&to).copied() };
        let taken = host.in_use.as_ref().and_then(LiveCircuit::end);
        let end = taken.and_then(|end| far.other(end)).unwrap_or(to);
        let is_odd = host.at_last.is_some_and(|(_, times)| times % 2 == 1);
        let end = far.other(end).filter(|_| is_odd).unwrap_or(end);
        [other.unwrap_or(home), end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onion::SetupFailure;
    use crate::path::{ListedRouter, RouterList, Vanguards};
    use crate::pool::{CircuitPlan, PoolConfig};

    const NOW: Time = Time::from_millis(1_000);
    const OWN: NodeAddresses =
        NodeAddresses { first: Address::new(1, 7), second: Some(Address::new(2, 7)) };
    const FAR: [Address; 2] = [Address::new(3, 7), Address::new(4, 7)];

    /// A pool of a host at routers 1 and 2, which wants a circuit to one at routers 3 and 4.
    fn pool() -> (CircuitPool, HostHomes) {
        let config =
            PoolConfig { address: OWN.first, relays: 3, circuits_max: 64, max_added: None };
        let mut pool = CircuitPool::new(config, Vanguards::default(), [1; 32], NOW, 0).unwrap();
        let one = ListedRouter { relay: true, hosts: 100, ..ListedRouter::default() };
        let all = (1..=9).map(|number| (Address::new(number, 0), one.clone()));
        pool.set_routers(NOW, RouterList::new(all));
        pool.set_seconds(BTreeMap::from([(FAR[0], FAR[1])]));
        let homes = HostHomes { addresses: OWN, in_use: OWN.first, other_is_up: true };
        pool.set_homes(NOW, homes);
        assert!(pool.want(NOW, FAR[0]));
        (pool, homes)
    }

    fn build(pool: &mut CircuitPool, number: u32) -> (CircuitPlan, CircuitId) {
        let plan = pool.poll_build(NOW).expect("a circuit to build");
        let id = CircuitId::from_bits(number);
        pool.note_begun(NOW, plan.to, Ok(id));
        pool.note_built(NOW, id);
        (plan, id)
    }

    #[test]
    fn the_standby_has_other_ends_and_takes_over_when_a_link_dies() {
        let (mut pool, homes) = pool();
        let [(used, _), (standby, id)] = [1, 2].map(|number| build(&mut pool, number));
        let ends = |plan: &CircuitPlan| (plan.home, plan.path[3]);
        assert_eq!(ends(&used), (OWN.first, FAR[0]));
        assert_eq!(ends(&standby), (Address::new(2, 7), FAR[1]));
        let relays = |plan: &CircuitPlan| [0, 1, 2].map(|at| plan.path[at].router);
        let ([a, b, c], [d, e, f]) = (relays(&used), relays(&standby));
        assert_eq!([a, c, d, f], [1, 3, 2, 4], "large sites, whose routers know the hosts anyway");
        assert!(b > 4 && e > 4, "no middle is a router of either host");
        pool.set_homes(NOW, HostHomes { in_use: standby.home, other_is_up: false, ..homes });
        let switches = core::iter::from_fn(|| pool.poll_switch());
        assert_eq!(switches.last(), Some((FAR[0], Some(id))));
        let next = pool.poll_build(NOW).expect("another standby");
        assert_eq!(ends(&next), (standby.home, FAR[0]), "no circuit begins behind a dead link");
    }

    #[test]
    fn a_set_up_behind_a_dying_link_begins_anew_at_once() {
        let (mut pool, homes) = pool();
        build(&mut pool, 1);
        let plan = pool.poll_build(NOW).expect("a standby");
        pool.note_begun(NOW, plan.to, Ok(CircuitId::from_bits(2)));
        pool.set_homes(NOW, HostHomes { other_is_up: false, ..homes });
        assert_eq!(pool.poll_close(), Some(CircuitId::from_bits(2)));
        let again = pool.poll_build(NOW).expect("another standby");
        assert_eq!((plan.home, again.home), (Address::new(2, 7), OWN.first));
    }

    #[test]
    fn a_destination_that_is_silent_or_behind_a_dead_router_is_sought_at_its_other_address() {
        for hop in [4, 3] {
            let (mut pool, _) = pool();
            let mut now = NOW;
            let ends = [1, 2, 3].map(|number| {
                let plan = pool.poll_build(now).expect("a circuit to build");
                let id = CircuitId::from_bits(number);
                pool.note_begun(now, plan.to, Ok(id));
                pool.note_failed(now, id, hop, SetupFailure::Silent);
                now = now + core::time::Duration::from_secs(60);
                plan.path[3]
            });
            assert_eq!(ends, [FAR[0], FAR[1], FAR[0]], "without an answer of hop {hop}");
        }
    }

    #[test]
    fn a_path_knows_all_routers_of_both_hosts() {
        let homes = HostHomes { addresses: OWN, in_use: OWN.first, other_is_up: false };
        let routers = |to| homes.own_routers(&BTreeMap::from([(FAR[0], FAR[1])]), to);
        assert_eq!(routers(FAR[0]), [1, 2, 3, 4].map(|router| Address::new(router, 0)));
        assert_eq!(routers(FAR[1]), [1, 2, 4].map(|router| Address::new(router, 0)));
        assert!(homes.is_up(OWN.first) && !homes.is_up(Address::new(2, 7)));
        assert!(HostHomes { other_is_up: true, ..homes }.is_up(Address::new(2, 7)));
    }
}
