//! The members of the network, as this node sees them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use shoal_edge::{HostId, Relayed};
use shoal_relay::LinkView;
use shoal_wire::Time;

use crate::control::api;
use crate::membership::authority::Authority;
use crate::membership::cover;
use crate::membership::hosts::Host;
use crate::worker::direct;
use crate::worker::first::Parts;

/// A member that spoke with this node within this time is taken to be online.
const RECENT: Duration = Duration::from_secs(30);

/// What decides whether members are online.
struct Seen<'a> {
    parts: &'a Parts,
    now: Time,
    links: BTreeMap<String, LinkView>,
    /// Routers that this one has a route to; none where this node is no router.
    routed: Option<BTreeSet<u32>>,
    /// By name: the mandate, if not the authority, that made it a member, and when that ends.
    memberships: BTreeMap<&'a str, (Option<&'a str>, u64)>,
}

/// The members after the first `skip`.
pub fn hosts(parts: &Parts, now: Time, skip: usize) -> api::Hosts {
    let relay = &parts.node.relay;
    let routed = relay.routing().map(|routing| routing.routes().map(|r| r.router).collect());
    let links = relay.links().map(|link| (parts.names.link(link.link), link)).collect();
    let memberships = parts.authority.as_ref().map(Authority::memberships).unwrap_or_default();
    let seen = Seen { parts, now, links, routed, memberships };
    let all = parts.names.hosts();
    let rows = all.iter().skip(skip).take(api::HOSTS_MAX).map(|host| seen.row(host));
    api::Hosts { hosts: rows.collect(), total: all.len() as u32 }
}

impl Seen<'_> {
    fn row(&self, host: &Host) -> api::Host {
        let Seen { parts, now, .. } = self;
        let this_node = host.name == parts.config.node.name;
        let link = self.links.get(&host.name);
        let id = parts.names.host_id(&host.name);
        let over_session = id.and_then(|id| parts.node.edge.last_heard(id));
        let heard = over_session.max(link.and_then(|link| link.last_heard));
        let heard = if this_node { Some(*now) } else { heard };
        let recent = over_session.is_some_and(|at| now.since(at) < RECENT);
        let interface = parts.interface.as_ref();
        let addresses = interface.map(|interface| interface.reached_at(host));
        let membership = self.memberships.get(host.name.as_str());
        let (path, why) = if this_node { (None, None) } else { self.path(host, id, link) };
        api::Host {
            key: host.key.to_string(),
            mandate: membership.and_then(|(mandate, _)| mandate.map(str::to_owned)),
            expires_unix_s: membership.map(|(_, ends)| *ends),
            name: host.name.clone(),
            address: host.address.to_string(),
            role: if host.address.is_router() { "router" } else { "host" }.into(),
            interface: addresses.into_iter().flatten().map(|at| at.to_string()).collect(),
            prefixes: host.prefixes.iter().map(ToString::to_string).collect(),
            online: if this_node { Some(true) } else { self.online(host, link, recent) },
            last_heard_ms: heard.map(|at| now.since(at).as_millis() as u64),
            path: path.map(String::from),
            why,
            this_node,
        }
    }

    /// How what this node says to a member travels, and why so, where there is a choice.
    fn path(
        &self,
        host: &Host,
        id: Option<HostId>,
        link: Option<&LinkView>,
    ) -> (Option<&'static str>, Option<String>) {
        let Parts { node, config, names, .. } = self.parts;
        let link = link.filter(|link| link.up_since.is_some());
        if let Some(link) = link {
            let agreed = direct::peer(self.parts, link);
            let agreed = agreed.map(|agreed| format!("{}: {}", agreed.level, agreed.why));
            return (Some(if agreed.is_some() { "direct" } else { "link" }), agreed);
        }
        // Only two hosts have a choice.
        let id = id.filter(|_| !host.address.is_router() && !config.is_router());
        let Some(id) = id else { return (Some("relayed"), None) };
        if node.edge.is_hidden(id) {
            return (Some("circuits"), None);
        }
        let why = if node.edge.direct_stats().is_none() {
            "this host wants no direct links"
        } else if cover::own(config, names.hosts()).is_some() {
            "covered hosts have no direct links"
        } else if node.edge.direct_terms(id).is_some() {
            "a direct link is being made"
        } else {
            let idle = "nothing was said that asks for a direct link";
            node.edge.direct_relayed(id).map_or(idle, Relayed::words)
        };
        (Some("relayed"), Some(why.into()))
    }

    /// Whether a member is online, if this node can tell. A host has a link with its own router,
    /// which sees it; others know only when it speaks or when its router is out of reach.
    fn online(&self, host: &Host, link: Option<&LinkView>, recent: bool) -> Option<bool> {
        if recent || link.is_some_and(|link| link.up_since.is_some()) {
            return Some(true);
        }
        let own = self.parts.config.address();
        let router = host.address.router;
        match &self.routed {
            None if own.router == router && host.address.is_router() => Some(false),
            None => None,
            Some(_) if router == own.router => Some(false),
            Some(routed) if !routed.contains(&router) => Some(false),
            Some(_) => host.address.is_router().then_some(true),
        }
    }
}
