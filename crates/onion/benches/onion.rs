//! What a relay does to cells of circuits, beside opening and sealing the frames that they come in:
//! `cargo bench -p shoal-onion`.

use core::time::Duration;
use std::collections::BTreeMap;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use shoal_crypto::{Identity, NetworkSecret, Standard, Suite};
use shoal_onion::{CircuitId, Config, Event, Onion, Passed};
use shoal_wire::leg::{CELL_LEN, Shape};
use shoal_wire::{Address, DropReason, Time};

type Node = Onion<Standard>;

const ORIGIN: Address = Address::new(1, 1);
const RUN: usize = 44;
const TAGS: u8 = 3;

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
        let config = Config {
            address: at,
            circuits_max: 1_024,
            suites: Suite::for_this_cpu().to_vec(),
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

/// Carries cells until none is left.
fn settle(nodes: &mut BTreeMap<Address, Node>, now: Time) {
    loop {
        let mut wire = Vec::new();
        for (&at, node) in nodes.iter_mut() {
            wire.extend(
                core::iter::from_fn(|| node.poll_transmit()).map(|(to, cell)| (at, to, cell)),
            );
        }
        if wire.is_empty() {
            return;
        }
        for (mut from, mut to, mut cell) in wire {
            while let Ok(Passed::On(next)) = hand(nodes, now, (from, to), &mut cell[..]) {
                (from, to) = (to, next);
            }
        }
    }
}

fn build(nodes: &mut BTreeMap<Address, Node>, now: Time) -> CircuitId {
    let shape = Shape::new(TAGS).expect("three places");
    let origin = nodes.get_mut(&ORIGIN).expect("the origin");
    let id = origin.build(now, &path(), shape, Duration::from_secs(600)).expect("begun");
    settle(nodes, now);
    let event = nodes.get_mut(&ORIGIN).expect("the origin").poll_event();
    assert_eq!(event, Some(Event::Built(id)));
    id
}

/// Hands one cell to its node.
fn hand(
    nodes: &mut BTreeMap<Address, Node>,
    now: Time,
    (from, to): (Address, Address),
    cell: &mut [u8],
) -> Result<Passed, DropReason> {
    let mut out = Vec::new();
    nodes.get_mut(&to).expect("a node").handle_batch(now, from, cell, &[0], &mut out);
    out[0]
}

/// Writes a cell as it comes to the second relay.
fn write_cell(nodes: &mut BTreeMap<Address, Node>, id: CircuitId, cell: &mut [u8]) {
    let origin = nodes.get_mut(&ORIGIN).expect("the origin");
    origin.seal_units(Time::ZERO, id, cell, &[0]).expect("built");
    let first = path()[0];
    assert_eq!(hand(nodes, Time::ZERO, (ORIGIN, first), cell), Ok(Passed::On(path()[1])));
}

fn relay_work(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("onion");
    group.throughput(Throughput::Elements(RUN as u64));
    // As far apart as in frames.
    let offsets: Vec<u32> = (0..RUN as u32).map(|n| 24 + 1_440 * n).collect();
    for (name, circuits) in [("a run of 44 of one circuit", 1), ("44 circuits mixed", RUN)] {
        let mut nodes = nodes();
        // A host may ask for eight in a second.
        let times = (0..circuits).map(|n| Time::ZERO + Duration::from_millis(130) * n as u32);
        let ids: Vec<_> = times.map(|now| build(&mut nodes, now)).collect();
        let mut relay = nodes.remove(&path()[1]).expect("the second relay");
        let mut out = Vec::new();
        group.bench_function(name, |bencher| {
            bencher.iter_batched_ref(
                || {
                    let mut buf = vec![9; RUN * 1_440];
                    for (n, &start) in offsets.iter().enumerate() {
                        let cell = &mut buf[start as usize..start as usize + CELL_LEN];
                        write_cell(&mut nodes, ids[n % ids.len()], cell);
                    }
                    buf
                },
                |buf| {
                    out.clear();
                    relay.handle_batch(Time::ZERO, path()[0], buf, &offsets, &mut out);
                    assert!(out.iter().all(|went| *went == Ok(Passed::On(path()[2]))));
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn set_up(criterion: &mut Criterion) {
    criterion.bench_function("onion/three relays and the destination set up", |bencher| {
        bencher.iter_batched_ref(
            nodes,
            |nodes| {
                build(nodes, Time::ZERO);
            },
            BatchSize::SmallInput,
        );
    });
}

criterion_group!(benches, relay_work, set_up);
criterion_main!(benches);
