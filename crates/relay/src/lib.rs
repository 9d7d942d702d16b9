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
//! With several workers the [`Relay`] is the first one's; each of the others has a [`Forwarder`].
//!
//! Read [`relay`](mod@relay) first: its functions stand in the order in which a packet meets them.
//!
//! Invariant: the relay never sees a flow, a port, a length or a file; what stands behind the
//! routed header is opaque to it, and it depends on neither `edge` nor `transfer`.

#![forbid(unsafe_code)]

mod batch;
mod control;
mod counters;
mod direct;
mod forward;
mod io;
mod lists_only;
mod neighbours;
mod origin;
mod paths;
pub mod relay;
mod small;
mod told;
mod trial;
mod view;
mod workers;

pub use control::Event;
pub use counters::{Counters, Traffic};
pub use forward::{Arrival, Forwarder, Hand, LinkNote, LocalCells, Note, Order};
pub use io::{Incoming, SendOutcome, Sink, Stop};
pub use neighbours::{LinkConfig, LinkView};
pub use relay::{Config, Relay};
pub use told::Told;
pub use view::View;
pub use workers::{Elsewhere, Handed};

/// Frames in one GSO send: what a host sends at once, so that routers don't cut runs anew and a
/// super-frame that left in one send arrives in one. One UDP send would hold 45 full frames.
pub const RUN_MAX: usize = 44;
