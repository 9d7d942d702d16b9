//! IP packets over circuits: those of machines behind gateways, and the longest ones.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use shoal_e2e::bytes;
use shoal_e2e::town::{LabTown, configure};
use shoal_lab::site::RunningNetwork;
use shoal_lab::{
    Conditions, Executable, LinkSpec, Network, NetworkKind, NodeSpec, Topology, gateways,
};
use shoal_wire::Address;

const PATIENCE: Duration = Duration::from_secs(20);

/// Makes these routers relays of different operators in the list, and adds `rules`.
fn list(folder: &Path, relays: &[&str], rules: &str) {
    let file = folder.join("hosts.toml");
    let mut hosts = fs::read_to_string(&file).unwrap();
    for name in relays {
        let line = format!("name = \"{name}\"\n");
        assert!(hosts.contains(&line));
        hosts = hosts.replace(&line, &format!("{line}relay = true\nfamily = \"{name}\"\n"));
    }
    fs::write(file, hosts + rules).unwrap();
}

/// Drops of a node for traffic in the clear.
fn refused(net: &LabTown, name: &str) -> u64 {
    let drops = net.status(name).drops;
    drops.into_iter().find(|(why, _)| why == "circuit_required").map_or(0, |(_, n)| n)
}

/// Success and output of a program in a node's namespace.
fn said(net: &LabTown, name: &str, words: &str) -> (bool, String) {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().unwrap());
    command.args(words);
    let output = net.inside(name, || command.output().unwrap());
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Relays of the circuit in use, at a host that uses one circuit.
fn relays(net: &LabTown, name: &str) -> Vec<String> {
    let (_, text) = net.run(name, &["circuits", "--json"]);
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    let circuits = all["circuits"]["hosts"][0]["circuits"].as_array().cloned();
    let used = circuits.into_iter().flatten().find(|circuit| circuit["state"] == "in use");
    let relays = used.and_then(|circuit| circuit["relays"].as_array().cloned());
    relays.into_iter().flatten().map(|relay| relay.as_str().unwrap().to_owned()).collect()
}

/// The paper's network with a machine behind h1 and one behind h4. They communicate over circuits
/// through all three routers.
///
/// ```text
///   a --- h1 --- r1 --- r2 --- h4 --- b
///                  \    /
///                    r3
/// ```
fn gateways_town(folder: tempfile::TempDir) -> LabTown {
    let mut topology = Topology::paper();
    for (name, gateway) in [("a", "h1"), ("b", "h4")] {
        let address = Address::new(0, 0);
        topology.nodes.push(NodeSpec { name: name.into(), address, plain: true });
        let (a, b) = (topology.find(name).unwrap(), topology.find(gateway).unwrap());
        topology.links.push(LinkSpec { a, b });
    }
    let network = Network::build(topology, NetworkKind::Namespaces, Conditions::default()).unwrap();
    let change = |network: &Network, folder: &Path| {
        gateways::prepare(network, folder)?;
        let rule = "\n[[circuits]]\nmembers = [\"h1\", \"h4\"]\nmode = \"require\"\n";
        list(folder, &["r1", "r2", "r3"], rule);
        Ok(())
    };
    let executable = Executable::shoal(shoal_e2e::program());
    let site =
        RunningNetwork::start_after(network, &executable, folder.path(), "[interface]\n", change);
    let mut site = site.unwrap_or_else(|e| panic!("{e:#}"));
    site.wait_until_up(PATIENCE).unwrap_or_else(|e| panic!("{e:#}"));
    LabTown { site, folder }
}

/// Traffic in the clear is refused and counted at the other gateway. No packet is lost.
#[test]
fn networks_behind_gateways_speak_over_circuits_alone() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let mut net = gateways_town(tempfile::tempdir().unwrap());
    let at = |net: &LabTown, gateway: &str, name: &str| -> IpAddr {
        net.site.network().ip_of(net.find(gateway), net.find(name)).unwrap()
    };
    let (a, b) = (at(&net, "h1", "a"), at(&net, "h4", "b"));
    let ping = format!("ping -c1 -W3 {b}");
    let began = Instant::now();
    while !said(&net, "a", &ping).0 {
        assert!(began.elapsed() < PATIENCE, "no ping passes: {}", net.run("h1", &["circuits"]).1);
    }
    assert_eq!(relays(&net, "h1").len(), 3, "{}", net.run("h1", &["circuits"]).1);

    let (to, content) = (SocketAddr::from((b, 7_001)), bytes(3, 4_000_000));
    let listener = net.inside("b", || TcpListener::bind(to).unwrap());
    let mut near = net.inside("a", || TcpStream::connect_timeout(&to, PATIENCE).unwrap());
    let (mut far, from) = listener.accept().unwrap();
    assert_eq!(from.ip(), a, "no address is translated");
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            near.write_all(&content).unwrap();
            near.shutdown(Shutdown::Write).unwrap();
        });
        let mut got = Vec::new();
        far.read_to_end(&mut got).unwrap();
        assert!(got == content, "{} bytes, or wrong ones", got.len());
    });
    for name in ["r1", "r2", "r3"] {
        let cells = net.status(name).circuits.cells;
        assert!(cells > 4_000_000 / 1_312, "{name} carried {cells} cells of circuits");
    }
    // An IPv4 datagram is fragmented for the circuit's cells; only the gateway knows their size.
    let (answered, text) = said(&net, "a", &format!("ping -c3 -W9 -s8000 {b}"));
    assert!(answered && text.contains(" 0% packet loss"), "{text}");
    // The machine behind the gateway learns the MTU of a circuit's cells.
    let (answered, text) = said(&net, "a", &format!("ping -c1 -W5 -Mdo -s1300 {b}"));
    assert!(!answered && text.contains("mtu") && text.contains("1312"), "{text}");

    // r1 and r2 are neighbours, so traffic in the clear would pass without r3. None passes.
    net.site.kill(net.find("r3"));
    std::thread::sleep(Duration::from_secs(2));
    let (answered, text) = said(&net, "a", &format!("ping -c3 -W2 {b}"));
    assert!(!answered, "a ping passed without the third relay: {text}");
    for name in ["h1", "h4"] {
        assert_eq!(refused(&net, name), 0, "something came to {name} in the clear");
    }
}

/// h1 - r1 - r2 - r3 - r4 - r5 - h2
fn chain_of_five() -> Topology {
    let mut topology = Topology { nodes: Vec::new(), links: Vec::new() };
    for router in 1..=5 {
        topology.nodes.push(NodeSpec::new(format!("r{router}"), Address::new(router, 0)));
    }
    topology.links.extend((1..5).map(|b| LinkSpec { a: b - 1, b }));
    for (name, router) in [("h1", 1), ("h2", 5)] {
        topology.links.push(LinkSpec { a: topology.nodes.len(), b: router as usize - 1 });
        topology.nodes.push(NodeSpec::new(name.into(), Address::new(router, 1)));
    }
    topology
}

/// Five relays leave room for the packets that every IPv6 path must carry, but not for longer ones.
#[test]
fn packets_of_1280_bytes_pass_five_relays_and_longer_ones_are_too_big() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    const ROUTERS: [&str; 5] = ["r1", "r2", "r3", "r4", "r5"];
    const HEADERS: usize = 40 + 8;
    let topology = (chain_of_five(), NetworkKind::Namespaces, Conditions::default());
    let net = LabTown::new(topology, "[interface]\n", |folder| {
        list(folder, &ROUTERS, "");
        for name in ["h1", "h2"] {
            configure(folder, name, "[circuits]\npolicy = \"require\"\nrelays = 5\n");
        }
    });
    let (ok, text) = net.run("h1", &["ping", "h2", "-n", "1", "-W", "20"]);
    assert!(ok, "{text}");
    let mut used = relays(&net, "h1");
    used.sort();
    assert_eq!(used, ROUTERS, "{}", net.run("h1", &["circuits"]).1);

    let to = net.address("h2").to_string();
    let far = net.inside("h2", || UdpSocket::bind((to.as_str(), 7_002)).unwrap());
    let near = net.inside("h1", || UdpSocket::bind("[::]:0").unwrap());
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut got = [0; 2_000];
    for n in 0..50u8 {
        let packet = [n; 1_280 - HEADERS];
        near.send_to(&packet, (to.as_str(), 7_002)).unwrap();
        let len = far.recv(&mut got).unwrap();
        assert!(got[..len] == packet, "{len} bytes, or wrong ones");
    }
    let route = || said(&net, "h1", &format!("ip -6 route get {to}")).1;
    assert!(!route().contains("mtu 1280"), "it fits: {}", route());
    let (answered, text) = said(&net, "h1", &format!("ping -6 -c1 -W5 -Mdo -s1232 {to}"));
    assert!(answered, "1,280 bytes with its headers: {text}");
    let (answered, text) = said(&net, "h1", &format!("ping -6 -c1 -W5 -Mdo -s1233 {to}"));
    assert!(!answered && text.contains("mtu=1280") || text.contains("mtu: 1280"), "{text}");
    assert!(route().contains("mtu 1280"), "the kernel has learnt it: {}", route());
    let took = net.stream("h1", "h2", 7_003, (9, 2_000_000));
    println!("2 MB over five relays: {took:?}");
    for name in ROUTERS {
        assert!(net.status(name).circuits.cells > 2_000_000 / 1_280, "{name}");
    }
    for name in ["h1", "h2"] {
        assert_eq!(refused(&net, name), 0, "something came to {name} in the clear");
    }
}
