//! Traffic and events of a scenario.

use serde::{Deserialize, Serialize};

/// Length of the start-up that figures leave out unless a flow says otherwise, in seconds.
pub const STARTUP_S: f64 = 1.5;

/// Traffic between two nodes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Its name in events, holds and reports.
    pub name: String,
    /// Its kind.
    #[serde(default)]
    pub kind: Traffic,
    /// Where it comes from.
    pub from: String,
    /// Where it goes.
    pub to: String,
    /// Which way it takes.
    #[serde(default)]
    pub over: Over,
    /// When it starts, after the network is up.
    #[serde(default)]
    pub start_s: f64,
    /// Size of a file in millions of bytes.
    #[serde(default = "hundred")]
    pub size_mb: f64,
    /// A file is sent again as soon as it has arrived, until `duration_s`.
    #[serde(default)]
    pub again: bool,
    /// Seconds at the start of a TCP flow that its figures leave out: those in which it finds its
    /// rate.
    #[serde(default = "startup")]
    pub settle_s: f64,
    /// How long all but files go on; none means as long as the files.
    pub seconds: Option<f64>,
    /// Congestion control of TCP.
    #[serde(default = "cubic")]
    pub congestion: String,
    /// Payload that UDP sends, in Mbit/s; a bound of what TCP sends, if there is one.
    pub mbit: Option<f64>,
    /// Payload of each UDP datagram, in bytes.
    #[serde(default = "payload")]
    pub payload: u16,
    /// Packets per second of a flood.
    #[serde(default)]
    pub packets_per_s: u64,
    /// Kinds of datagrams of a flood.
    #[serde(default)]
    pub flood: Vec<Malice>,
    /// The program whose times a shaped flow has.
    pub shape: Option<Shape>,
}

impl Flow {
    /// Whether it goes from one virtual interface to another.
    pub fn needs_interface(&self) -> bool {
        match self.kind {
            Traffic::Udp | Traffic::Ping | Traffic::Shape => true,
            Traffic::Tcp => self.over == Over::Interface,
            Traffic::File | Traffic::Flood => false,
        }
    }

    /// Whether kernels route it from link to link.
    pub fn is_over_links(&self) -> bool {
        self.kind != Traffic::File && !self.needs_interface()
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

/// Which way TCP takes. Files, UDP and pings have no choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    /// From link to link, as the kernels of the nodes route it: beside Shoal.
    #[default]
    Links,
    /// Between the virtual interfaces of two hosts: through Shoal.
    Interface,
}

/// Kinds of traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// A file, by `shoal send` and `shoal receive`.
    #[default]
    File,
    /// A TCP connection of the kernel's, through the same links or between virtual interfaces.
    Tcp,
    /// Numbered datagrams between virtual interfaces, at a steady rate.
    Udp,
    /// Pings between virtual interfaces.
    Ping,
    /// Hostile datagrams towards the node `to`.
    Flood,
    /// Datagrams between virtual interfaces, both ways, at the times of a program.
    Shape,
}

/// Programs whose times are played.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// Both ends send at random times.
    Poisson,
    /// Pages, and time to read them.
    Web,
    /// One file.
    Wget,
    /// Keys and output of commands.
    Ssh,
    /// Parts of a film.
    Video,
}

impl From<Shape> for shoal_attack::Traffic {
    fn from(shape: Shape) -> shoal_attack::Traffic {
        match shape {
            Shape::Poisson => shoal_attack::Traffic::Poisson,
            Shape::Web => shoal_attack::Traffic::Web,
            Shape::Wget => shoal_attack::Traffic::Wget,
            Shape::Ssh => shoal_attack::Traffic::Ssh,
            Shape::Video => shoal_attack::Traffic::Video,
        }
    }
}

/// What a case adds to the scenario's attacker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Attacked {
    /// What the attacker does to what hosts send, so as to know it again; none for nothing.
    pub mark: Option<LiveMark>,
    /// Whether each host that is attacked also reads pages from one of the attack's `cross` hosts.
    pub cross: bool,
}

/// What can be done to frames on a real link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LiveMark {
    /// Nothing passes for 200 ms in each second.
    Gaps,
    /// The frames of 100 ms in each second are lost.
    Drops,
}

impl From<LiveMark> for shoal_attack::Mark {
    fn from(mark: LiveMark) -> shoal_attack::Mark {
        match mark {
            LiveMark::Gaps => shoal_attack::Mark::Gaps,
            LiveMark::Drops => shoal_attack::Mark::Drops,
        }
    }
}

/// An attacker who records the access links of all flows' hosts. Each flow is a pair.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attack {
    /// For how long it watches, each by itself, in seconds.
    pub seconds: Vec<u32>,
    /// When it begins, in seconds after the start of the traffic.
    #[serde(default = "settled")]
    pub from_s: f64,
    /// Hosts that no flow names: the other ends of cross traffic.
    #[serde(default)]
    pub cross: Vec<String>,
}

fn settled() -> f64 {
    2.0
}

/// Kinds of datagrams of a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Malice {
    /// Random bytes of the three sizes and of other sizes.
    Malformed,
    /// First handshake messages with the right network secret, from spoofed addresses.
    Handshakes,
    /// Replayed frames of a transfer, recorded on the first host's link.
    Replays,
    /// Cells that ask for circuits, by a router `from` whose process was killed before, in the name
    /// of hosts that it claims to have.
    Creates,
}

/// Something that happens.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// When, in seconds after the first flow's start.
    pub at_s: Option<f64>,
    /// When, as a share of the first file that has arrived.
    pub at_share: Option<f64>,
    /// Again every so many seconds.
    pub every_s: Option<f64>,
    /// What.
    #[serde(rename = "do")]
    pub deed: Deed,
    /// Which link, or none for the router-router link that carries the first file.
    pub link: Option<[String; 2]>,
    /// The only case in which it happens; none for all.
    pub case: Option<String>,
    /// Which node.
    pub node: Option<String>,
    /// New loss.
    pub loss: Option<f64>,
    /// New mean number of packets lost in a row.
    pub burst: Option<f64>,
}

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Deed {
    /// Nothing passes the link any more.
    Cut,
    /// The link is as it was.
    Restore,
    /// The link loses another share.
    Loss,
    /// The node's process is killed; without a node, that of the second relay of the circuit that
    /// carries the first flow.
    Kill,
    /// The node is started again.
    Start,
}

impl Deed {
    /// Its name in the file.
    pub fn word(self) -> &'static str {
        match self {
            Deed::Cut => "cut",
            Deed::Restore => "restore",
            Deed::Loss => "loss",
            Deed::Kill => "kill",
            Deed::Start => "start",
        }
    }
}
