//! Addresses that hop: both ends of a link change theirs with each epoch
//! (docs/decisions/moving-targets.md).
//!
//! In: secrets of sessions and of neighbours, the wall clock, the neighbour's place and steps,
//! time. Out: steps to be sent, where the link's data goes, at which addresses frames may come.

mod budget;
mod link;
mod prefixes;
mod probe;
mod rendezvous;
mod schedule;
#[cfg(test)]
mod tests;

pub(crate) use budget::Budget;
pub use link::{Followed, Hop, HopView, Outcome};
pub use probe::ProbeView;
pub(crate) use probe::{Asked, Probe};
pub use rendezvous::{EPOCH, Rendezvous};
pub use schedule::{End, Schedule, is_reserved};
