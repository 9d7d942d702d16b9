//! Requests, and parts, that came before, recognized by a hash of all that they say.
//!
//! A replay is found here without public-key work and before anybody is asked for a cookie, so that
//! whoever replays gets no byte and fills no queue. What is pushed out of here is still refused by
//! its timestamp, after the public-key work (see `peer.rs`). A hash of the random bytes that lead a
//! request would not do: whoever has the network's secret could seal something else behind them, be
//! faster, and have the true request taken for a replay. A seal's tag would not, either: who knows
//! its key finds another body for it.

use std::collections::{BTreeSet, VecDeque};

use shoal_crypto::Hasher;

use crate::outer::Lead;

/// Names a request or a part: a hash of 16 bytes, for which nobody finds a second input.
pub(crate) type Name = [u8; 16];

/// The name of what was led by `lead` and sealed `body`.
pub(crate) fn name(lead: &Lead, body: &[u8]) -> Name {
    let mut hasher = Hasher::new();
    hasher.update(lead);
    hasher.update(body);
    let mut name = Name::default();
    name.copy_from_slice(&hasher.finalize()[..16]);
    name
}

/// Requests remembered: those of ten minutes at a router with 1,600 busy neighbours.
const SEEN_MAX: usize = 8_192;

/// The last requests, oldest first.
#[derive(Default)]
pub(crate) struct Seen {
    order: VecDeque<Name>,
    names: BTreeSet<Name>,
}

impl Seen {
    /// Whether the request or part of this name is remembered.
    pub(crate) fn contains(&self, name: &Name) -> bool {
        self.names.contains(name)
    }

    /// Remembers a name in place of the oldest one; false if it is remembered already.
    pub(crate) fn insert(&mut self, name: Name) -> bool {
        if !self.names.insert(name) {
            return false;
        }
        self.order.push_back(name);
        let oldest = if self.order.len() > SEEN_MAX { self.order.pop_front() } else { None };
        if let Some(oldest) = oldest {
            self.names.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_remembered_and_no_more() {
        let name = |n: usize| (n as u128).to_be_bytes();
        let mut seen = Seen::default();
        for n in 0..2 * SEEN_MAX {
            assert!(seen.insert(name(n)));
            assert!(!seen.insert(name(n)));
        }
        assert!(!seen.contains(&name(SEEN_MAX - 1)));
        assert!((SEEN_MAX..2 * SEEN_MAX).all(|n| seen.contains(&name(n))));
        assert_eq!((seen.order.len(), seen.names.len()), (SEEN_MAX, SEEN_MAX));
    }
}
