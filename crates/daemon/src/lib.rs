//! The daemon: owns the operating system's resources and drives a node.
//!
//! In: a configuration, datagrams, files, commands of programs on the control socket, signals. Out:
//! datagrams, files, answers. The node makes all decisions about packets. This crate has the
//! clocks, sockets, threads, disks and privileges.
//!
//! ```text
//!              +--------------------- worker thread -----------------------+
//! sockets <--> | receive -> Control -> send         timers, poll           |
//!              +--^---------------^--------------------^-------------------+
//!                 | chunks        | results            | commands, events
//!           disk threads    handshake thread     control threads
//! ```
//!
//! One worker owns the node's control and runs each batch to completion. It never waits for a disk,
//! a program or a Diffie-Hellman computation. The configuration may ask for further workers, which
//! forward on their own lanes (`shoal_node::Worker`). Every queue between threads is bounded.
//!
//! Invariant: this crate never reads a cell, chooses a route or paces a transfer.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a shell owns the system")]

pub mod config;
pub mod control;
pub mod files;
pub mod membership;
pub mod net;
pub mod notify;
pub mod preflight;
pub mod privileges;
pub mod run;
pub mod tun;
pub mod worker;
