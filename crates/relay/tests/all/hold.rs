//! Cells held by a link's delay: later, in order, and without a backlog, with one worker and with
//! several.

use core::time::Duration;

use crate::support::Net;
use shoal_link::EgressConfig;
use shoal_relay::{TrafficCounters, WorkerOrder};
use shoal_wire::{Address, DropReason, LinkId};

const HOSTS: [(usize, Address); 4] = [
    (0, Address::new(1, 1)),
    (1, Address::new(1, 2)),
    (4, Address::new(2, 1)),
    (5, Address::new(2, 2)),
];
const R1: usize = 2;
const DELAY: Option<Duration> = Some(Duration::from_millis(5));
const MS: Duration = Duration::from_millis(1);

/// Two routers with two hosts each.
fn net(workers: u8, change: impl Fn(&mut shoal_relay::RelayConfig)) -> Net {
    let addresses =
        [HOSTS[0].1, HOSTS[1].1, Address::new(1, 0), Address::new(2, 0), HOSTS[2].1, HOSTS[3].1];
    let mut net = Net::with(&addresses, &[(0, 2), (1, 2), (2, 3), (4, 3), (5, 3)], |config| {
        (config.session.workers, config.session.lanes) = (workers, 4);
        change(config);
    });
    net.run(Duration::from_secs(3));
    net
}

fn delayed(workers: u8) -> Net {
    net(workers, |config| config.hold.link_delay = DELAY)
}

/// Cells that a host received from another, by their first byte.
fn arrived(net: &Net, to: usize, from: Address) -> Vec<u8> {
    let cells = net.nodes[to].cells.iter().filter(|(source, _)| *source == from);
    cells.map(|(_, payload)| payload[0]).collect()
}

fn traffic(net: &Net, node: usize) -> TrafficCounters {
    net.nodes[node].relay.counters().traffic
}

/// Number of cells held by all workers of a node.
fn held(net: &Net, node: usize) -> u64 {
    let TrafficCounters { cells_held, cells_released, .. } = traffic(net, node);
    let node = &net.nodes[node];
    let first: usize = node.relay.links().map(|link| node.relay.held(link.link)).sum();
    let rest: usize = node.forwarders.iter().map(|(_, forwarder)| forwarder.held()).sum();
    assert_eq!(cells_held - cells_released, (first + rest) as u64, "a held cell got lost");
    cells_held - cells_released
}

#[test]
fn held_cells_come_later_in_order_and_are_no_backlog() {
    for workers in [1, 2, 4] {
        let mut net = delayed(workers);
        let before = net.now;
        for round in 0..100 {
            for (from, to) in [(0, 2), (1, 3), (2, 1)] {
                net.send(HOSTS[from].0, HOSTS[to].1, 9, round);
            }
            net.run(MS);
            if net.now.since(before) <= 15 * MS {
                assert!(net.nodes.iter().all(|node| node.cells.is_empty()), "too early");
            }
            for node in 0..6 {
                let relay = &net.nodes[node].relay;
                assert!(relay.links().all(|link| link.waiting == 0), "held cells are no backlog");
                let to = HOSTS.iter().find(|(host, _)| *host != node).expect("another").1;
                assert!(!relay.is_marking(to));
                assert_eq!(relay.room(to), EgressConfig::default().data_frames_max);
                assert!(round < 20 || node > 3 || held(&net, node) >= 45, "{}", held(&net, node));
            }
        }
        net.run(30 * MS);
        let rounds: Vec<u8> = (0..100).flat_map(|round| [round; 9]).collect();
        for (from, to) in [(0, 2), (1, 3), (2, 1)] {
            assert_eq!(arrived(&net, HOSTS[to].0, HOSTS[from].1), rounds, "{workers} workers");
        }
        for node in 0..6 {
            let TrafficCounters { cells_origin, cells_transit, cells_held, .. } =
                traffic(&net, node);
            assert_eq!((cells_held, held(&net, node)), (cells_origin + cells_transit, 0));
            assert_eq!(traffic(&net, node).cells_marked, 0);
        }
    }
}

#[test]
fn keepalives_and_reports_are_not_held() {
    for workers in [1, 2] {
        let slow = Some(Duration::from_millis(400));
        let mut net = net(workers, |config| config.hold.link_delay = slow);
        for round in 0..200 {
            net.send(HOSTS[0].0, HOSTS[2].1, 2, round);
            net.run(10 * MS);
        }
        for node in [0, R1, 3, 4] {
            for link in net.nodes[node].relay.links() {
                assert!(link.up_since.is_some() && link.stats.loss == 0.0, "{link:?}");
                assert!(link.stats.rtt < 10 * MS, "{link:?}");
            }
        }
        assert!(held(&net, R1) > 50, "{}", held(&net, R1));
    }
}

#[test]
fn a_full_hold_drops_by_name_and_has_room_again() {
    for workers in [1, 2] {
        let mut net = net(workers, |config| {
            config.hold.link_delay = DELAY;
            config.hold.limits.per_link = 10;
        });
        net.send(HOSTS[0].0, HOSTS[2].1, 14, 1);
        net.run(40 * MS);
        net.send(HOSTS[0].0, HOSTS[2].1, 10, 2);
        net.run(40 * MS);
        assert_eq!(net.nodes[0].relay.counters().dropped(DropReason::MixFull), 4);
        assert_eq!(arrived(&net, HOSTS[2].0, HOSTS[0].1), [[1; 10], [2; 10]].concat());
    }
}

/// Both workers of the router hold cells for each other when the link is removed.
#[test]
fn cells_held_for_a_link_that_is_removed_are_given_up_and_counted() {
    let mut net = delayed(2);
    for (from, to) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        net.send(HOSTS[from].0, HOSTS[to].1, 5, 1);
    }
    net.run(7 * MS);
    let by_second = net.nodes[R1].forwarders[0].1.held();
    assert!((1..20).contains(&by_second) && held(&net, R1) == 20, "{by_second}");
    let link = net.nodes[R1].relay.next_hop(Address::new(2, 0)).expect("a route");
    let before = net.nodes[R1].relay.counters().dropped(DropReason::NoRoute);
    let now = net.now;
    net.nodes[R1].relay.remove_link(now, link);
    net.run(2 * MS);
    assert_eq!(held(&net, R1), 0);
    assert_eq!(net.nodes[R1].relay.counters().dropped(DropReason::NoRoute) - before, 20);
    net.run(20 * MS);
    assert!(arrived(&net, HOSTS[2].0, HOSTS[0].1).is_empty());
}

/// After its hold a cell waits behind the backlog like any other.
#[test]
fn released_cells_do_not_pass_the_backlog() {
    for workers in [1, 2] {
        let mut net = delayed(workers);
        for round in 0..60 {
            net.wire.room = (round % 3 > 0).then_some(4);
            net.send(HOSTS[0].0, HOSTS[2].1, 6, round);
            net.send(HOSTS[1].0, HOSTS[3].1, 6, round);
            net.run(MS);
        }
        net.wire.room = None;
        net.run(60 * MS);
        let rounds: Vec<u8> = (0..60).flat_map(|round| [round; 6]).collect();
        for (from, to) in [(0, 2), (1, 3)] {
            let mut cells = arrived(&net, HOSTS[to].0, HOSTS[from].1);
            assert!(workers > 1 || cells.is_sorted(), "{cells:?}");
            cells.sort_unstable();
            assert_eq!(cells, rounds, "{workers} workers");
        }
        assert!((0..6).all(|node| held(&net, node) == 0));
    }
}

#[test]
fn cells_of_a_link_without_delay_leave_behind_those_that_are_held_and_then_at_once() {
    let mut net = delayed(1);
    let links: Vec<LinkId> = net.nodes[0].relay.links().map(|link| link.link).collect();
    let set = |net: &mut Net, delay| {
        links.iter().for_each(|link| net.nodes[0].relay.set_link_delay(*link, delay));
    };
    net.send(HOSTS[0].0, HOSTS[2].1, 2, 1);
    set(&mut net, None);
    net.send(HOSTS[0].0, HOSTS[2].1, 2, 2);
    assert_eq!(held(&net, 0), 4);
    net.run(30 * MS);
    assert_eq!(arrived(&net, HOSTS[2].0, HOSTS[0].1), [1, 1, 2, 2]);
    let before = traffic(&net, 0).cells_held;
    net.send(HOSTS[0].0, HOSTS[2].1, 2, 3);
    assert_eq!((traffic(&net, 0).cells_held, net.wire.sent.len()), (before, 2));
}

#[test]
fn workers_hear_of_delays_and_say_when_cells_are_due() {
    let mut net = delayed(2);
    assert!(net.nodes[R1].forwarders[0].1.poll_timeout().is_none());
    let (mut at, mut round) = (net.now, 0);
    while net.nodes[R1].forwarders[0].1.poll_timeout().is_none() {
        assert!(round < 50, "no flow of the second worker's");
        round += 1;
        at = net.now;
        net.send(HOSTS[0].0, Address::new(2, round), 1, 0);
        net.run(6 * MS);
    }
    let (due, why) = net.nodes[R1].forwarders[0].1.poll_timeout().expect("seen");
    assert_eq!((due.since(at), why), (10 * MS, "hold"));
    let links: Vec<LinkId> = net.nodes[R1].relay.links().map(|link| link.link).collect();
    links.iter().for_each(|link| net.nodes[R1].relay.set_link_delay(*link, None));
    let views = core::iter::from_fn(|| net.nodes[R1].relay.poll_order());
    assert!(views.into_iter().any(|(_, order)| matches!(order, WorkerOrder::View(_))));
}
