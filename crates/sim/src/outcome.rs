//! What a run says at its end.

use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use shoal_wire::Time;

use crate::check::Violation;
use crate::diagram;

/// What became of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileOutcome {
    /// Sending node.
    pub from: String,
    /// Receiving node.
    pub to: String,
    /// Length in bytes.
    pub size: u64,
    /// How often it was offered: once, and again after each failure or crash of the sender.
    pub attempts: u32,
    /// Whether the sender was told that the receiver has it.
    pub finished: bool,
    /// The last failure the sender was told, if any.
    pub failure: Option<String>,
    /// Virtual time from the first offer to the end, in milliseconds.
    pub took_ms: u64,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// It arrives.
    Arrives,
    /// It arrives with a bit flipped.
    Corrupted,
    /// It never arrives.
    Lost,
}

/// Equal frames that one node sent another at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Packet {
    /// When they were sent, in nanoseconds of virtual time.
    pub at_ns: u64,
    /// Number of the sender.
    pub from: usize,
    /// Number of the receiver; `None` where nobody is.
    pub to: Option<usize>,
    /// Bytes of each.
    pub len: usize,
    /// How many.
    pub count: u32,
    /// What became of them.
    pub fate: Fate,
}

/// Something that happened, at a node or to the whole network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// When, in nanoseconds of virtual time.
    pub at_ns: u64,
    /// Number of the node.
    pub node: Option<usize>,
    /// What, in words.
    pub text: String,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Time(self.at_ns))?;
        match self.node {
            Some(node) => write!(f, " node {node}: {}", self.text),
            None => write!(f, " {}", self.text),
        }
    }
}

impl Serialize for Step {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// How long cells waited in mixes under one strategy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mixed {
    /// What relays did with them.
    pub strategy: String,
    /// How many waited for this alone.
    pub cells: u64,
    /// How many waited for their line, too, or for a relay that stood still. They count for nothing
    /// of what follows.
    pub excused: u64,
    /// How long they waited in the mean, in milliseconds.
    pub mean_ms: f64,
    /// The same as the law says, with what is cut off.
    pub law_ms: f64,
    /// How much later than their strategy says 99 of 100 left at most, in milliseconds.
    pub late_p99_ms: f64,
}

/// What came of the call of one host to another, in milliseconds since it began.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Called {
    /// The two had a session.
    pub session_ms: Option<f64>,
    /// The call was answered.
    pub answer_ms: Option<f64>,
    /// A link of the two past the routers came up.
    pub direct_ms: Option<f64>,
}

/// What happened in a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The run's seed.
    pub seed: u64,
    /// Rules that were broken; empty when all is well.
    pub violations: Vec<Violation>,
    /// Hash over every frame's time, ends and length, and every event. Equal for equal options.
    pub trace: String,
    /// Virtual time that passed.
    #[serde(rename = "virtual_ms", serialize_with = "as_ms")]
    pub virtual_time: Duration,
    /// Frames that nodes sent.
    pub frames_sent: u64,
    /// Those that wires lost.
    pub frames_lost: u64,
    /// Frames that translators of addresses did not pass on.
    pub frames_refused: u64,
    /// Frames that arrived at nodes, copies included.
    pub frames_delivered: u64,
    /// Cells that holds kept back.
    pub cells_held: u64,
    /// Cells that got a congestion mark.
    pub cells_marked: u64,
    /// Times that a node lost a neighbour.
    pub links_down: u64,
    /// For how long links were down in all while nothing was wrong with them, where hosts call each
    /// other all the time.
    #[serde(rename = "down_ms", serialize_with = "as_ms")]
    pub down: Duration,
    /// Addresses between which frames went that hop.
    pub addresses: u64,
    /// Calls of nodes.
    pub steps: u64,
    /// AEAD keys that were used or could have been.
    pub keys: u64,
    /// Times that one of them sealed.
    pub seals: u64,
    /// Leg cells that routers spoilt and that reached the end of their leg.
    pub cells_spoilt: u64,
    /// Mixed cells that left relays.
    pub cells_mixed: u64,
    /// How long mixed cells waited, by strategy.
    pub mixed: Vec<Mixed>,
    /// Changes of next hops, over all routers.
    pub route_changes: u64,
    /// When every router had a route to every other, looked at four times a second.
    pub converged_ms: Option<u64>,
    /// Echo requests sent at the end, host to host.
    pub pings: u64,
    /// Those that were answered.
    pub pongs: u64,
    /// Packets that programs wrote, and that programs at the other ends were given.
    pub packets_sent: u64,
    /// Those that arrived.
    pub packets_there: u64,
    /// Those that arrived after a later one of their flow.
    pub packets_overtaken: u64,
    /// Times that a link of two hosts past the routers came up, at either end.
    pub direct_links: u64,
    /// Why pairs of hosts that wanted a link past the routers had none at the end, in words.
    pub relayed: BTreeSet<&'static str>,
    /// The call of one host to another, where the options ask for one.
    pub called: Option<Called>,
    /// Every file.
    pub files: Vec<FileOutcome>,
    /// What went wrong on purpose, in words.
    #[serde(skip)]
    pub faults: Vec<String>,
    /// How many faults the seed draws; [`crate::Options::skip`] names them by number.
    pub faults_drawn: u32,
    /// Drops by reason, over all nodes and runs.
    pub drops: BTreeMap<&'static str, u64>,
    /// The last steps before a violation, oldest first.
    pub log: Vec<Step>,
    /// The last frames before a violation, oldest first.
    #[serde(skip)]
    pub packets: Vec<Packet>,
    /// Addresses of the nodes, by number.
    #[serde(skip)]
    pub nodes: Vec<String>,
    /// The network, for a reader: one line per wire.
    pub topology: Vec<String>,
}

fn as_ms<S: serde::Serializer>(value: &Duration, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u64(value.as_millis() as u64)
}

impl Outcome {
    /// True when no rule was broken.
    pub fn is_ok(&self) -> bool {
        self.violations.is_empty()
    }
}

impl fmt::Display for Outcome {
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
            writeln!(f, "  {addresses} addresses; links down without a cause for {down:.1} s")?;
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
        for Mixed { strategy, cells, excused, mean_ms, law_ms, late_p99_ms } in &self.mixed {
            writeln!(
                f,
                "  mixes, {strategy}: {cells} cells waited for {mean_ms:.2} ms, by the law for \
                 {law_ms:.2}; 99% are at most {late_p99_ms:.3} ms late; {excused} waited for their \
                 line, too"
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
