//! A carrier alters leg cells, repeats them, or replaces one by another. The node at the end of the
//! leg must drop each such cell with a reason.
//!
//! ```text
//! link's seal --leaves--> altered --link's open, leg's end--comes--> owed by the node
//! owed --counted--> settled: that many cells of circuits were dropped there
//!      --sealed---> settled: the cell goes back to an origin, and the next node owes it
//! ```
//!
//! A relay can't verify backward cells completely. It detects an altered head and a replay, but not
//! an altered tail. It seals such a cell, and the origin drops it. The checker recognises a cell by
//! sixteen bytes that are the same before and after.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use shoal_crypto::Rng;
use shoal_wire::leg::{BODY_AT, CELL_LEN, CellShape, RELAYS_MAX, SAMPLE_AT};
use shoal_wire::{Address, Time};

use super::legs::{LegCellBytes, LegEnds, leg, name};

pub(crate) const RULE: &str = "spoilt cells are dropped with a reason";
/// Largest number of legs of which a carrier keeps a cell.
const KEPT_MAX: usize = 256;
/// Time after arrival within which a cell must be dropped. Workers hand it on, and set-up work
/// takes a while.
const WITHIN: Duration = Duration::from_millis(50);
/// Offset of the identifying bytes within the cell.
const MARK_AT: usize = 64;
/// Possible starts of the body of a layer: behind the head, or behind flags.
const STARTS: core::ops::RangeInclusive<usize> = BODY_AT..=BODY_AT + RELAYS_MAX as usize;
/// Number of bytes that contain the identifying ones for each start.
pub(crate) const PART: usize = 16 + RELAYS_MAX as usize;
/// Largest number of altered cells that is remembered per node; the oldest are forgotten.
const HERE_MAX: usize = 1 << 10;

type AlteredFingerprint = [u8; 16];

/// The altered part of a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AlteredPart {
    /// The head, the bytes that mask it, or the whole cell. The check of the leg, or its replay
    /// window, refuses the cell.
    Head,
    /// The rest. Only a layer's seal detects it.
    Tail,
    /// The head, before the next node crashed. That node may accept cells that had passed before.
    Forgotten,
}

/// Cells that a node must still drop.
#[derive(Default)]
struct OwedCells {
    /// Deadlines, the oldest first.
    owed: VecDeque<Time>,
    /// Cells with altered tails that the node may be processing.
    here: VecDeque<AlteredFingerprint>,
    /// Cells with altered tails that the node sealed, before they leave.
    on: VecDeque<AlteredFingerprint>,
    /// Number of circuit cells that the node has dropped, at the last look.
    dropped: u64,
}

/// Carriers, and the cells that they altered.
pub(crate) struct AlteredCells {
    rng: Rng,
    ppm: u32,
    /// Nodes below this number are routers, which may alter cells.
    routers: usize,
    addresses: Vec<Address>,
    /// Bytes from this offset on are overwritten by some hops, so a change there may go unnoticed.
    covered: usize,
    /// Newest unaltered cell of each leg that arrived, for replays.
    kept: BTreeMap<LegEnds, Box<LegCellBytes>>,
    /// Altered cells in flight, by hash, with the number of copies.
    under_way: BTreeMap<u64, (u32, Address, AlteredPart)>,
    nodes: Vec<OwedCells>,
    /// Number of altered cells that reached the end of their leg.
    pub(crate) arrived: u64,
    broken: Option<String>,
}

fn mark(cell: &LegCellBytes) -> AlteredFingerprint {
    cell[MARK_AT..MARK_AT + 16].try_into().expect("sixteen bytes")
}

/// The bytes of a layer's body that contain the identifying ones, for each start of the body.
pub(crate) fn part(body: &[u8]) -> Option<[u8; PART]> {
    body.get(MARK_AT - STARTS.end()..)?.first_chunk().copied()
}

impl AlteredCells {
    pub(crate) fn new(seed: [u8; 32], ppm: u32, routers: usize, nodes: &[Address]) -> AlteredCells {
        let longest = CellShape::new(RELAYS_MAX).expect("the most relays that there may be");
        AlteredCells {
            rng: Rng::new(seed),
            ppm,
            routers,
            addresses: nodes.to_vec(),
            covered: BODY_AT + longest.unit_len(),
            kept: BTreeMap::new(),
            under_way: BTreeMap::new(),
            nodes: nodes.iter().map(|_| OwedCells::default()).collect(),
            arrived: 0,
            broken: None,
        }
    }

    /// From now on carriers alter nothing.
    pub(crate) fn make_honest(&mut self) {
        self.ppm = 0;
    }

    /// The first violation, if there is one.
    pub(crate) fn broken(&self) -> Option<&String> {
        self.broken.as_ref()
    }

    /// True if a link's plaintext is a cell that was already altered.
    pub(crate) fn is_known(&self, plaintext: &mut [u8]) -> bool {
        if self.under_way.is_empty() {
            return false;
        }
        let Some((header, cell)) = leg(plaintext) else { return false };
        let cell = cell.first_chunk::<CELL_LEN>();
        cell.is_some_and(|cell| {
            self.under_way.contains_key(&name((header.src(), header.dst()), cell))
        })
    }

    /// Handles a link plaintext that a node seals and that is not altered yet. A carrier may alter
    /// it.
    pub(crate) fn leaves(&mut self, node: usize, plaintext: &mut [u8]) {
        let Some((header, cell)) = leg(plaintext) else { return };
        let Some(cell) = cell.first_chunk_mut::<CELL_LEN>() else { return };
        let ends = (header.src(), header.dst());
        if self.addresses[node] == ends.0 {
            let (on, mark) = (&mut self.nodes[node].on, mark(cell));
            if let Some(at) = on.iter().position(|known| *known == mark) {
                on.remove(at);
                return self.note(ends, cell, AlteredPart::Tail);
            }
        }
        let draws = node < self.routers && self.ppm > 0;
        if draws && self.rng.below(1_000_000) < u64::from(self.ppm) {
            let part = self.spoil(ends, cell);
            self.note(ends, cell, part);
        }
    }

    fn note(&mut self, ends: LegEnds, cell: &LegCellBytes, part: AlteredPart) {
        self.under_way.entry(name(ends, cell)).or_insert((0, ends.1, part)).0 += 1;
    }

    /// Flips a bit, or replaces the cell by an older one of this leg or by one of another leg.
    fn spoil(&mut self, ends: LegEnds, cell: &mut LegCellBytes) -> AlteredPart {
        let other = self.kept.iter().find(|(leg, _)| leg.1 != ends.1).map(|(_, cell)| cell);
        match (self.rng.below(4), self.kept.get(&ends), other) {
            (0, Some(old), _) | (1, _, Some(old)) => {
                *cell = **old;
                AlteredPart::Head
            }
            _ => {
                // Bytes right behind the head of a control cell are for earlier hops.
                let after = BODY_AT + RELAYS_MAX as usize;
                let at = self.rng.below((BODY_AT + self.covered - after) as u64) as usize;
                let at = if at < BODY_AT { at } else { at - BODY_AT + after };
                cell[at] ^= 1 << self.rng.below(8);
                if at < SAMPLE_AT + 16 { AlteredPart::Head } else { AlteredPart::Tail }
            }
        }
    }

    /// Handles a link plaintext that a node opened.
    pub(crate) fn comes(&mut self, (at, now): (usize, Time), plaintext: &mut [u8]) {
        if self.under_way.is_empty() && self.ppm == 0 {
            return;
        }
        let Some((header, cell)) = leg(plaintext) else { return };
        let Some(cell) = cell.first_chunk::<CELL_LEN>() else { return };
        if self.addresses.get(at) != Some(&header.dst()) {
            return;
        }
        let ends = (header.src(), header.dst());
        let hash = name(ends, cell);
        let Some((left, _, part)) = self.under_way.get_mut(&hash) else {
            if self.kept.len() < KEPT_MAX || self.kept.contains_key(&ends) {
                self.kept.insert(ends, Box::new(*cell));
            }
            return;
        };
        let part = *part;
        *left -= 1;
        if *left == 0 {
            self.under_way.remove(&hash);
        }
        if part == AlteredPart::Forgotten {
            return;
        }
        self.arrived += 1;
        let node = &mut self.nodes[at];
        node.owed.push_back(now + WITHIN);
        node.here.extend((part == AlteredPart::Tail).then(|| mark(cell)));
        if node.here.len() > HERE_MAX {
            node.here.pop_front();
        }
    }

    /// Handles a layer of a circuit that a node sealed, with the bytes before and after.
    pub(crate) fn seals(&mut self, node: usize, before: &[u8], after: &[u8]) {
        if node >= self.routers || self.nodes[node].here.is_empty() {
            return;
        }
        let OwedCells { owed, here, on, .. } = &mut self.nodes[node];
        let found = here
            .iter()
            .enumerate()
            .find_map(|(at, mark)| Some((at, before.windows(16).position(|bytes| bytes == mark)?)));
        let Some((at, place)) = found else { return };
        here.remove(at);
        owed.pop_front();
        on.extend(after[place..].first_chunk::<16>());
    }

    /// True if the drop counts of nodes are needed.
    pub(crate) fn is_watching(&self) -> bool {
        self.ppm > 0 || self.arrived > 0
    }

    /// Handles a node's total count of dropped circuit cells, at the end of a step. New drops
    /// settle the cells that the node owes. `now` is the time of its clock.
    pub(crate) fn counted(&mut self, at: usize, now: Time, dropped: u64) {
        let node = &mut self.nodes[at];
        for _ in core::mem::replace(&mut node.dropped, dropped)..dropped {
            node.owed.pop_front();
        }
        if node.owed.is_empty() {
            node.here.clear();
        }
        if node.owed.front().is_some_and(|by| *by < now) {
            let seen =
                format!("{} spoilt cells came to node {at} and were not dropped", node.owed.len());
            self.broken.get_or_insert(seen);
        }
    }

    /// Handles the end of a node's pause.
    pub(crate) fn resumed(&mut self, at: usize, now: Time) {
        self.nodes[at].owed.iter_mut().for_each(|by| *by = (*by).max(now + WITHIN));
    }

    /// Handles a node's crash. Cells that had passed before it may pass again.
    pub(crate) fn crashed(&mut self, at: usize) {
        let address = self.addresses[at];
        self.nodes[at] = OwedCells::default();
        self.kept.retain(|ends, _| ends.1 != address);
        for (_, to, part) in self.under_way.values_mut() {
            if *to == address && *part == AlteredPart::Head {
                *part = AlteredPart::Forgotten;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::legs::tests::{A, B, R, plaintext};
    use shoal_wire::TrafficClass;

    const NOW: Time = Time::from_millis(1_000);

    /// Alters cells from host A to relay R, as R's neighbour B forwards them, until one is altered
    /// in this part. Returns the cell that comes to R.
    fn spoilt(wanted: AlteredPart) -> (AlteredCells, Vec<u8>) {
        let mut spoilt = AlteredCells::new([1; 32], 1_000_000, 2, &[R, B, A]);
        for fill in 0..100 {
            let good = plaintext(fill, A, R, TrafficClass::Bulk);
            let mut bad = good.clone();
            spoilt.leaves(1, &mut bad);
            assert!(good != bad && spoilt.is_known(&mut bad));
            let known: Vec<AlteredPart> = spoilt.under_way.values().map(|known| known.2).collect();
            if known == [wanted] {
                return (spoilt, bad);
            }
            spoilt.under_way.clear();
        }
        panic!("no cell was altered in this part");
    }

    #[test]
    fn spoilt_cells_are_owed_where_their_leg_ends_once_each() {
        let (mut spoilt, bad) = spoilt(AlteredPart::Head);
        spoilt.comes((1, NOW), &mut bad.clone());
        assert_eq!(spoilt.arrived, 0, "B is not the end of the leg");
        spoilt.comes((0, NOW), &mut bad.clone());
        spoilt.comes((0, NOW), &mut bad.clone());
        assert_eq!(spoilt.arrived, 1);
        spoilt.counted(0, NOW + WITHIN, 0);
        assert_eq!(spoilt.broken(), None, "the deadline has not passed");
        spoilt.counted(0, NOW + WITHIN, 1);
        spoilt.counted(0, NOW + WITHIN * 2, 1);
        assert_eq!(spoilt.broken(), None, "the cell was dropped");
        let mut host = plaintext(7, A, R, TrafficClass::Bulk);
        let good = host.clone();
        spoilt.leaves(2, &mut host);
        assert_eq!(host, good, "hosts alter nothing");
    }

    #[test]
    fn drops_of_another_time_or_node_pay_nothing() {
        let (mut spoilt, mut bad) = spoilt(AlteredPart::Head);
        spoilt.counted(0, NOW, 5);
        spoilt.comes((0, NOW), &mut bad);
        spoilt.counted(1, NOW, 9);
        spoilt.counted(0, NOW + WITHIN * 2, 5);
        assert!(spoilt.broken().is_some());
    }

    #[test]
    fn what_comes_back_with_another_tail_may_be_sealed_and_is_owed_by_the_next() {
        for wanted in [AlteredPart::Tail, AlteredPart::Head] {
            let (mut spoilt, mut bad) = spoilt(wanted);
            spoilt.comes((0, NOW), &mut bad);
            spoilt.make_honest();
            let mut next = plaintext(9, R, A, TrafficClass::Bulk);
            let before = bad.split_off(bad.len() - CELL_LEN).split_off(BODY_AT);
            let after = next[next.len() - CELL_LEN..][BODY_AT..].to_vec();
            spoilt.seals(0, &part(&before).unwrap(), &part(&after).unwrap());
            spoilt.leaves(0, &mut next);
            spoilt.counted(0, NOW + WITHIN * 2, 0);
            assert_eq!(spoilt.broken().is_none(), wanted == AlteredPart::Tail);
            if wanted == AlteredPart::Tail {
                spoilt.comes((2, NOW), &mut next);
                spoilt.counted(2, NOW + WITHIN * 2, 0);
                assert!(spoilt.broken().is_some());
            }
        }
    }
}
