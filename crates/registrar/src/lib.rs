//! A registrar's process: it admits machines to a network by invites (docs/guide/members.md).
//!
//! In: `registrar.toml`, datagrams of newcomers, requests of the owner on a control socket, lists
//! from the node beside it. Out: datagrams, records in the ledger's file, supplements for that
//! node.
//!
//! ```text
//! newcomers <--UDP--> process: Desk <--Asked, Given--> control socket
//!                       |     ^ newer lists
//!            ledger <---+     v supplements
//!                            follow: the node's control socket
//! ```
//!
//! One thread drives [`shoal_joining::Desk`], which decides everything. Another thread speaks with
//! the node, and may wait for it.
//!
//! Invariant: this process has the registrar's key and the network's secret, but never the
//! authority's key or a node's, and no privilege over packets. A grant is on the disk before it is
//! told.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a shell owns the system")]

mod again;
mod answers;
mod config;
mod follow;
mod ledger;
mod newest;
mod process;
mod secrets;

pub use config::RegistrarConfig;
pub use process::run;
