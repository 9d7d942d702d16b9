//! Settings for tests of address shifts.

use serde::Deserialize;

use super::Scenario;

/// A section `[moving]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShiftTests {
    pub tests: ShiftTestKind,
    /// Seconds of each measurement.
    #[serde(default = "seconds")]
    pub seconds: f64,
    /// Pings of the calm test.
    #[serde(default = "thousand")]
    pub pings: u32,
    /// Numbers of pings of the floods.
    #[serde(default)]
    pub floods: Vec<u32>,
    /// Files that wget fetches, in millions of bytes.
    #[serde(default)]
    pub wget_mb: Vec<f64>,
    /// Sizes of iperf3's UDP transfers, in millions of bytes.
    #[serde(default)]
    pub udp_mb: Vec<f64>,
    /// UDP rate, in Mbit/s of payload.
    #[serde(default = "fifty")]
    pub udp_mbit: f64,
}

/// Kinds of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShiftTestKind {
    /// Tests of the paper on MT6D.
    Paper,
    /// Cost of shifts compared with fixed addresses.
    Cost,
    /// Losses near shifts.
    Losses,
    /// Losses on segments, with shifts every ten seconds and every second.
    Segment,
    /// Success of an observer in linking addresses across shifts.
    Observer,
}

fn seconds() -> f64 {
    3.0
}

fn thousand() -> u32 {
    1_000
}

fn fifty() -> f64 {
    50.0
}

/// Checks that the section belongs to the scenario's kind, and that its numbers are in range.
pub(super) fn check(s: &Scenario) -> Result<(), (&'static str, &'static str)> {
    let Some(moving) = &s.moving else {
        let is_missing = s.kind == super::ExperimentKind::Moving;
        return if is_missing { Err(("tests", "required with kind = \"moving\"")) } else { Ok(()) };
    };
    if s.kind != super::ExperimentKind::Moving {
        return Err(("tests", "expected with kind = \"moving\", and only there"));
    }
    if !(1.0..=3_600.0).contains(&moving.seconds) {
        return Err(("seconds", "expected 1 to 3600"));
    }
    if !(10..=100_000).contains(&moving.pings) {
        return Err(("pings", "expected 10 to 100000"));
    }
    if moving.floods.iter().any(|count| !(10..=1_000_000).contains(count)) {
        return Err(("floods", "expected 10 to 1000000 each"));
    }
    let is_size = |mb: &f64| (0.01..=10_000.0).contains(mb);
    if !moving.wget_mb.iter().all(is_size) {
        return Err(("wget_mb", "expected 0.01 to 10000 each"));
    }
    if !moving.udp_mb.iter().all(is_size) {
        return Err(("udp_mb", "expected 0.01 to 10000 each"));
    }
    if !(0.1..=10_000.0).contains(&moving.udp_mbit) {
        return Err(("udp_mbit", "expected 0.1 to 10000"));
    }
    Ok(())
}
