//! The pool: every cell leaves once, when it is due, in uniformly random order. The limits hold.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_crypto::Rng;
use shoal_mix::{LATE, MixLimits, MixPool, QUANTUM};
use shoal_wire::{Address, DropReason, LinkId, SizeClass, Time};

const FULL: SizeClass = SizeClass::Full;
const LEN: usize = FULL.frame_len();
const START: Time = Time::from_millis(10_000);
const HOP: Address = Address::new(7, 0);
const RUN: usize = 44;

fn link(n: u32) -> LinkId {
    LinkId::from_bits(n)
}

/// A cell filled with its number.
fn cell(n: u32, class: SizeClass) -> Vec<u8> {
    n.to_le_bytes().repeat(class.frame_len() / 4)
}

fn number(cell: &[u8]) -> u32 {
    let n = u32::from_le_bytes(cell[..4].try_into().expect("four bytes"));
    assert!(cell == self::cell(n, SizeClass::of_frame(cell.len()).expect("a class")), "changed");
    n
}

/// All runs that leave at `now`: each with its link and the numbers of its cells.
fn release(mix: &mut MixPool, now: Time, max: usize) -> Vec<(LinkId, Vec<u32>)> {
    let mut buf = vec![0; RUN * LEN];
    let next = || {
        let (link, count, class) = mix.release(now, &mut buf, max)?;
        assert!(0 < count && count <= max);
        let cells = buf.chunks(class.frame_len()).take(count).map(number);
        Some((link, cells.collect()))
    };
    core::iter::from_fn(next).collect()
}

fn flat(runs: Vec<(LinkId, Vec<u32>)>) -> Vec<u32> {
    runs.into_iter().flat_map(|(_, cells)| cells).collect()
}

/// Chi-square test: true if counts fit equal probabilities. One fair sample in some 10,000 fails.
fn is_uniform(counts: &[u64]) -> bool {
    let n = counts.len() as f64;
    let mean = counts.iter().sum::<u64>() as f64 / n;
    let square = counts.iter().map(|&k| (k as f64 - mean).powi(2) / mean).sum::<f64>();
    // The approximation of Wilson and Hilferty.
    let z = ((square / (n - 1.0)).cbrt() - (1.0 - 2.0 / (9.0 * (n - 1.0))))
        / (2.0 / (9.0 * (n - 1.0))).sqrt();
    z < 3.7
}

/// Index of a list among the permutations of its items.
fn rank(list: &[u32]) -> usize {
    list.iter().enumerate().fold(0, |rank, (i, item)| {
        let smaller = list[i + 1..].iter().filter(|other| *other < item).count();
        rank * (list.len() - i) + smaller
    })
}

#[test]
fn what_leaves_in_a_quantum_is_permuted_uniformly() {
    // Variants: in one run, in several runs, and with cells of a second link.
    for (seed, max, others) in [(1, RUN, 0), (2, 2, 0), (3, RUN, 4)] {
        let mut mix = MixPool::new(MixLimits::default(), [seed; 32]);
        let mut counts = [0; 120];
        let mut now = START;
        for _ in 0..12_000 {
            let due = now + 3 * QUANTUM;
            for n in 0..5 {
                mix.admit(now, due, HOP, link(1), FULL, &cell(n, FULL)).expect("room");
                if n < others {
                    mix.admit(now, due, HOP, link(2), FULL, &cell(100 + n, FULL)).expect("room");
                }
            }
            now = due;
            let mut cells = flat(release(&mut mix, now, max));
            assert_eq!(cells.len(), 5 + others as usize);
            cells.retain(|n| *n < 100);
            counts[rank(&cells)] += 1;
        }
        assert!(is_uniform(&counts), "{counts:?}");
    }
}

/// In a large quantum, every cell is equally often at every position.
#[test]
fn every_cell_of_a_large_quantum_gets_to_every_place() {
    const CELLS: usize = 100;
    let mut mix = MixPool::new(MixLimits::default(), [4; 32]);
    let mut counts = vec![0; CELLS * CELLS];
    // Counts pairs of cells that stay next to each other: the counts of positions don't show them.
    let mut neighbours = 0;
    let mut now = START;
    for _ in 0..1_500 {
        let due = now + QUANTUM;
        for n in 0..CELLS as u32 {
            mix.admit(now, due, HOP, link(1), FULL, &cell(n, FULL)).expect("room");
        }
        now = due;
        let cells = flat(release(&mut mix, now, RUN));
        for (place, &n) in cells.iter().enumerate() {
            counts[n as usize * CELLS + place] += 1;
        }
        neighbours += cells.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
    }
    assert!(is_uniform(&counts));
    // 1,500 * 99 / 100 pairs are expected. The standard deviation is about 39.
    assert!((1_330..1_640).contains(&neighbours), "{neighbours}");
}

/// The uniformity tests must reject permutations that are not uniform.
#[test]
fn the_tests_of_permutations_notice_what_is_not_uniform() {
    let mut rng = Rng::new([5; 32]);
    let mut count = |permute: &mut dyn FnMut(&mut Rng, &mut [u32])| {
        let mut counts = [0; 120];
        for _ in 0..12_000 {
            let mut list = [0, 1, 2, 3, 4];
            permute(&mut rng, &mut list);
            counts[rank(&list)] += 1;
        }
        is_uniform(&counts)
    };
    assert!(count(&mut |rng, list| {
        (1..5).for_each(|i| list.swap(i, rng.below(i as u64 + 1) as usize));
    }));
    assert!(!count(&mut |_, _| {}), "in order");
    assert!(!count(&mut |rng, list| list.rotate_left(rng.below(5) as usize)), "only turned");
    assert!(!count(&mut |rng, list| {
        (0..5).for_each(|i| list.swap(i, rng.below(5) as usize));
    }));
    assert!(!count(&mut |rng, list| {
        (1..5).for_each(|i| list.swap(i, rng.below(i as u64) as usize));
    }));
}

/// A cell of the random test below.
#[derive(Clone, Copy, Debug)]
struct ModelCell {
    link: LinkId,
    from: Option<Address>,
    /// The quantum that it leaves in.
    leaves: Time,
}

fn quantum(due: Time) -> Time {
    let ns = QUANTUM.as_nanos() as u64;
    Time(due.0.div_ceil(ns) * ns)
}

/// A pool and a model of its contents.
struct PoolModel {
    mix: MixPool,
    known: BTreeMap<u32, ModelCell>,
    /// The quantum of the last ordered cell for each link.
    last: BTreeMap<LinkId, Time>,
    rng: Rng,
    now: Time,
    next: u32,
    refused: u32,
    limits: MixLimits,
}

impl PoolModel {
    fn new(seed: u8, limits: MixLimits) -> PoolModel {
        let (known, last) = (BTreeMap::new(), BTreeMap::new());
        let mix = MixPool::new(limits, [seed; 32]);
        PoolModel {
            mix,
            known,
            last,
            rng: Rng::new([!seed; 32]),
            now: START,
            next: 0,
            refused: 0,
            limits,
        }
    }

    fn of_link(&self, link: LinkId) -> usize {
        self.known.values().filter(|known| known.link == link).count()
    }

    fn admit(&mut self) {
        let link = link(self.rng.below(3) as u32);
        let from = self.rng.below(4).checked_sub(1).map(|n| Address::new(n as u32, 0));
        let class = SizeClass::ALL[if from.is_some() { 2 } else { self.rng.below(3) as usize }];
        let due = self.now
            + Duration::from_micros(match self.rng.below(8) {
                // An ordered cell with a long delay would block all cells after it.
                0 if from.is_some() => self.rng.below(1_000_000),
                1 => 0,
                _ => self.rng.below(10_000),
            });
        let of_sender = self.known.values().filter(|known| known.from == from).count();
        let fits = self.of_link(link) < self.limits.per_link
            && self.known.len() < self.limits.in_all
            && (from.is_none() || of_sender < self.limits.per_link / 4);
        let bytes = cell(self.next, class);
        let taken = match from {
            Some(from) => self.mix.admit(self.now, due, from, link, class, &bytes),
            None => self.mix.queue(self.now, due, link, class, &bytes),
        };
        assert_eq!(taken, fits.then_some(()).ok_or(DropReason::MixFull));
        self.refused += u32::from(!fits);
        if fits {
            let mut leaves = quantum(due);
            if from.is_none() {
                let last = self.last.entry(link).or_default();
                leaves = leaves.max(*last);
                *last = leaves;
            }
            self.known.insert(self.next, ModelCell { link, from, leaves });
        }
        self.next += 1;
    }

    fn release(&mut self) {
        let runs = release(&mut self.mix, self.now, 1 + self.rng.below(RUN as u64) as usize);
        let mut last: BTreeMap<LinkId, (Time, Option<u32>)> = BTreeMap::new();
        for (link, cells) in runs {
            for n in cells {
                let known = self.known.remove(&n).expect("each leaves once");
                assert_eq!(known.link, link);
                assert!(known.leaves <= self.now, "too early: {known:?} at {}", self.now);
                let last = last.entry(link).or_default();
                assert!(last.0 <= known.leaves, "before an earlier quantum: {known:?}");
                last.0 = known.leaves;
                if known.from.is_none() {
                    assert!(last.1.is_none_or(|last| last < n), "not in order");
                    last.1 = Some(n);
                }
            }
        }
        let left = self.known.values().filter(|known| known.leaves <= self.now).count();
        assert_eq!(left, 0, "too late");
    }

    fn forget(&mut self) {
        let gone = link(self.rng.below(3) as u32);
        let lost = self.of_link(gone);
        assert_eq!(self.mix.forget(|link| link != gone), lost as u64);
        self.known.retain(|_, known| known.link != gone);
        self.last.remove(&gone);
    }

    fn check(&mut self) {
        let due = self.known.values().map(|known| known.leaves).min();
        let says = self.mix.poll_timeout();
        assert_eq!(says.is_some(), due.is_some());
        // A cell that is not yet due has the time of its quantum.
        let same = says.zip(due).is_none_or(|(says, due)| says == due || says.max(due) <= self.now);
        assert!(same, "{says:?} {due:?}");
        assert_eq!(self.mix.len(), self.known.len());
        for n in 0..3 {
            assert_eq!(self.mix.held(link(n)), self.of_link(link(n)));
            let queued = self.known.values().any(|k| k.link == link(n) && k.from.is_none());
            assert_eq!(self.mix.is_queued(link(n)), queued);
        }
    }
}

#[test]
fn each_cell_leaves_once_in_its_quantum_and_limits_hold_whatever_happens() {
    let (mut taken, mut refused) = (0, 0);
    for seed in 0..40 {
        let limits = MixLimits { per_link: 24 + usize::from(seed), in_all: 60 + usize::from(seed) };
        let mut pair = PoolModel::new(seed, limits);
        for _ in 0..3_000 {
            match pair.rng.below(100) {
                0 if seed % 2 == 0 => pair.forget(),
                // The worker was suspended for long.
                1 if seed % 3 == 0 => {
                    pair.now = pair.now + Duration::from_millis(pair.rng.below(3_000))
                }
                0..10 => {
                    pair.now = pair.now + Duration::from_micros(pair.rng.below(4_000));
                    pair.release();
                }
                _ => pair.admit(),
            }
            pair.check();
        }
        taken += pair.next - pair.refused;
        refused += pair.refused;
        pair.now = pair.now + Duration::from_secs(3);
        pair.release();
        assert!(pair.mix.is_empty() && pair.known.is_empty());
    }
    assert!(taken > 40_000 && refused > 20_000, "too few cells: {taken} {refused}");
}

#[test]
fn the_same_seed_gives_the_same_order_and_another_gives_another() {
    let order = |seed| {
        let mut mix = MixPool::new(MixLimits::default(), [seed; 32]);
        let mut all = Vec::new();
        for round in 0..20 {
            let now = START + round * QUANTUM;
            for n in 0..20 {
                let due = now + n % 5 * QUANTUM;
                mix.admit(now, due, HOP, link(n % 2), FULL, &cell(n, FULL)).expect("room");
            }
            all.extend(release(&mut mix, now, RUN));
        }
        all
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
}

/// One system call sends a run.
#[test]
fn cells_of_a_link_leave_together() {
    let mut mix = MixPool::new(MixLimits::default(), [9; 32]);
    for n in 0..150 {
        mix.admit(START, START, HOP, link(n % 3), FULL, &cell(n, FULL)).expect("room");
    }
    let runs = release(&mut mix, START, RUN);
    let seen: Vec<_> = runs.iter().map(|(link, cells)| (link.bits(), cells.len())).collect();
    assert_eq!(seen, [(0, 44), (0, 6), (1, 44), (1, 6), (2, 44), (2, 6)]);
}

#[test]
fn cells_that_leave_late_are_counted() {
    let mut mix = MixPool::new(MixLimits::default(), [5; 32]);
    let due = |n: u32| START + QUANTUM * 8 * n;
    for n in 0..4 {
        mix.admit(START, due(n), HOP, link(1), FULL, &cell(n, FULL)).expect("room");
    }
    assert_eq!(flat(release(&mut mix, due(0) + LATE[0], RUN)), [0], "just in time");
    assert_eq!(mix.take_late(), [0; 3]);
    assert_eq!(flat(release(&mut mix, due(1) + LATE[0] * 2, RUN)), [1]);
    assert_eq!(mix.take_late(), [1, 0, 0]);
    // The third is 12 ms late, the last one 10 ms.
    assert_eq!(flat(release(&mut mix, due(3) + LATE[2], RUN)).len(), 2);
    assert_eq!(mix.take_late(), [2, 2, 1]);
    assert_eq!(mix.take_late(), [0; 3], "taken");
}

#[test]
fn no_node_has_more_than_a_quarter_of_a_links_places() {
    let mut mix = MixPool::new(MixLimits::default(), [6; 32]);
    let far = START + Duration::from_millis(900);
    let full = cell(1, FULL);
    let fill = |mix: &mut MixPool, node: u32, to: u32| {
        let admit =
            |_: &u32| mix.admit(START, far, Address::new(node, 0), link(to), FULL, &full).is_ok();
        (0..u32::MAX).take_while(admit).count()
    };
    assert_eq!(fill(&mut mix, 1, 1), 5_000);
    assert_eq!(fill(&mut mix, 1, 2), 0, "a quarter for all links together");
    assert_eq!([2, 3, 4, 5].map(|node| fill(&mut mix, node, 1)), [5_000, 5_000, 5_000, 0]);
    assert_eq!((mix.held(link(1)), mix.len()), (20_000, 20_000));
    assert_eq!([5, 6, 7, 8].map(|node| fill(&mut mix, node, 2)), [5_000; 4]);
    assert_eq!(fill(&mut mix, 9, 3), 0, "no room for all links together");
    assert!(release(&mut mix, far - QUANTUM, RUN).is_empty(), "a full pool releases no cell early");
    assert_eq!(flat(release(&mut mix, far, RUN)).len(), 40_000);
    assert_eq!(fill(&mut mix, 1, 2), 5_000);
}

#[test]
fn memory_is_taken_as_needed_and_given_back() {
    let mut mix = MixPool::new(MixLimits::default(), [7; 32]);
    assert_eq!(mix.bytes(), 0);
    let full = cell(1, FULL);
    // The fluctuating load of 1 Gbit/s for 50 ms.
    for n in 0..4_500 {
        let due = START + Duration::from_micros(n * 11);
        mix.admit(START, due, HOP, link(1), FULL, &full).expect("room");
    }
    assert!(mix.bytes() <= 9_000_000, "{}", mix.bytes());
    let peak = mix.bytes();
    // As many cells leave as come: the pool allocates no more memory.
    let mut now = START;
    for _ in 0..1_000 {
        now = now + QUANTUM;
        for _ in 0..flat(release(&mut mix, now, RUN)).len() {
            mix.admit(now, now + Duration::from_millis(49), HOP, link(1), FULL, &full)
                .expect("room");
        }
    }
    assert_eq!((mix.len(), mix.bytes()), (4_500, peak));
    assert_eq!(flat(release(&mut mix, now + Duration::from_secs(1), RUN)).len(), 4_500);
    assert!(mix.bytes() < 200_000, "{}", mix.bytes());
    mix.admit(now, now, HOP, link(1), FULL, &full).expect("room");
    mix.rest();
    assert_eq!(mix.len(), 1, "a waiting cell stays");
    release(&mut mix, now, RUN);
    mix.rest();
    assert_eq!(mix.bytes(), 0);
}

/// A due time is at most a second ahead, since the wheel covers no more.
#[test]
fn the_longest_delay_fits_and_a_longer_one_counts_as_that() {
    let mut mix = MixPool::new(MixLimits::default(), [8; 32]);
    let full = cell(1, FULL);
    let second = Duration::from_secs(1);
    mix.admit(START, START + second, HOP, link(1), FULL, &full).expect("room");
    assert_eq!(mix.poll_timeout(), Some(START + second));
    release(&mut mix, START + second, RUN);
    mix.admit(START, Time::FAR, HOP, link(1), FULL, &full).expect("room");
    let due = mix.poll_timeout().expect("a cell");
    assert!(due >= START + second && due < START + 2 * second, "{due}");
    assert!(release(&mut mix, START + second, RUN).is_empty());
    assert_eq!(release(&mut mix, START + 2 * second, RUN).len(), 1);
    // A time in the past counts as now.
    mix.admit(START, Time::ZERO, HOP, link(1), FULL, &full).expect("room");
    assert_eq!(release(&mut mix, START, RUN).len(), 1);
}
