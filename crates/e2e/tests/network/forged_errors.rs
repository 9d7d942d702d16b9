//! ICMP errors from a member to another member's interface. Errors about packets to the sender take
//! effect; errors about packets to others don't.
//!
//! ```text
//!    h1 --- r1 --- r2 --- h2 ... networks behind h2, whose MTU is smaller
//!   eve -/
//! ```
//!
//! h1 and h2 communicate. Eve is a member, and root on her machine.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use shoal_daemon::control::api::{Command as Ask, ControlReply, Status};
use shoal_lab::namespace::Namespace;
use shoal_lab::site::RunningNetwork;
use shoal_lab::{Conditions, Executable, LinkSpec, Network, NetworkKind, NodeSpec, Topology};
use shoal_wire::Address;

use shoal_e2e::icmp::{UDP, datagram, echo, error, port_unreachable, quote, send, too_big};

const PATIENCE: Duration = Duration::from_secs(20);
/// Time to wait for an effect of an error that must have none.
const HARMLESS: Duration = Duration::from_secs(2);
const EXTRA: &str = "[interface]\naccept_prefixes = [\"all\"]\n";

struct Town {
    site: RunningNetwork,
    h1: usize,
    h2: usize,
    eve: usize,
    _folder: tempfile::TempDir,
}

fn topology() -> Topology {
    let mut topology = Topology::chain();
    let r1 = topology.find("r1").unwrap();
    topology.links.push(LinkSpec { a: topology.nodes.len(), b: r1 });
    topology.nodes.push(NodeSpec::new("eve".into(), Address::new(1, 2)));
    topology
}

fn run(namespace: &Namespace, words: &str) -> (bool, String) {
    let words: Vec<&str> = words.split(' ').collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    let output = namespace.enter(|| Ok(command.output()?)).unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// IPv4 for the hosts, and networks behind h2 that carry 1,300 bytes.
fn prepare(network: &Network, folder: &Path) {
    let edit = |file: &Path, changes: &[(&str, &str)]| {
        let mut text = std::fs::read_to_string(file).unwrap();
        for (old, new) in changes {
            assert!(text.contains(old), "{old}");
            text = text.replace(old, new);
        }
        std::fs::write(file, text).unwrap();
    };
    let granted = "prefixes = [\"10.55.0.0/24\", \"fd55::/64\"]\n";
    let h2 = format!("name = \"h2\"\nipv4 = \"10.98.0.2\"\n{granted}");
    let named = [
        ("name = \"h1\"\n", "name = \"h1\"\nipv4 = \"10.98.0.1\"\n"),
        ("name = \"h2\"\n", h2.as_str()),
        ("name = \"eve\"\n", "name = \"eve\"\nipv4 = \"10.98.0.3\"\n"),
    ];
    edit(&folder.join("hosts.toml"), &named);
    let serves = format!("[interface]\n{granted}");
    edit(&folder.join("h2/node.toml"), &[("[interface]\n", &serves)]);
    let h2 = network.namespace(network.topology().find("h2").unwrap()).unwrap();
    for words in [
        "sysctl -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1",
        "ip link add narrow type veth peer name its_end",
        "ip link set narrow mtu 1300 up",
        "ip link set its_end up",
        "ip addr add 10.55.0.1/24 dev narrow",
        "ip addr add fd55::1/64 dev narrow nodad",
    ] {
        let (done, text) = run(h2, words);
        assert!(done, "{words}: {text}");
    }
}

impl Town {
    fn new(extra: &str) -> Town {
        let folder = tempfile::tempdir().unwrap();
        let topology = topology();
        let [h1, h2, eve] = ["h1", "h2", "eve"].map(|name| topology.find(name).unwrap());
        let network =
            Network::build(topology, NetworkKind::Namespaces, Conditions::default()).unwrap();
        let extra = format!("{EXTRA}{extra}");
        let site = RunningNetwork::start_after(
            network,
            &Executable::shoal(shoal_e2e::program()),
            folder.path(),
            &extra,
            |n, f| {
                prepare(n, f);
                Ok(())
            },
        );
        let mut site = site.unwrap_or_else(|e| panic!("{e:#}"));
        site.wait_until_up(PATIENCE).unwrap_or_else(|e| panic!("{e:#}"));
        Town { site, h1, h2, eve, _folder: folder }
    }

    fn status(&self, node: usize) -> Status {
        match self.site.ask(node, Ask::Status) {
            Ok(ControlReply::Status(status)) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn stray(&self, node: usize) -> u64 {
        let drops = self.status(node).drops;
        drops.into_iter().find(|(name, _)| name == "ip_stray_error").map_or(0, |(_, n)| n)
    }

    fn address(&self, node: usize, v6: bool) -> IpAddr {
        let interface = self.status(node).interface.unwrap();
        match v6 {
            true => interface.address.parse().unwrap(),
            false => interface.ipv4.unwrap().parse().unwrap(),
        }
    }

    fn run(&self, node: usize, words: &str) -> (bool, String) {
        run(self.site.network().namespace(node).unwrap(), words)
    }

    fn inside<T: Send>(&self, node: usize, f: impl FnOnce() -> T + Send) -> T {
        self.site.network().namespace(node).unwrap().enter(|| Ok(f())).unwrap()
    }

    /// A UDP socket of `node`, connected to `to`.
    fn connected(&self, node: usize, to: SocketAddr) -> UdpSocket {
        let from = SocketAddr::from((self.address(node, to.is_ipv6()), 0));
        let socket = self.inside(node, || UdpSocket::bind(from).unwrap());
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(HARMLESS)).unwrap();
        socket
    }

    /// True if h1 learns that a port has no listener.
    fn is_refused(&self, at: IpAddr) -> bool {
        let socket = self.connected(self.h1, SocketAddr::new(at, 7_999));
        let sent = socket.send(b"x").and_then(|_| socket.recv(&mut [0; 9]));
        sent.unwrap_err().kind() == ErrorKind::ConnectionRefused
    }

    fn until(&self, what: &str, done: impl Fn() -> bool) {
        let began = Instant::now();
        while !done() {
            let drops = || self.status(self.h1).drops;
            assert!(began.elapsed() < PATIENCE, "never came: {what}: {:?}", drops());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// h1's kernel route to an address, with the path MTU that it has learnt.
    fn way(&self, to: IpAddr) -> String {
        self.run(self.h1, &format!("ip route get {to}")).1
    }
}

/// Errors that eve may not send to h1. h1's socket `near` communicates with h2's `far`.
fn forged(town: &Town, near: SocketAddr, far: SocketAddr) -> Vec<Vec<u8>> {
    let v6 = near.is_ipv6();
    let eve = town.address(town.eve, v6);
    let quotes = [echo(near.ip(), far.ip()), datagram(near, far)];
    let mut all: Vec<_> = quotes.iter().map(|quote| too_big(v6, quote)).collect();
    all.push(port_unreachable(v6, &quotes[1]));
    // Time exceeded, a parameter problem, a redirect, a type that nobody has defined.
    let kinds = if v6 { [(3, 0), (4, 0), (127, 0)] } else { [(11, 0), (12, 0), (5, 1)] };
    all.extend(kinds.map(|kind| error(kind, 0, &quotes[1])));
    // Quotes of packets from h2 to h1, and of packets that nobody can have sent.
    all.push(port_unreachable(v6, &datagram(far, near)));
    all.push(port_unreachable(v6, &datagram(SocketAddr::new(eve, 9), near)));
    // Quotes that are cut short.
    let own = datagram(near, SocketAddr::new(eve, 9));
    all.extend([0, 1, 19, own.len() - 1].map(|len| too_big(v6, &own[..len])));
    if v6 {
        // The kernel uses the last segment of a routing header as the destination (RFC 8754).
        let mut routed = quote(near.ip(), eve, 43, [UDP, 2, 4, 0, 0, 0, 0, 0]);
        let IpAddr::V6(victim) = far.ip() else { unreachable!() };
        routed.extend(victim.octets());
        routed.extend(&datagram(near, far)[40..]);
        all.push(port_unreachable(v6, &routed));
    }
    all
}

fn forged_errors_change_nothing(town: &Town, v6: bool) {
    let (here, there) = (town.address(town.h1, v6), town.address(town.h2, v6));
    let at_h2 = town.inside(town.h2, || UdpSocket::bind((there, 7_002)).unwrap());
    at_h2.set_read_timeout(Some(PATIENCE)).unwrap();
    let near = town.connected(town.h1, at_h2.local_addr().unwrap());
    let messages = forged(town, near.local_addr().unwrap(), at_h2.local_addr().unwrap());
    let before = town.stray(town.h1);
    let eve = town.address(town.eve, v6);
    town.inside(town.eve, || send(eve, here, &messages));
    let began = Instant::now();
    let counted = || town.stray(town.h1) - before;
    while counted() < messages.len() as u64 && began.elapsed() < HARMLESS {
        std::thread::sleep(Duration::from_millis(20));
    }
    let way = town.way(there);
    assert!(!way.contains("mtu"), "h1's kernel believes eve: {way}");
    for _ in 0..3 {
        near.send(b"x").expect("no error of eve reaches the socket");
        let mut buf = [0; 9];
        assert_eq!(at_h2.recv(&mut buf).unwrap(), 1);
    }
    assert_eq!(counted(), messages.len() as u64);
}

/// Errors about h1's own packets from their destinations take effect.
fn honest_errors_pass(town: &Town, v6: bool) {
    // The kernel of h2 reports the MTU of the network behind it.
    let behind = |last: u16| match v6 {
        true => IpAddr::V6(Ipv6Addr::new(0xfd55, 0, 0, 0, 0, 0, 0, last)),
        false => IpAddr::V4(Ipv4Addr::new(10, 55, 0, last as u8)),
    };
    for closed in [town.address(town.h2, v6), town.address(town.eve, v6), behind(1)] {
        assert!(town.is_refused(closed), "{closed}");
    }
    let here = town.address(town.h1, v6);
    let far = town.connected(town.h1, SocketAddr::new(behind(9), 9));
    far.send(&[0; 1_310]).unwrap();
    town.until("h1 knows what fits", || town.way(behind(9)).contains("mtu 1300"));
    // An error of a router behind h2: its address is neither end of the quoted packet.
    let told = [too_big(v6, &echo(here, behind(77)))];
    town.inside(town.h2, || send(behind(1), here, &told));
    town.until("h1 has heard it", || town.way(behind(77)).contains("mtu"));
}

fn run_all(extra: &str) {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let town = Town::new(extra);
    for v6 in [true, false] {
        for node in [town.h2, town.eve] {
            let to = town.address(node, v6);
            town.until("the node is reached", || town.is_refused(to));
        }
        forged_errors_change_nothing(&town, v6);
        let before = town.stray(town.h1);
        honest_errors_pass(&town, v6);
        assert_eq!(town.stray(town.h1), before, "nothing honest is counted");
    }
}

#[test]
fn a_member_breaks_no_flow_of_others() {
    run_all("");
}

#[test]
fn with_several_workers_a_member_breaks_no_flow_of_others() {
    run_all("[data]\nworkers = 2\n[session]\nlanes = 4\n");
}
