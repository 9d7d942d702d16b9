//! Throughput from a window and a round trip: equations (1), (2), (3) and (14).
//!
//! Equation (1) bounds the throughput of a window that is halved at W and grows to W again. Its
//! 0.75 is the mean of such a sawtooth. Equation (2) is a Taylor series that ends after its second
//! term. Equations (3) and (14) are therefore estimates, although the paper writes them with "at
//! most".

use crate::case::TcpExperiment;
use crate::law::MeanAndVariance;

/// Mean of a sawtooth between half its height and its height.
const SAWTOOTH: f64 = 0.75;

/// (1): the largest throughput in bytes per second for a window of at most `window` packets of
/// `packet_bytes`, with a round trip of `round_trip_s` seconds.
pub fn throughput_bound(window: f64, packet_bytes: u32, round_trip_s: f64) -> f64 {
    SAWTOOTH * window * f64::from(packet_bytes) / round_trip_s
}

/// (2): approximate mean of X / Y, for independent X and Y.
pub fn mean_of_ratio(mean_x: f64, y: MeanAndVariance) -> f64 {
    mean_x / y.mean_s * (1.0 + y.variance_s2 / (y.mean_s * y.mean_s))
}

/// (3), and (14) with the round trip of m mixes: approximate mean throughput in bytes per second.
/// `window_mean` is the mean window in packets at the moment of halving.
pub fn mean_throughput(window_mean: f64, packet_bytes: u32, round_trip: MeanAndVariance) -> f64 {
    mean_of_ratio(SAWTOOTH * window_mean * f64::from(packet_bytes), round_trip)
}

/// (14) in packets per second. Means and variances of all mixes of the case add up.
pub fn mean_throughput_pps(window_mean: f64, case: &TcpExperiment) -> f64 {
    mean_throughput(window_mean, 1, case.round_trip())
}

/// (14) corrected: the line's rate is a bound, too.
pub fn bounded_throughput_pps(window_mean: f64, case: &TcpExperiment) -> f64 {
    mean_throughput_pps(window_mean, case).min(case.line_pps())
}

/// (14) solved for the round trip: the constant round trip in seconds at which windows of
/// `window_mean` packets give `throughput_pps` packets per second.
pub fn round_trip_for(window_mean: f64, throughput_pps: f64) -> f64 {
    SAWTOOTH * window_mean / throughput_pps
}
