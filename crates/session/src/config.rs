//! What a session machine is told, and what it says back.

use core::fmt::Debug;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use shoal_crypto::{Means, Suite};
use shoal_wire::{Address, DropReason, Level, LinkId, shake};

/// Where frames can be sent to: [`crate::Endpoints`] for links, an overlay address for host pairs.
pub trait Endpoint: Copy + Eq + Ord + Debug {
    /// Whom a source's share counts for, and how many of the bytes count. The port does not, and
    /// an IPv6 address counts by its /64: whoever has one of them has them all.
    fn source(&self) -> Source;

    /// What a cookie is bound to, and how many of the bytes count: all that tells where a datagram
    /// arrives. Who gets a cookie receives there and nowhere else.
    fn place(&self) -> Place;

    /// As [`Endpoint::place`], with no more of an IPv6 address than its /64: for senders whose
    /// addresses change. Who has one of a /64 has them all.
    fn wide_place(&self) -> Place {
        self.place()
    }

    /// Whether a datagram came to an address of this node's under `prefix`.
    fn is_to(&self, _prefix: &[u8; 8]) -> bool {
        false
    }

    /// Whether both are where the same peer would be found.
    fn is_same_place(&self, other: &Self) -> bool {
        self == other
    }

    /// The use of sessions whose handshakes go there, in a machine of use `machine`.
    fn role(&self, machine: Role) -> Role {
        machine
    }
}

/// Bytes that name a source, and how many of them count.
pub type Source = ([u8; 12], usize);
/// Bytes that name an endpoint, and how many of them count.
pub type Place = ([u8; 19], usize);

impl Endpoint for SocketAddr {
    fn source(&self) -> Source {
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

    fn place(&self) -> Place {
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
    fn source(&self) -> Source {
        let mut out = [0; 12];
        out[..Address::LEN].copy_from_slice(&self.to_bytes());
        (out, Address::LEN)
    }

    fn place(&self) -> Place {
        let mut out = [0; 19];
        out[..Address::LEN].copy_from_slice(&self.to_bytes());
        (out, Address::LEN)
    }
}

/// What a session is for; it is part of every key's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Between neighbours: no associated data.
    Link,
    /// Between hosts: the immutable bytes of the routed header are associated data.
    Edge,
    /// Between hosts over a circuit: no associated data, since relays rewrite what stands around.
    Onion,
}

impl Role {
    pub(crate) const fn label(self) -> &'static [u8] {
        match self {
            Role::Link => b"link",
            Role::Edge => b"edge",
            Role::Onion => b"onion",
        }
    }

    /// Length of a handshake frame.
    pub const fn handshake_len(self) -> usize {
        match self {
            Role::Link => shake::LINK_LEN,
            Role::Edge | Role::Onion => shake::EDGE_LEN,
        }
    }

    /// Length of a cookie reply.
    pub const fn cookie_len(self) -> usize {
        match self {
            Role::Link => shake::LINK_COOKIE_LEN,
            Role::Edge | Role::Onion => shake::EDGE_COOKIE_LEN,
        }
    }
}

/// What a machine may use and for how long. [`Config::new`] has the values of docs/wire.md.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which use: [`Role::Link`] or [`Role::Edge`]. A machine for hosts makes sessions over
    /// circuits too.
    pub role: Role,
    /// Lanes to offer, 1 to 16; a session has the smaller of both ends' offers.
    pub lanes: u8,
    /// Workers that share the lanes, from 1 on; what others than the first hold is in their
    /// [`crate::SessionShard`].
    pub workers: u8,
    /// Suites that this node takes, and the class of its processor.
    pub means: Means,
    /// A session that is used gets new keys at this age, or up to a sixth sooner.
    pub rekey_after: Duration,
    /// A session gets new keys after this many frames in one direction of one lane.
    pub rekey_frames: u32,
    /// A session is over at this age.
    pub reject_after: Duration,
    /// Whether sessions that nobody uses get new keys too, instead of ending.
    pub keep_idle: bool,
    /// Peers at most.
    pub max_peers: usize,
    /// Requests that may wait for the handshake thread.
    pub handshake_queue: usize,
    /// Frames that a replay window spans at most; it grows to that when it must.
    pub window: u32,
    /// First wait for a reply; from the one after `retry_even` on each is twice as long, up to
    /// `retry_max`.
    pub retry_first: Duration,
    /// How many waits more are as long as the first: most of what is not answered was lost on its
    /// way, and who waits longer each time for that makes people wait. Over circuits all are longer
    /// than the one before: mixes may hold an answer for seconds, and few requests are open.
    pub retry_even: u8,
    /// The wait for each reply of a peer that said that it stops, and may start again.
    pub retry_eager: Duration,
    /// Longest wait for a reply.
    pub retry_max: Duration,
    /// A session under which we sealed for this long without opening anything gets new keys: the
    /// peer may have lost it. Everything that travels is answered in some way within seconds, but
    /// for the last report between neighbours.
    pub silence: Duration,
    /// Requests sent before the peer counts as unreachable.
    pub attempts: u8,
}

impl Config {
    /// The defaults of docs/wire.md section 9, with the suites that suit this processor.
    pub fn new(role: Role) -> Config {
        Config {
            role,
            lanes: 1,
            workers: 1,
            means: Means::here(),
            rekey_after: Duration::from_secs(120),
            rekey_frames: 1 << 28,
            reject_after: Duration::from_secs(180),
            keep_idle: false,
            max_peers: 65_536,
            handshake_queue: 256,
            window: match role {
                Role::Link => 1 << 13,
                Role::Edge | Role::Onion => 1 << 17,
            },
            retry_first: Duration::from_millis(300),
            retry_even: 5,
            retry_eager: Duration::from_millis(500),
            retry_max: Duration::from_secs(5),
            silence: Duration::from_secs(4),
            attempts: 13,
        }
    }

    /// How many waits after the first are as long as it, in handshakes for sessions of this use.
    pub(crate) fn even_waits(&self, role: Role) -> u8 {
        if role == Role::Onion { 0 } else { self.retry_even }
    }
}

shoal_wire::id! {
    /// A peer as the machine names it.
    PeerId
}

impl From<LinkId> for PeerId {
    fn from(link: LinkId) -> PeerId {
        PeerId(link.bits())
    }
}

/// A neighbour has the id of its session's peer.
impl From<PeerId> for LinkId {
    fn from(peer: PeerId) -> LinkId {
        LinkId::from_bits(peer.0)
    }
}

/// A table has no room for another entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for another peer")]
pub struct TableFull;

/// What is known of a frame that opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Who sealed it.
    pub peer: PeerId,
    /// On which lane.
    pub lane: u8,
    /// How well the lane protects it.
    pub level: Level,
    /// Its counter.
    pub counter: u32,
    /// Whether no higher counter came before, on the newest session: the endpoint may move to
    /// where this frame came from.
    pub newest: bool,
}

/// What became of a frame that was to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// It opened, in place.
    Data(Opened),
    /// No session knows it; it was not touched. It may be a handshake, for
    /// [`crate::Sessions::handle_handshake`].
    Handshake,
    /// This worker holds its lane. It was not touched.
    Worker(u8),
    /// It is refused, and its bytes are undefined.
    Drop(DropReason),
}

impl Opening {
    /// What was learnt of the frame, or why this worker learnt nothing.
    pub fn opened(self) -> Result<Opened, DropReason> {
        match self {
            Opening::Data(opened) => Ok(opened),
            Opening::Handshake => Err(DropReason::UnknownIndex),
            Opening::Worker(_) => Err(DropReason::OtherWorker),
            Opening::Drop(reason) => Err(reason),
        }
    }
}

/// What the machine wants its owner to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Frames can be sealed for the peer under fresh keys.
    Established {
        /// The peer.
        peer: PeerId,
        /// Whether we began the handshake.
        initiator: bool,
        /// The cipher that was agreed on.
        suite: Suite,
        /// The level that was agreed on.
        level: Level,
        /// False when the session replaces a live one.
        new: bool,
    },
    /// Another process of the peer made the session that is in use from now on than the one before;
    /// [`Event::Established`] follows. A restart does that, or a second node with the key.
    OtherProcess {
        /// The peer.
        peer: PeerId,
        /// True if this process had called before the other one did: both run.
        back: bool,
    },
    /// Seal something for the peer now, a keepalive if there is nothing else: it tells the peer
    /// that the new keys work, and the peer seals under the old ones until then.
    NeedKeepalive {
        /// The peer.
        peer: PeerId,
    },
    /// The last session with the peer is over; `connect` makes another.
    Expired {
        /// The peer.
        peer: PeerId,
    },
    /// Nobody answered; `connect` tries again.
    Failed {
        /// The peer.
        peer: PeerId,
    },
    /// New keys are due with a peer that is spoken with over circuits, and there is no circuit on
    /// which a handshake could begin.
    NeedCircuit {
        /// The peer.
        peer: PeerId,
    },
}

impl Event {
    /// The peer that it is about.
    pub fn peer(&self) -> PeerId {
        match *self {
            Event::Established { peer, .. }
            | Event::OtherProcess { peer, .. }
            | Event::NeedKeepalive { peer }
            | Event::Expired { peer }
            | Event::Failed { peer }
            | Event::NeedCircuit { peer } => peer,
        }
    }
}

/// Counters of handshakes by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests sent.
    pub requests_sent: u64,
    /// Requests answered.
    pub responses_sent: u64,
    /// Cookie replies sent.
    pub cookies_sent: u64,
    /// Cookie replies taken.
    pub cookies_taken: u64,
    /// Sessions established, either way.
    pub established: u64,
    /// Times that a peer did not answer at all.
    pub failed: u64,
    /// Requests that the handshake thread found wrong.
    pub refused: u64,
}
