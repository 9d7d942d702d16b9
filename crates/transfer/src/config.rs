//! Limits and tuning.

use core::time::Duration;

use shoal_wire::transfer::{CHUNK_LEN, CHUNK_SEGMENTS};

/// Law by which senders choose their rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LawChoice {
    /// By queueing delay and marks, between 0.5 Mbit/s and [`TransferConfig::rate_max`].
    Delay,
    /// A constant rate, at most [`TransferConfig::rate_max`].
    Fixed {
        /// Bytes of file that leave per second, including bytes sent again.
        rate: u64,
    },
}

/// Limits of a node's transfers.
#[derive(Clone, Debug)]
pub struct TransferConfig {
    /// Most transfers in one direction at once.
    pub transfers_max: usize,
    /// Bytes of chunks that the senders of this node may hold.
    pub sender_memory: usize,
    /// Bytes of chunks that the receivers of this node may hold.
    pub receiver_memory: usize,
    /// Time for which an offer is repeated before it fails.
    pub offer_timeout: Duration,
    /// Longest silence of the other end before a transfer fails.
    pub idle_timeout: Duration,
    /// Time after its acceptance in which a file's first byte must arrive.
    pub first_timeout: Duration,
    /// Law by which senders choose their rate.
    pub law: LawChoice,
    /// Queueing delay at which a sender slows down, for [`LawChoice::Delay`].
    pub queue_target: Duration,
    /// Highest rate of one transfer in bytes of file per second.
    pub rate_max: u64,
}

impl Default for TransferConfig {
    fn default() -> TransferConfig {
        TransferConfig {
            transfers_max: 256,
            sender_memory: 64 << 20,
            receiver_memory: 64 << 20,
            offer_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(30),
            first_timeout: Duration::from_secs(10),
            law: LawChoice::Delay,
            queue_target: Duration::from_micros(2_100),
            rate_max: 5_000_000_000,
        }
    }
}

impl TransferConfig {
    /// Most incoming files of one peer at once: a quarter of the table, so that no peer fills it.
    pub(crate) fn incoming_share(&self) -> usize {
        (self.transfers_max / 4).max(8).min(self.transfers_max)
    }
}

/// Most segments from the lowest unconfirmed one to the newest one sent.
const WINDOW_SEGMENTS_MAX: usize = 1 << 18;
/// Chunks that each transfer may hold even when all transfers together exceed the memory.
const CHUNKS_MIN: usize = 4;

/// Chunks that one of `active` transfers may hold out of `memory` bytes.
pub(crate) fn chunk_share(memory: usize, active: usize) -> usize {
    let all = memory / CHUNK_LEN;
    (all / active.max(1)).clamp(CHUNKS_MIN, WINDOW_SEGMENTS_MAX / CHUNK_SEGMENTS)
}

/// Slots of a ring for the most chunks that [`chunk_share`] grants a transfer.
pub(crate) fn ring_len(memory: usize) -> usize {
    chunk_share(memory, 1).next_power_of_two()
}
