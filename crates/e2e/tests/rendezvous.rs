//! Nodes without a fixed endpoint, in namespaces: both ends of a link meet at addresses that follow
//! from the time, when they start, when one was killed, and with clocks that are wrong.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts real processes")]

use std::time::{Duration, Instant};

use serde_json::Value;
use shoal_e2e::Net;
use shoal_e2e::clock::Shift;
use shoal_e2e::hopping::{
    self, NAMES, PLACES, PORT, PREFIXES, begin_ping, both_hop, close, end_ping, interface, is_up,
    peer, run, start,
};
use shoal_lab::namespace::Namespace;

/// What a node that was killed may take until its link is up again.
const AGAIN: Duration = Duration::from_millis(2_500);
/// What a link of two nodes that start may take until it is up: a request or two more than one, and
/// what two processes need to be there.
const SOON: Duration = Duration::from_secs(2);
/// Long enough for a handshake to try everything that it tries.
const IN_VAIN: Duration = Duration::from_secs(25);

/// Two machines with a line between them; what comes to a node from outside of the prefixes, or to
/// outside of them, is counted.
fn machines() -> [Namespace; 2] {
    let both = hopping::machines();
    for machine in &both {
        let to_node = "add rule ip6 watch in iifname \"wire\" udp dport 7400";
        let watch = format!(
            "add table ip6 watch; \
             add chain ip6 watch in {{ type filter hook prerouting priority -300; }}; \
             {to_node} ip6 saddr != fd42:a::/32 counter; \
             {to_node} ip6 daddr != fd42:a::/32 counter"
        );
        run(machine, &["nft", &watch]);
    }
    both
}

/// Two nodes; the second calls the first at a fixed endpoint, too, if it has a `fallback`.
fn configure(more: &str, fallback: bool) -> Net {
    let net = Net::new(&NAMES);
    for (n, name) in NAMES.iter().enumerate() {
        let text = std::fs::read_to_string(net.config(name)).unwrap();
        let meets =
            format!("[[link]]\nhop = \"1s\"\nrendezvous = \"[{}]:{PORT}\"", PREFIXES[1 - n]);
        let lines = text.lines().filter_map(|line| match line.split(' ').next() {
            Some("listen") => Some(format!("listen = [\"[::]:{PORT}\"]")),
            Some("endpoint") => fallback.then(|| format!("endpoint = \"[{}]:{PORT}\"", PLACES[0])),
            _ => Some(line.replace("[[link]]", &meets)),
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        let hop = format!("\n[hop]\nprefix = \"{}\"\nmode = \"routed\"\n{more}", PREFIXES[n]);
        std::fs::write(net.config(name), text + &hop).unwrap();
    }
    net
}

/// What `shoal peers` prints.
fn shown(net: &Net, name: &str) -> String {
    hopping::shown(net, name, &["peers"])
}

/// Nothing came from an address outside of the prefixes, or to one.
fn saw_no_other_address(machine: &Namespace) {
    let seen = run(machine, &["nft", "list table ip6 watch"]);
    assert_eq!(seen.matches("packets 0 bytes 0").count(), 2, "{seen}");
}

#[test]
fn nodes_without_an_endpoint_meet_and_one_that_was_killed_is_back_soon() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let machines = machines();
    let mut net = configure("", false);
    let check = |net: &Net| shoal_e2e::text(&net.command("h1", &["check"]).output().unwrap()).0;
    assert!(
        check(&net).contains("where both meet under [fd42:a:0:1::/64]:7400"),
        "{}",
        check(&net)
    );
    for (machine, name) in machines.iter().zip(NAMES) {
        start(&mut net, machine, name, &[]);
    }
    net.until(both_hop);
    for (killed, machine) in [("h1", &machines[1]), ("r1", &machines[0]), ("h1", &machines[1])] {
        std::thread::sleep(Duration::from_secs(2));
        net.end(killed, "-KILL");
        let began = Instant::now();
        start(&mut net, machine, killed, &[]);
        net.until(|net| is_up(net, killed));
        assert!(began.elapsed() <= AGAIN, "{killed}: {:?}", began.elapsed());
        net.until(both_hop);
    }
    for (machine, name) in machines.iter().zip(NAMES) {
        saw_no_other_address(machine);
        let told = format!("{} {}", peer(&net, name).unwrap(), shown(&net, name));
        assert!(!told.contains("fd42") && told.contains("\"rendezvous\":true"), "{told}");
    }
}

#[test]
fn a_clock_that_is_wrong_by_minutes_does_and_by_an_hour_needs_an_endpoint() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let machines = machines();
    for (wrong_s, fallback) in [(540, false), (-540, false), (3_600, true)] {
        let mut net = configure("", fallback);
        let Some(shift) = Shift::new(net.root()) else { return };
        shift.set(wrong_s);
        start(&mut net, &machines[0], "r1", &[]);
        let began = Instant::now();
        start(&mut net, &machines[1], "h1", &shift.env());
        net.until(|net| NAMES.iter().all(|name| is_up(net, name)));
        let took = began.elapsed();
        assert!(fallback || took <= SOON, "{wrong_s} s: {took:?}");
        net.until(both_hop);
        if !fallback {
            machines.iter().for_each(saw_no_other_address);
        }
    }
}

/// A clock that is set by hours makes all keys anew, since so it is where a machine goes on from a
/// snapshot. That costs what is under way for a round trip, and moves nobody.
#[test]
fn a_clock_that_is_set_while_a_link_is_up_costs_new_keys_and_no_more() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let machines = machines();
    let mut net = configure("[interface]\n", false);
    let Some(shift) = Shift::new(net.root()) else { return };
    start(&mut net, &machines[0], "r1", &[]);
    start(&mut net, &machines[1], "h1", &shift.env());
    net.until(both_hop);
    let log = |net: &Net| std::fs::read_to_string(net.dir("h1").join("log")).unwrap();
    for (n, shift_s) in (1..).zip([7_200, -7_200, 540]) {
        let ping = begin_ping(&machines[0], &interface(&net, "h1"), 500);
        std::thread::sleep(Duration::from_secs(1));
        let began = Instant::now();
        shift.set(shift_s);
        net.until(|net| log(net).matches("the clock jumped").count() == n);
        net.until(both_hop);
        let took = began.elapsed();
        assert!(took <= SOON, "{shift_s} s: {took:?}");
        let came = end_ping(ping);
        assert!(came >= 470, "{shift_s} s: {came} of 500");
    }
    machines.iter().for_each(saw_no_other_address);
}

#[test]
fn without_an_endpoint_a_clock_that_is_wrong_by_an_hour_is_named_and_heals() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let machines = machines();
    let mut net = configure("", false);
    let Some(shift) = Shift::new(net.root()) else { return };
    shift.set(3_600);
    start(&mut net, &machines[0], "r1", &[]);
    start(&mut net, &machines[1], "h1", &shift.env());
    let began = Instant::now();
    while began.elapsed() < IN_VAIN {
        assert!(!is_up(&net, "h1") && !is_up(&net, "r1"));
        std::thread::sleep(Duration::from_millis(500));
    }
    for name in NAMES {
        let shown = shown(&net, name);
        assert!(shown.contains("connecting: no answer where both ends are to meet"), "{shown}");
    }
    shift.set(0);
    net.until(both_hop);
    machines.iter().for_each(saw_no_other_address);
}

#[test]
fn stateful_firewalls_on_both_sides_let_a_link_hop_without_loss() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let machines = machines();
    machines.iter().for_each(close);
    let mut net = configure("[interface]\n", false);
    for (machine, name) in machines.iter().zip(NAMES) {
        start(&mut net, machine, name, &[]);
    }
    net.until(both_hop);
    let before = peer(&net, "r1").unwrap()["hop"].clone();
    let status = net.ask("h1", &["status"]).unwrap();
    let far = status["status"]["interface"]["address"].as_str().unwrap().to_string();
    let words = ["ping", "-q", "-i", "0.01", "-c", "3000", "-W", "2", &far];
    let said = run(&machines[0], &words);
    assert!(said.contains("3000 packets transmitted, 3000 received"), "{said}");
    let after = peer(&net, "r1").unwrap()["hop"].clone();
    let made = |hop: &Value| hop["made"].as_u64().unwrap();
    assert!(made(&after) >= made(&before) + 25, "{before} {after}");
    assert_eq!(after["failed"], before["failed"]);
    machines.iter().for_each(saw_no_other_address);
}
