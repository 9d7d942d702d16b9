//! All tests of file transfer, as one program.
//!
//! One program links all of Shoal once.

#[path = "../net/mod.rs"]
mod net;

mod fairness;
mod files;
mod fixed;
mod hostile;
mod mixes;
mod speed;
