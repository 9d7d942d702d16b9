//! A few relays in memory, joined by perfect wires, under one clock.

mod asleep;
mod hops;

use std::collections::VecDeque;
use std::net::SocketAddr;

use core::time::Duration;
use shoal_crypto::{Identity, NetworkSecret, Rng};
use shoal_relay::{
    Arrival, Config, Forwarder, FrameAt, Handed, Handoff, Incoming, LinkConfig, LocalCells,
    MixedCell, Path, Relay, SendOutcome, Sink, Stop, Turn, Unfinished,
};
use shoal_session::{Endpoints, SessionShard};
use shoal_wire::{Address, LinkKind, RoutedHeader, SizeClass, Time, TrafficClass, link};
use zerocopy::IntoBytes;

#[allow(unused_imports, reason = "each test file uses its part")]
pub use hops::{Walls, hop_prefix, hopper, moved_prefix, under};

/// Length of a full frame.
pub const FULL: usize = SizeClass::Full.frame_len();

/// A wire's end: keeps what was sent.
#[derive(Default)]
pub struct Wire {
    /// Datagrams on their way: sender, receiver, bytes.
    pub sent: VecDeque<(SocketAddr, SocketAddr, Vec<u8>)>,
    /// Who sends now.
    pub from: Option<SocketAddr>,
    /// Longest frame that the path carries; `None` is any. The device says so itself if `says`.
    pub longest: Option<usize>,
    pub says: bool,
    /// Frames that still find room below; `None` is endless.
    pub room: Option<usize>,
    /// The paths of all sends, if a test looks at them.
    pub paths: Option<Vec<Path>>,
    /// All frames that were sent, if a test looks at them.
    pub seen: Option<Vec<Vec<u8>>>,
}

impl Sink for Wire {
    fn send(&mut self, path: Path, buf: &[u8], offsets: &[u32], len: usize) -> SendOutcome {
        let to = path.ends.remote;
        self.paths.iter_mut().for_each(|paths| paths.push(path));
        let mut sent = 0;
        let too_long = self.longest.is_some_and(|longest| len > longest);
        if too_long {
            let stop = self.says.then_some(Stop::TooLong);
            return SendOutcome { sent: if self.says { 0 } else { offsets.len() }, stop };
        }
        for &at in offsets {
            if let Some(room) = &mut self.room {
                if *room == 0 {
                    return SendOutcome { sent, stop: Some(Stop::Full) };
                }
                *room -= 1;
            }
            let hops = path.ends.local.filter(|local| hopper(*local).is_some());
            let from = hops.unwrap_or(self.from.expect("a sender"));
            let frame = buf[at as usize..at as usize + len].to_vec();
            self.seen.iter_mut().for_each(|seen| seen.push(frame.clone()));
            self.sent.push_back((from, to, frame));
            sent += 1;
        }
        SendOutcome { sent, stop: None }
    }
}

/// One node of the test network.
pub struct Node {
    /// Its machine.
    pub relay: Relay,
    /// Its other workers, from number 1 on.
    pub forwarders: Vec<(SessionShard, Forwarder)>,
    /// Cells that they passed on.
    pub forwarded: u64,
    /// Cells that each of them passed on.
    pub forwarded_by: Vec<u64>,
    /// Its socket's address.
    pub at: SocketAddr,
    /// Cells that arrived for it: source, payload.
    pub cells: Vec<(Address, Vec<u8>)>,
    /// Leg cells that arrived for it.
    pub legs: Legs,
}

/// What becomes of leg cells at a node.
#[derive(Default)]
pub struct Legs {
    /// Those that arrived: source, payload.
    pub seen: Vec<(Address, Vec<u8>)>,
    /// From here to there, if they go on.
    pub onward: Option<(Address, Address)>,
    /// When they leave; at once if it isn't said.
    pub due: Option<Time>,
}

/// Frames that went one way.
pub struct Watch {
    /// From here, or from anywhere.
    pub from: Option<SocketAddr>,
    /// To here.
    pub to: SocketAddr,
    /// Lengths of frames.
    pub seen: Vec<usize>,
    /// When they were sent.
    pub at: Vec<Time>,
}

/// Somebody on the wire between two nodes, who has no key and injects copies that are faster than
/// the originals, which take ten milliseconds.
pub struct Race {
    /// Whose frames are copied, and to whom they go.
    pub pair: (usize, usize),
    /// The source that the copies bear: a third machine.
    pub victim: SocketAddr,
    /// Whether all frames that go to the victim are copied to the first node, or only small ones.
    pub copies_all: bool,
    /// Small frames to where the first node is get lost.
    pub loses_small: bool,
    /// The originals on their way, and when they arrive.
    pub late: VecDeque<(Time, SocketAddr, SocketAddr, Vec<u8>)>,
    /// Bytes that went to the victim.
    pub bytes: usize,
}

impl Race {
    /// One that loses nothing.
    pub fn new(pair: (usize, usize), victim: SocketAddr) -> Race {
        let late = VecDeque::new();
        Race { pair, victim, copies_all: false, loses_small: false, late, bytes: 0 }
    }
}

/// The network: node `i` has the socket address 10.0.0.(i+1):7400.
pub struct Net {
    /// The clock.
    pub now: Time,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// What is on its way.
    pub wire: Wire,
    /// The address at its receiver that datagrams come to, if the receiver is told.
    pub local: Option<SocketAddr>,
    /// Pairs of nodes between which nothing passes.
    pub cut: Vec<(usize, usize)>,
    /// What goes to the prefix of the first is lost, and what comes from that of the second.
    pub unrouted: [Option<usize>; 2],
    /// Firewalls that let in only what answers, if there are any.
    pub walls: Option<Walls>,
    /// The prefix that is routed to each node, others that are besides, and nodes that know another
    /// one: a translator before them puts the one in the other's place.
    pub routed: Vec<[u8; 8]>,
    pub also: Vec<[u8; 8]>,
    pub translated: Vec<usize>,
    /// From the first to the second node one of so many frames gets lost.
    pub lossy: Option<(usize, usize, u64)>,
    /// Frames of more bytes than these get lost from the first to the second node.
    pub narrow: Vec<(usize, usize, usize)>,
    /// Says at which worker a datagram arrives.
    pub spread: Rng,
    /// Whether frames that workers hand to each other get lost.
    pub full_rings: bool,
    /// Workers after the first keep cells for their node, as those do that serve programs.
    pub keeping: bool,
    /// What is watched, if anything.
    pub watches: [Option<Watch>; 2],
    /// Who races frames, if anybody does.
    pub race: Option<Race>,
}

/// What workers hand to each other.
enum Passed {
    Raw(u8, u8, Endpoints, Vec<u8>),
    Opened(Vec<u8>, Handed),
    Leaving(u8, Vec<u8>, Handed),
    Released(Vec<u8>, Handed),
    Sealed(Vec<u8>, Handed),
}

/// The rings of one worker.
struct Rings {
    worker: u8,
    passed: VecDeque<Passed>,
    full: bool,
}

impl Handoff for Rings {
    fn take(&mut self, what: Unfinished<'_>, frame: FrameAt<'_>) -> bool {
        let bytes = frame.bytes().to_vec();
        let handed = |link, congested| Handed { link, at: 0, len: frame.len, congested };
        let (to, passed) = match what {
            Unfinished::Raw { worker, from } => {
                (worker, Passed::Raw(self.worker, worker, from.from, bytes))
            }
            Unfinished::Unknown { from } => (0, Passed::Raw(self.worker, 0, from.from, bytes)),
            Unfinished::Opened { link, congested } => {
                (0, Passed::Opened(bytes, handed(link, congested)))
            }
            Unfinished::Leaving { worker, link } => {
                (worker, Passed::Leaving(worker, bytes, handed(link, false)))
            }
            Unfinished::Released { link } => (0, Passed::Released(bytes, handed(link, false))),
            Unfinished::Sealed { link } => (0, Passed::Sealed(bytes, handed(link, false))),
        };
        assert_ne!(to, self.worker, "a worker hands to itself");
        if !self.full {
            self.passed.push_back(passed);
        }
        !self.full
    }
}

/// Socket address of a node.
pub fn socket(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node as u8 + 1], 7400))
}

/// Key of a node.
pub fn identity(node: usize) -> Identity {
    Identity::from_seed([node as u8 + 1; 32])
}

/// Constants of the test network.
pub fn config(address: Address) -> Config {
    Config {
        address,
        session: shoal_session::Config::new(shoal_session::Role::Link),
        liveness: shoal_link::LivenessConfig::default(),
        egress: shoal_link::EgressConfig::default(),
        hold: shoal_relay::HoldConfig::default(),
        routing: shoal_routing::Config::default(),
        events_max: 1_024,
    }
}

impl Net {
    /// Nodes at `addresses`, joined by `links`; the first of each pair calls the second.
    pub fn new(addresses: &[Address], links: &[(usize, usize)]) -> Net {
        Net::with(addresses, links, |_| {})
    }

    /// Nodes at `addresses`, joined by `links`, with constants that `change` changes.
    pub fn with(
        addresses: &[Address],
        links: &[(usize, usize)],
        change: impl Fn(&mut Config),
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
            let (at, cells, legs) = (socket(i), Vec::new(), Legs::default());
            Node { relay, forwarders, forwarded: 0, forwarded_by, at, cells, legs }
        };
        let nodes = addresses.iter().enumerate().map(make).collect();
        let (wire, spread) = (Wire::default(), Rng::new([5; 32]));
        let mut net = Net {
            now,
            nodes,
            wire,
            local: None,
            cut: Vec::new(),
            unrouted: [None; 2],
            walls: None,
            routed: (0..addresses.len()).map(hop_prefix).collect(),
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

    /// Lets time pass in steps of a millisecond.
    pub fn run(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            self.step();
            self.now = self.now + Duration::from_millis(1);
        }
    }

    /// Delivers everything and does what is due, at one instant.
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
            self.local = if hopper(to).is_some() { Some(to) } else { local };
            self.deliver(b, from, &mut frame);
            self.local = local;
        }
    }

    /// Originals whose copies were faster.
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

    /// Copies a datagram if there is a race; says whether the original comes later or not at all.
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

    /// Hands one datagram to a node, at whichever of its workers it happens to arrive.
    pub fn deliver(&mut self, to: usize, from: SocketAddr, frame: &mut [u8]) {
        let from = Endpoints { local: self.local, remote: from };
        let workers = self.nodes[to].forwarders.len() as u64 + 1;
        let worker = self.spread.below(workers) as u8;
        self.wire.from = Some(self.nodes[to].at);
        let mut passed = VecDeque::new();
        self.arrive(to, worker, Arrival::Socket, from, frame, &mut passed);
        for _ in 0..8 {
            let Some(next) = passed.pop_front() else { break };
            self.pass(to, next, &mut passed);
        }
        assert!(passed.is_empty(), "frames go round between workers");
        self.work(to);
    }

    /// One datagram at one worker.
    fn arrive(
        &mut self,
        to: usize,
        worker: u8,
        arrival: Arrival,
        from: Endpoints,
        frame: &mut [u8],
        passed: &mut VecDeque<Passed>,
    ) {
        let len = frame.len() as u32;
        let incoming = [Incoming { from, offset: 0, len, stride: len, congested: false }];
        let mut rings = Rings { worker, passed: VecDeque::new(), full: self.full_rings };
        let mut turn = Turn { now: self.now, sink: &mut self.wire, hand: &mut rings };
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

    /// What one worker hands to another.
    fn pass(&mut self, to: usize, next: Passed, passed: &mut VecDeque<Passed>) {
        let now = self.now;
        let Node { relay, forwarders, cells, legs, .. } = &mut self.nodes[to];
        let wire = &mut self.wire;
        let mut rings = Rings { worker: 0, passed: VecDeque::new(), full: self.full_rings };
        match next {
            Passed::Raw(by, worker, from, mut frame) => {
                self.arrive(to, worker, Arrival::Worker(by), from, &mut frame, passed);
            }
            Passed::Opened(mut frame, handed) => {
                let mut turn = Turn { now, sink: wire, hand: &mut rings };
                relay.handle_opened(&mut turn, &mut frame, &[handed], &mut keep(cells, legs));
            }
            Passed::Leaving(0, mut frame, handed) => {
                let mut turn = Turn { now, sink: wire, hand: &mut rings };
                relay.handle_leaving(&mut turn, &mut frame, &[handed]);
            }
            Passed::Released(mut frame, handed) => {
                relay.handle_released(now, &mut frame, &[handed], wire);
            }
            Passed::Leaving(worker, mut frame, handed) => {
                rings.worker = worker;
                let mut turn = Turn { now, sink: wire, hand: &mut rings };
                let (shard, forwarder) = &mut forwarders[usize::from(worker) - 1];
                forwarder.handle_leaving(shard, &mut turn, &mut frame, &[handed]);
            }
            Passed::Sealed(frame, handed) => relay.handle_sealed(now, &frame, &[handed]),
        }
        passed.extend(rings.passed);
    }

    /// Brings notes and counters of the other workers to the first, and its orders to them.
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

    /// Has a node forget all keys.
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
            let mut rings = Rings { worker, passed, full: self.full_rings };
            if forwarder.poll_timeout().is_some_and(|(at, _)| at <= self.now) {
                let mut turn = Turn { now: self.now, sink: &mut self.wire, hand: &mut rings };
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
        hopper(at).or_else(|| self.nodes.iter().position(|node| node.at == at))
    }

    /// Sends `n` cells from one node to an address, back to back; whichever worker it happens to be
    /// that has them to send.
    pub fn send(&mut self, from: usize, dst: Address, n: usize, fill: u8) {
        let workers = self.nodes[from].forwarders.len() as u64 + 1;
        let worker = self.spread.below(workers) as u8;
        self.send_by(worker, LinkKind::Cell, from, dst, n, fill);
    }

    /// Sends `n` leg cells from one node to an address; control does.
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
        let src = self.nodes[from].relay.address();
        let mut buf = frames(dst, src, n, fill);
        let offsets: Vec<u32> = (0..n).map(|i| (i * FULL) as u32).collect();
        self.wire.from = Some(self.nodes[from].at);
        let mut rings = Rings { worker, passed: VecDeque::new(), full: self.full_rings };
        let Node { relay, forwarders, .. } = &mut self.nodes[from];
        let mut turn = Turn { now: self.now, sink: &mut self.wire, hand: &mut rings };
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

/// Keeps the cells that are for a node, and sends its leg cells on.
fn keep<H>(
    cells: &mut Vec<(Address, Vec<u8>)>,
    legs: &mut Legs,
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
