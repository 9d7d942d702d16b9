//! The seam to whoever owns the socket.

use shoal_session::Endpoints;
use shoal_wire::LinkId;

/// A run of datagrams from one source: as GRO delivers them, or a single one.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// Who sent them, and which of this node's addresses they came to, if that is known.
    pub from: Endpoints,
    /// Where the first one starts in the batch's buffer.
    pub offset: u32,
    /// Bytes in all.
    pub len: u32,
    /// Length of each datagram; the last may be shorter. Never 0.
    pub stride: u32,
    /// The IP header said "congestion experienced" (RFC 3168), folded into the mark (RFC 6040).
    pub congested: bool,
}

/// Why a send stopped before its last frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// No room below (ENOBUFS, EAGAIN): keep the frames, try again soon.
    Full,
    /// The kernel refuses these frames: drop them.
    Failed,
    /// The endpoint leads into this node's own interface: drop them.
    Inside,
    /// The device takes no frames of this length: drop them, and send no more of them there.
    TooLong,
}

/// What became of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendOutcome {
    /// How many frames were taken, from the first on.
    pub sent: usize,
    /// Why not all of them; `None` when all were.
    pub stop: Option<Stop>,
}

/// The way of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The neighbour, by which a shell remembers what the path can do; `None` for answers to
    /// handshakes of a caller that is not known yet.
    pub link: Option<LinkId>,
    /// From where to where.
    pub ends: Endpoints,
}

/// Where sealed frames go.
pub trait Sink {
    /// Sends the frames of `len` bytes at `offsets` of `buf`, in this order.
    fn send(&mut self, path: Path, buf: &[u8], offsets: &[u32], len: usize) -> SendOutcome;
}
