//! A host asks its translator to keep its port open. The translator is miniupnpd, or one that
//! supports only NAT-PMP. The host then has a direct link with a host behind another hard
//! translator. A skipped test says so, and fails if SHOAL_REQUIRE_PORTMAP is set.
//!
//! ```text
//!   h1 --- n1 (miniupnpd) --- net --- n2 --- h2        n1 and n2 show a new port to everybody
//!                              |
//!                              r1
//! ```

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shoal_daemon::control::api::{Command as Ask, ControlReply, Netcheck};
use shoal_lab::needs::{self, Requirement};
use shoal_lab::site::RunningNetwork;
use shoal_lab::{
    ChildProcess, Conditions, Executable, LinkSpec, Network, NetworkKind, NodeSpec, Topology,
};
use shoal_wire::Address;

const PATIENCE: Duration = Duration::from_secs(40);
const R1: usize = 0;
const H1: usize = 1;
const H2: usize = 2;
const NET: usize = 3;
const N1: usize = 4;
const N2: usize = 5;
const PORT: u16 = 20_400;
/// The address of n1 that everybody reaches. The lab's addresses are private, so the node would
/// announce no port at them, and miniupnpd refuses addresses for documentation. No packet to it
/// leaves the lab.
const OUTER: &str = "192.0.1.9";

/// A translator's rules: a new port for each flow, and incoming packets only for flows that began
/// inside. They include the chains that miniupnpd changes.
fn rules(outside: &str, source: &str) -> String {
    format!(
        "table inet filter {{
            chain miniupnpd {{ }}
            chain prerouting_miniupnpd {{ }}
            chain postrouting_miniupnpd {{ }}
            chain forward {{
                type filter hook forward priority filter;
                jump miniupnpd
                ct status dnat accept
                iifname \"{outside}\" ct state new drop
            }}
            chain input {{
                type filter hook input priority filter;
                iifname \"{outside}\" ct state new drop
            }}
            chain prerouting {{
                type nat hook prerouting priority dstnat;
                jump prerouting_miniupnpd
            }}
            chain postrouting {{
                type nat hook postrouting priority srcnat;
                jump postrouting_miniupnpd
                oifname \"{outside}\" {source} fully-random
            }}
        }}"
    )
}

fn inside(network: &Network, node: usize, program: &str, words: &[&str]) -> String {
    let space = network.namespace(node).expect("a namespace");
    let run = || Ok(Command::new(program).args(words).output()?);
    let output = space.enter(run).unwrap();
    let (out, said) = shoal_e2e::text(&output);
    assert!(output.status.success(), "{program} {words:?}: {out}{said}");
    out
}

fn network() -> Network {
    let plain =
        |name: &str| NodeSpec { name: name.into(), address: Address::new(0, 0), plain: true };
    let node = |name: &str, host| NodeSpec::new(name.into(), Address::new(1, host));
    let nodes =
        vec![node("r1", 0), node("h1", 1), node("h2", 2), plain("net"), plain("n1"), plain("n2")];
    let link = |a, b| LinkSpec { a, b };
    let links = vec![link(R1, NET), link(H1, N1), link(H2, N2), link(N1, NET), link(N2, NET)];
    let topology = Topology { nodes, links };
    let network = Network::build(topology, NetworkKind::Namespaces, Conditions::default()).unwrap();
    for (node, via) in [(R1, NET), (H1, N1), (H2, N2), (N1, NET), (N2, NET)] {
        network.default_route(node, via).unwrap();
    }
    [NET, N1, N2].into_iter().for_each(|node| network.forward_ip(node).unwrap());
    let outside = network.interface(N1, NET);
    inside(&network, N1, "ip", &["addr", "add", &format!("{OUTER}/32"), "dev", &outside]);
    let n1 = network.endpoint(3, NET).ip().to_string();
    inside(&network, NET, "ip", &["route", "add", OUTER, "via", &n1]);
    let source = format!("snat ip to {OUTER}");
    for (node, source) in [(N1, source.as_str()), (N2, "masquerade")] {
        inside(&network, node, "nft", &[&rules(&network.interface(node, NET), source)]);
    }
    network
}

/// Files of the hosts, whose router is beyond their translators, and of the router.
fn write(network: &Network, folder: &Path, map_ports: bool) {
    let at = network.endpoint(0, NET);
    for (name, host) in [("h1", 1), ("h2", 2)] {
        let maps = if host == 1 { format!("map_ports = {map_ports}\n") } else { String::new() };
        let text = format!(
            "[node]\nname = \"{name}\"\naddress = \"1.{host}\"\nkey_file = \"node.key\"\n\
             network_secret_file = \"network.key\"\nhosts_file = \"../hosts.toml\"\n\
             listen = [\"0.0.0.0:{PORT}\"]\ncontrol_socket = \"control.sock\"\n\n\
             [[link]]\npeer = \"r1\"\nendpoint = \"{at}\"\n\n\
             [direct]\nmode = \"on-demand\"\n{maps}"
        );
        fs::write(folder.join(name).join("node.toml"), text).unwrap();
    }
}

fn write_router(folder: &Path) {
    let file = folder.join("r1/node.toml");
    let mut text = fs::read_to_string(&file).unwrap();
    text += "\n[[link]]\npeer = \"h1\"\n\n[[link]]\npeer = \"h2\"\n";
    fs::write(file, text).unwrap();
}

/// miniupnpd on n1, set up as on a home router.
fn miniupnpd(network: &Network, folder: &Path) -> ChildProcess {
    let config = folder.join("miniupnpd.conf");
    let (outside, within) = (network.interface(N1, NET), network.interface(N1, H1));
    let text = format!(
        "ext_ifname={outside}\next_ip={OUTER}\nlistening_ip={within}\nenable_natpmp=yes\n\
         enable_upnp=no\nsecure_mode=yes\nmin_lifetime=120\nmax_lifetime=86400\n\
         uuid=00000000-0000-0000-0000-000000000000\n\
         allow 1024-65535 0.0.0.0/0 1024-65535\ndeny 0-65535 0.0.0.0/0 0-65535\n"
    );
    fs::write(&config, text).unwrap();
    let log = fs::File::create(folder.join("miniupnpd.log")).unwrap();
    let mut command = Command::new("miniupnpd");
    command.args(["-d", "-f"]).arg(config).arg("-P").arg(folder.join("miniupnpd.pid"));
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    ChildProcess::start("miniupnpd", command, network.namespace_fd(N1)).unwrap()
}

/// The port that [`Pmp`] opens.
const PMP_PORT: u16 = PORT + 7;
/// Lifetime of each mapping in seconds, whatever is requested: the least that a node accepts.
const PMP_GRANT_S: u32 = 10;

/// A translator on n1 that supports NAT-PMP (RFC 6886) and not PCP.
struct Pmp {
    /// The requested lifetimes, with their times.
    asked: Arc<Mutex<Vec<(Instant, u32)>>>,
    /// Number of refused requests of other versions.
    refused: Arc<Mutex<u32>>,
    thread: Option<JoinHandle<()>>,
    stop: Arc<Mutex<bool>>,
}

impl Pmp {
    fn start(network: &Network) -> Pmp {
        let space = format!("/proc/self/fd/{}", network.namespace_fd(N1).expect("a namespace"));
        let space = fs::File::open(space).unwrap();
        // The addresses of each, as seen from the other end of their wire.
        let (within, inner) = (network.endpoint(1, H1).ip(), network.endpoint(1, N1).ip());
        let pmp = Pmp {
            asked: Arc::default(),
            refused: Arc::default(),
            thread: None,
            stop: Arc::default(),
        };
        let (asked, refused, stop) =
            (Arc::clone(&pmp.asked), Arc::clone(&pmp.refused), Arc::clone(&pmp.stop));
        let serve = move || {
            nix::sched::setns(space.as_fd(), nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let socket = UdpSocket::bind((within, 5351)).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            let mut buf = [0; 1_100];
            while !*stop.lock().unwrap() {
                let Ok((len, from)) = socket.recv_from(&mut buf) else { continue };
                let said = match &buf[..len] {
                    [0, 0] => {
                        let outer: Ipv4Addr = OUTER.parse().unwrap();
                        [&[0, 128, 0, 0, 0, 0, 0, 9][..], &outer.octets()].concat()
                    }
                    [0, 1, _, _, port @ .., _, _, a, b, c, d] if len == 12 => {
                        let lifetime = u32::from_be_bytes([*a, *b, *c, *d]);
                        let opens = asked.lock().unwrap().is_empty();
                        asked.lock().unwrap().push((Instant::now(), lifetime));
                        open_port(SocketAddr::new(inner, PORT), lifetime, opens);
                        let (outer, given) =
                            if lifetime > 0 { (PMP_PORT, PMP_GRANT_S) } else { (0, 0) };
                        let head = [&[0, 129, 0, 0, 0, 0, 0, 9][..], &port[..2]].concat();
                        [&head[..], &outer.to_be_bytes(), &given.to_be_bytes()].concat()
                    }
                    other => {
                        *refused.lock().unwrap() += 1;
                        vec![0, 128 + other.get(1).copied().unwrap_or(0) % 128, 0, 1, 0, 0, 0, 9]
                    }
                };
                socket.send_to(&said, from).unwrap();
            }
        };
        Pmp { thread: Some(std::thread::spawn(serve)), ..pmp }
    }

    fn asked(&self) -> Vec<(Instant, u32)> {
        self.asked.lock().unwrap().clone()
    }

    /// Ends the translator. Panics if its thread did.
    fn finish(mut self) {
        *self.stop.lock().unwrap() = true;
        self.thread.take().expect("it runs").join().unwrap();
    }
}

/// Opens a port in this thread's namespace for `lifetime`, or closes it.
fn open_port(to: SocketAddr, lifetime: u32, opens: bool) {
    let chain = "inet filter prerouting_miniupnpd";
    let rule = match (lifetime, opens) {
        (0, _) => format!("flush chain {chain}"),
        (_, true) => {
            format!("add rule {chain} ip daddr {OUTER} udp dport {PMP_PORT} dnat ip to {to}")
        }
        (_, false) => return,
    };
    assert!(Command::new("nft").arg(&rule).status().unwrap().success(), "{rule}");
}

#[test]
fn a_translator_that_knows_nat_pmp_alone_keeps_a_port_open() {
    if !shoal_e2e::namespaces() {
        return;
    }
    let (folder, network) = (tempfile::tempdir().unwrap(), network());
    let pmp = Pmp::start(&network);
    let executable = Executable::shoal(shoal_e2e::program());
    let prepare = |network: &Network, folder: &Path| {
        write(network, folder, true);
        write_router(folder);
        Ok(())
    };
    let mut site =
        RunningNetwork::start_after(network, &executable, folder.path(), "", prepare).unwrap();
    site.wait_until_up(PATIENCE).unwrap();
    let port = site.wait("a port", PATIENCE, |site| {
        Ok(netcheck(site).port_mapping.filter(|port| port.at.is_some()))
    });
    let port = port.unwrap_or_else(|e| panic!("{e:#}: {:?} {:?}", netcheck(&site), pmp.asked()));
    assert_eq!(port.via.as_deref(), Some("NAT-PMP"), "{port:?}");
    assert_eq!(port.at, Some(format!("{OUTER}:{PMP_PORT}")), "{port:?}");
    assert!(port.left_s.is_some_and(|left| left <= PMP_GRANT_S.into()) && port.dropped == 0);
    assert!(*pmp.refused.lock().unwrap() >= 1, "the node asks by PCP first");
    let direct = site
        .wait("a direct link", PATIENCE, |site| Ok(peer(site).filter(|(state, _)| state == "up")));
    direct.unwrap_or_else(|e| panic!("{e:#}: {:?}", peer(&site)));
    // The node asks again before the lifetime ends, and the port never closes.
    let until = Instant::now() + 2 * Duration::from_secs(PMP_GRANT_S.into());
    while Instant::now() < until {
        let port = netcheck(&site).port_mapping.expect("a mapping");
        assert!(port.at.is_some() && port.fault.is_none(), "{port:?}");
        std::thread::sleep(Duration::from_millis(250));
    }
    let asked = pmp.asked();
    let late =
        |pair: &[(Instant, u32)]| pair[1].0 - pair[0].0 >= Duration::from_secs(PMP_GRANT_S.into());
    assert!(asked.len() >= 3 && !asked.windows(2).any(late), "{asked:?}");
    assert!(asked.iter().all(|(_, lifetime)| *lifetime == 7_200), "{asked:?}");
    assert_eq!(peer(&site).map(|(state, _)| state).as_deref(), Some("up"));
    // The port is closed at the end.
    let open = |site: &RunningNetwork| inside(site.network(), N1, "nft", &["list", "ruleset"]);
    let wanted = format!("{PMP_PORT}");
    assert!(open(&site).contains(&wanted), "{}", open(&site));
    write(site.network(), folder.path(), false);
    site.restart(H1).unwrap();
    assert_eq!(pmp.asked().last().map(|(_, lifetime)| *lifetime), Some(0), "{:?}", pmp.asked());
    assert!(!open(&site).contains(&wanted), "{}", open(&site));
    pmp.finish();
}

fn netcheck(site: &RunningNetwork) -> Netcheck {
    match site.ask(H1, Ask::Netcheck) {
        Ok(ControlReply::Netcheck(net)) => *net,
        other => panic!("{other:?}"),
    }
}

/// State and reason of h2's link with h1 in `shoal peers`, after traffic.
fn peer(site: &RunningNetwork) -> Option<(String, String)> {
    site.command(H2, &["ping", "-n", "1", "-W", "0.3", "h1"]).output().unwrap();
    let Ok(ControlReply::Peers(peers)) = site.ask(H2, Ask::Peers) else { panic!("no peers") };
    let peer = peers.into_iter().find(|peer| peer.name == "h1")?;
    Some((peer.state, peer.direct.map_or_else(String::new, |direct| direct.why)))
}

#[test]
fn a_port_that_a_translator_keeps_open_gives_a_direct_link() {
    let tools = [Requirement::Tool("miniupnpd")];
    if !shoal_e2e::namespaces() || !needs::met(&tools, "SHOAL_REQUIRE_PORTMAP") {
        return;
    }
    let (folder, network) = (tempfile::tempdir().unwrap(), network());
    let mut upnp = miniupnpd(&network, folder.path());
    let executable = Executable::shoal(shoal_e2e::program());
    let prepare = |network: &Network, folder: &Path| {
        write(network, folder, false);
        write_router(folder);
        Ok(())
    };
    let mut site =
        RunningNetwork::start_after(network, &executable, folder.path(), "", prepare).unwrap();
    site.wait_until_up(PATIENCE).unwrap();
    // Without the mapping, routers relay.
    let why = site
        .wait("a reason", PATIENCE, |site| Ok(peer(site).filter(|(state, _)| state == "relayed")));
    let (_, why) = why.unwrap();
    assert!(why.contains("no probe came through") || why.contains("new endpoint"), "{why}");
    assert!(netcheck(&site).port_mapping.is_none());
    // With the mapping, h1 is reached at the port.
    write(site.network(), folder.path(), true);
    site.restart_all(&[H1, H2]).unwrap();
    let log = || fs::read_to_string(folder.path().join("miniupnpd.log")).unwrap_or_default();
    let port = site.wait("a port", PATIENCE, |site| {
        // A node that starts does not answer yet.
        let Ok(ControlReply::Netcheck(net)) = site.ask(H1, Ask::Netcheck) else { return Ok(None) };
        Ok(net.port_mapping.filter(|port| port.at.is_some()))
    });
    let port = port.unwrap_or_else(|e| panic!("{e:#}: {:?}\n{}", netcheck(&site), log()));
    assert_eq!(port.via.as_deref(), Some("PCP"), "{port:?}");
    assert!(port.at.as_ref().is_some_and(|at| at.starts_with(OUTER)), "{port:?}");
    assert!(port.left_s.is_some_and(|left| left > 7_000) && port.dropped == 0, "{port:?}");
    let said = shoal_e2e::text(&site.command(H1, &["netcheck"]).output().unwrap()).0;
    assert!(said.contains("kept open by") && said.contains(OUTER), "{said}");
    let direct = site
        .wait("a direct link", PATIENCE, |site| Ok(peer(site).filter(|(state, _)| state == "up")));
    direct.unwrap_or_else(|e| panic!("{e:#}: {:?}\n{}", peer(&site), log()));
    // The port is closed at the end.
    let open = |site: &RunningNetwork| inside(site.network(), N1, "nft", &["list", "ruleset"]);
    let wanted = format!("{PORT}");
    assert!(open(&site).contains(&wanted), "{}", open(&site));
    write(site.network(), folder.path(), false);
    site.restart(H1).unwrap();
    assert!(!open(&site).contains(&wanted), "{}\n{}", open(&site), log());
    upnp.finish();
}
