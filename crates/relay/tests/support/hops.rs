//! Addresses that hop: prefixes of the test network's nodes, and translators before them.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::Net;

/// From where to where something was sent.
pub type Walls = BTreeSet<(SocketAddr, SocketAddr)>;

/// A datagram on its way: from where, to where.
pub type Datagram = (SocketAddr, SocketAddr, Vec<u8>);

/// The prefix under which a node's addresses hop: 2001:db8:0:N::/64 with its number, from 1 on.
pub fn hop_prefix(node: usize) -> [u8; 8] {
    [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, node as u8 + 1]
}

/// Another prefix of the same node: 2001:db8:9:N::/64.
pub fn moved_prefix(node: usize) -> [u8; 8] {
    [0x20, 0x01, 0x0d, 0xb8, 0, 9, 0, node as u8 + 1]
}

/// The same identifier under another prefix.
pub fn under(prefix: [u8; 8], at: SocketAddr) -> SocketAddr {
    let SocketAddr::V6(mut v6) = at else { return at };
    let mut octets = v6.ip().octets();
    octets[..8].copy_from_slice(&prefix);
    v6.set_ip(octets.into());
    v6.into()
}

/// Whose address this is, if it is under such a prefix.
pub fn hopper(at: SocketAddr) -> Option<usize> {
    let SocketAddr::V6(v6) = at else { return None };
    let octets = v6.ip().octets();
    let is_its =
        |node: usize| [hop_prefix(node), moved_prefix(node)].map(|p| octets.starts_with(&p));
    (0..8).find(|node| is_its(*node).contains(&true))
}

impl Net {
    /// Whether a frame of this length gets lost between two nodes.
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

    /// The source of a datagram when it has left its node's network.
    pub(super) fn leaves(&self, from: SocketAddr) -> SocketAddr {
        let hides = hopper(from).filter(|node| self.translated.contains(node));
        hides.map_or(from, |node| under(self.routed[node], from))
    }

    /// The destination of a datagram when it has come to its node, if a route leads there, and a
    /// firewall lets it in.
    pub(super) fn comes(&mut self, from: SocketAddr, to: SocketAddr) -> Option<SocketAddr> {
        let lost = |at, prefix: Option<usize>| prefix.is_some() && hopper(at) == prefix;
        if lost(to, self.unrouted[0]) || lost(from, self.unrouted[1]) {
            return None;
        }
        if let Some(walls) = &mut self.walls {
            walls.insert((from, to));
            if !walls.contains(&(to, from)) && [from, to].map(hopper) != [None, None] {
                return None;
            }
        }
        let Some(node) = hopper(to) else { return Some(to) };
        let mut routed = self.also.iter().chain([&self.routed[node]]);
        let is_routed = routed.any(|prefix| under(*prefix, to) == to);
        let inside = if self.translated.contains(&node) { under(hop_prefix(node), to) } else { to };
        is_routed.then_some(inside)
    }

    /// Has a node send what is due; it is held, and returned.
    pub fn hold(&mut self, node: usize) -> Vec<Datagram> {
        self.wire.from = Some(self.nodes[node].at);
        self.work(node);
        self.wire.sent.drain(..).collect()
    }

    /// As [`Net::step`], and what was held arrives.
    pub fn step_with(&mut self, held: Vec<Datagram>) {
        self.wire.sent.extend(held);
        self.step();
    }

    /// As [`Net::step`], but what goes between the fixed endpoints of nodes is held, and returned.
    pub fn step_between_hoppers(&mut self) -> Vec<Datagram> {
        for node in 0..self.nodes.len() {
            self.wire.from = Some(self.nodes[node].at);
            self.work(node);
        }
        let mut held = Vec::new();
        while let Some((from, to, mut frame)) = self.wire.sent.pop_front() {
            if [from, to].map(hopper) == [None, None] {
                held.push((from, to, frame));
                continue;
            }
            let Some(node) = self.node_at(to) else { continue };
            let (from, Some(to)) = (self.leaves(from), self.comes(from, to)) else { continue };
            let local = self.local;
            self.local = hopper(to).map(|_| to).or(local);
            self.deliver(node, from, &mut frame);
            self.local = local;
        }
        held
    }
}
