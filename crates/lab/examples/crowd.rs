//! The idle cost of a router that knows 1,000 routers and has 10,000 idle hosts.
//!
//! `cargo build --release -p shoal-cli`, then
//! `cargo run --release -p shoal-lab --example crowd [shoal] [hosts] [routers]`
//!
//! Starts one `shoal run` as router `r1`. All other nodes are played over UDP on the loopback, with
//! the relay machine of real nodes:
//!
//! ```text
//! hosts 1.1 to 1.10000 --UDP--> r1 (the process) <--UDP-- r2 -- r3 -- r4 to r1000, in memory
//! ```
//!
//! A host makes its session, waits until its link is up and quiet, and sends nothing more: r1 keeps
//! an idle session. r2 stays as a neighbour with measurements and routes. The example then waits
//! until idle sessions have freed the memory that only traffic needs. Finally the example reads
//! r1's resident memory and processor time from /proc. The example exits with 1 if either is above
//! its limit. Sessions of r1 live longer than by default, so that a slow machine has time to open
//! them all. An idle session costs the same at any age.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a shell owns the system")]

use std::collections::VecDeque;
use std::fmt::Write;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use shoal_crypto::{Identity, NetworkSecret, PublicKey};
use shoal_daemon::config::keys;
use shoal_daemon::control::api;
use shoal_daemon::control::socket::ControlConnection;
use shoal_daemon::worker::clock::{BootClock, unix_ms};
use shoal_lab::ChildProcess;
use shoal_relay::{
    ArrivalSource, CallContext, FrameSink, LinkConfig, ReceivedRun, Relay, RelayConfig, SendError,
    SendOutcome, SendPath as LinkPath,
};
use shoal_wire::{Address, SizeClass, Time};

/// Limit of resident memory in MiB.
const MEMORY_MAX_MIB: f64 = 64.0;
/// Limit of processor time in percent of one core.
const CPU_MAX_PERCENT: f64 = 1.0;
/// Limit of hosts in a handshake: fewer than make the router ask for cookies.
const CALLING_MAX: usize = 96;
/// Limit of hosts with a socket: fewer than the usual limit of open files.
const PRESENT_MAX: usize = 700;
/// Time that a host stays after its link came up. Reports continue for one second after the last
/// traffic.
const STAY: Duration = Duration::from_millis(1_600);
/// Rest before the measurement. Expanded keys are dropped 15 s after their last use.
const SETTLE: Duration = Duration::from_secs(20);
/// Length of the measurement.
const MEASURE: Duration = Duration::from_secs(20);
/// Limit of each preparation step.
const PATIENCE: Duration = Duration::from_secs(240);
/// Sleep between two reads of the sockets.
const TICK: Duration = Duration::from_millis(2);
/// Number of the star's routers that call their hub per tick.
const STAR_STEP: usize = 8;

const FULL: usize = SizeClass::Full.frame_len();
const SECRET: [u8; 32] = [7; 32];
const R2: usize = 2;
const HUB: usize = 3;

fn main() -> Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let program = match arguments.next() {
        Some(path) => PathBuf::from(path),
        None => beside_this_one()?,
    };
    let number = |text: Option<String>, default| text.map_or(Ok(default), |text| text.parse());
    let hosts: u16 = number(arguments.next(), 10_000).context("number of hosts")?;
    let routers: u16 = number(arguments.next(), 1_000).context("number of routers")?;
    ensure!(routers > HUB as u16, "there must be more than {HUB} routers");
    let mut bench = CrowdBench::start(&program, hosts, routers)?;
    eprintln!("r1 runs as process {}", bench.process.pid());
    bench.report("started");
    bench.learn_routes()?;
    bench.report("routes");
    bench.crowd()?;
    bench.report("crowd");
    bench.wait(SETTLE)?;
    bench.measure()
}

/// `target/PROFILE/shoal`, from `target/PROFILE/examples/crowd`.
fn beside_this_one() -> Result<PathBuf> {
    let me = std::env::current_exe()?;
    let folder = me.parent().and_then(Path::parent).context("no folder above this program")?;
    let program = folder.join("shoal");
    ensure!(
        program.exists(),
        "{}: missing; build shoal-cli first, or pass the path",
        program.display()
    );
    Ok(program)
}

/// Identity of router `n`, or of host `n` behind r1.
fn identity(kind: u8, n: usize) -> Identity {
    let mut seed = [kind; 32];
    seed[..8].copy_from_slice(&(n as u64).to_be_bytes());
    Identity::from_seed(seed)
}

fn router(n: usize) -> Identity {
    identity(1, n)
}

fn host(n: usize) -> Identity {
    identity(2, n)
}

struct CrowdBench {
    /// Fields drop in this order: the process ends before its folder is removed.
    process: ChildProcess,
    star: RouterStar,
    clock: BootClock,
    r1: SocketAddr,
    hosts: u16,
    routers: u16,
    folder: tempfile::TempDir,
}

impl CrowdBench {
    fn start(program: &Path, hosts: u16, routers: u16) -> Result<CrowdBench> {
        let folder = tempfile::tempdir()?;
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let r1 = free_port()?;
        write_files(folder.path(), r1, socket.local_addr()?, hosts, routers)?;
        let program = std::path::absolute(program)?;
        let mut command = Command::new(program);
        let log = std::fs::File::create(folder.path().join("node.log"))?;
        command.args(["run", "-c", "node.toml"]).current_dir(folder.path());
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let process = ChildProcess::start("r1", command, None)?;
        let clock = BootClock::new();
        let star = RouterStar::new(clock.now(), socket, r1, usize::from(routers))?;
        let mut bench = CrowdBench { process, star, clock, r1, hosts, routers, folder };
        bench.until("r1 to answer", |bench| Ok(bench.status().is_ok()))?;
        Ok(bench)
    }

    fn status(&self) -> Result<api::Status> {
        let mut connection = ControlConnection::connect(&self.folder.path().join("control.sock"))?;
        match connection.call(api::Command::Status, &[])? {
            api::ControlReply::Status(status) => Ok(*status),
            other => bail!("unexpected answer {other:?}"),
        }
    }

    /// One turn of all permanent nodes.
    fn turn(&mut self) -> Result<()> {
        if let Some(status) = self.process.poll()? {
            let log = std::fs::read_to_string(self.folder.path().join("node.log"))?;
            bail!("r1 ended by itself ({status}):\n{log}");
        }
        self.star.turn(self.clock.now())?;
        std::thread::sleep(TICK);
        Ok(())
    }

    fn until(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut CrowdBench) -> Result<bool>,
    ) -> Result<()> {
        let deadline = self.clock.now() + PATIENCE;
        while !done(self)? {
            ensure!(
                self.clock.now() < deadline,
                "timed out after {PATIENCE:?}, waiting for {what}"
            );
            self.wait(Duration::from_millis(100))?;
        }
        Ok(())
    }

    fn wait(&mut self, span: Duration) -> Result<()> {
        let end = self.clock.now() + span;
        while self.clock.now() < end {
            self.turn()?;
        }
        Ok(())
    }

    fn learn_routes(&mut self) -> Result<()> {
        let wanted = u32::from(self.routers) - 1;
        self.until("r1 to learn all routes", |bench| Ok(bench.status()?.routes >= wanted))
    }

    /// Each host opens its session and leaves.
    fn crowd(&mut self) -> Result<()> {
        let mut next = 1;
        let mut present: VecDeque<Host> = VecDeque::new();
        let mut buf = vec![0; FULL];
        let deadline = self.clock.now() + PATIENCE;
        while next <= usize::from(self.hosts) || !present.is_empty() {
            let now = self.clock.now();
            ensure!(now < deadline, "only {} hosts in {PATIENCE:?}", next - 1);
            let mut calling = present.iter().filter(|host| host.up_at.is_none()).count();
            while next <= usize::from(self.hosts)
                && calling < CALLING_MAX
                && present.len() < PRESENT_MAX
            {
                present.push_back(Host::new(now, next, self.r1)?);
                next += 1;
                calling += 1;
            }
            for host in &mut present {
                host.turn(self.clock.now(), &mut buf)?;
            }
            present.retain(|host| host.up_at.is_none_or(|at| now < at + STAY));
            self.turn()?;
        }
        let wanted = u32::from(self.hosts) + 1;
        self.until("r1 to count its links", |bench| Ok(bench.status()?.links_up >= wanted))
    }

    fn memory(&self, field: &str) -> f64 {
        let path = format!("/proc/{}/status", self.process.pid());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        kib.unwrap_or(f64::NAN) / 1_024.0
    }

    fn report(&self, when: &str) {
        let (now, peak) = (self.memory("VmRSS"), self.memory("VmHWM"));
        eprintln!("{when:<8} {now:6.1} MiB resident, {peak:6.1} MiB at most so far");
    }

    fn measure(mut self) -> Result<ExitCode> {
        let before = self.process.usage().cpu_s;
        let start = self.clock.now();
        self.wait(MEASURE)?;
        let cpu = self.process.usage().cpu_s - before;
        let percent = cpu / self.clock.now().since(start).as_secs_f64() * 100.0;
        let (memory, peak) = (self.memory("VmRSS"), self.memory("VmHWM"));
        let status = self.status()?;
        println!("routes              {:>10}", status.routes);
        println!("links with session  {:>10}", status.links_up);
        println!("resident            {memory:>10.1} MiB  (limit {MEMORY_MAX_MIB})");
        println!("  per host          {:>10.1} KiB", memory * 1_024.0 / f64::from(self.hosts));
        println!("  at most           {peak:>10.1} MiB");
        println!("idle processor time {percent:>10.2} %    (limit {CPU_MAX_PERCENT})");
        // `<` instead of `!(>)`: NaN must fail.
        let fits = memory < MEMORY_MAX_MIB && percent < CPU_MAX_PERCENT;
        Ok(if fits { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// An address that was free a moment ago.
fn free_port() -> Result<SocketAddr> {
    Ok(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

fn write_files(
    folder: &Path,
    r1: SocketAddr,
    r2: SocketAddr,
    hosts: u16,
    routers: u16,
) -> Result<()> {
    keys::create(&folder.join("network.key"), &keys::network_secret_text(&NetworkSecret(SECRET)))?;
    keys::create(&folder.join("node.key"), &keys::identity_text(&router(1)))?;
    let mut list = String::new();
    let mut config = format!(
        "[node]\nname = \"r1\"\naddress = \"1.0\"\nkey_file = \"node.key\"\n\
         network_secret_file = \"network.key\"\nhosts_file = \"hosts.toml\"\n\
         listen = [\"{r1}\"]\ncontrol_socket = \"control.sock\"\n\n\
         [session]\nrekey_after_s = 3600\nreject_after_s = 7200\n\n\
         [liveness]\nkeepalive_ms = 0\n\n[[link]]\npeer = \"r2\"\nendpoint = \"{r2}\"\n"
    );
    let mut entry = |name: &str, address: String, key: PublicKey| {
        writeln!(list, "[[host]]\nname = \"{name}\"\naddress = \"{address}\"\nkey = \"{key}\"\n")
    };
    for n in 1..=usize::from(routers) {
        entry(&format!("r{n}"), format!("{n}.0"), router(n).public())?;
    }
    for n in 1..=usize::from(hosts) {
        entry(&format!("h{n}"), format!("1.{n}"), host(n).public())?;
        write!(config, "\n[[link]]\npeer = \"h{n}\"\n")?;
    }
    std::fs::write(folder.join("hosts.toml"), list)?;
    std::fs::write(folder.join("node.toml"), config)?;
    Ok(())
}

/// A relay machine as the daemon makes it. `slow` sets long timeouts, for routers of the star:
/// these share one thread, and must not mistake its pauses for dead neighbours.
fn relay(
    now: Time,
    address: Address,
    identity: Identity,
    origins: Vec<(u32, PublicKey)>,
    slow: bool,
) -> Result<Relay> {
    let mut config = RelayConfig {
        address,
        session: shoal_session::SessionConfig {
            // Equal to r1's: see `write_files`.
            rekey_after: Duration::from_secs(3_600),
            reject_after: Duration::from_secs(7_200),
            ..shoal_session::SessionConfig::new(shoal_session::SessionRole::Link)
        },
        liveness: shoal_link::LivenessConfig::default(),
        egress: shoal_link::EgressConfig::default(),
        hold: shoal_relay::HoldConfig::default(),
        routing: shoal_routing::Config::default(),
        events_max: 64,
    };
    if slow {
        config.routing.cycle = Duration::from_secs(3_600);
        config.liveness.dead_after = Duration::from_secs(60);
    }
    let seed = keys::os_random()?;
    let secret = NetworkSecret(SECRET);
    Ok(Relay::new(config, identity, secret, origins, seed, now, unix_ms()))
}

/// Hands one datagram to a relay. Cells for this node are dropped, since it has no edge.
fn deliver(
    relay: &mut Relay,
    now: Time,
    from: SocketAddr,
    frame: &mut [u8],
    sink: &mut impl FrameSink,
) {
    let len = frame.len() as u32;
    let incoming =
        [ReceivedRun { from: from.into(), offset: 0, len, stride: len.max(1), congested: false }];
    let mut turn = CallContext { now, sink, hand: &mut () };
    relay.handle_batch(&mut turn, frame, &incoming, ArrivalSource::Socket, &mut |_, _, _| 0);
    let sink = turn.sink;
    work(relay, now, sink);
}

/// Runs pending jobs and due timers.
fn work(relay: &mut Relay, now: Time, sink: &mut impl FrameSink) {
    while let Some(job) = relay.poll_job() {
        let done = job.run();
        relay.handle_done(now, done, sink);
    }
    if relay.poll_timeout().is_some_and(|(at, _)| at <= now) {
        relay.handle_timeout(now, sink);
    }
    while relay.poll_event().is_some() {}
}

/// Handles the datagrams that wait at `socket`.
fn receive(
    socket: &UdpSocket,
    buf: &mut [u8],
    mut each: impl FnMut(SocketAddr, &mut [u8]),
) -> Result<()> {
    loop {
        match socket.recv_from(buf) {
            Ok((len, from)) => each(from, &mut buf[..len]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
            // An ICMP error about an earlier send, while r1 is still starting.
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => {}
            Err(e) => return Err(e).context("receiving"),
        }
    }
}

/// A socket as a relay's sink.
struct Udp<'a>(&'a UdpSocket);

impl FrameSink for Udp<'_> {
    fn send(&mut self, path: LinkPath, buf: &[u8], offsets: &[u32], len: usize) -> SendOutcome {
        let to = path.ends.remote;
        for (sent, &at) in offsets.iter().enumerate() {
            if self.0.send_to(&buf[at as usize..at as usize + len], to).is_err() {
                return SendOutcome { sent, stop: Some(SendError::Failed) };
            }
        }
        SendOutcome { sent: offsets.len(), stop: None }
    }
}

/// A host behind r1, while present.
struct Host {
    relay: Relay,
    socket: UdpSocket,
    up_at: Option<Time>,
}

impl Host {
    fn new(now: Time, n: usize, r1: SocketAddr) -> Result<Host> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        let mut relay = relay(now, Address::new(1, n as u16), host(n), Vec::new(), false)?;
        let (key, address) = (router(1).public(), Address::new(1, 0));
        let link = LinkConfig { key, address, endpoint: Some(r1) };
        relay.add_link(now, &link).map_err(|reason| anyhow::anyhow!("{}", reason.label()))?;
        Ok(Host { relay, socket, up_at: None })
    }

    fn turn(&mut self, now: Time, buf: &mut [u8]) -> Result<()> {
        let Host { relay, socket, up_at } = self;
        let sink = &mut Udp(socket);
        receive(socket, buf, |from, frame| deliver(relay, now, from, frame, sink))?;
        work(relay, now, sink);
        if up_at.is_none() && relay.links().any(|link| link.up_since.is_some()) {
            *up_at = Some(now);
        }
        Ok(())
    }
}

/// The other routers: r2, and in memory r3 with all further routers around it.
struct RouterStar {
    /// Router `n` has the index `n - R2`.
    relays: Vec<Relay>,
    socket: UdpSocket,
    r1: SocketAddr,
    /// The next router around the hub that has not called the hub yet.
    next: usize,
    buf: Vec<u8>,
}

/// The sink of a router of the star.
struct StarSink<'a> {
    from: usize,
    socket: &'a UdpSocket,
    r1: SocketAddr,
    sent: &'a mut VecDeque<(usize, SocketAddr, Vec<u8>)>,
}

impl FrameSink for StarSink<'_> {
    fn send(&mut self, path: LinkPath, buf: &[u8], offsets: &[u32], len: usize) -> SendOutcome {
        let to = path.ends.remote;
        if to == self.r1 {
            return Udp(self.socket).send(path, buf, offsets, len);
        }
        for &at in offsets {
            let frame = buf[at as usize..at as usize + len].to_vec();
            self.sent.push_back((self.from, to, frame));
        }
        SendOutcome { sent: offsets.len(), stop: None }
    }
}

/// Address of a router of the star, which only exists in memory.
fn place(n: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, (n >> 8) as u8, n as u8], 7400))
}

fn who(at: SocketAddr) -> Option<usize> {
    match at {
        SocketAddr::V4(at) => {
            let [_, _, high, low] = at.ip().octets();
            Some(usize::from(high) << 8 | usize::from(low))
        }
        SocketAddr::V6(_) => None,
    }
}

fn link_to(n: usize, endpoint: Option<SocketAddr>) -> LinkConfig {
    LinkConfig { key: router(n).public(), address: Address::new(n as u32, 0), endpoint }
}

impl RouterStar {
    fn new(now: Time, socket: UdpSocket, r1: SocketAddr, routers: usize) -> Result<RouterStar> {
        socket.set_nonblocking(true)?;
        let all: Vec<_> = (1..=routers).map(|n| (n as u32, router(n).public())).collect();
        let mut relays = Vec::new();
        for n in R2..=routers {
            // Routers around the hub don't need each other's routes.
            let origins = if n <= HUB { all.clone() } else { vec![all[HUB - 1]] };
            relays.push(relay(now, Address::new(n as u32, 0), router(n), origins, n >= HUB)?);
        }
        let mut star = RouterStar { relays, socket, r1, next: HUB + 1, buf: vec![0; FULL] };
        star.link(now, R2, link_to(1, Some(r1)))?;
        star.link(now, R2, link_to(HUB, Some(place(HUB))))?;
        star.link(now, HUB, link_to(R2, None))?;
        for n in HUB + 1..=routers {
            star.link(now, HUB, link_to(n, None))?;
        }
        Ok(star)
    }

    fn link(&mut self, now: Time, n: usize, link: LinkConfig) -> Result<()> {
        let added = self.relays[n - R2].add_link(now, &link);
        added.map(drop).map_err(|reason| anyhow::anyhow!("{}", reason.label()))
    }

    /// Handles everything that is due, until nothing is left.
    fn turn(&mut self, now: Time) -> Result<()> {
        let last = self.relays.len() + R2;
        for n in self.next..last.min(self.next + STAR_STEP) {
            self.link(now, n, link_to(HUB, Some(place(HUB))))?;
            self.next = n + 1;
        }
        let mut sent = VecDeque::new();
        let RouterStar { relays, socket, r1, buf, .. } = self;
        let (socket, r1) = (&*socket, *r1);
        let r2 = &mut relays[0];
        receive(socket, buf, |from, frame| {
            let sink = &mut StarSink { from: R2, socket, r1, sent: &mut sent };
            deliver(r2, now, from, frame, sink);
        })?;
        for (i, relay) in relays.iter_mut().enumerate() {
            work(relay, now, &mut StarSink { from: i + R2, socket, r1, sent: &mut sent });
        }
        while let Some((from, to, mut frame)) = sent.pop_front() {
            let Some(n) = who(to).filter(|n| (R2..last).contains(n)) else { continue };
            let sink = &mut StarSink { from: n, socket, r1, sent: &mut sent };
            deliver(&mut relays[n - R2], now, place(from), &mut frame, sink);
        }
        Ok(())
    }
}
