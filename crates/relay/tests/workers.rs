//! Nodes of several workers: whatever arrives at whichever of them, the node does what one of a
//! single worker does.

#[allow(dead_code, reason = "the benchmark uses the rest")]
mod support;

use core::time::Duration;
use proptest::prelude::*;
use shoal_crypto::Rng;
use shoal_relay::Traffic;
use shoal_wire::{Address, DropReason};
use support::{Net, socket};

const HOSTS: [(usize, Address); 4] = [
    (0, Address::new(1, 1)),
    (1, Address::new(1, 2)),
    (4, Address::new(2, 1)),
    (5, Address::new(2, 2)),
];
const R1: usize = 2;

/// Two routers with two hosts each; every node has so many workers and lanes.
fn net(workers: u8, lanes: u8) -> Net {
    net_with(|config| (config.session.workers, config.session.lanes) = (workers, lanes))
}

fn net_with(change: impl Fn(&mut shoal_relay::Config)) -> Net {
    let addresses = [
        Address::new(1, 1),
        Address::new(1, 2),
        Address::new(1, 0),
        Address::new(2, 0),
        Address::new(2, 1),
        Address::new(2, 2),
    ];
    let links = [(0, 2), (1, 2), (2, 3), (4, 3), (5, 3)];
    let mut net = Net::with(&addresses, &links, change);
    net.run(Duration::from_secs(3));
    net
}

fn cells(net: &Net) -> Vec<Vec<(Address, Vec<u8>)>> {
    let sorted = |i: usize| {
        let mut cells = net.nodes[i].cells.clone();
        cells.sort_unstable();
        cells
    };
    (0..net.nodes.len()).map(sorted).collect()
}

/// Sums that must not depend on who did the work.
fn work(net: &Net, node: usize) -> [u64; 3] {
    let relay = &net.nodes[node].relay;
    let Traffic { cells_transit, cells_local, cells_origin, .. } = relay.counters().traffic;
    let Traffic { dispatched, frames_out, handshakes_out, .. } = relay.counters().traffic;
    let waiting: usize = relay.links().map(|link| link.waiting).sum();
    let left = frames_out - handshakes_out + waiting as u64;
    assert_eq!(dispatched, left, "node {node}: each frame has left or waits");
    [cells_transit, cells_local, cells_origin]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_split_over_workers_gives_what_one_worker_gives(
        workers in 2u8..5,
        lanes in 1u8..=16,
        keeping: bool,
        seed: [u8; 32],
        sends in prop::collection::vec((0usize..4, 0usize..4, 1usize..12), 1..30),
    ) {
        let mut nets = [net(1, lanes), net(workers, lanes)];
        nets[1].keeping = keeping;
        for net in &mut nets {
            net.spread = Rng::new(seed);
            for (round, &(from, to, n)) in (0u8..).zip(&sends) {
                net.send(HOSTS[from].0, HOSTS[to].1, n, round);
                net.run(Duration::from_millis(2));
            }
            net.run(Duration::from_millis(200));
        }
        let [one, many] = &nets;
        prop_assert_eq!(cells(one), cells(many));
        for node in 0..6 {
            prop_assert_eq!(work(one, node), work(many, node));
            prop_assert!(many.nodes[node].relay.links().all(|link| link.up_since.is_some()));
            prop_assert_eq!(many.nodes[node].relay.counters().dropped(DropReason::OtherWorker), 0);
            // Reports are as exact as if one had done it: what was sent arrived.
            prop_assert!(many.nodes[node].relay.links().all(|link| link.stats.loss == 0.0));
        }
    }
}

#[test]
fn whichever_worker_sends_a_router_sees_one_lane_per_pair_of_hosts() {
    let mut net = net(3, 9);
    let carried = |net: &Net| {
        let node = &net.nodes[R1];
        let others: u64 = node.forwarded_by.iter().sum();
        let first = node.relay.counters().traffic.cells_transit - others;
        [first, node.forwarded_by[0], node.forwarded_by[1]]
    };
    for (from, to) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        let before = carried(&net);
        for round in 0..40 {
            net.send(HOSTS[from].0, HOSTS[to].1, 1, round);
            net.step();
        }
        let after = carried(&net);
        let by: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        // Lanes are dealt out in turn: more than one would be seen by more than one worker.
        assert!(by.contains(&40), "{by:?}");
    }
}

#[test]
fn a_captured_frame_is_accepted_once_wherever_its_copies_arrive() {
    let mut net = net(3, 9);
    let taken = |net: &Net| net.nodes[R1].relay.counters().traffic.cells_transit;
    let mut replayed = 0;
    for round in 0..8 {
        let before = taken(&net);
        net.wire.sent.clear();
        net.send(HOSTS[round % 2].0, HOSTS[2 + round % 2].1, 1, 9);
        let (_, _, frame) = net.wire.sent.pop_front().expect("the frame on its way to r1");
        for port in 0..64u16 {
            let mut from = socket(HOSTS[round % 2].0);
            from.set_port(20_000 + port);
            net.deliver(R1, from, &mut frame.clone());
        }
        assert_eq!(taken(&net) - before, 1);
        replayed += 63;
        assert_eq!(net.nodes[R1].relay.counters().dropped(DropReason::Replayed), replayed);
    }
}

#[test]
fn keys_change_and_neighbours_restart_under_traffic() {
    let mut net = net_with(|config| {
        (config.session.workers, config.session.lanes) = (2, 4);
        config.session.rekey_after = Duration::from_secs(4);
        config.session.reject_after = Duration::from_secs(9);
    });
    let mut sent = 0;
    for round in 0..3_000u32 {
        for (from, to) in [(0, 2), (1, 3), (3, 0)] {
            net.send(HOSTS[from].0, HOSTS[to].1, 1, round as u8);
            sent += 1;
        }
        net.run(Duration::from_millis(10));
    }
    let got: usize = net.nodes.iter().map(|node| node.cells.len()).sum();
    assert_eq!(got, sent, "thirty seconds of changing keys every four lose nothing");
    assert!(net.nodes[R1].relay.sessions().stats().established > 12);
    let forwarded = net.nodes[R1].forwarded;
    assert!((100..8_900).contains(&forwarded), "the second worker passed on {forwarded} cells");
}

#[test]
fn where_a_link_waits_no_worker_passes_by_and_nothing_is_lost() {
    let mut net = net(2, 4);
    for round in 0..40u8 {
        // The kernel has no room, for r1 as for its hosts, in every other round.
        net.wire.room = (round % 2 == 0).then_some(6);
        net.send(HOSTS[0].0, HOSTS[2].1, 4, round);
        net.send(HOSTS[1].0, HOSTS[3].1, 4, round);
        net.run(Duration::from_millis(3));
        net.wire.room = None;
        net.run(Duration::from_millis(3));
    }
    let got: usize = net.nodes.iter().map(|node| node.cells.len()).sum();
    assert_eq!(got, 320);
    (0..6).for_each(|node| assert!(work(&net, node) != [0; 3]));
}

#[test]
fn a_full_ring_is_a_counted_drop_and_the_next_frame_goes_on() {
    let mut net = net(2, 4);
    net.full_rings = true;
    for round in 0..30 {
        net.send(HOSTS[0].0, HOSTS[2].1, 1, round);
        net.send(HOSTS[1].0, HOSTS[3].1, 1, round);
        net.run(Duration::from_millis(1));
    }
    let dropped = |net: &Net| {
        let of = |node: usize| net.nodes[node].relay.counters().dropped(DropReason::OtherWorker);
        (0..6).map(of).sum::<u64>()
    };
    assert!(dropped(&net) > 10, "{}", dropped(&net));
    net.full_rings = false;
    net.run(Duration::from_secs(3));
    let before: usize = net.nodes.iter().map(|node| node.cells.len()).sum();
    net.send(HOSTS[0].0, HOSTS[2].1, 5, 200);
    net.send(HOSTS[1].0, HOSTS[3].1, 5, 200);
    net.run(Duration::from_millis(50));
    assert_eq!(net.nodes.iter().map(|node| node.cells.len()).sum::<usize>() - before, 10);
}

#[test]
fn a_path_that_carries_no_full_frame_is_left_to_the_first_worker() {
    let mut net = net(2, 4);
    for node in 0..6 {
        let links: Vec<_> = net.nodes[node].relay.links().map(|link| link.link).collect();
        links.into_iter().for_each(|link| net.nodes[node].relay.set_small_path(link, true));
    }
    net.wire.longest = Some(576);
    net.run(Duration::from_millis(10));
    net.send(HOSTS[0].0, HOSTS[2].1, 9, 1);
    net.send(HOSTS[1].0, HOSTS[3].1, 9, 2);
    net.run(Duration::from_millis(50));
    assert_eq!(net.nodes.iter().map(|node| node.cells.len()).sum::<usize>(), 18);
}

/// A router whose list is too old keeps its links; no cell passes it, whichever worker it meets.
#[test]
fn links_for_lists_carry_no_cell_and_lead_nowhere() {
    const R2: usize = 3;
    for workers in [1, 3] {
        let mut net = net(workers, 4);
        let send = |net: &mut Net| {
            let before = cells(net).iter().map(Vec::len).sum::<usize>();
            for round in 0..8 {
                net.send(0, Address::new(2, 1), 3, round);
                net.send(4, Address::new(1, 1), 3, round);
                net.send(4, Address::new(2, 2), 3, round);
                net.send(R2, Address::new(2, 1), 3, round);
            }
            net.run(Duration::from_millis(20));
            cells(net).iter().map(Vec::len).sum::<usize>() - before
        };
        assert_eq!(send(&mut net), 96, "{workers} workers");
        let now = net.now;
        net.nodes[R2].relay.set_lists_only(now, true);
        net.run(Duration::from_millis(20));
        assert_eq!(send(&mut net), 0, "{workers} workers");
        let relay = &net.nodes[R2].relay;
        let dropped = relay.counters().dropped(DropReason::StaleList)
            + relay.counters().dropped(DropReason::NoRoute);
        assert!(dropped >= 72, "{dropped} at the router");
        assert!(relay.routing().unwrap().table().is_empty());
        // The links stay up, at both ends, and nobody's route leads over them after a while.
        let up = |net: &Net, node: usize| -> Vec<_> {
            net.nodes[node].relay.links().map(|link| link.up_since).collect()
        };
        let before = [R1, R2].map(|node| up(&net, node));
        net.run(Duration::from_secs(60));
        assert!(net.nodes[R2].relay.links().all(|link| link.up_since.is_some()));
        assert_eq!([R1, R2].map(|node| up(&net, node)), before, "{workers} workers");
        assert!(net.nodes[R1].relay.routing().unwrap().table().is_empty());
        let now = net.now;
        net.nodes[R2].relay.set_lists_only(now, false);
        net.run(Duration::from_secs(10));
        assert_eq!(send(&mut net), 96, "{workers} workers");
    }
}
