//! Machines without Shoal communicate through gateways.
//!
//! ```text
//!   a --- h1 --- r1 --- r2 --- h2 --- b      the networks of a and b are IPv4 and IPv6
//! ```

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use shoal_crypto::Rng;
use shoal_daemon::control::api::{Command as Ask, ControlReply, Status};
use shoal_lab::site::RunningNetwork;
use shoal_lab::{Conditions, Executable, LinkSpec, Network, NetworkKind, NodeSpec, Topology};
use shoal_wire::Address;

const PATIENCE: Duration = Duration::from_secs(20);

/// The chain with a machine behind each host.
fn topology() -> Topology {
    let mut topology = Topology::chain();
    for (name, gateway) in [("a", "h1"), ("b", "h2")] {
        let address = Address::new(0, 0);
        topology.nodes.push(NodeSpec { name: name.into(), address, plain: true });
        let (a, b) = (topology.find(name).unwrap(), topology.find(gateway).unwrap());
        topology.links.push(LinkSpec { a, b });
    }
    topology
}

struct Town {
    site: RunningNetwork,
    folder: tempfile::TempDir,
}

impl Town {
    fn new() -> Town {
        let folder = tempfile::tempdir().unwrap();
        let network =
            Network::build(topology(), NetworkKind::Namespaces, Conditions::default()).unwrap();
        let site = RunningNetwork::start(
            network,
            &Executable::shoal(shoal_e2e::program()),
            folder.path(),
            "[interface]\n",
        )
        .unwrap();
        let mut town = Town { site, folder };
        for (behind, gateway, net) in [("a", "h1", "fd20:a"), ("b", "h2", "fd20:b")] {
            town.site.network().default_route(town.node(behind), town.node(gateway)).unwrap();
            let (to, from) = (format!("to_{gateway}"), format!("to_{behind}"));
            town.ip(behind, &format!("-6 addr add {net}::2/64 dev {to} nodad"));
            town.ip(gateway, &format!("-6 addr add {net}::1/64 dev {from} nodad"));
            town.ip(behind, &format!("-6 route add default via {net}::1"));
        }
        for (gateway, prefixes) in [("h1", town.prefixes("a")), ("h2", town.prefixes("b"))] {
            town.grant(gateway, &prefixes);
            town.configure(gateway, &format!("prefixes = {prefixes}\naccept_prefixes = [\"all\"]"));
        }
        town.restart(&["h1", "h2"]);
        town
    }

    fn node(&self, name: &str) -> usize {
        self.site.network().topology().find(name).unwrap()
    }

    /// The prefixes behind a host, in TOML.
    fn prefixes(&self, behind: &str) -> String {
        let [v4, v6] = [false, true].map(|v6| self.address(behind, v6));
        let IpAddr::V4(v4) = v4 else { unreachable!() };
        let [a, b, c, _] = v4.octets();
        format!("[\"{a}.{b}.{c}.0/24\", \"{}/64\"]", v6.to_string().trim_end_matches('2'))
    }

    fn address(&self, behind: &str, v6: bool) -> IpAddr {
        let (gateway, net) = if behind == "a" { ("h1", "fd20:a") } else { ("h2", "fd20:b") };
        match v6 {
            true => format!("{net}::2").parse().unwrap(),
            false => {
                let network = self.site.network();
                network.ip_of(self.node(gateway), self.node(behind)).unwrap()
            }
        }
    }

    /// Grants prefixes to a host in the list of hosts.
    fn grant(&self, host: &str, prefixes: &str) {
        let file = self.folder.path().join("hosts.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let entry = format!("name = \"{host}\"\n");
        let (before, after) = text.split_once(&entry).unwrap();
        let after = match after.strip_prefix("prefixes") {
            Some(old) => old.split_once('\n').unwrap().1,
            None => after,
        };
        std::fs::write(file, format!("{before}{entry}prefixes = {prefixes}\n{after}")).unwrap();
    }

    fn configure(&self, host: &str, interface: &str) {
        let file = self.site.folder(self.node(host)).join("node.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let (node, _) = text.split_once("[interface]\n").unwrap();
        std::fs::write(file, format!("{node}[interface]\n{interface}\n")).unwrap();
    }

    fn restart(&mut self, nodes: &[&str]) {
        for name in nodes {
            let node = self.node(name);
            self.site.kill(node);
            self.until("the interface is gone", || !self.run(name, "ip link show shoal0").0);
            self.site.revive(node).unwrap();
        }
        self.site.wait_until_up(PATIENCE).unwrap_or_else(|e| panic!("{e:#}"));
    }

    fn status(&self, name: &str) -> Status {
        match self.site.ask(self.node(name), Ask::Status) {
            Ok(ControlReply::Status(status)) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn drops(&self, name: &str, reason: &str) -> u64 {
        let drops = self.status(name).drops;
        drops.into_iter().find(|(known, _)| known == reason).map_or(0, |(_, n)| n)
    }

    fn inside<T: Send>(&self, name: &str, f: impl FnOnce() -> T + Send) -> T {
        self.site.network().namespace(self.node(name)).unwrap().enter(|| Ok(f())).unwrap()
    }

    fn run(&self, name: &str, words: &str) -> (bool, String) {
        let mut words = words.split(' ');
        let mut command = Command::new(words.next().unwrap());
        command.args(words);
        let output = self.inside(name, || command.output().unwrap());
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    fn ip(&self, name: &str, words: &str) {
        let (done, text) = self.run(name, &format!("ip {words}"));
        assert!(done, "ip {words}: {text}");
    }

    fn pings(&self, from: &str, to: IpAddr) -> bool {
        self.run(from, &format!("ping -c1 -W2 {to}")).0
    }

    fn until(&self, what: &str, done: impl Fn() -> bool) {
        let began = Instant::now();
        while !done() {
            assert!(began.elapsed() < PATIENCE, "never came: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn routes(&self, name: &str) -> String {
        self.run(name, "ip route show dev shoal0").1
            + &self.run(name, "ip -6 route show dev shoal0").1
    }
}

/// Sends both ways at once over one stream. Every byte must arrive unchanged.
fn tcp(town: &Town, v6: bool) {
    let to = SocketAddr::from((town.address("b", v6), 7001));
    let listener = town.inside("b", || TcpListener::bind(to).unwrap());
    let near = town.inside("a", || TcpStream::connect_timeout(&to, PATIENCE).unwrap());
    let (far, from) = listener.accept().unwrap();
    assert_eq!(from.ip(), town.address("a", v6), "no address is translated");
    let mut bytes = vec![0; 4 << 20];
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
        scope.spawn(|| send(&near));
        scope.spawn(|| send(&far));
        scope.spawn(|| check(&near));
        scope.spawn(|| check(&far));
    });
}

fn udp(town: &Town, v6: bool) {
    let bind = |name| {
        let at = SocketAddr::from((town.address(name, v6), 7002));
        let socket = town.inside(name, || UdpSocket::bind(at).unwrap());
        socket.set_read_timeout(Some(PATIENCE / 4)).unwrap();
        socket
    };
    let (from, to) = (bind("a"), bind("b"));
    let mut buf = vec![0; 65_536];
    for len in [0, 100, 1_374 - 48, 8_000, 60_000] {
        let sent: Vec<u8> = (0..len).map(|i| i as u8).collect();
        // The first long datagram of IPv6 may be lost: its machine learns the MTU by it.
        let mut tries = 0;
        let (got, source) = loop {
            from.send_to(&sent, to.local_addr().unwrap()).unwrap();
            match to.recv_from(&mut buf) {
                Ok(got) => break got,
                Err(error) => assert!(len > 1_400 && tries < 3, "{len} bytes: {error}"),
            }
            tries += 1;
        };
        assert_eq!((&buf[..got], source), (&sent[..], from.local_addr().unwrap()));
    }
    let ping = format!("ping -c2 -W9 -s8000 {}", to.local_addr().unwrap().ip());
    let (answered, text) = town.run("a", &ping);
    assert!(answered && text.contains(" 0% packet loss"), "{text}");
}

/// The interface has a smaller MTU than the networks around it.
fn too_long_is_answered(town: &Town) {
    for v6 in [false, true] {
        let to = town.address("b", v6);
        let (answered, text) = town.run("a", &format!("ping -c1 -W5 -Mdo -s1400 {to}"));
        // The machine may know the MTU already, from a stream's packets.
        assert!(!answered && text.contains("mtu") && text.contains("1374"), "{text}");
    }
}

/// A source address outside the networks behind the gateway.
fn a_foreign_source_goes_no_further(town: &Town) {
    let wrong = "192.0.2.7";
    town.ip("a", &format!("addr add {wrong}/32 dev to_h1"));
    town.ip("h1", &format!("route add {wrong}/32 dev to_a"));
    let before = town.drops("h1", "ip_spoofed_source");
    let pinged = format!("ping -c1 -W1 -I {wrong} {}", town.address("b", false));
    town.until("the wrong source is counted", || {
        assert!(!town.run("a", &pinged).0);
        town.drops("h1", "ip_spoofed_source") > before
    });
    // h1's own list grants it that network; the others' lists don't.
    let list = std::fs::read_to_string(town.folder.path().join("hosts.toml")).unwrap();
    town.grant("h1", &town.prefixes("a").replace('[', "[\"192.0.2.0/24\", "));
    let forged = town.folder.path().join("forged.toml");
    std::fs::rename(town.folder.path().join("hosts.toml"), forged).unwrap();
    std::fs::write(town.folder.path().join("hosts.toml"), list).unwrap();
}

fn an_ungranted_source_is_refused(town: &mut Town) {
    let file = town.site.folder(town.node("h1")).join("node.toml");
    let honest = std::fs::read_to_string(&file).unwrap();
    let text = honest.replace("../hosts.toml", "../forged.toml");
    std::fs::write(&file, text.replace("prefixes = [\"", "prefixes = [\"192.0.2.0/24\", \""))
        .unwrap();
    town.restart(&["h1"]);
    let pinged = format!("ping -c1 -W1 -I 192.0.2.7 {}", town.address("b", false));
    town.until("the wrong source is counted", || {
        assert!(!town.run("a", &pinged).0);
        town.drops("h2", "ip_spoofed_source") > 0
    });
    // Without the forged list the node does not even start.
    let text = std::fs::read_to_string(&file).unwrap().replace("forged", "hosts");
    std::fs::write(&file, text).unwrap();
    let config = file.to_str().unwrap().to_string();
    let (ran, said) = town.run("h1", &format!("{} check -c {config}", shoal_e2e::program()));
    assert!(!ran && said.contains("does not have 192.0.2.0/24 among the prefixes"), "{said}");
    std::fs::write(&file, honest).unwrap();
    town.restart(&["h1"]);
}

/// Routes follow the list: a removed prefix is withdrawn, and returns when it is granted again.
fn the_list_decides_while_the_node_runs(town: &Town) {
    let to = town.address("b", false);
    let reload = |name| {
        let done = town.site.command(town.node(name), &["reload"]).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    assert_eq!(town.routes("h1").matches("metric 4096").count(), 2, "{}", town.routes("h1"));
    town.grant("h2", "[]");
    reload("h1");
    town.until("the routes are withdrawn", || !town.routes("h1").contains("metric 4096"));
    assert!(!town.pings("a", to));
    town.grant("h2", &town.prefixes("b"));
    reload("h1");
    town.until("the routes are back", || town.routes("h1").contains("metric 4096"));
    town.until("the ping passes", || town.pings("a", to));
    // A prefix of another host that holds this machine's own address: a warning, and no route.
    town.grant("h2", &town.prefixes("b").replace('[', "[\"10.77.1.0/30\", "));
    reload("h1");
    town.until("the warning comes", || {
        town.status("h1").warnings.iter().any(|w| w.contains("10.77.1.0/30 behind \"h2\" is not"))
    });
    assert!(town.pings("a", to));
}

/// A node that became another user still sets routes: one thread keeps one capability.
fn routes_outlive_privileges(town: &mut Town) {
    use std::os::unix::fs::PermissionsExt;
    let open = |path: &Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    let home = town.site.folder(town.node("h1"));
    for path in [town.folder.path(), &home, &home.join("node.toml")] {
        open(path);
    }
    open(&town.folder.path().join("hosts.toml"));
    let config = home.join("node.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("[node]\n", "[node]\nuser = \"nobody\"\n")).unwrap();
    town.restart(&["h1"]);
    let pid = town.status("h1").pid;
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // A thread may end while it is looked at.
    let status = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("status")).ok()
    };
    let permitted = |text: String| {
        let line = text.lines().find(|line| line.starts_with("CapPrm"))?;
        Some(line[8..].to_owned()).filter(|set| !set.trim_matches('0').is_empty())
    };
    let mut powers: Vec<String> = tasks.filter_map(status).filter_map(permitted).collect();
    powers.sort();
    assert_eq!(powers, ["0000000000001000"], "CAP_NET_ADMIN, once");
    town.until("the ping passes", || town.pings("a", town.address("b", false)));
    the_list_decides_while_the_node_runs(town);
}

#[test]
fn unmodified_machines_speak_through_gateways() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let mut town = Town::new();
    let status = town.status("h1");
    let interface = status.interface.clone().unwrap();
    assert_eq!((interface.serves.len(), interface.reaches.len()), (2, 2), "{interface:?}");
    assert!(status.warnings.iter().any(|w| w.contains("net.ipv4.ip_forward")), "{status:?}");
    for gateway in ["h1", "h2"] {
        assert!(town.run(gateway, "sysctl -w net.ipv4.ip_forward=1").0);
        assert!(town.run(gateway, "sysctl -w net.ipv6.conf.all.forwarding=1").0);
    }
    assert!(!town.status("h1").warnings.iter().any(|w| w.contains("forward")));
    for v6 in [false, true] {
        town.until("the ping passes", || town.pings("a", town.address("b", v6)));
        tcp(&town, v6);
        udp(&town, v6);
        // A gateway reaches machines behind the other, and they reach it.
        assert!(town.pings("h1", town.address("b", v6)));
    }
    too_long_is_answered(&town);
    a_foreign_source_goes_no_further(&town);
    an_ungranted_source_is_refused(&mut town);
    the_list_decides_while_the_node_runs(&town);
    routes_outlive_privileges(&mut town);
    // A node that accepts no prefixes has no route, whatever the list says.
    town.configure("h1", "");
    town.restart(&["h1"]);
    assert!(!town.routes("h1").contains("metric 4096"));
    assert!(!town.pings("h1", town.address("b", false)));
}
