//! Costs of the edge in memory, on one core: sealing packets into cells, opening cells into
//! packets, and moving a file from host to host.

use core::time::Duration;
use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use shoal_crypto::{Identity, NetworkSecret};
use shoal_edge::{
    Edge, EdgeConfig, EdgeEvent, EdgeOutput, HostConfig, HostId, InboundCells, PacketFlow,
};
use shoal_transfer::{ChunkSet, FileTransferEvent as TransferEvent, OfferInfo, SegmentLen};
use shoal_wire::{Address, CircuitId, EdgeKind, SizeClass, Time};

const FULL: usize = SizeClass::Full.frame_len();
/// Packets that leave together.
const PACKETS: usize = 44;
/// Bytes of a packet's plaintext.
const PACKET: usize = 1_374;
const FILE: usize = 4 << 20;
const HOSTS: [Address; 2] = [Address::new(1, 1), Address::new(2, 1)];

/// An output that collects the frames, back to back.
#[derive(Default)]
struct FrameCollector {
    frames: Vec<u8>,
    /// Length of each frame in bytes.
    lens: Vec<usize>,
}

impl EdgeOutput for FrameCollector {
    fn cells(&mut self, _: Time, buf: &mut [u8], offsets: &[u32], len: usize) {
        for &at in offsets {
            self.frames.extend_from_slice(&buf[at as usize..at as usize + len]);
            self.lens.push(len);
        }
    }

    fn room(&self, _: Address) -> usize {
        512
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

impl FrameCollector {
    /// Delivers all frames to the other host, in runs of equal length.
    fn deliver(&mut self, now: Time, to: &mut Edge) {
        let mut at = 0;
        for equal in self.lens.chunk_by(|a, b| a == b) {
            for run in equal.chunks(PACKETS) {
                let bytes = run.len() * run[0];
                arrive(now, to, &mut self.frames[at..at + bytes], run[0]);
                at += bytes;
            }
        }
        self.frames.clear();
        self.lens.clear();
    }
}

/// An output that discards all frames.
struct DiscardOutput;

impl EdgeOutput for DiscardOutput {
    fn cells(&mut self, _: Time, buf: &mut [u8], _: &[u32], _: usize) {
        black_box(buf);
    }

    fn room(&self, _: Address) -> usize {
        512
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

fn arrive(now: Time, to: &mut Edge, frames: &mut [u8], len: usize) {
    let offsets: Vec<u32> = (0..frames.len() / len).map(|i| (i * len) as u32).collect();
    to.handle_cells(now, InboundCells::new(frames, &offsets, len), &mut ());
}

fn send(now: Time, edge: &mut Edge, host: HostId, out: &mut impl EdgeOutput) {
    let flow = PacketFlow { host, number: 7, stream: 1 };
    for _ in 0..PACKETS {
        edge.send_packet(now, flow, PACKET, out, |plain| {
            plain.fill(3);
            plain[0] = EdgeKind::Ip as u8;
        });
    }
    edge.drive(now, out);
}

fn host(at: usize, now: Time) -> (Edge, HostId) {
    let config = EdgeConfig {
        address: HOSTS[at],
        session: shoal_session::SessionConfig::new(shoal_session::SessionRole::Edge),
        transfer: shoal_transfer::TransferConfig::default(),
        echo_max: 16,
        direct: None,
        ip: true,
        events_max: 64,
    };
    let identity = |at: usize| Identity::from_seed([at as u8 + 1; 32]);
    let (seed, secret) = ([at as u8 + 9; 32], NetworkSecret([1; 32]));
    let mut edge = Edge::new(config, identity(at), secret, seed, now, 1_800_000_000_000);
    let other = HostConfig { key: identity(1 - at).public(), address: HOSTS[1 - at] };
    let id = edge.add_host(&other).expect("room for one");
    (edge, id)
}

/// Handles all that is due at a host, and simulates its disk.
fn work(now: Time, edge: &mut Edge, out: &mut FrameCollector, ended: &mut bool) {
    while let Some(job) = edge.poll_job() {
        edge.handle_done(now, job.run());
    }
    edge.handle_timeout(now);
    edge.drive(now, out);
    while let Some(event) = edge.poll_event() {
        let EdgeEvent::Transfer(event) = event else { continue };
        let transfers = edge.transfers();
        match event {
            TransferEvent::Offered { id, .. } => transfers.accept(now, id, &ChunkSet::default()),
            TransferEvent::Read { id, index, buffer, .. } => {
                transfers.chunk_read(now, id, index, buffer);
            }
            TransferEvent::Write { id, index, data, .. } => {
                transfers.chunk_written(now, id, index, data);
            }
            // A fixed hash at both ends: hashing is not part of this benchmark.
            TransferEvent::HashWanted { id } => {
                transfers.sink_hash(now, id, [0; 32]);
                transfers.source_hash(now, id, [0; 32]);
            }
            TransferEvent::Complete { id, .. } => transfers.confirm(now, id),
            TransferEvent::Finished { .. } => *ended = true,
            TransferEvent::Failed { .. } => panic!("the file did not arrive"),
            TransferEvent::Accepted { .. } => {}
        }
    }
}

struct Pair {
    now: Time,
    edges: [Edge; 2],
    ids: [HostId; 2],
}

impl Pair {
    /// Two hosts with a session.
    fn new() -> Pair {
        let now = Time::from_millis(1_000);
        let [(a, b_id), (b, a_id)] = [host(0, now), host(1, now)];
        let mut pair = Pair { now, edges: [a, b], ids: [b_id, a_id] };
        send(now, &mut pair.edges[0], b_id, &mut DiscardOutput);
        (0..100).for_each(|_| {
            pair.step();
        });
        pair
    }

    /// Handles all that is due at both hosts and advances time by half a millisecond. Returns true
    /// if a transfer ended.
    fn step(&mut self) -> bool {
        let mut ended = false;
        let [a, b] = &mut self.edges;
        let (mut there, mut back) = (FrameCollector::default(), FrameCollector::default());
        work(self.now, a, &mut there, &mut ended);
        there.deliver(self.now, b);
        work(self.now, b, &mut back, &mut ended);
        back.deliver(self.now, a);
        self.now = self.now + Duration::from_micros(500);
        ended
    }

    fn file(&mut self, number: u8) {
        let offer = OfferInfo {
            name: "file".into(),
            size: FILE as u64,
            modified_ns: 1,
            file_id: [number; 16],
            executable: false,
            segment: SegmentLen::FULL,
        };
        let to = self.ids[0];
        self.edges[0].offer(self.now, to, offer).expect("room for one");
        let steps = (0..200_000).take_while(|_| !self.step()).count();
        assert!(steps < 200_000, "the file never ends");
    }
}

fn packets(criterion: &mut Criterion) {
    let mut pair = Pair::new();
    let now = pair.now;
    let [a, b] = &mut pair.edges;
    let to = pair.ids[0];
    let mut group = criterion.benchmark_group("edge");
    group.throughput(Throughput::Bytes((PACKETS * FULL) as u64));
    group.bench_function("44 packets leave", |bencher| {
        bencher.iter(|| send(now, a, to, &mut DiscardOutput));
    });
    group.bench_function("44 packets arrive", |bencher| {
        bencher.iter_batched_ref(
            || {
                let mut taken = FrameCollector::default();
                send(now, a, to, &mut taken);
                taken.frames
            },
            |frames| {
                arrive(now, b, frames, FULL);
                assert_eq!(black_box(b.arrivals()).len(), PACKETS);
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

fn files(criterion: &mut Criterion) {
    let mut pair = Pair::new();
    let mut group = criterion.benchmark_group("edge");
    group.throughput(Throughput::Bytes(FILE as u64)).sample_size(20);
    let mut number = 0u8;
    group.bench_function("a file of 4 MiB", |bencher| {
        bencher.iter(|| {
            number = number.wrapping_add(1);
            pair.file(number);
        });
    });
    group.finish();
}

criterion_group!(benches, packets, files);
criterion_main!(benches);
