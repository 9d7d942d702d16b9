//! Summary of a node.

use serde::{Deserialize, Serialize};

use super::{
    AuthorityStatus, CircuitTotals, CoverSummary, DirectLinks, FrameTraffic, HiddenCount,
    InterfaceStatus, OffloadStatus, ShiftStatus, SuiteStatus, WorkerTraffic,
};

/// Summary of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Name in hosts.toml.
    pub name: String,
    /// Overlay address, `router.host`.
    pub address: String,
    /// `router` or `host`.
    pub role: String,
    /// Version of the program.
    pub version: String,
    /// Process number.
    pub pid: u32,
    /// Seconds since the start.
    pub uptime_s: f64,
    /// Public key as base64.
    pub public_key: String,
    /// Sockets that it listens on.
    pub listen: Vec<String>,
    /// Configured neighbours.
    pub links: u32,
    /// Neighbours with a live session.
    pub links_up: u32,
    /// Destinations with a route.
    pub routes: u32,
    /// Hosts with a live end-to-end session.
    pub host_sessions: u32,
    /// Transfers under way.
    pub transfers: u32,
    /// Offloads and buffers of the kernel in use.
    pub offloads: OffloadStatus,
    /// The processor, and the suites that sessions may have.
    #[serde(default)]
    pub ciphers: SuiteStatus,
    /// The virtual interface, if there is one.
    #[serde(default)]
    pub interface: Option<InterfaceStatus>,
    /// Authority of the network, if members don't come from the hosts file.
    #[serde(default)]
    pub authority: Option<AuthorityStatus>,
    /// Links with other hosts past the routers, where there may be any.
    #[serde(default)]
    pub direct: Option<DirectLinks>,
    /// Circuits that begin, end or go through here.
    #[serde(default)]
    pub circuits: CircuitTotals,
    /// Hosts for which the preset's promises hold; none where nothing is promised.
    #[serde(default)]
    pub hidden: Option<HiddenCount>,
    /// Links whose frames leave by a schedule, if there are any.
    #[serde(default)]
    pub cover: Option<CoverSummary>,
    /// Preset of a host, if it is not "fast".
    #[serde(default)]
    pub preset: Option<PresetStatus>,
    /// Shifting addresses, if the node has any.
    #[serde(default)]
    pub shift: Option<ShiftStatus>,
    /// Frames and bytes since the start.
    pub traffic: FrameTraffic,
    /// Work of each worker, the first one first; empty where there is only one.
    #[serde(default)]
    pub workers: Vec<WorkerTraffic>,
    /// Drops since the start by reason, without reasons that never occurred.
    pub drops: Vec<(String, u64)>,
    /// Reasons in `drops` that had drops within the last five minutes.
    #[serde(default)]
    pub drops_recent: Vec<String>,
    /// CPU seconds used.
    pub cpu_s: f64,
    /// Resident memory in bytes.
    pub memory_bytes: u64,
    /// Lines of the log that were lost, since standard error did not accept them.
    #[serde(default)]
    pub log_lines_lost: u64,
    /// Tasks that this node can't do, with the reason (capabilities, limits).
    pub warnings: Vec<String>,
}

/// Preset that a host follows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PresetStatus {
    /// `balanced` or `hidden`.
    pub level: String,
    /// Source of the preset: `file`, `list`, or `file and list`.
    pub by: String,
    /// Warnings about what the network lacks for the preset.
    pub missing: Vec<String>,
    /// True if the host sends no packets until the network has the relays, and the host the tier
    /// of cover, that the preset needs.
    pub is_closed: bool,
    /// True if the file lets the host send with what the network has. It counts only for a preset
    /// of the network's list.
    pub as_far_as_possible: bool,
}
