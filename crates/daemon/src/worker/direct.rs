//! Direct links: what the files ask for, and what operators are told.

use std::time::Duration;

use shoal_crypto::{NetworkSecret, kdf};
use shoal_edge::{DirectConfig, DirectEvent};
use shoal_wire::LinkId;

use crate::config::{Config, DirectMode};
use crate::control::api;
use crate::membership::hosts::Hosts;
use crate::worker::first::{Parts, Worker};

/// What the files say about direct links; none where there are to be none.
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
    /// Keeps names of direct links. One that ended has its name until its last events are told.
    pub(crate) fn name_direct(&mut self, event: DirectEvent, link: Option<LinkId>) {
        let Some(link) = link else { return };
        match event {
            DirectEvent::Open { host, .. } => {
                let name = self.parts.names.host(host);
                self.parts.names.add_link(link, &name);
                self.ended.retain(|ended| *ended != link);
            }
            DirectEvent::Close(_) | DirectEvent::Meet { .. } => {}
            DirectEvent::Remove(_) => self.ended.push(link),
        }
    }
}

/// How a direct link is protected, and why.
pub fn peer(parts: &Parts, link: &shoal_relay::LinkView) -> Option<api::DirectPeer> {
    let (agreed, why) = parts.node.edge.direct_terms(parts.node.direct_host(link.link)?)?;
    let why = match link.level == agreed {
        true => why.words(),
        false => "the handshake gave no less",
    };
    Some(api::DirectPeer { level: link.level.name().into(), why: why.into() })
}

/// What became of direct links.
pub fn status(parts: &Parts) -> Option<api::DirectLinks> {
    let stats = parts.node.edge.direct_stats()?;
    Some(api::DirectLinks {
        links: parts.node.direct_links() as u32,
        asked: stats.asked,
        agreed: stats.agreed,
        up: stats.up,
        lost: stats.lost,
        trimmed: stats.trimmed,
        failed: stats.failed,
        full: stats.full,
    })
}
