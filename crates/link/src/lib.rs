//! The link to one neighbour: its liveness, its measurements, and its queue of outgoing cells.
//!
//! In: frames sent and received, the neighbour's reports, cells that must wait. Out: reports that
//! are due, up and down events, cells in their order of departure.
//!
//! ```text
//!             +-----------------------+
//! reports --> | Liveness              | --> up, down, RTT, loss, clock offset
//!             +-----------------------+
//! runs -----> | Egress                | --> runs of equal frames, control before data
//!             +-----------------------+
//!             | Schedule              | --> when they leave, on a covered link
//!             +-----------------------+
//! reports --> | Width                 | --> whether full frames go in parts
//!             +-----------------------+
//! ```
//!
//! A cell waits **unsealed**. It gets its counter and tag when it leaves, so the order of counters
//! is the order on the wire. Only frames that the kernel refused stay sealed, and they leave first.
//!
//! Invariant: this crate depends neither on routes nor on flows. Keys stay in `session`.

#![forbid(unsafe_code)]

mod egress;
mod liveness;
pub mod parts;
mod pool;
mod rhythm;
mod schedule;
mod shares;
#[cfg(test)]
mod stalls_tests;
mod width;

pub use egress::{Admission, Egress, EgressConfig, EgressStats, FrameRun, Priority};
pub use liveness::{LinkStats, LinkTransition, Liveness, LivenessConfig};
pub use schedule::SlotSchedule;
pub use width::WidthDetector;
