//! Paths of established links that become narrower and wider again. No device error, handshake or
//! ICMP message reports the change.

use core::time::Duration;

use shoal_relay::{LinkView, RelayEvent};
use shoal_wire::{Address, SizeClass};

use crate::support::Net;

const H1: usize = 0;
const R1: usize = 1;
const R2: usize = 2;
const H2: usize = 3;

const AT: [Address; 4] =
    [Address::new(1, 1), Address::new(1, 0), Address::new(2, 0), Address::new(2, 1)];
const MEDIUM: usize = SizeClass::Medium.frame_len();

fn line(workers: u8) -> Net {
    let mut net = Net::with(&AT, &[(H1, R1), (R1, R2), (H2, R2)], |config| {
        config.session.workers = workers;
        config.liveness.keepalive = Some(Duration::from_secs(15));
    });
    net.run(Duration::from_secs(3));
    net
}

fn view(net: &Net, node: usize, to: usize) -> LinkView {
    let mut links = net.nodes[node].relay.links();
    links.find(|link| link.address == AT[to]).expect("a link")
}

/// True for each router whose full frames to the other go in parts.
fn small(net: &Net) -> [bool; 2] {
    [view(net, R1, R2).small, view(net, R2, R1).small]
}

/// Number of times that either router found the path narrow, not counting handshakes. Handshakes
/// also go in parts after a loss.
fn narrowed(net: &mut Net) -> usize {
    let mut count = 0;
    for node in [R1, R2] {
        while let Some(event) = net.nodes[node].relay.poll_event() {
            let small = |link| net.nodes[node].relay.view(link).is_some_and(|view| view.small);
            count += usize::from(matches!(event, RelayEvent::Width(link) if small(link)));
        }
    }
    count
}

/// Sends a full cell every 10 ms from one host to another. Returns how many arrived.
fn flow(net: &mut Net, (from, to): (usize, usize), span: Duration) -> usize {
    let before = net.nodes[to].cells.len();
    let end = net.now + span;
    while net.now < end {
        net.send(from, AT[to], 1, 1);
        net.run(Duration::from_millis(10));
    }
    net.nodes[to].cells.len() - before
}

/// Time until cells arrive again, at most 20 s.
fn until_cells_arrive(net: &mut Net, pair: (usize, usize)) -> Duration {
    let since = net.now;
    while net.now.since(since) < Duration::from_secs(20) {
        if flow(net, pair, Duration::from_millis(50)) > 0 {
            break;
        }
    }
    net.now.since(since)
}

#[test]
fn a_path_that_gets_narrower_carries_on_within_two_seconds_and_is_wide_again_within_a_minute() {
    for workers in [1, 3] {
        let mut net = line(workers);
        assert_eq!(flow(&mut net, (H1, H2), Duration::from_secs(2)), 200);
        net.narrow = vec![(R1, R2, 1_400), (R2, R1, 1_400)];
        let gap = until_cells_arrive(&mut net, (H1, H2));
        assert!(gap < Duration::from_secs(2), "{workers} workers: nothing for {gap:?}");
        assert_eq!(small(&net), [true, false], "{workers} workers: nothing full went back");
        assert_eq!(flow(&mut net, (H1, H2), Duration::from_secs(30)), 3_000);
        assert!(view(&net, R1, R2).up_since.is_some());

        let gap = until_cells_arrive(&mut net, (H2, H1));
        assert!(gap < Duration::from_secs(2), "{workers} workers: nothing back for {gap:?}");
        assert_eq!(small(&net), [true; 2]);

        net.narrow.clear();
        assert_eq!(flow(&mut net, (H1, H2), Duration::from_secs(30)), 3_000);
        assert_eq!(flow(&mut net, (H2, H1), Duration::from_secs(30)), 3_000);
        assert_eq!(small(&net), [false; 2], "{workers} workers: wide again");
    }
}

#[test]
fn each_direction_is_for_itself() {
    let mut net = line(1);
    net.narrow = vec![(R2, R1, MEDIUM)];
    assert_eq!(flow(&mut net, (H1, H2), Duration::from_secs(5)), 500);
    let gap = until_cells_arrive(&mut net, (H2, H1));
    assert!(gap < Duration::from_secs(2), "nothing for {gap:?}");
    assert_eq!(small(&net), [false, true]);
    // New keys are agreed by handshakes that go in parts in both directions.
    for _ in 0..60 {
        assert_eq!(flow(&mut net, (H2, H1), Duration::from_secs(4)), 400);
        assert!(flow(&mut net, (H1, H2), Duration::from_secs(1)) == 100);
    }
    assert_eq!(small(&net), [false, true]);
}

#[test]
fn a_flow_of_few_frames_finds_a_narrow_path_too() {
    let mut net = line(1);
    net.run(Duration::from_secs(60));
    net.narrow = vec![(R1, R2, 1_400)];
    // The pattern of a program's first packet and its repeats.
    let since = net.now;
    for wait in [300, 600, 1_200, 2_400] {
        net.send(H1, AT[H2], 1, 1);
        net.run(Duration::from_millis(wait));
    }
    assert!(!net.nodes[H2].cells.is_empty(), "nothing in {:?}", net.now.since(since));
    assert_eq!(small(&net), [true, false]);
}

#[test]
fn loss_is_not_taken_for_a_narrow_path() {
    for one_of in [100, 20, 5] {
        let mut net = line(1);
        net.lossy = Some((R1, R2, one_of));
        for round in 0..3_000 {
            // A flow, then few frames, then none.
            let count = [10, 1, 0][round / 100 % 3];
            net.send(H1, AT[H2], count, 1);
            net.run(Duration::from_millis(40));
            assert_eq!(narrowed(&mut net), 0, "one of {one_of} lost");
        }
    }
}

#[test]
fn bursts_of_loss_are_not_taken_for_a_narrow_path() {
    let mut net = line(1);
    for round in 0..600u64 {
        // All frames are lost for 50 to 400 ms.
        net.cut = vec![(R1, R2)];
        flow(&mut net, (H1, H2), Duration::from_millis(50 + 50 * (round % 8)));
        net.cut.clear();
        flow(&mut net, (H1, H2), Duration::from_millis(100 + 70 * (round % 5)));
        assert_eq!(narrowed(&mut net), 0);
    }
}

#[test]
fn idle_links_and_links_without_full_frames_send_none() {
    let mut net = line(1);
    net.wire.seen = Some(Vec::new());
    // No key change happens in this test, since its handshakes are full frames.
    net.run(Duration::from_secs(20));
    let full = |net: &mut Net| {
        let seen = net.wire.seen.replace(Vec::new()).expect("all frames are kept");
        seen.iter().filter(|frame| frame.len() > MEDIUM).count()
    };
    assert_eq!(full(&mut net), 0, "idle and wide");
    net.narrow = vec![(R1, R2, 1_400)];
    until_cells_arrive(&mut net, (H1, H2));
    assert_eq!(small(&net), [true, false]);
    net.run(Duration::from_secs(20));
    full(&mut net);
    net.run(Duration::from_secs(50));
    assert_eq!(full(&mut net), 0, "idle and narrow");
}
