//! Covered links: times and lengths of frames reveal nothing about traffic.

mod required;

use core::time::Duration;

use std::net::SocketAddr;

use crate::support::{FULL, Net, PathRecorder, frames, socket};
use shoal_relay::{CallContext, CoverFault, CoverState, CoverView, LinkView};
use shoal_wire::{
    Address, CoverKind, CoverTier, DropReason, LinkId, LinkKind, RoutedHeader, SizeClass, Time,
    TrafficClass, link,
};

const H1: usize = 0;
const R1: usize = 1;
const H2: usize = 2;
const AT: [Address; 3] = [Address::new(1, 1), Address::new(1, 0), Address::new(1, 2)];

fn tier(mbit: u16, kind: CoverKind) -> CoverTier {
    CoverTier::new(mbit, kind).unwrap()
}

/// The link from a node to this address.
fn link_to(net: &Net, node: usize, to: Address) -> LinkId {
    let mut links = net.nodes[node].relay.links();
    links.find(|view| view.address == to).expect("a neighbour").link
}

fn view(net: &Net, node: usize, to: Address) -> CoverView {
    let mut links = net.nodes[node].relay.links();
    links.find(|view| view.address == to).and_then(|view| view.cover).expect("a covered link")
}

/// Two hosts behind a router. The first host's link is covered and recorded in both directions.
fn net(tier: CoverTier, workers: u8) -> Net {
    let mut net = Net::with(&AT, &[(H1, R1), (H2, R1)], |config| {
        (config.session.workers, config.session.lanes) = (workers, 8);
        config.session.rekey_after = Duration::from_secs(5);
    });
    cover(&mut net, Some(tier));
    let watch = |from, to| {
        let (from, to) = (Some(socket(from)), socket(to));
        Some(PathRecorder { from, to, seen: Vec::new(), at: Vec::new() })
    };
    net.run(Duration::from_millis(100));
    net.watches = [watch(H1, R1), watch(R1, H1)];
    net
}

fn cover(net: &mut Net, tier: Option<CoverTier>) {
    for (node, to) in [(H1, AT[R1]), (R1, AT[H1])] {
        let link = link_to(net, node, to);
        net.nodes[node].relay.set_cover(net.now, link, tier);
    }
}

/// Sends a cell of a class from one node to another, as the sender's edge does.
fn send(net: &mut Net, from: usize, to: usize, class: SizeClass, fill: u8) {
    let mut buf = frames(AT[to], AT[from], 1, fill);
    net.wire.from = Some(net.nodes[from].at);
    let mut turn = CallContext { now: net.now, sink: &mut net.wire, hand: &mut () };
    let relay = &mut net.nodes[from].relay;
    relay.send_cells(&mut turn, LinkKind::Cell, &mut buf, &[0], class.frame_len());
}

/// Departure times of frames in both directions. All must be full frames.
fn seen(net: &Net) -> [Vec<Time>; 2] {
    let of = |at: usize| {
        let watch = net.watches[at].as_ref().unwrap();
        let short = watch.seen.iter().zip(&watch.at).find(|(len, _)| **len != FULL);
        assert_eq!(short, None, "on a covered link");
        watch.at.clone()
    };
    [of(0), of(1)]
}

/// Number of full frames sent by the host.
fn full(net: &Net) -> usize {
    let watch = net.watches[0].as_ref().unwrap();
    watch.seen.iter().filter(|len| **len == FULL).count()
}

#[test]
fn frames_leave_at_the_same_times_whatever_is_sent() {
    for kind in [CoverKind::Constant, CoverKind::Poisson] {
        let quiet = {
            let mut net = net(tier(2, kind), 1);
            net.run(Duration::from_secs(20));
            seen(&net)
        };
        let mut net = net(tier(2, kind), 1);
        for second in 0..20u8 {
            // Bursts and pauses in both directions, with cells of all lengths. Keys change every
            // few seconds.
            for class in SizeClass::ALL.into_iter().cycle().take(40) {
                if second % 4 < 2 {
                    send(&mut net, H1, H2, class, second);
                    send(&mut net, H2, H1, class, second);
                }
                net.run(Duration::from_millis(9));
            }
            net.run(Duration::from_millis(640));
        }
        let busy = seen(&net);
        assert!(quiet[0].len() > 3_300 && quiet[1].len() > 3_300, "{}", quiet[0].len());
        let differs =
            |way: usize| (0..).zip(quiet[way].iter().zip(&busy[way])).find(|(_, (a, b))| a != b);
        assert!(quiet == busy, "{kind:?}: {:?} {:?}", differs(0), differs(1));
        let got = |node: usize| net.nodes[node].cells.len();
        assert_eq!((got(H2), got(H1)), (400, 400));
        assert!(view(&net, H1, AT[R1]).filled > 400);
    }
}

#[test]
fn cells_of_all_lengths_arrive_whole_with_any_number_of_workers() {
    for workers in [1, 3] {
        let mut net = net(tier(10, CoverKind::Constant), workers);
        for round in 0..60u8 {
            let class = SizeClass::ALL[usize::from(round) % 3];
            send(&mut net, H1, H2, class, round);
            send(&mut net, H2, H1, class, round);
            net.run(Duration::from_millis(3));
        }
        net.run(Duration::from_millis(60));
        for (to, from) in [(H2, H1), (H1, H2)] {
            let sent = |round: u8| {
                let class = SizeClass::ALL[usize::from(round) % 3];
                (AT[from], vec![round; class.cell_len()])
            };
            let cells = &net.nodes[to].cells;
            let wrong = (0..60).zip(cells).find(|(round, cell)| **cell != sent(*round));
            assert_eq!((cells.len(), wrong.map(|(round, _)| round)), (60, None), "{workers}");
        }
        seen(&net);
        let traffic = net.nodes[R1].relay.counters().traffic;
        assert_eq!(traffic.cells_transit, 120);
    }
}

#[test]
fn cells_beyond_the_slots_are_marked_and_then_counted_as_dropped() {
    let mut net = net(tier(2, CoverKind::Constant), 1);
    for _ in 0..50 {
        send(&mut net, H1, H2, SizeClass::Full, 1);
    }
    let counters = net.nodes[H1].relay.counters();
    assert_eq!(counters.dropped(DropReason::QueueFull), 6, "a run of a file fits");
    assert_eq!(counters.traffic.cells_marked, 46, "all after the fourth");
    net.run(Duration::from_millis(700));
    assert_eq!(net.nodes[H2].cells.len(), 44, "one peer has every second slot");
}

#[test]
fn a_link_whose_neighbour_is_silent_keeps_its_schedule() {
    let mut net = net(tier(2, CoverKind::Constant), 1);
    net.run(Duration::from_secs(2));
    seen(&net);
    let before = full(&net);
    net.cut = vec![(H1, R1)];
    net.run(Duration::from_secs(20));
    let sent = full(&net) - before;
    assert!(sent.abs_diff(20 * 2_000_000 / 11_520) < 20, "{sent}");
    net.cut.clear();
    net.run(Duration::from_secs(9));
    send(&mut net, H1, H2, SizeClass::Small, 3);
    net.run(Duration::from_millis(50));
    assert_eq!(net.nodes[H2].cells.len(), 1);
}

/// A network whose wall clocks show this many seconds before a full hour.
fn before_the_hour(seconds: u64) -> Net {
    let mut net = net(tier(2, CoverKind::Constant), 1);
    for node in &mut net.nodes {
        node.relay.set_unix_time(net.now, (1_800_003_600 - seconds) * 1_000);
    }
    net
}

#[test]
fn a_path_that_loses_too_much_ends_both_schedules_at_the_full_hour_and_not_before() {
    let mut net = before_the_hour(450);
    net.lossy = Some((H1, R1, 10));
    net.run(Duration::from_secs(310));
    let ending = |fault| CoverState::Ending(1_800_003_600, fault);
    assert_eq!(view(&net, H1, AT[R1]).state, ending(CoverFault::Loss));
    assert_eq!(view(&net, R1, AT[H1]).state, ending(CoverFault::Neighbour));
    let lost = view(&net, H1, AT[R1]).lost.unwrap();
    assert!((0.06..0.14).contains(&lost), "{lost}");
    // The end still happens when the path is good again.
    net.lossy = None;
    net.run(Duration::from_secs(135));
    let [there, back] = seen(&net);
    let last_minute = |times: &[Time]| {
        let from = net.now - Duration::from_secs(60);
        times.iter().filter(|at| **at >= from).count()
    };
    assert!(last_minute(&there) > 10_400 && last_minute(&back) > 10_400);
    net.run(Duration::from_secs(10));
    let off = |fault| CoverState::Off(1_800_003_600, fault);
    assert_eq!(view(&net, H1, AT[R1]).state, off(CoverFault::Loss));
    assert_eq!(view(&net, R1, AT[H1]).state, off(CoverFault::Neighbour));
    // One side restarts its schedule, and the other follows.
    cover_one(&mut net, H1, AT[R1]);
    net.run(Duration::from_secs(1));
    assert_eq!(view(&net, H1, AT[R1]).state, CoverState::Running);
    assert_eq!(view(&net, R1, AT[H1]).state, CoverState::Running);
}

fn cover_one(net: &mut Net, node: usize, to: Address) {
    let link = link_to(net, node, to);
    net.nodes[node].relay.set_cover(net.now, link, Some(tier(2, CoverKind::Constant)));
}

#[test]
fn a_little_loss_ends_nothing_and_neither_does_a_dead_neighbour() {
    let mut net = before_the_hour(500);
    net.lossy = Some((H1, R1, 50));
    net.run(Duration::from_secs(330));
    assert_eq!(view(&net, H1, AT[R1]).state, CoverState::Running);
    net.cut = vec![(H1, R1)];
    net.run(Duration::from_secs(200));
    let state = view(&net, H1, AT[R1]).state;
    assert!(matches!(state, CoverState::Running | CoverState::Waiting), "{state:?}");
}

#[test]
fn a_neighbour_that_keeps_no_schedule_is_noticed() {
    let mut net = net(tier(2, CoverKind::Constant), 1);
    let link = link_to(&net, R1, AT[H1]);
    net.nodes[R1].relay.set_cover(net.now, link, None);
    net.run(Duration::from_secs(130));
    let arriving = view(&net, H1, AT[R1]).arriving.unwrap();
    assert!(arriving < 0.2, "{arriving}");
    cover_one(&mut net, R1, AT[H1]);
    net.run(Duration::from_secs(130));
    let arriving = view(&net, H1, AT[R1]).arriving.unwrap();
    assert!((0.98..1.02).contains(&arriving), "{arriving}");
}

#[test]
fn a_kernel_without_room_delays_frames_and_loses_none() {
    let mut net = net(tier(2, CoverKind::Constant), 1);
    net.wire.room = Some(0);
    for fill in 0..5 {
        send(&mut net, H1, H2, SizeClass::Full, fill);
    }
    net.run(Duration::from_millis(60));
    net.wire.room = None;
    net.run(Duration::from_millis(200));
    let fills: Vec<u8> = net.nodes[H2].cells.iter().map(|(_, payload)| payload[0]).collect();
    assert_eq!(fills, [0, 1, 2, 3, 4]);
    seen(&net);
}

#[test]
fn a_link_that_is_covered_no_longer_sends_as_before() {
    let mut net = net(tier(2, CoverKind::Constant), 1);
    for _ in 0..5 {
        send(&mut net, H1, H2, SizeClass::Small, 1);
    }
    cover(&mut net, None);
    net.run(Duration::from_millis(5));
    assert_eq!(net.nodes[H2].cells.len(), 5, "waiting cells leave at once");
    net.run(Duration::from_secs(5));
    let from = net.watches[0].as_ref().unwrap().seen.len();
    net.run(Duration::from_secs(5));
    assert!(net.watches[0].as_ref().unwrap().seen.len() - from < 5, "an idle link is silent");
}

#[test]
fn kinds_of_covered_links_are_refused_where_they_do_not_belong() {
    let mut net = net(tier(2, CoverKind::Constant), 1);
    // A hostile neighbour: its small frames claim to contain small cells.
    let before = net.nodes[R1].relay.counters().dropped(DropReason::Malformed);
    let mut frame = frames(AT[H1], AT[H2], 1, 9);
    frame[link::KIND_AT] = LinkKind::SmallCell as u8;
    net.wire.from = Some(net.nodes[H2].at);
    let mut turn = CallContext { now: net.now, sink: &mut net.wire, hand: &mut () };
    let len = SizeClass::Small.frame_len();
    let relay = &mut net.nodes[H2].relay;
    relay.send_cells(&mut turn, LinkKind::SmallCell, &mut frame, &[0], len);
    net.run(Duration::from_millis(20));
    assert_eq!(net.nodes[R1].relay.counters().dropped(DropReason::Malformed), before + 1);
    assert!(net.nodes[H1].cells.is_empty());
}

#[test]
fn datagrams_of_hosts_wait_for_slots_that_are_far_apart_whatever_comes() {
    let mut net = net(tier(10, CoverKind::Constant), 1);
    net.run(Duration::from_millis(400));
    let dozes = |net: &Net| [H1, R1, H2].map(|node| net.nodes[node].relay.may_doze(net.now));
    assert_eq!(dozes(&net), [true, false, false], "a router serves others");
    send(&mut net, H2, H1, SizeClass::Small, 1);
    net.run(Duration::from_millis(10));
    assert_eq!(dozes(&net), [true, false, false]);
    cover(&mut net, Some(tier(50, CoverKind::Constant)));
    net.run(Duration::from_millis(10));
    assert_eq!(dozes(&net), [false; 3], "slots are near");
    cover(&mut net, None);
    net.run(Duration::from_millis(10));
    assert_eq!(dozes(&net), [false; 3]);
}

/// Lengths of all frames from the host to the router.
fn lengths(net: &Net) -> Vec<usize> {
    net.watches[0].as_ref().unwrap().seen.clone()
}

#[test]
fn a_path_that_loses_full_frames_keeps_the_schedule_in_parts() {
    let mut net = net(tier(2, CoverKind::Constant), 1);
    net.run(Duration::from_secs(1));
    let before = lengths(&net).len();
    net.wire.longest = Some(SizeClass::Medium.frame_len());
    for (node, to) in [(R1, AT[H2]), (H2, AT[R1])] {
        let link = link_to(&net, node, to);
        net.nodes[node].relay.set_small_path(link, true);
    }
    net.run(Duration::from_secs(30));
    let small = net.nodes[H1].relay.links().any(|view| view.small);
    assert!(small && view(&net, H1, AT[R1]).state == CoverState::Running);
    for _ in 0..20 {
        send(&mut net, H1, H2, SizeClass::Full, 7);
        net.run(Duration::from_millis(20));
    }
    net.run(Duration::from_millis(500));
    let arrived = net.nodes[H2].cells.iter().filter(|(_, payload)| payload[0] == 7).count();
    assert_eq!(arrived, 20);
    // From the switch to parts on, each slot has three, regardless of its contents.
    let seen = &lengths(&net)[before..];
    let medium = SizeClass::Medium.frame_len();
    let first = seen.iter().rposition(|len| *len != medium).map_or(0, |at| at + 1);
    let parts = &net.watches[0].as_ref().unwrap().at[before + first..];
    assert!(parts.len() > 3_000, "{}", parts.len());
    let slots: Vec<_> = parts[3..].chunk_by(|a, b| a == b).collect();
    let odd = slots[1..slots.len() - 1].iter().find(|slot| slot.len() != 3);
    assert_eq!(odd, None);
    let account = &net.nodes[R1].relay.counters().traffic;
    assert!(account.wholes_in > 900 && account.cover_in > 900, "{account:?}");
}

#[test]
fn a_covered_path_that_gets_narrower_goes_on_in_parts_and_keeps_its_slots() {
    let mut net = net(tier(2, CoverKind::Constant), 1);
    net.run(Duration::from_secs(1));
    let (full, medium) = (SizeClass::Full.frame_len(), SizeClass::Medium.frame_len());
    net.narrow = vec![(H1, R1, medium), (R1, H1, medium)];
    let link = |net: &Net| {
        let mut links = net.nodes[H1].relay.links();
        links.find(|view| view.address == AT[R1]).expect("a link")
    };
    let since = net.now;
    while !link(&net).small || link(&net).up_since.is_none_or(|up| up < since) {
        net.run(Duration::from_millis(10));
        assert!(net.now.since(since) < Duration::from_secs(2), "{:?}", link(&net));
    }
    // First idle, then with traffic: a probe now and then replaces three parts.
    let before = lengths(&net).len();
    net.run(Duration::from_secs(20));
    for _ in 0..500 {
        send(&mut net, H1, H2, SizeClass::Full, 7);
        net.run(Duration::from_millis(20));
    }
    let seen = lengths(&net)[before..].to_vec();
    let at = net.watches[0].as_ref().unwrap().at[before..].to_vec();
    let slots: Vec<_> = seen.iter().zip(&at).collect();
    let slots: Vec<_> = slots.chunk_by(|a, b| a.1 == b.1).collect();
    let odd = slots[1..slots.len() - 1].iter().find(|slot| {
        let bytes: Vec<usize> = slot.iter().map(|(len, _)| **len).collect();
        bytes != [medium; 3] && bytes != [full]
    });
    assert_eq!(odd, None);
    let probes = seen.iter().filter(|len| **len == full).count();
    assert!(probes >= 2, "{probes} full frames, handshakes among them");
    net.narrow.clear();
    let since = net.now;
    while link(&net).small {
        net.run(Duration::from_millis(100));
        assert!(net.now.since(since) < Duration::from_secs(30));
    }
    assert_eq!(view(&net, H1, AT[R1]).state, CoverState::Running);
}

#[test]
fn a_path_said_to_be_small_and_then_not_never_mutes_the_link() {
    let mut net = net(tier(2, CoverKind::Constant), 1);
    net.run(Duration::from_secs(1));
    let link = link_to(&net, H1, AT[R1]);
    for small in [true, false, true, false] {
        net.nodes[H1].relay.set_small_path(link, small);
        cover_one(&mut net, H1, AT[R1]);
        let before = lengths(&net).len();
        net.run(Duration::from_secs(2));
        let frames = lengths(&net).len() - before;
        assert!(frames >= 340, "{frames} frames");
    }
}

#[test]
fn a_handshake_to_another_place_leaves_for_it_at_once() {
    let mut net = net(tier(2, CoverKind::Constant), 1);
    net.run(Duration::from_secs(1));
    let elsewhere = SocketAddr::from(([10, 9, 9, 9], 7400));
    net.wire.paths = Some(Vec::new());
    net.wire.from = Some(net.nodes[H1].at);
    let link = link_to(&net, H1, AT[R1]);
    net.nodes[H1].relay.set_endpoint(net.now, link, Some(elsewhere));
    assert!(net.nodes[H1].relay.call_home(net.now, link));
    net.run(Duration::from_millis(100));
    let paths = net.wire.paths.take().unwrap();
    assert!(paths.iter().any(|path| path.ends.remote == elsewhere), "{paths:?}");
    seen(&net);
}

#[test]
fn frames_that_the_kernel_refuses_are_made_good() {
    let mut net = net(tier(10, CoverKind::Constant), 1);
    net.run(Duration::from_secs(1));
    let frames = |net: &Net| view(net, H1, AT[R1]).frames;
    let before = frames(&net);
    for _ in 0..10 {
        net.wire.room = Some(0);
        net.run(Duration::from_millis(30));
        net.wire.room = None;
        net.run(Duration::from_millis(70));
    }
    let sent = frames(&net) - before;
    assert!(sent.abs_diff(868) < 6, "{sent} in a second");
    assert_eq!(view(&net, H1, AT[R1]).skipped, 0);
    // A debt of more than a second is given up.
    net.wire.room = Some(0);
    net.run(Duration::from_secs(3));
    net.wire.room = None;
    net.run(Duration::from_millis(100));
    assert!(view(&net, H1, AT[R1]).skipped > 800, "{:?}", view(&net, H1, AT[R1]));
    seen(&net);
}

#[test]
fn an_end_that_a_neighbour_names_is_at_a_full_hour_to_come() {
    let mut net = before_the_hour(1_000);
    let state = |net: &Net| view(net, R1, AT[H1]).state;
    let ending = CoverState::Ending(1_800_003_600, CoverFault::Neighbour);
    // The host's clock is two hours slow, so the end that it names is in the past.
    net.nodes[H1].relay.set_unix_time(net.now, (1_800_002_600 - 7_200) * 1_000);
    net.lossy = Some((H1, R1, 10));
    net.run(Duration::from_secs(370));
    assert_eq!(state(&net), ending);
    // The host restarts its schedule, and the router continues.
    net.lossy = None;
    let link = link_to(&net, H1, AT[R1]);
    for tier in [None, Some(tier(2, CoverKind::Constant))] {
        net.nodes[H1].relay.set_cover(net.now, link, tier);
        net.run(Duration::from_secs(1));
    }
    assert_eq!(state(&net), CoverState::Running);
    // A jump of the wall clock over the hour ends no schedule.
    net.lossy = Some((H1, R1, 10));
    net.run(Duration::from_secs(370));
    assert_eq!(state(&net), ending);
    net.nodes[R1].relay.set_unix_time(net.now, 1_800_004_000_000);
    net.run(Duration::from_secs(5));
    assert_eq!(state(&net), ending);
}

#[test]
fn an_end_that_is_far_ahead_is_refused() {
    let mut net = before_the_hour(1_000);
    net.nodes[H1].relay.set_unix_time(net.now, (1_800_002_600 + 7_200) * 1_000);
    net.lossy = Some((H1, R1, 10));
    net.run(Duration::from_secs(370));
    assert!(matches!(view(&net, H1, AT[R1]).state, CoverState::Ending(..)));
    assert_eq!(view(&net, R1, AT[H1]).state, CoverState::Running);
    assert!(net.nodes[R1].relay.counters().dropped(DropReason::Malformed) > 0);
}

#[test]
fn cover_that_is_off_begins_anew_at_the_next_full_hour() {
    let mut net = before_the_hour(450);
    net.lossy = Some((H1, R1, 10));
    net.run(Duration::from_secs(460));
    assert!(matches!(view(&net, H1, AT[R1]).state, CoverState::Off(1_800_003_600, _)));
    net.lossy = None;
    net.run(Duration::from_secs(3_580));
    assert!(matches!(view(&net, H1, AT[R1]).state, CoverState::Off(..)));
    net.run(Duration::from_secs(30));
    assert_eq!(view(&net, H1, AT[R1]).state, CoverState::Running);
    assert_eq!(view(&net, R1, AT[H1]).state, CoverState::Running);
    net.run(Duration::from_secs(200));
    assert_eq!(view(&net, H1, AT[R1]).state, CoverState::Running);
    assert!(view(&net, H1, AT[R1]).lost.unwrap() < 0.01);
}

#[test]
fn control_cells_of_others_leave_places_for_the_links_own_reports() {
    let mut net = net(tier(2, CoverKind::Constant), 1);
    net.run(Duration::from_secs(1));
    let ups = |net: &Net| view_of(net, R1).up_since;
    let up = ups(&net);
    assert!(up.is_some());
    for _ in 0..400 {
        for _ in 0..10 {
            send_control_cell(&mut net, H1, H2);
        }
        net.run(Duration::from_millis(20));
    }
    assert_eq!(ups(&net), up, "reports passed");
    let dropped = net.nodes[H1].relay.counters().dropped(DropReason::QueueFull);
    assert!(dropped > 1_000, "{dropped}");
    assert!(net.nodes[H2].cells.len() > 600);
}

fn view_of(net: &Net, node: usize) -> LinkView {
    let mut links = net.nodes[node].relay.links();
    links.find(|view| view.address == AT[H1]).expect("a neighbour")
}

/// Sends a cell of class control.
fn send_control_cell(net: &mut Net, from: usize, to: usize) {
    let mut buf = frames(AT[to], AT[from], 1, 1);
    buf[link::BODY_AT + RoutedHeader::CLASS_AT] = TrafficClass::Control as u8;
    net.wire.from = Some(net.nodes[from].at);
    let mut turn = CallContext { now: net.now, sink: &mut net.wire, hand: &mut () };
    let len = SizeClass::Small.frame_len();
    net.nodes[from].relay.send_cells(&mut turn, LinkKind::Cell, &mut buf, &[0], len);
}

#[test]
fn a_node_that_stops_says_goodbye_at_once_in_full_frames() {
    let mut net = net(tier(2, CoverKind::Constant), 1);
    net.run(Duration::from_secs(1));
    net.wire.from = Some(net.nodes[H1].at);
    net.nodes[H1].relay.say_goodbye(net.now, &mut net.wire);
    let (_, _, mut frame) = net.wire.sent.pop_front().expect("a frame");
    assert_eq!(frame.len(), FULL);
    net.deliver(R1, socket(H1), &mut frame);
    let router = &net.nodes[R1].relay;
    assert!(!router.links().any(|view| view.address == AT[H1] && view.established));
}

/// Arrival times of cells of the second host, one per 124 ms, at the first, whose link is covered.
/// A third host sends it `flood` cells per 4 ms in every other second.
fn arrivals(flood: usize) -> Vec<Time> {
    const H3: usize = 3;
    let at = [AT[0], AT[1], AT[2], Address::new(1, 3)];
    let mut net = Net::with(&at, &[(H1, R1), (H2, R1), (H3, R1)], |_| ());
    cover(&mut net, Some(tier(2, CoverKind::Constant)));
    net.run(Duration::from_millis(100));
    let mut arrivals = Vec::new();
    for step in 0..4_000 {
        if step % 31 == 0 {
            send(&mut net, H2, H1, SizeClass::Full, 7);
        }
        if step > 200 && step / 250 % 2 == 0 {
            for _ in 0..flood {
                let mut buf = frames(AT[H1], at[H3], 1, 9);
                net.wire.from = Some(net.nodes[H3].at);
                let mut turn = CallContext { now: net.now, sink: &mut net.wire, hand: &mut () };
                let relay = &mut net.nodes[H3].relay;
                relay.send_cells(&mut turn, LinkKind::Cell, &mut buf, &[0], FULL);
            }
        }
        net.run(Duration::from_millis(4));
        let cells = core::mem::take(&mut net.nodes[H1].cells);
        let sevens = cells.iter().filter(|(src, _)| *src == AT[H2]).count();
        arrivals.extend(core::iter::repeat_n(net.now, sevens));
    }
    arrivals
}

#[test]
fn cells_of_one_host_come_at_the_same_times_whatever_another_sends() {
    let quiet = arrivals(0);
    assert!(quiet.len() > 120, "{}", quiet.len());
    for flood in [1, 3] {
        let busy = arrivals(flood);
        let differ = quiet.iter().zip(&busy).filter(|(a, b)| a != b).count();
        assert_eq!((busy.len(), differ), (quiet.len(), 0), "{flood} cells each 4 ms");
    }
}
