//! Members of the network, as a node sees them.

use serde::{Deserialize, Serialize};

/// Most rows of one [`MemberPage`].
pub const HOSTS_MAX: usize = 4_096;

/// A part of the list of members.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberPage {
    /// Members in the order of the list, after the skipped ones; at most [`HOSTS_MAX`].
    pub hosts: Vec<MemberStatus>,
    /// Number of all members.
    pub total: u32,
}

/// A member of the network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Name in the list.
    pub name: String,
    /// Overlay address, `router.host`.
    pub address: String,
    /// `router` or `host`.
    pub role: String,
    /// Addresses at which this node reaches the member's interface, IPv6 first. Empty if the list
    /// says that the member has no interface, or if this node has none.
    pub interface: Vec<String>,
    /// Networks behind the member, as ADDRESS/BITS.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<String>,
    /// True if the member runs and can be reached; none if this node can't tell without asking it.
    pub online: Option<bool>,
    /// Milliseconds since the member was last heard; none if never since this node's start.
    pub last_heard_ms: Option<u64>,
    /// Path of traffic to the member: `link` (a neighbour), `direct` (past the routers), `relayed`
    /// (by routers), or `circuits`; none for this node.
    #[serde(default)]
    pub path: Option<String>,
    /// Reason for the path: the level of a direct link and why, or why there is none.
    #[serde(default)]
    pub why: Option<String>,
    /// True for the node that answers.
    pub this_node: bool,
    /// Public key of the member.
    #[serde(default)]
    pub key: String,
    /// Mandate by which a registrar made it a member; none if the authority did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mandate: Option<String>,
    /// End of the membership in seconds since 1970, where an authority states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_unix_s: Option<u64>,
}
