//! Hosts at two routers each: all rules hold while routers die, and files and packets arrive.

use shoal_sim::{RouterTopology, SimulationOptions, WireFaults, run};

/// Four meshed routers, with hosts at two of them each. Nodes crash at random.
fn crashing(seed: u64) -> SimulationOptions {
    SimulationOptions {
        two_routers: true,
        topology: RouterTopology::Mesh,
        routers: 4,
        hosts: 6,
        flows: 4,
        files: 4,
        crashes: 3,
        pauses: 1,
        one_way_cuts: 2,
        faults: WireFaults { loss_ppm: 2_000, delay_us: 5_000, ..WireFaults::NONE },
        trouble_ms: 8_000,
        calm_ms: 45_000,
        ..SimulationOptions::calm(seed)
    }
}

#[test]
fn hosts_at_two_routers_lose_nothing_in_a_calm_network() {
    let calm = SimulationOptions { two_routers: true, flows: 4, ..SimulationOptions::calm(1) };
    let outcome = run(calm);
    assert!(outcome.is_ok(), "{outcome}");
    assert!(outcome.files.iter().all(|file| file.finished && file.attempts == 1), "{outcome}");
    assert_eq!(outcome.drops.get("bad_source"), None, "{outcome}");
}

#[test]
fn all_rules_hold_while_routers_die() {
    for seed in 0..12 {
        let workers = 1 + seed as u32 % 3;
        let outcome = run(SimulationOptions { workers, ..crashing(seed) });
        assert!(outcome.is_ok(), "{outcome}");
    }
}

#[test]
fn circuits_between_hosts_at_two_routers_keep_all_rules_too() {
    for seed in 0..6 {
        let circuits = SimulationOptions { routers: 6, circuits: 3, ..crashing(seed) };
        let outcome = run(circuits);
        assert!(outcome.is_ok(), "{outcome}");
    }
}

#[test]
fn the_same_seed_replays_with_two_routers_too() {
    let options = || SimulationOptions { crashes: 0, ..crashing(3) };
    assert_eq!(run(options()), run(options()));
}
