//! Mixes: how long cells of a circuit wait at a relay, and the pool in which they wait.
//!
//! In: unsealed cells with the times at which they are to leave. Out: runs of cells whose time has
//! come, in an order that is drawn at random.
//!
//! ```text
//! strategy, key, number --Delays--> departure time --+
//! cell ----------------------------------------------+--> Mix --> runs of equal cells
//! strategies of a path --path--> what they add to a packet's way
//! ```
//!
//! Departures happen in quanta ([`QUANTUM`]): what leaves in one is permuted. One wake-up for each
//! cell would be too dear, and runs save calls of the kernel.
//!
//! Invariants: no cell leaves before the quantum in which it is due, whatever comes; the same
//! inputs give the same outputs; this crate knows neither sessions nor circuits.

#![forbid(unsafe_code)]

mod law;
mod mix;
mod path;
mod slots;
mod wheel;

pub use law::{Delays, QUANTUM};
pub use mix::{LATE, Limits, Mix};
pub use path::{Added, mean, path};
