//! Networks of routing machines: convergence, cuts, partitions, restarts, flapping. Every event is
//! followed by a check for loops (tests/harness).

use std::time::Duration;

use crate::harness::{CLEAN, Faults, RoutingNet, UNIX_S, ms};
use shoal_crypto::Rng;
use shoal_routing::Config;
use shoal_wire::LinkId;

const TRIANGLE: [(u32, u32); 3] = [(1, 2), (2, 3), (1, 3)];
const ROUGH: Faults = Faults {
    loss_percent: 20,
    duplicate_percent: 5,
    delay: Duration::from_millis(20),
    jitter: Duration::from_millis(40),
    detection: Duration::from_millis(400),
};

fn random_graph(n: u32, extra: u64, seed: u64) -> Vec<(u32, u32)> {
    let mut rng = Rng::new([seed as u8; 32]);
    let mut wires: Vec<(u32, u32)> =
        (2..=n).map(|id| (1 + rng.below(u64::from(id) - 1) as u32, id)).collect();
    while wires.len() < n as usize - 1 + extra as usize {
        let (a, b) = (1 + rng.below(n.into()) as u32, 1 + rng.below(n.into()) as u32);
        if a != b && !wires.contains(&(a, b)) && !wires.contains(&(b, a)) {
            wires.push((a, b));
        }
    }
    wires
}

#[test]
fn a_triangle_converges_and_takes_the_direct_links() {
    let mut net = RoutingNet::new(3, &TRIANGLE, CLEAN, Config::default(), 1);
    assert!(net.converge(Duration::from_secs(1)) <= ms(100));
    net.run(Duration::from_secs(60));
    for (a, b) in TRIANGLE {
        assert_eq!(net.path(a, b).unwrap().0, [a, b]);
        assert_eq!(net.path(b, a).unwrap().0, [b, a]);
    }
    // Router 2 is as far from 3 as 1 is, so the path over 2 is not feasible.
    assert_eq!(net.nodes[&1].machine.alternatives(3), []);
    let changes: usize = net.nodes.values().map(|node| node.changes.len()).sum();
    assert_eq!(changes, 6, "each route was found once and kept");
}

#[test]
fn a_cut_link_is_left_within_a_few_round_trips_of_being_noticed() {
    let mut net = RoutingNet::new(3, &TRIANGLE, CLEAN, Config::default(), 2);
    net.run(Duration::from_secs(20));
    let wire = net.wire_between(1, 3);
    net.cut(wire);
    net.run(CLEAN.detection);
    let gap = net.converge(Duration::from_secs(1));
    assert!(gap <= ms(100), "{gap:?}");
    assert_eq!(net.path(1, 3).unwrap().0, [1, 2, 3]);
    net.mend(wire);
    net.run(Duration::from_secs(1));
    assert_eq!(net.path(1, 3).unwrap().0, [1, 3]);
}

#[test]
fn partitions_leave_no_ghosts_and_heal() {
    let wires = [(1, 2), (2, 3), (1, 3), (3, 4), (4, 5), (5, 6), (4, 6)];
    let mut net = RoutingNet::new(6, &wires, CLEAN, Config::default(), 3);
    net.converge(Duration::from_secs(1));
    let bridge = net.wire_between(3, 4);
    net.cut(bridge);
    net.run(Duration::from_secs(2));
    net.assert_converged();
    net.mend(bridge);
    net.converge(Duration::from_secs(1));
}

#[test]
fn rough_networks_converge_under_loss_reordering_and_cuts() {
    for seed in 0..6 {
        let wires = random_graph(12, 10, seed);
        let mut net = RoutingNet::new(12, &wires, ROUGH, Config::default(), seed);
        let mut rng = Rng::new([seed as u8 ^ 0xa5; 32]);
        net.converge(Duration::from_secs(30));
        for _ in 0..40 {
            let wire = rng.below(wires.len() as u64) as u32;
            if net.wires[wire as usize].cut {
                net.mend(wire);
            } else {
                net.cut(wire);
            }
            net.run(ms(rng.below(1_500)));
        }
        net.run(Duration::from_secs(1));
        net.converge(Duration::from_secs(60));
    }
}

#[test]
fn crashes_and_restarts_make_no_loop_even_unnoticed_ones() {
    for seed in 0..6 {
        let wires = random_graph(10, 8, seed);
        let faults = Faults { loss_percent: 5, ..ROUGH };
        let mut net = RoutingNet::new(10, &wires, faults, Config::default(), seed);
        let mut rng = Rng::new([seed as u8 ^ 0x5a; 32]);
        net.converge(Duration::from_secs(30));
        for _ in 0..15 {
            let id = 1 + rng.below(10) as u32;
            net.crash(id);
            net.run(ms(rng.below(1_000)));
            // The restarted router's clock may have been set back.
            let unix_s = UNIX_S - if rng.below(3) == 0 { 1_000 } else { 0 } + rng.below(500);
            net.restart(id, unix_s);
            net.run(ms(rng.below(2_000)));
        }
        net.run(Duration::from_secs(1));
        net.converge(Duration::from_secs(60));
    }
}

#[test]
fn a_link_that_one_end_thought_dead_recovers() {
    let mut net = RoutingNet::new(3, &TRIANGLE, CLEAN, Config::default(), 4);
    net.converge(Duration::from_secs(1));
    for round in 0..20 {
        let wire = net.wire_between(1, 2);
        net.blink(1 + round % 2, wire);
        net.run(ms(70));
    }
    net.run(Duration::from_secs(1));
    net.assert_converged();
    assert_eq!(net.path(1, 2).unwrap().0, [1, 2]);
}

#[test]
fn a_noisy_link_does_not_flap_and_a_bad_one_is_left() {
    let mut net = RoutingNet::new(3, &TRIANGLE, CLEAN, Config::default(), 5);
    let direct = net.wire_between(1, 3) as usize;
    net.wires[direct].loss_percent = Some(7);
    net.run(Duration::from_secs(600));
    let flaps = |net: &RoutingNet| {
        let moved = |c: &&shoal_routing::RouteChange| {
            c.router == 3 && c.old.map(|o| o.0) != c.new.map(|n| n.0)
        };
        net.nodes[&1].changes.iter().filter(moved).count()
    };
    assert!(flaps(&net) <= 1, "{} changes of next hop", flaps(&net));
    net.wires[direct].loss_percent = Some(60);
    net.run(Duration::from_secs(60));
    assert_eq!(net.path(1, 3).unwrap().0, [1, 2, 3]);
    let before = flaps(&net);
    net.run(Duration::from_secs(600));
    assert!(flaps(&net) - before <= 6, "{} changes of next hop", flaps(&net) - before);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let trace = |seed| {
        let mut net = RoutingNet::new(8, &random_graph(8, 6, 1), ROUGH, Config::default(), seed);
        net.run(Duration::from_secs(10));
        net.cut(0);
        net.run(Duration::from_secs(10));
        (net.trace, net.delivered)
    };
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7), trace(8));
}

#[test]
fn proofs_are_renewed_before_they_expire() {
    let config = Config {
        proof_validity: Duration::from_secs(60),
        proof_refresh: Duration::from_secs(20),
        ..Config::default()
    };
    let mut net = RoutingNet::new(3, &TRIANGLE, CLEAN, config, 6);
    net.run(Duration::from_secs(600));
    net.assert_converged();
    assert_eq!(net.path(1, 3).unwrap().0, [1, 3]);
    let seqno = net.nodes[&1].machine.routes().find(|r| r.router == 3).unwrap().seqno;
    // One sequence number per refresh. A refresh comes up to a quarter sooner than its interval.
    assert!((29..=40).contains(&(seqno - UNIX_S * 1_000)), "{}", seqno - UNIX_S * 1_000);
}

#[test]
fn a_pin_holds_and_imports_are_limited() {
    let mut net = RoutingNet::new(3, &TRIANGLE, CLEAN, Config::default(), 8);
    let config = Config { pins: [(3, 2)].into(), ..Config::default() };
    net.configs.insert(1, config);
    net.restart(1, UNIX_S);
    net.run(Duration::from_secs(2));
    let via = net.wire_between(1, 2);
    assert_eq!(net.nodes[&1].machine.table().next_hop(3), Some(LinkId::from_bits(via)));

    let policy = shoal_routing::LinkPolicy { import: Some([2].into()), ..Default::default() };
    let config = Config { links: [(2, policy)].into(), ..Config::default() };
    let mut net = RoutingNet::new(3, &[(1, 2), (2, 3)], CLEAN, config, 9);
    net.run(Duration::from_secs(2));
    assert_eq!(net.nodes[&1].machine.table().next_hop(3), None);
    assert!(net.nodes[&1].machine.table().next_hop(2).is_some());
}

#[test]
fn the_route_limit_of_a_link_holds() {
    let config = Config { max_routes_per_link: 3, ..Config::default() };
    let mut net = RoutingNet::new(
        8,
        &[(1, 2), (2, 3), (2, 4), (2, 5), (2, 6), (2, 7), (2, 8)],
        CLEAN,
        config,
        9,
    );
    net.run(Duration::from_secs(30));
    assert_eq!(net.nodes[&1].machine.table().len(), 3);
    assert_eq!(net.nodes[&2].machine.table().len(), 7);
}

#[test]
fn policies_change_while_routes_stand() {
    type Policies = (Vec<(u32, shoal_routing::LinkPolicy)>, Vec<(u32, u32)>);
    let mut net = RoutingNet::new(3, &TRIANGLE, CLEAN, Config::default(), 10);
    net.run(Duration::from_secs(20));
    let mut set = |(links, pins): Policies, wait: Duration| {
        let now = net.now;
        let machine = &mut net.nodes.get_mut(&1).unwrap().machine;
        machine.set_policies(now, links.into_iter().collect(), pins.into_iter().collect());
        net.drain(1);
        net.run(wait);
        net.path(1, 3).unwrap()
    };
    let dear = shoal_routing::LinkPolicy { default_cost: Some(1_000), import: None };
    let closed = shoal_routing::LinkPolicy { import: Some([2].into()), ..Default::default() };
    let soon = ms(100);
    assert_eq!(set((vec![], vec![(3, 2)]), soon).0, [1, 2, 3], "a pin moves the route");
    assert_eq!(set((vec![], vec![]), soon).0, [1, 3], "no pin: the direct link");
    assert_eq!(set((vec![(3, dear)], vec![]), soon).0, [1, 2, 3], "an expensive link is avoided");
    let shut = vec![(2, closed.clone()), (3, closed)];
    assert!(!set((shut.clone(), vec![]), soon).1, "not imported: unreachable");
    assert_eq!(set((vec![], vec![]), soon).0, [1, 3], "imported again");
    // The neighbours have granted this cycle's dump. The request is repeated at the end of the next
    // cycle.
    assert!(!set((shut, vec![]), soon).1);
    assert_eq!(set((vec![], vec![]), Duration::from_secs(15)).0, [1, 3]);
    let changes = net.nodes[&2].changes.len();
    assert_eq!(changes, 2, "no other link went down");
}

#[test]
fn a_nearer_neighbour_is_an_alternative_with_its_cost() {
    // Router 1 reaches 4 over 2 or over 3, at equal cost.
    let mut net =
        RoutingNet::new(4, &[(1, 2), (1, 3), (2, 4), (3, 4)], CLEAN, Config::default(), 11);
    net.run(Duration::from_secs(20));
    let machine = &net.nodes[&1].machine;
    let used = machine.table().next_hop(4).unwrap();
    let other = [net.wire_between(1, 2), net.wire_between(1, 3)].map(LinkId::from_bits);
    let other = other.into_iter().find(|link| *link != used).unwrap();
    assert_eq!(machine.alternatives(4), [(other, 200)]);
    assert_eq!(machine.alternatives(99), []);
}

/// A machine without a battery for its clock starts with a wrong time, and NTP may need the
/// network.
#[test]
fn routers_whose_clocks_differ_by_hours_find_routes() {
    for wrong in [UNIX_S - 20 * 3_600, UNIX_S - 3_700, UNIX_S + 3_700, UNIX_S + 20 * 3_600] {
        let mut net = RoutingNet::new(3, &[(1, 2), (2, 3)], CLEAN, Config::default(), 9);
        net.converge(Duration::from_secs(5));
        net.restart(3, wrong);
        net.converge(Duration::from_secs(20));
    }
}

/// A router whose clock is days off is refused by all, or refuses all. Setting the clock is enough:
/// no restart is needed.
#[test]
fn a_clock_that_is_set_right_heals_routes_without_a_restart() {
    for wrong in [UNIX_S - 2 * 86_400, UNIX_S + 2 * 86_400] {
        let mut net = RoutingNet::new(3, &[(1, 2), (2, 3)], CLEAN, Config::default(), 9);
        net.converge(Duration::from_secs(5));
        net.restart(3, wrong);
        net.run(Duration::from_secs(20));
        assert!(!net.is_converged(), "{wrong}: one side refuses the other's routes");
        let now = net.now;
        let right = UNIX_S + now.since(shoal_wire::Time::ZERO).as_secs();
        net.nodes.get_mut(&3).unwrap().machine.set_unix_s(now, right);
        net.drain(3);
        net.converge(Duration::from_secs(20));
    }
}
