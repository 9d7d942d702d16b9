//! Covered links.

use serde::{Deserialize, Serialize};

/// The schedule by which frames of a link leave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cover {
    /// Rate of frames in Mbit/s, in each direction.
    pub mbit: u16,
    /// `constant` or `poisson`.
    pub schedule: String,
    /// `waiting` (for a session), `running`, `ending` or `off`.
    pub state: String,
    /// The full hour at which it ends, or since when it is off, in seconds since 1970.
    pub at_unix_s: Option<u64>,
    /// Why it ends or is off, in words.
    pub why: Option<String>,
    /// Frames that left in slots.
    pub frames: u64,
    /// Share of them that carried something, to the nearest quarter: nobody who reads it
    /// learns when the link carries something.
    pub filled: Option<f64>,
    /// Slots that passed while this node could not run.
    pub skipped: u64,
    /// Share of the frames sent in the last minute that did not arrive, 0 to 1.
    pub lost: Option<f64>,
    /// Frames that came in that minute, as a share of the schedule's.
    pub arriving: Option<f64>,
}

/// Covered links of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Covered {
    /// How many there are.
    pub links: u32,
    /// Those whose frames leave by their schedule.
    pub running: u32,
    /// Frames that left in slots, since the start, as they were seconds ago.
    pub frames: u64,
    /// Slots that passed while this node could not run, likewise.
    pub skipped: u64,
    /// What all these links cost, in each direction, with headers of UDP and IPv4.
    pub bytes_per_day: u64,
    /// The link of a host with its router.
    pub own: Option<Cover>,
    /// Tiers of these links.
    pub tiers: Vec<CoverTier>,
}

/// A tier, and among whom its hosts hide.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoverTier {
    /// Its name in the list.
    pub name: String,
    /// Rate of frames in Mbit/s, in each direction.
    pub mbit: u16,
    /// `constant` or `poisson`.
    pub schedule: String,
    /// Links of this node that have it.
    pub links: u32,
    /// Hosts in the list that have it: the anonymity set.
    pub hosts: u32,
}
