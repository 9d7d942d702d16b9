//! Shifting addresses between namespaces: nothing is lost, the wire shows new addresses each
//! second, and a killed node leaves nothing.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use shoal_daemon::control::api::{Command as Ask, ControlReply, LinkShiftStatus, Status};
use shoal_lab::namespace::Namespace;
use shoal_lab::network::IpFamily;
use shoal_lab::site::RunningNetwork;
use shoal_lab::{Conditions, Executable, Network, NetworkKind, Topology};

const PATIENCE: Duration = Duration::from_secs(60);
/// Text in the prefixes of all nodes and in no other address; then the text in their new prefixes.
const OURS: &str = "fd77:a:";
const THEIRS: &str = "fd77:b:";

fn prefix(node: usize) -> String {
    format!("{OURS}0:{node}::/64")
}

/// Runs a command in a namespace. Returns its output.
fn run(namespace: &Namespace, words: &[&str]) -> String {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    let output = namespace.enter(|| Ok(command.output()?)).unwrap();
    let (out, err) = shoal_e2e::text(&output);
    assert!(output.status.success(), "{words:?}: {out}{err}");
    out
}

/// Makes each node's addresses shift each second, routes its prefix to it, and records at the first
/// router where frames go.
fn prepare(network: &Network, folder: &Path) {
    let topology = network.topology();
    for (node, spec) in topology.nodes.iter().enumerate() {
        let file = folder.join(&spec.name).join("node.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text.replace("[[link]]\n", "[[link]]\nshift = \"1s\"\n");
        std::fs::write(&file, format!("{text}[shift]\nprefix = \"{}\"\n", prefix(node))).unwrap();
        for (_, neighbour) in topology.neighbours_of(node) {
            let via = network.ip_of(node, neighbour).unwrap().to_string();
            let namespace = network.namespace(node).unwrap();
            run(namespace, &["ip", "-6", "route", "add", &prefix(neighbour), "via", &via]);
        }
    }
    let watch = "add table ip6 watch; \
        add set ip6 watch seen { type ipv6_addr; flags dynamic; size 4096; }; \
        add chain ip6 watch in { type filter hook input priority 0; }; \
        add rule ip6 watch in ip6 daddr fd77:a::/32 update @seen { ip6 daddr }; \
        add rule ip6 watch in ip6 daddr != fd77:a::/32 udp length > 1400 counter";
    run(network.namespace(topology.find("r1").unwrap()).unwrap(), &["nft", watch]);
}

/// State of shifts on a node's link with another, if the node answers.
fn shift(site: &RunningNetwork, node: usize, peer: &str) -> Option<LinkShiftStatus> {
    let Ok(ControlReply::Peers(peers)) = site.ask(node, Ask::Peers) else { return None };
    let peer = peers.into_iter().find(|known| known.name == peer).unwrap();
    let endpoint = peer.endpoint.unwrap_or_default();
    assert!(!endpoint.contains(OURS), "shifting addresses are announced to nobody");
    peer.shift
}

/// Waits until the addresses of both ends of every link shift.
fn wait_until_shifting(site: &mut RunningNetwork) {
    let topology = site.network().topology().clone();
    for (node, spec) in topology.nodes.iter().enumerate() {
        for (_, neighbour) in topology.neighbours_of(node) {
            let name = &topology.nodes[neighbour].name;
            let what = format!("{} to shift with {name}", spec.name);
            let shifts = |site: &mut RunningNetwork| {
                let shift = shift(site, node, name);
                Ok(shift.filter(|shift| shift.state == "shifting").map(|_| ()))
            };
            site.wait(&what, PATIENCE, shifts).unwrap_or_else(|e| panic!("{e:#}"));
        }
    }
}

/// Begins to send a packet every 5 ms from host to host, for six seconds.
fn begin_ping(site: &RunningNetwork) -> Child {
    let at = |name| site.network().topology().find(name).unwrap();
    let far = site.interface(at("h2")).unwrap().to_string();
    let near = site.network().namespace(at("h1")).unwrap();
    let mut command = Command::new("ping");
    command.args(["-q", "-i", "0.005", "-c", "1200", "-W", "2", &far]).stdout(Stdio::piped());
    near.enter(|| Ok(command.spawn()?)).unwrap()
}

/// Numbers of answered and of sent packets.
fn end_ping(ping: Child) -> (u32, u32) {
    let (said, _) = shoal_e2e::text(&ping.wait_with_output().unwrap());
    let line = said.lines().find(|line| line.contains("transmitted")).unwrap();
    let mut numbers = line.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
    let sent = numbers.next().unwrap();
    (numbers.next().unwrap(), sent)
}

/// Makes h1 send datagrams to an address of r1's prefix that is not in use. Returns r1's counters
/// for them. They never reach r1's sockets.
fn flood(site: &RunningNetwork, datagrams: u64) -> [u64; 2] {
    let [h1, r1] = ["h1", "r1"].map(|name| site.network().topology().find(name).unwrap());
    let status = || match site.ask(r1, Ask::Status) {
        Ok(ControlReply::Status(status)) => *status,
        other => panic!("{other:?}"),
    };
    let dropped = |status: &Status, reason: &str| {
        status.drops.iter().find(|(known, _)| known == reason).map_or(0, |(_, n)| *n)
    };
    let before = status();
    let shift = before.shift.clone().unwrap();
    assert_eq!(shift.filter, "counting");
    // Two links; each has three epochs of at least one schedule.
    assert!((6..100).contains(&shift.addresses), "{shift:?}");
    let port = site.network().listen(r1).port();
    let to = prefix(r1).replace("::/64", &format!("::77]:{port}"));
    let near = site.network().namespace(h1).unwrap();
    near.enter(|| {
        let socket = std::net::UdpSocket::bind("[::]:0")?;
        for _ in 0..datagrams {
            socket.send_to(&[7; 1_440], format!("[{to}"))?;
        }
        Ok(())
    })
    .unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let after = status();
    let came = after.traffic.bytes_in - before.traffic.bytes_in;
    assert!(came < datagrams * 1_440 / 4, "{came} bytes came to the sockets");
    ["stale_address", "receive_overflow"]
        .map(|reason| dropped(&after, reason) - dropped(&before, reason))
}

/// Exit code and output of `shoal check --shift-probe` on a node.
fn probe(site: &RunningNetwork, node: usize) -> (Option<i32>, String) {
    let mut command = Command::new(shoal_e2e::program());
    command.args(["check", "--shift-probe", "-c"]).arg(site.folder(node).join("node.toml"));
    let output = command.output().unwrap();
    let (out, err) = shoal_e2e::text(&output);
    (output.status.code(), format!("{out}{err}"))
}

/// r2's router first stops routing r2's prefix, and then drops packets from it. r2 is asked for the
/// fault each time.
fn probe_each(site: &RunningNetwork) {
    let [r1, r2] = ["r1", "r2"].map(|name| site.network().topology().find(name).unwrap());
    let router = site.network().namespace(r1).unwrap();
    let (code, said) = probe(site, r2);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&format!("ip -6 route add {}", prefix(r2))), "{said}");
    assert!(said.contains("r1: ok") && said.contains("h2: ok"), "{said}");

    let via = site.network().ip_of(r1, r2).unwrap().to_string();
    run(router, &["ip", "-6", "route", "del", &prefix(r2), "via", &via]);
    let (code, said) = probe(site, r2);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("r1: packets from the prefix get through, but none")
            && said.contains("h2: ok")
    );
    run(router, &["ip", "-6", "route", "add", &prefix(r2), "via", &via]);

    let bogon = format!(
        "add chain ip6 watch bogon {{ type filter hook input priority -1; }}; \
        add rule ip6 watch bogon ip6 saddr {} drop",
        prefix(r2)
    );
    run(router, &["nft", &bogon]);
    let (code, said) = probe(site, r2);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("r1: packets to the prefix arrive, but none"), "{said}");
    run(router, &["nft", "delete chain ip6 watch bogon"]);
    assert_eq!(probe(site, r2).0, Some(0));
}

fn ping(site: &RunningNetwork) -> (u32, u32) {
    end_ping(begin_ping(site))
}

/// Translates a node's prefix into another one at the border of its network (RFC 6296). Routes the
/// new prefix instead of the former one. The node does not know of it.
fn renumber(network: &Network, node: usize) {
    let (inside, outside) = (prefix(node), prefix(node).replace(OURS, THEIRS));
    let rules = format!(
        "add table ip6 moved; \
         add chain ip6 moved out {{ type nat hook postrouting priority 100; }}; \
         add chain ip6 moved in {{ type nat hook prerouting priority -100; }}; \
         add rule ip6 moved out ip6 saddr {inside} snat ip6 prefix to \
           ip6 saddr map {{ {inside} : {outside} }}; \
         add rule ip6 moved in ip6 daddr {outside} dnat ip6 prefix to \
           ip6 daddr map {{ {outside} : {inside} }}"
    );
    for (_, neighbour) in network.topology().neighbours_of(node) {
        let via = network.ip_of(neighbour, node).unwrap().to_string();
        let namespace = network.namespace(neighbour).unwrap();
        run(namespace, &["ip", "-6", "route", "del", &inside]);
        run(namespace, &["ip", "-6", "route", "add", &outside, "via", &via]);
    }
    // The node's rules come last: a kernel entry for a flow to the former prefix would prevent its
    // translation.
    run(network.namespace(node).unwrap(), &["nft", &rules]);
}

/// Starts a chain of nodes with shifting addresses, and waits until all links shift.
fn start(folder: &Path) -> RunningNetwork {
    let ground = NetworkKind::Namespaces.over(IpFamily::Ipv6);
    let network = Network::build(Topology::chain(), ground, Conditions::default()).unwrap();
    let executable = Executable::shoal(shoal_e2e::program());
    let extra = "[interface]\n";
    let site =
        RunningNetwork::start_after(network, &executable, folder, extra, |network, folder| {
            prepare(network, folder);
            Ok(())
        });
    let mut site = site.unwrap_or_else(|e| panic!("{e:#}"));
    site.wait_until_up(PATIENCE).unwrap_or_else(|e| panic!("{e:#}"));
    wait_until_shifting(&mut site);
    site
}

/// A router's prefix changes while packets pass. Its neighbours follow, and do not fall back to its
/// fixed addresses.
#[test]
fn neighbours_follow_a_node_to_another_prefix_while_packets_pass() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let site = start(folder.path());
    let [r1, r2] = ["r1", "r2"].map(|name| site.network().topology().find(name).unwrap());
    let before = shift(&site, r1, "r2").unwrap();
    let running = begin_ping(&site);
    std::thread::sleep(Duration::from_secs(2));
    renumber(site.network(), r2);
    let (came, sent) = end_ping(running);
    // At most one second of packets is lost.
    assert!(sent == 1_200 && came > 1_000, "{came} of {sent}");
    let after = shift(&site, r1, "r2").unwrap();
    assert!(after.state == "shifting" && after.failed == before.failed, "{before:?} {after:?}");
    let (came, sent) = ping(&site);
    assert_eq!((came, sent), (1_200, 1_200));
    let last = shift(&site, r1, "r2").unwrap();
    assert!(last.made >= after.made + 4 && last.failed == before.failed, "{after:?} {last:?}");
}

/// The file of a host, and then that of a router, names another prefix while packets pass.
#[test]
fn a_reload_moves_links_to_another_prefix_and_loses_nothing() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut site = start(folder.path());
    for (name, peer) in [("h1", "r1"), ("r2", "h2")] {
        let [node, peer_node] =
            [name, peer].map(|name| site.network().topology().find(name).unwrap());
        let (from, to) = (prefix(node), prefix(node).replace(OURS, THEIRS));
        let route = |site: &RunningNetwork, what: &str, prefix: &str| {
            for (_, neighbour) in site.network().topology().neighbours_of(node) {
                let via = site.network().ip_of(neighbour, node).unwrap().to_string();
                let namespace = site.network().namespace(neighbour).unwrap();
                run(namespace, &["ip", "-6", "route", what, prefix, "via", &via]);
            }
        };
        route(&site, "add", &to);
        let before = shift(&site, peer_node, name).unwrap();
        let file = site.folder(node).join("node.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace(&from, &to)).unwrap();
        let running = begin_ping(&site);
        std::thread::sleep(Duration::from_secs(2));
        let output = site.command(node, &["reload"]).output().unwrap();
        let (out, err) = shoal_e2e::text(&output);
        assert!(output.status.success() && out.contains("shift.prefix"), "{out}{err}");
        assert_eq!(end_ping(running), (1_200, 1_200));
        // The former prefix is no longer routed.
        route(&site, "del", &from);
        assert_eq!(ping(&site), (1_200, 1_200));
        let after = shift(&site, peer_node, name).unwrap();
        assert!(after.state == "shifting" && after.made >= before.made + 8, "{after:?}");
        // On a busy machine a shift may come too late. It loses nothing, as the pings show.
        assert!(after.failed <= before.failed + 1, "{before:?} {after:?}");
        let local = |site: &RunningNetwork| {
            let namespace = site.network().namespace(node).unwrap();
            run(namespace, &["ip", "-6", "route", "show", "table", "local"])
        };
        let is_moved = |site: &mut RunningNetwork| {
            let local = local(site);
            Ok((local.contains(&to) && !local.contains(&from)).then_some(()))
        };
        let ended = site.wait("the former prefix is not this machine's", PATIENCE, is_moved);
        ended.unwrap_or_else(|e| panic!("{e:#}"));
        assert_eq!(probe(&site, node).0, Some(0));
    }
}

#[test]
fn addresses_shift_each_second_and_nothing_is_lost_or_left() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut site = start(folder.path());
    let [r1, r2] = ["r1", "r2"].map(|name| site.network().topology().find(name).unwrap());
    let before = shift(&site, r1, "r2").unwrap();

    let (came, sent) = ping(&site);
    assert_eq!((came, sent), (1_200, 1_200));
    let after = shift(&site, r1, "r2").unwrap();
    assert!(after.made >= before.made + 4 && after.failed == 0, "{before:?} {after:?}");
    let seen = run(site.network().namespace(r1).unwrap(), &["nft", "list ruleset"]);
    // Two links of r1, each with an address for each second.
    let addresses = seen.matches(OURS).count();
    assert!(addresses >= 10, "{addresses}: {seen}");

    assert_eq!(flood(&site, 5_000), [5_000, 0], "the kernel drops and counts");

    probe_each(&site);

    site.kill(r2);
    let namespace = site.network().namespace(r2).unwrap();
    let local = run(namespace, &["ip", "-6", "route", "show", "table", "local"]);
    assert!(!local.contains(OURS), "{local}");
    let links = run(namespace, &["ip", "link"]);
    assert!(!links.contains("shoal-shift"), "{links}");
    site.revive(r2).unwrap();
    site.wait_until_up(PATIENCE).unwrap_or_else(|e| panic!("{e:#}"));
    wait_until_shifting(&mut site);
}
