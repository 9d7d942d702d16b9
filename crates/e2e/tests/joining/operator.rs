//! Faults in the log and the status, on both sides.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};

use shoal_e2e::{LoopbackNet, shoal, text};
use shoal_lab::namespace::Namespace;

fn log(net: &LoopbackNet, name: &str) -> String {
    fs::read_to_string(net.dir(name).join("log")).unwrap()
}

fn warnings(net: &LoopbackNet, name: &str) -> String {
    net.ask(name, &["status"]).map_or(String::new(), |s| s["status"]["warnings"].to_string())
}

fn status(net: &LoopbackNet, name: &str) -> String {
    text(&net.command(name, &["status"]).output().unwrap()).0
}

#[test]
fn links_that_come_and_go_are_told_without_names() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    net.start_all();
    net.until(|net| log(net, "r1").contains("a link came up (2 of 2 up)"));
    net.end("h2", "-KILL");
    net.until(|net| log(net, "r1").contains("a link went silent (1 of 2 up)"));
    let said = log(&net, "r1");
    assert!(!said.contains("h1") && !said.contains("127."), "names and addresses: {said}");
    // Each end shows the offset of the other's clock.
    let peers = net.ask("h1", &["peers"]).unwrap();
    let ahead = peers["peers"][0]["clock_ahead_s"].as_f64().unwrap();
    assert!(ahead.abs() < 10.0, "{ahead}");
    // A host has no routes of its own, which is no fault.
    let said = text(&net.command("h1", &["routes"]).output().unwrap()).0;
    assert!(said.contains("this is a host") && said.contains("the link is up"), "{said}");
}

#[test]
fn a_change_is_told_in_words_at_debug_level() {
    let mut net = LoopbackNet::new(&["r1", "h1"]);
    net.configure("r1", "[log]\nlevel = \"debug\"\n");
    net.start_all();
    net.until(|net| log(net, "r1").contains("link with h1: up"));
    let said = log(&net, "r1");
    assert!(!said.contains("Link {") && !said.contains("Some("), "{said}");
}

#[test]
fn a_wrong_secret_and_a_wrong_key_are_told_where_they_are_seen() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    // h1 has another network's secret.
    let secret = net.dir("h1").join("other.key");
    let made = shoal(&["genkey", "--network", "-o", secret.to_str().unwrap()]).output().unwrap();
    assert!(made.status.success());
    let config = fs::read_to_string(net.config("h1")).unwrap();
    fs::write(net.config("h1"), config.replace("../network.key", "other.key")).unwrap();
    // h2 has a key that r1's list lacks; its own list has it.
    let key = net.dir("h2").join("node.key");
    fs::remove_file(&key).unwrap();
    let key = key.to_str().unwrap();
    assert!(shoal(&["genkey", "-o", key]).output().unwrap().status.success());
    let public = text(&shoal(&["pubkey", key]).output().unwrap()).0;
    let hosts = fs::read_to_string(net.dir("r1").join("../hosts.toml")).unwrap();
    let mut entries: Vec<&str> = hosts.split("[[host]]").collect();
    let entry = format!("\nname = \"h2\"\naddress = \"1.2\"\nkey = \"{}\"\n", public.trim());
    entries[3] = &entry;
    fs::write(net.dir("h2").join("hosts.toml"), entries.join("[[host]]")).unwrap();
    let config = fs::read_to_string(net.config("h2")).unwrap();
    fs::write(net.config("h2"), config.replace("../hosts.toml", "hosts.toml")).unwrap();
    for name in ["r1", "h1", "h2"] {
        net.start(name);
    }
    net.until(|net| log(net, "r1").contains("dropped as bad_handshake"));
    net.until(|net| log(net, "r1").contains("dropped as unknown_peer"));
    let said = status(&net, "r1");
    assert!(said.contains("bad_handshake: another network's secret"), "{said}");
    assert!(said.contains("unknown_peer: a key that is not in the list"), "{said}");
    let lines = log(&net, "r1").lines().filter(|line| line.contains("dropped as")).count();
    assert_eq!(lines, 2, "one line each");
}

fn listen(config: &str) -> &str {
    config.split("listen = ").nth(1).unwrap().lines().next().unwrap()
}

/// Two machines with one key file disconnect each other. Both, and their neighbour, warn of it.
#[test]
fn two_nodes_with_one_key_are_warned_of_on_both_and_at_the_neighbour() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    // h2's process runs as h1, from another port.
    let config = fs::read_to_string(net.config("h1")).unwrap();
    let other = fs::read_to_string(net.config("h2")).unwrap();
    let copy = config.replacen(listen(&config), listen(&other), 1);
    fs::write(net.config("h2"), copy).unwrap();
    fs::copy(net.dir("h1").join("node.key"), net.dir("h2").join("node.key")).unwrap();
    for name in ["r1", "h1", "h2"] {
        net.start(name);
    }
    let two = "two nodes seem to run with the key of the neighbour";
    let twin = "says that another node runs with this node's key";
    // The node that is not heard notices it when it sends.
    net.until(|net| {
        for name in ["h1", "h2"] {
            let mut ping = net.command(name, &["ping", "--count", "1", "--timeout", "0.1", "r1"]);
            let _ = ping.output().unwrap();
        }
        warnings(net, "r1").contains(two)
            && warnings(net, "h1").contains(twin)
            && warnings(net, "h2").contains(twin)
    });
    net.until(|net| log(net, "r1").contains("two nodes seem to run with the key of a neighbour"));
}

/// The name is in the node's private /etc/hosts. Its address changes while the node runs.
#[test]
fn an_endpoint_may_be_a_name_and_is_looked_up_again() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let mut net = LoopbackNet::new(&["r1", "h1"]);
    net.start("r1");
    let config = fs::read_to_string(net.config("h1")).unwrap();
    let (before, rest) = config.split_once("endpoint = \"").unwrap();
    let (endpoint, after) = rest.split_once('"').unwrap();
    let (address, port) = endpoint.rsplit_once(':').unwrap();
    let named = format!("{before}endpoint = \"r1.shoal-test.example:{port}\"{after}");
    fs::write(net.config("h1"), named).unwrap();
    let hosts = net.dir("h1").join("hosts");
    fs::write(&hosts, "127.127.127.127 r1.shoal-test.example\n").unwrap();
    let script = format!(
        "mount --bind {} /etc/hosts && exec {} run -c {}",
        hosts.display(),
        shoal_e2e::program(),
        net.config("h1").display()
    );
    let words = ["--mount", "--propagation", "private", "sh", "-c", &script];
    let mut node = std::process::Command::new("unshare").args(words).spawn().unwrap();
    let peer = |net: &LoopbackNet| net.ask("h1", &["peers"]).map(|peers| peers["peers"][0].clone());
    let at =
        |net: &LoopbackNet| peer(net).and_then(|peer| Some(peer["endpoint"].as_str()?.to_string()));
    net.until(|net| at(net).is_some_and(|at| at.starts_with("127.127.127.127:")));
    fs::write(&hosts, format!("{address} r1.shoal-test.example\n")).unwrap();
    net.until(|net| peer(net).unwrap()["state"] == "up");
    assert_eq!(at(&net).as_deref(), Some(endpoint));
    node.kill().unwrap();
    node.wait().unwrap();
}

fn edit(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{from:?} is not in {text}");
    fs::write(file, text.replacen(from, to, 1)).unwrap();
}

/// The log reports faults without names. The status has the names.
#[test]
fn the_log_of_a_node_with_many_faults_names_nobody() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let mut net = LoopbackNet::new(&["r1", "alice", "bob"]);
    let (config, hosts) = (net.config("r1"), net.root().join("hosts.toml"));
    // Bob's network contains alice's endpoint, and the kernel already has a route to alice's.
    let (of_alice, of_bob) = ("198.51.100.0/24", "192.0.2.0/24");
    for (name, prefix) in [("alice", of_alice), ("bob", of_bob)] {
        let entry = format!("name = \"{name}\"\n");
        edit(&hosts, &entry, &format!("{entry}prefixes = [\"{prefix}\"]\n"));
    }
    let endpoint = "192.0.2.7:9";
    let link = "peer = \"alice\"\n";
    edit(&config, link, &format!("{link}endpoint = \"{endpoint}\"\n"));
    // A program uses the port that follows from r1's key.
    let text_of = fs::read_to_string(&config).unwrap();
    edit(&config, &format!("listen = {}\n", listen(&text_of)), "");
    let key = net.dir("r1").join("node.key");
    let port = text(&shoal(&["pubkey", "--port", key.to_str().unwrap()]).output().unwrap()).0;
    let port: u16 = port.trim().parse().unwrap();
    net.configure("r1", "[interface]\nname = \"faults0\"\naccept_prefixes = [\"all\"]\n");
    let space = Namespace::new().unwrap();
    let log_file = fs::File::create(net.dir("r1").join("log")).unwrap();
    let (node, _program) = space
        .enter(|| {
            let route = format!("ip link set lo up && ip route add {of_alice} dev lo metric 4096");
            assert!(Command::new("sh").args(["-c", &route]).status()?.success());
            let program = UdpSocket::bind(("0.0.0.0", port))?;
            let mut command = shoal(&["run", "-c", config.to_str().unwrap()]);
            Ok((command.stderr(log_file).stdout(Stdio::null()).spawn()?, program))
        })
        .unwrap();
    net.adopt("r1", node);
    net.until(|net| log(net, "r1").contains("prefixes are not in force"));
    net.until(|net| log(net, "r1").contains("routes are missing"));
    // The status has the names.
    net.until(|net| {
        let said = warnings(net, "r1");
        ["bob", of_bob, "192.0.2.7", of_alice].iter().all(|name| said.contains(name))
    });
    for (file, from, to) in [
        (&config, link, "peer = \"mallory\"\n"),
        (&hosts, "name = \"bob\"\n", "name = \"alice\"\n"),
    ] {
        let before = log(&net, "r1").matches("the old configuration stays in force").count();
        let whole = fs::read_to_string(file).unwrap();
        edit(file, from, to);
        net.signal("r1", "-HUP");
        net.until(|net| {
            let said = log(net, "r1");
            said.matches("the old configuration stays in force").count() > before
        });
        fs::write(file, whole).unwrap();
    }
    let said = log(&net, "r1");
    assert!(said.contains("belongs to another program"), "{said}");
    let keys = fs::read_to_string(&hosts).unwrap();
    let keys = keys.lines().filter_map(|line| line.strip_prefix("key = "));
    let keys: Vec<&str> = keys.map(|key| key.trim_matches('"')).collect();
    let port = port.to_string();
    let words = ["alice", "bob", "mallory", "192.0.2.", "198.51.100.", &port];
    let named: Vec<&str> = words.into_iter().chain(keys).filter(|w| said.contains(w)).collect();
    assert!(named.is_empty(), "the log holds {named:?}: {said}");
}
