//! Circuits between machines, without a network: the tests carry, watch and change cells
//! themselves.

use core::cell::RefCell;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use shoal_crypto::{
    Aead, AeadKey, BadTag, Ciphers, Identity, NetworkSecret, PublicKey, Rng, Suite,
};
use shoal_crypto::{Processor, SuiteSupport, Suites};
use shoal_wire::leg::{BODY_AT, CELL_LEN, CellShape, ExtendRefusal};
use shoal_wire::{Address, CircuitId, DropReason, Time, shake};

use crate::{
    CellResult, CircuitLimits, EchoDelays, Onion, OnionConfig, OnionEvent, OriginatedCell,
    SetupFailure,
};

#[path = "bad_input_tests.rs"]
mod bad_input_tests;
#[path = "mix_tests.rs"]
mod mix_tests;
#[path = "places_tests.rs"]
mod places_tests;
#[path = "setup_tests.rs"]
mod setup_tests;
#[path = "shake_tests.rs"]
mod shake_tests;

type Cell = [u8; CELL_LEN];

const A: Address = Address::new(1, 1);
const B: Address = Address::new(9, 1);

thread_local! {
    /// Nonces with which each key has sealed.
    static NONCES: RefCell<BTreeSet<([u8; 32], u64)>> = const { RefCell::new(BTreeSet::new()) };
    /// Number of nonces that a key used twice.
    static TWICE: RefCell<u64> = const { RefCell::new(0) };
    /// Change to a control message before it is sealed. Fields: its type, the number of messages of
    /// that type to skip, and the new bytes with their offset.
    static BEND: RefCell<Option<Bend>> = const { RefCell::new(None) };
}

type Bend = (u8, usize, usize, Vec<u8>);

/// Changes the body of the innermost layer of a control message, if it is the one to be changed.
fn bend_body(body: &mut [u8]) {
    BEND.with_borrow_mut(|bend| match bend {
        Some((kind, skip, at, bytes)) if body[..2] == [1, *kind] => {
            if let Some(left) = skip.checked_sub(1) {
                *skip = left;
                return;
            }
            body[*at..*at + bytes.len()].copy_from_slice(bytes);
            *bend = None;
        }
        _ => {}
    });
}

/// AEAD that checks that no key seals twice with one nonce.
struct NonceCheckedAead(AeadKey, [u8; 32]);

impl Aead for NonceCheckedAead {
    fn new(suite: Suite, key: &[u8; 32]) -> NonceCheckedAead {
        NonceCheckedAead(AeadKey::new(suite, key), *key)
    }

    fn seal(&self, counter: u64, aad: &[u8], body: &mut [u8], tag_out: &mut [u8; 16]) {
        if !NONCES.with_borrow_mut(|nonces| nonces.insert((self.1, counter))) {
            TWICE.with_borrow_mut(|twice| *twice += 1);
        }
        bend_body(body);
        self.0.seal(counter, aad, body, tag_out);
    }

    fn open(&self, counter: u64, aad: &[u8], body_and_tag: &mut [u8]) -> Result<(), BadTag> {
        self.0.open(counter, aad, body_and_tag)
    }
}

struct WatchedCiphers;

impl Ciphers for WatchedCiphers {
    type Aead = NonceCheckedAead;

    fn verify(key: &PublicKey, msg: &[u8], sig: &[u8; 64]) -> bool {
        key.verify(msg, sig)
    }
}

/// One cell on its way, as a node that carries it sees it.
#[derive(Clone)]
struct CarriedCell {
    from: Address,
    to: Address,
    cell: Box<Cell>,
}

struct World {
    now: Time,
    nodes: BTreeMap<Address, Onion<WatchedCiphers>>,
    /// Cells that nodes sent, in order.
    wire: Vec<CarriedCell>,
    /// Units that nodes delivered.
    units: Vec<(Address, CircuitId, Box<Cell>)>,
    drops: Vec<(Address, DropReason)>,
    events: Vec<(Address, OnionEvent)>,
    /// Time until which each cell waited at a node that is not its origin.
    left: Vec<(Address, Option<Time>)>,
    /// Nodes that accept nothing.
    dead: BTreeSet<Address>,
}

fn unit(byte: u8, len: usize) -> Vec<u8> {
    let mut unit = vec![0; len];
    Rng::new([byte; 32]).fill(&mut unit);
    unit
}

fn relay(n: u32) -> Address {
    Address::new(n, 0)
}

fn relays(k: u8) -> Vec<Address> {
    (1..=u32::from(k)).map(relay).chain([B]).collect()
}

fn identity(at: Address) -> Identity {
    Identity::from_seed([(at.router * 16 + u32::from(at.host)) as u8; 32])
}
/// Limits with equal numbers of own and other circuits. One neighbour may have a quarter of the
/// latter.
const LIMITS: CircuitLimits = CircuitLimits { own: 256, others: 256, of_relay: 64, of_host: 64 };

impl World {
    fn new() -> World {
        World::with_limits(|_| LIMITS)
    }

    fn with_limits(limits: impl Fn(Address) -> CircuitLimits) -> World {
        let addresses: Vec<Address> = (1..=6).map(relay).chain([A, B]).collect();
        let keys: BTreeMap<_, _> =
            addresses.iter().map(|&at| (at, identity(at).public())).collect();
        let nodes = addresses.iter().map(|&address| {
            let means = SuiteSupport { processor: Processor::Vaes512, suites: Suites::ALL };
            let (limits, relay) = (limits(address), address.is_router());
            let config = OnionConfig { address, limits, means, relay };
            let seed = identity(address).seed().expose().map(|byte| byte ^ 0xff);
            let secret = NetworkSecret([7; 32]);
            let mut node = Onion::new(config, identity(address), secret, seed, Time::ZERO, 1 << 40);
            node.set_nodes(keys.clone());
            (address, node)
        });
        World {
            now: Time::ZERO,
            nodes: nodes.collect(),
            wire: Vec::new(),
            units: Vec::new(),
            drops: Vec::new(),
            events: Vec::new(),
            left: Vec::new(),
            dead: BTreeSet::new(),
        }
    }

    fn node(&mut self, at: Address) -> &mut Onion<WatchedCiphers> {
        self.nodes.get_mut(&at).unwrap()
    }

    /// Delivers one cell to its node, and puts the output on the wire.
    fn hand(&mut self, seen: &CarriedCell) -> Option<DropReason> {
        if self.dead.contains(&seen.to) {
            return None;
        }
        let now = self.now;
        let mut cell = seen.cell.clone();
        let mut out = Vec::new();
        self.node(seen.to).handle_batch(now, seen.from, &mut cell[..], &[0], &mut out);
        let out = out[0];
        match out {
            Ok(CellResult::On(to, _)) => self.leave(seen.to, to, cell, None),
            Ok(CellResult::Mixed(to, _, due)) => self.leave(seen.to, to, cell, Some(due)),
            Ok(CellResult::Unit(id)) => self.units.push((seen.to, id, cell)),
            Ok(CellResult::Taken) => {}
            Err(reason) => self.drops.push((seen.to, reason)),
        }
        out.err()
    }

    fn leave(&mut self, from: Address, to: Address, cell: Box<Cell>, due: Option<Time>) {
        self.left.push((from, due));
        self.wire.push(CarriedCell { from, to, cell });
    }

    /// Puts the nodes' cells on the wire, and leaves their jobs undone.
    fn collect_cells(&mut self) {
        for (&at, node) in &mut self.nodes {
            while let Some(OriginatedCell { to, cell, wait, .. }) = node.poll_transmit() {
                self.left.push((at, wait.map(|wait| wait.due)));
                self.wire.push(CarriedCell { from: at, to, cell });
            }
            while let Some(event) = node.poll_event() {
                self.events.push((at, event));
            }
        }
    }

    /// Runs the nodes' jobs, and puts their cells on the wire.
    fn collect(&mut self) {
        let now = self.now;
        for (&at, node) in &mut self.nodes {
            while let Some(job) = node.poll_job() {
                if let Err(reason) = node.handle_done(now, job.run()) {
                    self.drops.push((at, reason));
                }
            }
        }
        self.collect_cells();
    }

    /// Carries cells until none is left. Returns all that were on the wire.
    fn run(&mut self) -> Vec<CarriedCell> {
        let mut all = Vec::new();
        loop {
            self.collect();
            if self.wire.is_empty() {
                return all;
            }
            for seen in core::mem::take(&mut self.wire) {
                self.hand(&seen);
                all.push(seen);
            }
        }
    }

    fn begin(&mut self, path: &[Address], tags: u8) -> CircuitId {
        let (now, shape) = (self.now, CellShape::new(tags).unwrap());
        self.node(A).build(now, path, shape, Duration::from_secs(600)).unwrap()
    }

    fn built(&mut self, path: &[Address], tags: u8) -> CircuitId {
        let id = self.begin(path, tags);
        self.run();
        assert_eq!(self.drops, []);
        assert_eq!(self.events.pop(), Some((A, OnionEvent::Built(id))));
        id
    }

    /// Sends a unit from a node. Like a host's sealed unit, it looks random.
    fn unit(&mut self, from: Address, id: CircuitId, tags: u8, byte: u8) {
        let (now, len) = (self.now, CellShape::new(tags).unwrap().unit_len());
        let mut cell = Box::new([0; CELL_LEN]);
        cell[BODY_AT..BODY_AT + len].copy_from_slice(&unit(byte, len));
        let to = self.node(from).seal_units(now, id, &mut cell[..], &[0]).unwrap();
        self.wire.push(CarriedCell { from, to, cell });
    }

    fn pass(&mut self, time: Duration) {
        for _ in 0..time.as_secs() {
            self.now = self.now + Duration::from_secs(1);
            let now = self.now;
            self.nodes.values_mut().for_each(|node| node.handle_timeout(now));
            self.run();
        }
    }

    fn circuits(&self) -> usize {
        self.nodes.values().map(Onion::len).sum()
    }
}

fn no_nonce_twice() {
    TWICE.with_borrow(|twice| assert_eq!(*twice, 0, "a key sealed twice with one nonce"));
    NONCES.with_borrow(|nonces| assert!(!nonces.is_empty()));
}

#[test]
fn units_pass_both_ways_over_every_number_of_relays() {
    for tags in 1..=5 {
        for k in 1..=tags {
            let mut world = World::new();
            let id = world.built(&relays(k), tags);
            world.unit(A, id, tags, 0xa1);
            let forth = world.run();
            assert_eq!(forth.len(), usize::from(k) + 1);
            let (at, there, cell) = world.units.pop().unwrap();
            let len = CellShape::new(tags).unwrap().unit_len();
            assert_eq!(at, B);
            assert_eq!(cell[BODY_AT..BODY_AT + len], unit(0xa1, len));
            world.unit(B, there, tags, 0xb2);
            world.run();
            let (at, back, cell) = world.units.pop().unwrap();
            assert_eq!((at, back), (A, id));
            assert_eq!(cell[BODY_AT..BODY_AT + len], unit(0xb2, len));
            assert_eq!(world.drops, []);
            no_nonce_twice();
        }
    }
}

#[test]
fn every_hop_answers_an_echo_and_forgets_a_closed_circuit() {
    let mut world = World::new();
    let id = world.built(&relays(3), 4);
    for hop in 1..=4 {
        world.node(A).echo(id, hop, 70 + u64::from(hop)).unwrap();
        world.run();
        let answered = OnionEvent::Echoed(id, hop, 70 + u64::from(hop), EchoDelays::default());
        assert_eq!(world.events.pop(), Some((A, answered)));
    }
    assert!(world.node(A).echo(id, 5, 1).is_err());
    assert_eq!(world.circuits(), 5);
    world.node(A).close(id);
    world.run();
    assert_eq!(world.circuits(), 0);
    no_nonce_twice();
}

/// A relay that is told to forget a circuit still forwards the cells that came before in the batch.
#[test]
fn a_close_in_a_batch_leaves_the_cells_before_it_going() {
    let mut world = World::new();
    let id = world.built(&relays(3), 3);
    world.node(A).close(id);
    world.collect();
    let cells = core::mem::take(&mut world.wire);
    assert_eq!(cells.len(), 4);
    let mut buf: Vec<u8> = cells.iter().flat_map(|seen| seen.cell.iter().copied()).collect();
    let offsets: Vec<u32> = (0..4).map(|n| n * CELL_LEN as u32).collect();
    let (now, mut out) = (world.now, Vec::new());
    world.node(relay(1)).handle_batch(now, A, &mut buf, &offsets, &mut out);
    assert_eq!(out[3], Ok(CellResult::Taken));
    for (went, cell) in out.iter().zip(buf.chunks(CELL_LEN)).take(3) {
        let Ok(CellResult::On(to, _)) = *went else { panic!("{went:?}") };
        let cell = Box::new(cell.try_into().unwrap());
        world.wire.push(CarriedCell { from: relay(1), to, cell });
    }
    world.run();
    assert_eq!((world.circuits(), &world.drops[..]), (0, &[][..]));
}

/// The next node drops or overwrites every change made on a leg. No change reaches a place where an
/// accomplice could recognize it.
#[test]
fn a_changed_byte_never_gets_past_the_next_node() {
    let flips: Vec<usize> = (0..40).chain((40..1_320).step_by(97)).chain(1_320..CELL_LEN).collect();
    for at in flips {
        for leg in 0..4 {
            let mut world = World::new();
            let id = world.built(&relays(3), 3);
            world.unit(A, id, 3, 0x55);
            for _ in 0..leg {
                let seen = world.wire.pop().unwrap();
                world.hand(&seen);
            }
            let good = world.wire.pop().unwrap();
            let mut bad = good.clone();
            bad.cell[at] ^= 0x10;
            let dropped = world.hand(&bad);
            // At the host, the two hosts' seal comes after the leg's check.
            if dropped.is_none() && leg < 3 {
                let after = world.wire.pop().unwrap();
                // The next node accepts the cell, so it must have overwritten the flip.
                assert_eq!(world.hand(&after), None, "flip at {at} on leg {leg}");
                assert!(at >= CellShape::new(3).unwrap().tag_at(3 - leg) + 16, "{at} on leg {leg}");
            }
        }
    }
}

#[test]
fn a_changed_byte_on_the_way_back_never_reaches_the_origin() {
    for at in (0..40).chain((40..1_352).step_by(131)) {
        for leg in 0..4 {
            let mut world = World::new();
            let id = world.built(&relays(3), 3);
            world.unit(A, id, 3, 1);
            world.run();
            let (_, there, _) = world.units.pop().unwrap();
            world.unit(B, there, 3, 2);
            for _ in 0..leg {
                let seen = world.wire.pop().unwrap();
                world.hand(&seen);
            }
            let mut bad = world.wire.pop().unwrap();
            bad.cell[at] ^= 0x10;
            world.hand(&bad);
            world.run();
            // On the first leg back, only the two hosts' own seal covers the unit.
            if leg > 0 || at < 26 {
                assert_eq!(world.units.len(), 0, "flip at {at} on leg {leg}");
            }
        }
    }
}

#[test]
fn a_replayed_cell_dies_at_the_next_node() {
    let mut world = World::new();
    let id = world.built(&relays(3), 3);
    world.unit(A, id, 3, 5);
    for seen in world.run() {
        assert_eq!(world.hand(&seen), Some(DropReason::Replayed));
    }
    world.node(A).echo(id, 2, 9).unwrap();
    let all = world.run();
    for seen in all {
        assert_eq!(world.hand(&seen), Some(DropReason::Replayed));
    }
    assert_eq!(world.run().len(), 0);
    no_nonce_twice();
}

/// A hop with traffic has a long window. The pool of memory for such windows is limited, and idle
/// hops give it back.
#[test]
fn cells_may_overtake_each_other_far_where_there_is_memory_for_it() {
    for (warm, late) in [(1, None), (0, Some(DropReason::TooOld))] {
        let mut world = World::new();
        let id = world.built(&relays(2), 3);
        *world.node(relay(1)).warm_left_of_test() = warm;
        world.unit(A, id, 3, 1);
        world.run();
        world.unit(A, id, 3, 2);
        let overtaken = world.wire.pop().unwrap();
        for n in 0..200 {
            world.unit(A, id, 3, n);
            world.run();
        }
        assert_eq!(world.hand(&overtaken), late);
        world.run();
        assert_eq!(world.units.len(), 201 + usize::from(late.is_none()));
        assert_eq!(*world.node(relay(1)).warm_left_of_test(), 0);
        world.pass(Duration::from_secs(12));
        assert_eq!(*world.node(relay(1)).warm_left_of_test(), warm, "the hop is cold again");
        assert!(world.hand(&overtaken).is_some());
        world.unit(A, id, 3, 7);
        world.run();
        assert_eq!(world.units.len(), 202 + usize::from(late.is_none()));
    }
    no_nonce_twice();
}

/// Cells on two legs have no 16 bytes in common, at equal or different offsets.
#[test]
fn no_sixteen_bytes_come_twice() {
    let mut world = World::new();
    let id = world.begin(&relays(5), 5);
    let mut all = world.run();
    for n in 0..3 {
        world.unit(A, id, 5, 2 * n);
        all.extend(world.run());
        let (_, there, _) = world.units.pop().unwrap();
        world.unit(B, there, 5, 2 * n + 1);
        all.extend(world.run());
        world.node(A).echo(id, 6, 3).unwrap();
        all.extend(world.run());
        world.node(A).send_handshake(id, &unit(50 + n, shake::EDGE_LEN)).unwrap();
        all.extend(world.run());
        world.node(B).send_handshake(there, &unit(60 + n, shake::EDGE_COOKIE_LEN)).unwrap();
        all.extend(world.run());
    }
    let mut seen: BTreeMap<&[u8], (usize, usize)> = BTreeMap::new();
    for (number, CarriedCell { to, cell, .. }) in all.iter().enumerate() {
        for (at, bytes) in cell.windows(16).enumerate() {
            let before = seen.insert(bytes, (number, at));
            assert_eq!(before, None, "16 equal bytes at {at} of cell {number}, to {to}");
        }
    }
    assert!(all.len() > 60);
}

#[test]
fn a_node_that_is_no_neighbour_of_a_circuit_can_send_nothing_into_it() {
    let mut world = World::new();
    let id = world.built(&relays(3), 3);
    world.unit(A, id, 3, 5);
    let mut seen = world.wire.pop().unwrap();
    seen.from = relay(6);
    assert_eq!(world.hand(&seen), Some(DropReason::UnknownCircuit));
    let junk = CarriedCell { from: A, to: relay(1), cell: Box::new([3; CELL_LEN]) };
    assert!(matches!(world.hand(&junk), Some(DropReason::UnknownCircuit | DropReason::BadLeg)));
}

#[test]
fn a_create_cell_counts_once_and_only_where_it_was_sent() {
    let mut world = World::new();
    let id = world.begin(&relays(1), 1);
    world.collect();
    let create = world.wire.pop().unwrap();
    let elsewhere = CarriedCell { to: relay(2), ..create.clone() };
    assert_eq!(world.hand(&elsewhere), Some(DropReason::UnknownCircuit));
    assert_eq!(world.node(relay(2)).len(), 0);
    let mut changed = create.clone();
    changed.cell[700] ^= 1;
    assert_eq!(world.hand(&changed), Some(DropReason::UnknownCircuit));
    assert_eq!(world.hand(&create), None);
    assert_eq!(world.hand(&create), Some(DropReason::ReplayedHandshake));
    world.collect();
    assert_eq!(world.node(relay(1)).len(), 1);
    world.now = world.now + Duration::from_secs(700);
    assert_eq!(world.hand(&create), Some(DropReason::WrongClock));
    assert!(world.node(A).progress(id).is_some());
}

#[test]
fn a_silent_relay_ends_the_set_up_and_leaves_nothing() {
    for (dead, hop) in [(relay(1), 1), (relay(2), 2), (B, 4)] {
        let mut world = World::new();
        world.dead.insert(dead);
        let id = world.begin(&relays(3), 3);
        world.run();
        world.pass(Duration::from_secs(12));
        assert_eq!(world.events, [(A, OnionEvent::Failed(id, hop, SetupFailure::Silent))]);
        world.pass(Duration::from_secs(70));
        assert_eq!(world.circuits(), 0);
    }
}

#[test]
fn a_relay_refuses_to_go_on_where_it_may_not() {
    let mut world = World::new();
    let nodes: BTreeMap<_, _> = world.node(A).nodes_of_test();
    let without = nodes.iter().filter(|(at, _)| **at != relay(2));
    let without = without.map(|(at, key)| (*at, *key)).collect();
    world.node(relay(1)).set_nodes(without);
    let id = world.begin(&relays(3), 3);
    world.run();
    assert_eq!(
        world.events.pop(),
        Some((A, OnionEvent::Failed(id, 2, SetupFailure::Refused(ExtendRefusal::NotAllowed))))
    );
    assert_eq!(world.drops, [(relay(1), DropReason::NotAllowed)]);
    world.pass(Duration::from_secs(2));
    assert_eq!(world.circuits(), 0);
    let shape = CellShape::new(3).unwrap();
    let now = world.now;
    let life = Duration::from_secs(60);
    for path in [
        vec![],
        vec![B],
        vec![relay(1), A],
        vec![relay(1), relay(2), relay(1), B],
        vec![relay(1), relay(2), relay(3), relay(4), B],
        vec![relay(77), B],
    ] {
        let refused = world.node(A).build(now, &path, shape, life);
        assert_eq!(refused, Err(DropReason::UnknownPeer), "{}", path.len());
    }
}

#[test]
fn circuits_end_when_idle_and_at_their_time() {
    let mut world = World::new();
    let id = world.built(&relays(3), 3);
    world.pass(Duration::from_secs(59));
    assert_eq!(world.circuits(), 5);
    world.pass(Duration::from_secs(3));
    assert_eq!((world.circuits(), world.events.pop()), (0, Some((A, OnionEvent::Ended(id)))));

    // All ends expired at once, and tell each other.
    world.drops.clear();
    let id = world.built(&relays(3), 3);
    for _ in 0..61 {
        world.pass(Duration::from_secs(10));
        if world.node(A).progress(id).is_some() {
            world.unit(A, id, 3, 1);
            world.run();
        }
    }
    assert_eq!(world.circuits(), 0);
}
