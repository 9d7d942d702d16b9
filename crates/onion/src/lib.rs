//! Onion circuits. A host wraps each cell once for every relay that it chose. A relay learns no
//! nodes of the circuit but its two neighbours.
//!
//! Input is leg cells with the node that sent them, and the time. Output is those cells, changed in
//! place, with the node that they go to. There are also units for this node, and cells of circuit
//! set-up to send.
//!
//! ```text
//!            origin                relay                relay                 host
//! unit --> seal k layers --leg--> open one layer --leg--> open one layer --leg--> unit
//!      <-- open k layers <--leg-- seal one layer <--leg-- seal one layer <--leg-- unit
//! ```
//!
//! A circuit is set up hop by hop: the origin does an anonymous handshake with each node through
//! the hops before it (`setup`). A `leg` protects a cell between two nodes of the circuit. A
//! `layer` is the seal that the origin shares with one of them.
//!
//! A caller must do two things. After any call, take all output from [`Onion::poll_transmit`],
//! [`Onion::poll_event`] and [`Onion::poll_job`], whose jobs any thread may run. At the time from
//! [`Onion::poll_timeout`], call [`Onion::handle_timeout`].
//!
//! Invariants: a node accepts each number of a direction and lane once, before it seals or opens
//! anything with it. It sends or forwards a control cell backward only if it was asked for. A
//! create cell that is not sealed for this node leaves no state and gets no answer. Circuits of
//! others never use the places of circuits that this node begins.

#![forbid(unsafe_code)]

mod circuit;
mod echo;
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

pub use echo::EchoDelays;
pub use job::{SetupJob, SetupJobResult};
pub use onion::{
    CellResult, ForwardedCell, KeyDelays, MixWait, Onion, OnionConfig, OnionEvent, OriginatedCell,
    SetupFailure, TableFill,
};
pub use room::CircuitLimits;
