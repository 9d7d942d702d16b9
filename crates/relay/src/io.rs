//! The interface to the owner of the socket.

use shoal_session::Endpoints;
use shoal_wire::LinkId;

/// One datagram, or a run of datagrams from one source as GRO delivers them.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedRun {
    /// Source of the datagrams, and their destination address at this node, if known.
    pub from: Endpoints,
    /// Start of the first datagram in the batch's buffer.
    pub offset: u32,
    /// Total number of bytes.
    pub len: u32,
    /// Length of each datagram. Only the last may be shorter. Never 0.
    pub stride: u32,
    /// True if the IP header said "congestion experienced" (RFC 3168). The mark takes it over (RFC
    /// 6040).
    pub congested: bool,
}

/// Reason for which a send stopped before its last frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The kernel has no room (ENOBUFS, EAGAIN): keep the frames and try again soon.
    Full,
    /// The kernel refuses these frames: drop them.
    Failed,
    /// The endpoint is inside this node's own interface: drop the frames.
    Inside,
    /// The device takes no frames of this length: drop them, and send no more of them there.
    TooLong,
}

/// Result of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendOutcome {
    /// Number of frames accepted, from the first on.
    pub sent: usize,
    /// Reason for which not all were accepted. `None` if all were.
    pub stop: Option<SendError>,
}

/// The path of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendPath {
    /// The neighbour, for which a shell may remember path properties. `None` for answers to
    /// handshakes of an unknown caller.
    pub link: Option<LinkId>,
    /// Source and destination.
    pub ends: Endpoints,
}

/// The destination of sealed frames, such as a socket.
pub trait FrameSink {
    /// Sends the frames of `len` bytes at `offsets` of `buf`, in this order.
    fn send(&mut self, path: SendPath, buf: &[u8], offsets: &[u32], len: usize) -> SendOutcome;
}
