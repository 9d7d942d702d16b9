//! Routers that hold every cell for 5 ms, as mixes do: files and programs keep their rate.

use std::time::Duration;

use shoal_e2e::stalls;
use shoal_e2e::town::{LabTown, configure};
use shoal_lab::{Conditions, NetworkKind, Rate, Topology};

const EXTRA: &str = "[interface]\n[data]\nworkers = 2\n[session]\nlanes = 4\n";
const HOLD: &str = "[expert]\nhold_ms = 5\n";
const LEN: usize = 30_000_000;

struct HoldNet(LabTown);

impl HoldNet {
    /// h1, h2 -- r1 -- r2 -- h3, h4 over links of 100 Mbit/s; `routers` is more of the routers'
    /// configuration.
    fn new(routers: &str) -> HoldNet {
        let conditions = Conditions { rate: Some(Rate(100_000_000)), ..Conditions::default() };
        HoldNet(LabTown::new(
            (Topology::pairs(2), NetworkKind::Namespaces, conditions),
            EXTRA,
            |folder| {
                ["r1", "r2"].iter().for_each(|name| configure(folder, name, routers));
            },
        ))
    }

    /// Cells that routers marked.
    fn marks(&self) -> f64 {
        ["r1", "r2"].map(|name| self.0.metric(name, "shoal_cells_marked_total")).iter().sum()
    }

    /// Durations of the `n`th file and the `n`th stream.
    fn times(&self, n: u8) -> [Duration; 2] {
        let file = self.0.send("h1", "h3", (n, LEN)).end();
        [file, self.0.stream("h2", "h4", 7_200 + u16::from(n), (9, LEN))]
    }
}

#[test]
fn files_and_programs_keep_their_rate_through_routers_that_hold_cells() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    stalls::check("rates through routers that hold cells", compare);
}

/// Compares durations with and without a hold, in turn, so that other load slows both. The error
/// says what is wrong.
fn compare() -> Result<(), String> {
    let (without, held) = (HoldNet::new(""), HoldNet::new(HOLD));
    let net = &held.0;
    let established = "shoal_handshakes_total{with=\"link\",outcome=\"established\"}";
    let before = ["r1", "r2"].map(|name| net.metric(name, established));
    let times = [1, 2, 3].map(|n| [without.times(n), held.times(n)]);
    let marks = [&without, &held].map(HoldNet::marks);
    let seen = format!("files and streams without and with a hold: {times:?}; marks {marks:?}");
    println!("{seen}");
    let must = |holds: bool, what: &str| holds.then_some(()).ok_or(format!("{what}: {seen}"));
    for name in ["r1", "r2"] {
        // Six transfers of 30 MB, and the cells in the other direction.
        must(net.metric(name, "shoal_cells_held_total") > 120_000.0, "cells passed the hold by")?;
        let status = net.status(name);
        must((status.links, status.links_up) == (3, 3), "a link is down")?;
        let held = ["mix_full", "queue_full", "other_worker"];
        let lost: Vec<_> = status.drops.iter().filter(|(why, _)| held.contains(&&**why)).collect();
        must(lost.is_empty(), &format!("{lost:?}"))?;
    }
    must(["r1", "r2"].map(|name| net.metric(name, established)) == before, "a link was lost")?;
    // On a busy machine a kernel's queue stalls at times, with or without a hold.
    let cells = net.metric("r1", "shoal_cells_held_total");
    must(marks[1] < marks[0] + 0.1 * cells, "marks")?;
    for kind in 0..2 {
        let mut ratios =
            times.map(|[without, held]| held[kind].as_secs_f64() / without[kind].as_secs_f64());
        ratios.sort_by(f64::total_cmp);
        must(ratios[1] < 1.25, "slower")?;
    }
    must(net.run("h1", &["ping", "h3", "-n", "3"]).0, "no answer")
}
