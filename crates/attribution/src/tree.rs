//! The hash tree over the registry (RFC 9162 section 2.1). Entries are only appended, so the tree
//! of an older registry can be computed from a newer registry.

use shoal_crypto::Hasher;

/// Hash of a leaf or of a subtree.
pub(crate) type TreeHash = [u8; 32];

/// Maximum length of a path: that in a tree with [`crate::MEMBERS_MAX`] leaves.
pub(crate) const PATH_MAX: usize = 20;

const _: () = assert!(crate::MEMBERS_MAX <= 1 << PATH_MAX);

/// The hash of an entry.
pub(crate) fn leaf(entry: &[u8]) -> TreeHash {
    // A first byte distinguishes leaves from nodes, so no node passes for an entry.
    hash(&[&[0], entry])
}

fn node(left: &TreeHash, right: &TreeHash) -> TreeHash {
    hash(&[&[1], left, right])
}

fn hash(parts: &[&[u8]]) -> TreeHash {
    let mut hasher = Hasher::new();
    hasher.update(b"shoal attribution registry v1");
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

pub(crate) fn root(leaves: &[TreeHash]) -> TreeHash {
    match leaves {
        [] => hash(&[]),
        [one] => *one,
        _ => {
            let (left, right) = leaves.split_at(split(leaves.len()));
            node(&root(left), &root(right))
        }
    }
}

/// The proof that leaf `index` is in the tree: its sibling nodes, lowest first.
pub(crate) fn path(leaves: &[TreeHash], index: usize) -> Vec<TreeHash> {
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

/// The root computed from a leaf, its index among `count` leaves, and its path. `None` if the tree
/// has no such index or path length.
pub(crate) fn root_from(
    leaf: &TreeHash,
    index: usize,
    count: usize,
    path: &[TreeHash],
) -> Option<TreeHash> {
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

/// Number of leaves in the left subtree: the largest power of two below `count`, which is at least
/// 2.
fn split(count: usize) -> usize {
    1 << (count - 1).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_prove_their_own_leaf_and_place_only() {
        let leaves: Vec<TreeHash> = (0..40u8).map(|n| leaf(&[n])).collect();
        for count in 1..=leaves.len() {
            let want = root(&leaves[..count]);
            for index in 0..count {
                let path = path(&leaves[..count], index);
                let from = |at, path: &[TreeHash]| root_from(&leaves[index], at, count, path);
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
        let leaves: Vec<TreeHash> = (0..20u8).map(|n| leaf(&[n])).collect();
        let roots: std::collections::BTreeSet<TreeHash> =
            (0..=leaves.len()).map(|count| root(&leaves[..count])).collect();
        assert_eq!(roots.len(), leaves.len() + 1);
        // A node is no valid leaf.
        assert_ne!(root(&leaves[..2]), leaf(&[leaves[0], leaves[1]].concat()));
    }
}
