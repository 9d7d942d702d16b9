//! Figures of the demo, for people and for programs.

use std::fmt;

use serde::Serialize;
use shoal_wire::SizeClass;

use crate::network::IpFamily;
use crate::statistics::PayloadStatistics;

/// Result of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DemoReport {
    /// `namespaces` or `loopback`.
    pub links: String,
    /// The family of the links' addresses: `ipv4` or `ipv6`.
    pub family: IpFamily,
    /// Rate of each link and direction in bits per second; `None` without shaping.
    pub link_rate_bps: Option<u64>,
    /// Configured loss of each link and direction, 0 to 1.
    pub link_loss: f64,
    /// Measured loss over all links and packets of the run, 0 to 1.
    pub link_loss_seen: f64,
    /// Sending host.
    pub from: String,
    pub to: String,
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// Time from acceptance of the offer to the final name of the file, in seconds. Includes fsync.
    pub seconds: f64,
    /// Run time of `shoal send`, in seconds.
    pub command_seconds: f64,
    /// Part of `seconds` that the receiver's fsync took, in milliseconds, if the receiver reports
    /// it.
    pub sync_ms: Option<f64>,
    /// File bytes per second.
    pub bytes_per_s: f64,
    /// File bits per second as a share of the links' rate.
    pub line_share: Option<f64>,
    /// Share of segments lost at the first attempt, as the sender counts them, 0 to 1.
    pub segment_loss: f64,
    /// File bytes in the packets that the links lost, as the links count them.
    pub lost_bytes: u64,
    /// Upper bound of the file bytes that the cut link lost, by its count of packets.
    pub cut_bytes: u64,
    /// File bytes sent again.
    pub retransmitted_bytes: u64,
    /// The cut, if a link was cut.
    pub cut: Option<LinkCut>,
    /// Longest time without file data on the receiver's access link, in milliseconds.
    pub longest_gap_ms: f64,
    /// The longest gap as the receiving node measured it, in milliseconds.
    pub longest_gap_node_ms: Option<f64>,
    /// Resource usage of each node.
    pub nodes: Vec<NodeUse>,
    /// Statistics of the links of the sender's router, if they were recorded.
    pub wire: Option<WireStatistics>,
    /// True if the hashes of the sent and the received file agree.
    pub hash_agrees: bool,
}

/// Statistics of the frames on the recorded links.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WireStatistics {
    /// Number of frames of each size class: 192, 576 and 1,440 bytes.
    pub frames: [u64; 3],
    /// Deviations from random bytes.
    pub anomalies: Vec<String>,
}

impl From<PayloadStatistics> for WireStatistics {
    fn from(seen: PayloadStatistics) -> WireStatistics {
        WireStatistics {
            frames: SizeClass::ALL.map(|class| seen.count(class)),
            anomalies: seen.anomalies().iter().map(ToString::to_string).collect(),
        }
    }
}

impl fmt::Display for WireStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [small, medium, full] = self.frames;
        write!(f, "{full} + {medium} + {small} frames of 1440, 576, 192 bytes; ")?;
        match &self.anomalies[..] {
            [] => write!(f, "all bytes look random"),
            some => write!(f, "NOT RANDOM: {}", some.join("; ")),
        }
    }
}

/// A link that was cut in mid-transfer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LinkCut {
    /// Name of the link.
    pub link: String,
    /// File bytes that had arrived at the time of the cut.
    pub at_bytes: u64,
    /// Next hop of the sender's router to the receiver's router before the cut.
    pub next_hop_before: String,
    /// Next hop at the end of the run.
    pub next_hop_after: Option<String>,
    /// Time from the cut to the change of that route, in milliseconds.
    pub route_change_ms: Option<f64>,
}

/// Resource usage of a process during the transfer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NodeUse {
    /// Name of the node or command.
    pub name: String,
    pub cpu_s: f64,
    /// Largest resident memory in bytes since the start of the process.
    pub memory_bytes: u64,
}

impl fmt::Display for DemoReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |what: &str, value: String| writeln!(f, "  {what:<24}{value}");
        row("file", format!("{} from {} to {}", size(self.file_bytes), self.from, self.to))?;
        row("links", self.links_text())?;
        let sync = self.sync_ms.map_or(String::new(), |ms| format!(", fsync {ms:.0} ms of it"));
        row("time", format!("{:.3} s from acceptance to the final name{sync}", self.seconds))?;
        row("whole command", format!("{:.3} s", self.command_seconds))?;
        let share = self.line_share.map_or(String::new(), |s| format!(", {s:.3} of the line"));
        let mbit = self.bytes_per_s * 8.0 / 1e6;
        row(
            "file bytes",
            format!("{}/s ({mbit:.0} Mbit/s){share}", size(self.bytes_per_s as u64)),
        )?;
        row(
            "loss",
            format!(
                "{:.3}% on the links, {:.3}% of segments end to end",
                self.link_loss_seen * 100.0,
                self.segment_loss * 100.0
            ),
        )?;
        let again = self.retransmitted_bytes as f64 / self.file_bytes.max(1) as f64;
        let (sent_again, lost) = (size(self.retransmitted_bytes), size(self.lost_bytes));
        let again = format!("{sent_again}, {:.3}% of the file", again * 100.0);
        let in_cut = match self.cut_bytes {
            0 => String::new(),
            bytes => format!(", the cut link lost {}", size(bytes)),
        };
        row("sent again", format!("{again}; the links lost {lost}{in_cut}"))?;
        if let Some(cut) = &self.cut {
            row("cut", cut.to_string())?;
        }
        let told = self.longest_gap_node_ms.map(|ms| format!(" (the node measured {ms:.0} ms)"));
        let what = if self.cut.is_some() { "reroute gap" } else { "longest gap" };
        row(what, format!("{:.0} ms{}", self.longest_gap_ms, told.unwrap_or_default()))?;
        if let Some(wire) = &self.wire {
            row("on the wire", wire.to_string())?;
        }
        row("hash", if self.hash_agrees { "agrees".into() } else { "DIFFERS".into() })?;
        for node in &self.nodes {
            let memory = size(node.memory_bytes);
            row(&node.name, format!("{:>6.2} CPU s, {memory} at most", node.cpu_s))?;
        }
        Ok(())
    }
}

impl DemoReport {
    fn links_text(&self) -> String {
        let rate = match self.link_rate_bps {
            Some(rate) => crate::Rate(rate).to_string(),
            None => "as fast as the machine can".into(),
        };
        let loss = match self.link_loss {
            0.0 => "no loss".to_owned(),
            loss => format!("{:.3}% loss", loss * 100.0),
        };
        format!("{} over {}: {rate}, {loss} each way", self.links, self.family)
    }
}

impl fmt::Display for LinkCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} after {}; next hop {}",
            self.link,
            size(self.at_bytes),
            self.next_hop_before
        )?;
        write!(f, " -> {}", self.next_hop_after.as_deref().unwrap_or("none"))?;
        match self.route_change_ms {
            Some(ms) => write!(f, " within {ms:.0} ms"),
            None => Ok(()),
        }
    }
}

/// Formats bytes in powers of 1000.
pub fn size(bytes: u64) -> String {
    match bytes as f64 {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB", b / 1e6),
        b if b >= 1e3 => format!("{:.1} kB", b / 1e3),
        b => format!("{b:.0} B"),
    }
}
