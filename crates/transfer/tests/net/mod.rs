//! Hosts with transfers on an emulated network, under a virtual clock.

#![allow(dead_code, unused_imports)]

mod rival;
mod stage;

use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use shoal_transfer::{
    CHUNK_SEGMENTS, ChunkSet, FileProgress, FileTransferEvent, MixDelay, OfferInfo, PeerKey,
    RefuseReason, SegmentLen, TransferConfig, TransferFailure, TransferId, Transfers,
};
use shoal_wire::transfer::{SEGMENT_HEADER_LEN, SEGMENT_LEN, Segment};
use shoal_wire::{EdgeKind, SizeClass, Time};

use rival::SentPacket;
pub use rival::{NewRival, Rival};
pub use stage::{Dice, LinkStage, jain};

/// Ethernet, IPv4 and UDP around a frame.
const WIRE_EXTRA: u64 = 42;
pub const SEGMENT_WIRE: f64 = 1_482.0;
/// File bytes per wire byte.
pub const SHARE: f64 = SEGMENT_LEN as f64 / SEGMENT_WIRE;

pub const MS: u64 = 1_000_000;

enum NetEvent {
    Packet { from: u32, to: u32, hop: usize, marked: bool, bytes: Box<[u8]> },
    Read { host: u32, id: TransferId, index: u32, data: Box<[u8]> },
    Written { host: u32, id: TransferId, index: u32, data: Box<[u8]> },
    Hashed { host: u32, id: TransferId },
    Wake { host: u32 },
    RivalSend { n: usize },
    RivalHears { n: usize, sent: SentPacket, lost: bool },
}

struct QueuedEvent(u64, u64, NetEvent);
impl PartialEq for QueuedEvent {
    fn eq(&self, other: &QueuedEvent) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for QueuedEvent {}
impl PartialOrd for QueuedEvent {
    fn partial_cmp(&self, other: &QueuedEvent) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for QueuedEvent {
    fn cmp(&self, other: &QueuedEvent) -> std::cmp::Ordering {
        (other.0, other.1).cmp(&(self.0, self.1))
    }
}

pub struct EmulatedHost {
    pub transfers: Transfers,
    pub stall_until: u64,
    wake: u64,
    pub started: BTreeMap<TransferId, u64>,
    pub complete: BTreeMap<TransferId, u64>,
    pub finished: BTreeMap<TransferId, (u64, FileProgress)>,
    pub failed: BTreeMap<TransferId, TransferFailure>,
    pub offered: Vec<TransferId>,
    pub resumed: u64,
    pub sizes: BTreeMap<TransferId, u64>,
    pub written: BTreeMap<TransferId, ChunkSet>,
    pub refuse: Option<RefuseReason>,
    /// Chunks that exist when the next file is accepted.
    pub have: Option<ChunkSet>,
    pub write_ns: u64,
    pub bad_hash: bool,
    /// True if the receiver has the files already, and only compares.
    pub compares: bool,
    /// Time for hashing a file, and the number of requests to hash.
    pub hash_ns: u64,
    pub hashes_wanted: u64,
    /// Backlog of the first stage, in bytes, above which the egress is full.
    pub egress: f64,
    pub messages: u64,
    pub drops: u64,
}

pub struct EmulatedNet {
    pub now: u64,
    heap: BinaryHeap<QueuedEvent>,
    serial: u64,
    pub hosts: Vec<EmulatedHost>,
    pub stages: Vec<LinkStage>,
    /// TCP connections over the first stage; the way back only adds its delay.
    pub rivals: Vec<Rival>,
    pub routes: BTreeMap<(u32, u32), Vec<usize>>,
    pub dice: Dice,
    /// Mean time between stalls of a host, and their greatest length; 0 for none.
    pub stall_every_ns: u64,
    pub stall_ns: u64,
    next_stall: u64,
    pub lost_data: u64,
    pub sent_data: u64,
    pub nack_loss: f64,
    /// Segment length of all transfers.
    pub segment: SegmentLen,
}

fn pattern(offset: u64) -> [u8; 8] {
    offset.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

fn fill(offset: u64, len: usize, buffer: &mut [u8]) {
    for at in (0..len).step_by(SEGMENT_LEN) {
        let n = (len - at).min(8);
        buffer[at..at + n].copy_from_slice(&pattern(offset + at as u64)[..n]);
    }
}

fn check(offset: u64, len: usize, buffer: &[u8]) {
    for at in (0..len).step_by(SEGMENT_LEN) {
        let n = (len - at).min(8);
        assert_eq!(buffer[at..at + n], pattern(offset + at as u64)[..n], "at {offset}+{at}");
    }
}

impl EmulatedNet {
    pub fn new(hosts: usize, stages: Vec<LinkStage>, seed: u64) -> EmulatedNet {
        EmulatedNet::with(hosts, stages, seed, &TransferConfig::default())
    }

    pub fn with(
        hosts: usize,
        stages: Vec<LinkStage>,
        seed: u64,
        config: &TransferConfig,
    ) -> EmulatedNet {
        let start = 1_000_000_000;
        let host = |n: usize| EmulatedHost {
            transfers: Transfers::new(config.clone(), [n as u8 + seed as u8; 32], Time(start)),
            stall_until: 0,
            wake: u64::MAX,
            started: BTreeMap::new(),
            complete: BTreeMap::new(),
            finished: BTreeMap::new(),
            failed: BTreeMap::new(),
            offered: Vec::new(),
            resumed: 0,
            sizes: BTreeMap::new(),
            written: BTreeMap::new(),
            refuse: None,
            have: None,
            write_ns: 100_000,
            bad_hash: false,
            compares: false,
            hash_ns: 0,
            hashes_wanted: 0,
            egress: f64::MAX,
            messages: 0,
            drops: 0,
        };
        EmulatedNet {
            now: start,
            heap: BinaryHeap::new(),
            serial: 0,
            hosts: (0..hosts).map(host).collect(),
            stages,
            rivals: Vec::new(),
            routes: BTreeMap::new(),
            dice: Dice::new(seed),
            stall_every_ns: 0,
            stall_ns: 0,
            next_stall: 0,
            lost_data: 0,
            sent_data: 0,
            nack_loss: 0.0,
            segment: SegmentLen::FULL,
        }
    }

    /// Two hosts, with equal stages in both directions.
    pub fn pair(stages: Vec<LinkStage>, seed: u64) -> EmulatedNet {
        EmulatedNet::pair_with(stages, seed, &TransferConfig::default())
    }

    pub fn pair_with(stages: Vec<LinkStage>, seed: u64, config: &TransferConfig) -> EmulatedNet {
        let n = stages.len();
        let both = stages.iter().chain(stages.iter()).cloned().collect();
        let mut net = EmulatedNet::with(2, both, seed, config);
        net.routes.insert((0, 1), (0..n).collect());
        net.routes.insert((1, 0), (n..2 * n).collect());
        net
    }

    pub fn offer(&mut self, from: u32, to: u32, size: u64) -> TransferId {
        let which = self.hosts[from as usize].sizes.len() as u8;
        self.offer_again(from, to, size, which)
    }

    /// Offers a file that is identical to others of this size and `which`.
    pub fn offer_again(&mut self, from: u32, to: u32, size: u64, which: u8) -> TransferId {
        let mut file_id = [0; 16];
        file_id[..8].copy_from_slice(&size.to_le_bytes());
        file_id[8] = which;
        let info = OfferInfo {
            name: "some/file".into(),
            size,
            modified_ns: 7,
            file_id,
            executable: false,
            segment: self.segment,
        };
        let host = &mut self.hosts[from as usize];
        let id = host.transfers.offer(Time(self.now), PeerKey(to), info).unwrap();
        host.sizes.insert(id, size);
        self.turn(from);
        id
    }

    fn push(&mut self, at: u64, what: NetEvent) {
        self.serial += 1;
        self.heap.push(QueuedEvent(at, self.serial, what));
    }

    /// Tells all hosts of the mixes on the paths to each other.
    pub fn tell_mixes(&mut self) {
        let added = |way: &[usize]| added(way.iter().filter(|at| self.stages[**at].mixes).count());
        for (&(from, to), way) in &self.routes {
            self.hosts[from as usize].transfers.set_added(PeerKey(to), added(way));
        }
    }

    /// Runs until `until`, or until no event is left.
    pub fn run(&mut self, until: u64) {
        while let Some(entry) = self.heap.peek() {
            if entry.0 > until {
                break;
            }
            let QueuedEvent(at, _, what) = self.heap.pop().unwrap();
            self.now = self.now.max(at);
            self.maybe_stall();
            self.step(what);
        }
        self.now = until.max(self.now);
    }

    pub fn run_for(&mut self, time: Duration) {
        self.run(self.now + time.as_nanos() as u64);
    }

    /// Runs until `done` or for at most `limit_s` seconds.
    pub fn run_until(&mut self, limit_s: f64, done: impl Fn(&EmulatedNet) -> bool) {
        let end = self.now + (limit_s * 1e9) as u64;
        while self.now < end && !done(self) {
            self.run(self.now + MS);
        }
    }

    fn maybe_stall(&mut self) {
        if self.stall_every_ns == 0 || self.now < self.next_stall {
            return;
        }
        let length = (self.dice.unit() * self.stall_ns as f64) as u64;
        self.next_stall = self.now + (self.dice.unit() * 2.0 * self.stall_every_ns as f64) as u64;
        let at = self.dice.next() as usize % (self.hosts.len() + self.stages.len() / 2);
        if let Some(stage) = at.checked_sub(self.hosts.len()) {
            // A router stalls in both directions.
            let back = stage + self.stages.len() / 2;
            for stage in [stage, back] {
                self.stages[stage].stall_until = self.now + length;
            }
            return;
        }
        let host = at;
        let host = &mut self.hosts[host];
        // A stall is not made longer: deferred events would lose their order.
        if host.stall_until < self.now {
            host.stall_until = self.now + length;
        }
    }

    /// Defers an event of a host that stalls.
    fn deferred(&mut self, host: u32, what: NetEvent) -> Option<NetEvent> {
        let until = self.hosts[host as usize].stall_until;
        if until > self.now {
            if matches!(what, NetEvent::Wake { .. }) {
                self.hosts[host as usize].wake = until;
            }
            self.push(until, what);
            return None;
        }
        Some(what)
    }

    fn step(&mut self, what: NetEvent) {
        match what {
            NetEvent::Packet { from, to, hop, marked, bytes } => {
                self.packet(from, to, hop, marked, bytes);
            }
            NetEvent::Read { host, id, index, data } => {
                let now = Time(self.now);
                self.hosts[host as usize].transfers.chunk_read(now, id, index, data);
                self.turn(host);
            }
            NetEvent::Written { host, id, index, data } => {
                let now = Time(self.now);
                self.hosts[host as usize].transfers.chunk_written(now, id, index, data);
                self.turn(host);
            }
            NetEvent::Hashed { host, id } => {
                self.hashed(host, id);
                self.turn(host);
            }
            NetEvent::Wake { host } => {
                if self.hosts[host as usize].wake > self.now {
                    return;
                }
                self.hosts[host as usize].wake = u64::MAX;
                if let Some(NetEvent::Wake { host }) = self.deferred(host, NetEvent::Wake { host })
                {
                    let now = Time(self.now);
                    self.hosts[host as usize].transfers.handle_timeout(now);
                    self.turn(host);
                }
            }
            NetEvent::RivalSend { n } => self.rival_sends(n),
            NetEvent::RivalHears { n, sent, lost } => {
                let (now, rival) = (self.now, &mut self.rivals[n]);
                if lost {
                    rival.lost(now, sent);
                } else {
                    rival.acked(now, sent);
                }
                let at = rival.next_send.max(now);
                self.push(at, NetEvent::RivalSend { n });
            }
        }
    }

    pub fn add_rival(&mut self, rival: Rival) {
        self.rivals.push(rival);
        let n = self.rivals.len() - 1;
        self.push(self.now, NetEvent::RivalSend { n });
    }

    fn rival_sends(&mut self, n: usize) {
        let Some(sent) = self.rivals[n].send(self.now) else { return };
        let stage = &mut self.stages[0];
        let back_ns = stage.delay_ns + 100_000;
        let waits_ns = (stage.backlog(self.now) / stage.rate * 1e9) as u64;
        let passed = stage.pass(self.now, rival::WIRE, &mut self.dice);
        let lost = passed.is_none();
        // The sender notices a loss when a later packet arrives.
        let arrived = passed.map_or(self.now + waits_ns + stage.delay_ns, |(at, _)| at);
        self.push(arrived + back_ns, NetEvent::RivalHears { n, sent, lost });
        let next = self.rivals[n].next_send.max(self.now);
        self.push(next, NetEvent::RivalSend { n });
    }

    /// Payload bytes of a rival that arrived.
    pub fn rival_done(&self, n: usize) -> f64 {
        self.rivals[n].delivered as f64 * rival::PAYLOAD
    }

    fn packet(&mut self, from: u32, to: u32, hop: usize, marked: bool, bytes: Box<[u8]>) {
        let segment = bytes[0] == EdgeKind::Segment as u8;
        let data = segment && bytes[6..10] != Segment::PROBE.to_be_bytes();
        let Some(&stage) = self.routes[&(from, to)].get(hop) else {
            let what = NetEvent::Packet { from, to, hop, marked, bytes };
            if let Some(NetEvent::Packet { bytes, .. }) = self.deferred(to, what) {
                let now = Time(self.now);
                let host = &mut self.hosts[to as usize];
                let peer = PeerKey(from);
                let done = if segment {
                    host.transfers.handle_segment(now, peer, &bytes, marked)
                } else {
                    host.transfers.handle_message(now, peer, &bytes, marked)
                };
                host.drops += u64::from(done.is_err());
                self.turn(to);
            }
            return;
        };
        if hop == 0 && data {
            self.sent_data += 1;
        }
        let class = SizeClass::for_edge(bytes.len()).unwrap();
        let size = (class.frame_len() as u64 + WIRE_EXTRA) as f64;
        let unlucky = !segment && hop == 0 && self.dice.unit() < self.nack_loss;
        let passed =
            if unlucky { None } else { self.stages[stage].pass(self.now, size, &mut self.dice) };
        let Some((at, mark)) = passed else {
            self.lost_data += u64::from(data);
            return;
        };
        if self.stages[stage].duplicate > 0.0 && self.dice.unit() < self.stages[stage].duplicate {
            let bytes = bytes.clone();
            self.push(at + 1_000, NetEvent::Packet { from, to, hop: hop + 1, marked, bytes });
        }
        let at = at + self.stages[stage].mixed(&mut self.dice);
        self.push(at, NetEvent::Packet { from, to, hop: hop + 1, marked: marked | mark, bytes });
    }

    /// Runs a host's loop after an event.
    fn turn(&mut self, n: u32) {
        if self.hosts[n as usize].stall_until > self.now {
            let until = self.hosts[n as usize].stall_until;
            self.hosts[n as usize].wake = until;
            self.push(until, NetEvent::Wake { host: n });
            return;
        }
        let now = Time(self.now);
        let mut cell = vec![0; SEGMENT_HEADER_LEN + self.segment.get()];
        for _ in 0..10_000 {
            let mut idle = true;
            while let Some((peer, len)) =
                self.hosts[n as usize].transfers.poll_message(now, &mut cell)
            {
                idle = false;
                self.hosts[n as usize].messages += 1;
                let bytes = cell[..len].into();
                self.push(
                    self.now,
                    NetEvent::Packet { from: n, to: peer.0, hop: 0, marked: false, bytes },
                );
            }
            idle &= !self.bursts(n, &mut cell);
            while let Some(event) = self.hosts[n as usize].transfers.poll_event() {
                idle = false;
                self.event(n, event);
            }
            if idle {
                let next = self.hosts[n as usize].transfers.poll_timeout();
                if let Some((at, why)) = next {
                    assert!(
                        at.0 > self.now
                            || why == "segments"
                            || why == "probe"
                            || why.ends_with("unanswered"),
                        "{why} is due after draining"
                    );
                    let at = at.0.max(self.now + 20_000);
                    let host = &mut self.hosts[n as usize];
                    if at < host.wake {
                        host.wake = at;
                        self.push(at, NetEvent::Wake { host: n });
                    }
                }
                return;
            }
        }
        panic!("draining is not bounded");
    }

    fn bursts(&mut self, n: u32, cell: &mut [u8]) -> bool {
        let now = Time(self.now);
        let mut any = false;
        loop {
            let host = &mut self.hosts[n as usize];
            let (stages, routes, egress, clock) =
                (&self.stages, &self.routes, host.egress, self.now);
            let mut blocked =
                |peer: PeerKey| stages[routes[&(n, peer.0)][0]].backlog(clock) > egress;
            let Some(burst) = host.transfers.poll_burst(now, 44, &mut blocked) else { return any };
            any = true;
            for i in 0..burst.count {
                self.hosts[n as usize].transfers.write_segment(&burst, i, cell);
                let bytes = cell[..].into();
                self.step(NetEvent::Packet {
                    from: n,
                    to: burst.peer.0,
                    hop: 0,
                    marked: false,
                    bytes,
                });
            }
        }
    }

    fn event(&mut self, n: u32, event: FileTransferEvent) {
        let (now, at) = (Time(self.now), self.now);
        let host = &mut self.hosts[n as usize];
        match event {
            FileTransferEvent::Accepted { id, resumed, .. } => {
                host.resumed = resumed;
                host.started.entry(id).or_insert(at);
            }
            FileTransferEvent::Read { id, index, offset, len, mut buffer } => {
                fill(offset, len, &mut buffer);
                self.push(at + 100_000, NetEvent::Read { host: n, id, index, data: buffer });
            }
            FileTransferEvent::HashWanted { id } => {
                host.hashes_wanted += 1;
                match host.hash_ns {
                    0 => self.hashed(n, id),
                    wait => self.push(at + wait, NetEvent::Hashed { host: n, id }),
                }
            }
            FileTransferEvent::Finished { id, stats } => {
                host.finished.insert(id, (at, stats));
            }
            FileTransferEvent::Offered { id, info, .. } => {
                host.offered.push(id);
                if let Some(reason) = host.refuse {
                    return host.transfers.refuse(now, id, reason);
                }
                if host.compares {
                    let mut all = ChunkSet::new(info.chunks());
                    all.insert_range(0, info.chunks());
                    host.written.insert(id, all);
                    return host.transfers.compare(now, id);
                }
                let have = host.have.clone().unwrap_or_else(|| ChunkSet::new(info.chunks()));
                host.transfers.accept(now, id, &have);
                host.written.insert(id, have);
                host.sizes.insert(id, info.size);
            }
            FileTransferEvent::Write { id, index, offset, len, data } => {
                check(offset, len, &data);
                assert!(host.written.get_mut(&id).unwrap().insert(index), "written twice");
                let wait = host.write_ns;
                self.push(at + wait, NetEvent::Written { host: n, id, index, data });
            }
            FileTransferEvent::Complete { id, .. } => {
                assert!(host.written[&id].is_full());
                host.complete.insert(id, at);
                host.transfers.confirm(now, id);
            }
            FileTransferEvent::Failed { id, why } => {
                host.failed.insert(id, why);
            }
        }
    }

    fn hashed(&mut self, n: u32, id: TransferId) {
        let (now, host) = (Time(self.now), &mut self.hosts[n as usize]);
        let hash = if host.bad_hash { [8; 32] } else { [7; 32] };
        match id.role() {
            shoal_transfer::TransferEnd::Sender => host.transfers.source_hash(now, id, hash),
            shoal_transfer::TransferEnd::Receiver => host.transfers.sink_hash(now, id, hash),
        }
    }

    pub fn done(&self, host: u32, id: TransferId) -> bool {
        let host = &self.hosts[host as usize];
        host.finished.contains_key(&id) || host.failed.contains_key(&id)
    }

    pub fn bytes_done(&self, host: u32, id: TransferId) -> u64 {
        let host = &self.hosts[host as usize];
        match host.transfers.progress(Time(self.now), id) {
            Some(progress) => progress.bytes_done,
            None => host.sizes[&id],
        }
    }
}

/// Delay of this many stop-and-go mixes of 5 ms, capped at 25 ms.
pub fn added(mixes: usize) -> MixDelay {
    let (mean_us, hold_us) = [(0, 0), (4_837, 24_900), (9_669, 43_800), (14_510, 54_300)][mixes];
    MixDelay { mean: Duration::from_micros(mean_us), hold: Duration::from_micros(hold_us) }
}

/// Result of sending one file.
#[derive(Debug)]
pub struct FileResult {
    /// File bits per second from acceptance to complete at the receiver.
    pub rate: f64,
    /// Segments sent again per data segment lost.
    pub resent: f64,
    pub seconds: f64,
    pub peak_ms: f64,
    pub stats: FileProgress,
}

/// Sends one file from host 0 to host 1.
pub fn one(net: &mut EmulatedNet, size: u64, limit_s: f64) -> FileResult {
    let id = net.offer(0, 1, size);
    net.run_until(limit_s, |net| net.done(0, id));
    let (_, stats) = net.hosts[0].finished.get(&id).copied().unwrap_or_else(|| {
        let progress = net.hosts[0].transfers.progress(Time(net.now), id);
        panic!("not finished: {:?} {:?}", net.hosts[0].failed, progress)
    });
    let start = net.hosts[0].started[&id];
    let end = *net.hosts[1].complete.values().last().unwrap();
    let seconds = (end - start) as f64 / 1e9;
    let again = stats.retransmitted_bytes as f64 / SEGMENT_LEN as f64;
    FileResult {
        rate: size as f64 * 8.0 / seconds,
        resent: again / (net.lost_data.max(1)) as f64,
        seconds,
        peak_ms: net.stages.iter().map(|s| s.peak).fold(0.0, f64::max) * 1e3,
        stats,
    }
}

/// Share of a path's capacity that was used.
pub fn share(run: &FileResult, mbit: f64, survival: f64) -> f64 {
    run.rate / (mbit * 1e6 * SHARE * survival)
}

pub const CHUNK: u64 = (CHUNK_SEGMENTS * SEGMENT_LEN) as u64;
