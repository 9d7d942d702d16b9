//! The threads that run a node: their loop, the rings between them, clock, wakers and handshakes.
//! Calls of machines and timers may live here; sockets, the interface and disks are asked for by
//! name.

pub mod budget;
pub(crate) mod build;
pub mod clock;
pub(crate) mod direct;
pub(crate) mod endpoints;
pub(crate) mod first;
pub(crate) mod forwarder;
pub(crate) mod hopping;
pub(crate) mod links;
pub(crate) mod notices;
pub mod processor;
mod ready;
pub(crate) mod rest;
pub(crate) mod shell;
pub mod wake;
pub(crate) mod workers;
