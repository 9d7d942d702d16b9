//! Networks whose addresses hop: two neighbours of a node never see the same address of it, each is
//! used for one epoch, what comes to one that is over reaches no session, and data flows as it does
//! where addresses stay.

use shoal_sim::{Options, run};
use shoal_wire::DropReason;

/// A day of two routers and three hosts, whose addresses are used for a second to an hour, while
/// lines are cut and filtered, nodes crash, clocks drift and wall clocks are wrong.
#[test]
fn a_day_of_addresses_that_hop_keeps_the_rules() {
    let outcome = run(Options::hopping(0, 24));
    assert!(outcome.is_ok(), "{outcome}");
    // Two each second, on one link alone.
    assert!(outcome.addresses > 170_000, "{outcome}");
    let stale = outcome.drops.get(DropReason::StaleAddress.label());
    assert!(stale.is_some_and(|stale| *stale > 4_000), "{:?}", outcome.drops);
}

#[test]
fn links_are_down_no_longer_than_where_addresses_stay() {
    let (mut hopping, mut staying) = (0.0, 0.0);
    for seed in 1..7 {
        // Addresses that stay don't pay for a filter or another prefix. Hosts call all the
        // time: an idle link notices a neighbour's crash at its next keepalive, up to 12 s later.
        let calm = Options { filters: 0, renumberings: 0, ..Options::hopping(seed, 1) };
        let options = Options { pulse_ms: 1_000, crashes: 2, cuts: 2, one_way_cuts: 2, ..calm };
        let [with, without] = [options.hop_s.clone(), Vec::new()].map(|hop_s| {
            let outcome = run(Options { hop_s, ..options.clone() });
            assert!(outcome.is_ok(), "{outcome}");
            outcome.down.as_secs_f64()
        });
        hopping += with;
        staying += without;
    }
    println!("links were down for {hopping} s, and {staying} s without hops");
    assert!(hopping < staying * 1.2 + 1.0, "{hopping} s, without {staying} s");
}

#[test]
fn a_seed_replays_with_its_addresses_and_lengths_of_epochs() {
    let options = || Options { crashes: 2, workers: 2, ..Options::hopping(3, 1) };
    let (first, second) = (run(options()), run(options()));
    assert!(first.is_ok(), "{first}");
    assert_eq!(first, second);
}

#[test]
fn troubled_networks_of_all_kinds_hop() {
    for seed in 0..12 {
        let outcome = run(Options::hops(seed));
        assert!(outcome.is_ok() && outcome.addresses > 40, "{outcome}");
    }
}

/// The same day where no node has an endpoint that stays, and wall clocks differ by up to nine
/// minutes.
#[test]
fn a_day_of_nodes_without_endpoints_keeps_the_rules() {
    let outcome = run(meeting(0, 24));
    assert!(outcome.is_ok(), "{outcome}");
    assert!(outcome.addresses > 170_000, "{outcome}");
}

/// A network whose nodes meet at addresses that follow from the time.
fn meeting(seed: u64, hours: u32) -> Options {
    // A prefix that becomes another one is in nobody's file.
    let options = Options::hopping(seed, hours);
    Options { rendezvous: 1, wall_off_s: 270, renumberings: 0, ..options }
}

#[test]
fn nodes_without_endpoints_whose_clocks_differ_by_nine_minutes_meet() {
    for seed in 1..5 {
        let outcome = run(meeting(seed, 1));
        assert!(outcome.is_ok() && outcome.addresses > 40, "{outcome}");
    }
}

/// Hosts whose clocks are off by an hour, and routers whose clocks differ by 40 minutes.
#[test]
fn clocks_that_differ_by_an_hour_meet_at_the_endpoint_that_stays() {
    for seed in 1..4 {
        let options = Options { rendezvous: 2, wall_off_s: 3_600, ..meeting(seed, 1) };
        let outcome = run(options);
        assert!(outcome.is_ok() && outcome.addresses > 40, "{outcome}");
    }
}
