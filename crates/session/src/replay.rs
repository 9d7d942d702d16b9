//! Replay window: the counters that were accepted (RFC 6479, with growth on demand).

/// Bits per word.
const WORD: u32 = u64::BITS;

/// The accepted counters among the newest of one lane.
///
/// A ring of words as in RFC 6479 section 3: moving on clears words and shifts nothing. The ring
/// starts with two words. It doubles, up to the limit, when a late frame would otherwise be
/// refused.
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    /// The highest counter accepted, plus one; 0 before the first.
    next: u32,
    /// Ring of bits; the length is a power of two of words.
    ring: Vec<u64>,
    /// The most words the ring may have.
    limit: u32,
}

/// Reason why a counter is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayError {
    /// Accepted before.
    Seen,
    /// Below the window.
    Old,
}

impl ReplayWindow {
    /// A window that spans at least `frames` counters at full size.
    pub fn new(frames: u32) -> ReplayWindow {
        let limit = frames.div_ceil(WORD).saturating_add(1).next_power_of_two().max(2);
        ReplayWindow { next: 0, ring: Vec::new(), limit }
    }

    /// Sets the span at full size to at least `frames` counters. Forgotten counters stay refused: a
    /// shorter window refuses older counters, and still does after it has grown again.
    pub fn set_span(&mut self, frames: u32) {
        self.limit = ReplayWindow::new(frames).limit;
        let (newest, have) = (self.next.saturating_sub(1) / WORD, self.words());
        let is_whole = newest < have || self.next == 0;
        if have <= self.limit && is_whole {
            return;
        }
        let need = newest.saturating_add(2).min(self.limit).next_power_of_two();
        // A set bit refuses its counter. Words above the newest are cleared when the window reaches
        // them.
        let mut ring = vec![u64::MAX; need as usize];
        let oldest = newest.saturating_sub(have.min(need) - 1);
        for word in oldest..=newest {
            ring[(word & (need - 1)) as usize] = self.ring[(word & (have - 1)) as usize];
        }
        self.ring = ring;
    }

    /// The highest counter accepted, plus one; 0 before the first.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Bytes on the heap.
    pub fn heap_len(&self) -> usize {
        self.ring.capacity() * size_of::<u64>()
    }

    fn words(&self) -> u32 {
        self.ring.len() as u32
    }

    /// The lowest counter that a ring of `words` can decide. The word of the newest bit is only
    /// partly used, so the span is one word less than the ring.
    fn floor(&self, words: u32) -> u32 {
        let newest_word = self.next.saturating_sub(1) / WORD;
        newest_word.saturating_sub(words.saturating_sub(1)) * WORD
    }

    fn slot(&self, counter: u32) -> (usize, u64) {
        let word = (counter / WORD) & (self.words() - 1);
        (word as usize, 1 << (counter % WORD))
    }

    /// Checks if `counter` may still be accepted. Changes nothing.
    pub fn check(&self, counter: u32) -> Result<(), ReplayError> {
        if counter == u32::MAX || counter < self.floor(self.words()) {
            // The last counter is never sealed, since `next` could not exceed it.
            return Err(ReplayError::Old);
        }
        if counter >= self.next {
            return Ok(());
        }
        let (word, bit) = self.slot(counter);
        if self.ring[word] & bit != 0 { Err(ReplayError::Seen) } else { Ok(()) }
    }

    /// Marks `counter` as accepted. Returns true if it is the highest so far. Call only after the
    /// frame's seal verified and [`ReplayWindow::check`] passed.
    pub fn accept(&mut self, counter: u32) -> bool {
        let newest = counter >= self.next;
        if newest {
            self.advance(counter);
        }
        let (word, bit) = self.slot(counter);
        self.ring[word] |= bit;
        newest
    }

    /// Moves the top up to `counter`, and clears the words that are reused for newer counters.
    fn advance(&mut self, counter: u32) {
        self.grown_for(counter);
        let words = self.words();
        let old_word = if self.next == 0 { 0 } else { (self.next - 1) / WORD };
        let new_word = counter / WORD;
        for word in (old_word + 1..=new_word).rev().take(words as usize) {
            self.ring[(word & (words - 1)) as usize] = 0;
        }
        self.next = counter + 1;
    }

    /// Grows the ring for counters up to `counter`. A ring that holds all counters from zero has
    /// forgotten nothing, and below the limit the ring always does.
    fn grown_for(&mut self, counter: u32) {
        let need = (counter / WORD).saturating_add(2).min(self.limit).next_power_of_two();
        let have = self.words();
        if need > have {
            // All counters so far are below `have * WORD`, so the ring has not wrapped and can
            // simply get longer.
            self.ring.resize(need.max(2) as usize, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn take(window: &mut ReplayWindow, counter: u32) -> Result<bool, ReplayError> {
        window.check(counter)?;
        Ok(window.accept(counter))
    }

    #[test]
    fn each_counter_once() {
        let mut window = ReplayWindow::new(2_048);
        assert_eq!(take(&mut window, 5), Ok(true));
        assert_eq!(take(&mut window, 5), Err(ReplayError::Seen));
        assert_eq!(take(&mut window, 0), Ok(false));
        assert_eq!(take(&mut window, 0), Err(ReplayError::Seen));
        assert_eq!(take(&mut window, 10_000), Ok(true));
        assert_eq!(take(&mut window, 5), Err(ReplayError::Old));
        assert_eq!(take(&mut window, 10_000 - 2_048), Ok(false));
        assert_eq!(take(&mut window, u32::MAX - 1), Ok(true));
        assert_eq!(take(&mut window, u32::MAX - 1), Err(ReplayError::Seen));
        assert_eq!(take(&mut window, u32::MAX), Err(ReplayError::Old));
    }

    #[test]
    fn a_window_that_shrinks_forgets_what_it_refuses_from_then_on() {
        let mut window = ReplayWindow::new(2_048);
        for counter in (0..10_000).filter(|n| n % 3 == 0) {
            take(&mut window, counter).unwrap();
        }
        window.set_span(64);
        assert_eq!((window.ring.len(), window.ring.capacity()), (2, 2));
        assert_eq!(take(&mut window, 9_000), Err(ReplayError::Old));
        assert_eq!(take(&mut window, 9_998), Ok(false));
        window.set_span(2_048);
        assert!(take(&mut window, 9_000).is_err() && take(&mut window, 9_998).is_err());
        assert_eq!(take(&mut window, 9_997), Ok(false));
        assert_eq!(take(&mut window, 11_000), Ok(true));
        assert_eq!(take(&mut window, 10_500), Ok(false));
        assert!(take(&mut window, 9_001).is_err());
    }

    #[test]
    fn an_unused_window_is_small() {
        let mut window = ReplayWindow::new(1 << 17);
        assert_eq!(window.ring.capacity(), 0);
        for counter in 0..1_000 {
            take(&mut window, counter).unwrap();
        }
        assert!(window.ring.len() <= 32);
    }

    proptest! {
        /// Compares with a set of all accepted counters: none twice, and none refused inside the
        /// span.
        #[test]
        fn agrees_with_a_set(
            steps in proptest::collection::vec((0_u32..5_000, 0_u32..400), 1..400),
            spans: bool,
        ) {
            let mut window = ReplayWindow::new(256);
            let mut seen = BTreeSet::new();
            let mut base = 0_u32;
            for (jump, back) in steps {
                if jump > 4_900 { base += jump } else { base += jump % 7 }
                let counter = base.saturating_sub(back);
                let top = seen.last().copied().unwrap_or(0);
                if spans && jump % 31 == 0 {
                    window.set_span(if jump % 2 == 0 { 64 } else { 256 });
                }
                let result = take(&mut window, counter);
                if seen.contains(&counter) {
                    prop_assert!(result.is_err());
                } else if !spans && counter + 256 > top {
                    prop_assert!(result.is_ok());
                }
                if result.is_ok() {
                    seen.insert(counter);
                }
            }
        }
    }
}
