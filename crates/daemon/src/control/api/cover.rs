//! Covered links.

use serde::{Deserialize, Serialize};

/// The schedule by which frames of a link leave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoverStatus {
    /// Rate of frames in Mbit/s, in each direction.
    pub mbit: u16,
    /// `constant` or `poisson`.
    pub schedule: String,
    /// `waiting` (for a session), `running`, `ending` or `off`.
    pub state: String,
    /// Full hour at which cover ends or ended, in seconds since 1970.
    pub at_unix_s: Option<u64>,
    /// Reason why cover ends or is off, in words.
    pub why: Option<String>,
    /// Frames that left in slots.
    pub frames: u64,
    /// Share of these frames that carried a cell, to the nearest quarter: an exact share would show
    /// when the link carries traffic.
    pub filled: Option<f64>,
    /// Slots that passed while this node could not run.
    pub skipped: u64,
    /// Share of the frames sent in the last minute that did not arrive, 0 to 1.
    pub lost: Option<f64>,
    /// Frames that came in the last minute, as a share of the schedule's.
    pub arriving: Option<f64>,
}

/// Covered links of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoverSummary {
    /// Number of covered links.
    pub links: u32,
    /// Links whose frames leave by their schedule.
    pub running: u32,
    /// Frames that left in slots since the start, as counted a few seconds ago.
    pub frames: u64,
    /// Slots that passed while this node could not run, as counted a few seconds ago.
    pub skipped: u64,
    /// Bytes per day of all these links in each direction, with headers of UDP and IPv4.
    pub bytes_per_day: u64,
    /// Link between a host and its router.
    pub own: Option<CoverStatus>,
    /// Tiers of these links.
    pub tiers: Vec<TierStatus>,
}

/// A tier, and the number of hosts that hide among each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TierStatus {
    /// Name of the tier in the list.
    pub name: String,
    /// Rate of frames in Mbit/s, in each direction.
    pub mbit: u16,
    /// `constant` or `poisson`.
    pub schedule: String,
    /// Links of this node in the tier.
    pub links: u32,
    /// Hosts of the list in the tier: the anonymity set.
    pub hosts: u32,
}
