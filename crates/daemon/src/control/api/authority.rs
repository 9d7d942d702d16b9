//! State of the authority's list at a node.

use serde::{Deserialize, Serialize};

/// The authority's list, as this node knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuthorityStatus {
    /// `fresh`, `stale` (nobody is a member), `missing`, `not_a_member` or `removed` (this node).
    pub state: String,
    /// End of this node's own membership before its time, as far as known.
    #[serde(default)]
    pub removed: Option<RemovedStatus>,
    /// Version of the list in force.
    pub list_version: u64,
    /// Seconds since the list was signed.
    pub list_age_s: u64,
    /// Age in seconds from which the list is stale.
    pub max_staleness_s: u64,
    /// Members in force.
    pub members: u32,
    /// Reason why the list that was read last is refused, if it is.
    pub refused: Option<String>,
    /// Lists refused since the start.
    #[serde(default)]
    pub refusals: u64,
    /// True if the list in force came from a neighbour, not from the file.
    #[serde(default)]
    pub from_neighbour: bool,
    /// End of this node's own membership, in seconds since 1970; 0 if it is no member.
    #[serde(default)]
    pub member_until_unix_s: u64,
    /// True if a registrar gave this membership, and so can extend it.
    #[serde(default)]
    pub by_registrar: bool,
    /// Mandates by which registrars may make members.
    #[serde(default)]
    pub mandates: Vec<MandateStatus>,
    /// State of the network's secret, if the list names one.
    #[serde(default)]
    pub secret: Option<SecretProgress>,
}

/// Removal of this node from the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedStatus {
    /// `registrar` or `authority`.
    pub by: String,
    /// Day of the removal, as in 2026-11-28.
    pub on: Option<String>,
    /// Neighbour that says so; none if this node has the signed removal itself.
    pub said_by: Option<String>,
}

/// Progress of a change of the network's secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SecretProgress {
    /// `settled`, `announced` (nodes hand the next one on), or `switched` (nodes accept the old one
    /// until `old_until_unix_s`).
    pub state: String,
    /// True if this node has the secret with which handshakes begin.
    pub has_current: bool,
    /// True if this node has the newest secret of the list.
    pub has_newest: bool,
    /// Time until which the old secret is accepted, in seconds since 1970; 0 without one.
    pub old_until_unix_s: u64,
    /// Neighbours that have the newest secret.
    pub neighbours_have: u32,
    /// Number of neighbours.
    pub neighbours: u32,
}

/// A mandate of the list, and this node's part of the registrar's chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MandateStatus {
    /// Name that the authority gave it.
    pub name: String,
    /// Id as hex.
    pub id: String,
    /// The registrar's public key.
    pub key: String,
    /// Supplements in force here.
    pub steps: u64,
    /// Hash that the next supplement must name as its predecessor, as hex.
    pub head: String,
    /// Members by these supplements, including expired ones.
    pub members: u32,
    /// Keys that were ever admitted.
    pub admitted: u32,
    /// Most keys that may ever be admitted.
    pub most: u32,
    /// End of the mandate, in seconds since 1970.
    pub until_unix_s: u64,
    /// Endpoints at which the registrar is called, as it signed them, best first.
    #[serde(default)]
    pub endpoints: Vec<String>,
    /// Number for which the registrar signed two different supplements, if it did. Supplements from
    /// this number on have no effect.
    pub frozen_at: Option<u64>,
}
