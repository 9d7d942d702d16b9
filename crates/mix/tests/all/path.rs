//! The delay that a path adds, compared with random draws.

use core::time::Duration;

use shoal_mix::{AddedDelay, DepartureTimes, path};
use shoal_wire::{HopDelay, MixStrategy, MixTime, Time};

fn ms(ms: u64) -> MixTime {
    MixTime::from_duration(Duration::from_millis(ms)).expect("below a second")
}

fn stop_and_go(mean: u64, most: u64) -> MixStrategy {
    MixStrategy::StopAndGo { mean: ms(mean), most: ms(most) }
}

fn timed(every: u64) -> MixStrategy {
    MixStrategy::Timed { every: ms(every) }
}

/// Sorted sums of random delays along a path, in milliseconds.
fn draws(path: &[MixStrategy], count: u64) -> Vec<f64> {
    let mut draw = shoal_crypto::Rng::new([9; 32]);
    let mut all: Vec<DepartureTimes> =
        (0..).zip(path).map(|(i, s)| DepartureTimes::new(*s, &[i; 32])).collect();
    let mut one = |(delays, strategy): (&mut DepartureTimes, &MixStrategy), n| match strategy {
        MixStrategy::Timed { .. } => {
            let now = Time(draw.below(1_000_000_000_000));
            delays.due(now, 0, 0, n).since(now)
        }
        _ => delays.delay(0, 0, n),
    };
    let mut sum = |n| all.iter_mut().zip(path).map(|hop| one(hop, n)).sum::<Duration>();
    let mut sums: Vec<f64> = (0..count).map(|n| sum(n).as_secs_f64() * 1e3).collect();
    sums.sort_by(f64::total_cmp);
    sums
}

#[test]
fn mean_and_hold_are_those_of_draws() {
    const COUNT: u64 = 400_000;
    let paths: [&[MixStrategy]; 6] = [
        &[stop_and_go(5, 25)],
        &[stop_and_go(5, 25); 3],
        &[stop_and_go(50, 200); 2],
        &[timed(10)],
        &[timed(10), MixStrategy::Pass, stop_and_go(5, 25)],
        &[timed(20), timed(20), stop_and_go(1, 3), stop_and_go(30, 300)],
    ];
    for strategies in paths {
        let added = path(strategies.iter().copied());
        let sums = draws(strategies, COUNT);
        let mean = sums.iter().sum::<f64>() / COUNT as f64;
        let units = |time: MixTime| f64::from(time.units()) / 10.0;
        assert!((units(added.mean) - mean - 0.05).abs() < 0.005 * mean + 0.06, "{added:?}: {mean}");
        let later = |than: f64| sums.iter().rev().take_while(|sum| **sum > than).count();
        // 40 sums above the hold are expected. Each mix may lengthen the hold by up to 0.1 ms.
        let slack = 0.1 * (strategies.len() + 1) as f64;
        let seen = (later(units(added.hold)), later(units(added.hold) - slack));
        assert!(seen.0 <= 60 && seen.1 >= 20, "{strategies:?}: {added:?}, above it {seen:?}");
        let most = strategies.iter().map(|strategy| strategy.most().duration()).sum();
        assert_eq!(added.most, most);
        assert!(added.hold.duration() <= most);
    }
}

#[test]
fn what_one_mix_adds_is_as_its_law_says() {
    // 5 ms (1 - 5 / (e^5 - 1)) = 4.830 ms; -5 ms ln(1 - 0.9999 (1 - e^-5)) = 24.927 ms.
    let added = path([stop_and_go(5, 25)]);
    let tenths = |time: MixTime| time.units();
    assert_eq!((tenths(added.mean), tenths(added.hold)), (49, 250));
    // If the mean is far below the longest time, the plain exponential holds: 2 ms ln(10,000) =
    // 18.42 ms.
    let added = path([stop_and_go(2, 100)]);
    assert_eq!((tenths(added.mean), tenths(added.hold)), (20, 185));
    let added = path([timed(10)]);
    assert_eq!((tenths(added.mean), tenths(added.hold)), (50, 100));
}

#[test]
fn nothing_and_too_much_have_bounds() {
    assert_eq!(path([]), AddedDelay::default());
    assert_eq!(path([MixStrategy::Pass; 3]), AddedDelay::default());
    let added = path([timed(1_000); 8]);
    assert_eq!((added.mean, added.hold), (MixTime::MAX, MixTime::MAX));
    assert_eq!(added.most, Duration::from_secs(8));
    assert!(added.is_too_long() && path([stop_and_go(200, 1_000); 3]).is_too_long());
    assert!(![timed(1_000), timed(500)].map(|one| path([one]).is_too_long()).contains(&true));
    let told = HopDelay::Path { mean: MixTime::MAX, hold: MixTime::MAX };
    assert_eq!(added.mixing(), told);
    let sum = path([stop_and_go(1, 1_000); 5]);
    assert!(sum.hold < ms(20) && sum.mean == ms(5) && !sum.is_too_long(), "{sum:?}");
}
