//! What a node knows of the members of its network.

use serde::{Deserialize, Serialize};

/// Most rows of one [`Hosts`].
pub const HOSTS_MAX: usize = 4_096;

/// A part of the list of members.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hosts {
    /// In the order of the list, from the one that was asked for on; at most [`HOSTS_MAX`].
    pub hosts: Vec<Host>,
    /// How many there are in all.
    pub total: u32,
}

/// A member of the network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Its name in the list.
    pub name: String,
    /// Overlay address, `router.host`.
    pub address: String,
    /// `router` or `host`.
    pub role: String,
    /// Addresses at which this node reaches its interface, IPv6 first; none where the list says
    /// that it has no interface, or where this node has none.
    pub interface: Vec<String>,
    /// Networks behind it, as ADDRESS/BITS.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<String>,
    /// Whether it runs and is reached, as far as this node can tell without asking it.
    pub online: Option<bool>,
    /// Milliseconds since something of it was heard, if anything was since this node's start.
    pub last_heard_ms: Option<u64>,
    /// How what this node says to it travels: `link` (it is a neighbour), `direct` (past the
    /// routers), `relayed` (by routers), or `circuits`; none for this node.
    #[serde(default)]
    pub path: Option<String>,
    /// Why: the level of a direct link and its reason, or the reason why there is none.
    #[serde(default)]
    pub why: Option<String>,
    /// It is the node that answers.
    pub this_node: bool,
    /// Its public key.
    #[serde(default)]
    pub key: String,
    /// The mandate by which a registrar made it a member; none where the authority did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mandate: Option<String>,
    /// When its membership ends, in seconds since 1970, where an authority says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_unix_s: Option<u64>,
}
