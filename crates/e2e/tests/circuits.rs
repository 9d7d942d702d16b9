//! Hosts that speak over circuits alone, with the real program.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts real programs")]

use std::time::{Duration, Instant};

use shoal_e2e::town::{Town, configure};
use shoal_lab::{Conditions, Kind, Topology};

const REQUIRE: &str = "[circuits]\npolicy = \"require\"\nrelays = 2\n";

/// The paper's network, all of whose routers are relays. h1 (of r1) wants circuits with all other
/// hosts, over two relays; what others begin goes over three.
fn paper(kind: Kind, extra: &str) -> Town {
    Town::new((Topology::paper(), kind, Conditions::default()), extra, |folder| {
        let list = folder.join("hosts.toml");
        let mut hosts = std::fs::read_to_string(&list).unwrap();
        for name in ["r1", "r2", "r3"] {
            let line = format!("name = \"{name}\"\n");
            assert!(hosts.contains(&line));
            hosts = hosts.replace(&line, &format!("{line}relay = true\nfamily = \"{name}\"\n"));
        }
        std::fs::write(list, hosts).unwrap();
        configure(folder, "h1", REQUIRE);
    })
}

#[test]
fn a_host_that_requires_circuits_pings_and_sends_files_over_them() {
    let net = paper(Kind::Loopback, "");
    let (ok, said) = net.run("h1", &["ping", "h4", "-n", "3"]);
    assert!(ok, "{said}");
    net.send("h1", "h4", (7, 3_000_000)).end();
    // h4 has learnt that h1 is spoken with over circuits, and makes one of its own.
    let (ok, said) = net.run("h4", &["ping", "h1", "-n", "3"]);
    assert!(ok, "{said}");
    net.send("h4", "h1", (7, 1_000_000)).end();
    let (ok, said) = net.run("h1", &["circuits", "--json"]);
    assert!(ok && said.contains("h4"), "{said}");
    let (ok, said) = net.run("h2", &["ping", "h4", "-n", "1"]);
    assert!(ok, "others speak without: {said}");
}

#[test]
fn each_hop_of_a_circuit_is_asked_in_turn() {
    let net = paper(Kind::Loopback, "");
    let began = Instant::now();
    // Nothing was said to h4 yet: the circuit is built for this.
    let (ok, said) = net.run("h1", &["ping", "--hops", "h4", "-W", "20"]);
    assert!(ok, "{said}");
    assert!(began.elapsed() > Duration::from_millis(100), "echoes leave 50 ms apart");
    let lines: Vec<Vec<&str>> = said.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 4, "two relays and the host: {said}");
    assert!(lines[1][..2] == ["relay", "1"] && lines[2][..2] == ["relay", "2"], "{said}");
    assert_eq!(lines[3][..2], ["host", "h4"]);
    assert!(lines[1..].iter().all(|line| line.last() == Some(&"ms")), "{said}");
    let (_, circuits) = net.run("h1", &["circuits"]);
    let relays = format!("{} {}", lines[1][2], lines[2][2]);
    assert!(circuits.contains(&relays), "{relays}: {circuits}");

    let (ok, said) = net.run("h1", &["ping", "--hops", "h4", "-n", "2", "-i", "0", "--json"]);
    let rounds: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(ok && rounds.len() == 2, "{said}");
    let hops = rounds[1]["hops"]["hops"].as_array().unwrap();
    assert!(hops.len() == 3 && hops.iter().all(|hop| hop["rtt_us"].is_u64()), "{said}");

    for (name, host, why) in [
        ("h2", "h4", "outside circuits"),
        ("h1", "r2", "is a router"),
        ("r1", "h4", "ask at a host"),
        ("h1", "h9", "there is no host"),
    ] {
        let (ok, said) = net.run(name, &["ping", "--hops", host]);
        assert!(!ok && said.contains(why), "{name} asks for {host}: {said}");
    }
}

#[test]
fn programs_speak_over_circuits() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let net = paper(Kind::Namespaces, "[interface]\n");
    let took = net.stream("h1", "h4", 7_300, (9, 20_000_000));
    println!("20 MB over a circuit of two relays: {took:?}");
}

#[test]
fn without_relays_nothing_leaves_and_the_command_says_why() {
    let chain = (Topology::chain(), Kind::Loopback, Conditions::default());
    let net = Town::new(chain, "", |folder| configure(folder, "h1", REQUIRE));
    let (ok, said) = net.run("h1", &["ping", "h2", "-n", "1"]);
    assert!(!ok && said.contains("there is no circuit to h2: no router"), "{said}");
    let began = Instant::now();
    let (ok, said) = net.run("h1", &["ping", "--hops", "h2", "-W", "20"]);
    assert!(!ok && said.contains("there is no circuit to h2: no router"), "{said}");
    assert!(began.elapsed() < Duration::from_secs(10), "this does not mend by itself");
    let (_, said) = net.run("h1", &["circuits"]);
    assert!(said.contains("relay"), "{said}");
    let drops = net.status("h2").drops;
    assert!(!drops.iter().any(|(why, _)| why == "circuit_required"), "nothing came there");
}
