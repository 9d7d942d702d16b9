//! Addresses that hop, as the simulator's shell has them: a prefix for each node, and how often the
//! addresses of each link change.

use core::time::Duration;
use std::net::SocketAddr;
use std::rc::Rc;

use shoal_crypto::Ciphers;
use shoal_wire::{HopPlace, Time};

use crate::nat::{self, PORT};
use crate::node::Node;
use crate::options::Options;
use crate::plan::Plan;

/// What all prefixes begin with (RFC 3849).
const BEGIN: [u8; 4] = [0x20, 0x01, 0x0d, 0xb8];

/// The prefix that is routed to a node that has moved so often.
pub(crate) fn prefix(node: usize, moves: u8) -> [u8; 8] {
    let [a, b, c, d] = BEGIN;
    let [_, f, g, h] = (node as u32).to_be_bytes();
    [a, b, c, d, moves, f, g, h]
}

/// The node that an address that hops is of, and how often that had moved.
pub(crate) fn owner(at: SocketAddr) -> Option<(usize, u8)> {
    let SocketAddr::V6(v6) = at else { return None };
    let [a, b, c, d, moves, f, g, h, ..] = v6.ip().octets();
    let node = u32::from_be_bytes([0, f, g, h]) as usize;
    ([a, b, c, d] == BEGIN && v6.port() == PORT).then_some((node, moves))
}

/// An address of a node.
pub(crate) fn address((node, moves): (usize, u8), identifier: u64) -> SocketAddr {
    HopPlace { prefix: prefix(node, moves), port: PORT, interval_ms: 0 }.endpoint(identifier)
}

/// Its interface identifier, which it keeps under another prefix.
pub(crate) fn identifier(at: SocketAddr) -> u64 {
    match at {
        SocketAddr::V6(v6) => u128::from(*v6.ip()) as u64,
        SocketAddr::V4(_) => 0,
    }
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
        self.control.relay.set_hop_place(Some((prefix(self.at, self.moves), PORT)));
        for (link, far) in self.links().to_vec() {
            let interval = interval(options, plan, self.at, far);
            self.control.relay.set_hop(now, link, interval);
            // Another prefix is in nobody's file.
            let place = (options.rendezvous > 0).then(|| (prefix(far, 0), PORT));
            self.control.relay.set_rendezvous(now, link, place);
        }
    }

    /// Where a neighbour can be called that stays there.
    pub(crate) fn endpoint_of(&self, far: usize) -> Option<SocketAddr> {
        (self.makings.options.rendezvous != 1).then(|| nat::public(far))
    }
}

impl<C: Ciphers> Node<C> {
    /// Another prefix is routed to the node from now on, which knows it at once if it runs.
    pub(crate) fn renumber(&mut self, now: Time, moves: u8) {
        self.moves = moves;
        if self.alive {
            let now = self.read_clock(now);
            self.control.relay.move_hop_prefix(now, prefix(self.at, moves));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_routed_to_the_node_whose_prefix_it_has() {
        for node in [0, 1, 255, 70_000] {
            let at = (node, node as u8);
            assert_eq!(owner(address(at, 0xfeed_beef)), Some(at));
            assert_eq!(identifier(address(at, 0xfeed_beef)), 0xfeed_beef);
        }
        assert_eq!(owner(crate::nat::public(3)), None);
        let mut other = address((1, 0), 7);
        other.set_port(PORT + 1);
        assert_eq!(owner(other), None);
    }
}
