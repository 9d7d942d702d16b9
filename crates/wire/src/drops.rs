//! Why a frame, cell or message was dropped. Each reason is a counter and its label.

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $name:ident = $label:literal),+ $(,)?) => {
        /// Why something from the network went no further. On the packet path bad input is normal:
        /// it is counted under its name and forgotten.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[$doc])* $name),+
        }

        impl DropReason {
            /// Every reason, in the order of its counters.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$name),+];
            /// How many reasons there are.
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
    /// Length is no size class.
    BadSize = "bad_size",
    /// No live session has this index, and it is no handshake for us either.
    UnknownIndex = "unknown_index",
    /// The tag did not verify: corrupted, forged, or sealed for somebody else.
    BadTag = "bad_tag",
    /// The counter was accepted before.
    Replayed = "replayed",
    /// The counter is older than the replay window reaches, or a goodbye came after later frames.
    TooOld = "too_old",
    /// The session's key is past its age or use limit.
    KeyExpired = "key_expired",
    /// A handshake's seal did not verify: a stranger, or another network.
    BadHandshake = "bad_handshake",
    /// A handshake of a version, suite or level we don't speak.
    BadVersion = "bad_version",
    /// A handshake from a key that is not in our table, or a frame of a neighbour that was removed
    /// while the frame waited.
    UnknownPeer = "unknown_peer",
    /// A handshake request, part or response that came before, or a request that is older than the
    /// peer's newest.
    ReplayedHandshake = "replayed_handshake",
    /// A handshake request dated more than a day from our clock; under load, ten minutes.
    WrongClock = "wrong_clock",
    /// Both ends began a handshake at once, and the other end's counts.
    CrossedHandshake = "crossed_handshake",
    /// Too many handshakes wait: a cookie was asked for instead.
    CookieRequired = "cookie_required",
    /// More handshakes, parts or responses than are taken in at once.
    HandshakeBudget = "handshake_budget",
    /// A handshake reply, an answer to a path challenge or one on a circuit that nobody waits for.
    UnexpectedReply = "unexpected_reply",
    /// Well sealed, but the content can't be decoded.
    Malformed = "malformed",
    /// A message that this party may not send us.
    NotAllowed = "not_allowed",
    /// The hop limit ran out.
    HopLimit = "hop_limit",
    /// No route to the destination.
    NoRoute = "no_route",
    /// The next hop has no session yet.
    NoSession = "no_session",
    /// The next hop has no known endpoint.
    NoEndpoint = "no_endpoint",
    /// An endpoint, or the source of a datagram, inside the network's own addresses: frames to it
    /// would enter this node's own interface.
    EndpointInside = "endpoint_inside",
    /// An endpoint that others named and that is no place of another machine.
    EndpointRefused = "endpoint_refused",
    /// A datagram to this node's port that came in by its own interface.
    OwnInterface = "own_interface",
    /// The cell's source address is not one that may come in over this link.
    BadSource = "bad_source",
    /// The egress queue of the next hop is full.
    QueueFull = "queue_full",
    /// More mixed cells than there is room for, or than one node may have at once.
    MixFull = "mix_full",
    /// The kernel refused to send (not for lack of room).
    SendFailed = "send_failed",
    /// For a host that we are not.
    NotForUs = "not_for_us",
    /// For a flow or transfer that doesn't exist (any more).
    UnknownFlow = "unknown_flow",
    /// A table is full; the newcomer was refused.
    TableFull = "table_full",
    /// A frame of ours came back.
    Reflected = "reflected",
    /// A route whose origin signature, expiry or sequence number doesn't hold.
    BadRoute = "bad_route",
    /// A datagram to an address of this node's that is not in use: of a hop that is over, or never.
    StaleAddress = "stale_address",
    /// As `stale_address` or `receive_overflow`: the kernel's filter dropped it and can't count.
    StaleOrOverflow = "stale_or_overflow",
    /// A step of a hop that the schedule does not have now, or that is not that end's to take.
    BadHop = "bad_hop",
    /// More about hops than a link sends or takes in at a time: steps, challenges and places that
    /// were to leave, or new places and probes of the neighbour.
    HopBudget = "hop_budget",
    /// A routing message of an earlier instance of its link, or older than one already taken in.
    StaleRouting = "stale_routing",
    /// A neighbour asks more of routing than it may.
    RouteBudget = "route_budget",
    /// A host speaks of a direct link more often than it may.
    DirectBudget = "direct_budget",
    /// The socket's receive buffer overflowed before we read it.
    ReceiveOverflow = "receive_overflow",
    /// The frame was for another worker, and the ring to it was full.
    OtherWorker = "other_worker",
    /// An IP packet whose headers contradict each other or its length.
    IpMalformed = "ip_malformed",
    /// An IP packet whose source address is not its sender's.
    IpSpoofedSource = "ip_spoofed_source",
    /// An IP packet for an address of no host that we know, or not for us.
    IpNoHost = "ip_no_host",
    /// An IP packet to the address it comes from.
    IpToSelf = "ip_to_self",
    /// An IP packet to a multicast or broadcast group, or to or from a link-local address.
    IpMulticast = "ip_multicast",
    /// A fragment of an IP packet that overlaps another one of its datagram, a first one too short
    /// for its transport header, or one of a datagram in too many pieces.
    IpFragment = "ip_fragment",
    /// A fragment of an IP packet whose first fragment did not come in time, or that found no room
    /// to wait for it.
    IpFragmentAlone = "ip_fragment_alone",
    /// An IPv6 packet with more extension headers than we follow.
    IpExtensionHeaders = "ip_extension_headers",
    /// An ICMP error that quotes no packet which this host can have sent to the error's sender.
    IpStrayError = "ip_stray_error",
    /// An IP packet longer than a cell holds.
    IpTooBig = "ip_too_big",
    /// An IP packet that was dropped so that its flow slows down: its queue does not get shorter.
    IpCongested = "ip_congested",
    /// A neighbour's list that the network's authority did not sign, or that is not valid here.
    BadList = "bad_list",
    /// A registrar's supplement that its mandate does not allow, or that it did not sign.
    BadMandate = "bad_mandate",
    /// What a neighbour gave as the network's secret is not the one that the list names.
    BadSecret = "bad_secret",
    /// More messages about the authority's list at once than a node takes in, or a neighbour that
    /// asks for more of it than it may.
    ListBudget = "list_budget",
    /// The authority's list here is too old: no cell passes until a newer list comes.
    StaleList = "stale_list",
    /// The network's policy does not let this sender begin that.
    PolicyDenied = "policy_denied",
    /// Too many IP flows at once, in all or with one host.
    IpFlows = "ip_flows",
    /// An IP packet arrived, and this host has no interface.
    NoInterface = "no_interface",
    /// The kernel refused an IP packet that we wrote to the interface.
    InterfaceRefused = "interface_refused",
    /// A leg cell names no circuit of the node that sent it, or one that can't take it.
    UnknownCircuit = "unknown_circuit",
    /// The check of a leg cell does not hold, or its counter jumps too far.
    BadLeg = "bad_leg",
    /// A layer of a circuit's cell did not verify: changed on the way, or sealed for another hop.
    BadLayer = "bad_layer",
    /// More circuits than a node keeps, in all or for one neighbour on the circuit.
    CircuitLimit = "circuit_limit",
    /// The circuit is past its lifetime or has carried all the cells that it may.
    CircuitExpired = "circuit_expired",
    /// Cells of circuits had to wait on their way here, and one is lost so that programs slow down:
    /// marks end at each relay.
    CircuitCongested = "circuit_congested",
    /// Something came or was to leave in the clear, and its host is spoken with over circuits
    /// alone; or it came over a circuit under keys that were made in the clear.
    CircuitRequired = "circuit_required",
    /// A cell was to leave over a link that must be covered, and is not.
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
