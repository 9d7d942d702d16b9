//! Conversion of a virtual interface's IP packets to cells and back.
//!
//! In: one read of a TUN device, and the packets of one receive batch. A read is a `virtio_net_hdr`
//! and a packet, or a super-frame of up to 64 kB that the kernel did not segment. Out: packets that
//! fit a cell, written in place; super-frames for one write each.
//!
//! ```text
//! read --> Gate::outbound: which host? --> Split: packet i into a cell --> edge
//! edge --> Gate::inbound: sender's own address? --> Merge: packets of a flow --> one write
//! ```
//!
//! A cell carries whole packets, each with its own headers, so a lost cell costs no other packets.
//! Checksums of TCP and UDP stay partial on the way, since the end-to-end seal protects the bytes.
//! The receiving kernel is told not to verify them.
//!
//! For IP, an overlay path is one hop: hop limits are not decremented. Routed cells have a limit of
//! their own, and a packet never goes back from the receiving interface to the network.
//!
//! Invariant: hosts are numbers chosen by the caller. The crate has no session, key or descriptor,
//! and allocates nothing per packet.

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
pub use aqm::{Aqm, AqmAction, SignalSchedule, mark};
pub use fragments::{FRAGMENT_WAIT, FragmentAction, Fragments};
pub use gate::{AddressGate, AddressInUse, OutboundRefusal};
pub use icmp::{IcmpError, REPLY_MAX, complain};
pub use merge::{BufferSlice, PacketMerger};
pub use packet::{Fragment, Packet};
pub use quote::QuotedPacket;
pub use split::PacketSegmenter;
pub use stream::StreamKey;
pub use transport::TransportFields;
pub use vnet::{READ_MAX, VNET_LEN};
