//! `shoal hidden` in a network that is large enough, and after routers died.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use shoal_e2e::town::{LabTown, configure};
use shoal_lab::{Conditions, LinkSpec, NetworkKind, NodeSpec, Topology};
use shoal_wire::Address;

/// Routers of the network. A host is behind the first one, another behind the last one.
const ROUTERS: u32 = 6;
const TIER: &str = "[[cover]]\nname = \"home\"\nmbit = 10\n";
const MIX: &str =
    "[[mix]]\nname = \"usual\"\nkind = \"stop-and-go\"\nmean_ms = 20\nmost_ms = 100\n";
/// Longest wait for a state.
const PATIENCE: Duration = Duration::from_secs(120);

fn topology() -> Topology {
    let router = |number| NodeSpec::new(format!("r{number}"), Address::new(number, 0));
    let mut nodes: Vec<NodeSpec> = (1..=ROUTERS).map(router).collect();
    let count = nodes.len();
    let pairs = (0..count).flat_map(|b| (0..b).map(move |a| LinkSpec { a, b }));
    let mut links: Vec<LinkSpec> = pairs.collect();
    for (name, router) in [("h1", 1), ("h2", ROUTERS)] {
        links.push(LinkSpec { a: nodes.len(), b: router as usize - 1 });
        nodes.push(NodeSpec::new(name.into(), Address::new(router, 1)));
    }
    Topology { nodes, links }
}

/// Makes routers 2 to 5 relays, of which 2 and 3 have one operator. So each path needs one of
/// these two. Both hosts get a tier.
fn list(folder: &Path) {
    let list = folder.join("hosts.toml");
    let mut hosts = std::fs::read_to_string(&list).unwrap();
    let mut add = |name: &str, more: &str| {
        let line = format!("name = \"{name}\"\n");
        assert!(hosts.contains(&line), "{hosts}");
        hosts = hosts.replace(&line, &format!("{line}{more}"));
    };
    for (name, family) in [("r2", "a"), ("r3", "a"), ("r4", "b"), ("r5", "c")] {
        add(name, &format!("relay = true\nfamily = \"{family}\"\n"));
    }
    for name in ["h1", "h2"] {
        add(name, "cover = \"home\"\n");
    }
    std::fs::write(list, format!("{hosts}\n{MIX}{TIER}")).unwrap();
}

/// Success and output of `shoal hidden`.
fn hidden(net: &LabTown, name: &str, words: &[&str]) -> (bool, String) {
    net.run(name, &[&["hidden"], words].concat())
}

fn json(net: &LabTown, name: &str) -> Value {
    let (_, said) = hidden(net, name, &["--json", "--rounds", "0"]);
    let first = said.lines().next().unwrap_or_default();
    serde_json::from_str::<Value>(first).unwrap_or_else(|e| panic!("{e}: {said}"))["hidden"].take()
}

#[test]
fn a_hidden_host_is_told_who_learns_what_before_and_after_routers_die() {
    let network = (topology(), NetworkKind::Loopback, Conditions::default());
    let mut net = LabTown::new(network, "", |folder| {
        list(folder);
        configure(folder, "h1", "[anonymity]\npreset = \"hidden\"\n");
    });
    // On a busy machine, the first test may come before the circuit is built.
    let began = Instant::now();
    let said = loop {
        let (ok, said) = hidden(&net, "h1", &["h2"]);
        if ok {
            break said;
        }
        assert!(!said.contains("does not delay echoes as agreed"), "an honest relay: {said}");
        assert!(began.elapsed() < PATIENCE, "{said}");
    };
    println!("{said}");
    for text in [
        "host h1, preset hidden",
        "h2: all 11 promises hold",
        "no single router knows both hosts",
        "echoes over the circuit are answered",
        "two that collude know both hosts: r1 with ",
        "not who speaks with whom",
        "the hosts file vouches for 4 relays of 3 families",
        "one party (the hosts file) vouches for all relays of the list",
    ] {
        assert!(said.contains(text), "{text}: {said}");
    }
    let report = json(&net, "h1")["hosts"][0].take();
    assert_eq!((&report["clear_cells"], &report["clear_before"]), (&0.into(), &0.into()));
    assert_eq!(report["relays"].as_array().map(Vec::len), Some(3), "{report}");
    let (_, status) = net.run("h1", &["status"]);
    assert!(status.contains("1 of 1 hosts as the preset promises"), "{status}");
    // The other host follows no preset, but its traffic with h1 is bound to circuits. Echoes of
    // circuits are no traffic.
    let (ok, said) = net.run("h1", &["ping", "h2", "-n", "1"]);
    assert!(ok, "{said}");
    let other = json(&net, "h2");
    assert_eq!(other["preset"], "fast");
    assert_eq!(other["hosts"][0]["host"], "h1", "{other}");
    let (ok, said) = hidden(&net, "r4", &[]);
    assert!(ok && said.contains("routers hide nothing of themselves"), "{said}");

    for router in ["r2", "r3"] {
        net.site.kill(net.find(router));
    }
    let (ok, said) = hidden(&net, "h1", &["h2", "--rounds", "1"]);
    println!("{said}");
    assert!(!ok && said.contains("BROKEN"), "{said}");
    assert_eq!(said.matches("better: `shoal ").count(), 1, "one command: {said}");
    let began = Instant::now();
    let breach = |report: &Value| {
        let promises = report["hosts"][0]["promises"].as_array().cloned().unwrap_or_default();
        promises.iter().any(|p| p["kind"] == "circuit" && p["holds"] == false)
    };
    while !breach(&json(&net, "h1")) {
        assert!(began.elapsed() < PATIENCE, "{}", json(&net, "h1"));
        std::thread::sleep(Duration::from_millis(500));
    }
    let (_, status) = net.run("h1", &["status"]);
    assert!(status.contains("0 of 1 hosts as the preset promises; `shoal hidden`"), "{status}");
}

/// Under the preset `fast` nothing is promised, so the command succeeds and says who sees both.
#[test]
fn a_host_without_a_preset_is_told_that_nothing_is_promised() {
    let network = (Topology::chain(), NetworkKind::Loopback, Conditions::default());
    let net = LabTown::new(network, "", |_| {});
    let (ok, said) = net.run("h1", &["ping", "h2", "-n", "1"]);
    assert!(ok, "{said}");
    let (ok, said) = hidden(&net, "h1", &["h2"]);
    assert!(ok && said.contains("h2: nothing is promised"), "{said}");
    assert!(said.contains("each cell outside circuits names both hosts"), "{said}");
    let report = json(&net, "h1")["hosts"][0].take();
    assert!(report["clear_before"].as_u64() > Some(0), "{report}");
    let (ok, said) = hidden(&net, "h1", &["h9"]);
    assert!(!ok && said.contains("there is no host"), "{said}");
    let (ok, said) = hidden(&net, "r1", &["h2"]);
    assert!(!ok && said.contains("hides nothing of itself"), "{said}");
}
