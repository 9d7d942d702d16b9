//! Leg cells on all links are alike: full and bulk, and no two cells share sixteen bytes.
//!
//! Sixteen equal bytes contain nine words of eight bytes. Of each nine consecutive words, the one
//! with the least hash is looked up. Two cells that share sixteen bytes therefore share a word that
//! is looked up in both.

use std::collections::BTreeMap;

use shoal_wire::leg::CELL_LEN;
use shoal_wire::{Address, LinkKind, RoutedHeader, TrafficClass, link};

use crate::ciphers::mix;

pub(crate) const RULE: &str = "leg cells have one length and class, and share no run of bytes";
/// Length of a common run that two cells never have, in bytes.
const RUN: usize = 16;
const WORD: usize = 8;
/// Numbers of remembered cells and words.
const CELLS: usize = 1 << 12;
const WORDS: usize = 1 << 21;

pub(crate) type LegEnds = (Address, Address);
pub(crate) type LegCellBytes = [u8; CELL_LEN];

/// The observed leg cells.
#[derive(Default)]
pub(crate) struct LegChecker {
    /// The newest cells, each at its number modulo [`CELLS`].
    cells: Vec<(u64, LegEnds, Box<LegCellBytes>)>,
    count: usize,
    /// By hash of a word: number and offset of the newest cell that contains it.
    words: Vec<(u32, u16)>,
    /// By hash of a cell: its index in `cells`.
    known: BTreeMap<u64, usize>,
    broken: Option<String>,
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.windows(WORD).map(|word| mix(u64::from_le_bytes(word.try_into().expect("eight bytes"))))
}

/// Hash that identifies a cell on a leg.
pub(crate) fn name(ends: LegEnds, cell: &LegCellBytes) -> u64 {
    let (parts, _) = cell.as_chunks::<8>();
    let ends = [ends.0, ends.1].map(|at| u64::from(at.router) << 16 | u64::from(at.host));
    let all = parts.iter().map(|part| u64::from_le_bytes(*part)).chain(ends);
    all.fold(0, |sum, word| mix(sum ^ word))
}

/// Number of equal bytes around two positions.
fn equal(a: (&LegCellBytes, usize), b: (&LegCellBytes, usize)) -> usize {
    let same = |pair: &(&u8, &u8)| pair.0 == pair.1;
    let behind = a.0[a.1..].iter().zip(&b.0[b.1..]).take_while(same).count();
    let before = a.0[..a.1].iter().rev().zip(b.0[..b.1].iter().rev()).take_while(same).count();
    behind + before
}

/// Header and cell in a link's plaintext, if it is a leg cell.
pub(crate) fn leg(plaintext: &mut [u8]) -> Option<(RoutedHeader, &mut [u8])> {
    if *plaintext.first()? != LinkKind::Leg as u8 {
        return None;
    }
    let (head, cell) = plaintext.split_at_mut_checked(link::CELL_AT - link::KIND_AT)?;
    let header = RoutedHeader::parse(&head[link::ROUTED_AT - link::KIND_AT..]).ok()?;
    Some((header, cell))
}

impl LegChecker {
    /// The first violation, if there is one.
    pub(crate) fn broken(&self) -> Option<&String> {
        self.broken.as_ref()
    }

    /// Checks a link plaintext that a node is about to seal.
    pub(crate) fn leaves(&mut self, plaintext: &mut [u8]) {
        let Some((header, cell)) = leg(plaintext) else { return };
        let (len, class) = (cell.len(), header.class());
        let is_right = len == CELL_LEN && class == TrafficClass::Bulk;
        let Some(cell) = cell.first_chunk::<CELL_LEN>().filter(|_| is_right) else {
            self.broken.get_or_insert(format!("a leg cell of {len} bytes, class {class:?}"));
            return;
        };
        let ends = (header.src(), header.dst());
        self.note(ends, name(ends, cell), cell);
    }

    /// Checks a cell against the remembered ones, and remembers it. A cell that is carried over
    /// several links counts once.
    fn note(&mut self, ends: LegEnds, hash: u64, cell: &LegCellBytes) {
        if self.known.contains_key(&hash) {
            return;
        }
        let cell = Box::new(*cell);
        self.words.resize(WORDS, (u32::MAX, 0));
        let hashes: Vec<u64> = words(&cell[..]).collect();
        let mut least: Option<usize> = None;
        for (from, nine) in hashes.windows(RUN - WORD + 1).enumerate() {
            let newest = from + nine.len() - 1;
            let next = match least {
                Some(least) if least >= from && hashes[newest] >= hashes[least] => least,
                Some(least) if least >= from => newest,
                // The least word left the window, so all words are compared.
                _ => (0..nine.len()).min_by_key(|at| nine[*at]).unwrap_or(0) + from,
            };
            if least != Some(next) {
                self.look_up(ends, &cell, next, hashes[next]);
                least = Some(next);
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

    /// Looks for another cell that contains the word at `at`, and records this cell for it.
    fn look_up(&mut self, ends: LegEnds, cell: &LegCellBytes, at: usize, word: u64) {
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
pub(crate) mod tests {
    use shoal_crypto::Rng;
    use shoal_wire::SizeClass;

    use super::*;

    pub(crate) const A: Address = Address::new(1, 1);
    pub(crate) const R: Address = Address::new(1, 0);
    pub(crate) const B: Address = Address::new(2, 0);

    pub(crate) fn plaintext(fill: u8, src: Address, dst: Address, class: TrafficClass) -> Vec<u8> {
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
                let mut legs = LegChecker::default();
                let mut one = plaintext(1, A, R, TrafficClass::Bulk);
                let mut two = plaintext(2, R, B, TrafficClass::Bulk);
                let cell = two.len() - CELL_LEN;
                let piece = one[cell + at..cell + at + len].to_vec();
                two[cell + there..cell + there + len].copy_from_slice(&piece);
                legs.leaves(&mut one);
                legs.leaves(&mut one);
                assert_eq!(legs.broken(), None, "a cell that another link carries on");
                legs.leaves(&mut two);
                assert_eq!(legs.broken().is_some(), len == RUN, "{at} {there}");
            }
        }
    }

    #[test]
    fn cells_of_another_length_or_class_are_seen() {
        let mut legs = LegChecker::default();
        legs.leaves(&mut plaintext(1, A, R, TrafficClass::Control));
        assert!(legs.broken().is_some());
        let mut legs = LegChecker::default();
        legs.leaves(&mut plaintext(1, A, R, TrafficClass::Bulk)[..1_300]);
        assert!(legs.broken().is_some());
    }
}
