//! State of a node's virtual interface.

use serde::{Deserialize, Serialize};

/// The virtual interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InterfaceStatus {
    pub name: String,
    /// "up"; "incomplete", if a warning says what is missing; "gone"; "left alone", if another
    /// program keeps changing it.
    #[serde(default)]
    pub state: String,
    /// IPv6 address of this node on the interface.
    pub address: String,
    /// IPv4 address of this node on the interface, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<String>,
    /// True if the kernel hands over super-frames of TCP, not cut into packets.
    pub tcp_offload: bool,
    /// True if the kernel hands over super-frames of UDP, not cut into packets (Linux 6.2).
    pub udp_offload: bool,
    /// Number of queues, one for each worker that serves programs.
    #[serde(default = "one")]
    pub queues: u8,
    /// Networks behind this node, for which it forwards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub serves: Vec<String>,
    /// Networks behind other hosts that programs reach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reaches: Vec<HostNetwork>,
}

fn one() -> u8 {
    1
}

/// A network behind a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostNetwork {
    /// The network, as ADDRESS/BITS.
    pub prefix: String,
    pub host: String,
}
