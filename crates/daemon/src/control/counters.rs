//! The reference of counters: each drop reason with its cause and what to do.
//!
//! `shoal reference counters` prints it as docs/reference/counters.md.

use std::fmt::Write;

/// One row of the reference.
struct CounterRow {
    name: &'static str,
    cause: &'static str,
    action: &'static str,
}

/// The page of counters as Markdown.
pub fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for CounterRow { name, cause, action } in COUNTERS {
        // Writing to a String can't fail.
        let _ = writeln!(page, "| `{name}` | {cause} | {action} |");
    }
    page
}

const INTRODUCTION: &str = "\
# Every counter

A node counts each drop under a reason. `shoal status` shows the reasons with a likely cause, and
`shoal metrics` has them as labels of `shoal_dropped_total` ([metrics](metrics.md)). Restarts,
lost frames and changes of routes cause a few drops of most kinds. Look at counters that grow.

| counter | cause | what to do |
|---|---|---|
";

const COUNTERS: &[CounterRow] = &[
    CounterRow {
        name: "bad_size",
        cause: "a datagram whose length is none of the three sizes",
        action: "datagrams of other programs come to this port: nothing",
    },
    CounterRow {
        name: "unknown_index",
        cause: "a frame of a session that this node doesn't have: from before its restart, or for \
            another node",
        action: "after a restart: nothing. Growing: the other end sends to the wrong port",
    },
    CounterRow {
        name: "bad_tag",
        cause: "a frame that was changed on its way, or forged",
        action: "growing: a faulty device on a path, or an attacker",
    },
    CounterRow {
        name: "replayed",
        cause: "a frame or cell whose number was accepted before: doubled on the path, a copy, or \
            repeated by a relay",
        action: "a few: nothing, since nothing is lost. Growing: try another path, device or relay",
    },
    CounterRow {
        name: "too_old",
        cause: "a frame that thousands of others overtook, or that lost parts",
        action: "paths of very different lengths: use one",
    },
    CounterRow {
        name: "key_expired",
        cause: "keys at the end of their life, without a new handshake",
        action: "see [a link does not come up](../guide/troubleshoot.md#a-link-does-not-come-up)",
    },
    CounterRow {
        name: "bad_handshake",
        cause: "another network's secret, or another key for this node at the caller; strangers' \
            probes, forgeries, frames from before a restart",
        action: "growing: see [a link does not come \
            up](../guide/troubleshoot.md#a-link-does-not-come-up)",
    },
    CounterRow {
        name: "bad_version",
        cause: "another version of Shoal, or no common cipher or level",
        action: "run one version everywhere; compare `[session] suites` and `[direct] level`",
    },
    CounterRow {
        name: "unknown_peer",
        cause: "a handshake by a key of no `[[link]]`, host or member; last frames of \
            a removed link",
        action: "add the key to `hosts.toml` (or `shoal authority sign --dir DIR NAME --key KEY`) \
            and to `[[link]]`, then `shoal reload`",
    },
    CounterRow {
        name: "replayed_handshake",
        cause: "a handshake that came before",
        action: "copies on the path, or an attacker: nothing",
    },
    CounterRow {
        name: "wrong_clock",
        cause: "a handshake dated more than a day from this node's clock; under load, ten minutes",
        action: "set the clocks of both",
    },
    CounterRow {
        name: "crossed_handshake",
        cause: "both ends called at once, and one call counts",
        action: "nothing",
    },
    CounterRow {
        name: "cookie_required",
        cause: "many handshakes at once, or one from two places: the caller must prove its address",
        action: "nothing; growing for minutes: somebody floods this node, or copies a neighbour's \
            frames",
    },
    CounterRow {
        name: "handshake_budget",
        cause: "more handshakes than the node works on",
        action: "as for `cookie_required`; or raise `[session] handshake_cpu_percent`",
    },
    CounterRow {
        name: "unexpected_reply",
        cause: "an answer to a handshake that has ended, or on a circuit to no question",
        action: "a path slower than `[expert] handshake_retry_ms`: nothing. Many on \
            circuits: a relay makes answers up",
    },
    CounterRow {
        name: "malformed",
        cause: "sealed well, but not readable",
        action: "the two ends run different versions",
    },
    CounterRow {
        name: "not_allowed",
        cause: "a message that its sender may not send: routing from a host, lists \
            without `pass_on`, an unlisted next node",
        action: "compare both ends' addresses and `[authority]` sections; give all nodes one list",
    },
    CounterRow {
        name: "hop_limit",
        cause: "a cell that passed 32 routers",
        action: "routes that turn in a circle: compare `pin` and `import` of the routers",
    },
    CounterRow {
        name: "no_route",
        cause: "no route to the destination's router, or the host is away",
        action: "`shoal routes`; `shoal peers` at the router of that host",
    },
    CounterRow {
        name: "no_session",
        cause: "the next hop, or the host, has no session yet",
        action: "the first packets after a start: nothing. Growing: see \
            [links](../guide/troubleshoot.md#a-link-does-not-come-up)",
    },
    CounterRow {
        name: "no_endpoint",
        cause: "the neighbour's endpoint is unknown",
        action: "give its `[[link]]` an `endpoint`, or let it call",
    },
    CounterRow {
        name: "endpoint_inside",
        cause: "an endpoint or a datagram's source is one of the network's own addresses",
        action: "if this node's file names it: name the machine's outer address. Else a \
            member names false endpoints: nothing",
    },
    CounterRow {
        name: "endpoint_refused",
        cause: "an endpoint that others named: loopback, link-local, multicast, a provider's \
            metadata, behind this node, this machine",
        action: "nothing is sent there. Growing: the member that names it is faulty or hostile",
    },
    CounterRow {
        name: "own_interface",
        cause: "a datagram to this node's port that came through its own interface",
        action: "have the program or member call the machine's outer address (`[[link]] endpoint`)",
    },
    CounterRow {
        name: "bad_source",
        cause: "a host sent cells with another address than its own",
        action: "compare the address in its `node.toml` with the list",
    },
    CounterRow {
        name: "queue_full",
        cause: "more for a link than it carries",
        action: "nothing: senders slow down. If programs suffer: a faster line",
    },
    CounterRow {
        name: "mix_full",
        cause: "more than 20,000 mixed cells for a link, or 5,000 of one node; or \
            `[expert] hold_ms`",
        action: "if one node sends too much: nothing. Else a shorter time, or none",
    },
    CounterRow {
        name: "send_failed",
        cause: "the kernel refused to send",
        action: "a local firewall, a missing route to the endpoint, or an interface that is down",
    },
    CounterRow {
        name: "not_for_us",
        cause: "a cell for another host came to this one",
        action: "compare addresses: two hosts may have the same one",
    },
    CounterRow {
        name: "unknown_flow",
        cause: "a part of a finished transfer, or of a list that nobody asked for",
        action: "nothing",
    },
    CounterRow {
        name: "table_full",
        cause: "more neighbours, hosts or routes than there is room for",
        action: "raise `[routing] import_limit`, or split the network",
    },
    CounterRow {
        name: "reflected",
        cause: "this node's own frames came back",
        action: "two nodes with one key or address, or a network that sends packets back",
    },
    CounterRow {
        name: "bad_route",
        cause: "a route with a bad proof: expired for more than a day by this clock, \
            or another key",
        action: "set the clocks of both; the same list everywhere",
    },
    CounterRow {
        name: "stale_address",
        cause: "datagrams to addresses under `[shift] prefix` that are not in use: late ones, or \
            an observer's tries",
        action: "nothing",
    },
    CounterRow {
        name: "stale_or_overflow",
        cause: "as `stale_address` or as `receive_overflow`: the kernel's filter can't tell which",
        action: "give the node [CAP_BPF](../guide/shifting.md#requirements) at its \
            start: it counts them apart",
    },
    CounterRow {
        name: "bad_shift",
        cause: "a step of a shift that came late, or that the neighbour may not take",
        action: "growing: `shift` set at one end only, or clocks that run at other speeds",
    },
    CounterRow {
        name: "shift_budget",
        cause: "more steps, challenges, announcements or probes of shifts than a link \
            may have in 10 s",
        action: "after `--shift-probe` or changes of `[shift]`: nothing. Growing: the \
            neighbour names a place that it isn't at, or is hostile",
    },
    CounterRow {
        name: "stale_routing",
        cause: "routing messages that overtook each other, or from before a neighbour's restart",
        action: "nothing",
    },
    CounterRow {
        name: "route_budget",
        cause: "a neighbour asks more of routing than it may",
        action: "growing: that router is faulty or hostile; end the link with it",
    },
    CounterRow {
        name: "direct_budget",
        cause: "a host speaks of a direct link more often than it may",
        action: "growing: that host is faulty or hostile",
    },
    CounterRow {
        name: "receive_overflow",
        cause: "the node reads slower than datagrams come",
        action: "`[data] workers`; `sysctl net.core.rmem_max` of 8 MiB or more",
    },
    CounterRow {
        name: "other_worker",
        cause: "a worker could not keep up with frames from another",
        action: "as for `receive_overflow`, or fewer `[data] workers`",
    },
    CounterRow {
        name: "ip_malformed",
        cause: "an IP packet whose headers contradict each other",
        action: "a faulty program",
    },
    CounterRow {
        name: "ip_spoofed_source",
        cause: "an IP packet with an address that is not its sender's",
        action: "a program that binds another address; a network behind a host without a grant \
            (`prefixes`)",
    },
    CounterRow {
        name: "ip_no_host",
        cause: "an IP packet for an address that no host has",
        action: "a wrong route to the interface, or a host that is not in the list",
    },
    CounterRow {
        name: "ip_to_self",
        cause: "an IP packet to its own source address",
        action: "a program that calls itself",
    },
    CounterRow {
        name: "ip_multicast",
        cause: "multicast and broadcast, which are not carried",
        action: "nothing",
    },
    CounterRow {
        name: "ip_fragment",
        cause: "fragments that overlap, or a first one that is too short",
        action: "look for a broken or hostile program at the sender",
    },
    CounterRow {
        name: "ip_fragment_alone",
        cause: "fragments whose first one was lost",
        action: "find the loss; let the program send packets of the interface's MTU",
    },
    CounterRow {
        name: "ip_extension_headers",
        cause: "more IPv6 extension headers than are followed",
        action: "a strange program",
    },
    CounterRow {
        name: "ip_stray_error",
        cause: "an ICMP error about a packet that this host did not send to its sender",
        action: "late errors: nothing. Growing: a member that forges them",
    },
    CounterRow {
        name: "ip_too_big",
        cause: "an IP packet longer than a cell holds",
        action: "leave `[interface] mtu` at its default everywhere",
    },
    CounterRow {
        name: "ip_congested",
        cause: "dropped so that a sender slows down",
        action: "nothing",
    },
    CounterRow {
        name: "bad_list",
        cause: "a neighbour passed on a list that the authority did not sign, or that is not valid \
            here",
        action: "compare `[authority] key`; look at the clock; for a critical field in \
            `shoal status` update shoal",
    },
    CounterRow {
        name: "bad_mandate",
        cause: "a neighbour passed on supplements that the registrar did not sign, or that its \
            mandate forbids",
        action: "look at the clock, and whether all nodes have the newest list; growing: a faulty \
            neighbour",
    },
    CounterRow {
        name: "bad_secret",
        cause: "a neighbour gave a network secret that the list does not name",
        action: "growing: that neighbour errs or lies; `shoal status` says whether this \
            node has the right one",
    },
    CounterRow {
        name: "list_budget",
        cause: "more messages about the list at once than a node takes in",
        action: "nothing; growing: a faulty neighbour",
    },
    CounterRow {
        name: "stale_list",
        cause: "the authority's list is too old here: links carry nothing else",
        action: "`shoal authority renew --dir DIR`, copy the list to any node",
    },
    CounterRow {
        name: "policy_denied",
        cause: "the network's policy does not let the sender begin that",
        action: "`shoal authority list`: the groups of both, and the rules",
    },
    CounterRow {
        name: "ip_flows",
        cause: "too many connections at once",
        action: "a program that opens thousands; wait, or end it",
    },
    CounterRow {
        name: "no_interface",
        cause: "an IP packet came, and this host has no interface",
        action: "add `[interface]` to `node.toml`",
    },
    CounterRow {
        name: "interface_refused",
        cause: "the kernel refused a packet that was written to the interface",
        action: "is the interface up (`ip link show shoal0`)?",
    },
    CounterRow {
        name: "unknown_circuit",
        cause: "a cell of a circuit that is over, or from a node that is not its neighbour there",
        action: "nothing; if it lasts, a node on the circuit was restarted",
    },
    CounterRow {
        name: "bad_leg",
        cause: "a cell between two nodes of a circuit that was changed or made up",
        action: "nothing gets through; look for a faulty wire or network card between the two",
    },
    CounterRow {
        name: "bad_layer",
        cause: "a cell that a node on its circuit changed",
        action: "nothing gets through; build another circuit, over other relays",
    },
    CounterRow {
        name: "circuit_limit",
        cause: "more circuits than this node keeps: in all, of one neighbour, half \
            open; or an unused one replaced",
        action: "wait until circuits end; spread hosts over more relays",
    },
    CounterRow {
        name: "circuit_expired",
        cause: "a circuit past its time, or past the cells that it may carry",
        action: "nothing: its origin builds another",
    },
    CounterRow {
        name: "circuit_congested",
        cause: "cells of circuits that waited at the router before: a few are lost, so \
            programs slow down",
        action: "nothing; if circuits are slower than wanted, a faster link there",
    },
    CounterRow {
        name: "circuit_required",
        cause: "a host's data outside circuits, though policy or an earlier session requires them",
        action: "give both hosts one policy; [if it was \
            lowered](../guide/circuits.md#back-to-the-clear), `shoal circuits forget HOST` at both",
    },
    CounterRow {
        name: "cover_required",
        cause: "a packet of this host, whose preset is \"hidden\", while its link had no cover",
        action: "give the host its tier (`shoal authority sign --dir DIR NAME --cover TIER`), or \
            set `[anonymity] without_cover = \"send\"`",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_wire::DropReason;

    #[test]
    fn every_drop_reason_has_one_row_in_order() {
        let names: Vec<&str> = COUNTERS.iter().map(|row| row.name).collect();
        let labels: Vec<&str> = DropReason::ALL.iter().map(|reason| reason.label()).collect();
        assert_eq!(names, labels);
    }
}
