//! Two hosts, neither of which can be called, find a path by probes. Strangers gain nothing, and
//! third parties get few probes.

use core::time::Duration;
use std::net::SocketAddr;

use crate::support::{Net, PathRecorder, identity, socket};
use shoal_relay::LinkConfig;
use shoal_wire::{Address, DropReason, LinkId, MeetingId, PROBE_LEN, PROBES_MAX};

const A: usize = 0;
const B: usize = 1;
const ID: MeetingId = [0x4d; 16];

fn at(node: usize) -> Address {
    Address::new(1, 1 + node as u16)
}

/// Two hosts that know each other but not their endpoints.
fn pair() -> (Net, [LinkId; 2]) {
    let mut net = Net::new(&[at(A), at(B)], &[]);
    let links = [A, B].map(|node| {
        let other = 1 - node;
        let key = identity(other).public();
        let config = LinkConfig { key, address: at(other), endpoint: None };
        net.nodes[node].relay.add_link(net.now, &config).expect("room")
    });
    (net, links)
}

fn meet(net: &mut Net, node: usize, link: LinkId, places: &[SocketAddr]) {
    let met = net.nodes[node].relay.meet(net.now, link, (ID, node == A), places);
    assert_eq!(met, Ok(()));
}

fn up(net: &Net) -> [bool; 2] {
    [A, B].map(|node| net.nodes[node].relay.links().any(|link| link.up_since.is_some()))
}

fn dropped(net: &Net, node: usize, reason: DropReason) -> u64 {
    net.nodes[node].relay.counters().dropped(reason)
}

fn watch(net: &mut Net, to: SocketAddr) {
    net.watches[0] = Some(PathRecorder { from: None, to, seen: Vec::new(), at: Vec::new() });
}

fn seen(net: &mut Net) -> Vec<usize> {
    net.watches[0].take().expect("a watch").seen
}

#[test]
fn the_host_that_asked_calls_where_the_first_probe_comes_from() {
    // Only one of the two knows the other's endpoint.
    for knows in [A, B] {
        let (mut net, links) = pair();
        for node in [A, B] {
            let places = if node == knows { [socket(1 - node)] } else { [socket(90)] };
            meet(&mut net, node, links[node], &places);
        }
        net.run(Duration::from_millis(200));
        assert_eq!(up(&net), [true, true], "{knows}");
        let endpoint = net.nodes[A].relay.links().next().and_then(|link| link.endpoint);
        assert_eq!(endpoint, Some(socket(B)));
    }
}

/// The end that asked is behind a translator that admits only answers.
#[test]
fn a_lost_answer_is_no_end() {
    let (mut net, links) = pair();
    meet(&mut net, A, links[A], &[socket(B)]);
    meet(&mut net, B, links[B], &[socket(90)]);
    net.lossy = Some((B, A, 1));
    net.run(Duration::from_millis(40));
    net.lossy = None;
    net.run(Duration::from_millis(200));
    assert_eq!(up(&net), [true, true]);
}

#[test]
fn the_wrong_meeting_is_no_way() {
    let (mut net, links) = pair();
    meet(&mut net, A, links[A], &[socket(B)]);
    let other = [0x4e; 16];
    let met = net.nodes[B].relay.meet(net.now, links[B], (other, false), &[socket(A)]);
    assert_eq!(met, Ok(()));
    net.run(Duration::from_secs(6));
    assert_eq!(up(&net), [false, false]);
    assert!(dropped(&net, A, DropReason::UnknownIndex) >= 7);
}

#[test]
fn others_places_get_few_probes_and_draw_nothing() {
    let (mut net, links) = pair();
    let victims: Vec<SocketAddr> = (100..150).map(socket).collect();
    let mut sent = Vec::new();
    for victim in &victims {
        let (mut net, links) = pair();
        watch(&mut net, *victim);
        meet(&mut net, B, links[B], &victims);
        net.run(Duration::from_secs(20));
        sent.extend(seen(&mut net));
    }
    assert_eq!(sent.len(), 49, "seven places, seven times each");
    assert!(sent.len() <= PROBES_MAX && sent.iter().all(|&len| len == PROBE_LEN));

    // Repeated candidates get no further probes.
    watch(&mut net, victims[0]);
    for _ in 0..50 {
        meet(&mut net, B, links[B], &victims);
        net.run(Duration::from_millis(90));
    }
    assert_eq!(seen(&mut net).len(), 7);
}

#[test]
fn a_probe_counts_once_from_wherever_it_comes() {
    let (mut net, links) = pair();
    net.wire.seen = Some(Vec::new());
    net.cut.push((A, B));
    meet(&mut net, A, links[A], &[socket(B)]);
    meet(&mut net, B, links[B], &[]);
    net.run(Duration::from_secs(4));
    net.cut.clear();
    let probes = net.wire.seen.take().expect("kept");
    assert_eq!(probes.len(), 7);
    // An attacker on the path changes a probe, then replays the original from another address.
    let attacker = socket(99);
    let mut changed = probes[0].clone();
    changed[PROBE_LEN - 1] ^= 1;
    net.deliver(B, attacker, &mut changed);
    assert_eq!(dropped(&net, B, DropReason::BadHandshake), 1);
    watch(&mut net, attacker);
    for _ in 0..10 {
        probes.iter().for_each(|probe| net.deliver(B, attacker, &mut probe.clone()));
        net.run(Duration::from_millis(1));
    }
    assert_eq!(seen(&mut net), [PROBE_LEN; 3], "three answers for seven probes");
    assert_eq!(dropped(&net, B, DropReason::UnknownIndex), 9 * 7);
    // A probe returned to its sender is refused too.
    net.deliver(A, attacker, &mut probes[0].clone());
    assert_eq!(dropped(&net, A, DropReason::UnknownIndex), 1);
}

#[test]
fn attempts_have_a_bound_and_end() {
    let (mut net, links) = pair();
    let attempt = |net: &mut Net, n: u8| {
        net.nodes[A].relay.meet(net.now, links[A], ([n; 16], true), &[socket(B)])
    };
    assert!((1..=16).all(|n| attempt(&mut net, n) == Ok(())));
    assert_eq!(attempt(&mut net, 17), Err(DropReason::TableFull));
    net.run(Duration::from_secs(6));
    assert_eq!(attempt(&mut net, 17), Ok(()));
    net.nodes[A].relay.remove_link(net.now, links[A]);
    assert_eq!(attempt(&mut net, 18), Err(DropReason::UnknownPeer));
}
