//! A checker that can't fail proves nothing: each fault planted here must be noticed, and by the
//! checker whose rule it breaks.

use shoal_sim::{Faults, Options, Plant, Topology, run};

/// What is planted, and a piece of what the report must say.
const PLANTED: [(Plant, &str); 44] = [
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
    (Plant::LegSize, "a leg cell of 1399 bytes"),
    (Plant::LegBytes, "16 equal bytes"),
    (Plant::Keys, "have one key"),
    (Plant::Ends, "stands between"),
    (Plant::Spoilt, "spoilt cells"),
    (Plant::Circuits, "circuits that this node began: 200"),
    (Plant::MixSkipped, "a control cell left"),
    (Plant::MixEarly, "early"),
    (Plant::MixLate, "a cell left 250µs late"),
    (Plant::MixLaw, "from the law"),
    (Plant::MixFifo, "too few pairs are inverted"),
    (Plant::MixBiased, "random order"),
    (Plant::MixShare, "cells of one node in a mix: 10"),
    (Plant::CoverPauses, "uses each slot once"),
    (Plant::CoverGaps, "uses each slot once"),
    (Plant::CoverExtra, "uses each slot once"),
    (Plant::CoverShort, "shorter frames"),
    (Plant::ShortHold, "behind mixes arrive in order"),
    (Plant::LongHold, "waited for"),
    (Plant::PacketTwice, "arrived twice"),
    (Plant::PacketChanged, "arrived changed"),
    (Plant::PacketLost, "packets are missing"),
    (Plant::PacketAllowed, "is not allowed"),
];

fn options(plant: Plant) -> Options {
    let workers = if matches!(plant, Plant::RingTwice | Plant::StaleOrder) { 3 } else { 1 };
    let of_circuits =
        [Plant::LegSize, Plant::LegBytes, Plant::Keys, Plant::Ends, Plant::Spoilt, Plant::Circuits];
    let of_mixes = [
        Plant::MixSkipped,
        Plant::MixEarly,
        Plant::MixLate,
        Plant::MixLaw,
        Plant::MixFifo,
        Plant::MixBiased,
        Plant::MixShare,
        Plant::ShortHold,
        Plant::LongHold,
    ];
    let of_cover = [Plant::CoverPauses, Plant::CoverGaps, Plant::CoverExtra, Plant::CoverShort];
    let cover = if of_cover.contains(&plant) { 10 } else { 0 };
    let mixes = u32::from(of_mixes.contains(&plant));
    let circuits = if mixes > 0 || of_circuits.contains(&plant) { 3 } else { 0 };
    // With this seed all relays have cells wait by a law.
    let seed = if mixes > 0 { 5 } else { 7 };
    let calm = Options::calm(seed);
    // Packets wait for long only where some are lost.
    let (loss_ppm, trouble_ms) =
        if plant == Plant::LongHold { (5_000, 6_000) } else { (0, calm.trouble_ms) };
    let (faults, plant) = (Faults { loss_ppm, ..calm.faults }, Some(plant));
    let lost = Options { faults, trouble_ms, ..calm };
    let (topology, flows) = (Topology::Ring, 8);
    Options { topology, flows, circuits, mixes, cover, routers: 4, workers, plant, ..lost }
}

#[test]
fn every_planted_fault_is_noticed_by_its_checker() {
    let mut unseen = Vec::new();
    for (plant, word) in PLANTED {
        let outcome = run(options(plant));
        let report = outcome.to_string();
        if outcome.is_ok() || !report.contains(word) {
            unseen.push(format!("{plant:?} ({word}): {}", report.lines().next().unwrap_or("")));
        }
    }
    assert!(unseen.is_empty(), "{}", unseen.join("\n"));
}

#[test]
fn the_same_network_without_a_planted_fault_passes() {
    let outcome = run(Options { plant: None, ..options(Plant::Busy) });
    assert!(outcome.is_ok(), "{outcome}");
}
