//! Rules that must hold, one file per rule. The world feeds each checker.

pub(crate) mod addresses;
pub(crate) mod bounds;
pub(crate) mod cover;
pub(crate) mod drops;
pub(crate) mod files;
pub(crate) mod frames;
pub(crate) mod legs;
pub(crate) mod mixes;
pub(crate) mod model;
pub(crate) mod moves;
pub(crate) mod order;
pub(crate) mod outages;
pub(crate) mod plaintext;
pub(crate) mod routes;
pub(crate) mod spoilt;
pub(crate) mod statistics;
pub(crate) mod streams;

use core::fmt;

use serde::Serialize;

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    pub rule: &'static str,
    /// Virtual time in nanoseconds; a run begins at 10 s.
    pub at_ns: u64,
    /// Observation that breaks the rule.
    pub seen: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} ns: {}", self.rule, self.at_ns, self.seen)
    }
}
