//! Sessions between two parties: handshakes, frame seals, replay windows, rekeying, cookies.
//!
//! One machine, [`Sessions`], serves neighbours (`E = Endpoints`) and pairs of hosts (`E = Via`).
//! Input is frames, handshake frames, and the time. Output is frames opened in place, handshake
//! frames to send, jobs for the handshake thread, and events.
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
//! A caller must do two things. After any call, take all output from [`Sessions::poll_event`] and
//! [`Sessions::poll_transmit`], and from [`Sessions::poll_job`] as far as the handshake thread has
//! room. At the time from [`Sessions::poll_timeout`], call [`Sessions::handle_timeout`].
//!
//! Invariants: a frame is accepted at most once. Keys never outlive the process. A frame that was
//! not sealed with the network's secret gets no answer. This crate does not interpret the content
//! of frames. `docs/design/wire` is the normative text.

#![forbid(unsafe_code)]

mod answered;
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
mod removed;
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
    CookieBinding, Endpoint, HandshakeStats, OpenResult, OpenedSessionFrame, PeerId, SessionConfig,
    SessionEvent, SessionRole, SourceKey, TableFull,
};
pub use endpoint_rules::{EndpointOrigin, EndpointRules, NodeNetworks};
pub use endpoints::Endpoints;
pub use job::{HandshakeTask, HandshakeTaskResult};
pub use owners::IdTable;
pub use removed::{FORMER_MAX, FormerKeys, FormerPeer};
pub use sessions::Sessions;
pub use shard::{SessionShard, SessionUse, ShardOrder};
pub use via::HostPath;
