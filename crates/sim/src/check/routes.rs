//! No cell goes in a circle, at any moment; and after the trouble every router reaches every other.
//!
//! Checked whenever a next hop changes or a link begins to take transit, and for that change alone:
//! a new circle goes through the change that closed it.

/// Where a cell ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// At its destination.
    Arrives,
    /// On the way: no route, a dead node, or a router that doesn't take transit on that link yet.
    Ends,
    /// Nowhere.
    Circles(Vec<usize>),
}

/// Follows next hops from node to node. `next` gives the node to which a node sends the cell, if
/// that node takes it.
pub(crate) fn follow(from: usize, to: usize, next: impl Fn(usize) -> Option<usize>) -> Path {
    let (mut at, mut passed) = (from, vec![from]);
    while at != to {
        let Some(far) = next(at) else { return Path::Ends };
        let seen = passed.contains(&far);
        passed.push(far);
        if seen {
            return Path::Circles(passed);
        }
        at = far;
    }
    Path::Arrives
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_and_ends_are_told_from_arrivals() {
        let table = |hops: &'static [Option<usize>]| move |at: usize| hops[at];
        assert_eq!(follow(0, 2, table(&[Some(1), Some(2), None])), Path::Arrives);
        assert_eq!(follow(0, 2, table(&[Some(1), None, None])), Path::Ends);
        let circle = follow(0, 3, table(&[Some(1), Some(2), Some(1), None]));
        assert_eq!(circle, Path::Circles(vec![0, 1, 2, 1]));
    }
}
