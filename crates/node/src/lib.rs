//! A complete node as a value: relay, edge, circuits, direct links, programs' packets, and workers.
//!
//! In: datagrams, packets from the interface, messages of other workers, time. Out: frames for a
//! sink, packets for the interface, messages for other workers, events for the node's owner.
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
//! A node begins as its [`Control`], which contains the first worker's data path.
//! [`Control::split`] makes the other workers. From then on they communicate by [`WorkerMessage`]s
//! only. [`Shell`] names everything that the shell provides. Read [`control`](mod@control) first,
//! then `worker.rs`.
//!
//! Invariant: no lock, thread, clock or system call. Besides rings, workers share only the
//! firewall's table of flows, which the shell guards ([`SharedFlowTable`]).

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
mod uplinks;
mod worker;

pub use circuits::NodeCircuits;
pub use control::{Control, HandshakeDone, HandshakeJob, NodeEvent, NodeSettings, Seeds};
pub use firewall::{InterfaceFirewall, SharedFlowTable};
pub use queue::{InterfaceQueue, QueueCounters};
pub use rings::{PARCELS, Parcel, RING, WorkerMessage, WorkerReport};
pub use shell::{NodeQueue, Shell, TunOffloads, TunQueue, WorkerRings};
pub use worker::Worker;
