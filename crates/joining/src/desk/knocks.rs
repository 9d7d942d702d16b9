//! Memory of knocks, against replays.
//!
//! A knock is read a few times only: each reading costs public-key work and draws a welcome.

use std::collections::{BTreeMap, VecDeque};

use shoal_crypto::hash;
use shoal_session::outer::Lead;
use shoal_wire::DropReason;

/// Identifies a knock: a hash of its number and whole message. The number alone is not enough:
/// anybody with an invite could seal another knock under it and have the true one rejected as a
/// replay.
type KnockHash = [u8; 32];

/// Maximum number of remembered knocks: those of 56 s at the highest rate, 145 a second
/// (`sources.rs`).
const KNOCKS_MAX: usize = 8_192;
/// Times that one knock is read. A refused knock is read again, since the answer may be lost.
const READS_MAX: u8 = 4;

/// The most recent knocks, each with the number of times it was read.
#[derive(Default)]
pub(super) struct KnockReplayCache {
    order: VecDeque<KnockHash>,
    reads: BTreeMap<KnockHash, u8>,
}

impl KnockReplayCache {
    /// The hash of a knock, if it may be read again.
    ///
    /// Errors: `replayed_handshake`.
    pub(super) fn look(&self, number: &Lead, message: &[u8]) -> Result<KnockHash, DropReason> {
        let name = hash(&[&number[..], message].concat());
        let reads = self.reads.get(&name).copied().unwrap_or(0);
        (reads < READS_MAX).then_some(name).ok_or(DropReason::ReplayedHandshake)
    }

    /// Counts a reading of a knock. If the table is full, the oldest knock is forgotten.
    pub(super) fn note(&mut self, name: KnockHash) {
        let reads = self.reads.entry(name).or_insert(0);
        *reads = reads.saturating_add(1);
        if *reads > 1 {
            return;
        }
        self.order.push_back(name);
        if self.order.len() > KNOCKS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.reads.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_knock_is_read_few_times_and_the_memory_is_bounded() {
        let mut knocks = KnockReplayCache::default();
        for _ in 0..READS_MAX {
            let name = knocks.look(&[1; 16], b"body").unwrap();
            knocks.note(name);
        }
        assert_eq!(knocks.look(&[1; 16], b"body"), Err(DropReason::ReplayedHandshake));
        assert!(knocks.look(&[1; 16], b"another behind the same leading bytes").is_ok());
        for n in 0..KNOCKS_MAX as u32 {
            let name = knocks.look(&[2; 16], &n.to_be_bytes()).unwrap();
            knocks.note(name);
        }
        assert_eq!((knocks.order.len(), knocks.reads.len()), (KNOCKS_MAX, KNOCKS_MAX));
        assert!(knocks.look(&[1; 16], b"body").is_ok(), "the oldest knock is forgotten");
    }
}
