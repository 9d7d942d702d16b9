//! The results of a run.

use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use shoal_wire::Time;

use crate::check::Violation;
use crate::diagram;

/// The result for one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileOutcome {
    /// Sending node.
    pub from: String,
    /// Receiving node.
    pub to: String,
    /// Length in bytes.
    pub size: u64,
    /// Number of offers: one, and one more after each failure or crash of the sender.
    pub attempts: u32,
    /// True if the sender was told that the receiver has the file.
    pub finished: bool,
    /// Last failure that the sender was told, if there is one.
    pub failure: Option<String>,
    /// Virtual time from the first offer to the end, in milliseconds.
    pub took_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FrameFate {
    Arrives,
    /// The frame arrives with a bit flipped.
    Corrupted,
    Lost,
}

/// Equal frames that one node sent to another at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SentFrames {
    /// Time of sending, in nanoseconds of virtual time.
    pub at_ns: u64,
    /// Number of the sender.
    pub from: usize,
    /// Number of the receiver; `None` if no node has the address.
    pub to: Option<usize>,
    /// Length of each frame in bytes.
    pub len: usize,
    /// Number of frames.
    pub count: u32,
    pub fate: FrameFate,
}

/// An event at a node or in the whole network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Nanoseconds of virtual time.
    pub at_ns: u64,
    /// Number of the node; `None` for the whole network.
    pub node: Option<usize>,
    pub text: String,
}

impl fmt::Display for LogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Time(self.at_ns))?;
        match self.node {
            Some(node) => write!(f, " node {node}: {}", self.text),
            None => write!(f, " {}", self.text),
        }
    }
}

impl Serialize for LogEntry {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// Waiting times of cells in mixes with one strategy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StrategyWaits {
    pub strategy: String,
    /// Number of cells that waited only for the mix.
    pub cells: u64,
    /// Number of cells that also waited for their link or for a paused relay. The following fields
    /// exclude them.
    pub excused: u64,
    /// Mean wait in milliseconds.
    pub mean_ms: f64,
    /// Mean wait by the truncated law, in milliseconds.
    pub law_ms: f64,
    /// 99th percentile of the lateness against the strategy's time, in milliseconds.
    pub late_p99_ms: f64,
}

/// Results of the call of one host to another, in milliseconds since its start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CallTimes {
    /// Time until there was a session.
    pub session_ms: Option<f64>,
    /// Time until the call was answered.
    pub answer_ms: Option<f64>,
    /// Time until a direct link was up.
    pub direct_ms: Option<f64>,
}

/// The results of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SimulationOutcome {
    /// The run's seed.
    pub seed: u64,
    /// Rules that were broken; empty if there are none.
    pub violations: Vec<Violation>,
    /// Hash over time, ends and length of every frame, and over all events. Equal options give
    /// equal hashes.
    pub trace: String,
    #[serde(rename = "virtual_ms", serialize_with = "as_ms")]
    pub virtual_time: Duration,
    /// Frames that nodes sent.
    pub frames_sent: u64,
    /// Frames that wires lost.
    pub frames_lost: u64,
    /// Frames that translators of addresses dropped.
    pub frames_refused: u64,
    /// Frames that arrived at nodes, copies included.
    pub frames_delivered: u64,
    /// Cells that holds delayed.
    pub cells_held: u64,
    /// Cells that got a congestion mark.
    pub cells_marked: u64,
    /// Times that a node lost a neighbour.
    pub links_down: u64,
    /// Total time for which links were down while nothing was wrong with them, in runs whose hosts
    /// call each other throughout.
    #[serde(rename = "down_ms", serialize_with = "as_ms")]
    pub down: Duration,
    /// Number of shifting addresses that carried frames.
    pub addresses: u64,
    /// Number of calls of nodes.
    pub steps: u64,
    /// Number of AEAD keys that were created.
    pub keys: u64,
    /// Number of seals with these keys.
    pub seals: u64,
    /// Altered leg cells that reached the end of their leg.
    pub cells_spoilt: u64,
    /// Mixed cells that left relays.
    pub cells_mixed: u64,
    /// Waiting times of mixed cells, by strategy.
    pub mixed: Vec<StrategyWaits>,
    /// Changes of next hops, over all routers.
    pub route_changes: u64,
    /// Time from which every router had a route to every other one; checked four times a second.
    pub converged_ms: Option<u64>,
    /// Echo requests sent at the end, host to host.
    pub pings: u64,
    /// Echo replies.
    pub pongs: u64,
    /// Packets that programs wrote.
    pub packets_sent: u64,
    /// Packets that arrived.
    pub packets_there: u64,
    /// Packets that arrived after a later one of their flow.
    pub packets_overtaken: u64,
    /// Times that a direct link came up, at either end.
    pub direct_links: u64,
    /// Reasons why pairs of hosts that wanted a direct link had none at the end.
    pub relayed: BTreeSet<&'static str>,
    /// The call of one host to another, if the options ask for one.
    pub called: Option<CallTimes>,
    pub files: Vec<FileOutcome>,
    /// Descriptions of the faults.
    #[serde(skip)]
    pub faults: Vec<String>,
    /// Number of faults that the seed draws; [`crate::SimulationOptions::skip`] names them by
    /// number.
    pub faults_drawn: u32,
    /// Drops by reason, over all nodes and their runs.
    pub drops: BTreeMap<&'static str, u64>,
    /// The last steps before a violation, oldest first.
    pub log: Vec<LogEntry>,
    /// The last frames before a violation, oldest first.
    #[serde(skip)]
    pub packets: Vec<SentFrames>,
    /// Addresses of the nodes, by number.
    #[serde(skip)]
    pub nodes: Vec<String>,
    /// Description of the network: one line per wire.
    pub topology: Vec<String>,
}

fn as_ms<S: serde::Serializer>(value: &Duration, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u64(value.as_millis() as u64)
}

impl SimulationOutcome {
    /// True if no rule was broken.
    pub fn is_ok(&self) -> bool {
        self.violations.is_empty()
    }
}

impl fmt::Display for SimulationOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_ok() { "ok" } else { "FAILED" };
        writeln!(f, "seed {}: {verdict}, trace {}", self.seed, &self.trace[..16])?;
        writeln!(
            f,
            "  {:.1} s, {} frames sent, {} delivered, {} route changes, {}/{} pings answered",
            self.virtual_time.as_secs_f64(),
            self.frames_sent,
            self.frames_delivered,
            self.route_changes,
            self.pongs,
            self.pings,
        )?;
        if self.addresses > 0 {
            let (addresses, down) = (self.addresses, self.down.as_secs_f64());
            writeln!(f, "  {addresses} addresses; links down without a fault for {down:.1} s")?;
        }
        for file in &self.files {
            let end = match (&file.failure, file.finished) {
                (_, true) => "arrived",
                (Some(why), false) => why.as_str(),
                (None, false) => "unfinished",
            };
            writeln!(
                f,
                "  file {} -> {}: {} bytes, {} attempt(s), {end} after {} ms",
                file.from, file.to, file.size, file.attempts, file.took_ms
            )?;
        }
        for StrategyWaits { strategy, cells, excused, mean_ms, law_ms, late_p99_ms } in &self.mixed
        {
            writeln!(
                f,
                "  mixes, {strategy}: {cells} cells waited for {mean_ms:.2} ms, by the law for \
                 {law_ms:.2}; 99% are at most {late_p99_ms:.3} ms late; {excused} also waited for \
                 their link"
            )?;
        }
        if self.is_ok() {
            return Ok(());
        }
        self.topology.iter().try_for_each(|wire| writeln!(f, "  {wire}"))?;
        self.drops.iter().try_for_each(|(reason, n)| writeln!(f, "  dropped {reason}: {n}"))?;
        self.log.iter().try_for_each(|step| writeln!(f, "  | {step}"))?;
        self.violations.iter().try_for_each(|broken| writeln!(f, "  BROKEN {broken}"))?;
        writeln!(f, "\n```mermaid\n{}```", diagram::mermaid(self))
    }
}
