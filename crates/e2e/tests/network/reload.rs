//! Neighbours are added, changed and removed while a node runs.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use shoal_e2e::{LoopbackNet, bytes, end_of, text};

/// Changes that `shoal reload` applied, and those that wait for a restart.
fn reload(net: &LoopbackNet, name: &str) -> (Vec<String>, Vec<String>) {
    let reply = net.ask(name, &["reload"]).expect("a faultless file");
    let list = |key: &str| serde_json::from_value(reply["reload"][key].clone()).unwrap();
    (list("applied"), list("needs_restart"))
}

fn session_age(net: &LoopbackNet, name: &str, peer: &str) -> Option<f64> {
    let peers = net.ask(name, &["peers"])?;
    let found = peers["peers"].as_array()?.iter().find(|p| p["name"] == peer)?.clone();
    found["session_age_s"].as_f64()
}

fn pings(net: &LoopbackNet, from: &str, to: &str) -> bool {
    net.command(from, &["ping", "--count", "1", "--timeout", "0.3", to])
        .output()
        .unwrap()
        .status
        .success()
}

fn edit(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{from:?} is not in {text}");
    fs::write(file, text.replacen(from, to, 1)).unwrap();
}

const LINK: &str = "[[link]]\npeer = \"h3\"\n";

#[test]
fn links_are_added_changed_and_removed_while_a_file_passes() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2", "h3"]);
    net.configure("h1", "[transfer]\nmax_rate_mbit = 8\n");
    edit(&net.config("r1"), LINK, "");
    // h3 calls a neighbour that doesn't run.
    let uplink = fs::read_to_string(net.config("h3")).unwrap();
    let uplink = uplink.lines().last().unwrap().to_string();
    edit(&net.config("h3"), &uplink, "endpoint = \"127.0.0.1:9\"");
    for name in ["r1", "h1", "h2", "h3"] {
        net.start(name);
    }
    net.until(|net| pings(net, "h1", "h2"));
    let (source, inbox) = (net.folder("source"), net.folder("inbox"));
    let content = bytes(9, 6_000_000);
    fs::write(source.join("file"), &content).unwrap();
    let mut receiver = net.command("h2", &["receive", "--from", "h1", "--count", "1", "--dir"]);
    let receiver = receiver.arg(&inbox).stderr(Stdio::piped()).spawn().unwrap();
    let mut sender = net.command("h1", &["send", "--wait", "10"]);
    sender.arg(source.join("file")).arg("h2").stderr(Stdio::piped());
    let mut sender = sender.spawn().unwrap();
    net.until(|net| net.ask("h1", &["status"]).is_some_and(|s| s["status"]["transfers"] == 1));

    edit(&net.config("h3"), "endpoint = \"127.0.0.1:9\"", &uplink);
    assert_eq!(reload(&net, "h3").0, ["link r1 (endpoint)"]);
    assert!(!pings(&net, "h1", "h3"), "the router doesn't know h3 yet");
    net.configure("r1", LINK);
    // Reload by signal, as a service manager does it.
    net.signal("r1", "-HUP");
    net.until(|net| pings(net, "h1", "h3"));

    let before = session_age(&net, "r1", "h1").expect("h1 is up");
    edit(&net.config("r1"), LINK, "");
    edit(&net.config("r1"), "[[link]]", "[session]\nlanes = 2\n[[link]]");
    let (applied, waiting) = reload(&net, "r1");
    assert_eq!(
        (applied, waiting),
        (vec!["link h3 (removed)".into()], vec!["session.lanes".into()])
    );
    assert!(!pings(&net, "h1", "h3"), "h3 is no neighbour any more");
    assert_eq!(session_age(&net, "r1", "h3"), None);
    let after = session_age(&net, "r1", "h1").expect("h1 is up");
    assert!(after >= before, "h1's session began anew: {before} s, then {after} s");
    assert!(sender.try_wait().unwrap().is_none(), "the file was to pass meanwhile");
    let sent = end_of(sender, "send");
    assert!(sent.status.success(), "{:?}", text(&sent));
    assert!(end_of(receiver, "receive").status.success());
    assert!(fs::read(inbox.join("file")).unwrap() == content);
}

#[test]
fn a_faulty_file_changes_nothing_and_is_named() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    net.start_all();
    net.configure("r1", "[[link]]\npeer = \"h9\"\n");
    let output = net.command("r1", &["reload"]).output().unwrap();
    let said = text(&output).1;
    assert!(!output.status.success() && said.contains("link.peer: \"h9\" is not in"), "{said}");
    edit(&net.config("r1"), "[[link]]\npeer = \"h9\"\n", "");
    // A neighbour leaves the list while its link stays in the configuration.
    let list = net.dir("r1").join("../hosts.toml");
    edit(&list, "name = \"h2\"", "name = \"h7\"");
    let said = text(&net.command("r1", &["reload"]).output().unwrap()).1;
    assert!(said.contains("link.peer: \"h2\" is not in"), "{said}");
    // Another key under this node's own name is no reload.
    edit(&list, "name = \"h7\"", "name = \"h2\"");
    let other = text(&net.command("r1", &["status", "--json"]).output().unwrap()).0;
    let other: serde_json::Value = serde_json::from_str(&other).unwrap();
    let key = other["status"]["public_key"].as_str().unwrap().to_string();
    let changed = format!("{}{}", if key.starts_with('A') { "B" } else { "A" }, &key[1..]);
    edit(&list, &key, &changed);
    let said = text(&net.command("r1", &["reload"]).output().unwrap()).1;
    assert!(said.contains("restart it"), "{said}");
    edit(&list, &changed, &key);
    assert_eq!(reload(&net, "r1"), (vec![], vec![]));
    assert!(pings(&net, "h1", "h2"));
}

#[test]
fn a_neighbour_with_a_new_key_is_another_neighbour() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    net.start_all();
    net.until(|net| pings(net, "h1", "h2"));
    net.end("h2", "-TERM");
    let key = net.dir("h2").join("node.key");
    fs::remove_file(&key).unwrap();
    let key = key.to_str().unwrap();
    assert!(shoal_e2e::shoal(&["genkey", "-o", key]).output().unwrap().status.success());
    let public = text(&shoal_e2e::shoal(&["pubkey", key]).output().unwrap()).0;
    let list = net.dir("r1").join("../hosts.toml");
    let old = fs::read_to_string(&list).unwrap();
    let mut entries: Vec<&str> = old.split("[[host]]").collect();
    let entry = format!("\nname = \"h2\"\naddress = \"1.2\"\nkey = \"{}\"\n", public.trim());
    entries[3] = &entry;
    fs::write(&list, entries.join("[[host]]")).unwrap();
    net.start("h2");
    assert_eq!(reload(&net, "r1").0, ["host h2 (changed)", "link h2 (added)"]);
    assert_eq!(reload(&net, "h1").0, ["host h2 (changed)"]);
    net.until(|net| pings(net, "h1", "h2"));
}
