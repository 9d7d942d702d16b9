//! Nodes of two workers: real sockets, real threads.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shoal_e2e::LoopbackNet;
use shoal_e2e::town::{FileInFlight, LabTown};
use shoal_lab::{Conditions, NetworkKind, Topology};

const TWO_WORKERS: &str = "[data]\nworkers = 2\n";
const COPIES: usize = 64;
const PATIENCE: Duration = Duration::from_secs(20);

/// A forwarder between h1 and r1. It forwards all frames from one port, and on request sends copies
/// of one frame to r1 from 64 ports.
struct CopyingForwarder {
    front: UdpSocket,
    backs: Vec<UdpSocket>,
    router: SocketAddr,
    wanted: AtomicBool,
    copied: AtomicU64,
    over: AtomicBool,
}

impl CopyingForwarder {
    fn new(at: IpAddr, router: SocketAddr) -> CopyingForwarder {
        let socket = |port: u16| {
            let socket = UdpSocket::bind((at, port)).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        CopyingForwarder {
            front: socket(20_500),
            backs: (20_501..).take(1 + COPIES).map(socket).collect(),
            router,
            wanted: AtomicBool::new(false),
            copied: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }
    }

    fn run(&self) {
        let mut buf = [0; 2_000];
        let mut host = None;
        while !self.over.load(Ordering::Relaxed) {
            let mut idle = true;
            while let Some((len, from)) = got(self.front.recv_from(&mut buf)) {
                (host, idle) = (Some(from), false);
                let backs = match self.wanted.swap(false, Ordering::Relaxed) {
                    true => &self.backs[1..],
                    false => &self.backs[..1],
                };
                self.copied.fetch_add(backs.len() as u64 - 1, Ordering::Relaxed);
                for back in backs {
                    back.send_to(&buf[..len], self.router).unwrap();
                }
            }
            for back in &self.backs {
                while let Some((len, _)) = got(back.recv_from(&mut buf)) {
                    idle = false;
                    if let Some(host) = host {
                        self.front.send_to(&buf[..len], host).unwrap();
                    }
                }
            }
            if idle {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }
}

fn got<T>(result: std::io::Result<T>) -> Option<T> {
    match result {
        Ok(got) => Some(got),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) => None,
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn a_captured_frame_is_accepted_once_from_64_ports() {
    let mut net = LoopbackNet::new(&["r1", "h1", "h2"]);
    for node in ["r1", "h1", "h2"] {
        net.configure(node, &format!("{TWO_WORKERS}[session]\nlanes = 4\n"));
    }
    let config = std::fs::read_to_string(net.config("h1")).unwrap();
    let endpoint = config.lines().find(|line| line.starts_with("endpoint")).unwrap();
    let router: SocketAddr = endpoint.split('"').nth(1).unwrap().parse().unwrap();
    let between = CopyingForwarder::new(router.ip(), router);
    let front = between.front.local_addr().unwrap();
    let config = config.replace(endpoint, &format!("endpoint = \"{front}\""));
    std::fs::write(net.config("h1"), config).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| between.run());
        // A panic here must end the thread too, or the scope would wait for it.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            net.start_all();
            copies_are_refused(&net, &between);
        }));
        between.over.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn copies_are_refused(net: &LoopbackNet, between: &CopyingForwarder) {
    for _ in 0..8 {
        between.wanted.store(true, Ordering::Relaxed);
        assert!(net.ask("h1", &["ping", "h2", "-n", "1", "-W", "5"]).is_some(), "no answer");
        net.until(|_| !between.wanted.load(Ordering::Relaxed));
    }
    let copied = between.copied.load(Ordering::Relaxed);
    assert_eq!(copied, 8 * (COPIES as u64 - 1));
    let status = |net: &LoopbackNet| net.ask("r1", &["status"]).unwrap()["status"].clone();
    let count = |net: &LoopbackNet| {
        let status = status(net);
        let drops = status["drops"].as_array().unwrap().clone();
        let of = |drop: &serde_json::Value| (drop[0] == "replayed").then(|| drop[1].as_u64());
        drops.iter().find_map(of).flatten().unwrap_or(0)
    };
    net.until(|net| count(net) >= copied);
    assert_eq!(count(net), copied, "{}", status(net)["drops"]);
    for worker in status(net)["workers"].as_array().unwrap() {
        assert!(worker["frames_in"].as_u64().unwrap() > 50, "{worker}: the kernel does not spread");
    }
}

/// Sender and receiver of each file between two routers with two hosts each. These flows use both
/// workers of each router.
const PAIRS: [(&str, &str); 4] = [("h1", "h3"), ("h2", "h4"), ("h1", "h4"), ("h4", "h2")];

fn begin(net: &LabTown, round: u8, len: usize) -> Vec<FileInFlight> {
    let begin = |(nth, (from, to))| net.send(from, to, (round * 16 + nth, len));
    (0..).zip(PAIRS).map(begin).collect()
}

fn end(files: Vec<FileInFlight>) {
    for file in files {
        file.end();
    }
}

fn both_forward(net: &LabTown, name: &str) {
    let workers = net.status(name).workers;
    assert_eq!(workers.len(), 2);
    assert!(workers.iter().all(|w| w.cells_transit > 1_000), "{name}: {workers:?}");
    for worker in 0..2 {
        let what = format!("shoal_worker_cells_transit_total{{worker=\"{worker}\"}}");
        assert!(net.metric(name, &what) > 1_000.0);
    }
}

#[test]
fn files_cross_routers_of_two_workers_whole_while_keys_change_and_a_router_dies() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let keys = "[session]\nlanes = 4\nrekey_after_frames = 65536\n";
    let pairs = (Topology::pairs(2), NetworkKind::Namespaces, Conditions::default());
    let mut net = LabTown::new(pairs, &format!("{TWO_WORKERS}{keys}"), |_| ());
    let established = "shoal_handshakes_total{with=\"link\",outcome=\"established\"}";
    shoal_e2e::check_metrics(&net.metrics("r1"), &["workers"]);
    let before = net.metric("r1", established);
    // At least one flow has more than 65,536 frames of 1,408 bytes on its lanes.
    let len = 100_000_000;
    end(begin(&net, 1, len));
    assert!(net.metric("r1", established) > before, "the keys are still the same");
    ["r1", "r2"].iter().for_each(|name| both_forward(&net, name));
    let lost: Vec<_> = net.status("r1").drops;
    assert!(lost.iter().all(|(why, _)| why != "bad_tag" && why != "key_expired"), "{lost:?}");

    // r2 is killed in the middle, and restarted.
    let files = begin(&net, 2, len);
    let (began, before) = (Instant::now(), net.status("r1").traffic.bytes_out);
    while net.status("r1").traffic.bytes_out - before < 40_000_000 {
        assert!(began.elapsed() < PATIENCE, "nothing goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
    let r2 = net.find("r2");
    net.site.kill(r2);
    net.site.revive(r2).unwrap();
    end(files);
    // The flows that still run then, and their lanes, are unknown.
    let workers = net.status("r2").workers;
    assert!(workers.iter().map(|w| w.cells_transit).sum::<u64>() > 1_000, "{workers:?}");
}
