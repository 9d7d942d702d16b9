//! Likely causes of drops that an operator can mend, in a few words. docs/troubleshooting.md has a
//! row for each.

use shoal_wire::DropReason;

/// What `reason` most likely means for the operator; none for ordinary drops.
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
        DropReason::StaleList => "the authority's list is too old: `shoal authority renew`",
        DropReason::PolicyDenied => "see the groups with `shoal authority list`",
        DropReason::CircuitRequired => {
            "a host speaks without circuits, which this one requires: require them there too"
        }
        DropReason::CoverRequired => {
            "this host must be covered (preset \"hidden\"): have the list give it a tier"
        }
        DropReason::NoInterface => "this host has no [interface]",
        _ => return None,
    })
}

/// As [`hint`], by the name of the counter.
pub fn hint_of(label: &str) -> Option<&'static str> {
    DropReason::ALL.iter().find(|reason| reason.label() == label).and_then(|reason| hint(*reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_one_row_in_troubleshooting() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/troubleshooting.md");
        let page = std::fs::read_to_string(file).unwrap();
        let table = page.split("## Every counter").nth(1).unwrap();
        let row = |line: &str| {
            let mut cells = line.strip_prefix("| `")?.split(" | ");
            let label = cells.next()?.trim_end_matches('`').to_string();
            let (cause, todo) = (cells.next()?.trim(), cells.next()?.trim_end_matches('|').trim());
            assert!(!cause.is_empty() && !todo.is_empty(), "{line}");
            Some(label)
        };
        let rows: Vec<String> = table.lines().filter_map(row).collect();
        let labels: Vec<&str> = DropReason::ALL.iter().map(|reason| reason.label()).collect();
        for label in &labels {
            let found = rows.iter().filter(|row| row == label).count();
            assert_eq!(found, 1, "docs/troubleshooting.md: `{label}`");
        }
        for row in &rows {
            assert!(labels.contains(&row.as_str()), "there is no counter `{row}`");
        }
    }
}
