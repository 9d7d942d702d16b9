//! Address shifts: prefixes of the test network's nodes, and translators in front of them.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::Net;

/// Source and destination of each datagram that was sent.
pub type FirewallState = BTreeSet<(SocketAddr, SocketAddr)>;

/// A datagram in transit: source, destination, bytes.
pub type Datagram = (SocketAddr, SocketAddr, Vec<u8>);

/// The prefix of a node's shifting addresses: 2001:db8:0:N::/64, with N counted from 1.
pub fn shift_prefix(node: usize) -> [u8; 8] {
    [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, node as u8 + 1]
}

/// A second prefix of this node: 2001:db8:9:N::/64.
pub fn moved_prefix(node: usize) -> [u8; 8] {
    [0x20, 0x01, 0x0d, 0xb8, 0, 9, 0, node as u8 + 1]
}

/// The identifier of `at` under another prefix.
pub fn under(prefix: [u8; 8], at: SocketAddr) -> SocketAddr {
    let SocketAddr::V6(mut v6) = at else { return at };
    let mut octets = v6.ip().octets();
    octets[..8].copy_from_slice(&prefix);
    v6.set_ip(octets.into());
    v6.into()
}

/// The node that has this address, if it is under such a prefix.
pub fn shifter(at: SocketAddr) -> Option<usize> {
    let SocketAddr::V6(v6) = at else { return None };
    let octets = v6.ip().octets();
    let is_its =
        |node: usize| [shift_prefix(node), moved_prefix(node)].map(|p| octets.starts_with(&p));
    (0..8).find(|node| is_its(*node).contains(&true))
}

impl Net {
    /// True if a frame of this length is lost between two nodes.
    pub(super) fn loses(&mut self, a: usize, b: usize, len: usize) -> bool {
        if self.cut.contains(&(a, b)) || self.cut.contains(&(b, a)) {
            return true;
        }
        if let Some((_, _, one_of)) = self.lossy.filter(|&(x, y, _)| (x, y) == (a, b))
            && self.spread.below(one_of) == 0
        {
            return true;
        }
        self.narrow.iter().any(|&(x, y, most)| (x, y) == (a, b) && len > most)
    }

    /// The source of a datagram after it left its node's network.
    pub(super) fn leaves(&self, from: SocketAddr) -> SocketAddr {
        let hides = shifter(from).filter(|node| self.translated.contains(node));
        hides.map_or(from, |node| under(self.routed[node], from))
    }

    /// The destination of a datagram at its node. None without a route, or if the firewall blocks
    /// it.
    pub(super) fn comes(&mut self, from: SocketAddr, to: SocketAddr) -> Option<SocketAddr> {
        let lost = |at, prefix: Option<usize>| prefix.is_some() && shifter(at) == prefix;
        if lost(to, self.unrouted[0]) || lost(from, self.unrouted[1]) {
            return None;
        }
        if let Some(walls) = &mut self.walls {
            walls.insert((from, to));
            if !walls.contains(&(to, from)) && [from, to].map(shifter) != [None, None] {
                return None;
            }
        }
        let Some(node) = shifter(to) else { return Some(to) };
        let mut routed = self.also.iter().chain([&self.routed[node]]);
        let is_routed = routed.any(|prefix| under(*prefix, to) == to);
        let inside =
            if self.translated.contains(&node) { under(shift_prefix(node), to) } else { to };
        is_routed.then_some(inside)
    }

    /// Makes a node send what is due. Holds and returns the datagrams.
    pub fn hold(&mut self, node: usize) -> Vec<Datagram> {
        self.wire.from = Some(self.nodes[node].at);
        self.work(node);
        self.wire.sent.drain(..).collect()
    }

    /// Runs [`Net::step`], and delivers the held datagrams.
    pub fn step_with(&mut self, held: Vec<Datagram>) {
        self.wire.sent.extend(held);
        self.step();
    }

    /// Runs [`Net::step`], but holds and returns datagrams between fixed endpoints.
    pub fn step_between_shifters(&mut self) -> Vec<Datagram> {
        for node in 0..self.nodes.len() {
            self.wire.from = Some(self.nodes[node].at);
            self.work(node);
        }
        let mut held = Vec::new();
        while let Some((from, to, mut frame)) = self.wire.sent.pop_front() {
            if [from, to].map(shifter) == [None, None] {
                held.push((from, to, frame));
                continue;
            }
            let Some(node) = self.node_at(to) else { continue };
            let (from, Some(to)) = (self.leaves(from), self.comes(from, to)) else { continue };
            let local = self.local;
            self.local = shifter(to).map(|_| to).or(local);
            self.deliver(node, from, &mut frame);
            self.local = local;
        }
        held
    }
}
