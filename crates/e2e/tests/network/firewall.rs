//! Programs at interfaces that an authority's policy guards.
//!
//! ```text
//!   h1 (staff) --- r1 --- r2 --- h2 (servers) --- b      staff may: ICMP, TCP to 7001
//! ```
//!
//! b runs no node.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use shoal_daemon::control::api::{Command as Ask, ControlReply, Status};
use shoal_lab::site::RunningNetwork;
use shoal_lab::{Conditions, Executable, LinkSpec, Network, NetworkKind, NodeSpec, Topology};
use shoal_wire::Address;

use shoal_e2e::icmp;

const PATIENCE: Duration = Duration::from_secs(60);
/// Nodes promise 5 s from a new list file to a list in force. A debug build on a busy machine gets
/// more time.
const SOON: Duration = Duration::from_secs(15);
const NODES: [&str; 4] = ["h1", "r1", "r2", "h2"];
const IPV4: [&str; 4] = ["10.9.0.1", "10.9.0.2", "10.9.0.3", "10.9.0.4"];

const EXTRA: &str = "[interface]\naccept_prefixes = [\"all\"]\n\n[names]\n";

const POLICY: &str = "\
[[allow]]
from = \"staff\"
to = \"servers\"
proto = \"icmp\"

[[allow]]
from = \"staff\"
to = \"servers\"
proto = \"tcp\"
ports = [7001]
";

struct Town {
    site: RunningNetwork,
    h1: usize,
    h2: usize,
    folder: tempfile::TempDir,
}

impl Town {
    fn new(extra: &str) -> Town {
        let folder = tempfile::tempdir().unwrap();
        let mut topology = Topology::chain();
        let behind = Address::new(0, 0);
        topology.nodes.push(NodeSpec { name: "b".into(), address: behind, plain: true });
        let [a, b] = ["h2", "b"].map(|name| topology.find(name).unwrap());
        topology.links.push(LinkSpec { a, b });
        let all = NODES.map(|name| topology.find(name).unwrap());
        let addresses = all.map(|node| topology.nodes[node].address.to_string());
        let network =
            Network::build(topology, NetworkKind::Namespaces, Conditions::default()).unwrap();
        let executable = Executable::shoal(shoal_e2e::program());
        let mut site = RunningNetwork::start(network, &executable, folder.path(), extra).unwrap();
        // With the keys made, an authority decides on the members.
        let town = |site| Town { site, h1: all[0], h2: all[3], folder };
        for node in all {
            site.kill(node);
        }
        let mut town = town(site);
        let made = town.authority(&["init"], &[]);
        let config = made.split("node.toml:\n").nth(1).unwrap().replace("network", "../network");
        for (((node, name), address), ipv4) in all.iter().zip(NODES).zip(&addresses).zip(IPV4) {
            let home = town.site.folder(*node);
            let key = home.join("node.key");
            let key =
                Command::new(shoal_e2e::program()).arg("pubkey").arg(key).output().unwrap().stdout;
            let key = String::from_utf8(key).unwrap();
            let group = match name {
                "h1" => "staff",
                "h2" => "servers",
                _ => "routers",
            };
            let more = ["--key", key.trim(), "--address", address, "--group", group];
            town.authority(&["sign", name], &[&more[..], &["--ipv4", ipv4]].concat());
            let file = home.join("node.toml");
            let text = std::fs::read_to_string(&file).unwrap();
            std::fs::write(&file, text + &config).unwrap();
        }
        town.policy(POLICY);
        for node in all {
            town.site.revive(node).unwrap();
        }
        town.site.wait_until_up(PATIENCE).unwrap_or_else(|e| panic!("{e:#}"));
        town
    }

    #[track_caller]
    fn authority(&self, verb: &[&str], more: &[&str]) -> String {
        let dir = self.folder.path().join("authority");
        let mut command = Command::new(shoal_e2e::program());
        command.arg("authority").args(&verb[..1]).arg("--dir").arg(dir).args(&verb[1..]);
        let output = command.args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn publish(&self) {
        let from = self.folder.path().join("authority/network.list");
        std::fs::copy(from, self.folder.path().join("network.list")).unwrap();
    }

    fn policy(&self, text: &str) {
        let file: PathBuf = self.folder.path().join("policy.toml");
        std::fs::write(&file, text).unwrap();
        self.authority(&["policy"], &[file.to_str().unwrap()]);
        self.publish();
    }

    fn status(&self, node: usize) -> Status {
        match self.site.ask(node, Ask::Status) {
            Ok(ControlReply::Status(status)) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn denied(&self, node: usize) -> u64 {
        self.drops(node, "policy_denied")
    }

    fn drops(&self, node: usize, reason: &str) -> u64 {
        let drops = self.status(node).drops;
        drops.into_iter().find(|(name, _)| name == reason).map_or(0, |(_, n)| n)
    }

    fn address(&self, node: usize) -> Ipv6Addr {
        self.status(node).interface.unwrap().address.parse().unwrap()
    }

    fn inside<T: Send>(&self, node: usize, f: impl FnOnce() -> T + Send) -> T {
        self.site.network().namespace(node).unwrap().enter(|| Ok(f())).unwrap()
    }

    /// The answer of the node's DNS responder: the address, or the error code.
    fn resolve(&self, node: usize, name: &str) -> Result<Ipv6Addr, u8> {
        let mut question = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            question.push(label.len() as u8);
            question.extend_from_slice(label.as_bytes());
        }
        // End of the name, type AAAA, class IN.
        question.extend_from_slice(&[0, 0, 28, 0, 1]);
        let socket = self.inside(node, || UdpSocket::bind("127.0.0.1:0").unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.send_to(&question, "127.0.0.153:53").unwrap();
        let mut buf = [0; 512];
        let (len, _) = socket.recv_from(&mut buf).unwrap();
        assert_eq!(buf[..2], [0, 7]);
        match (buf[3] & 15, buf[7]) {
            // The address is the end of the single answer.
            (0, 1) => Ok(Ipv6Addr::from(*buf[..len].last_chunk::<16>().unwrap())),
            (code, _) => Err(code),
        }
    }

    fn command(&self, node: usize, words: &str) -> (bool, String) {
        let mut words = words.split(' ');
        let mut command = Command::new(words.next().unwrap());
        command.args(words);
        let done = self.inside(node, || command.output().unwrap());
        (done.status.success(), String::from_utf8_lossy(&done.stdout).into_owned())
    }

    fn pings(&self, from: usize, to: usize) -> bool {
        let to = self.address(to).to_string();
        let mut command = Command::new("ping");
        command.args(["-c1", "-W2", &to]);
        self.inside(from, || command.output().unwrap()).status.success()
    }

    fn connect(&self, from: usize, to: usize, port: u16) -> Option<(TcpStream, TcpStream)> {
        self.connect_at(from, to, (self.address(to), port).into())
    }

    fn connect_at(&self, from: usize, to: usize, at: SocketAddr) -> Option<(TcpStream, TcpStream)> {
        let listener = self.inside(to, || listen(at));
        let wait = Duration::from_millis(1_500);
        let stream = self.inside(from, || TcpStream::connect_timeout(&at, wait)).ok()?;
        Some((stream, listener.accept().unwrap().0))
    }
}

/// A listener at this address. A program that another test starts holds the descriptor of a closed
/// listener for a moment, until its `exec`.
fn listen(at: SocketAddr) -> TcpListener {
    let began = Instant::now();
    loop {
        match TcpListener::bind(at) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && began.elapsed() < SOON => {
                std::thread::sleep(Duration::from_millis(20));
            }
            listener => return listener.unwrap(),
        }
    }
}

/// True if new bytes from `from` still arrive at `to`.
fn flows(mut from: &TcpStream, mut to: &TcpStream) -> bool {
    from.set_nonblocking(true).unwrap();
    // The previous call may have used this end as the sender.
    to.set_nonblocking(false).unwrap();
    to.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
    let mut buf = [0; 65_536];
    // Bytes that arrived earlier are read first.
    let began = Instant::now();
    let mut last = false;
    while began.elapsed() < Duration::from_millis(600) {
        let _ = from.write(&buf[..1_000]);
        last = matches!(to.read(&mut buf), Ok(n) if n > 0);
        std::thread::sleep(Duration::from_millis(20));
    }
    last
}

fn within_seconds(what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < SOON, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A member without an interface has a name without an address. A member that has an interface
/// although the list says otherwise gets a warning.
fn names_without_an_address(town: &Town) {
    let h1 = town.h1;
    let r1 = town.site.network().topology().find("r1").unwrap();
    assert_eq!(town.resolve(h1, "r1.shoal"), Ok(town.address(r1)));
    let is_warned = || town.status(r1).warnings.iter().any(|w| w.contains("has no interface"));
    town.authority(&["sign"], &["r1", "--no-interface"]);
    town.publish();
    within_seconds("there is no address", || town.resolve(h1, "r1.shoal") == Err(0));
    within_seconds("r1 says so", is_warned);
    town.authority(&["sign"], &["r1", "--interface"]);
    town.publish();
    within_seconds("the address is back", || town.resolve(h1, "r1.shoal") == Ok(town.address(r1)));
    within_seconds("nothing is wrong", || !is_warned());
}

/// Rights toward a gateway hold for the networks behind it, which the authority grants.
fn what_lies_behind_a_gateway(town: &mut Town) {
    let (h1, h2) = (town.h1, town.h2);
    let network = town.site.network();
    let b = network.topology().find("b").unwrap();
    network.default_route(b, h2).unwrap();
    let at: IpAddr = network.ip_of(h2, b).unwrap();
    // Packets of h1 have a source that belongs to it.
    assert!(town.command(h1, "ip addr add 10.99.0.1/32 dev lo").0);
    assert!(town.command(h2, "sysctl -w net.ipv4.ip_forward=1").0);
    let ping = format!("ping -c1 -W2 -I 10.99.0.1 {at}");
    let pings = || town.command(h1, &ping).0;
    let routed = || town.command(h1, "ip route show dev shoal0").1.contains(&at.to_string());
    town.authority(&["sign"], &["h1", "--prefix", "10.99.0.1"]);
    town.publish();
    assert!(!routed() && !pings());
    let granted = format!("{at}/32");
    town.authority(&["sign"], &["h2", "--prefix", &granted]);
    town.publish();
    for (node, prefix) in [(h1, "10.99.0.1/32"), (h2, granted.as_str())] {
        let file = town.site.folder(node).join("node.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let more = format!("[interface]\nprefixes = [\"{prefix}\"]");
        std::fs::write(&file, text.replace("[interface]", &more)).unwrap();
    }
    town.site.restart(h1).unwrap();
    town.site.restart(h2).unwrap();
    town.site.wait_until_up(PATIENCE).unwrap();
    let pings = || town.command(h1, &ping).0;
    let routed = || town.command(h1, "ip route show dev shoal0").1.contains(&at.to_string());
    within_seconds("the ping passes", || routed() && pings());
    assert!(town.connect_at(h1, b, SocketAddr::new(at, 7_001)).is_some());
    let before = town.denied(h2);
    assert!(town.connect_at(h1, b, SocketAddr::new(at, 7_002)).is_none());
    assert!(town.denied(h2) > before);
    town.authority(&["sign"], &["h2", "--no-prefixes"]);
    town.publish();
    within_seconds("the route is withdrawn", || !routed());
    within_seconds("h2 says so", || {
        town.status(h2).warnings.iter().any(|w| w.contains("was not granted"))
    });
    assert!(!pings());
}

#[test]
fn policy_guards_programs_and_a_change_ends_their_flows() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let mut town = Town::new(EXTRA);
    let (h1, h2) = (town.h1, town.h2);
    assert_eq!(town.resolve(h1, "h2.shoal"), Ok(town.address(h2)));
    assert_eq!(town.resolve(h1, "h1.shoal"), Ok(town.address(h1)));
    assert_eq!((town.resolve(h1, "eve.shoal"), town.resolve(h1, "h2.org")), (Err(3), Err(5)));
    names_without_an_address(&town);
    assert!(town.pings(h1, h2), "staff may");
    assert!(!town.pings(h2, h1), "servers may not");
    assert!(town.denied(h1) > 0);
    let (near, far) = town.connect(h1, h2, 7_001).expect("staff may");
    within_seconds("answers pass", || flows(&near, &far) && flows(&far, &near));
    assert!(town.connect(h1, h2, 7_002).is_none(), "another port");
    assert!(town.connect(h2, h1, 7_001).is_none(), "the other way");
    let udp = SocketAddr::from((town.address(h2), 7_001));
    let here = SocketAddr::from((town.address(h1), 7_003));
    let before = town.denied(h2);
    let socket = town.inside(h1, || UdpSocket::bind(here).unwrap());
    socket.send_to(b"x", udp).unwrap();
    within_seconds("the datagram is counted", || town.denied(h2) > before);
    // Without the right the connection ends, although both programs keep sending.
    town.policy("");
    within_seconds("the flow ends", || !flows(&near, &far));
    assert!(!flows(&near, &far) && !town.pings(h1, h2));
    // With the right back, the connection continues.
    town.policy(POLICY);
    within_seconds("the right is back", || town.pings(h1, h2));
    let (near, far) = town.connect(h1, h2, 7_001).expect("staff may again");
    within_seconds("the flow goes on", || flows(&near, &far));
    let Ok(ControlReply::Metrics(text)) = town.site.ask(h1, Ask::Metrics) else {
        panic!("no metrics")
    };
    shoal_e2e::check_metrics(&text, &["authority", "interface"]);
    what_lies_behind_a_gateway(&mut town);
    let (near, far) = town.connect(h1, h2, 7_001).expect("staff may after a restart");
    within_seconds("the flow goes on", || flows(&near, &far));
    // A revocation ends the session of a running connection.
    town.authority(&["revoke"], &["h1"]);
    town.publish();
    within_seconds("the revoked member's flow ends", || !flows(&near, &far));
    assert_eq!(town.resolve(h2, "h1.shoal"), Err(3));
    within_seconds("nobody knows it", || town.status(h2).host_sessions == 0);
    within_seconds("h1 knows only itself", || {
        town.status(h1).authority.is_some_and(|authority| authority.state == "removed")
    });
}

/// An ICMP error passes only if it concerns a live flow from h1 to h2.
fn errors_name_live_flows(town: &Town) {
    let (h1, h2) = (town.h1, town.h2);
    let [here, there] = [h1, h2].map(|node| IpAddr::from(town.address(node)));
    let way = || town.command(h1, &format!("ip route get {there}")).1;
    let told = [icmp::too_big(true, &icmp::echo(here, there))];
    let before = town.drops(h1, "ip_stray_error");
    town.inside(h2, || icmp::send(there, here, &told));
    within_seconds("the error is counted", || town.drops(h1, "ip_stray_error") > before);
    assert!(!way().contains("mtu"), "{}", way());
    // The identifier equals the quoted packet's. A busy node may read the error before that packet.
    let question = [vec![128, 0, 0, 0, 0, 7, 0, 1]];
    within_seconds("the error passes", || {
        town.inside(h1, || icmp::send(here, there, &question));
        town.inside(h2, || icmp::send(there, here, &told));
        way().contains("mtu 1280")
    });
}

#[test]
fn errors_pass_about_live_flows_alone() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let town = Town::new(EXTRA);
    assert!(town.connect(town.h1, town.h2, 7_001).is_some(), "staff may");
    errors_name_live_flows(&town);
}

/// Datagrams and echoes longer than the MTU, between these addresses of h1 and h2.
fn fragments_pass_by_port(town: &Town, here: IpAddr, there: IpAddr) {
    let bind = |node, at: IpAddr, port| {
        let socket = town.inside(node, || UdpSocket::bind((at, port)).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    };
    let near = bind(town.h1, here, 7_003);
    let [open, shut] = [7_004, 7_005].map(|port| bind(town.h2, there, port));
    let (content, mut got) = (shoal_e2e::bytes(1, 60_000), vec![0; 65_536]);
    let mut passes = |from: &UdpSocket, to: &UdpSocket, len: usize| {
        from.send_to(&content[..len], to.local_addr().unwrap()).unwrap();
        let len_there = to.recv(&mut got).unwrap();
        assert!(got[..len_there] == content[..len], "{len_there} bytes, or other ones");
    };
    for len in [1_000, 1_400, 8_000, 60_000, 60_000, 60_000] {
        passes(&near, &open, len);
        passes(&open, &near, len);
    }
    let (answered, text) = town.command(town.h1, &format!("ping -c2 -W9 -s8000 {there}"));
    assert!(answered && text.contains(" 0% packet loss"), "{text}");
    // Every fragment to another port is refused like the first, and so are h2's own flows.
    for (node, from, to) in [(town.h2, &near, (there, 7_005)), (town.h1, &shut, (here, 7_006))] {
        let before = town.denied(node);
        from.send_to(&content, to).unwrap();
        within_seconds("fragments are counted", || town.denied(node) >= before + 40);
    }
    shut.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(shut.recv(&mut got).is_err());
}

/// With several workers, datagrams longer than the MTU pass to the same ports as short ones.
#[test]
fn fragments_pass_on_the_ports_that_the_policy_permits() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let town = Town::new(&format!("{EXTRA}[data]\nworkers = 2\n[session]\nlanes = 4\n"));
    let udp = POLICY.replace("\"tcp\"", "\"udp\"").replace("7001", "7004");
    town.policy(&(POLICY.to_owned() + &udp[udp.rfind("[[").unwrap()..]));
    let [here, there] = [town.h1, town.h2].map(|node| IpAddr::from(town.address(node)));
    let reach = |port| {
        let (from, to) = (SocketAddr::new(here, 7_002), SocketAddr::new(there, port));
        let far = town.inside(town.h2, || UdpSocket::bind(to).unwrap());
        far.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let near = town.inside(town.h1, || UdpSocket::bind(from).unwrap());
        near.send_to(b"x", to).unwrap();
        far.recv(&mut [0; 9]).is_ok()
    };
    within_seconds("the policy is in force", || reach(7_004));
    fragments_pass_by_port(&town, here, there);
    let [here, there] = [IPV4[0], IPV4[3]].map(|address| address.parse().unwrap());
    fragments_pass_by_port(&town, here, there);
    for node in [town.h1, town.h2] {
        let odd = ["ip_fragment", "ip_fragment_alone", "ip_malformed", "other_worker"];
        assert_eq!(odd.map(|reason| town.drops(node, reason)), [0; 4]);
    }
}

#[test]
fn with_several_workers_a_change_ends_the_flows_of_all_of_them() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let town = Town::new(&format!("{EXTRA}[data]\nworkers = 2\n[session]\nlanes = 4\n"));
    let (h1, h2) = (town.h1, town.h2);
    let connect = |_| town.connect(h1, h2, 7_001).expect("staff may");
    let streams: Vec<_> = (0..12).map(connect).collect();
    // Number of flows that still carry data.
    let carry = || {
        let ask = |(near, far): &(TcpStream, TcpStream)| flows(near, far) && flows(far, near);
        std::thread::scope(|scope| {
            let all: Vec<_> = streams.iter().map(|ends| scope.spawn(move || ask(ends))).collect();
            all.into_iter().map(|t| t.join().unwrap()).filter(|up| *up).count()
        })
    };
    within_seconds("all flows carry data", || carry() == 12);
    for node in [h1, h2] {
        let workers = town.status(node).workers;
        let both = workers.iter().all(|w| w.packets_read > 10 && w.packets_written > 10);
        assert!(both, "{workers:?}");
    }
    assert!(town.connect(h1, h2, 7_002).is_none(), "another port");
    town.policy("");
    within_seconds("the flows end", || carry() == 0);
    town.policy(POLICY);
    within_seconds("the right is back", || town.pings(h1, h2));
    let streams: Vec<_> = (0..12).map(connect).collect();
    town.authority(&["revoke"], &["h1"]);
    town.publish();
    within_seconds("nobody knows it", || town.status(h2).host_sessions == 0);
    assert!(!streams.iter().any(|(near, far)| flows(near, far)));
}
