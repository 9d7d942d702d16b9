//! Deadlines of streams.
//!
//! The next deadline changes with nearly every packet that was missed, and few streams wait at a
//! time. A sorted list that never allocates is faster than a tree for that.

use shoal_wire::Time;

/// Streams by their deadline, the latest first. Holds each stream at most once.
#[derive(Default)]
pub(crate) struct Deadlines(Vec<(Time, u16)>);

impl Deadlines {
    #[inline]
    pub(crate) fn first(&self) -> Option<(Time, u16)> {
        self.0.last().copied()
    }

    pub(crate) fn insert(&mut self, over: Time, at: u16) {
        let place = self.0.partition_point(|known| *known > (over, at));
        self.0.insert(place, (over, at));
    }

    /// Removes a deadline, if it is in the list.
    pub(crate) fn remove(&mut self, over: Time, at: u16) {
        if let Ok(place) = self.0.binary_search_by(|known| (over, at).cmp(known)) {
            self.0.remove(place);
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use shoal_crypto::Rng;

    use super::*;

    #[test]
    fn the_next_is_always_that_of_a_sorted_set() {
        let (mut list, mut set) = (Deadlines::default(), BTreeSet::new());
        let mut rng = Rng::new([1; 32]);
        for _ in 0..10_000 {
            let (over, at) = (Time(rng.below(20)), rng.below(30) as u16);
            if set.remove(&(over, at)) {
                list.remove(over, at);
            } else {
                list.remove(over, at);
                set.insert((over, at));
                list.insert(over, at);
            }
            assert_eq!((list.first(), list.len()), (set.first().copied(), set.len()));
        }
    }
}
