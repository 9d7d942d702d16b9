//! Reliable files: segments, NACK bitmaps, pacing, resume, whole-file hash.
//!
//! In: offers and chunks from the shell that owns the disk, decrypted end-to-end plaintexts from
//! the edge. Out: segments and messages for the edge, reads and writes for the shell.
//!
//! ```text
//! disk -Read-> [ chunk | chunk | chunk ]  --segments, paced--------------->  [ chunk | chunk ]
//! -Write-> disk
//!                     sender                <--NACK: bitmap, clock, delay--     receiver
//! ```
//!
//! The receiver reports which segments arrived, and how long the path delays them. The sender
//! resends a segment that is missing although a later one has arrived. It chooses its rate by
//! queueing delay and marks, never by loss alone, or keeps a given rate ([`LawChoice`]).
//!
//! Invariant: nothing here opens a file, a socket or a key. Every buffer is a chunk of
//! [`shoal_wire::transfer::CHUNK_LEN`] bytes from a bounded pool. Bytes of the file are copied once
//! on the way out and once on the way in. `docs/design/transfer.md` has the rules and the figures.
//!
//! A shell drains after every call: it calls [`Transfers::poll_message`], [`Transfers::poll_burst`]
//! and [`Transfers::poll_event`] until they return None. Then it sleeps until
//! [`Transfers::poll_timeout`].

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
pub use config::{LawChoice, TransferConfig};
pub use outgoing::SegmentBurst;
pub use shoal_wire::transfer::{
    CHUNK_LEN, CHUNK_SEGMENTS, CancelReason, RefuseReason, SegmentLen, TransferEnd,
};
pub use transfers::Transfers;
pub use types::{
    FileProgress, FileTransferEvent, MixDelay, OfferInfo, PeerKey, TransferFailure, TransferId,
};
