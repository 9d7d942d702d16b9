//! Memory of earlier requests and parts, recognized by a hash of their content.
//!
//! This check needs no public-key work and comes before any cookie. A replay therefore draws no
//! byte and fills no queue. A request that was dropped from this memory is still refused by its
//! timestamp, after the public-key work (see `peer.rs`).
//!
//! A hash of a request's leading random bytes alone would not suffice. A holder of the network's
//! secret could seal other content after those bytes and send it first. The true request would then
//! look like a replay. Nor would the seal's tag suffice: a holder of its key can find another body
//! for it.

use std::collections::{BTreeSet, VecDeque};

use shoal_crypto::Hasher;

use crate::outer::Lead;

/// Name of a request or part: a collision-resistant hash of 16 bytes.
pub(crate) type HandshakeDigest = [u8; 16];

/// The name of the content `body` after the leading bytes `lead`.
pub(crate) fn name(lead: &Lead, body: &[u8]) -> HandshakeDigest {
    let mut hasher = Hasher::new();
    hasher.update(lead);
    hasher.update(body);
    let mut name = HandshakeDigest::default();
    name.copy_from_slice(&hasher.finalize()[..16]);
    name
}

/// Requests remembered: ten minutes' worth at a router with 1,600 busy neighbours.
const SEEN_MAX: usize = 8_192;

/// The last requests, oldest first.
#[derive(Default)]
pub(crate) struct HandshakeReplayCache {
    order: VecDeque<HandshakeDigest>,
    names: BTreeSet<HandshakeDigest>,
}

impl HandshakeReplayCache {
    /// True if the request or part of this name is remembered.
    pub(crate) fn contains(&self, name: &HandshakeDigest) -> bool {
        self.names.contains(name)
    }

    /// Records a name, in place of the oldest one if full. Returns false if it is known already.
    pub(crate) fn insert(&mut self, name: HandshakeDigest) -> bool {
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
        let mut seen = HandshakeReplayCache::default();
        for n in 0..2 * SEEN_MAX {
            assert!(seen.insert(name(n)));
            assert!(!seen.insert(name(n)));
        }
        assert!(!seen.contains(&name(SEEN_MAX - 1)));
        assert!((SEEN_MAX..2 * SEEN_MAX).all(|n| seen.contains(&name(n))));
        assert_eq!((seen.order.len(), seen.names.len()), (SEEN_MAX, SEEN_MAX));
    }
}
