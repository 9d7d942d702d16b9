//! Two edges under a virtual clock, joined by a path that is lossless or alters frames.

use std::collections::VecDeque;

use core::time::Duration;
use proptest::prelude::*;
use shoal_crypto::{Identity, NetworkSecret};
use shoal_edge::{
    Edge, EdgeConfig, EdgeEvent, EdgeOutput, HostConfig, HostId, InboundCells, PacketFlow,
};
use shoal_transfer::{ChunkSet, FileTransferEvent as TransferEvent, OfferInfo, SegmentLen};
use shoal_wire::{Address, CircuitId, DropReason, LinkKind, RoutedHeader, Time, link};

mod uplinks;

const A: Address = Address::new(1, 1);
const B: Address = Address::new(2, 1);
/// Addresses of the two hosts at other routers.
const A2: Address = Address::new(3, 1);
const B2: Address = Address::new(4, 1);

/// The path between the hosts: cells in flight, as (destination, frame).
#[derive(Default)]
struct CellsInFlight {
    cells: VecDeque<(Address, Vec<u8>)>,
    closed: bool,
    /// Addresses from which the two hosts send, if they have two.
    homes: Option<[Address; 2]>,
}

impl EdgeOutput for CellsInFlight {
    fn cells(&mut self, _: Time, buf: &mut [u8], offsets: &[u32], len: usize) {
        for &at in offsets {
            let mut frame = buf[at as usize..at as usize + len].to_vec();
            // The relay overwrites old bytes of the buffer when the cell departs.
            frame[link::KIND_AT] = LinkKind::Cell as u8;
            let header = RoutedHeader::parse(&frame[link::ROUTED_AT..]).expect("a sound header");
            self.cells.push_back((header.dst(), frame));
        }
    }

    fn source(&self, dst: Address) -> Option<Address> {
        self.homes.map(|[a, b]| if [B, B2].contains(&dst) { a } else { b })
    }

    fn room(&self, _: Address) -> usize {
        if self.closed { 0 } else { 512 }
    }

    fn is_congested(&self, _: Address) -> bool {
        false
    }

    fn may_go_direct(&self, _: Address) -> bool {
        false
    }

    fn direct(&mut self, _: Time, _: &mut [u8], _: &[u32], _: usize) {
        unreachable!("there is no direct link")
    }

    fn unit(&mut self, _: Time, _: CircuitId, _: &mut [u8], _: &[u32]) {
        unreachable!("there is no circuit")
    }

    fn hidden_handshake(&mut self, _: Time, _: CircuitId, _: &[u8]) {
        unreachable!("there is no circuit")
    }

    fn circuit_room(&self, _: CircuitId) -> usize {
        0
    }

    fn circuit_is_congested(&self, _: CircuitId) -> bool {
        false
    }
}

/// A host, with the file that it sends or receives.
struct Host {
    edge: Edge,
    peer: HostId,
    source: Vec<u8>,
    sink: Vec<u8>,
    echoes: Vec<(u32, u32)>,
    /// Plaintexts of the IP packets that arrived.
    packets: Vec<Vec<u8>>,
    finished: bool,
    completed: bool,
    drops: Vec<(DropReason, u64)>,
}

impl Host {
    fn new(me: Address, other: Address, now: Time) -> Host {
        let identity = |at: Address| Identity::from_seed([at.router as u8; 32]);
        let config = EdgeConfig {
            address: me,
            session: shoal_session::SessionConfig::new(shoal_session::SessionRole::Edge),
            transfer: shoal_transfer::TransferConfig::default(),
            echo_max: 16,
            direct: None,
            ip: true,
            events_max: 64,
        };
        let seed = [me.router as u8 + 9; 32];
        let secret = NetworkSecret([1; 32]);
        let mut edge = Edge::new(config, identity(me), secret, seed, now, 1_800_000_000_000);
        let host = HostConfig { key: identity(other).public(), address: other };
        let peer = edge.add_host(&host).expect("room for one");
        Host {
            edge,
            peer,
            source: Vec::new(),
            sink: Vec::new(),
            echoes: Vec::new(),
            packets: Vec::new(),
            finished: false,
            completed: false,
            drops: Vec::new(),
        }
    }

    fn work(&mut self, now: Time, path: &mut CellsInFlight) {
        while let Some(job) = self.edge.poll_job() {
            self.edge.handle_done(now, job.run());
        }
        self.edge.handle_timeout(now);
        self.edge.drive(now, path);
        while let Some(event) = self.edge.poll_event() {
            match event {
                EdgeEvent::Transfer(event) => self.serve(now, event),
                EdgeEvent::Echo { id, seq, .. } => self.echoes.push((id, seq)),
                EdgeEvent::Established(_)
                | EdgeEvent::Unreachable(_)
                | EdgeEvent::Direct(_)
                | EdgeEvent::NeedCircuit(_) => {}
            }
        }
        self.drops.extend(self.edge.take_drops());
    }

    /// Simulates disks that answer at once.
    fn serve(&mut self, now: Time, event: TransferEvent) {
        let transfers = self.edge.transfers();
        match event {
            TransferEvent::Offered { id, info, .. } => {
                self.sink = vec![0; info.size as usize];
                transfers.accept(now, id, &ChunkSet::default());
            }
            TransferEvent::Read { id, index, offset, len, mut buffer } => {
                let from = offset as usize;
                buffer[..len].copy_from_slice(&self.source[from..from + len]);
                transfers.chunk_read(now, id, index, buffer);
            }
            TransferEvent::Write { id, index, offset, len, data } => {
                let to = offset as usize;
                self.sink[to..to + len].copy_from_slice(&data[..len]);
                transfers.chunk_written(now, id, index, data);
            }
            TransferEvent::HashWanted { id } if self.source.is_empty() => {
                transfers.sink_hash(now, id, shoal_crypto::hash(&self.sink));
            }
            TransferEvent::HashWanted { id } => {
                transfers.source_hash(now, id, shoal_crypto::hash(&self.source));
            }
            TransferEvent::Complete { id, .. } => {
                self.completed = true;
                transfers.confirm(now, id);
            }
            TransferEvent::Finished { .. } => self.finished = true,
            TransferEvent::Accepted { .. } | TransferEvent::Failed { .. } => {}
        }
    }
}

struct Pair {
    now: Time,
    a: Host,
    b: Host,
    path: CellsInFlight,
}

impl Pair {
    fn new() -> Pair {
        let now = Time::from_millis(1_000);
        Pair {
            now,
            a: Host::new(A, B, now),
            b: Host::new(B, A, now),
            path: CellsInFlight::default(),
        }
    }

    fn run(&mut self, span: Duration) {
        self.run_with(span, |_, _| true);
    }

    /// Advances time. `passes` gets every frame and returns whether it arrives.
    fn run_with(&mut self, span: Duration, mut passes: impl FnMut(Address, &mut [u8]) -> bool) {
        let end = self.now + span;
        while self.now < end {
            self.a.work(self.now, &mut self.path);
            self.b.work(self.now, &mut self.path);
            for _ in 0..self.path.cells.len() {
                let Some((to, mut frame)) = self.path.cells.pop_front() else { break };
                if passes(to, &mut frame) {
                    let host = if [A, A2].contains(&to) { &mut self.a } else { &mut self.b };
                    let len = frame.len();
                    host.edge.handle_cells(
                        self.now,
                        InboundCells::new(&mut frame, &[0], len),
                        &mut (),
                    );
                    for arrival in host.edge.arrivals() {
                        assert_eq!(arrival.host, host.peer);
                        let (at, len) = (arrival.at as usize, arrival.len as usize);
                        host.packets.push(frame[at..at + len].to_vec());
                    }
                }
            }
            self.now = self.now + Duration::from_micros(500);
        }
    }

    fn offer(&mut self, len: usize) {
        self.a.source = (0..len).map(|i| (i * 31 % 251) as u8).collect();
        let offer = OfferInfo {
            name: "some file".into(),
            size: len as u64,
            modified_ns: 1,
            file_id: [3; 16],
            executable: false,
            segment: SegmentLen::FULL,
        };
        self.a.edge.offer(self.now, self.a.peer, offer).expect("room for one");
    }
}

#[test]
fn the_first_offer_waits_for_the_session_and_not_for_a_timer() {
    let mut pair = Pair::new();
    pair.offer(300_000);
    pair.run(Duration::from_millis(60));
    assert!(pair.a.finished && pair.b.completed, "transfer not complete after 60 ms");
    assert_eq!(pair.b.sink, pair.a.source);
    assert!(pair.a.drops.is_empty(), "{:?}", pair.a.drops);
}

#[test]
fn a_file_survives_loss() {
    let mut pair = Pair::new();
    let mut rng = shoal_crypto::Rng::new([5; 32]);
    pair.offer(2_000_000);
    pair.run_with(Duration::from_secs(8), |_, _| rng.below(5) != 0);
    assert!(pair.a.finished && pair.b.completed);
    assert_eq!(pair.b.sink, pair.a.source);
}

#[test]
fn a_file_goes_on_when_a_host_forgets_all_keys() {
    let mut pair = Pair::new();
    pair.offer(20_000_000);
    pair.run(Duration::from_millis(10));
    assert!(!pair.b.completed && pair.a.edge.sessions().session_count() > 0);
    pair.a.edge.rekey_all(pair.now, &[9; 32]);
    assert_eq!(pair.a.edge.sessions().session_count(), 0);
    pair.run(Duration::from_secs(8));
    assert!(pair.a.finished && pair.b.completed);
    assert_eq!(pair.b.sink, pair.a.source);
}

#[test]
fn echoes_come_back() {
    let mut pair = Pair::new();
    let peer = pair.a.peer;
    for seq in 0..3 {
        pair.a.edge.ping(peer, 7, seq).expect("room");
    }
    pair.run(Duration::from_millis(50));
    assert_eq!(pair.a.echoes, [(7, 0), (7, 1), (7, 2)]);
}

#[test]
fn nothing_is_sent_into_a_full_egress() {
    let mut pair = Pair::new();
    pair.run(Duration::from_millis(10));
    pair.path.closed = true;
    pair.offer(300_000);
    let mut full = 0;
    pair.run_with(Duration::from_millis(300), |_, frame| {
        let header = RoutedHeader::parse(&frame[link::ROUTED_AT..]).expect("sound");
        full += usize::from(header.class() == shoal_wire::TrafficClass::Bulk);
        true
    });
    assert_eq!(full, 0);
    pair.path.closed = false;
    pair.run(Duration::from_millis(500));
    assert!(pair.b.completed);
}

#[test]
fn changed_addresses_and_payloads_and_replays_are_dropped() {
    let mut pair = Pair::new();
    pair.a.edge.ping(pair.a.peer, 1, 1).expect("room");
    pair.run(Duration::from_millis(50));
    pair.a.edge.ping(pair.a.peer, 1, 2).expect("room");
    pair.a.work(pair.now, &mut pair.path);
    let (_, frame) = pair.path.cells.pop_front().expect("the request");
    let mut refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut changed = frame.clone();
        change(&mut changed);
        let len = changed.len();
        pair.b.edge.handle_cells(pair.now, InboundCells::new(&mut changed, &[0], len), &mut ());
        pair.b.edge.take_drops().collect::<Vec<_>>()
    };
    let bad_tag = vec![(DropReason::BadTag, 1)];
    assert_eq!(refused(&|f| f[link::ROUTED_AT] ^= 1), bad_tag, "destination");
    assert_eq!(refused(&|f| f[link::ROUTED_AT + 9] ^= 1), bad_tag, "source");
    assert_eq!(refused(&|f| f[link::CELL_AT + 20] ^= 1), bad_tag, "payload");
    assert_eq!(
        refused(&|f| f[link::ROUTED_AT + RoutedHeader::MARK_AT] = 1),
        [],
        "routers may change the mark"
    );
    assert_eq!(refused(&|_| {}), [(DropReason::Replayed, 1)]);
}

/// The plaintext of a cell with one IP packet: kind, flags, the beginning of the IP header, then
/// bytes `fill`. The packet has `len` bytes.
fn packet(len: usize, fill: u8) -> Vec<u8> {
    let [high, low] = (len as u16).to_be_bytes();
    [vec![4, 1, 0x45, 0, high, low], vec![fill; len - 4]].concat()
}

fn send_packet(pair: &mut Pair, plain: &[u8]) {
    send_of(pair, 0, plain);
}

/// Sends a packet of flow `number`.
fn send_of(pair: &mut Pair, number: u32, plain: &[u8]) {
    let (now, flow) = (pair.now, PacketFlow { host: pair.a.peer, number, stream: 0 });
    pair.a.edge.send_packet(now, flow, plain.len(), &mut pair.path, |room| {
        room[..plain.len()].copy_from_slice(plain);
        room[plain.len()..].fill(0);
    });
}

#[test]
fn the_first_packets_wait_for_the_session_and_order_is_kept() {
    let mut pair = Pair::new();
    // All size classes in turn, in more than one run.
    let sent: Vec<_> =
        (0..60u8).map(|i| packet([80, 1_374, 300, 1_374][i as usize % 4], i)).collect();
    for plain in &sent {
        send_packet(&mut pair, plain);
    }
    pair.run(Duration::from_millis(50));
    for plain in &sent {
        send_packet(&mut pair, plain);
    }
    assert_eq!(
        pair.a.edge.poll_timeout().map(|t| t.0),
        Some(Time::ZERO),
        "packets are under construction"
    );
    pair.run(Duration::from_millis(5));
    let again = packet(1_374, 99);
    for _ in 0..100 {
        send_packet(&mut pair, &again);
    }
    pair.run(Duration::from_millis(5));
    let got: Vec<_> = pair.b.packets.iter().map(|p| p.as_slice()).collect();
    assert_eq!(got.len(), 220);
    let expected = sent.iter().chain(&sent).chain(std::iter::repeat_n(&again, 100));
    for (got, sent) in got.iter().zip(expected) {
        assert_eq!(got[..sent.len()], sent[..]);
        assert!(got[sent.len()..].iter().all(|b| *b == 0), "padding is zero");
    }
    assert!(pair.a.drops.is_empty() && pair.b.drops.is_empty());
}

#[test]
fn small_packets_of_a_flow_share_cells() {
    let mut pair = Pair::new();
    send_packet(&mut pair, &packet(100, 0));
    pair.run(Duration::from_millis(50));
    pair.b.packets.clear();
    // A cell of 1,440 bytes has room for 17 such packets. Two flows never share a cell.
    let sent: Vec<_> = (0..20).map(|i| packet(78, i)).chain([packet(400, 20)]).collect();
    for number in [1, 2] {
        for plain in &sent {
            send_of(&mut pair, number, plain);
        }
    }
    let mut cells = Vec::new();
    pair.run_with(Duration::from_millis(5), |to, frame| {
        cells.extend((to == B).then_some(frame.len()));
        true
    });
    assert_eq!(cells, [1_440, 1_440, 576, 1_440, 1_440, 576], "17, 3 and 1 packets of each flow");
    let got: Vec<_> = pair.b.packets.iter().map(|p| p.as_slice()).collect();
    assert_eq!(got.len(), 42);
    for (got, sent) in got.iter().zip(sent.iter().chain(&sent)) {
        assert_eq!(got[..sent.len()], sent[..]);
        assert!(got[sent.len()..].iter().all(|b| *b == 0), "padding is zero");
    }
    // A single packet gets a short cell, and two packets share a longer one.
    for (count, len) in [(1, 192), (2, 576)] {
        (0..count).for_each(|_| send_packet(&mut pair, &sent[0]));
        pair.run_with(Duration::from_millis(5), |_, frame| {
            assert_eq!(frame.len(), len);
            true
        });
    }
    assert_eq!(pair.b.packets.len(), 45);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24.min(ProptestConfig::default().cases)))]

    #[test]
    fn packets_of_any_length_arrive_whole_and_in_their_order(
        sends in prop::collection::vec(
            (0u32..3, prop_oneof![4 => 20usize..130, 1 => 20usize..=1_374]),
            1..400,
        ),
    ) {
        let mut pair = Pair::new();
        send_packet(&mut pair, &packet(100, 0));
        pair.run(Duration::from_millis(50));
        pair.b.packets.clear();
        let sends = sends.into_iter().enumerate();
        let sent: Vec<_> = sends.map(|(i, (flow, len))| (flow, packet(len, i as u8))).collect();
        for (flow, plain) in &sent {
            send_of(&mut pair, *flow, plain);
        }
        pair.run(Duration::from_millis(5));
        prop_assert_eq!(pair.b.packets.len(), sent.len());
        for (got, (_, sent)) in pair.b.packets.iter().zip(&sent) {
            prop_assert_eq!(&got[..sent.len()], &sent[..]);
            prop_assert!(got[sent.len()..].iter().all(|b| *b == 0), "padding is zero");
        }
        prop_assert!(pair.a.drops.is_empty() && pair.b.drops.is_empty());
    }
}

#[test]
fn the_first_of_many_small_packets_leaves_before_the_last_is_read() {
    let mut pair = Pair::new();
    send_packet(&mut pair, &packet(100, 0));
    pair.run(Duration::from_millis(50));
    pair.b.packets.clear();
    for i in 0..=176 {
        assert!(pair.path.cells.is_empty(), "{i}");
        send_packet(&mut pair, &packet(20, i));
    }
    assert_eq!(pair.path.cells.len(), 3, "62, 62 and 52 packets");
    pair.run(Duration::from_millis(5));
    let got: Vec<u8> = pair.b.packets.iter().map(|packet| packet[21]).collect();
    assert!(got.iter().copied().eq(0..=176));
    assert!(pair.a.drops.is_empty() && pair.b.drops.is_empty());
}

/// A member that fills each cell with the shortest packets takes a worker's time from others. In a
/// batch with too many, each cell still delivers its first packet.
#[test]
fn a_batch_with_too_many_shared_packets_delivers_one_of_each_cell() {
    let mut pair = Pair::new();
    send_packet(&mut pair, &packet(100, 0));
    pair.run(Duration::from_millis(50));
    let sent = 10_000;
    (0..sent).for_each(|_| send_packet(&mut pair, &packet(20, 0)));
    let last = packet(1_374, 7);
    send_packet(&mut pair, &last);
    pair.a.work(pair.now, &mut pair.path);
    let cells: Vec<Vec<u8>> = pair.path.cells.drain(..).map(|(_, frame)| frame).collect();
    assert!(cells.iter().all(|frame| frame.len() == 1_440), "one batch has one length");
    // A batch comes in several calls at one time.
    let (mut arrived, count) = (Vec::new(), cells.len());
    for part in cells.chunks(count / 2) {
        let offsets: Vec<u32> = (0..part.len() as u32).map(|i| i * 1_440).collect();
        let mut buf = part.concat();
        pair.b.edge.handle_cells(pair.now, InboundCells::new(&mut buf, &offsets, 1_440), &mut ());
        let packets = pair.b.edge.arrivals().iter();
        arrived.extend(packets.map(|a| buf[a.at as usize..][..a.len as usize].to_vec()));
    }
    assert_eq!(arrived.len(), count + 8_192);
    assert_eq!(arrived.last(), Some(&last));
    let refused = (sent + 1 - arrived.len()) as u64;
    let drops = pair.b.edge.take_drops().fold(0, |sum, (reason, n)| {
        assert_eq!(reason, DropReason::ReceiveOverflow);
        sum + n
    });
    assert_eq!(drops, refused);
}

/// A member may write any length into the IP header. The rest of the cell is then not a packet.
#[test]
fn what_is_left_of_a_cell_behind_a_packet_is_no_packet_if_it_is_too_short() {
    for (claimed, found) in [(1_372, 1), (1_373, 1), (1_353, 1), (1_352, 2), (1, 1), (0, 1)] {
        let mut pair = Pair::new();
        let [high, low] = u16::to_be_bytes(claimed);
        let mut cell = vec![4; 1_376];
        cell[..6].copy_from_slice(&[4, 1, 0x45, 0, high, low]);
        send_packet(&mut pair, &cell);
        pair.run(Duration::from_millis(50));
        let lens: Vec<_> = pair.b.packets.iter().map(Vec::len).collect();
        assert_eq!(lens.len(), found, "{claimed}: {lens:?}");
        assert!(lens.iter().all(|len| *len >= 22) && lens.iter().sum::<usize>() == 1_376);
    }
}

#[test]
fn only_so_many_packets_wait_and_a_longer_one_never_leaves() {
    let mut pair = Pair::new();
    for i in 0..70 {
        send_packet(&mut pair, &packet(100, i));
    }
    let (now, flow) = (pair.now, PacketFlow { host: pair.a.peer, number: 0, stream: 0 });
    pair.a.edge.send_packet(now, flow, 1_377, &mut pair.path, |_| panic!("too long a packet"));
    pair.run(Duration::from_millis(50));
    assert_eq!(pair.b.packets.len(), 64);
    let mut drops = pair.a.drops.clone();
    drops.sort();
    assert_eq!(drops, [(DropReason::NoSession, 6), (DropReason::IpTooBig, 1)]);
}
