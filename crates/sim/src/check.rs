//! What must hold. One file per rule; the world tells each checker what it needs to see.

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
    /// The rule's short name.
    pub rule: &'static str,
    /// Virtual time in nanoseconds; a run begins at ten seconds.
    pub at_ns: u64,
    /// What was seen.
    pub seen: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} ns: {}", self.rule, self.at_ns, self.seen)
    }
}
