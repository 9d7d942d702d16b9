//! Two parties that share keys: handshakes, frame seals, replay windows, rekeying, cookies.
//!
//! The same machine, [`Sessions`], serves neighbours (`E = Endpoints`) and pairs of hosts
//! (`E = Via`). In: frames and handshake frames as they came, and the time. Out: the same bytes
//! opened in place, handshake frames to send, jobs for the handshake thread, events.
//!
//! ```text
//!            open_batch                           seal_batch
//! frames --> index -> session -> window -> AEAD   AEAD -> masks --> frames
//!               | unknown
//!               v
//!         handle_handshake --> poll_job --> Job::run --> handle_done --> poll_transmit
//!           seal, cookie         (another thread)        peer known? fresh?
//! ```
//!
//! Driving it: after any call, take everything from [`Sessions::poll_event`],
//! [`Sessions::poll_transmit`] and, as far as the handshake thread has room, from
//! [`Sessions::poll_job`]; call [`Sessions::handle_timeout`] at [`Sessions::poll_timeout`].
//!
//! Invariant: a frame is accepted at most once; keys never outlive the process; nothing is answered
//! that was not sealed with the network's secret; this crate knows nothing of what frames carry.
//! `docs/wire.md` sections 2, 5 and 7 to 9 are the normative text.

#![forbid(unsafe_code)]

mod config;
pub mod cookie;
mod data;
mod endpoint_rules;
mod endpoints;
mod frames;
mod fresh;
mod job;
mod keys;
mod masks;
pub mod noise;
pub mod outer;
mod owners;
mod parts;
mod peer;
mod places;
mod process;
mod races;
pub mod replay;
mod seen;
mod sessions;
mod shake;
mod shard;
mod slots;
mod timers;
#[cfg(test)]
mod vector_tests;
mod via;

pub use config::{
    Config, Endpoint, Event, Opened, Opening, PeerId, Place, Role, Source, Stats, TableFull,
};
pub use endpoint_rules::{EndpointOrigin, EndpointRules, NodeNetworks};
pub use endpoints::Endpoints;
pub use job::{Done, Job};
pub use owners::Table;
pub use sessions::Sessions;
pub use shard::{Note, Order, SessionShard};
pub use via::Via;
