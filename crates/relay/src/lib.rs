//! A node among its neighbours: frames in, frames out, and which way they go.
//!
//! In: batches of datagrams as they came off the socket, cells from this node's own edge, time.
//! Out: frames for the socket (through a [`Sink`]), cells for this node's edge (through a closure),
//! link and route changes.
//!
//! ```text
//! datagrams -> open -> classify -+-> control: reports, routes         (control.rs)
//!                                +-> for this node: to the edge
//!                                +-> transit -> next hop -> egress -> seal -> datagrams
//! edge's cells ----------------------------------------^               (relay.rs)
//! ```
//!
//! Read [`relay`](mod@relay) first: its functions stand in the order in which a packet meets them.
//!
//! Invariant: the relay never sees a flow, a port, a length or a file; what stands behind the
//! routed header is opaque to it, and it depends on neither `edge` nor `transfer`.

#![forbid(unsafe_code)]

mod batch;
mod control;
mod counters;
mod io;
mod neighbours;
pub mod relay;
mod small;

pub use control::Event;
pub use counters::{Counters, Traffic};
pub use io::{Incoming, SendOutcome, Sink, Stop};
pub use neighbours::{LinkConfig, LinkView};
pub use relay::{Config, Relay};

/// Frames in one GSO send: 45 full frames are the most that fit the 65,507 bytes of one UDP send.
pub const RUN_MAX: usize = 45;
