//! Values of the output of `shoal-lab model`.

use core::time::Duration;

use serde::Serialize;

use crate::case::{ModelError, TcpExperiment};
use crate::figures::{FIGURES, FigureTable, RunParameters, figure, throughput};
use crate::findings::{PaperError, findings};
use crate::law::BatchingStrategy;
use crate::sweep::DUPTHRESHES;
use crate::{permutation, window};

/// Holds in the table of the resequencer, in milliseconds; 0: no resequencer.
const HOLDS_MS: [u64; 6] = [0, 10, 20, 30, 50, 70];
/// Cap in that table, as a multiple of the mean.
const CAP: f64 = 5.0;

/// E(W) at one duplicate threshold, in packets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WindowRow {
    pub dupthresh: u32,
    /// Value printed in the paper.
    pub paper: Option<f64>,
    /// Sum of the paper's formula (42).
    pub printed: f64,
    /// Value with all calm orders counted.
    pub corrected: f64,
    /// Bound of Theorem 2.
    pub bound: f64,
}

/// Throughput with a resequencer in front of the receiver and one stop-and-go mix of 5 ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HoldRow {
    /// Wait for a missing packet in milliseconds; 0: no resequencer.
    pub hold_ms: u64,
    /// Packets per second, with unlimited delays.
    pub uncapped_pps: f64,
    /// Packets per second, with delays of at most five means.
    pub capped_pps: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelReport {
    /// Parameters of the runs.
    pub runs: RunParameters,
    /// Errors of the paper. Empty in a report of one figure.
    pub findings: Vec<PaperError>,
    /// E(W) by duplicate threshold. Empty in a report of one figure.
    pub windows: Vec<WindowRow>,
    /// Throughput by hold of the resequencer. Empty in a report of one figure.
    pub holds: Vec<HoldRow>,
    pub figures: Vec<FigureTable>,
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
fn holds(runs: &RunParameters) -> Result<Vec<HoldRow>, ModelError> {
    let pps = |hold_ms, cap| {
        let law = BatchingStrategy::StopAndGo { mean: Duration::from_millis(5), cap };
        let hold = (hold_ms > 0).then(|| Duration::from_millis(hold_ms));
        throughput(&TcpExperiment { law, hold, ..TcpExperiment::paper() }, runs)
    };
    let row = |hold_ms| {
        let (uncapped_pps, capped_pps) = (pps(hold_ms, None)?, pps(hold_ms, Some(CAP))?);
        Ok(HoldRow { hold_ms, uncapped_pps, capped_pps })
    };
    HOLDS_MS.into_iter().map(row).collect()
}

impl ModelReport {
    /// The complete report: a few seconds of computation with the default runs.
    ///
    /// # Errors
    /// Those of [`figure`].
    pub fn all(runs: &RunParameters) -> Result<ModelReport, ModelError> {
        let figures: Result<_, _> = FIGURES.map(|number| figure(number, runs)).collect();
        let (findings, windows, holds) = (findings(runs)?, windows(), holds(runs)?);
        Ok(ModelReport { runs: *runs, findings, windows, holds, figures: figures? })
    }

    /// The report of one figure.
    ///
    /// # Errors
    /// Those of [`figure`].
    pub fn one(number: u32, runs: &RunParameters) -> Result<ModelReport, ModelError> {
        let figures = vec![figure(number, runs)?];
        let (findings, windows, holds) = (Vec::new(), Vec::new(), Vec::new());
        Ok(ModelReport { runs: *runs, findings, windows, holds, figures })
    }
}
