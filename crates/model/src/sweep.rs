//! Cases over one parameter, and estimates by the formulas: the tables behind the figures.

use crate::case::TcpExperiment;
use crate::law::MeanAndVariance;
use crate::{formulas, permutation, window};

/// Duplicate thresholds of Figures 12 to 14. The paper's text names 3 and 192.
pub const DUPTHRESHES: [u32; 8] = [3, 4, 8, 16, 32, 64, 128, 192];
/// Numbers of mixes of Figures 9 to 11.
pub const MIXES: [u32; 5] = [1, 2, 3, 4, 5];
/// Rates of Figure 8 in bits per second. The paper's text names 10 Mbit/s.
pub const BANDWIDTHS_BPS: [u64; 5] = [2_000_000, 5_000_000, 10_000_000, 50_000_000, 100_000_000];

/// Values of the formulas for a case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FormulaEstimate {
    /// E(W) in packets by (42) as printed. None without a mix.
    pub window_printed: Option<f64>,
    /// E(W) in packets with all orders counted. None without a mix.
    pub window_corrected: Option<f64>,
    /// Round trip by (14).
    pub round_trip: MeanAndVariance,
    /// (14) in packets per second with the printed E(W). None without a mix.
    pub throughput_printed_pps: Option<f64>,
    /// (14) with the exact E(W), limited by the line's rate. Without a mix, the line's rate.
    pub throughput_corrected_pps: f64,
}

/// Applies the formulas to a case whose bounds were checked.
pub fn estimate(case: &TcpExperiment) -> FormulaEstimate {
    let printed = case.mixed().then(|| window::mean_window(case.dupthresh).value);
    let corrected = case.mixed().then(|| permutation::mean_window(case.dupthresh).value);
    let bounded = |w| formulas::bounded_throughput_pps(w, case);
    FormulaEstimate {
        window_printed: printed,
        window_corrected: corrected,
        round_trip: case.round_trip(),
        throughput_printed_pps: printed.map(|w| formulas::mean_throughput_pps(w, case)),
        throughput_corrected_pps: corrected.map_or(case.line_pps(), bounded),
    }
}

/// The case with each of [`DUPTHRESHES`].
pub fn over_dupthresh(case: &TcpExperiment) -> Vec<TcpExperiment> {
    DUPTHRESHES.map(|dupthresh| TcpExperiment { dupthresh, ..*case }).to_vec()
}

/// The case with each of [`MIXES`].
pub fn over_mixes(case: &TcpExperiment) -> Vec<TcpExperiment> {
    MIXES.map(|mixes| TcpExperiment { mixes, ..*case }).to_vec()
}

/// The case with each of [`BANDWIDTHS_BPS`].
pub fn over_bandwidth(case: &TcpExperiment) -> Vec<TcpExperiment> {
    BANDWIDTHS_BPS.map(|bandwidth_bps| TcpExperiment { bandwidth_bps, ..*case }).to_vec()
}
