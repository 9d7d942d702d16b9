//! All tests of IP packets, as one program.
//!
//! One program links all of Shoal once.

#[path = "../packets/mod.rs"]
mod packets;

mod inbound;
mod split_merge;
