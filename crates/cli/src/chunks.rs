//! Chunks of a file that have arrived.

use shoal_daemon::control::api::CHUNK_LEN;

/// Sorted, disjoint, half-open ranges that don't touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunks {
    ranges: Vec<(u32, u32)>,
    /// Bytes of every chunk except the last.
    len: u64,
}

impl Default for Chunks {
    fn default() -> Chunks {
        Chunks::of_len(CHUNK_LEN)
    }
}

impl Chunks {
    /// No chunk; each will have `len` bytes.
    pub fn of_len(len: u64) -> Chunks {
        Chunks { ranges: Vec::new(), len: len.max(1) }
    }

    /// Number of chunks of a file of `size` bytes.
    pub fn count(&self, size: u64) -> u32 {
        u32::try_from(size.div_ceil(self.len)).unwrap_or(u32::MAX)
    }

    /// Set of chunks with `len` bytes, from ranges in any order. Chunks from `count` on are cut
    /// off.
    pub fn from_ranges(ranges: &[(u32, u32)], count: u32, len: u64) -> Chunks {
        let mut chunks = Chunks::of_len(len);
        for (from, to) in ranges {
            chunks.insert(*from, (*to).min(count));
        }
        chunks
    }

    /// Adds `from..to`; an empty range adds nothing.
    pub fn insert(&mut self, from: u32, to: u32) {
        if from >= to {
            return;
        }
        // Ranges that overlap or touch the new one become part of it.
        let first = self.ranges.partition_point(|r| r.1 < from);
        let last = self.ranges.partition_point(|r| r.0 <= to);
        let (mut from, mut to) = (from, to);
        for range in &self.ranges[first..last] {
            from = from.min(range.0);
            to = to.max(range.1);
        }
        self.ranges.splice(first..last, [(from, to)]);
    }

    pub fn ranges(&self) -> &[(u32, u32)] {
        &self.ranges
    }

    /// Half-open ranges of bytes that the chunks fill in a file of `size` bytes.
    pub fn spans(&self, size: u64) -> impl Iterator<Item = (u64, u64)> {
        let at = move |chunk: u32| (u64::from(chunk) * self.len).min(size);
        self.ranges.iter().map(move |range| (at(range.0), at(range.1)))
    }

    /// Bytes of a file of `size` bytes that these chunks hold.
    pub fn bytes(&self, size: u64) -> u64 {
        self.spans(size).map(|(from, to)| to - from).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn bytes_end_with_the_file() {
        let mut chunks = Chunks::default();
        chunks.insert(0, 1);
        assert_eq!(chunks.bytes(10), 10);
        chunks.insert(1, 2);
        assert_eq!(chunks.ranges(), [(0, 2)]);
        assert_eq!(chunks.bytes(CHUNK_LEN + 5), CHUNK_LEN + 5);
        assert_eq!((chunks.count(0), chunks.count(CHUNK_LEN + 1)), (0, 2));
        let short = Chunks::from_ranges(&[(1, 3)], 3, 10);
        assert_eq!((short.count(25), short.bytes(25)), (3, 15));
    }

    proptest! {
        #[test]
        fn agrees_with_a_set(ranges in prop::collection::vec((0u32..50, 0u32..50), 0..20)) {
            let chunks = Chunks::from_ranges(&ranges, 40, CHUNK_LEN);
            let set: BTreeSet<u32> =
                ranges.iter().flat_map(|r| r.0..r.1.min(40).max(r.0)).collect();
            let found: BTreeSet<u32> = chunks.ranges().iter().flat_map(|r| r.0..r.1).collect();
            prop_assert_eq!(found, set);
            for pair in chunks.ranges().windows(2) {
                prop_assert!(pair[0].1 < pair[1].0);
            }
        }
    }
}
