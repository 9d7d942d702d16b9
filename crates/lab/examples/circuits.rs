//! The memory of a relay that carries 16,384 circuits, as its allocator counts it.
//!
//! `cargo run --release -p shoal-lab --example circuits`
//!
//! ```text
//! 256 origins of 64 circuits each --> relay --> 64 destinations of 256 circuits each
//! ```
//!
//! All nodes are machines in memory. Each circuit is set up completely, with public-key work at
//! each node. The relay's memory is the number of bytes that the allocator gets back when the relay
//! is dropped. The memory is measured twice: after set-ups only, and after data passed outward on
//! each circuit. The example exits with 1 if either value is above its limit.

#![allow(clippy::disallowed_types, reason = "a shell owns the system")]
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use shoal_crypto::SuiteSupport;
use shoal_crypto::{Identity, NetworkSecret, PublicKey, StandardCiphers};
use shoal_onion::{CellResult, CircuitLimits, Onion, OnionConfig, OnionEvent};
use shoal_wire::leg::{CELL_LEN, CellShape};
use shoal_wire::{Address, CircuitId, DropReason, Time};

const CIRCUITS: usize = CircuitLimits::ROUTER.others;
/// Circuits of each host that begins them, and of each host at their end.
const BEGUN: usize = CircuitLimits::HOST.own;
const ENDED: usize = CircuitLimits::HOST.others;
/// Limits in bytes: for one circuit that carried nothing, and for all circuits.
const COLD_MAX: usize = 1_000;
const ALL_MAX: usize = 96_000_000;
const LIFE: Duration = Duration::from_secs(600);
/// Data cells on each circuit.
const CELLS: usize = 200;

type Node = Onion<StandardCiphers>;

static LIVE: AtomicUsize = AtomicUsize::new(0);

struct CountingAllocator;

// SAFETY: all calls go to the system's allocator with their arguments unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `at` came from `alloc` above with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const RELAY: Address = Address::new(1, 0);

fn identity(at: Address) -> Identity {
    let mut seed = [0; 32];
    seed[..6].copy_from_slice(&at.to_bytes());
    Identity::from_seed(seed)
}

fn node(at: Address, keys: BTreeMap<Address, PublicKey>) -> Node {
    let (limits, relay) = (CircuitLimits::of(at), at.is_router());
    let config = OnionConfig { address: at, limits, means: SuiteSupport::here(), relay };
    let (seed, secret) = (*identity(at).seed().expose(), NetworkSecret([1; 32]));
    let mut node = Node::new(config, identity(at), secret, seed, Time::ZERO, 1 << 40);
    node.set_nodes(keys);
    node
}

/// The relay, and the two hosts of the circuit under construction.
struct CircuitNodes {
    now: Time,
    nodes: BTreeMap<Address, Node>,
}

impl CircuitNodes {
    /// Hands a cell to a node, and onward until a node keeps it.
    fn hand(&mut self, mut from: Address, mut to: Address, cell: &mut [u8]) {
        let mut out: Vec<Result<CellResult, DropReason>> = Vec::new();
        loop {
            let node = self.nodes.get_mut(&to).expect("one of the three");
            out.clear();
            node.handle_batch(self.now, from, cell, &[0], &mut out);
            match out[0] {
                Ok(CellResult::On(next, _)) => (from, to) = (to, next),
                // The answer to a create cell without a cookie is a cookie.
                Ok(_) | Err(DropReason::CookieRequired) => return,
                Err(reason) => panic!("{from} to {to}: {reason:?}"),
            }
        }
    }

    /// Runs all jobs and delivers all cells.
    fn settle(&mut self) {
        loop {
            let mut wire = Vec::new();
            for (&at, node) in &mut self.nodes {
                while let Some(job) = node.poll_job() {
                    node.handle_done(self.now, job.run()).expect("work that was asked for");
                }
                wire.extend(
                    std::iter::from_fn(|| node.poll_transmit()).map(|own| (at, own.to, own.cell)),
                );
            }
            if wire.is_empty() {
                return;
            }
            for (from, to, mut cell) in wire {
                self.hand(from, to, &mut cell[..]);
            }
        }
    }

    /// Sets up a circuit between two of the nodes.
    fn build(&mut self, from: Address, to: Address) -> CircuitId {
        let origin = self.nodes.get_mut(&from).expect("the origin");
        let shape = CellShape::new(1).expect("a place");
        let id = origin.build(self.now, &[RELAY, to], shape, LIFE).expect("room");
        self.settle();
        let origin = self.nodes.get_mut(&from).expect("the origin");
        let said: Vec<_> = std::iter::from_fn(|| origin.poll_event()).collect();
        assert!(said.contains(&OnionEvent::Built(id)), "{said:?}");
        id
    }

    fn send(&mut self, from: Address, id: CircuitId) {
        let origin = self.nodes.get_mut(&from).expect("the origin");
        let mut cell = [3; CELL_LEN];
        let to = origin.seal_units(self.now, id, &mut cell, &[0]).expect("built");
        self.hand(from, to, &mut cell);
    }
}

/// Bytes that the relay holds with all circuits, and without any circuit.
fn held(cells: usize) -> (usize, usize) {
    let begins = |n: usize| Address::new(2, (n / BEGUN + 1) as u16);
    let ends = |n: usize| Address::new(3, (n / ENDED + 1) as u16);
    let hosts = (0..CIRCUITS).flat_map(|n| [begins(n), ends(n)]);
    let all: BTreeMap<_, _> = hosts.chain([RELAY]).map(|at| (at, identity(at).public())).collect();
    let mut three = CircuitNodes { now: Time::ZERO, nodes: BTreeMap::new() };
    let before = LIVE.load(Ordering::Relaxed);
    three.nodes.insert(RELAY, node(RELAY, all.clone()));
    let empty = LIVE.load(Ordering::Relaxed) - before;
    for n in 0..CIRCUITS {
        let (from, to) = (begins(n), ends(n));
        if n % BEGUN == 0 {
            three.nodes.retain(|at, _| *at == RELAY || *at == to);
            three.nodes.insert(from, node(from, all.clone()));
        }
        // As fast as a host may make circuits.
        three.now = three.now + Duration::from_millis(if n % BEGUN < 32 { 5 } else { 125 });
        three.nodes.entry(to).or_insert_with(|| node(to, all.clone()));
        let id = three.build(from, to);
        (0..cells).for_each(|_| three.send(from, id));
    }
    let relay = three.nodes.remove(&RELAY).expect("the relay");
    assert_eq!(relay.len(), CIRCUITS);
    let before = LIVE.load(Ordering::Relaxed);
    drop(relay);
    (before - LIVE.load(Ordering::Relaxed), empty)
}

fn main() -> ExitCode {
    let (cold, empty) = held(0);
    let each = (cold - empty) / CIRCUITS;
    println!("a circuit that carried nothing: {each} bytes (at most {COLD_MAX})");
    let (warm, _) = held(CELLS);
    let most = warm;
    let [cold, warm, empty] = [cold, warm, empty].map(|bytes| bytes as f64 / 1e6);
    println!("all {CIRCUITS}: {cold:.1} MB, including the keys of all nodes: {empty:.1} MB");
    println!("after {CELLS} cells on each: {warm:.1} MB (at most {:.1} MB)", ALL_MAX as f64 / 1e6);
    ExitCode::from(u8::from(each > COLD_MAX || most > ALL_MAX))
}
