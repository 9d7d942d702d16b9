//! IP packets of a virtual interface to cells and back.
//!
//! In: what one read of a TUN device gives (a `virtio_net_hdr`, then a packet or a super-frame of
//! up to 64 kB that the kernel left uncut), and the packets of one receive batch. Out: packets that
//! fit a cell each, written in place; super-frames for one write each.
//!
//! ```text
//! read --> Gate::outbound: which host? --> Split: packet i into cell i --> edge
//! edge --> Gate::inbound: sender's own address? --> Merge: packets of a flow --> one write
//! ```
//!
//! Each cell carries a whole packet with headers of its own, so that a lost cell costs one packet.
//! Checksums of TCP and UDP stay partial on the way: the end-to-end seal protects the bytes, and
//! the receiving kernel is told that it need not look.
//!
//! An overlay path is one hop for IP: hop limits are not lowered, since routed cells have a limit
//! of their own and a packet never leaves the receiving interface towards the network again.
//!
//! Invariant: this crate knows hosts as numbers that its caller gives. It has no session, key or
//! descriptor, and allocates nothing per packet.

#![forbid(unsafe_code)]

mod address;
mod aqm;
mod fragments;
mod gate;
mod icmp;
mod merge;
mod packet;
mod quote;
mod split;
mod stream;
mod subnets;
mod sum;
mod transport;
mod vnet;

pub use address::{Prefix, host_part, network_prefix, overlay_address, overlay_prefix};
pub use aqm::{Aqm, Signals, Verdict, mark};
pub use fragments::{FRAGMENT_WAIT, Fragments, Passage};
pub use gate::{Gate, Refusal, Taken};
pub use icmp::{Complaint, REPLY_MAX, complain};
pub use merge::{Merge, Piece};
pub use packet::{Fragment, Packet};
pub use quote::Quote;
pub use split::Split;
pub use stream::StreamKey;
pub use transport::Transport;
pub use vnet::{READ_MAX, VNET_LEN};
