//! Likely causes of drops that an operator can mend, in a few words. docs/reference/counters.md has
//! a row for each.

use shoal_wire::DropReason;

/// Likely cause of drops with this reason; none for ordinary drops.
pub fn hint(reason: DropReason) -> Option<&'static str> {
    Some(match reason {
        DropReason::BadHandshake => {
            "another network's secret, or another key for this node at the caller?"
        }
        DropReason::BadVersion => "another version of Shoal, or no cipher in common?",
        DropReason::UnknownPeer => "a key that is not in the list here, or has no [[link]]?",
        DropReason::BadRoute => "a clock that is wrong, or another list of hosts?",
        DropReason::WrongClock => "the clock of this node or of the caller is wrong",
        DropReason::NoRoute => "is the destination's router up? See `shoal routes`",
        DropReason::NoEndpoint => "a [[link]] without an endpoint, which has not called yet",
        DropReason::BadSource => "a host with another address than the list has?",
        DropReason::NotForUs => "two hosts with one address?",
        DropReason::Reflected => "two nodes with one key or address?",
        DropReason::SendFailed => "a local firewall, or no route to the endpoint?",
        DropReason::ReceiveOverflow => "see `[data] workers`, and net.core.rmem_max",
        DropReason::IpSpoofedSource => "a network behind a host that was not granted to it?",
        DropReason::IpTooBig => "another [interface] mtu than the default?",
        DropReason::BadList => "another authority's key, or a wrong clock?",
        DropReason::BadMandate => "a registrar or neighbour that errs, or a wrong clock?",
        DropReason::StaleList => {
            "the authority's list is too old: `shoal authority renew --dir DIR`"
        }
        DropReason::PolicyDenied => "see the groups with `shoal authority list`",
        DropReason::CircuitRequired => {
            "a host speaks without circuits: require them there too, or see `shoal circuits forget`"
        }
        DropReason::CoverRequired => {
            "this host must be covered (preset \"hidden\"): have the list give it a tier"
        }
        DropReason::NoInterface => "this host has no [interface]",
        _ => return None,
    })
}

/// Likely cause by the name of the counter; see [`hint`].
pub fn hint_of(label: &str) -> Option<&'static str> {
    DropReason::ALL.iter().find(|reason| reason.label() == label).and_then(|reason| hint(*reason))
}
