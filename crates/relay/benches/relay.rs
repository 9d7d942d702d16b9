//! Relay work in memory: unmask, open, replay check, look up, seal, mask, for full frames on one
//! core. The figure to reach is 14 Gbit/s.

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod support;

use core::time::Duration;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use shoal_relay::{Arrival, Incoming, Path, SendOutcome, Sink, Turn};
use shoal_wire::{Address, LinkKind};
use support::{FULL, Net, frames, socket};

const BATCH: usize = 44;

/// A socket that takes everything and keeps nothing.
struct Nowhere;

impl Sink for Nowhere {
    fn send(&mut self, _: Path, buf: &[u8], offsets: &[u32], _: usize) -> SendOutcome {
        std::hint::black_box(buf);
        SendOutcome { sent: offsets.len(), stop: None }
    }
}

fn relay_work(criterion: &mut Criterion) {
    let addresses =
        [Address::new(1, 1), Address::new(1, 0), Address::new(2, 0), Address::new(2, 1)];
    let mut net = Net::new(&addresses, &[(0, 1), (1, 2), (3, 2)]);
    net.run(Duration::from_secs(3));
    let (dst, src) = (addresses[3], addresses[0]);
    let offsets: Vec<u32> = (0..BATCH).map(|i| (i * FULL) as u32).collect();
    let len = (BATCH * FULL) as u32;
    let incoming = [Incoming {
        from: socket(0).into(),
        offset: 0,
        len,
        stride: FULL as u32,
        congested: false,
    }];
    let mut group = criterion.benchmark_group("relay");
    group.throughput(Throughput::Bytes(u64::from(len)));
    let now = net.now;
    let (hosts, routers) = net.nodes.split_at_mut(1);
    let (host, router) = (&mut hosts[0].relay, &mut routers[0].relay);
    group.bench_function("transit, 44 frames of 1440 B", |bencher| {
        bencher.iter_batched_ref(
            || {
                let mut buf = frames(dst, src, BATCH, 7);
                let mut taken = Taken(Vec::new());
                let mut turn = Turn { now, sink: &mut taken, hand: &mut () };
                host.send_cells(&mut turn, LinkKind::Cell, &mut buf, &offsets, FULL);
                taken.0
            },
            |buf| {
                let mut turn = Turn { now, sink: &mut Nowhere, hand: &mut () };
                let from = Arrival::Socket;
                router.handle_batch(&mut turn, buf, &incoming, from, &mut |_, _, _| 0);
            },
            BatchSize::SmallInput,
        );
    });
    let transit = routers[0].relay.counters().traffic.cells_transit;
    assert!(transit > 1_000, "the router passed on {transit} cells only");
    group.finish();
}

/// A socket that keeps a run as it left.
struct Taken(Vec<u8>);

impl Sink for Taken {
    fn send(&mut self, _: Path, buf: &[u8], offsets: &[u32], _: usize) -> SendOutcome {
        self.0.extend_from_slice(buf);
        SendOutcome { sent: offsets.len(), stop: None }
    }
}

criterion_group!(benches, relay_work);
criterion_main!(benches);
