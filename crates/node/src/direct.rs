//! Direct links: the edge decides about them; the functions here make and end them in the relay.

use shoal_edge::{DirectEvent, HostId};
use shoal_relay::{Event as RelayEvent, LinkConfig};
use shoal_wire::{LinkId, Time};

use crate::control::Control;
use crate::shell::Shell;

impl<S: Shell> Control<S> {
    /// Does what the edge wants of a direct link; returns the link, if there is one.
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

    /// Tells the edge of a direct link that came up or is lost.
    pub(crate) fn note_link(&mut self, now: Time, event: &RelayEvent) {
        let (RelayEvent::LinkUp(link) | RelayEvent::LinkDown(link)) = *event else { return };
        if let Some(host) = self.direct_host(link) {
            self.edge.direct_changed(now, host, matches!(event, RelayEvent::LinkUp(_)));
        }
    }

    /// The host at the other end of a direct link.
    pub fn direct_host(&self, link: LinkId) -> Option<HostId> {
        self.direct.iter().find(|(_, known)| **known == link).map(|(host, _)| *host)
    }

    /// How many direct links there are.
    pub fn direct_links(&self) -> usize {
        self.direct.len()
    }
}
