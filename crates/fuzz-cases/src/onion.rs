//! Circuits, with any messages of neighbours, origins and hops. Nothing panics, no request gets
//! more answers than allowed, and no key seals twice with one number.
//!
//! The machines use an AEAD that checks nothing, and the input can change sealed bytes: so any
//! content comes with valid headers.

use core::cell::RefCell;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use shoal_crypto::{Aead, BadTag, Ciphers, Identity, NetworkSecret, PublicKey, Suite};
use shoal_crypto::{Processor, SuiteSupport, Suites};
use shoal_onion::{CellResult, CircuitLimits, Onion, OnionConfig, OnionEvent, OriginatedCell};
use shoal_wire::leg::{CELL_LEN, CellShape, HopOffer, HopTerms, LegGrant, LegMessage};
use shoal_wire::{Address, CircuitId, MixStrategy, MixTime, Reader, Time};

use crate::machines::{span, steps};

/// Control messages and the contents of set-ups: a parsed value is written and parsed again.
pub fn leg(data: &[u8]) {
    if let Ok(message) = LegMessage::parse(data) {
        let mut out = [0xff; 1_304];
        message.write(&mut out).expect("the message fits the smallest room");
        assert_eq!(LegMessage::parse(&out), Ok(message));
    }
    if let Ok(offer) = HopOffer::parse(data) {
        assert_eq!(offer.to_bytes(), data);
    }
    if let Ok(terms) = HopTerms::parse(data) {
        assert_eq!(terms.to_bytes(), data);
    }
    if let Ok(grant) = LegGrant::read(&mut Reader::new(data)) {
        assert_eq!(grant.to_bytes(), data[..LegGrant::LEN]);
    }
}

/// A relay between an origin and a host: cells to it are changed, replayed and made up. It delays
/// the cells of some circuits.
pub fn hop(data: &[u8]) {
    CircuitRig::new(RELAY).drive(data);
}

/// An origin: cells to it are changed, replayed and made up.
pub fn origin(data: &[u8]) {
    CircuitRig::new(A).drive(data);
}

const A: Address = Address::new(1, 1);
const RELAY: Address = Address::new(1, 0);
const B: Address = Address::new(2, 1);
/// Maximum number of cells in flight, and of old cells for replays.
const CELLS_MAX: usize = 64;

/// Maximum delay of a cell at a relay.
const WAIT_MAX: Duration = Duration::from_millis(25);

/// Strategies in the network's list.
fn mixes() -> [MixStrategy; 2] {
    let ms = |ms| MixTime::from_duration(Duration::from_millis(ms)).expect("less than a second");
    [MixStrategy::StopAndGo { mean: ms(5), most: ms(25) }, MixStrategy::Timed { every: ms(10) }]
}

type Cell = Box<[u8; CELL_LEN]>;

thread_local! {
    /// Changes to the next sealed bytes: offset, and value for XOR.
    static BEND: RefCell<Vec<(u16, u8)>> = const { RefCell::new(Vec::new()) };
    /// Keys and the numbers under which they have sealed.
    static SEALED: RefCell<BTreeSet<([u8; 32], u64)>> = const { RefCell::new(BTreeSet::new()) };
}

/// An AEAD that checks nothing, and applies the input's changes when it seals.
struct TamperingAead([u8; 32]);

impl Aead for TamperingAead {
    fn new(_: Suite, key: &[u8; 32]) -> TamperingAead {
        TamperingAead(*key)
    }

    fn seal(&self, counter: u64, _: &[u8], body: &mut [u8], tag: &mut [u8; 16]) {
        let new = SEALED.with_borrow_mut(|sealed| sealed.insert((self.0, counter)));
        assert!(new, "a key seals twice with one number");
        change(body, &BEND.take());
        *tag = [0; 16];
    }

    fn open(&self, _: u64, _: &[u8], _: &mut [u8]) -> Result<(), BadTag> {
        Ok(())
    }
}

struct BentCiphers;

impl Ciphers for BentCiphers {
    type Aead = TamperingAead;

    fn verify(_: &PublicKey, _: &[u8], _: &[u8; 64]) -> bool {
        true
    }
}

/// Parses changes of bytes: `[offset u16][xor]`, repeated.
fn changes(bytes: &[u8]) -> Vec<(u16, u8)> {
    let all = bytes.chunks_exact(3).map(|c| (u16::from_be_bytes([c[0], c[1]]), c[2]));
    all.take(CELL_LEN).collect()
}

fn change(body: &mut [u8], changes: &[(u16, u8)]) {
    for &(at, xor) in changes {
        let at = usize::from(at) % body.len();
        body[at] ^= xor;
    }
}

struct CircuitRig {
    now: Time,
    /// The node whose cells are changed.
    target: Address,
    nodes: BTreeMap<Address, Onion<BentCiphers>>,
    wire: VecDeque<(Address, Address, Cell)>,
    old: VecDeque<(Address, Address, Cell)>,
    /// The newest circuit at each end.
    ends: BTreeMap<Address, CircuitId>,
    /// Number of cells that the relay delayed.
    mixed: usize,
}

impl CircuitRig {
    fn new(target: Address) -> CircuitRig {
        SEALED.take();
        BEND.take();
        let all = [A, RELAY, B];
        let identity = |at: Address| Identity::from_seed([at.router as u8 * 3 + at.host as u8; 32]);
        let keys: BTreeMap<_, _> = all.map(|at| (at, identity(at).public())).into();
        let nodes = all.map(|address| {
            let means = SuiteSupport { processor: Processor::Aes, suites: Suites::ALL };
            let limits = CircuitLimits { own: 16, others: 16, of_relay: 8, of_host: 8 };
            let config = OnionConfig { address, limits, means, relay: address.is_router() };
            let secret = NetworkSecret([1; 32]);
            let (seed, now) = ([address.router as u8 + 7; 32], Time::ZERO);
            let mut node = Onion::new(config, identity(address), secret, seed, now, 1 << 40);
            node.set_nodes(keys.clone());
            node.set_mixes(now, mixes().into());
            (address, node)
        });
        let (nodes, ends) = (nodes.into(), BTreeMap::new());
        let (wire, old) = (VecDeque::new(), VecDeque::new());
        let mut world = CircuitRig { now: Time::ZERO, target, nodes, wire, old, ends, mixed: 0 };
        world.build(&[]);
        world.carry();
        world
    }

    fn node(&mut self, at: Address) -> &mut Onion<BentCiphers> {
        self.nodes.get_mut(&at).expect("one of three nodes")
    }

    /// Builds a circuit whose relay applies these strategies.
    fn build(&mut self, mix: &[MixStrategy]) {
        let (now, shape) = (self.now, CellShape::new(2).expect("two places"));
        let (path, life) = ([RELAY, B], Duration::from_secs(60));
        let built = self.node(A).build_mixed(now, &path, mix, shape, life);
        if let Ok(id) = built {
            self.ends.insert(A, id);
        }
        self.drain();
    }

    /// Delivers cells of one node as a batch.
    fn hand(&mut self, from: Address, to: Address, cells: Vec<Cell>) {
        let mut buf: Vec<u8> = cells.iter().flat_map(|cell| cell.iter().copied()).collect();
        let offsets: Vec<u32> = (0..cells.len()).map(|n| (n * CELL_LEN) as u32).collect();
        for cell in cells {
            self.old.push_back((from, to, cell));
        }
        while self.old.len() > CELLS_MAX {
            self.old.pop_front();
        }
        let (now, mut out) = (self.now, Vec::new());
        self.node(to).handle_batch(now, from, &mut buf, &offsets, &mut out);
        assert_eq!(out.len(), offsets.len(), "one result for each cell");
        let went = out
            .iter()
            .filter(|went| matches!(went, Ok(CellResult::On(..) | CellResult::Mixed(..))))
            .count();
        let sent = self.drain();
        // A cell that stays may cause a cookie reply, an answer or the next create cell.
        assert!(sent <= 2 * (offsets.len() - went), "{sent} for {}", offsets.len());
        for (went, cell) in out.into_iter().zip(buf.chunks_exact(CELL_LEN)) {
            if let Ok(CellResult::Mixed(.., due)) = went {
                self.kept(to, due);
            }
            match went {
                Ok(CellResult::On(next, _) | CellResult::Mixed(next, ..)) => {
                    let cell = Box::new(cell.try_into().expect("a cell"));
                    self.wire.push_back((to, next, cell));
                }
                Ok(CellResult::Unit(id)) => _ = self.ends.insert(to, id),
                Ok(CellResult::Taken) | Err(_) => {}
            }
        }
        self.wire.truncate(CELLS_MAX);
    }

    /// Counts a cell that `at` delays until `due`. The test sends it at once, since cells of a mix
    /// need not stay in order.
    fn kept(&mut self, at: Address, due: Time) {
        assert_eq!(at, RELAY, "only a relay keeps cells back");
        assert!(self.now <= due && due <= self.now + WAIT_MAX, "{due:?} at {:?}", self.now);
        self.mixed += 1;
    }

    /// Serves all nodes. Returns the number of cells sent.
    fn drain(&mut self) -> usize {
        let now = self.now;
        let before = self.wire.len();
        let mut waits = Vec::new();
        for (&at, node) in &mut self.nodes {
            let mut left = 200;
            while let Some(job) = node.poll_job() {
                let _ = node.handle_done(now, job.run());
                left -= 1;
                assert!(left > 0, "draining ends");
            }
            while let Some(OriginatedCell { to, cell, wait, .. }) = node.poll_transmit() {
                waits.extend(wait.map(|wait| (at, wait.due)));
                self.wire.push_back((at, to, cell));
            }
            while let Some(event) = node.poll_event() {
                if let OnionEvent::Handshake(id, bytes) = event {
                    assert!(bytes.len() <= 1_400);
                    self.ends.insert(at, id);
                }
            }
            assert_eq!(node.poll_timeout().is_some(), !node.is_empty());
            for (what, holds, most) in node.fills() {
                assert!(holds <= most, "{what}: {holds}, at most {most}");
            }
        }
        waits.into_iter().for_each(|(at, due)| self.kept(at, due));
        self.wire.len() - before
    }

    /// Delivers the cells in flight, and those that follow from them.
    fn carry(&mut self) {
        for _ in 0..CELLS_MAX {
            let Some((from, to, cell)) = self.wire.pop_front() else { return };
            self.hand(from, to, vec![cell]);
        }
    }

    fn unit(&mut self, from: Address, byte: u8) {
        let Some(&id) = self.ends.get(&from) else { return };
        let now = self.now;
        let mut cell = Box::new([byte; CELL_LEN]);
        if let Ok(to) = self.node(from).seal_units(now, id, &mut cell[..], &[0]) {
            self.wire.push_back((from, to, cell));
        }
    }

    fn drive(&mut self, data: &[u8]) {
        for (verb, bytes) in steps(data).take(64) {
            let end = if verb & 0x80 == 0 { A } else { B };
            let id = self.ends.get(&end).copied();
            match verb % 10 {
                0 => self.made_up(end, bytes),
                1 => self.carry(),
                2 => self.changed(bytes),
                3 => self.pass(bytes),
                4 => {
                    let hop = bytes.first().map_or(1, |hop| hop % 4);
                    let told = id.map(|id| self.node(end).echo(id, hop, 7));
                    assert!(end == A || told.is_none_or(|told| told.is_err()));
                }
                5 => self.unit(end, bytes.first().copied().unwrap_or(1)),
                6 => _ = id.map(|id| self.node(end).send_handshake(id, bytes)),
                7 => self.replay(bytes),
                8 => BEND.set(changes(bytes)),
                _ if bytes.is_empty() => {
                    let mix = mixes()[usize::from(verb & 0x20 != 0)];
                    self.build(if verb & 0x40 == 0 { &[] } else { core::slice::from_ref(&mix) });
                }
                _ => {
                    if let Some(id) = id {
                        self.node(end).close(id);
                    }
                }
            }
            self.drain();
            self.wire.truncate(CELLS_MAX);
        }
    }

    fn made_up(&mut self, from: Address, bytes: &[u8]) {
        let mut cell = Box::new([0; CELL_LEN]);
        let len = bytes.len().min(CELL_LEN);
        cell[..len].copy_from_slice(&bytes[..len]);
        let from = if from == self.target { RELAY } else { from };
        self.hand(from, self.target, vec![cell]);
    }

    /// The oldest cell to the target arrives, changed.
    fn changed(&mut self, bytes: &[u8]) {
        let at = self.wire.iter().position(|(_, to, _)| *to == self.target);
        let Some((from, to, mut cell)) = at.and_then(|at| self.wire.remove(at)) else { return };
        change(&mut cell[..], &changes(bytes));
        self.hand(from, to, vec![cell]);
    }

    fn pass(&mut self, bytes: &[u8]) {
        self.now = self.now + span(bytes);
        let now = self.now;
        self.nodes.values_mut().for_each(|node| node.handle_timeout(now));
    }

    /// Replays old cells in one batch, in the name of the newest one's sender.
    fn replay(&mut self, bytes: &[u8]) {
        let Some((from, ..)) = self.old.back() else { return };
        let (from, count) = (*from, self.old.len());
        let cells = bytes.iter().take(44).map(|&at| self.old[usize::from(at) % count].2.clone());
        let cells: Vec<Cell> = cells.collect();
        let to = if from == self.target { RELAY } else { self.target };
        self.hand(from, to, cells);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The code that committed inputs reach: a new circuit, the cells of its set-up, and units in
    /// both directions.
    #[test]
    fn inputs_reach_relays_that_keep_cells_back() {
        // The verb is 9 modulo 10; 0x40 asks for a mix, 0x20 for the second one.
        for (begin, mixed) in [(9, false), (0x40 + 5, true), (0x60 + 3, true)] {
            assert_eq!(begin % 10, 9);
            let (carry, a_says, b_says) = (1, 5, 0x80 + 7);
            assert_eq!((carry % 10, b_says % 10), (1, 5));
            let verbs = [begin, carry, a_says, carry, b_says, carry];
            let input: Vec<u8> = verbs.into_iter().flat_map(|verb| [verb, 0, 0]).collect();
            let mut world = CircuitRig::new(RELAY);
            world.drive(&input);
            // The set-up's cells and the unit on the way out, and one of each on the way back.
            assert_eq!(world.mixed >= 4, mixed, "{begin}: {}", world.mixed);
            assert!(mixed || world.mixed == 0);
        }
    }
}
