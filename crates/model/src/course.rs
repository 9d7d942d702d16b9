//! How a run went over time: what Figures 4 to 7 of the paper plot.

use serde::Serialize;

use crate::case::{Case, Wrong};
use crate::law::Law;
use crate::reno::{self, Outcome};

/// Seconds of Figures 4 and 5, which show the start alone.
const START_SECONDS: u32 = 1;
/// Seconds of Figures 6 and 7: some ten halvings of the window.
const HALVING_SECONDS: u32 = 10;
/// Throughput is a mean over so many parts of a run.
const PARTS: usize = 10;

/// One value over the time of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Course {
    /// What ran.
    pub name: &'static str,
    /// Seconds since the start, and the value in the figure's unit.
    pub points: Vec<(f64, f64)>,
}

/// The course that a figure of the paper plots; none for the figures that have another axis.
///
/// # Errors
/// Those of [`reno::run`].
pub(crate) fn courses(number: u32, seed: u64) -> Result<Vec<Course>, Wrong> {
    let calm = Case { law: Law::None, ..Case::paper() };
    let (name, case, seconds) = match number {
        4 | 5 => ("one run without a mix", calm, START_SECONDS),
        6 | 7 => ("one run", Case::paper(), HALVING_SECONDS),
        _ => return Ok(Vec::new()),
    };
    let outcome = reno::run(&case, seconds, seed)?;
    let points = match number {
        4 | 6 => window(&outcome),
        _ => throughput(&outcome, PARTS),
    };
    Ok(vec![Course { name, points }])
}

/// The window in packets.
fn window(outcome: &Outcome) -> Vec<(f64, f64)> {
    outcome.samples.iter().map(|sample| (sample.at_s, sample.window)).collect()
}

/// Packets a second, each a mean over one of so many `parts` of the run.
pub(crate) fn throughput(outcome: &Outcome, parts: usize) -> Vec<(f64, f64)> {
    let samples = &outcome.samples;
    let behind = samples.len() / parts;
    let rate = |i: usize| {
        let sample = &samples[i];
        let (since_s, before) =
            i.checked_sub(behind).map_or((0.0, 0), |j| (samples[j].at_s, samples[j].delivered));
        let delivered = (sample.delivered - before) as f64;
        (sample.at_s, delivered / (sample.at_s - since_s))
    };
    (0..samples.len()).map(rate).collect()
}
