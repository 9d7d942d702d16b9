//! Networks with shifting addresses. Two neighbours of a node never see the same address of it, and
//! each address is used for one epoch. Frames to an expired address reach no session. Data flows as
//! with fixed addresses.

use shoal_sim::{SimulationOptions, run};
use shoal_wire::DropReason;

/// A day of two routers and three hosts, with epochs from a second to an hour. Links are cut and
/// filtered, nodes crash, clocks drift, and wall clocks are wrong.
#[test]
fn a_day_of_addresses_that_shift_keeps_the_rules() {
    let outcome = run(SimulationOptions::shifting(0, 24));
    assert!(outcome.is_ok(), "{outcome}");
    // Two addresses per second, on one link.
    assert!(outcome.addresses > 170_000, "{outcome}");
    let stale = outcome.drops.get(DropReason::StaleAddress.label());
    assert!(stale.is_some_and(|stale| *stale > 4_000), "{:?}", outcome.drops);
}

#[test]
fn links_are_down_no_longer_than_where_addresses_stay() {
    let (mut shifting, mut staying) = (0.0, 0.0);
    for seed in 1..4 {
        // Fixed addresses are not affected by filters and new prefixes. Hosts call each other all
        // the time: an idle link notices a neighbour's crash only at its next keepalive, up to 12 s
        // later.
        let calm = SimulationOptions {
            filters: 0,
            renumberings: 0,
            ..SimulationOptions::shifting(seed, 1)
        };
        let options =
            SimulationOptions { pulse_ms: 1_000, crashes: 2, cuts: 2, one_way_cuts: 2, ..calm };
        let [with, without] = [options.shift_s.clone(), Vec::new()].map(|shift_s| {
            let outcome = run(SimulationOptions { shift_s, ..options.clone() });
            assert!(outcome.is_ok(), "{outcome}");
            outcome.down.as_secs_f64()
        });
        shifting += with;
        staying += without;
    }
    println!("links were down for {shifting} s with shifting addresses, and {staying} s without");
    assert!(shifting < staying * 1.2 + 1.0, "{shifting} s, without {staying} s");
}

#[test]
fn a_seed_replays_with_its_addresses_and_lengths_of_epochs() {
    let options =
        || SimulationOptions { crashes: 2, workers: 2, ..SimulationOptions::shifting(3, 1) };
    let (first, second) = (run(options()), run(options()));
    assert!(first.is_ok(), "{first}");
    assert_eq!(first, second);
}

#[test]
fn troubled_networks_of_all_kinds_shift() {
    for seed in 0..6 {
        let outcome = run(SimulationOptions::shifts(seed));
        assert!(outcome.is_ok() && outcome.addresses > 40, "{outcome}");
    }
}

/// Six hours without fixed endpoints, with wall clocks that differ by up to nine minutes.
#[test]
fn hours_of_nodes_without_endpoints_keep_the_rules() {
    let outcome = run(meeting(0, 6));
    assert!(outcome.is_ok(), "{outcome}");
    assert!(outcome.addresses > 42_500, "{outcome}");
}

/// A network whose nodes meet at rendezvous addresses.
fn meeting(seed: u64, hours: u32) -> SimulationOptions {
    // The nodes' files don't know a new prefix.
    let options = SimulationOptions::shifting(seed, hours);
    SimulationOptions { rendezvous: 1, wall_off_s: 270, renumberings: 0, ..options }
}

#[test]
fn nodes_without_endpoints_whose_clocks_differ_by_nine_minutes_meet() {
    for seed in 1..5 {
        let outcome = run(meeting(seed, 1));
        assert!(outcome.is_ok() && outcome.addresses > 40, "{outcome}");
    }
}

/// Hosts whose clocks are wrong by an hour, and routers whose clocks differ by 40 minutes.
#[test]
fn clocks_that_differ_by_an_hour_meet_at_the_endpoint_that_stays() {
    for seed in 1..4 {
        let options = SimulationOptions { rendezvous: 2, wall_off_s: 3_600, ..meeting(seed, 1) };
        let outcome = run(options);
        assert!(outcome.is_ok() && outcome.addresses > 40, "{outcome}");
    }
}
