//! Knocks that came before.
//!
//! A knock that was read is not read often again: each time costs public-key work, and draws a
//! welcome.

use std::collections::{BTreeMap, VecDeque};

use shoal_crypto::hash;
use shoal_session::outer::Lead;
use shoal_wire::DropReason;

/// Names a knock: a hash of all that it says. Its number alone would not do: whoever has an invite
/// could seal another knock under it and have the true one taken for a copy.
type Name = [u8; 32];

/// Knocks that are remembered: those of 80 s at least, at the pace at which they are read.
const KNOCKS_MAX: usize = 8_192;
/// Times that a knock is read: one that was refused is read again, since the answer may be lost.
const READS_MAX: u8 = 4;

/// The last knocks, and how often each was read.
#[derive(Default)]
pub(super) struct Knocks {
    order: VecDeque<Name>,
    reads: BTreeMap<Name, u8>,
}

impl Knocks {
    /// The name of a knock, if it may be read once more.
    ///
    /// Errors: `replayed_handshake`.
    pub(super) fn look(&self, number: &Lead, message: &[u8]) -> Result<Name, DropReason> {
        let name = hash(&[&number[..], message].concat());
        let reads = self.reads.get(&name).copied().unwrap_or(0);
        (reads < READS_MAX).then_some(name).ok_or(DropReason::ReplayedHandshake)
    }

    /// Notes that a knock is read. The oldest one is forgotten for it.
    pub(super) fn note(&mut self, name: Name) {
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
        let mut knocks = Knocks::default();
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
        assert!(knocks.look(&[1; 16], b"body").is_ok(), "the oldest gave way");
    }
}
