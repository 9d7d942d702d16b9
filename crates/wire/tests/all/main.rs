//! All golden vectors of the wire format, as one program.
//!
//! One program links all of Shoal once.

#[path = "../vectors/mod.rs"]
mod vectors;

mod base;
mod chains;
mod lists;
mod routing;
mod secrets;
mod transfer;
