//! Relay work in memory: unmask, open, replay check, look up, seal, mask, for full frames on one
//! core. The figure to reach is 14 Gbit/s. The same for leg cells that go on at once, and for those
//! that a mix holds: mixing must leave 0.75 of the speed without.

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod support;

use core::cell::Cell;
use core::time::Duration;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use shoal_mix::Delays;
use shoal_relay::{Arrival, Incoming, LocalCells, MixedCell, Path, SendOutcome, Sink, Turn};
use shoal_wire::{Address, DropReason, LinkKind, MixTime, Strategy, Time};
use support::{FULL, Net, address, frames, socket};

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
    // None if a filter on the command line left it out.
    assert!(transit == 0 || transit > 1_000, "the router passed on {transit} cells only");
    group.finish();
}

/// How far apart runs come at 3 Gbit/s of full cells.
const GAP: Duration = Duration::from_micros(175);
/// The mean of the stop-and-go mix, whose cap is five times as long: 1,250 cells wait at that rate.
const MEAN: Duration = Duration::from_millis(5);

/// What a relay does to runs of leg cells beside the work of their circuit (the leg's header and
/// tag: `cargo bench -p shoal-onion`), which is the same with a mix and without. A cell that is
/// mixed enters the pool when its run comes; when it leaves, it is sealed for the link.
fn leg_work(criterion: &mut Criterion) {
    let at = [Address::new(1, 1), Address::new(1, 0), Address::new(2, 0)];
    let offsets: Vec<u32> = (0..BATCH).map(|i| (i * FULL) as u32).collect();
    let (len, stride) = ((BATCH * FULL) as u32, FULL as u32);
    let from = socket(0).into();
    let incoming = [Incoming { from, offset: 0, len, stride, congested: false }];
    let time = |span| MixTime::from_duration(span).expect("below a second");
    let law = Strategy::StopAndGo { mean: time(MEAN), most: time(5 * MEAN) };
    let mut group = criterion.benchmark_group("relay/legs");
    group.throughput(Throughput::Elements(BATCH as u64));
    // Short, since virtual time passes too, and sessions end.
    group.sample_size(30).measurement_time(Duration::from_secs(1));
    group.warm_up_time(Duration::from_millis(300));
    for (name, mixed) in [("go on at once", false), ("mixed, 5 ms at 3 Gbit/s", true)] {
        let mut net = Net::new(&at, &[(0, 1), (1, 2)]);
        net.run(Duration::from_secs(3));
        let clock = Cell::new(net.now);
        let (hosts, routers) = net.nodes.split_at_mut(1);
        let (host, router) = (&mut hosts[0].relay, &mut routers[0].relay);
        let mut delays = Delays::new(law, &[1; 32]);
        let mut number = 0;
        group.bench_function(name, |bencher| {
            bencher.iter_batched_ref(
                || {
                    let mut buf = frames(at[1], at[0], BATCH, 7);
                    let mut taken = Taken(Vec::new());
                    let mut turn = Turn { now: clock.get(), sink: &mut taken, hand: &mut () };
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
                    let mut turn = Turn { now, sink: &mut Nowhere, hand: &mut () };
                    router.handle_batch(&mut turn, buf, &incoming, Arrival::Socket, &mut local);
                    router.handle_timeout(now, &mut Nowhere);
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

/// Addresses the leg cells of a batch to the next node; the law says when each leaves, by its
/// number.
fn send_on(
    buf: &mut [u8],
    found: LocalCells<'_>,
    [dst, src]: [Address; 2],
    law: Option<(Time, &mut Delays, &mut u64)>,
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

/// A socket that keeps a run as it left.
struct Taken(Vec<u8>);

impl Sink for Taken {
    fn send(&mut self, _: Path, buf: &[u8], offsets: &[u32], _: usize) -> SendOutcome {
        self.0.extend_from_slice(buf);
        SendOutcome { sent: offsets.len(), stop: None }
    }
}

criterion_group!(benches, relay_work, leg_work);
criterion_main!(benches);
