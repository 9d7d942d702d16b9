//! Two hosts for which policy requires circuits, in a network of complete nodes.

use std::collections::BTreeMap;

use shoal_edge::{EdgeEvent, HostId};
use shoal_ip::VNET_LEN;

use super::tests::*;
use super::*;
use crate::support::{interface, take_cells};
pub(super) use crate::support::{packet, tap};

/// Two hosts that are hidden from each other, and a replacement for the choice of relays.
struct HiddenPair {
    net: Net,
    /// Each host's id for the other.
    hosts: BTreeMap<usize, HostId>,
    /// The circuit that each host built or is building.
    own: BTreeMap<usize, CircuitId>,
    /// Drops of each node before the test.
    drops: Vec<Vec<(DropReason, u64)>>,
}

const SHAPE: u8 = 3;

pub(super) fn shape() -> CellShape {
    CellShape::new(SHAPE).expect("three places")
}

/// The path of a host's circuits to the other host.
fn path(from: usize) -> [Address; 4] {
    match from {
        H1 => [R1, R2, R3, H2].map(|node| AT[node]),
        _ => [R3, R2, R1, H1].map(|node| AT[node]),
    }
}

impl HiddenPair {
    fn new() -> HiddenPair {
        let mut net = net();
        let mut hosts = BTreeMap::new();
        for (me, other) in [(H1, H2), (H2, H1)] {
            let host = net.introduce(me, AT[other]);
            net.nodes[me].edge.set_hidden(&BTreeMap::from([(host, shape())]));
            hosts.insert(me, host);
        }
        take_cells();
        let drops = (0..AT.len()).map(|node| net.drops(node)).collect();
        HiddenPair { net, hosts, own: BTreeMap::new(), drops }
    }

    /// Lets time pass. Builds circuits when a host asks for them.
    fn run(&mut self, ms: u64) -> Vec<(usize, EdgeEvent)> {
        let mut said = Vec::new();
        for _ in 0..ms {
            self.net.run(Duration::from_millis(1));
            for (at, event) in core::mem::take(&mut self.net.events) {
                let now = self.net.now;
                let node = &mut self.net.nodes[at];
                match event {
                    crate::NodeEvent::Edge(EdgeEvent::NeedCircuit(_)) => {
                        let id = node.circuits.onion.build(now, &path(at), shape(), LIFE);
                        self.own.insert(at, id.expect("room"));
                    }
                    crate::NodeEvent::Circuit(OnionEvent::Built(id)) => {
                        assert_eq!(self.own[&at], id);
                        node.edge.set_circuit(self.hosts[&at], Some((id, shape())));
                    }
                    crate::NodeEvent::Edge(event) => said.push((at, event)),
                    _ => {}
                }
            }
        }
        said
    }

    /// True if the other host answers a ping.
    fn pings(&mut self, from: usize, seq: u32) -> bool {
        let host = self.hosts[&from];
        self.net.nodes[from].edge.ping(host, 7, seq).expect("room");
        let said = self.run(60);
        said.iter().any(|(at, event)| {
            let answer = EdgeEvent::Echo { host, id: 7, seq };
            *at == from && format!("{event:?}") == format!("{answer:?}")
        })
    }

    /// Sends a program's packet. Returns true if the other host's programs received it.
    fn carries(&mut self, from: usize, payload: usize) -> bool {
        let to = if from == H1 { H2 } else { H1 };
        let read = packet(interface(AT[from]), interface(AT[to]), payload);
        tap(&mut self.net, from).waiting.push_back(read.clone());
        self.run(60);
        let given = core::mem::take(&mut tap(&mut self.net, to).given);
        given.len() == 1 && given[0][VNET_LEN..] == read[VNET_LEN..]
    }
}

/// True if a cell carried the addresses of both hosts, in either direction.
fn is_named(cells: &[(LinkKind, Address, Address)], a: usize, b: usize) -> bool {
    let pair = [(AT[a], AT[b]), (AT[b], AT[a])];
    cells.iter().any(|(_, dst, src)| pair.contains(&(*dst, *src)))
}

/// The receiving host keeps a circuit in its table once a unit of the other host arrived.
#[test]
fn a_unit_that_the_other_host_sealed_keeps_the_circuit_its_place() {
    let mut pair = HiddenPair::new();
    let kept = |pair: &HiddenPair, at: usize| {
        let fills = pair.net.nodes[at].circuits.onion.fills().into_iter();
        fills.filter(|(what, ..)| *what == "circuits of a sender").map(|(_, n, _)| n).sum::<usize>()
    };
    assert_eq!(kept(&pair, H2), 0);
    assert!(pair.pings(H1, 1));
    assert_eq!([H1, R1, R3, H2].map(|at| kept(&pair, at)), [0, 0, 0, 1]);
}

#[test]
fn hidden_hosts_exchange_everything_over_three_relays_and_nothing_else() {
    let mut pair = HiddenPair::new();
    assert!(pair.pings(H1, 1), "handshake and ping");
    assert!(pair.carries(H1, 100) && pair.carries(H2, 900), "packets both ways");
    assert!(pair.pings(H2, 2), "back on the circuit of the other");
    assert_eq!(pair.own.len(), 1, "one circuit serves both");
    let cells = take_cells();
    assert!(!is_named(&cells, H1, H2));
    assert!(cells.iter().all(|(kind, ..)| *kind == LinkKind::Leg), "{cells:?}");
    assert!(cells.len() > 60);
    for node in [H1, R1, R2, R3, H2] {
        assert_eq!(pair.net.drops(node), pair.drops[node], "node {node}");
    }

    // The check detects cells of hosts that are not hidden.
    let host = pair.net.introduce(H3, AT[H1]);
    pair.net.introduce(H1, AT[H3]);
    pair.net.nodes[H3].edge.ping(host, 7, 3).expect("room");
    pair.run(60);
    assert!(is_named(&take_cells(), H1, H3));
}

/// A host without a pool sends nothing to hosts for which policy requires circuits.
#[test]
fn without_a_pool_hidden_hosts_are_not_spoken_with() {
    let mut net = net();
    let host = net.introduce(H1, AT[H2]);
    net.introduce(H2, AT[H1]);
    assert!(net.nodes[H1].pool().is_none());
    net.nodes[H1].set_hidden(&[host].into());
    take_cells();
    net.nodes[H1].edge.ping(host, 7, 1).expect("room");
    net.run(Duration::from_secs(25));
    let cells = take_cells();
    assert!(!is_named(&cells, H1, H2), "{cells:?}");
    let told = |(at, event): &(usize, crate::NodeEvent)| {
        let is_it =
            matches!(event, crate::NodeEvent::Edge(EdgeEvent::Unreachable(at)) if *at == host);
        *at == H1 && is_it
    };
    assert!(net.events.iter().any(told), "the owner gets an event");
}

#[test]
fn a_circuit_over_which_nothing_comes_back_ends_and_is_replaced() {
    let mut pair = HiddenPair::new();
    assert!(pair.pings(H1, 1));
    let first = pair.own[&H1];
    // A relay forgets all circuits, so no answers return.
    let now = pair.net.now;
    pair.net.nodes[R2].circuits.onion.forget_all(now, &[8; 32]);
    assert!(!pair.pings(H1, 2));
    // The origin gives the circuit up, and the edge gets another.
    pair.run(62_000);
    assert_ne!(pair.own[&H1], first);
    assert!(pair.pings(H1, 3) && pair.carries(H2, 10));
    assert!(!is_named(&take_cells(), H1, H2));
}

/// Cells that the edge sends on a closed circuit are dropped by name, and a new circuit is
/// requested.
#[test]
fn an_edge_that_sends_on_a_circuit_that_is_gone_asks_for_another() {
    let mut pair = HiddenPair::new();
    assert!(pair.pings(H1, 1));
    let established = |pair: &HiddenPair| pair.net.nodes[H1].edge.sessions().stats().established;
    let (first, sessions) = (pair.own[&H1], established(&pair));
    pair.net.nodes[H1].circuits.onion.close(first);
    pair.pings(H1, 2);
    assert_eq!(pair.net.dropped(H1, DropReason::UnknownCircuit), 1);
    assert_ne!(pair.own[&H1], first);
    assert!(pair.pings(H1, 3));
    assert_eq!(established(&pair), sessions, "the session went on");
    assert!(!is_named(&take_cells(), H1, H2));
}
