//! The seam to whoever owns the socket.

use std::net::SocketAddr;

/// A run of datagrams from one source: as GRO delivers them, or a single one.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// Who sent them.
    pub from: SocketAddr,
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

/// Where sealed frames go.
pub trait Sink {
    /// Sends the frames of `len` bytes at `offsets` of `buf` to `to`, in this order.
    fn send(&mut self, to: SocketAddr, buf: &[u8], offsets: &[u32], len: usize) -> SendOutcome;
}
