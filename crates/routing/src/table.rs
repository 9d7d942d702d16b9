//! What others see of routing: the table for the data plane, and rows for people.

use shoal_wire::{LinkId, Time};

/// Next hops, immutable: the data plane holds one snapshot while the next is made.
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

    /// The link that a cell for `router` leaves on; `None` without a route, and for ourselves.
    /// O(log n).
    pub fn next_hop(&self, router: u32) -> Option<LinkId> {
        let at = self.hops.binary_search_by_key(&router, |hop| hop.0).ok()?;
        Some(self.hops[at].1)
    }

    /// Grows by one with each table that differs from the one before.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// How many destinations can be reached.
    pub fn len(&self) -> usize {
        self.hops.len()
    }

    /// True when nothing can be reached.
    pub fn is_empty(&self) -> bool {
        self.hops.is_empty()
    }
}

/// One row of `shoal routes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteInfo {
    /// The destination.
    pub router: u32,
    /// The link that cells for it leave on.
    pub next_hop: LinkId,
    /// Cost of the whole path.
    pub cost: u32,
    /// Since when this next hop is in use.
    pub since: Time,
    /// The origin's sequence number that the route stands on.
    pub seqno: u64,
    /// Other links that could take over at once without asking anybody.
    pub alternatives: usize,
}

/// What `shoal monitor` streams: a destination is reached differently than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteChange {
    /// The destination.
    pub router: u32,
    /// Link and path cost before; `None` if there was no route.
    pub old: Option<(LinkId, u32)>,
    /// Link and path cost now; `None` if the route is lost.
    pub new: Option<(LinkId, u32)>,
    /// When it changed.
    pub at: Time,
}

/// What routing knows of one link, for `shoal peers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    /// The router at the other end.
    pub neighbour: u32,
    /// What the link adds to the cost of a path.
    pub cost: u32,
    /// Smoothed share of queries without a reply, in parts per million.
    pub missing_ppm: u32,
    /// Whether both ends know each other's instance; routes flow only then.
    pub adjacent: bool,
    /// Routes that the neighbour offers.
    pub routes: usize,
    /// Routes changed here but not yet acknowledged by the neighbour.
    pub unsent: usize,
}
