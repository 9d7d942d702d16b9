//! The routing constants that an operator may change.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// Constants of the routing machine. docs/design/routing.md describes the `Default` values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Length of a query cycle (the paper, III.G; default 5 s).
    pub cycle: Duration,
    /// Queries per neighbour and cycle, spread evenly over it (the paper; default 5).
    pub queries: u32,
    /// Cost of a link that answers every query (default 100).
    pub default_cost: u32,
    /// Added cost of a link that answers no query (default 400). Missing replies add their share of
    /// it.
    pub add_on_cost: u32,
    /// Weight of the newest cycle in the smoothed share of missing replies, 1 to 100 percent
    /// (default 25).
    pub smoothing_percent: u32,
    /// Percentage (default 20) by which another path must be cheaper before traffic moves to it. A
    /// link's cost is updated only if the measured cost differs by more than this, too.
    pub hysteresis_percent: u32,
    /// Least time between two bursts of updates on one link (default 20 ms).
    pub update_gap: Duration,
    /// Least wait for an acknowledgement before an update's routes are sent again (default 250 ms).
    /// Long round trips and losses lengthen it.
    pub retransmit: Duration,
    /// Wait for an answer to a sequence number request; doubles with each try (default 200 ms).
    pub request_gap: Duration,
    /// Least time between two new sequence numbers of our own (default 100 ms).
    pub seqno_gap: Duration,
    /// Validity of our own proofs (default 1 h). Clocks may differ by a day, so receivers accept a
    /// proof for a day longer.
    pub proof_validity: Duration,
    /// Interval between two new proofs of our own (default 20 min).
    pub proof_refresh: Duration,
    /// Most routes accepted from one link (default 4,096).
    pub max_routes_per_link: usize,
    /// Settings for the links to single neighbours, by router number.
    pub links: BTreeMap<u32, LinkPolicy>,
    /// Destinations that only one neighbour may lead to: destination to neighbour.
    pub pins: BTreeMap<u32, u32>,
}

/// Settings for the links to one neighbour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkPolicy {
    /// Overrides [`Config::default_cost`].
    pub default_cost: Option<u32>,
    /// Destinations accepted from this neighbour; `None` means all known origins.
    pub import: Option<BTreeSet<u32>>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            cycle: Duration::from_secs(5),
            queries: 5,
            default_cost: 100,
            add_on_cost: 400,
            smoothing_percent: 25,
            hysteresis_percent: 20,
            update_gap: Duration::from_millis(20),
            retransmit: Duration::from_millis(250),
            request_gap: Duration::from_millis(200),
            seqno_gap: Duration::from_millis(100),
            proof_validity: Duration::from_secs(3_600),
            proof_refresh: Duration::from_secs(1_200),
            max_routes_per_link: 4_096,
            links: BTreeMap::new(),
            pins: BTreeMap::new(),
        }
    }
}

/// A constant that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("routing: {key} must be {expected}")]
pub struct ConfigError {
    pub key: &'static str,
    /// Accepted values, for the message.
    pub expected: &'static str,
}

impl Config {
    /// Checks the range of each constant.
    pub fn check(&self) -> Result<(), ConfigError> {
        let fault = |key, expected| Err(ConfigError { key, expected });
        let ms = Duration::from_millis;
        if self.cycle < ms(100) || self.cycle > Duration::from_secs(3_600) {
            return fault("cycle", "from 100 ms to 1 h");
        }
        if !(1..=100).contains(&self.queries) {
            return fault("queries", "1 to 100");
        }
        let policies = self.links.values().filter_map(|policy| policy.default_cost);
        // The feasibility condition requires that each link costs at least 1.
        if policies.chain([self.default_cost]).any(|cost| !(1..=1 << 24).contains(&cost)) {
            return fault("default_cost", "1 to 16777216");
        }
        if self.add_on_cost > 1 << 24 {
            return fault("add_on_cost", "at most 16777216");
        }
        if !(1..=100).contains(&self.smoothing_percent) {
            return fault("smoothing_percent", "1 to 100");
        }
        if self.hysteresis_percent > 1_000 {
            return fault("hysteresis_percent", "at most 1000");
        }
        let gaps = [self.update_gap, self.retransmit, self.request_gap, self.seqno_gap];
        if gaps.iter().any(|gap| *gap < ms(1) || *gap > Duration::from_secs(60)) {
            return fault("update_gap, retransmit, request_gap, seqno_gap", "from 1 ms to 60 s");
        }
        if self.proof_refresh < Duration::from_secs(1) || self.proof_refresh >= self.proof_validity
        {
            return fault("proof_refresh", "at least 1 s and less than proof_validity");
        }
        if self.max_routes_per_link == 0 {
            return fault("max_routes_per_link", "at least 1");
        }
        Ok(())
    }

    pub(crate) fn default_cost_of(&self, neighbour: u32) -> u32 {
        let own = self.links.get(&neighbour).and_then(|policy| policy.default_cost);
        own.unwrap_or(self.default_cost)
    }

    pub(crate) fn imports(&self, neighbour: u32, router: u32) -> bool {
        let allowed = self.links.get(&neighbour).and_then(|policy| policy.import.as_ref());
        allowed.is_none_or(|routers| routers.contains(&router))
    }
}
