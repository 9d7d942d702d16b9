//! Configuration, events and counters of a session machine.

use core::fmt::Debug;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use shoal_crypto::{Suite, SuiteSupport};
use shoal_wire::{Address, DropReason, Level, LinkId, Removal, shake};

/// Destination of frames: [`crate::Endpoints`] for links, [`crate::HostPath`] for host pairs.
pub trait Endpoint: Copy + Eq + Ord + Debug {
    /// Key under which limits per source count this endpoint. The port does not count. An IPv6
    /// address counts by its /64, since a host can use every address of its /64.
    fn source(&self) -> SourceKey;

    /// Bytes that a cookie is bound to: all that decides where a datagram arrives. Only a receiver
    /// at this endpoint gets the cookie.
    fn place(&self) -> CookieBinding;

    /// Like [`Endpoint::place`], with only the /64 of an IPv6 address: for senders whose addresses
    /// change. A host can use every address of its /64.
    fn wide_place(&self) -> CookieBinding {
        self.place()
    }

    /// True if the datagram came to an address of this node under `prefix`.
    fn is_to(&self, _prefix: &[u8; 8]) -> bool {
        false
    }

    /// True if both endpoints lead to one place of a peer.
    fn is_same_place(&self, other: &Self) -> bool {
        self == other
    }

    /// Role of sessions whose handshakes go to this endpoint, in a machine of role `machine`.
    fn role(&self, machine: SessionRole) -> SessionRole {
        machine
    }
}

/// Bytes that name a source, and the number of bytes used.
pub type SourceKey = ([u8; 12], usize);
/// Bytes that name an endpoint, and the number of bytes used.
pub type CookieBinding = ([u8; 19], usize);

impl Endpoint for SocketAddr {
    fn source(&self) -> SourceKey {
        let mut out = [0; 12];
        match self.ip().to_canonical() {
            IpAddr::V4(ip) => {
                out[0] = 4;
                out[1..5].copy_from_slice(&ip.octets());
                (out, 5)
            }
            IpAddr::V6(ip) => {
                out[0] = 6;
                out[1..9].copy_from_slice(&ip.octets()[..8]);
                (out, 9)
            }
        }
    }

    fn place(&self) -> CookieBinding {
        let mut out = [0; 19];
        let len = match self.ip().to_canonical() {
            IpAddr::V4(ip) => {
                out[0] = 4;
                out[1..5].copy_from_slice(&ip.octets());
                5
            }
            IpAddr::V6(ip) => {
                out[0] = 6;
                out[1..17].copy_from_slice(&ip.octets());
                17
            }
        };
        out[len..len + 2].copy_from_slice(&self.port().to_be_bytes());
        (out, len + 2)
    }
}

impl Endpoint for Address {
    fn source(&self) -> SourceKey {
        let mut out = [0; 12];
        out[..Address::LEN].copy_from_slice(&self.to_bytes());
        (out, Address::LEN)
    }

    fn place(&self) -> CookieBinding {
        let mut out = [0; 19];
        out[..Address::LEN].copy_from_slice(&self.to_bytes());
        (out, Address::LEN)
    }
}

/// Use of a session, which is part of every key's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionRole {
    /// Between neighbours: no associated data.
    Link,
    /// Between hosts: the immutable bytes of the routed header are associated data.
    Edge,
    /// Between hosts over a circuit: no associated data, since relays rewrite the bytes around it.
    Onion,
}

impl SessionRole {
    pub(crate) const fn label(self) -> &'static [u8] {
        match self {
            SessionRole::Link => b"link",
            SessionRole::Edge => b"edge",
            SessionRole::Onion => b"onion",
        }
    }

    /// Length of a handshake frame.
    pub const fn handshake_len(self) -> usize {
        match self {
            SessionRole::Link => shake::LINK_LEN,
            SessionRole::Edge | SessionRole::Onion => shake::EDGE_LEN,
        }
    }

    /// Length of a cookie reply.
    pub const fn cookie_len(self) -> usize {
        match self {
            SessionRole::Link => shake::LINK_COOKIE_LEN,
            SessionRole::Edge | SessionRole::Onion => shake::EDGE_COOKIE_LEN,
        }
    }
}

/// Limits and times of a session machine. [`SessionConfig::new`] has the values of
/// docs/design/wire/session.md.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// [`SessionRole::Link`] or [`SessionRole::Edge`]. A machine for hosts also makes sessions over
    /// circuits.
    pub role: SessionRole,
    /// Lanes to offer, 1 to 16. A session uses the smaller of both ends' offers.
    pub lanes: u8,
    /// Workers that share the lanes, at least 1. Each worker but the first has its lanes in a
    /// [`crate::SessionShard`].
    pub workers: u8,
    /// Suites that this node accepts, and its processor class.
    pub means: SuiteSupport,
    /// Age at which a session in use gets new keys; up to a sixth sooner at random.
    pub rekey_after: Duration,
    /// Frames in one direction of one lane after which a session gets new keys.
    pub rekey_frames: u32,
    /// Age at which a session ends.
    pub reject_after: Duration,
    /// True if idle sessions get new keys too, instead of ending.
    pub keep_idle: bool,
    /// Most peers.
    pub max_peers: usize,
    /// Requests that may wait for the handshake thread.
    pub handshake_queue: usize,
    /// Largest span of a replay window in frames. A window grows to it on demand.
    pub window: u32,
    /// First wait for a reply. After `retry_even` more equal waits, each wait is twice the one
    /// before, up to `retry_max`.
    pub retry_first: Duration,
    /// Number of further waits as long as the first. Most missing replies are lost frames, and
    /// doubling at once would make people wait. Over circuits each wait doubles: mixes may hold an
    /// answer for seconds, and few requests are open at a time.
    pub retry_even: u8,
    /// Wait for each reply of a peer that announced its stop, since it may start again soon.
    pub retry_eager: Duration,
    /// Longest wait for a reply.
    pub retry_max: Duration,
    /// Time of sealing without opening anything after which a session gets new keys. The peer may
    /// have lost it: all traffic draws some answer within seconds, except the last report between
    /// neighbours.
    pub silence: Duration,
    /// Number of requests after which the peer counts as unreachable.
    pub attempts: u8,
}

impl SessionConfig {
    /// Defaults of docs/design/wire/session.md, with the suites that suit this processor.
    pub fn new(role: SessionRole) -> SessionConfig {
        SessionConfig {
            role,
            lanes: 1,
            workers: 1,
            means: SuiteSupport::here(),
            rekey_after: Duration::from_secs(120),
            rekey_frames: 1 << 28,
            reject_after: Duration::from_secs(180),
            keep_idle: false,
            max_peers: 65_536,
            handshake_queue: 256,
            window: match role {
                SessionRole::Link => 1 << 13,
                SessionRole::Edge | SessionRole::Onion => 1 << 17,
            },
            retry_first: Duration::from_millis(300),
            retry_even: 5,
            retry_eager: Duration::from_millis(500),
            retry_max: Duration::from_secs(5),
            silence: Duration::from_secs(4),
            attempts: 13,
        }
    }

    /// Number of waits equal to the first, for handshakes of this role.
    pub(crate) fn even_waits(&self, role: SessionRole) -> u8 {
        if role == SessionRole::Onion { 0 } else { self.retry_even }
    }
}

shoal_wire::id! {
    /// A peer, as the machine names it.
    PeerId
}

impl From<LinkId> for PeerId {
    fn from(link: LinkId) -> PeerId {
        PeerId(link.bits())
    }
}

/// A neighbour's id equals its peer's id.
impl From<PeerId> for LinkId {
    fn from(peer: PeerId) -> LinkId {
        LinkId::from_bits(peer.0)
    }
}

/// Error: a table is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for another peer")]
pub struct TableFull;

/// Description of a frame that opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedSessionFrame {
    /// Peer that sealed it.
    pub peer: PeerId,
    pub lane: u8,
    /// Protection of the lane.
    pub level: Level,
    pub counter: u32,
    /// True if no higher counter of the newest session came before. The endpoint may then move to
    /// the source of this frame.
    pub newest: bool,
}

/// Result of opening a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenResult {
    /// The frame was opened in place.
    Data(OpenedSessionFrame),
    /// No session has the frame's index. The frame is unchanged and may be a handshake, for
    /// [`crate::Sessions::handle_handshake`].
    Handshake,
    /// This worker holds the frame's lane. The frame is unchanged.
    Worker(u8),
    /// The frame is refused, and its bytes are undefined.
    Drop(DropReason),
}

impl OpenResult {
    /// The opened frame, or the reason why this worker did not open it.
    pub fn opened(self) -> Result<OpenedSessionFrame, DropReason> {
        match self {
            OpenResult::Data(opened) => Ok(opened),
            OpenResult::Handshake => Err(DropReason::UnknownIndex),
            OpenResult::Worker(_) => Err(DropReason::OtherWorker),
            OpenResult::Drop(reason) => Err(reason),
        }
    }
}

/// Event for the machine's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// New keys are ready to seal frames for the peer.
    Established {
        peer: PeerId,
        /// True if this node began the handshake.
        initiator: bool,
        /// The negotiated suite.
        suite: Suite,
        /// The negotiated level.
        level: Level,
        /// False if the session replaces a live one.
        new: bool,
    },
    /// The session in use was made by another process of the peer than the one before;
    /// [`SessionEvent::Established`] follows. The cause is a restart, or a second node with the
    /// peer's key.
    OtherProcess {
        peer: PeerId,
        /// True if this process had called before the previous one did: both are running.
        back: bool,
    },
    /// The owner must seal a frame for the peer at once, a keepalive if it has no other. The frame
    /// tells the peer that the new keys work; until then the peer seals under the old ones.
    NeedKeepalive { peer: PeerId },
    /// The last session with the peer ended. [`crate::Sessions::connect`] makes another.
    Expired { peer: PeerId },
    /// The peer did not answer. [`crate::Sessions::connect`] tries again.
    Failed { peer: PeerId },
    /// New keys are due with a peer that is reached over circuits only, but it has no circuit for
    /// the handshake.
    NeedCircuit { peer: PeerId },
    /// The peer answered that this node's membership has ended. Only the peer can have sealed the
    /// answer, but it may lie, so the handshake goes on. Comes once per handshake.
    Removed { peer: PeerId, removal: Removal },
}

impl SessionEvent {
    pub fn peer(&self) -> PeerId {
        match *self {
            SessionEvent::Established { peer, .. }
            | SessionEvent::OtherProcess { peer, .. }
            | SessionEvent::NeedKeepalive { peer }
            | SessionEvent::Expired { peer }
            | SessionEvent::Failed { peer }
            | SessionEvent::NeedCircuit { peer }
            | SessionEvent::Removed { peer, .. } => peer,
        }
    }
}

/// Counters of handshakes by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandshakeStats {
    /// Requests sent.
    pub requests_sent: u64,
    /// Requests answered.
    pub responses_sent: u64,
    /// Cookie replies sent.
    pub cookies_sent: u64,
    /// Cookie replies accepted.
    pub cookies_taken: u64,
    /// Sessions established, in either role.
    pub established: u64,
    /// Handshakes that got no answer.
    pub failed: u64,
    /// Requests that the handshake thread refused.
    pub refused: u64,
    /// Former members that were told of their removal; counted as refused, too.
    pub removed_told: u64,
}
