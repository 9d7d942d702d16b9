//! What a program may say to a running node over its control socket, and what it hears back.
//!
//! In: [`ToNode`] frames, each a [`Command`] with a number that the answer repeats; descriptors of
//! regular files ride along where a command says so. Out: [`FromNode`] frames, either the [`Reply`]
//! to one command or an [`Event`] that nobody asked for at that moment.
//!
//! ```text
//! frame = length u32 big-endian | JSON of that length      (at most MAX_FRAME bytes of JSON)
//!
//! send:     Send + descriptors -> Sending{transfers}   ... Accepted, Progress*, Done | Failed
//! receive:  Receive -> Receiving                       ... Offered{transfer}
//!           Accept{transfer} + descriptor -> Ok        ... Progress*, Complete{hash}
//!        or Compare{transfer} + descriptor -> Ok       ... Complete{hash} or Failed{exists}
//!           (sync, rename) Confirm{transfer} -> Ok       or Cancel{transfer, reason}
//! monitor:  Monitor -> Ok                              ... Route, Link, Session*
//! ```
//!
//! A transfer belongs to the connection that began it: when the connection closes, the node cancels
//! the transfer, and what has arrived can be resumed.
//!
//! Invariant: no file byte and no secret goes through the socket, but for the invite that a
//! registrar was asked for. The format carries
//! [`PROTOCOL`]; a node answers a frame of another protocol with [`ErrorCode::Protocol`].

use serde::{Deserialize, Serialize};

mod authority;
mod circuits;
mod cover;
mod directory;
mod host;
mod interface;
mod peer;
mod refuse;
mod registrar;
mod status;
mod worker;

pub use authority::{Authority, Mandate, Secret};
pub use circuits::{
    Avoided, Circuit, CircuitTotals, Circuits, CircuitsTo, Hop, Hops, Loops, Order,
};
pub use cover::{Cover, CoverTier, Covered};
pub use directory::{
    Directory, Hidden, LIST_PART_MAX, LedgerEnd, ListPart, STEPS_REPLY_MAX, Steps, secret_proof,
};
pub use host::{HOSTS_MAX, Host, Hosts};
pub use interface::{Behind, Interface};
pub use peer::{
    DirectLinks, DirectPeer, HopPeer, HopProbed, HopStatus, Netcheck, Peer, PortMapping, SeenBy,
};
pub use refuse::{CancelReason, RefuseReason};
pub use registrar::{
    Asked, Given, InviteAsked, InviteMade, Joiner, PAGE, RegistrarMember, RegistrarStatus,
    TokenState,
};
pub use status::Status;
pub use worker::{Offloads, SuitesHere, Traffic, WorkerTraffic};

/// Version of this protocol and of every `--json` output that prints its types. It grows when a
/// field changes its meaning or goes away; a new field alone doesn't change it.
pub const PROTOCOL: u32 = 1;
/// Longest JSON of one frame in bytes, in either direction.
pub const MAX_FRAME: usize = 4 << 20;
/// Most descriptors that one frame may carry, and so most files in one [`Command::Send`].
pub const MAX_DESCRIPTORS: usize = 32;
/// Longest name of a file on the network in bytes.
pub const MAX_FILE_NAME: usize = 400;
/// Bytes of a file per chunk, where [`Event::Offered`] says nothing else: what [`Command::Accept`]
/// and [`Event::Progress`] count.
pub const CHUNK_LEN: u64 = 262_272;

fn usual_chunk() -> u64 {
    CHUNK_LEN
}

/// Names a transfer within one node's life.
pub type TransferId = u64;

/// One frame from a program to the node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToNode {
    /// [`PROTOCOL`] of the program.
    pub protocol: u32,
    /// Chosen by the program; the reply repeats it.
    pub id: u64,
    /// What is asked.
    pub command: Command,
}

/// One frame from the node to a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FromNode {
    /// [`PROTOCOL`] of the node.
    pub protocol: u32,
    /// The reply or event.
    pub body: Body,
}

/// Content of a [`FromNode`] frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// Answers the command with this id.
    Reply {
        /// Id of the command.
        id: u64,
        /// The answer.
        reply: Reply,
    },
    /// Something happened.
    Event(Event),
}

/// What a program may ask of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum Command {
    /// The node in short; answered by [`Reply::Status`].
    Status,
    /// Its neighbours; answered by [`Reply::Peers`].
    Peers,
    /// Where this host is seen; answered by [`Reply::Netcheck`].
    Netcheck,
    /// Finds out whether addresses of the prefix of addresses that hop can be used with each
    /// neighbour; answered by [`Reply::HopProbes`].
    HopProbe,
    /// Its routing table; answered by [`Reply::Routes`].
    Routes,
    /// Members of the network; answered by [`Reply::Hosts`].
    Hosts {
        /// How many to pass over: the list may be longer than one reply.
        #[serde(default)]
        skip: u32,
    },
    /// The circuits that it begins; answered by [`Reply::Circuits`].
    Circuits,
    /// Its counters as Prometheus text; answered by [`Reply::Metrics`].
    Metrics,
    /// From now on, changes of routes and links as events; answered by [`Reply::Ok`].
    Monitor,
    /// One echo to a host; answered by [`Reply::Pong`] or an error.
    Ping {
        /// Name in hosts.toml.
        host: String,
        /// How long to wait for the answer, in milliseconds (at most 60,000).
        timeout_ms: u32,
    },
    /// One echo to each hop of the circuit to a host, one after the other; answered by
    /// [`Reply::Hops`] or an error. A circuit is built if there is none.
    Hops {
        /// Name in hosts.toml.
        host: String,
        /// How long to wait for the circuit and all answers together, in milliseconds (at most
        /// 60,000).
        timeout_ms: u32,
    },
    /// Sends files. The frame carries one descriptor per file, open for reading, in the same order;
    /// answered by [`Reply::Sending`], then events per transfer.
    Send {
        /// Name in hosts.toml.
        host: String,
        /// At most [`MAX_DESCRIPTORS`].
        files: Vec<SendFile>,
    },
    /// Makes this connection the inbox for offers from these senders; answered by
    /// [`Reply::Receiving`], then [`Event::Offered`]. Offers that no inbox takes are refused.
    Receive {
        /// Who may send.
        from: Senders,
        /// Larger files are refused without asking; in bytes.
        max_size: Option<u64>,
    },
    /// Takes an offered file. The frame carries one descriptor, open for reading and writing.
    Accept {
        /// From [`Event::Offered`].
        transfer: TransferId,
        /// Chunks that the file holds already: sorted, disjoint, half-open ranges of chunk numbers.
        have: Vec<(u32, u32)>,
    },
    /// A file of that name and size is there already: nothing is to be sent, and the hashes are
    /// compared. The frame carries one descriptor, open for reading. [`Event::Complete`] says that
    /// it is the same file; else the transfer fails with [`CancelReason::Exists`] at both ends.
    Compare {
        /// From [`Event::Offered`].
        transfer: TransferId,
    },
    /// Declines an offered file.
    Refuse {
        /// From [`Event::Offered`].
        transfer: TransferId,
        /// What the sender is told.
        reason: RefuseReason,
    },
    /// The received file is synced and has its final name: the sender may be told so.
    Confirm {
        /// From [`Event::Complete`].
        transfer: TransferId,
    },
    /// Gives up a transfer, either direction.
    Cancel {
        /// Which.
        transfer: TransferId,
        /// Why; the other end is told.
        reason: CancelReason,
    },
    /// Reads the configuration again, as SIGHUP does; answered by [`Reply::Reloaded`].
    Reload,
    /// Which list is in force, and how much of its mandates' chains; answered by
    /// [`Reply::Directory`].
    Directory,
    /// Bytes of that list; answered by [`Reply::List`], at most [`LIST_PART_MAX`] of them.
    List {
        /// Of this version; an error if another one is in force by now.
        version: u64,
        /// How many bytes to pass over.
        skip: u64,
    },
    /// A mandate's supplements; answered by [`Reply::Steps`], at most [`STEPS_REPLY_MAX`] of them.
    Steps {
        /// The mandate's id, as hex.
        mandate: String,
        /// Number of the first one, from 1 on.
        first: u64,
    },
    /// What a registrar signed, to be put in force and passed on; answered by
    /// [`Reply::Supplements`] once it counts here. What counts already changes nothing.
    Supplements {
        /// Supplements of one mandate in their order, as base64; 1 to 64.
        steps: Vec<String>,
    },
    /// Asks for the newest of the network's secrets that the list names, which a program has that
    /// knows an older one; answered by [`Reply::Secret`].
    Secret {
        /// `secret_proof` of a secret that the node knows, too, as base64.
        proof: String,
    },
    /// The end of the registrar's ledger, to be kept for it; answered by [`Reply::Ok`].
    Ledger(LedgerEnd),
    /// Asks a registrar, which is no node; answered by [`Reply::Registrar`].
    Registrar {
        /// What.
        ask: Asked,
    },
}

/// A file to be sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SendFile {
    /// Relative path for the receiver: `/` between parts, at most [`MAX_FILE_NAME`] bytes.
    pub name: String,
    /// Length in bytes when it was opened.
    pub size: u64,
    /// Time of last change in nanoseconds since 1970.
    pub modified_ns: i64,
    /// What a resumed transfer is recognised by, 16 bytes as hex.
    pub file_id: String,
    /// Whether its owner may execute it.
    pub executable: bool,
}

/// Whose files an inbox takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Senders {
    /// Every host of hosts.toml.
    Any,
    /// These names of hosts.toml.
    Hosts(Vec<String>),
}

/// Answer to one command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Done.
    Ok,
    /// Not done, and why.
    Error(ErrorReply),
    /// To [`Command::Status`].
    Status(Box<Status>),
    /// To [`Command::Peers`].
    Peers(Vec<Peer>),
    /// To [`Command::Netcheck`].
    Netcheck(Box<Netcheck>),
    /// To [`Command::HopProbe`].
    HopProbes(Vec<HopProbed>),
    /// To [`Command::Routes`].
    Routes(Vec<Route>),
    /// To [`Command::Hosts`].
    Hosts(Hosts),
    /// To [`Command::Circuits`].
    Circuits(Box<Circuits>),
    /// To [`Command::Metrics`]: Prometheus text.
    Metrics(String),
    /// To [`Command::Ping`].
    Pong {
        /// Round trip in microseconds.
        rtt_us: u64,
        /// Microseconds since the first request left: more than `rtt_us` where an earlier one was
        /// lost.
        #[serde(default)]
        since_us: u64,
    },
    /// To [`Command::Hops`].
    Hops(Hops),
    /// To [`Command::Send`]: one number per file, same order.
    Sending {
        /// The numbers.
        transfers: Vec<TransferId>,
    },
    /// To [`Command::Receive`].
    Receiving,
    /// To [`Command::Reload`].
    Reloaded {
        /// Keys whose new value is in force.
        applied: Vec<String>,
        /// Keys whose new value waits for a restart.
        needs_restart: Vec<String>,
    },
    /// To [`Command::Directory`].
    Directory(Box<Directory>),
    /// To [`Command::List`].
    List(ListPart),
    /// To [`Command::Steps`].
    Steps(Steps),
    /// To [`Command::Supplements`].
    Supplements {
        /// How many steps of the mandate's chain count now.
        steps: u64,
    },
    /// To [`Command::Secret`].
    Secret(Hidden),
    /// To [`Command::Registrar`].
    Registrar(Box<Given>),
}

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorReply {
    /// For programs.
    pub code: ErrorCode,
    /// For people: what is wrong and what to do about it.
    pub message: String,
}

/// Kinds of failure, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The program and the node speak different protocols.
    Protocol,
    /// The command is not well formed (sizes, ranges, number of descriptors).
    BadRequest,
    /// This user may not command the node.
    Denied,
    /// No such name in hosts.toml.
    UnknownHost,
    /// No route or no session to that host.
    Unreachable,
    /// No answer in time.
    TimedOut,
    /// The network's policy does not allow it.
    Policy,
    /// A table is full, or another inbox takes these senders already.
    Busy,
    /// No such transfer.
    UnknownTransfer,
    /// The new configuration is wrong; the old one stays in force.
    BadConfig,
    /// What a registrar signed has no effect: its mandate does not allow it, or steps before it are
    /// missing.
    Mandate,
    /// This node has no authority, or no longer what was asked for.
    NoList,
    /// The node shuts down, or something in it failed.
    Internal,
}

impl Reply {
    /// An error reply.
    pub fn error(code: ErrorCode, message: impl Into<String>) -> Reply {
        Reply::Error(ErrorReply { code, message: message.into() })
    }
}

/// A row of the routing table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Route {
    /// Router number of the destination.
    pub router: u32,
    /// Its name in hosts.toml, if it has one.
    pub name: Option<String>,
    /// Name of the neighbour that leads there; none when unreachable.
    pub next_hop: Option<String>,
    /// Cost of the path.
    pub cost: u32,
    /// Seconds since next hop last changed.
    pub age_s: f64,
    /// Other neighbours that may be used at once, with the cost of the path, the cheapest first.
    pub alternatives: Vec<NextHop>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// A route came, went or changed its next hop (monitor).
    Route {
        /// Milliseconds since 1970.
        unix_ms: u64,
        /// Router number of the destination.
        router: u32,
        /// Its name in hosts.toml.
        name: Option<String>,
        /// Next hop and cost before.
        old: Option<NextHop>,
        /// Next hop and cost now; none when unreachable.
        new: Option<NextHop>,
    },
    /// A neighbour changed its state (monitor).
    Link {
        /// Milliseconds since 1970.
        unix_ms: u64,
        /// Name in hosts.toml.
        peer: String,
        /// As in [`Peer::state`].
        state: String,
        /// Why, if known.
        reason: Option<String>,
    },
    /// This connection was too slow: the node closes it after this.
    TooSlow {
        /// Events that were lost.
        missed: u64,
    },
    /// A host offers a file (receive).
    Offered {
        /// Number of the transfer.
        transfer: TransferId,
        /// Name of the sender in hosts.toml.
        from: String,
        /// The file.
        file: SendFile,
        /// Bytes of each of its chunks but the last.
        #[serde(default = "usual_chunk")]
        chunk: u64,
    },
    /// The receiver takes the file (send).
    Accepted {
        /// Number of the transfer.
        transfer: TransferId,
        /// Bytes that it had already.
        resumed_bytes: u64,
        /// The receiver has the whole file; `resumed_bytes` doesn't tell that of an empty one.
        #[serde(default)]
        whole: bool,
    },
    /// How far a transfer is; between 1 and 10 times a second.
    Progress(Progress),
    /// All bytes are written and the hash agrees; the program syncs, renames, confirms (receive).
    Complete {
        /// Number of the transfer.
        transfer: TransferId,
        /// BLAKE3 of the whole file as hex.
        hash: String,
        /// Final counters.
        stats: Progress,
    },
    /// The receiver has the file under its final name (send).
    Done {
        /// Number of the transfer.
        transfer: TransferId,
        /// BLAKE3 of the whole file as hex.
        hash: String,
        /// Final counters.
        stats: Progress,
    },
    /// The receiver declined (send).
    Refused {
        /// Number of the transfer.
        transfer: TransferId,
        /// Why.
        reason: RefuseReason,
    },
    /// The transfer broke, either end.
    Failed {
        /// Number of the transfer.
        transfer: TransferId,
        /// Why.
        reason: CancelReason,
        /// More about it, such as an error of the disk.
        detail: Option<String>,
    },
}

/// A next hop and what it costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NextHop {
    /// Name of the neighbour.
    pub peer: String,
    /// Cost of the path.
    pub cost: u32,
}

/// How far a transfer is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Number of the transfer.
    pub transfer: TransferId,
    /// Bytes of the file that the receiver has (send), or that are written (receive).
    pub bytes_done: u64,
    /// Size of the file.
    pub bytes_total: u64,
    /// Bytes that the receiver had before this transfer.
    #[serde(default)]
    pub bytes_resumed: u64,
    /// File bytes per second, smoothed over half a second.
    pub rate: f64,
    /// Bytes sent again so far (send).
    pub retransmitted_bytes: u64,
    /// Share of segments that did not arrive at first, 0 to 1.
    pub loss: f64,
    /// Round trip in microseconds, once known.
    pub rtt_us: Option<u64>,
    /// Longest time without a new file byte so far, in milliseconds (receive).
    pub gap_ms: f64,
    /// Chunks written since the last event: half-open ranges of chunk numbers (receive). They may
    /// be relied on after a crash only once the file was synced after this event.
    pub chunks: Vec<(u32, u32)>,
}
