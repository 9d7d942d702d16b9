//! Policies that change while routing runs.

use std::collections::BTreeMap;

use shoal_crypto::Ciphers;
use shoal_wire::{LinkId, RoutingMessage, Time};

use crate::{LinkPolicy, Routing};

/// Query cycles until a dump request is repeated. The neighbour grants one per cycle of its own, so
/// it may have refused the first request.
const ASK_AGAIN: u8 = 2;

impl<C: Ciphers> Routing<C> {
    /// Replaces the link policies and the pinned first hops. Links stay up, and every route that
    /// the new policies allow stays in use. Destinations that were not imported before are
    /// requested.
    pub fn set_policies(
        &mut self,
        now: Time,
        links: BTreeMap<u32, LinkPolicy>,
        pins: BTreeMap<u32, u32>,
    ) {
        let before = core::mem::replace(&mut self.config.links, links);
        self.config.pins = pins;
        let mut wider = Vec::new();
        for (link, adjacency) in &mut self.links {
            let neighbour = adjacency.neighbour;
            adjacency.estimate.set_default_cost(&self.config, neighbour);
            if is_wider(before.get(&neighbour), self.config.links.get(&neighbour)) {
                wider.push(*link);
            }
        }
        for (router, destination) in &mut self.destinations {
            destination.offers.retain(|offer| {
                let Some(adjacency) = self.links.get_mut(&offer.link) else { return false };
                let allowed = self.config.imports(adjacency.neighbour, *router);
                adjacency.routes -= usize::from(!allowed);
                allowed
            });
        }
        for router in self.destinations.keys().copied().collect::<Vec<_>>() {
            self.reselect(now, router);
        }
        for link in wider {
            self.ask_for_all(link);
        }
        self.handle_timeout(now);
    }

    /// Requests all routes from the neighbour at once, and once more later.
    pub(crate) fn ask_for_all(&mut self, link: LinkId) {
        let Some(adjacency) = self.links.get_mut(&link).filter(|a| a.is_ready()) else { return };
        adjacency.ask_again = ASK_AGAIN;
        let request = RoutingMessage::DumpRequest(adjacency.instances());
        self.outbox.push_back((link, request));
    }

    /// Repeats a request for all routes at the end of a query cycle.
    pub(crate) fn repeat_dump_request(&mut self, link: LinkId) {
        let Some(adjacency) = self.links.get_mut(&link).filter(|a| a.is_ready()) else { return };
        let left = adjacency.ask_again;
        adjacency.ask_again = left.saturating_sub(1);
        if left == 1 {
            let request = RoutingMessage::DumpRequest(adjacency.instances());
            self.outbox.push_back((link, request));
        }
    }
}

/// True if `new` imports a destination that `old` does not.
fn is_wider(old: Option<&LinkPolicy>, new: Option<&LinkPolicy>) -> bool {
    let import = |policy: Option<&LinkPolicy>| policy.and_then(|policy| policy.import.clone());
    match (import(old), import(new)) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(old), Some(new)) => !new.is_subset(&old),
    }
}
