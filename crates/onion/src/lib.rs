//! Onion circuits: a host wraps each cell once for every relay that it chose, and a relay learns no
//! other node of the circuit than its two neighbours.
//!
//! In: leg cells with the node that sent them, and the time. Out: the same cells, changed in place,
//! with the node that they go to; units for this node; cells of the circuit's set-up to send.
//!
//! ```text
//!            origin                relay                relay                 host
//! unit --> seal k layers --leg--> open one layer --leg--> open one layer --leg--> unit
//!      <-- open k layers <--leg-- seal one layer <--leg-- seal one layer <--leg-- unit
//! ```
//!
//! A circuit is set up hop by hop: the origin does an anonymous handshake with each node through
//! the hops before it (`setup`). `leg` protects a cell between two nodes of the circuit, `layer` is
//! what the origin shares with one of them.
//!
//! Driving it: after any call, take everything from [`Onion::poll_transmit`], [`Onion::poll_event`]
//! and [`Onion::poll_job`], whose jobs any thread may run; call
//! [`Onion::handle_timeout`] at [`Onion::poll_timeout`].
//!
//! Invariants: a node accepts each number of a direction and lane once, before it seals or opens
//! anything with it; it sends and passes on no control cell backward that was not asked for; a
//! create cell that is not sealed for this node leaves no state and gets no answer; circuits of
//! others take no places from those that this node begins.

#![forbid(unsafe_code)]

mod circuit;
mod hop;
mod inbox;
mod job;
mod layer;
mod leg;
mod limits;
mod onion;
pub mod path;
pub mod pool;
mod room;
mod setup;
mod slots;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vector_tests;

pub use job::{Done, Job};
pub use onion::{Carried, Config, Event, Failure, Fill, Onion, Own, Passed, Wait, Waits};
pub use room::Limits;
