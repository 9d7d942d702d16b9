//! The hash tree over the registry (RFC 9162 section 2.1): entries are only ever added at its end,
//! so the tree of an older, shorter registry can be made from a newer one.

use shoal_crypto::Hasher;

/// Hash of a leaf or of a subtree.
pub(crate) type Node = [u8; 32];

/// Longest path: of a tree with [`crate::MEMBERS_MAX`] leaves.
pub(crate) const PATH_MAX: usize = 20;

const _: () = assert!(crate::MEMBERS_MAX <= 1 << PATH_MAX);

/// The hash of an entry.
pub(crate) fn leaf(entry: &[u8]) -> Node {
    // One byte tells leaves and nodes apart, so that no node passes for an entry.
    hash(&[&[0], entry])
}

fn node(left: &Node, right: &Node) -> Node {
    hash(&[&[1], left, right])
}

fn hash(parts: &[&[u8]]) -> Node {
    let mut hasher = Hasher::new();
    hasher.update(b"shoal attribution registry v1");
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

/// The root over these leaves.
pub(crate) fn root(leaves: &[Node]) -> Node {
    match leaves {
        [] => hash(&[]),
        [one] => *one,
        _ => {
            let (left, right) = leaves.split_at(split(leaves.len()));
            node(&root(left), &root(right))
        }
    }
}

/// What proves that leaf `index` is among the leaves: its neighbours, lowest first.
pub(crate) fn path(leaves: &[Node], index: usize) -> Vec<Node> {
    if leaves.len() < 2 {
        return Vec::new();
    }
    let (left, right) = leaves.split_at(split(leaves.len()));
    let (mut out, other) = match index.checked_sub(left.len()) {
        None => (path(left, index), right),
        Some(index) => (path(right, index), left),
    };
    out.push(root(other));
    out
}

/// The root that follows from a leaf, its place among `count` leaves, and its path. None for a
/// place or a path that the tree doesn't have.
pub(crate) fn root_from(leaf: &Node, index: usize, count: usize, path: &[Node]) -> Option<Node> {
    if index >= count {
        return None;
    }
    if count == 1 {
        return path.is_empty().then_some(*leaf);
    }
    let (last, rest) = path.split_last()?;
    let left = split(count);
    match index.checked_sub(left) {
        None => Some(node(&root_from(leaf, index, left, rest)?, last)),
        Some(index) => Some(node(last, &root_from(leaf, index, count - left, rest)?)),
    }
}

/// Leaves of the left subtree: the largest power of two below `count`, which is 2 or more.
fn split(count: usize) -> usize {
    1 << (count - 1).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_prove_their_own_leaf_and_place_only() {
        let leaves: Vec<Node> = (0..40u8).map(|n| leaf(&[n])).collect();
        for count in 1..=leaves.len() {
            let want = root(&leaves[..count]);
            for index in 0..count {
                let path = path(&leaves[..count], index);
                let from = |at, path: &[Node]| root_from(&leaves[index], at, count, path);
                assert_eq!(from(index, &path), Some(want));
                for other in (0..count + 2).filter(|n| *n != index) {
                    assert_ne!(from(other, &path), Some(want), "{index} as {other} of {count}");
                }
                assert_ne!(from(index, &[&path[..], &[want]].concat()), Some(want));
                if let [rest @ .., _] = &path[..] {
                    assert_ne!(from(index, rest), Some(want));
                }
                let stranger = leaf(b"a stranger");
                assert_ne!(root_from(&stranger, index, count, &path), Some(want));
            }
        }
    }

    #[test]
    fn trees_of_other_lengths_have_other_roots() {
        let leaves: Vec<Node> = (0..20u8).map(|n| leaf(&[n])).collect();
        let roots: std::collections::BTreeSet<Node> =
            (0..=leaves.len()).map(|count| root(&leaves[..count])).collect();
        assert_eq!(roots.len(), leaves.len() + 1);
        // A node is no leaf.
        assert_ne!(root(&leaves[..2]), leaf(&[leaves[0], leaves[1]].concat()));
    }
}
