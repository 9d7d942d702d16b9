//! Record of an observer of a line.

use shoal_wire::{SizeClass, Time};

/// One frame as an observer sees it: everything else about it looks random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObservedFrame {
    /// Time at which it passed, on the observer's clock.
    pub at: Time,
    pub class: SizeClass,
}

/// Frames of one direction of a line, sorted by time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineTrace(Vec<ObservedFrame>);

/// A part of the watched time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub from: Time,
    /// End, which is not part of the span.
    pub to: Time,
}

impl Span {
    /// The first `seconds` seconds.
    pub fn seconds(seconds: u32) -> Span {
        Span { from: Time::ZERO, to: Time::from_millis(1_000 * u64::from(seconds)) }
    }

    /// Length in nanoseconds.
    pub fn ns(self) -> u64 {
        self.to.0.saturating_sub(self.from.0)
    }

    /// Length in seconds.
    pub fn s(self) -> f64 {
        self.ns() as f64 / 1e9
    }

    /// `n` parts of equal length.
    pub fn parts(self, n: usize) -> impl Iterator<Item = Span> {
        let edge = move |i: usize| Time(self.from.0 + self.ns() * i as u64 / n.max(1) as u64);
        (0..n).map(move |i| Span { from: edge(i), to: edge(i + 1) })
    }
}

impl LineTrace {
    /// A trace of frames in any order.
    pub fn new(mut frames: Vec<ObservedFrame>) -> LineTrace {
        frames.sort_unstable();
        LineTrace(frames)
    }

    /// Full frames at these times, in any order.
    pub fn full(times: impl IntoIterator<Item = u64>) -> LineTrace {
        let frame = |ns| ObservedFrame { at: Time(ns), class: SizeClass::Full };
        LineTrace::new(times.into_iter().map(frame).collect())
    }

    pub fn frames(&self) -> &[ObservedFrame] {
        &self.0
    }

    /// Times at which full frames passed, in nanoseconds after the beginning of `span`. Cells of
    /// circuits are full, and frames of other sizes tell an attacker little.
    pub fn cells(&self, span: Span) -> impl Iterator<Item = u64> {
        let first = self.0.partition_point(|frame| frame.at < span.from);
        let within = self.0[first..].iter().take_while(move |frame| frame.at < span.to);
        let full = within.filter(|frame| frame.class == SizeClass::Full);
        full.map(move |frame| frame.at.0 - span.from.0)
    }

    /// Number of cells in each bin of a span. A last bin that is cut short is left out.
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
        let small = ObservedFrame { at: Time(5 * ms), class: SizeClass::Small };
        let mut frames = LineTrace::full([25 * ms, 0, 9 * ms, 10 * ms, 31 * ms]).0;
        frames.insert(0, small);
        let trace = LineTrace::new(frames);
        let span = Span { from: Time(0), to: Time(31 * ms) };
        assert_eq!(trace.binned(span, 10 * ms), [2.0, 1.0, 1.0]);
        let later = Span { from: Time(9 * ms), to: Time(26 * ms) };
        assert_eq!(trace.cells(later).collect::<Vec<_>>(), [0, ms, 16 * ms]);
        let parts: Vec<Span> = later.parts(2).collect();
        assert_eq!(parts[0].to, parts[1].from);
        assert_eq!((parts[0].from, parts[1].to), (later.from, later.to));
    }
}
