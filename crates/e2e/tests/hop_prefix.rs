//! A reload names another prefix for a node's addresses, behind firewalls that let in only what
//! answers: nothing is lost, with an endpoint that stays and without one.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts real processes")]

use std::time::Duration;

use serde_json::Value;
use shoal_e2e::Net;
use shoal_e2e::hopping::{
    NAMES, PLACES, PORT, PREFIXES, begin_ping, both_hop, close, end_ping, hop, interface, machines,
    run, start,
};
use shoal_lab::namespace::Namespace;

/// The prefixes that take the place of the nodes'.
const OTHERS: [&str; 2] = ["fd42:b:0:1::/64", "fd42:b:0:2::/64"];

/// How the two nodes find each other.
#[derive(Clone, Copy, PartialEq)]
enum Met {
    /// The second calls the first at an endpoint that stays.
    Endpoint,
    /// Where both meet, and nowhere else.
    Rendezvous,
}

fn nodes(met: Met, interval: &str) -> Net {
    let net = Net::new(&NAMES);
    for (n, name) in NAMES.iter().enumerate() {
        let text = std::fs::read_to_string(net.config(name)).unwrap();
        let mut link = format!("[[link]]\nhop = \"{interval}\"");
        if met == Met::Rendezvous {
            link += &format!("\nrendezvous = \"[{}]:{PORT}\"", PREFIXES[1 - n]);
        }
        let lines = text.lines().filter_map(|line| match line.split(' ').next() {
            Some("listen") => Some(format!("listen = [\"[::]:{PORT}\"]")),
            Some("endpoint") if met == Met::Rendezvous => None,
            Some("endpoint") => Some(format!("endpoint = \"[{}]:{PORT}\"", PLACES[0])),
            _ => Some(line.replace("[[link]]", &link)),
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        let hop = format!("\n[hop]\nprefix = \"{}\"\nmode = \"routed\"\n", PREFIXES[n]);
        std::fs::write(net.config(name), text + &hop + "[interface]\n").unwrap();
    }
    net
}

/// Lets new flows to the endpoint that stays in, besides what answers.
fn open_endpoint(machine: &Namespace) {
    let rule = format!("add rule ip6 wall in ip6 daddr {} udp dport {PORT} accept", PLACES[0]);
    run(machine, &["nft", &rule]);
}

/// Has a node's file name another prefix, and the node read it.
fn reload(net: &Net, name: &str, from: &str, to: &str) {
    let file = net.config(name);
    let text = std::fs::read_to_string(&file).unwrap();
    // Its own alone, not where it meets the neighbour.
    let [from, to] = [from, to].map(|prefix| format!("prefix = \"{prefix}\""));
    std::fs::write(&file, text.replace(&from, &to)).unwrap();
    let output = net.command(name, &["reload"]).output().unwrap();
    let (said, error) = shoal_e2e::text(&output);
    assert!(output.status.success() && said.contains("hop.prefix"), "{said}{error}");
}

fn failed(net: &Net) -> u64 {
    let of = |name: &&str| hop(net, name).and_then(|hop: Value| hop["failed"].as_u64());
    NAMES.iter().filter_map(of).sum()
}

/// One node after the other moves under pings both ways, and nothing goes to the former prefix
/// soon after.
fn moves(met: Met, interval: &str) {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let machines = machines();
    machines.iter().for_each(close);
    if met == Met::Endpoint {
        open_endpoint(&machines[0]);
    }
    let mut net = nodes(met, interval);
    for (machine, name) in machines.iter().zip(NAMES) {
        start(&mut net, machine, name, &[]);
    }
    net.until(both_hop);
    let before = failed(&net);
    for (n, name) in NAMES.iter().enumerate() {
        let (from, to, router) = (PREFIXES[n], OTHERS[n], &machines[1 - n]);
        run(router, &["ip", "-6", "route", "add", to, "via", PLACES[n]]);
        let pings =
            [0, 1].map(|by: usize| begin_ping(&machines[by], &interface(&net, NAMES[1 - by]), 600));
        std::thread::sleep(Duration::from_secs(1));
        reload(&net, name, from, to);
        std::thread::sleep(Duration::from_secs(2));
        // From now on nothing passes between the machines by the former one.
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
    assert!(both_hop(&net));
    assert_eq!(failed(&net), before);
}

#[test]
fn with_an_endpoint_nothing_is_lost() {
    moves(Met::Endpoint, "1s");
}

#[test]
fn without_an_endpoint_nothing_is_lost() {
    moves(Met::Rendezvous, "1s");
}

#[test]
fn where_addresses_stay_for_an_hour_nothing_is_lost() {
    moves(Met::Rendezvous, "1h");
}
