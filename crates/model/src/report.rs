//! Everything that `shoal-lab model` prints, as values.

use core::time::Duration;

use serde::Serialize;

use crate::case::{Case, Wrong};
use crate::figures::{FIGURES, Figure, Runs, figure, throughput};
use crate::findings::{Finding, findings};
use crate::law::Law;
use crate::sweep::DUPTHRESHES;
use crate::{permutation, window};

/// Holds of the table of resequencing, in milliseconds; 0 for none.
const HOLDS_MS: [u64; 6] = [0, 10, 20, 30, 50, 70];
/// The cap of that table in means.
const CAP: f64 = 5.0;

/// E(W) at one duplicate threshold, in packets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WindowRow {
    /// The duplicate threshold.
    pub dupthresh: u32,
    /// What the paper prints.
    pub paper: Option<f64>,
    /// The sum of its formula (42).
    pub printed: f64,
    /// With all calm orders counted.
    pub corrected: f64,
    /// The bound of Theorem 2.
    pub bound: f64,
}

/// Throughput with a resequencer in front of the receiver, one stop-and-go mix of 5 ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HoldRow {
    /// How long it waits for a missing packet, in milliseconds; 0 for no resequencer.
    pub hold_ms: u64,
    /// Packets a second, delays without a cap.
    pub uncapped_pps: f64,
    /// Packets a second, delays of at most five means.
    pub capped_pps: f64,
}

/// Formulas and figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// How the cases were run.
    pub runs: Runs,
    /// What is wrong in the paper; empty in a report of one figure.
    pub findings: Vec<Finding>,
    /// E(W) over the duplicate threshold; empty in a report of one figure.
    pub windows: Vec<WindowRow>,
    /// Throughput over the hold of a resequencer; empty in a report of one figure.
    pub holds: Vec<HoldRow>,
    /// The figures.
    pub figures: Vec<Figure>,
}

/// E(W) at each of [`DUPTHRESHES`].
pub fn windows() -> Vec<WindowRow> {
    let row = |dupthresh| WindowRow {
        dupthresh,
        paper: (dupthresh == 3).then_some(8.27),
        printed: window::mean_window(dupthresh).value,
        corrected: permutation::mean_window(dupthresh).value,
        bound: window::theorem_2_bound(dupthresh).value,
    };
    DUPTHRESHES.map(row).to_vec()
}

/// Throughput at each of [`HOLDS_MS`].
fn holds(runs: &Runs) -> Result<Vec<HoldRow>, Wrong> {
    let pps = |hold_ms, cap| {
        let law = Law::StopAndGo { mean: Duration::from_millis(5), cap };
        let hold = (hold_ms > 0).then(|| Duration::from_millis(hold_ms));
        throughput(&Case { law, hold, ..Case::paper() }, runs)
    };
    let row = |hold_ms| {
        let (uncapped_pps, capped_pps) = (pps(hold_ms, None)?, pps(hold_ms, Some(CAP))?);
        Ok(HoldRow { hold_ms, uncapped_pps, capped_pps })
    };
    HOLDS_MS.into_iter().map(row).collect()
}

impl Report {
    /// Everything: a few seconds of work with the default runs.
    ///
    /// # Errors
    /// Those of [`figure`].
    pub fn all(runs: &Runs) -> Result<Report, Wrong> {
        let figures: Result<_, _> = FIGURES.map(|number| figure(number, runs)).collect();
        let (findings, windows, holds) = (findings(runs)?, windows(), holds(runs)?);
        Ok(Report { runs: *runs, findings, windows, holds, figures: figures? })
    }

    /// One figure alone.
    ///
    /// # Errors
    /// Those of [`figure`].
    pub fn one(number: u32, runs: &Runs) -> Result<Report, Wrong> {
        let figures = vec![figure(number, runs)?];
        let (findings, windows, holds) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Report { runs: *runs, findings, windows, holds, figures })
    }
}
