//! Experiments without a network: time per stage for one segment, and methods of file access.

mod ciphers;
mod methods;

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use shoal_crypto::quantile::median;

use crate::record::{ReportTable, ScenarioReport};
use crate::run::RunOptions;
use crate::scenario::Scenario;
use crate::workspace::Workspace;

/// File bytes in a segment.
pub const SEGMENT: usize = 1_366;
/// Length of a full frame in bytes.
pub const FRAME: usize = 1_440;
/// Segments in a chunk, the unit of disk access.
pub const CHUNK_SEGMENTS: usize = 192;
/// Number of measurements of each stage; medians are reported.
const ROUNDS: usize = 9;

/// A chain without limits, to measure the time that whole nodes use per segment.
const CHAIN: &str = r#"
title = "chain"
about = "what nodes use"
topology = "chain"
[links]
rate = "none"
[[flow]]
name = "file"
from = "h1"
to = "h2"
size_mb = 1000
"#;

/// Time per stage for one segment, beside the paper's figures 16 and 20.
pub fn latency(options: &RunOptions, report: &mut ScenarioReport) -> Result<()> {
    options.say("ciphers");
    report.tables.push(ciphers::table());
    let workspace = Workspace::new(2 << 28)?;
    options.say("files and sockets");
    let disk = methods::chunk_times(workspace.path())?;
    let udp = ciphers::udp()?;
    let seal = ciphers::seal_ns();
    let open = ciphers::open_ns();
    let hash = ciphers::hash_ns();
    options.say("whole nodes");
    let whole = whole_nodes(options)?;
    let rows = |parts: &[(&str, Option<f64>, Option<f64>)]| {
        let row = |(name, ours, paper): &(&str, _, _)| ((*name).to_owned(), vec![*ours, *paper]);
        parts.iter().map(row).collect()
    };
    let table = |title: &str, parts: &[(&str, Option<f64>, Option<f64>)]| ReportTable {
        mixed: false,
        title: title.into(),
        columns: vec!["stage".into(), "Shoal".into(), "paper".into()],
        rows: rows(parts),
        unit: "ns per segment (Shoal's has 1,366 bytes, the paper's 1,024)".into(),
    };
    let own = |node: &str| whole.iter().find(|(name, _)| name == node).map(|(_, ns)| *ns);
    report.tables.push(table(
        "Sender",
        &[
            ("read", Some(disk.read), Some(264.0)),
            ("hash (BLAKE3)", Some(hash), None),
            ("encrypt end to end", Some(seal), None),
            ("encrypt for the link", Some(seal), Some(15_625.0)),
            ("inject (UDP, 44 a call)", Some(udp.send), Some(8_112.0)),
            ("logic", None, Some(4_609.0)),
            ("whole node, by its CPU time", own("h1"), Some(28_616.0)),
        ],
    ));
    report.tables.push(table(
        "Router",
        &[
            ("take (UDP, coalesced)", Some(udp.receive), None),
            ("decrypt", Some(open), Some(15_429.0)),
            ("encrypt", Some(seal), Some(15_625.0)),
            ("inject (UDP, 44 a call)", Some(udp.send), Some(8_112.0)),
            ("logic", None, Some(82.0)),
            ("whole node, by its CPU time", own("r1"), Some(39_254.0)),
            ("the paper's best: 4 threads, -O2", None, Some(20_871.0)),
        ],
    ));
    report.tables.push(table(
        "Receiver",
        &[
            ("take (UDP, coalesced)", Some(udp.receive), None),
            ("decrypt for the link", Some(open), Some(15_429.0)),
            ("decrypt end to end", Some(open), None),
            ("hash (BLAKE3)", Some(hash), None),
            ("write", Some(disk.write), Some(2_145.0)),
            ("logic", None, Some(5_203.0)),
            ("whole node, by its CPU time", own("h2"), Some(22_676.0)),
        ],
    ));
    Ok(())
}

/// Time of single operations, in nanoseconds per full frame.
pub struct CipherTimes {
    /// Sealing.
    pub seal: f64,
    /// Opening.
    pub open: f64,
}

/// Measures sealing and opening.
pub fn parts() -> CipherTimes {
    CipherTimes { seal: ciphers::seal_ns(), open: ciphers::open_ns() }
}

/// CPU time per segment of every node of an unlimited chain, in nanoseconds.
fn whole_nodes(options: &RunOptions) -> Result<Vec<(String, f64)>> {
    let scenario = Scenario::parse("chain".as_ref(), CHAIN).context("the chain")?;
    let options = RunOptions { quiet: true, case: None, repeat: None, ..options.clone() };
    let report = crate::run::run("chain", &scenario, &options)?;
    let run = report.cases.first().and_then(|c| c.runs.first()).context("no run")?;
    let segments = 1e9 / SEGMENT as f64;
    Ok(run.nodes.iter().map(|n| (n.name.clone(), n.cpu_s / segments * 1e9)).collect())
}

/// Methods to read and write a file.
pub fn methods(options: &RunOptions, report: &mut ScenarioReport) -> Result<()> {
    let workspace = Workspace::new(2 * methods::BYTES as u64)?;
    options.say(&format!("in {}", workspace.place));
    report.tables.extend(methods::tables(workspace.path())?);
    Ok(())
}

/// Median over several rounds of the nanoseconds that `work` takes, divided by `count`.
fn median_ns(count: usize, mut work: impl FnMut()) -> f64 {
    let rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_nanos() as f64 / count as f64
        })
        .collect();
    median(&rounds).unwrap_or(f64::NAN)
}

/// Fails unless `found` equals `wanted`.
fn all(found: usize, wanted: usize) -> Result<()> {
    ensure!(found == wanted, "{found} bytes instead of {wanted}");
    Ok(())
}
