//! Traffic and events of a scenario.

use serde::{Deserialize, Serialize};

/// Default length of the start-up that figures leave out, in seconds.
pub const STARTUP_S: f64 = 1.5;

/// Traffic between two nodes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioFlow {
    /// Name in events, conditions and reports.
    pub name: String,
    #[serde(default)]
    pub kind: FlowKind,
    /// Name of the sending node.
    pub from: String,
    /// Name of the receiving node.
    pub to: String,
    /// Path of TCP.
    #[serde(default)]
    pub over: TcpPath,
    /// Start in seconds after the network is up.
    #[serde(default)]
    pub start_s: f64,
    /// Size of a file in millions of bytes.
    #[serde(default = "hundred")]
    pub size_mb: f64,
    /// True to send the file again after each arrival, until `duration_s`.
    #[serde(default)]
    pub again: bool,
    /// Seconds at the start of a TCP flow that its figures leave out, while the flow finds its
    /// rate.
    #[serde(default = "startup")]
    pub settle_s: f64,
    /// Length of all traffic but files, in seconds; `None` for as long as the files.
    pub seconds: Option<f64>,
    #[serde(default = "cubic")]
    pub congestion: String,
    /// UDP payload rate in Mbit/s; for TCP an optional limit.
    pub mbit: Option<f64>,
    /// Payload of each UDP datagram, in bytes.
    #[serde(default = "payload")]
    pub payload: u16,
    /// Packets per second of a flood.
    #[serde(default)]
    pub packets_per_s: u64,
    /// Kinds of a flood's datagrams.
    #[serde(default)]
    pub flood: Vec<FloodDatagrams>,
    /// Program whose times a shaped flow follows.
    pub shape: Option<ProgramShape>,
}

impl ScenarioFlow {
    /// True if the flow connects two virtual interfaces.
    pub fn needs_interface(&self) -> bool {
        match self.kind {
            FlowKind::Udp | FlowKind::Ping | FlowKind::Shape => true,
            FlowKind::Tcp => self.over == TcpPath::Interface,
            FlowKind::File | FlowKind::Flood => false,
        }
    }

    /// True if kernels route the flow from link to link.
    pub fn is_over_links(&self) -> bool {
        self.kind != FlowKind::File && !self.needs_interface()
    }
}

fn startup() -> f64 {
    STARTUP_S
}

fn hundred() -> f64 {
    100.0
}

fn cubic() -> String {
    "cubic".into()
}

fn payload() -> u16 {
    1_200
}

/// Path of TCP. Files, UDP and pings have no choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TcpPath {
    /// From link to link by the nodes' kernels, outside Shoal.
    #[default]
    Links,
    /// Between the virtual interfaces of two hosts, through Shoal.
    Interface,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowKind {
    /// A file, by `shoal send` and `shoal receive`.
    #[default]
    File,
    /// A kernel TCP connection, over links or between virtual interfaces.
    Tcp,
    /// Numbered datagrams between virtual interfaces, at a steady rate.
    Udp,
    /// Pings between virtual interfaces.
    Ping,
    /// Hostile datagrams towards the node `to`.
    Flood,
    /// Datagrams in both directions between virtual interfaces, at the times of a program.
    Shape,
}

/// Programs whose times are imitated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProgramShape {
    /// Sending at random times, by both ends.
    Poisson,
    /// Web pages, with time to read them.
    Web,
    /// One file.
    Wget,
    /// Keystrokes and output of commands.
    Ssh,
    /// Pieces of a video.
    Video,
}

impl From<ProgramShape> for shoal_attack::ProgramKind {
    fn from(shape: ProgramShape) -> shoal_attack::ProgramKind {
        match shape {
            ProgramShape::Poisson => shoal_attack::ProgramKind::Poisson,
            ProgramShape::Web => shoal_attack::ProgramKind::Web,
            ProgramShape::Wget => shoal_attack::ProgramKind::Wget,
            ProgramShape::Ssh => shoal_attack::ProgramKind::Ssh,
            ProgramShape::Video => shoal_attack::ProgramKind::Video,
        }
    }
}

/// Additional actions of the attacker in a case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CaseAttack {
    /// Mark that the attacker puts on hosts' frames to recognise them; `None` for no mark.
    pub mark: Option<LiveMark>,
    /// True if each attacked host also reads pages from one of the attack's `cross` hosts.
    pub cross: bool,
}

/// Marks on the frames of a real link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LiveMark {
    /// Frames are held for 200 ms in each second.
    Gaps,
    /// Frames are lost for 100 ms in each second.
    Drops,
}

impl From<LiveMark> for shoal_attack::MarkKind {
    fn from(mark: LiveMark) -> shoal_attack::MarkKind {
        match mark {
            LiveMark::Gaps => shoal_attack::MarkKind::Gaps,
            LiveMark::Drops => shoal_attack::MarkKind::Drops,
        }
    }
}

/// An attacker that records the access links of all flows' hosts. Each flow is a pair.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttackSettings {
    /// Observed times in seconds, each a separate attack.
    pub seconds: Vec<u32>,
    /// Start of the observation, in seconds after the start of the traffic.
    #[serde(default = "settled")]
    pub from_s: f64,
    /// Hosts that no flow uses: the other ends of cross traffic.
    #[serde(default)]
    pub cross: Vec<String>,
}

fn settled() -> f64 {
    2.0
}

/// Kinds of a flood's datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FloodDatagrams {
    /// Random bytes of the three frame lengths and of other lengths.
    Malformed,
    /// First handshake messages with the right network secret, from spoofed addresses.
    Handshakes,
    /// Replayed frames of a transfer, recorded on the first host's link.
    Replays,
    /// Create cells from a router `from` whose process was killed before. Half of them claim to
    /// come from other nodes.
    Creates,
}

/// An event.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioEvent {
    /// Time in seconds after the start of the traffic.
    pub at_s: Option<f64>,
    /// Time as the share of the first file that has arrived.
    pub at_share: Option<f64>,
    /// Interval of repetitions in seconds.
    pub every_s: Option<f64>,
    #[serde(rename = "do")]
    pub deed: EventAction,
    /// Names of the link's ends. `None` for the link between routers that carries the first file.
    pub link: Option<[String; 2]>,
    /// The only case with this event; `None` for all cases.
    pub case: Option<String>,
    /// Name of the node.
    pub node: Option<String>,
    /// New share of packets lost.
    pub loss: Option<f64>,
    /// New mean number of consecutive losses.
    pub burst: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventAction {
    /// Cuts the link.
    Cut,
    /// Mends the link.
    Restore,
    /// Changes the loss of the link.
    Loss,
    /// Kills the node's process. Without a node, kills the second relay of the circuit that carries
    /// the first flow.
    Kill,
    /// Restarts the node.
    Start,
}

impl EventAction {
    pub fn word(self) -> &'static str {
        match self {
            EventAction::Cut => "cut",
            EventAction::Restore => "restore",
            EventAction::Loss => "loss",
            EventAction::Kill => "kill",
            EventAction::Start => "start",
        }
    }
}
