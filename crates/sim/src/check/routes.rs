//! Routes never form a loop, and after all faults every router reaches every other.
//!
//! The check runs whenever a next hop changes or a link begins to take transit. It follows only
//! that change, since a new loop must contain it.

/// End of a cell's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RouteEnd {
    /// The cell reaches its destination.
    Arrives,
    /// The path ends early: no route, a dead node, or a router that doesn't take transit on that
    /// link yet.
    Ends,
    /// The path is a loop.
    Circles(Vec<usize>),
}

/// Follows next hops from node to node. `next` returns the node to which a node sends the cell, if
/// that node accepts it.
pub(crate) fn follow(from: usize, to: usize, next: impl Fn(usize) -> Option<usize>) -> RouteEnd {
    let (mut at, mut passed) = (from, vec![from]);
    while at != to {
        let Some(far) = next(at) else { return RouteEnd::Ends };
        let seen = passed.contains(&far);
        passed.push(far);
        if seen {
            return RouteEnd::Circles(passed);
        }
        at = far;
    }
    RouteEnd::Arrives
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_and_ends_are_told_from_arrivals() {
        let table = |hops: &'static [Option<usize>]| move |at: usize| hops[at];
        assert_eq!(follow(0, 2, table(&[Some(1), Some(2), None])), RouteEnd::Arrives);
        assert_eq!(follow(0, 2, table(&[Some(1), None, None])), RouteEnd::Ends);
        let circle = follow(0, 3, table(&[Some(1), Some(2), Some(1), None]));
        assert_eq!(circle, RouteEnd::Circles(vec![0, 1, 2, 1]));
    }
}
