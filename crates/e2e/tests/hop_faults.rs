//! What is wrong around a link whose addresses are to hop: nothing is lost, and both ends fall back
//! and say so.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts real processes")]

use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use shoal_e2e::Net;
use shoal_e2e::hopping::{
    NAMES, PLACES, PORT, PREFIXES, begin_ping, both_hop, end_ping, hop, interface, is_up, machines,
    run, shown, start, start_by,
};
use shoal_lab::namespace::Namespace;
use shoal_lab::needs::{self, Need};

/// The warning of a link that does not hop though it is to.
const SAYS: &str = "nothing came back from the new ones";

/// Two nodes whose link has an endpoint that stays, and is to hop each second.
fn nodes() -> Net {
    let net = Net::new(&NAMES);
    for (n, name) in NAMES.iter().enumerate() {
        let text = std::fs::read_to_string(net.config(name)).unwrap();
        let lines = text.lines().map(|line| match line.split(' ').next() {
            Some("listen") => format!("listen = [\"[::]:{PORT}\"]"),
            Some("endpoint") => format!("endpoint = \"[{}]:{PORT}\"", PLACES[0]),
            _ => line.replace("[[link]]", "[[link]]\nhop = \"1s\""),
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        let hop = format!("\n[hop]\nprefix = \"{}\"\nmode = \"routed\"\n", PREFIXES[n]);
        std::fs::write(net.config(name), text + &hop + "[interface]\n").unwrap();
    }
    net
}

/// Whether a node says that its link does not hop for now, and why.
fn says_so(net: &Net, name: &str) -> bool {
    let hop = hop(net, name).unwrap_or_default();
    hop["state"] == "fixed"
        && hop["last"] == "failed"
        && shown(net, name, &["peers"]).contains("fixed for now (every 1 s wanted")
        && shown(net, name, &["status"]).contains(SAYS)
}

fn failed(net: &Net) -> u64 {
    let of = |name: &&str| hop(net, name).and_then(|hop: Value| hop["failed"].as_u64());
    NAMES.iter().filter_map(of).sum()
}

/// With something wrong from the start on, the link is up and carries everything, and both ends say
/// that it does not hop. When it is mended, the link hops. When it goes wrong again, the link is
/// soon where it was.
fn falls_back(breaks: impl Fn(&[Namespace; 2]), mends: impl Fn(&[Namespace; 2])) {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let machines = machines();
    breaks(&machines);
    let mut net = nodes();
    for (machine, name) in machines.iter().zip(NAMES) {
        start(&mut net, machine, name, &[]);
    }
    net.until(|net| NAMES.iter().all(|name| is_up(net, name)));
    let ping = begin_ping(&machines[1], &interface(&net, "r1"), 400);
    net.until(|net| NAMES.iter().any(|name| says_so(net, name)));
    assert_eq!(end_ping(ping), 400, "hops that fail lose nothing");
    mends(&machines);
    net.until(both_hop);

    let before = failed(&net);
    let ping = begin_ping(&machines[1], &interface(&net, "r1"), 800);
    std::thread::sleep(Duration::from_secs(1));
    let began = Instant::now();
    breaks(&machines);
    net.until(|net| NAMES.iter().any(|name| hop(net, name).unwrap()["state"] == "fixed"));
    net.until(|net| NAMES.iter().all(|name| is_up(net, name)));
    let took = began.elapsed();
    let came = end_ping(ping);
    // What went to the addresses in use is lost until the silence is noticed.
    assert!(came >= 500 && took < Duration::from_secs(6), "{came} of 800, {took:?}");
    let ping = begin_ping(&machines[1], &interface(&net, "r1"), 100);
    assert_eq!(end_ping(ping), 100);
    assert!(failed(&net) >= before);
}

/// Rules of a router between the machines, at the end of one of them.
fn rules(machine: &Namespace, rule: &str) {
    let table = "add table ip6 router; \
        add chain ip6 router in { type filter hook prerouting priority -300; }; ";
    run(machine, &["nft", &format!("{table}add rule ip6 router in {rule} drop")]);
}

fn no_rules(machine: &Namespace) {
    run(machine, &["nft", "delete table ip6 router"]);
}

#[test]
fn a_router_that_drops_unknown_sources() {
    let rule = format!("ip6 saddr {}", PREFIXES[1]);
    falls_back(|machines| rules(&machines[0], &rule), |machines| no_rules(&machines[0]));
}

#[test]
fn a_prefix_that_nobody_brings_to_this_machine() {
    let rule = format!("ip6 daddr {}", PREFIXES[1]);
    falls_back(|machines| rules(&machines[1], &rule), |machines| no_rules(&machines[1]));
}

#[test]
fn a_neighbour_that_has_no_route_to_the_prefix() {
    let route = |what, machine: &Namespace| {
        run(machine, &["ip", "-6", "route", what, PREFIXES[1], "via", PLACES[1]]);
    };
    falls_back(|machines| route("del", &machines[0]), |machines| route("add", &machines[0]));
}

/// The error of a kernel that has no room for another neighbour (EINVAL; gc_thresh3 is one number
/// for all namespaces of a machine).
#[test]
fn a_kernel_that_refuses_each_frame_to_new_addresses() {
    let route = |what, machine: &Namespace| {
        let of_kind = ["ip", "-6", "route", what, "blackhole", PREFIXES[1], "metric", "1"];
        run(machine, &of_kind);
    };
    falls_back(|machines| route("add", &machines[0]), |machines| route("del", &machines[0]));
}

#[test]
fn a_node_without_ipv6() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let machines = machines();
    for which in ["all", "default"] {
        let key = format!("net.ipv6.conf.{which}.disable_ipv6=1");
        run(&machines[1], &["sysctl", "-qw", &key]);
    }
    let net = nodes();
    // It says what is missing and does not start.
    let config = net.config("h1");
    let text = std::fs::read_to_string(&config).unwrap().replace("[interface]\n", "");
    std::fs::write(&config, &text).unwrap();
    let mut command = shoal_e2e::shoal(&["run", "-c", config.to_str().unwrap()]);
    let output = machines[1].enter(|| Ok(command.output()?)).unwrap();
    let said = shoal_e2e::text(&output).1;
    assert!(!output.status.success() && said.contains("is IPv6 turned off"), "{said}");
}

/// Which wires the two machines have beside the one of IPv6.
const FOUR: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

/// A neighbour that has no IPv6, and so no prefix, is called by IPv4: its link carries everything,
/// does not hop, and the node that wants it to says why.
#[test]
fn a_neighbour_without_ipv6() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let machines = machines();
    for (machine, ip) in machines.iter().zip(FOUR) {
        run(machine, &["ip", "addr", "add", &format!("{ip}/24"), "dev", "wire"]);
    }
    let mut net = nodes();
    let edit = |name: &str, change: &dyn Fn(String) -> String| {
        let text = std::fs::read_to_string(net.config(name)).unwrap();
        std::fs::write(net.config(name), change(text)).unwrap();
    };
    edit("r1", &|text| text.replace("[\"[::]:", &format!("[\"0.0.0.0:{PORT}\", \"[::]:")));
    edit("h1", &|text| {
        let (text, _hop) = text.split_once("[hop]").unwrap();
        let text = text.replace("hop = \"1s\"\n", "").replace("[::]", "0.0.0.0");
        text.replace(&format!("[{}]", PLACES[0]), FOUR[0]) + "[interface]\n"
    });
    for (machine, name) in machines.iter().zip(NAMES) {
        start(&mut net, machine, name, &[]);
    }
    net.until(|net| NAMES.iter().all(|name| is_up(net, name)));
    let ping = begin_ping(&machines[1], &interface(&net, "r1"), 300);
    assert_eq!(end_ping(ping), 300);
    assert_eq!(hop(&net, "r1").unwrap()["state"], "alone");
    let said = shown(&net, "r1", &["peers"]);
    assert!(said.contains("the neighbour's addresses don't hop"), "{said}");
    assert_eq!(hop(&net, "h1").unwrap(), Value::Null);
}

/// Without CAP_BPF the kernel takes the older kind of filter, which drops as much and counts
/// nothing.
#[test]
fn a_filter_that_may_not_count_drops_what_comes_to_other_addresses() {
    let tools = [Need::Tool("setpriv")];
    if !shoal_e2e::tun_possible()
        || !shoal_e2e::ipv6()
        || !needs::met(&tools, "SHOAL_REQUIRE_NETNS")
    {
        return;
    }
    let machines = machines();
    let mut net = nodes();
    let mut fewer = Command::new("setpriv");
    fewer.args(["--bounding-set", "-bpf,-sys_admin"]).arg(shoal_e2e::program());
    fewer.args(["run", "-c", net.config("r1").to_str().unwrap()]);
    start_by(&mut net, &machines[0], "r1", fewer);
    start(&mut net, &machines[1], "h1", &[]);
    net.until(both_hop);
    let status = |name: &str| net.ask(name, &["status"]).unwrap()["status"].clone();
    assert_eq!(status("r1")["hop"]["filter"], "plain");
    let count = |name: &str, reason: &str| {
        let drops = status(name)["drops"].as_array().unwrap().clone();
        let of = drops.iter().find(|drop| drop[0] == reason);
        of.map_or(0, |drop| drop[1].as_u64().unwrap())
    };
    let before = failed(&net);
    let strangers = |from: &Namespace, prefix: &str| {
        from.enter(|| {
            let socket = UdpSocket::bind("[::]:0")?;
            let to = format!("[{}:dead:beef:1:2]:{PORT}", prefix.trim_end_matches("::/64"));
            for _ in 0..500 {
                socket.send_to(&[7; 100], &to)?;
            }
            Ok(())
        })
    };
    strangers(&machines[1], PREFIXES[0]).unwrap();
    strangers(&machines[0], PREFIXES[1]).unwrap();
    for (name, reason) in [("r1", "stale_or_overflow"), ("h1", "stale_address")] {
        net.until(|_| count(name, reason) >= 500);
    }
    assert_eq!(count("r1", "stale_address"), 0);
    let ping = begin_ping(&machines[1], &interface(&net, "r1"), 300);
    assert_eq!(end_ping(ping), 300);
    assert!(both_hop(&net) && failed(&net) == before);
}

/// The kernel refuses another prefix: the reload says so, and addresses hop where they did. When
/// nothing is in the way any more, the next reload moves them, of a node that gave up root, and
/// nothing is lost.
#[test]
fn another_prefix_that_the_kernel_refuses_changes_nothing_until_it_does_not() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let machines = machines();
    let mut net = nodes();
    let file = net.config("h1");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("[node]\n", "[node]\nuser = \"nobody\"\n")).unwrap();
    std::fs::set_permissions(net.root(), PermissionsExt::from_mode(0o755)).unwrap();
    run(&machines[1], &["chown", "-R", "nobody", net.dir("h1").to_str().unwrap()]);
    for (machine, name) in machines.iter().zip(NAMES) {
        start(&mut net, machine, name, &[]);
    }
    net.until(both_hop);
    let before = failed(&net);
    let (from, to) = (PREFIXES[1], "fd42:b:0:2::/64");
    run(&machines[0], &["ip", "-6", "route", "add", to, "via", PLACES[1]]);
    let local = || run(&machines[1], &["ip", "-6", "route", "show", "table", "local"]);
    let taken = |what| run(&machines[1], &["ip", "-6", "route", what, "local", to, "dev", "lo"]);
    taken("add");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace(from, to)).unwrap();
    let reload = |net: &Net| {
        let output = net.command("h1", &["reload"]).output().unwrap();
        (output.status.success(), shoal_e2e::text(&output))
    };
    let ping = begin_ping(&machines[1], &interface(&net, "r1"), 1_000);
    let (done, (_, said)) = reload(&net);
    assert!(!done && said.contains("[hop] prefix: the kernel takes no local route"), "{said}");
    let is_told = |net: &Net, prefix: &str| shown(net, "h1", &["status"]).contains(prefix);
    assert!(is_told(&net, from) && local().contains(from));
    assert_eq!(end_ping(ping), 1_000);
    taken("del");

    let ping = begin_ping(&machines[1], &interface(&net, "r1"), 1_000);
    let (done, (said, error)) = reload(&net);
    assert!(done && said.contains("hop.prefix"), "{said}{error}");
    assert!(is_told(&net, to) && !is_told(&net, from) && !is_told(&net, "refuse"));
    assert!(local().contains(from) && local().contains(to), "both, for a while");
    assert_eq!(end_ping(ping), 1_000, "nothing is lost");
    net.until(|_| !local().contains(from));
    // Nothing leads to the former one any more.
    run(&machines[0], &["ip", "-6", "route", "del", from, "via", PLACES[1]]);
    let ping = begin_ping(&machines[1], &interface(&net, "r1"), 300);
    assert_eq!(end_ping(ping), 300);
    assert!(both_hop(&net) && failed(&net) == before);
    assert_eq!(net.end("h1", "-TERM"), Some(0));
    assert!(!local().contains("fd42:"), "{}", local());
}
