//! Time series of a run, as in Figures 4 to 7 of the paper.

use serde::Serialize;

use crate::case::{ModelError, TcpExperiment};
use crate::law::BatchingStrategy;
use crate::reno::{self, RenoOutcome};

/// Duration of Figures 4 and 5, which show only the start.
const START_SECONDS: u32 = 1;
/// Duration of Figures 6 and 7: about ten halvings of the window.
const HALVING_SECONDS: u32 = 10;
/// Throughput is averaged over a part of a run; a run has this many parts.
const PARTS: usize = 10;

/// One quantity over the time of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimeSeries {
    /// Name of the run.
    pub name: &'static str,
    /// Time in seconds and value in the figure's unit.
    pub points: Vec<(f64, f64)>,
}

/// The time series that a figure of the paper plots. Empty for figures with another axis.
///
/// # Errors
/// Those of [`reno::run`].
pub(crate) fn courses(number: u32, seed: u64) -> Result<Vec<TimeSeries>, ModelError> {
    let calm = TcpExperiment { law: BatchingStrategy::None, ..TcpExperiment::paper() };
    let (name, case, seconds) = match number {
        4 | 5 => ("one run without a mix", calm, START_SECONDS),
        6 | 7 => ("one run", TcpExperiment::paper(), HALVING_SECONDS),
        _ => return Ok(Vec::new()),
    };
    let outcome = reno::run(&case, seconds, seed)?;
    let points = match number {
        4 | 6 => window(&outcome),
        _ => throughput(&outcome, PARTS),
    };
    Ok(vec![TimeSeries { name, points }])
}

/// The window in packets over time.
fn window(outcome: &RenoOutcome) -> Vec<(f64, f64)> {
    outcome.samples.iter().map(|sample| (sample.at_s, sample.window)).collect()
}

/// Throughput in packets per second over time. Each value is the mean over one of `parts` parts of
/// the run.
pub(crate) fn throughput(outcome: &RenoOutcome, parts: usize) -> Vec<(f64, f64)> {
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
