//! A member names endpoints inside the network, on this machine or at its provider. No frame goes
//! there, or into the node's own interface.
//!
//! ```text
//!    h1 --- r1 --- h2
//! ```

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shoal_e2e::machines::Machines;
use shoal_e2e::text;
use shoal_lab::network::IpFamily;
use shoal_lab::site::RunningNetwork;
use shoal_lab::{
    ChildProcess, Conditions, Executable, LinkSpec, Network, NetworkKind, NodeSpec, Topology,
};
use shoal_wire::Address;

const PATIENCE: Duration = Duration::from_secs(60);
const R1: usize = 0;
const H1: usize = 1;
const H2: usize = 2;
/// Time in which bytes are counted after an attack, and the most that may leave in it.
const WATCHED: Duration = Duration::from_secs(10);
const BYTES_MAX: u64 = 10_000;
/// Datagrams of full frames that the attacker's process sends while bytes are counted.
const DATAGRAMS: usize = 18;
const ON_DEMAND: &str = "[direct]\nmode = \"on-demand\"\n";

struct EndpointNet {
    site: RunningNetwork,
    family: IpFamily,
    folder: tempfile::TempDir,
}

impl EndpointNet {
    /// Three nodes with interfaces, with `extra` in their files.
    fn new(family: IpFamily, extra: &str) -> EndpointNet {
        let node = |name: &str, host| NodeSpec::new(name.into(), Address::new(1, host));
        let nodes = vec![node("r1", 0), node("h1", 1), node("h2", 2)];
        let links = vec![LinkSpec { a: H1, b: R1 }, LinkSpec { a: H2, b: R1 }];
        let topology = Topology { nodes, links };
        let ground = NetworkKind::Namespaces.over(family);
        let network = Network::build(topology, ground, Conditions::default()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let executable = Executable::shoal(shoal_e2e::program());
        let extra = format!("[interface]\n{extra}");
        let change = |_: &Network, folder: &std::path::Path| {
            let list = folder.join("hosts.toml");
            let mut hosts = fs::read_to_string(&list)?;
            for (number, name) in (1..).zip(["r1", "h1", "h2"]) {
                let name = format!("name = \"{name}\"\n");
                hosts = hosts.replace(&name, &format!("{name}ipv4 = \"10.98.0.{number}\"\n"));
            }
            fs::write(list, hosts)?;
            Ok(())
        };
        let site = RunningNetwork::start_after(network, &executable, folder.path(), &extra, change);
        let site = site.unwrap_or_else(|e| panic!("{e:#}"));
        let mut net = EndpointNet { site, family, folder };
        net.wait();
        net
    }

    fn wait(&mut self) {
        self.site.wait_until_up(PATIENCE).unwrap_or_else(|e| panic!("{e:#}"));
    }

    /// The address of a node's interface, in the wires' IP family.
    fn overlay(&self, node: usize) -> IpAddr {
        match self.family {
            IpFamily::Ipv4 => format!("10.98.0.{}", node + 1).parse().unwrap(),
            IpFamily::Ipv6 => self.site.interface(node).unwrap(),
        }
    }

    /// Restarts h2 with this endpoint as its own.
    fn name(&mut self, endpoint: SocketAddr) {
        let file = self.site.folder(H2).join("node.toml");
        let config = fs::read_to_string(&file).unwrap();
        let (head, _) = config.split_once("[direct]").unwrap();
        let direct = format!("[direct]\nmode = \"on-demand\"\nendpoint = \"{endpoint}\"\n");
        fs::write(&file, head.to_owned() + &direct).unwrap();
        // Both restart, so that h1 asks at once.
        self.site.restart_all(&[H1, H2]).unwrap();
        self.wait();
    }

    fn ping(&self, from: usize, to: &str) -> bool {
        let mut command = self.site.command(from, &["ping", to, "-n", "3", "-W", "3"]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    }

    fn sent(&self, node: usize) -> u64 {
        self.site.status(node).unwrap().traffic.bytes_out
    }

    fn dropped(&self, node: usize, reason: &str) -> u64 {
        let drops = self.site.status(node).unwrap().drops;
        drops.iter().find(|(name, _)| name == reason).map_or(0, |(_, n)| *n)
    }

    /// Bytes that a node sends in [`WATCHED`].
    fn watch(&self, node: usize) -> u64 {
        let before = self.sent(node);
        std::thread::sleep(WATCHED);
        self.sent(node) - before
    }
}

/// A socket in the namespace of a node.
fn socket(net: &Network, node: usize, at: SocketAddr) -> UdpSocket {
    let opened = net.namespace(node).unwrap().enter(|| Ok(UdpSocket::bind(at)?)).unwrap();
    opened.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    opened
}

fn a_host_is_told(family: IpFamily) {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let mut net = EndpointNet::new(family, ON_DEMAND);
    let port = net.site.network().listen(H2).port();
    net.name(SocketAddr::new(net.overlay(H2), port));
    assert!(net.ping(H1, "h2"), "over the router");
    let sent = net.watch(H1);
    assert!(sent <= BYTES_MAX, "{family:?}: the host sent {sent} bytes in {WATCHED:?}");
    assert!(net.dropped(H1, "endpoint_inside") > 0, "{family:?}");
    assert!(net.ping(H1, "h2"), "over the router");
}

#[test]
fn a_host_is_told_an_overlay_ipv4_endpoint_and_sends_nothing_there() {
    a_host_is_told(IpFamily::Ipv4);
}

#[test]
fn a_host_is_told_an_overlay_ipv6_endpoint_and_sends_nothing_there() {
    a_host_is_told(IpFamily::Ipv6);
}

#[test]
fn a_host_calls_no_service_of_its_machine_or_provider() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let mut net = EndpointNet::new(IpFamily::Ipv4, ON_DEMAND);
    let mut provider = std::process::Command::new("ip");
    provider.args(["address", "add", "169.254.169.254/32", "dev", "lo"]);
    let host = net.site.network().namespace(H1).unwrap();
    let added = host.enter(|| Ok(provider.output()?)).unwrap();
    assert!(added.status.success(), "{}", text(&added).1);
    for told in ["127.0.0.1:9999", "169.254.169.254:80"] {
        let told: SocketAddr = told.parse().unwrap();
        let service = socket(net.site.network(), H1, told);
        net.name(told);
        assert!(net.ping(H1, "h2"), "over the router");
        std::thread::sleep(Duration::from_secs(2));
        let came = std::iter::from_fn(|| service.recv(&mut [0; 2_000]).ok()).count();
        assert_eq!(came, 0, "datagrams to {told}");
        assert!(net.dropped(H1, "endpoint_refused") > 0, "{told}");
    }
}

/// Carries frames between a process that sends to `near` and the endpoint `to`, until `ended`.
fn carry(near: &UdpSocket, far: &UdpSocket, to: SocketAddr, ended: &AtomicBool) {
    let (mut frame, mut process) = ([0; 2_000], None);
    while !ended.load(Ordering::Relaxed) {
        while let Ok((len, from)) = near.recv_from(&mut frame) {
            process = Some(from);
            let _lost = far.send_to(&frame[..len], to);
        }
        while let (Ok((len, _)), Some(process)) = (far.recv_from(&mut frame), process) {
            let _lost = near.send_to(&frame[..len], process);
        }
    }
}

/// Starts a second process with h1's key, beside h1, that calls its router at this endpoint.
fn twin(net: &EndpointNet, router: SocketAddr) -> ChildProcess {
    let (home, twin) = (net.site.folder(H1), net.folder.path().join("twin"));
    fs::create_dir(&twin).unwrap();
    for name in ["node.key", "network.key"] {
        fs::copy(home.join(name), twin.join(name)).unwrap();
    }
    let network = net.site.network();
    let config = fs::read_to_string(home.join("node.toml")).unwrap();
    let called = network.endpoint(0, H1).to_string();
    let listen = network.listen(H1);
    let other = SocketAddr::new(listen.ip(), listen.port() + 1).to_string();
    let config = config.replace(&listen.to_string(), &other).replace(&called, &router.to_string());
    fs::write(twin.join("node.toml"), config.replace("[interface]", "")).unwrap();
    let mut command = std::process::Command::new(shoal_e2e::program());
    command.args(["run", "-c"]).arg(twin.join("node.toml")).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    ChildProcess::start("twin", command, network.namespace_fd(H1)).unwrap()
}

fn a_router_is_called(family: IpFamily) {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let net = EndpointNet::new(family, "");
    assert!(net.ping(H1, "r1"), "before the attack");
    let network = net.site.network();
    let here = match family {
        IpFamily::Ipv4 => "127.0.0.1:7999",
        IpFamily::Ipv6 => "[::1]:7999",
    };
    let proxy: SocketAddr = here.parse().unwrap();
    let any = SocketAddr::new(network.listen(H1).ip(), 0);
    let [near, far] = [proxy, any].map(|at| socket(network, H1, at));
    for socket in [&near, &far] {
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    }
    let overlay = SocketAddr::new(net.overlay(R1), network.listen(R1).port());
    // The router's link reports on all traffic of h1. This measures the reports for a program that
    // only listens.
    let program = SocketAddr::new(net.overlay(R1), 7_998);
    let _listens = socket(network, R1, program);
    let usual = std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..DATAGRAMS {
                far.send_to(&[0; 1_200], program).unwrap();
                std::thread::sleep(WATCHED / DATAGRAMS as u32);
            }
        });
        net.watch(R1)
    });
    let ended = AtomicBool::new(false);
    let (sent, dropped) = std::thread::scope(|scope| {
        scope.spawn(|| carry(&near, &far, overlay, &ended));
        let _twin = twin(&net, proxy);
        let seen = (net.watch(R1), net.dropped(R1, "own_interface"));
        ended.store(true, Ordering::Relaxed);
        seen
    });
    println!(
        "{family:?}: {sent} bytes in {WATCHED:?}, {usual} beside {DATAGRAMS} harmless datagrams; \
         {dropped} dropped"
    );
    assert!(sent <= usual + BYTES_MAX, "{family:?}: {sent} bytes, {usual} before");
    assert!(dropped > 0, "{family:?}: the attack did not reach the router");
    assert!(net.ping(H1, "h2") && net.ping(H2, "r1"), "after the attack");
}

#[test]
fn a_router_called_at_its_overlay_ipv4_address_stays_where_the_host_is() {
    a_router_is_called(IpFamily::Ipv4);
}

#[test]
fn a_router_called_at_its_overlay_ipv6_address_stays_where_the_host_is() {
    a_router_is_called(IpFamily::Ipv6);
}

/// Runs `ip` with these words in the namespace of h1.
#[track_caller]
fn ip(network: &Network, words: &[&str]) {
    let mut command = std::process::Command::new("ip");
    command.args(words);
    let ran = network.namespace(H1).unwrap().enter(|| Ok(command.output()?)).unwrap();
    assert!(ran.status.success(), "{words:?}: {}", text(&ran).1);
}

/// A wrong route leads the link's datagrams into the node's own interface, where they are packets
/// to no host.
#[test]
fn datagrams_of_a_link_that_enter_the_own_interface_are_dropped_by_name() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    for (family, bits) in [(IpFamily::Ipv4, 32), (IpFamily::Ipv6, 128)] {
        let mut net = EndpointNet::new(family, "");
        let network = net.site.network();
        let called = format!("{}/{bits}", network.ip_of(H1, R1).unwrap());
        ip(network, &["route", "add", &called, "dev", "shoal0"]);
        let before = net.sent(H1);
        let _lost = net.ping(H1, "r1");
        net.watch(H1);
        let sent = net.sent(H1) - before;
        let dropped = net.dropped(H1, "ip_no_host");
        println!("{family:?}: {sent} bytes in {WATCHED:?}, {dropped} datagrams dropped");
        // Unanswered handshakes send little. A loop would send gigabytes.
        assert!(sent <= 100 * BYTES_MAX, "{family:?}: {sent} bytes");
        assert!(dropped > 0, "{family:?}: none entered the interface");
        ip(net.site.network(), &["route", "del", &called, "dev", "shoal0"]);
        net.wait();
    }
}

/// DHCP brings an address after the node has started.
#[test]
fn a_node_waits_for_the_address_at_which_it_is_to_listen() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    for family in [IpFamily::Ipv4, IpFamily::Ipv6] {
        let mut net = EndpointNet::new(family, "");
        let network = net.site.network();
        let (own, interface) = (network.ip_of(R1, H1).unwrap(), network.interface(H1, R1));
        let file = net.site.folder(H1).join("node.toml");
        let config = fs::read_to_string(&file).unwrap();
        let listen = config.lines().find(|line| line.starts_with("listen")).unwrap().to_owned();
        let at = SocketAddr::new(own, network.listen(H1).port());
        fs::write(&file, config.replace(&listen, &format!("listen = [\"{at}\"]"))).unwrap();
        ip(network, &["address", "flush", "dev", &interface]);
        net.site.restart(H1).unwrap();
        std::thread::sleep(Duration::from_secs(2));
        let warnings = net.site.status(H1).unwrap().warnings;
        let said = format!("no interface has the address {own}");
        assert!(warnings.iter().any(|warning| warning.contains(&said)), "{warnings:?}");
        let own = format!("{own}/{}", family.prefix_len());
        ip(net.site.network(), &["address", "add", &own, "dev", &interface]);
        net.wait();
        let warnings = net.site.status(H1).unwrap().warnings;
        assert!(!warnings.iter().any(|warning| warning.contains(&said)), "{warnings:?}");
    }
}

/// Two machines on a line with only the kernel's link-local addresses. Each has two interfaces, so
/// an address without its interface leads nowhere.
#[test]
fn a_router_is_called_at_a_link_local_address_of_a_named_interface() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let names = ["r1", "h1", "h2"];
    let mut machines = Machines::new(&names);
    machines.join(("r1", "eth0"), ("h1", "eth0"));
    machines.join(("r1", "eth1"), ("h2", "lan0"));
    machines.join(("h1", "eth1"), ("h2", "eth1"));
    machines.make_secret();
    let keys = names.map(|name| machines.make_key(name));
    let address = |device: &str| {
        let show = format!("ip -6 -o addr show dev {device} scope link -tentative");
        let found = || machines.tries("r1", &show).1.split_whitespace().nth(3).map(str::to_owned);
        machines.until("the kernel makes an address", || found().is_some());
        found().unwrap().split('/').next().unwrap().to_owned()
    };
    let mut hosts = String::new();
    for (host, (name, key)) in names.iter().zip(&keys).enumerate() {
        hosts += &format!("[[host]]\nname = \"{name}\"\naddress = \"1.{host}\"\nkey = \"{key}\"\n");
    }
    fs::write(machines.file("hosts.toml"), hosts).unwrap();
    let places = [
        ("r1", 0, String::new()),
        ("h1", 1, format!("endpoint = \"[{}%eth0]:7400\"\n", address("eth0"))),
        ("h2", 2, format!("endpoint = \"[{}%lan0]:7400\"\n", address("eth1"))),
    ];
    for (name, host, endpoint) in &places {
        let link = |peer: &str| format!("[[link]]\npeer = \"{peer}\"\n{endpoint}");
        let links = if *host == 0 { link("h1") + &link("h2") } else { link("r1") };
        let config = format!(
            "[node]\nname = \"{name}\"\naddress = \"1.{host}\"\nkey_file = \"node.key\"\n\
             network_secret_file = \"../network.key\"\nhosts_file = \"../hosts.toml\"\n\
             listen = [\"[::]:7400\"]\ncontrol_socket = \"control.sock\"\n{links}"
        );
        fs::write(machines.folder(name).join("node.toml"), config).unwrap();
    }
    names.iter().for_each(|name| machines.start(name));
    let is_up = || machines.ask("r1", &["status"]).is_some_and(|s| s["status"]["links_up"] == 2);
    machines.until("both links are up", is_up);
    let (done, said) = machines.command("h1", &["ping", "h2", "--count", "3"]);
    assert!(done, "{said}");
    let peers = machines.command("h1", &["peers"]).1;
    assert!(peers.contains("fe80::"), "{peers}");
}
