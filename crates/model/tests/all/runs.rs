//! Comparison of the simulator's results with the paper's simulation.

use core::time::Duration;

use shoal_model::reno::{RenoOutcome, SAMPLES, run};
use shoal_model::{BatchingStrategy, ModelError, TcpExperiment};

const SECONDS: u32 = 20;

fn outcome(case: TcpExperiment) -> RenoOutcome {
    run(&case, SECONDS, 1).unwrap()
}

/// The second at which the line was first full for a tenth of a second.
fn full_at(case: &TcpExperiment) -> f64 {
    let outcome = run(case, 4, 1).unwrap();
    let full = |pair: &&[shoal_model::reno::WindowSample]| {
        let (a, b) = (&pair[0], &pair[pair.len() - 1]);
        (b.delivered - a.delivered) as f64 / (b.at_s - a.at_s) > 0.97 * case.line_pps()
    };
    outcome.samples.windows(6).find(full).expect("the line fills").first().unwrap().at_s
}

#[test]
fn without_a_mix_the_line_is_full() {
    let case = TcpExperiment { law: BatchingStrategy::None, ..TcpExperiment::paper() };
    let seen = outcome(case);
    assert!((seen.throughput_pps / case.line_pps() - 1.0).abs() < 0.001, "{seen:?}");
    assert!((seen.throughput_mbps - 10.0).abs() < 0.01);
    assert_eq!((seen.fast_retransmits, seen.timeouts, seen.halved_window), (0, 0, None));
    assert!(seen.samples.windows(2).all(|pair| pair[0].window <= pair[1].window));
    assert_eq!(seen.samples.len(), SAMPLES as usize);
    // The paper says 0.4 s.
    let full = full_at(&case);
    assert!((0.35..0.6).contains(&full), "{full}");
}

#[test]
fn one_mix_of_5_ms_breaks_reno() {
    let seen = outcome(TcpExperiment::paper());
    assert!(seen.throughput_pps < 0.1 * TcpExperiment::paper().line_pps(), "{seen:?}");
    // The paper's simulation gave 8.76.
    let window = seen.halved_window.unwrap();
    assert!((7.0..11.0).contains(&window), "{window}");
    assert!((seen.rtt_ms.unwrap() - 60.4).abs() < 2.0);
    assert!(seen.fast_retransmits > 20);
}

#[test]
fn a_threshold_of_192_restores_it() {
    let case = TcpExperiment { dupthresh: 192, ..TcpExperiment::paper() };
    let seen = outcome(case);
    assert!(seen.throughput_pps > 0.99 * case.line_pps(), "{seen:?}");
    // The paper says 1.6 s.
    let full = full_at(&case);
    assert!((1.0..2.5).contains(&full), "{full}");
}

#[test]
fn throughput_rises_with_the_threshold() {
    let pps =
        |dupthresh| outcome(TcpExperiment { dupthresh, ..TcpExperiment::paper() }).throughput_pps;
    let all = [3, 8, 32, 128].map(pps);
    assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{all:?}");
}

#[test]
fn mixes_add_up_and_the_window_stays() {
    let one = outcome(TcpExperiment::paper());
    let five = outcome(TcpExperiment { mixes: 5, ..TcpExperiment::paper() });
    assert!((five.rtt_ms.unwrap() - 100.4).abs() < 3.0, "{five:?}");
    assert!((five.halved_window.unwrap() / one.halved_window.unwrap() - 1.0).abs() < 0.3);
    assert!(five.throughput_pps < one.throughput_pps);
}

#[test]
fn a_faster_line_does_not_help() {
    let fast = outcome(TcpExperiment { bandwidth_bps: 100_000_000, ..TcpExperiment::paper() });
    assert!(fast.throughput_pps < 1.3 * outcome(TcpExperiment::paper()).throughput_pps);
}

/// The paper does not state its round trip. Its simulated window of 8.76 suggests about 50 ms.
#[test]
fn the_window_rises_with_the_round_trip() {
    let windows = [0, 50, 200].map(|ms| {
        let case = TcpExperiment { base_rtt: Duration::from_millis(ms), ..TcpExperiment::paper() };
        run(&case, 60, 1).unwrap().halved_window.unwrap()
    });
    for (window, seen) in windows.into_iter().zip([5.3, 9.2, 11.9]) {
        assert!((window - seen).abs() < 0.1, "{windows:?}");
    }
}

/// In 10 ms the line sends 24 packets, so no packet is overtaken by 32.
#[test]
fn a_timed_mix_reorders_no_more_than_a_flush() {
    let law = BatchingStrategy::Timed { period: Duration::from_millis(10) };
    let low = outcome(TcpExperiment { law, ..TcpExperiment::paper() });
    assert!(low.throughput_pps < 0.1 * TcpExperiment::paper().line_pps(), "{low:?}");
    let high = outcome(TcpExperiment { law, dupthresh: 32, ..TcpExperiment::paper() });
    assert_eq!(high.halved_window, None);
    assert!(high.throughput_pps > 0.99 * TcpExperiment::paper().line_pps());
}

/// The paper says 500 s, 1.6 s and 0.4 s.
#[test]
fn a_threshold_that_adapts_fills_the_line_late() {
    let fills = shoal_model::figure(15, &shoal_model::RunParameters::default()).unwrap().fills;
    let [plain, fixed, adaptive] = [0, 1, 2].map(|i| fills[i].here_s.unwrap());
    assert!((0.3..0.8).contains(&plain) && (1.0..2.5).contains(&fixed), "{fills:?}");
    assert!((60.0..160.0).contains(&adaptive), "{fills:?}");
    // The adaptive threshold avoids nearly all retransmissions of a threshold of 3.
    let fixed = outcome(TcpExperiment::paper());
    let adaptive = outcome(TcpExperiment { adapts: true, ..TcpExperiment::paper() });
    assert!(adaptive.fast_retransmits * 3 < fixed.fast_retransmits, "{adaptive:?}");
    assert!(adaptive.throughput_pps > 4.0 * fixed.throughput_pps);
}

#[test]
fn order_restored_for_long_enough_restores_speed() {
    let law = BatchingStrategy::StopAndGo { mean: Duration::from_millis(5), cap: Some(5.0) };
    let pps = |hold_ms| {
        let hold = Some(Duration::from_millis(hold_ms));
        outcome(TcpExperiment { law, hold, ..TcpExperiment::paper() }).throughput_pps
    };
    assert!(pps(10) < 0.15 * TcpExperiment::paper().line_pps(), "too short a hold");
    // The cap of 25 ms bounds the lateness of a packet.
    assert!(pps(26) > 0.99 * TcpExperiment::paper().line_pps());
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for law in
        [TcpExperiment::paper().law, BatchingStrategy::Timed { period: Duration::from_millis(10) }]
    {
        let case = TcpExperiment { law, mixes: 2, ..TcpExperiment::paper() };
        assert_eq!(run(&case, 5, 9), run(&case, 5, 9));
        assert_ne!(run(&case, 5, 9), run(&case, 5, 10));
    }
}

#[test]
fn bounds_are_kept() {
    assert_eq!(run(&TcpExperiment::paper(), 0, 1), Err(ModelError::Runs));
    assert_eq!(run(&TcpExperiment::paper(), 1_001, 1), Err(ModelError::Runs));
    assert_eq!(
        run(&TcpExperiment { mixes: 99, ..TcpExperiment::paper() }, 1, 1),
        Err(ModelError::Mixes)
    );
    // On such a line no packet arrives during the run, which must not cause an error.
    let slow = run(&TcpExperiment { bandwidth_bps: 1, ..TcpExperiment::paper() }, 1, 1).unwrap();
    assert_eq!((slow.throughput_pps, slow.rtt_ms), (0.0, None));
}
