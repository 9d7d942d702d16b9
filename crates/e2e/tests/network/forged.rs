//! ICMP errors forged by strangers while a file crosses a chain of nodes have no effect.
//!
//! ```text
//!   h1 --- r1 --- r2 --- h2      a file from h1 to h2; forgers beside r1 and r2
//! ```

#[path = "../../../daemon/tests/support/icmp.rs"]
mod icmp;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use icmp::{Forger, LIES};
use shoal_daemon::control::api::{Command as Ask, ControlReply};
use shoal_e2e::AwaitedFile;
use shoal_lab::site::RunningNetwork;
use shoal_lab::{Conditions, Executable, Network, NetworkKind, Topology};

/// Forged errors per second, at each victim.
const PACE: u32 = 2_000;

/// Address of an end of a link over IPv6.
fn ipv6(link: usize, end: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, link as u16, 0, 0, 0, 1 + end as u16)
}

/// Endpoint of `node` on its link to `neighbour`.
fn address(network: &Network, (node, neighbour): (usize, usize), v6: bool) -> SocketAddr {
    let link = network.topology().link_between(node, neighbour).unwrap();
    let at = network.endpoint(link, neighbour);
    match v6 {
        true => {
            (ipv6(link, usize::from(network.topology().links[link].b == node)), at.port()).into()
        }
        false => at,
    }
}

/// Gives every end of every link an IPv6 address, and makes the nodes use only these.
fn move_to_ipv6(network: &Network, folder: &Path) {
    let topology = network.topology();
    for (node, spec) in topology.nodes.iter().enumerate() {
        let file = folder.join(&spec.name).join("node.toml");
        let mut text = std::fs::read_to_string(&file).unwrap().replace("0.0.0.0:", "[::]:");
        for (_, neighbour) in topology.links_of(node) {
            let place = |v6| address(network, (neighbour, node), v6).to_string();
            text = text.replace(&place(false), &place(true));
            let IpAddr::V6(own) = address(network, (node, neighbour), true).ip() else { panic!() };
            let interface = network.interface(node, neighbour);
            let words = ["-6", "addr", "add", &format!("{own}/64"), "dev", &interface, "nodad"];
            let add = || Ok(Command::new("ip").args(words).status()?.success());
            assert!(network.namespace(node).unwrap().enter(add).unwrap());
        }
        std::fs::write(&file, text).unwrap();
    }
}

/// Effects on the nodes: neighbours behind small paths, paths without segmentation, failed sends.
fn believed(site: &RunningNetwork) -> Vec<String> {
    let mut all = Vec::new();
    for (node, spec) in site.network().topology().nodes.iter().enumerate() {
        let name = &spec.name;
        let Ok(ControlReply::Peers(peers)) = site.ask(node, Ask::Peers) else { panic!("no peers") };
        all.extend(
            peers.iter().filter(|p| p.small_path).map(|p| format!("{name}: {} small", p.name)),
        );
        let Ok(ControlReply::Metrics(text)) = site.ask(node, Ask::Metrics) else {
            panic!("no metrics")
        };
        let bad = ["shoal_send_gso_refused_total", "reason=\"send_failed\""];
        let lines = text.lines().filter(|line| bad.iter().any(|bad| line.contains(bad)));
        all.extend(lines.filter(|l| !l.ends_with(" 0")).map(|line| format!("{name}: {line}")));
    }
    all
}

fn forged_errors_change_nothing(v6: bool) {
    if !shoal_e2e::namespaces() {
        return;
    }
    let network =
        Network::build(Topology::chain(), NetworkKind::Namespaces, Conditions::default()).unwrap();
    let at = |name| network.topology().find(name).unwrap();
    let (r1, r2, h1, h2) = (at("r1"), at("r2"), at("h1"), at("h2"));
    // Each forger sits in the namespace of the victim's neighbour.
    let victims = [(h1, r1), (r1, r2), (r2, r1), (h2, r2)];
    let places: Vec<(Forger, SocketAddr)> = victims
        .iter()
        .map(|&(victim, beside)| {
            let forger = network.namespace(beside).unwrap();
            let forger = forger.enter(|| Ok(Forger::new(v6).unwrap())).unwrap();
            (forger, address(&network, (victim, beside), v6))
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let executable = Executable::shoal(shoal_e2e::program());
    let change = |network: &Network, folder: &Path| {
        if v6 {
            move_to_ipv6(network, folder);
        }
        Ok(())
    };
    let mut site =
        RunningNetwork::start_after(network, &executable, folder.path(), "", change).unwrap();
    site.wait_until_up(Duration::from_secs(30)).unwrap_or_else(|e| panic!("{e:#}"));
    let mut file = AwaitedFile::new(&site, folder.path(), 60_000_000);
    let mut sender = file.send.spawn().unwrap();

    let (stop, forged) = (AtomicBool::new(false), AtomicU64::new(0));
    let began = Instant::now();
    let sent = std::thread::scope(|scope| {
        scope.spawn(|| {
            let quoted = if v6 { "[2001:db8::9]:9" } else { "203.0.113.9:9" }.parse().unwrap();
            for n in 0.. {
                let due = began + Duration::from_secs(1) / PACE * n as u32;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                for (forger, victim) in &places {
                    forger.send(*victim, quoted, LIES[n % LIES.len()]);
                }
                forged.fetch_add(1, Ordering::Relaxed);
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let sent = sender.wait().unwrap();
        stop.store(true, Ordering::Relaxed);
        sent
    });
    let (took, forged) = (began.elapsed(), forged.load(Ordering::Relaxed));
    eprintln!("{took:.1?}, {forged} forged errors at each of four nodes");
    assert_eq!(believed(&site), Vec::<String>::new(), "after {forged} forged errors at each node");
    assert!(sent.success() && file.arrived());
}

#[test]
fn over_ipv4() {
    forged_errors_change_nothing(false);
}

#[test]
fn over_ipv6() {
    forged_errors_change_nothing(true);
}
