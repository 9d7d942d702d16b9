//! Hosts at two routers: their second addresses, and the configuration of their nodes.

use std::rc::Rc;

use shoal_crypto::Ciphers;
use shoal_wire::{Address, NodeAddresses};

use crate::node::SimulatedNode;
use crate::options::SimulationOptions;
use crate::plan::NetworkPlan;

/// Host number of the first second address; first addresses have smaller ones.
const NUMBER: u16 = 10_000;

/// Second address of each node, if hosts have one. Hosts of one router are spread over the others.
pub(crate) fn seconds(options: &SimulationOptions, nodes: &[Address]) -> Vec<Option<Address>> {
    let routers = options.routers.max(1);
    let second = |(at, node): (usize, &Address)| {
        if node.is_router() || !options.two_routers || routers < 2 {
            return None;
        }
        let further = 1 + u32::from(node.host) % (routers - 1);
        let router = 1 + (node.router - 1 + further) % routers;
        Some(Address::new(router, NUMBER + at as u16))
    };
    nodes.iter().enumerate().map(second).collect()
}

impl NetworkPlan {
    /// Addresses of a node.
    pub(crate) fn addresses(&self, node: usize) -> NodeAddresses {
        NodeAddresses { first: self.nodes[node], second: self.seconds[node] }
    }

    /// Address by which `near` knows its neighbour `far`. A router knows a host by the address
    /// behind itself.
    pub(crate) fn address_at(&self, far: usize, near: usize) -> Address {
        let (addresses, near) = (self.addresses(far), self.nodes[near]);
        let behind = addresses.at(near.router).filter(|_| near.is_router());
        behind.unwrap_or(addresses.first)
    }

    /// Second addresses of hosts by the first.
    pub(crate) fn second_by_first(&self) -> impl Iterator<Item = (Address, Address)> + '_ {
        let both = self.nodes.iter().zip(&self.seconds);
        both.filter_map(|(first, second)| Some((*first, (*second)?)))
    }
}

impl<C: Ciphers> SimulatedNode<C> {
    /// Sets the second addresses of this host and of those that it knows.
    pub(crate) fn configure_uplinks(&mut self) {
        let makings = Rc::clone(&self.makings);
        let plan = &makings.plan;
        self.control.set_second(plan.seconds[self.at]);
        for &other in &makings.knows[self.at] {
            if let Some(host) = self.host(plan.nodes[other]) {
                self.control.edge.set_second(host, plan.seconds[other]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_another_second_router_and_no_two_share_an_address() {
        let options = |routers| SimulationOptions {
            two_routers: true,
            routers,
            hosts: 12,
            ..SimulationOptions::calm(1)
        };
        let plan = NetworkPlan::new(&options(4));
        let all: Vec<Address> =
            (0..plan.nodes.len()).flat_map(|node| plan.addresses(node).iter()).collect();
        let unique: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!((all.len(), unique.len()), (4 + 2 * 12, all.len()));
        assert!((0..plan.nodes.len()).all(|node| plan.addresses(node).check().is_ok()));
        assert!(NetworkPlan::new(&options(1)).seconds.iter().all(Option::is_none));
    }
}
