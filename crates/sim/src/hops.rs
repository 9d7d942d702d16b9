//! Addresses that hop, as the simulator's shell has them: a prefix for each node, and how often the
//! addresses of each link change.

use core::time::Duration;
use std::net::SocketAddr;
use std::rc::Rc;

use shoal_crypto::Ciphers;
use shoal_wire::{HopPlace, Time};

use crate::nat::PORT;
use crate::node::Node;
use crate::options::Options;
use crate::plan::Plan;

/// What all prefixes begin with (RFC 3849).
const BEGIN: [u8; 4] = [0x20, 0x01, 0x0d, 0xb8];

/// The prefix that is routed to a node.
pub(crate) fn prefix(node: usize) -> [u8; 8] {
    let [a, b, c, d] = BEGIN;
    let [e, f, g, h] = (node as u32).to_be_bytes();
    [a, b, c, d, e, f, g, h]
}

/// The node to which an address is routed, if it is one that hops.
pub(crate) fn owner(at: SocketAddr) -> Option<usize> {
    let SocketAddr::V6(v6) = at else { return None };
    let [a, b, c, d, node @ ..] = v6.ip().octets();
    let node = node.first_chunk().map(|node| u32::from_be_bytes(*node) as usize);
    node.filter(|_| [a, b, c, d] == BEGIN && v6.port() == PORT)
}

/// An address of a node.
pub(crate) fn address(node: usize, identifier: u64) -> SocketAddr {
    HopPlace { prefix: prefix(node), port: PORT, interval_ms: 0 }.endpoint(identifier)
}

/// How often the addresses of the link between two nodes change, if they do.
pub(crate) fn interval(options: &Options, plan: &Plan, a: usize, b: usize) -> Option<Duration> {
    let joins = |wire: &(usize, usize)| *wire == (a, b) || *wire == (b, a);
    let number = plan.wires[..plan.links].iter().position(joins)?;
    let seconds = options.hop_s.get(number.checked_rem(options.hop_s.len())?)?;
    Some(Duration::from_secs(u64::from(*seconds)))
}

impl<C: Ciphers> Node<C> {
    /// Lets the addresses of links hop.
    pub(crate) fn configure_hops(&mut self, now: Time) {
        let makings = Rc::clone(&self.makings);
        let (options, plan) = (&makings.options, &makings.plan);
        if options.hop_s.is_empty() {
            return;
        }
        self.control.relay.set_hop_place(Some((prefix(self.at), PORT)));
        for (link, far) in self.links().to_vec() {
            let interval = interval(options, plan, self.at, far);
            self.control.relay.set_hop(now, link, interval);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_routed_to_the_node_whose_prefix_it_has() {
        for node in [0, 1, 255, 70_000] {
            assert_eq!(owner(address(node, 0xfeed_beef)), Some(node));
        }
        assert_eq!(owner(crate::nat::public(3)), None);
        let mut other = address(1, 7);
        other.set_port(PORT + 1);
        assert_eq!(owner(other), None);
    }
}
