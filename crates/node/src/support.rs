//! A shell for this crate's tests: one ring, and wires between the controls of a few nodes.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use core::time::Duration;
use shoal_crypto::{
    Aead, AeadKey, BadTag, Ciphers, Identity, NetworkSecret, PublicKey, Standard, Suite,
};
use shoal_directory::Firewall;
use shoal_edge::{HostConfig, HostId};
use shoal_ip::{Gate, Piece, overlay_address, overlay_prefix};
use shoal_relay::{Incoming, LinkConfig, Path, SendOutcome, Sink};
use shoal_session::Role;
use shoal_wire::{Address, DropReason, LinkKind, RoutedHeader, SizeClass, Time};

use crate::{
    Config, Control, Device, Event, Flows, Message, Parcel, Queue, Rings, Seeds, Shell, TunOffloads,
};

/// The shell's types.
pub(crate) struct Alone;

impl Shell for Alone {
    type Ciphers = Watching;
    type Sink = Wire;
    type Device = Tap;
    type Flows = Table;
    type Rings = Ring;
    type Sockets = ();
}

/// Keeps what is sent, with where it goes.
#[derive(Default)]
pub(crate) struct Wire(VecDeque<(SocketAddr, Vec<u8>)>);

impl Sink for Wire {
    fn send(&mut self, path: Path, buf: &[u8], offsets: &[u32], len: usize) -> SendOutcome {
        let frame = |&at: &u32| (path.ends.remote, buf[at as usize..at as usize + len].to_vec());
        self.0.extend(offsets.iter().map(frame));
        SendOutcome { sent: offsets.len(), stop: None }
    }
}

/// One queue of an interface: what programs wrote, and what they were given.
#[derive(Default)]
pub(crate) struct Tap {
    pub(crate) waiting: VecDeque<Vec<u8>>,
    pub(crate) given: Vec<Vec<u8>>,
}

impl Device for Tap {
    fn offloads(&self) -> TunOffloads {
        TunOffloads { tcp: false, udp: false }
    }

    fn read(&mut self, buf: &mut [u8]) -> Option<usize> {
        let read = self.waiting.pop_front()?;
        buf[..read.len()].copy_from_slice(&read);
        Some(read.len())
    }

    fn write(&mut self, head: &[u8], buf: &[u8], pieces: &[Piece]) -> bool {
        let pieces = pieces.iter().map(|piece| &buf[piece.at as usize..][..piece.len as usize]);
        self.given.push(core::iter::once(head).chain(pieces).collect::<Vec<_>>().concat());
        true
    }
}

thread_local! {
    /// Destination and source of each cell with a routed header that a link sealed, and its kind.
    static CELLS: RefCell<Vec<(LinkKind, Address, Address)>> = const { RefCell::new(Vec::new()) };
}

/// Takes the cells that links of this thread's nodes sealed since the last call.
pub(crate) fn take_cells() -> Vec<(LinkKind, Address, Address)> {
    CELLS.take()
}

/// The ciphers of real networks, which note what cells links seal.
pub(crate) struct Watching;

/// A key of theirs.
pub(crate) struct Watched(AeadKey);

impl Ciphers for Watching {
    type Aead = Watched;

    fn verify(key: &PublicKey, msg: &[u8], sig: &[u8; 64]) -> bool {
        Standard::verify(key, msg, sig)
    }
}

impl Aead for Watched {
    fn new(suite: Suite, key: &[u8; 32]) -> Watched {
        Watched(AeadKey::new(suite, key))
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

/// One ring for all messages, and the parcels that came back.
#[derive(Clone, Default)]
pub(crate) struct Ring {
    messages: Rc<RefCell<VecDeque<Message<Alone>>>>,
    empty: Rc<RefCell<VecDeque<Box<Parcel>>>>,
}

impl Ring {
    /// The oldest message.
    pub(crate) fn take(&self) -> Option<Message<Alone>> {
        self.messages.borrow_mut().pop_front()
    }
}

impl Rings<Alone> for Ring {
    fn try_send(&mut self, _: u8, message: Message<Alone>) -> Option<Message<Alone>> {
        self.messages.borrow_mut().push_back(message);
        None
    }

    fn send(&mut self, to: u8, message: Message<Alone>) -> bool {
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
pub(crate) struct Table(Rc<RefCell<(Option<Firewall>, u64)>>);

impl Flows for Table {
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

/// The key of the node at an address.
pub(crate) fn identity(at: Address) -> Identity {
    Identity::from_seed([at.router as u8 * 16 + at.host as u8; 32])
}

/// Bytes of a packet at most.
const MTU: usize = 1_280;

/// The address of the interface of the node at an address.
pub(crate) fn interface(at: Address) -> Ipv6Addr {
    overlay_address(&overlay_prefix(&secret()), &identity(at).public())
}

/// The secret of all tests' networks.
pub(crate) fn secret() -> NetworkSecret {
    NetworkSecret([7; 32])
}

/// The keys of nodes.
pub(crate) fn keys(nodes: &[Address]) -> BTreeMap<Address, PublicKey> {
    nodes.iter().map(|&at| (at, identity(at).public())).collect()
}

/// The wall clock at time zero, in milliseconds.
pub(crate) const UNIX_MS: u64 = 1_800_000_000_000;

/// A few nodes of one worker, joined by perfect wires, under one clock.
pub(crate) struct Net {
    pub(crate) now: Time,
    /// How long each wire takes.
    pub(crate) delay: Duration,
    /// A node that does nothing any more.
    pub(crate) dead: Option<usize>,
    /// What is on the wires, by sender, and when it arrives.
    flying: VecDeque<(Time, Vec<Wire>)>,
    pub(crate) nodes: Vec<Control<Alone>>,
    /// What was said of which node, but for neighbours and routes.
    pub(crate) events: Vec<(usize, Event)>,
    /// What tests put on the wires, by sender.
    put: Vec<(usize, Wire)>,
}

fn socket(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node as u8 + 1], 7_400))
}

/// Constants of the node at an address.
pub(crate) fn config(address: Address) -> Config {
    let relay = shoal_relay::Config {
        address,
        session: shoal_session::Config::new(Role::Link),
        liveness: shoal_link::LivenessConfig::default(),
        egress: shoal_link::EgressConfig::default(),
        hold: shoal_relay::HoldConfig::default(),
        routing: shoal_routing::Config::default(),
        events_max: 64,
    };
    let edge = shoal_edge::Config {
        address,
        session: shoal_session::Config::new(Role::Edge),
        transfer: shoal_transfer::Config::default(),
        echo_max: 16,
        ip: !address.is_router(),
        direct: None,
        events_max: 64,
    };
    Config { relay, edge }
}

impl Net {
    /// Nodes at `addresses`, joined by `links`, when their links are up and routes are known.
    pub(crate) fn new(addresses: &[Address], links: &[(usize, usize)]) -> Net {
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
                let gate = Gate::new(vec![interface(at)], MTU);
                Queue::new(Tap::default(), Arc::new(gate), Table::default())
            });
            Control::new(config(at), identity(at), secret(), origins, queue, &seeds, now, unix_ms)
        };
        let nodes = addresses.iter().map(make).collect();
        let mut net = Net {
            now,
            delay: Duration::ZERO,
            dead: None,
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

    /// Has a host know another, whose packets it takes.
    pub(crate) fn introduce(&mut self, at: usize, other: Address) -> HostId {
        let node = &mut self.nodes[at];
        let key = identity(other).public();
        let host = node.edge.add_host(&HostConfig { key, address: other }).expect("room");
        let mut gate = Gate::new(vec![interface(node.relay.address())], MTU);
        gate.add(host.bits(), interface(other)).expect("another address");
        node.set_gate(Arc::new(gate));
        host
    }

    /// Lets time pass.
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

    /// Puts frames of a node on its wires.
    pub(crate) fn put(&mut self, from: usize, frames: Wire) {
        self.put.push((from, frames));
    }

    /// One turn of a node: what arrives, what is due, what it makes of both; returns what it sends.
    fn turn(&mut self, at: usize, arrivals: &[(usize, Vec<u8>)]) -> Wire {
        let (now, node) = (self.now, &mut self.nodes[at]);
        let mut wire = Wire::default();
        if self.dead == Some(at) {
            return wire;
        }
        for run in arrivals.chunk_by(|a, b| (a.0, a.1.len()) == (b.0, b.1.len())) {
            let mut buf = run.iter().flat_map(|(_, frame)| frame).copied().collect::<Vec<_>>();
            let (len, stride) = (buf.len() as u32, run[0].1.len() as u32);
            let from = socket(run[0].0).into();
            let incoming = Incoming { from, offset: 0, len, stride, congested: false };
            node.handle_datagrams(now, &mut wire, &mut buf, &[incoming]);
        }
        if node.poll_timeout().is_some_and(|(at, _)| at <= now) {
            node.handle_timeout(now, &mut wire);
        }
        node.handle_packets(now, &mut wire);
        loop {
            node.drive(now, &mut wire);
            while let Some(event) = node.poll_event(now) {
                if !matches!(event, Event::Relay(_)) {
                    self.events.push((at, event));
                }
            }
            node.drive(now, &mut wire);
            let Some(job) = node.poll_job() else { return wire };
            node.handle_done(now, &mut wire, job.run());
        }
    }

    /// How often a node dropped something for this reason.
    pub(crate) fn dropped(&self, node: usize, reason: DropReason) -> u64 {
        self.nodes[node].relay.counters().dropped(reason)
    }

    /// What a node dropped, whatever for.
    pub(crate) fn drops(&self, node: usize) -> Vec<(DropReason, u64)> {
        self.nodes[node].relay.counters().drops().filter(|(_, n)| *n > 0).collect()
    }
}

/// What nodes sent to one of them, and who sent it.
fn arrivals(to: usize, wires: &[Wire]) -> Vec<(usize, Vec<u8>)> {
    let of = |(from, wire): (usize, &Wire)| {
        let here = wire.0.iter().filter(move |(there, _)| *there == socket(to));
        here.map(move |(_, frame)| (from, frame.clone())).collect::<Vec<_>>()
    };
    wires.iter().enumerate().flat_map(of).collect()
}
