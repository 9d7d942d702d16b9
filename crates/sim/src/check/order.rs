//! No cell passes another on its way through a node: of those that came in under one key, leave
//! under one key, and have one length and priority, none leaves before one that came in earlier.
//! What waits in an egress or a hold is not passed by.

use std::hash::{BuildHasherDefault, Hasher};

use shoal_wire::Address;

pub(crate) const RULE: &str = "no cell passes another that waits";
/// Cells that are remembered; more, and all are forgotten. Only cells that wait or were dropped are
/// among them.
const KNOWN_MAX: usize = 1 << 16;

/// A cell, by the end of its end-to-end seal, at a node.
pub(crate) type At = (usize, [u8; 16]);

/// Cells that must stay in order have the same inbound key, outbound key, length and priority. In a
/// network with cover they have the same two addresses, too: each pair has turns of its own there.
type Flow = (u64, u64, usize, u8, Pair);

/// Bytes of the two addresses in a routed header.
pub(crate) type Pair = [u8; 2 * Address::LEN];

/// Hashes what is looked up, most of which is noise: each word is mixed with what went before.
#[derive(Default)]
struct Turns(u64);

impl Hasher for Turns {
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

/// Its state is fixed, and nothing depends on its order.
#[allow(clippy::disallowed_types)]
type Table<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<Turns>>;

/// What each node has taken in and sent.
#[derive(Default)]
pub(crate) struct Order {
    /// The key under which a cell came in, and its number among all.
    came: Table<At, (u64, u64)>,
    /// The newest cell of each flow that has left.
    left: Table<Flow, u64>,
    count: u64,
    broken: Option<String>,
    /// Pairs of addresses may pass each other.
    by_pairs: bool,
}

impl Order {
    /// An order of nothing yet.
    pub(crate) fn new(by_pairs: bool) -> Order {
        Order { by_pairs, ..Order::default() }
    }

    /// A cell came in under a key, or was sealed end to end.
    pub(crate) fn came(&mut self, at: At, key: u64) {
        if self.came.len() >= KNOWN_MAX {
            self.came.clear();
        }
        self.count += 1;
        let count = self.count;
        // Copies don't come in anew: the first is the one that leaves.
        self.came.entry(at).or_insert((key, count));
    }

    /// A cell was opened where it ends: it will not leave.
    pub(crate) fn ends(&mut self, at: At) {
        self.came.remove(&at);
    }

    /// A cell leaves under a key.
    pub(crate) fn leaves(&mut self, at: At, key: u64, len: usize, (priority, pair): (u8, Pair)) {
        let Some((from, count)) = self.came.remove(&at) else { return };
        let pair = if self.by_pairs { pair } else { Pair::default() };
        let newest = self.left.entry((from, key, len, priority, pair)).or_default();
        if count < *newest && self.broken.is_none() {
            let late = *newest - count;
            self.broken = Some(format!("node {}: a cell of {len} bytes left {late} late", at.0));
        }
        *newest = count.max(*newest);
    }

    /// Plants a fault: of each flow one more cell is taken to have left, one that came in last.
    pub(crate) fn overtake(&mut self) {
        self.left.values_mut().for_each(|newest| *newest = u64::MAX);
    }

    /// The first cell that was passed, if any.
    pub(crate) fn broken(&self) -> Option<&String> {
        self.broken.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(ways: &[(u8, u64, usize)]) -> Order {
        let mut order = Order::default();
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
        assert!(order(&[(1, 4, 192), (0, 5, 192)]).broken().is_none(), "another way");
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
            let mut order = Order::new(by_pairs);
            order.came((1, [0; 16]), 7);
            order.came((1, [1; 16]), 7);
            order.leaves((1, [1; 16]), 4, 192, (0, [1; 12]));
            order.leaves((1, [0; 16]), 4, 192, (0, [2; 12]));
            assert_eq!(order.broken().is_some(), !by_pairs);
        }
    }
}
