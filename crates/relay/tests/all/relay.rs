//! Relays in memory: cells cross, invalid frames are counted, routes leave a dead line.

use crate::support::{FULL, Net, frames, socket};
use core::time::Duration;
use shoal_relay::CallContext;
use shoal_wire::{Address, DropReason, LinkKind, RoutedHeader, TrafficClass, link};
use zerocopy::IntoBytes;

const H1: usize = 0;
const R1: usize = 1;
const R2: usize = 2;
const R3: usize = 3;
const H2: usize = 4;

fn triangle() -> Net {
    triangle_with(|_| {})
}

fn triangle_with(change: impl Fn(&mut shoal_relay::RelayConfig)) -> Net {
    let addresses = [
        Address::new(1, 1),
        Address::new(1, 0),
        Address::new(2, 0),
        Address::new(3, 0),
        Address::new(2, 1),
    ];
    let links = [(H1, R1), (R1, R2), (R1, R3), (R2, R3), (H2, R2)];
    let mut net = Net::with(&addresses, &links, change);
    net.run(Duration::from_secs(3));
    net
}

fn dropped(net: &Net, node: usize, reason: DropReason) -> u64 {
    net.nodes[node].relay.counters().dropped(reason)
}

#[test]
fn cells_cross_two_routers() {
    let mut net = triangle();
    net.send(H1, Address::new(2, 1), 44, 0xab);
    net.run(Duration::from_millis(5));
    let cells = &net.nodes[H2].cells;
    assert_eq!(cells.len(), 44);
    assert!(cells.iter().all(|(src, payload)| {
        *src == Address::new(1, 1) && payload.iter().all(|&b| b == 0xab) && payload.len() == 1_400
    }));
}

#[test]
fn flows_spread_over_lanes_and_keep_their_order() {
    let mut net = triangle_with(|config| config.session.lanes = 4);
    for round in 0..20 {
        net.send(H1, Address::new(2, 1), 3, round);
        net.send(R1, Address::new(2, 1), 2, 100 + round);
        net.run(Duration::from_millis(1));
    }
    let cells = &net.nodes[H2].cells;
    assert_eq!(cells.len(), 100);
    for source in [Address::new(1, 1), Address::new(1, 0)] {
        let of_source = cells.iter().filter(|(src, _)| *src == source).map(|(_, p)| p[0]);
        assert!(of_source.is_sorted());
    }
}

#[test]
fn a_dead_line_between_routers_is_left_within_a_second_of_traffic() {
    let mut net = triangle();
    net.cut.push((R1, R2));
    let mut silent_ms = 0;
    for _ in 0..3_000 {
        net.send(H1, Address::new(2, 1), 1, 1);
        net.run(Duration::from_millis(1));
        if !net.nodes[H2].cells.is_empty() {
            break;
        }
        silent_ms += 1;
    }
    assert!(silent_ms < 1_000, "{silent_ms} ms without a cell after the cut");
}

#[test]
fn a_host_that_went_away_costs_nothing_and_is_taken_back() {
    let addresses = [Address::new(1, 1), Address::new(1, 0)];
    let mut net = Net::with(&addresses, &[(H1, R1)], |config| {
        config.session.rekey_after = Duration::from_secs(5);
        config.session.reject_after = Duration::from_secs(8);
        config.liveness.keepalive = Some(Duration::from_secs(2));
    });
    net.run(Duration::from_secs(3));
    net.cut.push((H1, R1));
    net.run(Duration::from_secs(40));
    let sent = net.nodes[R1].relay.counters().traffic.frames_out;
    net.run(Duration::from_secs(10));
    assert_eq!(net.nodes[R1].relay.counters().traffic.frames_out, sent);
    let due = net.nodes[R1].relay.poll_timeout().map(|(_, why)| why);
    assert_eq!(due, Some("route housekeeping"));
    net.cut.clear();
    net.run(Duration::from_secs(10));
    assert!(net.nodes[R1].relay.links().all(|link| link.up_since.is_some()));
}

#[test]
fn hostile_frames_are_counted_and_answered_by_silence() {
    let mut net = triangle();
    let stranger = socket(99);
    for (len, fill) in [(1, 0), (191, 1), (192, 2), (576, 3), (1_440, 4), (1_441, 5)] {
        net.wire.sent.clear();
        net.deliver(R1, stranger, &mut vec![fill; len]);
        assert!(net.wire.sent.iter().all(|(_, to, _)| *to != stranger));
    }
    assert_eq!(dropped(&net, R1, DropReason::BadSize), 3);
    // The node expects no reply, so frames of 192 bytes are refused at once. Frames of 1,440 bytes
    // could be requests and frames of 576 bytes parts of one, but their seals are invalid.
    let refusals =
        [DropReason::UnexpectedReply, DropReason::UnknownIndex, DropReason::BadHandshake];
    assert_eq!(refusals.map(|reason| dropped(&net, R1, reason)), [0, 1, 2]);
}

#[test]
fn a_captured_frame_is_accepted_once_from_64_ports() {
    let mut net = triangle();
    net.send(H1, Address::new(2, 1), 1, 9);
    let (_, _, frame) = net.wire.sent.pop_front().expect("the frame on its way to r1");
    for port in 0..64u16 {
        let mut from = socket(H1);
        from.set_port(20_000 + port);
        net.deliver(R1, from, &mut frame.clone());
    }
    net.run(Duration::from_millis(5));
    assert_eq!(net.nodes[H2].cells.len(), 1);
    assert_eq!(dropped(&net, R1, DropReason::Replayed), 63);
}

#[test]
fn a_frame_that_comes_back_to_its_sender_is_dropped() {
    let mut net = triangle();
    net.send(H1, Address::new(2, 1), 1, 9);
    let (_, _, mut frame) = net.wire.sent.pop_front().expect("the frame on its way to r1");
    let before = net.nodes[H1].relay.counters().clone();
    net.deliver(H1, socket(R1), &mut frame);
    let after = net.nodes[H1].relay.counters();
    let more: u64 = after.drops().zip(before.drops()).map(|((_, a), (_, b))| a - b).sum();
    assert_eq!(more, 1);
}

#[test]
fn a_host_cannot_speak_in_another_hosts_name() {
    let mut net = triangle();
    let forged = RoutedHeader::new(Address::new(2, 1), Address::new(3, 1), TrafficClass::Bulk);
    let mut buf = frames(Address::new(2, 1), Address::new(1, 1), 1, 0);
    buf[link::ROUTED_AT..link::CELL_AT].copy_from_slice(forged.as_bytes());
    net.wire.from = Some(socket(H1));
    let mut turn = CallContext { now: net.now, sink: &mut net.wire, hand: &mut () };
    net.nodes[H1].relay.send_cells(&mut turn, LinkKind::Cell, &mut buf, &[0], FULL);
    net.run(Duration::from_millis(5));
    assert_eq!(dropped(&net, R1, DropReason::BadSource), 1);
    assert!(net.nodes[H2].cells.is_empty());
}

#[test]
fn cells_to_nowhere_and_cells_with_a_spent_hop_limit_are_dropped_by_name() {
    let mut net = triangle();
    net.send(H1, Address::new(9, 1), 3, 0);
    net.run(Duration::from_millis(5));
    assert_eq!(dropped(&net, R1, DropReason::NoRoute), 3);
    let mut buf = frames(Address::new(2, 1), Address::new(1, 1), 1, 0);
    buf[link::ROUTED_AT + RoutedHeader::HOP_LIMIT_AT] = 1;
    net.wire.from = Some(socket(H1));
    let mut turn = CallContext { now: net.now, sink: &mut net.wire, hand: &mut () };
    net.nodes[H1].relay.send_cells(&mut turn, LinkKind::Cell, &mut buf, &[0], FULL);
    net.run(Duration::from_millis(5));
    assert_eq!(dropped(&net, R1, DropReason::HopLimit), 1);
}

#[test]
fn frames_that_the_kernel_refuses_wait_and_leave_in_order() {
    let mut net = triangle();
    net.wire.room = Some(10);
    net.send(H1, Address::new(2, 1), 40, 1);
    assert_eq!(net.nodes[H1].relay.room(Address::new(2, 1)), 0);
    net.send(H1, Address::new(2, 1), 40, 2);
    net.wire.room = None;
    net.run(Duration::from_millis(20));
    let fills: Vec<u8> = net.nodes[H2].cells.iter().map(|(_, payload)| payload[0]).collect();
    assert_eq!(fills.len(), 80);
    assert!(fills.is_sorted());
}

#[test]
fn the_same_inputs_give_the_same_frames() {
    // ML-KEM draws its own randomness, so handshakes differ. Their lengths and all else must not.
    let trace = || {
        let mut net = triangle();
        net.send(H1, Address::new(2, 1), 5, 1);
        net.step();
        let count = |i: usize| net.nodes[i].relay.counters().traffic;
        (0..5).map(count).collect::<Vec<_>>()
    };
    assert_eq!(trace(), trace());
}

fn small_path(says: bool) -> Net {
    let addresses =
        [Address::new(1, 1), Address::new(1, 0), Address::new(2, 0), Address::new(2, 1)];
    let mut net = Net::with(&addresses, &[(0, 1), (1, 2), (3, 2)], |_| {});
    (net.wire.longest, net.wire.says) = (Some(576), says);
    net.run(Duration::from_secs(6));
    net
}

#[test]
fn full_cells_cross_paths_that_carry_only_medium_frames() {
    for says in [false, true] {
        let mut net = small_path(says);
        assert!(net.nodes[1].relay.links().all(|link| link.small && link.up_since.is_some()));
        for round in 0..20 {
            net.send(0, Address::new(2, 1), 44, round);
            net.run(Duration::from_millis(1));
        }
        let cells = &net.nodes[3].cells;
        assert_eq!(cells.len(), 20 * 44, "says {says}");
        assert!(cells.iter().enumerate().all(|(n, (src, payload))| {
            *src == Address::new(1, 1) && *payload == vec![(n / 44) as u8; 1_400]
        }));
    }
}

#[test]
fn a_link_said_to_be_small_sends_no_full_frame_and_its_neighbour_finds_out_for_itself() {
    let mut net = triangle();
    let link = net.nodes[R1].relay.next_hop(Address::new(2, 0)).expect("r2 is beside r1");
    net.nodes[R1].relay.set_small_path(link, true);
    net.send(H1, Address::new(2, 1), 10, 7);
    net.run(Duration::from_millis(5));
    assert_eq!(net.nodes[H2].cells.len(), 10, "the receiver reassembles the parts");
    net.run(Duration::from_secs(150));
    net.send(R1, Address::new(2, 0), 1, 1);
    net.run(Duration::from_secs(10));
    let small = |net: &Net, node: usize, other: Address| {
        let mut links = net.nodes[node].relay.links();
        links.find(|l| l.address == other).expect("a link").small
    };
    assert!(small(&net, R1, Address::new(2, 0)));
    assert!(!small(&net, R2, Address::new(1, 0)), "a probe found the wide path");
    assert!(!small(&net, R2, Address::new(3, 0)));
}

#[test]
fn an_idle_host_link_makes_handshakes_only_when_its_keys_are_old() {
    let nodes = [Address::new(1, 0), Address::new(1, 1)];
    let mut net = Net::with(&nodes, &[(1, 0)], |config| {
        config.liveness.keepalive = Some(Duration::from_secs(10));
    });
    net.run(Duration::from_secs(5));
    let asked = |net: &Net| -> u64 {
        net.nodes.iter().map(|node| node.relay.sessions().stats().requests_sent).sum()
    };
    let before = asked(&net);
    net.run(Duration::from_secs(600));
    let made = asked(&net) - before;
    println!("{made} handshakes in ten idle minutes");
    // New keys are due after 100 to 120 s.
    assert!((4..=6).contains(&made), "{made}");
    assert!(net.nodes[0].relay.links().all(|link| link.up_since.is_some()));
}

#[test]
fn a_router_that_forgets_all_keys_has_its_links_again_at_once() {
    let mut net = triangle();
    let established = |net: &Net| net.nodes[R1].relay.sessions().stats().established;
    let before = established(&net);
    net.rekey_all(R1);
    assert_eq!(net.nodes[R1].relay.sessions().session_count(), 0);
    assert!(net.nodes[R1].relay.links().all(|link| link.up_since.is_none()));
    net.run(Duration::from_secs(2));
    assert_eq!(established(&net) - before, 3, "one handshake with each neighbour");
    assert!(net.nodes[R1].relay.links().all(|link| link.up_since.is_some()));
    net.send(H1, Address::new(2, 1), 10, 7);
    net.run(Duration::from_millis(5));
    assert_eq!(net.nodes[H2].cells.len(), 10);
}

/// Number of handshakes that a node requested.
fn asked(net: &Net, node: usize) -> u64 {
    net.nodes[node].relay.sessions().stats().requests_sent
}

/// Milliseconds until a cell from one node arrives at another.
fn until_cells_cross(net: &mut Net, from: usize, to: usize, dst: Address) -> u32 {
    net.nodes[to].cells.clear();
    for ms in 1..=20_000 {
        net.send(from, dst, 1, 1);
        net.run(Duration::from_millis(1));
        if !net.nodes[to].cells.is_empty() {
            return ms;
        }
    }
    panic!("no cell came within 20 s");
}

/// A suspended host or router resumes, with or without the datagrams that the kernel buffered.
#[test]
fn a_machine_that_was_suspended_is_back_within_one_handshake() {
    let nodes = [Address::new(1, 0), Address::new(1, 1), Address::new(1, 2)];
    let [router, host, other] = [0, 1, 2];
    for (asleep, seconds) in [(host, 15), (host, 100), (host, 200), (host, 1_000), (router, 200)] {
        for keeps in [false, true] {
            let mut net = Net::with(&nodes, &[(host, router), (other, router)], |config| {
                let is_host = !config.address.is_router();
                config.liveness.keepalive = is_host.then_some(Duration::from_secs(10));
            });
            net.run(Duration::from_secs(3));
            let came = net.run_without(asleep, Duration::from_secs(seconds));
            let before = asked(&net, host);
            net.wire.sent.extend(came.into_iter().filter(|_| keeps));
            let there = until_cells_cross(&mut net, host, other, nodes[other]);
            let handshakes = asked(&net, host) - before;
            let back = until_cells_cross(&mut net, other, host, nodes[host]);
            let who = if asleep == host { "host" } else { "router" };
            println!(
                "{who} suspended for {seconds} s, what came is kept: {keeps}: there {there} ms, \
                 {handshakes} requests, back {back} ms"
            );
            // Hosts call an unreachable router every five seconds.
            let most = if asleep == host { 10 } else { 6_000 };
            assert!(there <= most && back <= 10 && handshakes <= 1, "{who} {seconds} {keeps}");
        }
    }
}
