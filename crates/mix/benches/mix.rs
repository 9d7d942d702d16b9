//! CPU cost of mixing one cell: `cargo bench -p shoal-mix`. The limit is 80 ns for the delay, the
//! copy into the pool and the copy out.

use core::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use shoal_mix::{DepartureTimes, MixLimits, MixPool, path};
use shoal_wire::{Address, LinkId, MixStrategy, MixTime, SizeClass, Time};

const FULL: usize = SizeClass::Full.frame_len();
const RUN: usize = 44;
/// 1 Gbit/s of full cells.
const GAP: Duration = Duration::from_nanos(1_000_000_000 / 84_000);

fn ms(ms: u64) -> MixTime {
    MixTime::from_duration(Duration::from_millis(ms)).expect("below a second")
}

fn stop_and_go(mean: u64) -> MixStrategy {
    MixStrategy::StopAndGo { mean: ms(mean), most: ms(5 * mean) }
}

/// A link that carries 1 Gbit/s in runs of 44 cells: the buffer in which they arrive, and the cells
/// that leave meanwhile.
struct LinkLoad {
    delays: DepartureTimes,
    mix: MixPool,
    now: Time,
    number: u64,
    hops: u64,
    links: u64,
    came: Vec<u8>,
    leaves: Vec<u8>,
}

impl LinkLoad {
    fn new(mean_ms: u64, hops: u64, links: u64) -> LinkLoad {
        let mut flow = LinkLoad {
            delays: DepartureTimes::new(stop_and_go(mean_ms), &[1; 32]),
            mix: MixPool::new(MixLimits::default(), [2; 32]),
            now: Time::from_millis(1_000),
            number: 0,
            hops,
            links,
            came: vec![3; RUN * FULL],
            leaves: vec![0; RUN * FULL],
        };
        // Runs until the number of waiting cells is steady.
        (0..20 * mean_ms * 84 / RUN as u64).for_each(|_| flow.step());
        flow
    }

    /// Admits one run, then releases the cells that leave until the next run arrives.
    fn step(&mut self) {
        self.delays.foresee(0, 0, self.number..self.number + RUN as u64);
        for cell in self.came.chunks_exact(FULL) {
            let n = self.number;
            self.number += 1;
            let from = Address::new((n % self.hops) as u32, 0);
            let link = LinkId::from_bits((n % self.links) as u32);
            let due = self.delays.due(self.now, 0, 0, n);
            let taken = self.mix.admit(self.now, due, from, link, SizeClass::Full, cell);
            taken.expect("room");
        }
        let next = self.now + RUN as u32 * GAP;
        while let Some(due) = self.mix.poll_timeout().filter(|due| *due < next) {
            while self.mix.release(due, &mut self.leaves, RUN).is_some() {}
        }
        self.now = next;
    }
}

fn pool(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("mix");
    group.throughput(Throughput::Elements(RUN as u64));
    for (mean, hops, links) in [(5, 1, 1), (5, 20, 1), (5, 20, 20), (50, 1, 1)] {
        let mut flow = LinkLoad::new(mean, hops, links);
        let name = format!("1 Gbit/s, {mean} ms, {hops} nodes before, {links} links");
        group.bench_function(name, |bencher| bencher.iter(|| flow.step()));
        println!("{} cells wait, in {} kB", flow.mix.len(), flow.mix.bytes() / 1_000);
    }
    // A link without a mix copies no cell, so it costs nothing. One copy of each cell is the lower
    // bound for any mix.
    let (from, mut to) = (vec![3; RUN * FULL], vec![0; RUN * FULL]);
    group.bench_function("one copy", |bencher| {
        bencher.iter(|| std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from)));
    });
    group.finish();
}

fn law(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("law");
    let mut delays = DepartureTimes::new(stop_and_go(5), &[1; 32]);
    let mut n = 0;
    group.bench_function("due", |bencher| {
        bencher.iter(|| {
            n += 1;
            delays.due(Time(n), 0, 0, n)
        });
    });
    group.throughput(Throughput::Elements(RUN as u64));
    group.bench_function("due, a precomputed run", |bencher| {
        bencher.iter(|| {
            // The order of cells behind another mix: a permutation of each 1,024 numbers.
            let numbers = (n..n + RUN as u64).map(|n| n / 1_024 * 1_024 + n * 619 % 1_024);
            n += RUN as u64;
            delays.foresee(0, 0, numbers.clone());
            numbers.map(|number| delays.due(Time(n), 0, 0, number).0).sum::<u64>()
        });
    });
    group.throughput(Throughput::Elements(1));
    for (name, strategy) in [("3 x 5 ms", stop_and_go(5)), ("3 x 200 ms", stop_and_go(200))] {
        group.bench_function(format!("path of {name}"), |bencher| {
            bencher.iter(|| path([strategy; 3]))
        });
    }
    group.finish();
}

criterion_group!(benches, pool, law);
criterion_main!(benches);
