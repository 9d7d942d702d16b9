//! No cell passes another on its way through a node: of those that came in under one key, leave
//! under one key, and have one length and priority, none leaves before one that came in earlier.
//! What waits in an egress or a hold is not passed by.

use std::collections::BTreeMap;

pub(crate) const RULE: &str = "no cell passes another that waits";
/// Cells that are remembered; more, and all are forgotten. Cells that a node drops stay behind.
const KNOWN_MAX: usize = 1 << 16;

/// A cell, by the end of its end-to-end seal, at a node.
pub(crate) type At = (usize, [u8; 16]);

/// Which cells may not pass each other: those of one key that they came in under, one that they
/// leave under, one length and one priority.
type Flow = (u64, u64, usize, u8);

/// What each node has taken in and sent.
#[derive(Default)]
pub(crate) struct Order {
    /// The key under which a cell came in, and its number among all.
    came: BTreeMap<At, (u64, u64)>,
    /// The newest cell of each flow that has left.
    left: BTreeMap<Flow, u64>,
    count: u64,
    broken: Option<String>,
}

impl Order {
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

    /// A cell leaves under a key.
    pub(crate) fn leaves(&mut self, at: At, key: u64, len: usize, priority: u8) {
        let Some((from, count)) = self.came.remove(&at) else { return };
        let newest = self.left.entry((from, key, len, priority)).or_default();
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
            order.leaves((1, [cell; 16]), key, len, 0);
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
        copied.leaves((1, [5; 16]), 4, 192, 0);
        copied.leaves((1, [6; 16]), 4, 192, 0);
        assert!(copied.broken().is_none(), "a copy changes nothing");
    }
}
