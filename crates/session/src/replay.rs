//! The replay window: which counters were accepted (RFC 6479, grown lazily).

/// Bits per word.
const WORD: u32 = u64::BITS;

/// Which of the newest counters of one lane were seen.
///
/// A ring of words as in RFC 6479 section 3, so that moving on clears words and shifts nothing. It
/// starts with two words and doubles when a late frame would else be refused, up to the limit.
#[derive(Clone, Debug)]
pub struct Window {
    /// The highest counter accepted, plus one; 0 before the first.
    next: u32,
    /// Ring of bits; the length is a power of two of words.
    ring: Vec<u64>,
    /// The most words the ring may have.
    limit: u32,
}

/// Why a counter is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It was accepted before.
    Seen,
    /// It lies below the window.
    Old,
}

impl Window {
    /// A window that spans at least `frames` counters when fully grown.
    pub fn new(frames: u32) -> Window {
        let limit = frames.div_ceil(WORD).saturating_add(1).next_power_of_two().max(2);
        Window { next: 0, ring: Vec::new(), limit }
    }

    /// Lets the window span at least `frames` counters from now on when fully grown. What it has
    /// forgotten stays refused: of a shorter one the older counters, and what those were when it
    /// grows again.
    pub fn set_span(&mut self, frames: u32) {
        self.limit = Window::new(frames).limit;
        let (newest, have) = (self.next.saturating_sub(1) / WORD, self.words());
        let is_whole = newest < have || self.next == 0;
        if have <= self.limit && is_whole {
            return;
        }
        let need = newest.saturating_add(2).min(self.limit).next_power_of_two();
        // Set bits refuse. Those above the newest word are cleared when the window gets there.
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

    /// Bytes that it takes on the heap now.
    pub fn heap_len(&self) -> usize {
        self.ring.capacity() * size_of::<u64>()
    }

    /// Words in the ring now.
    fn words(&self) -> u32 {
        self.ring.len() as u32
    }

    /// The lowest counter that a ring of `words` can tell: the word that the newest bit stands in
    /// is only partly used, so one word less than the ring has.
    fn floor(&self, words: u32) -> u32 {
        let newest_word = self.next.saturating_sub(1) / WORD;
        newest_word.saturating_sub(words.saturating_sub(1)) * WORD
    }

    fn slot(&self, counter: u32) -> (usize, u64) {
        let word = (counter / WORD) & (self.words() - 1);
        (word as usize, 1 << (counter % WORD))
    }

    /// Whether `counter` may still be accepted; nothing changes.
    pub fn check(&self, counter: u32) -> Result<(), Refused> {
        if counter == u32::MAX || counter < self.floor(self.words()) {
            // The last counter is never sealed: `next` could not stand above it.
            return Err(Refused::Old);
        }
        if counter >= self.next {
            return Ok(());
        }
        let (word, bit) = self.slot(counter);
        if self.ring[word] & bit != 0 { Err(Refused::Seen) } else { Ok(()) }
    }

    /// Marks `counter` as accepted; true when it is the highest so far. Call only after the frame's
    /// seal verified and [`Window::check`] passed.
    pub fn accept(&mut self, counter: u32) -> bool {
        let newest = counter >= self.next;
        if newest {
            self.advance(counter);
        }
        let (word, bit) = self.slot(counter);
        self.ring[word] |= bit;
        newest
    }

    /// Moves the top up to `counter`, clearing the words that now stand for newer counters.
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

    /// Grows the ring as far as the counters have come: a ring that holds all counters from zero
    /// has forgotten nothing, and below the limit it always does.
    fn grown_for(&mut self, counter: u32) {
        let need = (counter / WORD).saturating_add(2).min(self.limit).next_power_of_two();
        let have = self.words();
        if need > have {
            // All counters so far stand below `have * WORD`, hence unwrapped: the ring just gets
            // longer.
            self.ring.resize(need.max(2) as usize, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn take(window: &mut Window, counter: u32) -> Result<bool, Refused> {
        window.check(counter)?;
        Ok(window.accept(counter))
    }

    #[test]
    fn each_counter_once() {
        let mut window = Window::new(2_048);
        assert_eq!(take(&mut window, 5), Ok(true));
        assert_eq!(take(&mut window, 5), Err(Refused::Seen));
        assert_eq!(take(&mut window, 0), Ok(false));
        assert_eq!(take(&mut window, 0), Err(Refused::Seen));
        assert_eq!(take(&mut window, 10_000), Ok(true));
        assert_eq!(take(&mut window, 5), Err(Refused::Old));
        assert_eq!(take(&mut window, 10_000 - 2_048), Ok(false));
        assert_eq!(take(&mut window, u32::MAX - 1), Ok(true));
        assert_eq!(take(&mut window, u32::MAX - 1), Err(Refused::Seen));
        assert_eq!(take(&mut window, u32::MAX), Err(Refused::Old));
    }

    #[test]
    fn a_window_that_shrinks_forgets_what_it_refuses_from_then_on() {
        let mut window = Window::new(2_048);
        for counter in (0..10_000).filter(|n| n % 3 == 0) {
            take(&mut window, counter).unwrap();
        }
        window.set_span(64);
        assert_eq!((window.ring.len(), window.ring.capacity()), (2, 2));
        assert_eq!(take(&mut window, 9_000), Err(Refused::Old));
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
        let mut window = Window::new(1 << 17);
        assert_eq!(window.ring.capacity(), 0);
        for counter in 0..1_000 {
            take(&mut window, counter).unwrap();
        }
        assert!(window.ring.len() <= 32);
    }

    proptest! {
        /// Against a set of everything accepted: never twice, and never refused inside the span.
        #[test]
        fn agrees_with_a_set(
            steps in proptest::collection::vec((0_u32..5_000, 0_u32..400), 1..400),
            spans: bool,
        ) {
            let mut window = Window::new(256);
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
