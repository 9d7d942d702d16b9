//! What is said of tests of addresses that hop.

use serde::Deserialize;

use super::Scenario;

/// A section `[moving]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moving {
    /// Which tests.
    pub tests: Tests,
    /// Seconds of each measurement.
    #[serde(default = "seconds")]
    pub seconds: f64,
    /// Pings of the calm test.
    #[serde(default = "thousand")]
    pub pings: u32,
    /// Pings of the floods.
    #[serde(default)]
    pub floods: Vec<u32>,
    /// Files that wget fetches, in millions of bytes.
    #[serde(default)]
    pub wget_mb: Vec<f64>,
    /// What iperf3 sends by UDP, in millions of bytes.
    #[serde(default)]
    pub udp_mb: Vec<f64>,
    /// The rate of UDP, in Mbit/s of payload.
    #[serde(default = "fifty")]
    pub udp_mbit: f64,
}

/// Kinds of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tests {
    /// Those of the paper on MT6D.
    Paper,
    /// What hops cost beside fixed addresses.
    Cost,
    /// What is lost near hops.
    Losses,
    /// The same with hops each ten seconds and each second, on segments.
    Segment,
    /// How well an observer links addresses again.
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

/// The section is there where it belongs, and its numbers are in their ranges.
pub(super) fn check(s: &Scenario) -> Result<(), (&'static str, &'static str)> {
    let Some(moving) = &s.moving else {
        let is_missing = s.kind == super::Kind::Moving;
        return if is_missing { Err(("tests", "kind = \"moving\" needs it")) } else { Ok(()) };
    };
    if s.kind != super::Kind::Moving {
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
