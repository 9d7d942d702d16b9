//! All tests of a node over real sockets, as one program.
//!
//! One program links all of Shoal once.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "real sockets")]

mod forged;
mod network;
mod sources;
mod udp;
