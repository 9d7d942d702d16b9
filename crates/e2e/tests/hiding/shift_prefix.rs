//! A reload names another prefix for a node's addresses, behind firewalls that accept only answers.
//! Nothing is lost, with or without a fixed endpoint.

use std::time::Duration;

use serde_json::Value;
use shoal_e2e::LoopbackNet;
use shoal_e2e::shifting::{
    NAMES, PLACES, PORT, PREFIXES, begin_ping, both_shift, close, end_ping, interface, machines,
    run, shift, start,
};
use shoal_lab::namespace::Namespace;

/// The new prefixes of the nodes.
const OTHERS: [&str; 2] = ["fd42:b:0:1::/64", "fd42:b:0:2::/64"];

/// Method by which the two nodes find each other.
#[derive(Clone, Copy, PartialEq)]
enum MeetingMethod {
    /// The second calls the first at a fixed endpoint.
    Endpoint,
    /// Both meet at addresses that depend on the time, and have no other endpoint.
    Rendezvous,
}

fn nodes(met: MeetingMethod, interval: &str) -> LoopbackNet {
    let net = LoopbackNet::new(&NAMES);
    for (n, name) in NAMES.iter().enumerate() {
        let text = std::fs::read_to_string(net.config(name)).unwrap();
        let mut link = format!("[[link]]\nshift = \"{interval}\"");
        if met == MeetingMethod::Rendezvous {
            link += &format!("\nrendezvous = \"[{}]:{PORT}\"", PREFIXES[1 - n]);
        }
        let lines = text.lines().filter_map(|line| match line.split(' ').next() {
            Some("listen") => Some(format!("listen = [\"[::]:{PORT}\"]")),
            Some("endpoint") if met == MeetingMethod::Rendezvous => None,
            Some("endpoint") => Some(format!("endpoint = \"[{}]:{PORT}\"", PLACES[0])),
            _ => Some(line.replace("[[link]]", &link)),
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        let shift = format!("\n[shift]\nprefix = \"{}\"\nmode = \"routed\"\n", PREFIXES[n]);
        std::fs::write(net.config(name), text + &shift + "[interface]\n").unwrap();
    }
    net
}

/// Lets the firewall accept new flows to the fixed endpoint.
fn open_endpoint(machine: &Namespace) {
    let rule = format!("add rule ip6 wall in ip6 daddr {} udp dport {PORT} accept", PLACES[0]);
    run(machine, &["nft", &rule]);
}

/// Writes another prefix into a node's file, and reloads the node.
fn reload(net: &LoopbackNet, name: &str, from: &str, to: &str) {
    let file = net.config(name);
    let text = std::fs::read_to_string(&file).unwrap();
    // Only the node's own prefix changes, not that of its rendezvous.
    let [from, to] = [from, to].map(|prefix| format!("prefix = \"{prefix}\""));
    std::fs::write(&file, text.replace(&from, &to)).unwrap();
    let output = net.command(name, &["reload"]).output().unwrap();
    let (said, error) = shoal_e2e::text(&output);
    assert!(output.status.success() && said.contains("shift.prefix"), "{said}{error}");
}

fn failed(net: &LoopbackNet) -> u64 {
    let of = |name: &&str| shift(net, name).and_then(|shift: Value| shift["failed"].as_u64());
    NAMES.iter().filter_map(of).sum()
}

/// One node after the other moves under pings both ways. Soon afterwards nothing goes to the former
/// prefix.
fn moves(met: MeetingMethod, interval: &str) {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let machines = machines();
    machines.iter().for_each(close);
    if met == MeetingMethod::Endpoint {
        open_endpoint(&machines[0]);
    }
    let mut net = nodes(met, interval);
    for (machine, name) in machines.iter().zip(NAMES) {
        start(&mut net, machine, name, &[]);
    }
    net.until(both_shift);
    let before = failed(&net);
    for (n, name) in NAMES.iter().enumerate() {
        let (from, to, router) = (PREFIXES[n], OTHERS[n], &machines[1 - n]);
        run(router, &["ip", "-6", "route", "add", to, "via", PLACES[n]]);
        let pings =
            [0, 1].map(|by: usize| begin_ping(&machines[by], &interface(&net, NAMES[1 - by]), 600));
        std::thread::sleep(Duration::from_secs(1));
        reload(&net, name, from, to);
        std::thread::sleep(Duration::from_secs(2));
        // Drops all traffic between the machines under the former prefixes.
        let rules = format!(
            "add table ip6 gone; \
             add chain ip6 gone in {{ type filter hook prerouting priority -300; }}; \
             add rule ip6 gone in ip6 saddr {from} drop; add rule ip6 gone in ip6 daddr {from} drop"
        );
        machines.iter().for_each(|machine| drop(run(machine, &["nft", &rules])));
        for ping in pings {
            assert_eq!(end_ping(ping), 600, "{name} moves");
        }
        machines.iter().for_each(|machine| drop(run(machine, &["nft", "delete table ip6 gone"])));
    }
    assert!(both_shift(&net));
    assert_eq!(failed(&net), before);
}

#[test]
fn with_an_endpoint_nothing_is_lost() {
    moves(MeetingMethod::Endpoint, "1s");
}

#[test]
fn without_an_endpoint_nothing_is_lost() {
    moves(MeetingMethod::Rendezvous, "1s");
}

#[test]
fn where_addresses_stay_for_an_hour_nothing_is_lost() {
    moves(MeetingMethod::Rendezvous, "1h");
}
