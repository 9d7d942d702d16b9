//! Paths that carry 1,280 bytes and no full frame: one whose interface has that MTU, and one that
//! drops longer packets silently.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts real processes")]

use std::process::Command;
use std::time::Duration;

use shoal_daemon::control::api::{Command as Ask, Reply};
use shoal_e2e::Awaited;
use shoal_lab::namespace::Namespace;
use shoal_lab::site::Site;
use shoal_lab::{Conditions, Executable, Kind, Network, Rate, Topology};

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
    let network = Network::build(Topology::chain(), Kind::Namespaces, conditions).unwrap();
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
    let mut site = Site::start(network, &executable, folder.path(), "").unwrap();
    site.wait_until_up(Duration::from_secs(20)).unwrap_or_else(|e| panic!("{e:#}"));
    let small = |node: usize| {
        let Ok(Reply::Peers(peers)) = site.ask(node, Ask::Peers) else { panic!("no peers") };
        let mut small: Vec<String> =
            peers.into_iter().filter(|p| p.small_path).map(|p| p.name).collect();
        small.sort();
        small
    };
    assert_eq!((small(h1), small(r1)), (vec!["r1".into()], vec!["h1".into(), "r2".into()]));
    assert_eq!((small(r2), small(h2)), (vec!["r1".to_string()], vec![]));

    let mut file = Awaited::new(&site, folder.path(), 8_000_000);
    let sent = file.send.output().unwrap();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    assert!(file.arrived());
}
