//! Files on the disks at the end of the run, compared with a model that knows nothing of networks.
//!
//! The model says that each file sent is at its receiver once, with its own bytes, and that no disk
//! has any other named file. A sender may be told of a failure, but only if a fault hit a node.
//! Faults of wires never make a file fail, since they are repaired in time.

use std::collections::BTreeMap;

/// The model's expectation for one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileExpectation {
    /// The file is there.
    There,
    /// The file may be there or not: its sender was told of a failure, or its receiver lost its
    /// disk.
    Either,
}

/// Files at the end, by receiving node and file id. True if the bytes are right.
pub(crate) type FoundFiles = BTreeMap<(usize, [u8; 16]), bool>;
/// Expected files, by receiving node and file id.
pub(crate) type ExpectedFiles = BTreeMap<(usize, [u8; 16]), FileExpectation>;

/// Compares expected and found files.
pub(crate) fn check(expected: &ExpectedFiles, found: &FoundFiles) -> Result<(), String> {
    if let Some((node, _)) = found.keys().find(|at| !expected.contains_key(*at)) {
        return Err(format!("node {node} has a file that nobody sent there"));
    }
    for (&(node, file), expect) in expected {
        match (expect, found.get(&(node, file))) {
            (_, Some(false)) => return Err(format!("node {node} has a file with other bytes")),
            (FileExpectation::There, None) => {
                return Err(format!("node {node} lacks a file it was sent"));
            }
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
        let expected = ExpectedFiles::from([
            (file(1), FileExpectation::There),
            (file(2), FileExpectation::Either),
        ]);
        let found =
            |files: &[((usize, [u8; 16]), bool)]| files.iter().copied().collect::<FoundFiles>();
        assert_eq!(check(&expected, &found(&[(file(1), true)])), Ok(()));
        assert_eq!(check(&expected, &found(&[(file(1), true), (file(2), true)])), Ok(()));
        assert!(check(&expected, &found(&[])).is_err());
        assert!(check(&expected, &found(&[(file(1), false)])).is_err());
        assert!(check(&expected, &found(&[(file(1), true), (file(9), true)])).is_err());
        assert!(check(&expected, &found(&[(file(1), true), ((4, [1; 16]), true)])).is_err());
    }
}
