//! Mixes: the delays of circuit cells at a relay, and the pool in which they wait.
//!
//! In: unsealed cells with their departure times. Out: runs of cells whose time has come, in random
//! order.
//!
//! ```text
//! strategy, key, number --Delays--> departure time --+
//! cell ----------------------------------------------+--> Mix --> runs of equal cells
//! strategies of a path --path--> the delay that they add to a packet
//! ```
//!
//! Cells leave in quanta ([`QUANTUM`]), and each quantum's cells are permuted. A wake-up for every
//! single cell would cost too much, and runs save system calls.
//!
//! Invariants: no cell leaves before the quantum in which it is due. Equal inputs give equal
//! outputs. This crate depends neither on sessions nor on circuits.

#![forbid(unsafe_code)]

mod law;
mod mix;
mod path;
mod slots;
mod wheel;

pub use law::{DepartureTimes, QUANTUM};
pub use mix::{LATE, MixLimits, MixPool};
pub use path::{AddedDelay, mean, path};
