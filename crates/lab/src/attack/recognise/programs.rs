//! The other programs, run between two namespaces. WireGuard, QUIC and iperf3 are installed
//! programs. Small generators make calls, DNS queries, and a tunnel that masks every byte.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use shoal_attack::{Draws, ProgramKind};

use crate::bench::peers::{program, wireguard_go};
use crate::network::Network;
use crate::process::ChildProcess;
use crate::tcp::TcpFlow;
use crate::udp::UdpFlow;

/// Wait until a server listens.
const LISTENING: Duration = Duration::from_millis(500);
/// Wait until wireguard-go has made its interface.
const INTERFACE: Duration = Duration::from_millis(1_500);
/// Interval of checks for the end of the capture.
const LOOK: Duration = Duration::from_millis(20);
/// Overlay addresses of the two WireGuard peers.
const INNER: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 99, 0, 1), Ipv4Addr::new(10, 99, 0, 2)];

/// Surroundings of a program: two nodes with a link, and the length of its run in seconds.
pub struct ProgramSite<'a> {
    pub network: &'a Network,
    pub seconds: f64,
    pub number: u32,
}

/// Runs one activity of a program.
pub type ActivityFn = fn(&ProgramSite<'_>, &mut Draws) -> Result<()>;

/// A program, with its requirements and activities.
pub struct Program {
    pub name: &'static str,
    /// Checks that the program can run.
    needs: fn() -> Result<()>,
    /// Activities by name.
    pub does: &'static [(&'static str, ActivityFn)],
}

pub const ALL: &[Program] = &[
    Program {
        name: "wireguard",
        needs: || {
            wireguard_go()?;
            program("wg", "apt-get install wireguard-tools").map(drop)
        },
        does: &[("tcp", |p, d| wireguard(p, d, true)), ("udp", |p, d| wireguard(p, d, false))],
    },
    Program {
        name: "quic",
        needs: || quic_peer().map(drop),
        does: &[
            ("bulk", |p, _| quic(p, "bulk")),
            ("upload", |p, _| quic(p, "upload")),
            ("web", |p, _| quic(p, "web")),
        ],
    },
    Program {
        name: "iperf3",
        needs: || program("iperf3", "apt-get install iperf3").map(drop),
        does: &[("udp", iperf3)],
    },
    Program {
        name: "call",
        needs: || Ok(()),
        does: &[("constant", |p, d| call(p, d, true)), ("variable", |p, d| call(p, d, false))],
    },
    Program { name: "dns", needs: || Ok(()), does: &[("names", dns)] },
    Program {
        name: "masked",
        needs: || Ok(()),
        does: &[
            ("web", |p, d| masked(p, d, ProgramKind::Web)),
            ("upload", |p, d| masked(p, d, ProgramKind::Bulk)),
        ],
    },
];

impl Program {
    /// Reason to leave the program out; `None` if it can run.
    pub fn missing(&self) -> Option<String> {
        (self.needs)().err().map(|why| format!("{}: {why:#}", self.name))
    }
}

fn quic_peer() -> Result<std::path::PathBuf> {
    program("quic_peer", "cargo install --path bench/peers/quic_peer")
}

impl ProgramSite<'_> {
    fn start(&self, node: usize, mut command: Command) -> Result<ChildProcess> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let name = command.get_program().display().to_string();
        ChildProcess::start(&name, command, self.network.namespace_fd(node))
    }

    fn far(&self) -> Result<IpAddr> {
        self.network.ip_of(0, 1)
    }

    fn wait(&self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs_f64(self.seconds);
        while Instant::now() < end {
            crate::interrupt::check()?;
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Binds a socket at a node.
    fn socket(&self, node: usize, at: SocketAddr) -> Result<UdpSocket> {
        let space = self.network.namespace(node).context("no namespace")?;
        let socket = space.enter(|| Ok(UdpSocket::bind(at)?))?;
        socket.set_read_timeout(Some(LOOK))?;
        Ok(socket)
    }
}

fn anywhere(port: u16) -> SocketAddr {
    (Ipv4Addr::UNSPECIFIED, port).into()
}

fn quic(place: &ProgramSite<'_>, shape: &str) -> Result<()> {
    let at = SocketAddr::new(place.far()?, 443).to_string();
    let words = |words: &[&str]| -> Result<Command> {
        let mut command = Command::new(quic_peer()?);
        command.args(words);
        Ok(command)
    };
    let _server = place.start(1, words(&["serve", &at])?)?;
    std::thread::sleep(LISTENING);
    let _client = place.start(0, words(&[shape, &at, &place.seconds.to_string()])?)?;
    place.wait()
}

fn iperf3(place: &ProgramSite<'_>, draws: &mut Draws) -> Result<()> {
    let how = "apt-get install iperf3";
    let mut server = Command::new(program("iperf3", how)?);
    server.args(["-s", "-1"]);
    let _server = place.start(1, server)?;
    std::thread::sleep(LISTENING);
    let mut client = Command::new(program("iperf3", how)?);
    let payload = if draws.chance(0.3) { 1_448 } else { 100 + draws.below(1_300) };
    let rate = format!("{:.2}M", draws.between(0.3, 4.0));
    client.args(["-c", &place.far()?.to_string(), "-u", "-b", &rate]);
    client.args(["-l", &payload.to_string(), "-t", &place.seconds.to_string()]);
    if draws.chance(0.3) {
        client.arg("-R");
    }
    let _client = place.start(0, client)?;
    place.wait()
}

fn wireguard(place: &ProgramSite<'_>, draws: &mut Draws, tcp: bool) -> Result<()> {
    // wireguard-go names its control socket by its interface, for the whole machine.
    let name = |node: usize| format!("g{}{}{node}", std::process::id(), u8::from(tcp));
    let mut ends = Vec::new();
    for node in [0, 1] {
        let mut command = Command::new(wireguard_go()?);
        command.args(["-f", &name(node)]).env("WG_PROCESS_FOREGROUND", "1");
        command.env("LOG_LEVEL", "error");
        ends.push(place.start(node, command)?);
    }
    std::thread::sleep(INTERFACE);
    let folder = tempfile::tempdir()?;
    let keys = [0, 1].map(|node| folder.path().join(node.to_string()));
    for key in &keys {
        let text = Command::new("wg").arg("genkey").output()?.stdout;
        shoal_daemon::config::keys::create(key, &String::from_utf8(text)?)?;
    }
    let at = [place.network.ip_of(1, 0)?, place.far()?];
    for node in [0, 1] {
        let file = std::fs::File::open(&keys[1 - node])?;
        let public = Command::new("wg").arg("pubkey").stdin(file).output()?.stdout;
        let public = String::from_utf8(public)?;
        let mut set = Command::new("wg");
        set.args(["set", &name(node), "listen-port", "51820", "private-key"]).arg(&keys[node]);
        let endpoint = SocketAddr::new(at[1 - node], 51_820).to_string();
        set.args(["peer", public.trim(), "endpoint", &endpoint, "allowed-ips", "10.99.0.0/24"]);
        let said = set.output()?;
        let why = || String::from_utf8_lossy(&said.stderr).trim().to_owned();
        anyhow::ensure!(said.status.success(), "wg set: {}", why());
        let space = place.network.namespace(node).context("no namespace")?;
        crate::veth::address(space, &name(node), INNER[node].into(), 24)?;
    }
    let (far, mbit) = (INNER[1].into(), draws.between(0.5, 3.0));
    if tcp {
        let _flow = TcpFlow::start(place.network, (0, 1), far, "cubic", Some(mbit))?;
        place.wait()
    } else {
        let payload = 100 + draws.below(1_200) as u16;
        let _flow = UdpFlow::start(place.network, (0, 1), far, mbit, payload)?;
        place.wait()
    }
}

/// A call, as RTP (RFC 3550): both ends send 50 datagrams per second. Their length is constant, as
/// of G.711, or variable, as of Opus.
fn call(place: &ProgramSite<'_>, draws: &mut Draws, constant: bool) -> Result<()> {
    let port = 10_000 + 2 * draws.below(20_000) as u16;
    let ends = [place.socket(0, anywhere(port))?, place.socket(1, anywhere(port))?];
    ends[0].connect((place.far()?, port))?;
    ends[1].connect((place.network.ip_of(1, 0)?, port))?;
    let end = Instant::now() + Duration::from_secs_f64(place.seconds);
    std::thread::scope(|scope| {
        for (number, socket) in ends.iter().enumerate() {
            let mut draws = Draws::new(place.number.into(), "rtp", number as u64);
            scope.spawn(move || speak(socket, end, constant, &mut draws));
        }
    });
    crate::interrupt::check()
}

fn speak(socket: &UdpSocket, end: Instant, constant: bool, draws: &mut Draws) {
    let source = draws.below(1 << 32) as u32;
    let mut number = draws.below(1 << 16) as u16;
    let mut time = draws.below(1 << 32) as u32;
    let (kind, samples) = if constant { (0, 160) } else { (111, 960) };
    let loud = draws.between(40.0, 110.0);
    let mut due = Instant::now();
    while due < end {
        let len =
            if constant { 160 } else { draws.lognormal(loud, 1.25).clamp(8.0, 300.0) as usize };
        let mut datagram = vec![0x80, kind];
        datagram.extend(number.to_be_bytes());
        datagram.extend(time.to_be_bytes());
        datagram.extend(source.to_be_bytes());
        datagram.extend((0..len).map(|_| draws.below(256) as u8));
        // A far end that is not up yet causes an error.
        let _ = socket.send(&datagram);
        (number, time) = (number.wrapping_add(1), time.wrapping_add(samples));
        due += Duration::from_millis(20);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// A tunnel whose datagrams are random bytes throughout, like Shoal's, and as long as the packets
/// inside. A censor sees only lengths and times.
fn masked(place: &ProgramSite<'_>, draws: &mut Draws, inside: ProgramKind) -> Result<()> {
    let port = 10_000 + draws.below(40_000) as u16;
    let ends = [place.socket(0, anywhere(0))?, place.socket(1, anywhere(port))?];
    let first = ends[0].local_addr()?.port();
    ends[0].connect((place.far()?, port))?;
    ends[1].connect((place.network.ip_of(1, 0)?, first))?;
    let mut plan = inside.plan(place.seconds, 0.05, draws);
    if plan.acks_every > 0 {
        let acks = plan.data.iter().skip(1).step_by(plan.acks_every).map(|at| at + 25_000_000);
        plan.other.extend(acks);
        plan.other.sort_unstable();
    }
    let (up, down) = if plan.down { (plan.other, plan.data) } else { (plan.data, plan.other) };
    let overhead = 24 + draws.below(40);
    let is_data = [!plan.down, plan.down];
    let began = Instant::now();
    std::thread::scope(|scope| {
        for ((socket, times), data) in ends.iter().zip([up, down]).zip(is_data) {
            let mut draws = Draws::new(place.number.into(), "masked", u64::from(data));
            scope.spawn(move || {
                for at in times {
                    let wait = began + Duration::from_nanos(at);
                    std::thread::sleep(wait.saturating_duration_since(Instant::now()));
                    let inner = match data {
                        true if draws.chance(0.15) => 100 + draws.below(1_280),
                        true => 1_380,
                        false if draws.chance(0.2) => 60 + draws.below(700),
                        false => 52 + 12 * draws.below(3),
                    };
                    let bytes: Vec<u8> =
                        (0..inner + overhead).map(|_| draws.below(256) as u8).collect();
                    // A far end that is not up yet causes an error.
                    let _ = socket.send(&bytes);
                }
            });
        }
    });
    crate::interrupt::check()
}

/// DNS queries (RFC 1035), a few at a time, each from its own port, and their answers.
fn dns(place: &ProgramSite<'_>, draws: &mut Draws) -> Result<()> {
    let server = place.socket(1, anywhere(53))?;
    let far = SocketAddr::new(place.far()?, 53);
    let end = Instant::now() + Duration::from_secs_f64(place.seconds);
    let seed = u64::from(place.number);
    std::thread::scope(|scope| -> Result<()> {
        scope.spawn(|| answer(&server, end, &mut Draws::new(seed, "answers", 0)));
        while Instant::now() < end {
            crate::interrupt::check()?;
            for _ in 0..1 + draws.below(6) {
                let socket = place.socket(0, anywhere(0))?;
                socket.send_to(&question(draws), far)?;
            }
            std::thread::sleep(Duration::from_secs_f64(draws.exponential(0.6).min(3.0)));
        }
        Ok(())
    })
}

fn question(draws: &mut Draws) -> Vec<u8> {
    let mut text = (draws.below(1 << 16) as u16).to_be_bytes().to_vec();
    // Recursion desired; one question, and one OPT record.
    text.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 1]);
    for _ in 0..2 + draws.below(3) {
        let len = 3 + draws.below(12);
        text.push(len as u8);
        text.extend((0..len).map(|_| b'a' + draws.below(26) as u8));
    }
    let kind = [1, 28, 65][draws.below(3)];
    text.extend([0, 0, kind, 0, 1]);
    text.extend([0, 0, 41, 0x04, 0xd0, 0, 0, 0x80, 0, 0, 0]);
    text
}

fn answer(server: &UdpSocket, end: Instant, draws: &mut Draws) {
    let mut asked = [0; 512];
    while Instant::now() < end {
        // An error is a timeout: no query arrived.
        let Ok((len, from)) = server.recv_from(&mut asked) else { continue };
        let mut text = asked[..len].to_vec();
        let records = 1 + draws.below(4) as u8;
        text[2..4].copy_from_slice(&[0x81, 0x80]);
        text[7] = records;
        let options = text.split_off(len - 11);
        for _ in 0..records {
            text.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4]);
            text.extend((0..4).map(|_| draws.below(256) as u8));
        }
        text.extend(options);
        std::thread::sleep(Duration::from_secs_f64(draws.exponential(0.005)));
        let _ = server.send_to(&text, from);
    }
}
