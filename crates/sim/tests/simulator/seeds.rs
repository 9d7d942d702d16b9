//! A calm network, faulty ones by seed, and tests that a seed replays.

use shoal_sim::{RouterTopology, SimulationOptions, WireFaults, run};
use shoal_wire::DropReason;

#[test]
fn a_calm_network_moves_files_and_loses_nothing() {
    let outcome = run(SimulationOptions::calm(1));
    assert!(outcome.is_ok(), "{outcome}");
    assert!(outcome.files.iter().all(|file| file.finished && file.attempts == 1), "{outcome}");
    assert_eq!(outcome.pings, 30, "six hosts, each to each");
}

#[test]
fn idle_links_stay_up_when_they_get_other_keys() {
    let faults = WireFaults { delay_us: 10_000, ..WireFaults::NONE };
    let outcome =
        run(SimulationOptions { trouble_ms: 900_000, faults, ..SimulationOptions::calm(1) });
    assert!(outcome.is_ok() && outcome.links_down == 0, "{}: {outcome}", outcome.links_down);
}

#[test]
fn several_workers_lose_nothing_either() {
    for workers in 2..=4 {
        let outcome = run(SimulationOptions { workers, ..SimulationOptions::calm(1) });
        assert!(outcome.is_ok(), "{outcome}");
        let at_once = |file: &shoal_sim::FileOutcome| file.finished && file.attempts == 1;
        assert!(outcome.files.iter().all(at_once), "{outcome}");
    }
}

#[test]
fn packets_of_programs_arrive_once_and_in_order() {
    for workers in 1..=4 {
        let outcome = run(SimulationOptions {
            workers,
            flows: 6,
            files: 0,
            ..SimulationOptions::calm(workers.into())
        });
        assert!(outcome.is_ok() && outcome.packets_there > 1_000, "{outcome}");
    }
}

#[test]
fn the_same_seed_replays_to_the_same_trace() {
    let options = || SimulationOptions { crashes: 0, wipes: 0, ..SimulationOptions::from_seed(3) };
    let (first, second) = (run(options()), run(options()));
    assert_eq!(first, second);
    assert_ne!(first.trace, run(SimulationOptions { seed: 4, ..options() }).trace);
}

#[test]
fn a_cut_backbone_wire_delays_a_file_but_does_not_stop_it() {
    let options = SimulationOptions {
        cuts: 3,
        files: 6,
        faults: WireFaults { loss_ppm: 10_000, rate_bps: 20_000_000, ..WireFaults::NONE },
        ..SimulationOptions::calm(5)
    };
    let outcome = run(options);
    assert!(outcome.is_ok(), "{outcome}");
    assert!(outcome.files.iter().all(|file| file.finished), "{outcome}");
}

#[test]
fn files_at_a_fixed_rate_keep_it_over_lossy_wires() {
    let options = SimulationOptions {
        files: 1,
        file_bytes_max: 8 << 20,
        fixed_rate_bps: 4_000_000,
        faults: WireFaults { loss_ppm: 10_000, ..WireFaults::NONE },
        ..SimulationOptions::calm(9)
    };
    let outcome = run(options.clone());
    assert!(outcome.is_ok() && outcome.files[0].finished, "{outcome}");
    // Up to three wires lose 1% each. The offer and the end take some round trips.
    let least_ms = outcome.files[0].size * 8 / 4_000;
    let took_ms = outcome.files[0].took_ms;
    assert!((least_ms..least_ms * 105 / 100 + 500).contains(&took_ms), "{least_ms} {outcome}");
    let by_law = run(SimulationOptions { fixed_rate_bps: 0, ..options });
    assert!(by_law.files[0].took_ms < least_ms / 2, "{by_law}");
}

/// Cells wait on purpose, as in mixes. Holds of routers have the effect of a longer path. A host
/// that holds its own cells learns 5 ms later that its link is busy, as with a queue farther away.
#[test]
fn holds_slow_no_file_and_lose_no_link() {
    for seed in [9, 10, 12] {
        let calm = SimulationOptions {
            files: 1,
            file_bytes_max: 32 << 20,
            ..SimulationOptions::calm(seed)
        };
        let held = |calm: &SimulationOptions, hosts: u64| {
            let outcome =
                run(SimulationOptions { hold_us: 5_000, host_hold_us: hosts, ..calm.clone() });
            assert!(outcome.is_ok() && outcome.cells_held > 5_000, "{outcome}");
            assert_eq!((outcome.links_down, outcome.files[0].attempts), (0, 1), "{outcome}");
            outcome
        };
        let steady = SimulationOptions { fixed_rate_bps: 60_000_000, ..calm.clone() };
        // The offer, the start and the end take some round trips of up to 34 ms.
        for (options, hosts, percent) in
            [(&calm, 0, 104), (&calm, 5_000, 106), (&steady, 5_000, 102)]
        {
            let (without, with) = (run(options.clone()), held(options, hosts));
            let most = without.files[0].took_ms * percent / 100 + 250;
            assert!(with.files[0].took_ms < most, "{without}{with}");
            let is_overrun = hosts > 0 && options.fixed_rate_bps == 0;
            assert!(is_overrun || with.cells_marked == 0, "{with}");
            assert_eq!((without.cells_marked, without.cells_held), (0, 0), "{without}");
        }
    }
}

#[test]
fn troubled_networks_with_holds_keep_the_rules() {
    for seed in 0..10 {
        let hold_us = 1_000 + 1_000 * seed;
        let outcome = run(SimulationOptions {
            hold_us,
            host_hold_us: hold_us,
            ..SimulationOptions::from_seed(seed)
        });
        assert!(outcome.is_ok() && outcome.cells_held > 0, "{outcome}");
        let outcome = run(SimulationOptions {
            hold_us,
            host_hold_us: hold_us,
            ..SimulationOptions::direct(seed)
        });
        assert!(outcome.is_ok() && outcome.cells_held > 0, "{outcome}");
    }
}

#[test]
fn troubled_networks_keep_the_rules() {
    for seed in 0..12 {
        let outcome =
            run(SimulationOptions { crashes: 0, wipes: 0, ..SimulationOptions::from_seed(seed) });
        assert!(outcome.is_ok(), "{outcome}");
    }
}

#[test]
fn networks_with_crashing_nodes_keep_the_rules() {
    for seed in 0..20 {
        let outcome = run(SimulationOptions::from_seed(seed));
        assert!(outcome.is_ok(), "{outcome}");
    }
}

#[test]
fn hosts_with_links_of_their_own_keep_the_rules() {
    let mut came_up = 0;
    for seed in 0..16 {
        let outcome = run(SimulationOptions::direct(seed));
        assert!(outcome.is_ok(), "{outcome}");
        came_up += outcome.direct_links;
    }
    assert!(came_up > 32, "{came_up}");
}

#[test]
fn hosts_whose_links_are_forbidden_at_times_keep_the_rules() {
    let mut came_up = 0;
    for seed in 0..16 {
        let outcome = run(SimulationOptions::direct_bans(seed));
        assert!(outcome.is_ok(), "{outcome}");
        came_up += outcome.direct_links;
    }
    assert!(came_up > 32, "{came_up}");
}

/// For any number of workers, each direct link has the level that its two hosts agree on. Frames
/// that an attacker on the wire alters or repeats are dropped with a reason.
#[test]
fn direct_links_below_encryption_keep_the_rules_with_any_number_of_workers() {
    for (workers, direct_level) in [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2)] {
        // Below `authenticate`, nothing protects packets of programs from changes.
        let corrupt_ppm = if direct_level == 1 { 3_000 } else { 0 };
        let faults = WireFaults { replay_ppm: 20_000, corrupt_ppm, ..WireFaults::NONE };
        let options = SimulationOptions {
            workers,
            direct_level,
            faults,
            direct_wires: 15,
            flows: 8,
            files: 0,
            trouble_ms: 6_000,
            ..SimulationOptions::calm(11)
        };
        let outcome = run(options);
        assert!(outcome.is_ok(), "{workers} workers: {outcome}");
        assert!(outcome.direct_links >= 8 && outcome.packets_there > 500, "{outcome}");
        let dropped = |reason: DropReason| outcome.drops.get(reason.label()).copied().unwrap_or(0);
        assert!(dropped(DropReason::Replayed) > 20, "{:?}", outcome.drops);
        assert_eq!(dropped(DropReason::BadTag) > 0, direct_level == 1, "{:?}", outcome.drops);
    }
}

#[test]
fn hidden_pairs_keep_the_rules_and_no_cell_names_them() {
    for circuits in 1..=5 {
        let options = SimulationOptions {
            routers: 6,
            hosts: 8,
            files: 0,
            flows: 4,
            circuits,
            ..SimulationOptions::calm(3)
        };
        let outcome = run(options);
        assert!(outcome.is_ok() && outcome.packets_there > 1_000, "{circuits}: {outcome}");
        assert_eq!(outcome.pings, 56, "eight hosts, each to each");
    }
    for seed in 0..6 {
        let outcome = run(SimulationOptions::circuits(seed));
        assert!(outcome.is_ok(), "{outcome}");
    }
}

/// Routers alter, repeat and replace leg cells. Each such cell is dropped with a reason at a node
/// of its circuit. Programs and files only notice losses.
#[test]
fn what_routers_spoil_dies_by_name() {
    let mut spoilt = 0;
    for circuits in [1, 2, 3, 5] {
        let options = SimulationOptions {
            routers: 6,
            hosts: 6,
            files: 2,
            file_bytes_max: 400_000,
            flows: 4,
            circuits,
            spoilt_ppm: 30_000,
            trouble_ms: 4_000,
            ..SimulationOptions::calm(3 + u64::from(circuits))
        };
        let outcome = run(options);
        assert!(outcome.is_ok(), "{circuits}: {outcome}");
        spoilt += outcome.cells_spoilt;
    }
    assert!(spoilt > 80, "{spoilt}");
}

#[test]
fn a_direct_link_spares_the_routers_and_its_end_loses_no_file() {
    // Two hosts at the ends of a line, with a wire between them.
    let options = SimulationOptions {
        topology: RouterTopology::Line,
        routers: 4,
        hosts: 4,
        direct_wires: 6,
        files: 6,
        file_bytes_max: 8 << 20,
        trouble_ms: 12_000,
        ..SimulationOptions::calm(7)
    };
    let routed = run(SimulationOptions { direct_wires: 0, ..options.clone() });
    let direct = run(options);
    assert!(routed.is_ok() && direct.is_ok(), "{direct}");
    assert!(direct.files.iter().all(|file| file.finished), "{direct}");
    assert!(routed.direct_links == 0 && direct.direct_links >= 4, "{direct}");
    assert!(direct.frames_sent < routed.frames_sent * 3 / 4, "{routed}{direct}");
}
