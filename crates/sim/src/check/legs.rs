//! Leg cells as the links of all nodes see them: full, bulk, and no sixteen bytes of one stand in
//! another. And a carrier that changes them: what it spoils dies at a node of the circuit, by name.
//!
//! Sixteen equal bytes hold nine words of eight, and the least of each nine in a row, by a hash, is
//! looked up: so two cells that share sixteen bytes share a word that is looked up in both.

use std::collections::BTreeMap;

use shoal_crypto::Rng;
use shoal_wire::leg::{BODY_AT, CELL_LEN, RELAYS_MAX, Shape};
use shoal_wire::{Address, LinkKind, RoutedHeader, TrafficClass, link};

use crate::ciphers::mix;

pub(crate) const RULE: &str = "leg cells are alike and have nothing in common";
/// Equal bytes in a row that two cells never have.
const RUN: usize = 16;
const WORD: usize = 8;
/// Cells that are remembered, and words of them.
const CELLS: usize = 1 << 12;
const WORDS: usize = 1 << 21;
/// Legs of which a carrier keeps a cell.
const KEPT_MAX: usize = 256;

/// The nodes at the ends of a leg.
type Ends = (Address, Address);
type Cell = [u8; CELL_LEN];

/// What a carrier spoils, and how often.
pub(crate) struct Carriers {
    rng: Rng,
    ppm: u32,
    /// Nodes below this number are routers, which may spoil cells.
    routers: usize,
    /// Addresses of all nodes.
    nodes: Vec<Address>,
    /// Bytes from here on are overwritten by some hops, and need not be noticed.
    covered: usize,
}

impl Carriers {
    pub(crate) fn new(seed: [u8; 32], ppm: u32, routers: usize, nodes: &[Address]) -> Carriers {
        let longest = Shape::new(RELAYS_MAX).expect("the most relays that there may be");
        let covered = BODY_AT + longest.unit_len();
        Carriers { rng: Rng::new(seed), ppm, routers, nodes: nodes.to_vec(), covered }
    }
}

/// What was seen of leg cells.
pub(crate) struct Legs {
    carriers: Carriers,
    /// The newest cells, each at its number modulo their count.
    cells: Vec<(u64, Ends, Box<Cell>)>,
    count: usize,
    /// Number and offset of the newest cell that has a word, by a hash of the word.
    words: Vec<(u32, u16)>,
    /// By a hash: the number of each remembered cell.
    known: BTreeMap<u64, usize>,
    /// The newest cell of each leg that arrived and was not spoilt: repeated, it comes again.
    kept: BTreeMap<Ends, Box<Cell>>,
    /// Spoilt cells that are under way, by a hash; some are so more than once.
    spoilt: BTreeMap<u64, u32>,
    /// Spoilt cells that reached the end of their leg.
    pub(crate) arrived: u64,
    /// Plants a fault: the next cell is taken for a shorter one, or to repeat the one before.
    pub(crate) shorten: bool,
    pub(crate) repeat: bool,
    broken: Option<String>,
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.windows(WORD).map(|word| mix(u64::from_le_bytes(word.try_into().expect("eight bytes"))))
}

/// Names a cell on a leg.
fn name(ends: Ends, cell: &Cell) -> u64 {
    let (parts, _) = cell.as_chunks::<8>();
    let ends = [ends.0, ends.1].map(|at| u64::from(at.router) << 16 | u64::from(at.host));
    let all = parts.iter().map(|part| u64::from_le_bytes(*part)).chain(ends);
    all.fold(0, |sum, word| mix(sum ^ word))
}

/// How many bytes around two places are equal.
fn equal(a: (&Cell, usize), b: (&Cell, usize)) -> usize {
    let same = |pair: &(&u8, &u8)| pair.0 == pair.1;
    let behind = a.0[a.1..].iter().zip(&b.0[b.1..]).take_while(same).count();
    let before = a.0[..a.1].iter().rev().zip(b.0[..b.1].iter().rev()).take_while(same).count();
    behind + before
}

/// The ends of the leg and the cell in a link's plaintext, if that is what it is.
fn leg(plaintext: &mut [u8]) -> Option<(RoutedHeader, &mut [u8])> {
    if *plaintext.first()? != LinkKind::Leg as u8 {
        return None;
    }
    let (head, cell) = plaintext.split_at_mut_checked(link::CELL_AT - link::KIND_AT)?;
    let header = RoutedHeader::parse(&head[link::ROUTED_AT - link::KIND_AT..]).ok()?;
    Some((header, cell))
}

impl Legs {
    pub(crate) fn new(carriers: Carriers) -> Legs {
        Legs {
            carriers,
            cells: Vec::new(),
            count: 0,
            words: Vec::new(),
            known: BTreeMap::new(),
            kept: BTreeMap::new(),
            spoilt: BTreeMap::new(),
            arrived: 0,
            shorten: false,
            repeat: false,
            broken: None,
        }
    }

    /// What is wrong, if anything is.
    pub(crate) fn broken(&self) -> Option<&String> {
        self.broken.as_ref()
    }

    /// Carriers spoil nothing from now on.
    pub(crate) fn make_honest(&mut self) {
        self.carriers.ppm = 0;
    }

    /// A node seals this link plaintext; one that spoils cells changes it.
    pub(crate) fn leaves(&mut self, node: usize, plaintext: &mut [u8]) {
        let Some((header, cell)) = leg(plaintext) else { return };
        let len = cell.len() - usize::from(core::mem::take(&mut self.shorten));
        let is_bulk = header.class() == TrafficClass::Bulk;
        let Some(cell) = cell.first_chunk_mut::<CELL_LEN>().filter(|_| len == CELL_LEN && is_bulk)
        else {
            let class = header.class();
            self.broken.get_or_insert(format!("a leg cell of {len} bytes, class {class:?}"));
            return;
        };
        let ends = (header.src(), header.dst());
        let hash = name(ends, cell);
        if self.spoilt.contains_key(&hash) {
            return;
        }
        self.note(ends, hash, cell);
        let draws = node < self.carriers.routers && self.carriers.ppm > 0;
        if draws && self.carriers.rng.below(1_000_000) < u64::from(self.carriers.ppm) {
            self.spoil(ends, cell);
        }
    }

    /// A node opened this link plaintext.
    pub(crate) fn comes(&mut self, node: usize, plaintext: &mut [u8]) {
        if self.spoilt.is_empty() && self.carriers.ppm == 0 {
            return;
        }
        let Some((header, cell)) = leg(plaintext) else { return };
        let Some(cell) = cell.first_chunk::<CELL_LEN>() else { return };
        if self.carriers.nodes.get(node) != Some(&header.dst()) {
            return;
        }
        let ends = (header.src(), header.dst());
        let hash = name(ends, cell);
        if let Some(left) = self.spoilt.get_mut(&hash) {
            self.arrived += 1;
            *left -= 1;
            if *left == 0 {
                self.spoilt.remove(&hash);
            }
        } else if self.kept.len() < KEPT_MAX || self.kept.contains_key(&ends) {
            self.kept.insert(ends, Box::new(*cell));
        }
    }

    /// Flips a bit, or puts an older cell of this leg, or one of another leg, in a cell's place.
    fn spoil(&mut self, ends: Ends, cell: &mut Cell) {
        let Carriers { rng, covered, .. } = &mut self.carriers;
        let other = self.kept.iter().find(|(leg, _)| leg.1 != ends.1).map(|(_, cell)| cell);
        match (rng.below(4), self.kept.get(&ends), other) {
            (0, Some(old), _) | (1, _, Some(old)) => *cell = **old,
            _ => {
                // What stands right behind the head of a control cell is for earlier hops.
                let after = BODY_AT + RELAYS_MAX as usize;
                let at = rng.below((BODY_AT + *covered - after) as u64) as usize;
                let at = if at < BODY_AT { at } else { at - BODY_AT + after };
                cell[at] ^= 1 << rng.below(8);
            }
        }
        *self.spoilt.entry(name(ends, cell)).or_default() += 1;
    }

    /// Looks whether a cell has something in common with others, and remembers it. One that is
    /// carried on over several links is one cell.
    fn note(&mut self, ends: Ends, hash: u64, cell: &Cell) {
        if self.known.contains_key(&hash) {
            return;
        }
        let mut cell = Box::new(*cell);
        if core::mem::take(&mut self.repeat) && self.count > 0 {
            let (.., before) = &self.cells[(self.count - 1) % CELLS];
            cell[701..701 + RUN].copy_from_slice(&before[333..333 + RUN]);
        }
        self.words.resize(WORDS, (u32::MAX, 0));
        let hashes: Vec<u64> = words(&cell[..]).collect();
        let mut last = usize::MAX;
        for (from, nine) in hashes.windows(RUN - WORD + 1).enumerate() {
            let least = (0..nine.len()).min_by_key(|at| nine[*at]).unwrap_or(0) + from;
            if least != last {
                self.look_up(ends, &cell, least, hashes[least]);
                last = least;
            }
        }
        let place = self.count % CELLS;
        self.count += 1;
        self.known.insert(hash, place);
        match self.cells.get_mut(place) {
            None => self.cells.push((hash, ends, cell)),
            Some(oldest) => {
                self.known.remove(&oldest.0);
                *oldest = (hash, ends, cell);
            }
        }
    }

    /// Looks for another cell that has the word at `at`, and notes that this one has it.
    fn look_up(&mut self, ends: Ends, cell: &Cell, at: usize, word: u64) {
        let slot = &mut self.words[word as usize % WORDS];
        let (number, there) = *slot;
        *slot = (self.count as u32, at as u16);
        if number as usize + CELLS <= self.count || number as usize >= self.count {
            return;
        }
        let Some((_, others, other)) = self.cells.get(number as usize % CELLS) else { return };
        let run = equal((cell, at), (other, there.into()));
        if run >= RUN {
            let seen = format!("{run} equal bytes around {at} on {others:?} and {ends:?}");
            self.broken.get_or_insert(seen);
        }
    }
}

#[cfg(test)]
mod tests {
    use shoal_wire::SizeClass;

    use super::*;

    const A: Address = Address::new(1, 1);
    const R: Address = Address::new(1, 0);
    const B: Address = Address::new(2, 0);

    fn legs(ppm: u32) -> Legs {
        Legs::new(Carriers::new([1; 32], ppm, 2, &[R, B, A]))
    }

    fn plaintext(fill: u8, src: Address, dst: Address, class: TrafficClass) -> Vec<u8> {
        let mut frame = vec![0; SizeClass::Full.link_body_len() + 1];
        Rng::new([fill; 32]).fill(&mut frame);
        frame[0] = LinkKind::Leg as u8;
        let header = [&dst.to_bytes()[..], &src.to_bytes(), &[class as u8, 0, 32]].concat();
        frame[1..1 + RoutedHeader::LEN].copy_from_slice(&header);
        frame
    }

    #[test]
    fn sixteen_equal_bytes_are_seen_wherever_they_stand_and_fifteen_are_not() {
        for (at, there) in [(0, 0), (700, 3), (3, 700), (1_384, 1), (9, 1_384), (801, 802)] {
            for len in [RUN - 1, RUN] {
                let mut legs = legs(0);
                let mut one = plaintext(1, A, R, TrafficClass::Bulk);
                let mut two = plaintext(2, R, B, TrafficClass::Bulk);
                let cell = two.len() - CELL_LEN;
                let piece = one[cell + at..cell + at + len].to_vec();
                two[cell + there..cell + there + len].copy_from_slice(&piece);
                legs.leaves(0, &mut one);
                legs.leaves(0, &mut one);
                assert_eq!(legs.broken(), None, "carried on");
                legs.leaves(1, &mut two);
                assert_eq!(legs.broken().is_some(), len == RUN, "{at} {there}");
            }
        }
    }

    #[test]
    fn cells_of_another_length_or_class_are_seen() {
        let mut legs = legs(0);
        legs.leaves(0, &mut plaintext(1, A, R, TrafficClass::Control));
        assert!(legs.broken().is_some());
        let mut legs = self::legs(0);
        legs.leaves(0, &mut plaintext(1, A, R, TrafficClass::Bulk)[..1_300]);
        assert!(legs.broken().is_some());
    }

    #[test]
    fn spoilt_cells_are_counted_where_their_leg_ends_once_each() {
        let mut legs = legs(1_000_000);
        for fill in 0..100 {
            let good = plaintext(fill, A, R, TrafficClass::Bulk);
            let mut bad = good.clone();
            legs.leaves(1, &mut bad);
            assert!(good != bad && legs.broken().is_none());
            legs.comes(1, &mut bad.clone());
            assert_eq!(legs.arrived, u64::from(fill), "it goes on");
            legs.comes(0, &mut bad.clone());
            legs.comes(0, &mut bad);
            assert_eq!(legs.arrived, u64::from(fill) + 1);
        }
        let mut bad = plaintext(7, A, R, TrafficClass::Bulk);
        let good = bad.clone();
        legs.leaves(2, &mut bad);
        assert_eq!(bad, good, "hosts spoil nothing");
    }
}
