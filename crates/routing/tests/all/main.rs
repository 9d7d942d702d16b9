//! All tests of routing, as one program.
//!
//! One program links all of Shoal once.

#[path = "../harness/mod.rs"]
mod harness;

mod budgets;
mod hostile;
mod network;
mod scale;
