//! The edge of the network at a host: sessions with other hosts, files, IP packets, echoes.
//!
//! Input: cells for this host from the relay, commands, time. Output: cells for the relay (through
//! [`EdgeOutput`]), and events for the owner of disks and users.
//!
//! ```text
//! cells --> end-to-end open --> +- segment, transfer message --> transfers --+
//!                               +- echo, IP packet                           |
//! cells <-- end-to-end seal <-- routed header <-- segments, messages <-------+
//! ```
//!
//! One session serves a pair of hosts, for any number of files. Segments are written straight into
//! the frame in which they leave: one copy, no allocation.
//!
//! A *hidden* host is reached only over circuits, because policy says so or because an earlier
//! session used a circuit. Its cells are host units in leg cells, all of one length. A host that
//! was met over a circuit stays hidden even after it left the list.
//!
//! Invariant: the edge knows hosts and circuits, but no neighbours, routes or relays.
//! [`EdgeOutput::room`] tells it how much may be sent.

#![forbid(unsafe_code)]

mod arrive;
mod book;
mod building;
mod cells;
mod circuits;
mod clear;
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
mod roam;
mod sequence;
mod shared;
mod units;
mod worker;

pub use book::{HostDirectory, HostId};
pub use building::PacketFlow;
pub use cells::InboundCells;
pub use clear::ClearCells;
pub use direct::{DirectConfig, DirectEvent, DirectMachine, DirectStats};
pub use edge::{Edge, EdgeConfig, EdgeEvent, EdgeOutput};
pub use hosts::{FORGOTTEN_FOR, HostConfig, RELEASED_FOR};
pub use levels::{GroupHash, HostSecurity, LevelReason, agree};
pub use meet::{NoDirectReason, Reachability};
pub use sequence::{OrderStats, OrderVerdict, PacketLabel, PacketReordering};
pub use worker::{
    CellHandoff, EdgeNote, EdgeOrder, EdgeTurn, EdgeWorker, HostTraffic, PacketArrival,
};
