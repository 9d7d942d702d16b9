//! Times at which the frames of an access link leave.

use serde::Serialize;
use shoal_wire::{SizeClass, Time};

use crate::path::LineDelay;
use crate::random::Draws;
use crate::trace::{LineTrace, ObservedFrame};

/// Maximum number of cells that wait for a slot of a covered link. Further cells are dropped.
pub const QUEUE_MAX: usize = 2_048;
/// Time between two reports of a link that is not covered.
const REPORT_NS: u64 = 100_000_000;
/// Time for which a link with the leak `Pauses` goes on sending after its last cell.
const PAUSE_NS: u64 = 200_000_000;

/// Frames of an access link in addition to its cells.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoverSchedule {
    /// Sends small reports only.
    None,
    /// Sends full frames at random times in addition to cells, which leave at once.
    Dummies {
        /// Mean number of these frames per second.
        per_s: f64,
    },
    /// Sends full frames at equal distances; a cell waits for the next one.
    Constant {
        /// Frames per second.
        per_s: f64,
    },
    /// Sends full frames at exponential distances; a cell waits for the next one.
    Poisson {
        /// Mean number of frames per second.
        per_s: f64,
    },
}

/// A fault of covered links, planted to see that the attacker finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Leak {
    /// No fault.
    #[default]
    None,
    /// Leaves out slots if no cell came for 200 ms.
    Pauses,
    /// Lets the last router forward the frames of the other end's link, gaps included, without a
    /// schedule of its own.
    PassesGaps,
}

/// A frame on its way over an access link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LineFrame {
    pub at: u64,
    pub class: SizeClass,
    pub what: FrameContent,
}

/// Content of a frame, which only the two ends of the link know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FrameContent {
    /// Cell of the flow with this number.
    Cell(u32),
    /// Cell of another flow.
    Cross,
    /// No cell.
    Dummy,
}

impl CoverSchedule {
    /// True if frames leave by a schedule.
    pub fn scheduled(self) -> bool {
        matches!(self, CoverSchedule::Constant { .. } | CoverSchedule::Poisson { .. })
    }

    /// Frames per second that a schedule sends, or that are dummies.
    pub fn per_s(self) -> f64 {
        match self {
            CoverSchedule::None => 0.0,
            CoverSchedule::Dummies { per_s }
            | CoverSchedule::Constant { per_s }
            | CoverSchedule::Poisson { per_s } => per_s,
        }
    }

    /// Frames of one direction of a link that carries the cells of `queue`, from 0 to `until`.
    pub(crate) fn carry(
        self,
        mut queue: Vec<(u64, FrameContent)>,
        until: u64,
        leak: Leak,
        line: &LineDelay,
        draws: &mut Draws,
    ) -> Vec<LineFrame> {
        queue.sort_unstable();
        let full = |(at, what)| LineFrame { at, class: SizeClass::Full, what };
        let mut frames: Vec<LineFrame> = if self.scheduled() {
            let slots = self.times(until, draws);
            filled(&slots, &queue, leak).into_iter().map(full).collect()
        } else {
            let dummies = self.times(until, draws).into_iter().map(|at| (at, FrameContent::Dummy));
            let reports = (0..until / REPORT_NS).map(|i| i * REPORT_NS);
            let report = |at| LineFrame { at, class: SizeClass::Small, what: FrameContent::Dummy };
            queue.into_iter().chain(dummies).map(full).chain(reports.map(report)).collect()
        };
        for frame in &mut frames {
            frame.at += line.wait(draws);
        }
        frames.sort_unstable();
        frames
    }

    /// Times of the schedule's slots, or of dummies.
    fn times(self, until: u64, draws: &mut Draws) -> Vec<u64> {
        if self.per_s() <= 0.0 {
            return Vec::new();
        }
        let distance = 1e9 / self.per_s();
        let mut at = draws.uniform() * distance;
        let mut times = Vec::new();
        while at < until as f64 {
            times.push(at as u64);
            at += match self {
                CoverSchedule::Constant { .. } => distance,
                _ => draws.exponential(distance),
            };
        }
        times
    }
}

/// Content of each slot: the first waiting cell, else a dummy.
fn filled(slots: &[u64], queue: &[(u64, FrameContent)], leak: Leak) -> Vec<(u64, FrameContent)> {
    let (mut next, mut came, mut last) = (0, 0, 0);
    let mut waiting = std::collections::VecDeque::new();
    let mut frames = Vec::with_capacity(slots.len());
    for &slot in slots {
        while let Some(&(at, what)) = queue.get(came).filter(|cell| cell.0 <= slot) {
            came += 1;
            last = at;
            if waiting.len() < QUEUE_MAX {
                waiting.push_back(what);
                next += 1;
            }
        }
        let what = waiting.pop_front().unwrap_or(FrameContent::Dummy);
        let silent = what == FrameContent::Dummy && (next == 0 || slot - last > PAUSE_NS);
        if leak != Leak::Pauses || !silent {
            frames.push((slot, what));
        }
    }
    frames
}

/// Trace that an observer of the line records.
pub(crate) fn trace(frames: &[LineFrame]) -> LineTrace {
    LineTrace::new(
        frames.iter().map(|f| ObservedFrame { at: Time(f.at), class: f.class }).collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn carried(cover: CoverSchedule, cells: &[u64], leak: Leak) -> Vec<LineFrame> {
        let queue = cells.iter().zip(0..).map(|(&at, n)| (at, FrameContent::Cell(n))).collect();
        cover.carry(queue, 4 * S, leak, &LineDelay::default(), &mut Draws::new(7, "cover", 0))
    }

    fn times(frames: &[LineFrame]) -> Vec<u64> {
        frames.iter().map(|f| f.at).collect()
    }

    #[test]
    fn a_schedule_does_not_depend_on_what_is_carried() {
        let cells: Vec<u64> = (0..150).map(|i| S + i * 1_000_000).collect();
        for cover in
            [CoverSchedule::Constant { per_s: 100.0 }, CoverSchedule::Poisson { per_s: 100.0 }]
        {
            let (idle, busy) =
                (carried(cover, &[], Leak::None), carried(cover, &cells, Leak::None));
            assert_eq!(times(&idle), times(&busy));
            let inside = busy.iter().filter(|f| f.what != FrameContent::Dummy).count();
            assert_eq!(inside, 150, "{cover:?}");
            assert!(busy.iter().all(|f| f.class == SizeClass::Full));
            // Cells leave in their order, and not before they came.
            let cell = |f: &&LineFrame| matches!(f.what, FrameContent::Cell(_));
            let order: Vec<FrameContent> = busy.iter().filter(cell).map(|f| f.what).collect();
            assert!(order.is_sorted());
            assert!(busy.iter().find(|f| cell(f)).unwrap().at >= S);
            let leaky = carried(cover, &cells, Leak::Pauses);
            assert!(leaky.len() < 250, "{}", leaky.len());
        }
        assert_eq!(carried(CoverSchedule::Constant { per_s: 100.0 }, &[], Leak::None).len(), 400);
    }

    #[test]
    fn without_a_schedule_cells_leave_when_they_come() {
        let bare = carried(CoverSchedule::None, &[S, 2 * S], Leak::None);
        let full: Vec<&LineFrame> = bare.iter().filter(|f| f.class == SizeClass::Full).collect();
        assert_eq!(full.len(), 2);
        assert!(full[0].at >= S && full[0].at < S + 2_000_000);
        assert_eq!(bare.len(), 2 + 40);
        let dummies = carried(CoverSchedule::Dummies { per_s: 200.0 }, &[S], Leak::None);
        assert!((dummies.len() as f64 - 841.0).abs() < 120.0, "{}", dummies.len());
    }

    #[test]
    fn the_queue_of_waiting_cells_is_bounded() {
        let cells: Vec<u64> = (0..3_000).collect();
        let frames = carried(CoverSchedule::Constant { per_s: 1_000.0 }, &cells, Leak::None);
        let inside = frames.iter().filter(|f| f.what != FrameContent::Dummy).count();
        assert!((QUEUE_MAX..QUEUE_MAX + 2).contains(&inside), "{inside}");
    }
}
