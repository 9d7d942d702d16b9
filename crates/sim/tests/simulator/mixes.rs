//! Networks whose relays mix: checks of single cells and of distributions.

use shoal_sim::{
    RouterTopology, SimulationOptions, SimulationOutcome, StrategyWaits, WireFaults, run,
};
use shoal_wire::DropReason;

/// Runs a network that must keep all rules. All mixed cells are watched except those that set up
/// circuits.
fn mixed(options: SimulationOptions) -> u64 {
    let outcome = run(options);
    assert!(outcome.is_ok(), "{outcome}");
    let SimulationOutcome { cells_mixed, cells_held, .. } = outcome;
    assert!(cells_mixed <= cells_held && cells_mixed >= cells_held * 9 / 10, "{outcome}");
    cells_mixed
}

#[test]
fn relays_of_calm_networks_mix_as_they_were_asked_to() {
    let calm = |seed| SimulationOptions {
        topology: RouterTopology::Ring,
        routers: 5,
        hosts: 6,
        files: 1,
        file_bytes_max: 200_000,
        flows: 8,
        circuits: 1 + seed as u32 % 4,
        mixes: 2,
        ..SimulationOptions::calm(seed)
    };
    let cells: u64 = [1, 2, 5, 9].map(calm).map(mixed).iter().sum();
    assert!(cells > 30_000, "{cells}");
}

#[test]
fn a_seed_replays_with_the_delays_of_its_mixes() {
    let (routers, hosts, flows) = (4, 5, 2);
    let options = || SimulationOptions {
        routers,
        hosts,
        flows,
        circuits: 2,
        mixes: 1,
        ..SimulationOptions::calm(5)
    };
    let (first, second) = (run(options()), run(options()));
    assert!(first.is_ok() && first.cells_mixed > 100, "{first}");
    assert_eq!(first, second);
}

/// The mean wait of cells is within 2% of the law, and 99 of 100 cells leave within 0.5 ms of the
/// drawn time. Cells that also wait for their link are left out.
#[test]
fn cells_wait_as_long_as_the_law_says() {
    let options = SimulationOptions {
        routers: 3,
        hosts: 4,
        files: 4,
        file_bytes_max: 12 << 20,
        circuits: 3,
        mixes: 1,
        mix_ms: 5,
        faults: WireFaults { rate_bps: 1_000_000_000, ..WireFaults::NONE },
        ..SimulationOptions::calm(5)
    };
    let outcome = run(options);
    assert!(outcome.is_ok(), "{outcome}");
    let many: Vec<&StrategyWaits> =
        outcome.mixed.iter().filter(|mixed| mixed.cells > 30_000).collect();
    assert!(!many.is_empty(), "{outcome}");
    for mixed in many {
        let StrategyWaits { cells, excused, mean_ms, law_ms, late_p99_ms, .. } = mixed;
        assert!((mean_ms / law_ms - 1.0).abs() < 0.02 && *late_p99_ms < 0.5, "{outcome}");
        assert!(excused * 20 < *cells, "{outcome}");
    }
}

/// Cells for which a mix has no room are dropped with a reason. The others wait for their full
/// time.
#[test]
fn mixes_that_are_full_drop_and_let_nothing_go_early() {
    let options = SimulationOptions {
        routers: 4,
        hosts: 6,
        files: 3,
        flows: 3,
        circuits: 3,
        mixes: 1,
        mix_cells: 40,
        ..SimulationOptions::calm(5)
    };
    let outcome = run(options);
    assert!(outcome.is_ok(), "{outcome}");
    let full = outcome.drops.get(DropReason::MixFull.label()).copied().unwrap_or(0);
    assert!(full > 100 && outcome.cells_mixed > 10_000, "{full}: {outcome}");
    assert!(outcome.files.iter().all(|file| file.finished), "{outcome}");
}

#[test]
fn relays_of_troubled_networks_do_so_too() {
    let cells: u64 = [2, 5, 8, 13].map(SimulationOptions::mixes).map(mixed).iter().sum();
    assert!(cells > 15_000, "{cells}");
}
