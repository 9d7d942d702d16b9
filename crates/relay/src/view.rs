//! The data that a worker needs to forward a cell, and the forwarding decision. It is alike for all
//! workers.
//!
//! Views have no stale flag. [`Neighbours`] lists the touched neighbours, and [`Relay::refresh`]
//! compares their state with the view.
//!
//! [`Neighbours`]: crate::neighbours::Neighbours

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use shoal_crypto::Ciphers;
use shoal_routing::RouteTable;
use shoal_session::{EndpointRules, Endpoints, IdTable};
use shoal_wire::{Address, DropReason, LinkId, NodeAddresses, RoutedHeader};

use crate::Relay;
use crate::shifts::AcceptedAddresses;

/// The forwarding decision for a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForwardingDecision {
    /// The cell is for this node.
    Here,
    /// The cell goes to a neighbour, with this hop limit.
    On(u8),
}

/// Decides whether a cell may go further. `sender` is the neighbour that sent it. `may_transit` is
/// true if this neighbour's cells may be forwarded.
pub(crate) fn way(
    header: &RoutedHeader,
    own: NodeAddresses,
    sender: Address,
    may_transit: bool,
) -> Result<ForwardingDecision, DropReason> {
    let (dst, src) = (header.dst(), header.src());
    if own.has(src) {
        return Err(DropReason::Reflected);
    }
    if !sender.is_router() && src != sender {
        return Err(DropReason::BadSource);
    }
    if own.has(dst) {
        return Ok(ForwardingDecision::Here);
    }
    if !own.first.is_router() {
        return Err(DropReason::NotForUs);
    }
    if !may_transit {
        return Err(DropReason::NoRoute);
    }
    let hops = header.hop_limit().checked_sub(1).filter(|&left| left > 0);
    hops.map(ForwardingDecision::On).ok_or(DropReason::HopLimit)
}

/// The data that a worker needs about a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkFacts {
    pub(crate) address: Address,
    /// True if its cells may be forwarded. A router's cells are forwarded only once both sides know
    /// each other's routing tables. A router that has just restarted might send returned cells in a
    /// circle.
    pub(crate) may_transit: bool,
    /// Destination of its frames. None if the relay itself must send them, for example in parts, in
    /// slots or to an endpoint on trial.
    pub(crate) endpoint: Option<Endpoints>,
    /// Delay of cells before its egress.
    pub(crate) link_delay: Option<Duration>,
    /// True if it is another host, and this node's own cells may go to it past the routers.
    pub(crate) direct: bool,
}

/// A snapshot of neighbours and routes. Workers use it while the next one is made.
#[derive(Clone, Debug, Default)]
pub struct ForwardingView {
    pub(crate) me: Option<Address>,
    /// Address of this host at another router.
    second: Option<Address>,
    /// True if links carry only the authority's lists. Then the view has no neighbours, and all
    /// cells are dropped.
    pub(crate) lists_only: bool,
    links: IdTable<LinkId, LinkFacts>,
    by_address: BTreeMap<Address, LinkId>,
    table: Arc<RouteTable>,
    /// Destination endpoints accepted under this node's prefix, if its addresses shift.
    pub(crate) accepted: Option<Arc<AcceptedAddresses>>,
    /// Rules for the endpoints from and to which frames may go.
    pub(crate) rules: Arc<EndpointRules>,
    /// The router through which a host sends.
    uplink: Option<LinkId>,
}

impl ForwardingView {
    /// The view of a node without neighbours.
    pub(crate) fn new(me: Address) -> ForwardingView {
        ForwardingView { me: Some(me), ..ForwardingView::default() }
    }

    pub(crate) fn link(&self, link: LinkId) -> Option<&LinkFacts> {
        self.links.get(link)
    }

    /// True if this id is outdated because a later neighbour has its number.
    pub(crate) fn is_past(&self, link: LinkId) -> bool {
        self.links.is_past(link)
    }

    /// This node's addresses.
    pub(crate) fn own(&self) -> Option<NodeAddresses> {
        Some(NodeAddresses { first: self.me?, second: self.second })
    }

    /// The neighbour through which a router reaches `dst`.
    pub(crate) fn next_hop(&self, dst: Address) -> Option<LinkId> {
        match self.me {
            Some(me) if dst.router == me.router => self.by_address.get(&dst).copied(),
            _ => self.table.next_hop(dst.router),
        }
    }

    /// The direct link to the host `dst`, if this node's own cells may use it.
    pub(crate) fn direct(&self, dst: Address) -> Option<LinkId> {
        let link = self.by_address.get(&dst).copied()?;
        self.link(link)?.direct.then_some(link)
    }

    /// The neighbour through which this node's own cells reach `dst`.
    pub(crate) fn origin_hop(&self, dst: Address) -> Option<LinkId> {
        if self.me?.is_router() {
            return self.next_hop(dst);
        }
        if self.second.is_some() {
            return self.origin_hop_from(self.source(dst)?, dst);
        }
        let router = || self.by_address.get(&dst).copied().filter(|_| dst.is_router());
        self.direct(dst).or_else(router).or(self.uplink)
    }

    /// Source address of this node's own cells to `dst`. A host at two routers uses the address
    /// that its uplink knows. On direct links it always uses the first one.
    pub(crate) fn source(&self, dst: Address) -> Option<Address> {
        if self.second.is_none() || self.direct(dst).is_some() { self.me } else { self.home() }
    }

    /// This node's address at its uplink.
    pub(crate) fn home(&self) -> Option<Address> {
        let own = self.own()?;
        let uplink = self.uplink.and_then(|link| self.link(link));
        Some(uplink.and_then(|router| own.at(router.address.router)).unwrap_or(own.first))
    }

    /// The neighbour through which this node's own cells from `src` reach `dst`. A host at two
    /// routers sends over the router of `src`, which would refuse the other address.
    pub(crate) fn origin_hop_from(&self, src: Address, dst: Address) -> Option<LinkId> {
        if self.second.is_none() {
            return self.origin_hop(dst);
        }
        let direct = self.direct(dst).filter(|_| self.me == Some(src));
        direct.or_else(|| self.by_address.get(&Address::new(src.router, 0)).copied())
    }

    /// Sets or removes the facts of a neighbour. If two neighbours have one address, the newer one
    /// gets it.
    fn set(&mut self, link: LinkId, now: Option<LinkFacts>) {
        let before = match now {
            Some(facts) => self.links.put(link, facts),
            None => self.links.remove(link).map(|facts| (link, facts)),
        };
        let before = before.map(|(link, facts)| (facts.address, link));
        let now = now.map(|facts| (facts.address, link));
        if before == now {
            return;
        }
        if let Some((address, link)) = before
            && self.by_address.get(&address) == Some(&link)
        {
            self.by_address.remove(&address);
        }
        self.by_address.extend(now);
    }
}

impl<C: Ciphers> Relay<C> {
    /// The current view of neighbours and routes.
    pub(crate) fn known(&self) -> &ForwardingView {
        debug_assert!(self.neighbours.is_seen(), "a call ended without `refresh`");
        &self.own.view
    }

    /// The facts about a neighbour for workers. None if links carry lists only.
    fn facts(&self, link: LinkId) -> Option<LinkFacts> {
        let neighbour = self.neighbours.get(link).filter(|_| !self.lists_only)?;
        let routes = |r: &shoal_routing::Routing<C>| r.is_adjacent(link);
        Some(LinkFacts {
            address: neighbour.address,
            may_transit: !neighbour.address.is_router()
                || self.routing.as_ref().is_some_and(routes),
            endpoint: neighbour.shared_endpoint(),
            link_delay: neighbour.link_delay,
            direct: !self.config.address.is_router() && neighbour.is_direct(),
        })
    }

    /// Updates the view and the list of slots. Call this at the end of each function that changes
    /// neighbours or routes.
    pub(crate) fn refresh(&mut self) {
        self.shifts.gather_due();
        let mut touched = self.neighbours.take_touched();
        for &link in &touched {
            self.slots.refresh(&mut self.neighbours, link);
        }
        touched.retain(|&link| self.facts(link).as_ref() != self.own.view.link(link));
        let seen = &self.own.view;
        let table = self.routing.as_ref().map_or(&seen.table, |routing| routing.table());
        let new_table = (!Arc::ptr_eq(table, &seen.table)).then(|| Arc::clone(table));
        let sends_up = !self.config.address.is_router() && !self.lists_only;
        let in_use = seen.uplink.filter(|_| self.second.is_some());
        let uplink = sends_up.then(|| self.neighbours.uplink(in_use)).flatten();
        let as_arc = |accepted: &Option<Arc<AcceptedAddresses>>| accepted.as_ref().map(Arc::as_ptr);
        let shifts = as_arc(&self.shifts.accepted) == as_arc(&seen.accepted);
        let rules = Arc::ptr_eq(&self.rules, &seen.rules);
        let uplinks = (uplink, self.second) == (seen.uplink, seen.second);
        let same = new_table.is_none() && uplinks && shifts && rules;
        if touched.is_empty() && same && self.lists_only == seen.lists_only {
            return self.neighbours.give_back(touched);
        }
        let facts: Vec<_> = touched.drain(..).map(|link| (link, self.facts(link))).collect();
        self.neighbours.give_back(touched);
        // Copies the view only if other workers hold it. With one worker, none does.
        let view = Arc::make_mut(&mut self.own.view);
        (view.uplink, view.second, view.lists_only) = (uplink, self.second, self.lists_only);
        view.accepted.clone_from(&self.shifts.accepted);
        view.rules = Arc::clone(&self.rules);
        if let Some(table) = new_table {
            view.table = table;
        }
        for (link, facts) in facts {
            view.set(link, facts);
        }
        self.own.give_up_held();
        self.workers.stale = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LinkConfig, RelayConfig};
    use shoal_crypto::{Identity, NetworkSecret};
    use shoal_wire::{Id, Time};
    use std::net::SocketAddr;

    const NOW: Time = Time::from_millis(1_000);

    fn relay(address: Address) -> Relay {
        let config = RelayConfig {
            address,
            session: shoal_session::SessionConfig::new(shoal_session::SessionRole::Link),
            liveness: shoal_link::LivenessConfig::default(),
            egress: shoal_link::EgressConfig::default(),
            hold: crate::HoldConfig::default(),
            routing: shoal_routing::Config::default(),
            events_max: 16,
        };
        let (me, secret) = (Identity::from_seed([9; 32]), NetworkSecret([7; 32]));
        Relay::new(config, me, secret, [], [1; 32], NOW, 1_800_000_000_000)
    }

    fn add(relay: &mut Relay, seed: u8, address: Address) -> LinkId {
        let key = Identity::from_seed([seed; 32]).public();
        let endpoint = Some(SocketAddr::from(([10, 0, 0, seed], 7_400)));
        relay.add_link(NOW, &LinkConfig { key, address, endpoint }).expect("room")
    }

    /// True if the view equals one made from scratch.
    fn is_right(relay: &Relay) -> bool {
        let view = relay.known();
        let links = relay.neighbours.iter().map(|(link, _)| link);
        let known = links.chain(view.links.iter().map(|(link, _)| link)).collect::<Vec<_>>();
        let links = known.iter().all(|&link| view.link(link) == relay.facts(link).as_ref());
        let of = |link| Some((relay.facts(link)?.address, link));
        let by_address = known.into_iter().filter_map(of).collect::<BTreeMap<_, _>>();
        links && view.by_address == by_address && view.lists_only == relay.lists_only
    }

    #[test]
    fn after_each_call_the_view_agrees_with_the_neighbours() {
        let mut relay = relay(Address::new(1, 1));
        let router = add(&mut relay, 1, Address::new(1, 0));
        let host = add(&mut relay, 2, Address::new(1, 2));
        assert!(is_right(&relay));
        assert_eq!(relay.next_hop(Address::new(5, 5)), Some(router));
        relay.set_small_path(router, true);
        assert!(is_right(&relay) && relay.known().link(router).unwrap().endpoint.is_none());
        relay.set_small_path(router, false);
        relay.set_closing(host, true);
        let elsewhere = SocketAddr::from(([10, 0, 0, 99], 7_400));
        relay.set_endpoint(NOW, host, Some(elsewhere));
        assert!(is_right(&relay));
        assert_eq!(relay.known().link(host).unwrap().endpoint, Some(elsewhere.into()));
        relay.set_lists_only(NOW, true);
        assert!(is_right(&relay) && relay.next_hop(Address::new(5, 5)).is_none());
        relay.set_lists_only(NOW, false);
        assert!(is_right(&relay) && relay.next_hop(Address::new(5, 5)) == Some(router));
        relay.remove_link(NOW, router);
        assert!(is_right(&relay) && relay.next_hop(Address::new(5, 5)).is_none());
    }

    #[test]
    fn a_number_that_is_given_anew_is_another_neighbour() {
        let mut relay = relay(Address::new(1, 0));
        let (old, new) = (Address::new(1, 7), Address::new(1, 8));
        let link = add(&mut relay, 1, old);
        assert_eq!(relay.next_hop(old), Some(link));
        relay.remove_link(NOW, link);
        let next = add(&mut relay, 2, new);
        assert_eq!((next.number(), next == link), (link.number(), false));
        assert!(is_right(&relay) && relay.known().link(link).is_none());
        assert_eq!((relay.next_hop(old), relay.next_hop(new)), (None, Some(next)));
    }

    #[test]
    fn a_view_that_no_other_worker_holds_is_changed_in_place() {
        let mut relay = relay(Address::new(1, 0));
        let place = |relay: &Relay| Arc::as_ptr(&relay.own.view);
        let before = place(&relay);
        for host in 1..40 {
            add(&mut relay, host, Address::new(1, host.into()));
        }
        assert_eq!(place(&relay), before);
        let held = Arc::clone(&relay.own.view);
        add(&mut relay, 50, Address::new(1, 50));
        assert!(held.next_hop(Address::new(1, 50)).is_none(), "a holder sees no change");
        assert!(is_right(&relay));
    }
}
