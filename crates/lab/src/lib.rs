//! Real networks of Shoal nodes on one machine.
//!
//! Inputs: a [`topology`](Topology), the conditions of its links, and an [`Executable`]. Outputs:
//! nodes as processes, on links with shaping, loss and cuts, and a report.
//!
//! ```text
//! topology   nodes and links
//! network    links: veth pairs between namespaces (namespace, veth, shaping), or without
//!            root forwarders on the loopback (forward)
//! wiretap    records packets as an observer, with statistics
//! executable the program of nodes: `shoal`, or `shoal-lab` itself
//! site       folders, configurations, keys; the node processes
//! demo       `shoal-lab demo` and its report
//! emulator   links with delay, jitter, bursts of losses, and a measured queue
//! scenario   experiments as TOML files; run performs them, figures checks their conditions
//! attack     an attacker that pairs access links, in virtual time and in captures, and a censor
//!            that tells Shoal from other programs
//! bench      other programs on the same links
//! stages     experiments without a network: time per segment, ways to use files
//! moving     address shifts: a paper's tests, the cost of shifts, and an observer that links them
//! translators pairs of hosts behind NATs: which of them get a direct link
//! record     data of a report; html draws it
//! needs      requirements of the machine
//! ```
//!
//! Invariant: rate, loss and cuts act outside the nodes. Nodes are ordinary processes with ordinary
//! configurations: the lab does nothing that a user couldn't do by hand. Everything disappears when
//! the owning process ends, however that happens.

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
pub mod html;
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
mod shifts;
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

use shoal_cli::interrupt;

pub use executable::Executable;
pub use network::{Conditions, IpFamily, LinkLoss, Network, NetworkBasis, NetworkKind};
pub use process::{ChildProcess, ResourceUsage};
pub use shaping::Rate;
pub use topology::{LinkSpec, NodeSpec, Topology};

#[cfg(test)]
mod tests;
