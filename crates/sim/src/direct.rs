//! Links of two hosts past the routers: the edge decides about them, here it is done, as the daemon
//! does it.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_crypto::Ciphers;
use shoal_edge::{DirectConfig, DirectEvent, HostId};
use shoal_relay::{Event as RelayEvent, LinkConfig};
use shoal_wire::{Address, Level, LinkId, Time};

use crate::node::Node;
use crate::options::Options;
use crate::wires::socket;

/// Shorter than in the daemon, so that links end within a run.
const IDLE: Duration = Duration::from_secs(2);

/// A node's direct links.
#[derive(Default)]
pub(crate) struct DirectLinks {
    links: BTreeMap<HostId, LinkId>,
    /// Made since the node's start.
    pub(crate) made: usize,
    /// That came up before the node's last start.
    up_before: u64,
}

impl DirectLinks {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.links.len()
    }
}

/// What the host at `address` wants. Every fourth can't be called.
pub(crate) fn config(options: &Options, at: usize, address: Address) -> Option<DirectConfig> {
    let wanted = options.direct_wires > 0 && !address.is_router();
    wanted.then(|| DirectConfig {
        proactive: false,
        endpoint: (at % 4 != 3).then(|| socket(at)),
        weakest: Level::Encrypt,
        groups: Vec::new(),
        idle: IDLE,
        links_max: 64,
    })
}

impl<C: Ciphers> Node<C> {
    /// Does what the edge wants.
    pub(crate) fn handle_direct(&mut self, now: Time, event: DirectEvent) {
        let now = self.clock.read(now);
        match event {
            DirectEvent::Open { host, endpoint, level, .. } => {
                if let Some(&link) = self.direct.links.get(&host) {
                    self.relay.set_closing(link, false);
                    self.relay.set_endpoint(now, link, endpoint);
                    let is_up = self.relay.links().any(|l| l.link == link && l.up_since.is_some());
                    return self.edge.direct_changed(now, host, is_up);
                }
                let Some(address) = self.edge.address_of(host) else { return };
                let far = self.makings.plan.nodes.iter().position(|node| *node == address);
                let Some(far) = far else { return };
                let key = self.makings.keys[far];
                match self.relay.add_link(now, &LinkConfig { key, address, endpoint }) {
                    Ok(link) => {
                        self.relay.set_weakest(link, level);
                        self.direct.links.insert(host, link);
                        self.direct.made += 1;
                    }
                    Err(reason) => self.relay.count_drop(reason, 1),
                }
            }
            DirectEvent::Close(host) => {
                if let Some(&link) = self.direct.links.get(&host) {
                    self.relay.set_closing(link, true);
                }
            }
            DirectEvent::Remove(host) => {
                if let Some(link) = self.direct.links.remove(&host) {
                    self.relay.remove_link(now, link);
                }
            }
        }
    }

    /// Tells the edge of a direct link that came up or is lost.
    pub(crate) fn note_link(&mut self, now: Time, event: &RelayEvent) {
        let (RelayEvent::LinkUp(link) | RelayEvent::LinkDown(link)) = event else { return };
        let host = self.direct.links.iter().find(|(_, known)| *known == link);
        if let Some((&host, _)) = host {
            let is_up = matches!(event, RelayEvent::LinkUp(_));
            self.edge.direct_changed(self.clock.read(now), host, is_up);
        }
    }

    /// Nothing of them outlasts a crash.
    pub(crate) fn forget_direct(&mut self) {
        let up_before = self.direct_up();
        self.direct = DirectLinks { up_before, ..DirectLinks::default() };
    }

    /// How many came up, over all starts.
    pub(crate) fn direct_up(&self) -> u64 {
        let now = self.edge.direct_stats().filter(|_| self.alive).map_or(0, |stats| stats.up);
        self.direct.up_before + now
    }
}
