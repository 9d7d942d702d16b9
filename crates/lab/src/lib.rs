//! Real networks of Shoal nodes on one machine.
//!
//! In: a [`topology`](Topology), what its links are like, and the `shoal` program. Out: processes
//! of `shoal run` on links that are shaped, lose and can be cut, and a report of what they did.
//!
//! ```text
//! topology   who is beside whom
//! network    the links: namespaces and veth pairs (namespace, veth, shaping), or without
//!            root forwarders on the loopback (forward)
//! wiretap    what an observer sees, and statistics of it
//! site       folders, configs, keys; the node processes
//! demo       the story that `shoal demo` tells, and its report
//! ```
//!
//! Invariant: rate, loss and cuts act outside the nodes, which are ordinary processes with ordinary
//! configs: the lab does nothing that a user couldn't do by hand. All of it disappears when its
//! owner does, however that ends.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a shell owns the system")]

pub mod demo;
mod forward;
mod interrupt;
pub mod namespace;
pub mod network;
mod process;
mod shaping;
pub mod site;
pub mod statistics;
pub mod topology;
mod veth;
pub mod wiretap;

pub use network::{Conditions, Kind, Network};
pub use process::{Process, Usage};
pub use shaping::Rate;
pub use topology::Topology;

#[cfg(test)]
mod tests;
