//! The paper's formulas, compared with numbers computed by other means.

use core::time::Duration;

use shoal_model::formulas::{
    bounded_throughput_pps, mean_of_ratio, mean_throughput, mean_throughput_pps, round_trip_for,
    throughput_bound,
};
use shoal_model::permutation::{self, CalmProbabilities, most_duplicates};
use shoal_model::window::{
    TERMS_MAX, TOLERANCE, calm, calm_at_three, g, g_next, g_next_as_printed, halved_at,
    halved_at_with, mean_window, retransmit, retransmit_at_three, theorem_1_bound, theorem_2_bound,
};
use shoal_model::{
    BatchingStrategy, DUPTHRESH_MAX, DUPTHRESHES, MeanAndVariance, ModelError, TcpExperiment,
    estimate,
};

fn near(a: f64, b: f64, tolerance: f64) {
    assert!((a - b).abs() <= tolerance, "{a} is not {b} within {tolerance}");
}

fn factorial(n: u32) -> f64 {
    (1..=n).map(f64::from).product()
}

#[test]
fn throughput_of_a_constant_window() {
    near(throughput_bound(10.0, 512, 0.1), 0.75 * 10.0 * 512.0 / 0.1, 1e-9);
    near(mean_of_ratio(6.0, MeanAndVariance { mean_s: 2.0, variance_s2: 1.0 }), 3.75, 1e-12);
    let constant = MeanAndVariance { mean_s: 0.1, variance_s2: 0.0 };
    near(mean_throughput(10.0, 512, constant), throughput_bound(10.0, 512, 0.1), 1e-9);
}

#[test]
fn means_and_variances_of_mixes_add() {
    let case = TcpExperiment { mixes: 3, ..TcpExperiment::paper() };
    let trip = case.round_trip();
    near(trip.mean_s, 0.050 + 0.000_409_6 + 3.0 * 0.010, 1e-9);
    near(trip.variance_s2, 3.0 * 2.0 * 25e-6, 1e-12);
    let expected = 0.75 * 8.27 / trip.mean_s * (1.0 + trip.variance_s2 / trip.mean_s.powi(2));
    near(mean_throughput_pps(8.27, &case), expected, 1e-9);
    near(bounded_throughput_pps(1e6, &case), 2_441.406_25, 1e-6);
    // Finding 7: the round trip needed for 31.23 packets per second.
    near(round_trip_for(8.27, 31.23), 0.199, 0.0005);
}

#[test]
fn chances_equal_the_printed_factorials() {
    for n in 3..20 {
        let printed = 2.0 * 3.0f64.powi(n as i32 - 2) / factorial(n);
        near(calm_at_three(n), printed, 1e-15);
        near(calm_at_three(n) + retransmit_at_three(n), 1.0, 1e-15);
        for d in 1..n {
            let power = f64::from(d).powi((n - d + 1) as i32);
            near(calm(n, d) / (power * factorial(d - 1) / factorial(n)), 1.0, 1e-12);
            near(calm(n, d) + retransmit(n, d), 1.0, 1e-15);
        }
    }
    let paper = [0.75, 0.45, 0.225, 0.096, 0.036];
    (4..).zip(paper).for_each(|(n, chance)| near(calm_at_three(n), chance, 0.0005));
    assert_eq!(calm(5, 5), 1.0);
}

#[test]
fn windows_are_halved_somewhere() {
    for d in [1, 3, 8, 192] {
        let sum: f64 = (0..d + 150).map(|n| halved_at(n, d)).sum();
        near(sum, 1.0, 1e-9);
        assert_eq!(halved_at(d, d), 0.0);
        near(halved_at(d + 2, d), g(d + 1, d) - g(d + 2, d), 1e-15);
        near(halved_at(d + 1, d), 1.0 - g(d + 1, d), 1e-15);
    }
    near(halved_at_with(6, 3, |_| 0.5), 0.125, 1e-15);
}

/// Theorem 3: the sum of g is the mean of the window.
#[test]
fn both_forms_of_the_mean_agree() {
    for d in [1, 3, 16, 64] {
        let mean: f64 = (d + 1..d + 150).map(|n| f64::from(n) * halved_at(n, d)).sum();
        near(mean_window(d).value, mean, 1e-9);
    }
}

#[test]
fn means_are_the_known_ones() {
    let known = [5.17, 6.38, 10.99, 19.78, 36.8, 70.1, 135.8, 200.9];
    for (d, known) in DUPTHRESHES.into_iter().zip(known) {
        near(mean_window(d).value, known, if d < 32 { 0.005 } else { 0.05 });
    }
    let exact = [5.364_730, 6.673_637, 11.661_532, 21.094_845, 39.146_959];
    for (d, exact) in DUPTHRESHES.into_iter().zip(exact) {
        near(permutation::mean_window(d).value, exact, 1e-6);
    }
}

#[test]
fn bounds_bound() {
    near(theorem_1_bound(), 13.30, 0.005);
    near(theorem_2_bound(3).value, theorem_1_bound(), 1e-9);
    for d in DUPTHRESHES {
        assert!(theorem_2_bound(d).value > permutation::mean_window(d).value, "{d}");
    }
}

#[test]
fn series_end_within_their_tolerance() {
    for d in [1, 2, 3, 192, DUPTHRESH_MAX] {
        for sum in [mean_window(d), theorem_2_bound(d), permutation::mean_window(d)] {
            assert!(sum.rest <= TOLERANCE && sum.terms < 600 && sum.value.is_finite(), "{sum:?}");
        }
    }
    const { assert!(TERMS_MAX >= 600) };
}

#[test]
fn the_mean_rises_with_the_threshold() {
    let means = (1..=200).map(|d| (mean_window(d).value, permutation::mean_window(d).value));
    let means: Vec<_> = means.collect();
    assert!(means.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1));
    assert!(means.iter().all(|(printed, exact)| printed <= exact));
}

#[test]
fn equation_58_needs_the_larger_base() {
    for d in [1, 3, 10] {
        for n in d + 2..d + 12 {
            near(g_next(n, d), g(n, d + 1), 1e-12);
            near(g_next_as_printed(n, d), g(n, d) * f64::from(d + 1) / f64::from(d), 1e-12);
            // (63) says that the quotient is (D + 1) / D; it is at least that.
            assert!(g_next(n, d) / g(n, d) >= f64::from(d + 1) / f64::from(d) - 1e-12);
        }
    }
    assert!(g_next(6, 3) > 4.0 * g_next_as_printed(6, 3));
}

/// Calls `each` with every order of `0..n`.
fn orders(n: usize, each: &mut impl FnMut(&[usize])) {
    fn fill(order: &mut Vec<usize>, n: usize, each: &mut impl FnMut(&[usize])) {
        if order.len() == n {
            return each(order);
        }
        for next in 0..n {
            if !order.contains(&next) {
                order.push(next);
                fill(order, n, each);
                order.pop();
            }
        }
    }
    fill(&mut Vec::new(), n, each);
}

#[test]
fn exact_chances_equal_a_count_of_all_orders() {
    for d in [1, 2, 3, 4] {
        for (n, chance) in (1..=8).zip(CalmProbabilities::new(d)) {
            let mut calm = 0;
            orders(n, &mut |order| calm += u32::from(most_duplicates(order) < d));
            near(chance, f64::from(calm) / factorial(n as u32), 1e-12);
        }
    }
    let known = [0.75, 0.55, 0.383, 0.240, 0.147];
    for (chance, known) in CalmProbabilities::new(3).skip(3).zip(known) {
        near(chance, known, 0.0006);
    }
}

/// Figure 17 of the paper: two packets jump to the front, and no packet gets three duplicates.
#[test]
fn the_papers_extreme_case_is_calm() {
    assert_eq!(most_duplicates(&[5, 4, 0, 1, 2, 3]), 2);
    assert_eq!(most_duplicates(&[1, 2, 3, 4, 0]), 4);
    // Lemma 1 excludes this order, since packet 1 moves back by three places. Yet no packet gets
    // three duplicates.
    assert_eq!(most_duplicates(&[2, 3, 0, 4, 1]), 2);
    assert_eq!(most_duplicates(&[]), 0);
}

#[test]
fn estimates_know_the_line() {
    let at_192 = estimate(&TcpExperiment { dupthresh: 192, ..TcpExperiment::paper() });
    assert!(at_192.throughput_printed_pps.unwrap() > 2_441.5);
    near(at_192.throughput_corrected_pps, 2_441.4, 0.01);
    let unmixed =
        estimate(&TcpExperiment { law: BatchingStrategy::None, ..TcpExperiment::paper() });
    assert_eq!((unmixed.window_printed, unmixed.window_corrected), (None, None));
    near(unmixed.throughput_corrected_pps, 2_441.4, 0.01);
}

#[test]
fn cases_out_of_bounds_are_refused() {
    let paper = TcpExperiment::paper();
    let timed = |ms| BatchingStrategy::Timed { period: Duration::from_millis(ms) };
    let capped =
        |cap| BatchingStrategy::StopAndGo { mean: Duration::from_millis(5), cap: Some(cap) };
    for (case, wrong) in [
        (TcpExperiment { packet_bytes: 0, ..paper }, ModelError::Packet),
        (TcpExperiment { bandwidth_bps: 0, ..paper }, ModelError::Bandwidth),
        (TcpExperiment { base_rtt: Duration::MAX, ..paper }, ModelError::Delay),
        (TcpExperiment { hold: Some(Duration::MAX), ..paper }, ModelError::Delay),
        (TcpExperiment { mixes: 17, ..paper }, ModelError::Mixes),
        (TcpExperiment { dupthresh: 0, ..paper }, ModelError::Dupthresh),
        (TcpExperiment { dupthresh: DUPTHRESH_MAX + 1, ..paper }, ModelError::Dupthresh),
        (TcpExperiment { law: timed(0), ..paper }, ModelError::Delay),
        (TcpExperiment { law: capped(0.0), ..paper }, ModelError::Cap),
        (TcpExperiment { law: capped(f64::NAN), ..paper }, ModelError::Cap),
    ] {
        assert_eq!(case.check(), Err(wrong), "{case:?}");
    }
    assert_eq!(paper.check(), Ok(()));
}
