//! A carrier that changes leg cells, repeats them, or puts one in the place of another: each cell
//! that it spoilt dies by name at the node to which its leg leads.
//!
//! ```text
//! link's seal --leaves--> spoilt --link's open, leg's end--comes--> owed by the node
//! owed --counted--> paid: so many cells of circuits were dropped there
//!      --sealed---> paid: it goes back to an origin, and is owed by the next node
//! ```
//!
//! A relay can't verify what comes back: it knows a cell whose head was spoilt, or that passed
//! before, but not one whose tail was changed. That one it seals, and the origin drops it. Here a
//! cell is known again by sixteen bytes that stand in it before and after.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use shoal_crypto::Rng;
use shoal_wire::leg::{BODY_AT, CELL_LEN, RELAYS_MAX, SAMPLE_AT, Shape};
use shoal_wire::{Address, Time};

use super::legs::{Cell, Ends, leg, name};

pub(crate) const RULE: &str = "what was spoilt on the way dies by name";
/// Legs of which a carrier keeps a cell.
const KEPT_MAX: usize = 256;
/// A cell is dropped so long after it came: workers hand it on, and set-up work takes a while.
const WITHIN: Duration = Duration::from_millis(50);
/// Where the bytes stand by which a cell is known, in the cell.
const MARK_AT: usize = 64;
/// Where they may stand in what a layer covers, which starts behind the head or behind flags.
const STARTS: core::ops::RangeInclusive<usize> = BODY_AT..=BODY_AT + RELAYS_MAX as usize;
/// How many bytes hold them then.
pub(crate) const PART: usize = 16 + RELAYS_MAX as usize;
/// Cells that are known at a node at most; the oldest are forgotten.
const HERE_MAX: usize = 1 << 10;

type Mark = [u8; 16];

/// What was spoilt of a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Its head, what the head is masked with, or all of it. The check of a leg, or a window,
    /// refuses it.
    Head,
    /// What stands behind: only a layer's seal shows it.
    Tail,
    /// Its head, before the node crashed to which it goes: that one may take what passed before.
    Forgotten,
}

/// What a node has to drop.
#[derive(Default)]
struct Node {
    /// By when, the oldest first.
    owed: VecDeque<Time>,
    /// Cells that it may be working on whose tails were changed.
    here: VecDeque<Mark>,
    /// Cells that it sealed though their tails were changed, before they leave.
    on: VecDeque<Mark>,
    /// Cells of circuits that it has dropped, as it was seen last.
    dropped: u64,
}

/// Carriers, and what they spoilt.
pub(crate) struct Spoilt {
    rng: Rng,
    ppm: u32,
    /// Nodes below this number are routers, which may spoil cells.
    routers: usize,
    /// Addresses of all nodes.
    addresses: Vec<Address>,
    /// Bytes from here on are overwritten by some hops, and need not be noticed.
    covered: usize,
    /// The newest cell of each leg that arrived and was not spoilt: repeated, it comes again.
    kept: BTreeMap<Ends, Box<Cell>>,
    /// Spoilt cells that are under way, by a hash; some are so more than once.
    under_way: BTreeMap<u64, (u32, Address, Part)>,
    nodes: Vec<Node>,
    /// Spoilt cells that reached the end of their leg.
    pub(crate) arrived: u64,
    broken: Option<String>,
}

fn mark(cell: &Cell) -> Mark {
    cell[MARK_AT..MARK_AT + 16].try_into().expect("sixteen bytes")
}

/// Of what a layer covers, the bytes that hold a mark wherever the layer starts.
pub(crate) fn part(body: &[u8]) -> Option<[u8; PART]> {
    body.get(MARK_AT - STARTS.end()..)?.first_chunk().copied()
}

impl Spoilt {
    pub(crate) fn new(seed: [u8; 32], ppm: u32, routers: usize, nodes: &[Address]) -> Spoilt {
        let longest = Shape::new(RELAYS_MAX).expect("the most relays that there may be");
        Spoilt {
            rng: Rng::new(seed),
            ppm,
            routers,
            addresses: nodes.to_vec(),
            covered: BODY_AT + longest.unit_len(),
            kept: BTreeMap::new(),
            under_way: BTreeMap::new(),
            nodes: nodes.iter().map(|_| Node::default()).collect(),
            arrived: 0,
            broken: None,
        }
    }

    /// Carriers spoil nothing from now on.
    pub(crate) fn make_honest(&mut self) {
        self.ppm = 0;
    }

    /// What is wrong, if anything is.
    pub(crate) fn broken(&self) -> Option<&String> {
        self.broken.as_ref()
    }

    /// Whether a link's plaintext is a cell that was spoilt before.
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

    /// A node seals this link plaintext, which was not spoilt yet: one that spoils cells changes
    /// it.
    pub(crate) fn leaves(&mut self, node: usize, plaintext: &mut [u8]) {
        let Some((header, cell)) = leg(plaintext) else { return };
        let Some(cell) = cell.first_chunk_mut::<CELL_LEN>() else { return };
        let ends = (header.src(), header.dst());
        if self.addresses[node] == ends.0 {
            let (on, mark) = (&mut self.nodes[node].on, mark(cell));
            if let Some(at) = on.iter().position(|known| *known == mark) {
                on.remove(at);
                return self.note(ends, cell, Part::Tail);
            }
        }
        let draws = node < self.routers && self.ppm > 0;
        if draws && self.rng.below(1_000_000) < u64::from(self.ppm) {
            let part = self.spoil(ends, cell);
            self.note(ends, cell, part);
        }
    }

    fn note(&mut self, ends: Ends, cell: &Cell, part: Part) {
        self.under_way.entry(name(ends, cell)).or_insert((0, ends.1, part)).0 += 1;
    }

    /// Flips a bit, or puts an older cell of this leg, or one of another leg, in a cell's place.
    fn spoil(&mut self, ends: Ends, cell: &mut Cell) -> Part {
        let other = self.kept.iter().find(|(leg, _)| leg.1 != ends.1).map(|(_, cell)| cell);
        match (self.rng.below(4), self.kept.get(&ends), other) {
            (0, Some(old), _) | (1, _, Some(old)) => {
                *cell = **old;
                Part::Head
            }
            _ => {
                // What stands right behind the head of a control cell is for earlier hops.
                let after = BODY_AT + RELAYS_MAX as usize;
                let at = self.rng.below((BODY_AT + self.covered - after) as u64) as usize;
                let at = if at < BODY_AT { at } else { at - BODY_AT + after };
                cell[at] ^= 1 << self.rng.below(8);
                if at < SAMPLE_AT + 16 { Part::Head } else { Part::Tail }
            }
        }
    }

    /// A node opened this link plaintext.
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
        if part == Part::Forgotten {
            return;
        }
        self.arrived += 1;
        let node = &mut self.nodes[at];
        node.owed.push_back(now + WITHIN);
        node.here.extend((part == Part::Tail).then(|| mark(cell)));
        if node.here.len() > HERE_MAX {
            node.here.pop_front();
        }
    }

    /// A node sealed a layer of a circuit around `before`, which made `after` of it.
    pub(crate) fn seals(&mut self, node: usize, before: &[u8], after: &[u8]) {
        if node >= self.routers || self.nodes[node].here.is_empty() {
            return;
        }
        let Node { owed, here, on, .. } = &mut self.nodes[node];
        let found = here
            .iter()
            .enumerate()
            .find_map(|(at, mark)| Some((at, before.windows(16).position(|bytes| bytes == mark)?)));
        let Some((at, place)) = found else { return };
        here.remove(at);
        owed.pop_front();
        on.extend(after[place..].first_chunk::<16>());
    }

    /// Whether somebody waits to hear how many cells a node drops.
    pub(crate) fn is_watching(&self) -> bool {
        self.ppm > 0 || self.arrived > 0
    }

    /// So many cells of circuits a node has dropped in all, at the end of a step: others than those
    /// of the steps before are what it owes. `now` is what its clock says.
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
                format!("{} spoilt cells came to node {at} and did not die", node.owed.len());
            self.broken.get_or_insert(seen);
        }
    }

    /// A node stood still until now.
    pub(crate) fn resumed(&mut self, at: usize, now: Time) {
        self.nodes[at].owed.iter_mut().for_each(|by| *by = (*by).max(now + WITHIN));
    }

    /// A node forgets everything: what passed before the crash may pass once more.
    pub(crate) fn crashed(&mut self, at: usize) {
        let address = self.addresses[at];
        self.nodes[at] = Node::default();
        self.kept.retain(|ends, _| ends.1 != address);
        for (_, to, part) in self.under_way.values_mut() {
            if *to == address && *part == Part::Head {
                *part = Part::Forgotten;
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

    /// Spoils some cells from the host A to the relay R as R's neighbour B sends them on, until one
    /// is changed in this part. Gives what comes to R.
    fn spoilt(wanted: Part) -> (Spoilt, Vec<u8>) {
        let mut spoilt = Spoilt::new([1; 32], 1_000_000, 2, &[R, B, A]);
        for fill in 0..100 {
            let good = plaintext(fill, A, R, TrafficClass::Bulk);
            let mut bad = good.clone();
            spoilt.leaves(1, &mut bad);
            assert!(good != bad && spoilt.is_known(&mut bad));
            let known: Vec<Part> = spoilt.under_way.values().map(|known| known.2).collect();
            if known == [wanted] {
                return (spoilt, bad);
            }
            spoilt.under_way.clear();
        }
        panic!("no cell was spoilt so");
    }

    #[test]
    fn spoilt_cells_are_owed_where_their_leg_ends_once_each() {
        let (mut spoilt, bad) = spoilt(Part::Head);
        spoilt.comes((1, NOW), &mut bad.clone());
        assert_eq!(spoilt.arrived, 0, "it goes on");
        spoilt.comes((0, NOW), &mut bad.clone());
        spoilt.comes((0, NOW), &mut bad.clone());
        assert_eq!(spoilt.arrived, 1);
        spoilt.counted(0, NOW + WITHIN, 0);
        assert_eq!(spoilt.broken(), None, "there is time");
        spoilt.counted(0, NOW + WITHIN, 1);
        spoilt.counted(0, NOW + WITHIN * 2, 1);
        assert_eq!(spoilt.broken(), None, "it was dropped");
        let mut host = plaintext(7, A, R, TrafficClass::Bulk);
        let good = host.clone();
        spoilt.leaves(2, &mut host);
        assert_eq!(host, good, "hosts spoil nothing");
    }

    #[test]
    fn drops_of_another_time_or_node_pay_nothing() {
        let (mut spoilt, mut bad) = spoilt(Part::Head);
        spoilt.counted(0, NOW, 5);
        spoilt.comes((0, NOW), &mut bad);
        spoilt.counted(1, NOW, 9);
        spoilt.counted(0, NOW + WITHIN * 2, 5);
        assert!(spoilt.broken().is_some());
    }

    #[test]
    fn what_comes_back_with_another_tail_may_be_sealed_and_is_owed_by_the_next() {
        for wanted in [Part::Tail, Part::Head] {
            let (mut spoilt, mut bad) = spoilt(wanted);
            spoilt.comes((0, NOW), &mut bad);
            spoilt.make_honest();
            let mut next = plaintext(9, R, A, TrafficClass::Bulk);
            let before = bad.split_off(bad.len() - CELL_LEN).split_off(BODY_AT);
            let after = next[next.len() - CELL_LEN..][BODY_AT..].to_vec();
            spoilt.seals(0, &part(&before).unwrap(), &part(&after).unwrap());
            spoilt.leaves(0, &mut next);
            spoilt.counted(0, NOW + WITHIN * 2, 0);
            assert_eq!(spoilt.broken().is_none(), wanted == Part::Tail);
            if wanted == Part::Tail {
                spoilt.comes((2, NOW), &mut next);
                spoilt.counted(2, NOW + WITHIN * 2, 0);
                assert!(spoilt.broken().is_some());
            }
        }
    }
}
