//! Interfaces for programs and people: the control socket, its answers, metrics, the log.
//! Texts and numbers for people may be here. Nothing here decides about packets.

pub(crate) mod answers;
pub mod api;
pub(crate) mod circuit_probes;
pub(crate) mod circuits;
pub(crate) mod commands;
pub mod counters;
pub mod cover;
pub mod directory;
pub mod forget;
pub mod hidden;
pub mod hints;
pub(crate) mod journal;
pub(crate) mod known;
pub mod log;
pub mod metric_reference;
pub(crate) mod metrics;
pub(crate) mod pings;
pub(crate) mod shift_probes;
pub mod socket;
