//! Figure 15: how long senders take to fill the line.

use serde::Serialize;

use crate::case::{Case, Wrong};
use crate::course::{Course, throughput};
use crate::law::Law;
use crate::reno;

/// The line is full when it carries this share of its rate.
const FULL: f64 = 0.97;
/// Parts of a run over which throughput is measured: a tenth of a second, or four.
const PARTS: usize = 40;
/// Seconds of a run of senders that fill the line at once, and of the one that adapts.
const SHORT_SECONDS: u32 = 4;
const LONG_SECONDS: u32 = 160;

/// How long one sender takes to fill the line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FillRow {
    /// Which sender, behind what.
    pub sender: &'static str,
    /// Seconds in the paper, which says "around" with each.
    pub paper_s: f64,
    /// Seconds here; none if the line was not full in the run.
    pub here_s: Option<f64>,
}

/// Runs the three senders of Figure 15 once each: their times, and their throughput over time.
///
/// # Errors
/// Those of [`reno::run`].
pub(crate) fn fillings(seed: u64) -> Result<(Vec<FillRow>, Vec<Course>), Wrong> {
    let mixed = Case::paper();
    let senders = [
        ("dupthresh 3, no mix", Case { law: Law::None, ..mixed }, SHORT_SECONDS, 0.4),
        ("dupthresh 192, one mix", Case { dupthresh: 192, ..mixed }, SHORT_SECONDS, 1.6),
        ("RR-TCP, one mix", Case { adapts: true, ..mixed }, LONG_SECONDS, 500.0),
    ];
    let (mut rows, mut courses) = (Vec::new(), Vec::new());
    for (sender, case, seconds, paper_s) in senders {
        let points = throughput(&reno::run(&case, seconds, seed)?, PARTS);
        let full = points.iter().find(|(_, pps)| *pps >= FULL * case.line_pps());
        rows.push(FillRow { sender, paper_s, here_s: full.map(|(at_s, _)| *at_s) });
        courses.push(Course { name: sender, points });
    }
    Ok((rows, courses))
}
