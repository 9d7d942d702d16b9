//! Cost of a segment at each end, with the copy of its bytes.

#![allow(missing_docs, clippy::disallowed_methods, reason = "a benchmark takes the time")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use shoal_transfer::{
    ChunkSet, FileTransferEvent, OfferInfo, PeerKey, SegmentLen, TransferConfig, Transfers,
};
use shoal_wire::Time;

/// Two ends of an endless file, without a network between them.
struct BenchEnds {
    now: u64,
    sender: Transfers,
    receiver: Transfers,
    cells: Vec<u8>,
}

const CELL: usize = 1_376;
const BURST: usize = 44;

impl BenchEnds {
    fn new() -> BenchEnds {
        let start = Time(1_000_000_000);
        let mut sender = Transfers::new(TransferConfig::default(), [1; 32], start);
        let receiver = Transfers::new(TransferConfig::default(), [2; 32], start);
        let info = OfferInfo {
            name: "endless".into(),
            size: OfferInfo::SIZE_MAX,
            modified_ns: 0,
            file_id: [0; 16],
            executable: false,
            segment: SegmentLen::FULL,
        };
        sender.offer(start, PeerKey(1), info).expect("an empty table has room");
        BenchEnds { now: start.0, sender, receiver, cells: vec![0; CELL * BURST] }
    }

    /// Handles everything except segments: messages, reads, writes.
    fn turn(&mut self) {
        let now = Time(self.now);
        let mut cell = [0; CELL];
        while let Some((_, len)) = self.sender.poll_message(now, &mut cell) {
            let _ = self.receiver.handle_message(now, PeerKey(0), &cell[..len], false);
        }
        while let Some((_, len)) = self.receiver.poll_message(now, &mut cell) {
            let _ = self.sender.handle_message(now, PeerKey(1), &cell[..len], false);
        }
        while let Some(event) = self.sender.poll_event() {
            if let FileTransferEvent::Read { id, index, buffer, .. } = event {
                self.sender.chunk_read(now, id, index, buffer);
            }
        }
        while let Some(event) = self.receiver.poll_event() {
            match event {
                FileTransferEvent::Offered { id, info, .. } => {
                    self.receiver.accept(now, id, &ChunkSet::new(info.chunks()));
                }
                FileTransferEvent::Write { id, index, data, .. } => {
                    self.receiver.chunk_written(now, id, index, data);
                }
                _ => {}
            }
        }
    }

    /// Writes the next burst into `cells`; returns the number of its segments.
    fn send(&mut self) -> usize {
        loop {
            self.now += 100_000;
            self.turn();
            let Some(burst) = self.sender.poll_burst(Time(self.now), BURST, &mut |_| false) else {
                continue;
            };
            for (i, cell) in self.cells.chunks_exact_mut(CELL).take(burst.count).enumerate() {
                self.sender.write_segment(&burst, i, cell);
            }
            return burst.count;
        }
    }

    fn receive(&mut self, count: usize) {
        for cell in self.cells.chunks_exact(CELL).take(count) {
            let _ = self.receiver.handle_segment(Time(self.now), PeerKey(0), cell, false);
        }
    }
}

fn segments(c: &mut Criterion) {
    let mut group = c.benchmark_group("segment");
    group.throughput(Throughput::Elements(1)).measurement_time(Duration::from_secs(2));
    group.bench_function("both ends, messages and events", |b| {
        let mut ends = BenchEnds::new();
        b.iter_custom(|n| {
            let start = std::time::Instant::now();
            let mut left = n as usize;
            while left > 0 {
                let count = ends.send();
                ends.receive(count);
                left -= count.min(left);
            }
            start.elapsed()
        });
    });
    group.bench_function("two copies of its bytes", |b| {
        let (from, mut to) = (vec![1u8; 1_366 * 192], vec![0u8; 1_366 * 192]);
        let mut at = 0;
        b.iter(|| {
            at = (at + 1_366) % (1_366 * 192);
            to[at..at + 1_366].copy_from_slice(black_box(&from[at..at + 1_366]));
            to[at..at + 1_366].copy_from_slice(black_box(&from[at..at + 1_366]));
            black_box(&to);
        });
    });
    group.finish();
}

criterion_group!(benches, segments);
criterion_main!(benches);
