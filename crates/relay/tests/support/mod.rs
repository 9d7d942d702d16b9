//! A few relays in memory, connected by perfect wires, under one clock.

mod asleep;
mod shifts;

use std::collections::VecDeque;
use std::net::SocketAddr;

use core::time::Duration;
use shoal_crypto::{Identity, NetworkSecret, Rng};
use shoal_relay::{
    ArrivalSource, CallContext, Forwarder, FrameAt, FrameSink, Handoff, HandoffFrame, HandoffKind,
    LinkConfig, LocalCells, MixedCell, ReceivedRun, Relay, RelayConfig, SendError, SendOutcome,
    SendPath,
};
use shoal_session::{Endpoints, SessionShard};
use shoal_wire::{Address, LinkKind, RoutedHeader, SizeClass, Time, TrafficClass, link};
use zerocopy::IntoBytes;

#[allow(unused_imports, reason = "each test file uses its part")]
pub use shifts::{FirewallState, moved_prefix, shift_prefix, shifter, under};

pub const FULL: usize = SizeClass::Full.frame_len();

/// The network below all nodes: it stores sent datagrams.
#[derive(Default)]
pub struct TestWire {
    /// Datagrams in transit: sender, receiver, bytes.
    pub sent: VecDeque<(SocketAddr, SocketAddr, Vec<u8>)>,
    /// Address of the node that currently sends.
    pub from: Option<SocketAddr>,
    /// Maximum frame length of the path. `None` is unlimited. If `says`, the device reports it.
    pub longest: Option<usize>,
    pub says: bool,
    /// Number of frames that the kernel still accepts. `None` is unlimited.
    pub room: Option<usize>,
    /// The paths of all sends, if recorded.
    pub paths: Option<Vec<SendPath>>,
    /// All sent frames, if recorded.
    pub seen: Option<Vec<Vec<u8>>>,
}

impl FrameSink for TestWire {
    fn send(&mut self, path: SendPath, buf: &[u8], offsets: &[u32], len: usize) -> SendOutcome {
        let to = path.ends.remote;
        self.paths.iter_mut().for_each(|paths| paths.push(path));
        let mut sent = 0;
        let too_long = self.longest.is_some_and(|longest| len > longest);
        if too_long {
            let stop = self.says.then_some(SendError::TooLong);
            return SendOutcome { sent: if self.says { 0 } else { offsets.len() }, stop };
        }
        for &at in offsets {
            if let Some(room) = &mut self.room {
                if *room == 0 {
                    return SendOutcome { sent, stop: Some(SendError::Full) };
                }
                *room -= 1;
            }
            let shifts = path.ends.local.filter(|local| shifter(*local).is_some());
            let from = shifts.unwrap_or(self.from.expect("a sender"));
            let frame = buf[at as usize..at as usize + len].to_vec();
            self.seen.iter_mut().for_each(|seen| seen.push(frame.clone()));
            self.sent.push_back((from, to, frame));
            sent += 1;
        }
        SendOutcome { sent, stop: None }
    }
}

pub struct Node {
    pub relay: Relay,
    /// Workers after the first, numbered from 1.
    pub forwarders: Vec<(SessionShard, Forwarder)>,
    /// Number of cells forwarded by these workers.
    pub forwarded: u64,
    /// Number of cells forwarded by each of them.
    pub forwarded_by: Vec<u64>,
    /// Socket address.
    pub at: SocketAddr,
    /// Cells received: source, payload.
    pub cells: Vec<(Address, Vec<u8>)>,
    /// Leg cells received, and their handling.
    pub legs: LegRecord,
}

/// Handling of leg cells at a node.
#[derive(Default)]
pub struct LegRecord {
    /// Leg cells received: source, payload.
    pub seen: Vec<(Address, Vec<u8>)>,
    /// Source and destination of the next leg, if cells are sent on.
    pub onward: Option<(Address, Address)>,
    /// Departure time of these cells. None for at once.
    pub due: Option<Time>,
}

/// Frames recorded on one path.
pub struct PathRecorder {
    /// Source, or None for any.
    pub from: Option<SocketAddr>,
    pub to: SocketAddr,
    /// Lengths of the frames.
    pub seen: Vec<usize>,
    /// Times at which they were sent.
    pub at: Vec<Time>,
}

/// An attacker without a key on the wire between two nodes. Injected copies overtake the originals,
/// which take 10 ms.
pub struct Race {
    /// Sender and receiver of the copied frames.
    pub pair: (usize, usize),
    /// Forged source of the copies: a third machine.
    pub victim: SocketAddr,
    /// True if all frames to the victim are copied to the first node, false for small ones only.
    pub copies_all: bool,
    /// True if small frames to the first node's real address are lost.
    pub loses_small: bool,
    /// Originals in transit, with their arrival times.
    pub late: VecDeque<(Time, SocketAddr, SocketAddr, Vec<u8>)>,
    /// Bytes sent to the victim.
    pub bytes: usize,
}

impl Race {
    /// A race that loses no frames.
    pub fn new(pair: (usize, usize), victim: SocketAddr) -> Race {
        let late = VecDeque::new();
        Race { pair, victim, copies_all: false, loses_small: false, late, bytes: 0 }
    }
}

/// The network. Node `i` has the socket address 10.0.0.(i+1):7400.
pub struct Net {
    pub now: Time,
    pub nodes: Vec<Node>,
    /// Datagrams in transit.
    pub wire: TestWire,
    /// Local address that is reported with received datagrams, if any.
    pub local: Option<SocketAddr>,
    /// Pairs of nodes between which all frames are lost.
    pub cut: Vec<(usize, usize)>,
    /// Nodes with an unroutable prefix: frames to the first one's prefix and from the second one's
    /// are lost.
    pub unrouted: [Option<usize>; 2],
    /// Stateful firewalls, which admit only answers, if there are any.
    pub walls: Option<FirewallState>,
    /// The routed prefix of each node; additional routed prefixes; and nodes that use a different
    /// prefix behind a translator.
    pub routed: Vec<[u8; 8]>,
    pub also: Vec<[u8; 8]>,
    pub translated: Vec<usize>,
    /// One in this many frames from the first to the second node is lost.
    pub lossy: Option<(usize, usize, u64)>,
    /// Frames above this length from the first to the second node are lost.
    pub narrow: Vec<(usize, usize, usize)>,
    /// Chooses the worker at which a datagram arrives.
    pub spread: Rng,
    /// True if frames handed between workers are lost.
    pub full_rings: bool,
    /// True if workers after the first consume cells for their node, like workers that serve
    /// programs.
    pub keeping: bool,
    /// Recorded paths.
    pub watches: [Option<PathRecorder>; 2],
    /// The attacker, if there is one.
    pub race: Option<Race>,
}

/// A frame handed from one worker to another.
enum HandedFrame {
    Raw(u8, u8, Endpoints, Vec<u8>),
    Opened(Vec<u8>, HandoffFrame),
    Leaving(u8, Vec<u8>, HandoffFrame),
    Released(Vec<u8>, HandoffFrame),
    Sealed(Vec<u8>, HandoffFrame),
}

/// The rings of one worker.
struct TestRings {
    worker: u8,
    passed: VecDeque<HandedFrame>,
    full: bool,
}

impl Handoff for TestRings {
    fn take(&mut self, what: HandoffKind<'_>, frame: FrameAt<'_>) -> bool {
        let bytes = frame.bytes().to_vec();
        let handed = |link, congested| HandoffFrame { link, at: 0, len: frame.len, congested };
        let (to, passed) = match what {
            HandoffKind::Raw { worker, from } => {
                (worker, HandedFrame::Raw(self.worker, worker, from.from, bytes))
            }
            HandoffKind::Unknown { from } => {
                (0, HandedFrame::Raw(self.worker, 0, from.from, bytes))
            }
            HandoffKind::Opened { link, congested } => {
                (0, HandedFrame::Opened(bytes, handed(link, congested)))
            }
            HandoffKind::Leaving { worker, link } => {
                (worker, HandedFrame::Leaving(worker, bytes, handed(link, false)))
            }
            HandoffKind::Released { link } => {
                (0, HandedFrame::Released(bytes, handed(link, false)))
            }
            HandoffKind::Sealed { link } => (0, HandedFrame::Sealed(bytes, handed(link, false))),
        };
        assert_ne!(to, self.worker, "a worker hands to itself");
        if !self.full {
            self.passed.push_back(passed);
        }
        !self.full
    }
}

pub fn socket(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node as u8 + 1], 7400))
}

pub fn identity(node: usize) -> Identity {
    Identity::from_seed([node as u8 + 1; 32])
}

/// Settings of the test network.
pub fn config(address: Address) -> RelayConfig {
    RelayConfig {
        address,
        session: shoal_session::SessionConfig::new(shoal_session::SessionRole::Link),
        liveness: shoal_link::LivenessConfig::default(),
        egress: shoal_link::EgressConfig::default(),
        hold: shoal_relay::HoldConfig::default(),
        routing: shoal_routing::Config::default(),
        events_max: 1_024,
    }
}

impl Net {
    /// A network of nodes at `addresses`, connected by `links`. The first node of each pair calls
    /// the second.
    pub fn new(addresses: &[Address], links: &[(usize, usize)]) -> Net {
        Net::with(addresses, links, |_| {})
    }

    /// A network like [`Net::new`], with settings modified by `change`.
    pub fn with(
        addresses: &[Address],
        links: &[(usize, usize)],
        change: impl Fn(&mut RelayConfig),
    ) -> Net {
        let now = Time::from_millis(1_000);
        let origins = |_| {
            let routers = addresses.iter().enumerate().filter(|(_, a)| a.is_router());
            routers.map(|(i, a)| (a.router, identity(i).public())).collect::<Vec<_>>()
        };
        let make = |(i, &address): (usize, &Address)| {
            let secret = NetworkSecret([7; 32]);
            let seed = [0x40 + i as u8; 32];
            let unix_ms = 1_800_000_000_000;
            let mut config = config(address);
            change(&mut config);
            let workers = 1..config.session.workers;
            let relay = Relay::new(config, identity(i), secret, origins(i), seed, now, unix_ms);
            let forwarders: Vec<_> = workers.map(|worker| relay.forwarder(worker)).collect();
            let forwarded_by = vec![0; forwarders.len()];
            let (at, cells, legs) = (socket(i), Vec::new(), LegRecord::default());
            Node { relay, forwarders, forwarded: 0, forwarded_by, at, cells, legs }
        };
        let nodes = addresses.iter().enumerate().map(make).collect();
        let (wire, spread) = (TestWire::default(), Rng::new([5; 32]));
        let mut net = Net {
            now,
            nodes,
            wire,
            local: None,
            cut: Vec::new(),
            unrouted: [None; 2],
            walls: None,
            routed: (0..addresses.len()).map(shift_prefix).collect(),
            also: Vec::new(),
            translated: Vec::new(),
            lossy: None,
            narrow: Vec::new(),
            spread,
            full_rings: false,
            keeping: false,
            watches: [None, None],
            race: None,
        };
        for &(a, b) in links {
            let to_b = LinkConfig {
                key: identity(b).public(),
                address: addresses[b],
                endpoint: Some(socket(b)),
            };
            let to_a =
                LinkConfig { key: identity(a).public(), address: addresses[a], endpoint: None };
            net.nodes[a].relay.add_link(now, &to_b).expect("room");
            net.nodes[b].relay.add_link(now, &to_a).expect("room");
        }
        net
    }

    /// Lets time pass in steps of 1 ms.
    pub fn run(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            self.step();
            self.now = self.now + Duration::from_millis(1);
        }
    }

    /// Delivers all datagrams and runs all due timers, at one instant.
    pub fn step(&mut self) {
        for i in 0..self.nodes.len() {
            self.wire.from = Some(self.nodes[i].at);
            self.work(i);
        }
        self.arrive_late();
        while let Some((from, to, mut frame)) = self.wire.sent.pop_front() {
            for watch in self.watches.iter_mut().flatten() {
                if watch.to == to && watch.from.is_none_or(|place| place == from) {
                    watch.seen.push(frame.len());
                    watch.at.push(self.now);
                }
            }
            if self.raced(from, to, &frame) {
                continue;
            }
            let (Some(a), Some(b)) = (self.node_at(from), self.node_at(to)) else { continue };
            if self.loses(a, b, frame.len()) {
                continue;
            }
            let local = self.local;
            let (from, Some(to)) = (self.leaves(from), self.comes(from, to)) else { continue };
            self.local = if shifter(to).is_some() { Some(to) } else { local };
            self.deliver(b, from, &mut frame);
            self.local = local;
        }
    }

    /// Delivers originals whose copies were faster.
    fn arrive_late(&mut self) {
        let now = self.now;
        while let Some(race) = &mut self.race
            && let Some((_, from, to, mut frame)) = race.late.pop_front_if(|(due, ..)| *due <= now)
        {
            if let Some(node) = self.node_at(to) {
                self.deliver(node, from, &mut frame);
            }
        }
    }

    /// Copies a datagram if there is a race. Returns true if the original is delayed or lost.
    fn raced(&mut self, from: SocketAddr, to: SocketAddr, frame: &[u8]) -> bool {
        let Some(race) = &mut self.race else { return false };
        let ((a, b), victim) = (race.pair, race.victim);
        let small = frame.len() == SizeClass::Small.frame_len();
        let (at, there) = (self.nodes[a].at, self.nodes[b].at);
        let due = self.now + Duration::from_millis(10);
        if to == victim {
            race.bytes += frame.len();
            if small || race.copies_all {
                self.deliver(a, there, &mut frame.to_vec());
            }
        } else if (from, to) == (at, there) {
            race.late.push_back((due, from, to, frame.to_vec()));
            self.deliver(b, victim, &mut frame.to_vec());
        } else if from == there && to == at && !(small && race.loses_small) {
            race.late.push_back((due, from, to, frame.to_vec()));
        } else {
            return from == there && to == at;
        }
        true
    }

    /// Delivers one datagram to a node, at a random worker.
    pub fn deliver(&mut self, to: usize, from: SocketAddr, frame: &mut [u8]) {
        let from = Endpoints { local: self.local, remote: from };
        let workers = self.nodes[to].forwarders.len() as u64 + 1;
        let worker = self.spread.below(workers) as u8;
        self.wire.from = Some(self.nodes[to].at);
        let mut passed = VecDeque::new();
        self.arrive(to, worker, ArrivalSource::Socket, from, frame, &mut passed);
        for _ in 0..8 {
            let Some(next) = passed.pop_front() else { break };
            self.pass(to, next, &mut passed);
        }
        assert!(passed.is_empty(), "frames go round between workers");
        self.work(to);
    }

    /// Handles one datagram at one worker.
    fn arrive(
        &mut self,
        to: usize,
        worker: u8,
        arrival: ArrivalSource,
        from: Endpoints,
        frame: &mut [u8],
        passed: &mut VecDeque<HandedFrame>,
    ) {
        let len = frame.len() as u32;
        let incoming = [ReceivedRun { from, offset: 0, len, stride: len, congested: false }];
        let mut rings = TestRings { worker, passed: VecDeque::new(), full: self.full_rings };
        let mut turn = CallContext { now: self.now, sink: &mut self.wire, hand: &mut rings };
        let Node { relay, forwarders, cells, legs, .. } = &mut self.nodes[to];
        let before = legs.seen.len();
        let mut local = keep(cells, legs);
        match worker {
            0 => relay.handle_batch(&mut turn, frame, &incoming, arrival, &mut local),
            _ => {
                let local = self.keeping.then_some(&mut local);
                let (shard, forwarder) = &mut forwarders[usize::from(worker) - 1];
                forwarder.handle_batch(shard, &mut turn, frame, &incoming, arrival, local);
            }
        }
        drop(local);
        assert!(worker == 0 || legs.seen.len() == before, "leg cells are for the first worker");
        passed.extend(rings.passed);
        if worker == 0 {
            self.settle(to);
        }
    }

    /// Handles a frame that one worker handed to another.
    fn pass(&mut self, to: usize, next: HandedFrame, passed: &mut VecDeque<HandedFrame>) {
        let now = self.now;
        let Node { relay, forwarders, cells, legs, .. } = &mut self.nodes[to];
        let wire = &mut self.wire;
        let mut rings = TestRings { worker: 0, passed: VecDeque::new(), full: self.full_rings };
        match next {
            HandedFrame::Raw(by, worker, from, mut frame) => {
                self.arrive(to, worker, ArrivalSource::Worker(by), from, &mut frame, passed);
            }
            HandedFrame::Opened(mut frame, handed) => {
                let mut turn = CallContext { now, sink: wire, hand: &mut rings };
                relay.handle_opened(&mut turn, &mut frame, &[handed], &mut keep(cells, legs));
            }
            HandedFrame::Leaving(0, mut frame, handed) => {
                let mut turn = CallContext { now, sink: wire, hand: &mut rings };
                relay.handle_leaving(&mut turn, &mut frame, &[handed]);
            }
            HandedFrame::Released(mut frame, handed) => {
                relay.handle_released(now, &mut frame, &[handed], wire);
            }
            HandedFrame::Leaving(worker, mut frame, handed) => {
                rings.worker = worker;
                let mut turn = CallContext { now, sink: wire, hand: &mut rings };
                let (shard, forwarder) = &mut forwarders[usize::from(worker) - 1];
                forwarder.handle_leaving(shard, &mut turn, &mut frame, &[handed]);
            }
            HandedFrame::Sealed(frame, handed) => relay.handle_sealed(now, &frame, &[handed]),
        }
        passed.extend(rings.passed);
    }

    /// Passes notes and counters of the other workers to the first, and its orders to them.
    fn settle(&mut self, i: usize) {
        let Node { relay, forwarders, forwarded, forwarded_by, .. } = &mut self.nodes[i];
        for ((shard, forwarder), by) in forwarders.iter_mut().zip(forwarded_by) {
            forwarder.tell(shard, |note| {
                relay.handle_note(self.now, &note, &mut self.wire);
                true
            });
            let counted = forwarder.take_counters();
            *forwarded += counted.traffic.cells_transit;
            *by += counted.traffic.cells_transit;
            relay.add_counters(&counted);
        }
        while let Some((worker, order)) = relay.poll_order() {
            let (shard, forwarder) = &mut forwarders[usize::from(worker) - 1];
            forwarder.handle_order(shard, order);
        }
    }

    /// Makes a node drop all keys.
    pub fn rekey_all(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        self.wire.from = Some(node.at);
        node.relay.rekey_all(self.now, &[9; 32], &mut self.wire);
        self.settle(i);
    }

    fn work(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        while let Some(job) = node.relay.poll_job() {
            let done = job.run();
            node.relay.handle_done(self.now, done, &mut self.wire);
        }
        if node.relay.poll_timeout().is_some_and(|(at, _)| at <= self.now) {
            node.relay.handle_timeout(self.now, &mut self.wire);
        }
        let mut passed = VecDeque::new();
        for ((shard, forwarder), worker) in node.forwarders.iter_mut().zip(1..) {
            let mut rings = TestRings { worker, passed, full: self.full_rings };
            if forwarder.poll_timeout().is_some_and(|(at, _)| at <= self.now) {
                let mut turn =
                    CallContext { now: self.now, sink: &mut self.wire, hand: &mut rings };
                forwarder.handle_timeout(shard, &mut turn);
            }
            passed = rings.passed;
        }
        while let Some(next) = passed.pop_front() {
            self.pass(i, next, &mut passed);
        }
        self.settle(i);
    }

    fn node_at(&self, at: SocketAddr) -> Option<usize> {
        shifter(at).or_else(|| self.nodes.iter().position(|node| node.at == at))
    }

    /// Sends `n` cells from a node to an address, back to back, from a random worker.
    pub fn send(&mut self, from: usize, dst: Address, n: usize, fill: u8) {
        let workers = self.nodes[from].forwarders.len() as u64 + 1;
        let worker = self.spread.below(workers) as u8;
        self.send_by(worker, LinkKind::Cell, from, dst, n, fill);
    }

    /// Sends `n` leg cells from a node to an address, from the first worker.
    pub fn send_legs(&mut self, from: usize, dst: Address, n: usize, fill: u8) {
        self.send_by(0, LinkKind::Leg, from, dst, n, fill);
    }

    fn send_by(
        &mut self,
        worker: u8,
        kind: LinkKind,
        from: usize,
        dst: Address,
        n: usize,
        fill: u8,
    ) {
        let src = self.nodes[from].relay.source(dst);
        let mut buf = frames(dst, src, n, fill);
        let offsets: Vec<u32> = (0..n).map(|i| (i * FULL) as u32).collect();
        self.wire.from = Some(self.nodes[from].at);
        let mut rings = TestRings { worker, passed: VecDeque::new(), full: self.full_rings };
        let Node { relay, forwarders, .. } = &mut self.nodes[from];
        let mut turn = CallContext { now: self.now, sink: &mut self.wire, hand: &mut rings };
        match worker {
            0 => relay.send_cells(&mut turn, kind, &mut buf, &offsets, FULL),
            _ => {
                let (shard, forwarder) = &mut forwarders[usize::from(worker) - 1];
                forwarder.send_cells(shard, &mut turn, kind, &mut buf, &offsets, FULL);
            }
        }
        let mut passed = rings.passed;
        while let Some(next) = passed.pop_front() {
            self.pass(from, next, &mut passed);
        }
        self.settle(from);
    }
}

/// Consumes the cells for a node, and sends its leg cells on.
fn keep<H>(
    cells: &mut Vec<(Address, Vec<u8>)>,
    legs: &mut LegRecord,
) -> impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64 {
    |buf, found, _| {
        assert!(found.from.iter().all(|link| link.bits() < 8));
        let count = found.count();
        let read = |buf: &[u8], at: u32| {
            let frame = &buf[at as usize..at as usize + found.len];
            let header = RoutedHeader::parse(&frame[link::ROUTED_AT..]).expect("checked");
            let payload = &frame[link::CELL_AT..found.len - shoal_wire::TAG_LEN];
            (header.src(), payload.to_vec())
        };
        cells.extend(found.offsets.iter().map(|&at| read(buf, at)));
        for &at in found.legs {
            let (source, payload) = read(buf, at);
            legs.seen.push((source, payload));
            if let Some((from, to)) = legs.onward {
                address(&mut buf[at as usize..], to, from);
                match legs.due {
                    Some(due) => found.mixed.push(MixedCell { at, due, from: source }),
                    None => found.onward.push(at),
                }
            }
        }
        count
    }
}

/// Writes the routed header of a frame of class bulk.
pub fn address(frame: &mut [u8], dst: Address, src: Address) {
    let header = RoutedHeader::new(dst, src, TrafficClass::Bulk);
    frame[link::ROUTED_AT..link::CELL_AT].copy_from_slice(header.as_bytes());
}

/// `n` full frames with routed headers and a payload of `fill`.
pub fn frames(dst: Address, src: Address, n: usize, fill: u8) -> Vec<u8> {
    let mut buf = vec![fill; n * FULL];
    buf.chunks_mut(FULL).for_each(|frame| address(frame, dst, src));
    buf
}
