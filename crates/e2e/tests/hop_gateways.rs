//! Machines that know nothing of Shoal behind gateways whose addresses hop: with the files of
//! docs/moving-targets.md, and where machines keep addresses inside the prefix that hops.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts real programs")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Child;
use std::time::{Duration, Instant};

use shoal_e2e::machines::Machines;
use shoal_e2e::{bytes, text};

/// The longest packet through the network, in bytes.
const MTU: usize = 1_374;
/// For how long packets pass while addresses hop each second.
const LONG: Duration = Duration::from_secs(62);
/// Hops in this time, at least.
const HOPS: u64 = 60;

/// The blocks of the page, by what stands behind the fence.
fn block(head: &str) -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/moving-targets.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once(&format!("```{head}\n")).unwrap_or_else(|| panic!("{head}"));
    rest.split("```").next().unwrap().to_string()
}

/// Writes the files of a network: keys, the list with them, and a configuration per node.
fn write_files(machines: &Machines, list: &str, nodes: &[(&str, String)]) {
    machines.make_secret();
    let mut list = list.to_string();
    for (name, config) in nodes {
        list = list.replace(&format!("KEY-OF-{name}\""), &format!("{}\"", machines.make_key(name)));
        let socket = "[node]\ncontrol_socket = \"control.sock\"\n";
        let config = config.replacen("[node]\n", socket, 1);
        std::fs::write(machines.folder(name).join("node.toml"), config).unwrap();
    }
    assert!(!list.contains("KEY-OF"), "{list}");
    std::fs::write(machines.file("hosts.toml"), list).unwrap();
}

/// What the machine's own network of the page is: r1 is the router of both gateways.
fn lay_out(machines: &Machines) {
    machines
        .sh("r1", "ip addr add 2001:db8::1/128 dev lo; sysctl -qw net.ipv6.conf.all.forwarding=1");
    for (site, gateway, behind) in [("a", "gw-a", "a"), ("b", "gw-b", "b")] {
        machines.join((gateway, "wan"), ("r1", &format!("to-{site}")));
        machines.join((gateway, "lan"), (behind, "lan"));
        let net = format!("2001:db8:0:{site}");
        machines.sh("r1", &format!("ip addr add {net}::1/64 dev to-{site} nodad"));
        machines.sh(gateway, &format!("ip addr add {net}::2/64 dev wan nodad"));
        machines.sh(gateway, &format!("ip -6 route add default via {net}::1"));
        machines.sh("r1", &format!("ip -6 route add 2001:db8:{site}:1::/64 via {net}::2"));
    }
    for (gateway, behind) in [("gw-a", "a"), ("gw-b", "b")] {
        let there = |script: String| match behind {
            "a" => script,
            _ => script.replace("db8:a:", "db8:b:").replace("10.20.1.", "10.20.2."),
        };
        machines.sh(gateway, &there(block("sh on gw-a")).replace("dev lan", "dev lan nodad"));
        machines.sh(behind, &there(block("sh on a")).replace("dev lan", "dev lan nodad"));
    }
}

/// Sends packets from one machine to another, each a while after the one before.
fn begin_pings(machines: &Machines, from: &str, to: &str) -> Child {
    let count = LONG.as_millis() / 10;
    machines.begin(from, &format!("ping -q -i 0.01 -c {count} -W 2 {to}"))
}

/// How many of these came back, of how many.
fn end_pings(pings: Child) -> (u64, u64) {
    let (said, _) = text(&pings.wait_with_output().unwrap());
    let line = said.lines().find(|line| line.contains("transmitted")).unwrap();
    let mut numbers = line.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
    let sent = numbers.next().unwrap();
    (numbers.next().unwrap(), sent)
}

/// A stream from `a` to `b` with full-size segments, a few MB/s for `lasts`, or as fast as it goes
/// if that is none; every byte arrives as it left.
fn stream(machines: &Machines, to: SocketAddr, lasts: Option<Duration>) {
    let listener = machines.inside("b", || TcpListener::bind(to).unwrap());
    let mut near = machines.inside("a", || TcpStream::connect(to).unwrap());
    let (mut far, _) = listener.accept().unwrap();
    far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let piece = bytes(7, 1 << 16);
    let began = Instant::now();
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sent = 0;
            while lasts.map_or(sent < 64, |lasts| began.elapsed() < lasts) {
                near.write_all(&piece).unwrap();
                sent += 1;
                lasts.map(|_| std::thread::sleep(Duration::from_millis(30)));
            }
            near.shutdown(Shutdown::Write).unwrap();
            sent
        });
        let (mut whole, mut got) = (0, vec![0; piece.len()]);
        while far.peek(&mut got[..1]).unwrap() == 1 {
            far.read_exact(&mut got).unwrap();
            assert!(got == piece, "wrong bytes in piece {whole}");
            whole += 1;
        }
        (sender.join().unwrap(), whole)
    });
    assert_eq!(sent.0, sent.1);
    assert!(sent.0 > 10);
}

/// Datagrams as long as they can be from `a` to `b`, 50 a second: how many arrive of how many.
fn datagrams(machines: &Machines, to: SocketAddr) -> (u32, u32) {
    let far = machines.inside("b", || UdpSocket::bind(to).unwrap());
    far.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    let any = if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let near = machines.inside("a", || UdpSocket::bind(any).unwrap());
    let body = bytes(3, MTU - if to.is_ipv6() { 48 } else { 28 });
    let began = Instant::now();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sent = 0;
            while began.elapsed() < LONG {
                near.send_to(&body, to).unwrap();
                sent += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
            sent
        });
        let (mut came, mut buf) = (0, [0; 2_000]);
        while let Ok(len) = far.recv(&mut buf) {
            assert_eq!(buf[..len], body);
            came += 1;
        }
        (came, sender.join().unwrap())
    })
}

/// A packet that is too long is answered by the gateway with the right MTU, and TCP finds that by
/// itself.
fn too_long_is_answered(machines: &Machines, from: &str, to: &str) {
    let flush = || machines.sh(from, "ip -6 route flush cache; ip route flush cache");
    let ping = format!("ping -c1 -W2 -Mdo {to} -s");
    flush();
    let (passed, said) = machines.tries(from, &format!("{ping} 1400"));
    let v6 = to.contains(':');
    let words = if v6 { "Packet too big: mtu=1374" } else { "Frag needed and DF set (mtu = 1374)" };
    assert!(!passed && said.contains(words), "{said}");
    let longest = MTU - if v6 { 48 } else { 28 };
    let (passed, said) = machines.tries(from, &format!("{ping} {longest}"));
    assert!(passed, "{said}");
    let (passed, said) = machines.tries(from, &format!("{ping} {}", longest + 1));
    assert!(!passed, "{said}");
    flush();
    let before = machines.sh(from, &format!("ip route get {to}"));
    assert!(!before.contains("mtu"), "{before}");
    stream(machines, SocketAddr::new(to.parse().unwrap(), 7_000), None);
    let after = machines.sh(from, &format!("ip route get {to}"));
    assert!(after.contains("mtu 1374"), "{after}");
}

#[test]
fn separate_networks_behind_gateways_lose_nothing_by_sixty_hops() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let mut machines = Machines::new(&["r1", "gw-a", "gw-b", "a", "b"]);
    lay_out(&machines);
    let nodes = ["r1", "gw-a", "gw-b"];
    let configs = nodes.map(|name| (name, block(&format!("toml {name}/node.toml"))));
    write_files(&machines, &block("toml hosts.toml"), &configs);
    nodes.iter().for_each(|name| machines.start(name));
    for gateway in ["gw-a", "gw-b"] {
        machines.wait_until_hopping(gateway, "r1");
        assert_eq!(machines.warnings(gateway), Vec::<String>::new());
        let (passed, said) = machines.command(gateway, &["check"]);
        assert!(passed && said.contains("MTU of 1374"), "{said}");
    }
    let far = ["2001:db8:b:2::2", "10.20.2.2"];
    for to in far {
        machines.until("a ping passes", || machines.tries("a", &format!("ping -c1 -W1 {to}")).0);
        too_long_is_answered(&machines, "a", to);
    }
    let before = ["gw-a", "gw-b"].map(|name| machines.hops(name, "r1").unwrap());
    let pings = far.map(|to| begin_pings(&machines, "a", to));
    let at = |to: &str, port| SocketAddr::new(to.parse().unwrap(), port);
    std::thread::scope(|scope| {
        let machines = &machines;
        let arrived = far.map(|to| scope.spawn(move || datagrams(machines, at(to, 7_001))));
        for to in far {
            scope.spawn(move || stream(machines, at(to, 7_002), Some(LONG)));
        }
        for arrived in arrived {
            let (came, sent) = arrived.join().unwrap();
            assert!(came == sent && sent > 2_000, "{came} of {sent} datagrams");
        }
    });
    for (came, sent) in pings.map(end_pings) {
        assert!(came == sent && sent > 6_000, "{came} of {sent} echoes");
    }
    for (name, before) in ["gw-a", "gw-b"].into_iter().zip(before) {
        let after = machines.hops(name, "r1").unwrap();
        assert!(after.1 >= before.1 + HOPS && after.2 == before.2, "{name}: {before:?} {after:?}");
    }
}
