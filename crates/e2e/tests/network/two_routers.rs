//! A host at two routers: programs go on within a second when the router in use dies.
//!
//! ```text
//!   h1 (1.1, 2.1)   r1   r2   r3   h2 (3.1)      all on one segment
//! ```

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use shoal_e2e::machines::Machines;

const NAMES: [&str; 5] = ["r1", "r2", "r3", "h1", "h2"];
const ADDRESSES: [&str; 5] = ["1.0", "2.0", "3.0", "1.1", "3.1"];
/// Interval of packets.
const EVERY: Duration = Duration::from_millis(10);
/// Longest time without an answer after a router died.
const GAP_MAX: Duration = Duration::from_secs(1);
/// Deaths of the router in use, one after the other.
const DEATHS: usize = 4;

/// Nodes on one segment, all running.
fn machines() -> Machines {
    let all = NAMES.iter().copied().chain(["segment"]).collect::<Vec<_>>();
    let mut machines = Machines::new(&all);
    machines.sh("segment", "ip link add lan type bridge; ip link set lan up");
    machines.make_secret();
    let mut hosts = String::new();
    for (number, (name, address)) in NAMES.into_iter().zip(ADDRESSES).enumerate() {
        machines.join((name, "eth0"), ("segment", name));
        machines.sh("segment", &format!("ip link set {name} master lan"));
        let ip = format!("10.80.0.{}", number + 1);
        machines.sh(name, &format!("ip addr add {ip}/24 dev eth0; ip link set lo up"));
        let key = machines.make_key(name);
        hosts +=
            &format!("[[host]]\nname = \"{name}\"\naddress = \"{address}\"\nkey = \"{key}\"\n");
        let is_router = address.ends_with(".0");
        if is_router {
            hosts += &format!("endpoint = \"{ip}:7400\"\n");
        }
        if name == "h1" {
            hosts += "second = \"2.1\"\n";
        }
        let listen = if is_router { "listen = [\"0.0.0.0:7400\"]\n" } else { "" };
        let interface = if is_router { "" } else { "[interface]\n[names]\nresolved = false\n" };
        let config = format!(
            "[node]\nname = \"{name}\"\naddress = \"{address}\"\nkey_file = \"node.key\"\n\
             network_secret_file = \"../network.key\"\nhosts_file = \"../hosts.toml\"\n\
             control_socket = \"control.sock\"\n{listen}\
             [links]\naccept = \"members\"\naccept_routers = {is_router}\n{interface}"
        );
        std::fs::write(machines.folder(name).join("node.toml"), config).unwrap();
    }
    std::fs::write(machines.file("hosts.toml"), hosts).unwrap();
    NAMES.into_iter().for_each(|name| machines.start(name));
    machines
}

/// Number of links of a node that are up.
fn up(machines: &Machines, name: &str) -> usize {
    let peers = machines.ask(name, &["peers"]).unwrap_or_default();
    let peers = peers["peers"].as_array().cloned().unwrap_or_default();
    peers.iter().filter(|peer| peer["state"] == "up").count()
}

fn overlay(machines: &Machines, name: &str) -> SocketAddr {
    let status = machines.ask(name, &["status"]).unwrap();
    let address = status["status"]["interface"]["address"].as_str().unwrap().to_owned();
    SocketAddr::new(address.parse().unwrap(), 7_001)
}

/// Longest time between two reads, from the first one until `is_over`.
fn longest_gap(is_over: &AtomicBool, mut read: impl FnMut() -> bool) -> Duration {
    let (mut last, mut longest) = (None::<Instant>, Duration::ZERO);
    while !is_over.load(Ordering::Relaxed) {
        if read() {
            longest = longest.max(last.map_or(Duration::ZERO, |last| last.elapsed()));
            last = Some(Instant::now());
        }
    }
    longest.max(last.map_or(Duration::MAX, |last| last.elapsed()))
}

#[test]
fn packets_and_a_connection_go_on_within_a_second_when_the_router_in_use_dies() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let mut machines = machines();
    machines.until("both links of h1 are up", || up(&machines, "h1") == 2);
    machines.until("the routers are linked", || up(&machines, "r3") == 3);
    let [near_at, far_at] = ["h1", "h2"].map(|name| overlay(&machines, name));
    let bind = |name, at| machines.inside(name, || UdpSocket::bind(at).unwrap());
    let (near, far) = (bind("h1", near_at), bind("h2", far_at));
    near.connect(far_at).unwrap();
    far.connect(near_at).unwrap();
    for socket in [&near, &far] {
        socket.set_read_timeout(Some(EVERY)).unwrap();
    }
    let listener = machines.inside("h2", || TcpListener::bind(far_at).unwrap());
    let patience = Duration::from_secs(10);
    let mut out = machines.inside("h1", || TcpStream::connect_timeout(&far_at, patience).unwrap());
    let (mut come, _) = listener.accept().unwrap();
    come.set_read_timeout(Some(EVERY)).unwrap();
    for death in 0..DEATHS {
        let dying = ["r1", "r2"][death % 2];
        let (flag, near, far) = (&AtomicBool::new(false), &near, &far);
        let (out, come) = (&mut out, &mut come);
        let gaps = std::thread::scope(|scope| {
            scope.spawn(move || {
                while !flag.load(Ordering::Relaxed) {
                    let _lost = (near.send(&[1; 100]), far.send(&[2; 100]));
                    let _sent = out.write(&[3; 100]);
                    std::thread::sleep(EVERY);
                }
            });
            let come = scope.spawn(move || {
                longest_gap(flag, || come.read(&mut [0; 65_536]).is_ok_and(|len| len > 0))
            });
            let [far, near] = [far, near].map(|at| {
                scope.spawn(move || longest_gap(flag, || at.recv(&mut [0; 200]).is_ok()))
            });
            std::thread::sleep(Duration::from_secs(2));
            machines.end(dying, "KILL");
            std::thread::sleep(Duration::from_secs(3));
            flag.store(true, Ordering::Relaxed);
            [far, near, come].map(|way| way.join().unwrap())
        });
        println!("without {dying}: to h2 {:?}, to h1 {:?}, TCP {:?}", gaps[0], gaps[1], gaps[2]);
        assert!(gaps.iter().all(|gap| *gap <= GAP_MAX), "{gaps:?}");
        machines.start(dying);
        machines.until("both links of h1 are up again", || up(&machines, "h1") == 2);
    }
    let status = machines.ask("h2", &["status"]).unwrap();
    let drops = status["status"]["drops"].as_array().unwrap();
    assert!(drops.iter().all(|drop| drop[0] != "bad_source"), "{drops:?}");
}
