//! Machines that know nothing of Shoal, behind gateways whose addresses shift. One test follows
//! docs/guide/gateways.md. Others keep machines' addresses inside the shifting prefix.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Child;
use std::time::{Duration, Instant};

use shoal_e2e::machines::Machines;
use shoal_e2e::{bytes, text};

/// The longest packet through the network, in bytes.
const MTU: usize = 1_374;
/// Time in which packets pass while addresses shift each second.
const LONG: Duration = Duration::from_secs(62);
/// Least number of shifts in this time.
const SHIFTS: u64 = 60;

const NODES: [&str; 3] = ["r1", "gw-a", "gw-b"];
const ALL: [&str; 5] = ["r1", "gw-a", "gw-b", "a", "b"];

/// A block of the page, found by the text after its fence.
fn block(head: &str) -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/gateways.md");
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

/// Sets up the networks outside the page's gateways. r1 is the router of both, and routes their
/// prefixes to them.
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
}

/// Executes at each site the page's commands for the first.
fn do_as_the_page_says(machines: &Machines) {
    for (gateway, behind) in [("gw-a", "a"), ("gw-b", "b")] {
        let there = |script: String| match behind {
            "a" => script,
            _ => script.replace("db8:a:", "db8:b:").replace("10.20.1.", "10.20.2."),
        };
        machines.sh(gateway, &there(block("sh on gw-a")).replace("dev lan", "dev lan nodad"));
        machines.sh(behind, &there(block("sh on a")).replace("dev lan", "dev lan nodad"));
    }
}

/// Begins to send packets from one machine to another, one every 10 ms.
fn begin_pings(machines: &Machines, from: &str, to: &str, lasts: Duration) -> Child {
    let count = lasts.as_millis() / 10;
    machines.begin(from, &format!("ping -q -i 0.01 -c {count} -W 2 {to}"))
}

/// Numbers of answered and of sent packets.
fn end_pings(pings: Child) -> (u64, u64) {
    let (said, _) = text(&pings.wait_with_output().unwrap());
    let line = said.lines().find(|line| line.contains("transmitted")).unwrap();
    let mut numbers = line.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
    let sent = numbers.next().unwrap();
    (numbers.next().unwrap(), sent)
}

/// A stream from `a` to `b` with full-size segments: a few MB/s for `lasts`, or at full speed if
/// that is none. Every byte must arrive unchanged.
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
                if lasts.is_some() {
                    std::thread::sleep(Duration::from_millis(30));
                }
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

/// Sends the longest possible datagrams from `a` to `b`, 50 a second. Returns the numbers that
/// arrived and were sent.
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

/// The gateway answers a packet that is too long with the right MTU, and TCP finds this MTU by
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
fn separate_networks_behind_gateways_lose_nothing_by_sixty_shifts() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let mut machines = Machines::new(&ALL);
    lay_out(&machines);
    do_as_the_page_says(&machines);
    let configs = NODES.map(|name| (name, block(&format!("toml {name}/node.toml"))));
    write_files(&machines, &block("toml hosts.toml"), &configs);
    NODES.iter().for_each(|name| machines.start(name));
    for gateway in ["gw-a", "gw-b"] {
        machines.wait_until_shifting(gateway, "r1");
        assert_eq!(machines.warnings(gateway), Vec::<String>::new());
        let (passed, said) = machines.command(gateway, &["check"]);
        assert!(passed && said.contains("announce the MTU 1374"), "{said}");
    }
    let far = ["2001:db8:b:2::2", "10.20.2.2"];
    for to in far {
        machines.until("a ping passes", || machines.tries("a", &format!("ping -c1 -W1 {to}")).0);
        too_long_is_answered(&machines, "a", to);
    }
    let before = ["gw-a", "gw-b"].map(|name| machines.shifts(name, "r1").unwrap());
    let pings = far.map(|to| begin_pings(&machines, "a", to, LONG));
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
        let after = machines.shifts(name, "r1").unwrap();
        assert!(
            after.1 >= before.1 + SHIFTS && after.2 == before.2,
            "{name}: {before:?} {after:?}"
        );
    }
}

/// A segment with all three nodes and with addresses of the machines behind the gateways. The
/// machines take each other for neighbours.
fn segment() -> Machines {
    let machines = Machines::new(&[&ALL[..], &["switch"]].concat());
    machines.sh("switch", "ip link add lan type bridge; ip link set lan up");
    for (node, ip) in [("r1", "fd42::1"), ("gw-a", "fd42::a"), ("gw-b", "fd42::b")] {
        machines.join((node, "wan"), ("switch", node));
        machines.sh("switch", &format!("ip link set {node} master lan"));
        machines.sh(node, &format!("ip addr add {ip}/64 dev wan nodad"));
    }
    for (gateway, behind, ip) in [("gw-a", "a", "fd42::10"), ("gw-b", "b", "fd42::20")] {
        machines.join((gateway, "lan"), (behind, "lan"));
        machines.sh(gateway, "sysctl -qw net.ipv6.conf.all.forwarding=1");
        machines.sh(behind, &format!("ip addr add {ip}/64 dev lan nodad"));
    }
    let outside = |text: String| {
        let text = text.replace("[2001:db8::1]", "[fd42::1]");
        text.replace("\"2001:db8:a:2::/64\", \"10.20.1.0/24\"", "\"fd42::10\", \"fd42::11\"")
            .replace("\"2001:db8:b:2::/64\", \"10.20.2.0/24\"", "\"fd42::20\"")
    };
    let node = |name: &str| {
        let text = outside(block(&format!("toml {name}/node.toml")));
        let (before, _) = text.split_once("[shift]").unwrap();
        before.to_string() + "[shift]\nprefix = \"fd42::/64\"\n"
    };
    let gateway = |name: &str, near: &str, far: &str| {
        let inside = format!("inside = \"lan\"\nprotect = [\"{near}\"]\n[interface]\n");
        node(name) + &inside + &format!("accept_prefixes = [\"{far}\"]\n")
    };
    let configs = [
        ("r1", node("r1")),
        ("gw-a", gateway("gw-a", "fd42::10", "fd42::20")),
        ("gw-b", gateway("gw-b", "fd42::20", "fd42::10/127")),
    ];
    write_files(&machines, &outside(block("toml hosts.toml")), &configs);
    machines
}

/// A gateway's kernel entries for machines inside: routes and proxy entries.
fn inside(machines: &Machines, gateway: &str) -> (Vec<String>, Vec<String>) {
    let lines = |script: &str| machines.sh(gateway, script).lines().map(str::to_string).collect();
    let routes: Vec<String> = lines("ip -6 route show table local proto 115");
    (routes, lines("ip -6 neigh show proxy"))
}

fn edit(machines: &Machines, name: &str, from: &str, to: &str) {
    let file = machines.folder(name).join("node.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(file, text.replace(from, to)).unwrap();
}

/// Makes `a` send all messages of neighbour discovery, to groups and to `b`, and checks which of
/// them reach `b`.
fn discovery_stays_at_its_side(machines: &Machines) {
    // Receivers ignore discovery messages with any other hop limit (RFC 4861 section 6.1, 7.1).
    let discovery = "icmp6 and ip6[7] = 255 and ip6[40] >= 133 and ip6[40] <= 137";
    let listen = &format!("timeout 4 tcpdump -lnni lan '{discovery}'");
    let captures = ["a", "b"].map(|name| machines.begin(name, listen));
    std::thread::sleep(Duration::from_secs(1));
    machines.inside("a", || {
        let (domain, kind) = (socket2::Domain::IPV6, socket2::Type::RAW);
        let socket = socket2::Socket::new(domain, kind, Some(socket2::Protocol::ICMPV6)).unwrap();
        socket.set_multicast_hops_v6(255).unwrap();
        socket.set_unicast_hops_v6(255).unwrap();
        let index = nix::net::if_::if_nametoindex("lan").unwrap();
        socket.set_multicast_if_v6(index).unwrap();
        for kind in 133..=137 {
            let mut message = vec![0; 40];
            message[0] = kind;
            for to in ["ff02::1", "ff02::2", "fd42::20"] {
                let to = SocketAddr::new(to.parse().unwrap(), 0);
                socket.send_to(&message, &to.into()).unwrap();
            }
        }
    });
    machines.tries("a", "ip neigh flush dev lan; ping -c2 -W1 fd42::20");
    let [near, far] = captures.map(|capture| text(&capture.wait_with_output().unwrap()).0);
    assert!(near.contains("router advertisement") && near.contains("neighbor solicit"), "{near}");
    let theirs = machines.sh("a", "ip -6 -br addr show dev lan");
    for ip in theirs.split_whitespace().filter_map(|word| word.strip_suffix("/64")) {
        assert!(!far.contains(&format!("IP6 {ip} >")), "{far}");
    }
    assert!(!far.contains("advertisement, length 40") && !far.contains("router adv"), "{far}");
}

/// Machines are added and removed without a restart, and return after the interface was down.
fn what_is_inside_follows(machines: &Machines) {
    let has = |ip: &str| inside(machines, "gw-a").0.iter().any(|route| route.contains(ip));
    edit(machines, "gw-a", "[\"fd42::10\"]", "[\"fd42::10\", \"fd42::11\"]");
    let (done, said) = machines.command("gw-a", &["reload"]);
    assert!(done && said.contains("shift.protect"), "{said}");
    machines.until("a route to the new machine", || has("fd42::11"));
    machines.sh("a", "ip addr add fd42::11/64 dev lan nodad");
    let ping = "ping -c1 -W1 -I fd42::11 fd42::20";
    machines.until("the new machine pings", || machines.tries("a", ping).0);
    edit(machines, "gw-a", ", \"fd42::11\"]", "]");
    assert!(machines.command("gw-a", &["reload"]).0);
    machines.until("the route is withdrawn", || !has("fd42::11"));
    machines.until("the new machine's pings fail", || !machines.tries("a", ping).0);
    assert!(has("fd42::10"));

    machines.sh("gw-a", "ip link set lan down; ip link set lan up");
    let ping = "ping -c1 -W1 -I fd42::10 fd42::20";
    machines.until("the machine pings again", || machines.tries("a", ping).0);
}

/// A node that stops leaves nothing. A killed node leaves entries with a lifetime, and entries that
/// the next start removes.
fn nothing_is_left(machines: &mut Machines) {
    machines.end("gw-a", "-TERM");
    assert_eq!(inside(machines, "gw-a"), (vec![], vec![]));
    machines.sh("gw-a", "ip -6 neigh add proxy fd42::77 dev lan");
    machines.start("gw-a");
    machines.until("the entry is set again", || inside(machines, "gw-a").1.len() == 2);
    machines.end("gw-a", "-KILL");
    let (routes, proxies) = inside(machines, "gw-a");
    assert_eq!((routes.len(), proxies.len()), (1, 2));
    assert!(routes.iter().all(|route| route.contains("expires")), "{routes:?}");
    edit(machines, "gw-a", "protect = [\"fd42::10\"]", "");
    edit(machines, "gw-a", "accept_prefixes = [\"fd42::20\"]", "");
    machines.start("gw-a");
    machines.until("the next start removes it", || inside(machines, "gw-a").1.len() == 1);
    machines.until("routes end with their time", || inside(machines, "gw-a").0.is_empty());
    assert!(inside(machines, "gw-a").1[0].contains("fd42::77"), "somebody else's stays");
}

#[test]
fn machines_on_the_segment_that_shifts_take_each_other_for_neighbours() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let mut machines = segment();
    let (_, said) = machines.command("gw-a", &["check"]);
    assert!(said.contains("net.ipv6.conf.lan.proxy_ndp = 1"), "{said}");
    for gateway in ["gw-a", "gw-b"] {
        machines.sh(gateway, "sysctl -qw net.ipv6.conf.lan.proxy_ndp=1");
    }
    NODES.iter().for_each(|name| machines.start(name));
    for gateway in ["gw-a", "gw-b"] {
        machines.wait_until_shifting(gateway, "r1");
        assert_eq!(machines.warnings(gateway), Vec::<String>::new());
        let status = machines.ask(gateway, &["status"]).unwrap();
        assert_eq!(status["status"]["shift"]["mode"], "segment");
    }
    machines.until("a ping passes", || machines.tries("a", "ping -c1 -W1 fd42::20").0);
    let link = machines.sh("gw-a", "ip -br link show dev lan");
    let mac = link.split_whitespace().nth(2).unwrap();
    let neighbour = machines.sh("a", "ip neigh show fd42::20");
    assert!(neighbour.contains(mac), "{neighbour}");
    too_long_is_answered(&machines, "a", "fd42::20");

    let before = machines.shifts("gw-a", "r1").unwrap();
    let pings = begin_pings(&machines, "b", "fd42::10", Duration::from_secs(8));
    let (came, sent) = end_pings(pings);
    assert!(came == sent && sent == 800, "{came} of {sent}");
    let after = machines.shifts("gw-a", "r1").unwrap();
    assert!(after.1 >= before.1 + 6 && after.2 == before.2, "{before:?} {after:?}");

    discovery_stays_at_its_side(&machines);
    what_is_inside_follows(&machines);
    nothing_is_left(&mut machines);
}

#[test]
fn machines_keep_addresses_of_a_prefix_that_is_routed_to_their_gateway() {
    if !shoal_e2e::tun_possible() || !shoal_e2e::ipv6() {
        return;
    }
    let mut machines = Machines::new(&ALL);
    lay_out(&machines);
    let near = |site: &str| format!("2001:db8:{site}:1::10");
    let mut list = block("toml hosts.toml");
    for (site, gateway, net) in [("a", "gw-a", 1), ("b", "gw-b", 2)] {
        let script = block("sh on gw-a")
            .lines()
            .filter(|line| !line.contains("ip addr"))
            .fold(String::from("ip addr add fe80::1/64 dev lan nodad\n"), |script, line| {
                script + line + "\n"
            });
        machines.sh(gateway, &script);
        let ip = near(site);
        machines.sh(site, &format!("ip addr add {ip}/64 dev lan nodad"));
        machines.sh(site, "ip -6 route add default via fe80::1 dev lan");
        let networks = format!("\"2001:db8:{site}:2::/64\", \"10.20.{net}.0/24\"");
        list = list.replace(&networks, &format!("\"{ip}\""));
    }
    let gateway = |name: &str, of: &str, other: &str| {
        let text = block(&format!("toml {name}/node.toml"));
        let (before, _) = text.split_once("\n[interface]").unwrap();
        let inside = format!("inside = \"lan\"\nprotect = [\"{}\"]\n", near(of));
        let accept = format!("[interface]\naccept_prefixes = [\"{}\"]\n", near(other));
        before.to_string() + &inside + &accept
    };
    let configs = [
        ("r1", block("toml r1/node.toml")),
        ("gw-a", gateway("gw-a", "a", "b")),
        ("gw-b", gateway("gw-b", "b", "a")),
    ];
    write_files(&machines, &list, &configs);
    NODES.iter().for_each(|name| machines.start(name));
    for gateway in ["gw-a", "gw-b"] {
        machines.wait_until_shifting(gateway, "r1");
        assert_eq!(machines.warnings(gateway), Vec::<String>::new());
    }
    let far = near("b");
    machines.until("a ping passes", || machines.tries("a", &format!("ping -c1 -W1 {far}")).0);
    too_long_is_answered(&machines, "a", &far);
    let (came, sent) = end_pings(begin_pings(&machines, "a", &far, Duration::from_secs(5)));
    assert!(came == sent && sent == 500, "{came} of {sent}");
    // Every other address of the prefix is the gateway's. These lie behind it, and nobody reaches
    // them without Shoal.
    assert!(machines.tries("r1", "ping -c1 -W2 2001:db8:a:1::11").0);
    assert!(!machines.tries("r1", &format!("ping -c1 -W2 {}", near("a"))).0);
    machines.end("gw-a", "-TERM");
    assert_eq!(inside(&machines, "gw-a"), (vec![], vec![]));
    assert!(!machines.sh("gw-a", "ip -6 route show table local").contains("db8:a:1"));
}

/// True if a datagram from `outside` to this address is answered.
fn answers(machines: &Machines, far: &UdpSocket, to: SocketAddr) -> bool {
    let near = machines.inside("outside", || UdpSocket::bind("[::]:0").unwrap());
    near.send_to(b"?", to).unwrap();
    far.recv(&mut [0; 8]).is_ok()
}

/// The page's rules leave the node's port reachable at the prefix, and nothing else there. At other
/// addresses of the machine they change nothing.
#[test]
fn rules_of_the_page_close_the_prefix_but_for_the_nodes_port() {
    if !shoal_e2e::namespaces() || !shoal_e2e::ipv6() {
        return;
    }
    let machines = Machines::new(&["node", "outside"]);
    machines.join(("node", "wan"), ("outside", "wan"));
    machines.sh("node", "ip link set lo up; ip addr add 2001:db8::2/64 dev wan nodad");
    machines.sh("node", "ip -6 route add local 2001:db8:1:2::/64 dev lo");
    machines.sh("outside", "ip addr add 2001:db8::3/64 dev wan nodad");
    machines.sh("outside", "ip -6 route add 2001:db8:1:2::/64 via 2001:db8::2");
    machines
        .until("the machine answers", || machines.tries("outside", "ping -c1 -W1 2001:db8::2").0);
    let _tcp = machines.inside("node", || TcpListener::bind("[::]:2222").unwrap());
    let udp = |port: u16| {
        let far = machines.inside("node", || UdpSocket::bind(("::", port)).unwrap());
        far.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        far
    };
    let (own, other) = (udp(23_871), udp(5_555));
    let place = |ip: &str, port: u16| SocketAddr::new(ip.parse().unwrap(), port);
    let (shifts, stays) = ("2001:db8:1:2::77", "2001:db8::2");
    let found = |ip: &str| {
        let (to, second) = (place(ip, 2_222), Duration::from_secs(1));
        let tcp = || TcpStream::connect_timeout(&to, second).is_ok();
        let udp = |far: &UdpSocket, port| answers(&machines, far, place(ip, port));
        [machines.inside("outside", tcp), udp(&own, 23_871), udp(&other, 5_555)]
    };
    assert_eq!([found(shifts), found(stays)], [[true; 3]; 2]);
    machines.sh("node", &block("sh on the node"));
    assert_eq!([found(shifts), found(stays)], [[false, true, false], [true; 3]]);
}

#[test]
fn bad_addresses_of_machines_inside_are_errors_that_say_so() {
    if !shoal_e2e::namespaces() || !shoal_e2e::ipv6() {
        return;
    }
    let machines = segment();
    let many: Vec<String> = (0..257).map(|i| format!("\"fd42::1:{i:x}\"")).collect();
    let protect = "protect = [\"fd42::10\"]";
    for (protected, says) in [
        ("\"fd43::10\"", "fd43::10 is not under [shift] prefix"),
        ("\"fd42::a\"", "fd42::a is this machine's own, on wan"),
        (&many.join(", "), "expected at most 256 addresses, found 257"),
        ("\"fd42::10\", \"fd42::10\"", "fd42::10 is listed twice"),
        ("\"192.0.2.10\"", "expected an IPv6 address of [shift] prefix"),
        ("\"fd42::12\"", "does not have fd42::12/128 among the prefixes of this node"),
    ] {
        let bad = format!("protect = [{protected}]");
        if protected == "\"fd42::a\"" {
            let list = std::fs::read_to_string(machines.file("hosts.toml")).unwrap();
            let granted = list.replace("\"fd42::11\"", "\"fd42::11\", \"fd42::a\"");
            std::fs::write(machines.file("hosts.toml"), granted).unwrap();
        }
        edit(&machines, "gw-a", protect, &bad);
        let (good, said) = machines.command("gw-a", &["check"]);
        assert!(!good && said.contains(says) && said.contains("protect"), "{said}");
        edit(&machines, "gw-a", &bad, protect);
    }
    edit(&machines, "gw-a", "inside = \"lan\"", "inside = \"lam\"");
    let (good, said) = machines.command("gw-a", &["check"]);
    assert!(!good && said.contains("no interface \"lam\""), "{said}");
    edit(&machines, "gw-a", "inside = \"lam\"", "inside = \"lan\"");
    // The list's author alone can't make a neighbour's address one behind another host.
    edit(&machines, "gw-a", "accept_prefixes = [\"fd42::20\"]", "accept_prefixes = [\"all\"]");
    let (_, said) = machines.command("gw-a", &["check"]);
    assert!(said.contains("fd42::20/128 behind \"gw-b\" is not routed"), "{said}");
}
