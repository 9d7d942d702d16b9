//! A host's public address, as its router and mirrors report it. Mirrors answer nobody else.

use core::time::Duration;
use std::net::SocketAddr;

use crate::support::{Net, PathRecorder, identity, socket};
use proptest::prelude::*;
use shoal_relay::TrafficCounters;
use shoal_wire::{Address, CoverKind, CoverTier, DropReason, Mapping, SizeClass};

const H1: usize = 0;
const R1: usize = 1;
const R2: usize = 2;
const R3: usize = 3;

const SMALL: usize = SizeClass::Small.frame_len();

/// A host, its router, and two routers without a link to it.
fn net() -> Net {
    let router = |id| Address::new(id, 0);
    let addresses = [Address::new(1, 1), router(1), router(2), router(3)];
    let mut net = Net::new(&addresses, &[(H1, R1), (R1, R2), (R1, R3)]);
    net.run(Duration::from_secs(3));
    net
}

fn ask(net: &mut Net, mirrors: &[usize]) {
    let known = mirrors.iter().map(|&node| (identity(node).public(), socket(node)));
    net.nodes[H1].relay.set_mirrors(net.now, known.collect());
}

fn seen(net: &Net) -> Vec<(SocketAddr, SocketAddr)> {
    net.nodes[H1].relay.seen().collect()
}

fn dropped(net: &Net, node: usize, reason: DropReason) -> u64 {
    net.nodes[node].relay.counters().dropped(reason)
}

/// The host's requests to a mirror, which did not receive them.
fn requests(net: &mut Net, mirror: usize) -> Vec<Vec<u8>> {
    ask(net, &[mirror]);
    net.wire.seen = Some(Vec::new());
    net.cut.push((H1, mirror));
    net.run(Duration::from_secs(5));
    net.cut.clear();
    let all = net.wire.seen.take().unwrap_or_default();
    all.into_iter().filter(|frame| frame.len() == SMALL).collect()
}

#[test]
fn a_router_says_where_it_sees_a_host_after_handshakes_and_moves() {
    let mut net = net();
    assert_eq!(seen(&net), [(socket(R1), socket(H1))]);
    assert_eq!(net.nodes[H1].relay.mapping(), Mapping::Unknown, "one view says nothing");
    net.nodes[H1].at = socket(50);
    net.send(H1, Address::new(1, 2), 3, 1);
    net.run(Duration::from_secs(1));
    assert_eq!(seen(&net), [(socket(R1), socket(50))]);
    assert!((R1..=R3).all(|router| net.nodes[router].relay.seen().next().is_none()));
}

/// The message is never acknowledged and therefore repeated: one frame in three is lost.
#[test]
fn a_host_is_told_again_where_it_is_seen() {
    let mut told = 0;
    for hosts in 1..=8_u16 {
        let router = Address::new(1, 0);
        let links: Vec<(usize, usize)> = (1..=usize::from(hosts)).map(|host| (host, 0)).collect();
        let addresses = (1..=hosts).map(|host| Address::new(1, host));
        let addresses: Vec<Address> = [router].into_iter().chain(addresses).collect();
        let mut net = Net::new(&addresses, &links);
        net.lossy = Some((0, usize::from(hosts), 3));
        net.run(Duration::from_secs(5));
        told += net.nodes[usize::from(hosts)].relay.seen().count();
    }
    assert_eq!(told, 8);
}

#[test]
fn mirrors_tell_an_easy_translator_from_a_hard_one() {
    let mut net = net();
    ask(&mut net, &[R1, R2, R3]);
    net.run(Duration::from_millis(100));
    let expected = [R1, R2, R3].map(|by| (socket(by), socket(H1)));
    assert_eq!(seen(&net), expected, "the host's router is not asked");
    assert_eq!(net.nodes[H1].relay.mapping(), Mapping::Easy);

    // A different endpoint is seen from here on, but the router has not seen it.
    net.nodes[H1].at = socket(60);
    ask(&mut net, &[R2]);
    net.run(Duration::from_millis(20));
    assert_eq!(net.nodes[H1].relay.mapping(), Mapping::Hard);
}

#[test]
fn a_lost_request_is_sent_again_and_a_silent_mirror_is_given_up() {
    let mut net = net();
    net.cut.push((H1, R2));
    ask(&mut net, &[R2]);
    net.run(Duration::from_millis(100));
    net.cut.clear();
    assert_eq!(seen(&net).len(), 1);
    net.run(Duration::from_secs(1));
    assert_eq!(seen(&net).len(), 2);

    net.cut.push((H1, R3));
    let watch =
        PathRecorder { from: Some(socket(H1)), to: socket(R3), seen: Vec::new(), at: Vec::new() };
    net.watches[0] = Some(watch);
    ask(&mut net, &[R3]);
    net.run(Duration::from_secs(20));
    let sent = net.watches[0].take().expect("a watch").seen;
    assert!(sent.len() == 5 && sent.iter().all(|&len| len == SMALL), "{sent:?}");
    assert!(net.nodes[H1].relay.mapping() == Mapping::Unknown);
}

#[test]
fn copies_and_changed_requests_draw_no_byte() {
    let mut net = net();
    let frames = requests(&mut net, R2);
    let to_mirror = |net: &mut Net, frame: &[u8]| {
        let before = net.nodes[R2].relay.counters().traffic;
        let stranger = socket(70);
        net.wire.sent.clear();
        net.deliver(R2, stranger, &mut frame.to_vec());
        let TrafficCounters { frames_out, .. } = net.nodes[R2].relay.counters().traffic;
        frames_out - before.frames_out
    };
    let mut answered = Vec::new();
    for frame in &frames {
        let first = to_mirror(&mut net, frame);
        assert_eq!(to_mirror(&mut net, frame), 0, "a copy");
        if first > 0 {
            answered.push(frame.clone());
        }
    }
    assert_eq!(answered.len(), 4, "all that were meant for it");
    assert_eq!(dropped(&net, R2, DropReason::ReplayedHandshake), 4);
    for bit in (0..SMALL * 8).step_by(37) {
        let mut changed = answered[0].clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(to_mirror(&mut net, &changed), 0);
    }
    // Another router can't open these requests, a host answers none, and outdated ones get no
    // answer.
    for (node, reason) in [(R3, DropReason::UnknownIndex), (H1, DropReason::UnknownIndex)] {
        let before = dropped(&net, node, reason);
        net.deliver(node, socket(70), &mut answered[0].clone());
        assert_eq!(dropped(&net, node, reason), before + 1);
    }
    let late = requests(&mut net, R3);
    net.run(Duration::from_secs(70));
    let before = net.nodes[R3].relay.counters().traffic.handshakes_out;
    late.iter().for_each(|frame| net.deliver(R3, socket(70), &mut frame.clone()));
    assert_eq!(net.nodes[R3].relay.counters().traffic.handshakes_out, before);
    assert_eq!(dropped(&net, R3, DropReason::WrongClock), 4);
}

#[test]
fn nothing_is_answered_beside_the_schedule_of_a_covered_link() {
    let mut net = net();
    let frames = requests(&mut net, R2);
    let tier = CoverTier::new(2, CoverKind::Constant).expect("a tier");
    let relay = &mut net.nodes[R2].relay;
    let link = relay.links().find(|link| link.address == Address::new(1, 0)).expect("linked").link;
    relay.set_cover(net.now, link, Some(tier));
    let mut answers = |frames: &[Vec<u8>], from: usize| {
        let before = net.nodes[R2].relay.counters().traffic.frames_out;
        frames.iter().for_each(|frame| net.deliver(R2, socket(from), &mut frame.clone()));
        let after = net.nodes[R2].relay.counters().traffic.frames_out;
        (after - before, dropped(&net, R2, DropReason::NotAllowed))
    };
    let (out, refused) = answers(&frames, R1);
    assert!(out == 0 && refused >= 3, "a forged neighbour source: {out} {refused}");
    assert_eq!(answers(&frames, 70).0, 0, "copies of refused requests");
    let frames = requests(&mut net, R2);
    let mut sent = |frame: &Vec<u8>| {
        let before = net.nodes[R2].relay.counters().traffic.frames_out;
        net.deliver(R2, socket(70), &mut frame.clone());
        net.nodes[R2].relay.counters().traffic.frames_out - before
    };
    assert!(frames.iter().map(&mut sent).sum::<u64>() > 0, "another source");
}

#[test]
fn answers_have_a_budget() {
    let mut net = net();
    let mut frames = Vec::new();
    for _ in 0..30 {
        // Each call starts a new request.
        ask(&mut net, &[]);
        net.wire.seen = Some(Vec::new());
        net.cut.push((H1, R2));
        ask(&mut net, &[R2]);
        net.run(Duration::from_millis(1_700));
        net.cut.clear();
        frames.extend(net.wire.seen.take().unwrap_or_default());
    }
    frames.retain(|frame| frame.len() == SMALL);
    let before = net.nodes[R2].relay.counters().traffic.handshakes_out;
    frames.iter().for_each(|frame| net.deliver(R2, socket(70), &mut frame.clone()));
    let answered = net.nodes[R2].relay.counters().traffic.handshakes_out - before;
    assert_eq!((answered, dropped(&net, R2, DropReason::HandshakeBudget)), (32, 58));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64.min(ProptestConfig::default().cases)))]

    #[test]
    fn noise_of_that_length_is_dropped_by_name(noise: [[u8; 32]; SMALL / 32]) {
        let noise = noise.concat();
        let mut net = Net::new(&[Address::new(1, 1), Address::new(1, 0)], &[(0, 1)]);
        for node in [0, 1] {
            net.deliver(node, socket(70), &mut noise.clone());
            prop_assert_eq!(dropped(&net, node, DropReason::UnknownIndex), 1);
        }
    }
}
