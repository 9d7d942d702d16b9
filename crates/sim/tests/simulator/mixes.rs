//! Networks whose relays mix: what they do with each cell, and with all together.

use shoal_sim::{Faults, Mixed, Options, Outcome, Topology, run};
use shoal_wire::DropReason;

/// Runs a network that must keep all rules. All mixed cells are watched but those that set circuits
/// up.
fn mixed(options: Options) -> u64 {
    let outcome = run(options);
    assert!(outcome.is_ok(), "{outcome}");
    let Outcome { cells_mixed, cells_held, .. } = outcome;
    assert!(cells_mixed <= cells_held && cells_mixed >= cells_held * 9 / 10, "{outcome}");
    cells_mixed
}

#[test]
fn relays_of_calm_networks_mix_as_they_were_asked_to() {
    let calm = |seed| Options {
        topology: Topology::Ring,
        routers: 5,
        hosts: 6,
        files: 1,
        file_bytes_max: 200_000,
        flows: 8,
        circuits: 1 + seed as u32 % 4,
        mixes: 2,
        ..Options::calm(seed)
    };
    let cells: u64 = [1, 2, 5, 9].map(calm).map(mixed).iter().sum();
    assert!(cells > 30_000, "{cells}");
}

#[test]
fn a_seed_replays_with_the_delays_of_its_mixes() {
    let (routers, hosts, flows) = (4, 5, 2);
    let options = || Options { routers, hosts, flows, circuits: 2, mixes: 1, ..Options::calm(5) };
    let (first, second) = (run(options()), run(options()));
    assert!(first.is_ok() && first.cells_mixed > 100, "{first}");
    assert_eq!(first, second);
}

/// What cells wait for is what the law says, within 2%, and 99 of 100 leave within half a
/// millisecond of the time that was drawn. Cells that wait for their line are left out.
#[test]
fn cells_wait_as_long_as_the_law_says() {
    let options = Options {
        routers: 3,
        hosts: 4,
        files: 4,
        file_bytes_max: 12 << 20,
        circuits: 3,
        mixes: 1,
        mix_ms: 5,
        faults: Faults { rate_bps: 1_000_000_000, ..Faults::NONE },
        ..Options::calm(5)
    };
    let outcome = run(options);
    assert!(outcome.is_ok(), "{outcome}");
    let many: Vec<&Mixed> = outcome.mixed.iter().filter(|mixed| mixed.cells > 30_000).collect();
    assert!(!many.is_empty(), "{outcome}");
    for mixed in many {
        let Mixed { cells, excused, mean_ms, law_ms, late_p99_ms, .. } = mixed;
        assert!((mean_ms / law_ms - 1.0).abs() < 0.02 && *late_p99_ms < 0.5, "{outcome}");
        assert!(excused * 20 < *cells, "{outcome}");
    }
}

/// Cells for which there is no room are dropped by name, and those that are there wait as long as
/// they should.
#[test]
fn mixes_that_are_full_drop_and_let_nothing_go_early() {
    let options = Options {
        routers: 4,
        hosts: 6,
        files: 3,
        flows: 3,
        circuits: 3,
        mixes: 1,
        mix_cells: 40,
        ..Options::calm(5)
    };
    let outcome = run(options);
    assert!(outcome.is_ok(), "{outcome}");
    let full = outcome.drops.get(DropReason::MixFull.label()).copied().unwrap_or(0);
    assert!(full > 100 && outcome.cells_mixed > 10_000, "{full}: {outcome}");
    assert!(outcome.files.iter().all(|file| file.finished), "{outcome}");
}

#[test]
fn relays_of_troubled_networks_do_so_too() {
    let cells: u64 = [2, 4, 5, 6, 8, 11, 13].map(Options::mixes).map(mixed).iter().sum();
    assert!(cells > 30_000, "{cells}");
}
