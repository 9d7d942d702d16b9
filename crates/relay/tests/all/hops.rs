//! Links whose addresses hop, between whole relays.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::support::{FULL, Net, hop_prefix, hopper, moved_prefix, socket, under};
use shoal_relay::Path;
use shoal_relay::hop::{HopView, Outcome, ProbeView};
use shoal_wire::{Address, DropReason, LinkId};

pub const R1: usize = 0;
pub const R2: usize = 1;
pub const H1: usize = 2;
pub const SECOND: Duration = Duration::from_secs(1);

/// Two routers and a host of the first; both links' addresses hop each second.
pub fn net(change: impl Fn(&mut shoal_relay::Config)) -> Net {
    let addresses = [Address::new(1, 0), Address::new(2, 0), Address::new(1, 1)];
    let mut net = Net::with(&addresses, &[(R1, R2), (H1, R1)], change);
    for node in 0..3 {
        let relay = &mut net.nodes[node].relay;
        relay.set_hop_place(Some((hop_prefix(node), 7_400)));
        let links: Vec<LinkId> = relay.links().map(|link| link.link).collect();
        for link in links {
            relay.set_hop(net.now, link, Some(SECOND));
        }
    }
    net.run(Duration::from_secs(8));
    net
}

pub fn view(net: &Net, node: usize) -> HopView {
    net.nodes[node].relay.view(LinkId::from_bits(0)).and_then(|link| link.hop).expect("it hops")
}

pub fn all_hop(net: &Net) -> bool {
    let hops = |node: &crate::support::Node| {
        node.relay.links().all(|link| link.hop.is_some_and(|hop| hop.hopping))
    };
    net.nodes.iter().all(hops)
}

/// Sends cells from the host to the second router for so many seconds, and back.
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

/// The addresses from which full frames left since the last call.
fn sources(paths: &mut Option<Vec<Path>>) -> BTreeSet<SocketAddr> {
    let all = paths.replace(Vec::new()).unwrap_or_default();
    all.into_iter().filter_map(|path| path.ends.local).filter(|at| hopper(*at).is_some()).collect()
}

#[test]
fn cells_go_between_addresses_that_change_and_none_is_lost() {
    let mut net = net(|_| {});
    assert!(all_hop(&net));
    net.wire.paths = Some(Vec::new());
    traffic(&mut net, 10);
    let used = sources(&mut net.wire.paths);
    // Four ends, each with an address a second.
    assert!((40..=60).contains(&used.len()), "{}", used.len());
    for node in 0..3 {
        assert_eq!(net.nodes[node].relay.counters().dropped(DropReason::StaleAddress), 0);
        assert_eq!(net.nodes[node].relay.counters().dropped(DropReason::BadHop), 0);
    }
    let hop = view(&net, R1);
    assert_eq!((hop.failed, hop.last.1, hop.interval), (0, Outcome::Moved, SECOND));
    // What people and other nodes are told is the fixed endpoint.
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
    assert!(!small(&net) && all_hop(&net));
}

#[test]
fn new_sessions_and_several_workers_change_nothing() {
    let mut net = net(|config| {
        config.session.rekey_after = Duration::from_secs(4);
        (config.session.workers, config.session.lanes) = (3, 6);
    });
    traffic(&mut net, 15);
    assert!(all_hop(&net));
    assert!((0..3).all(|node| view(&net, node).failed == 0));
}

#[test]
fn old_addresses_and_guessed_ones_are_dropped_before_any_key() {
    let mut net = net(|_| {});
    net.wire.paths = Some(Vec::new());
    net.run(SECOND);
    net.send(H1, Address::new(2, 0), 1, 1);
    let old = sources(&mut net.wire.paths).into_iter().find(|at| hopper(*at) == Some(R2));
    let mut guessed = old.expect("it sent something");
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

/// Has addresses hop each hour, and waits for the first hops.
pub fn hop_by_the_hour(net: &mut Net) {
    for node in 0..3 {
        let relay = &mut net.nodes[node].relay;
        let links: Vec<LinkId> = relay.links().map(|link| link.link).collect();
        for link in links {
            relay.set_hop(net.now, link, Some(3_600 * SECOND));
        }
    }
    net.run(3 * SECOND);
    assert!(all_hop(net));
}

#[test]
fn links_with_long_epochs_begin_to_hop_at_once() {
    let mut net = net(|_| {});
    hop_by_the_hour(&mut net);
    traffic(&mut net, 3);
}

#[test]
fn a_line_that_was_cut_hops_again() {
    let mut net = net(|_| {});
    net.cut.push((R1, R2));
    for _ in 0..200 {
        net.send(H1, Address::new(2, 0), 1, 1);
        net.run(Duration::from_millis(50));
    }
    assert!(!view(&net, R1).hopping && !view(&net, R2).hopping);
    net.cut.clear();
    net.run(Duration::from_secs(40));
    assert!(all_hop(&net));
    traffic(&mut net, 3);
}

#[test]
fn a_link_stops_and_begins_to_hop_as_its_ends_are_told() {
    let mut net = net(|_| {});
    let link = LinkId::from_bits(0);
    net.nodes[R2].relay.set_hop(net.now, link, None);
    traffic(&mut net, 3);
    let hop = view(&net, R1);
    assert!(!hop.hopping && !hop.agreed);
    assert!(net.nodes[R2].relay.view(link).unwrap().hop.is_none());
    net.nodes[R2].relay.set_hop(net.now, link, Some(2 * SECOND));
    net.run(5 * SECOND);
    assert!(all_hop(&net));
    assert_eq!(view(&net, R1).interval, 2 * SECOND);
    traffic(&mut net, 5);
}

/// It was told to stop while nobody heard it.
#[test]
fn a_neighbour_that_was_away_hears_that_this_end_hops_no_more() {
    let mut net = net(|_| {});
    net.cut.push((R1, R2));
    net.run(90 * SECOND);
    net.nodes[R2].relay.set_hop(net.now, LinkId::from_bits(0), None);
    net.run(SECOND);
    net.cut.clear();
    net.run(60 * SECOND);
    let hop = view(&net, R1);
    assert!(!hop.hopping && !hop.agreed);
    traffic(&mut net, 3);
}

#[test]
fn who_says_something_new_of_its_place_all_the_time_is_not_listened_to() {
    let mut net = net(|_| {});
    let link = LinkId::from_bits(0);
    for round in 0..100 {
        net.nodes[R2].relay.set_hop(net.now, link, Some((1 + round % 2) * SECOND));
        net.run(Duration::from_millis(20));
    }
    let counters = net.nodes[R1].relay.counters();
    assert!((1..100).contains(&counters.dropped(DropReason::HopBudget)));
    // The place is told with each new session.
    net.run(150 * SECOND);
    assert!(all_hop(&net));
}

/// All that a neighbour sent in three epochs comes once more, and with a bit changed, where this
/// node takes frames in: each is dropped by name, and no hop is made or fails for it.
#[test]
fn steps_that_are_replayed_or_forged_are_dropped_by_name() {
    let mut net = net(|_| {});
    (net.wire.paths, net.wire.seen) = (Some(Vec::new()), Some(Vec::new()));
    net.run(3 * SECOND);
    let paths = net.wire.paths.take().unwrap_or_default();
    let seen = net.wire.seen.take().unwrap_or_default();
    assert_eq!(paths.len(), seen.len(), "each send is one frame");
    let of_r2 = |path: &Path| {
        path.ends.local.and_then(hopper) == Some(R2) && hopper(path.ends.remote) == Some(R1)
    };
    let sent: Vec<_> = paths.iter().zip(seen).filter(|(path, _)| of_r2(path)).collect();
    let newest = sent.last().expect("hops were made").0.ends;
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
    assert_eq!(counted(&net, DropReason::BadHop), 0);
    assert_eq!(view(&net, R1), before);
    traffic(&mut net, 3);
    assert_eq!(view(&net, R1).failed, before.failed);
}

/// What a probe of the first router finds with the second.
fn probe(net: &mut Net) -> ProbeView {
    let link = LinkId::from_bits(0);
    let relay = &mut net.nodes[R1].relay;
    assert!(relay.probe_hop(net.now, link));
    assert!(relay.hop_probe(link).is_some_and(|view| !view.over));
    net.run(Duration::from_secs(3));
    let view = net.nodes[R1].relay.hop_probe(link).unwrap();
    assert!(view.over, "{view:?}");
    view
}

#[test]
fn a_probe_says_which_way_of_the_prefix_is_closed() {
    let mut net = net(|_| {});
    let found = |heard, came, left| ProbeView { over: true, heard, came, left, moved: false };
    let before = view(&net, R1);
    assert_eq!(probe(&mut net), found(true, true, true));
    let after = view(&net, R1);
    assert!(after.hopping && after.failed == before.failed, "nothing else changed");
    net.unrouted = [Some(R1), None];
    assert_eq!(probe(&mut net), found(true, false, true));
    net.unrouted = [None, Some(R1)];
    assert_eq!(probe(&mut net), found(true, true, false));
    // What is wrong with the neighbour's prefix says nothing of this one's.
    net.unrouted = [Some(R2), Some(R2)];
    assert_eq!(probe(&mut net), found(true, true, true));
    net.unrouted = [None, None];
    net.cut.push((R1, R2));
    assert_eq!(probe(&mut net), found(false, false, false));
    for node in [R1, R2] {
        let counters = net.nodes[node].relay.counters();
        assert_eq!(counters.dropped(DropReason::BadHop), 0);
        assert_eq!(counters.dropped(DropReason::HopBudget), 0);
        assert_eq!(counters.dropped(DropReason::StaleAddress), 0);
    }
    // It asks all the time.
    net.cut.clear();
    for _ in 0..40 {
        net.nodes[R1].relay.probe_hop(net.now, LinkId::from_bits(0));
        net.run(Duration::from_millis(100));
    }
    assert!(net.nodes[R2].relay.counters().dropped(DropReason::HopBudget) > 0);
}

/// The neighbour sends what a probe asks for to the prefix that it knows. What comes to a former
/// one says nothing of that in force, and is not taken for an answer.
#[test]
fn a_probe_is_of_the_prefix_in_force() {
    let mut net = net(|_| {});
    let link = LinkId::from_bits(0);
    let fixed = |net: &Net| net.nodes[R2].relay.view(link).and_then(|link| link.endpoint);
    let (before, stale) = (fixed(&net), DropReason::StaleAddress);
    // The former prefix is routed for half a minute, the one in force is not.
    net.nodes[R1].relay.move_hop_prefix(net.now, moved_prefix(R1));
    let closed = ProbeView { over: true, heard: true, came: false, left: true, moved: false };
    net.wire.paths = Some(Vec::new());
    assert_eq!(probe(&mut net), closed, "nothing came to the prefix in force, at once");
    // The neighbour sends to the address under both prefixes.
    let mut sent = BTreeMap::<SocketAddr, [u32; 2]>::new();
    for at in net.wire.paths.take().unwrap_or_default().iter().map(|path| path.ends.remote) {
        let moved = under(moved_prefix(R1), at);
        if hopper(at) == Some(R1) {
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
    assert_eq!(probe(&mut net), ProbeView { came: true, ..closed });
}

/// A probe that is under way when the prefix becomes another one is of that one.
#[test]
fn a_probe_begins_anew_with_another_prefix() {
    let mut net = net(|_| {});
    let link = LinkId::from_bits(0);
    net.unrouted = [None, Some(R1)];
    net.run(3 * SECOND);
    assert!(net.nodes[R1].relay.probe_hop(net.now, link));
    let found = |net: &Net| net.nodes[R1].relay.hop_probe(link).unwrap();
    while !found(&net).came {
        assert!(!found(&net).over);
        net.run(Duration::from_millis(10));
    }
    net.nodes[R1].relay.move_hop_prefix(net.now, moved_prefix(R1));
    net.run(4 * SECOND);
    let view = found(&net);
    assert!(view.over && view.moved && !view.came, "{view:?}");
}

/// At which end hops fail, and which only follows: both know when one should have been made.
#[test]
fn both_ends_know_when_hops_are_late() {
    let link = LinkId::from_bits(0);
    let late = |net: &Net, node: usize| {
        let seen = net.nodes[node].relay.view(link).unwrap();
        let hop = seen.hop.filter(|_| seen.up_since.is_some());
        hop.is_some_and(|hop| !hop.hopping && net.now >= hop.begins_by + 10 * SECOND)
    };
    let is_late = |net: &Net| [R1, R2].map(|node| late(net, node));
    let mut net = net(|_| {});
    for interval in [1, 3, 30] {
        // New sections at both ends, and a neighbour that is away.
        for node in [R1, R2] {
            net.nodes[node].relay.set_hop(net.now, link, Some(interval * SECOND));
        }
        for away in [0, 1_400, 2_000, 2_400, 3_000, 60_000] {
            net.cut = vec![(R1, R2)];
            net.run(Duration::from_millis(away));
            net.cut.clear();
            for _ in 0..60 * 4 {
                net.run(SECOND / 4);
                // At the pause of hops that failed meanwhile, too.
                assert_eq!(is_late(&net), [false; 2], "{interval}, {away}");
            }
            assert!(all_hop(&net), "{interval}, {away}");
        }
    }
    net.unrouted = [Some(R1); 2];
    for node in [R1, R2] {
        net.nodes[node].relay.set_hop(net.now, link, Some(SECOND));
    }
    net.run(25 * SECOND);
    assert_eq!(is_late(&net), [true; 2]);
    let failed = [R1, R2].map(|node| view(&net, node).failed);
    assert!(failed.contains(&0) && failed != [0, 0], "one end only follows: {failed:?}");
}

/// Sends a cell each 20 ms from the host to the second router and back; says how many got lost.
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

/// What says that R1's neighbours followed it to its other prefix, and that nobody fell back.
pub fn followed(net: &mut Net, failed: [u64; 3]) {
    net.wire.paths = Some(Vec::new());
    assert_eq!(lost(net, 5), 0);
    let paths = net.wire.paths.take().unwrap_or_default();
    let to_r1 = |path: &&Path| hopper(path.ends.remote) == Some(R1);
    let moved = |path: &&Path| under(moved_prefix(R1), path.ends.remote) == path.ends.remote;
    let (all, there): (Vec<_>, Vec<_>) = {
        let all = paths.iter().filter(to_r1);
        (all.clone().collect(), all.filter(moved).collect())
    };
    // Steps go to the former prefix, too, for a while.
    assert!(there.len() > 100 && all.len() - there.len() < 40, "{} {}", all.len(), there.len());
    assert!(all_hop(net) && [R1, R2, H1].map(|node| view(net, node).failed) == failed);
}

#[test]
fn neighbours_follow_a_node_to_another_prefix_with_its_schedule() {
    let mut net = net(|_| {});
    for _ in 0..3 {
        lost(&mut net, 1);
        let failed = [R1, R2, H1].map(|node| view(&net, node).failed);
        net.routed[R1] = moved_prefix(R1);
        net.nodes[R1].relay.move_hop_prefix(net.now, moved_prefix(R1));
        // What is limited until the former place is known to be silent may get lost there.
        let missed = lost(&mut net, 2);
        assert!(missed < 12, "{missed}");
        followed(&mut net, failed);
        // And back.
        net.routed[R1] = hop_prefix(R1);
        net.nodes[R1].relay.move_hop_prefix(net.now, hop_prefix(R1));
        let missed = lost(&mut net, 3);
        assert!(missed < 12 && all_hop(&net), "{missed}");
    }
}

/// A translator of prefixes (RFC 6296) that appears before a router, which knows nothing of it.
#[test]
fn neighbours_follow_a_node_whose_prefix_is_translated() {
    let mut net = net(|_| {});
    lost(&mut net, 1);
    let failed = [R1, R2, H1].map(|node| view(&net, node).failed);
    (net.routed[R1], net.translated) = (moved_prefix(R1), vec![R1]);
    let missed = lost(&mut net, 2);
    assert!(missed < 12, "{missed}");
    followed(&mut net, failed);
    // Also after a fall, and from the beginning.
    net.cut.push((R1, R2));
    net.run(Duration::from_secs(20));
    net.cut.clear();
    net.run(Duration::from_secs(40));
    let failed = [R1, R2, H1].map(|node| view(&net, node).failed);
    followed(&mut net, failed);
}

/// Nobody is led to another prefix by a frame whose source was changed on its way.
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
        net.routed[R1] = hop_prefix(R1);
        net.run(Duration::from_millis(50));
    }
    let paths = net.wire.paths.take().unwrap_or_default();
    let led = |path: &&Path| under(moved_prefix(R1), path.ends.remote) == path.ends.remote;
    let led: Vec<_> = paths.iter().filter(led).collect();
    assert!(!led.is_empty() && led.len() < 40, "challenges alone: {}", led.len());
    net.translated.clear();
    assert_eq!(lost(&mut net, 3), 0);
}

/// One end fell back and calls anew, from where its schedule leads or elsewhere: what it falls back
/// to next time is the endpoint that stays.
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
            assert!(endpoints.into_iter().all(|at| hopper(at).is_none()), "{round}: {node}");
        }
    }
}

/// The calls of hops that fail are no signs of life, and put off none.
#[test]
fn an_idle_neighbour_that_is_gone_is_noticed_by_the_next_keepalive() {
    let mut net = net(|config| config.liveness.keepalive = Some(Duration::from_secs(30)));
    net.run(Duration::from_secs(20));
    net.cut.push((H1, R1));
    // Calls leave 12 s and 33 s later; a keepalive within five quarters of its period.
    net.run(Duration::from_secs(39));
    let is_up = |node: usize, far: Address| {
        let link = net.nodes[node].relay.links().find(|link| link.address == far);
        link.is_some_and(|link| link.up_since.is_some())
    };
    assert!(!is_up(H1, Address::new(1, 0)) && !is_up(R1, Address::new(1, 1)));
}

/// A neighbour tells its other prefix while it is asked at an address there, and answers then: the
/// address is one of its schedule by now, and the answer makes it no fixed endpoint.
#[test]
fn an_answer_that_comes_after_the_prefix_was_told_moves_no_fixed_endpoint() {
    let mut followed = 0;
    for (node, other) in [(R1, R2), (R2, R1)] {
        let mut net = net(|_| {});
        net.unrouted = [Some(node); 2];
        net.run(Duration::from_secs(5));
        assert!(!view(&net, other).hopping);
        // The end that leads begins a hop, in vain.
        let calls = |path: &Path| {
            let to = hopper(path.ends.remote);
            path.ends.local.and_then(hopper) == Some(node) && to == Some(other)
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
        // It calls from another prefix before what it tells of it arrives.
        net.unrouted = [None; 2];
        net.routed[node] = moved_prefix(node);
        net.nodes[node].relay.move_hop_prefix(net.now, moved_prefix(node));
        net.wire.paths = Some(Vec::new());
        let (at, there) = (net.nodes[node].at, net.nodes[other].at);
        let mut late = Vec::new();
        for _ in 0..400 {
            let held = net.step_between_hoppers();
            late.extend(held.into_iter().filter(|(from, to, _)| (*from, *to) == (at, there)));
            net.now = net.now + Duration::from_millis(1);
        }
        let asked = |path: &Path| under(moved_prefix(node), path.ends.remote) == path.ends.remote;
        assert!(net.wire.paths.take().iter().flatten().any(asked), "it is asked there");
        for (from, _, mut frame) in late {
            net.deliver(other, from, &mut frame);
            let endpoint = net.nodes[other].relay.view(LinkId::from_bits(0));
            let endpoint = endpoint.and_then(|link| link.endpoint);
            assert_eq!(endpoint, Some(at), "{node}");
        }
        followed += 1;
        net.run(Duration::from_secs(100));
        assert!(view(&net, other).hopping);
    }
    assert_eq!(followed, 2, "either end calls, the following one if no call comes");
}
