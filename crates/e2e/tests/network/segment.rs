//! Shifting addresses on a segment: a bridge with a router and a host, whose interfaces get them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use shoal_e2e::LoopbackNet;
use shoal_e2e::shifting::{
    self, NAMES, begin_ping, end_ping, interface, run, settle_at_once, shift, shown,
};
use shoal_lab::namespace::Namespace;

const PREFIX: &str = "fd42::/64";
/// Lifetime of an address that nobody renews, in seconds.
const LIFETIME_S: u64 = 30;

/// A bridge, and two machines at it with one address each.
fn segment() -> (Namespace, [Namespace; 2]) {
    let [bridge, r1, h1] = [0, 1, 2].map(|_| Namespace::new().unwrap());
    run(&bridge, &["ip", "link", "add", "switch", "type", "bridge"]);
    run(&bridge, &["ip", "link", "set", "switch", "up"]);
    for (machine, port, at) in [(&r1, "to-r1", "fd42::1/64"), (&h1, "to-h1", "fd42::2/64")] {
        join(&bridge, machine, port, at);
    }
    (bridge, [r1, h1])
}

/// Connects a machine to the bridge.
fn join(bridge: &Namespace, machine: &Namespace, port: &str, at: &str) {
    settle_at_once(machine);
    let there = format!("/proc/{}/fd/{}", std::process::id(), machine.raw_fd());
    let pair = ["ip", "link", "add", port, "type", "veth", "peer", "name", "wire"];
    run(bridge, &[&pair[..], &["netns", &there]].concat());
    run(bridge, &["ip", "link", "set", port, "master", "switch", "up"]);
    run(machine, &["ip", "addr", "add", at, "dev", "wire", "nodad"]);
    run(machine, &["ip", "link", "set", "wire", "up"]);
}

/// Configures a node of `net` to use the segment.
fn configure(net: &LoopbackNet, name: &str, more: &str) {
    let text = std::fs::read_to_string(net.config(name)).unwrap();
    let lines = text.lines().map(|line| match line.split(' ').next() {
        Some("listen") => "listen = [\"[::]:7400\"]".to_string(),
        Some("endpoint") => "endpoint = \"[fd42::1]:7400\"".to_string(),
        _ => line.replace("[[link]]", "[[link]]\nshift = \"1s\""),
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    let shift = format!("\n[shift]\nprefix = \"{PREFIX}\"\n{more}");
    std::fs::write(net.config(name), text + &shift).unwrap();
}

fn start(net: &mut LoopbackNet, namespace: &Namespace, name: &str) {
    shifting::start(net, namespace, name, &[]);
    net.until(|net| net.ask(name, &["status"]).is_some());
}

fn wait_until_shifting(net: &LoopbackNet) {
    net.until(shifting::both_shift);
}

/// Temporary addresses of the prefix on the interface, with their flags.
fn passing(namespace: &Namespace) -> Vec<Value> {
    let shown = run(namespace, &["ip", "-j", "-6", "addr", "show", "dev", "wire"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let all = shown[0]["addr_info"].as_array().unwrap();
    let shifts = |at: &&Value| {
        at["local"].as_str().is_some_and(|ip| ip.starts_with("fd42:")) && at["prefixlen"] == 128
    };
    all.iter().filter(shifts).cloned().collect()
}

/// Temporary addresses while there are at least three: those of the epochs before, now and next. On
/// a busy machine one of them can come late.
fn three_or_more(machine: &Namespace) -> Vec<Value> {
    let began = Instant::now();
    loop {
        let seen = passing(machine);
        let is_late = began.elapsed() > Duration::from_secs(10);
        assert!(seen.len() <= 12 && !is_late, "{seen:?}");
        if seen.len() >= 3 {
            return seen;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn addresses_on_a_segment_come_go_and_leave_nothing() {
    if !shoal_e2e::namespaces() || !shoal_e2e::ipv6() {
        return;
    }
    let (_bridge, [r1, h1]) = segment();
    let mut net = LoopbackNet::new(&["r1", "h1"]);
    configure(&net, "r1", "");
    let direct = "[direct]\nmode = \"on-demand\"\n";
    configure(&net, "h1", &format!("mode = \"segment\"\n{direct}"));
    start(&mut net, &r1, "r1");
    start(&mut net, &h1, "h1");
    wait_until_shifting(&net);
    let status = net.ask("r1", &["status"]).unwrap();
    let told = &status["status"]["shift"];
    assert_eq!((&told["mode"], &told["interface"]), (&"segment".into(), &"wire".into()), "{told}");

    let before = shift(&net, "r1").unwrap();
    std::thread::sleep(Duration::from_secs(6));
    let after = shift(&net, "r1").unwrap();
    let made = |shift: &Value| shift["made"].as_u64().unwrap();
    assert!(made(&after) >= made(&before) + 4, "{before} {after}");
    assert_eq!(after["failed"], before["failed"]);
    for machine in [&r1, &h1] {
        for at in three_or_more(machine) {
            assert!(at["valid_life_time"].as_u64().unwrap() <= LIFETIME_S, "{at}");
            let flags = ["nodad", "noprefixroute", "deprecated"];
            assert!(flags.iter().all(|flag| at[flag] == true), "{at}");
        }
    }
    let (probed, said) = {
        let output = net.command("r1", &["check", "--shift-probe"]).output().unwrap();
        (output.status.code(), shoal_e2e::text(&output))
    };
    assert_eq!(probed, Some(0), "{said:?}");

    assert_eq!(net.end("h1", "-TERM"), Some(0));
    assert_eq!(passing(&h1), Vec::<Value>::new());
    start(&mut net, &h1, "h1");
    wait_until_shifting(&net);
    net.end("h1", "-KILL");
    let left = passing(&h1);
    assert!(!left.is_empty());
    // The kernel removes these.
    let ends = |at: &Value| at["valid_life_time"].as_u64().is_some_and(|s| s <= LIFETIME_S);
    assert!(left.iter().all(ends), "{left:?}");
    start(&mut net, &h1, "h1");
    wait_until_shifting(&net);
    nothing_left_is_taken_for_its_own(&net, &h1, &left);
    follows_addresses_that_stay(&net, &h1);
}

/// Addresses at which a node says that it can be called.
fn told(net: &LoopbackNet, name: &str) -> Vec<String> {
    let seen = net.ask(name, &["netcheck"]).unwrap();
    let locals = seen["netcheck"]["locals"].as_array().unwrap_or_else(|| panic!("{seen}"));
    let told = locals.iter().filter_map(|at| at.as_str()).filter(|at| at.starts_with("[fd42:"));
    told.map(str::to_string).collect()
}

/// A node that starts again accepts nothing at addresses that its killed process left, and
/// announces none of them.
fn nothing_left_is_taken_for_its_own(net: &LoopbackNet, machine: &Namespace, left: &[Value]) {
    let is_left = |at: &&Value| left.iter().any(|gone| gone["local"] == at["local"]);
    assert!(passing(machine).iter().any(|at| is_left(&at)), "the addresses are still there");
    // The permanent address, and the shifting ones.
    net.until(|net| {
        let status = net.ask("h1", &["status"]).unwrap();
        let now = passing(machine).iter().filter(|at| !is_left(at)).count();
        status["status"]["shift"]["addresses"].as_u64() == Some(1 + now as u64)
    });
    assert_eq!(told(net, "h1"), ["[fd42::2]:7400"]);
}

/// An address that the machine gets while the node runs soon becomes one of its own. A lost address
/// soon is none.
fn follows_addresses_that_stay(net: &LoopbackNet, machine: &Namespace) {
    let with = ["[fd42::2]:7400", "[fd42::9]:7400"];
    for (what, there) in [("add", &with[..]), ("del", &with[..1])] {
        run(machine, &["ip", "addr", what, "fd42::9/64", "dev", "wire"]);
        net.until(|net| {
            let mut told = told(net, "h1");
            told.sort();
            told == there
        });
    }
}

/// Neither end has a fixed endpoint: the interfaces also get the addresses at which both meet.
#[test]
fn nodes_of_a_segment_meet_without_an_endpoint() {
    if !shoal_e2e::namespaces() || !shoal_e2e::ipv6() {
        return;
    }
    let (_bridge, machines) = segment();
    let mut net = LoopbackNet::new(&["r1", "h1"]);
    let meets = format!("shift = \"1s\"\nrendezvous = \"[{PREFIX}]:7400\"");
    for (name, machine) in ["r1", "h1"].iter().zip(&machines) {
        configure(&net, name, "mode = \"segment\"\n");
        let text = std::fs::read_to_string(net.config(name)).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with("endpoint"));
        let text = lines.collect::<Vec<_>>().join("\n").replace("shift = \"1s\"", &meets);
        std::fs::write(net.config(name), text).unwrap();
        start(&mut net, machine, name);
    }
    wait_until_shifting(&net);
    let status = net.ask("r1", &["status"]).unwrap();
    assert_eq!(status["status"]["shift"]["mode"], "segment");
    net.end("h1", "-KILL");
    start(&mut net, &machines[1], "h1");
    wait_until_shifting(&net);
}

/// Addresses that a node will use next: those that its neighbour's kernel has not seen yet.
fn next(machine: &Namespace, neighbour: &Namespace) -> Vec<String> {
    let seen = run(neighbour, &["ip", "-6", "neigh", "show", "dev", "wire"]);
    let seen: Vec<&str> = seen.lines().filter_map(|line| line.split(' ').next()).collect();
    let all =
        passing(machine).into_iter().filter_map(|at| at["local"].as_str().map(str::to_string));
    all.filter(|ip| !seen.contains(&ip.as_str())).collect()
}

/// Another machine of the segment has the address that a node will use next, and the neighbour's
/// kernel knows that machine. The node's kernel finds no collision, since it looks for none. The
/// shift's steps reach nobody, so both ends fall back and say so. Nothing is lost, and the next
/// epoch's addresses are used.
#[test]
fn an_address_that_another_machine_has_makes_one_shift_fail_and_loses_nothing() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let (bridge, [r1, h1]) = segment();
    let other = Namespace::new().unwrap();
    join(&bridge, &other, "to-other", "fd42::3/64");
    let link: Value =
        serde_json::from_str(&run(&other, &["ip", "-j", "link", "show", "dev", "wire"])).unwrap();
    let mac = link[0]["address"].as_str().unwrap();
    let mut net = LoopbackNet::new(&NAMES);
    for (name, machine) in NAMES.iter().zip([&r1, &h1]) {
        configure(&net, name, "mode = \"segment\"\n[interface]\n");
        let text = std::fs::read_to_string(net.config(name)).unwrap();
        std::fs::write(net.config(name), text.replace("\"1s\"", "\"4s\"")).unwrap();
        start(&mut net, machine, name);
    }
    wait_until_shifting(&net);
    let made = |net: &LoopbackNet| shift(net, "r1").unwrap()["made"].as_u64().unwrap();
    let failed = |net: &LoopbackNet| shift(net, "r1").unwrap()["failed"].as_u64().unwrap();
    let (before, failed_before) = (made(&net), failed(&net));
    net.until(|net| made(net) > before);
    let ping = begin_ping(&h1, &interface(&net, "r1"), 1_200);
    let taken = next(&h1, &r1);
    assert!(!taken.is_empty());
    for ip in &taken {
        run(&other, &["ip", "addr", "add", &format!("{ip}/128"), "dev", "wire", "nodad"]);
        let entry = ["ip", "-6", "neigh", "replace", ip, "lladdr", mac, "dev", "wire"];
        run(&r1, &[&entry[..], &["nud", "permanent"]].concat());
    }
    let mut said = false;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(11) && !said {
        let fixed = shift(&net, "r1").unwrap()["state"] == "fixed";
        said = fixed && shown(&net, "r1", &["status"]).contains("nothing came back");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(said && failed(&net) > failed_before, "{:?}", shift(&net, "r1"));
    assert_eq!(end_ping(ping), 1_200);
    wait_until_shifting(&net);
}

/// A machine that looks for an address before it takes it finds one that is in use.
#[test]
fn a_machine_that_looks_for_others_takes_no_address_that_shifts() {
    if !shoal_e2e::namespaces() || !shoal_e2e::ipv6() {
        return;
    }
    let (bridge, [r1, h1]) = segment();
    let other = Namespace::new().unwrap();
    join(&bridge, &other, "to-other", "fd42::3/64");
    run(&other, &["sysctl", "-qw", "net.ipv6.conf.wire.accept_dad=1"]);
    let mut net = LoopbackNet::new(&NAMES);
    for (name, machine) in NAMES.iter().zip([&r1, &h1]) {
        configure(&net, name, "mode = \"segment\"\n");
        let text = std::fs::read_to_string(net.config(name)).unwrap();
        std::fs::write(net.config(name), text.replace("\"1s\"", "\"20s\"")).unwrap();
        start(&mut net, machine, name);
    }
    wait_until_shifting(&net);
    let used = passing(&h1)[0]["local"].as_str().unwrap().to_string();
    run(&other, &["ip", "addr", "add", &format!("{used}/64"), "dev", "wire"]);
    net.until(|_| run(&other, &["ip", "-6", "addr", "show", "dev", "wire"]).contains("dadfailed"));
    assert!(shifting::both_shift(&net));
}

/// A node that drops root keeps, in one thread, only the capability to change addresses. It leaves
/// nothing at its end.
#[test]
fn a_node_that_becomes_another_user_shifts_and_leaves_nothing() {
    if !shoal_e2e::namespaces() || !shoal_e2e::ipv6() {
        return;
    }
    let (_bridge, [r1, h1]) = segment();
    let mut net = LoopbackNet::new(&NAMES);
    for name in NAMES {
        configure(&net, name, "mode = \"segment\"\n");
    }
    let text = std::fs::read_to_string(net.config("h1")).unwrap();
    std::fs::write(net.config("h1"), text.replace("[node]\n", "[node]\nuser = \"nobody\"\n"))
        .unwrap();
    std::fs::set_permissions(net.root(), PermissionsExt::from_mode(0o755)).unwrap();
    run(&h1, &["chown", "-R", "nobody", net.dir("h1").to_str().unwrap()]);
    start(&mut net, &r1, "r1");
    start(&mut net, &h1, "h1");
    wait_until_shifting(&net);
    let before = shift(&net, "r1").unwrap();
    std::thread::sleep(Duration::from_secs(4));
    let after = shift(&net, "r1").unwrap();
    assert!(after["made"].as_u64() >= before["made"].as_u64().map(|made| made + 3), "{after}");
    assert_eq!(after["failed"], before["failed"]);
    let status = net.ask("h1", &["status"]).unwrap();
    let pid = status["status"]["pid"].as_u64().unwrap();
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let rights = threads.filter_map(|thread| {
        // A thread may end while it is looked at.
        let text = std::fs::read_to_string(thread.ok()?.path().join("status")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("CapPrm:\t"))?.to_string();
        Some(line).filter(|rights| !rights.trim_matches('0').is_empty())
    });
    assert_eq!(rights.collect::<Vec<_>>(), ["0000000000001000"], "CAP_NET_ADMIN, once");
    assert_eq!(net.end("h1", "-TERM"), Some(0));
    assert_eq!(passing(&h1), Vec::<Value>::new());
}

/// The segment's prefix changes, and a reload makes addresses shift under the new one. The nodes'
/// fixed endpoints stay under the former one.
#[test]
fn a_reload_moves_addresses_to_another_prefix_of_the_segment() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let (_bridge, machines) = segment();
    let mut net = LoopbackNet::new(&NAMES);
    for (name, machine) in NAMES.iter().zip(&machines) {
        configure(&net, name, "[interface]\n");
        start(&mut net, machine, name);
    }
    wait_until_shifting(&net);
    let failed = |net: &LoopbackNet| NAMES.map(|name| shift(net, name).unwrap()["failed"].clone());
    let before = failed(&net);
    let edit = |name: &str| {
        let text = std::fs::read_to_string(net.config(name)).unwrap();
        std::fs::write(net.config(name), text.replace(PREFIX, "fd43::/64")).unwrap();
        let output = net.command(name, &["reload"]).output().unwrap();
        (output.status.success(), shoal_e2e::text(&output))
    };
    // The reload is refused: addresses would have to be routed here.
    let (done, said) = edit("h1");
    assert!(!done && said.1.contains("no interface has an address under"), "{said:?}");
    assert!(shown(&net, "h1", &["status"]).contains(PREFIX));
    let ping = begin_ping(&machines[1], &interface(&net, "r1"), 1_000);
    for (n, name) in NAMES.iter().enumerate() {
        let own = format!("fd43::{}/64", n + 1);
        run(&machines[n], &["ip", "addr", "add", &own, "dev", "wire", "nodad"]);
        let (done, said) = edit(name);
        assert!(done && said.0.contains("shift.prefix"), "{said:?}");
        assert!(shown(&net, name, &["status"]).contains(" of fd43::/64 in use"));
    }
    assert_eq!(end_ping(ping), 1_000, "nothing is lost");
    assert!(shifting::both_shift(&net));
    assert_eq!(failed(&net), before);
    // A node that ends removes all addresses, even under the former prefix.
    let under = |machine: &Namespace, prefix: &str| {
        let shown = run(machine, &["ip", "-6", "addr", "show", "dev", "wire"]);
        shown.lines().filter(|line| line.contains(prefix) && line.contains("/128")).count()
    };
    assert!(under(&machines[1], "fd42:") > 0 && under(&machines[1], "fd43:") > 0);
    assert_eq!(net.end("h1", "-TERM"), Some(0));
    assert_eq!(under(&machines[1], "fd4"), 0);
    // The host calls the router's permanent address, while the former prefix still counts there.
    let began = Instant::now();
    start(&mut net, &machines[1], "h1");
    wait_until_shifting(&net);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(under(&machines[0], "fd42:") > 0);
    net.until(|_| under(&machines[0], "fd42:") == 0);
    assert!(shifting::both_shift(&net) && under(&machines[0], "fd43:") >= 3);
    assert_eq!(net.end("r1", "-TERM"), Some(0));
    assert_eq!(under(&machines[0], "fd4"), 0);
}

fn edit(file: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{from:?} is not in {text}");
    std::fs::write(file, text.replace(from, to)).unwrap();
}

/// The file moves addresses from a routed prefix to the segment's, and back. Each time the reload
/// is refused with a remedy, and the former prefix stays in force. A restart uses the other one.
#[test]
fn a_reload_between_a_routed_prefix_and_a_segment_is_refused_and_a_restart_does_it() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    const ROUTED: &str = "fd44::/64";
    let (_bridge, [r1, _h1]) = segment();
    let mut net = LoopbackNet::new(&NAMES);
    configure(&net, "r1", "");
    let file = net.config("r1");
    edit(&file, PREFIX, ROUTED);
    start(&mut net, &r1, "r1");
    let now = |net: &LoopbackNet| {
        let shift = net.ask("r1", &["status"]).unwrap()["status"]["shift"].clone();
        ["mode", "prefix"].map(|key| shift[key].as_str().unwrap().to_owned())
    };
    let to_segment = format!(
        "[shift] prefix: an interface has an address under {PREFIX}, so the prefix belongs to a \
         segment, but addresses are routed: restart, or set mode = \"routed\""
    );
    let to_routed = format!(
        "[shift] prefix: no interface has an address under {ROUTED}: give wire one; or, if the \
         prefix is routed to this machine, restart"
    );
    for (before, after, refusal) in [
        (["routed", ROUTED], ["segment", PREFIX], to_segment),
        (["segment", PREFIX], ["routed", ROUTED], to_routed),
    ] {
        assert_eq!(now(&net), before);
        edit(&file, before[1], after[1]);
        let output = net.command("r1", &["reload"]).output().unwrap();
        let said = shoal_e2e::text(&output).1;
        assert!(!output.status.success() && said.contains(&refusal), "{said}");
        assert_eq!(now(&net), before, "nothing changes");
        assert_eq!(net.end("r1", "-TERM"), Some(0));
        start(&mut net, &r1, "r1");
        assert_eq!(now(&net), after);
    }
    // Another mode, or no section at all, is no error, and waits for the restart.
    let waiting =
        |net: &LoopbackNet| net.ask("r1", &["reload"]).unwrap()["reload"]["needs_restart"].clone();
    edit(&file, ROUTED, PREFIX);
    edit(&file, "[shift]\n", "[shift]\nmode = \"segment\"\n");
    assert_eq!(waiting(&net), serde_json::json!(["shift.prefix", "shift.mode"]));
    let text = std::fs::read_to_string(&file).unwrap();
    let (without, _) = text.split_once("[shift]").unwrap();
    std::fs::write(&file, without.replace("shift = \"1s\"\n", "")).unwrap();
    assert_eq!(waiting(&net), serde_json::json!(["shift"]));
    assert_eq!(now(&net), ["routed", ROUTED]);
}

#[test]
fn a_segment_that_is_not_there_is_an_error_that_says_what_to_do() {
    if !shoal_e2e::namespaces() || !shoal_e2e::ipv6() {
        return;
    }
    let net = LoopbackNet::new(&["r1", "h1"]);
    configure(&net, "h1", "mode = \"segment\"\n");
    let output = net.command("h1", &["check"]).output().unwrap();
    let (out, err) = shoal_e2e::text(&output);
    assert_eq!(output.status.code(), Some(4), "{out}{err}");
    assert!(err.contains("no interface of this machine has an address under fd42::/64"), "{err}");
    // In automatic mode the prefix would be routed here, with the neighbour's endpoint in it.
    let text = std::fs::read_to_string(net.config("h1")).unwrap();
    std::fs::write(net.config("h1"), text.replace("mode = \"segment\"\n", "")).unwrap();
    let (out, err) = shoal_e2e::text(&net.command("h1", &["check"]).output().unwrap());
    assert!(out.contains("the endpoint of link \"r1\" is under it"), "{out}{err}");
}
