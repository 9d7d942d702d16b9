//! What has to be known to pass a cell on, and the decision itself: the same for the machine that
//! owns all links and for the workers that only forward.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use shoal_crypto::Ciphers;
use shoal_routing::RouteTable;
use shoal_wire::{Address, DropReason, LinkId, RoutedHeader};

use crate::Relay;

/// Where a cell goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It is for this node.
    Local,
    /// To a neighbour, with this hop limit.
    Transit(u8),
}

/// Decides whether a cell may go further. `sender` is the neighbour that it came from, whose cells
/// may be passed on if `may_transit`.
pub(crate) fn way(
    header: &RoutedHeader,
    me: Address,
    sender: Address,
    may_transit: bool,
) -> Result<Way, DropReason> {
    let (dst, src) = (header.dst(), header.src());
    if src == me {
        return Err(DropReason::Reflected);
    }
    if !sender.is_router() && src != sender {
        return Err(DropReason::BadSource);
    }
    if dst == me {
        return Ok(Way::Local);
    }
    if !me.is_router() {
        return Err(DropReason::NotForUs);
    }
    if !may_transit {
        return Err(DropReason::NoRoute);
    }
    let hops = header.hop_limit().checked_sub(1).filter(|&left| left > 0);
    hops.map(Way::Transit).ok_or(DropReason::HopLimit)
}

/// What a worker must know of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkFacts {
    pub(crate) address: Address,
    pub(crate) may_transit: bool,
    /// Where its frames go; none where the first worker must send them, such as in parts
    /// or to a place on trial.
    pub(crate) endpoint: Option<SocketAddr>,
    /// It is another host, and this node's own cells may go to it past the routers.
    pub(crate) direct: bool,
}

/// Neighbours and routes at one moment, never changed: workers hold it while the next is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub(crate) me: Option<Address>,
    /// By number.
    pub(crate) links: Vec<Option<LinkFacts>>,
    by_address: BTreeMap<Address, LinkId>,
    table: Arc<RouteTable>,
    /// The router through which a host sends.
    uplink: Option<LinkId>,
}

impl View {
    /// The neighbour of this number.
    pub(crate) fn link(&self, link: LinkId) -> Option<&LinkFacts> {
        self.links.get(link.0 as usize)?.as_ref()
    }

    /// The neighbour through which a router reaches `dst`.
    pub(crate) fn next_hop(&self, dst: Address) -> Option<LinkId> {
        match self.me {
            Some(me) if dst.router == me.router => self.by_address.get(&dst).copied(),
            _ => self.table.next_hop(dst.router),
        }
    }

    /// The link with the host `dst` itself, past the routers, if this node's own cells may take it.
    pub(crate) fn direct(&self, dst: Address) -> Option<LinkId> {
        let link = self.by_address.get(&dst).copied()?;
        self.link(link)?.direct.then_some(link)
    }

    /// The neighbour through which this node's own cells reach `dst`.
    pub(crate) fn origin_hop(&self, dst: Address) -> Option<LinkId> {
        if self.me?.is_router() {
            return self.next_hop(dst);
        }
        let router = || self.by_address.get(&dst).copied().filter(|_| dst.is_router());
        self.direct(dst).or_else(router).or(self.uplink)
    }
}

impl<C: Ciphers> Relay<C> {
    /// Neighbours and routes as they are now.
    pub(crate) fn look(&self) -> View {
        if self.lists_only {
            // Who knows nobody hands all that opens to the first worker, and sends nothing.
            return View::default();
        }
        let mut view = View {
            me: Some(self.config.address),
            table: self.routing.as_ref().map(|r| Arc::clone(r.table())).unwrap_or_default(),
            uplink: self.neighbours.uplink(),
            ..View::default()
        };
        let is_host = !self.config.address.is_router();
        for (link, neighbour) in self.neighbours.iter() {
            let at = link.0 as usize;
            view.links.resize(at + 1, None);
            view.links[at] = Some(LinkFacts {
                address: neighbour.address,
                may_transit: self.may_transit(link),
                endpoint: neighbour.shared_endpoint(),
                direct: is_host && neighbour.is_direct(),
            });
            if self.neighbours.by_address(neighbour.address) == Some(link) {
                view.by_address.insert(neighbour.address, link);
            }
        }
        view
    }
}
