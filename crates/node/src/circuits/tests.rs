pub(super) use core::time::Duration;

use shoal_crypto::StandardCiphers;
use shoal_onion::EchoDelays;
use shoal_wire::TAG_LEN;
use shoal_wire::leg::CELL_LEN;

use super::*;
pub(super) use crate::support::Net;
use crate::support::{UNIX_MS, identity, keys, secret};

pub(super) const LIFE: Duration = Duration::from_secs(600);

pub(super) const H1: usize = 0;
pub(super) const R1: usize = 1;
pub(super) const R2: usize = 2;
pub(super) const R3: usize = 3;
pub(super) const H2: usize = 4;
pub(super) const H3: usize = 5;
pub(super) const AT: [Address; 6] = [
    Address::new(1, 1),
    Address::new(1, 0),
    Address::new(2, 0),
    Address::new(3, 0),
    Address::new(3, 1),
    Address::new(1, 2),
];

/// Three routers in a row, with two hosts at the first and one at the last.
pub(super) fn net() -> Net {
    let mut net = Net::new(&AT, &[(H1, R1), (R1, R2), (R2, R3), (H2, R3), (H3, R1)]);
    for node in &mut net.nodes {
        node.circuits.onion.set_nodes(keys(&AT));
    }
    net
}

fn build(net: &mut Net, path: &[usize]) -> CircuitId {
    let path: Vec<_> = path.iter().map(|&node| AT[node]).collect();
    let shape = CellShape::new(3).expect("three places");
    let onion = &mut net.nodes[H1].circuits.onion;
    let id = onion.build(net.now, &path, shape, LIFE).expect("a circuit");
    net.run(Duration::from_millis(20));
    id
}

/// Events about circuits of the first host.
fn said(net: &mut Net) -> Vec<OnionEvent> {
    let events = core::mem::take(&mut net.events);
    let about = events.into_iter().map(|(node, event)| match event {
        crate::NodeEvent::Circuit(event) if node == H1 => event,
        other => panic!("node {node}: {other:?}"),
    });
    about.collect()
}

#[test]
fn a_host_builds_a_circuit_over_three_routers_and_every_hop_answers_it() {
    // Legs between neighbours, and legs that other routers carry.
    for path in [[R1, R2, R3, H2], [R3, R1, R2, H2]] {
        let mut net = net();
        let before: Vec<_> = (0..AT.len()).map(|node| net.drops(node)).collect();
        let id = build(&mut net, &path);
        assert_eq!(said(&mut net), [OnionEvent::Built(id)]);
        for hop in 1..=4 {
            net.nodes[H1].circuits.onion.echo(id, hop, 70).expect("a hop");
            net.run(Duration::from_millis(2));
            assert_eq!(said(&mut net), [OnionEvent::Echoed(id, hop, 70, EchoDelays::default())]);
        }
        for (node, before) in before.iter().enumerate() {
            assert_eq!(&net.drops(node), before, "node {node}");
            let open = usize::from(node != H3);
            assert_eq!(net.nodes[node].circuits.onion.len(), open, "node {node}");
        }
        net.nodes[H1].circuits.onion.close(id);
        net.run(Duration::from_millis(2));
        assert!(net.nodes.iter().all(|node| node.circuits.onion.is_empty()));
    }
}

#[test]
fn a_circuit_ends_at_its_time_and_nodes_wake_for_it() {
    let mut net = net();
    let id = build(&mut net, &[R1, R2, R3, H2]);
    net.run(Duration::from_secs(65));
    assert_eq!(said(&mut net), [OnionEvent::Built(id), OnionEvent::Ended(id)]);
    assert!(net.nodes.iter().all(|node| node.circuits.onion.is_empty()));
}

#[test]
fn a_node_whose_keys_may_exist_twice_forgets_its_circuits() {
    let mut net = net();
    build(&mut net, &[R1, R2, R3, H2]);
    let mut wire = crate::support::TestSink::default();
    let now = net.now;
    net.nodes[R2].rekey_all(now, &mut wire, &mut shoal_crypto::Rng::new([5; 32]));
    assert!(net.nodes[R2].circuits.onion.is_empty() && !net.nodes[R1].circuits.onion.is_empty());
}

#[test]
fn circuits_go_by_the_wall_clock_as_it_is_set() {
    let mut net = net();
    let later = UNIX_MS + 3_600_000;
    let now = net.now;
    net.nodes[R1].set_unix_time(now, later);
    build(&mut net, &[R1, R2, R3, H2]);
    assert_eq!(net.dropped(R1, DropReason::WrongClock), 1);
    for node in &mut net.nodes {
        node.set_unix_time(now, later);
    }
    net.events.clear();
    let id = build(&mut net, &[R1, R2, R3, H2]);
    assert_eq!(said(&mut net), [OnionEvent::Built(id)]);
}

/// Sends a leg cell of no circuit.
fn send_junk(net: &mut Net, from: usize, to: Address) {
    let mut frame = [0x5a; FULL];
    let me = net.nodes[from].circuits.me;
    net.nodes[from].circuits.address(&mut frame, &[0], (to, me), 0);
    let Net { nodes, now, .. } = net;
    let Control { relay, outbox, .. } = &mut nodes[from];
    let mut wire = crate::support::TestSink::default();
    let mut turn = CallContext { now: *now, sink: &mut wire, hand: outbox };
    relay.send_cells(&mut turn, LinkKind::Leg, &mut frame, &[0], FULL);
    net.put(from, wire);
    net.run(Duration::from_millis(2));
}

#[test]
fn a_strangers_leg_cell_is_dropped_by_name_and_not_answered() {
    let mut net = net();
    build(&mut net, &[R1, R2, R3, H2]);
    net.events.clear();
    let origin = |net: &Net, node: usize| net.nodes[node].relay.counters().traffic.cells_origin;
    let before = [R1, R2, H2].map(|node| origin(&net, node));
    for node in [R1, R2, H2] {
        send_junk(&mut net, H3, AT[node]);
        assert_eq!(net.dropped(node, DropReason::UnknownCircuit), 1, "node {node}");
        assert_eq!(net.nodes[node].circuits.onion.len(), 1);
    }
    assert_eq!([R1, R2, H2].map(|node| origin(&net, node)), before);
    // The destination is an unreachable router.
    send_junk(&mut net, H3, Address::new(9, 0));
    assert_eq!(net.dropped(R1, DropReason::NoRoute), 1);
}

/// The circuits of a few nodes without the nodes. Frames go directly from one to the next.
struct CircuitsRig(Vec<NodeCircuits<StandardCiphers>>);

impl CircuitsRig {
    fn new() -> CircuitsRig {
        let node = |(n, &at): (usize, &Address)| {
            let config = crate::support::config(at).relay;
            let (me, seed) = (identity(at), [n as u8; 32]);
            let mut circuits = NodeCircuits::new(&config, me, secret(), seed, Time::ZERO, UNIX_MS);
            circuits.onion.set_nodes(keys(&AT));
            circuits
        };
        CircuitsRig(AT.iter().enumerate().map(node).collect())
    }

    /// Carries the nodes' own frames and all their consequences, each marked on arrival. Returns
    /// all frames as they left, and the number of units.
    fn carry(&mut self) -> (Vec<[u8; FULL]>, usize) {
        let (mut left, mut next, mut units) = (Vec::new(), 0, 0);
        loop {
            for node in &mut self.0 {
                let mut frame = [0; FULL];
                while let Some(job) = node.onion.poll_job() {
                    node.handle_done(Time::ZERO, job.run());
                }
                while node.write_own(&mut frame).is_some() {
                    left.push(frame);
                }
            }
            let Some(mut frame) = left.get(next).copied() else { return (left, units) };
            next += 1;
            let header = RoutedHeader::parse(&frame[link::ROUTED_AT..]).expect("written here");
            frame[MARK_AT] = CongestionMark::Congested as u8;
            let to = AT.iter().position(|at| *at == header.dst()).expect("one of these");
            let mut onward = Vec::new();
            let unit = |_: &mut [u8], run: &[u32], _| {
                units += run.len();
                None
            };
            self.0[to].handle_legs(
                Time::ZERO,
                &mut frame,
                &[0],
                (&mut onward, &mut Vec::new()),
                unit,
            );
            left.extend(onward.iter().map(|_| frame));
        }
    }
}

/// A forwarded mark would be a signal between distant nodes of a circuit.
#[test]
fn every_leg_cell_leaves_with_a_fresh_header() {
    let mut bare = CircuitsRig::new();
    let path = [AT[R1], AT[R2], AT[R3], AT[H2]];
    let shape = CellShape::new(3).expect("three places");
    let id = bare.0[H1].onion.build(Time::ZERO, &path, shape, LIFE).expect("a circuit");
    let (mut frames, _) = bare.carry();
    assert_eq!(bare.0[H1].onion.progress(id), Some((4, true)));
    let mut unit = [3; FULL];
    let start = link::CELL_AT as u32;
    let to = bare.0[H1].onion.seal_units(Time::ZERO, id, &mut unit, &[start]).expect("built");
    bare.0[H1].address(&mut unit, &[0], (to, AT[H1]), 0);
    let mut onward = Vec::new();
    bare.0[R1].handle_legs(
        Time::ZERO,
        &mut unit,
        &[0],
        (&mut onward, &mut Vec::new()),
        |_, _, _| None,
    );
    assert_eq!(onward, [0]);
    frames.push(unit);
    for frame in &frames {
        let header = RoutedHeader::parse(&frame[link::ROUTED_AT..]).expect("written here");
        let fresh = RoutedHeader::new(header.dst(), header.src(), TrafficClass::Bulk);
        assert_eq!(frame[link::ROUTED_AT..link::CELL_AT], *fresh.as_bytes());
        let [from, to] = [header.src(), header.dst()]
            .map(|node| AT.iter().take(5).position(|at| *at == node).expect("on the circuit"));
        assert_eq!(from.abs_diff(to), 1, "a leg from {from} to {to}");
    }
    assert!(frames.len() > 20);
    const { assert!(link::CELL_AT + CELL_LEN + TAG_LEN == FULL) };
}

/// A relay can't forward a mark. It drops a cell of a circuit instead, of one circuit at a time,
/// and never a set-up cell.
#[test]
fn a_congested_circuit_loses_a_cell_from_time_to_time() {
    let mut bare = CircuitsRig::new();
    let (path, shape) = ([AT[R1], AT[R2], AT[H2]], CellShape::new(2).expect("a place"));
    let ids = [H1, H3].map(|from| {
        let id = bare.0[from].onion.build(Time::ZERO, &path, shape, LIFE).expect("a circuit");
        bare.carry();
        assert_eq!(bare.0[from].onion.progress(id), Some((3, true)));
        (from, id)
    });
    const COUNT: usize = 40;
    let mut at_ms = |ms: u64, waited: bool, which: usize| {
        let (now, (from, id)) = (Time::ZERO + Duration::from_millis(ms), ids[which]);
        let mut buf = vec![3; COUNT * FULL];
        let offsets: Vec<u32> = (0..COUNT).map(|n| (n * FULL) as u32).collect();
        let starts: Vec<u32> = offsets.iter().map(|at| at + link::CELL_AT as u32).collect();
        let to = bare.0[from].onion.seal_units(now, id, &mut buf, &starts).expect("built");
        bare.0[from].address(&mut buf, &offsets, (to, AT[from]), 0);
        let mut onward = offsets;
        for relay in [R1, R2] {
            if waited {
                onward
                    .iter()
                    .for_each(|&at| buf[at as usize + MARK_AT] = CongestionMark::Congested as u8);
            }
            assert_eq!(onward.len(), COUNT, "the host hears of its own backlog otherwise");
            let came = core::mem::take(&mut onward);
            let to = (&mut onward, &mut Vec::new());
            bare.0[relay].handle_legs(now, &mut buf, &came, to, |_, _, _| None);
            onward.iter().for_each(|&at| assert_eq!(buf[at as usize + MARK_AT], 0));
        }
        COUNT - onward.len()
    };
    assert_eq!(at_ms(1, false, 0), 0);
    assert_eq!(at_ms(2, true, 0), 1);
    assert_eq!((3..50).map(|ms| at_ms(ms, true, ms as usize % 2)).sum::<usize>(), 0);
    assert_eq!(at_ms(60, true, 1), 1);
    let more: usize = (61..1_061).map(|ms| at_ms(ms, true, 0)).sum();
    assert!((15..=20).contains(&more), "{more}");
    let lost = bare.0[R2].take_drops().collect::<Vec<_>>();
    assert_eq!(lost, [(DropReason::CircuitCongested, more as u64 + 2)]);
}

/// Runs of several nodes and circuits in one batch are handled separately.
#[test]
fn a_batch_of_cells_of_many_circuits_is_taken_in_runs() {
    let mut bare = CircuitsRig::new();
    let shape = CellShape::new(1).expect("a place");
    let paths = [(H1, [R1, H2]), (H1, [R1, H3]), (H3, [R1, H2]), (H3, [R1, H1])];
    let ids = paths.map(|(from, path)| {
        let path = path.map(|node| AT[node]);
        let id = bare.0[from].onion.build(Time::ZERO, &path, shape, LIFE).expect("a circuit");
        bare.carry();
        (from, id)
    });
    let order = [0, 0, 1, 0, 2, 2, 3, 3, 3, 1, 4, 1];
    let mut buf = vec![9; order.len() * FULL];
    let offsets: Vec<u32> = (0..order.len()).map(|n| (n * FULL) as u32).collect();
    for (&at, &which) in offsets.iter().zip(&order) {
        // The last cell belongs to no circuit.
        let (from, id) = *ids.get(which).unwrap_or(&ids[0]);
        let start = at + link::CELL_AT as u32;
        let to = bare.0[from].onion.seal_units(Time::ZERO, id, &mut buf, &[start]).expect("built");
        bare.0[from].address(&mut buf, &[at], (to, AT[from]), 0);
        buf[start as usize] ^= u8::from(which == 4);
    }
    let mut onward = Vec::new();
    bare.0[R1].handle_legs(
        Time::ZERO,
        &mut buf,
        &offsets,
        (&mut onward, &mut Vec::new()),
        |_, _, _| None,
    );
    let went: Vec<_> = (0..order.len()).filter(|&n| order[n] < 4).collect();
    assert_eq!(onward, went.iter().map(|&n| offsets[n]).collect::<Vec<_>>());
    for n in went {
        let header = RoutedHeader::parse(&buf[offsets[n] as usize + link::ROUTED_AT..]);
        let (_, [_, to]) = paths[order[n]];
        assert_eq!(header.map(|header| header.dst()), Ok(AT[to]), "cell {n}");
    }
    assert_eq!(bare.0[R1].take_drops().map(|(_, n)| n).sum::<u64>(), 1);
}
