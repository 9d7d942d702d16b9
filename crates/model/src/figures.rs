//! The paper's Figures 4 to 15: what it prints, what its formulas give, what a run shows.
//!
//! The text of the paper names few of the values that its figures plot, so most rows have none of
//! its numbers.

use core::ops::RangeInclusive;
use core::time::Duration;

use serde::Serialize;

use crate::case::{Case, SEEDS_MAX, Wrong};
use crate::course::{Course, courses};
use crate::filling::{FillRow, fillings};
use crate::law::Law;
use crate::reno::{self, Outcome};
use crate::sweep::{Estimate, estimate, over_bandwidth, over_dupthresh, over_mixes};

/// The figures that this crate has.
pub const FIGURES: RangeInclusive<u32> = 4..=15;
/// Length of Figures 4 and 5, which show the start alone.
const START_SECONDS: u32 = 1;
/// Rows of Figures 4 and 5.
const START_ROWS: usize = 10;
/// Period of Figure 14's mix. The paper states none; this one delays as long as the stop-and-go mix
/// does on average.
const PERIOD: Duration = Duration::from_millis(10);

/// How long and how often each case runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Runs {
    /// Simulated seconds of a run, 1 to [`crate::SECONDS_MAX`].
    pub seconds: u32,
    /// Runs of each case, 1 to [`SEEDS_MAX`]; figures are their means.
    pub seeds: u32,
    /// Seed of the first run; the others count up from it.
    pub seed: u64,
}

impl Default for Runs {
    fn default() -> Runs {
        Runs { seconds: 60, seeds: 3, seed: 1 }
    }
}

/// One value of x. None stands where there is no such number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Where on the figure's axis.
    pub x: f64,
    /// What the paper's text says that its theory gives.
    pub paper_theory: Option<f64>,
    /// What the paper's text says that its simulation gave.
    pub paper_seen: Option<f64>,
    /// The value of the paper's formula as printed.
    pub printed: Option<f64>,
    /// The value of the formula as it should read.
    pub corrected: Option<f64>,
    /// What our runs gave; none if it never happened, such as a window that was never halved.
    pub simulated: Option<f64>,
}

/// One figure as a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The paper's number, one of [`FIGURES`].
    pub number: u32,
    /// What it shows, with its unit.
    pub title: &'static str,
    /// What x is, with its unit.
    pub axis: &'static str,
    /// The values, by x.
    pub rows: Vec<Row>,
    /// What the paper plots over time: window or throughput of one run. Empty where `rows` are the
    /// plot. Of Figure 15, whose plot has no other rows, throughput of three senders.
    pub courses: Vec<Course>,
    /// Of Figure 15: seconds until the line is full.
    pub fills: Vec<FillRow>,
    /// Why the columns differ, in plain words.
    pub why: &'static str,
}

/// What a figure shows of a case.
#[derive(Clone, Copy)]
enum Shown {
    /// The window when it is halved.
    Window,
    /// Packets a second.
    Throughput,
    /// Milliseconds.
    RoundTrip,
}

/// Computes and runs a figure.
///
/// # Errors
/// [`Wrong::Figure`] for a number outside [`FIGURES`], [`Wrong::Runs`] for runs out of bounds,
/// [`Wrong::Events`] if a run was given up.
pub fn figure(number: u32, runs: &Runs) -> Result<Figure, Wrong> {
    let case = Case::paper();
    let timed = Case { law: Law::Timed { period: PERIOD }, ..case };
    let d = |case: &Case| f64::from(case.dupthresh);
    let m = |case: &Case| f64::from(case.mixes);
    let mbps = |case: &Case| case.bandwidth_bps as f64 / 1e6;
    let rows = match number {
        4 | 5 => start(number, runs)?,
        6 => rows(number, &[case], d, Shown::Window, runs)?,
        7 => rows(number, &[case], d, Shown::Throughput, runs)?,
        8 => rows(number, &over_bandwidth(&case), mbps, Shown::Throughput, runs)?,
        9 => rows(number, &over_mixes(&case), m, Shown::Window, runs)?,
        10 => rows(number, &over_mixes(&case), m, Shown::RoundTrip, runs)?,
        11 => rows(number, &over_mixes(&case), m, Shown::Throughput, runs)?,
        12 => rows(number, &over_dupthresh(&case), d, Shown::Window, runs)?,
        13 => rows(number, &over_dupthresh(&case), d, Shown::Throughput, runs)?,
        14 => rows(number, &over_dupthresh(&timed), d, Shown::Window, runs)?,
        15 => Vec::new(),
        _ => return Err(Wrong::Figure),
    };
    let (title, axis) = title(number);
    let (fills, courses) = match number {
        15 => fillings(runs.seed)?,
        _ => (Vec::new(), courses(number, runs.seed)?),
    };
    Ok(Figure { number, title, axis, rows, courses, fills, why: why(number) })
}

/// Mean throughput of a case in packets a second.
pub(crate) fn throughput(case: &Case, runs: &Runs) -> Result<f64, Wrong> {
    let all = outcomes(case, runs)?;
    Ok(all.iter().map(|outcome| outcome.throughput_pps).sum::<f64>() / all.len() as f64)
}

/// Runs a case with each seed.
fn outcomes(case: &Case, runs: &Runs) -> Result<Vec<Outcome>, Wrong> {
    if !(1..=SEEDS_MAX).contains(&runs.seeds) {
        return Err(Wrong::Runs);
    }
    let seeds = (0..u64::from(runs.seeds)).map(|i| runs.seed.wrapping_add(i));
    seeds.map(|seed| reno::run(case, runs.seconds, seed)).collect()
}

/// Mean of those that there are.
fn mean(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let values: Vec<f64> = values.flatten().collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn rows(
    number: u32,
    cases: &[Case],
    x: impl Fn(&Case) -> f64,
    shown: Shown,
    runs: &Runs,
) -> Result<Vec<Row>, Wrong> {
    let row = |case: &Case| {
        let (x, outcomes) = (x(case), outcomes(case, runs)?);
        let (printed, corrected) = formula(&estimate(case), shown);
        let simulated = mean(outcomes.iter().map(|outcome| match shown {
            Shown::Window => outcome.halved_window,
            Shown::Throughput => Some(outcome.throughput_pps),
            Shown::RoundTrip => outcome.rtt_ms,
        }));
        let (paper_theory, paper_seen) = paper(number, x);
        Ok(Row { x, paper_theory, paper_seen, printed, corrected, simulated })
    };
    cases.iter().map(row).collect()
}

/// What the formulas give, as printed and corrected.
fn formula(estimate: &Estimate, shown: Shown) -> (Option<f64>, Option<f64>) {
    match shown {
        Shown::Window => (estimate.window_printed, estimate.window_corrected),
        Shown::Throughput => {
            (estimate.throughput_printed_pps, Some(estimate.throughput_corrected_pps))
        }
        Shown::RoundTrip => {
            let ms = Some(estimate.round_trip.mean_s * 1e3);
            (ms, ms)
        }
    }
}

/// Figures 4 and 5: window and throughput after the start without a mix, where no seed matters.
fn start(number: u32, runs: &Runs) -> Result<Vec<Row>, Wrong> {
    let case = Case { law: Law::None, ..Case::paper() };
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
        Row { x: sample.at_s, paper_theory, paper_seen, printed: None, corrected, simulated }
    };
    Ok((1..=START_ROWS).map(row).collect())
}

/// What the text of the paper prints for a figure at `x`: its theory, its simulation.
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

/// Title and axis of a figure.
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

/// Why the columns of a figure differ.
fn why(number: u32) -> &'static str {
    match number {
        4 => {
            "Nothing reorders packets, so nothing halves the window. It doubles each round trip \
             until the line is full; then each acknowledgement adds one."
        }
        5 => {
            "Each row is the mean of the tenth of a second before it. The line is full shortly \
             after 0.4 s with a round trip of 50 ms; the paper does not state its own."
        }
        6 => {
            "The printed formula (10) sums to 5.17; 8.27 is not its value. Runs give more than \
             both formulas: acknowledgements come back spread out, so the next window is spread \
             out too, and fewer of its packets change places."
        }
        7 => {
            "The formula (3) has 5.17 for the window here; with 8.27 it gives 104. Runs lie above \
             both, since their windows are larger. No round trip that fits Figures 5 and 6 gives \
             31.23."
        }
        8 => {
            "The line hardly matters, because windows are halved long before they fill it. The \
             paper saw throughput rise a little with the rate, as its formula does."
        }
        9 => {
            "By the formulas the window does not depend on the mixes. The paper saw it rise a \
             little with them; here it falls a little. The paper has a line behind each mix, \
             these runs have none, which may be why."
        }
        10 => "Each mix adds 10 ms: 5 ms to a packet and 5 ms to its acknowledgement.",
        11 => {
            "The window stays and the round trip grows, so throughput falls. The paper puts 8.27 \
             where its formula gives 5.17. Runs exceed both formulas, though (14) says at most."
        }
        12 => {
            "At the line's rate 128 packets take 52 ms, and next to no delay of a 5 ms mix is so \
             long: from there on the window is never halved. At 64 it first \
             grows past what fills the line."
        }
        13 => {
            "The line's rate is a bound that (14) does not know. Runs reach it at 128, where (14) \
             says at most 1709."
        }
        14 => {
            "In 10 ms the line brings 24 packets to a flush, so from 32 on no packet is late by \
             so many others: the window is never halved. The paper states no period."
        }
        _ => {
            "The threshold that adapts soon covers what the mix does. But the first halving ends \
             slow start, and from there on the window grows by one over itself with each \
             acknowledgement of new data, of which a mix leaves few. A threshold of 192 keeps slow \
             start going."
        }
    }
}
