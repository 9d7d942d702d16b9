//! Changes of a node's prefix, which it announces to its neighbours.

use core::time::Duration;
use std::net::SocketAddr;

use crate::shifts::{H1, R1, R2, all_shift, followed, lost, net, shift_by_the_hour, view};
use crate::support::{
    FirewallState, Net, Race, moved_prefix, shift_prefix, shifter, socket, under,
};
use shoal_relay::SendPath;
use shoal_wire::{Address, DropReason, LinkId};

/// Routes another prefix to a node and tells the node. The former prefix also stays routed.
fn renumber(net: &mut Net, node: usize, prefix: [u8; 8]) {
    net.also.push(net.routed[node]);
    net.routed[node] = prefix;
    net.nodes[node].relay.move_shift_prefix(net.now, prefix);
}

/// True if all data of a node uses its new prefix, and none is lost when the former one is
/// unrouted.
fn is_moved(net: &mut Net, node: usize) -> bool {
    net.also.clear();
    net.wire.paths = Some(Vec::new());
    let missed = lost(net, 2);
    let paths = net.wire.paths.take().unwrap_or_default();
    let ends = |path: &SendPath| [Some(path.ends.remote), path.ends.local];
    let of_node = paths.iter().flat_map(ends).flatten().filter(|at| shifter(*at) == Some(node));
    let left = of_node.clone().filter(|at| under(net.routed[node], *at) != *at).count();
    assert!(of_node.count() > 100);
    assert!(left < 100, "{left}");
    missed == 0
}

#[test]
fn firewalls_at_all_nodes_lose_nothing_in_a_move() {
    for node in [R1, R2, H1] {
        let mut net = net(|_| {});
        net.walls = Some(FirewallState::new());
        lost(&mut net, 2);
        for round in 0..12 {
            // Repeats the test at different times of the epoch.
            net.run(Duration::from_millis(90));
            let failed = [R1, R2, H1].map(|node| view(&net, node).failed);
            let to = if round % 2 == 0 { moved_prefix(node) } else { shift_prefix(node) };
            renumber(&mut net, node, to);
            assert_eq!(lost(&mut net, 1), 0, "{node}, round {round}");
            assert!(is_moved(&mut net, node), "{node}, round {round}");
            assert_eq!(failed, [R1, R2, H1].map(|node| view(&net, node).failed));
        }
        assert!(all_shift(&net));
    }
}

#[test]
fn both_ends_of_a_link_may_move_at_once() {
    let mut net = net(|_| {});
    net.walls = Some(FirewallState::new());
    lost(&mut net, 2);
    for node in [R1, R2] {
        renumber(&mut net, node, moved_prefix(node));
    }
    assert_eq!(lost(&mut net, 4), 0);
    assert!(is_moved(&mut net, R1) && is_moved(&mut net, R2) && all_shift(&net));
}

/// The node moves to a third prefix and back to the first one before the neighbours have followed.
#[test]
fn moves_that_follow_each_other_lose_nothing() {
    let mut net = net(|_| {});
    net.walls = Some(FirewallState::new());
    lost(&mut net, 2);
    let others = [7, 8].map(|last| [0x20, 0x01, 0x0d, 0xb8, 0, 9, last, R1 as u8 + 1]);
    for to in [moved_prefix(R1), shift_prefix(R1)] {
        renumber(&mut net, R1, to);
        net.step();
        renumber(&mut net, R1, others[0]);
        renumber(&mut net, R1, others[1]);
        renumber(&mut net, R1, to);
        assert_eq!(lost(&mut net, 4), 0);
        assert!(is_moved(&mut net, R1) && all_shift(&net));
    }
}

/// Announcements are lost twice. They are repeated by time, at any length of epochs.
#[test]
fn announcements_are_repeated_without_a_shift() {
    let mut net = net(|_| {});
    shift_by_the_hour(&mut net);
    net.walls = Some(FirewallState::new());
    lost(&mut net, 1);
    net.cut = vec![(R1, R2), (H1, R1)];
    renumber(&mut net, R1, moved_prefix(R1));
    net.step();
    net.cut.clear();
    assert_eq!(lost(&mut net, 1), 0);
    assert!(is_moved(&mut net, R1));
}

/// The former prefix stays routed for a while. No data is lost, and neighbours move although the
/// former prefix answers.
#[test]
fn a_move_whose_former_prefix_stays_for_a_while_loses_nothing() {
    for node in [R1, R2, H1] {
        let mut net = net(|_| {});
        lost(&mut net, 1);
        let failed = [R1, R2, H1].map(|node| view(&net, node).failed);
        (net.routed[node], net.also) = (moved_prefix(node), vec![shift_prefix(node)]);
        net.nodes[node].relay.move_shift_prefix(net.now, moved_prefix(node));
        assert_eq!(lost(&mut net, 2), 0, "{node}");
        net.also.clear();
        assert_eq!(lost(&mut net, 3), 0, "{node}");
        assert!(all_shift(&net) && [R1, R2, H1].map(|node| view(&net, node).failed) == failed);
    }
}

/// The new prefix becomes routable late. At first only the former one answers, and neighbours stay
/// there until the new one does too.
#[test]
fn a_move_whose_former_prefix_answers_first_loses_nothing() {
    for node in [R1, R2, H1] {
        let mut net = net(|_| {});
        lost(&mut net, 1);
        net.nodes[node].relay.move_shift_prefix(net.now, moved_prefix(node));
        assert_eq!(lost(&mut net, 1), 0, "{node}");
        (net.routed[node], net.also) = (moved_prefix(node), vec![shift_prefix(node)]);
        assert_eq!(lost(&mut net, 3), 0, "{node}");
        net.also.clear();
        assert_eq!(lost(&mut net, 3), 0, "{node}");
        assert!(all_shift(&net), "{node}");
    }
}

/// A node that announces unreachable prefixes causes few frames there. Suppressed frames are
/// counted.
#[test]
fn ceaseless_announcements_of_prefixes_cause_few_challenges() {
    let mut net = net(|_| {});
    let counted = |net: &Net| net.nodes[R1].relay.counters().dropped(DropReason::ShiftBudget);
    lost(&mut net, 2);
    assert_eq!(counted(&net), 0);
    for round in 0..100 {
        let mut named = moved_prefix(R2);
        *named.last_mut().expect("eight bytes") ^= 1 + round % 2;
        net.nodes[R2].relay.move_shift_prefix(net.now, named);
        net.run(Duration::from_millis(100));
    }
    assert!(counted(&net) > 0);
}

/// One announcement of the new prefix is lost. It is repeated with the next shifts.
#[test]
fn a_move_of_which_nobody_heard_at_first_loses_nothing() {
    let mut net = net(|_| {});
    lost(&mut net, 1);
    (net.routed[R1], net.also) = (moved_prefix(R1), vec![shift_prefix(R1)]);
    net.cut = vec![(R1, R2), (H1, R1)];
    net.nodes[R1].relay.move_shift_prefix(net.now, moved_prefix(R1));
    net.step();
    net.cut.clear();
    assert_eq!(lost(&mut net, 4), 0);
    net.also.clear();
    let failed = [R1, R2, H1].map(|node| view(&net, node).failed);
    followed(&mut net, failed);
}

/// Neighbours moved to the new prefix before the announcement, while the former one did not answer.
/// A late answer from the former one no longer undoes the move.
#[test]
fn a_move_that_was_told_while_on_trial_is_not_taken_back() {
    let mut net = net(|_| {});
    shift_by_the_hour(&mut net);
    lost(&mut net, 1);
    let failed = [R1, R2, H1].map(|node| view(&net, node).failed);
    (net.routed[R1], net.translated) = (moved_prefix(R1), vec![R1]);
    let missed = lost(&mut net, 1);
    assert!(missed < 12, "{missed}");
    net.translated.clear();
    net.also = vec![shift_prefix(R1)];
    net.nodes[R1].relay.move_shift_prefix(net.now, moved_prefix(R1));
    assert_eq!(lost(&mut net, 2), 0);
    net.also.clear();
    followed(&mut net, failed);
}

/// Fixed identifiers under the former prefix stay valid for half a minute.
#[test]
fn identifiers_that_stay_are_those_of_their_prefixes() {
    let mut net = net(|_| {});
    let relay = &mut net.nodes[R1].relay;
    relay.set_staying(vec![7]);
    relay.move_shift_prefix(net.now, moved_prefix(R1));
    relay.set_staying(vec![8]);
    let has = |net: &Net, id| net.nodes[R1].relay.accepted().unwrap().identifiers().contains(&id);
    assert!(has(&net, 7) && has(&net, 8));
    net.also = vec![shift_prefix(R1)];
    net.routed[R1] = moved_prefix(R1);
    lost(&mut net, 31);
    assert!(!has(&net, 7) && has(&net, 8));
}

/// Ends or restarts the shifts of the link between the two routers.
fn set_shift(net: &mut Net, shifts: bool) {
    let interval = shifts.then_some(Duration::from_secs(1));
    net.nodes[R2].relay.set_shift(net.now, LinkId::from_bits(0), interval);
    until(net, |net| view(net, R1).shifting == shifts);
}

/// Both ends of that link send, four cells and one per millisecond, until `done`.
fn until(net: &mut Net, done: impl Fn(&Net) -> bool) {
    let left = (0..3_000).find(|_| {
        net.send(H1, Address::new(2, 0), 4, 1);
        net.send(R2, Address::new(1, 1), 1, 2);
        net.run(Duration::from_millis(1));
        done(net)
    });
    assert!(left.is_some());
}

fn talk(net: &mut Net, millis: u64) {
    let end = net.now + Duration::from_millis(millis);
    while net.now < end {
        until(net, |_| true);
    }
}

/// The endpoint of the second router outside of its schedule, as the first router has it.
fn fixed(net: &Net) -> Option<SocketAddr> {
    net.nodes[R1].relay.view(LinkId::from_bits(0)).and_then(|link| link.endpoint)
}

/// An attacker who is faster than the neighbour's frames directs the link to a third machine, and
/// silences the former endpoint. The link begins to shift before this is noticed. That succeeds in
/// some of the runs, since the session's secret determines the time.
fn raced() -> Net {
    let run = |_| {
        let mut net = net(|_| {});
        set_shift(&mut net, false);
        let race = Race::new((R2, R1), socket(77));
        net.race = Some(Race { loses_small: true, ..race });
        until(&mut net, |net| fixed(net) == Some(socket(77)));
        set_shift(&mut net, true);
        let is_moved = fixed(&net) == Some(socket(77));
        net.race = Some(Race::new((R2, R1), socket(77)));
        is_moved.then_some(net)
    };
    (0..30).find_map(run).expect("one of thirty links shifts in time")
}

#[test]
fn a_place_that_was_raced_is_on_trial_when_the_link_comes_back_there() {
    let mut net = raced();
    net.nodes[R2].relay.set_shift(net.now, LinkId::from_bits(0), None);
    talk(&mut net, 2_000);
    let bytes = net.race.as_ref().map_or(0, |race| race.bytes);
    assert!(bytes > 0 && bytes < 100_000, "{bytes}");
    assert_eq!(fixed(&net), Some(socket(R2)));
}

#[test]
fn a_place_that_was_raced_is_left_while_the_link_shifts() {
    let mut net = raced();
    talk(&mut net, 300);
    assert!(view(&net, R1).shifting);
    assert_eq!(fixed(&net), Some(socket(R2)));
    set_shift(&mut net, false);
    talk(&mut net, 2_000);
    let bytes = net.race.as_ref().map_or(0, |race| race.bytes);
    assert!(bytes < 100_000, "{bytes}");
}

/// The neighbour moves, and the link shifts at once. The new endpoint is accepted in any case.
#[test]
fn a_place_whose_former_one_was_silent_is_the_neighbours() {
    for away in [100, 6_000] {
        let mut net = net(|_| {});
        set_shift(&mut net, false);
        net.nodes[R2].at = socket(50);
        until(&mut net, |net| fixed(net) == Some(socket(50)));
        set_shift(&mut net, true);
        talk(&mut net, 6_000);
        net.cut.push((R1, R2));
        for _ in 0..away {
            net.run(Duration::from_millis(1));
            assert_eq!(fixed(&net), Some(socket(50)), "{away}");
        }
        net.cut.clear();
        net.unrouted = [Some(R2); 2];
        net.run(Duration::from_secs(30));
        assert_eq!(fixed(&net), Some(socket(50)), "{away}");
        let before = net.nodes[R2].cells.len();
        talk(&mut net, 1_000);
        assert!(net.nodes[R2].cells.len() - before > 3_900);
    }
}
