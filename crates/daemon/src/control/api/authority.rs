//! What a node says about the authority of its network.

use serde::{Deserialize, Serialize};

/// The authority's list, as this node knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Authority {
    /// `fresh`, `stale` (nobody is a member), `missing`, or `not_a_member` (this node).
    pub state: String,
    /// Version of the list in force.
    pub list_version: u64,
    /// How long ago it was signed, in seconds.
    pub list_age_s: u64,
    /// Age in seconds from which the list is stale.
    pub max_staleness_s: u64,
    /// Members in force.
    pub members: u32,
    /// Why the list that was read last is refused, if it is.
    pub refused: Option<String>,
    /// Lists refused since the start.
    #[serde(default)]
    pub refusals: u64,
    /// The list in force came from a neighbour, not from the file.
    #[serde(default)]
    pub from_neighbour: bool,
}
