//! A node with several workers behaves like a node with one, whichever worker a frame meets.

use crate::support::{FULL, Net, frames, socket};
use core::time::Duration;
use proptest::prelude::*;
use shoal_crypto::Rng;
use shoal_relay::{
    ArrivalSource, CallContext, FrameAt, FrameSink, Handoff, HandoffKind, LocalCells, ReceivedRun,
    SendError, SendOutcome, SendPath, TrafficCounters, WorkerOrder,
};
use shoal_wire::{Address, DropReason, LinkId, LinkKind};

const HOSTS: [(usize, Address); 4] = [
    (0, Address::new(1, 1)),
    (1, Address::new(1, 2)),
    (4, Address::new(2, 1)),
    (5, Address::new(2, 2)),
];
const R1: usize = 2;

/// Two routers with two hosts each. Every node has this many workers and lanes.
fn net(workers: u8, lanes: u8) -> Net {
    net_with(|config| (config.session.workers, config.session.lanes) = (workers, lanes))
}

fn net_with(change: impl Fn(&mut shoal_relay::RelayConfig)) -> Net {
    let addresses = [
        Address::new(1, 1),
        Address::new(1, 2),
        Address::new(1, 0),
        Address::new(2, 0),
        Address::new(2, 1),
        Address::new(2, 2),
    ];
    let links = [(0, 2), (1, 2), (2, 3), (4, 3), (5, 3)];
    let mut net = Net::with(&addresses, &links, change);
    net.run(Duration::from_secs(3));
    net
}

fn cells(net: &Net) -> Vec<Vec<(Address, Vec<u8>)>> {
    let sorted = |i: usize| {
        let mut cells = net.nodes[i].cells.clone();
        cells.sort_unstable();
        cells
    };
    (0..net.nodes.len()).map(sorted).collect()
}

/// Sums that must not depend on which worker handled a frame.
fn work(net: &Net, node: usize) -> [u64; 3] {
    let relay = &net.nodes[node].relay;
    let TrafficCounters { cells_transit, cells_local, cells_origin, .. } = relay.counters().traffic;
    let TrafficCounters { dispatched, cut, frames_out, handshakes_out, .. } =
        relay.counters().traffic;
    let waiting: usize = relay.links().map(|link| link.waiting).sum();
    let left = frames_out - handshakes_out + waiting as u64;
    let more_parts = (shoal_link::parts::PARTS as u64 - 1) * cut;
    assert_eq!(dispatched + more_parts, left, "node {node}: each frame has left or waits");
    [cells_transit, cells_local, cells_origin]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12.min(ProptestConfig::default().cases)))]

    #[test]
    fn any_split_over_workers_gives_what_one_worker_gives(
        workers in 2u8..5,
        lanes in 1u8..=16,
        keeping: bool,
        tight: bool,
        small: bool,
        seed: [u8; 32],
        sends in prop::collection::vec((0usize..4, 0usize..4, 1usize..12), 1..30),
    ) {
        let mut nets = [net(1, lanes), net(workers, lanes)];
        nets[1].keeping = keeping;
        for net in &mut nets {
            net.spread = Rng::new(seed);
            // If `small`, the path between the routers carries no full frames.
            let between = net.nodes[R1].relay.next_hop(Address::new(2, 0)).expect("r2 is beside");
            net.nodes[R1].relay.set_small_path(between, small);
            net.run(Duration::from_millis(2));
            for (round, &(from, to, n)) in (0u8..).zip(&sends) {
                net.wire.room = (tight && round % 3 == 0).then_some(5);
                net.send(HOSTS[from].0, HOSTS[to].1, n, round);
                net.run(Duration::from_millis(2));
                net.wire.room = None;
            }
            net.run(Duration::from_millis(200));
        }
        let [one, many] = &nets;
        prop_assert_eq!(cells(one), cells(many));
        for node in 0..6 {
            prop_assert_eq!(work(one, node), work(many, node));
            prop_assert!(many.nodes[node].relay.links().all(|link| link.up_since.is_some()));
            prop_assert_eq!(many.nodes[node].relay.counters().dropped(DropReason::OtherWorker), 0);
            // Reports are as exact as with one worker: no loss is measured.
            prop_assert!(many.nodes[node].relay.links().all(|link| link.stats.loss == 0.0));
        }
    }
}

#[test]
fn a_router_sees_one_lane_per_pair_of_hosts_with_any_sending_worker() {
    let mut net = net(3, 9);
    let carried = |net: &Net| {
        let node = &net.nodes[R1];
        let others: u64 = node.forwarded_by.iter().sum();
        let first = node.relay.counters().traffic.cells_transit - others;
        [first, node.forwarded_by[0], node.forwarded_by[1]]
    };
    for (from, to) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        let before = carried(&net);
        for round in 0..40 {
            net.send(HOSTS[from].0, HOSTS[to].1, 1, round);
            net.step();
        }
        let after = carried(&net);
        let by: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        // Lanes are assigned in turn, so a second lane would involve a second worker.
        assert!(by.contains(&40), "{by:?}");
    }
}

#[test]
fn a_captured_frame_is_accepted_once_wherever_its_copies_arrive() {
    let mut net = net(3, 9);
    let taken = |net: &Net| net.nodes[R1].relay.counters().traffic.cells_transit;
    let mut replayed = 0;
    for round in 0..8 {
        let before = taken(&net);
        net.wire.sent.clear();
        net.send(HOSTS[round % 2].0, HOSTS[2 + round % 2].1, 1, 9);
        let (_, _, frame) = net.wire.sent.pop_front().expect("the frame on its way to r1");
        for port in 0..64u16 {
            let mut from = socket(HOSTS[round % 2].0);
            from.set_port(20_000 + port);
            net.deliver(R1, from, &mut frame.clone());
        }
        assert_eq!(taken(&net) - before, 1);
        replayed += 63;
        assert_eq!(net.nodes[R1].relay.counters().dropped(DropReason::Replayed), replayed);
    }
}

#[test]
fn keys_change_and_neighbours_restart_under_traffic() {
    let mut net = net_with(|config| {
        (config.session.workers, config.session.lanes) = (2, 4);
        config.session.rekey_after = Duration::from_secs(4);
        config.session.reject_after = Duration::from_secs(9);
    });
    let mut sent = 0;
    for round in 0..3_000u32 {
        for (from, to) in [(0, 2), (1, 3), (3, 0)] {
            net.send(HOSTS[from].0, HOSTS[to].1, 1, round as u8);
            sent += 1;
        }
        net.run(Duration::from_millis(10));
    }
    let got: usize = net.nodes.iter().map(|node| node.cells.len()).sum();
    assert_eq!(got, sent, "thirty seconds of changing keys every four lose nothing");
    assert!(net.nodes[R1].relay.sessions().stats().established > 12);
    let forwarded = net.nodes[R1].forwarded;
    assert!((100..8_900).contains(&forwarded), "the second worker passed on {forwarded} cells");
}

#[test]
fn no_worker_passes_the_backlog_of_a_link_and_nothing_is_lost() {
    let mut net = net(2, 4);
    for round in 0..40u8 {
        // In every other round the kernel has no room, for r1 and its hosts.
        net.wire.room = (round % 2 == 0).then_some(6);
        net.send(HOSTS[0].0, HOSTS[2].1, 4, round);
        net.send(HOSTS[1].0, HOSTS[3].1, 4, round);
        net.run(Duration::from_millis(3));
        net.wire.room = None;
        net.run(Duration::from_millis(3));
    }
    let got: usize = net.nodes.iter().map(|node| node.cells.len()).sum();
    assert_eq!(got, 320);
    (0..6).for_each(|node| assert!(work(&net, node) != [0; 3]));
}

#[test]
fn a_full_ring_is_a_counted_drop_and_the_next_frame_goes_on() {
    let mut net = net(2, 4);
    net.full_rings = true;
    for round in 0..30 {
        net.send(HOSTS[0].0, HOSTS[2].1, 1, round);
        net.send(HOSTS[1].0, HOSTS[3].1, 1, round);
        net.run(Duration::from_millis(1));
    }
    let dropped = |net: &Net| {
        let of = |node: usize| net.nodes[node].relay.counters().dropped(DropReason::OtherWorker);
        (0..6).map(of).sum::<u64>()
    };
    assert!(dropped(&net) > 10, "{}", dropped(&net));
    net.full_rings = false;
    net.run(Duration::from_secs(3));
    let before: usize = net.nodes.iter().map(|node| node.cells.len()).sum();
    net.send(HOSTS[0].0, HOSTS[2].1, 5, 200);
    net.send(HOSTS[1].0, HOSTS[3].1, 5, 200);
    net.run(Duration::from_millis(50));
    assert_eq!(net.nodes.iter().map(|node| node.cells.len()).sum::<usize>() - before, 10);
}

#[test]
fn a_path_that_carries_no_full_frame_is_left_to_the_first_worker() {
    let mut net = net(2, 4);
    for node in 0..6 {
        let links: Vec<_> = net.nodes[node].relay.links().map(|link| link.link).collect();
        links.into_iter().for_each(|link| net.nodes[node].relay.set_small_path(link, true));
    }
    net.wire.longest = Some(576);
    net.run(Duration::from_millis(10));
    net.send(HOSTS[0].0, HOSTS[2].1, 9, 1);
    net.send(HOSTS[1].0, HOSTS[3].1, 9, 2);
    net.run(Duration::from_millis(50));
    assert_eq!(net.nodes.iter().map(|node| node.cells.len()).sum::<usize>(), 18);
}

/// A router whose list is too old keeps its links. No worker forwards any cell.
#[test]
fn links_that_carry_lists_only_carry_no_cell_and_no_route() {
    const R2: usize = 3;
    for workers in [1, 3] {
        let mut net = net(workers, 4);
        let send = |net: &mut Net| {
            let before = cells(net).iter().map(Vec::len).sum::<usize>();
            for round in 0..8 {
                net.send(0, Address::new(2, 1), 3, round);
                net.send(4, Address::new(1, 1), 3, round);
                net.send(4, Address::new(2, 2), 3, round);
                net.send(R2, Address::new(2, 1), 3, round);
            }
            net.run(Duration::from_millis(20));
            cells(net).iter().map(Vec::len).sum::<usize>() - before
        };
        assert_eq!(send(&mut net), 96, "{workers} workers");
        let now = net.now;
        net.nodes[R2].relay.set_lists_only(now, true);
        net.run(Duration::from_millis(20));
        assert_eq!(send(&mut net), 0, "{workers} workers");
        let relay = &net.nodes[R2].relay;
        let dropped = relay.counters().dropped(DropReason::StaleList)
            + relay.counters().dropped(DropReason::NoRoute);
        assert!(dropped >= 72, "{dropped} at the router");
        assert!(relay.routing().unwrap().table().is_empty());
        // The links stay up at both ends. After a while no route uses them.
        let up = |net: &Net, node: usize| -> Vec<_> {
            net.nodes[node].relay.links().map(|link| link.up_since).collect()
        };
        let before = [R1, R2].map(|node| up(&net, node));
        net.run(Duration::from_secs(60));
        assert!(net.nodes[R2].relay.links().all(|link| link.up_since.is_some()));
        assert_eq!([R1, R2].map(|node| up(&net, node)), before, "{workers} workers");
        assert!(net.nodes[R1].relay.routing().unwrap().table().is_empty());
        let now = net.now;
        net.nodes[R2].relay.set_lists_only(now, false);
        net.run(Duration::from_secs(10));
        assert_eq!(send(&mut net), 96, "{workers} workers");
    }
}

/// A simulated kernel: the number of frames it accepts, and the accepted frames.
struct Kernel {
    room: usize,
    took: Vec<Vec<u8>>,
}

impl FrameSink for Kernel {
    fn send(&mut self, _: SendPath, buf: &[u8], offsets: &[u32], len: usize) -> SendOutcome {
        let sent = offsets.len().min(self.room);
        self.took.extend(offsets[..sent].iter().map(|&at| buf[at as usize..][..len].to_vec()));
        SendOutcome { sent, stop: (sent < offsets.len()).then_some(SendError::Full) }
    }
}

/// A frame that a worker handed over.
#[derive(Debug, PartialEq)]
enum HandoffRecord {
    Raw,
    Opened,
    Leaving(u8),
    Released,
    Sealed,
}

#[derive(Default)]
struct Record(Vec<HandoffRecord>);

impl Handoff for Record {
    fn take(&mut self, what: HandoffKind<'_>, frame: FrameAt<'_>) -> bool {
        assert_eq!(frame.bytes().len(), FULL);
        self.0.push(match what {
            HandoffKind::Raw { .. } | HandoffKind::Unknown { .. } => HandoffRecord::Raw,
            HandoffKind::Opened { .. } => HandoffRecord::Opened,
            HandoffKind::Leaving { worker, .. } => HandoffRecord::Leaving(worker),
            HandoffKind::Released { .. } => HandoffRecord::Released,
            HandoffKind::Sealed { .. } => HandoffRecord::Sealed,
        });
        true
    }
}

/// Three cells from the first host to `dst`, as they arrive at its router.
fn arriving(net: &mut Net, dst: Address) -> Vec<u8> {
    let mut sink = Kernel { room: usize::MAX, took: Vec::new() };
    let mut turn = CallContext { now: net.now, sink: &mut sink, hand: &mut () };
    let mut buf = frames(dst, HOSTS[0].1, 3, 1);
    let offsets = [0, FULL as u32, 2 * FULL as u32];
    net.nodes[0].relay.send_cells(&mut turn, LinkKind::Cell, &mut buf, &offsets, FULL);
    sink.took.concat()
}

/// Makes the router's second worker handle them. Returns the frames it handed over, and how many
/// left.
fn second(net: &mut Net, mut buf: Vec<u8>, room: usize) -> (Vec<HandoffRecord>, usize) {
    let (mut sink, mut record) = (Kernel { room, took: Vec::new() }, Record::default());
    let (len, from) = (buf.len() as u32, socket(0));
    let incoming =
        [ReceivedRun { from: from.into(), offset: 0, len, stride: FULL as u32, congested: false }];
    let mut turn = CallContext { now: net.now, sink: &mut sink, hand: &mut record };
    let (shard, forwarder) = &mut net.nodes[R1].forwarders[0];
    let none = None::<&mut fn(&mut [u8], LocalCells<'_>, &mut Record) -> u64>;
    forwarder.handle_batch(shard, &mut turn, &mut buf, &incoming, ArrivalSource::Socket, none);
    (record.0, sink.took.len())
}

/// A host whose cells the router's second worker forwards.
fn flow_of_second(net: &mut Net) -> Address {
    let mut hosts = (1..64).map(|host| Address::new(2, host));
    let passes = |dst: &Address| {
        let cells = arriving(net, *dst);
        second(net, cells, usize::MAX) == (Vec::new(), 3)
    };
    hosts.find(passes).expect("one of two workers' lanes")
}

#[test]
fn a_worker_that_was_refused_sends_nothing_until_it_is_told_that_it_may() {
    use HandoffRecord::{Released, Sealed};
    let mut net = net(2, 4);
    let dst = flow_of_second(&mut net);
    let link = net.nodes[R1].relay.next_hop(dst).expect("a route");
    let take = |net: &mut Net, room| {
        let cells = arriving(net, dst);
        second(net, cells, room)
    };
    assert_eq!(take(&mut net, 1), (vec![Sealed, Sealed], 1));
    let gate = |net: &mut Net, open, marking| {
        let (shard, forwarder) = &mut net.nodes[R1].forwarders[0];
        forwarder.handle_order(shard, WorkerOrder::Gate { link, open, marking });
        forwarder.is_marking(dst)
    };
    for marking in [false, true] {
        assert_eq!(take(&mut net, 9), (vec![Released, Released, Released], 0));
        assert_eq!(gate(&mut net, false, marking), marking);
    }
    assert!(!gate(&mut net, true, false));
    assert_eq!(take(&mut net, 9), (Vec::new(), 3));
    gate(&mut net, false, false);
    gate(&mut net, true, false);
    let other = LinkId::from_bits(link.bits() + 1);
    let (shard, forwarder) = &mut net.nodes[R1].forwarders[0];
    forwarder.handle_order(shard, WorkerOrder::Gate { link: other, open: false, marking: true });
    assert_eq!(take(&mut net, 9), (Vec::new(), 3), "another link's gate changes nothing");
}

#[test]
fn a_worker_goes_by_its_view_until_it_gets_another() {
    let mut net = net(2, 4);
    let dst = flow_of_second(&mut net);
    let now = net.now;
    net.nodes[R1].relay.set_lists_only(now, true);
    let cells = arriving(&mut net, dst);
    assert_eq!(second(&mut net, cells, 9), (Vec::new(), 3), "the worker has the old view");
    let due = net.nodes[R1].relay.poll_timeout().expect("a worker is to hear of it");
    assert_eq!(due, (shoal_wire::Time::ZERO, "order for a worker"));
    while let Some((_, order)) = net.nodes[R1].relay.poll_order() {
        let (shard, forwarder) = &mut net.nodes[R1].forwarders[0];
        forwarder.handle_order(shard, order);
    }
    let cells = arriving(&mut net, dst);
    assert_eq!(second(&mut net, cells, 9), (Vec::new(), 0));
    let (_, forwarder) = &mut net.nodes[R1].forwarders[0];
    assert_eq!(forwarder.take_counters().dropped(DropReason::StaleList), 3);
}

/// Cells that the first worker can't send wait in the relay. Nothing overtakes them, neither its
/// own cells nor forwarded ones.
#[test]
fn where_the_first_worker_was_refused_all_waits_until_the_kernel_has_room() {
    let mut net = net(1, 1);
    let dst = HOSTS[2].1;
    let offsets = [0, FULL as u32, 2 * FULL as u32];
    let mut left = Vec::new();
    for (room, waiting) in [(9, 0), (1, 2), (9, 5), (9, 8)] {
        let mut sink = Kernel { room, took: Vec::new() };
        let mut cells = arriving(&mut net, dst);
        let len = cells.len() as u32;
        let incoming =
            ReceivedRun { from: socket(0).into(), offset: 0, len, stride: 1_440, congested: false };
        let mut turn = CallContext { now: net.now, sink: &mut sink, hand: &mut () };
        let relay = &mut net.nodes[R1].relay;
        if waiting == 8 {
            let mut own = frames(dst, Address::new(1, 0), 3, 1);
            relay.send_cells(&mut turn, LinkKind::Cell, &mut own, &offsets, FULL);
        } else {
            let (run, from) = ([incoming], ArrivalSource::Socket);
            relay.handle_batch(&mut turn, &mut cells, &run, from, &mut |_, _, _| 0);
        }
        left.push(sink.took.len());
        assert_eq!(relay.links().map(|link| link.waiting).sum::<usize>(), waiting);
    }
    assert_eq!(left, [3, 1, 0, 0]);
    let mut sink = Kernel { room: usize::MAX, took: Vec::new() };
    net.nodes[R1].relay.handle_writable(net.now, &mut sink);
    assert_eq!(sink.took.len(), 8);
    let mut turn = CallContext { now: net.now, sink: &mut sink, hand: &mut () };
    let mut own = frames(dst, Address::new(1, 0), 3, 1);
    net.nodes[R1].relay.send_cells(&mut turn, LinkKind::Cell, &mut own, &offsets, FULL);
    assert_eq!(sink.took.len(), 11, "the gate is open again");
}
