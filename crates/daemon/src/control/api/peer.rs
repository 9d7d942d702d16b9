//! Neighbours, and direct links.

use serde::{Deserialize, Serialize};

use super::{Cover, Traffic};

/// A neighbour.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// Name in hosts.toml.
    pub name: String,
    /// Overlay address, `router.host`.
    pub address: String,
    /// Where its datagrams go now, if known.
    pub endpoint: Option<String>,
    /// `up`, `connecting`, `silent` or `waiting` (it calls us); `relayed` is no neighbour, but a
    /// host with which this one wants a direct link and has none.
    pub state: String,
    /// Milliseconds since it was last heard.
    pub last_heard_ms: Option<u64>,
    /// Age of the session's keys in seconds.
    pub session_age_s: Option<f64>,
    /// Cipher suite of the session.
    pub suite: Option<String>,
    /// Lanes in use.
    pub lanes: u32,
    /// Smoothed round trip in microseconds.
    pub rtt_us: Option<u64>,
    /// Share of our frames that it did not receive in the last report, 0 to 1.
    pub loss: Option<f64>,
    /// Cost of the link as routing sees it.
    pub cost: Option<u32>,
    /// Frames and bytes since the start; only with `metrics.per_peer`.
    pub traffic: Option<Traffic>,
    /// Cells waiting in its egress.
    pub egress_cells: u32,
    /// Its path carries no full frame, so that each goes as three shorter ones.
    #[serde(default)]
    pub small_path: bool,
    /// How far its wall clock is ahead of this node's, in seconds, as it was told last.
    #[serde(default)]
    pub clock_ahead_s: Option<f64>,
    /// Set on a direct link: its protection; and where there is none, why.
    #[serde(default)]
    pub direct: Option<DirectPeer>,
    /// Set on a covered link: its schedule.
    #[serde(default)]
    pub cover: Option<Cover>,
    /// Set on a link whose addresses are to hop.
    #[serde(default)]
    pub hop: Option<HopPeer>,
}

/// Whether a link's addresses hop, and how that goes. Which addresses is told to nobody.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HopPeer {
    /// How long each address is used, in seconds.
    pub interval_s: f64,
    /// `hopping`; `fixed` (frames go between the fixed endpoints, or where both ends met, as hops
    /// fail or none was made yet); `alone` (the neighbour's addresses don't hop, so neither do
    /// these); `unknown` (there is no session with it, in which it would say whether they do).
    pub state: String,
    /// How the last hop ended: `none`, `moved` or `failed`.
    pub last: String,
    /// Seconds since then.
    pub last_s: Option<f64>,
    /// Hops that were made since the neighbour's section was read.
    pub made: u64,
    /// Hops after which both ends fell back to where the last handshake was.
    pub failed: u64,
    /// Both ends meet at addresses that follow from the time of day, not at fixed endpoints.
    #[serde(default)]
    pub rendezvous: bool,
}

/// Whether addresses of the prefix can be used with one neighbour.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HopProbed {
    /// Its name.
    pub peer: String,
    /// `open` (what is sent from there and to there arrives), `not_routed` (what the neighbour
    /// sends there does not come), `filtered` (what is sent from there does not arrive at the
    /// neighbour), `closed` (both), `silent` (the neighbour answers nothing), `down` (there is no
    /// session with it), `alone` (its addresses don't hop), `moved` (nothing came, but the prefix
    /// is another one since lately, and the neighbour may still send to the former).
    pub outcome: String,
}

/// The kernel's side of a node's addresses that hop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HopStatus {
    /// `routed` (a router sends the whole prefix here) or `segment` (an interface has the addresses
    /// in use).
    #[serde(default)]
    pub mode: String,
    /// The prefix under which they are.
    #[serde(default)]
    pub prefix: String,
    /// The segment's interface.
    #[serde(default)]
    pub interface: Option<String>,
    /// What drops datagrams to addresses that are not in use before they take room in a socket's
    /// buffer: `counting` (a filter in the kernel), `plain` (one whose drops can't be told from
    /// overflows), `off` (none: the node drops them itself).
    pub filter: String,
    /// How many addresses are in use.
    pub addresses: u32,
}

/// How cells of a direct link are protected.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectPeer {
    /// The level in force: `encrypt`, `authenticate` or `none`; `routers` where there is no link.
    pub level: String,
    /// Why, in words.
    pub why: String,
}

/// Direct links: how many there are, and what became of them since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectLinks {
    /// Links at present.
    pub links: u32,
    /// Times that a host was asked for one.
    pub asked: u64,
    /// Times that a host was told yes.
    pub agreed: u64,
    /// Times that one came up.
    pub up: u64,
    /// Times that one was lost.
    pub lost: u64,
    /// Times that one ended since nothing used it.
    pub trimmed: u64,
    /// Attempts that came to nothing.
    pub failed: u64,
    /// Requests not answered, since there are links enough.
    pub full: u64,
}

/// Where this host is seen, and what that says of translators of addresses on its way out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Netcheck {
    /// Which direct links it makes: `off`, `on-demand` or `proactive`.
    pub direct: String,
    /// Where others can call it, as its files say.
    pub endpoint: Option<String>,
    /// What translators do: `easy` (all see it at one endpoint), `hard` (each at another) or
    /// `unknown` (fewer than two see it).
    pub mapping: String,
    /// Who sees it where: its routers, and routers that were asked.
    pub seen: Vec<SeenBy>,
    /// Endpoints at its machine.
    pub locals: Vec<String>,
    /// The port that a translator is asked to keep open, if the file says so.
    #[serde(default)]
    pub port_mapping: Option<PortMapping>,
}

/// A port that a translator is asked to keep open.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortMapping {
    /// Who is asked.
    pub translator: Option<String>,
    /// Where others reach this host, while the port is open.
    pub at: Option<String>,
    /// `PCP` or `NAT-PMP`.
    pub via: Option<String>,
    /// Seconds until it ends, unless it is made to last longer before.
    pub left_s: Option<u64>,
    /// The translator has a private address itself, so others are not told of the port.
    pub private: bool,
    /// Why no port is open.
    pub fault: Option<String>,
    /// Requests that were sent.
    pub asked: u64,
    /// Answers that counted.
    pub answered: u64,
    /// Datagrams that were no answers, or answers to nothing that was asked.
    pub dropped: u64,
}

/// Where one router sees this host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SeenBy {
    /// The router.
    pub by: String,
    /// The endpoint.
    pub at: String,
}
