//! Ordinary programs exchange IP packets through two routers.
//!
//! ```text
//!   h1 --- r1 --- r2 --- h2      ping, TCP and UDP between the interfaces of h1 and h2
//! ```

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use shoal_crypto::Rng;
use shoal_daemon::control::api::{Command as Ask, ControlReply, Status};
use shoal_lab::namespace::Namespace;
use shoal_lab::site::RunningNetwork;
use shoal_lab::{Conditions, Executable, Network, NetworkKind, Topology};
use socket2::{Domain, Socket, Type};

const PATIENCE: Duration = Duration::from_secs(20);

struct InterfaceEnds {
    site: RunningNetwork,
    h1: usize,
    h2: usize,
    folder: tempfile::TempDir,
}

impl InterfaceEnds {
    fn new() -> InterfaceEnds {
        InterfaceEnds::with("[interface]\n")
    }

    fn with(more: &str) -> InterfaceEnds {
        let folder = tempfile::tempdir().unwrap();
        let topology = Topology::chain();
        let [h1, h2] = ["h1", "h2"].map(|name| topology.find(name).unwrap());
        let network =
            Network::build(topology, NetworkKind::Namespaces, Conditions::default()).unwrap();
        let executable = Executable::shoal(shoal_e2e::program());
        let mut site = RunningNetwork::start(network, &executable, folder.path(), more).unwrap();
        site.wait_until_up(PATIENCE).unwrap_or_else(|e| panic!("{e:#}"));
        InterfaceEnds { site, h1, h2, folder }
    }

    fn status(&self, node: usize) -> Status {
        match self.site.ask(node, Ask::Status) {
            Ok(ControlReply::Status(status)) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn drops(&self, node: usize) -> BTreeMap<String, u64> {
        self.status(node).drops.into_iter().collect()
    }

    fn address(&self, node: usize) -> Ipv6Addr {
        self.status(node).interface.unwrap().address.parse().unwrap()
    }

    fn inside<T: Send>(&self, node: usize, f: impl FnOnce() -> T + Send) -> T {
        self.site.network().namespace(node).unwrap().enter(|| Ok(f())).unwrap()
    }

    fn run(&self, node: usize, words: &[&str]) -> (bool, String) {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        let output = self.inside(node, || command.output().unwrap());
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    fn until(&self, what: &str, done: impl Fn() -> bool) {
        let began = Instant::now();
        while !done() {
            assert!(began.elapsed() < PATIENCE, "{what}: {:?}", self.drops(self.h1));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Sends both ways at once over one stream. Every byte must arrive unchanged.
fn tcp(ends: &InterfaceEnds, address: impl Fn(usize) -> IpAddr) {
    let to = SocketAddr::from((address(ends.h2), 7001));
    let listener = ends.inside(ends.h2, || TcpListener::bind(to).unwrap());
    let stream = ends.inside(ends.h1, || TcpStream::connect_timeout(&to, PATIENCE).unwrap());
    let (other, _) = listener.accept().unwrap();
    let mut bytes = vec![0; 8 << 20];
    Rng::new([3; 32]).fill(&mut bytes);
    let send = |mut stream: &TcpStream| {
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
    };
    let check = |mut stream: &TcpStream| {
        let mut got = Vec::new();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_to_end(&mut got).unwrap();
        assert!(got == bytes, "{} of {} bytes, or wrong ones", got.len(), bytes.len());
    };
    std::thread::scope(|scope| {
        scope.spawn(|| send(&stream));
        scope.spawn(|| send(&other));
        scope.spawn(|| check(&stream));
        scope.spawn(|| check(&other));
    });
}

fn udp(ends: &InterfaceEnds, address: impl Fn(usize) -> IpAddr) {
    let bind = |node| {
        let at = SocketAddr::from((address(node), 7002));
        let socket = ends.inside(node, || UdpSocket::bind(at).unwrap());
        socket.set_read_timeout(Some(PATIENCE / 10)).unwrap();
        socket
    };
    let (from, to) = (bind(ends.h1), bind(ends.h2));
    let mut buf = [0; 2_000];
    // One length per size class, and the longest possible packet.
    for len in [0, 1, 100, 400, 1_374 - 48] {
        let sent: Vec<u8> = (0..len).map(|i| i as u8).collect();
        // On a busy machine a datagram may be lost, or arrive after its repetition.
        let arrived = (0..10).find_map(|_| {
            from.send_to(&sent, to.local_addr().unwrap()).unwrap();
            to.recv_from(&mut buf).ok().filter(|(got, _)| *got == len)
        });
        let (got, source) = arrived.expect("one of ten datagrams arrives");
        assert_eq!((&buf[..got], source), (&sent[..], from.local_addr().unwrap()));
    }
}

fn bad_packets_are_counted(ends: &InterfaceEnds) {
    let far = ends.address(ends.h2).to_string();
    // A source address that belongs to no key: the packet must not leave.
    let wrong = {
        let mut octets = ends.address(ends.h1).octets();
        octets[15] ^= 1;
        Ipv6Addr::from(octets)
    };
    let added = ends.run(ends.h1, &["ip", "addr", "add", &format!("{wrong}/128"), "dev", "shoal0"]);
    assert!(added.0, "{}", added.1);
    let before = ends.drops(ends.h1).get("ip_spoofed_source").copied().unwrap_or(0);
    let pinged = ["ping", "-c1", "-W1", "-I", &wrong.to_string(), &far];
    // Sending fails until the kernel has finished adding the address.
    ends.until("the wrong source is counted", || {
        let (answered, text) = ends.run(ends.h1, &pinged);
        assert!(!answered, "{text}");
        ends.drops(ends.h1).get("ip_spoofed_source").copied().unwrap_or(0) > before
    });
    let alias = format!("{wrong}/128");
    let removed = ends.run(ends.h1, &["ip", "addr", "del", &alias, "dev", "shoal0"]);
    assert!(removed.0, "{}", removed.1);
    // Nobody has this address: the program gets an error at once.
    let nobody = {
        let mut octets = ends.address(ends.h2).octets();
        octets[15] ^= 1;
        Ipv6Addr::from(octets).to_string()
    };
    let (_, text) = ends.run(ends.h1, &["ping", "-c1", "-W5", &nobody]);
    assert!(text.to_lowercase().contains("unreachable"), "{text}");
    assert!(ends.drops(ends.h1).contains_key("ip_no_host"));
}

/// A kernel that assumes a larger MTU learns the right one.
fn too_long_is_answered(ends: &InterfaceEnds, far: &str) {
    let set = |mtu| ends.run(ends.h1, &["ip", "link", "set", "shoal0", "mtu", mtu]);
    // The node restores the MTU soon afterwards.
    ends.until("the packet is counted", || {
        assert!(set("1500").0);
        let (answered, text) = ends.run(ends.h1, &["ping", "-c1", "-W5", "-Mdo", "-s1400", far]);
        assert!(!answered && text.contains("mtu=1374") || text.contains("mtu = 1374"), "{text}");
        ends.drops(ends.h1).contains_key("ip_too_big")
    });
    assert!(set("1374").0);
}

/// The list of hosts with IPv4 addresses for h1 and h2.
fn with_ipv4(list: &str, h1: &str, h2: &str) -> String {
    let named = |name: &str, ipv4: &str| format!("name = \"{name}\"\nipv4 = \"{ipv4}\"");
    list.replace("name = \"h1\"", &named("h1", h1)).replace("name = \"h2\"", &named("h2", h2))
}

impl InterfaceEnds {
    fn restart(&mut self, nodes: &[usize]) {
        for &node in nodes {
            self.site.kill(node);
        }
        for &node in nodes {
            let gone = || !self.run(node, &["ip", "link", "show", "shoal0"]).0;
            self.until("the interface is gone", gone);
            self.site.revive(node).unwrap();
        }
        self.site.wait_until_up(PATIENCE).unwrap();
    }
}

/// One end uses offloads and the other doesn't; the addresses are IPv4.
fn without_offload_and_over_ipv4(ends: &mut InterfaceEnds) {
    let list = ends.folder.path().join("hosts.toml");
    let text = std::fs::read_to_string(&list).unwrap();
    std::fs::write(&list, with_ipv4(&text, "10.98.0.1", "10.98.0.2")).unwrap();
    let config = ends.site.folder(ends.h1).join("node.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("[interface]", "[interface]\noffload = false")).unwrap();
    ends.restart(&[ends.h1, ends.h2]);
    let [one, other] = [ends.h1, ends.h2].map(|node| ends.status(node).interface.unwrap());
    assert!(!one.tcp_offload && !one.udp_offload && other.tcp_offload, "{one:?} {other:?}");
    assert_eq!(one.ipv4.as_deref(), Some("10.98.0.1"));
    let (answered, text) = ends.run(ends.h1, &["ping", "-c2", "-i0.2", "-W5", "10.98.0.2"]);
    assert!(answered, "{text}");
    let at = |node: usize| if node == ends.h1 { "10.98.0.1" } else { "10.98.0.2" };
    tcp(ends, |node| at(node).parse().unwrap());
    udp(ends, |node| at(node).parse().unwrap());
    udp(ends, |node| ends.address(node).into());
    too_long_is_answered(ends, "10.98.0.2");
    let (_, text) = ends.run(ends.h1, &["ping", "-c1", "-W5", "10.98.0.77"]);
    assert!(text.to_lowercase().contains("unreachable"), "{text}");
}

/// Protocols without ports: IGMP, IPIP, 6in4, GRE, ESP, AH, OSPF, EtherIP, IPComp, VRRP, SCTP,
/// UDP-Lite, and one for experiments.
const PROTOCOLS: [u8; 13] = [2, 4, 41, 47, 50, 51, 89, 97, 108, 112, 132, 136, 253];

/// True if a packet of an IP protocol from h1 arrives at h2.
fn passes(ends: &InterfaceEnds, protocol: u8, to: IpAddr) -> bool {
    let domain = Domain::for_address(SocketAddr::new(to, 0));
    let open = || Socket::new(domain, Type::RAW, Some(i32::from(protocol).into())).unwrap();
    let (sender, receiver) = (ends.inside(ends.h1, open), ends.inside(ends.h2, open));
    receiver.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let content = [&[0; 4], b"one packet of a protocol".as_slice(), &[protocol; 40]].concat();
    sender.send_to(&content, &SocketAddr::new(to, 0).into()).unwrap();
    let mut packet = [0; 2_000];
    while let Ok(len) = (&receiver).read(&mut packet) {
        if packet[..len].ends_with(&content) {
            return true;
        }
    }
    false
}

/// Frames of an Ethernet over VXLAN, which spans the network.
fn vxlan(ends: &InterfaceEnds, far: impl Fn(usize) -> IpAddr) {
    for (node, other, own) in [(ends.h1, ends.h2, 1), (ends.h2, ends.h1, 2)] {
        let (near, far) = (far(node), far(other));
        let of = format!("id 9 local {near} remote {far} dev shoal0 dstport 4789");
        for words in [
            format!("ip link add vx0 type vxlan {of}"),
            "ip link set vx0 mtu 1300 up".into(),
            format!("ip addr add 172.16.9.{own}/24 dev vx0"),
        ] {
            let (done, text) = ends.run(node, &words.split(' ').collect::<Vec<_>>());
            assert!(done, "{words}: {text}");
        }
    }
    let at = |node: usize| if node == ends.h1 { "172.16.9.1" } else { "172.16.9.2" };
    tcp(ends, |node| at(node).parse().unwrap());
    for node in [ends.h1, ends.h2] {
        assert!(ends.run(node, &["ip", "link", "del", "vx0"]).0);
    }
}

/// A container at h1, which calls h2 from h1's own address.
fn masqueraded_container(ends: &InterfaceEnds) {
    let container = Namespace::new().unwrap();
    let there = format!("/proc/{}/fd/{}", std::process::id(), container.raw_fd());
    let script = format!(
        "ip link add c0 type veth peer name eth0 netns {there}
        ip addr add 172.17.0.1/24 dev c0; ip link set c0 up
        echo 1 > /proc/sys/net/ipv4/ip_forward
        nft 'add table ip c; add chain ip c p {{ type nat hook postrouting priority 100; }}
            add rule ip c p ip saddr 172.17.0.0/24 oifname shoal0 masquerade'"
    );
    let (done, text) = ends.run(ends.h1, &["sh", "-ec", &script]);
    assert!(done, "{text}");
    let to: SocketAddr = "10.98.0.2:7003".parse().unwrap();
    let listener = ends.inside(ends.h2, || TcpListener::bind(to).unwrap());
    let sent = shoal_e2e::bytes(9, 2_000_000);
    let settings = "ip addr add 172.17.0.2/24 dev eth0; ip link set eth0 up
        ip route add default via 172.17.0.1";
    let mut near = container
        .enter(|| {
            assert!(Command::new("sh").args(["-ec", settings]).status().unwrap().success());
            Ok(TcpStream::connect_timeout(&to, PATIENCE).unwrap())
        })
        .unwrap();
    let (mut far, from) = listener.accept().unwrap();
    assert_eq!(from.ip().to_string(), "10.98.0.1");
    let mut got = vec![0; sent.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| near.write_all(&sent).unwrap());
        far.set_read_timeout(Some(PATIENCE)).unwrap();
        far.read_exact(&mut got).unwrap();
    });
    assert!(got == sent, "bytes are not those that were sent");
}

/// Other uses of an IP network than plain TCP and UDP.
fn other_uses(ends: &InterfaceEnds) {
    let ipv4 = |node: usize| if node == ends.h1 { "10.98.0.1" } else { "10.98.0.2" };
    let ipv4 = |node| ipv4(node).parse::<IpAddr>().unwrap();
    let ipv6 = |node| IpAddr::from(ends.address(node));
    for to in [ipv4(ends.h2), ipv6(ends.h2)] {
        let lost = PROTOCOLS.into_iter().filter(|protocol| !passes(ends, *protocol, to));
        let lost: Vec<u8> = lost.collect();
        assert_eq!(lost, [0; 0], "protocols to {to}");
    }
    vxlan(ends, ipv4);
    vxlan(ends, ipv6);
    masqueraded_container(ends);
}

/// h1 uses an address that the others' list does not grant it: h2 must drop its packets.
fn another_hosts_ipv4_address_is_refused(ends: &mut InterfaceEnds) {
    let list = std::fs::read_to_string(ends.folder.path().join("hosts.toml")).unwrap();
    let forged = list.replace("10.98.0.1\"", "10.98.0.66\"");
    std::fs::write(ends.folder.path().join("forged.toml"), forged).unwrap();
    let config = ends.site.folder(ends.h1).join("node.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("../hosts.toml", "../forged.toml")).unwrap();
    ends.restart(&[ends.h1]);
    ends.until("the wrong source is counted", || {
        let (answered, text) = ends.run(ends.h1, &["ping", "-c1", "-W1", "10.98.0.2"]);
        assert!(!answered, "{text}");
        ends.drops(ends.h2).get("ip_spoofed_source").copied().unwrap_or(0) > 0
    });
}

#[test]
fn programs_speak_ip_through_routers() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let mut ends = InterfaceEnds::new();
    let far = ends.address(ends.h2).to_string();
    let (answered, text) = ends.run(ends.h1, &["ping", "-c3", "-i0.2", "-W5", &far]);
    assert!(answered && text.contains(" 0% packet loss"), "{text}");
    tcp(&ends, |node| ends.address(node).into());
    udp(&ends, |node| ends.address(node).into());
    bad_packets_are_counted(&ends);
    // A second node that wants the same name is told what to do.
    let config = ends.site.folder(ends.h1).join("node.toml");
    let copy = ends.folder.path().join("h1").join("second.toml");
    let text = std::fs::read_to_string(config).unwrap();
    std::fs::write(&copy, text.replace(":74", ":75").replace("control.sock", "second.sock"))
        .unwrap();
    let (ran, said) =
        ends.run(ends.h1, &[shoal_e2e::program(), "run", "-c", copy.to_str().unwrap()]);
    assert!(!ran && said.contains("ip link delete shoal0"), "{said}");
    // A killed node leaves nothing behind, and comes back.
    ends.site.kill(ends.h1);
    ends.until("the interface is gone", || !ends.run(ends.h1, &["ip", "link", "show", "shoal0"]).0);
    ends.site.revive(ends.h1).unwrap();
    ends.site.wait_until_up(PATIENCE).unwrap();
    let (answered, text) = ends.run(ends.h1, &["ping", "-c2", "-i0.2", "-W5", &far]);
    assert!(answered, "{text}");
    too_long_is_answered(&ends, &far);
    without_offload_and_over_ipv4(&mut ends);
    other_uses(&ends);
    another_hosts_ipv4_address_is_refused(&mut ends);
}

/// Milliseconds of processor time that a process has used.
fn cpu_ms(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = text.rsplit(')').next().unwrap().split_ascii_whitespace();
    let ticks = fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum::<u64>();
    ticks * 10
}

#[test]
fn changes_by_other_programs_to_the_interface_are_undone_and_reported() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let ends = InterfaceEnds::with("[data]\nworkers = 2\n[interface]\n");
    let far = ends.address(ends.h2).to_string();
    let answers = || ends.run(ends.h1, &["ping", "-c1", "-W1", &far]).0;
    let change = |words: &str| {
        let (done, text) = ends.run(ends.h1, &words.split(' ').collect::<Vec<_>>());
        assert!(done, "{words}: {text}");
    };
    let state = || ends.status(ends.h1).interface.unwrap().state;
    let off = "net.ipv6.conf.shoal0.disable_ipv6";
    ends.until("the way is open", answers);
    assert_eq!(state(), "up");
    for words in [
        "ip link del shoal0",
        "ip link set shoal0 down",
        "ip -6 addr flush dev shoal0",
        "ip -6 route flush dev shoal0",
        "ip link set shoal0 mtu 1000",
        &format!("sysctl -qw {off}=1"),
    ] {
        change(words);
        if words.starts_with("sysctl") {
            ends.until("the status says that IPv6 is off", || state() == "incomplete");
            change(&format!("sysctl -qw {off}=0"));
        }
        ends.until(words, answers);
        ends.until("the status says so", || state() == "up");
    }
    let said = ends.status(ends.h1).warnings.join("\n");
    assert!(said.contains("and the node put it right"), "{said}");
    // Another device takes the name: the node waits for it, and does not spin.
    let both = ends.folder.path().join("both");
    std::fs::write(&both, "link del shoal0\nlink add shoal0 type bridge\n").unwrap();
    // The node may make its interface anew between the two commands.
    let taken = (0..20).any(|_| {
        let (done, _) = ends.run(ends.h1, &["ip", "-batch", &both.display().to_string()]);
        if !done {
            ends.until("the interface is back", answers);
        }
        done
    });
    assert!(taken, "another device gets the name");
    ends.until("the status says that it is gone", || state() == "gone");
    let pid = ends.status(ends.h1).pid;
    let before = cpu_ms(pid);
    std::thread::sleep(Duration::from_secs(2));
    let used = cpu_ms(pid) - before;
    assert!(used < 600, "{used} ms of processor time in 2 s");
    change("ip link del shoal0");
    ends.until("the interface is back", answers);
}
