//! What an observer of a line records.

use shoal_wire::{SizeClass, Time};

/// One frame as an observer sees it: everything else about it looks random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Frame {
    /// When it passed, on the observer's clock.
    pub at: Time,
    /// How long it is.
    pub class: SizeClass,
}

/// The frames of one direction of a line, in the order in which they passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace(Vec<Frame>);

/// A part of the time watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its beginning.
    pub from: Time,
    /// Its end, which is not part of it.
    pub to: Time,
}

impl Span {
    /// The first seconds.
    pub fn seconds(seconds: u32) -> Span {
        Span { from: Time::ZERO, to: Time::from_millis(1_000 * u64::from(seconds)) }
    }

    /// Its length in nanoseconds.
    pub fn ns(self) -> u64 {
        self.to.0.saturating_sub(self.from.0)
    }

    /// Its length in seconds.
    pub fn s(self) -> f64 {
        self.ns() as f64 / 1e9
    }

    /// `n` parts of equal length.
    pub fn parts(self, n: usize) -> impl Iterator<Item = Span> {
        let edge = move |i: usize| Time(self.from.0 + self.ns() * i as u64 / n.max(1) as u64);
        (0..n).map(move |i| Span { from: edge(i), to: edge(i + 1) })
    }
}

impl Trace {
    /// The frames in any order.
    pub fn new(mut frames: Vec<Frame>) -> Trace {
        frames.sort_unstable();
        Trace(frames)
    }

    /// Full frames at these times, in any order.
    pub fn full(times: impl IntoIterator<Item = u64>) -> Trace {
        let frame = |ns| Frame { at: Time(ns), class: SizeClass::Full };
        Trace::new(times.into_iter().map(frame).collect())
    }

    /// All frames.
    pub fn frames(&self) -> &[Frame] {
        &self.0
    }

    /// When full frames passed, in nanoseconds after the beginning of `span`. Cells of circuits
    /// are full, and frames of other sizes tell an attacker little.
    pub fn cells(&self, span: Span) -> impl Iterator<Item = u64> {
        let first = self.0.partition_point(|frame| frame.at < span.from);
        let within = self.0[first..].iter().take_while(move |frame| frame.at < span.to);
        let full = within.filter(|frame| frame.class == SizeClass::Full);
        full.map(move |frame| frame.at.0 - span.from.0)
    }

    /// How many cells passed in each bin of a span; what is in a last bin that is cut short is
    /// left out.
    pub fn binned(&self, span: Span, bin_ns: u64) -> Vec<f32> {
        let bins = (span.ns() / bin_ns) as usize;
        let mut counts = vec![0.0; bins];
        for at in self.cells(span) {
            if let Some(count) = counts.get_mut((at / bin_ns) as usize) {
                *count += 1.0;
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_where_they_pass() {
        let ms = 1_000_000;
        let small = Frame { at: Time(5 * ms), class: SizeClass::Small };
        let mut frames = Trace::full([25 * ms, 0, 9 * ms, 10 * ms, 31 * ms]).0;
        frames.insert(0, small);
        let trace = Trace::new(frames);
        let span = Span { from: Time(0), to: Time(31 * ms) };
        assert_eq!(trace.binned(span, 10 * ms), [2.0, 1.0, 1.0]);
        let later = Span { from: Time(9 * ms), to: Time(26 * ms) };
        assert_eq!(trace.cells(later).collect::<Vec<_>>(), [0, ms, 16 * ms]);
        let parts: Vec<Span> = later.parts(2).collect();
        assert_eq!(parts[0].to, parts[1].from);
        assert_eq!((parts[0].from, parts[1].to), (later.from, later.to));
    }
}
