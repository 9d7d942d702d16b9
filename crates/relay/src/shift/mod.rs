//! Address shifts: both ends of a link change their addresses with each epoch
//! (docs/design/decisions/shifting.md).
//!
//! In: secrets of sessions and neighbours, the wall clock, the neighbour's place and steps, time.
//! Out: steps to send, addresses for the link's data, addresses at which frames are accepted.

mod budget;
mod link;
mod prefixes;
mod probe;
mod rendezvous;
mod schedule;
#[cfg(test)]
mod tests;

pub(crate) use budget::FrameBudget;
pub use link::{PrefixChange, ShiftOutcome, ShiftState, ShiftView};
pub use probe::AddressProbeView;
pub(crate) use probe::{AddressProbe, ProbeResponder};
pub use rendezvous::{EPOCH, Rendezvous};
pub use schedule::{ShiftRole, ShiftSchedule, is_reserved};
