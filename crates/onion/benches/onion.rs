//! Cost of a circuit's cells at a relay, without opening and sealing their frames, and cost of a
//! set-up. Run: `cargo bench -p shoal-onion`.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "measures time")]

use core::time::Duration;
use std::collections::BTreeMap;
use std::time::Instant;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use shoal_crypto::{Identity, NetworkSecret, StandardCiphers, SuiteSupport};
use shoal_onion::{CellResult, CircuitLimits, Onion, OnionConfig, OnionEvent};
use shoal_wire::leg::{CELL_LEN, CellShape};
use shoal_wire::{Address, CircuitId, DropReason, Time};

type Node = Onion<StandardCiphers>;

const ORIGIN: Address = Address::new(1, 1);
const RUN: usize = 44;
const TAGS: u8 = 3;
/// Time between two circuit requests, below a host's limit of eight per second.
const EVERY: Duration = Duration::from_millis(130);

fn path() -> [Address; 4] {
    [Address::new(1, 0), Address::new(2, 0), Address::new(3, 0), Address::new(3, 1)]
}

fn nodes() -> BTreeMap<Address, Node> {
    let all = || path().into_iter().chain([ORIGIN]);
    let identity = |at: Address| {
        let mut seed = [0; 32];
        seed[..6].copy_from_slice(&at.to_bytes());
        Identity::from_seed(seed)
    };
    let keys: BTreeMap<_, _> = all().map(|at| (at, identity(at).public())).collect();
    let node = |at: Address| {
        let config = OnionConfig {
            address: at,
            limits: CircuitLimits { own: 1_024, of_host: 1_024, ..CircuitLimits::ROUTER },
            means: SuiteSupport::here(),
            relay: at.is_router(),
        };
        let seed = *identity(at).seed().expose();
        let mut node =
            Node::new(config, identity(at), NetworkSecret([1; 32]), seed, Time::ZERO, 1 << 40);
        node.set_nodes(keys.clone());
        (at, node)
    };
    all().map(node).collect()
}

/// Nodes without a network between them, and the time that one of them takes.
struct Net {
    nodes: BTreeMap<Address, Node>,
    watched: Address,
    took: Duration,
}

impl Net {
    fn new(watched: Address) -> Net {
        Net { nodes: nodes(), watched, took: Duration::ZERO }
    }

    fn call<T>(&mut self, at: Address, call: impl FnOnce(&mut Node) -> T) -> T {
        let node = self.nodes.get_mut(&at).expect("a node");
        let begun = Instant::now();
        let made = call(node);
        if at == self.watched {
            self.took += begun.elapsed();
        }
        made
    }

    /// Does all work, and carries cells until none is left.
    fn settle(&mut self, now: Time) {
        let all: Vec<Address> = self.nodes.keys().copied().collect();
        loop {
            let mut wire = Vec::new();
            for &at in &all {
                let work = |node: &mut Node| {
                    while let Some(job) = node.poll_job() {
                        node.handle_done(now, job.run()).expect("nobody lies");
                    }
                    core::iter::from_fn(|| node.poll_transmit()).collect::<Vec<_>>()
                };
                wire.extend(self.call(at, work).into_iter().map(|own| (at, own.to, own.cell)));
            }
            if wire.is_empty() {
                return;
            }
            for (mut from, mut to, mut cell) in wire {
                while let Ok(CellResult::On(next, _)) = self.hand(now, (from, to), &mut cell[..]) {
                    (from, to) = (to, next);
                }
            }
        }
    }

    fn build(&mut self, now: Time) -> CircuitId {
        let shape = CellShape::new(TAGS).expect("three places");
        let life = Duration::from_secs(600);
        let id = self.call(ORIGIN, |origin| origin.build(now, &path(), shape, life));
        self.settle(now);
        let event = self.call(ORIGIN, Node::poll_event);
        assert_eq!(event, id.map(OnionEvent::Built).ok());
        id.expect("begun")
    }

    /// Delivers one cell to its node.
    fn hand(
        &mut self,
        now: Time,
        (from, to): (Address, Address),
        cell: &mut [u8],
    ) -> Result<CellResult, DropReason> {
        let mut out = Vec::with_capacity(1);
        self.call(to, |node| node.handle_batch(now, from, cell, &[0], &mut out));
        out[0]
    }

    /// Writes a cell as it reaches the second relay.
    fn write_cell(&mut self, id: CircuitId, cell: &mut [u8]) {
        let origin = self.nodes.get_mut(&ORIGIN).expect("the origin");
        origin.seal_units(Time::ZERO, id, cell, &[0]).expect("built");
        let first = path()[0];
        let went = self.hand(Time::ZERO, (ORIGIN, first), cell);
        assert!(matches!(went, Ok(CellResult::On(next, _)) if next == path()[1]));
    }
}

/// Work of the second relay on a run of cells.
///
/// As in a node, the cells are in one buffer that was written just before, since their frames were
/// opened in place. Each round needs new cells, because no number is accepted twice. They are
/// written into that buffer between the rounds, which is not measured.
fn relay_work(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("onion");
    group.throughput(Throughput::Elements(RUN as u64));
    // Distance as in frames.
    let offsets: Vec<u32> = (0..RUN as u32).map(|n| 24 + 1_440 * n).collect();
    for (name, circuits) in [("a run of 44 of one circuit", 1), ("44 circuits mixed", RUN)] {
        let mut net = Net::new(ORIGIN);
        let ids: Vec<_> = (0..circuits).map(|n| net.build(Time::ZERO + EVERY * n as u32)).collect();
        let mut relay = net.nodes.remove(&path()[1]).expect("the second relay");
        let (mut buf, mut out) = (vec![9; RUN * 1_440], Vec::new());
        let mut round = || {
            for (n, &start) in offsets.iter().enumerate() {
                let cell = &mut buf[start as usize..start as usize + CELL_LEN];
                net.write_cell(ids[n % ids.len()], cell);
            }
            out.clear();
            let begun = Instant::now();
            relay.handle_batch(Time::ZERO, path()[0], &mut buf, &offsets, &mut out);
            let took = begun.elapsed();
            let goes_on =
                |went: &_| matches!(went, Ok(CellResult::On(next, _)) if *next == path()[2]);
            assert!(out.iter().all(goes_on));
            took
        };
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|rounds| (0..rounds).map(|_| round()).sum());
        });
    }
    group.finish();
}

/// Work of one node for one circuit: a relay's for its one hop, the origin's for all four hops.
fn set_up(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("onion/set-up of a hop");
    let [first, second, _, last] = path();
    let nodes = [
        ("at the first of three relays", first, 1),
        ("at the second", second, 1),
        ("at the destination", last, 1),
        ("at the origin", ORIGIN, 4),
    ];
    for (name, watched, hops) in nodes {
        group.throughput(Throughput::Elements(hops));
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|rounds| {
                let (mut net, mut took) = (Net::new(watched), Duration::ZERO);
                for round in 0..rounds as u32 {
                    net.took = Duration::ZERO;
                    let now = Time::ZERO + EVERY * round;
                    let id = net.build(now);
                    took += net.took;
                    net.call(ORIGIN, |origin| origin.close(id));
                    net.settle(now);
                }
                took
            });
        });
    }
    group.finish();
}

criterion_group!(benches, relay_work, set_up);
criterion_main!(benches);
