//! The threads that run a node: their loops, the channels between them, clock, wakers and
//! handshakes.
//! The threads call state machines and wait on timers. Sockets, the interface and disks have
//! modules of their own.

pub mod budget;
pub(crate) mod build;
pub mod clock;
pub(crate) mod direct;
pub(crate) mod endpoints;
pub(crate) mod first;
pub(crate) mod forwarder;
pub(crate) mod links;
pub(crate) mod notices;
pub mod processor;
mod ready;
pub(crate) mod rest;
pub(crate) mod shell;
pub(crate) mod shifting;
pub mod wake;
pub(crate) mod workers;
