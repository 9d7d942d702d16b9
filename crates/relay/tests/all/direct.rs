//! Two hosts of one router with a direct link.
//!
//! ```text
//!        r1
//!       /  \
//!     h1 == h2    h3 behind r1 too
//! ```

use crate::support::{FULL, Net, frames};
use core::time::Duration;
use shoal_relay::{CallContext, LinkView};
use shoal_wire::{
    Address, DropReason, Level, LinkKind, RoutedHeader, SizeClass, TrafficClass, link,
};
use zerocopy::IntoBytes;

const R1: usize = 0;
const H1: usize = 1;
const H2: usize = 2;
const H3: usize = 3;

fn at(host: usize) -> Address {
    Address::new(1, host as u16)
}

/// A network in which h1 and h2 accept these levels with each other.
fn net(weakest: [Level; 2], change: impl Fn(&mut shoal_relay::RelayConfig)) -> Net {
    let addresses = [at(0), at(1), at(2), at(3)];
    let links = [(H1, R1), (H2, R1), (H3, R1), (H1, H2)];
    let mut net = Net::with(&addresses, &links, change);
    for (here, (there, weakest)) in [(H1, (H2, weakest[0])), (H2, (H1, weakest[1]))] {
        let link = view(&net, here, there).link;
        net.nodes[here].relay.set_weakest(link, weakest);
    }
    net.run(Duration::from_secs(3));
    net
}

fn view(net: &Net, here: usize, there: usize) -> LinkView {
    net.nodes[here].relay.links().find(|link| link.address == at(there)).unwrap()
}

fn dropped(net: &Net, node: usize, reason: DropReason) -> u64 {
    net.nodes[node].relay.counters().dropped(reason)
}

/// Sends frames without an end-to-end seal.
fn send_direct(net: &mut Net, from: usize, buf: &mut [u8], len: usize) {
    let offsets: Vec<u32> = (0..buf.len() / len).map(|i| (i * len) as u32).collect();
    net.wire.from = Some(net.nodes[from].at);
    let mut turn = CallContext { now: net.now, sink: &mut net.wire, hand: &mut () };
    net.nodes[from].relay.send_cells(&mut turn, LinkKind::Direct, buf, &offsets, len);
}

fn transit(net: &Net) -> u64 {
    net.nodes[R1].relay.counters().traffic.cells_transit
}

/// A node with this many workers, and enough lanes for every pair of workers.
fn workers(workers: u8) -> impl Fn(&mut shoal_relay::RelayConfig) {
    move |config| (config.session.workers, config.session.lanes) = (workers, workers * workers)
}

#[test]
fn cells_of_both_kinds_take_the_direct_link_and_only_bulk_is_readable() {
    for (level, n) in Level::ALL.into_iter().flat_map(|level| [1, 2, 4].map(|n| (level, n))) {
        let mut net = net([level; 2], workers(n));
        assert_eq!((view(&net, H1, H2).level, view(&net, H2, H1).level), (level, level));
        let before = transit(&net);
        net.send(H1, at(H2), 2, 0xab);
        send_direct(&mut net, H1, &mut frames(at(H2), at(H1), 44, 0xcd), FULL);
        let readable = |net: &Net| {
            let plain =
                |frame: &[u8]| frame[link::CELL_AT + 1..FULL - 16].iter().all(|&b| b == 0xcd);
            // The flow number in the first byte is zeroed before a cell leaves.
            let full = |frame: &[u8]| frame[link::CELL_AT] == 0 && plain(frame);
            net.wire.sent.iter().filter(|(.., frame)| frame.len() == FULL && full(frame)).count()
        };
        let bulk = readable(&net);
        assert_eq!(bulk, if level == Level::Encrypt { 0 } else { 44 });
        let header = RoutedHeader::new(at(H2), at(H1), TrafficClass::Control);
        let mut control = frames(at(H2), at(H1), 1, 0xcd);
        control[link::ROUTED_AT..link::CELL_AT].copy_from_slice(header.as_bytes());
        send_direct(&mut net, H1, &mut control, FULL);
        assert_eq!(readable(&net), bulk, "control is encrypted at every level");
        net.run(Duration::from_millis(5));
        assert_eq!(net.nodes[H2].cells.len(), 47);
        assert!(net.nodes[H2].cells.iter().all(|(src, _)| *src == at(H1)));
        assert_eq!(transit(&net), before, "a router saw them");
    }
}

#[test]
fn a_host_passes_nothing_on_and_takes_nothing_in_anothers_name() {
    let mut net = net([Level::None; 2], |_| {});
    let before = net.nodes[H2].cells.len();
    let by_direct_link = |net: &mut Net, buf: &mut [u8]| {
        // The relay checks the destination of the first cell only, and h1 lies about the rest.
        let mut all = frames(at(H2), at(H1), 1, 1);
        all.extend_from_slice(buf);
        send_direct(net, H1, &mut all, FULL);
        net.run(Duration::from_millis(5));
    };
    by_direct_link(&mut net, &mut frames(at(H3), at(H1), 2, 2));
    assert_eq!(dropped(&net, H2, DropReason::NotForUs), 2);
    by_direct_link(&mut net, &mut frames(at(H2), at(H3), 3, 3));
    assert_eq!(dropped(&net, H2, DropReason::BadSource), 3);
    assert_eq!(net.nodes[H2].cells.len(), before + 2);
    assert!(net.nodes[H3].cells.is_empty());
    // Without a direct link no cell may leave without an end-to-end seal.
    send_direct(&mut net, H1, &mut frames(at(H3), at(H1), 4, 4), FULL);
    assert_eq!(dropped(&net, H1, DropReason::NoRoute), 4);
    // A link with a router is no direct link, at any level.
    let link = view(&net, H1, R1).link;
    net.nodes[H1].relay.set_weakest(link, Level::None);
    assert!(!net.nodes[H1].relay.may_go_direct(at(R1)));
    send_direct(&mut net, H1, &mut frames(at(R1), at(H1), 1, 5), FULL);
    assert_eq!(dropped(&net, H1, DropReason::NoRoute), 5);
}

#[test]
fn unauthenticated_frames_may_only_be_bulk() {
    let mut net = net([Level::None; 2], |_| {});
    let mut captured = frames(at(H2), at(H1), 1, 7);
    send_direct(&mut net, H1, &mut captured, FULL);
    let (from, _, frame) = net.wire.sent.pop_back().unwrap();
    let kinds = [LinkKind::Keepalive, LinkKind::Cell, LinkKind::Control, LinkKind::Part];
    for kind in kinds {
        let mut forged = frame.clone();
        forged[link::KIND_AT] = kind as u8;
        // The first frame uses up the counter, so the others are replays.
        let refused = dropped(&net, H2, DropReason::NotAllowed);
        let replayed = dropped(&net, H2, DropReason::Replayed);
        net.deliver(H2, from, &mut forged);
        let now = dropped(&net, H2, DropReason::NotAllowed);
        assert_eq!(now - refused, u64::from(kind == kinds[0]), "{kind:?}");
        assert_eq!(dropped(&net, H2, DropReason::Replayed) - replayed, 1 - (now - refused));
    }
    // An attacker on the path changes the class. A lane without authentication must carry no
    // control.
    send_direct(&mut net, H1, &mut captured, FULL);
    let (from, _, mut forged) = net.wire.sent.pop_back().unwrap();
    forged[link::ROUTED_AT + RoutedHeader::CLASS_AT] = TrafficClass::Control as u8;
    let refused = dropped(&net, H2, DropReason::NotAllowed);
    net.deliver(H2, from, &mut forged);
    assert_eq!(dropped(&net, H2, DropReason::NotAllowed), refused + 1);
    assert!(net.nodes[H2].cells.is_empty());
}

/// Copies and forgeries arrive at any worker. Each is dropped by name, and none is accepted.
#[test]
fn with_several_workers_a_plain_cell_is_taken_once_and_forgeries_never() {
    for (level, n) in [Level::Authenticate, Level::None].into_iter().zip([2, 4]) {
        let mut net = net([level; 2], workers(n));
        for round in 0..8 {
            let mut buf = frames(at(H2), at(H1), 1, 7);
            // A different flow, and so perhaps a different lane.
            buf[link::CELL_AT] = round;
            net.wire.sent.clear();
            send_direct(&mut net, H1, &mut buf, FULL);
            let (from, _, frame) = net.wire.sent.pop_back().unwrap();
            let mut kind = frame.clone();
            kind[link::KIND_AT] = LinkKind::Keepalive as u8;
            let mut class = frame.clone();
            class[link::ROUTED_AT + RoutedHeader::CLASS_AT] = TrafficClass::Control as u8;
            let mut tag = frame.clone();
            tag[FULL - 1] ^= 1;
            let taken = net.nodes[H2].cells.len();
            let before = [DropReason::NotAllowed, DropReason::BadTag, DropReason::Replayed]
                .map(|reason| dropped(&net, H2, reason));
            for (turn, forged) in [&tag, &kind, &class, &frame, &frame].into_iter().enumerate() {
                let mut from = from;
                from.set_port(20_000 + 64 * u16::from(round) + turn as u16);
                net.deliver(H2, from, &mut forged.clone());
                net.run(Duration::from_millis(2));
            }
            let after = [DropReason::NotAllowed, DropReason::BadTag, DropReason::Replayed]
                .map(|reason| dropped(&net, H2, reason));
            let more: Vec<u64> =
                after.iter().zip(before).map(|(after, before)| after - before).collect();
            // At level none, a changed byte of the header uses up the counter, so the next frame is
            // a replay. At level authenticate, the frame fails authentication.
            match level {
                Level::None => assert_eq!((more[0], more[2]), (1, 3), "{more:?}"),
                _ => assert_eq!((more[0], more[1], more[2]), (0, 2, 1), "{more:?}"),
            }
            let taken = net.nodes[H2].cells.len() - taken;
            assert_eq!(taken, usize::from(level == Level::Authenticate), "{level:?}");
        }
    }
}

#[test]
fn when_the_direct_link_dies_the_routers_take_over_until_it_is_back() {
    let mut net = net([Level::Encrypt; 2], |_| {});
    assert!(net.nodes[H1].relay.may_go_direct(at(H2)));
    net.cut.push((H1, H2));
    let mut lost = 0;
    for _ in 0..1_000 {
        let way = net.nodes[H1].relay.may_go_direct(at(H2));
        net.send(H1, at(H2), 1, 1);
        lost += u64::from(way);
        net.run(Duration::from_millis(1));
    }
    assert!(lost < 700, "{lost} ms on a dead line");
    assert_eq!(net.nodes[H2].cells.len() as u64, 1_000 - lost);
    net.cut.clear();
    net.run(Duration::from_secs(8));
    assert!(net.nodes[H1].relay.may_go_direct(at(H2)));
    // A closing link sends no cells but accepts those that arrive.
    let link = view(&net, H1, H2).link;
    net.nodes[H1].relay.set_closing(link, true);
    assert!(!net.nodes[H1].relay.may_go_direct(at(H2)));
    let (before, arrived) = (transit(&net), net.nodes[H1].cells.len());
    net.send(H1, at(H2), 3, 1);
    send_direct(&mut net, H2, &mut frames(at(H1), at(H2), 5, 1), FULL);
    net.run(Duration::from_millis(5));
    assert_eq!((transit(&net), net.nodes[H1].cells.len()), (before + 3, arrived + 5));
    net.nodes[H1].relay.remove_link(net.now, link);
    net.send(H1, at(H2), 3, 1);
    net.run(Duration::from_millis(5));
    assert_eq!(transit(&net), before + 6);
}

#[test]
fn a_small_path_and_several_workers_carry_direct_cells() {
    let mut two = net([Level::None; 2], workers(2));
    assert_eq!(view(&two, H1, H2).level, Level::None);
    let mut small = net([Level::None; 2], |_| {});
    let link = view(&small, H1, H2).link;
    small.nodes[H1].relay.set_small_path(link, true);
    small.wire.longest = Some(SizeClass::Medium.frame_len());
    for net in [&mut two, &mut small] {
        send_direct(net, H1, &mut frames(at(H2), at(H1), 20, 9), FULL);
        net.run(Duration::from_millis(5));
        assert_eq!(net.nodes[H2].cells.len(), 20);
        assert!(
            net.nodes[H2].cells.iter().all(|(_, p)| p[0] == 0 && p[1..].iter().all(|&b| b == 9))
        );
    }
}

#[test]
fn a_direct_link_whose_path_gets_narrower_carries_on_past_the_router() {
    for n in [1, 4] {
        let mut net = net([Level::None; 2], workers(n));
        let before = transit(&net);
        net.narrow = vec![(H1, H2, 1_400), (H2, H1, 1_400)];
        let send = |net: &mut Net| {
            send_direct(net, H1, &mut frames(at(H2), at(H1), 1, 9), FULL);
            net.run(Duration::from_millis(20));
        };
        let since = net.now;
        while net.nodes[H2].cells.is_empty() {
            send(&mut net);
            assert!(net.now.since(since) < Duration::from_secs(2), "{n} workers");
        }
        assert!(view(&net, H1, H2).small && !view(&net, H2, H1).small);
        let arrived = net.nodes[H2].cells.len();
        (0..50).for_each(|_| send(&mut net));
        assert_eq!(net.nodes[H2].cells.len(), arrived + 50);
        assert_eq!(transit(&net), before, "all cells bypass the router");
    }
}
