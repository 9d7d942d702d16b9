//! Two hosts at two routers each, in a network of complete nodes.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_onion::path::{ListedRouter, RouterList, Vanguards};
use shoal_onion::pool::{CircuitPool, PoolConfig};
use shoal_relay::LinkConfig;
use shoal_wire::{Address, DropReason};

use crate::support::{Net, UNIX_MS, identity, interface, packet, socket, tap};

const H1: usize = 0;
const H2: usize = 1;
/// Routers of the first host, then those of the second.
const R1: usize = 2;
const R2: usize = 3;
const R3: usize = 4;
const R4: usize = 5;
const AT: [Address; 8] = [
    Address::new(1, 1),
    Address::new(3, 1),
    Address::new(1, 0),
    Address::new(2, 0),
    Address::new(3, 0),
    Address::new(4, 0),
    Address::new(5, 0),
    Address::new(6, 0),
];
const SECONDS: [Address; 2] = [Address::new(2, 1), Address::new(4, 1)];

/// Routers with a link to each other, and hosts that know each other.
fn net() -> Net {
    let routers = R1..AT.len();
    let links = routers.clone().flat_map(|a| (R1..a).map(move |b| (a, b)));
    let links: Vec<_> = links.chain([(H1, R1), (H2, R3)]).collect();
    let mut net = Net::with(&AT, &links, |config| {
        config.relay.liveness.keepalive = Some(Duration::from_secs(10));
    });
    let now = net.now;
    for (host, router) in [(H1, R2), (H2, R4)] {
        let (second, key) = (SECONDS[host], identity(AT[router]).public());
        let up = LinkConfig { key, address: AT[router], endpoint: Some(socket(router)) };
        let down = LinkConfig { key: identity(AT[host]).public(), address: second, endpoint: None };
        net.nodes[host].set_second(Some(second));
        net.nodes[host].relay.add_link(now, &up).expect("room");
        net.nodes[router].relay.add_link(now, &down).expect("room");
        let other = 1 - host;
        let id = net.introduce(host, AT[other]);
        net.nodes[host].edge.set_second(id, Some(SECONDS[other]));
    }
    net.run(Duration::from_secs(2));
    net.delay = Duration::from_millis(3);
    net
}

/// Longest time in ms without a packet, while a host sends one each 10 ms and these routers die
/// `wait_ms` after the first two seconds.
fn gap_ms(net: &mut Net, [from, to]: [usize; 2], dead: &[usize], wait_ms: u64) -> u64 {
    let (mut last, mut worst) = (0, 0);
    for ms in 0..5_000 {
        if ms == 2_000 + wait_ms {
            net.stopped.extend(dead);
        }
        if ms % 10 == 0 {
            let read = packet(interface(AT[from]), interface(AT[to]), 100);
            tap(net, from).waiting.push_back(read);
        }
        net.run(Duration::from_millis(1));
        if !core::mem::take(&mut tap(net, to).given).is_empty() {
            worst = if ms < 2_000 { 0 } else { worst.max(ms - last) };
            last = ms;
        }
    }
    worst.max(5_000 - last)
}

/// Largest gap of one-way traffic over several times of death.
fn worst_ms(make: impl Fn() -> Net, way: [usize; 2], dead: &[usize]) -> u64 {
    let gaps = [0, 7, 23].map(|wait_ms| gap_ms(&mut make(), way, dead, wait_ms));
    println!("{way:?} without {dead:?}: {gaps:?} ms");
    gaps.into_iter().max().unwrap_or_default()
}

#[test]
fn a_dead_router_costs_a_sender_or_a_receiver_less_than_a_second() {
    assert!(worst_ms(net, [H1, H2], &[R1]) < 300, "the sender's router died");
    assert!(worst_ms(net, [H1, H2], &[R3]) < 900, "the receiver's router died");
}

#[test]
fn two_routers_may_die_at_once() {
    assert!(worst_ms(net, [H1, H2], &[R1, R3]) < 1_000);
}

#[test]
fn other_addresses_than_the_listed_ones_are_refused() {
    let mut net = net();
    assert!(gap_ms(&mut net, [H1, H2], &[], 0) < 20);
    assert_eq!(net.dropped(H2, DropReason::BadSource), 0);
    // This host's list has another second address for the other host.
    let id = net.nodes[H2].edge.host_at(AT[H1]).expect("a known host");
    net.nodes[H2].edge.set_second(id, Some(Address::new(9, 9)));
    assert!(gap_ms(&mut net, [H1, H2], &[R1], 0) > 2_000);
    assert!(net.dropped(H2, DropReason::BadSource) > 100);
}

/// The network of [`net`], in which policy requires circuits between the two hosts.
fn hidden() -> Net {
    let mut net = net();
    net.delay = Duration::from_millis(1);
    let now = net.now;
    let one = ListedRouter { relay: true, hosts: 100, ..ListedRouter::default() };
    let relays = RouterList::new(AT[R1..].iter().map(|at| (*at, one.clone())));
    let seconds: BTreeMap<Address, Address> = AT.into_iter().zip(SECONDS).collect();
    let mut keys = crate::support::keys(&AT);
    keys.extend([H1, H2].map(|host| (SECONDS[host], identity(AT[host]).public())));
    for host in [H1, H2] {
        let config = PoolConfig { address: AT[host], relays: 3, circuits_max: 64, max_added: None };
        let seed = [host as u8 + 1; 32];
        let pool = CircuitPool::new(config, Vanguards::default(), seed, now, UNIX_MS + 1_000);
        net.nodes[host].set_pool(pool.expect("three relays"));
    }
    for node in &mut net.nodes {
        node.set_seconds(seconds.clone());
        node.set_circuit_nodes(now, relays.clone(), keys.clone());
    }
    for host in [H1, H2] {
        let node = &mut net.nodes[host];
        let id = node.edge.host_at(AT[1 - host]).expect("a known host");
        node.set_hidden(&[id].into());
    }
    net
}

#[test]
fn a_dead_router_costs_a_circuit_less_than_a_second() {
    assert!(worst_ms(hidden, [H1, H2], &[R1]) < 1_000, "the sender's router died");
    assert!(worst_ms(hidden, [H1, H2], &[R3]) < 1_000, "the receiver's router died");
}
