//! The paper's Figures 4 to 15: its printed values, its formulas, and results of runs.
//!
//! The paper's text gives few of the plotted values, so most rows contain none of its numbers.

use core::ops::RangeInclusive;
use core::time::Duration;

use serde::Serialize;

use crate::case::{ModelError, SEEDS_MAX, TcpExperiment};
use crate::course::{TimeSeries, courses};
use crate::filling::{FillRow, fillings};
use crate::law::BatchingStrategy;
use crate::reno::{self, RenoOutcome};
use crate::sweep::{FormulaEstimate, estimate, over_bandwidth, over_dupthresh, over_mixes};

/// Numbers of the figures in this crate.
pub const FIGURES: RangeInclusive<u32> = 4..=15;
/// Duration of Figures 4 and 5 in seconds, which show only the start.
const START_SECONDS: u32 = 1;
const START_ROWS: usize = 10;
/// Period of Figure 14's mix. The paper does not state it; this one has the mean delay of the
/// stop-and-go mix.
const PERIOD: Duration = Duration::from_millis(10);

/// Duration and number of runs per case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RunParameters {
    /// Simulated seconds per run, 1 to [`crate::SECONDS_MAX`].
    pub seconds: u32,
    /// Runs per case, 1 to [`SEEDS_MAX`]; figures are their means.
    pub seeds: u32,
    /// Seed of the first run; each further run adds 1.
    pub seed: u64,
}

impl Default for RunParameters {
    fn default() -> RunParameters {
        RunParameters { seconds: 60, seeds: 3, seed: 1 }
    }
}

/// The values at one x. None: there is no such value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FigureRow {
    /// Position on the figure's axis.
    pub x: f64,
    /// Theoretical value in the paper's text.
    pub paper_theory: Option<f64>,
    /// Simulated value in the paper's text.
    pub paper_seen: Option<f64>,
    /// Value of the paper's formula as printed.
    pub printed: Option<f64>,
    /// Value of the corrected formula.
    pub corrected: Option<f64>,
    /// Result of our runs. None if there is none, such as the window of a run that never halved it.
    pub simulated: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FigureTable {
    /// Number in the paper, one of [`FIGURES`].
    pub number: u32,
    /// Quantity and unit.
    pub title: &'static str,
    /// Meaning and unit of x.
    pub axis: &'static str,
    /// Values by x.
    pub rows: Vec<FigureRow>,
    /// Time series that the paper plots: window or throughput of one run. Empty if `rows` are the
    /// plot. For Figure 15, which has no other rows, the throughput of three senders.
    pub courses: Vec<TimeSeries>,
    /// For Figure 15: seconds until the line is full.
    pub fills: Vec<FillRow>,
    /// Explanation of the differences between columns.
    pub why: &'static str,
}

/// Quantity that a figure shows.
#[derive(Clone, Copy)]
enum FigureQuantity {
    /// The window at the moment of halving, in packets.
    Window,
    /// Packets per second.
    Throughput,
    /// Milliseconds.
    RoundTrip,
}

/// Computes and simulates a figure.
///
/// # Errors [`ModelError::Figure`] for a number outside [`FIGURES`], [`ModelError::Runs`] for runs
/// out of bounds, [`ModelError::Events`] if a run was stopped.
pub fn figure(number: u32, runs: &RunParameters) -> Result<FigureTable, ModelError> {
    let case = TcpExperiment::paper();
    let timed = TcpExperiment { law: BatchingStrategy::Timed { period: PERIOD }, ..case };
    let d = |case: &TcpExperiment| f64::from(case.dupthresh);
    let m = |case: &TcpExperiment| f64::from(case.mixes);
    let mbps = |case: &TcpExperiment| case.bandwidth_bps as f64 / 1e6;
    let rows = match number {
        4 | 5 => start(number, runs)?,
        6 => rows(number, &[case], d, FigureQuantity::Window, runs)?,
        7 => rows(number, &[case], d, FigureQuantity::Throughput, runs)?,
        8 => rows(number, &over_bandwidth(&case), mbps, FigureQuantity::Throughput, runs)?,
        9 => rows(number, &over_mixes(&case), m, FigureQuantity::Window, runs)?,
        10 => rows(number, &over_mixes(&case), m, FigureQuantity::RoundTrip, runs)?,
        11 => rows(number, &over_mixes(&case), m, FigureQuantity::Throughput, runs)?,
        12 => rows(number, &over_dupthresh(&case), d, FigureQuantity::Window, runs)?,
        13 => rows(number, &over_dupthresh(&case), d, FigureQuantity::Throughput, runs)?,
        14 => rows(number, &over_dupthresh(&timed), d, FigureQuantity::Window, runs)?,
        15 => Vec::new(),
        _ => return Err(ModelError::Figure),
    };
    let (title, axis) = title(number);
    let (fills, courses) = match number {
        15 => fillings(runs.seed)?,
        _ => (Vec::new(), courses(number, runs.seed)?),
    };
    Ok(FigureTable { number, title, axis, rows, courses, fills, why: why(number) })
}

/// Mean throughput of a case in packets per second.
pub(crate) fn throughput(case: &TcpExperiment, runs: &RunParameters) -> Result<f64, ModelError> {
    let all = outcomes(case, runs)?;
    Ok(all.iter().map(|outcome| outcome.throughput_pps).sum::<f64>() / all.len() as f64)
}

/// Runs a case with each seed.
fn outcomes(case: &TcpExperiment, runs: &RunParameters) -> Result<Vec<RenoOutcome>, ModelError> {
    if !(1..=SEEDS_MAX).contains(&runs.seeds) {
        return Err(ModelError::Runs);
    }
    let seeds = (0..u64::from(runs.seeds)).map(|i| runs.seed.wrapping_add(i));
    seeds.map(|seed| reno::run(case, runs.seconds, seed)).collect()
}

/// Mean of the present values.
fn mean(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let values: Vec<f64> = values.flatten().collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn rows(
    number: u32,
    cases: &[TcpExperiment],
    x: impl Fn(&TcpExperiment) -> f64,
    shown: FigureQuantity,
    runs: &RunParameters,
) -> Result<Vec<FigureRow>, ModelError> {
    let row = |case: &TcpExperiment| {
        let (x, outcomes) = (x(case), outcomes(case, runs)?);
        let (printed, corrected) = formula(&estimate(case), shown);
        let simulated = mean(outcomes.iter().map(|outcome| match shown {
            FigureQuantity::Window => outcome.halved_window,
            FigureQuantity::Throughput => Some(outcome.throughput_pps),
            FigureQuantity::RoundTrip => outcome.rtt_ms,
        }));
        let (paper_theory, paper_seen) = paper(number, x);
        Ok(FigureRow { x, paper_theory, paper_seen, printed, corrected, simulated })
    };
    cases.iter().map(row).collect()
}

/// Values of the formulas, as printed and corrected.
fn formula(estimate: &FormulaEstimate, shown: FigureQuantity) -> (Option<f64>, Option<f64>) {
    match shown {
        FigureQuantity::Window => (estimate.window_printed, estimate.window_corrected),
        FigureQuantity::Throughput => {
            (estimate.throughput_printed_pps, Some(estimate.throughput_corrected_pps))
        }
        FigureQuantity::RoundTrip => {
            let ms = Some(estimate.round_trip.mean_s * 1e3);
            (ms, ms)
        }
    }
}

/// Figures 4 and 5: window and throughput after the start without a mix, where the seed has no
/// effect.
fn start(number: u32, runs: &RunParameters) -> Result<Vec<FigureRow>, ModelError> {
    let case = TcpExperiment { law: BatchingStrategy::None, ..TcpExperiment::paper() };
    let outcome = reno::run(&case, START_SECONDS, runs.seed)?;
    let every = outcome.samples.len() / START_ROWS;
    let mut before = 0;
    let row = |i: usize| {
        let sample = &outcome.samples[i * every - 1];
        let pps = (sample.delivered - before) as f64 * START_ROWS as f64;
        before = sample.delivered;
        let (paper_theory, paper_seen) = paper(number, sample.at_s);
        let (corrected, simulated) = match number {
            4 => (None, sample.window),
            _ => (Some(case.line_pps()), pps),
        };
        let simulated = Some(simulated);
        FigureRow { x: sample.at_s, paper_theory, paper_seen, printed: None, corrected, simulated }
    };
    Ok((1..=START_ROWS).map(row).collect())
}

/// Values in the paper's text for a figure at `x`: theoretical and simulated.
fn paper(number: u32, x: f64) -> (Option<f64>, Option<f64>) {
    let line = 2_441.4;
    let window = (Some(8.27), Some(8.76));
    let throughput = (None, Some(31.23));
    let near = |value: f64| (x - value).abs() < 1e-6;
    match number {
        5 if near(0.4) => (Some(line), Some(line)),
        6 | 12 if near(3.0) => window,
        9 if near(1.0) => window,
        14 if near(3.0) => (window.0, None),
        7 | 13 if near(3.0) => throughput,
        8 if near(10.0) => throughput,
        11 if near(1.0) => throughput,
        13 if near(192.0) => (Some(line), Some(2_440.9)),
        _ => (None, None),
    }
}

fn title(number: u32) -> (&'static str, &'static str) {
    match number {
        4 => ("window without a mix, packets", "seconds"),
        5 => ("throughput without a mix, packets/s", "seconds"),
        6 => ("window when it is halved, packets", "dupthresh"),
        7 => ("throughput, packets/s", "dupthresh"),
        8 => ("throughput over the line's rate, packets/s", "Mbit/s"),
        9 => ("window when it is halved over mixes, packets", "mixes"),
        10 => ("round trip over mixes, ms", "mixes"),
        11 => ("throughput over mixes, packets/s", "mixes"),
        12 => ("window when it is halved over dupthresh, packets", "dupthresh"),
        13 => ("throughput over dupthresh, packets/s", "dupthresh"),
        14 => ("window when it is halved, timed mix of 10 ms, packets", "dupthresh"),
        _ => ("throughput of senders from their start, packets/s", "seconds"),
    }
}

/// Explanation of the differences between the columns of a figure.
fn why(number: u32) -> &'static str {
    match number {
        4 => {
            "Nothing reorders packets, so nothing halves the window. It doubles each round trip \
             until the line is full; then each acknowledgement adds one."
        }
        5 => {
            "Each row is the mean of the tenth of a second before it. The line is full shortly \
             after 0.4 s with a round trip of 50 ms; the paper does not state its round trip."
        }
        6 => {
            "The printed formula (10) sums to 5.17; 8.27 is not its value. Runs give larger \
             windows than both formulas: acknowledgements return spread out, so the next window is \
             spread out, too, and fewer of its packets are reordered."
        }
        7 => {
            "The formula (3) has 5.17 for the window here; with 8.27 it gives 104. Runs exceed \
             both, since their windows are larger. No round trip that fits Figures 5 and 6 gives \
             31.23."
        }
        8 => {
            "The line hardly matters, because windows are halved long before they fill it. The \
             paper saw throughput rise a little with the rate, as its formula does."
        }
        9 => {
            "In the formulas, the window does not depend on the mixes. The paper saw it rise a \
             little with them; here it falls a little. In the paper each mix has its own line, \
             which may be the reason."
        }
        10 => "Each mix adds 10 ms: 5 ms to a packet and 5 ms to its acknowledgement.",
        11 => {
            "The window is constant and the round trip grows, so throughput falls. The paper uses \
             8.27 where its formula gives 5.17. Runs exceed both formulas, though (14) says at \
             most."
        }
        12 => {
            "At the line's rate 128 packets take 52 ms, and hardly any delay of a 5 ms mix is so \
             long: from 128 on, the window is never halved. At 64 it first \
             grows past what fills the line."
        }
        13 => {
            "The line's rate is a bound that (14) ignores. Runs reach it at 128, where (14) \
             says at most 1709."
        }
        14 => {
            "In 10 ms the line brings 24 packets to a flush, so from 32 on no packet is overtaken \
             by so many others: the window is never halved. The paper states no period."
        }
        _ => {
            "The adaptive threshold soon covers the reordering of the mix. But the first halving \
             ends slow start, and from then on each acknowledgement of new data adds 1/window to \
             the window. A mix leaves few of them. With a threshold of 192, slow start goes on \
             until the line is full."
        }
    }
}
