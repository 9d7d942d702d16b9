//! A registrar's process: it lets machines into a network by invites (docs/joining.md).
//!
//! In: `registrar.toml`, datagrams of newcomers, questions of its owner on a control socket, lists
//! of the node beside it. Out: datagrams, records in the ledger's file, supplements for that node.
//!
//! ```text
//! newcomers <--UDP--> process: Desk <--Asked, Given--> control socket
//!                       |     ^ newer lists
//!            ledger <---+     v supplements
//!                            follow: the node's control socket
//! ```
//!
//! One thread drives [`shoal_joining::Desk`], which decides everything; another one speaks with the
//! node, and may wait for it.
//!
//! Invariant: this process has the registrar's key and the network's secret, never the authority's
//! key nor a node's, and no right on packets. What it grants is on the disk before it is said.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a shell owns the system")]

mod again;
mod answers;
mod config;
mod follow;
mod ledger;
mod newest;
mod process;
mod secrets;

pub use config::Config;
pub use process::run;
