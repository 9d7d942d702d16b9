//! The endpoint of a neighbour's frames: only an address that answered.

use core::time::Duration;
use std::net::SocketAddr;

use crate::support::{FULL, Net, PathRecorder, config, identity, socket};
use shoal_crypto::NetworkSecret;
use shoal_relay::{LinkConfig, LinkView, Relay};
use shoal_wire::{Address, SizeClass};

const H1: usize = 0;
const R1: usize = 1;
const H2: usize = 2;

const SMALL: usize = SizeClass::Small.frame_len();

fn at(node: usize) -> Address {
    [Address::new(1, 1), Address::new(1, 0), Address::new(1, 2)][node]
}

fn net(change: impl Fn(&mut shoal_relay::RelayConfig)) -> Net {
    let mut net = Net::with(&[at(H1), at(R1), at(H2)], &[(H1, R1), (H2, R1)], change);
    net.run(Duration::from_secs(3));
    net
}

fn link(net: &Net, here: usize, there: usize) -> LinkView {
    let mut links = net.nodes[here].relay.links();
    links.find(|link| link.address == at(there)).expect("a link")
}

fn endpoint(net: &Net, here: usize, there: usize) -> Option<SocketAddr> {
    link(net, here, there).endpoint
}

fn is_up(net: &Net, here: usize, there: usize) -> bool {
    net.nodes[here].relay.links().any(|l| l.address == at(there) && l.up_since.is_some())
}

/// Lets time pass. Returns the lengths of the frames sent to `place`.
fn sent_to(
    net: &mut Net,
    place: SocketAddr,
    steps: u32,
    mut each: impl FnMut(&mut Net),
) -> Vec<usize> {
    let mut lengths = Vec::new();
    for _ in 0..steps {
        each(net);
        net.watches[0] =
            Some(PathRecorder { from: None, to: place, seen: Vec::new(), at: Vec::new() });
        net.run(Duration::from_millis(1));
        lengths.extend(net.watches[0].take().into_iter().flat_map(|watch| watch.seen));
    }
    lengths
}

/// Restarts a node at `place`, with its configuration and without any state.
fn restart(net: &mut Net, node: usize, place: SocketAddr, links: &[LinkConfig]) {
    let (secret, seed) = (NetworkSecret([7; 32]), [0x90; 32]);
    let origins = [(1, identity(R1).public())];
    let config = config(at(node));
    let (now, unix_ms) = (net.now, 1_800_000_100_000);
    let mut relay = Relay::new(config, identity(node), secret, origins, seed, now, unix_ms);
    for link in links {
        relay.add_link(net.now, link).expect("room");
    }
    (net.nodes[node].relay, net.nodes[node].at) = (relay, place);
}

#[test]
fn a_raced_frame_from_a_forged_source_turns_no_traffic_to_it() {
    for workers in [1, 3] {
        let mut net = net(|config| (config.session.workers, config.session.lanes) = (workers, 6));
        let victim = socket(77);
        net.send(H1, at(H2), 1, 1);
        let (_, _, mut frame) = net.wire.sent.pop_front().expect("on its way to r1");
        net.deliver(R1, victim, &mut frame);
        let sent = sent_to(&mut net, victim, 50, |net| net.send(H2, at(H1), 20, 2));
        println!("{} frames of {} bytes to the victim", sent.len(), sent.iter().sum::<usize>());
        assert!(sent.len() <= 1 && sent.iter().all(|&len| len == SMALL), "{sent:?}");
        assert_eq!(endpoint(&net, R1, H1), Some(socket(H1)));
        assert!(net.nodes[H1].cells.len() >= 49 * 20, "h1 gets them all the while");
    }
}

#[test]
fn forged_sources_get_no_more_frames_than_were_sent_in_their_name() {
    let mut net = net(|_| {});
    let mut forged = 0;
    for round in 0..200u8 {
        net.send(H1, at(H2), 1, 1);
        let (_, _, mut frame) = net.wire.sent.pop_front().expect("on its way to r1");
        net.deliver(R1, socket(100 + usize::from(round % 3)), &mut frame);
        forged += 1;
        net.send(H2, at(H1), 20, 2);
        let to: Vec<_> = net.wire.sent.iter().map(|(_, to, frame)| (*to, frame.len())).collect();
        let strange = to.iter().filter(|(to, _)| (100..103).any(|n| *to == socket(n)));
        assert!(strange.clone().count() <= 1, "{to:?}");
        assert!(strange.clone().all(|(_, len)| *len == SMALL));
        net.run(Duration::from_millis(1));
    }
    assert_eq!(forged, 200);
    assert_eq!(endpoint(&net, R1, H1), Some(socket(H1)));
}

#[test]
fn a_neighbour_that_moved_is_followed_once_it_answers_from_there() {
    for workers in [1, 3] {
        let mut net = net(|config| (config.session.workers, config.session.lanes) = (workers, 6));
        net.nodes[H1].at = socket(50);
        net.send(H1, at(H2), 3, 1);
        net.run(Duration::from_millis(20));
        assert_eq!(endpoint(&net, R1, H1), Some(socket(50)), "{workers} workers");
        net.nodes[H1].cells.clear();
        net.send(H2, at(H1), 20, 2);
        net.run(Duration::from_millis(20));
        assert_eq!(net.nodes[H1].cells.len(), 20);
        assert!(is_up(&net, R1, H1) && is_up(&net, H1, R1));
    }
}

#[test]
fn a_lost_challenge_is_sent_again_with_the_next_frames() {
    let mut net = net(|_| {});
    net.nodes[H1].at = socket(50);
    net.cut.push((R1, H1));
    net.send(H1, at(H2), 1, 1);
    let (from, _, mut frame) = net.wire.sent.pop_front().expect("on its way to r1");
    net.deliver(R1, from, &mut frame);
    net.run(Duration::from_millis(5));
    net.cut.clear();
    assert_eq!(endpoint(&net, R1, H1), Some(socket(H1)));
    for _ in 0..300 {
        net.send(H1, at(H2), 1, 1);
        net.run(Duration::from_millis(1));
    }
    assert_eq!(endpoint(&net, R1, H1), Some(socket(50)));
}

#[test]
fn an_old_frame_on_another_lane_moves_nothing_back() {
    let mut net = net(|config| config.session.lanes = 4);
    // Cells of many pairs of hosts use all lanes. The held ones are overtaken.
    let mut late = Vec::new();
    for host in 2..40 {
        net.send(H1, Address::new(1, host), 1, 1);
        late.extend(net.wire.sent.drain(..));
    }
    net.nodes[H1].at = socket(50);
    net.send(H1, at(H2), 1, 2);
    net.run(Duration::from_millis(20));
    assert_eq!(endpoint(&net, R1, H1), Some(socket(50)));
    let mut moves = 0;
    for (from, _, mut frame) in late {
        net.deliver(R1, from, &mut frame);
        moves += u32::from(endpoint(&net, R1, H1) != Some(socket(50)));
    }
    println!("{moves} of 38 old frames found or left the endpoint where h1 is no more");
    assert_eq!(moves, 0);
    net.nodes[H1].cells.clear();
    net.send(H2, at(H1), 20, 2);
    net.run(Duration::from_millis(20));
    assert_eq!(net.nodes[H1].cells.len(), 20);
}

#[test]
fn a_neighbour_that_is_back_at_its_configured_place_is_found_there() {
    let mut net = net(|_| {});
    net.nodes[R1].at = socket(60);
    net.send(H2, at(H1), 3, 1);
    net.run(Duration::from_millis(600));
    assert_eq!(endpoint(&net, H1, R1), Some(socket(60)), "the router was renumbered");
    let away =
        |node| LinkConfig { key: identity(node).public(), address: at(node), endpoint: None };
    restart(&mut net, R1, socket(R1), &[away(H1), away(H2)]);
    net.send(H1, at(H2), 1, 1);
    let mut waited = 0;
    while !is_up(&net, R1, H1) && waited < 60 {
        net.run(Duration::from_secs(1));
        waited += 1;
    }
    println!("found after {waited} s");
    assert!(waited <= 6, "h1 calls where r1 was for {waited} s");
    assert_eq!(endpoint(&net, H1, R1), Some(socket(R1)));
}

#[test]
fn an_endpoint_that_was_set_gets_handshakes_only_while_a_live_link_stays_where_it_is() {
    let mut net = net(|_| {});
    let link = net.nodes[H1].relay.links().next().expect("r1").link;
    let victim = socket(77);
    net.nodes[H1].relay.set_endpoint(net.now, link, Some(victim));
    let sent = sent_to(&mut net, victim, 200, |net| net.send(H1, at(H2), 20, 1));
    println!("{} frames to the place that was told", sent.len());
    assert!(sent.len() <= 2 && sent.iter().all(|&len| len == FULL), "{sent:?}");
    assert_eq!(endpoint(&net, H1, R1), Some(socket(R1)));
    assert!(is_up(&net, H1, R1));
    assert_eq!(net.nodes[H2].cells.len(), 200 * 20);
}

#[test]
fn a_killed_router_is_missed_by_a_host_that_only_receives() {
    let keepalive = Some(Duration::from_secs(10));
    let mut net = net(|config| config.liveness.keepalive = keepalive);
    for _ in 0..5_000 {
        net.send(H1, at(H2), 1, 1);
        net.run(Duration::from_millis(1));
    }
    let away =
        |node| LinkConfig { key: identity(node).public(), address: at(node), endpoint: None };
    restart(&mut net, R1, socket(R1), &[away(H1), away(H2)]);
    let began = net.now;
    while !is_up(&net, R1, H2) && net.now.since(began) < Duration::from_secs(20) {
        net.run(Duration::from_millis(10));
    }
    let took = net.now.since(began);
    println!("h2 is back after {took:?}");
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn a_goodbye_ends_a_link_at_once_and_has_its_sender_called_until_it_is_back() {
    for workers in [1, 3] {
        let mut net = net(|config| (config.session.workers, config.session.lanes) = (workers, 6));
        net.run(Duration::from_secs(3));
        net.wire.from = Some(socket(R1));
        let now = net.now;
        net.nodes[R1].relay.say_goodbye(now, &mut net.wire);
        for (from, to, mut frame) in net.wire.sent.drain(..).collect::<Vec<_>>() {
            let there = [H1, H2].into_iter().find(|node| socket(*node) == to).expect("a host");
            net.deliver(there, from, &mut frame);
        }
        // The router stops before it answers any call, and restarts a second later.
        let away =
            |node| LinkConfig { key: identity(node).public(), address: at(node), endpoint: None };
        restart(&mut net, R1, socket(99), &[away(H1), away(H2)]);
        assert!(!is_up(&net, H1, R1) && !is_up(&net, H2, R1), "{workers} workers");
        net.run(Duration::from_secs(1));
        net.nodes[R1].at = socket(R1);
        let began = net.now;
        while !(is_up(&net, R1, H1) && is_up(&net, R1, H2)) {
            net.run(Duration::from_millis(10));
            assert!(net.now.since(began) < Duration::from_secs(1), "{workers} workers");
        }
        println!("both are back after {:?}", net.now.since(began));
    }
}

#[test]
fn a_goodbye_that_was_held_back_ends_no_link_that_was_made_since() {
    for workers in [1, 3] {
        let mut net = net(|config| (config.session.workers, config.session.lanes) = (workers, 6));
        net.wire.sent.clear();
        net.wire.from = Some(socket(H1));
        let now = net.now;
        net.nodes[H1].relay.say_goodbye(now, &mut net.wire);
        let held = net.wire.sent.drain(..).collect::<Vec<_>>();
        assert_eq!(held.len(), 1);
        let (key, address) = (identity(R1).public(), at(R1));
        restart(
            &mut net,
            H1,
            socket(H1),
            &[LinkConfig { key, address, endpoint: Some(socket(R1)) }],
        );
        net.run(Duration::from_secs(2));
        assert!(is_up(&net, H1, R1) && is_up(&net, R1, H1));
        for (from, _, mut frame) in held {
            net.deliver(R1, from, &mut frame);
        }
        assert!(is_up(&net, R1, H1), "{workers} workers");
    }
}

#[test]
fn the_local_address_is_learnt_with_handshakes_and_moves_and_with_nothing_else() {
    let here = [1, 2, 3].map(|host| Some(SocketAddr::from(([192, 0, 2, host], 7_400))));
    let mut net = Net::new(&[at(H1), at(R1), at(H2)], &[(H1, R1), (H2, R1)]);
    net.local = here[0];
    net.wire.paths = Some(Vec::new());
    net.run(Duration::from_secs(1));
    let local = |net: &Net, node: usize, neighbour: usize| link(net, node, neighbour).local;
    // The called node answers from the address that was called. The caller leaves the source to the
    // kernel.
    assert_eq!((local(&net, R1, H1), local(&net, H1, R1)), (here[0], None));
    let sent = |net: &mut Net, to: SocketAddr| {
        let paths = net.wire.paths.replace(Vec::new()).expect("paths are recorded");
        let mut from = paths.iter().filter(|path| path.ends.remote == to).collect::<Vec<_>>();
        assert!(from.iter().all(|path| path.link.is_some()));
        from.sort_unstable_by_key(|path| path.ends);
        from.dedup_by_key(|path| path.ends);
        from.into_iter().map(|path| path.ends.local).collect::<Vec<_>>()
    };
    assert_eq!(sent(&mut net, socket(H1)), [here[0]], "the answer to the handshake, too");
    net.local = here[1];
    for _ in 0..20 {
        net.send(H1, at(H2), 3, 1);
        net.send(H2, at(H1), 3, 1);
        net.run(Duration::from_millis(1));
    }
    assert_eq!((local(&net, R1, H1), sent(&mut net, socket(H1))), (here[0], vec![here[0]]));
    net.local = here[2];
    net.nodes[H1].at = socket(50);
    net.send(H1, at(H2), 3, 1);
    net.run(Duration::from_millis(500));
    assert_eq!(link(&net, R1, H1).endpoint, Some(socket(50)));
    assert_eq!((local(&net, R1, H1), sent(&mut net, socket(50))), (here[2], vec![here[2]]));
    net.local = here[0];
    net.rekey_all(H1);
    net.run(Duration::from_secs(1));
    assert_eq!(local(&net, R1, H1), here[0], "a new handshake shows where it is called now");
}
