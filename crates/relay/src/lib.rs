//! The forwarding engine of a node: frames from neighbours in, frames to neighbours out.
//!
//! In: batches of datagrams from the socket, cells from this node's own edge, time. Out: frames for
//! the socket (through a [`FrameSink`]), cells for this node's edge (through a closure), link and
//! route changes.
//!
//! ```text
//! datagrams -> open -> take -+-> for this node: to the edge            (forward.rs)
//!                            +-> transit -> next hop -> hold -> seal -> datagrams
//! edge's cells ------------------------------^                         (origin.rs, hold.rs)
//!                            +-> control: reports, routes              (relay.rs, control.rs)
//!                            +-> frames that wait, or go in parts      (relay.rs, small.rs)
//! ```
//!
//! Every worker's data path is a [`Forwarder`]. The [`Relay`] holds the first worker's forwarder
//! and finishes what workers can't. It finishes the first worker's frames in the buffer in which
//! they arrived.
//!
//! Read [`Forwarder`]'s file first, then [`relay`](mod@relay). Functions are in the order in which
//! a frame passes them.
//!
//! Invariant: the relay never sees a flow, a port, a length or a file. All bytes after the routed
//! header are opaque to it, and it depends neither on `edge` nor on `transfer`.

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
pub mod shift;
mod shift_moves;
mod shift_probes;
mod shifts;
mod small;
mod stun;
mod trial;
mod uplinks;
mod view;
mod workers;

pub use batch::CIRCUIT_LEN;
pub use control::RelayEvent;
pub use counters::{DropCounters, TrafficCounters};
pub use cover::{CoverFault, CoverState, CoverView};
pub use forward::{Forwarder, WorkerOrder};
pub use handoff::{
    ArrivalSource, CallContext, FrameAt, Handoff, HandoffFrame, HandoffKind, LocalCells,
};
pub use hold::{HoldConfig, MixedCell};
pub use io::{FrameSink, ReceivedRun, SendError, SendOutcome, SendPath};
pub use neighbours::{LinkConfig, LinkView};
pub use notes::{LinkNote, WorkerNote};
pub use notices::NeighbourWarnings;
pub use relay::{Relay, RelayConfig};
pub use shifts::{AcceptedAddresses, FORMER_KEPT, FORMER_MAX};
pub use shoal_mix::LATE;
pub use view::ForwardingView;

/// Maximum number of frames in one GSO send. Hosts send this many at once, so a run arrives as it
/// was sent and routers don't cut it. One UDP send would hold 45 full frames.
pub const RUN_MAX: usize = 44;
