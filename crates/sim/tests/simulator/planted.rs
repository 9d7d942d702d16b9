//! A checker that can't fail proves nothing: each fault planted here must be noticed, and by the
//! checker whose rule it breaks.

use shoal_crypto::Flaw;
use shoal_sim::Plant::Node;
use shoal_sim::{Faults, Options, Plant, Topology, run};

/// What is planted, and a piece of what the report must say. What a checker is shown, or what lies
/// between nodes, differs from what happened; nodes do nothing wrong.
const PLANTED: [(Plant, &str); 28] = [
    (Plant::Plaintext, "in the clear"),
    (Plant::OddSize, "a frame of 1439 bytes"),
    (Plant::Zeros, "equal bytes"),
    (Plant::Counter, "counter"),
    (Plant::Loop, "circle"),
    (Plant::BlackHole, "route"),
    (Plant::DiskBit, "file"),
    (Plant::Ghost, "file"),
    (Plant::Silence, "neither there nor given up"),
    (Plant::Vanish, "frame"),
    (Plant::VanishOut, "frame"),
    (Plant::VanishOnWire, "on the wires"),
    (Plant::VanishHeld, "in a hold"),
    (Plant::Overtake, "passes another"),
    (Plant::Queue, "queue"),
    (Plant::Table, "session"),
    (Plant::Deaf, "reach"),
    (Plant::Busy, "due"),
    (Plant::RingTwice, "frames that came in vanished"),
    (Plant::StaleOrder, "know something else"),
    (Plant::Named, "hidden"),
    // A node that tells others its keys would have to speak with them beside all protocols.
    (Plant::Keys, "have one key"),
    // Thousands of circuits would have to be set up before a node has too many.
    (Plant::Circuits, "circuits that this node began: 200"),
    (Plant::PacketTwice, "arrived twice"),
    (Plant::PacketChanged, "arrived changed"),
    (Plant::PacketLost, "packets are missing"),
    (Plant::PacketAllowed, "is not allowed"),
    (Plant::CrashLosesFile, "a planted rule"),
];

/// Faults of the nodes themselves, where hosts speak over circuits.
const OF_CIRCUITS: [(Plant, &str); 10] = [
    (Node(Flaw::LayerUnverified), "spoilt cells came to node"),
    (Node(Flaw::LayerReplayed), "what was spoilt on the way dies"),
    (Node(Flaw::BackReplayed), "a counter seals once"),
    (Node(Flaw::NumberTwice), "a counter seals once"),
    (Node(Flaw::LayerOpen), "equal bytes"),
    (Node(Flaw::NoFiller), "equal bytes"),
    (Node(Flaw::CircuitKept), "circuits whose time is over"),
    (Node(Flaw::LegShort), "a leg cell of"),
    (Node(Flaw::PastCircuit), "no cell names two hosts that are hidden"),
    (Plant::OneRelay, "stands between"),
];

/// The same where relays mix.
const OF_MIXES: [(Plant, &str); 10] = [
    (Node(Flaw::ControlUnmixed), "cell left"),
    (Node(Flaw::MixHasty), "from the law"),
    (Node(Flaw::MixEarly), "early"),
    (Node(Flaw::MixLate), "250\u{b5}s late"),
    (Node(Flaw::MixInOrder), "too few pairs are inverted"),
    (Node(Flaw::MixMoves), "leave in a random order"),
    (Node(Flaw::MixOverflows), "early"),
    (Node(Flaw::MixNoShare), "cells of one node in a mix"),
    (Plant::ShortHold, "behind mixes arrive in order"),
    (Plant::LongHold, "waited for"),
];

/// The same where the links of hosts are covered.
const OF_COVER: [(Plant, &str); 4] = [
    (Node(Flaw::CoverPauses), "uses each slot once"),
    (Node(Flaw::CoverPassesGaps), "uses each slot once"),
    (Node(Flaw::CoverExtra), "uses each slot once"),
    (Node(Flaw::CoverReports), "shorter frames"),
];

/// The same where addresses hop, and one that changes what a checker is shown.
const OF_HOPS: [(Plant, &str); 8] = [
    (Node(Flaw::HopOneSecret), "two neighbours of a node never see"),
    (Node(Flaw::HopOfLink), "is used for one epoch alone"),
    (Node(Flaw::HopKept), "to an address that is over"),
    (Node(Flaw::HopOnlyNow), "is taken in"),
    (Node(Flaw::HopAtCall), "that frames pass both ways"),
    (Node(Flaw::HopAtAnswer), "that frames pass both ways"),
    (Node(Flaw::HopStays), "while nothing is wrong with it"),
    (Plant::Deaf, "data flows while nothing is wrong"),
];

/// The same where neighbours meet at addresses that follow from the time.
const OF_MEETINGS: [(Plant, &str); 1] =
    [(Node(Flaw::MeetOneSecret), "two neighbours of a node never see")];

fn options(plant: Plant) -> Options {
    let workers = if matches!(plant, Plant::RingTwice | Plant::StaleOrder) { 3 } else { 1 };
    let (topology, flows) = (Topology::Ring, 8);
    let circuits = if matches!(plant, Plant::Keys | Plant::Circuits) { 3 } else { 0 };
    let crashes = u32::from(plant == Plant::CrashLosesFile);
    let plant = Some(plant);
    Options { topology, flows, circuits, crashes, routers: 4, workers, plant, ..Options::calm(7) }
}

fn of_circuits(plant: Plant) -> Options {
    let options = Options { circuits: 3, ..options(plant) };
    // Where cells are changed and repeated, who lets them pass is seen; where some are lost,
    // circuits stay half open.
    let spoilt_ppm = match plant {
        Node(Flaw::LayerUnverified) | Node(Flaw::LayerReplayed) | Node(Flaw::BackReplayed) => {
            50_000
        }
        _ => 0,
    };
    let loss_ppm = if plant == Node(Flaw::CircuitKept) { 100_000 } else { 0 };
    let faults = Faults { loss_ppm, ..options.faults };
    let trouble_ms = if spoilt_ppm + loss_ppm > 0 { 6_000 } else { options.trouble_ms };
    Options { spoilt_ppm, faults, trouble_ms, ..options }
}

fn of_mixes(plant: Plant) -> Options {
    // With this seed all relays have cells wait by a law.
    let options = Options { seed: 5, mixes: 1, circuits: 3, ..options(plant) };
    let (loss_ppm, trouble_ms) = match plant {
        // Packets wait for long only where some are lost.
        Plant::LongHold => (5_000, 6_000),
        _ => (0, options.trouble_ms),
    };
    let mix_cells = match plant {
        Node(Flaw::MixOverflows) | Node(Flaw::MixNoShare) => 40,
        _ => 0,
    };
    let faults = Faults { loss_ppm, ..options.faults };
    Options { faults, trouble_ms, mix_cells, ..options }
}

fn of_hops(plant: Plant) -> Options {
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

fn of_meetings(plant: Plant) -> Options {
    Options { rendezvous: 1, wall_off_s: 60, ..of_hops(plant) }
}

fn of_cover(plant: Plant) -> Options {
    Options { cover: 10, ..options(plant) }
}

fn notices(planted: &[(Plant, &str)], options: impl Fn(Plant) -> Options) {
    let mut unseen = Vec::new();
    for &(plant, word) in planted {
        let outcome = run(options(plant));
        let report = outcome.to_string();
        if outcome.is_ok() || !report.contains(word) {
            let seen = report.lines().find(|line| line.contains("BROKEN")).unwrap_or("nothing");
            unseen.push(format!("{plant:?} ({word}): {seen}"));
        }
    }
    assert!(unseen.is_empty(), "{}", unseen.join("\n"));
}

#[test]
fn every_planted_fault_is_noticed_by_its_checker() {
    notices(&PLANTED, options);
}

#[test]
fn so_are_faults_of_nodes_with_circuits() {
    notices(&OF_CIRCUITS, of_circuits);
}

#[test]
fn and_of_relays_that_mix() {
    notices(&OF_MIXES, of_mixes);
}

#[test]
fn and_of_nodes_whose_links_are_covered() {
    notices(&OF_COVER, of_cover);
    notices(&OF_COVER, |plant| Options { cover_poisson: true, ..of_cover(plant) });
}

#[test]
fn and_of_nodes_whose_addresses_hop() {
    notices(&OF_HOPS, of_hops);
    notices(&OF_MEETINGS, of_meetings);
}

#[test]
fn the_same_networks_without_a_planted_fault_pass() {
    let circuits = [Node(Flaw::LayerUnverified), Node(Flaw::CircuitKept)].map(of_circuits);
    let mixes = [Node(Flaw::MixEarly), Plant::LongHold].map(of_mixes);
    let hops = [Node(Flaw::HopStays), Plant::Deaf].map(of_hops);
    let meets = [of_meetings(Node(Flaw::MeetOneSecret))];
    let all = circuits.into_iter().chain(mixes).chain(hops).chain(meets);
    let all = all.chain([options(Plant::Busy)]);
    for options in all {
        let outcome = run(Options { plant: None, ..options });
        assert!(outcome.is_ok(), "{outcome}");
    }
}
