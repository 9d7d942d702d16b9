//! Nodes without a fixed endpoint, in namespaces. Both ends of a link meet at addresses that depend
//! on the time: after a start, after a kill, and with wrong clocks.

use std::time::{Duration, Instant};

use serde_json::Value;
use shoal_e2e::LoopbackNet;
use shoal_e2e::clock::ClockOffset;
use shoal_e2e::shifting::{
    self, NAMES, PLACES, PORT, PREFIXES, begin_ping, both_shift, close, end_ping, interface, is_up,
    peer, run, start,
};
use shoal_lab::namespace::Namespace;

/// Longest time until the link of a restarted node is up again.
const AGAIN: Duration = Duration::from_millis(2_500);
/// Longest time until the link of two starting nodes is up: one or two repeated requests, and the
/// start of two processes.
const SOON: Duration = Duration::from_secs(2);
/// Long enough for all attempts of a handshake.
const IN_VAIN: Duration = Duration::from_secs(25);

/// Two machines with a line between them. Datagrams to a node from or to addresses outside the
/// prefixes are counted.
fn machines() -> [Namespace; 2] {
    let both = shifting::machines();
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

/// Two nodes. With a `fallback`, the second also calls the first at a fixed endpoint.
fn configure(more: &str, fallback: bool) -> LoopbackNet {
    let net = LoopbackNet::new(&NAMES);
    for (n, name) in NAMES.iter().enumerate() {
        let text = std::fs::read_to_string(net.config(name)).unwrap();
        let meets =
            format!("[[link]]\nshift = \"1s\"\nrendezvous = \"[{}]:{PORT}\"", PREFIXES[1 - n]);
        let lines = text.lines().filter_map(|line| match line.split(' ').next() {
            Some("listen") => Some(format!("listen = [\"[::]:{PORT}\"]")),
            Some("endpoint") => fallback.then(|| format!("endpoint = \"[{}]:{PORT}\"", PLACES[0])),
            _ => Some(line.replace("[[link]]", &meets)),
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        let shift = format!("\n[shift]\nprefix = \"{}\"\nmode = \"routed\"\n{more}", PREFIXES[n]);
        std::fs::write(net.config(name), text + &shift).unwrap();
    }
    net
}

/// Output of `shoal peers`.
fn shown(net: &LoopbackNet, name: &str) -> String {
    shifting::shown(net, name, &["peers"])
}

/// Checks that no datagram came from or to an address outside the prefixes.
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
    let check =
        |net: &LoopbackNet| shoal_e2e::text(&net.command("h1", &["check"]).output().unwrap()).0;
    assert!(check(&net).contains("at addresses under [fd42:a:0:1::/64]:7400"), "{}", check(&net));
    for (machine, name) in machines.iter().zip(NAMES) {
        start(&mut net, machine, name, &[]);
    }
    net.until(both_shift);
    for (killed, machine) in [("h1", &machines[1]), ("r1", &machines[0]), ("h1", &machines[1])] {
        std::thread::sleep(Duration::from_secs(2));
        net.end(killed, "-KILL");
        let began = Instant::now();
        start(&mut net, machine, killed, &[]);
        net.until(|net| is_up(net, killed));
        assert!(began.elapsed() <= AGAIN, "{killed}: {:?}", began.elapsed());
        net.until(both_shift);
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
        let Some(offset) = ClockOffset::new(net.root()) else { return };
        offset.set(wrong_s);
        start(&mut net, &machines[0], "r1", &[]);
        let began = Instant::now();
        start(&mut net, &machines[1], "h1", &offset.env());
        net.until(|net| NAMES.iter().all(|name| is_up(net, name)));
        let took = began.elapsed();
        assert!(fallback || took <= SOON, "{wrong_s} s: {took:?}");
        net.until(both_shift);
        if !fallback {
            machines.iter().for_each(saw_no_other_address);
        }
    }
}

/// A clock that is set by hours replaces all keys, since a machine resumed from a snapshot shows
/// the same. Datagrams of one round trip are lost, and no endpoint changes.
#[test]
fn a_clock_that_is_set_while_a_link_is_up_costs_new_keys_and_no_more() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let machines = machines();
    let mut net = configure("[interface]\n", false);
    let Some(offset) = ClockOffset::new(net.root()) else { return };
    start(&mut net, &machines[0], "r1", &[]);
    start(&mut net, &machines[1], "h1", &offset.env());
    net.until(both_shift);
    let log = |net: &LoopbackNet| std::fs::read_to_string(net.dir("h1").join("log")).unwrap();
    for (n, offset_s) in (1..).zip([7_200, -7_200, 540]) {
        let ping = begin_ping(&machines[0], &interface(&net, "h1"), 500);
        std::thread::sleep(Duration::from_secs(1));
        let began = Instant::now();
        offset.set(offset_s);
        net.until(|net| log(net).matches("the clock jumped").count() == n);
        net.until(both_shift);
        let took = began.elapsed();
        assert!(took <= SOON, "{offset_s} s: {took:?}");
        let came = end_ping(ping);
        assert!(came >= 470, "{offset_s} s: {came} of 500");
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
    let Some(offset) = ClockOffset::new(net.root()) else { return };
    offset.set(3_600);
    start(&mut net, &machines[0], "r1", &[]);
    start(&mut net, &machines[1], "h1", &offset.env());
    let began = Instant::now();
    while began.elapsed() < IN_VAIN {
        assert!(!is_up(&net, "h1") && !is_up(&net, "r1"));
        std::thread::sleep(Duration::from_millis(500));
    }
    for name in NAMES {
        let shown = shown(&net, name);
        assert!(
            shown.contains("connecting: no answer at the addresses where both ends meet"),
            "{shown}"
        );
    }
    offset.set(0);
    net.until(both_shift);
    machines.iter().for_each(saw_no_other_address);
}

#[test]
fn stateful_firewalls_on_both_sides_let_a_link_shift_without_loss() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let machines = machines();
    machines.iter().for_each(close);
    let mut net = configure("[interface]\n", false);
    for (machine, name) in machines.iter().zip(NAMES) {
        start(&mut net, machine, name, &[]);
    }
    net.until(both_shift);
    let before = peer(&net, "r1").unwrap()["shift"].clone();
    let status = net.ask("h1", &["status"]).unwrap();
    let far = status["status"]["interface"]["address"].as_str().unwrap().to_string();
    let words = ["ping", "-q", "-i", "0.01", "-c", "3000", "-W", "2", &far];
    let said = run(&machines[0], &words);
    assert!(said.contains("3000 packets transmitted, 3000 received"), "{said}");
    let after = peer(&net, "r1").unwrap()["shift"].clone();
    let made = |shift: &Value| shift["made"].as_u64().unwrap();
    assert!(made(&after) >= made(&before) + 25, "{before} {after}");
    assert_eq!(after["failed"], before["failed"]);
    machines.iter().for_each(saw_no_other_address);
}
