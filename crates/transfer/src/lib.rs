//! Reliable files: segments, NACK bitmaps, pacing, resume, whole-file hash.
//!
//! In: offers and chunks from the shell that owns the disk, opened end-to-end plaintexts from the
//! edge. Out: segments and messages for the edge, reads and writes for the shell.
//!
//! ```text
//! disk -Read-> [ chunk | chunk | chunk ]  --segments, paced--------------->  [ chunk | chunk ]
//! -Write-> disk
//!                     sender                <--NACK: bitmap, clock, delay--     receiver
//! ```
//!
//! The receiver says what arrived and how long the path delays it. The sender resends what is
//! missing although something that left later has arrived. It chooses its rate by queueing delay
//! and marks, never by loss alone, or keeps a given rate ([`Law`]).
//!
//! Invariant: nothing here opens a file, a socket or a key; every buffer is a chunk of
//! [`shoal_wire::transfer::CHUNK_LEN`] bytes out of a bounded pool; bytes of the file are copied
//! once on the way out and once on the way in. `docs/transfer.md` has the rules and the figures.
//!
//! A shell drains after every call: [`Transfers::poll_message`], [`Transfers::poll_burst`] and
//! [`Transfers::poll_event`] until None, then sleeps until [`Transfers::poll_timeout`].

#![forbid(unsafe_code)]

mod chunk_set;
mod config;
mod control;
mod feedback;
mod graves;
mod ids;
mod incoming;
mod outgoing;
mod pacer;
mod pacing;
mod pool;
mod ticks;
mod transfers;
mod types;
mod window;

pub use chunk_set::ChunkSet;
pub use config::{Config, Law};
pub use outgoing::Burst;
pub use shoal_wire::transfer::{
    CHUNK_LEN, CHUNK_SEGMENTS, CancelReason, RefuseReason, Role, SegmentLen,
};
pub use transfers::Transfers;
pub use types::{Added, Event, Failure, OfferInfo, PeerKey, Progress, TransferId};
