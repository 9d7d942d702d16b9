//! Views of routing: the table for the data plane, and rows for commands.

use shoal_wire::{LinkId, Time};

/// Next hops. Immutable: the data plane holds one snapshot while the next is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTable {
    version: u64,
    /// Sorted by router.
    hops: Vec<(u32, LinkId)>,
}

impl RouteTable {
    /// `hops` must be sorted by router.
    pub(crate) fn new(version: u64, hops: Vec<(u32, LinkId)>) -> RouteTable {
        debug_assert!(hops.is_sorted_by_key(|hop| hop.0));
        RouteTable { version, hops }
    }

    /// The link on which a cell for `router` leaves; `None` without a route, and for ourselves.
    /// O(log n).
    pub fn next_hop(&self, router: u32) -> Option<LinkId> {
        let at = self.hops.binary_search_by_key(&router, |hop| hop.0).ok()?;
        Some(self.hops[at].1)
    }

    /// Version number. Grows by one with each changed table.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Number of reachable destinations.
    pub fn len(&self) -> usize {
        self.hops.len()
    }

    /// True if no destination is reachable.
    pub fn is_empty(&self) -> bool {
        self.hops.is_empty()
    }
}

/// One row of `shoal routes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteInfo {
    pub router: u32,
    /// Link on which cells for the destination leave.
    pub next_hop: LinkId,
    pub cost: u32,
    /// Start of the use of this next hop.
    pub since: Time,
    /// The origin's sequence number that the route belongs to.
    pub seqno: u64,
    /// Number of other links that could take over at once, without any request.
    pub alternatives: usize,
}

/// A change of next hop or path cost, as `shoal monitor` streams it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteChange {
    pub router: u32,
    /// Link and path cost before the change; `None` if no route existed.
    pub old: Option<(LinkId, u32)>,
    /// Link and path cost after the change; `None` if the route is lost.
    pub new: Option<(LinkId, u32)>,
    pub at: Time,
}

/// Routing state of one link, for `shoal peers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    pub neighbour: u32,
    /// Cost that the link adds to a path.
    pub cost: u32,
    /// Smoothed share of queries without a reply, in parts per million.
    pub missing_ppm: u32,
    /// True if both ends know each other's instance. Routes are exchanged only then.
    pub adjacent: bool,
    /// Number of routes that the neighbour offers.
    pub routes: usize,
    /// Number of changed routes that the neighbour has not acknowledged.
    pub unsent: usize,
}
