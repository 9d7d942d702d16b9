//! Reassembly of knocks from their parts.

use core::net::SocketAddr;
use std::collections::BTreeMap;

use shoal_session::outer::Lead;

use super::sources::{SourcePrefix, most_frequent};
use crate::door::{KnockPart, KnockParts, whole};

/// Maximum number of incomplete knocks. When it is reached, the oldest knock of the address with
/// the most knocks is dropped.
const WAITING_MAX: usize = 256;

#[derive(Default)]
struct PartialKnock {
    number: u64,
    places: KnockParts,
}

/// Incomplete knocks, by source address and knock number.
#[derive(Default)]
pub(super) struct KnockReassembly {
    waiting: BTreeMap<(SocketAddr, Lead), PartialKnock>,
    next: u64,
}

impl KnockReassembly {
    /// Adds a part. Returns the whole message if no part is missing.
    pub(super) fn take(&mut self, from: SocketAddr, part: KnockPart) -> Option<Vec<u8>> {
        let key = (from, part.number);
        if !self.waiting.contains_key(&key) {
            self.make_room();
            self.next += 1;
            let waiting = PartialKnock { number: self.next, places: KnockParts::default() };
            self.waiting.insert(key, waiting);
        }
        let waiting = self.waiting.get_mut(&key)?;
        waiting.places[part.place] = Some(part.bytes);
        let whole = whole(&waiting.places)?;
        self.waiting.remove(&key);
        Some(whole)
    }

    fn make_room(&mut self) {
        if self.waiting.len() < WAITING_MAX {
            return;
        }
        let source = most_frequent(self.waiting.keys().map(|(from, _)| SourcePrefix::of(*from)));
        let its =
            self.waiting.iter().filter(|((from, _), _)| Some(SourcePrefix::of(*from)) == source);
        if let Some(oldest) = its.min_by_key(|(_, one)| one.number).map(|(key, _)| *key) {
            self.waiting.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::door::PART_LEN;

    #[test]
    fn parts_of_one_address_are_put_together_and_push_out_their_own() {
        let mut parts = KnockReassembly::default();
        let from = |n: u16| SocketAddr::from(([192, 0, 2, 1], n));
        let part = |number: u8, place| {
            let bytes = Box::new([place as u8; PART_LEN]);
            KnockPart { cookie: [0; 12], number: [number; 16], place, bytes }
        };
        let honest = SocketAddr::from(([192, 0, 2, 2], 1));
        assert_eq!(parts.take(honest, part(1, 2)), None);
        for n in 0..1_000 {
            assert_eq!(parts.take(from(n), part(1, 0)), None);
        }
        assert_eq!(parts.waiting.len(), WAITING_MAX);
        assert_eq!(parts.take(from(999), part(2, 1)), None, "a part of another knock");
        assert_eq!(parts.take(honest, part(1, 0)), None);
        let whole = parts.take(honest, part(1, 1)).unwrap();
        assert_eq!((whole[0], whole[PART_LEN], whole[2 * PART_LEN]), (0, 1, 2));
        assert_eq!(parts.take(honest, part(1, 1)), None, "the knock begins anew");
    }
}
