//! When the frames of an access link leave.

use serde::Serialize;
use shoal_wire::{SizeClass, Time};

use crate::path::Line;
use crate::random::Draws;
use crate::trace::{Frame, Trace};

/// Cells that wait for a slot of a covered link; what comes above that is dropped.
pub const QUEUE_MAX: usize = 2_048;
/// Between two reports of a link that is not covered.
const REPORT_NS: u64 = 100_000_000;
/// How long a link that leaks by pausing goes on after its last cell.
const PAUSE_NS: u64 = 200_000_000;

/// What an access link sends beside cells.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cover {
    /// Small reports only.
    None,
    /// Full frames at random times beside the cells, which leave when they come.
    Dummies {
        /// In the mean.
        per_s: f64,
    },
    /// Full frames at equal distances; a cell waits for the next one.
    Constant {
        /// Frames a second.
        per_s: f64,
    },
    /// Full frames at exponential distances; a cell waits for the next one.
    Poisson {
        /// Frames a second in the mean.
        per_s: f64,
    },
}

/// A fault of covered links, planted to see that the attacker finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Leak {
    /// None.
    #[default]
    None,
    /// Slots are left out when no cell came for 200 ms.
    Pauses,
    /// The last router makes no schedule of its own: it passes on what the other end's link
    /// carried, gaps too.
    PassesGaps,
}

/// A frame on its way over an access link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sent {
    pub at: u64,
    pub class: SizeClass,
    pub what: What,
}

/// What is in a frame: only the two ends of the link know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum What {
    /// The cell of the flow with this number.
    Cell(u32),
    /// A cell of another flow.
    Cross,
    /// Nothing.
    Dummy,
}

impl Cover {
    /// Whether frames leave by a schedule.
    pub fn scheduled(self) -> bool {
        matches!(self, Cover::Constant { .. } | Cover::Poisson { .. })
    }

    /// Frames a second that are not cells, or that cells take.
    pub fn per_s(self) -> f64 {
        match self {
            Cover::None => 0.0,
            Cover::Dummies { per_s } | Cover::Constant { per_s } | Cover::Poisson { per_s } => {
                per_s
            }
        }
    }

    /// The frames of one direction of a link that has these to carry, from 0 to `until`.
    pub(crate) fn carry(
        self,
        mut queue: Vec<(u64, What)>,
        until: u64,
        leak: Leak,
        line: &Line,
        draws: &mut Draws,
    ) -> Vec<Sent> {
        queue.sort_unstable();
        let full = |(at, what)| Sent { at, class: SizeClass::Full, what };
        let mut frames: Vec<Sent> = if self.scheduled() {
            let slots = self.times(until, draws);
            filled(&slots, &queue, leak).into_iter().map(full).collect()
        } else {
            let dummies = self.times(until, draws).into_iter().map(|at| (at, What::Dummy));
            let reports = (0..until / REPORT_NS).map(|i| i * REPORT_NS);
            let report = |at| Sent { at, class: SizeClass::Small, what: What::Dummy };
            queue.into_iter().chain(dummies).map(full).chain(reports.map(report)).collect()
        };
        for frame in &mut frames {
            frame.at += line.wait(draws);
        }
        frames.sort_unstable();
        frames
    }

    /// When frames leave that are not there because of cells.
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
                Cover::Constant { .. } => distance,
                _ => draws.exponential(distance),
            };
        }
        times
    }
}

/// What each slot carries: the first cell that waits, else nothing.
fn filled(slots: &[u64], queue: &[(u64, What)], leak: Leak) -> Vec<(u64, What)> {
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
        let what = waiting.pop_front().unwrap_or(What::Dummy);
        let silent = what == What::Dummy && (next == 0 || slot - last > PAUSE_NS);
        if leak != Leak::Pauses || !silent {
            frames.push((slot, what));
        }
    }
    frames
}

/// What an observer of the line records.
pub(crate) fn trace(frames: &[Sent]) -> Trace {
    Trace::new(frames.iter().map(|f| Frame { at: Time(f.at), class: f.class }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn carried(cover: Cover, cells: &[u64], leak: Leak) -> Vec<Sent> {
        let queue = cells.iter().zip(0..).map(|(&at, n)| (at, What::Cell(n))).collect();
        cover.carry(queue, 4 * S, leak, &Line::default(), &mut Draws::new(7, "cover", 0))
    }

    fn times(frames: &[Sent]) -> Vec<u64> {
        frames.iter().map(|f| f.at).collect()
    }

    #[test]
    fn a_schedule_does_not_depend_on_what_is_carried() {
        let cells: Vec<u64> = (0..150).map(|i| S + i * 1_000_000).collect();
        for cover in [Cover::Constant { per_s: 100.0 }, Cover::Poisson { per_s: 100.0 }] {
            let (idle, busy) =
                (carried(cover, &[], Leak::None), carried(cover, &cells, Leak::None));
            assert_eq!(times(&idle), times(&busy));
            let inside = busy.iter().filter(|f| f.what != What::Dummy).count();
            assert_eq!(inside, 150, "{cover:?}");
            assert!(busy.iter().all(|f| f.class == SizeClass::Full));
            // Cells leave in their order, and none before it came.
            let cell = |f: &&Sent| matches!(f.what, What::Cell(_));
            let order: Vec<What> = busy.iter().filter(cell).map(|f| f.what).collect();
            assert!(order.is_sorted());
            assert!(busy.iter().find(|f| cell(f)).unwrap().at >= S);
            let leaky = carried(cover, &cells, Leak::Pauses);
            assert!(leaky.len() < 250, "{}", leaky.len());
        }
        assert_eq!(carried(Cover::Constant { per_s: 100.0 }, &[], Leak::None).len(), 400);
    }

    #[test]
    fn without_a_schedule_cells_leave_when_they_come() {
        let bare = carried(Cover::None, &[S, 2 * S], Leak::None);
        let full: Vec<&Sent> = bare.iter().filter(|f| f.class == SizeClass::Full).collect();
        assert_eq!(full.len(), 2);
        assert!(full[0].at >= S && full[0].at < S + 2_000_000);
        assert_eq!(bare.len(), 2 + 40);
        let dummies = carried(Cover::Dummies { per_s: 200.0 }, &[S], Leak::None);
        assert!((dummies.len() as f64 - 841.0).abs() < 120.0, "{}", dummies.len());
    }

    #[test]
    fn what_waits_is_bounded() {
        let cells: Vec<u64> = (0..3_000).collect();
        let frames = carried(Cover::Constant { per_s: 1_000.0 }, &cells, Leak::None);
        let inside = frames.iter().filter(|f| f.what != What::Dummy).count();
        assert!((QUEUE_MAX..QUEUE_MAX + 2).contains(&inside), "{inside}");
    }
}
