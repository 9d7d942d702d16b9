//! One node, whole, as a value: relay, edge, circuits, direct links, programs' packets, and
//! its workers.
//!
//! In: datagrams, what the interface reads, messages of other workers, time. Out: frames for a
//! sink, packets for the interface, messages for other workers, events for whoever owns disks and
//! users.
//!
//! ```text
//! datagrams -> relay -> cells for this node -> edge -> gate -> firewall -> merge -> interface
//!                |----> leg cells -> onion -> edge, or on to the next node -> sink
//!                |----> transit -> sink
//! interface -> gate -> firewall -> AQM -> split -> edge -> relay -> sink
//!
//! Control <= rings => Worker 1, Worker 2, ...      each with sink, interface queue and lanes
//! ```
//!
//! A node begins as its [`Control`], which has the first worker's data path. With several workers
//! [`Control::split`] makes the others; from then on only [`Message`]s join them. What the shell
//! lends is named once, in [`Shell`]. Read [`control`](mod@control) first, then `worker.rs`.
//!
//! Invariant: no lock, thread, clock or system call; what workers share beside rings is the
//! firewall's table of flows, which the shell guards ([`Flows`]).

#![forbid(unsafe_code)]

mod circuits;
pub mod control;
mod direct;
mod firewall;
mod out;
mod pool;
mod queue;
mod rings;
mod shell;
#[cfg(test)]
mod support;
mod worker;

pub use circuits::Circuits;
pub use control::{Config, Control, Event, HandshakeDone, HandshakeJob, Seeds};
pub use firewall::{Firewall, Flows};
pub use queue::{Queue, QueueCounters};
pub use rings::{Message, PARCELS, Parcel, RING, WorkerReport};
pub use shell::{Device, Rings, Shell, TunOffloads};
pub use worker::Worker;
