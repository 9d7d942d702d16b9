//! The network's secret changes while wires lose frames and are cut, and nodes crash and pause.
//! Each member that was reachable while both secrets counted gets the new one. A removed member
//! gets nothing.

use shoal_sim::{InjectedFault, SimulationOptions, run};

#[test]
fn a_calm_network_changes_its_secret() {
    let options =
        SimulationOptions { rotation: true, calm_ms: 75_000, ..SimulationOptions::calm(1) };
    let outcome = run(SimulationOptions { trouble_ms: 10_000, ..options });
    assert!(outcome.is_ok(), "{outcome}");
    // Five remaining hosts, each to each.
    assert_eq!((outcome.pings, outcome.pongs), (20, 20));
}

#[test]
fn troubled_networks_of_all_kinds_do_so_too() {
    for seed in 0..16 {
        let outcome = run(SimulationOptions::rotation(seed));
        assert!(outcome.is_ok(), "{outcome}");
    }
}

#[test]
fn a_seed_replays_though_secrets_are_handed_on() {
    let options = || SimulationOptions { crashes: 2, wipes: 1, ..SimulationOptions::rotation(3) };
    assert_eq!(run(options()), run(options()));
}

#[test]
fn planted_faults_are_noticed() {
    for (plant, rule) in [
        (InjectedFault::SecretDropped, "has the new one"),
        (InjectedFault::SecretGiven, "is given no secret"),
        (InjectedFault::SecretForgotten, "can be reached"),
    ] {
        let outcome =
            run(SimulationOptions { plant: Some(plant), ..SimulationOptions::rotation(5) });
        let report = outcome.to_string();
        let seen = report.lines().find(|line| line.contains("BROKEN")).unwrap_or("nothing");
        assert!(seen.contains(rule), "{plant:?}: {seen}");
    }
}
