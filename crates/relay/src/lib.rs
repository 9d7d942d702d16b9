//! A node among its neighbours: frames in, frames out, and which way they go.
//!
//! In: batches of datagrams as they came off the socket, cells from this node's own edge, time.
//! Out: frames for the socket (through a [`Sink`]), cells for this node's edge (through a closure),
//! link and route changes.
//!
//! ```text
//! datagrams -> open -> take -+-> for this node: to the edge            (forward.rs)
//!                            +-> transit -> next hop -> hold -> seal -> datagrams
//! edge's cells ------------------------------^                         (origin.rs, hold.rs)
//!                            +-> control: reports, routes              (relay.rs, control.rs)
//!                            +-> what must wait, or goes in parts      (relay.rs, small.rs)
//! ```
//!
//! Every worker's data path is a [`Forwarder`]. The [`Relay`] holds the first worker's and finishes
//! what workers can't; frames of the first worker it finishes in the buffer in which they lie.
//!
//! Read [`Forwarder`]'s file first, then [`relay`](mod@relay): the functions stand in the order in
//! which a frame meets them.
//!
//! Invariant: the relay never sees a flow, a port, a length or a file; what stands behind the
//! routed header is opaque to it, and it depends on neither `edge` nor `transfer`.

#![forbid(unsafe_code)]

mod batch;
mod control;
mod counters;
mod cover;
mod direct;
mod endpoints;
mod forward;
mod handoff;
mod hold;
pub mod hop;
mod hop_moves;
mod hop_probes;
mod hops;
mod io;
mod kept;
mod lists;
mod lists_only;
mod mirror;
mod neighbours;
mod notes;
mod notices;
mod opened;
mod origin;
mod paths;
mod probe;
pub mod relay;
mod rendezvous;
mod small;
mod stun;
mod trial;
mod view;
mod workers;

pub use batch::CIRCUIT_LEN;
pub use control::Event;
pub use counters::{Counters, Traffic};
pub use cover::{CoverFault, CoverState, CoverView};
pub use forward::{Forwarder, Order};
pub use handoff::{Arrival, FrameAt, Handed, Handoff, LocalCells, Turn, Unfinished};
pub use hold::{HoldConfig, MixedCell};
pub use hops::{Accepted, FORMER_KEPT, FORMER_MAX};
pub use io::{Incoming, Path, SendOutcome, Sink, Stop};
pub use neighbours::{LinkConfig, LinkView};
pub use notes::{LinkNote, Note};
pub use notices::Notices;
pub use relay::{Config, Relay};
pub use shoal_mix::LATE;
pub use view::View;

/// Frames in one GSO send. Hosts send as many at once, so that a run that left in one send arrives
/// in one, and routers don't cut it anew. One UDP send would hold 45 full frames.
pub const RUN_MAX: usize = 44;
