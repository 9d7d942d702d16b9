//! What programs and people are told and may ask: the control socket, its answers, metrics, the
//! log.
//! Words and numbers for people may live here; nothing here decides about packets.

pub(crate) mod answers;
pub mod api;
pub(crate) mod circuits;
pub(crate) mod commands;
pub mod cover;
pub mod directory;
pub mod hints;
pub(crate) mod hop_probes;
pub(crate) mod hops;
pub(crate) mod journal;
pub(crate) mod known;
pub mod log;
pub(crate) mod metrics;
pub(crate) mod pings;
pub mod socket;
