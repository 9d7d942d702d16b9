//! Shifting addresses in the simulator's shell: a prefix for each node, and the epoch of each link.

use core::time::Duration;
use std::net::SocketAddr;
use std::rc::Rc;

use shoal_crypto::Ciphers;
use shoal_wire::{ShiftAnnouncement, Time};

use crate::nat::{self, PORT};
use crate::node::SimulatedNode;
use crate::options::SimulationOptions;
use crate::plan::NetworkPlan;

/// Beginning of all prefixes (RFC 3849).
const BEGIN: [u8; 4] = [0x20, 0x01, 0x0d, 0xb8];

/// Prefix of a node after `moves` changes of prefix.
pub(crate) fn prefix(node: usize, moves: u8) -> [u8; 8] {
    let [a, b, c, d] = BEGIN;
    let [_, f, g, h] = (node as u32).to_be_bytes();
    [a, b, c, d, moves, f, g, h]
}

/// Node that owns a shifting address, and the number of prefix changes before it.
pub(crate) fn owner(at: SocketAddr) -> Option<(usize, u8)> {
    let SocketAddr::V6(v6) = at else { return None };
    let [a, b, c, d, moves, f, g, h, ..] = v6.ip().octets();
    let node = u32::from_be_bytes([0, f, g, h]) as usize;
    ([a, b, c, d] == BEGIN && v6.port() == PORT).then_some((node, moves))
}

/// An address of a node.
pub(crate) fn address((node, moves): (usize, u8), identifier: u64) -> SocketAddr {
    ShiftAnnouncement { prefix: prefix(node, moves), port: PORT, interval_ms: 0 }
        .endpoint(identifier)
}

/// Interface identifier, which stays the same under another prefix.
pub(crate) fn identifier(at: SocketAddr) -> u64 {
    match at {
        SocketAddr::V6(v6) => u128::from(*v6.ip()) as u64,
        SocketAddr::V4(_) => 0,
    }
}

/// Epoch of the addresses of the link between two nodes, if they shift.
pub(crate) fn interval(
    options: &SimulationOptions,
    plan: &NetworkPlan,
    a: usize,
    b: usize,
) -> Option<Duration> {
    let joins = |wire: &(usize, usize)| *wire == (a, b) || *wire == (b, a);
    let number = plan.wires[..plan.links].iter().position(joins)?;
    let seconds = options.shift_s.get(number.checked_rem(options.shift_s.len())?)?;
    Some(Duration::from_secs(u64::from(*seconds)))
}

impl<C: Ciphers> SimulatedNode<C> {
    /// Turns on shifting addresses of the links.
    pub(crate) fn configure_shifts(&mut self, now: Time) {
        let makings = Rc::clone(&self.makings);
        let (options, plan) = (&makings.options, &makings.plan);
        if options.shift_s.is_empty() {
            return;
        }
        self.control.relay.set_shift_place(Some((prefix(self.at, self.moves), PORT)));
        for (link, far) in self.links().to_vec() {
            let interval = interval(options, plan, self.at, far);
            self.control.relay.set_shift(now, link, interval);
            // The files of other nodes never name a later prefix.
            let place = (options.rendezvous > 0).then(|| (prefix(far, 0), PORT));
            self.control.relay.set_rendezvous(now, link, place);
        }
    }

    /// Fixed endpoint at which a neighbour can be called, if the run has any.
    pub(crate) fn endpoint_of(&self, far: usize) -> Option<SocketAddr> {
        (self.makings.options.rendezvous != 1).then(|| nat::public(far))
    }
}

impl<C: Ciphers> SimulatedNode<C> {
    /// Assigns another prefix to the node. The node learns it at once if it runs.
    pub(crate) fn renumber(&mut self, now: Time, moves: u8) {
        self.moves = moves;
        if self.alive {
            let now = self.read_clock(now);
            self.control.relay.move_shift_prefix(now, prefix(self.at, moves));
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
