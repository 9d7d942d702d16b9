//! Tests of the distributions of delays and orders. Seeds are fixed, so a passing test always
//! passes. The limits correspond to one false alarm in a thousand.

use core::time::Duration;

use shoal_model::permutation::{CalmProbabilities, most_duplicates};
use shoal_model::{BatchingStrategy, TcpExperiment, calm_through_mix, permute, rng};

const MEAN: Duration = Duration::from_millis(5);

/// Chi-square of 24,000 orders of four items, of which there are 24.
fn chi_square(mut shuffle: impl FnMut(&mut [usize; 4])) -> f64 {
    let mut counts = [0.0; 256];
    for _ in 0..24_000 {
        let mut items = [0, 1, 2, 3];
        shuffle(&mut items);
        counts[items.iter().fold(0, |place, item| place * 4 + item)] += 1.0;
    }
    let seen: Vec<f64> = counts.into_iter().filter(|&count| count > 0.0).collect();
    assert_eq!(seen.len(), 24, "every order appears");
    seen.iter().map(|count| (count - 1_000.0f64).powi(2) / 1_000.0).sum()
}

#[test]
fn every_order_is_equally_likely() {
    let mut fair = rng(1);
    // With 23 degrees of freedom, 49.7 is exceeded once in a thousand.
    let value = chi_square(|items| permute(items, &mut fair));
    assert!(value < 49.7, "{value}");
}

/// A planted fault: a shuffle that swaps each item with any other is biased, which the test
/// detects.
#[test]
fn a_biased_shuffle_is_found() {
    let mut biased = rng(1);
    let value = chi_square(|items| (0..4).for_each(|i| items.swap(i, biased.below(4) as usize)));
    assert!(value > 200.0, "{value}");
}

/// Largest distance between the distribution of 20,000 draws and `law` (Kolmogorov and Smirnov),
/// times the square root of their number.
fn distance(draws: BatchingStrategy, law: impl Fn(f64) -> f64) -> f64 {
    let mut rng = rng(7);
    let count = 20_000;
    let mut delays: Vec<f64> = (0..count).map(|_| draws.draw(&mut rng).as_secs_f64()).collect();
    delays.sort_by(f64::total_cmp);
    let step = 1.0 / f64::from(count);
    let apart = delays.iter().enumerate().map(|(i, &delay)| {
        let (low, at) = (i as f64 * step, law(delay));
        (at - low).abs().max((low + step - at).abs())
    });
    apart.fold(0.0, f64::max) * f64::from(count).sqrt()
}

#[test]
fn delays_follow_their_law() {
    let mean = MEAN.as_secs_f64();
    let exponential = |t: f64| 1.0 - (-t / mean).exp();
    let capped = |t: f64| exponential(t) / (1.0 - (-5.0f64).exp());
    let free = BatchingStrategy::StopAndGo { mean: MEAN, cap: None };
    let cut = BatchingStrategy::StopAndGo { mean: MEAN, cap: Some(5.0) };
    assert!(distance(free, exponential) < 1.95);
    assert!(distance(cut, capped) < 1.95);
    // Planted fault: a wrong mean is detected.
    assert!(distance(free, |t| 1.0 - (-t / (mean * 1.05)).exp()) > 1.95);
}

#[test]
fn means_and_variances_are_those_of_the_draws() {
    for cap in [None, Some(5.0), Some(1.0)] {
        let law = BatchingStrategy::StopAndGo { mean: MEAN, cap };
        let mut rng = rng(3);
        let draws: Vec<f64> = (0..200_000).map(|_| law.draw(&mut rng).as_secs_f64()).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        let told = law.delay();
        assert!((mean / told.mean_s - 1.0).abs() < 0.01, "{cap:?} {mean} {told:?}");
        assert!((variance / told.variance_s2 - 1.0).abs() < 0.03, "{cap:?} {variance} {told:?}");
        let cap = cap.unwrap_or(f64::INFINITY) * MEAN.as_secs_f64();
        assert!(draws.iter().all(|&delay| delay <= cap));
    }
    let mean = BatchingStrategy::StopAndGo { mean: MEAN, cap: Some(5.0) }.delay().mean_s;
    assert!((mean / 0.005 - 0.966).abs() < 0.0005);
    let timed = BatchingStrategy::Timed { period: MEAN }.delay();
    assert!(
        (timed.mean_s - 0.0025).abs() < 1e-12 && (timed.variance_s2 - 25e-6 / 12.0).abs() < 1e-12
    );
}

#[test]
fn a_window_at_once_leaves_in_a_uniform_order_and_a_spaced_one_does_not() {
    let exact = CalmProbabilities::new(3).nth(7).unwrap();
    let through = |law, bandwidth_bps| {
        let case = TcpExperiment { law, bandwidth_bps, ..TcpExperiment::paper() };
        calm_through_mix(&case, 8, 40_000, 5).unwrap()
    };
    let stop_and_go = TcpExperiment::paper().law;
    assert!((through(BatchingStrategy::Timed { period: MEAN }, 10_000_000) - exact).abs() < 0.006);
    assert!((through(stop_and_go, 10_000_000_000) - exact).abs() < 0.006);
    assert!(through(stop_and_go, 10_000_000) > exact + 0.03);
    assert_eq!(through(BatchingStrategy::None, 10_000_000), 1.0);
    assert_eq!(most_duplicates(&[0, 1, 2]), 0);
}
