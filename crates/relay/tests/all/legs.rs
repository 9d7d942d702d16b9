//! Leg cells: forwarded like other cells, and passed separately to a node of their circuit.

use core::time::Duration;

use crate::support::{FULL, Net, address, frames, socket};
use shoal_relay::{
    ArrivalSource, CallContext, FrameAt, FrameSink, Handoff, HandoffKind, LocalCells, ReceivedRun,
    SendOutcome, SendPath, TrafficCounters,
};
use shoal_wire::{Address, DropReason, LinkKind, RoutedHeader, SizeClass, TrafficClass, link};

const H1: usize = 0;
const R1: usize = 1;
const R2: usize = 2;
const H2: usize = 3;
const AT: [Address; 4] =
    [Address::new(1, 1), Address::new(1, 0), Address::new(2, 0), Address::new(2, 1)];

/// Two routers with a host each. Every node has this many workers.
fn net(workers: u8) -> Net {
    let mut net = Net::with(&AT, &[(H1, R1), (R1, R2), (H2, R2)], |config| {
        (config.session.workers, config.session.lanes) = (workers, 8);
    });
    net.run(Duration::from_secs(3));
    net
}

fn dropped(net: &Net, node: usize, reason: DropReason) -> u64 {
    net.nodes[node].relay.counters().dropped(reason)
}

/// Numbers of cells in transit, for the node, and of the node.
fn counted(net: &Net, node: usize) -> [u64; 3] {
    let TrafficCounters { cells_transit, cells_local, cells_origin, .. } =
        net.nodes[node].relay.counters().traffic;
    [cells_transit, cells_local, cells_origin]
}

/// True if exactly `n` leg cells with this content arrived.
fn came(net: &Net, node: usize, from: usize, n: usize, fill: u8) -> bool {
    let seen = &net.nodes[node].legs.seen;
    seen.len() == n && seen.iter().all(|cell| *cell == (AT[from], vec![fill; 1_400]))
}

#[test]
fn a_leg_cell_is_carried_as_a_cell_and_lent_apart_from_cells() {
    for workers in [1, 3] {
        for small in [false, true] {
            let mut net = net(workers);
            let between = net.nodes[R1].relay.next_hop(AT[R2]).expect("r2 is beside r1");
            net.nodes[R1].relay.set_small_path(between, small);
            net.run(Duration::from_millis(2));
            // Workers that serve programs consume hosts' cells, but no leg cells.
            net.keeping = true;
            for round in 0..20 {
                net.send_legs(H1, AT[R2], 3, 7);
                net.send(H1, AT[R2], 1, round);
                net.run(Duration::from_millis(1));
            }
            assert!(came(&net, R2, H1, 60, 7), "{workers} {small}");
            assert_eq!(net.nodes[R2].cells.len(), 20);
            assert_eq!(counted(&net, H1), [0, 0, 80]);
            assert_eq!(counted(&net, R1), [80, 0, 0]);
            assert_eq!(counted(&net, R2), [0, 80, 0]);
            assert_eq!(dropped(&net, R2, DropReason::OtherWorker), 0);
        }
    }
}

#[test]
fn leg_cells_go_on_from_node_to_node_whichever_worker_opens_them() {
    for workers in [1, 3] {
        let mut net = net(workers);
        net.keeping = true;
        net.nodes[R1].legs.onward = Some((AT[R1], AT[R2]));
        net.nodes[R2].legs.onward = Some((AT[R2], AT[H2]));
        for _ in 0..20 {
            net.send_legs(H1, AT[R1], 5, 9);
            net.run(Duration::from_millis(1));
        }
        assert!(came(&net, R1, H1, 100, 9) && came(&net, R2, R1, 100, 9), "{workers}");
        assert!(came(&net, H2, R2, 100, 9), "{workers}");
        assert_eq!(counted(&net, R1), [0, 100, 100]);
        assert_eq!(counted(&net, R2), [0, 100, 100]);
        assert!(net.nodes.iter().all(|node| node.cells.is_empty()));
    }
}

/// Counts and accepts frames handed to other workers.
struct HandoffCounter(usize);

impl Handoff for HandoffCounter {
    fn take(&mut self, what: HandoffKind<'_>, _: FrameAt<'_>) -> bool {
        assert!(matches!(what, HandoffKind::Leaving { .. }));
        self.0 += 1;
        true
    }
}

/// The first worker sends leg cells itself, since no other worker has any.
#[test]
fn own_leg_cells_are_handed_to_no_other_worker() {
    let mut net = net(3);
    for (kind, handed) in [(LinkKind::Cell, true), (LinkKind::Leg, false)] {
        let mut takes = HandoffCounter(0);
        for host in 0..20 {
            let mut buf = frames(Address::new(2, host), AT[H1], 1, 1);
            net.wire.from = Some(socket(H1));
            let mut turn = CallContext { now: net.now, sink: &mut net.wire, hand: &mut takes };
            net.nodes[H1].relay.send_cells(&mut turn, kind, &mut buf, &[0], FULL);
        }
        assert_eq!(takes.0 > 0, handed, "{kind:?}");
    }
}

/// Records sends with the address of their buffer.
#[derive(Default)]
struct SendRecorder(Vec<(usize, Vec<u32>)>);

impl FrameSink for SendRecorder {
    fn send(&mut self, _: SendPath, buf: &[u8], offsets: &[u32], _: usize) -> SendOutcome {
        self.0.push((buf.as_ptr() as usize, offsets.to_vec()));
        SendOutcome { sent: offsets.len(), stop: None }
    }
}

#[test]
fn leg_cells_that_go_on_leave_with_those_in_transit_in_one_send_from_their_buffer() {
    let mut net = net(1);
    for round in 0..10 {
        net.send_legs(H1, AT[R1], 2, round);
        net.send(H1, AT[H2], 1, round);
        net.send_legs(H1, AT[R2], 1, round);
    }
    let mut buf: Vec<u8> = net.wire.sent.drain(..).flat_map(|(_, _, frame)| frame).collect();
    assert_eq!(buf.len(), 40 * FULL);
    let incoming = ReceivedRun {
        from: socket(H1).into(),
        offset: 0,
        len: buf.len() as u32,
        stride: FULL as u32,
        congested: false,
    };
    let mut sends = SendRecorder::default();
    let mut local = |buf: &mut [u8], cells: LocalCells<'_>, _: &mut ()| {
        assert_eq!((cells.legs.len(), cells.offsets.len()), (20, 0));
        for &at in cells.legs {
            address(&mut buf[at as usize..], AT[R2], AT[R1]);
            cells.onward.push(at);
        }
        cells.count()
    };
    let mut turn = CallContext { now: net.now, sink: &mut sends, hand: &mut () };
    let relay = &mut net.nodes[R1].relay;
    relay.handle_batch(&mut turn, &mut buf, &[incoming], ArrivalSource::Socket, &mut local);
    let [(from, offsets)] = &sends.0[..] else { panic!("{} sends", sends.0.len()) };
    assert_eq!((*from, offsets.len()), (buf.as_ptr() as usize, 40));
    let all: std::collections::BTreeSet<_> = offsets.iter().collect();
    assert_eq!(all.len(), 40, "each frame once");
    assert_eq!(counted(&net, R1), [20, 20, 20]);
}

#[test]
fn a_leg_cell_that_goes_nowhere_is_dropped_by_name() {
    let mut net = net(1);
    net.send_legs(H1, Address::new(9, 0), 3, 1);
    net.run(Duration::from_millis(2));
    assert_eq!(dropped(&net, R1, DropReason::NoRoute), 3);
    net.nodes[R1].legs.onward = Some((AT[R1], Address::new(9, 0)));
    net.send_legs(H1, AT[R1], 2, 1);
    net.run(Duration::from_millis(2));
    assert_eq!(dropped(&net, R1, DropReason::NoRoute), 5);
    assert_eq!(counted(&net, R1), [0, 2, 0]);
}

#[test]
fn leg_cells_are_full_and_bulk() {
    let mut net = net(1);
    let send = |net: &mut Net, class: TrafficClass, len: usize, dst: Address| {
        let mut buf = frames(dst, AT[H1], 1, 1);
        buf[link::ROUTED_AT + RoutedHeader::CLASS_AT] = class as u8;
        net.wire.from = Some(socket(H1));
        let mut turn = CallContext { now: net.now, sink: &mut net.wire, hand: &mut () };
        net.nodes[H1].relay.send_cells(&mut turn, LinkKind::Leg, &mut buf, &[0], len);
        net.run(Duration::from_millis(2));
    };
    let medium = SizeClass::Medium.frame_len();
    for dst in [AT[R1], AT[R2]] {
        send(&mut net, TrafficClass::Control, FULL, dst);
        send(&mut net, TrafficClass::Bulk, medium, dst);
    }
    assert_eq!(dropped(&net, R1, DropReason::Malformed), 4);
    assert!(net.nodes.iter().all(|node| node.legs.seen.is_empty()));
    send(&mut net, TrafficClass::Bulk, FULL, AT[R1]);
    assert_eq!(net.nodes[R1].legs.seen.len(), 1);
}
