//! An observer's view of handshakes: a link whose host restarts again and again.

use std::time::Duration;

use shoal_lab::site::RunningNetwork;
use shoal_lab::wiretap::Wiretap;
use shoal_lab::{Conditions, Executable, Network, NetworkKind, Topology};
use shoal_wire::SizeClass;

/// Restarts of the host. Each is a handshake of at least two frames; together they have over 20,000
/// bytes, enough for one test over all positions.
const RESTARTS: usize = 8;

#[test]
fn handshakes_look_random_too() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder for the nodes");
    let network = Network::build(Topology::chain(), NetworkKind::Namespaces, Conditions::default());
    let network = network.expect("a chain of namespaces");
    let host = network.topology().find("h1").expect("the chain has h1");
    let observed = network.namespace(host).expect("namespaces were asked for");
    let tap = Wiretap::start(observed, None).expect("root may watch");
    let executable = Executable::shoal(shoal_e2e::program());
    let mut site =
        RunningNetwork::start(network, &executable, folder.path(), "").expect("nodes start");
    let patience = Duration::from_secs(20);
    site.wait_until_up(patience).unwrap_or_else(|e| panic!("{e:#}"));
    for _ in 0..RESTARTS {
        site.restart(host).expect("a node starts again");
        site.wait_until_up(patience).unwrap_or_else(|e| panic!("{e:#}"));
    }
    let seen = tap.finish().expect("the wiretap works");
    assert!(seen.count(SizeClass::Full) >= 2 * (RESTARTS as u64 + 1), "handshakes were not seen");
    let anomalies = seen.anomalies();
    assert!(anomalies.is_empty(), "{anomalies:?}");
}
