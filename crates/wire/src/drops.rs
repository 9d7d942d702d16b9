//! Reasons why a frame, cell or message was dropped. Each reason is a counter with a label.

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $name:ident = $label:literal),+ $(,)?) => {
        /// Reason why data from the network was dropped. Bad input is normal on the packet path: it
        /// is counted under the reason's label and forgotten.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[$doc])* $name),+
        }

        impl DropReason {
            /// Every reason, in the order of its counters.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$name),+];
            /// Number of reasons.
            pub const COUNT: usize = Self::ALL.len();

            /// Name of the counter: lower case, underscores.
            pub const fn label(self) -> &'static str {
                match self {
                    $(DropReason::$name => $label),+
                }
            }
        }
    };
}

drop_reasons! {
    /// The datagram's length is none of the three size classes.
    BadSize = "bad_size",
    /// No live session has this index, and the frame is not a handshake for this node.
    UnknownIndex = "unknown_index",
    /// The tag did not verify: the frame is corrupted, forged, or sealed for another node.
    BadTag = "bad_tag",
    /// A frame with this counter was accepted before.
    Replayed = "replayed",
    /// The counter is older than the replay window reaches, or a goodbye arrived after later
    /// frames.
    TooOld = "too_old",
    /// The session's key is past its age limit or use limit.
    KeyExpired = "key_expired",
    /// The seal of a handshake did not verify: the sender is a stranger or in another network.
    BadHandshake = "bad_handshake",
    /// A handshake asks for a version, suite or level that this node does not support.
    BadVersion = "bad_version",
    /// A handshake from a key that is not in this node's table, or a frame of a neighbour that was
    /// removed while the frame waited.
    UnknownPeer = "unknown_peer",
    /// A handshake request, part or response arrived twice, or a request is older than the peer's
    /// newest.
    ReplayedHandshake = "replayed_handshake",
    /// A handshake request is dated more than a day from this node's clock; under load, ten
    /// minutes.
    WrongClock = "wrong_clock",
    /// Both ends began a handshake at the same time, and the other end's handshake is used.
    CrossedHandshake = "crossed_handshake",
    /// Too many handshakes wait, so this node asked for a cookie instead of answering.
    CookieRequired = "cookie_required",
    /// More handshakes, parts or responses arrived at once than this node processes.
    HandshakeBudget = "handshake_budget",
    /// A handshake reply, path-challenge answer or circuit answer that no request of this node
    /// waits for.
    UnexpectedReply = "unexpected_reply",
    /// The seal verified, but the content can't be decoded.
    Malformed = "malformed",
    /// The sender may not send this message to this node.
    NotAllowed = "not_allowed",
    /// The cell's hop limit reached zero.
    HopLimit = "hop_limit",
    /// This node has no route to the destination.
    NoRoute = "no_route",
    /// This node has no session with the next hop yet.
    NoSession = "no_session",
    /// This node knows no endpoint of the next hop.
    NoEndpoint = "no_endpoint",
    /// An endpoint, or the source of a datagram, is one of the network's own addresses. Frames to
    /// it would enter this node's own interface.
    EndpointInside = "endpoint_inside",
    /// An endpoint that others named can't belong to another machine.
    EndpointRefused = "endpoint_refused",
    /// A datagram to this node's port came in through its own interface.
    OwnInterface = "own_interface",
    /// The cell's source address may not come in over this link.
    BadSource = "bad_source",
    /// The next hop's egress queue is full.
    QueueFull = "queue_full",
    /// The mix has no room for another cell, or one node has as many cells in it as it may.
    MixFull = "mix_full",
    /// The kernel refused to send, for a reason other than lack of room.
    SendFailed = "send_failed",
    /// The destination is a host other than this one.
    NotForUs = "not_for_us",
    /// The flow or transfer doesn't exist, or has ended.
    UnknownFlow = "unknown_flow",
    /// A table is full, and the new entry was refused.
    TableFull = "table_full",
    /// A frame that this node sent came back.
    Reflected = "reflected",
    /// A route's origin signature, expiry or sequence number is not valid.
    BadRoute = "bad_route",
    /// A datagram arrived at an address of this node that is not in use: the shift that used it is
    /// over, or never happened.
    StaleAddress = "stale_address",
    /// Like `stale_address` or `receive_overflow`. The kernel's filter dropped the datagram, and
    /// can't count which.
    StaleOrOverflow = "stale_or_overflow",
    /// A step of a change of address that the schedule does not allow at this time or from this
    /// end.
    BadShift = "bad_shift",
    /// Too many messages about changes of address on one link: steps, challenges and announcements
    /// to send, or announcements and probes from the neighbour.
    ShiftBudget = "shift_budget",
    /// A routing message belongs to an earlier instance of its link, or is older than one already
    /// processed.
    StaleRouting = "stale_routing",
    /// A neighbour sends more routing requests than it may.
    RouteBudget = "route_budget",
    /// A host sends messages about a direct link more often than it may.
    DirectBudget = "direct_budget",
    /// The socket's receive buffer overflowed before this node read it, or the cells of one batch
    /// share more packets than this node handles at once.
    ReceiveOverflow = "receive_overflow",
    /// The frame was for another worker, and the ring to that worker was full.
    OtherWorker = "other_worker",
    /// An IP packet's headers contradict each other or the packet's length.
    IpMalformed = "ip_malformed",
    /// An IP packet's source address does not belong to its sender.
    IpSpoofedSource = "ip_spoofed_source",
    /// An IP packet's destination address belongs to no known host, or not to this host.
    IpNoHost = "ip_no_host",
    /// An IP packet's source and destination address are equal.
    IpToSelf = "ip_to_self",
    /// An IP packet goes to a multicast or broadcast group, or has a link-local address.
    IpMulticast = "ip_multicast",
    /// An IP fragment overlaps another, or a first fragment is too short for its transport header,
    /// or the datagram has too many fragments.
    IpFragment = "ip_fragment",
    /// An IP fragment's first fragment did not come in time, or there was no room to wait for it.
    IpFragmentAlone = "ip_fragment_alone",
    /// An IPv6 packet has more extension headers than this node follows.
    IpExtensionHeaders = "ip_extension_headers",
    /// An ICMP error quotes a packet that this host can't have sent to the error's sender.
    IpStrayError = "ip_stray_error",
    /// An IP packet is longer than a cell holds.
    IpTooBig = "ip_too_big",
    /// The queue of an IP flow does not get shorter, so one packet is dropped to slow the flow
    /// down.
    IpCongested = "ip_congested",
    /// A neighbour sent a list that the network's authority did not sign, or that is not valid
    /// here.
    BadList = "bad_list",
    /// The mandate does not allow a registrar's supplement, or the registrar did not sign it.
    BadMandate = "bad_mandate",
    /// A neighbour sent a network secret that is not the one the list names.
    BadSecret = "bad_secret",
    /// More messages about the authority's list at once than a node processes, or a neighbour asks
    /// for more of it than it may.
    ListBudget = "list_budget",
    /// This node's copy of the authority's list is too old. No cell passes until a newer list
    /// comes.
    StaleList = "stale_list",
    /// The network's policy does not let this sender begin such traffic.
    PolicyDenied = "policy_denied",
    /// There are too many IP flows, in all or with one host.
    IpFlows = "ip_flows",
    /// An IP packet arrived, but this host has no interface.
    NoInterface = "no_interface",
    /// The kernel refused an IP packet that this node wrote to the interface.
    InterfaceRefused = "interface_refused",
    /// A leg cell names no circuit of its sender, or a circuit that can't take it.
    UnknownCircuit = "unknown_circuit",
    /// The check of a leg cell is wrong, or its counter jumps too far.
    BadLeg = "bad_leg",
    /// A layer of a circuit's cell did not verify: it was changed on the way or sealed for another
    /// hop.
    BadLayer = "bad_layer",
    /// This node has as many circuits as it may, in all or for one neighbour on the circuit.
    CircuitLimit = "circuit_limit",
    /// The circuit is past its lifetime or has carried as many cells as it may.
    CircuitExpired = "circuit_expired",
    /// A circuit's cells waited on their way here, so one packet is dropped to slow programs down.
    /// Congestion marks can't do that, since they end at each relay.
    CircuitCongested = "circuit_congested",
    /// A host is reached over circuits only, but data came from it or was to go to it without one.
    /// Or data came over a circuit under keys that were made without one.
    CircuitRequired = "circuit_required",
    /// A cell was to leave over a link that must be covered, but is not.
    CoverRequired = "cover_required",
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn labels_are_unique_metric_names() {
        let labels: BTreeSet<_> = DropReason::ALL.iter().map(|r| r.label()).collect();
        assert_eq!(labels.len(), DropReason::COUNT);
        let allowed = |l: &&str| l.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        assert!(labels.iter().all(allowed));
    }
}
