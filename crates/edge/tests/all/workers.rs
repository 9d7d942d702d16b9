//! Hosts with several workers. Each packet is opened once, whichever worker seals it, and wherever
//! the cell and its copies arrive.

use std::collections::{BTreeMap, VecDeque};

use core::time::Duration;
use proptest::prelude::*;
use shoal_crypto::{Identity, NetworkSecret, Rng, StandardCiphers};
use shoal_edge::{
    CellHandoff, Edge, EdgeConfig, EdgeEvent, EdgeOutput, EdgeTurn, EdgeWorker, HostConfig, HostId,
    InboundCells, PacketArrival, PacketFlow,
};
use shoal_session::{SessionConfig as Session, SessionRole, SessionShard};
use shoal_wire::{Address, CircuitId, DropReason, EdgeKind, LinkId, Time};

const ADDRESSES: [Address; 2] = [Address::new(1, 1), Address::new(2, 1)];
const LEN: usize = 600;

#[derive(Default)]
struct SentCells(VecDeque<Vec<u8>>);

impl EdgeOutput for SentCells {
    fn cells(&mut self, _: Time, buf: &mut [u8], offsets: &[u32], len: usize) {
        self.0.extend(offsets.iter().map(|&at| buf[at as usize..at as usize + len].to_vec()));
    }

    fn room(&self, _: Address) -> usize {
        512
    }

    fn is_congested(&self, _: Address) -> bool {
        false
    }

    fn may_go_direct(&self, _: Address) -> bool {
        false
    }

    fn direct(&mut self, _: Time, _: &mut [u8], _: &[u32], _: usize) {
        unreachable!("there is no direct link")
    }

    fn unit(&mut self, _: Time, _: CircuitId, _: &mut [u8], _: &[u32]) {
        unreachable!("there is no circuit")
    }

    fn hidden_handshake(&mut self, _: Time, _: CircuitId, _: &[u8]) {
        unreachable!("there is no circuit")
    }

    fn circuit_room(&self, _: CircuitId) -> usize {
        0
    }

    fn circuit_is_congested(&self, _: CircuitId) -> bool {
        false
    }
}

/// Cells that workers hand to each other.
#[derive(Default)]
struct HandedOffCells {
    cells: Vec<(u8, Vec<u8>)>,
    plain: Vec<(HostId, Vec<u8>)>,
}

impl CellHandoff for HandedOffCells {
    fn cell(&mut self, worker: u8, _: Option<LinkId>, frame: &[u8]) -> bool {
        self.cells.push((worker, frame.to_vec()));
        true
    }

    fn plain(&mut self, host: HostId, frame: &[u8]) -> bool {
        self.plain.push((host, frame.to_vec()));
        true
    }
}

/// A worker after the first.
struct LaterWorker {
    shard: SessionShard,
    edge: EdgeWorker,
}

impl LaterWorker {
    fn turn<'a>(
        &'a mut self,
        now: Time,
        out: &'a mut SentCells,
    ) -> (&'a mut EdgeWorker, WorkerTurn<'a>) {
        (&mut self.edge, EdgeTurn { now, shard: &mut self.shard, out })
    }

    fn reaches(&mut self, now: Time, host: HostId, out: &mut SentCells) -> bool {
        let (edge, turn) = self.turn(now, out);
        edge.reaches(&turn, host)
    }
}

type WorkerTurn<'a> = EdgeTurn<'a, StandardCiphers, SentCells>;

struct Host {
    edge: Edge,
    workers: Vec<LaterWorker>,
    peer: HostId,
    wire: SentCells,
    /// Flow and number of each packet that arrived, and the worker that opened it.
    got: Vec<(u32, u32, u8)>,
    echoes: u32,
    drops: BTreeMap<&'static str, u64>,
}

fn identity(at: Address) -> Identity {
    Identity::from_seed([at.router as u8; 32])
}

impl Host {
    fn new(me: Address, other: Address, session: &Session, now: Time) -> Host {
        let config = EdgeConfig {
            address: me,
            session: session.clone(),
            transfer: shoal_transfer::TransferConfig::default(),
            echo_max: 16,
            direct: None,
            ip: true,
            events_max: 64,
        };
        let (seed, secret) = ([me.router as u8 + 9; 32], NetworkSecret([1; 32]));
        let mut edge = Edge::new(config, identity(me), secret, seed, now, 1_800_000_000_000);
        let host = HostConfig { key: identity(other).public(), address: other };
        let peer = edge.add_host(&host).expect("room for one");
        let worker = |number| {
            let (shard, edge) = edge.worker(number);
            LaterWorker { shard, edge }
        };
        let workers = (1..session.workers).map(worker).collect();
        let (wire, got, drops) = (SentCells::default(), Vec::new(), BTreeMap::new());
        Host { edge, workers, peer, wire, got, echoes: 0, drops }
    }

    /// Delivers notes to the first worker and orders to the others, and handles timers.
    fn settle(&mut self, now: Time) {
        let Host { edge, workers, wire, drops, .. } = self;
        for worker in workers.iter_mut() {
            worker.edge.tell(&mut worker.shard, |note| {
                edge.handle_note(now, &note);
                true
            });
            worker
                .edge
                .take_drops()
                .for_each(|(why, n)| *drops.entry(why.label()).or_default() += n);
        }
        if edge.poll_timeout().is_some_and(|(at, _)| at <= now) {
            edge.handle_timeout(now);
        }
        edge.drive(now, wire);
        while let Some(job) = edge.poll_job() {
            edge.handle_done(now, job.run());
            edge.drive(now, wire);
        }
        while let Some(event) = edge.poll_event() {
            self.echoes += u32::from(matches!(event, EdgeEvent::Echo { .. }));
        }
        while let Some((worker, order)) = edge.poll_order() {
            let LaterWorker { shard, edge } = &mut workers[usize::from(worker) - 1];
            edge.handle_order(shard, order);
        }
        edge.take_drops().for_each(|(why, n)| *drops.entry(why.label()).or_default() += n);
    }

    /// Sends packet `number` of a flow from a worker, or from the first one if that worker can't.
    fn send(&mut self, now: Time, worker: u8, flow: u32, number: u32) {
        let write = |plain: &mut [u8]| {
            plain.fill(0);
            plain[0] = EdgeKind::Ip as u8;
            plain[1..5].copy_from_slice(&flow.to_be_bytes());
            plain[5..9].copy_from_slice(&number.to_be_bytes());
        };
        let Host { edge, workers, peer, wire, .. } = self;
        let flow = PacketFlow { host: *peer, number: flow, stream: 0 };
        if let Some(at) = usize::from(worker).checked_sub(1)
            && workers[at].reaches(now, *peer, wire)
        {
            let (edge, mut turn) = workers[at].turn(now, wire);
            edge.send_packet(&mut turn, flow, LEN, write);
            return edge.flush(&mut turn);
        }
        edge.send_packet(now, flow, LEN, wire, write);
        edge.drive(now, wire);
    }

    fn arrived(&mut self, worker: u8, arrivals: Vec<PacketArrival>, frame: &[u8]) {
        for arrival in arrivals {
            assert_eq!(arrival.host, self.peer);
            let word = |i: usize| {
                let at = arrival.at as usize + i;
                u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]])
            };
            self.got.push((word(1), word(5), worker));
        }
    }

    /// Delivers a cell to a worker, and the cells that it hands off to other workers.
    fn arrive(&mut self, now: Time, worker: u8, frame: Vec<u8>) {
        let mut waiting = VecDeque::from([(worker, None, frame)]);
        for _ in 0..4 {
            let Some((worker, by, mut frame)) = waiting.pop_front() else { return };
            let len = frame.len();
            let mut rings = HandedOffCells::default();
            if worker == 0 {
                self.edge.handle_cells(now, InboundCells::new(&mut frame, &[0], len), &mut rings);
                self.arrived(0, self.edge.arrivals().to_vec(), &frame);
            } else {
                let LaterWorker { shard, edge } = &mut self.workers[usize::from(worker) - 1];
                let cells = InboundCells {
                    by,
                    from: &[LinkId::from_bits(7)],
                    ..InboundCells::new(&mut frame, &[0], len)
                };
                let kept = edge.handle_cells(now, shard, cells, &mut rings);
                assert_eq!(kept, u64::from(rings.cells.iter().all(|(to, _)| *to != 0)));
                let arrivals = edge.arrivals().to_vec();
                self.arrived(worker, arrivals, &frame);
            }
            for (host, mut frame) in rings.plain {
                self.edge.handle_opened(now, host, &mut frame).expect("accepted by its worker");
            }
            waiting.extend(rings.cells.into_iter().map(|(to, frame)| (to, Some(worker), frame)));
        }
        assert!(waiting.is_empty(), "cells circulate between workers");
    }
}

struct Pair {
    now: Time,
    hosts: [Host; 2],
    /// Chooses the worker at which a cell arrives.
    spread: Rng,
    workers: u8,
}

impl Pair {
    fn new(change: impl Fn(&mut Session)) -> Pair {
        let mut session = Session::new(SessionRole::Edge);
        change(&mut session);
        let now = Time::from_millis(1_000);
        let host = |at: usize| Host::new(ADDRESSES[at], ADDRESSES[1 - at], &session, now);
        let (hosts, spread) = ([host(0), host(1)], Rng::new([5; 32]));
        Pair { now, hosts, spread, workers: session.workers }
    }

    /// Delivers cells in flight until there are none.
    fn run(&mut self) {
        for _ in 0..64 {
            self.hosts.iter_mut().for_each(|host| host.settle(self.now));
            let mut silent = true;
            for from in 0..2 {
                while let Some(frame) = self.hosts[from].wire.0.pop_front() {
                    silent = false;
                    let worker = self.spread.below(self.workers.into()) as u8;
                    self.hosts[1 - from].arrive(self.now, worker, frame);
                }
            }
            if silent {
                return;
            }
        }
        panic!("the hosts never stop sending cells");
    }

    fn connect(&mut self) {
        self.hosts[0].send(self.now, 0, 0, u32::MAX);
        self.run();
        assert_eq!(self.hosts[1].got.len(), 1);
        self.hosts[1].got.clear();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24.min(ProptestConfig::default().cases)))]

    #[test]
    fn packets_of_all_workers_arrive_once_and_flows_keep_their_order(
        workers in 1u8..5,
        lanes in 1u8..=16,
        sends in prop::collection::vec((0usize..2, any::<u8>(), 0u32..12, 1u32..9), 1..40),
    ) {
        let mut pair = Pair::new(|config| (config.workers, config.lanes) = (workers, lanes));
        pair.connect();
        let mut sent = [Vec::new(), Vec::new()];
        for (number, &(from, worker, flow, n)) in (0u32..).zip(&sends) {
            for i in 0..n {
                pair.hosts[from].send(pair.now, worker % workers, flow, number * 100 + i);
                sent[from].push((flow, number * 100 + i));
            }
            pair.run();
        }
        for (from, sent) in sent.iter_mut().enumerate() {
            let host = &pair.hosts[1 - from];
            for flow in 0..12 {
                let numbers = host.got.iter().filter(|g| g.0 == flow).map(|g| g.1);
                prop_assert!(numbers.is_sorted(), "flow {flow}");
            }
            let got = host.got.iter().map(|&(flow, number, _)| (flow, number));
            let mut got: Vec<_> = got.collect();
            got.sort_unstable();
            sent.sort_unstable();
            prop_assert_eq!(&got, &*sent);
            prop_assert!(host.drops.is_empty(), "{:?}", host.drops);
        }
    }
}

#[test]
fn with_enough_lanes_every_worker_seals_and_opens() {
    let mut pair = Pair::new(|config| (config.workers, config.lanes) = (3, 9));
    pair.connect();
    for worker in 0..3 {
        let Host { workers, peer, wire, .. } = &mut pair.hosts[0];
        let after = usize::from(worker).checked_sub(1).map(|at| &mut workers[at]);
        assert!(after.is_none_or(|worker| worker.reaches(pair.now, *peer, wire)));
        pair.hosts[1].got.clear();
        (0..9).for_each(|flow| pair.hosts[0].send(pair.now, worker, flow, 1));
        pair.run();
        let mut opened: Vec<u8> = pair.hosts[1].got.iter().map(|got| got.2).collect();
        opened.sort_unstable();
        assert_eq!(opened, [0, 0, 0, 1, 1, 1, 2, 2, 2], "sealed by worker {worker}");
    }
}

#[test]
fn a_captured_cell_is_opened_once_wherever_its_copies_arrive() {
    let mut pair = Pair::new(|config| (config.workers, config.lanes) = (2, 4));
    pair.connect();
    for flow in 0..8 {
        pair.hosts[0].send(pair.now, (flow % 2) as u8, flow, 1);
        let frame = pair.hosts[0].wire.0.pop_front().expect("a cell");
        pair.hosts[1].got.clear();
        for copy in 0..6u8 {
            pair.hosts[1].arrive(pair.now, copy % 2, frame.clone());
        }
        assert_eq!(pair.hosts[1].got.len(), 1);
    }
    pair.run();
    assert_eq!(pair.hosts[1].drops, BTreeMap::from([(DropReason::Replayed.label(), 40)]));
}

#[test]
fn rekeying_loses_no_packet_of_another_worker() {
    let mut pair = Pair::new(|config| {
        (config.workers, config.lanes) = (2, 4);
        config.rekey_after = Duration::from_secs(4);
        config.reject_after = Duration::from_secs(9);
    });
    pair.connect();
    let before = pair.hosts[0].edge.sessions().stats().established;
    for number in 0..3_000 {
        pair.hosts[0].send(pair.now, 1, number % 5, number);
        // Some cells are in flight at the same time as orders.
        if number % 7 == 0 {
            pair.hosts[1].send(pair.now, 1, number % 3, number);
        }
        pair.run();
        pair.now = pair.now + Duration::from_millis(10);
    }
    assert_eq!((pair.hosts[1].got.len(), pair.hosts[0].got.len()), (3_000, 429));
    assert!(pair.hosts[0].edge.sessions().stats().established - before >= 5);
    assert!(pair.hosts.iter().all(|host| host.drops.is_empty()));
}

#[test]
fn echo_cells_go_to_the_first_worker_and_removed_hosts_are_unknown() {
    let mut pair = Pair::new(|config| (config.workers, config.lanes) = (2, 4));
    pair.connect();
    for seq in 0..20 {
        let peer = pair.hosts[0].peer;
        pair.hosts[0].edge.ping(peer, 1, seq).expect("room");
        pair.run();
    }
    assert_eq!(pair.hosts[0].echoes, 20, "at any worker");
    pair.hosts[0].send(pair.now, 1, 3, 9);
    let frame = pair.hosts[0].wire.0.pop_front().expect("a cell");
    let gone = pair.hosts[1].peer;
    pair.hosts[1].edge.remove_host(pair.now, gone);
    pair.run();
    let Host { workers, wire, .. } = &mut pair.hosts[1];
    assert!(!workers[0].reaches(pair.now, gone, wire));
    for worker in [0, 1] {
        pair.hosts[1].arrive(pair.now, worker, frame.clone());
    }
    assert!(pair.hosts[1].got.is_empty());
}

#[test]
fn after_any_number_of_orders_a_removed_host_is_not_taken_for_its_successor() {
    let mut pair = Pair::new(|config| (config.workers, config.lanes) = (2, 4));
    pair.connect();
    let Pair { now, hosts: [from, to], .. } = &mut pair;
    // Cells on lane 3, which the second worker opens.
    let mut frames = Vec::new();
    for number in 0..64 {
        from.send(*now, 1, 3, number);
        frames.extend(from.wire.0.drain(..));
    }
    // Another host takes the number and the address of the host.
    let gone = to.peer;
    to.edge.remove_host(*now, gone);
    let key = Identity::from_seed([77; 32]).public();
    let new = to.edge.add_host(&HostConfig { key, address: ADDRESSES[0] }).expect("room");
    assert!(new != gone && new.bits() & 0xf_ffff == gone.bits() & 0xf_ffff);
    let mut shown = Vec::new();
    let mut show = |worker: &mut LaterWorker, shown: &mut Vec<HostId>| {
        let mut frame = frames.pop().expect("enough");
        let len = frame.len();
        let LaterWorker { shard, edge } = worker;
        edge.handle_cells(
            *now,
            shard,
            InboundCells::new(&mut frame, &[0], len),
            &mut HandedOffCells::default(),
        );
        let before = shown.len();
        shown.extend(edge.arrivals().iter().map(|arrival| arrival.host));
        shown.len() > before
    };
    let worker = &mut to.workers[0];
    assert!(show(worker, &mut shown), "the worker still opens cells before the first order");
    let mut orders = 0;
    while let Some((number, order)) = to.edge.poll_order() {
        assert_eq!(number, 1);
        worker.edge.handle_order(&mut worker.shard, order);
        show(worker, &mut shown);
        orders += 1;
    }
    assert!(orders >= 2 && !show(worker, &mut shown), "keys are gone after {orders} orders");
    assert!(shown.iter().all(|host| *host == gone), "{shown:?}");
}
