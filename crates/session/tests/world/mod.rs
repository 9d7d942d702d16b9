//! Machines, a virtual clock, and an adjustable network between them.
//!
//! Each test file uses only some of these items.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use shoal_crypto::{Identity, NetworkSecret, Processor, Rng, SuiteSupport, Suites};
use shoal_session::{
    OpenResult, OpenedSessionFrame, PeerId, SessionConfig, SessionEvent, SessionRole, SessionShard,
    Sessions,
};
use shoal_wire::{DropReason, Time};

pub const SMALL: usize = 192;

/// Behaviour of the network; chances are in thousandths.
#[derive(Clone, Debug, Default)]
pub struct Knobs {
    pub loss: u64,
    pub duplicate: u64,
    pub delay_ms: u64,
    pub jitter_ms: u64,
    /// Longest packet that passes.
    pub longest: Option<usize>,
}

pub struct Packet {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub bytes: Vec<u8>,
}

pub struct Node {
    pub sessions: Sessions<SocketAddr>,
    pub addr: SocketAddr,
    pub identity: Identity,
    pub events: Vec<SessionEvent>,
    /// Numbers of the data frames that arrived, in order of arrival.
    pub got: Vec<u32>,
    pub opened: Vec<OpenedSessionFrame>,
    pub drops: BTreeMap<DropReason, u32>,
    pub sent: u64,
    pub runs_jobs: bool,
    /// Shards of the other workers, from number 1 on.
    pub shares: Vec<SessionShard>,
}

pub struct World {
    pub now: Time,
    pub rng: Rng,
    pub knobs: Knobs,
    pub nodes: Vec<Node>,
    pub wire: BTreeMap<(Time, u64), Packet>,
    /// Every packet that was sent, before loss.
    pub trace: Vec<Packet>,
    turn: u64,
}

pub fn addr(n: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, n as u8 + 1], 4_000))
}

pub fn identity(n: usize) -> Identity {
    Identity::from_seed([n as u8 + 1; 32])
}

pub fn machine(
    n: usize,
    config: SessionConfig,
    secret: u8,
    seed: u8,
    now: Time,
    unix_ms: u64,
) -> Sessions<SocketAddr> {
    let seed = [seed; 32];
    Sessions::new(config, identity(n), NetworkSecret([secret; 32]), seed, now, unix_ms)
}

impl World {
    /// `n` nodes that all know each other. Node `i`'s peer `j` has the number of `j` counted
    /// without `i`.
    pub fn new(n: usize, config: &SessionConfig, knobs: Knobs) -> World {
        let mut world = World {
            now: Time::from_millis(1_000),
            rng: Rng::new([77; 32]),
            knobs,
            nodes: Vec::new(),
            wire: BTreeMap::new(),
            trace: Vec::new(),
            turn: 0,
        };
        for i in 0..n {
            let mut config = config.clone();
            config.role = SessionRole::Link;
            let sessions = machine(i, config.clone(), 1, i as u8 + 1, world.now, 1_000_000);
            world.add(i, sessions, n);
            world.nodes[i].shares =
                (1..config.workers).map(|w| SessionShard::new(&config, w)).collect();
        }
        world
    }

    fn add(&mut self, i: usize, mut sessions: Sessions<SocketAddr>, n: usize) {
        for j in (0..n).filter(|&j| j != i) {
            let peer = sessions.add_peer(identity(j).public()).unwrap();
            sessions.set_endpoint(peer, Some(addr(j)));
        }
        self.nodes.push(Node {
            sessions,
            addr: addr(i),
            identity: identity(i),
            events: Vec::new(),
            got: Vec::new(),
            opened: Vec::new(),
            drops: BTreeMap::new(),
            sent: 0,
            runs_jobs: true,
            shares: Vec::new(),
        });
    }

    pub fn peer(&self, i: usize, j: usize) -> PeerId {
        self.nodes[i].sessions.peer_by_key(&identity(j).public()).unwrap()
    }

    pub fn connect(&mut self, i: usize, j: usize) {
        let (peer, now) = (self.peer(i, j), self.now);
        self.nodes[i].sessions.connect(now, peer);
        self.drain(i);
    }

    /// Seals a frame that carries `number` and puts it on the wire.
    pub fn send(&mut self, i: usize, j: usize, number: u32) -> Result<(), DropReason> {
        let peer = self.peer(i, j);
        self.send_kind(i, peer, addr(j), 1, number)
    }

    fn send_kind(
        &mut self,
        i: usize,
        peer: PeerId,
        to: SocketAddr,
        kind: u8,
        number: u32,
    ) -> Result<(), DropReason> {
        let mut buf = vec![0; SMALL];
        buf[8] = kind;
        buf[9..13].copy_from_slice(&number.to_be_bytes());
        let node = &mut self.nodes[i];
        node.sessions.seal_batch(self.now, peer, 0, &mut buf, &[0], SMALL)?;
        let from = node.addr;
        self.put(Packet { from, to, bytes: buf });
        self.drain(i);
        Ok(())
    }

    /// Sends bytes, subject to the knobs.
    pub fn put(&mut self, packet: Packet) {
        let copy = |p: &Packet| Packet { from: p.from, to: p.to, bytes: p.bytes.clone() };
        self.trace.push(copy(&packet));
        let too_long = self.knobs.longest.is_some_and(|longest| packet.bytes.len() > longest);
        if too_long || self.rng.below(1_000) < self.knobs.loss {
            return;
        }
        if self.rng.below(1_000) < self.knobs.duplicate {
            self.schedule(copy(&packet));
        }
        self.schedule(packet);
    }

    pub fn schedule(&mut self, packet: Packet) {
        let micros = self.knobs.delay_ms * 1_000 + self.rng.below(self.knobs.jitter_ms * 1_000 + 1);
        self.turn += 1;
        self.wire.insert((self.now + Duration::from_micros(micros), self.turn), packet);
    }

    /// Takes all output of a node, and checks the rules for machines.
    pub fn drain(&mut self, i: usize) {
        for _ in 0..10_000 {
            let now = self.now;
            let node = &mut self.nodes[i];
            let due = node.sessions.poll_timeout().is_some_and(|(at, _)| at == Time::ZERO);
            let mut buf = [0; 1_440];
            if let Some((worker, order)) = node.sessions.poll_order() {
                assert!(worker > 0, "a worker got its own order");
                node.shares[usize::from(worker) - 1].handle_order(order);
            } else if let Some(event) = node.sessions.poll_event() {
                assert!(due, "output without a deadline");
                node.events.push(event);
                if let SessionEvent::NeedKeepalive { peer } = event
                    && let Some(to) = node.sessions.endpoint(peer)
                {
                    let _ = self.send_kind(i, peer, to, 0, 0);
                }
            } else if let Some((_, to, len)) = node.sessions.poll_transmit(now, &mut buf) {
                assert!(due, "output without a deadline");
                node.sent += 1;
                let from = node.addr;
                self.put(Packet { from, to, bytes: buf[..len].to_vec() });
            } else if !node.runs_jobs {
                return;
            } else if let Some(job) = node.sessions.poll_job() {
                assert!(due, "output without a deadline");
                node.sessions.handle_done(now, job.run());
            } else {
                return;
            }
        }
        panic!("draining must end");
    }

    pub fn deliver(&mut self, packet: Packet) {
        let Some(i) = self.nodes.iter().position(|node| node.addr == packet.to) else { return };
        let Packet { from, mut bytes, .. } = packet;
        let (now, len) = (self.now, bytes.len());
        let node = &mut self.nodes[i];
        let mut out = Vec::new();
        node.sessions.open_batch(now, &mut bytes, &[0], len, &mut out);
        let drop = match out[0] {
            OpenResult::Data(opened) => {
                if opened.newest {
                    node.sessions.note_endpoint(opened.peer, from);
                }
                node.opened.push(opened);
                if bytes[8] == 1 {
                    let number = [bytes[9], bytes[10], bytes[11], bytes[12]];
                    node.got.push(u32::from_be_bytes(number));
                }
                None
            }
            OpenResult::Handshake => node.sessions.handle_handshake(now, from, &mut bytes).err(),
            OpenResult::Worker(_) => Some(DropReason::OtherWorker),
            OpenResult::Drop(reason) => Some(reason),
        };
        if let Some(reason) = drop {
            *node.drops.entry(reason).or_default() += 1;
        }
        self.drain(i);
    }

    fn next_due(&self) -> Option<Time> {
        // A node that doesn't run its jobs has them due forever.
        let timers = self.nodes.iter().filter_map(|n| n.sessions.poll_timeout());
        let timers = timers.filter(|t| t.1 != "handshake job").map(|t| t.0);
        let wire = self.wire.first_key_value().map(|(at, _)| at.0);
        timers.chain(wire).min()
    }

    /// Lets all events happen that are due within `ms`.
    pub fn run_ms(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        while let Some(at) = self.next_due().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            while let Some(entry) = self.wire.first_entry().filter(|e| e.key().0 <= self.now) {
                let packet = entry.remove();
                self.deliver(packet);
            }
            for i in 0..self.nodes.len() {
                let now = self.now;
                self.nodes[i].sessions.handle_timeout(now);
                self.drain(i);
                let stuck = self.nodes[i].sessions.poll_timeout().is_some_and(|t| t.0 <= now);
                assert!(!stuck || !self.nodes[i].runs_jobs, "a timer must not stay due");
            }
        }
        self.now = end;
    }

    pub fn established(&self, i: usize) -> usize {
        let is = |e: &&SessionEvent| matches!(e, SessionEvent::Established { .. });
        self.nodes[i].events.iter().filter(is).count()
    }

    pub fn drops(&self, i: usize, reason: DropReason) -> u64 {
        let node = &self.nodes[i];
        u64::from(node.drops.get(&reason).copied().unwrap_or(0))
            + node.sessions.drops()[reason as usize]
    }

    /// Two nodes with a session.
    pub fn pair(config: &SessionConfig, knobs: Knobs) -> World {
        let mut world = World::new(2, config, knobs);
        world.connect(0, 1);
        world.run_ms(2_000);
        assert!(world.established(0) >= 1 && world.established(1) >= 1);
        world
    }
}

/// The defaults, with every suite, whatever the processor.
pub fn link() -> SessionConfig {
    let mut config = SessionConfig::new(SessionRole::Link);
    config.means = SuiteSupport { processor: Processor::Vaes512, suites: Suites::ALL };
    config
}
