//! Networks with covered access links: each slot is used once, in spite of all faults.

use shoal_sim::{SimulationOptions, run};

/// Runs a network that must keep all rules.
fn covered(options: SimulationOptions) -> u64 {
    let cover = options.cover;
    let outcome = run(options);
    assert!(outcome.is_ok(), "{outcome}");
    assert!(cover > 0);
    outcome.frames_sent
}

#[test]
fn a_calm_network_keeps_its_schedules() {
    let calm = |(seed, workers)| SimulationOptions {
        cover: 8,
        flows: 6,
        workers,
        ..SimulationOptions::calm(seed)
    };
    let frames: u64 = [(1, 1), (2, 3)].map(calm).map(covered).iter().sum();
    // 22 s of 694 slots, for 6 hosts in both directions, twice.
    assert!(frames > 360_000, "{frames}");
}

/// A calm network with a Poisson schedule, which has the same number of slots on average.
#[test]
fn a_calm_network_keeps_schedules_without_a_rhythm() {
    let options =
        SimulationOptions { cover: 8, cover_poisson: true, flows: 6, ..SimulationOptions::calm(4) };
    let frames = covered(options);
    assert!(frames > 180_000, "{frames}");
}

#[test]
fn troubled_networks_do_so_too() {
    for seed in [1, 6] {
        covered(SimulationOptions::cover(seed));
    }
}
