//! The network's secret changes while wires lose and are cut, and nodes crash and stand still:
//! nobody is shut out who was reachable while both secrets counted, and a member that was removed
//! gets nothing.

use shoal_sim::{Options, Plant, run};

#[test]
fn a_calm_network_changes_its_secret() {
    let options = Options { rotation: true, calm_ms: 75_000, ..Options::calm(1) };
    let outcome = run(Options { trouble_ms: 10_000, ..options });
    assert!(outcome.is_ok(), "{outcome}");
    // Five hosts that stay, each to each.
    assert_eq!((outcome.pings, outcome.pongs), (20, 20));
}

#[test]
fn troubled_networks_of_all_kinds_do_so_too() {
    for seed in 0..16 {
        let outcome = run(Options::rotation(seed));
        assert!(outcome.is_ok(), "{outcome}");
    }
}

#[test]
fn a_seed_replays_though_secrets_are_handed_on() {
    let options = || Options { crashes: 2, wipes: 1, ..Options::rotation(3) };
    assert_eq!(run(options()), run(options()));
}

#[test]
fn planted_faults_are_noticed() {
    for (plant, rule) in [
        (Plant::SecretDropped, "has the new one"),
        (Plant::SecretGiven, "is given no secret"),
        (Plant::SecretForgotten, "can be reached"),
    ] {
        let outcome = run(Options { plant: Some(plant), ..Options::rotation(5) });
        let report = outcome.to_string();
        let seen = report.lines().find(|line| line.contains("BROKEN")).unwrap_or("nothing");
        assert!(seen.contains(rule), "{plant:?}: {seen}");
    }
}
