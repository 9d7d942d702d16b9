//! Networks whose access links are covered: each slot is used once, whatever happens.

use shoal_sim::{Options, run};

/// Runs a network that must keep all rules.
fn covered(options: Options) -> u64 {
    let cover = options.cover;
    let outcome = run(options);
    assert!(outcome.is_ok(), "{outcome}");
    assert!(cover > 0);
    outcome.frames_sent
}

#[test]
fn a_calm_network_keeps_its_schedules() {
    let calm = |(seed, workers)| Options { cover: 8, flows: 6, workers, ..Options::calm(seed) };
    let frames: u64 = [(1, 1), (2, 3)].map(calm).map(covered).iter().sum();
    // 22 s of 694 slots, for 6 hosts in both directions, twice.
    assert!(frames > 360_000, "{frames}");
}

/// The same with slots at random times, which are as many in the mean.
#[test]
fn a_calm_network_keeps_schedules_without_a_rhythm() {
    let options = Options { cover: 8, cover_poisson: true, flows: 6, ..Options::calm(4) };
    let frames = covered(options);
    assert!(frames > 180_000, "{frames}");
}

#[test]
fn troubled_networks_do_so_too() {
    for seed in [1, 2, 3, 6] {
        covered(Options::cover(seed));
    }
}
