//! What enters and leaves the network at a host: sessions with other hosts, files, IP packets,
//! echoes.
//!
//! In: cells for this host as the relay delivers them, commands, time. Out: cells for the relay
//! (through [`Out`]), events for whoever owns disks and users.
//!
//! ```text
//! cells --> end-to-end open --> +- segment, transfer message --> transfers --+
//!                               +- echo, IP packet                           |
//! cells <-- end-to-end seal <-- routed header <-- segments, messages <-------+
//! ```
//!
//! One session serves a pair of hosts, however many files go between them. Segments are written
//! straight into the frame in which they leave: one copy, no allocation.
//!
//! A *hidden* host is spoken with over circuits alone: policy says so, or an earlier session did.
//! Its cells are host units of leg cells, all of one length. What an earlier session said outlasts
//! the host's place in the list.
//!
//! Invariant: the edge knows hosts and circuits, never neighbours, routes or relays. [`Out::room`]
//! tells it whether there is room on the way out.

#![forbid(unsafe_code)]

mod arrive;
mod book;
mod building;
mod cells;
mod circuits;
mod direct;
mod echo;
pub mod edge;
mod hosts;
mod leave;
mod levels;
mod meet;
mod named;
mod numbers;
mod packets;
mod sequence;
mod units;
mod worker;

pub use book::{Book, HostId};
pub use building::Flow;
pub use cells::Cells;
pub use direct::{Direct, DirectConfig, DirectEvent, DirectStats};
pub use edge::{Config, Edge, Event, Out};
pub use hosts::HostConfig;
pub use levels::{GroupHash, Security, Why, agree};
pub use meet::{Reach, Relayed};
pub use sequence::{Label, OrderStats, Sequences, Verdict};
pub use worker::{Arrival, EdgeWorker, Note, Order, Others, Seen, Turn};
