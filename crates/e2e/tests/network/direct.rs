//! Two hosts with a direct wire, and a router beside it.
//!
//! ```text
//!       r1
//!      /  \
//!    h1 == h2
//! ```

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use shoal_daemon::control::api::{
    Command as Ask, ControlReply, DirectLinkStatus, DirectLinks, Status,
};
use shoal_e2e::{bytes, end_of, text};
use shoal_lab::site::RunningNetwork;
use shoal_lab::topology::{LinkSpec, NodeSpec};
use shoal_lab::{Conditions, Executable, Network, NetworkKind, Rate, Topology};
use shoal_wire::Address;

const PATIENCE: Duration = Duration::from_secs(60);
const R1: usize = 0;
const H1: usize = 1;
const H2: usize = 2;
/// Number of the link between the hosts.
const DIRECT: usize = 2;

struct DirectNet {
    site: RunningNetwork,
    folder: tempfile::TempDir,
}

/// The network; `extra` are more lines of each node's configuration.
fn net(extra: &str, rate: Option<Rate>) -> DirectNet {
    let node = |name: &str, host| NodeSpec::new(name.into(), Address::new(1, host));
    let nodes = vec![node("r1", 0), node("h1", 1), node("h2", 2)];
    let link = |a, b| LinkSpec { a, b };
    let links = vec![link(H1, R1), link(H2, R1), link(H1, H2)];
    let topology = Topology { nodes, links };
    let conditions = Conditions { rate, ..Conditions::default() };
    let network = Network::build(topology, NetworkKind::Namespaces, conditions).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let executable = Executable::shoal(shoal_e2e::program());
    let mut site = RunningNetwork::start(network, &executable, folder.path(), extra).unwrap();
    site.wait_until_up(PATIENCE).unwrap_or_else(|e| panic!("{e:#}"));
    DirectNet { site, folder }
}

impl DirectNet {
    fn status(&self, node: usize) -> Status {
        match self.site.ask(node, Ask::Status) {
            Ok(ControlReply::Status(status)) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn direct(&self, node: usize) -> DirectLinks {
        self.status(node).direct.expect("this node makes direct links")
    }

    /// The direct link of `node` with `other`, if it is up.
    fn peer(&self, node: usize, other: &str) -> Option<DirectLinkStatus> {
        let Ok(ControlReply::Peers(peers)) = self.site.ask(node, Ask::Peers) else { return None };
        let peer = peers.into_iter().find(|peer| peer.name == other && peer.state == "up");
        peer.and_then(|peer| peer.direct)
    }

    fn ping(&self, words: &[&str]) -> bool {
        let mut command = self.site.command(H1, &["ping", "h2"]);
        command.args(words).stdout(Stdio::null()).status().unwrap().success()
    }

    #[track_caller]
    fn until(&self, what: &str, done: impl Fn(&DirectNet) -> bool) {
        let began = Instant::now();
        while !done(self) {
            let logs = [H1, H2].map(|node| self.site.log_end(node));
            assert!(began.elapsed() < PATIENCE, "{what}: it never came\n{}", logs.join("\n"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    fn until_direct(&self) {
        self.until("a direct link", |net| {
            net.ping(&["-n", "1", "-W", "2"]);
            net.peer(H1, "h2").is_some() && net.peer(H2, "h1").is_some()
        });
    }

    /// Bytes that the router has received.
    fn by_router(&self) -> u64 {
        self.status(R1).traffic.bytes_in
    }

    fn inside<T: Send>(&self, node: usize, f: impl FnOnce() -> T + Send) -> T {
        self.site.network().namespace(node).unwrap().enter(|| Ok(f())).unwrap()
    }

    /// A TCP connection between the interfaces.
    fn tcp(&self) -> (TcpStream, TcpStream) {
        let address = self.status(H2).interface.unwrap().address.parse::<Ipv6Addr>().unwrap();
        let to = SocketAddr::from((address, 7001));
        let listener = self.inside(H2, || TcpListener::bind(to).unwrap());
        let stream = self.inside(H1, || TcpStream::connect_timeout(&to, PATIENCE).unwrap());
        (stream, listener.accept().unwrap().0)
    }

    /// Sends a file from h1 to h2, and calls `meanwhile` when a part of it has arrived.
    fn file(&self, name: &str, len: usize, meanwhile: impl FnOnce()) {
        let (content, file) = (bytes(7, len), self.folder.path().join(name));
        std::fs::write(&file, &content).unwrap();
        let inbox = self.folder.path().join(format!("in-{name}"));
        std::fs::create_dir(&inbox).unwrap();
        let words = ["receive", "--count", "1", "--from", "h1", "--dir", inbox.to_str().unwrap()];
        let mut receive = self.site.command(H2, &words);
        let receive = receive.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let before = self.status(H1).traffic.bytes_out;
        let mut send = self.site.command(H1, &["send", "--wait", "20"]);
        send.arg(&file).arg("h2").stdout(Stdio::null()).stderr(Stdio::piped());
        let send = send.spawn().unwrap();
        self.until("a part of the file", |net| {
            net.status(H1).traffic.bytes_out - before > len as u64 / 8
        });
        meanwhile();
        for (what, child) in [("send", send), ("receive", receive)] {
            let output = end_of(child, what);
            assert!(output.status.success(), "{what}: {}", text(&output).1);
        }
        assert!(std::fs::read(inbox.join(name)).unwrap() == content, "another file");
    }
}

/// Writes to one end and reads all of it at the other. Calls `meanwhile` when half has arrived.
fn stream(from: TcpStream, mut to: TcpStream, len: usize, meanwhile: impl FnOnce()) {
    let content = bytes(9, len);
    to.set_read_timeout(Some(PATIENCE)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (&from).write_all(&content).unwrap();
            from.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut got = vec![0; len / 2];
        to.read_exact(&mut got).unwrap();
        meanwhile();
        to.read_to_end(&mut got).unwrap();
        assert!(got == content, "{} of {len} bytes, or wrong ones", got.len());
    });
}

#[test]
fn traffic_moves_to_a_link_of_its_own_and_back_when_that_dies() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let rate = Some("200mbit".parse().unwrap());
    let net = net("[interface]\n[direct]\nmode = \"on-demand\"\nidle_s = 4\n", rate);
    assert_eq!(net.direct(H1), DirectLinks::default(), "nobody asked");
    // The first packets go through the router, and none is lost when the link comes.
    assert!(net.ping(&["-n", "20", "-i", "0.05", "-W", "2"]));
    net.until_direct();
    let level = DirectLinkStatus { level: "encrypt".into(), why: "both ends ask for it".into() };
    assert_eq!(net.peer(H1, "h2"), Some(level));
    let before = net.by_router();
    net.file("one", 4 << 20, || {});
    let (from, to) = net.tcp();
    stream(from, to, 4 << 20, || {});
    assert!(net.by_router() - before < 1 << 20, "the router still carries it");

    let metrics = net.site.command(H1, &["metrics"]).output().unwrap();
    shoal_e2e::check_metrics(&text(&metrics).0, &["direct"]);
    let check = std::process::Command::new(shoal_e2e::program())
        .args(["check", "-c", "node.toml"])
        .current_dir(net.site.folder(H1))
        .output();
    let said = text(&check.unwrap()).0;
    assert!(
        said.contains("direct links on-demand, others call ") && said.contains("level encrypt"),
        "{said}"
    );

    // The wire is cut during a file, then during a stream: the router takes over.
    let network = net.site.network();
    let before = net.by_router();
    net.file("two", 8 << 20, || network.cut(DIRECT).unwrap());
    assert!(net.by_router() - before > 1 << 20);
    network.restore(DIRECT).unwrap();
    net.until_direct();
    let (from, to) = net.tcp();
    let before = net.by_router();
    stream(from, to, 8 << 20, || network.cut(DIRECT).unwrap());
    assert!(net.by_router() - before > 1 << 20);
    network.restore(DIRECT).unwrap();
    net.until_direct();

    // Without traffic both ends remove the link, and packets take the router.
    net.until("the end of the link", |net| net.direct(H1).links + net.direct(H2).links == 0);
    assert!(net.direct(H1).trimmed == 1 && net.direct(H2).trimmed == 1);
    assert!(net.ping(&["-n", "2", "-W", "5"]));
}

/// Bytes that arrived on the wire between the hosts.
fn on_the_wire(net: &DirectNet) -> u64 {
    let arrived = |node| net.site.network().arrived(DIRECT, node).unwrap().bytes;
    arrived(H1) + arrived(H2)
}

/// Restarts both hosts, each with another line in its configuration.
fn restart_with(net: &mut DirectNet, lines: [&str; 2]) {
    for (node, line) in [(H1, lines[0]), (H2, lines[1])] {
        let file = net.site.folder(node).join("node.toml");
        let old = std::fs::read_to_string(&file).unwrap();
        let (kept, _) = old.split_once("[direct]").unwrap();
        std::fs::write(&file, format!("{kept}[direct]\n{line}\n")).unwrap();
        net.site.kill(node);
    }
    for node in [H1, H2] {
        net.site.revive(node).unwrap();
    }
    net.site.wait_until_up(PATIENCE).unwrap_or_else(|e| panic!("{e:#}"));
}

#[test]
fn the_level_follows_both_ends_and_off_means_off() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let mut net = net("[interface]\n[direct]\n", None);
    let on = "mode = \"on-demand\"";
    let cases = [
        (["level = \"none\"", "level = \"none\""], "none", "both ends ask for it"),
        (["level = \"authenticate\"", "level = \"none\""], "authenticate", "this end asks for it"),
        (["level = \"none\"", ""], "encrypt", "the other end asks for it"),
        (
            [
                "level = \"none\"\nsecurity_groups = [\"a\", \"b\"]",
                "level = \"none\"\nsecurity_groups = [\"b\"]",
            ],
            "encrypt",
            "shared security group",
        ),
    ];
    for (lines, level, why) in cases {
        let lines = lines.map(|line| format!("{on}\n{line}"));
        restart_with(&mut net, [&lines[0], &lines[1]]);
        net.until_direct();
        let peer = DirectLinkStatus { level: level.into(), why: why.into() };
        assert_eq!(net.peer(H1, "h2"), Some(peer));
        assert_eq!(net.peer(H2, "h1").unwrap().level, level);
        let before = net.by_router();
        let (from, to) = net.tcp();
        stream(from, to, 4 << 20, || {});
        net.file(&format!("{level}-{}", &why[..6]), 4 << 20, || {});
        assert!(net.by_router() - before < 1 << 20, "{level}: the router still carries it");
    }
    // One end turns direct links off: no traffic bypasses the router, and the wire carries none.
    restart_with(&mut net, [on, ""]);
    let before = on_the_wire(&net);
    assert!(net.ping(&["-n", "20", "-i", "0.05", "-W", "2"]));
    assert_eq!((net.direct(H1).asked, net.direct(H1).links), (1, 0));
    assert!(net.status(H2).direct.is_none());
    let drops: std::collections::BTreeMap<_, _> = net.status(H2).drops.into_iter().collect();
    // One question, repeated until an answer comes.
    let asked = drops.get("not_allowed").copied();
    assert!(asked.is_some_and(|asked| (1..=9).contains(&asked)), "{drops:?}");
    assert!(on_the_wire(&net) - before < 1_000, "the two can be seen to speak");
}

/// With one router no circuit can be built, so under "balanced" nothing passes between the hosts.
#[test]
fn automatic_links_need_the_preset_fast_at_both_ends() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let auto = "mode = \"auto\"";
    let mut net = net("[interface]\n[direct]\nmode = \"auto\"\n", None);
    net.until_direct();
    let before = net.by_router();
    let (from, to) = net.tcp();
    stream(from, to, 4 << 20, || {});
    assert!(net.by_router() - before < 1 << 20, "the router still carries it");
    let balanced = format!("{auto}\n[anonymity]\npreset = \"balanced\"");
    for lines in [[balanced.as_str(), auto], [auto, &balanced], [&balanced, &balanced]] {
        restart_with(&mut net, lines);
        let before = on_the_wire(&net);
        assert!(!net.ping(&["-n", "4", "-i", "0.5", "-W", "1"]), "{lines:?}");
        let carried = on_the_wire(&net) - before;
        assert!(carried < 1_000, "{lines:?}: {carried} bytes show that the two speak");
        assert_eq!((net.direct(H1).links, net.direct(H2).links), (0, 0), "{lines:?}");
    }
    // The presets alone decide: the same files without them make the link again.
    restart_with(&mut net, [auto, auto]);
    net.until_direct();
    // A router says that the section has no effect there.
    let warnings = net.status(R1).warnings.join("\n");
    assert!(warnings.contains("[direct] mode = \"auto\": this node is a router"), "{warnings}");
}
