//! What should be on the disks at the end, by a model that knows nothing of networks, against what
//! is there.
//!
//! The model: a file that was sent is at its receiver, once, with its own bytes; nothing else is on
//! any disk under a name. A sender may be told of a failure instead, but only where something
//! happened to a node: wires alone never make a file fail, since they are mended in time.

use std::collections::BTreeMap;

/// What the model expects of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// It is there.
    There,
    /// It may be there or not: its sender was told of a failure, or its receiver lost its disk.
    Either,
}

/// What the end looks like: by receiving node and file, with whether the bytes are right.
pub(crate) type Found = BTreeMap<(usize, [u8; 16]), bool>;
/// What it should look like.
pub(crate) type Expected = BTreeMap<(usize, [u8; 16]), Expect>;

/// Says where they differ, if they do.
pub(crate) fn check(expected: &Expected, found: &Found) -> Result<(), String> {
    if let Some((node, _)) = found.keys().find(|at| !expected.contains_key(*at)) {
        return Err(format!("node {node} has a file that nobody sent there"));
    }
    for (&(node, file), expect) in expected {
        match (expect, found.get(&(node, file))) {
            (_, Some(false)) => return Err(format!("node {node} has a file with other bytes")),
            (Expect::There, None) => return Err(format!("node {node} lacks a file it was sent")),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_seen() {
        let file = |n: u8| (3, [n; 16]);
        let expected = Expected::from([(file(1), Expect::There), (file(2), Expect::Either)]);
        let found = |files: &[((usize, [u8; 16]), bool)]| files.iter().copied().collect::<Found>();
        assert_eq!(check(&expected, &found(&[(file(1), true)])), Ok(()));
        assert_eq!(check(&expected, &found(&[(file(1), true), (file(2), true)])), Ok(()));
        assert!(check(&expected, &found(&[])).is_err());
        assert!(check(&expected, &found(&[(file(1), false)])).is_err());
        assert!(check(&expected, &found(&[(file(1), true), (file(9), true)])).is_err());
        assert!(check(&expected, &found(&[(file(1), true), ((4, [1; 16]), true)])).is_err());
    }
}
