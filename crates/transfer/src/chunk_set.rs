//! A set of a file's chunks, such as those that a receiver has.

/// A set of chunk numbers below a fixed count, one bit each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkSet {
    words: Vec<u64>,
    chunks: u32,
    count: u32,
}

impl ChunkSet {
    /// The empty set of a file of `chunks` chunks.
    pub fn new(chunks: u32) -> ChunkSet {
        ChunkSet { words: vec![0; (chunks as usize).div_ceil(64)], chunks, count: 0 }
    }

    /// Number of chunks in the file.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Number of chunks in the set.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// True when every chunk is in the set.
    pub fn is_full(&self) -> bool {
        self.count == self.chunks
    }

    /// True when `chunk` is in the set.
    pub fn contains(&self, chunk: u32) -> bool {
        let word = self.words.get(chunk as usize / 64);
        word.is_some_and(|word| word >> (chunk % 64) & 1 == 1)
    }

    /// Adds `chunk`; false if it was in the set or is beyond the file.
    pub fn insert(&mut self, chunk: u32) -> bool {
        if chunk >= self.chunks || self.contains(chunk) {
            return false;
        }
        self.words[chunk as usize / 64] |= 1 << (chunk % 64);
        self.count += 1;
        true
    }

    /// Adds `count` chunks from `first` on; chunks beyond the file are ignored.
    pub fn insert_range(&mut self, first: u32, count: u32) {
        for chunk in first..first.saturating_add(count).min(self.chunks) {
            self.insert(chunk);
        }
    }

    /// Lowest chunk at or above `from` that is not in the set; the file's number of chunks if none.
    pub fn next_gap(&self, from: u32) -> u32 {
        let mut chunk = from;
        while chunk < self.chunks {
            let word = !self.words[chunk as usize / 64] >> (chunk % 64);
            if word != 0 {
                return (chunk + word.trailing_zeros()).min(self.chunks);
            }
            chunk = (chunk / 64 + 1) * 64;
        }
        self.chunks
    }

    /// Runs of chunks in the set, in order: first chunk and number of chunks.
    pub fn ranges(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut at = 0;
        core::iter::from_fn(move || {
            while at < self.chunks && !self.contains(at) {
                at += 1;
            }
            let first = at;
            at = self.next_gap(at);
            (at > first).then_some((first, at - first))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_gaps_agree_with_membership() {
        let mut set = ChunkSet::new(200);
        set.insert_range(0, 3);
        set.insert_range(63, 66);
        set.insert_range(199, 9);
        assert_eq!(set.ranges().collect::<Vec<_>>(), [(0, 3), (63, 66), (199, 1)]);
        assert_eq!((set.count(), set.next_gap(0), set.next_gap(63)), (70, 3, 129));
        assert_eq!(set.next_gap(199), 200);
        assert!(!set.insert(64) && !set.insert(200) && set.insert(5));
        set.insert_range(0, 200);
        assert!(set.is_full());
        assert_eq!(ChunkSet::new(0).ranges().count(), 0);
    }
}
