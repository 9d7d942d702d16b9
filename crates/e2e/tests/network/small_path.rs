//! Paths that carry 1,280 bytes and no full frames. One has an interface with that MTU, one drops
//! longer packets silently, and some begin to do so under links that are up.

use std::process::Command;
use std::time::{Duration, Instant};

use shoal_daemon::control::api::{Command as Ask, ControlReply};
use shoal_e2e::AwaitedFile;
use shoal_lab::namespace::Namespace;
use shoal_lab::site::RunningNetwork;
use shoal_lab::{Conditions, Executable, Network, NetworkKind, Rate, Topology};

fn run(namespace: &Namespace, words: &[&str]) {
    let output =
        namespace.enter(|| Ok(Command::new(words[0]).args(&words[1..]).output()?)).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_file_crosses_paths_of_1280_bytes() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let conditions = Conditions { rate: Some(Rate(1_000_000_000)), ..Conditions::default() };
    let network = Network::build(Topology::chain(), NetworkKind::Namespaces, conditions).unwrap();
    let at = |name| network.topology().find(name).unwrap();
    let (r1, r2, h1, h2) = (at("r1"), at("r2"), at("h1"), at("h2"));
    for (node, other) in [(r1, r2), (r2, r1)] {
        let interface = network.interface(node, other);
        let namespace = network.namespace(node).unwrap();
        run(namespace, &["ip", "link", "set", "dev", &interface, "mtu", "1280"]);
    }
    for (node, other) in [(h1, r1), (r1, h1)] {
        let rule = format!(
            "insert rule inet lab arriving iifname \"{}\" meta length > 1280 drop",
            network.interface(node, other)
        );
        run(network.namespace(node).unwrap(), &["nft", &rule]);
    }
    let folder = tempfile::tempdir().unwrap();
    let executable = Executable::shoal(shoal_e2e::program());
    let mut site = RunningNetwork::start(network, &executable, folder.path(), "").unwrap();
    site.wait_until_up(Duration::from_secs(20)).unwrap_or_else(|e| panic!("{e:#}"));
    let small = |node: usize| {
        let Ok(ControlReply::Peers(peers)) = site.ask(node, Ask::Peers) else { panic!("no peers") };
        let mut small: Vec<String> =
            peers.into_iter().filter(|p| p.small_path).map(|p| p.name).collect();
        small.sort();
        small
    };
    assert_eq!((small(h1), small(r1)), (vec!["r1".into()], vec!["h1".into(), "r2".into()]));
    assert_eq!((small(r2), small(h2)), (vec!["r1".to_string()], vec![]));

    let mut file = AwaitedFile::new(&site, folder.path(), 8_000_000);
    let sent = file.send.output().unwrap();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    assert!(file.arrived());
}

/// True if the path from a node to a neighbour is small.
fn is_small(site: &RunningNetwork, node: usize, neighbour: &str) -> bool {
    let Ok(ControlReply::Peers(peers)) = site.ask(node, Ask::Peers) else { panic!("no peers") };
    peers.iter().any(|peer| peer.name == neighbour && peer.small_path)
}

/// Waits until `is` holds, at most `most`. Returns the time that took.
fn until(most: Duration, what: &str, mut is: impl FnMut() -> bool) -> Duration {
    let since = Instant::now();
    while !is() {
        assert!(since.elapsed() < most, "{what}: not after {most:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    since.elapsed()
}

#[test]
fn a_file_goes_on_when_the_path_gets_narrower_and_wider() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let conditions = Conditions { rate: Some(Rate(20_000_000)), ..Conditions::default() };
    let network = Network::build(Topology::chain(), NetworkKind::Namespaces, conditions).unwrap();
    let at = |name| network.topology().find(name).unwrap();
    let (r1, r2) = (at("r1"), at("r2"));
    let folder = tempfile::tempdir().unwrap();
    let executable = Executable::shoal(shoal_e2e::program());
    let interface = network.interface(r2, r1);
    let mut site = RunningNetwork::start(network, &executable, folder.path(), "").unwrap();
    site.wait_until_up(Duration::from_secs(20)).unwrap_or_else(|e| panic!("{e:#}"));
    let narrow = |site: &RunningNetwork, narrow: bool| {
        let rules = match narrow {
            true => format!(
                "add table inet narrow; \
                 add chain inet narrow in {{ type filter hook input priority -10; }}; \
                 add rule inet narrow in iifname \"{interface}\" meta length > 1400 drop"
            ),
            false => "delete table inet narrow".into(),
        };
        run(site.network().namespace(r2).unwrap(), &["nft", &rules]);
    };

    // The transfer takes 16 s at the rate of the line.
    let mut file = AwaitedFile::new(&site, folder.path(), 40_000_000);
    let mut sending = file.send.spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert!(!is_small(&site, r1, "r2"));
    narrow(&site, true);
    let after = until(Duration::from_secs(6), "narrow", || is_small(&site, r1, "r2"));
    println!("r1 sends in parts after {after:?}");
    assert!(!is_small(&site, r2, "r1"), "the way back carries full frames");
    std::thread::sleep(Duration::from_secs(3));
    narrow(&site, false);
    let after = until(Duration::from_secs(60), "wide", || !is_small(&site, r1, "r2"));
    println!("r1 sends full frames after {after:?}");
    assert!(sending.wait().unwrap().success());
    assert!(file.arrived());
}
