//! Tests of the checkers: each planted fault must be noticed by the checker whose rule it breaks.

use shoal_crypto::PlantedFault;
use shoal_sim::InjectedFault::Node;
use shoal_sim::{InjectedFault, RouterTopology, SimulationOptions, WireFaults, run};

/// Planted faults, each with a part of the expected report. The fault is between nodes or in the
/// input of a checker; nodes work correctly.
const PLANTED: [(InjectedFault, &str); 28] = [
    (InjectedFault::Plaintext, "in the clear"),
    (InjectedFault::OddSize, "a frame of 1439 bytes"),
    (InjectedFault::Zeros, "equal bytes"),
    (InjectedFault::Counter, "counter"),
    (InjectedFault::Loop, "circle"),
    (InjectedFault::BlackHole, "route"),
    (InjectedFault::DiskBit, "file"),
    (InjectedFault::Ghost, "file"),
    (InjectedFault::Silence, "neither there nor given up"),
    (InjectedFault::Vanish, "frame"),
    (InjectedFault::VanishOut, "frame"),
    (InjectedFault::VanishOnWire, "on the wires"),
    (InjectedFault::VanishHeld, "in a hold"),
    (InjectedFault::Overtake, "passes another"),
    (InjectedFault::Queue, "queue"),
    (InjectedFault::Table, "session"),
    (InjectedFault::Deaf, "reach"),
    (InjectedFault::Busy, "due"),
    (InjectedFault::RingTwice, "frames that came in vanished"),
    (InjectedFault::StaleOrder, "have other state"),
    (InjectedFault::Named, "hidden"),
    // A node that reveals its keys would have to do so outside all protocols.
    (InjectedFault::Keys, "have one key"),
    // A real excess would need thousands of circuits.
    (InjectedFault::Circuits, "circuits that this node began: 200"),
    (InjectedFault::PacketTwice, "arrived twice"),
    (InjectedFault::PacketChanged, "arrived changed"),
    (InjectedFault::PacketLost, "packets are missing"),
    (InjectedFault::PacketAllowed, "is not allowed"),
    (InjectedFault::CrashLosesFile, "a planted rule"),
];

/// Flaws of nodes in networks with circuits. Words behind `|` are of another checker that may be
/// first: a repeated cell that goes on has bytes equal to those of the first one.
const OF_CIRCUITS: [(InjectedFault, &str); 10] = [
    (Node(PlantedFault::LayerUnverified), "spoilt cells came to node"),
    (Node(PlantedFault::LayerReplayed), "spoilt cells are dropped|equal bytes"),
    (Node(PlantedFault::BackReplayed), "a counter seals once"),
    (Node(PlantedFault::NumberTwice), "a counter seals once"),
    (Node(PlantedFault::LayerOpen), "equal bytes"),
    (Node(PlantedFault::NoFiller), "equal bytes"),
    (Node(PlantedFault::CircuitKept), "circuits whose time is over"),
    (Node(PlantedFault::LegShort), "a leg cell of"),
    (Node(PlantedFault::PastCircuit), "no cell names two hosts that are hidden"),
    (InjectedFault::OneRelay, "stands between"),
];

/// Flaws of nodes in networks with mixes, and wrong holds.
const OF_MIXES: [(InjectedFault, &str); 10] = [
    (Node(PlantedFault::ControlUnmixed), "cell left"),
    (Node(PlantedFault::MixHasty), "from the law"),
    (Node(PlantedFault::MixEarly), "early"),
    (Node(PlantedFault::MixLate), "250\u{b5}s late"),
    (Node(PlantedFault::MixInOrder), "too few pairs are inverted"),
    (Node(PlantedFault::MixMoves), "leave in a random order"),
    (Node(PlantedFault::MixOverflows), "early"),
    (Node(PlantedFault::MixNoShare), "cells of one node in a mix"),
    (InjectedFault::ShortHold, "behind mixes arrive in order"),
    (InjectedFault::LongHold, "waited for"),
];

/// Flaws of nodes in networks with covered links.
const OF_COVER: [(InjectedFault, &str); 4] = [
    (Node(PlantedFault::CoverPauses), "uses each slot once"),
    (Node(PlantedFault::CoverPassesGaps), "uses each slot once"),
    (Node(PlantedFault::CoverExtra), "uses each slot once"),
    (Node(PlantedFault::CoverReports), "shorter frames"),
];

/// Flaws of nodes in networks with shifting addresses, and one fault in the input of a checker.
const OF_SHIFTS: [(InjectedFault, &str); 8] = [
    (Node(PlantedFault::ShiftOneSecret), "two neighbours of a node never see"),
    (Node(PlantedFault::ShiftOfLink), "is used for one epoch alone"),
    (Node(PlantedFault::ShiftKept), "to an expired address"),
    (Node(PlantedFault::ShiftOnlyNow), "are accepted"),
    (Node(PlantedFault::ShiftAtCall), "that frames pass both ways"),
    (Node(PlantedFault::ShiftAtAnswer), "that frames pass both ways"),
    (Node(PlantedFault::ShiftStays), "while nothing is wrong with it"),
    (InjectedFault::Deaf, "data flows while nothing is wrong"),
];

/// Flaws of nodes in networks with rendezvous addresses.
const OF_MEETINGS: [(InjectedFault, &str); 1] =
    [(Node(PlantedFault::MeetOneSecret), "two neighbours of a node never see")];

/// A flaw of hosts whose direct links are forbidden at times.
const OF_BANS: [(InjectedFault, &str); 1] =
    [(InjectedFault::BanIgnored, "a host that may have no direct links ends them")];

fn options(plant: InjectedFault) -> SimulationOptions {
    let workers =
        if matches!(plant, InjectedFault::RingTwice | InjectedFault::StaleOrder) { 3 } else { 1 };
    let (topology, flows) = (RouterTopology::Ring, 8);
    let circuits =
        if matches!(plant, InjectedFault::Keys | InjectedFault::Circuits) { 3 } else { 0 };
    let crashes = u32::from(plant == InjectedFault::CrashLosesFile);
    let plant = Some(plant);
    SimulationOptions {
        topology,
        flows,
        circuits,
        crashes,
        routers: 4,
        workers,
        plant,
        ..SimulationOptions::calm(7)
    }
}

fn of_circuits(plant: InjectedFault) -> SimulationOptions {
    let options = SimulationOptions { circuits: 3, ..options(plant) };
    // Altered and repeated cells reveal nodes that let them pass. Lost cells leave circuits half
    // open.
    let spoilt_ppm = match plant {
        Node(PlantedFault::LayerUnverified)
        | Node(PlantedFault::LayerReplayed)
        | Node(PlantedFault::BackReplayed) => 50_000,
        _ => 0,
    };
    let loss_ppm = if plant == Node(PlantedFault::CircuitKept) { 100_000 } else { 0 };
    let faults = WireFaults { loss_ppm, ..options.faults };
    let trouble_ms = if spoilt_ppm + loss_ppm > 0 { 6_000 } else { options.trouble_ms };
    SimulationOptions { spoilt_ppm, faults, trouble_ms, ..options }
}

fn of_mixes(plant: InjectedFault) -> SimulationOptions {
    // With this seed all relays delay cells by a law.
    let options = SimulationOptions { seed: 5, mixes: 1, circuits: 3, ..options(plant) };
    let (loss_ppm, trouble_ms) = match plant {
        // Packets wait for long only if some are lost.
        InjectedFault::LongHold => (5_000, 6_000),
        _ => (0, options.trouble_ms),
    };
    let mix_cells = match plant {
        Node(PlantedFault::MixOverflows) | Node(PlantedFault::MixNoShare) => 40,
        _ => 0,
    };
    let faults = WireFaults { loss_ppm, ..options.faults };
    SimulationOptions { faults, trouble_ms, mix_cells, ..options }
}

fn of_shifts(plant: InjectedFault) -> SimulationOptions {
    // Filters that drop all frames between shifting addresses for up to a minute. If epochs are
    // longer, nothing else shows that an end keeps its address.
    let (filters, shift_s) =
        if plant == Node(PlantedFault::ShiftStays) { (5, 600) } else { (0, 2) };
    let faults = WireFaults { loss_ppm: 5_000, ..WireFaults::NONE };
    SimulationOptions {
        filters,
        pulse_ms: 5_000,
        faults,
        plant: Some(plant),
        shift_s: vec![shift_s],
        hosts: 3,
        trouble_ms: 300_000,
        calm_ms: 60_000,
        ..SimulationOptions::calm(7)
    }
}

fn of_meetings(plant: InjectedFault) -> SimulationOptions {
    SimulationOptions { rendezvous: 1, wall_off_s: 60, ..of_shifts(plant) }
}

fn of_cover(plant: InjectedFault) -> SimulationOptions {
    SimulationOptions { cover: 10, ..options(plant) }
}

fn of_bans(plant: InjectedFault) -> SimulationOptions {
    let options = SimulationOptions { direct_wires: 12, ..options(plant) };
    SimulationOptions { direct_bans: 8, trouble_ms: 20_000, ..options }
}

fn notices(
    planted: &[(InjectedFault, &str)],
    options: impl Fn(InjectedFault) -> SimulationOptions,
) {
    let mut unseen = Vec::new();
    for &(plant, word) in planted {
        let outcome = run(options(plant));
        let report = outcome.to_string();
        let is_noticed = word.split('|').any(|word| report.contains(word));
        if outcome.is_ok() || !is_noticed {
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
    notices(&OF_COVER, |plant| SimulationOptions { cover_poisson: true, ..of_cover(plant) });
}

#[test]
fn and_of_nodes_whose_addresses_shift() {
    notices(&OF_SHIFTS, of_shifts);
    notices(&OF_MEETINGS, of_meetings);
}

#[test]
fn and_of_hosts_whose_direct_links_are_forbidden() {
    notices(&OF_BANS, of_bans);
}

#[test]
fn the_same_networks_without_a_planted_fault_pass() {
    let circuits =
        [Node(PlantedFault::LayerUnverified), Node(PlantedFault::CircuitKept)].map(of_circuits);
    let mixes = [Node(PlantedFault::MixEarly), InjectedFault::LongHold].map(of_mixes);
    let shifts = [Node(PlantedFault::ShiftStays), InjectedFault::Deaf].map(of_shifts);
    let meets = [of_meetings(Node(PlantedFault::MeetOneSecret))];
    let all = circuits.into_iter().chain(mixes).chain(shifts).chain(meets);
    let all = all.chain([options(InjectedFault::Busy), of_bans(InjectedFault::BanIgnored)]);
    for options in all {
        let outcome = run(SimulationOptions { plant: None, ..options });
        assert!(outcome.is_ok(), "{outcome}");
    }
}
