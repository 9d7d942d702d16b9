//! Relay work in memory on one core, for full frames: unmask, open, replay check, look-up, seal,
//! mask. The goal is 14 Gbit/s. Further benchmarks measure leg cells that leave at once, and mixed
//! ones. Mixing must keep 0.75 of the speed.

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod support;

use core::cell::Cell;
use core::time::Duration;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use shoal_mix::DepartureTimes;
use shoal_relay::{
    ArrivalSource, CallContext, FrameSink, LocalCells, MixedCell, ReceivedRun, SendOutcome,
    SendPath,
};
use shoal_wire::{Address, DropReason, LinkKind, MixStrategy, MixTime, Time};
use support::{FULL, Net, address, frames, socket};

const BATCH: usize = 44;

/// A socket that accepts all frames and discards them.
struct DiscardingSink;

impl FrameSink for DiscardingSink {
    fn send(&mut self, _: SendPath, buf: &[u8], offsets: &[u32], _: usize) -> SendOutcome {
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
    let incoming = [ReceivedRun {
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
                let mut taken = RecordingSink(Vec::new());
                let mut turn = CallContext { now, sink: &mut taken, hand: &mut () };
                host.send_cells(&mut turn, LinkKind::Cell, &mut buf, &offsets, FULL);
                taken.0
            },
            |buf| {
                let mut turn = CallContext { now, sink: &mut DiscardingSink, hand: &mut () };
                let from = ArrivalSource::Socket;
                router.handle_batch(&mut turn, buf, &incoming, from, &mut |_, _, _| 0);
            },
            BatchSize::SmallInput,
        );
    });
    let transit = routers[0].relay.counters().traffic.cells_transit;
    // Zero if a filter on the command line excludes this benchmark.
    assert!(transit == 0 || transit > 1_000, "the router passed on {transit} cells only");
    group.finish();
}

/// Time between runs at 3 Gbit/s of full cells.
const GAP: Duration = Duration::from_micros(175);
/// Mean delay of the stop-and-go mix. Its cap is five times as long, and 1,250 cells wait at this
/// rate.
const MEAN: Duration = Duration::from_millis(5);

/// Relay work for runs of leg cells, without the work of their circuit (leg header and tag: `cargo
/// bench -p shoal-onion`). That work is the same with and without a mix. A mixed cell enters the
/// pool when its run arrives, and is sealed when it leaves.
fn leg_work(criterion: &mut Criterion) {
    let at = [Address::new(1, 1), Address::new(1, 0), Address::new(2, 0)];
    let offsets: Vec<u32> = (0..BATCH).map(|i| (i * FULL) as u32).collect();
    let (len, stride) = ((BATCH * FULL) as u32, FULL as u32);
    let from = socket(0).into();
    let incoming = [ReceivedRun { from, offset: 0, len, stride, congested: false }];
    let time = |span| MixTime::from_duration(span).expect("below a second");
    let law = MixStrategy::StopAndGo { mean: time(MEAN), most: time(5 * MEAN) };
    let mut group = criterion.benchmark_group("relay/legs");
    group.throughput(Throughput::Elements(BATCH as u64));
    // Short, since virtual time passes too and sessions would expire.
    group.sample_size(30).measurement_time(Duration::from_secs(1));
    group.warm_up_time(Duration::from_millis(300));
    for (name, mixed) in [("go on at once", false), ("mixed, 5 ms at 3 Gbit/s", true)] {
        let mut net = Net::new(&at, &[(0, 1), (1, 2)]);
        net.run(Duration::from_secs(3));
        let clock = Cell::new(net.now);
        let (hosts, routers) = net.nodes.split_at_mut(1);
        let (host, router) = (&mut hosts[0].relay, &mut routers[0].relay);
        let mut delays = DepartureTimes::new(law, &[1; 32]);
        let mut number = 0;
        group.bench_function(name, |bencher| {
            bencher.iter_batched_ref(
                || {
                    let mut buf = frames(at[1], at[0], BATCH, 7);
                    let mut taken = RecordingSink(Vec::new());
                    let mut turn =
                        CallContext { now: clock.get(), sink: &mut taken, hand: &mut () };
                    host.send_cells(&mut turn, LinkKind::Leg, &mut buf, &offsets, FULL);
                    taken.0
                },
                |buf| {
                    let now = clock.get() + GAP;
                    clock.set(now);
                    let mut local = |buf: &mut [u8], found: LocalCells<'_>, _: &mut ()| {
                        let law = mixed.then_some((now, &mut delays, &mut number));
                        send_on(buf, found, [at[2], at[1]], law)
                    };
                    let mut turn = CallContext { now, sink: &mut DiscardingSink, hand: &mut () };
                    router.handle_batch(
                        &mut turn,
                        buf,
                        &incoming,
                        ArrivalSource::Socket,
                        &mut local,
                    );
                    router.handle_timeout(now, &mut DiscardingSink);
                },
                BatchSize::SmallInput,
            );
        });
        let counters = router.counters();
        let [origin, held] = [counters.traffic.cells_origin, counters.traffic.cells_held];
        assert!(origin == 0 || origin > 1_000, "the router passed on {origin} cells only");
        assert_eq!(held, if mixed { origin } else { 0 });
        assert_eq!(counters.dropped(DropReason::MixFull), 0);
    }
    group.finish();
}

/// Addresses the leg cells of a batch to the next node. With a law, it gives each cell's departure
/// time by number.
fn send_on(
    buf: &mut [u8],
    found: LocalCells<'_>,
    [dst, src]: [Address; 2],
    law: Option<(Time, &mut DepartureTimes, &mut u64)>,
) -> u64 {
    found.legs.iter().for_each(|&at| address(&mut buf[at as usize..], dst, src));
    let Some((now, delays, number)) = law else {
        found.onward.extend_from_slice(found.legs);
        return found.legs.len() as u64;
    };
    delays.foresee(0, 0, *number..*number + found.legs.len() as u64);
    for &at in found.legs {
        let due = delays.due(now, 0, 0, *number);
        found.mixed.push(MixedCell { at, due, from: src });
        *number += 1;
    }
    found.legs.len() as u64
}

/// A socket that stores a run as it was sent.
struct RecordingSink(Vec<u8>);

impl FrameSink for RecordingSink {
    fn send(&mut self, _: SendPath, buf: &[u8], offsets: &[u32], _: usize) -> SendOutcome {
        self.0.extend_from_slice(buf);
        SendOutcome { sent: offsets.len(), stop: None }
    }
}

criterion_group!(benches, relay_work, leg_work);
criterion_main!(benches);
