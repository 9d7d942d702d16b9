//! A router under a flood of frames from strangers, while a file passes.
//!
//! ```text
//!   h1 --- r1 --- h2      a file from h1 to h2
//!          |
//!          h3             and beside h3, on its line: strangers with 300 addresses
//! ```

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use shoal_crypto::{Identity, Rng};
use shoal_daemon::control::api::{
    Command as Ask, ControlEvent, ControlReply, NeighbourStatus, Status,
};
use shoal_daemon::control::socket::ControlConnection;
use shoal_daemon::worker::clock::unix_ms;
use shoal_lab::namespace::Namespace;
use shoal_lab::site::RunningNetwork;
use shoal_lab::topology::{LinkSpec, NodeSpec};
use shoal_lab::wiretap::Wiretap;
use shoal_lab::{Conditions, Executable, Network, NetworkKind, Rate, Topology};
use shoal_session::{PeerId, SessionConfig, SessionRole, Sessions};
use shoal_wire::{Address, SizeClass, Time};

const R1: usize = 0;
const H1: usize = 1;
const H2: usize = 2;
const H3: usize = 3;
const STRANGERS: usize = 300;
/// Datagrams per second: 115 Mbit/s of full frames. That is far more than the handshake thread can
/// serve, and too little to fill a receive buffer while a busy machine stalls.
const PACE: u32 = 10_000;
/// Tolerance for resident memory: allocators keep pages.
const MEMORY_SLACK: u64 = 4 << 20;

fn star() -> Topology {
    let addresses = [(1, 0), (1, 1), (1, 2), (1, 3)].map(|(r, h)| Address::new(r, h));
    let names = ["r1", "h1", "h2", "h3"].map(String::from);
    let nodes =
        names.into_iter().zip(addresses).map(|(name, address)| NodeSpec::new(name, address));
    let links = [H1, H2, H3].map(|a| LinkSpec { a, b: R1 });
    Topology { nodes: nodes.collect(), links: links.to_vec() }
}

struct FloodField {
    site: RunningNetwork,
    strangers: Vec<UdpSocket>,
    target: SocketAddr,
    watch: ControlConnection,
    /// Sender and receiver of the file, after [`FloodField::send_file`].
    file: Option<(Child, Child)>,
    folder: tempfile::TempDir,
}

fn run(namespace: &Namespace, words: &str) {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().unwrap());
    let output = namespace.enter(|| Ok(command.args(words).output()?)).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Sockets at 300 addresses on h3's line. The router has a route back to all of them.
fn strangers(network: &Network) -> Vec<UdpSocket> {
    let (here, router) = (network.namespace(H3).unwrap(), network.namespace(R1).unwrap());
    run(here, "ip route add local 198.18.0.0/15 dev lo");
    let way = network.endpoint(2, R1).ip();
    run(router, &format!("ip route add 198.18.0.0/15 via {way}"));
    here.enter(|| {
        let bind = |n: usize| {
            let at = Ipv4Addr::new(198, 18, (n / 200) as u8, 1 + (n % 200) as u8);
            let socket = UdpSocket::bind((at, 10_000 + n as u16))?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        (0..STRANGERS).map(bind).collect()
    })
    .unwrap()
}

impl FloodField {
    fn new() -> FloodField {
        let folder = tempfile::tempdir().unwrap();
        let conditions = Conditions { rate: Some(Rate(1_000_000_000)), ..Conditions::default() };
        let network = Network::build(star(), NetworkKind::Namespaces, conditions).unwrap();
        let target = network.endpoint(2, H3);
        let strangers = strangers(&network);
        let executable = Executable::shoal(shoal_e2e::program());
        let limit = "[transfer]\nmax_rate_mbit = 40\n";
        let mut site = RunningNetwork::start(network, &executable, folder.path(), limit).unwrap();
        site.wait_until_up(Duration::from_secs(20)).unwrap_or_else(|e| panic!("{e:#}"));
        let mut watch = site.control(R1).unwrap();
        watch.call(Ask::Monitor, &[]).unwrap();
        FloodField { site, strangers, target, watch, file: None, folder }
    }

    /// Starts a file from h1 to h2, which takes twelve seconds.
    fn send_file(&mut self) {
        let file = self.folder.path().join("file");
        let mut content = vec![0; 60_000_000];
        Rng::new([5; 32]).fill(&mut content);
        std::fs::write(&file, content).unwrap();
        let inbox = self.folder.path().join("inbox");
        std::fs::create_dir(&inbox).unwrap();
        let inbox = inbox.to_str().unwrap();
        let words = ["receive", "--count", "1", "--from", "h1", "--dir", inbox];
        let receiver = self.site.command(H2, &words).stderr(Stdio::piped()).spawn().unwrap();
        let words = ["send", "--wait", "10", file.to_str().unwrap(), "h2"];
        let sender = self.site.command(H1, &words).stderr(Stdio::piped()).spawn().unwrap();
        self.file = Some((sender, receiver));
        self.until("the file moves", |f| f.status().traffic.bytes_in > 2_000_000);
    }

    fn status(&self) -> Status {
        match self.site.ask(R1, Ask::Status) {
            Ok(ControlReply::Status(status)) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn peer(&self, name: &str) -> NeighbourStatus {
        match self.site.ask(R1, Ask::Peers) {
            Ok(ControlReply::Peers(peers)) => peers.into_iter().find(|p| p.name == name).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn drops(&self) -> BTreeMap<String, u64> {
        self.status().drops.into_iter().collect()
    }

    fn until(&mut self, what: &str, done: impl Fn(&FloodField) -> bool) {
        let began = Instant::now();
        while !done(self) {
            assert!(began.elapsed() < Duration::from_secs(20), "{what}: {:?}", self.status());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends `count` datagrams, number n made by `make(n)`, from all strangers in turn. Returns the
    /// router's drops meanwhile, by reason, which must include every datagram.
    fn pour<'a>(
        &mut self,
        count: usize,
        make: impl Fn(usize) -> &'a [u8],
    ) -> BTreeMap<String, u64> {
        let before = self.drops();
        pour(&self.strangers, self.target, count, make, || true);
        let fresh = |field: &FloodField| {
            let mut now = field.drops();
            for (reason, n) in &mut now {
                *n -= before.get(reason).copied().unwrap_or(0);
            }
            now.retain(|_, n| *n > 0);
            now
        };
        self.until("all are counted", |f| fresh(f).values().sum::<u64>() >= count as u64);
        let drops = fresh(self);
        let sum: u64 = drops.values().sum();
        assert!(sum <= count as u64 + 20, "counted twice? {count} sent, {drops:?}");
        drops
    }

    /// Datagrams that reached the strangers, by length.
    fn answers(&self) -> BTreeMap<usize, usize> {
        let mut answers = BTreeMap::new();
        let mut frame = [0; 2_048];
        for stranger in &self.strangers {
            while let Ok(len) = stranger.recv(&mut frame) {
                *answers.entry(len).or_default() += 1;
            }
        }
        answers
    }

    /// Checks that the flood has changed nothing for members.
    fn check_calm(&mut self, since: &Status) {
        let (sender, _) = self.file.as_mut().unwrap();
        assert!(sender.try_wait().unwrap().is_none(), "the file was to pass all the while");
        if let Some(event) = self.watch.event(Some(Duration::ZERO)).unwrap() {
            panic!("a link was shaken: {event:?}");
        }
        let now = self.status();
        let grown = now.memory_bytes.saturating_sub(since.memory_bytes);
        assert!(grown < MEMORY_SLACK, "{} kB more, {now:?}", grown / 1_024);
        assert_eq!(now.links_up, 3);
    }

    fn finish(mut self) {
        let (mut sender, mut receiver) = self.file.take().unwrap();
        let (sent, received) = (sender.wait().unwrap(), receiver.wait().unwrap());
        assert!(sent.success() && received.success(), "{:?}", self.status());
        let read = |name: &str| std::fs::read(self.folder.path().join(name)).unwrap();
        assert!(read("file") == read("inbox/file"));
    }
}

fn pour<'a>(
    strangers: &[UdpSocket],
    target: SocketAddr,
    count: usize,
    make: impl Fn(usize) -> &'a [u8],
    go_on: impl Fn() -> bool,
) {
    let began = Instant::now();
    for n in 0..count {
        if n % 50 == 0 {
            let due = began + Duration::from_secs(1) / PACE * n as u32;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if !go_on() {
                return;
            }
        }
        strangers[n % strangers.len()].send_to(make(n), target).unwrap();
    }
}

/// UDP payloads that pass h1's interface, with their destinations.
fn record(field: &FloodField, span: Duration) -> Vec<(SocketAddr, Vec<u8>)> {
    let file: PathBuf = field.folder.path().join("recorded.pcap");
    let tap = Wiretap::start(field.site.network().namespace(H1).unwrap(), Some(&file)).unwrap();
    std::thread::sleep(span);
    tap.finish().unwrap();
    let bytes = std::fs::read(&file).unwrap();
    let mut rest = &bytes[24..];
    let mut found = Vec::new();
    while let Some((header, after)) = rest.split_at_checked(16) {
        let len = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]) as usize;
        let (packet, after) = after.split_at(len);
        rest = after;
        // Ethernet 14, IPv4 20, UDP 8.
        let to = Ipv4Addr::new(packet[30], packet[31], packet[32], packet[33]);
        let port = u16::from_be_bytes([packet[36], packet[37]]);
        found.push(((to, port).into(), packet[42..].to_vec()));
    }
    found
}

#[test]
fn garbage_replays_and_reflections_change_nothing() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let mut field = FloodField::new();
    let mut rng = Rng::new([1; 32]);
    let sizes = [192, 576, 1_440, 1_440, 1_440, 0, 191, 193, 575, 1_439, 1_441, 1_472];
    let garbage: Vec<Vec<u8>> = (0..2_400)
        .map(|n| {
            let mut frame = vec![0; sizes[n % sizes.len()]];
            rng.fill(&mut frame);
            frame
        })
        .collect();
    field.send_file();
    field.pour(2_400, |n| &garbage[n]);
    let before = field.status();
    let endpoint = field.peer("h1").endpoint;

    let drops = field.pour(18_000, |n| &garbage[n % 2_400]);
    // Five of twelve lengths are size classes. A small frame can't be a handshake or a part of one.
    assert_eq!(drops["bad_size"], 18_000 * 7 / 12, "{drops:?}");
    assert_eq!(drops["bad_handshake"], 18_000 * 4 / 12, "{drops:?}");
    assert_eq!(drops["unknown_index"], 18_000 / 12, "{drops:?}");
    field.check_calm(&before);

    let recorded = record(&field, Duration::from_millis(60));
    let router = field.site.network().endpoint(0, H1);
    let forth: Vec<&[u8]> = recorded.iter().filter(|r| r.0 == router).map(|r| &*r.1).collect();
    let back: Vec<&[u8]> = recorded.iter().filter(|r| r.0 != router).map(|r| &*r.1).collect();
    assert!(forth.len() > 50 && back.len() > 5, "{} and {}", forth.len(), back.len());
    // Each frame again from 64 addresses and ports, long after it was accepted.
    let count = forth.len().min(200);
    let drops = field.pour(count * 64, |n| forth[n / 64]);
    let seen = ["replayed", "too_old"].map(|r| drops.get(r).copied().unwrap_or(0));
    assert_eq!(seen.iter().sum::<u64>(), count as u64 * 64, "{drops:?}");
    assert_eq!(field.peer("h1").endpoint, endpoint, "a replay moves no endpoint");
    field.check_calm(&before);

    // Frames that the router itself sent, and frames with another index.
    field.pour(back.len() * 64, |n| back[n / 64]);
    let wrong: Vec<Vec<u8>> = forth[..count]
        .iter()
        .map(|frame| {
            let mut frame = frame.to_vec();
            frame[0] ^= 0x5a;
            frame
        })
        .collect();
    let drops = field.pour(count * 16, |n| &wrong[n / 16]);
    assert!(drops.keys().all(|r| ["bad_handshake", "unknown_index"].contains(&&**r)), "{drops:?}");
    assert_eq!(field.peer("h1").endpoint, endpoint);
    field.check_calm(&before);
    assert_eq!(field.answers(), BTreeMap::new(), "strangers get no byte");
    field.finish();
}

/// A stranger that has the network's secret.
struct Intruder {
    sessions: Sessions<SocketAddr>,
    router: PeerId,
    target: SocketAddr,
    at: SocketAddr,
}

impl Intruder {
    fn new(field: &FloodField, n: usize) -> Intruder {
        let secret = field.site.folder(H3).join("network.key");
        let secret = shoal_daemon::config::keys::load_network_secret(&secret, None).unwrap();
        let list = field.folder.path().join("hosts.toml");
        let hosts = shoal_daemon::membership::hosts::HostList::load(&list).unwrap();
        let mut seed = [0x77; 32];
        seed[..8].copy_from_slice(&n.to_be_bytes());
        let (config, identity) = (SessionConfig::new(SessionRole::Link), Identity::generate(seed));
        let mut sessions = Sessions::new(config, identity, secret, seed, Time::ZERO, unix_ms());
        let router = sessions.add_peer(hosts.by_name("r1").unwrap().key).unwrap();
        sessions.set_endpoint(router, Some(field.target));
        sessions.connect(Time::ZERO, router);
        let at = field.strangers[n % STRANGERS].local_addr().unwrap();
        Intruder { sessions, router, target: field.target, at }
    }

    /// The request of a new call: a repeated one would get no answer.
    fn call(&mut self) -> Vec<u8> {
        let key = *self.sessions.peer_key(self.router).expect("a peer");
        self.sessions.remove_peer(self.router);
        self.router = self.sessions.add_peer(key).expect("room for one");
        self.sessions.set_endpoint(self.router, Some(self.target));
        self.sessions.connect(Time::ZERO, self.router);
        self.request(Time::ZERO)
    }

    /// The next request of the call.
    fn request(&mut self, now: Time) -> Vec<u8> {
        while let Some(job) = self.sessions.poll_job() {
            self.sessions.handle_done(now, job.run());
        }
        let mut frame = vec![0; SizeClass::Full.frame_len()];
        self.sessions.poll_transmit(now, &mut frame).expect("a request");
        frame
    }
}

#[test]
fn a_flood_of_handshakes_meets_cookies_and_shakes_nobody() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let mut field = FloodField::new();
    let mut intruders: Vec<Intruder> = (0..1_200).map(|n| Intruder::new(&field, n)).collect();
    let first: Vec<Vec<u8>> = intruders.iter_mut().map(|i| i.request(Time::ZERO)).collect();
    let requests: Vec<Vec<u8>> = (0..12_000).map(|n| intruders[n % 1_200].call()).collect();
    // The file starts only here: on a busy machine, the requests take longer than the file.
    field.send_file();
    field.pour(1_200, |n| &first[n]);
    let before = field.status();
    field.answers();

    let drops = field.pour(12_000, |n| &requests[n]);
    let answers = field.answers();
    let cookies: Vec<usize> = answers.keys().copied().collect();
    assert_eq!(cookies, [SizeClass::Small.frame_len()], "only cookies: {answers:?}, {drops:?}");
    assert!(drops["cookie_required"] > 1_000, "{drops:?}");
    assert!(answers.values().sum::<usize>() as u64 <= drops["cookie_required"], "{answers:?}");
    let named = [
        "cookie_required",
        "unknown_peer",
        "handshake_budget",
        "replayed_handshake",
        "receive_overflow",
    ];
    assert!(drops.keys().all(|r| named.contains(&&**r)), "{drops:?}");
    field.check_calm(&before);
    cookies_and_newcomers_under_flood(&mut field, intruders, &requests);
    let grown = field.status().memory_bytes.saturating_sub(before.memory_bytes);
    assert!(grown < MEMORY_SLACK, "{} kB more", grown / 1_024);
    field.finish();
}

/// True if the first request was answered, and true if the second, with the cookie, was.
fn cookie_round(one: &mut Intruder, socket: &UdpSocket, target: SocketAddr) -> (bool, bool) {
    assert_eq!(socket.local_addr().unwrap(), one.at);
    // At the beginning of the flood the queue may have room, and a lone request may be lost.
    let first = |_| {
        let request = one.call();
        is_answered(one, socket, target, &request)
    };
    if !(0..40).any(first) {
        return (false, false);
    }
    assert_eq!(one.sessions.stats().cookies_taken, 1);
    let request = one.request(Time::from_millis(1));
    (true, (0..4).any(|_| is_answered(one, socket, target, &request)))
}

/// True if an answer to `request` comes soon. A busy machine answers earlier calls late; such
/// answers don't count.
fn is_answered(one: &mut Intruder, socket: &UdpSocket, target: SocketAddr, request: &[u8]) -> bool {
    socket.set_nonblocking(false).unwrap();
    socket.send_to(request, target).unwrap();
    let due = Instant::now() + Duration::from_millis(250);
    let mut answer = [0; 2_048];
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        socket.set_read_timeout(Some(left)).unwrap();
        let Ok(len) = socket.recv(&mut answer) else { return false };
        if one.sessions.handle_handshake(Time::ZERO, target, &mut answer[..len]).is_ok() {
            return true;
        }
    }
}

/// During the flood: a caller that returns its cookie gets no second one, and members get in.
fn cookies_and_newcomers_under_flood(
    field: &mut FloodField,
    mut intruders: Vec<Intruder>,
    requests: &[Vec<u8>],
) {
    let stop = AtomicBool::new(false);
    let (others, target) = (field.strangers.split_off(STRANGERS / 2), field.target);
    std::thread::scope(|scope| {
        let poured = scope.spawn(|| {
            let go_on = || !stop.load(Ordering::Relaxed);
            let count = PACE as usize * 30;
            pour(&others, target, count, |n| &requests[n % requests.len()], go_on);
        });
        let answered = cookie_round(&mut intruders[0], &field.strangers[0], target);
        // h3 restarts, and gets in with its own cookie.
        field.site.restart(H3).unwrap();
        let came = field.site.wait("h3 behind the flood", Duration::from_secs(20), |site| {
            let ControlReply::Peers(peers) = site.ask(H3, Ask::Peers)? else { return Ok(None) };
            Ok((peers[0].state == "up").then_some(()))
        });
        stop.store(true, Ordering::Relaxed);
        poured.join().unwrap();
        came.unwrap_or_else(|e| panic!("{e:#}"));
        assert_eq!(answered, (true, false), "(first request, request with the cookie) answered");
    });
    field.strangers.extend(others);
    while let Some(event) = field.watch.event(Some(Duration::ZERO)).unwrap() {
        let of_h3 = matches!(&event, ControlEvent::Link { peer, .. } if peer == "h3");
        assert!(of_h3, "another link was shaken: {event:?}");
    }
}
