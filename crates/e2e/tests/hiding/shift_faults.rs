//! Faults around a link whose addresses should shift: nothing is lost, and both ends fall back and
//! say so.

use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use shoal_e2e::LoopbackNet;
use shoal_e2e::shifting::{
    NAMES, PLACES, PORT, PREFIXES, begin_ping, both_shift, end_ping, interface, is_up, machines,
    run, shift, shown, start, start_by,
};
use shoal_lab::namespace::Namespace;
use shoal_lab::needs::{self, Requirement};

/// The warning of a link whose addresses should shift and don't.
const SAYS: &str = "nothing came back from the new ones";

/// Two nodes whose link has a fixed endpoint, and should shift each second.
fn nodes() -> LoopbackNet {
    let net = LoopbackNet::new(&NAMES);
    for (n, name) in NAMES.iter().enumerate() {
        let text = std::fs::read_to_string(net.config(name)).unwrap();
        let lines = text.lines().map(|line| match line.split(' ').next() {
            Some("listen") => format!("listen = [\"[::]:{PORT}\"]"),
            Some("endpoint") => format!("endpoint = \"[{}]:{PORT}\"", PLACES[0]),
            _ => line.replace("[[link]]", "[[link]]\nshift = \"1s\""),
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        let shift = format!("\n[shift]\nprefix = \"{}\"\nmode = \"routed\"\n", PREFIXES[n]);
        std::fs::write(net.config(name), text + &shift + "[interface]\n").unwrap();
    }
    net
}

/// True if a node reports that its link does not shift for now, and why.
fn says_so(net: &LoopbackNet, name: &str) -> bool {
    let shift = shift(net, name).unwrap_or_default();
    shift["state"] == "fixed"
        && shift["last"] == "failed"
        && shown(net, name, &["peers"]).contains("fixed for now (every 1 s wanted")
        && shown(net, name, &["status"]).contains(SAYS)
}

fn failed(net: &LoopbackNet) -> u64 {
    let of = |name: &&str| shift(net, name).and_then(|shift: Value| shift["failed"].as_u64());
    NAMES.iter().filter_map(of).sum()
}

/// With a fault from the start, the link is up and carries all traffic, and both ends report that
/// it does not shift. Without the fault, the link shifts. When the fault returns, the link soon
/// uses its former endpoints.
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
    assert_eq!(end_ping(ping), 400, "shifts that fail lose nothing");
    mends(&machines);
    net.until(both_shift);

    let before = failed(&net);
    let ping = begin_ping(&machines[1], &interface(&net, "r1"), 800);
    std::thread::sleep(Duration::from_secs(1));
    let began = Instant::now();
    breaks(&machines);
    net.until(|net| NAMES.iter().any(|name| shift(net, name).unwrap()["state"] == "fixed"));
    net.until(|net| NAMES.iter().all(|name| is_up(net, name)));
    let took = began.elapsed();
    let came = end_ping(ping);
    // Packets to the current addresses are lost until the silence is noticed.
    assert!(came >= 500 && took < Duration::from_secs(6), "{came} of 800, {took:?}");
    // The other end notices the silence a little later, and sends to moved addresses until then.
    net.until(|net| end_ping(begin_ping(&machines[1], &interface(net, "r1"), 100)) == 100);
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
    // The node reports what is missing, and does not start.
    let config = net.config("h1");
    let text = std::fs::read_to_string(&config).unwrap().replace("[interface]\n", "");
    std::fs::write(&config, &text).unwrap();
    let mut command = shoal_e2e::shoal(&["run", "-c", config.to_str().unwrap()]);
    let output = machines[1].enter(|| Ok(command.output()?)).unwrap();
    let said = shoal_e2e::text(&output).1;
    assert!(!output.status.success() && said.contains("is IPv6 turned off"), "{said}");
}

/// IPv4 addresses of the two machines.
const FOUR: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

/// A neighbour without IPv6, and so without a prefix, is called by IPv4. Its link carries all
/// traffic and does not shift, and the other node says why.
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
        let (text, _shift) = text.split_once("[shift]").unwrap();
        let text = text.replace("shift = \"1s\"\n", "").replace("[::]", "0.0.0.0");
        text.replace(&format!("[{}]", PLACES[0]), FOUR[0]) + "[interface]\n"
    });
    for (machine, name) in machines.iter().zip(NAMES) {
        start(&mut net, machine, name, &[]);
    }
    net.until(|net| NAMES.iter().all(|name| is_up(net, name)));
    let ping = begin_ping(&machines[1], &interface(&net, "r1"), 300);
    assert_eq!(end_ping(ping), 300);
    assert_eq!(shift(&net, "r1").unwrap()["state"], "alone");
    let said = shown(&net, "r1", &["peers"]);
    assert!(said.contains("the neighbour's addresses don't shift"), "{said}");
    assert_eq!(shift(&net, "h1").unwrap(), Value::Null);
}

/// Without CAP_BPF the kernel accepts only the older kind of filter, which drops the same datagrams
/// but counts none.
#[test]
fn a_filter_that_may_not_count_drops_what_comes_to_other_addresses() {
    let tools = [Requirement::Tool("setpriv")];
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
    net.until(both_shift);
    let status = |name: &str| net.ask(name, &["status"]).unwrap()["status"].clone();
    assert_eq!(status("r1")["shift"]["filter"], "plain");
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
    assert!(both_shift(&net) && failed(&net) == before);
}

/// The kernel refuses another prefix: the reload reports it, and addresses keep shifting under the
/// former one. Once the obstacle is gone, the next reload moves them, on a node that dropped root,
/// and nothing is lost.
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
    net.until(both_shift);
    let before = failed(&net);
    let (from, to) = (PREFIXES[1], "fd42:b:0:2::/64");
    run(&machines[0], &["ip", "-6", "route", "add", to, "via", PLACES[1]]);
    let local = || run(&machines[1], &["ip", "-6", "route", "show", "table", "local"]);
    let taken = |what| run(&machines[1], &["ip", "-6", "route", what, "local", to, "dev", "lo"]);
    taken("add");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace(from, to)).unwrap();
    let reload = |net: &LoopbackNet| {
        let output = net.command("h1", &["reload"]).output().unwrap();
        (output.status.success(), shoal_e2e::text(&output))
    };
    let ping = begin_ping(&machines[1], &interface(&net, "r1"), 1_000);
    let (done, (_, said)) = reload(&net);
    assert!(!done && said.contains("[shift] prefix: the kernel takes no local route"), "{said}");
    let is_told = |net: &LoopbackNet, prefix: &str| shown(net, "h1", &["status"]).contains(prefix);
    assert!(is_told(&net, from) && local().contains(from));
    assert_eq!(end_ping(ping), 1_000);
    taken("del");

    let ping = begin_ping(&machines[1], &interface(&net, "r1"), 1_000);
    let (done, (said, error)) = reload(&net);
    assert!(done && said.contains("shift.prefix"), "{said}{error}");
    assert!(is_told(&net, to) && !is_told(&net, from) && !is_told(&net, "refuse"));
    assert!(local().contains(from) && local().contains(to), "both, for a while");
    assert_eq!(end_ping(ping), 1_000, "nothing is lost");
    net.until(|_| !local().contains(from));
    // The route to the former prefix is removed.
    run(&machines[0], &["ip", "-6", "route", "del", from, "via", PLACES[1]]);
    let ping = begin_ping(&machines[1], &interface(&net, "r1"), 300);
    assert_eq!(end_ping(ping), 300);
    assert!(both_shift(&net) && failed(&net) == before);
    assert_eq!(net.end("h1", "-TERM"), Some(0));
    assert!(!local().contains("fd42:"), "{}", local());
}
