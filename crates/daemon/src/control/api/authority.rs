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
    /// When this node's own membership ends, in seconds since 1970; 0 if it is no member.
    #[serde(default)]
    pub member_until_unix_s: u64,
    /// A registrar gave it, so a registrar can make it last longer.
    #[serde(default)]
    pub by_registrar: bool,
    /// Who may make members beside the authority.
    #[serde(default)]
    pub mandates: Vec<Mandate>,
    /// The network's secret, if the list says anything of it.
    #[serde(default)]
    pub secret: Option<Secret>,
}

/// How far a change of the network's secret is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Secret {
    /// `settled`, `announced` (the next one is handed on), or `switched` (the old one is taken
    /// until `old_until_unix_s`).
    pub state: String,
    /// This node has the one that handshakes begin with.
    pub has_current: bool,
    /// This node has the newest one that is named.
    pub has_newest: bool,
    /// When the old one is taken no more, in seconds since 1970; 0 if none is.
    pub old_until_unix_s: u64,
    /// Neighbours that have the newest one.
    pub neighbours_have: u32,
    /// Neighbours.
    pub neighbours: u32,
}

/// A mandate of the list, and what this node has of its registrar's chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mandate {
    /// What the authority calls it.
    pub name: String,
    /// Its id, as hex.
    pub id: String,
    /// The registrar's public key.
    pub key: String,
    /// Supplements that count here.
    pub steps: u64,
    /// What the next supplement names as its previous one, as hex.
    pub head: String,
    /// Members by them, those included whose membership has expired.
    pub members: u32,
    /// Keys that were ever admitted.
    pub admitted: u32,
    /// How many may be.
    pub most: u32,
    /// When it ends, in seconds since 1970.
    pub until_unix_s: u64,
    /// The number of which the registrar signed two supplements, if it did: nothing from it on
    /// counts.
    pub frozen_at: Option<u64>,
}
