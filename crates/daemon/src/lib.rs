//! The daemon: owns the operating system and drives a node.
//!
//! In: a configuration, datagrams, files, commands of programs on the control socket, signals. Out:
//! datagrams, files, answers. Everything that decides about packets is in the node; here are
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
//! One worker owns the node's control and runs each batch to completion; it never waits for a disk,
//! a program or a Diffie-Hellman. Further workers, if the configuration asks for them, forward on
//! lanes of their own (`shoal_node::Worker`). Every queue between threads is bounded.
//!
//! Invariant: nothing here looks into a cell, chooses a route or paces a transfer.

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
