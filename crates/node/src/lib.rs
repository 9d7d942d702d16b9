//! The daemon: owns the operating system and drives the relay and edge machines.
//!
//! In: a configuration, datagrams, files, commands of programs on the control socket, signals. Out:
//! datagrams, files, answers. Everything that decides about packets is in the machines; here are
//! clocks, sockets, threads, disks and privileges.
//!
//! ```text
//!              +--------------------- worker thread -----------------------+
//! sockets <--> | receive -> Relay, Edge -> send     timers, poll           |
//!              +--^---------------^--------------------^-------------------+
//!                 | chunks        | results            | commands, events
//!           disk threads    handshake thread     control threads
//! ```
//!
//! One worker owns the machines and runs each batch to completion; it never waits for a disk, a
//! program or a Diffie-Hellman. Further workers, if the configuration asks for them, forward on
//! lanes of their own. Every queue between threads is bounded.
//!
//! Invariant: nothing here looks into a cell, chooses a route or paces a transfer.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a shell owns the system")]

mod answers;
pub mod api;
pub mod authority;
pub mod budget;
mod build;
pub mod clock;
mod commands;
pub mod config;
pub mod control;
mod crew;
mod direct;
pub mod disk;
mod dns;
mod files;
mod firewall;
mod forwarder;
pub mod hints;
pub mod hosts;
mod interface;
mod journal;
mod kernel_routes;
pub mod keys;
mod known;
mod links;
mod lists;
mod lookups;
mod machines;
mod members;
mod metrics;
mod names;
pub mod notify;
mod pings;
mod ports;
pub mod preflight;
pub mod privileges;
mod queue;
pub mod reading;
pub mod receive;
mod rest;
mod rings;
pub mod run;
pub mod seen;
pub mod send;
pub mod socket;
mod staleness;
pub mod subnets;
mod told;
mod tun;
pub mod wake;
pub mod watch;
mod worker;
