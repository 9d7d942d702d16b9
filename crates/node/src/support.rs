//! A shell for this crate's tests: one ring, and wires between the controls of a few nodes.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use core::time::Duration;
use shoal_crypto::{
    Aead, AeadKey, BadTag, Ciphers, Identity, NetworkSecret, PublicKey, StandardCiphers, Suite,
};
use shoal_directory::Firewall;
use shoal_edge::{HostConfig, HostId};
use shoal_ip::{AddressGate, BufferSlice, VNET_LEN, overlay_address, overlay_prefix};
use shoal_relay::{FrameSink, LinkConfig, ReceivedRun, SendOutcome, SendPath};
use shoal_session::SessionRole;
use shoal_wire::{Address, DropReason, LinkKind, RoutedHeader, SizeClass, Time};

use crate::{
    Control, InterfaceQueue, NodeEvent, NodeSettings, Parcel, Seeds, SharedFlowTable, Shell,
    TunOffloads, TunQueue, WorkerMessage, WorkerRings,
};

/// The test shell.
pub(crate) struct TestShell;

impl Shell for TestShell {
    type Ciphers = RecordingCiphers;
    type Sink = TestSink;
    type TunQueue = TestTun;
    type Flows = TestFlowTable;
    type WorkerRings = TestRing;
    type Sockets = ();
}

/// Stores sent frames with their destinations.
#[derive(Default)]
pub(crate) struct TestSink(VecDeque<(SocketAddr, Vec<u8>)>);

impl FrameSink for TestSink {
    fn send(&mut self, path: SendPath, buf: &[u8], offsets: &[u32], len: usize) -> SendOutcome {
        let frame = |&at: &u32| (path.ends.remote, buf[at as usize..at as usize + len].to_vec());
        self.0.extend(offsets.iter().map(frame));
        SendOutcome { sent: offsets.len(), stop: None }
    }
}

/// One queue of an interface: packets that programs wrote, and packets that they received.
#[derive(Default)]
pub(crate) struct TestTun {
    pub(crate) waiting: VecDeque<Vec<u8>>,
    pub(crate) given: Vec<Vec<u8>>,
}

impl TunQueue for TestTun {
    fn offloads(&self) -> TunOffloads {
        TunOffloads { tcp: false, udp: false }
    }

    fn read(&mut self, buf: &mut [u8]) -> Option<usize> {
        let read = self.waiting.pop_front()?;
        buf[..read.len()].copy_from_slice(&read);
        Some(read.len())
    }

    fn write(&mut self, head: &[u8], buf: &[u8], pieces: &[BufferSlice]) -> bool {
        let pieces = pieces.iter().map(|piece| &buf[piece.at as usize..][..piece.len as usize]);
        self.given.push(core::iter::once(head).chain(pieces).collect::<Vec<_>>().concat());
        true
    }
}

thread_local! {
    /// Kind, destination and source of each cell that a link sealed.
    static CELLS: RefCell<Vec<(LinkKind, Address, Address)>> = const { RefCell::new(Vec::new()) };
}

/// Takes the cells sealed by this thread's nodes since the last call.
pub(crate) fn take_cells() -> Vec<(LinkKind, Address, Address)> {
    CELLS.take()
}

/// The standard ciphers, which also record the cells that links seal.
pub(crate) struct RecordingCiphers;

pub(crate) struct RecordingAead(AeadKey);

impl Ciphers for RecordingCiphers {
    type Aead = RecordingAead;

    fn verify(key: &PublicKey, msg: &[u8], sig: &[u8; 64]) -> bool {
        StandardCiphers::verify(key, msg, sig)
    }
}

impl Aead for RecordingAead {
    fn new(suite: Suite, key: &[u8; 32]) -> RecordingAead {
        RecordingAead(AeadKey::new(suite, key))
    }

    fn seal(&self, counter: u64, aad: &[u8], body: &mut [u8], tag_out: &mut [u8; 16]) {
        let of_link = SizeClass::ALL.iter().any(|class| class.link_body_len() + 1 == body.len());
        let kind = LinkKind::from_byte(body[0]).ok().filter(|_| of_link);
        let cells = [LinkKind::Cell, LinkKind::Direct, LinkKind::Leg];
        if let Some(kind) = kind.filter(|kind| cells.contains(kind)) {
            let header = RoutedHeader::parse(&body[1..]).expect("a cell");
            CELLS.with_borrow_mut(|seen| seen.push((kind, header.dst(), header.src())));
        }
        self.0.seal(counter, aad, body, tag_out);
    }

    fn open(&self, counter: u64, aad: &[u8], body_and_tag: &mut [u8]) -> Result<(), BadTag> {
        self.0.open(counter, aad, body_and_tag)
    }
}

/// One ring for all messages, and the returned parcels.
#[derive(Clone, Default)]
pub(crate) struct TestRing {
    messages: Rc<RefCell<VecDeque<WorkerMessage<TestShell>>>>,
    empty: Rc<RefCell<VecDeque<Box<Parcel>>>>,
}

impl TestRing {
    /// Takes the oldest message.
    pub(crate) fn take(&self) -> Option<WorkerMessage<TestShell>> {
        self.messages.borrow_mut().pop_front()
    }
}

impl WorkerRings<TestShell> for TestRing {
    fn try_send(
        &mut self,
        _: u8,
        message: WorkerMessage<TestShell>,
    ) -> Option<WorkerMessage<TestShell>> {
        self.messages.borrow_mut().push_back(message);
        None
    }

    fn send(&mut self, to: u8, message: WorkerMessage<TestShell>) -> bool {
        self.try_send(to, message).is_none()
    }

    fn give_back(&mut self, parcel: Box<Parcel>) {
        self.empty.borrow_mut().push_back(parcel);
    }

    fn take_back(&mut self) -> Option<Box<Parcel>> {
        self.empty.borrow_mut().pop_front()
    }
}

/// A table of flows for one thread.
#[derive(Clone, Default)]
pub(crate) struct TestFlowTable(Rc<RefCell<(Option<Firewall>, u64)>>);

impl SharedFlowTable for TestFlowTable {
    fn epoch(&self) -> u64 {
        self.0.borrow().1
    }

    fn ask<T>(&self, ask: impl FnOnce(&mut Option<Firewall>) -> T) -> T {
        ask(&mut self.0.borrow_mut().0)
    }

    fn change(&self, change: impl FnOnce(&mut Option<Firewall>)) {
        self.ask(change);
        self.0.borrow_mut().1 += 1;
    }
}

pub(crate) fn identity(at: Address) -> Identity {
    Identity::from_seed([at.router as u8 * 16 + at.host as u8; 32])
}

/// Maximum packet length in bytes.
const MTU: usize = 1_280;

/// The interface address of the node at an overlay address.
pub(crate) fn interface(at: Address) -> Ipv6Addr {
    overlay_address(&overlay_prefix(&secret()), &identity(at).public())
}

/// The network secret of all tests.
pub(crate) fn secret() -> NetworkSecret {
    NetworkSecret([7; 32])
}

pub(crate) fn keys(nodes: &[Address]) -> BTreeMap<Address, PublicKey> {
    nodes.iter().map(|&at| (at, identity(at).public())).collect()
}

/// Wall-clock time at time zero, in milliseconds since 1970.
pub(crate) const UNIX_MS: u64 = 1_800_000_000_000;

/// A few nodes with one worker each, connected by perfect wires, under one clock.
pub(crate) struct Net {
    pub(crate) now: Time,
    /// Delay of each wire.
    pub(crate) delay: Duration,
    /// A node that has stopped, and others.
    pub(crate) dead: Option<usize>,
    pub(crate) stopped: Vec<usize>,
    /// Frames in transit by sender, with their arrival time.
    flying: VecDeque<(Time, Vec<TestSink>)>,
    pub(crate) nodes: Vec<Control<TestShell>>,
    /// Events of nodes, except those about neighbours and routes.
    pub(crate) events: Vec<(usize, NodeEvent)>,
    /// Frames that tests inject, by sender.
    put: Vec<(usize, TestSink)>,
}

pub(crate) fn socket(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node as u8 + 1], 7_400))
}

pub(crate) fn config(address: Address) -> NodeSettings {
    let relay = shoal_relay::RelayConfig {
        address,
        session: shoal_session::SessionConfig::new(SessionRole::Link),
        liveness: shoal_link::LivenessConfig::default(),
        egress: shoal_link::EgressConfig::default(),
        hold: shoal_relay::HoldConfig::default(),
        routing: shoal_routing::Config::default(),
        events_max: 64,
    };
    let edge = shoal_edge::EdgeConfig {
        address,
        session: shoal_session::SessionConfig::new(SessionRole::Edge),
        transfer: shoal_transfer::TransferConfig::default(),
        echo_max: 16,
        ip: !address.is_router(),
        direct: None,
        events_max: 64,
    };
    NodeSettings { relay, edge }
}

impl Net {
    /// Nodes at `addresses`, connected by `links`, after links are up and routes are known.
    pub(crate) fn new(addresses: &[Address], links: &[(usize, usize)]) -> Net {
        Net::with(addresses, links, |_| {})
    }

    /// A network like [`Net::new`], with settings modified by `change`.
    pub(crate) fn with(
        addresses: &[Address],
        links: &[(usize, usize)],
        change: impl Fn(&mut NodeSettings),
    ) -> Net {
        let now = Time::from_millis(1_000);
        let routers: Vec<_> = addresses.iter().copied().filter(|at| at.is_router()).collect();
        let make = |&at: &Address| {
            let origins = routers.iter().map(|at| (at.router, identity(*at).public()));
            let seed = |part: u8| {
                let mut seed = [at.router as u8 * 16 + at.host as u8; 32];
                seed[0] = part;
                seed
            };
            let seeds = Seeds { relay: seed(1), edge: seed(2), circuits: seed(3) };
            let unix_ms = UNIX_MS + 1_000;
            let queue = (!at.is_router()).then(|| {
                let gate = AddressGate::new(vec![interface(at)], MTU);
                InterfaceQueue::new(TestTun::default(), Arc::new(gate), TestFlowTable::default())
            });
            let mut config = config(at);
            change(&mut config);
            Control::new(config, identity(at), secret(), origins, queue, &seeds, now, unix_ms)
        };
        let nodes = addresses.iter().map(make).collect();
        let mut net = Net {
            now,
            delay: Duration::ZERO,
            dead: None,
            stopped: Vec::new(),
            flying: VecDeque::new(),
            nodes,
            events: Vec::new(),
            put: Vec::new(),
        };
        for &(a, b) in links {
            for (from, to, calls) in [(a, b, true), (b, a, false)] {
                let (address, key) = (addresses[to], identity(addresses[to]).public());
                let endpoint = calls.then(|| socket(to));
                let link = LinkConfig { key, address, endpoint };
                net.nodes[from].relay.add_link(now, &link).expect("room");
            }
        }
        net.run(Duration::from_secs(3));
        net
    }

    /// Adds a host to another's table and gate.
    pub(crate) fn introduce(&mut self, at: usize, other: Address) -> HostId {
        let node = &mut self.nodes[at];
        let key = identity(other).public();
        let host = node.edge.add_host(&HostConfig { key, address: other }).expect("room");
        let mut gate = AddressGate::new(vec![interface(node.relay.address())], MTU);
        gate.add(host.bits(), interface(other)).expect("another address");
        node.set_gate(Arc::new(gate));
        host
    }

    pub(crate) fn run(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            let mut wires: Vec<_> = (0..self.nodes.len()).map(|at| self.turn(at, &[])).collect();
            for (from, wire) in self.put.drain(..) {
                wires[from].0.extend(wire.0);
            }
            loop {
                if wires.iter().any(|wire| !wire.0.is_empty()) {
                    self.flying.push_back((self.now + self.delay, wires));
                }
                let arrived = self.flying.pop_front_if(|(at, _)| *at <= self.now);
                let Some((_, from)) = arrived else { break };
                let all = 0..self.nodes.len();
                wires = all.map(|to| self.turn(to, &arrivals(to, &from))).collect();
            }
            self.now = self.now + Duration::from_millis(1);
        }
    }

    /// Injects frames of a node into its wires.
    pub(crate) fn put(&mut self, from: usize, frames: TestSink) {
        self.put.push((from, frames));
    }

    /// Runs one turn of a node: arrivals, timers, and their consequences. Returns the frames it
    /// sends.
    fn turn(&mut self, at: usize, arrivals: &[(usize, Vec<u8>)]) -> TestSink {
        let (now, node) = (self.now, &mut self.nodes[at]);
        let mut wire = TestSink::default();
        if self.dead == Some(at) || self.stopped.contains(&at) {
            return wire;
        }
        for run in arrivals.chunk_by(|a, b| (a.0, a.1.len()) == (b.0, b.1.len())) {
            let mut buf = run.iter().flat_map(|(_, frame)| frame).copied().collect::<Vec<_>>();
            let (len, stride) = (buf.len() as u32, run[0].1.len() as u32);
            let from = socket(run[0].0).into();
            let incoming = ReceivedRun { from, offset: 0, len, stride, congested: false };
            node.handle_datagrams(now, &mut wire, &mut buf, &[incoming]);
        }
        if node.poll_timeout().is_some_and(|(at, _)| at <= now) {
            node.handle_timeout(now, &mut wire);
        }
        node.handle_packets(now, &mut wire);
        loop {
            node.drive(now, &mut wire);
            while let Some(event) = node.poll_event(now) {
                if !matches!(event, NodeEvent::Relay(_)) {
                    self.events.push((at, event));
                }
            }
            node.drive(now, &mut wire);
            let Some(job) = node.poll_job() else { return wire };
            node.handle_done(now, &mut wire, job.run());
        }
    }

    /// Number of drops of a node for this reason.
    pub(crate) fn dropped(&self, node: usize, reason: DropReason) -> u64 {
        self.nodes[node].relay.counters().dropped(reason)
    }

    /// All drops of a node by reason.
    pub(crate) fn drops(&self, node: usize) -> Vec<(DropReason, u64)> {
        self.nodes[node].relay.counters().drops().filter(|(_, n)| *n > 0).collect()
    }
}

/// The first worker's queue of a host's interface.
pub(crate) fn tap(net: &mut Net, at: usize) -> &mut TestTun {
    net.nodes[at].queue_mut().expect("a host").device_mut()
}

/// A UDP packet as read from the interface.
pub(crate) fn packet(from: Ipv6Addr, to: Ipv6Addr, payload: usize) -> Vec<u8> {
    let len = (8 + payload) as u16;
    let mut read = vec![0; VNET_LEN];
    read.extend_from_slice(&[0x60, 0, 0, 0]);
    read.extend_from_slice(&len.to_be_bytes());
    read.extend_from_slice(&[17, 64]);
    read.extend_from_slice(&from.octets());
    read.extend_from_slice(&to.octets());
    read.extend_from_slice(&[0x11, 0x11, 0x22, 0x22]);
    read.extend_from_slice(&len.to_be_bytes());
    read.extend_from_slice(&[0x33, 0x33]);
    read.resize(read.len() + payload, 0x5c);
    read
}

/// Frames for one node, each with its sender.
fn arrivals(to: usize, wires: &[TestSink]) -> Vec<(usize, Vec<u8>)> {
    let of = |(from, wire): (usize, &TestSink)| {
        let here = wire.0.iter().filter(move |(there, _)| *there == socket(to));
        here.map(move |(_, frame)| (from, frame.clone())).collect::<Vec<_>>()
    };
    wires.iter().enumerate().flat_map(of).collect()
}
