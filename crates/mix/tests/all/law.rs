//! Departure times follow the strategy's distribution, in quanta, and are never early.

use core::time::Duration;

use shoal_crypto::Rng;
use shoal_mix::{DepartureTimes, QUANTUM};
use shoal_wire::{MixStrategy, MixTime, Time};

const COUNT: u64 = 40_000;

fn ms(ms: u64) -> MixTime {
    MixTime::from_duration(Duration::from_millis(ms)).expect("below a second")
}

fn stop_and_go(mean: MixTime, most: MixTime) -> MixStrategy {
    MixStrategy::StopAndGo { mean, most }
}

fn laws() -> [(MixTime, MixTime); 5] {
    let unit = MixTime::from_units(1).expect("a unit");
    [
        (ms(5), ms(25)),
        (ms(50), ms(200)),
        (ms(7), ms(7)),
        (unit, MixTime::MAX),
        (ms(1_000), ms(1_000)),
    ]
}

fn seconds(time: MixTime) -> f64 {
    time.duration().as_secs_f64()
}

/// Kolmogorov-Smirnov distance of samples from a distribution. It is scaled so that one fair sample
/// set in a hundred exceeds 1.
fn distance(mut samples: Vec<f64>, below: impl Fn(f64) -> f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let n = samples.len() as f64;
    let gap = |(i, &x): (usize, &f64)| {
        let (before, behind) = (i as f64 / n, (i + 1) as f64 / n);
        (below(x) - before).abs().max((behind - below(x)).abs())
    };
    samples.iter().enumerate().map(gap).fold(0.0, f64::max) * n.sqrt() / 1.63
}

#[test]
fn delays_follow_the_exponential_distribution_cut_off_at_the_longest() {
    for (seed, (mean, most)) in laws().into_iter().enumerate() {
        let delays = DepartureTimes::new(stop_and_go(mean, most), &[seed as u8; 32]);
        let samples = (0..COUNT).map(|n| delays.delay(0, 1, n).as_secs_f64()).collect::<Vec<_>>();
        assert!(samples.iter().all(|&s| s <= seconds(most)));
        let kept = 1.0 - (-seconds(most) / seconds(mean)).exp();
        let law = |x: f64| (1.0 - (-x / seconds(mean)).exp()) / kept;
        let far = distance(samples.clone(), law);
        assert!(far < 1.0, "{mean}, at most {most}: {far}");
        // The test can fail: samples with a mean 3% too large exceed the distance.
        let other = distance(samples.iter().map(|s| s * 1.03).collect(), law);
        assert!(other > 1.0, "{mean}, at most {most}: {other}");
    }
}

/// Every direction, lane and number has its own independent delay.
#[test]
fn delays_of_different_cells_have_nothing_to_do_with_each_other() {
    let delays = DepartureTimes::new(stop_and_go(ms(5), ms(25)), &[3; 32]);
    let draw = |direction, lane, n| delays.delay(direction, lane, n).as_secs_f64();
    let base: Vec<f64> = (0..COUNT).map(|n| draw(0, 0, n)).collect();
    let others: [Vec<f64>; 3] = [
        (0..COUNT).map(|n| draw(1, 0, n)).collect(),
        (0..COUNT).map(|n| draw(0, 1, n)).collect(),
        (0..COUNT).map(|n| draw(0, 0, n + 1)).collect(),
    ];
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    let correlation = |a: &[f64], b: &[f64]| {
        let (x, y) = (mean(a), mean(b));
        let sum =
            |f: &dyn Fn(f64, f64) -> f64| a.iter().zip(b).map(|(a, b)| f(*a, *b)).sum::<f64>();
        sum(&|a, b| (a - x) * (b - y))
            / (sum(&|a, _| (a - x).powi(2)) * sum(&|_, b| (b - y).powi(2))).sqrt()
    };
    for other in &others {
        let r = correlation(&base, other);
        assert!(r.abs() * (COUNT as f64).sqrt() < 3.0, "{r}");
    }
    let again = DepartureTimes::new(stop_and_go(ms(5), ms(25)), &[3; 32]);
    assert_eq!(delays.delay(1, 0, 1 << 40), again.delay(1, 0, 1 << 40));
    let other_key = DepartureTimes::new(stop_and_go(ms(5), ms(25)), &[4; 32]);
    assert_ne!(delays.delay(1, 0, 1 << 40), other_key.delay(1, 0, 1 << 40));
}

/// The node that delays a cell and the node that checks it must compute the same delay. Another
/// program computed these values: it encrypts number (8 bytes), direction, lane and six zeros with
/// AES-256. The first 53 bits, as a fraction, go into the inverse of the distribution.
#[test]
fn delays_are_those_that_another_program_computed() {
    let key = core::array::from_fn(|i| i as u8);
    let delays = DepartureTimes::new(stop_and_go(ms(5), ms(25)), &key);
    let cells = [(0, 0, 0), (1, 0, 0), (0, 1, 1), (1, 1, u64::MAX)];
    for ((direction, lane, number), ns) in
        cells.into_iter().zip([14_161_739_u64, 4_131_828, 16_385_316, 10_602_279])
    {
        let delay = delays.delay(direction, lane, number).as_nanos() as u64;
        assert!(delay.abs_diff(ns) <= 1, "{delay}");
    }
}

#[test]
fn a_cell_leaves_in_the_quantum_nearest_to_its_time_and_never_before_it_came() {
    let mut delays = DepartureTimes::new(stop_and_go(ms(5), ms(25)), &[5; 32]);
    let mut rng = Rng::new([5; 32]);
    let (mut waited, mut asked) = (0.0, 0.0);
    for n in 0..COUNT {
        let now = Time(10_000_000_000 + rng.below(1_000_000_000));
        let due = delays.due(now, 0, 0, n);
        let ideal = now + delays.delay(0, 0, n);
        assert!(due >= now && due.0.is_multiple_of(QUANTUM.as_nanos() as u64));
        let soon = ideal.since(now) < QUANTUM;
        assert!(due.0.abs_diff(ideal.0) <= QUANTUM.as_nanos() as u64 / if soon { 1 } else { 2 });
        waited += due.since(now).as_secs_f64();
        asked += delays.delay(0, 0, n).as_secs_f64();
    }
    let mean = seconds(ms(5)) * (1.0 - 5.0 / 5_f64.exp_m1());
    assert!((asked / COUNT as f64 / mean - 1.0).abs() < 0.01);
    let bias = (waited - asked) / COUNT as f64;
    assert!(bias.abs() < 3e-6, "{bias} s later than the strategy says, on average");
}

/// Precomputed delays: each cell gets its own delay, in any order of arrival.
#[test]
fn the_order_in_which_cells_come_changes_no_delay() {
    let mut delays = DepartureTimes::new(stop_and_go(ms(5), ms(25)), &[6; 32]);
    let mut rng = Rng::new([6; 32]);
    for _ in 0..COUNT {
        let (direction, lane) = (rng.below(4) as u8, rng.below(2) as u8);
        let number = (u64::MAX - 40).saturating_add(rng.below(60));
        if rng.below(10) == 0 {
            // More numbers than are precomputed, some of them twice, and some that never come.
            let (count, first) = (rng.below(200), rng.below(40));
            let numbers = (0..count).map(|i| (u64::MAX - 40).saturating_add((first + i * 7) % 50));
            delays.foresee(direction, rng.below(2) as u8, numbers);
        }
        let due = delays.due(Time::ZERO, direction, lane, number);
        assert!(due.0.abs_diff(delays.delay(direction, lane, number).as_nanos() as u64) <= 125_000);
    }
}

#[test]
fn under_a_timed_strategy_all_leave_at_the_next_multiple_of_its_time() {
    let mut delays = DepartureTimes::new(MixStrategy::Timed { every: ms(10) }, &[0; 32]);
    let at = |us| delays.due(Time(us * 1_000), 1, 0, us).as_micros();
    assert_eq!([0, 1, 9_999, 10_000, 10_001].map(at), [10_000, 10_000, 10_000, 20_000, 20_000]);
    // Times that are no multiples of a quantum are rounded, but still lie ahead.
    let odd = MixTime::from_units(3).expect("0.3 ms");
    let mut delays = DepartureTimes::new(MixStrategy::Timed { every: odd }, &[0; 32]);
    for us in 0..5_000 {
        let due = delays.due(Time(us * 1_000), 0, 0, us).as_micros();
        assert!(due > us && due <= us + 300 + 250 && due.is_multiple_of(250), "{us} {due}");
    }
}

#[test]
fn under_no_strategy_and_one_that_is_none_cells_leave_at_once() {
    let none = MixTime::default();
    for strategy in [MixStrategy::Pass, MixStrategy::Timed { every: none }, stop_and_go(none, none)]
    {
        let mut delays = DepartureTimes::new(strategy, &[0; 32]);
        assert_eq!(delays.due(Time(77), 0, 0, 1), Time(77));
        assert_eq!(delays.delay(0, 0, 1), Duration::ZERO);
    }
}
