//! Parts of knocks that wait for the others.

use core::net::SocketAddr;
use std::collections::BTreeMap;

use shoal_session::outer::Lead;

use super::sources::{Source, most_frequent};
use crate::door::{KnockPart, Places, whole};

/// Knocks that wait at once. For one more the oldest of the address that has most goes.
const WAITING_MAX: usize = 256;

#[derive(Default)]
struct Waiting {
    number: u64,
    places: Places,
}

/// Parts that came, by the address from which they came and the number of their knock.
#[derive(Default)]
pub(super) struct Parts {
    waiting: BTreeMap<(SocketAddr, Lead), Waiting>,
    next: u64,
}

impl Parts {
    /// Takes in a part; the whole message, if it is the last one that was missing.
    pub(super) fn take(&mut self, from: SocketAddr, part: KnockPart) -> Option<Vec<u8>> {
        let key = (from, part.number);
        if !self.waiting.contains_key(&key) {
            self.make_room();
            self.next += 1;
            let waiting = Waiting { number: self.next, places: Places::default() };
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
        let source = most_frequent(self.waiting.keys().map(|(from, _)| Source::of(*from)));
        let its = self.waiting.iter().filter(|((from, _), _)| Some(Source::of(*from)) == source);
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
        let mut parts = Parts::default();
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
        assert_eq!(parts.take(from(999), part(2, 1)), None, "another knock's");
        assert_eq!(parts.take(honest, part(1, 0)), None);
        let whole = parts.take(honest, part(1, 1)).unwrap();
        assert_eq!((whole[0], whole[PART_LEN], whole[2 * PART_LEN]), (0, 1, 2));
        assert_eq!(parts.take(honest, part(1, 1)), None, "it begins anew");
    }
}
