//! No cell goes in a circle, at no moment; and after the trouble every router reaches every other.

use shoal_wire::Address;

use crate::node::Node;

/// Where a cell from node `from` to router `to` ends.
pub(crate) enum Path {
    /// At its destination.
    Arrives,
    /// On the way: no route, a dead node, or a router that doesn't take transit on that link yet.
    Ends,
    /// Nowhere.
    Circles(Vec<usize>),
}

/// Follows next hops from node to node.
pub(crate) fn follow(nodes: &[Node], from: usize, to: u32) -> Path {
    let destination = Address::new(to, 0);
    let (mut at, mut passed) = (from, vec![from]);
    while nodes[at].address != destination {
        let Some(link) = nodes[at].relay.next_hop(destination) else { return Path::Ends };
        let Some(next) = nodes[at].neighbour(link) else { return Path::Ends };
        let (here, there) = (nodes[at].address, &nodes[next]);
        if !there.alive || !there.takes_transit_from(here) {
            return Path::Ends;
        }
        if passed.contains(&next) {
            passed.push(next);
            return Path::Circles(passed);
        }
        passed.push(next);
        at = next;
    }
    Path::Arrives
}
