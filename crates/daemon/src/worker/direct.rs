//! Links with other hosts past the routers: the edge decides about them, here it is done.

use std::time::Duration;

use shoal_crypto::{NetworkSecret, kdf};
use shoal_edge::{DirectConfig, DirectEvent, HostId};
use shoal_relay::LinkConfig;
use shoal_wire::{LinkId, Time};

use crate::config::{Config, DirectMode};
use crate::control::api;
use crate::membership::hosts::Hosts;
use crate::worker::first::{Parts, Worker};

/// What the files say about them; none where there are to be none.
pub fn config(config: &Config, hosts: &Hosts, secret: &NetworkSecret) -> Option<DirectConfig> {
    let section = &config.direct;
    if section.mode == DirectMode::Off || config.is_router() {
        return None;
    }
    let listed = || hosts.by_name(&config.node.name).and_then(|me| me.endpoint);
    let name = |name: &String| {
        let hash = kdf(&secret.0, "shoal v1 security group", &[name.as_bytes()]);
        core::array::from_fn(|i| hash[i])
    };
    Some(DirectConfig {
        proactive: section.mode == DirectMode::Proactive,
        endpoint: section.endpoint().or_else(listed),
        weakest: section.level.into(),
        groups: section.security_groups.iter().map(name).collect(),
        idle: Duration::from_secs(section.idle_s),
        links_max: section.max_links as usize,
    })
}

impl Worker {
    /// Does what the edge wants of direct links.
    pub(crate) fn handle_direct(&mut self, now: Time, event: DirectEvent) {
        let Parts { machines, names, .. } = &mut self.parts;
        match event {
            DirectEvent::Open { host, endpoint, level, .. } => {
                if let Some(&link) = machines.direct.get(&host) {
                    machines.relay.set_closing(link, false);
                    machines.relay.set_endpoint(now, link, endpoint);
                    let is_up =
                        machines.relay.links().any(|l| l.link == link && l.up_since.is_some());
                    return machines.edge.direct_changed(now, host, is_up);
                }
                let name = names.host(host);
                let Some(entry) = names.hosts().by_name(&name) else { return };
                let config = LinkConfig { key: entry.key, address: entry.address, endpoint };
                match machines.relay.add_link(now, &config) {
                    Ok(link) => {
                        machines.relay.set_weakest(link, level);
                        machines.direct.insert(host, link);
                        names.add_link(link, &name);
                    }
                    // It is given up when it does not come up.
                    Err(reason) => machines.relay.count_drop(reason, 1),
                }
            }
            DirectEvent::Close(host) => {
                if let Some(&link) = machines.direct.get(&host) {
                    machines.relay.set_closing(link, true);
                }
            }
            DirectEvent::Remove(host) => {
                let Some(link) = machines.direct.remove(&host) else { return };
                machines.relay.remove_link(now, link);
                // Its last events name it.
                self.pass_on_relay_events(now);
                self.parts.names.remove_link(link);
            }
        }
    }
}

/// The host at the other end of a direct link.
pub fn host_of(parts: &Parts, link: LinkId) -> Option<HostId> {
    parts.machines.direct.iter().find(|(_, known)| **known == link).map(|(host, _)| *host)
}

/// How a direct link is protected, and why.
pub fn peer(parts: &Parts, link: &shoal_relay::LinkView) -> Option<api::DirectPeer> {
    let (agreed, why) = parts.machines.edge.direct_terms(host_of(parts, link.link)?)?;
    let why = match link.level == agreed {
        true => why.words(),
        false => "the handshake gave no less",
    };
    Some(api::DirectPeer { level: link.level.name().into(), why: why.into() })
}

/// What became of direct links.
pub fn status(parts: &Parts) -> Option<api::DirectLinks> {
    let stats = parts.machines.edge.direct_stats()?;
    Some(api::DirectLinks {
        links: parts.machines.direct.len() as u32,
        asked: stats.asked,
        agreed: stats.agreed,
        up: stats.up,
        lost: stats.lost,
        trimmed: stats.trimmed,
        failed: stats.failed,
        full: stats.full,
    })
}
