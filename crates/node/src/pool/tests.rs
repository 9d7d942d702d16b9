//! The pool in complete nodes: three routers in a row, with a host at each end.

use core::time::Duration;

use shoal_edge::HostConfig;
use shoal_onion::path::ListedRouter;
use shoal_onion::pool::{CircuitProblem, CircuitState, PoolConfig};
use shoal_wire::MixTime;

use super::*;
use crate::support::{Net, UNIX_MS, identity, keys};

const H1: usize = 0;
const R1: usize = 1;
const R2: usize = 2;
const R3: usize = 3;
const H2: usize = 4;
const AT: [Address; 5] = [
    Address::new(1, 1),
    Address::new(1, 0),
    Address::new(2, 0),
    Address::new(3, 0),
    Address::new(3, 1),
];

/// A net whose routers are relays if `is_relay`, and the first host's id of the second.
fn net(is_relay: bool) -> (Net, HostId) {
    let mut net = Net::new(&AT, &[(H1, R1), (R1, R2), (R2, R3), (H2, R3)]);
    let config = PoolConfig { address: AT[H1], relays: 3, circuits_max: 64, max_added: None };
    let pool = CircuitPool::new(config, Vanguards::default(), [5; 32], net.now, UNIX_MS + 1_000);
    net.nodes[H1].set_pool(pool.expect("three relays"));
    let one = ListedRouter { relay: is_relay, ..ListedRouter::default() };
    let relays = RouterList::new(AT.iter().map(|at| (*at, one.clone())));
    for node in &mut net.nodes {
        node.set_circuit_nodes(net.now, relays.clone(), keys(&AT));
    }
    let key = identity(AT[H2]).public();
    let host = net.nodes[H1].edge.add_host(&HostConfig { key, address: AT[H2] }).expect("room");
    (net, host)
}

fn states(net: &Net) -> Vec<CircuitState> {
    let views = net.nodes[H1].pool().expect("a pool").views(net.now);
    views.iter().flat_map(|view| &view.circuits).map(|circuit| circuit.state).collect()
}

#[test]
fn a_wanted_host_gets_circuits_over_the_lists_relays_and_keeps_them() {
    let (mut net, host) = net(true);
    net.nodes[H1].want_circuit(net.now, host);
    net.run(Duration::from_secs(2));
    assert_eq!(states(&net), [CircuitState::InUse, CircuitState::Standby]);
    let view = &net.nodes[H1].pool().expect("a pool").views(net.now)[0];
    assert_eq!(view.circuits[0].relays, AT[R1..=R3]);
    assert_eq!(view.problem, None);
    // Echoes keep a circuit alive at its hops. A circuit that nobody uses ends.
    net.run(Duration::from_secs(70));
    assert_eq!(states(&net), [CircuitState::InUse, CircuitState::Standby]);
    assert!(net.nodes.iter().all(|node| node.circuits.onion.len() == 2));
    assert!(net.nodes[H1].poll_kept().is_some());
    net.nodes[H1].circuits.pool.as_mut().expect("a pool").forget(net.now, AT[H2]);
    net.run(Duration::from_millis(50));
    assert!(net.nodes.iter().all(|node| node.circuits.onion.is_empty()));
}

#[test]
fn circuits_to_a_forgotten_host_end_at_once() {
    let (mut net, host) = net(true);
    net.nodes[H1].set_hidden(&[host].into());
    net.nodes[H1].want_circuit(net.now, host);
    net.run(Duration::from_secs(2));
    assert_eq!(states(&net), [CircuitState::InUse, CircuitState::Standby]);
    let (now, node) = (net.now, &mut net.nodes[H1]);
    assert_eq!(node.forget_met(now, &[identity(AT[H2]).public()]), [host]);
    node.set_hidden(&BTreeSet::new());
    net.run(Duration::from_millis(50));
    assert!(net.nodes.iter().all(|node| node.circuits.onion.is_empty()));
    assert!(states(&net).is_empty() && !net.nodes[H1].edge.is_hidden(host));
}

#[test]
fn a_router_that_is_no_relay_carries_nothing() {
    let (mut net, host) = net(false);
    net.nodes[H1].want_circuit(net.now, host);
    net.run(Duration::from_secs(2));
    let views = net.nodes[H1].pool().expect("a pool").views(net.now);
    assert_eq!(views[0].problem, Some(CircuitProblem::NoRelays));
    // This host's list is older, and has them as relays.
    let one = ListedRouter { relay: true, ..ListedRouter::default() };
    let relays = RouterList::new(AT.iter().map(|at| (*at, one.clone())));
    net.nodes[H1].set_circuit_nodes(net.now, relays, keys(&AT));
    net.run(Duration::from_secs(2));
    let views = net.nodes[H1].pool().expect("a pool").views(net.now);
    assert!(
        matches!(views[0].problem, Some(CircuitProblem::Failed { times: 1.., .. })),
        "{:?}",
        views[0].problem
    );
    assert_eq!(
        views[0].circuits.iter().filter(|circuit| circuit.state == CircuitState::InUse).count(),
        0
    );
}

#[test]
fn what_the_network_offers_is_told_to_those_who_begin_circuits_and_carry_them() {
    let (mut net, _) = net(true);
    let offer = vec![MixStrategy::Timed { every: MixTime::MAX }, MixStrategy::Pass];
    let now = net.now;
    for at in [H1, R1] {
        let node = &mut net.nodes[at];
        node.set_mixes(now, offer.clone());
        assert_eq!(node.circuits.onion.mixes(), offer);
        if let NodeCircuits { pool: Some(pool), .. } = &mut node.circuits {
            pool.handle_timeout(now + Duration::from_secs(59));
            assert_ne!(pool.mixes(), offer, "relays may have the list before");
            pool.handle_timeout(now + Duration::from_secs(60));
            assert_eq!(pool.mixes(), offer);
        }
    }
}

/// Closing a circuit frees capacity for a new one in the same turn.
#[test]
fn at_the_limit_circuits_are_closed_before_others_are_built() {
    let (mut net, host) = net(true);
    net.nodes[H1].want_circuit(net.now, host);
    net.run(Duration::from_secs(2));
    assert_eq!(states(&net), [CircuitState::InUse, CircuitState::Standby]);
    let (now, node) = (net.now, &mut net.nodes[H1]);
    let NodeCircuits { onion, pool: Some(pool), .. } = &mut node.circuits else { panic!("a pool") };
    // Other circuits use up the capacity.
    let path = [AT[R1], AT[R2], AT[R3], AT[H2]];
    let shape = pool.shape();
    while onion.build(now, &path, shape, Duration::from_secs(600)).is_ok() {}
    pool.forget(now, AT[H2]);
    assert!(pool.want(now, AT[H2]));
    node.drive_pool(now);
    let pool = node.pool().expect("a pool");
    assert_eq!((pool.len(), pool.set_ups().failed), (1, 0));
}
