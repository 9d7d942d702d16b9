//! One neighbour: whether it lives, how far away it is, and the queue of cells that wait to leave
//! for it.
//!
//! In: what was sent and received, the neighbour's reports, cells that can't leave yet. Out:
//! reports that are due, up and down events, cells in the order in which they may leave.
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
//! A cell waits **unsealed**: its counter is taken and its tag computed when it departs, so that
//! the order of counters is the order on the wire. Only frames that the kernel refused after they
//! had been sealed are kept sealed, and they leave first.
//!
//! Invariant: this crate knows neither routes nor flows; keys stay in `session`.

#![forbid(unsafe_code)]

mod egress;
mod liveness;
pub mod parts;
mod pool;
mod rhythm;
mod schedule;
mod shares;
mod width;

pub use egress::{Admission, Egress, EgressConfig, EgressStats, Priority, Run};
pub use liveness::{LinkStats, Liveness, LivenessConfig, Transition};
pub use schedule::Schedule;
pub use width::Width;
