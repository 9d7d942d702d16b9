//! Networks whose relays mix: what they do with each cell, and with all together.

use shoal_sim::{Options, Outcome, Topology, run};

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
fn relays_of_troubled_networks_do_so_too() {
    let cells: u64 = [2, 4, 5, 6, 8, 11, 13].map(Options::mixes).map(mixed).iter().sum();
    assert!(cells > 30_000, "{cells}");
}
