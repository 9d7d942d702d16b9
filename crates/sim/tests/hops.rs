//! Networks whose addresses hop: two neighbours of a node never see the same address of it, each is
//! used for one epoch, what comes to one that is over reaches no session, and data flows as it does
//! where addresses stay.

use shoal_crypto::Flaw;
use shoal_sim::Plant::Node;
use shoal_sim::{Faults, Options, Plant, run};
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
        // What a filter costs, or another prefix, addresses that stay don't pay.
        let options = Options { filters: 0, renumberings: 0, ..Options::hopping(seed, 2) };
        let [with, without] = [options.hop_s.clone(), Vec::new()].map(|hop_s| {
            let outcome = run(Options { hop_s, ..options.clone() });
            assert!(outcome.is_ok(), "{outcome}");
            outcome.down.as_secs_f64()
        });
        hopping += with;
        staying += without;
    }
    assert!(hopping < staying * 1.1 + 1.0, "{hopping} s, without {staying} s");
}

#[test]
fn a_seed_replays_though_addresses_are_drawn_anew() {
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

/// Faults that each checker must see, nodes' own but for the last one, and a piece of what the
/// report must say.
const PLANTED: [(Plant, &str); 8] = [
    (Node(Flaw::HopOneSecret), "two neighbours of a node never see"),
    (Node(Flaw::HopOfLink), "is used for one epoch alone"),
    (Node(Flaw::HopKept), "to an address that is over"),
    (Node(Flaw::HopOnlyNow), "is taken in"),
    (Node(Flaw::HopAtCall), "that frames pass both ways"),
    (Node(Flaw::HopAtAnswer), "that frames pass both ways"),
    (Node(Flaw::HopStays), "while nothing is wrong with it"),
    (Plant::Deaf, "data flows while nothing is wrong"),
];

fn planted(plant: Plant) -> Options {
    // Filters that let nothing pass between addresses that hop, for up to a minute. Where addresses
    // live for longer than that, nothing else shows that an end stays there.
    let (filters, hop_s) = if plant == Node(Flaw::HopStays) { (5, 600) } else { (0, 2) };
    let faults = Faults { loss_ppm: 5_000, ..Faults::NONE };
    Options {
        filters,
        pulse_ms: 5_000,
        faults,
        plant: Some(plant),
        hop_s: vec![hop_s],
        hosts: 3,
        trouble_ms: 300_000,
        calm_ms: 60_000,
        ..Options::calm(7)
    }
}

#[test]
fn every_planted_fault_is_noticed_by_its_checker() {
    let mut unseen = Vec::new();
    for (plant, word) in PLANTED {
        let outcome = run(planted(plant));
        let report = outcome.to_string();
        if outcome.is_ok() || !report.contains(word) {
            let seen = report.lines().find(|line| line.contains("BROKEN")).unwrap_or("nothing");
            unseen.push(format!("{plant:?} ({word}): {seen}"));
        }
    }
    assert!(unseen.is_empty(), "{}", unseen.join("\n"));
}

#[test]
fn the_same_network_without_a_planted_fault_passes() {
    for plant in [Node(Flaw::HopStays), Plant::Deaf] {
        let outcome = run(Options { plant: None, ..planted(plant) });
        assert!(outcome.is_ok(), "{outcome}");
    }
}
