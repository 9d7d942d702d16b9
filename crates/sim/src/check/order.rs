//! No cell overtakes another within a node. Cells with the same inbound key, outbound key, length
//! and priority leave in the order in which they came. This includes waiting in an egress or a
//! hold.

use std::hash::{BuildHasherDefault, Hasher};

use shoal_wire::Address;

pub(crate) const RULE: &str = "no cell passes another that waits";
/// Largest number of remembered cells. Above it, all are forgotten. Only waiting and dropped cells
/// are stored.
const KNOWN_MAX: usize = 1 << 16;

/// A cell at a node. The tag of its end-to-end seal identifies it.
pub(crate) type CellAtNode = (usize, [u8; 16]);

/// Cells that must stay in order have the same inbound key, outbound key, length and priority. In a
/// network with cover they also have the same two addresses, since each pair has its own turns
/// there.
type OrderKey = (u64, u64, usize, u8, AddressPair);

/// Bytes of the two addresses in a routed header.
pub(crate) type AddressPair = [u8; 2 * Address::LEN];

/// Hash function for keys that are mostly noise: each word is mixed with the hash so far.
#[derive(Default)]
struct WordHasher(u64);

impl Hasher for WordHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.write_u64(u64::from_le_bytes(*word)));
        rest.iter().for_each(|byte| self.write_u8(*byte));
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(byte.into());
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A hash map with a fixed hash; no result depends on its iteration order.
#[allow(clippy::disallowed_types)]
type FixedHashMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<WordHasher>>;

/// Cells that each node received and sent.
#[derive(Default)]
pub(crate) struct OrderChecker {
    /// Inbound key of each cell, and its number among all cells.
    came: FixedHashMap<CellAtNode, (u64, u64)>,
    /// Newest cell of each flow that has left.
    left: FixedHashMap<OrderKey, u64>,
    count: u64,
    broken: Option<String>,
    /// True if pairs of addresses may overtake each other.
    by_pairs: bool,
}

impl OrderChecker {
    pub(crate) fn new(by_pairs: bool) -> OrderChecker {
        OrderChecker { by_pairs, ..OrderChecker::default() }
    }

    /// Notes that a cell came in under a key, or was sealed end to end.
    pub(crate) fn came(&mut self, at: CellAtNode, key: u64) {
        if self.came.len() >= KNOWN_MAX {
            self.came.clear();
        }
        self.count += 1;
        let count = self.count;
        // Copies don't count: the first copy is the one that leaves.
        self.came.entry(at).or_insert((key, count));
    }

    /// Notes that a cell was opened at its destination and will not leave.
    pub(crate) fn ends(&mut self, at: CellAtNode) {
        self.came.remove(&at);
    }

    /// Notes that a cell leaves under a key.
    pub(crate) fn leaves(
        &mut self,
        at: CellAtNode,
        key: u64,
        len: usize,
        (priority, pair): (u8, AddressPair),
    ) {
        let Some((from, count)) = self.came.remove(&at) else { return };
        let pair = if self.by_pairs { pair } else { AddressPair::default() };
        let newest = self.left.entry((from, key, len, priority, pair)).or_default();
        if count < *newest && self.broken.is_none() {
            let late = *newest - count;
            self.broken =
                Some(format!("node {}: a cell of {len} bytes left behind {late} later ones", at.0));
        }
        *newest = count.max(*newest);
    }

    /// Plants a fault: all further cells of each flow count as overtaken.
    pub(crate) fn overtake(&mut self) {
        self.left.values_mut().for_each(|newest| *newest = u64::MAX);
    }

    /// The first cell that was overtaken, if there is one.
    pub(crate) fn broken(&self) -> Option<&String> {
        self.broken.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(ways: &[(u8, u64, usize)]) -> OrderChecker {
        let mut order = OrderChecker::default();
        for cell in 0..9 {
            order.came((1, [cell; 16]), 7);
            order.came((2, [cell; 16]), 7);
        }
        for &(cell, key, len) in ways {
            order.leaves((1, [cell; 16]), key, len, (0, [0; 12]));
        }
        order
    }

    #[test]
    fn a_cell_that_passes_another_is_seen() {
        let inverted = [(0, 4, 192), (2, 4, 192), (1, 4, 192)];
        assert!(order(&inverted).broken().is_some_and(|seen| seen.contains("node 1")));
        assert!(order(&[(0, 4, 192), (1, 4, 192), (5, 4, 192)]).broken().is_none(), "a gap");
        assert!(order(&[(1, 4, 192), (0, 5, 192)]).broken().is_none(), "another outbound key");
        assert!(order(&[(1, 4, 192), (0, 4, 576)]).broken().is_none(), "another length");
        let mut copied = order(&[(3, 4, 192)]);
        copied.came((1, [5; 16]), 7);
        copied.leaves((1, [5; 16]), 4, 192, (0, [0; 12]));
        copied.leaves((1, [6; 16]), 4, 192, (0, [0; 12]));
        assert!(copied.broken().is_none(), "a copy changes nothing");
        copied.ends((1, [8; 16]));
        assert_eq!(copied.came.len(), 14, "four cells left or ended");
    }

    #[test]
    fn pairs_of_addresses_pass_each_other_under_cover_alone() {
        for by_pairs in [false, true] {
            let mut order = OrderChecker::new(by_pairs);
            order.came((1, [0; 16]), 7);
            order.came((1, [1; 16]), 7);
            order.leaves((1, [1; 16]), 4, 192, (0, [1; 12]));
            order.leaves((1, [0; 16]), 4, 192, (0, [2; 12]));
            assert_eq!(order.broken().is_some(), !by_pairs);
        }
    }
}
