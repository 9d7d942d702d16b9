//! Neighbours, and direct links.

use serde::{Deserialize, Serialize};

use super::{CoverStatus, FrameTraffic};

/// A neighbour.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NeighbourStatus {
    /// Name in hosts.toml.
    pub name: String,
    /// Overlay address, `router.host`.
    pub address: String,
    /// Endpoint to which datagrams are sent at present, if known.
    pub endpoint: Option<String>,
    /// `up`, `connecting`, `silent` or `waiting` (it calls us). `relayed` is not a neighbour: a
    /// host with which this one wants a direct link and has none.
    pub state: String,
    /// Milliseconds since the neighbour was last heard.
    pub last_heard_ms: Option<u64>,
    /// Age of the session's keys in seconds.
    pub session_age_s: Option<f64>,
    /// Cipher suite of the session.
    pub suite: Option<String>,
    /// Lanes in use.
    pub lanes: u32,
    /// Smoothed round trip in microseconds.
    pub rtt_us: Option<u64>,
    /// Share of our frames that the neighbour missed in its last report, 0 to 1.
    pub loss: Option<f64>,
    /// Cost of the link in routing.
    pub cost: Option<u32>,
    /// Frames and bytes since the start; only with `metrics.per_peer`.
    pub traffic: Option<FrameTraffic>,
    /// Cells waiting in the link's egress.
    pub egress_cells: u32,
    /// True if the path carries no full frame, so that each is sent as three shorter ones.
    #[serde(default)]
    pub small_path: bool,
    /// Seconds by which the neighbour's wall clock is ahead of this node's, by its last report.
    #[serde(default)]
    pub clock_ahead_s: Option<f64>,
    /// Protection of a direct link, or the reason why there is none.
    #[serde(default)]
    pub direct: Option<DirectLinkStatus>,
    /// Schedule of a covered link.
    #[serde(default)]
    pub cover: Option<CoverStatus>,
    /// State of a link whose addresses are to shift.
    #[serde(default)]
    pub shift: Option<LinkShiftStatus>,
}

/// State of a link's shifting addresses. The addresses themselves are told to nobody.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkShiftStatus {
    /// Seconds for which each address is used.
    pub interval_s: f64,
    /// State of the shifts.
    ///
    /// - `shifting`: the addresses of both ends shift.
    /// - `fixed`: frames go between the fixed endpoints, or where both ends met. No shift was made
    ///   yet, or shifts fail.
    /// - `alone`: the neighbour's addresses don't shift, so neither do these.
    /// - `unknown`: without a session, the neighbour can't say whether its addresses shift.
    pub state: String,
    /// Result of the last shift: `none`, `moved` or `failed`.
    pub last: String,
    /// Seconds since the last shift ended.
    pub last_s: Option<f64>,
    /// Shifts made since the neighbour's section was read.
    pub made: u64,
    /// Shifts after which both ends fell back to the endpoints of the last handshake.
    pub failed: u64,
    /// True if both ends meet at addresses that follow from the time of day, not at fixed
    /// endpoints.
    #[serde(default)]
    pub rendezvous: bool,
}

/// Result of a probe: whether addresses of the prefix can be used with one neighbour.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShiftProbeResult {
    /// Name of the neighbour.
    pub peer: String,
    /// Outcome of the probe.
    ///
    /// - `open`: packets to and from the probed address get through.
    /// - `not_routed`: packets from the neighbour to the address do not arrive.
    /// - `filtered`: packets from the address do not arrive at the neighbour.
    /// - `closed`: neither direction works.
    /// - `silent`: the neighbour does not answer.
    /// - `down`: there is no session with the neighbour.
    /// - `alone`: the neighbour's addresses don't shift.
    /// - `moved`: nothing came, but this node's prefix changed lately. The neighbour may still send
    ///   to the former one.
    pub outcome: String,
}

/// Kernel settings for a node's shifting addresses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShiftStatus {
    /// `routed` (a router sends the whole prefix here) or `segment` (an interface has the addresses
    /// in use).
    #[serde(default)]
    pub mode: String,
    /// Prefix of the addresses.
    #[serde(default)]
    pub prefix: String,
    /// Interface on the segment.
    #[serde(default)]
    pub interface: Option<String>,
    /// Filter for datagrams to unused addresses, so that they take no room in a socket's buffer.
    ///
    /// - `counting`: the kernel drops and counts them.
    /// - `plain`: the kernel drops them, but counts them together with overflows.
    /// - `off`: no filter; the node drops them itself.
    pub filter: String,
    /// Number of addresses in use.
    pub addresses: u32,
}

/// Protection of cells on a direct link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectLinkStatus {
    /// The level in force: `encrypt`, `authenticate` or `none`; `routers` where there is no link.
    pub level: String,
    /// Reason for the level, in words.
    pub why: String,
}

/// Number of direct links, and events since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectLinks {
    /// Links at present.
    pub links: u32,
    /// Requests for a link that this host sent.
    pub asked: u64,
    /// Requests that this host granted.
    pub agreed: u64,
    /// Links that came up.
    pub up: u64,
    /// Links that were lost.
    pub lost: u64,
    /// Links that ended for lack of traffic.
    pub trimmed: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Requests without answer, since there are links enough.
    pub full: u64,
}

/// Addresses at which others see this host, and the address translators that follow from them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Netcheck {
    /// Policy for direct links: `off`, `auto`, `on-demand` or `proactive`.
    pub direct: String,
    /// Reason why there are no direct links at all. Absent if this host may have some.
    #[serde(default)]
    pub refusal: Option<String>,
    /// Endpoint at which others can call this host, by its files.
    pub endpoint: Option<String>,
    /// Mapping of translators (RFC 4787): `easy` (all observers see one endpoint), `hard` (each
    /// sees another) or `unknown` (fewer than two observers).
    pub mapping: String,
    /// Endpoints that routers see: its own, and others that were asked.
    pub seen: Vec<ObservedEndpoint>,
    /// Endpoints on its machine.
    pub locals: Vec<String>,
    /// Port mapping that the file asks for, if any.
    #[serde(default)]
    pub port_mapping: Option<PortMappingStatus>,
}

/// A port that the translator keeps open on request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortMappingStatus {
    /// Address of the translator that is asked.
    pub translator: Option<String>,
    /// Public endpoint of this host, while the port is open.
    pub at: Option<String>,
    /// Protocol: `PCP` or `NAT-PMP`.
    pub via: Option<String>,
    /// Seconds until the mapping ends; the node renews it before.
    pub left_s: Option<u64>,
    /// True if the translator itself has a private address, so that others are not told of the
    /// port.
    pub private: bool,
    /// Reason why no port is open.
    pub fault: Option<String>,
    /// Requests sent.
    pub asked: u64,
    /// Valid answers.
    pub answered: u64,
    /// Datagrams that answered no request.
    pub dropped: u64,
}

/// Endpoint of this host, as one router sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ObservedEndpoint {
    /// Name of the router.
    pub by: String,
    pub at: String,
}
