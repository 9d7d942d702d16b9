//! Programs served by several workers: each worker reads a queue of the interface, seals and opens.
//!
//! ```text
//!   h1 -- r1 -- r2 -- h3     two workers at every node; streams of several pairs, both ways
//!   h2 -/         \- h4
//! ```

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use shoal_crypto::Rng;
use shoal_e2e::town::LabTown;
use shoal_lab::topology::{LinkSpec, NodeSpec};
use shoal_lab::{Conditions, NetworkKind, Topology};
use shoal_wire::Address;

const PATIENCE: Duration = Duration::from_secs(30);
const EXTRA: &str = "[interface]\n[data]\nworkers = 2\n[session]\nlanes = 4\n";
/// Streams of each pair. A hash of ports and addresses chooses each stream's queue, and addresses
/// are new in each run. With this many streams, all use one queue once in 32,768 runs.
const STREAMS: u16 = 16;
const LEN: usize = 1 << 20;

struct QueueNet(LabTown);

impl QueueNet {
    fn new(topology: Topology, extra: &str) -> QueueNet {
        let network = (topology, NetworkKind::Namespaces, Conditions::default());
        QueueNet(LabTown::new(network, extra, |_| ()))
    }

    /// Sends streams of these pairs at once, both ways. Every byte must arrive unchanged.
    fn streams(&self, pairs: &[(&str, &str)]) {
        let mut ends = Vec::new();
        for (nth, (from, to)) in (0u16..).zip(pairs) {
            let port = 7_100 + nth * STREAMS;
            ends.extend((port..port + STREAMS).map(|port| self.0.connect(from, to, port)));
        }
        let mut bytes = vec![0; LEN];
        Rng::new([3; 32]).fill(&mut bytes);
        let send = |mut stream: &TcpStream| {
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(&bytes).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        };
        let check = |mut stream: &TcpStream| {
            let mut got = Vec::new();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.read_to_end(&mut got).unwrap();
            assert!(got == bytes, "{} of {} bytes, or wrong ones", got.len(), bytes.len());
        };
        std::thread::scope(|scope| {
            for (near, far) in &ends {
                scope.spawn(|| send(near));
                scope.spawn(|| send(far));
                scope.spawn(|| check(near));
                scope.spawn(|| check(far));
            }
        });
    }

    /// Checks that both workers of a host serve programs.
    fn both_serve(&self, name: &str) {
        let began = Instant::now();
        let status = loop {
            let status = self.0.status(name);
            let busy = |n: u64| n > 100;
            let both = |w: &shoal_daemon::control::api::WorkerTraffic| {
                busy(w.packets_read) && busy(w.packets_written)
            };
            // A worker's counters reach the status a little later.
            if status.workers.iter().all(both) || began.elapsed() > Duration::from_secs(1) {
                break status;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(status.interface.unwrap().queues, 2);
        assert_eq!(status.workers.len(), 2);
        for worker in &status.workers {
            assert!(
                worker.packets_read > 100 && worker.packets_written > 100,
                "{name}: {worker:?}"
            );
        }
    }

    /// Drops at a host that show faults between its workers.
    fn odds(&self, name: &str) -> BTreeMap<String, u64> {
        let drops = self.0.status(name).drops.into_iter();
        let odd = ["other_worker", "no_session", "unknown_index", "bad_source", "queue_full"];
        drops.filter(|(why, _)| odd.contains(&why.as_str())).collect()
    }
}

#[test]
fn streams_of_several_pairs_cross_routers_with_both_workers_at_work() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let net = QueueNet::new(Topology::pairs(2), EXTRA);
    let hosts = ["h1", "h2", "h3", "h4"];
    // Drops at the start, before links are up, don't count.
    let before = hosts.map(|name| net.odds(name));
    net.streams(&[("h1", "h3"), ("h2", "h4"), ("h1", "h4")]);
    hosts.iter().for_each(|name| net.both_serve(name));
    assert_eq!(hosts.map(|name| net.odds(name)), before);
    // Echoes of `shoal ping`, which the first worker sends, run at the same time.
    assert!(net.0.run("h1", &["ping", "h4", "-n", "3"]).0);
    shoal_e2e::check_metrics(&net.0.metrics("h1"), &["workers"]);
    for worker in 0..2 {
        let what = format!("shoal_worker_packets_sent_total{{worker=\"{worker}\"}} ");
        assert!(net.0.metric("h1", &what) > 100.0);
    }
}

/// Two hosts of one router, each with `workers` workers, with a direct link at this level.
fn direct_link(workers: u8, level: &str) -> QueueNet {
    let node = |name: &str, host| NodeSpec::new(name.into(), Address::new(1, host));
    let nodes = vec![node("r1", 0), node("h1", 1), node("h2", 2)];
    let link = |a, b| LinkSpec { a, b };
    let links = vec![link(1, 0), link(2, 0), link(1, 2)];
    let lanes = workers * workers;
    let extra = format!(
        "[interface]\n[data]\nworkers = {workers}\n[session]\nlanes = {lanes}\n\
         [direct]\nmode = \"on-demand\"\nlevel = \"{level}\"\n"
    );
    let net = QueueNet::new(Topology { nodes, links }, &extra);
    let began = Instant::now();
    while ["h1", "h2"].iter().any(|name| net.0.status(name).direct.unwrap().up == 0) {
        assert!(began.elapsed() < PATIENCE, "no direct link");
        assert!(net.0.run("h1", &["ping", "h2", "-n", "1"]).0);
    }
    let (_, hosts) = net.0.run("h1", &["hosts"]);
    let row = hosts.lines().find(|line| line.starts_with("h2 ")).unwrap();
    let path = format!("direct ({level}: both ends ask for it)");
    assert!(row.trim_end().ends_with(&path), "{hosts}");
    net
}

/// Streams over a direct link below encryption arrive unchanged, with several workers, too.
#[test]
fn a_direct_link_below_encryption_carries_the_flows_of_several_workers() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    for (workers, level) in [(1, "none"), (2, "none"), (4, "authenticate")] {
        let net = direct_link(workers, level);
        let odds = ["h1", "h2"].map(|name| net.odds(name));
        net.streams(&[("h1", "h2")]);
        assert_eq!(["h1", "h2"].map(|name| net.odds(name)), odds, "{workers} {level}");
        // A hash chooses each stream's queue. All choose one of four once in a billion runs.
        let busy = |name: &str| {
            let workers = net.0.status(name).workers;
            workers.iter().filter(|worker| worker.packets_read > 0).count()
        };
        assert!(workers == 1 || (busy("h1") > 1 && busy("h2") > 1), "{workers} {level}");
    }
}

#[test]
fn a_direct_link_carries_the_flows_of_both_workers() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let net = direct_link(2, "encrypt");
    let passed_on =
        |net: &QueueNet| net.0.status("r1").workers.iter().map(|w| w.cells_transit).sum::<u64>();
    let (before, odds) = (passed_on(&net), ["h1", "h2"].map(|name| net.odds(name)));
    net.streams(&[("h1", "h2")]);
    ["h1", "h2"].iter().for_each(|name| net.both_serve(name));
    assert_eq!(["h1", "h2"].map(|name| net.odds(name)), odds);
    // Packets that left before a worker knew of the link.
    let through_router = passed_on(&net) - before;
    assert!(through_router < 100, "{through_router} cells went through the router");
}
