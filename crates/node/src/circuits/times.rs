//! Durations of circuits: set-up, first packet, replacement.

use std::collections::BTreeMap;

use shoal_edge::HostId;
use shoal_onion::path::{ListedRouter, RouterList, Vanguards};
use shoal_onion::pool::{self, CircuitState};

use super::hidden::{packet, shape, tap};
use super::tests::*;
use super::*;
use crate::support::{UNIX_MS, interface, keys};

const MS: Duration = Duration::from_millis(1);
/// Delay of each wire.
const DELAY: Duration = Duration::from_millis(5);
/// Time of a packet and its answer between the hosts, on the shortest path over three relays.
const ROUND_TRIP_MS: u64 = 40;

/// Makes two hosts hidden from each other, and gives the first one a pool. Returns the first host's
/// id for the second.
fn hide(net: &mut Net, hosts: [usize; 2], at: &[Address], relays: u8) -> HostId {
    for (me, other) in [(1, 0), (0, 1)].map(|(me, other)| (hosts[me], hosts[other])) {
        let host = net.introduce(me, at[other]);
        net.nodes[me].edge.set_hidden(&BTreeMap::from([(host, shape())]));
    }
    let config =
        pool::PoolConfig { address: at[hosts[0]], relays, circuits_max: 64, max_added: None };
    let pool =
        pool::CircuitPool::new(config, Vanguards::default(), [5; 32], net.now, UNIX_MS + 1_000);
    net.nodes[hosts[0]].set_pool(pool.expect("1 to 5 relays"));
    let router = ListedRouter { relay: true, ..ListedRouter::default() };
    let routers = RouterList::new(at.iter().map(|at| (*at, router.clone())));
    for node in &mut net.nodes {
        node.set_circuit_nodes(net.now, routers.clone(), keys(at));
    }
    net.delay = DELAY;
    net.nodes[hosts[0]].edge.host_at(at[hosts[1]]).expect("introduced")
}

/// A packet that ends with a number.
fn numbered(from: Address, to: Address, number: u32) -> Vec<u8> {
    let mut read = packet(interface(from), interface(to), 100);
    *read.last_chunk_mut().expect("a hundred bytes") = number.to_be_bytes();
    read
}

/// The numbers of packets that a node's programs received.
fn take_given(net: &mut Net, at: usize) -> Vec<u32> {
    let given = core::mem::take(&mut tap(net, at).given);
    given.iter().map(|read| u32::from_be_bytes(*read.last_chunk().expect("a packet"))).collect()
}

/// Milliseconds until the second host's program receives a packet that the first one's writes.
fn carry_ms(net: &mut Net) -> u64 {
    let begun = net.now;
    tap(net, H1).waiting.push_back(numbered(AT[H1], AT[H2], 7));
    while take_given(net, H2).is_empty() {
        assert!(net.now < begun + 1_000 * MS, "no packet arrived");
        net.run(MS);
    }
    net.now.since(begun).as_millis() as u64 - 1
}

#[test]
fn a_circuit_over_three_relays_is_set_up_within_150_ms() {
    let mut net = net();
    net.delay = DELAY;
    let (begun, path) = (net.now, [R1, R2, R3, H2].map(|node| AT[node]));
    let onion = &mut net.nodes[H1].circuits.onion;
    let id = onion.build(begun, &path, shape(), LIFE).expect("a circuit");
    while net.nodes[H1].circuits.onion.progress(id) != Some((4, true)) {
        assert!(net.now <= begun + 150 * MS);
        net.run(MS);
    }
    // Each hop takes one round trip, over 1, 2, 3 and 4 wires.
    assert!(net.now > begun + 100 * MS);
}

#[test]
fn the_first_packet_takes_four_round_trips_or_with_a_standby_one_and_a_half() {
    let mut fresh = net();
    hide(&mut fresh, [H1, H2], &AT, 3);
    let first = carry_ms(&mut fresh);
    assert!(first <= 4 * ROUND_TRIP_MS, "{first} ms");
    let second = carry_ms(&mut fresh);
    assert!(second <= ROUND_TRIP_MS / 2, "{second} ms");

    let mut ready = net();
    let host = hide(&mut ready, [H1, H2], &AT, 3);
    ready.nodes[H1].want_circuit(ready.now, host);
    ready.run(Duration::from_secs(2));
    let first = carry_ms(&mut ready);
    assert!(first <= 3 * ROUND_TRIP_MS / 2, "the hosts' own handshake, and one way: {first} ms");
}

/// Six fully connected routers, with a host at the first and at the third.
fn mesh() -> (Net, Vec<Address>) {
    let mut at: Vec<_> = (1..=6).map(|router| Address::new(router, 0)).collect();
    at.extend([Address::new(1, 1), Address::new(3, 1)]);
    let pairs = (0..6).flat_map(|a| (0..a).map(move |b| (a, b)));
    let links: Vec<_> = pairs.chain([(6, 0), (7, 2)]).collect();
    (Net::new(&at, &links), at)
}

/// The relays of the circuit in use, and of the standby.
fn relays_of(net: &Net, at: usize) -> [Vec<Address>; 2] {
    let views = net.nodes[at].pool().expect("a pool").views(net.now);
    [CircuitState::InUse, CircuitState::Standby].map(|state| {
        let mut circuits = views[0].circuits.iter();
        circuits.find(|circuit| circuit.state == state).map_or(vec![], |c| c.relays.clone())
    })
}

/// Longest time without packets, at one packet per 10 ms, after a relay of the circuit in use dies.
/// `place` is the dead relay: 0 the guard, 1 the middle one, which the standby avoids, 2 the last.
fn gap(place: usize) -> Duration {
    const CALLER: usize = 6;
    const CALLED: usize = 7;
    let (mut net, at) = mesh();
    hide(&mut net, [CALLER, CALLED], &at, 3);
    let (mut number, mut last, mut longest) = (0, net.now, Duration::ZERO);
    for step in 0..8_000 {
        if step == 3_000 {
            longest = Duration::ZERO;
            let [in_use, standby] = relays_of(&net, CALLER);
            assert_eq!((in_use.len(), standby.len()), (3, 3));
            assert!(in_use[place] != standby[place] || place != 1);
            net.dead = at.iter().position(|node| *node == in_use[place]);
        }
        if step % 10 == 0 {
            tap(&mut net, CALLER).waiting.push_back(numbered(at[CALLER], at[CALLED], number));
            number += 1;
        }
        net.run(MS);
        if !take_given(&mut net, CALLED).is_empty() {
            longest = longest.max(net.now.since(last));
            last = net.now;
        }
    }
    assert!(net.now.since(last) < 50 * MS, "packets come again");
    longest
}

#[test]
fn a_dead_relay_costs_less_than_a_second_with_a_standby_circuit() {
    for place in 0..3 {
        let gap = gap(place);
        assert!(gap < Duration::from_secs(1), "{gap:?}");
        assert!(gap > 100 * MS, "no gap: the dead relay carried no packets");
        println!("relay {}: {} ms", place + 1, gap.as_millis());
    }
}

/// Changes the circuit `all_changes` times while the first host sends a packet each millisecond.
/// Returns the numbers of the packets that the second host's programs received, and the number of
/// packets sent. The long path takes 40 ms and the short one 20 ms, so packets overtake others
/// after a change to the short one.
fn stream(all_changes: usize, keep_order: bool) -> (Vec<u32>, u32) {
    let mut net = net();
    let host = hide(&mut net, [H1, H2], &AT, 3);
    net.nodes[H1].circuits.pool = None;
    if !keep_order {
        net.nodes[H2].edge.keep_any_order();
    }
    let paths = [[R1, R2, R3, H2], [R3, R1, R2, H2]].map(|path| path.map(|node| AT[node]));
    let (mut building, mut used, mut number) = (None, Vec::new(), 0);
    let mut given = Vec::new();
    while used.len() <= all_changes {
        let now = net.now;
        let node = &mut net.nodes[H1];
        let (id, begun) = *building.get_or_insert_with(|| {
            let path = &paths[used.len() % 2];
            (node.circuits.onion.build(now, path, shape(), LIFE).expect("room"), now)
        });
        if node.circuits.onion.progress(id) == Some((4, true)) && now >= begun + 230 * MS {
            node.edge.set_circuit(host, Some((id, shape())));
            // The previous circuit has delivered its last packet by now.
            if let Some(&old) = used.iter().rev().nth(1) {
                node.circuits.onion.close(old);
                node.edge.circuit_ended(now, old);
            }
            used.push(id);
            building = None;
        }
        if !used.is_empty() {
            tap(&mut net, H1).waiting.push_back(numbered(AT[H1], AT[H2], number));
            number += 1;
        }
        net.run(MS);
        given.extend(take_given(&mut net, H2));
    }
    net.run(500 * MS);
    given.extend(take_given(&mut net, H2));
    (given, number)
}

#[test]
fn a_hundred_changes_of_circuits_lose_and_reorder_nothing() {
    let (given, sent) = stream(100, true);
    assert!(sent > 20_000);
    let first = given.iter().zip(0..sent).position(|(a, b)| *a != b);
    assert!(given.iter().copied().eq(0..sent), "{} of {sent}, disorder at {first:?}", given.len());
    let (given, sent) = stream(6, false);
    assert_eq!(given.len() as u32, sent);
    assert!(!given.is_sorted(), "paths of different delays reorder packets");
}
