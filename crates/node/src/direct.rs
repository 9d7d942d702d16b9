//! Direct links. The edge decides about them. This module makes and ends them in the relay, and
//! tells the edge where this node can be reached.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use shoal_edge::{DirectEvent, HostId, Reachability};
use shoal_relay::{LinkConfig, RelayEvent};
use shoal_session::{EndpointOrigin, EndpointRules};
use shoal_wire::{CandidateKind, DropReason, EndpointCandidate, LinkId, Mapping, Time};

use crate::control::Control;
use crate::shell::Shell;

/// True if a local address may be valid globally: IPv6, and neither link-local nor unique local.
fn is_global(at: &SocketAddr) -> bool {
    match at.ip() {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => !ip.is_unique_local() && !ip.is_unicast_link_local() && !ip.is_loopback(),
    }
}

/// Alternates the items of both iterators while both have some. If there is room for only a few,
/// neither kind displaces the other.
fn in_turn<T>(
    mut one: impl Iterator<Item = T>,
    mut other: impl Iterator<Item = T>,
) -> impl Iterator<Item = T> {
    let mut first = false;
    core::iter::from_fn(move || {
        first = !first;
        match first {
            true => one.next().or_else(|| other.next()),
            false => other.next().or_else(|| one.next()),
        }
    })
}

impl<S: Shell> Control<S> {
    /// Executes the edge's request about a direct link. Returns the link, if there is one.
    pub(crate) fn handle_direct(&mut self, now: Time, event: DirectEvent) -> Option<LinkId> {
        match event {
            DirectEvent::Open { host, endpoint, level, .. } => {
                if let Some(&link) = self.direct.get(&host) {
                    self.relay.set_closing(link, false);
                    self.relay.set_endpoint(now, link, endpoint);
                    let is_up = self.relay.links().any(|l| l.link == link && l.up_since.is_some());
                    self.edge.direct_changed(now, host, is_up);
                    return Some(link);
                }
                let (key, address) = self.edge.identity_of(host)?;
                match self.relay.add_link(now, &LinkConfig { key, address, endpoint }) {
                    Ok(link) => {
                        self.relay.set_weakest(link, level);
                        self.direct.insert(host, link);
                        Some(link)
                    }
                    // The edge gives up a link that does not come up.
                    Err(reason) => {
                        self.relay.count_drop(reason, 1);
                        None
                    }
                }
            }
            DirectEvent::Meet { host, id, asker, places } => {
                let link = *self.direct.get(&host)?;
                if let Err(reason) = self.relay.meet(now, link, (id, asker), &places) {
                    self.relay.count_drop(reason, 1);
                }
                Some(link)
            }
            DirectEvent::Close(host) => {
                let link = *self.direct.get(&host)?;
                self.relay.set_closing(link, true);
                Some(link)
            }
            DirectEvent::Remove(host) => {
                let link = self.direct.remove(&host)?;
                self.relay.remove_link(now, link);
                Some(link)
            }
        }
    }

    /// Tells the edge that a direct link came up or went down.
    pub(crate) fn note_link(&mut self, now: Time, event: &RelayEvent) {
        let (RelayEvent::LinkUp(link) | RelayEvent::LinkDown(link)) = *event else { return };
        if let Some(host) = self.direct_host(link) {
            self.edge.direct_changed(now, host, matches!(event, RelayEvent::LinkUp(_)));
        }
    }

    /// Sets this machine's endpoints at which the node receives datagrams.
    pub fn set_locals(&mut self, locals: Vec<SocketAddr>) {
        self.locals = locals;
        self.gather();
    }

    /// Sets the rules for endpoints from and to which frames may go.
    pub fn set_endpoint_rules(&mut self, rules: EndpointRules) {
        let rules = Arc::new(rules);
        self.relay.set_endpoint_rules(Arc::clone(&rules));
        self.edge.set_endpoint_rules(rules);
    }

    /// Checks whether this node may call an endpoint of this origin.
    ///
    /// # Errors
    ///
    /// The reason, as of [`EndpointRules::check`].
    pub fn may_call(&self, at: SocketAddr, origin: EndpointOrigin) -> Result<(), DropReason> {
        self.relay.endpoint_rules().check(at, origin)
    }

    /// Sets the public endpoint that a translator keeps open for this node, if there is one.
    pub fn set_mapped(&mut self, mapped: Option<SocketAddr>) {
        let refused = mapped.and_then(|at| self.may_call(at, EndpointOrigin::View).err());
        refused.into_iter().for_each(|reason| self.relay.count_drop(reason, 1));
        self.mapped = mapped.filter(|_| refused.is_none());
        self.gather();
    }

    /// This machine's endpoints, as set by [`Self::set_locals`].
    pub fn locals(&self) -> &[SocketAddr] {
        &self.locals
    }

    /// Behaviour of translators on this node's path, as far as observed.
    pub fn mapping(&self) -> Mapping {
        // An observer saw a local address, so there is no translator in between.
        match self.relay.seen().any(|(_, seen)| self.locals.contains(&seen)) {
            true => Mapping::Easy,
            false => self.relay.mapping(),
        }
    }

    /// Tells the edge where this node can be reached.
    pub(crate) fn gather(&mut self) {
        let mapping = self.mapping();
        let mut seen: Vec<SocketAddr> = self.relay.seen().map(|(_, seen)| seen).collect();
        seen.sort_unstable();
        seen.dedup();
        let is_seen = |local: &&SocketAddr| seen.contains(local);
        let (public, private): (Vec<SocketAddr>, Vec<SocketAddr>) =
            self.locals.iter().filter(|local| !is_seen(local)).partition(|local| is_global(local));
        let of = |kind| move |at: SocketAddr| EndpointCandidate { kind, at };
        let open = self.mapped.into_iter().map(of(CandidateKind::Configured));
        let seen = seen.iter().copied().map(of(CandidateKind::Seen));
        let public = public.into_iter().map(of(CandidateKind::Ipv6));
        let candidates = open.chain(in_turn(seen, public)).collect();
        self.edge.set_reach(Reachability { mapping, candidates, private });
    }

    /// The host at the remote end of a direct link.
    pub fn direct_host(&self, link: LinkId) -> Option<HostId> {
        self.direct.iter().find(|(_, known)| **known == link).map(|(host, _)| *host)
    }

    /// Number of direct links.
    pub fn direct_links(&self) -> usize {
        self.direct.len()
    }
}

#[cfg(test)]
mod tests {
    use super::in_turn;

    #[test]
    fn of_many_places_of_one_kind_some_are_left_out_first() {
        let turns = |one: usize, other: usize| {
            let both = in_turn((0..one).map(|n| ("seen", n)), (0..other).map(|n| ("own", n)));
            both.collect::<Vec<_>>()
        };
        assert_eq!(turns(1, 2), [("seen", 0), ("own", 0), ("own", 1)]);
        assert_eq!(turns(2, 1), [("seen", 0), ("own", 0), ("seen", 1)]);
        assert_eq!(turns(0, 2).len() + turns(3, 0).len(), 5);
        let told = &turns(2, 30)[..shoal_wire::Meeting::CANDIDATES_MAX];
        assert!(told.contains(&("seen", 1)), "{told:?}");
    }
}
