//! A router with two addresses on one interface answers from the address that was called, even
//! after the caller moves.

use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use shoal_daemon::control::api::{Command as Ask, ControlReply};
use shoal_e2e::AwaitedFile;
use shoal_lab::namespace::Namespace;
use shoal_lab::site::RunningNetwork;
use shoal_lab::{Conditions, Executable, Network, NetworkKind, Topology};

/// The router's second address towards its host; it is in none of the lab's prefixes.
const SECOND: &str = "10.200.0.1";
/// Address to which the host moves.
const MOVED: &str = "10.200.0.2";
const PATIENCE: Duration = Duration::from_secs(20);

fn run(namespace: &Namespace, words: &str) {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().unwrap());
    command.args(words);
    let output = namespace.enter(|| Ok(command.output()?)).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A node's endpoint for one of its neighbours.
fn endpoint(site: &RunningNetwork, node: usize, name: &str) -> Option<IpAddr> {
    let Ok(ControlReply::Peers(peers)) = site.ask(node, Ask::Peers) else { return None };
    let endpoint = peers.iter().find(|peer| peer.name == name)?.endpoint.clone()?;
    Some(endpoint.parse::<std::net::SocketAddr>().unwrap().ip())
}

fn pass_a_file(site: &RunningNetwork) {
    let folder = tempfile::tempdir().unwrap();
    let mut file = AwaitedFile::new(site, folder.path(), 8_000_000);
    let sent = file.send.output().unwrap();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    assert!(file.arrived());
}

#[test]
fn a_router_answers_from_the_address_that_was_called() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let network =
        Network::build(Topology::chain(), NetworkKind::Namespaces, Conditions::default()).unwrap();
    let at = |name| network.topology().find(name).unwrap();
    let (h1, r1) = (at("h1"), at("r1"));
    let [there, here] = [(r1, h1), (h1, r1)].map(|(a, b)| network.interface(a, b));
    let first = network.ip_of(h1, r1).unwrap();
    run(network.namespace(r1).unwrap(), &format!("ip addr add {SECOND}/32 dev {there}"));
    let host = network.namespace(h1).unwrap();
    run(host, &format!("ip route add {SECOND}/32 via {first} dev {here}"));
    // The kernel alone would answer from the first address, since the host is in its prefix.
    run(
        host,
        &format!("nft insert rule inet lab arriving ip saddr {first} udp sport 1-65535 drop"),
    );
    let folder = tempfile::tempdir().unwrap();
    let executable = Executable::shoal(shoal_e2e::program());
    let mut site = RunningNetwork::start(network, &executable, folder.path(), "").unwrap();

    let file = site.folder(h1).join("node.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let called =
        text.replace(&format!("endpoint = \"{first}:"), &format!("endpoint = \"{SECOND}:"));
    assert_ne!(called, text);
    std::fs::write(file, called).unwrap();
    site.kill(h1);
    site.revive(h1).unwrap();
    site.wait_until_up(PATIENCE).unwrap_or_else(|e| panic!("{e:#}"));
    assert_eq!(endpoint(&site, h1, "r1"), SECOND.parse().ok());
    pass_a_file(&site);

    let moved = MOVED.parse().ok();
    assert_ne!(endpoint(&site, r1, "h1"), moved);
    let network = site.network();
    run(network.namespace(r1).unwrap(), &format!("ip route add {MOVED}/32 dev {there}"));
    let (host, left) = (network.namespace(h1).unwrap(), network.ip_of(r1, h1).unwrap());
    run(host, &format!("ip addr add {MOVED}/32 dev {here}"));
    run(host, &format!("ip route replace {SECOND}/32 via {first} dev {here} onlink src {MOVED}"));
    run(host, &format!("ip addr del {left}/30 dev {here}"));
    let arrived = |site: &mut RunningNetwork| Ok((endpoint(site, r1, "h1") == moved).then_some(()));
    site.wait("the router to follow", PATIENCE, arrived).unwrap_or_else(|e| panic!("{e:#}"));
    pass_a_file(&site);
    let Ok(ControlReply::Metrics(metrics)) = site.ask(r1, Ask::Metrics) else {
        panic!("no metrics")
    };
    assert!(metrics.contains("shoal_send_bad_source_total 0"), "{metrics}");
}
