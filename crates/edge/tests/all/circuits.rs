//! Two hosts over simulated circuits. These carry units and handshakes, lose or delay some, and
//! change under the session.

mod policy;
mod way;

use std::collections::{BTreeMap, VecDeque};

use core::time::Duration;
use shoal_crypto::{Identity, NetworkSecret};
use shoal_edge::{
    DirectConfig, Edge, EdgeConfig, EdgeEvent, EdgeOutput, HostConfig, HostId, InboundCells,
    PacketFlow,
};
use shoal_transfer::{ChunkSet, FileTransferEvent as FileEvent, OfferInfo};
use shoal_wire::leg::{self, CellShape};
use shoal_wire::{
    Address, CircuitId, DropReason, EdgeKind, Level, LinkKind, RoutedHeader, SizeClass, Time,
    TrafficClass, link,
};
use zerocopy::IntoBytes;

const AT: [Address; 2] = [Address::new(1, 1), Address::new(2, 1)];
const FULL: usize = SizeClass::Full.frame_len();
const UNIT_AT: usize = link::CELL_AT + leg::BODY_AT;

fn shape(tags: u8) -> CellShape {
    CellShape::new(tags).expect("a sound shape")
}

/// Something that a host sent.
#[derive(Clone, Debug, PartialEq)]
enum SentCell {
    Cell(Vec<u8>),
    Direct(Vec<u8>),
    Unit(CircuitId, Vec<u8>),
    Handshake(CircuitId, Vec<u8>),
}

/// The output of one host.
#[derive(Default)]
struct HostOutput {
    sent: VecDeque<SentCell>,
    may_go_direct: bool,
}

impl EdgeOutput for HostOutput {
    fn cells(&mut self, _: Time, buf: &mut [u8], offsets: &[u32], len: usize) {
        let frames = offsets.iter().map(|&at| buf[at as usize..at as usize + len].to_vec());
        self.sent.extend(frames.map(SentCell::Cell));
    }

    fn room(&self, _: Address) -> usize {
        512
    }

    fn is_congested(&self, _: Address) -> bool {
        false
    }

    fn may_go_direct(&self, _: Address) -> bool {
        self.may_go_direct
    }

    fn direct(&mut self, _: Time, buf: &mut [u8], offsets: &[u32], len: usize) {
        for &at in offsets {
            let mut frame = buf[at as usize..at as usize + len].to_vec();
            frame[link::KIND_AT] = LinkKind::Direct as u8;
            self.sent.push_back(SentCell::Direct(frame));
        }
    }

    fn unit(&mut self, _: Time, circuit: CircuitId, buf: &mut [u8], offsets: &[u32]) {
        for &at in offsets {
            let mut frame = buf[at as usize..at as usize + FULL].to_vec();
            // The fields that a circuit writes around a unit.
            frame[..UNIT_AT].fill(0);
            let header = RoutedHeader::new(AT[0], AT[1], TrafficClass::Bulk);
            frame[link::ROUTED_AT..link::CELL_AT].copy_from_slice(header.as_bytes());
            self.sent.push_back(SentCell::Unit(circuit, frame));
        }
    }

    fn hidden_handshake(&mut self, _: Time, circuit: CircuitId, cell: &[u8]) {
        self.sent.push_back(SentCell::Handshake(circuit, cell.to_vec()));
    }

    fn circuit_room(&self, _: CircuitId) -> usize {
        512
    }

    fn circuit_is_congested(&self, _: CircuitId) -> bool {
        false
    }
}

struct Host {
    edge: Edge,
    peer: HostId,
    way: HostOutput,
    echoes: Vec<u32>,
    /// Plaintexts of the packets that arrived.
    packets: Vec<Vec<u8>>,
    /// Open requests for circuits, and (`asked`) the number of all requests so far.
    needs: usize,
    asked: usize,
    unreachable: usize,
    established: usize,
    drops: BTreeMap<DropReason, u64>,
    /// The file that the host sends or receives, and the numbers of complete and failed transfers.
    file: Vec<u8>,
    whole: usize,
    failed: usize,
}

impl Host {
    fn new(number: usize, now: Time) -> Host {
        let identity = |n: usize| Identity::from_seed([n as u8 + 1; 32]);
        let config = EdgeConfig {
            address: AT[number],
            session: shoal_session::SessionConfig {
                lanes: 4,
                ..shoal_session::SessionConfig::new(shoal_session::SessionRole::Edge)
            },
            transfer: shoal_transfer::TransferConfig::default(),
            echo_max: 16,
            direct: Some(DirectConfig {
                proactive: false,
                endpoint: Some(([10, 0, 0, number as u8], 7_400).into()),
                weakest: Level::None,
                groups: Vec::new(),
                idle: Duration::from_secs(60),
                links_max: 8,
            }),
            ip: true,
            events_max: 64,
        };
        let (seed, secret) = ([number as u8 + 9; 32], NetworkSecret([1; 32]));
        let mut edge = Edge::new(config, identity(number), secret, seed, now, 1_800_000_000_000);
        let other = HostConfig { key: identity(1 - number).public(), address: AT[1 - number] };
        let peer = edge.add_host(&other).expect("room for one");
        Host {
            edge,
            peer,
            way: HostOutput::default(),
            echoes: Vec::new(),
            packets: Vec::new(),
            needs: 0,
            asked: 0,
            unreachable: 0,
            established: 0,
            drops: BTreeMap::new(),
            file: Vec::new(),
            whole: 0,
            failed: 0,
        }
    }

    fn work(&mut self, now: Time) {
        while let Some(job) = self.edge.poll_job() {
            self.edge.handle_done(now, job.run());
        }
        self.edge.handle_timeout(now);
        self.edge.drive(now, &mut self.way);
        self.show_released();
        while let Some(event) = self.edge.poll_event() {
            match event {
                EdgeEvent::Echo { seq, .. } => self.echoes.push(seq),
                EdgeEvent::NeedCircuit(host) => {
                    assert_eq!(host, self.peer);
                    (self.needs, self.asked) = (self.needs + 1, self.asked + 1);
                }
                EdgeEvent::Unreachable(_) => self.unreachable += 1,
                EdgeEvent::Established(_) => self.established += 1,
                EdgeEvent::Transfer(event) => self.serve(now, event),
                EdgeEvent::Direct(_) => {}
            }
        }
        for (reason, n) in self.edge.take_drops() {
            *self.drops.entry(reason).or_default() += n;
        }
    }

    /// Simulates disks that answer at once.
    fn serve(&mut self, now: Time, event: FileEvent) {
        let transfers = self.edge.transfers();
        match event {
            FileEvent::Offered { id, info, .. } => {
                self.file = vec![0; info.size as usize];
                transfers.accept(now, id, &ChunkSet::default());
            }
            FileEvent::Read { id, index, offset, len, mut buffer } => {
                buffer[..len].copy_from_slice(&self.file[offset as usize..][..len]);
                transfers.chunk_read(now, id, index, buffer);
            }
            FileEvent::Write { id, index, offset, len, data } => {
                self.file[offset as usize..][..len].copy_from_slice(&data[..len]);
                transfers.chunk_written(now, id, index, data);
            }
            FileEvent::HashWanted { id } => {
                let hash = shoal_crypto::hash(&self.file);
                transfers.source_hash(now, id, hash);
                transfers.sink_hash(now, id, hash);
            }
            FileEvent::Complete { id, .. } => {
                self.whole += 1;
                transfers.confirm(now, id);
            }
            FileEvent::Finished { .. } => self.whole += 1,
            FileEvent::Failed { .. } => self.failed += 1,
            FileEvent::Accepted { .. } => {}
        }
    }

    fn offer(&mut self, now: Time, len: usize) {
        self.file = (0..len).map(|i| (i * 31 % 251) as u8).collect();
        let offer = OfferInfo {
            name: "some file".into(),
            size: len as u64,
            modified_ns: 1,
            file_id: [3; 16],
            executable: false,
            segment: self.edge.segment_len(self.peer),
        };
        self.edge.offer(now, self.peer, offer).expect("room for one");
    }

    /// Number of drops with this reason, including those that the sessions count.
    fn dropped(&self, reason: DropReason) -> u64 {
        let counted = self.drops.get(&reason).copied().unwrap_or(0);
        counted + self.edge.sessions().drops()[reason as usize]
    }

    fn send_packet(&mut self, now: Time, len: usize, number: u32) {
        let flow = PacketFlow { host: self.peer, number: 0, stream: 1 };
        self.edge.send_packet(now, flow, len, &mut self.way, |plain| {
            plain.fill(0);
            plain[0] = EdgeKind::Ip as u8;
            plain[2..6].copy_from_slice(&number.to_be_bytes());
            plain[len - 1] = 0xaa;
        });
    }

    fn numbers(&self) -> Vec<u32> {
        let number = |p: &Vec<u8>| u32::from_be_bytes([p[2], p[3], p[4], p[5]]);
        self.packets.iter().map(number).collect()
    }

    fn take(&mut self, now: Time, (circuit, shape): (CircuitId, CellShape), sent: SentCell) {
        match sent {
            SentCell::Cell(mut frame) | SentCell::Direct(mut frame) => {
                let len = frame.len();
                self.edge.handle_cells(now, InboundCells::new(&mut frame, &[0], len), &mut ());
                self.show(&frame);
            }
            SentCell::Unit(_, mut frame) => {
                let cells = InboundCells::new(&mut frame, &[0], FULL);
                self.edge.handle_units(now, (circuit, shape), cells);
                self.show(&frame);
                self.show_released();
            }
            SentCell::Handshake(_, mut cell) => {
                if let Err(reason) = self.edge.handle_hidden_handshake(now, circuit, &mut cell) {
                    *self.drops.entry(reason).or_default() += 1;
                }
            }
        }
    }

    fn show_released(&mut self) {
        let Host { edge, packets, peer, .. } = self;
        edge.take_released(|arrivals, buf| {
            for arrival in arrivals {
                assert_eq!(arrival.host, *peer);
                packets.push(buf[arrival.at as usize..][..arrival.len as usize].to_vec());
            }
        });
    }

    fn show(&mut self, frame: &[u8]) {
        for arrival in self.edge.arrivals() {
            assert_eq!(arrival.host, self.peer);
            let at = arrival.at as usize;
            self.packets.push(frame[at..at + arrival.len as usize].to_vec());
        }
    }
}

/// A circuit: its id at each end, and whether it still works.
#[derive(Clone, Copy)]
struct SimulatedCircuit {
    origin: usize,
    ids: [CircuitId; 2],
    shape: CellShape,
    open: bool,
    /// Handshake cells of the origin that the destination may answer.
    asks: usize,
    /// Transit time of its cells.
    delay: Duration,
}

struct Pair {
    now: Time,
    hosts: [Host; 2],
    circuits: Vec<SimulatedCircuit>,
    /// Cells in flight: arrival time, receiver, circuit and content.
    under_way: Vec<(Time, usize, (CircuitId, CellShape), SentCell)>,
    /// True if circuits are built as soon as one is requested.
    makes: bool,
}

impl Pair {
    fn plain() -> Pair {
        let now = Time::from_millis(1_000);
        let hosts = [Host::new(0, now), Host::new(1, now)];
        Pair { now, hosts, circuits: Vec::new(), under_way: Vec::new(), makes: true }
    }

    /// The first host's policy requires circuits. The second host learns this from the first
    /// circuit.
    fn hidden() -> Pair {
        let mut pair = Pair::plain();
        pair.hide(0, 3);
        pair
    }

    fn hide(&mut self, at: usize, tags: u8) {
        let host = &mut self.hosts[at];
        host.edge.set_hidden(&BTreeMap::from([(host.peer, shape(tags))]));
    }

    fn make(&mut self, origin: usize, tags: u8) -> usize {
        let number = self.circuits.len() as u32;
        let ids = [number * 2 + 1_000, number * 2 + 2_001].map(CircuitId::from_bits);
        self.circuits.push(SimulatedCircuit {
            origin,
            ids,
            shape: shape(tags),
            open: true,
            asks: 0,
            delay: Duration::ZERO,
        });
        let host = &mut self.hosts[origin];
        host.edge.set_circuit(host.peer, Some((ids[origin], shape(tags))));
        self.circuits.len() - 1
    }

    fn end(&mut self, circuit: usize) {
        let SimulatedCircuit { ids, .. } = self.circuits[circuit];
        self.circuits[circuit].open = false;
        for (host, id) in self.hosts.iter_mut().zip(ids) {
            host.edge.circuit_ended(self.now, id);
        }
    }

    fn run(&mut self, ms: u64) {
        self.run_with(ms, |_, _| true);
    }

    /// Advances time. `passes` gets each sender and cell, and returns whether the cell arrives.
    fn run_with(&mut self, ms: u64, mut passes: impl FnMut(usize, &SentCell) -> bool) {
        for _ in 0..ms * 2 {
            for from in 0..2 {
                self.hosts[from].work(self.now);
                if self.makes && core::mem::take(&mut self.hosts[from].needs) > 0 {
                    self.make(from, 3);
                    self.hosts[from].work(self.now);
                }
                while let Some(sent) = self.hosts[from].way.sent.pop_front() {
                    if passes(from, &sent) {
                        self.carry(from, sent);
                    }
                }
            }
            self.now = self.now + Duration::from_micros(500);
            let now = self.now;
            for (_, to, on, sent) in self.under_way.extract_if(.., |cell| cell.0 <= now) {
                self.hosts[to].take(now, on, sent);
            }
        }
    }

    fn carry(&mut self, from: usize, sent: SentCell) {
        let mut on = (CircuitId::from_bits(0), shape(1));
        let mut delay = Duration::ZERO;
        if let SentCell::Unit(circuit, _) | SentCell::Handshake(circuit, _) = &sent {
            let is_it = |c: &&mut SimulatedCircuit| c.ids[from] == *circuit && c.open;
            let Some(known) = self.circuits.iter_mut().find(is_it) else { return };
            on = (known.ids[1 - from], known.shape);
            delay = known.delay;
            match (&sent, known.origin == from) {
                (SentCell::Unit(..), _) => {}
                (_, true) => known.asks += 1,
                (_, false) => {
                    known.asks = known.asks.checked_sub(1).expect("the destination only answers");
                }
            }
        }
        if delay.is_zero() {
            return self.hosts[1 - from].take(self.now, on, sent);
        }
        self.under_way.push((self.now + delay, 1 - from, on, sent));
    }

    fn ping(&mut self, from: usize, seq: u32) {
        let host = &mut self.hosts[from];
        host.edge.ping(host.peer, 1, seq).expect("room");
    }
}

fn is_hidden(sent: &SentCell) -> bool {
    matches!(sent, SentCell::Unit(..) | SentCell::Handshake(..))
}
