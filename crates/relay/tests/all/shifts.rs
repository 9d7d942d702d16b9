//! Links with address shifts, between complete relays.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::support::{FULL, Net, moved_prefix, shift_prefix, shifter, socket, under};
use shoal_relay::SendPath;
use shoal_relay::shift::{AddressProbeView, ShiftOutcome, ShiftView};
use shoal_wire::{Address, DropReason, LinkId};

pub const R1: usize = 0;
pub const R2: usize = 1;
pub const H1: usize = 2;
pub const SECOND: Duration = Duration::from_secs(1);

/// Two routers and a host of the first. The addresses of both links shift every second.
pub fn net(change: impl Fn(&mut shoal_relay::RelayConfig)) -> Net {
    let addresses = [Address::new(1, 0), Address::new(2, 0), Address::new(1, 1)];
    let mut net = Net::with(&addresses, &[(R1, R2), (H1, R1)], change);
    for node in 0..3 {
        let relay = &mut net.nodes[node].relay;
        relay.set_shift_place(Some((shift_prefix(node), 7_400)));
        let links: Vec<LinkId> = relay.links().map(|link| link.link).collect();
        for link in links {
            relay.set_shift(net.now, link, Some(SECOND));
        }
    }
    net.run(Duration::from_secs(8));
    net
}

pub fn view(net: &Net, node: usize) -> ShiftView {
    net.nodes[node].relay.view(LinkId::from_bits(0)).and_then(|link| link.shift).expect("it shifts")
}

pub fn all_shift(net: &Net) -> bool {
    let shifts = |node: &crate::support::Node| {
        node.relay.links().all(|link| link.shift.is_some_and(|shift| shift.shifting))
    };
    net.nodes.iter().all(shifts)
}

/// Sends cells from the host to the second router and back for this many seconds.
fn traffic(net: &mut Net, seconds: u64) {
    let before = [R2, H1].map(|node| net.nodes[node].cells.len());
    for _ in 0..seconds * 50 {
        net.send(H1, Address::new(2, 0), 3, 1);
        net.send(R2, Address::new(1, 1), 2, 2);
        net.run(Duration::from_millis(20));
    }
    net.run(Duration::from_millis(50));
    let now = [R2, H1].map(|node| net.nodes[node].cells.len());
    let cells = usize::try_from(seconds * 50).unwrap();
    assert_eq!([now[0] - before[0], now[1] - before[1]], [3 * cells, 2 * cells]);
}

/// Sources of full frames sent since the last call.
fn sources(paths: &mut Option<Vec<SendPath>>) -> BTreeSet<SocketAddr> {
    let all = paths.replace(Vec::new()).unwrap_or_default();
    all.into_iter().filter_map(|path| path.ends.local).filter(|at| shifter(*at).is_some()).collect()
}

#[test]
fn cells_go_between_addresses_that_change_and_none_is_lost() {
    let mut net = net(|_| {});
    assert!(all_shift(&net));
    net.wire.paths = Some(Vec::new());
    traffic(&mut net, 10);
    let used = sources(&mut net.wire.paths);
    // Four ends, each with one address per second.
    assert!((40..=60).contains(&used.len()), "{}", used.len());
    for node in 0..3 {
        assert_eq!(net.nodes[node].relay.counters().dropped(DropReason::StaleAddress), 0);
        assert_eq!(net.nodes[node].relay.counters().dropped(DropReason::BadShift), 0);
    }
    let shift = view(&net, R1);
    assert_eq!((shift.failed, shift.last.1, shift.interval), (0, ShiftOutcome::Moved, SECOND));
    // Status output and other nodes get the fixed endpoint only.
    let link = net.nodes[R1].relay.view(LinkId::from_bits(0)).unwrap();
    assert_eq!(link.endpoint, Some(socket(R2)));
    let seen: Vec<_> = net.nodes[H1].relay.seen().collect();
    assert_eq!(seen, [(socket(R1), socket(H1))]);
}

#[test]
fn a_path_that_gets_narrower_and_wider_between_shifts_carries_on() {
    let mut net = net(|_| {});
    net.narrow = vec![(R1, R2, 1_400)];
    let since = net.now;
    net.nodes[R2].cells.clear();
    while net.nodes[R2].cells.is_empty() {
        net.send(H1, Address::new(2, 0), 3, 1);
        net.run(Duration::from_millis(20));
        assert!(net.now.since(since) < 2 * SECOND);
    }
    let small = |net: &Net| net.nodes[R1].relay.view(LinkId::from_bits(0)).unwrap().small;
    assert!(small(&net));
    traffic(&mut net, 10);
    net.narrow.clear();
    traffic(&mut net, 30);
    assert!(!small(&net) && all_shift(&net));
}

#[test]
fn new_sessions_and_several_workers_change_nothing() {
    let mut net = net(|config| {
        config.session.rekey_after = Duration::from_secs(4);
        (config.session.workers, config.session.lanes) = (3, 6);
    });
    traffic(&mut net, 15);
    assert!(all_shift(&net));
    assert!((0..3).all(|node| view(&net, node).failed == 0));
}

#[test]
fn old_addresses_and_guessed_ones_are_dropped_before_any_key() {
    let mut net = net(|_| {});
    net.wire.paths = Some(Vec::new());
    net.run(SECOND);
    net.send(H1, Address::new(2, 0), 1, 1);
    let old = sources(&mut net.wire.paths).into_iter().find(|at| shifter(*at) == Some(R2));
    let mut guessed = old.expect("a frame was sent");
    net.run(3 * SECOND);
    let from = socket(50);
    let counted = |net: &Net, reason| net.nodes[R2].relay.counters().dropped(reason);
    let before = counted(&net, DropReason::UnknownIndex) + counted(&net, DropReason::BadHandshake);
    for at in [old, Some(guessed)] {
        net.local = at;
        net.deliver(R2, from, &mut [7; FULL]);
        guessed.set_ip("2001:db8:0:2::7".parse().unwrap());
    }
    net.local = None;
    assert_eq!(counted(&net, DropReason::StaleAddress), 2);
    let after = counted(&net, DropReason::UnknownIndex) + counted(&net, DropReason::BadHandshake);
    assert_eq!(before, after);
    net.deliver(R2, from, &mut [7; FULL]);
    assert_eq!(counted(&net, DropReason::StaleAddress), 2, "the schedule says nothing of it");
}

/// Makes addresses shift every hour, and waits for the first shifts.
pub fn shift_by_the_hour(net: &mut Net) {
    for node in 0..3 {
        let relay = &mut net.nodes[node].relay;
        let links: Vec<LinkId> = relay.links().map(|link| link.link).collect();
        for link in links {
            relay.set_shift(net.now, link, Some(3_600 * SECOND));
        }
    }
    net.run(3 * SECOND);
    assert!(all_shift(net));
}

#[test]
fn links_with_long_epochs_begin_to_shift_at_once() {
    let mut net = net(|_| {});
    shift_by_the_hour(&mut net);
    traffic(&mut net, 3);
}

#[test]
fn a_line_that_was_cut_shifts_again() {
    let mut net = net(|_| {});
    net.cut.push((R1, R2));
    for _ in 0..200 {
        net.send(H1, Address::new(2, 0), 1, 1);
        net.run(Duration::from_millis(50));
    }
    assert!(!view(&net, R1).shifting && !view(&net, R2).shifting);
    net.cut.clear();
    net.run(Duration::from_secs(40));
    assert!(all_shift(&net));
    traffic(&mut net, 3);
}

#[test]
fn a_link_stops_and_begins_to_shift_as_its_ends_are_told() {
    let mut net = net(|_| {});
    let link = LinkId::from_bits(0);
    net.nodes[R2].relay.set_shift(net.now, link, None);
    traffic(&mut net, 3);
    let shift = view(&net, R1);
    assert!(!shift.shifting && !shift.agreed);
    assert!(net.nodes[R2].relay.view(link).unwrap().shift.is_none());
    net.nodes[R2].relay.set_shift(net.now, link, Some(2 * SECOND));
    net.run(5 * SECOND);
    assert!(all_shift(&net));
    assert_eq!(view(&net, R1).interval, 2 * SECOND);
    traffic(&mut net, 5);
}

/// The neighbour could not be told that this end stopped.
#[test]
fn a_neighbour_that_was_away_hears_that_this_end_shifts_no_more() {
    let mut net = net(|_| {});
    net.cut.push((R1, R2));
    net.run(90 * SECOND);
    net.nodes[R2].relay.set_shift(net.now, LinkId::from_bits(0), None);
    net.run(SECOND);
    net.cut.clear();
    net.run(60 * SECOND);
    let shift = view(&net, R1);
    assert!(!shift.shifting && !shift.agreed);
    traffic(&mut net, 3);
}

#[test]
fn ceaseless_changes_of_the_interval_exceed_the_shift_budget() {
    let mut net = net(|_| {});
    let link = LinkId::from_bits(0);
    for round in 0..100 {
        net.nodes[R2].relay.set_shift(net.now, link, Some((1 + round % 2) * SECOND));
        net.run(Duration::from_millis(20));
    }
    let counters = net.nodes[R1].relay.counters();
    assert!((1..100).contains(&counters.dropped(DropReason::ShiftBudget)));
    // The place is announced with each new session.
    net.run(150 * SECOND);
    assert!(all_shift(&net));
}

/// Replays all frames that a neighbour sent in three epochs, unchanged and with a flipped bit, to
/// accepted addresses. Each is dropped by name, and no shift succeeds or fails because of them.
#[test]
fn steps_that_are_replayed_or_forged_are_dropped_by_name() {
    let mut net = net(|_| {});
    (net.wire.paths, net.wire.seen) = (Some(Vec::new()), Some(Vec::new()));
    net.run(3 * SECOND);
    let paths = net.wire.paths.take().unwrap_or_default();
    let seen = net.wire.seen.take().unwrap_or_default();
    assert_eq!(paths.len(), seen.len(), "each send is one frame");
    let of_r2 = |path: &SendPath| {
        path.ends.local.and_then(shifter) == Some(R2) && shifter(path.ends.remote) == Some(R1)
    };
    let sent: Vec<_> = paths.iter().zip(seen).filter(|(path, _)| of_r2(path)).collect();
    let newest = sent.last().expect("shifts were made").0.ends;
    let (from, before) = (newest.local.expect("its source"), view(&net, R1));
    let counted = |net: &Net, reason| net.nodes[R1].relay.counters().dropped(reason);
    let forged_before = counted(&net, DropReason::UnknownIndex);
    net.local = Some(newest.remote);
    for (_, frame) in &sent {
        let mut forged = frame.clone();
        forged.iter_mut().last().into_iter().for_each(|byte| *byte ^= 1);
        net.deliver(R1, from, &mut frame.clone());
        net.deliver(R1, from, &mut forged);
    }
    net.local = None;
    assert_eq!(counted(&net, DropReason::Replayed), sent.len() as u64);
    assert_eq!(counted(&net, DropReason::UnknownIndex) - forged_before, sent.len() as u64);
    assert_eq!(counted(&net, DropReason::BadShift), 0);
    assert_eq!(view(&net, R1), before);
    traffic(&mut net, 3);
    assert_eq!(view(&net, R1).failed, before.failed);
}

/// Result of a probe between the first and the second router.
fn probe(net: &mut Net) -> AddressProbeView {
    let link = LinkId::from_bits(0);
    let relay = &mut net.nodes[R1].relay;
    assert!(relay.probe_shift(net.now, link));
    assert!(relay.shift_probe(link).is_some_and(|view| !view.over));
    net.run(Duration::from_secs(3));
    let view = net.nodes[R1].relay.shift_probe(link).unwrap();
    assert!(view.over, "{view:?}");
    view
}

#[test]
fn a_probe_says_which_way_of_the_prefix_is_closed() {
    let mut net = net(|_| {});
    let found =
        |heard, came, left| AddressProbeView { over: true, heard, came, left, moved: false };
    let before = view(&net, R1);
    assert_eq!(probe(&mut net), found(true, true, true));
    let after = view(&net, R1);
    assert!(after.shifting && after.failed == before.failed, "nothing else changed");
    net.unrouted = [Some(R1), None];
    assert_eq!(probe(&mut net), found(true, false, true));
    net.unrouted = [None, Some(R1)];
    assert_eq!(probe(&mut net), found(true, true, false));
    // A fault of the neighbour's prefix does not affect the result for this one.
    net.unrouted = [Some(R2), Some(R2)];
    assert_eq!(probe(&mut net), found(true, true, true));
    net.unrouted = [None, None];
    net.cut.push((R1, R2));
    assert_eq!(probe(&mut net), found(false, false, false));
    for node in [R1, R2] {
        let counters = net.nodes[node].relay.counters();
        assert_eq!(counters.dropped(DropReason::BadShift), 0);
        assert_eq!(counters.dropped(DropReason::ShiftBudget), 0);
        assert_eq!(counters.dropped(DropReason::StaleAddress), 0);
    }
    // One node asks all the time.
    net.cut.clear();
    for _ in 0..40 {
        net.nodes[R1].relay.probe_shift(net.now, LinkId::from_bits(0));
        net.run(Duration::from_millis(100));
    }
    assert!(net.nodes[R2].relay.counters().dropped(DropReason::ShiftBudget) > 0);
}

/// The neighbour sends the probe's frames to the prefix that it knows. A frame to a former prefix
/// proves nothing about the current one and does not count as an answer.
#[test]
fn a_probe_is_of_the_prefix_in_force() {
    let mut net = net(|_| {});
    let link = LinkId::from_bits(0);
    let fixed = |net: &Net| net.nodes[R2].relay.view(link).and_then(|link| link.endpoint);
    let (before, stale) = (fixed(&net), DropReason::StaleAddress);
    // For half a minute the former prefix is routed, and the current one is not.
    net.nodes[R1].relay.move_shift_prefix(net.now, moved_prefix(R1));
    let closed =
        AddressProbeView { over: true, heard: true, came: false, left: true, moved: false };
    net.wire.paths = Some(Vec::new());
    assert_eq!(probe(&mut net), closed, "nothing came to the prefix in force, at once");
    // The neighbour sends to the address under both prefixes.
    let mut sent = BTreeMap::<SocketAddr, [u32; 2]>::new();
    for at in net.wire.paths.take().unwrap_or_default().iter().map(|path| path.ends.remote) {
        let moved = under(moved_prefix(R1), at);
        if shifter(at) == Some(R1) {
            sent.entry(moved).or_default()[usize::from(moved == at)] += 1;
        }
    }
    assert!(sent.values().any(|sent| sent[0] == sent[1] && sent[0] > 5), "{sent:?}");
    for _ in 0..3 {
        assert_eq!(probe(&mut net), closed);
        assert!(net.nodes[R1].relay.counters().dropped(stale) > 0);
        assert_eq!(fixed(&net), before, "a probe moves nothing");
        net.run(4 * SECOND);
    }
    net.routed[R1] = [7; 8];
    net.run(40 * SECOND);
    assert_eq!(probe(&mut net), closed);
    net.routed[R1] = moved_prefix(R1);
    assert_eq!(probe(&mut net), AddressProbeView { came: true, ..closed });
}

/// A probe in progress refers to the new prefix after a change.
#[test]
fn a_probe_begins_anew_with_another_prefix() {
    let mut net = net(|_| {});
    let link = LinkId::from_bits(0);
    net.unrouted = [None, Some(R1)];
    net.run(3 * SECOND);
    assert!(net.nodes[R1].relay.probe_shift(net.now, link));
    let found = |net: &Net| net.nodes[R1].relay.shift_probe(link).unwrap();
    while !found(&net).came {
        assert!(!found(&net).over);
        net.run(Duration::from_millis(10));
    }
    net.nodes[R1].relay.move_shift_prefix(net.now, moved_prefix(R1));
    net.run(4 * SECOND);
    let view = found(&net);
    assert!(view.over && view.moved && !view.came, "{view:?}");
}

/// One end's shifts fail, and the other end only follows. Both know when a shift should have
/// happened.
#[test]
fn both_ends_know_when_shifts_are_late() {
    let link = LinkId::from_bits(0);
    let late = |net: &Net, node: usize| {
        let seen = net.nodes[node].relay.view(link).unwrap();
        let shift = seen.shift.filter(|_| seen.up_since.is_some());
        shift.is_some_and(|shift| !shift.shifting && net.now >= shift.begins_by + 10 * SECOND)
    };
    let is_late = |net: &Net| [R1, R2].map(|node| late(net, node));
    let mut net = net(|_| {});
    for interval in [1, 3, 30] {
        // New settings at both ends, and an unreachable neighbour.
        for node in [R1, R2] {
            net.nodes[node].relay.set_shift(net.now, link, Some(interval * SECOND));
        }
        for away in [0, 1_400, 2_000, 2_400, 3_000, 60_000] {
            net.cut = vec![(R1, R2)];
            net.run(Duration::from_millis(away));
            net.cut.clear();
            for _ in 0..60 * 4 {
                net.run(SECOND / 4);
                // Also after the pause caused by failed shifts.
                assert_eq!(is_late(&net), [false; 2], "{interval}, {away}");
            }
            assert!(all_shift(&net), "{interval}, {away}");
        }
    }
    net.unrouted = [Some(R1); 2];
    for node in [R1, R2] {
        net.nodes[node].relay.set_shift(net.now, link, Some(SECOND));
    }
    net.run(25 * SECOND);
    assert_eq!(is_late(&net), [true; 2]);
    let failed = [R1, R2].map(|node| view(&net, node).failed);
    assert!(failed.contains(&0) && failed != [0, 0], "one end only follows: {failed:?}");
}

/// Sends a cell per 20 ms from the host to the second router and back. Returns the number of lost
/// cells.
pub fn lost(net: &mut Net, seconds: u64) -> usize {
    let before = [R2, H1].map(|node| net.nodes[node].cells.len());
    for _ in 0..seconds * 50 {
        net.send(H1, Address::new(2, 0), 1, 1);
        net.send(R2, Address::new(1, 1), 1, 2);
        net.run(Duration::from_millis(20));
    }
    net.run(Duration::from_millis(50));
    let now = [R2, H1].map(|node| net.nodes[node].cells.len());
    let cells = usize::try_from(seconds * 50).unwrap();
    2 * cells - (now[0] - before[0]) - (now[1] - before[1])
}

/// Asserts that the neighbours of R1 followed it to its new prefix without falling back.
pub fn followed(net: &mut Net, failed: [u64; 3]) {
    net.wire.paths = Some(Vec::new());
    assert_eq!(lost(net, 5), 0);
    let paths = net.wire.paths.take().unwrap_or_default();
    let to_r1 = |path: &&SendPath| shifter(path.ends.remote) == Some(R1);
    let moved = |path: &&SendPath| under(moved_prefix(R1), path.ends.remote) == path.ends.remote;
    let (all, there): (Vec<_>, Vec<_>) = {
        let all = paths.iter().filter(to_r1);
        (all.clone().collect(), all.filter(moved).collect())
    };
    // For a while, steps also go to the former prefix.
    assert!(there.len() > 100 && all.len() - there.len() < 40, "{} {}", all.len(), there.len());
    assert!(all_shift(net) && [R1, R2, H1].map(|node| view(net, node).failed) == failed);
}

#[test]
fn neighbours_follow_a_node_to_another_prefix_with_its_schedule() {
    let mut net = net(|_| {});
    for _ in 0..3 {
        lost(&mut net, 1);
        let failed = [R1, R2, H1].map(|node| view(&net, node).failed);
        net.routed[R1] = moved_prefix(R1);
        net.nodes[R1].relay.move_shift_prefix(net.now, moved_prefix(R1));
        // The limited cells may be lost at the former place, until its silence is known.
        let missed = lost(&mut net, 2);
        assert!(missed < 12, "{missed}");
        followed(&mut net, failed);
        // The node moves back.
        net.routed[R1] = shift_prefix(R1);
        net.nodes[R1].relay.move_shift_prefix(net.now, shift_prefix(R1));
        let missed = lost(&mut net, 3);
        assert!(missed < 12 && all_shift(&net), "{missed}");
    }
}

/// A translator of prefixes (RFC 6296) appears in front of a router that does not know of it.
#[test]
fn neighbours_follow_a_node_whose_prefix_is_translated() {
    let mut net = net(|_| {});
    lost(&mut net, 1);
    let failed = [R1, R2, H1].map(|node| view(&net, node).failed);
    (net.routed[R1], net.translated) = (moved_prefix(R1), vec![R1]);
    let missed = lost(&mut net, 2);
    assert!(missed < 12, "{missed}");
    followed(&mut net, failed);
    // A fall and a new start change nothing.
    net.cut.push((R1, R2));
    net.run(Duration::from_secs(20));
    net.cut.clear();
    net.run(Duration::from_secs(40));
    let failed = [R1, R2, H1].map(|node| view(&net, node).failed);
    followed(&mut net, failed);
}

/// A frame with a forged source must not lead anybody to another prefix.
#[test]
fn a_raced_frame_from_another_prefix_turns_no_traffic_there() {
    let mut net = net(|_| {});
    lost(&mut net, 1);
    net.wire.paths = Some(Vec::new());
    net.translated = vec![R1];
    for _ in 0..10 {
        net.routed[R1] = moved_prefix(R1);
        net.send(R1, Address::new(2, 0), 1, 1);
        net.step();
        net.routed[R1] = shift_prefix(R1);
        net.run(Duration::from_millis(50));
    }
    let paths = net.wire.paths.take().unwrap_or_default();
    let led = |path: &&SendPath| under(moved_prefix(R1), path.ends.remote) == path.ends.remote;
    let led: Vec<_> = paths.iter().filter(led).collect();
    assert!(!led.is_empty() && led.len() < 40, "challenges alone: {}", led.len());
    net.translated.clear();
    assert_eq!(lost(&mut net, 3), 0);
}

/// One end fell back and calls again, from a scheduled address or elsewhere. Its next fallback is
/// the fixed endpoint.
#[test]
fn no_address_of_a_schedule_becomes_the_fixed_endpoint() {
    let mut net = net(|config| config.session.rekey_after = Duration::from_secs(3));
    for round in 0..20 {
        net.cut.push((H1, R1));
        for _ in 0..(10 + round) {
            net.send(H1, Address::new(2, 0), 1, 1);
            net.run(Duration::from_millis(100));
        }
        net.cut.clear();
        net.run(Duration::from_millis(700 + 100 * round));
        for node in 0..3 {
            let endpoints = net.nodes[node].relay.links().filter_map(|link| link.endpoint);
            assert!(endpoints.into_iter().all(|at| shifter(at).is_none()), "{round}: {node}");
        }
    }
}

/// The calls of failed shifts are no signs of life and delay no keepalive.
#[test]
fn an_idle_neighbour_that_is_gone_is_noticed_by_the_next_keepalive() {
    let mut net = net(|config| config.liveness.keepalive = Some(Duration::from_secs(30)));
    net.run(Duration::from_secs(20));
    net.cut.push((H1, R1));
    // Calls leave 12 s and 33 s later. A keepalive leaves within five quarters of its period.
    net.run(Duration::from_secs(39));
    let is_up = |node: usize, far: Address| {
        let link = net.nodes[node].relay.links().find(|link| link.address == far);
        link.is_some_and(|link| link.up_since.is_some())
    };
    assert!(!is_up(H1, Address::new(1, 0)) && !is_up(R1, Address::new(1, 1)));
}

/// A neighbour announces its new prefix while it is challenged at a scheduled address, and answers
/// then. The answer must not make this address the fixed endpoint.
#[test]
fn an_answer_that_comes_after_the_prefix_was_told_moves_no_fixed_endpoint() {
    let mut followed = 0;
    for (node, other) in [(R1, R2), (R2, R1)] {
        let mut net = net(|_| {});
        net.unrouted = [Some(node); 2];
        net.run(Duration::from_secs(5));
        assert!(!view(&net, other).shifting);
        // The leading end begins a shift that fails.
        let calls = |path: &SendPath| {
            let to = shifter(path.ends.remote);
            path.ends.local.and_then(shifter) == Some(node) && to == Some(other)
        };
        let mut is_called = false;
        for _ in 0..30_000 {
            net.wire.paths = Some(Vec::new());
            net.run(Duration::from_millis(1));
            is_called = net.wire.paths.iter().flatten().any(calls);
            if is_called {
                break;
            }
        }
        if !is_called {
            continue;
        }
        // The neighbour calls from the new prefix before its announcement arrives.
        net.unrouted = [None; 2];
        net.routed[node] = moved_prefix(node);
        net.nodes[node].relay.move_shift_prefix(net.now, moved_prefix(node));
        net.wire.paths = Some(Vec::new());
        let (at, there) = (net.nodes[node].at, net.nodes[other].at);
        let mut late = Vec::new();
        for _ in 0..400 {
            let held = net.step_between_shifters();
            late.extend(held.into_iter().filter(|(from, to, _)| (*from, *to) == (at, there)));
            net.now = net.now + Duration::from_millis(1);
        }
        let asked =
            |path: &SendPath| under(moved_prefix(node), path.ends.remote) == path.ends.remote;
        assert!(net.wire.paths.take().iter().flatten().any(asked), "challenged there");
        for (from, _, mut frame) in late {
            net.deliver(other, from, &mut frame);
            let endpoint = net.nodes[other].relay.view(LinkId::from_bits(0));
            let endpoint = endpoint.and_then(|link| link.endpoint);
            assert_eq!(endpoint, Some(at), "{node}");
        }
        followed += 1;
        net.run(Duration::from_secs(100));
        assert!(view(&net, other).shifting);
    }
    assert_eq!(followed, 2, "either end calls, the following one if no call comes");
}
