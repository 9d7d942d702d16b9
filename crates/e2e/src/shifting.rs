//! Two machines with a line between them, and nodes on them whose addresses shift. Each machine has
//! a prefix that is routed to it.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use shoal_lab::namespace::Namespace;

use crate::{LoopbackNet, shoal, text};

/// The port of both nodes.
pub const PORT: u16 = 7_400;
/// The nodes: a router, and a host of it.
pub const NAMES: [&str; 2] = ["r1", "h1"];
/// Addresses of the machines.
pub const PLACES: [&str; 2] = ["fd99::1", "fd99::2"];
/// Prefixes of the nodes' addresses.
pub const PREFIXES: [&str; 2] = ["fd42:a:0:1::/64", "fd42:a:0:2::/64"];

/// Runs a command in a namespace. Returns its output.
#[track_caller]
pub fn run(namespace: &Namespace, words: &[&str]) -> String {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    let output = namespace.enter(|| Ok(command.output()?)).unwrap();
    let (out, err) = text(&output);
    assert!(output.status.success(), "{words:?}: {out}{err}");
    out
}

/// Two machines with a line between them, each with a prefix that is routed to it.
pub fn machines() -> [Namespace; 2] {
    let both = [0, 1].map(|_| Namespace::new().unwrap());
    for machine in &both {
        settle_at_once(machine);
    }
    let there = format!("/proc/{}/fd/{}", std::process::id(), both[1].raw_fd());
    let pair = ["ip", "link", "add", "wire", "type", "veth", "peer", "name", "wire"];
    run(&both[0], &[&pair[..], &["netns", &there]].concat());
    for (n, machine) in both.iter().enumerate() {
        let address = format!("{}/64", PLACES[n]);
        run(machine, &["ip", "addr", "add", &address, "dev", "wire", "nodad"]);
        run(machine, &["ip", "link", "set", "wire", "up"]);
        run(machine, &["ip", "link", "set", "lo", "up"]);
        let (prefix, via) = (PREFIXES[1 - n], PLACES[1 - n]);
        run(machine, &["ip", "-6", "route", "add", prefix, "via", via]);
    }
    both
}

/// Makes link-local addresses of new interfaces usable at once. Otherwise duplicate detection takes
/// two seconds on a machine that has just booted. During this time the kernel sends no neighbour
/// solicitations for packets from addresses that the interface lacks, such as shifting ones.
pub fn settle_at_once(machine: &Namespace) {
    for which in ["all", "default"] {
        run(machine, &["sysctl", "-qw", &format!("net.ipv6.conf.{which}.accept_dad=0")]);
    }
}

/// Adds a firewall that accepts only answers.
pub fn close(machine: &Namespace) {
    let rules = "add table ip6 wall; \
        add chain ip6 wall in { type filter hook input priority 0; policy drop; }; \
        add rule ip6 wall in iifname != \"wire\" accept; \
        add rule ip6 wall in meta l4proto ipv6-icmp accept; \
        add rule ip6 wall in ct state established accept";
    run(machine, &["nft", rules]);
}

/// Starts a node on a machine, with more environment variables. Does not wait until it answers.
pub fn start(
    net: &mut LoopbackNet,
    machine: &Namespace,
    name: &str,
    environment: &[(&str, &Path)],
) {
    let config = net.config(name);
    let mut command = shoal(&["run", "-c", config.to_str().unwrap()]);
    command.envs(environment.iter().copied());
    start_by(net, machine, name, command);
}

/// Starts a node with this command.
pub fn start_by(net: &mut LoopbackNet, machine: &Namespace, name: &str, mut command: Command) {
    let log = std::fs::File::create(net.dir(name).join("log")).unwrap();
    command.stdout(Stdio::null()).stderr(log);
    let child = machine.enter(|| Ok(command.spawn()?)).unwrap();
    net.adopt(name, child);
}

/// A node's entry for its first neighbour, if the node answers.
pub fn peer(net: &LoopbackNet, name: &str) -> Option<Value> {
    net.ask(name, &["peers"])?["peers"].as_array()?.first().cloned()
}

/// State of shifts of the node's first link.
pub fn shift(net: &LoopbackNet, name: &str) -> Option<Value> {
    peer(net, name).map(|peer| peer["shift"].clone())
}

/// True if the link of a node is up.
pub fn is_up(net: &LoopbackNet, name: &str) -> bool {
    peer(net, name).is_some_and(|peer| peer["state"] == "up")
}

/// True if both nodes report that the link's addresses shift.
pub fn both_shift(net: &LoopbackNet) -> bool {
    let shifts = |name: &&str| shift(net, name).is_some_and(|shift| shift["state"] == "shifting");
    NAMES.iter().all(shifts)
}

/// Output of a node's command for people.
pub fn shown(net: &LoopbackNet, name: &str, words: &[&str]) -> String {
    text(&net.command(name, words).output().unwrap()).0
}

pub fn interface(net: &LoopbackNet, name: &str) -> String {
    let status = net.ask(name, &["status"]).unwrap();
    status["status"]["interface"]["address"].as_str().unwrap().to_string()
}

/// Begins to send `count` packets to an address, one every 10 ms.
pub fn begin_ping(machine: &Namespace, to: &str, count: u32) -> Child {
    let mut command = Command::new("ping");
    command.args(["-q", "-i", "0.01", "-W", "2", "-c", &count.to_string(), to]);
    command.stdout(Stdio::piped());
    machine.enter(|| Ok(command.spawn()?)).unwrap()
}

/// Waits until all packets were sent. Returns the number of answers.
#[track_caller]
pub fn end_ping(ping: Child) -> u32 {
    let (said, _) = text(&ping.wait_with_output().unwrap());
    let line = said.lines().find(|line| line.contains("transmitted")).unwrap();
    let mut numbers = line.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
    let _sent: u32 = numbers.next().unwrap();
    numbers.next().unwrap()
}
