//! A calm network, troubled ones by seed, and the promise that a seed replays.

use shoal_sim::{Faults, Options, run};

#[test]
fn a_calm_network_moves_files_and_loses_nothing() {
    let outcome = run(Options::calm(1));
    assert!(outcome.is_ok(), "{outcome}");
    assert!(outcome.files.iter().all(|file| file.finished && file.attempts == 1), "{outcome}");
    assert_eq!(outcome.pings, 30, "six hosts, each to each");
}

#[test]
fn the_same_seed_replays_to_the_same_trace() {
    let options = || Options { crashes: 0, wipes: 0, ..Options::from_seed(3) };
    let (first, second) = (run(options()), run(options()));
    assert_eq!(first, second);
    assert_ne!(first.trace, run(Options { seed: 4, ..options() }).trace);
}

#[test]
fn a_cut_backbone_wire_delays_a_file_but_does_not_stop_it() {
    let options = Options {
        cuts: 3,
        files: 6,
        faults: Faults { loss_ppm: 10_000, rate_bps: 20_000_000, ..Faults::NONE },
        ..Options::calm(5)
    };
    let outcome = run(options);
    assert!(outcome.is_ok(), "{outcome}");
    assert!(outcome.files.iter().all(|file| file.finished), "{outcome}");
}

#[test]
fn troubled_networks_keep_the_rules() {
    for seed in 0..12 {
        let outcome = run(Options { crashes: 0, wipes: 0, ..Options::from_seed(seed) });
        assert!(outcome.is_ok(), "{outcome}");
    }
}

#[test]
fn networks_with_crashing_nodes_keep_the_rules() {
    for seed in 0..20 {
        let outcome = run(Options::from_seed(seed));
        assert!(outcome.is_ok(), "{outcome}");
    }
}
