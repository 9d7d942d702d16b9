//! Real networks of Shoal nodes on one machine.
//!
//! In: a [`topology`](Topology), the conditions of its links, and an [`Executable`]. Out: nodes, as
//! processes on links that are shaped, lose and can be cut, and a report.
//!
//! ```text
//! topology   who is beside whom
//! network    the links: namespaces and veth pairs (namespace, veth, shaping), or without
//!            root forwarders on the loopback (forward)
//! wiretap    what an observer sees, and statistics of it
//! executable the program of nodes: `shoal`, or `shoal-lab` itself
//! site       folders, configs, keys; the node processes
//! demo       what `shoal-lab demo` does, and its report
//! emulator   links with delay, jitter, bursts of losses, and a queue that is measured
//! scenario   experiments as TOML files; run carries them out, figures says what must hold
//! attack     how well an attacker pairs access links, in virtual time and in captures, and whether
//!            a censor tells Shoal from other programs
//! bench      other programs on the same links
//! stages     experiments without a network: time per segment, ways to use files
//! moving     addresses that hop: a paper's tests, what hops cost, and who links them again
//! translators pairs of hosts behind translators of addresses: which get a link of their own
//! record     the data of a report; html draws it
//! needs      what a machine must have for all this
//! ```
//!
//! Invariant: rate, loss and cuts act outside the nodes, which are ordinary processes with ordinary
//! configs: the lab does nothing that a user couldn't do by hand. All of it disappears when the
//! process that owns it ends, however that happens.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a shell owns the system")]

pub mod attack;
pub mod bench;
mod circuits;
pub mod demo;
mod emulator;
mod executable;
pub mod figures;
mod files;
mod flood;
mod follow;
mod forward;
pub mod gateways;
mod hops;
pub mod html;
mod interrupt;
mod meter;
mod moving;
pub mod namespace;
pub mod needs;
pub mod network;
mod observe;
mod pings;
mod process;
mod programs;
pub mod record;
pub mod run;
pub mod scenario;
mod shapes;
mod shaping;
pub mod site;
mod stages;
pub mod statistics;
mod tcp;
pub mod topology;
mod translators;
mod udp;
mod veth;
pub mod wiretap;
mod workspace;

pub use executable::Executable;
pub use network::{Conditions, Family, Ground, Kind, Loss, Network};
pub use process::{Process, Usage};
pub use shaping::Rate;
pub use topology::{LinkSpec, NodeSpec, Topology};

#[cfg(test)]
mod tests;
