//! Protocol between a program and a running node over the control socket.
//!
//! In: [`CommandFrame`] frames, each a [`Command`] with a number that the answer repeats. Some
//! commands carry descriptors of regular files. Out: [`NodeFrame`] frames, either the
//! [`ControlReply`] to one command or an [`ControlEvent`] without a request.
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
//! A transfer belongs to the connection that began it. When the connection closes, the node cancels
//! the transfer; the bytes that have arrived can be resumed.
//!
//! Invariant: no file byte and no secret goes through the socket, but for the invite that a
//! registrar was asked for. Frames carry [`PROTOCOL`]; a node answers a frame of another protocol
//! with [`ErrorCode::Protocol`].

use serde::{Deserialize, Serialize};

mod authority;
mod circuits;
mod cover;
mod directory;
mod hidden;
mod host;
mod interface;
mod peer;
mod refuse;
mod registrar;
mod status;
mod worker;

pub use authority::{AuthorityStatus, MandateStatus, RemovedStatus, SecretProgress};
pub use circuits::{
    AvoidedRelay, BoundReason, CircuitProbe, CircuitStatus, CircuitTotals, CircuitsStatus,
    ForgottenHosts, HopAnswer, HostCircuits, LoopCounters, ReorderCounters,
};
pub use cover::{CoverStatus, CoverSummary, TierStatus};
pub use directory::{
    DirectoryStatus, LIST_PART_MAX, LedgerEnd, ListPart, RedactedText, STEPS_REPLY_MAX,
    SupplementPage, secret_proof,
};
pub use hidden::{
    HiddenCount, HiddenPromise, HiddenRemedy, HiddenStatus, HostProtection, MembershipSource,
    PathObserver, PromiseKind, RelayVoucher,
};
pub use host::{HOSTS_MAX, MemberPage, MemberStatus};
pub use interface::{HostNetwork, InterfaceStatus};
pub use peer::{
    DirectLinkStatus, DirectLinks, LinkShiftStatus, NeighbourStatus, Netcheck, ObservedEndpoint,
    PortMappingStatus, ShiftProbeResult, ShiftStatus,
};
pub use refuse::{CancelReason, RefuseReason};
pub use registrar::{
    InviteStatus, InviteTerms, Joiner, NewInvite, PAGE, RegistrarMember, RegistrarReply,
    RegistrarRequest, RegistrarStatus, RegistrarTerms, RouterTerms,
};
pub use status::{PresetStatus, Status};
pub use worker::{FrameTraffic, OffloadStatus, SuiteStatus, WorkerTraffic};

/// Version of this protocol, and of every `--json` output that prints its types. Grows when a field
/// changes its meaning or goes away; a new field alone doesn't change it.
pub const PROTOCOL: u32 = 1;
/// Longest JSON of one frame in bytes, in either direction.
pub const MAX_FRAME: usize = 4 << 20;
/// Most descriptors in one frame, and so most files in one [`Command::Send`].
pub const MAX_DESCRIPTORS: usize = 32;
/// Longest name of a file on the network, in bytes.
pub const MAX_FILE_NAME: usize = 400;
/// Bytes of a file per chunk, where [`ControlEvent::Offered`] says nothing else.
/// [`Command::Accept`] and [`ControlEvent::Progress`] count such chunks.
pub const CHUNK_LEN: u64 = 262_272;

fn usual_chunk() -> u64 {
    CHUNK_LEN
}

/// Number of a transfer, unique while the node runs.
pub type TransferId = u64;

/// One frame from a program to the node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommandFrame {
    /// [`PROTOCOL`] of the program.
    pub protocol: u32,
    /// Number that the program chooses; the reply repeats it.
    pub id: u64,
    pub command: Command,
}

/// One frame from the node to a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeFrame {
    /// [`PROTOCOL`] of the node.
    pub protocol: u32,
    pub body: NodeFrameBody,
}

/// Content of a [`NodeFrame`] frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeFrameBody {
    /// Answers the command with this id.
    Reply {
        /// Id of the command.
        id: u64,
        reply: ControlReply,
    },
    /// An event without a request.
    Event(ControlEvent),
}

/// Commands of programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum Command {
    /// Summary of the node; answered by [`ControlReply::Status`].
    Status,
    /// Neighbours of the node; answered by [`ControlReply::Peers`].
    Peers,
    /// Addresses at which others see this host; answered by [`ControlReply::Netcheck`].
    Netcheck,
    /// Probes whether addresses under the node's shifting prefix can be used with each neighbour;
    /// answered by [`ControlReply::ShiftProbes`].
    ShiftProbe,
    /// The routing table; answered by [`ControlReply::Routes`].
    Routes,
    /// Members of the network; answered by [`ControlReply::Hosts`].
    Hosts {
        /// Number of members to skip: the list may be longer than one reply.
        #[serde(default)]
        skip: u32,
    },
    /// Circuits that the node begins; answered by [`ControlReply::Circuits`].
    Circuits,
    /// Protection of the traffic with hosts; answered by [`ControlReply::Hidden`].
    Hidden {
        /// Name in hosts.toml; none for all hosts with traffic or circuits.
        #[serde(default)]
        host: Option<String>,
    },
    /// Forgets that hosts were met over circuits, so that they are reached in the clear again;
    /// answered by [`ControlReply::Forgotten`] or an error.
    Forget {
        /// Name in hosts.toml, or a public key; none for all hosts with which circuits are not
        /// required.
        #[serde(default)]
        host: Option<String>,
    },
    /// Counters as OpenMetrics text; answered by [`ControlReply::Metrics`].
    Metrics,
    /// Asks for changes of routes and links as events; answered by [`ControlReply::Ok`].
    Monitor,
    /// One echo to a host; answered by [`ControlReply::Pong`] or an error.
    Ping {
        /// Name in hosts.toml.
        host: String,
        /// Longest wait for the answer, in milliseconds (at most 60,000).
        timeout_ms: u32,
    },
    /// One echo to each hop of the circuit to a host, one after the other; answered by
    /// [`ControlReply::Hops`] or an error. A circuit is built if there is none.
    Hops {
        /// Name in hosts.toml.
        host: String,
        /// Longest wait for the circuit and all answers together, in milliseconds (at most 60,000).
        timeout_ms: u32,
    },
    /// Sends files. The frame carries one descriptor per file, open for reading, in the same order;
    /// answered by [`ControlReply::Sending`], then events per transfer.
    Send {
        /// Name in hosts.toml.
        host: String,
        /// At most [`MAX_DESCRIPTORS`].
        files: Vec<SendFile>,
    },
    /// Makes this connection the inbox for offers from these senders; answered by
    /// [`ControlReply::Receiving`], then [`ControlEvent::Offered`]. Offers that no inbox takes are
    /// refused.
    Receive {
        from: SenderFilter,
        /// Size in bytes above which files are refused without asking.
        max_size: Option<u64>,
    },
    /// Takes an offered file. The frame carries one descriptor, open for reading and writing.
    Accept {
        /// From [`ControlEvent::Offered`].
        transfer: TransferId,
        /// Chunks that the file holds already: sorted, disjoint, half-open ranges of chunk numbers.
        have: Vec<(u32, u32)>,
    },
    /// Says that a file of that name and size exists: the sender sends no data, and both ends
    /// compare hashes. The frame carries one descriptor, open for reading.
    /// [`ControlEvent::Complete`] follows if the hashes agree; else the transfer fails with
    /// [`CancelReason::Exists`] at both ends.
    Compare {
        /// From [`ControlEvent::Offered`].
        transfer: TransferId,
    },
    /// Declines an offered file.
    Refuse {
        /// From [`ControlEvent::Offered`].
        transfer: TransferId,
        /// Reason for the sender.
        reason: RefuseReason,
    },
    /// Says that the received file is synced and has its final name, so that the sender may be
    /// told.
    Confirm {
        /// From [`ControlEvent::Complete`].
        transfer: TransferId,
    },
    /// Gives up a transfer in either direction.
    Cancel {
        transfer: TransferId,
        /// Reason for the other end.
        reason: CancelReason,
    },
    /// Reads the configuration again, as SIGHUP does; answered by [`ControlReply::Reloaded`].
    Reload,
    /// The list in force, and the length of each mandate's chain; answered by
    /// [`ControlReply::Directory`].
    Directory,
    /// Bytes of the list; answered by [`ControlReply::List`], at most [`LIST_PART_MAX`] of them.
    List {
        /// Version of the list; an error if another version is in force by now.
        version: u64,
        /// Number of bytes to skip.
        skip: u64,
    },
    /// A mandate's supplements; answered by [`ControlReply::Steps`], at most [`STEPS_REPLY_MAX`] of
    /// them.
    Steps {
        /// The mandate's id, as hex.
        mandate: String,
        /// Number of the first supplement, from 1 on.
        first: u64,
    },
    /// Supplements that a registrar signed, for the node to put in force and pass on; answered by
    /// [`ControlReply::Supplements`] once they are in force. Known supplements change nothing.
    Supplements {
        /// Supplements of one mandate in their order, as base64; 1 to 64.
        steps: Vec<String>,
    },
    /// Asks for the newest network secret that the list names, for a program that knows an older
    /// one; answered by [`ControlReply::Secret`].
    Secret {
        /// `secret_proof` of a secret that the node knows, too, as base64.
        proof: String,
    },
    /// The end of the registrar's ledger, which the node keeps for it; answered by
    /// [`ControlReply::Ok`].
    Ledger(LedgerEnd),
    /// Ends the node, as SIGTERM does; answered by [`ControlReply::Ok`] first. A registrar takes
    /// it, too.
    Stop,
    /// Asks a registrar, which is a process of its own; answered by [`ControlReply::Registrar`].
    Registrar { ask: RegistrarRequest },
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
    /// Id by which a resumed transfer is recognised, 16 bytes as hex.
    pub file_id: String,
    /// True if its owner may execute it.
    pub executable: bool,
}

/// Senders whose files an inbox takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SenderFilter {
    /// Every host of hosts.toml.
    Any,
    /// Hosts with these names in hosts.toml.
    Hosts(Vec<String>),
}

/// Answer to one command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlReply {
    /// The command was carried out.
    Ok,
    /// The command failed.
    Error(ErrorReply),
    /// To [`Command::Status`].
    Status(Box<Status>),
    /// To [`Command::Peers`].
    Peers(Vec<NeighbourStatus>),
    /// To [`Command::Netcheck`].
    Netcheck(Box<Netcheck>),
    /// To [`Command::ShiftProbe`].
    ShiftProbes(Vec<ShiftProbeResult>),
    /// To [`Command::Routes`].
    Routes(Vec<RouteStatus>),
    /// To [`Command::Hosts`].
    Hosts(MemberPage),
    /// To [`Command::Circuits`].
    Circuits(Box<CircuitsStatus>),
    /// To [`Command::Hidden`].
    Hidden(Box<HiddenStatus>),
    /// To [`Command::Forget`].
    Forgotten(ForgottenHosts),
    /// To [`Command::Metrics`]: OpenMetrics text.
    Metrics(String),
    /// To [`Command::Ping`].
    Pong {
        /// Round trip in microseconds.
        rtt_us: u64,
        /// Microseconds since the first request left: more than `rtt_us` if an earlier request was
        /// lost.
        #[serde(default)]
        since_us: u64,
    },
    /// To [`Command::Hops`].
    Hops(CircuitProbe),
    /// To [`Command::Send`]: one number per file, same order.
    Sending { transfers: Vec<TransferId> },
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
    Directory(Box<DirectoryStatus>),
    /// To [`Command::List`].
    List(ListPart),
    /// To [`Command::Steps`].
    Steps(SupplementPage),
    /// To [`Command::Supplements`].
    Supplements {
        /// Number of the mandate's steps that are in force.
        steps: u64,
    },
    /// To [`Command::Secret`].
    Secret(RedactedText),
    /// To [`Command::Registrar`].
    Registrar(Box<RegistrarReply>),
}

/// Reason why a command failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorReply {
    /// Kind of failure, for programs.
    pub code: ErrorCode,
    /// Text for people: the fault, and what to do about it.
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
    /// A table is full, or another inbox has these senders.
    Busy,
    /// No such transfer.
    UnknownTransfer,
    /// The new configuration is wrong; the old one stays in force.
    BadConfig,
    /// Supplements without effect: the mandate does not allow them, or steps before them are
    /// missing.
    Mandate,
    /// This node has no authority, or the list or secret asked for is not here.
    NoList,
    /// The node shuts down, or something in it failed.
    Internal,
}

impl ControlReply {
    /// An error reply.
    pub fn error(code: ErrorCode, message: impl Into<String>) -> ControlReply {
        ControlReply::Error(ErrorReply { code, message: message.into() })
    }
}

/// A row of the routing table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouteStatus {
    /// Router number of the destination.
    pub router: u32,
    /// Name in hosts.toml, if the router has one.
    pub name: Option<String>,
    /// Neighbour that leads to the destination; none when unreachable.
    pub next_hop: Option<String>,
    /// Cost of the path.
    pub cost: u32,
    /// Seconds since the next hop last changed.
    pub age_s: f64,
    /// Other neighbours that may be used at once, with the cost of the path, the cheapest first.
    pub alternatives: Vec<NextHop>,
}

/// Change that the node reports without a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum ControlEvent {
    /// A route came, went or changed its next hop (monitor).
    Route {
        /// Milliseconds since 1970.
        unix_ms: u64,
        /// Router number of the destination.
        router: u32,
        /// Name in hosts.toml, if the router has one.
        name: Option<String>,
        /// Next hop and cost before.
        old: Option<NextHop>,
        /// Next hop and cost after the change; none when unreachable.
        new: Option<NextHop>,
    },
    /// A neighbour changed its state (monitor).
    Link {
        /// Milliseconds since 1970.
        unix_ms: u64,
        /// Name in hosts.toml.
        peer: String,
        /// State, see [`NeighbourStatus::state`].
        state: String,
        /// Reason, if known.
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
        file: SendFile,
        /// Length in bytes of every chunk but the last.
        #[serde(default = "usual_chunk")]
        chunk: u64,
    },
    /// The receiver takes the file (send).
    Accepted {
        /// Number of the transfer.
        transfer: TransferId,
        /// Bytes that the receiver had before.
        resumed_bytes: u64,
        /// True if the receiver has the whole file; `resumed_bytes` can't tell that of an empty
        /// one.
        #[serde(default)]
        whole: bool,
    },
    /// Progress of a transfer; sent 1 to 10 times a second.
    Progress(TransferProgress),
    /// All bytes are written and the hash agrees: the program syncs, renames, confirms (receive).
    Complete {
        /// Number of the transfer.
        transfer: TransferId,
        /// BLAKE3 of the whole file as hex.
        hash: String,
        /// Final counters.
        stats: TransferProgress,
    },
    /// The receiver has the file under its final name (send).
    Done {
        /// Number of the transfer.
        transfer: TransferId,
        /// BLAKE3 of the whole file as hex.
        hash: String,
        /// Final counters.
        stats: TransferProgress,
    },
    /// The receiver declined (send).
    Refused {
        /// Number of the transfer.
        transfer: TransferId,
        reason: RefuseReason,
    },
    /// The transfer failed, at either end.
    Failed {
        /// Number of the transfer.
        transfer: TransferId,
        reason: CancelReason,
        /// Further detail, such as an error of the disk.
        detail: Option<String>,
    },
}

/// A next hop and the cost of its path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NextHop {
    pub peer: String,
    pub cost: u32,
}

/// Progress of a transfer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TransferProgress {
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
    /// Chunks written since the last event: half-open ranges of chunk numbers (receive). After a
    /// crash only those are reliable that were synced after their event.
    pub chunks: Vec<(u32, u32)>,
}
