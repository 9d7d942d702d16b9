//! Limits how many lines of one kind are printed; the rest is counted.

use std::time::{Duration, Instant};

/// Lines per span.
const LINES: u32 = 20;
/// Lines per span after a span that held lines back.
const LINES_CROWDED: u32 = 2;
/// Length of a span.
const SPAN: Duration = Duration::from_secs(10);

/// Limits lines of one kind: the first ones of a span are printed, the others counted.
#[derive(Debug, Default)]
pub struct LineLimiter {
    began: Option<Instant>,
    crowded: bool,
    printed: u32,
    held: HeldLines,
}

/// Lines that were held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldLines {
    pub lines: u64,
    /// Bytes of the files that the lines are about.
    pub bytes: u64,
}

impl LineLimiter {
    /// True if a line about a file of `bytes` may be printed; else the line is counted.
    pub fn take(&mut self, now: Instant, bytes: u64) -> bool {
        self.began.get_or_insert(now);
        if self.printed < if self.crowded { LINES_CROWDED } else { LINES } {
            self.printed += 1;
            return true;
        }
        self.held.lines += 1;
        self.held.bytes += bytes;
        false
    }

    /// Lines held back, once the span is over or at the `end`; then a new span may begin.
    pub fn over(&mut self, now: Instant, end: bool) -> Option<HeldLines> {
        let began = self.began?;
        if !end && now.duration_since(began) < SPAN {
            return None;
        }
        let LineLimiter { held, .. } = std::mem::take(self);
        self.crowded = held.lines > 0;
        if self.crowded {
            self.began = Some(now);
        }
        self.crowded.then_some(held)
    }

    /// True if no span is running.
    pub fn is_idle(&self) -> bool {
        self.began.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_counted_until_the_span_is_over() {
        let mut ration = LineLimiter::default();
        let now = Instant::now();
        assert_eq!(ration.over(now, true), None);
        let printed = (0..10_000).filter(|_| ration.take(now, 3)).count();
        assert_eq!(printed, 20);
        assert_eq!(ration.over(now, false), None);
        let later = now + SPAN;
        assert_eq!(ration.over(later, false), Some(HeldLines { lines: 9_980, bytes: 29_940 }));
        // A flood of lines gets fewer per span, until a span stays below the limit.
        assert_eq!((0..100).filter(|_| ration.take(later, 3)).count(), 2);
        let later = later + SPAN;
        assert_eq!(ration.over(later, false), Some(HeldLines { lines: 98, bytes: 294 }));
        assert!(!ration.is_idle());
        assert_eq!(ration.over(later + SPAN, false), None);
        assert!(ration.is_idle());
        assert_eq!((0..100).filter(|_| ration.take(later, 3)).count(), 20);
    }
}
