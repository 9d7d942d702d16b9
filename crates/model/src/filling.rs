//! Figure 15: time until senders fill the line.

use serde::Serialize;

use crate::case::{ModelError, TcpExperiment};
use crate::course::{TimeSeries, throughput};
use crate::law::BatchingStrategy;
use crate::reno;

/// The line counts as full when it carries this share of its rate.
const FULL: f64 = 0.97;
/// Parts of a run over which throughput is averaged: a tenth of a second, or 4 s in the long run.
const PARTS: usize = 40;
/// Duration in seconds of runs with a fixed threshold, and (`LONG_SECONDS`) with an adaptive one.
const SHORT_SECONDS: u32 = 4;
const LONG_SECONDS: u32 = 160;

/// Time until one sender fills the line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FillRow {
    /// Description of the sender and its mixes.
    pub sender: &'static str,
    /// Seconds in the paper, which calls each value approximate.
    pub paper_s: f64,
    /// Seconds here. None if the line was not full during the run.
    pub here_s: Option<f64>,
}

/// Runs each of the three senders of Figure 15 once. Returns the times and the throughput over
/// time.
///
/// # Errors
/// Those of [`reno::run`].
pub(crate) fn fillings(seed: u64) -> Result<(Vec<FillRow>, Vec<TimeSeries>), ModelError> {
    let mixed = TcpExperiment::paper();
    let senders = [
        (
            "dupthresh 3, no mix",
            TcpExperiment { law: BatchingStrategy::None, ..mixed },
            SHORT_SECONDS,
            0.4,
        ),
        ("dupthresh 192, one mix", TcpExperiment { dupthresh: 192, ..mixed }, SHORT_SECONDS, 1.6),
        ("RR-TCP, one mix", TcpExperiment { adapts: true, ..mixed }, LONG_SECONDS, 500.0),
    ];
    let (mut rows, mut courses) = (Vec::new(), Vec::new());
    for (sender, case, seconds, paper_s) in senders {
        let points = throughput(&reno::run(&case, seconds, seed)?, PARTS);
        let full = points.iter().find(|(_, pps)| *pps >= FULL * case.line_pps());
        rows.push(FillRow { sender, paper_s, here_s: full.map(|(at_s, _)| *at_s) });
        courses.push(TimeSeries { name: sender, points });
    }
    Ok((rows, courses))
}
