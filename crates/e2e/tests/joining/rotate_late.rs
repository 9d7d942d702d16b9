//! Late events while the network's secret changes, with the real programs. Recorded frames are sent
//! again, and a node starts with a clock that is a year behind. Neither changes anything.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use shoal_daemon::control::api::{Command, ControlReply};
use shoal_e2e::clock::ClockOffset;
use shoal_e2e::joining::JoiningNetwork;
use shoal_e2e::{shoal, text};

const YEAR_S: i64 = 365 * 86_400;
/// Most recorded datagrams.
const KEPT_MAX: usize = 20_000;

/// Datagrams, each with true if it went to the router.
type RecordedDatagrams = Vec<(bool, Vec<u8>)>;

/// Carries the datagrams of a host and its router, and records them all.
struct RecordingCarrier {
    /// Socket that the host calls, and the one that calls the router.
    near: Arc<UdpSocket>,
    far: Arc<UdpSocket>,
    kept: Arc<Mutex<RecordedDatagrams>>,
    host: Arc<Mutex<Option<SocketAddr>>>,
    stop: Arc<Mutex<bool>>,
    threads: Vec<JoinHandle<()>>,
}

impl RecordingCarrier {
    fn start(router: SocketAddr) -> RecordingCarrier {
        let socket = || {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            Arc::new(socket)
        };
        let (near, far) = (socket(), socket());
        far.connect(router).unwrap();
        let mut carrier = RecordingCarrier {
            near,
            far,
            kept: Arc::default(),
            host: Arc::default(),
            stop: Arc::default(),
            threads: Vec::new(),
        };
        carrier.threads = [true, false].map(|to_router| carrier.carry(to_router)).into();
        carrier
    }

    /// Carries one direction.
    fn carry(&self, to_router: bool) -> JoinHandle<()> {
        let (near, far) = (Arc::clone(&self.near), Arc::clone(&self.far));
        let (kept, host) = (Arc::clone(&self.kept), Arc::clone(&self.host));
        let stop = Arc::clone(&self.stop);
        std::thread::spawn(move || {
            let mut buf = [0; 2_048];
            while !*stop.lock().unwrap() {
                let from = if to_router { &near } else { &far };
                let Ok((len, source)) = from.recv_from(&mut buf) else { continue };
                let mut kept = kept.lock().unwrap();
                if kept.len() < KEPT_MAX {
                    kept.push((to_router, buf[..len].to_vec()));
                }
                drop(kept);
                send(&near, &far, &host, to_router.then_some(source), &buf[..len]);
            }
        })
    }

    fn endpoint(&self) -> SocketAddr {
        self.near.local_addr().unwrap()
    }

    fn kept(&self) -> RecordedDatagrams {
        self.kept.lock().unwrap().clone()
    }

    /// Sends recorded datagrams again, slowly enough for all buffers.
    fn send_again(&self, kept: &[(bool, Vec<u8>)]) {
        let host = (*self.host.lock().unwrap()).expect("the host has called");
        for (number, (to_router, bytes)) in kept.iter().enumerate() {
            send(&self.near, &self.far, &self.host, to_router.then_some(host), bytes);
            if number % 20 == 19 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

/// Forwards a datagram: from the host at `source` to its router, or to the host.
fn send(
    near: &UdpSocket,
    far: &UdpSocket,
    host: &Mutex<Option<SocketAddr>>,
    source: Option<SocketAddr>,
    bytes: &[u8],
) {
    // A datagram for nobody is lost, as on any wire.
    let mut host = host.lock().unwrap();
    let _sent = match (source, *host) {
        (Some(source), _) => {
            *host = Some(source);
            far.send(bytes)
        }
        (None, Some(host)) => near.send_to(bytes, host),
        (None, None) => Ok(0),
    };
}

impl Drop for RecordingCarrier {
    fn drop(&mut self) {
        *self.stop.lock().unwrap() = true;
        for thread in self.threads.drain(..) {
            let _ended = thread.join();
        }
    }
}

/// A node's list version, state of the secret, and stored files.
fn state(world: &JoiningNetwork, name: &str) -> (u64, String, Vec<Option<Vec<u8>>>) {
    let authority = world.status(name).authority.expect("the node has a list");
    let secret = authority.secret.expect("the list names secrets");
    let files = ["network.list", "network.key", "network.secrets", "network.key.next"];
    let files = files.map(|file| fs::read(world.path(name).join(file)).ok());
    (authority.list_version, secret.state, files.into())
}

fn drops(world: &JoiningNetwork, name: &str) -> BTreeMap<String, u64> {
    world.status(name).drops.into_iter().collect()
}

/// Drops since `before`, by reason.
fn dropped(
    world: &JoiningNetwork,
    name: &str,
    before: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    let since = |(reason, count): (String, u64)| {
        let more = count - before.get(&reason).copied().unwrap_or(0);
        (more > 0).then_some((reason, more))
    };
    drops(world, name).into_iter().filter_map(since).collect()
}

#[test]
fn frames_of_a_rotation_that_are_sent_again_after_it_change_nothing() {
    let mut world = JoiningNetwork::new();
    world.joins("alice", &world.invite(&[]));
    world.start("alice");
    world.until(|world| world.pings("alice", "r1"));
    let Some(ControlReply::Peers(peers)) = world.call("alice", Command::Peers) else { panic!() };
    let router = peers[0].endpoint.as_ref().unwrap().parse().unwrap();
    let carrier = RecordingCarrier::start(router);
    world.end("alice", "-TERM");
    let link = format!("\n[[link]]\npeer = \"r1\"\nendpoint = \"{}\"\n", carrier.endpoint());
    world.configure("alice", &link);
    world.start("alice");
    world.until(|world| world.pings("alice", "r1"));
    for (words, state) in [
        (None, "announced"),
        (Some(["rotate", "switch"]), "switched"),
        (Some(["rotate", "retire"]), "settled"),
    ] {
        match words {
            None => world.announce(),
            Some(words) => world.publish(&words, "r1"),
        }
        world.all_rotated(&["r1", "alice"], state);
        // The recorded datagrams include handshakes of each stage.
        world.end("alice", "-KILL");
        world.start("alice");
        world.until(|world| world.pings("alice", "r1"));
    }
    let kept = carrier.kept();
    let handshakes = kept.iter().filter(|(_, frame)| frame.len() >= 1_400).count();
    assert!(kept.len() > 50 && handshakes >= 6, "{} kept, {handshakes} handshakes", kept.len());
    let names = ["r1", "alice"];
    let (before, counts) = (names.map(|name| state(&world, name)), names.map(|n| drops(&world, n)));
    carrier.send_again(&kept);
    let all = |world: &JoiningNetwork| [0, 1].map(|at| dropped(world, names[at], &counts[at]));
    let enough = |all: &[BTreeMap<String, u64>; 2]| {
        all.iter().flat_map(|one| one.values()).sum::<u64>() as usize >= kept.len()
    };
    world.until(|world| enough(&all(world)));
    println!("{} datagrams sent again: {:?}", kept.len(), all(&world));
    assert_eq!(names.map(|name| state(&world, name)), before);
    assert!(world.pings("alice", "r1") && world.pings("r1", "alice"));
    // The frames are sent once more after a restart, when only the disk remembers anything.
    for name in names {
        world.end(name, "-KILL");
        world.start(name);
    }
    world.until(|world| world.pings("alice", "r1"));
    carrier.send_again(&kept);
    world.until(|world| world.pings("r1", "alice"));
    assert_eq!(names.map(|name| state(&world, name)), before);
}

#[test]
fn a_clock_that_is_a_year_behind_keeps_its_node_out_until_it_is_right() {
    let mut world = JoiningNetwork::new();
    let Some(offset) = ClockOffset::new(&world.path("")) else { return };
    world.joins("alice", &world.invite(&[]));
    world.start("alice");
    world.until(|world| world.pings("alice", "r1"));
    world.end("alice", "-TERM");
    world.announce();
    world.all_rotated(&["r1"], "announced");
    world.publish(&["rotate", "switch"], "r1");
    world.all_rotated(&["r1"], "switched");
    let files = |world: &JoiningNetwork| {
        let files = ["network.list", "network.key", "network.secrets", "network.key.next"];
        files.map(|file| fs::read(world.path("alice").join(file)).ok())
    };
    let before = files(&world);
    offset.set(-YEAR_S);
    let mut run = shoal(&["run", "-c"]);
    run.arg(world.path("alice").join("node.toml")).envs(offset.env());
    let output = run.output().unwrap();
    let (code, said) = (output.status.code(), text(&output).1);
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("364 d") || said.contains("365 d"), "{said}");
    assert!(said.contains("in the future: is this machine's clock right?"), "{said}");
    assert_eq!(files(&world), before);
    // At the right time the node's old secret is accepted, and brings the new one.
    offset.set(0);
    world.start_with("alice", &offset.env());
    world.all_rotated(&["alice"], "switched");
    world.until(|world| world.pings("alice", "r1"));
}
