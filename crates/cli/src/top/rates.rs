//! Two samples of a node, and the rates between them.

use std::time::Instant;

use serde::Serialize;
use shoal_daemon::control::api::{CircuitTotals, FrameTraffic, NeighbourStatus, Status};

use crate::output::{CellStyle, TextTable};
use crate::units::{Bytes, per_second, span_s};

/// State of a node at one moment.
pub struct NodeSample {
    pub at: Instant,
    pub unix_ms: u64,
    pub status: Status,
    pub peers: Vec<NeighbourStatus>,
}

/// Activity of a node, per second.
#[derive(Clone, Debug, Serialize)]
pub struct NodeRates {
    pub name: String,
    pub address: String,
    /// Seconds since the node's start.
    pub uptime_s: f64,
    /// CPU time as a share of one core; above 1 with several threads.
    pub cpu: f64,
    /// Resident memory in bytes.
    pub memory_bytes: u64,
    pub links_up: u32,
    /// Configured links.
    pub links: u32,
    /// Number of hosts with a session.
    pub host_sessions: u32,
    /// Transfers that are running.
    pub transfers: u32,
    /// Circuits that begin, end or go through here.
    pub circuits: CircuitRates,
    /// Traffic of all links together.
    pub total: TrafficRates,
    /// Drops per second, by reason; only reasons that occurred.
    pub drops: Vec<(String, f64)>,
    pub peers: Vec<LinkRates>,
}

/// Totals of circuits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CircuitRates {
    /// Circuits that begin here.
    pub own: u64,
    /// All circuits here, rounded up to a multiple of 8.
    pub open: u64,
    /// Set-ups of own circuits that succeeded, since the start.
    pub built: u64,
    /// Set-ups of own circuits that failed, since the start.
    pub failed: u64,
    /// Cells per second that came in or began here.
    pub cells: f64,
    /// Cells dropped per second.
    pub dropped: f64,
}

impl CircuitRates {
    fn between(before: &CircuitTotals, after: &CircuitTotals, seconds: f64) -> CircuitRates {
        let CircuitTotals { own, open, built, failed, .. } = *after;
        let cells = rate(before.cells, after.cells, seconds);
        let dropped = rate(before.dropped, after.dropped, seconds);
        CircuitRates { own, open, built, failed, cells, dropped }
    }
}

/// Rate of a counter; 0 after a restart, since the node counts from zero again.
fn rate(before: u64, after: u64, seconds: f64) -> f64 {
    after.saturating_sub(before) as f64 / seconds
}

/// Traffic per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TrafficRates {
    pub bytes_in: f64,
    pub bytes_out: f64,
    pub frames_in: f64,
    pub frames_out: f64,
}

/// A link between two samples.
#[derive(Clone, Debug, Serialize)]
pub struct LinkRates {
    pub name: String,
    pub state: String,
    /// None unless the node counts per neighbour (`metrics.per_peer`).
    pub flow: Option<TrafficRates>,
    /// Round trip in microseconds.
    pub rtt_us: Option<u64>,
    /// Share of frames lost, 0 to 1.
    pub loss: Option<f64>,
    pub cost: Option<u32>,
    /// Cells that wait to be sent.
    pub queue: u32,
}

impl TrafficRates {
    fn between(before: &FrameTraffic, after: &FrameTraffic, seconds: f64) -> TrafficRates {
        let rate = |before, after| rate(before, after, seconds);
        TrafficRates {
            bytes_in: rate(before.bytes_in, after.bytes_in),
            bytes_out: rate(before.bytes_out, after.bytes_out),
            frames_in: rate(before.frames_in, after.frames_in),
            frames_out: rate(before.frames_out, after.frames_out),
        }
    }
}

impl NodeRates {
    pub fn between(before: &NodeSample, after: &NodeSample) -> NodeRates {
        let seconds = after.at.duration_since(before.at).as_secs_f64().max(1e-3);
        let (old, new) = (&before.status, &after.status);
        let link = |peer: &NeighbourStatus| {
            let old = before.peers.iter().find(|p| p.name == peer.name);
            let flow = old.and_then(|p| p.traffic.as_ref()).zip(peer.traffic.as_ref());
            LinkRates {
                name: peer.name.clone(),
                state: peer.state.clone(),
                flow: flow.map(|(old, new)| TrafficRates::between(old, new, seconds)),
                rtt_us: peer.rtt_us,
                loss: peer.loss,
                cost: peer.cost,
                queue: peer.egress_cells,
            }
        };
        let drop = |(reason, count): &(String, u64)| {
            let old = old.drops.iter().find(|d| d.0 == *reason).map_or(0, |d| d.1);
            let more = count.saturating_sub(old);
            (more > 0).then(|| (reason.clone(), more as f64 / seconds))
        };
        NodeRates {
            name: new.name.clone(),
            address: new.address.clone(),
            uptime_s: new.uptime_s,
            cpu: (new.cpu_s - old.cpu_s).max(0.0) / seconds,
            memory_bytes: new.memory_bytes,
            links_up: new.links_up,
            links: new.links,
            host_sessions: new.host_sessions,
            transfers: new.transfers,
            circuits: CircuitRates::between(&old.circuits, &new.circuits, seconds),
            total: TrafficRates::between(&old.traffic, &new.traffic, seconds),
            drops: new.drops.iter().filter_map(drop).collect(),
            peers: after.peers.iter().map(link).collect(),
        }
    }

    /// The node in one line.
    pub fn heading(&self) -> String {
        format!(
            "{} ({})  up {}  cpu {:.1}%  memory {}  links {}/{}  hosts {}  transfers {}",
            self.name,
            self.address,
            span_s(self.uptime_s),
            self.cpu * 100.0,
            Bytes(self.memory_bytes),
            self.links_up,
            self.links,
            self.host_sessions,
            self.transfers
        )
    }

    /// The node's circuits in one line; none if it never had any.
    pub fn circuits(&self) -> Option<String> {
        let CircuitRates { own, open, built, failed, cells, dropped } = self.circuits;
        (self.circuits != CircuitRates::default()).then(|| {
            format!(
                "circuits: {own} own, at most {open} here; {built} built, {failed} failed; \
                 {cells:.0} cells/s, {dropped:.0} dropped/s"
            )
        })
    }

    /// Drops in one line.
    pub fn drops(&self) -> String {
        if self.drops.is_empty() {
            return "no drops".into();
        }
        let each = self.drops.iter().map(|(reason, n)| format!("{reason} {n:.0}/s"));
        format!("drops: {}", each.collect::<Vec<_>>().join(", "))
    }

    /// All rates as plain text.
    pub fn text(&self) -> String {
        let mut table = TextTable::new(&HEADING);
        for link in &self.peers {
            let cells = link.cells().into_iter();
            table.row(cells.map(|cell| (CellStyle::Plain, cell)).collect());
        }
        let total = format!(
            "in {}, {:.0} frames/s; out {}, {:.0} frames/s",
            per_second(self.total.bytes_in),
            self.total.frames_in,
            per_second(self.total.bytes_out),
            self.total.frames_out
        );
        let circuits = self.circuits().map_or_else(String::new, |line| line + "\n");
        format!("{}\n{total}\n{circuits}{}\n{}", self.heading(), self.drops(), table.text())
    }
}

/// The columns of a table of links; '>' aligns right.
pub const HEADING: [&str; 9] =
    ["link", "state", ">in", ">out", ">frames/s", ">rtt", ">loss", ">cost", ">queue"];

/// Milliseconds in eight characters at most, up to 99 s.
fn milliseconds(us: u64) -> String {
    let ms = us as f64 / 1e3;
    match us {
        0..100_000 => format!("{ms:.2} ms"),
        _ => format!("{ms:.0} ms"),
    }
}

impl LinkRates {
    /// Cells of the link's row, one for each column of [`HEADING`].
    pub fn cells(&self) -> [String; 9] {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let flow = self.flow.as_ref();
        [
            self.name.clone(),
            self.state.clone(),
            or_dash(flow.map(|f| per_second(f.bytes_in))),
            or_dash(flow.map(|f| per_second(f.bytes_out))),
            or_dash(flow.map(|f| format!("{:.0}", f.frames_in + f.frames_out))),
            or_dash(self.rtt_us.map(milliseconds)),
            or_dash(self.loss.map(|l| format!("{:.1}%", l * 100.0))),
            or_dash(self.cost.map(|c| c.to_string())),
            self.queue.to_string(),
        ]
    }

    /// Sort key of column `n`; larger ones come first.
    pub fn weight(&self, column: usize) -> f64 {
        let flow = self.flow.unwrap_or_default();
        match column {
            2 => flow.bytes_in,
            3 => flow.bytes_out,
            4 => flow.frames_in + flow.frames_out,
            5 => self.rtt_us.map_or(-1.0, |us| us as f64),
            6 => self.loss.unwrap_or(-1.0),
            7 => self.cost.map_or(-1.0, f64::from),
            8 => f64::from(self.queue),
            _ => 0.0,
        }
    }
}
