//! An uplink is lost and comes back in six ways: packets and a TCP connection go on within seconds.
//!
//! ```text
//!   h1 --- gw --- r1      gw forwards IP; h1 calls r1 by a name with an IPv6 and an IPv4 address
//! ```

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use shoal_e2e::machines::Machines;

/// Time without the uplink: longer than a link needs to notice the loss while packets are sent.
const AWAY: Duration = Duration::from_millis(1_500);
/// Longest time until the first packet comes back after the uplink returned.
const BACK_MAX: Duration = Duration::from_secs(8);
/// Lines that the host may log for each loss.
const LINES_MAX: usize = 20;

const FIRST: &str = "ip addr add 10.77.0.2/24 dev eth0; ip route add default via 10.77.0.1";

/// Connects the host to the gateway.
fn plug(machines: &Machines, interface: &str) {
    machines.join(("h1", interface), ("gw", "lan"));
    machines.sh("gw", "ip addr add 10.77.0.1/24 dev lan; ip addr add 10.79.0.1/24 dev lan");
    machines.sh("gw", "ip addr add fd77::1/64 dev lan nodad");
}

/// A host and its router, with the gateway between them; the link is up, by IPv6.
fn machines() -> Machines {
    let mut machines = Machines::new(&["r1", "h1", "gw"]);
    machines.join(("r1", "eth0"), ("gw", "wan"));
    let forward = "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1";
    machines.sh("gw", &format!("{forward}; ip addr add 10.78.0.1/24 dev wan"));
    machines.sh("gw", "ip addr add fd78::1/64 dev wan nodad");
    machines.sh("r1", "ip addr add 10.78.0.2/24 dev eth0; ip route add default via 10.78.0.1");
    machines.sh("r1", "ip addr add fd78::2/64 dev eth0 nodad; ip route add default via fd78::1");
    plug(&machines, "eth0");
    machines.sh("h1", FIRST);
    machines.sh("h1", "ip addr add fd77::2/64 dev eth0 nodad; ip route add default via fd77::1");
    machines.write_nodes(&["r1", "h1"], "r1.shoal-test.example:7400");
    let known = "127.0.0.1 localhost\nfd78::2 r1.shoal-test.example\n\
                 10.78.0.2 r1.shoal-test.example\n";
    fs::write(machines.folder("h1").join("etc-hosts"), known).unwrap();
    // Kernels solicit neighbours only after duplicate detection of their own address.
    machines.until("IPv6 leads there", || machines.tries("h1", "ping -c1 -W1 fd78::2").0);
    machines.start("r1");
    machines.start("h1");
    machines.until("the link is up by IPv6", || endpoint(&machines).starts_with("[fd78::2]"));
    machines
}

/// Endpoint at which the host calls its router; empty while the link is down.
fn endpoint(machines: &Machines) -> String {
    let peers = machines.ask("h1", &["peers"]).unwrap_or_default();
    let peer = &peers["peers"][0];
    let up = peer["state"] == "up";
    peer["endpoint"].as_str().filter(|_| up).unwrap_or_default().to_owned()
}

/// Address of a node's interface.
fn overlay(machines: &Machines, name: &str) -> SocketAddr {
    let status = machines.ask(name, &["status"]).unwrap();
    let address = status["status"]["interface"]["address"].as_str().unwrap().to_owned();
    SocketAddr::new(address.parse().unwrap(), 7_001)
}

/// Sends packets until one comes back. Returns the time that took, or none after `most`.
fn answered(near: &UdpSocket, most: Duration) -> Option<Duration> {
    let began = Instant::now();
    while began.elapsed() < most {
        let _lost = near.send(&[7; 100]);
        match near.recv(&mut [0; 200]) {
            Ok(_) => return Some(began.elapsed()),
            // An ICMP error comes at once.
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    None
}

/// Answers packets until none arrives for a while.
fn echo(far: &UdpSocket) {
    let mut packet = [0; 200];
    while let Ok((len, from)) = far.recv_from(&mut packet) {
        let _lost = far.send_to(&packet[..len], from);
    }
}

/// Sends bytes over a TCP connection. They must arrive unchanged.
fn exchange(near: &mut TcpStream, far: &mut TcpStream, seed: u8) {
    let sent = shoal_e2e::bytes(seed, 50_000);
    let mut got = vec![0; sent.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| near.write_all(&sent).unwrap());
        far.read_exact(&mut got).unwrap();
    });
    assert!(got == sent, "bytes are not those that were sent");
}

/// A way to lose the uplink: its name, the host's script for it, and the repair.
type UplinkLoss = (&'static str, &'static str, fn(&Machines));

const WAYS: [UplinkLoss; 5] = [
    ("the link goes down", "ip link set eth0 down", |machines| {
        machines.sh("h1", "ip link set eth0 up; ip route add default via 10.77.0.1");
    }),
    ("the address goes", "ip addr del 10.77.0.2/24 dev eth0", |machines| {
        machines.sh("h1", FIRST);
    }),
    ("the default route goes", "ip route del default", |machines| {
        machines.sh("h1", "ip route add default via 10.77.0.1");
    }),
    ("an address of another network comes", "ip addr del 10.77.0.2/24 dev eth0", |machines| {
        machines.sh("h1", "ip addr add 10.79.0.2/24 dev eth0; ip route add default via 10.79.0.1");
    }),
    ("another interface comes", "ip link del eth0", |machines| {
        plug(machines, "wlan0");
        machines.sh("h1", &FIRST.replace("eth0", "wlan0"));
    }),
];

#[test]
fn packets_and_connections_go_on_after_an_uplink_was_lost_in_six_ways() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let machines = machines();
    let [near, far] = ["h1", "r1"].map(|name| overlay(&machines, name));
    let listener = machines.inside("r1", || TcpListener::bind(far).unwrap());
    let bind = |name, at| machines.inside(name, || UdpSocket::bind(at).unwrap());
    let (probe, answers) = (bind("h1", near), bind("r1", far));
    probe.connect(far).unwrap();
    probe.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    answers.set_read_timeout(Some(2 * BACK_MAX)).unwrap();
    let mut near = machines.inside("h1", || TcpStream::connect_timeout(&far, BACK_MAX).unwrap());
    let (mut far, _) = listener.accept().unwrap();
    far.set_read_timeout(Some(2 * BACK_MAX)).unwrap();
    std::thread::spawn(move || echo(&answers));
    assert!(answered(&probe, BACK_MAX).is_some(), "before the first loss");
    let lines = || machines.log_of("h1").lines().count();

    let before = lines();
    machines.sh("h1", "ip -6 addr flush dev eth0 scope global");
    let back = answered(&probe, BACK_MAX).expect("IPv6 is lost, and IPv4 is left");
    println!("IPv6 goes, and IPv4 is left: back after {back:?}");
    assert!(endpoint(&machines).starts_with("10.78.0.2:"), "{}", endpoint(&machines));
    exchange(&mut near, &mut far, 0);
    assert!(lines() < before + LINES_MAX, "{}", machines.log_of("h1"));

    for (seed, (what, loss, mend)) in (1..).zip(WAYS) {
        let before = lines();
        machines.sh("h1", loss);
        // Answers that came before the loss.
        while probe.recv(&mut [0; 200]).is_ok() {}
        assert_eq!(answered(&probe, AWAY), None, "{what}: the uplink is still there");
        mend(&machines);
        let back = answered(&probe, BACK_MAX);
        let logged = lines() - before;
        println!("{what}: back after {back:?}, {logged} lines in the log");
        assert!(back.is_some(), "{what}: {}", machines.log_of("h1"));
        exchange(&mut near, &mut far, seed);
        assert!(logged < LINES_MAX, "{what}: {}", machines.log_of("h1"));
    }
}
