//! Cases over one parameter, and what the formulas say of each: the tables behind the figures.

use crate::case::Case;
use crate::law::Spread;
use crate::{formulas, permutation, window};

/// Duplicate thresholds of Figures 12 to 14. The text of the paper names 3 and 192.
pub const DUPTHRESHES: [u32; 8] = [3, 4, 8, 16, 32, 64, 128, 192];
/// Numbers of mixes of Figures 9 to 11.
pub const MIXES: [u32; 5] = [1, 2, 3, 4, 5];
/// Rates of Figure 8 in bits a second. The text of the paper names 10 Mbit/s.
pub const BANDWIDTHS_BPS: [u64; 5] = [2_000_000, 5_000_000, 10_000_000, 50_000_000, 100_000_000];

/// What the formulas say of a case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// E(W) in packets by (42) as printed; none without a mix.
    pub window_printed: Option<f64>,
    /// E(W) in packets when all orders are counted; none without a mix.
    pub window_corrected: Option<f64>,
    /// The round trip by (14).
    pub round_trip: Spread,
    /// (14) in packets a second with the printed E(W); none without a mix.
    pub throughput_printed_pps: Option<f64>,
    /// The same with the exact E(W), and at most the line's rate, which it is without a mix.
    pub throughput_corrected_pps: f64,
}

/// Applies the formulas to a case whose bounds were checked.
pub fn estimate(case: &Case) -> Estimate {
    let printed = case.mixed().then(|| window::mean_window(case.dupthresh).value);
    let corrected = case.mixed().then(|| permutation::mean_window(case.dupthresh).value);
    let bounded = |w| formulas::bounded_throughput_pps(w, case);
    Estimate {
        window_printed: printed,
        window_corrected: corrected,
        round_trip: case.round_trip(),
        throughput_printed_pps: printed.map(|w| formulas::mean_throughput_pps(w, case)),
        throughput_corrected_pps: corrected.map_or(case.line_pps(), bounded),
    }
}

/// The case with each of [`DUPTHRESHES`].
pub fn over_dupthresh(case: &Case) -> Vec<Case> {
    DUPTHRESHES.map(|dupthresh| Case { dupthresh, ..*case }).to_vec()
}

/// The case with each of [`MIXES`].
pub fn over_mixes(case: &Case) -> Vec<Case> {
    MIXES.map(|mixes| Case { mixes, ..*case }).to_vec()
}

/// The case with each of [`BANDWIDTHS_BPS`].
pub fn over_bandwidth(case: &Case) -> Vec<Case> {
    BANDWIDTHS_BPS.map(|bandwidth_bps| Case { bandwidth_bps, ..*case }).to_vec()
}
