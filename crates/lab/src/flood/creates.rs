//! A neighbour that floods a relay with create cells, in its own name and in that of other nodes.
//!
//! The neighbour replaces a router whose process has ended, with that router's identity, address
//! and port. Answers are not read, so no create cell carries a cookie.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use shoal_crypto::{Rng, StandardCiphers, SuiteSupport};
use shoal_daemon::config::keys;
use shoal_daemon::membership::hosts::HostList;
use shoal_daemon::worker::clock::{BootClock, unix_ms};
use shoal_link::LivenessConfig;
use shoal_onion::{CircuitLimits, Onion};
use shoal_relay::{
    ArrivalSource, CallContext, FrameSink, LinkConfig, ReceivedRun, Relay, RelayConfig, SendError,
    SendOutcome, SendPath,
};
use shoal_session::SessionRole;
use shoal_wire::leg::{CELL_LEN, CellShape};
use shoal_wire::{Address, LinkKind, RoutedHeader, SizeClass, TrafficClass, link};
use zerocopy::IntoBytes;

use crate::site::RunningNetwork;

/// Number of different create cells: more than a relay remembers.
pub const CELLS: usize = 12_000;
/// Number of cells that leave at once.
const RUN: usize = 44;
const FULL: usize = SizeClass::Full.frame_len();
/// Timeout of the link: the flood goes on even over a cut link.
const FOR_EVER: Duration = Duration::from_secs(3_600);

/// The flooding neighbour.
pub struct CreateFlooder {
    relay: Relay,
    socket: UdpSocket,
    clock: BootClock,
    own: Address,
    target: Address,
    /// Makes create cells; the circuits are forgotten.
    onion: Onion<StandardCiphers>,
    end: Address,
    /// Source addresses that the create cells claim.
    names: Vec<Address>,
    cells: Vec<[u8; CELL_LEN]>,
    next: usize,
    buf: Vec<u8>,
    input: Vec<u8>,
}

impl CreateFlooder {
    /// Replaces the router `from` as neighbour of `to`.
    ///
    /// # Errors
    /// Namespaces are missing, the router's process runs, or the network has no host.
    pub fn new(site: &RunningNetwork, from: usize, to: usize) -> Result<CreateFlooder> {
        let runs = site.process(from).is_some();
        ensure!(!runs, "the router whose place the flood takes must be killed");
        let network = site.network();
        let nodes = &network.topology().nodes;
        let (own, target) = (nodes[from].address, nodes[to].address);
        let home = site.folder(from);
        let list = home.parent().context("a folder without a parent")?.join("hosts.toml");
        let hosts = HostList::load(&list)?;
        let key =
            |name: &str| hosts.by_name(name).map(|host| host.key).context("not in hosts.toml");
        let end = hosts.iter().find(|host| !host.address.is_router()).context("no host")?;
        let files = || -> Result<_> {
            let identity = keys::load_identity(&home.join("node.key"))?;
            Ok((identity, keys::load_network_secret(&home.join("network.key"), None)?))
        };
        let clock = BootClock::new();
        let now = clock.now();
        let space = network.namespace(from).context("a flood needs namespaces; run as root")?;
        let socket = space.enter(|| Ok(UdpSocket::bind(network.listen(from))?))?;
        socket.set_nonblocking(true)?;
        let routing = shoal_routing::Config { cycle: FOR_EVER, ..shoal_routing::Config::default() };
        let config = RelayConfig {
            address: own,
            session: shoal_session::SessionConfig::new(SessionRole::Link),
            liveness: LivenessConfig { dead_after: FOR_EVER, ..LivenessConfig::default() },
            egress: shoal_link::EgressConfig::default(),
            hold: shoal_relay::HoldConfig::default(),
            routing,
            events_max: 64,
        };
        let (identity, secret) = files()?;
        let origins = vec![(target.router, key(&nodes[to].name)?)];
        let seed = keys::os_random()?;
        let mut relay = Relay::new(config, identity, secret, origins, seed, now, unix_ms());
        let link = network.topology().link_between(from, to).context("no link")?;
        let endpoint = Some(network.endpoint(link, from));
        let link = LinkConfig { key: key(&nodes[to].name)?, address: target, endpoint };
        relay.add_link(now, &link).map_err(|reason| anyhow!("{}", reason.label()))?;
        let (identity, secret) = files()?;
        let onion = shoal_onion::OnionConfig {
            address: own,
            limits: CircuitLimits::of(own),
            means: SuiteSupport::here(),
            relay: false,
        };
        let mut onion = Onion::new(onion, identity, secret, keys::os_random()?, now, unix_ms());
        let known = [(target, key(&nodes[to].name)?), (end.address, end.key)];
        onion.set_nodes(known.into());
        let (cells, end) = (Vec::new(), end.address);
        let names = hosts.iter().map(|host| host.address).filter(|at| *at != target).collect();
        let (buf, input) = (vec![0; RUN * FULL], vec![0; FULL]);
        let next = 0;
        Ok(CreateFlooder {
            relay,
            socket,
            clock,
            own,
            target,
            onion,
            end,
            names,
            cells,
            next,
            buf,
            input,
        })
    }

    /// Makes the create cells and waits for the link, until `ended` returns true.
    ///
    /// # Errors
    /// The circuit machine refuses to make a circuit.
    pub fn prepare(&mut self, ended: impl Fn() -> bool) -> Result<()> {
        let shape = CellShape::new(3).map_err(|e| anyhow!("{e}"))?;
        let is_up = |relay: &Relay| relay.links().any(|link| link.up_since.is_some());
        while !(ended() || self.cells.len() >= CELLS && is_up(&self.relay)) {
            self.turn();
            if self.cells.len() >= CELLS {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            let now = self.clock.now();
            let path = [self.target, self.end];
            let life = Duration::from_secs(600);
            let id = self.onion.build(now, &path, shape, life);
            let id = id.map_err(|reason| anyhow!("{}", reason.label()))?;
            while let Some(job) = self.onion.poll_job() {
                let done = job.run();
                self.onion
                    .handle_done(now, done)
                    .map_err(|reason| anyhow!("{}", reason.label()))?;
            }
            let made = std::iter::from_fn(|| self.onion.poll_transmit());
            self.cells.extend(made.map(|own| *own.cell));
            self.onion.close(id);
            while self.onion.poll_event().is_some() {}
        }
        Ok(())
    }

    /// Sends a run of cells, half of them in the name of a random node; returns their number.
    pub fn ask(&mut self, rng: &mut Rng) -> u64 {
        self.turn();
        let offsets: Vec<u32> = (0..RUN).map(|i| (i * FULL) as u32).collect();
        for frame in self.buf.chunks_exact_mut(FULL) {
            let any = self.names[rng.below(self.names.len() as u64) as usize];
            let from = if rng.below(2) == 0 { any } else { self.own };
            let header = RoutedHeader::new(self.target, from, TrafficClass::Bulk);
            frame[link::ROUTED_AT..link::CELL_AT].copy_from_slice(header.as_bytes());
            let cell = &self.cells[self.next];
            frame[link::CELL_AT..link::CELL_AT + CELL_LEN].copy_from_slice(&cell[..]);
            self.next = (self.next + 1) % self.cells.len();
        }
        let CreateFlooder { relay, socket, buf, clock, .. } = self;
        let mut turn = CallContext { now: clock.now(), sink: &mut Udp(socket), hand: &mut () };
        relay.send_cells(&mut turn, LinkKind::Leg, buf, &offsets, FULL);
        RUN as u64
    }

    /// Handles received datagrams and due timers.
    fn turn(&mut self) {
        let CreateFlooder { relay, socket, clock, input, .. } = self;
        let now = clock.now();
        let sink = &mut Udp(socket);
        loop {
            match socket.recv_from(input) {
                Ok((len, from)) => deliver(relay, now, from, &mut input[..len], sink),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                // An ICMP error about an earlier send.
                Err(_) => {}
            }
        }
        while let Some(job) = relay.poll_job() {
            let done = job.run();
            relay.handle_done(now, done, sink);
        }
        if relay.poll_timeout().is_some_and(|(at, _)| at <= now) {
            relay.handle_timeout(now, sink);
        }
        while relay.poll_event().is_some() {}
    }
}

/// Hands one datagram to the relay. Cells for this node are dropped.
fn deliver(
    relay: &mut Relay,
    now: shoal_wire::Time,
    from: SocketAddr,
    frame: &mut [u8],
    sink: &mut Udp<'_>,
) {
    let len = frame.len() as u32;
    let from = from.into();
    let incoming = [ReceivedRun { from, offset: 0, len, stride: len.max(1), congested: false }];
    let mut turn = CallContext { now, sink, hand: &mut () };
    relay.handle_batch(&mut turn, frame, &incoming, ArrivalSource::Socket, &mut |_, _, _| 0);
}

/// A socket as the relay's sink.
struct Udp<'a>(&'a UdpSocket);

impl FrameSink for Udp<'_> {
    fn send(&mut self, path: SendPath, buf: &[u8], offsets: &[u32], len: usize) -> SendOutcome {
        let to = path.ends.remote;
        for (sent, &at) in offsets.iter().enumerate() {
            if self.0.send_to(&buf[at as usize..at as usize + len], to).is_err() {
                return SendOutcome { sent, stop: Some(SendError::Failed) };
            }
        }
        SendOutcome { sent: offsets.len(), stop: None }
    }
}
