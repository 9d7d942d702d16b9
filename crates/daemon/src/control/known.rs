//! The members of the network, as this node sees them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use shoal_edge::{HostId, NoDirectReason};
use shoal_relay::LinkView;
use shoal_wire::Time;

use crate::control::api::{self, BoundReason};
use crate::membership::anonymity;
use crate::membership::authority::AuthorityState;
use crate::membership::hosts::ListedHost;
use crate::worker::direct;
use crate::worker::first::WorkerParts;

/// A member counts as online if this node heard it within this time.
const RECENT: Duration = Duration::from_secs(30);

/// Facts that decide whether members are online.
struct MemberView<'a> {
    parts: &'a WorkerParts,
    now: Time,
    links: BTreeMap<String, LinkView>,
    /// Routers with a route; none if this node is not a router.
    routed: Option<BTreeSet<u32>>,
    /// Members by name: the mandate that made it a member (none: the authority), and the
    /// membership's end.
    memberships: BTreeMap<&'a str, (Option<&'a str>, u64)>,
}

pub fn hosts(parts: &WorkerParts, now: Time, skip: usize) -> api::MemberPage {
    let relay = &parts.node.relay;
    let routed = relay.routing().map(|routing| routing.routes().map(|r| r.router).collect());
    let links = relay.links().map(|link| (parts.names.link(link.link), link)).collect();
    let memberships = parts.authority.as_ref().map(AuthorityState::memberships).unwrap_or_default();
    let seen = MemberView { parts, now, links, routed, memberships };
    let all = parts.names.hosts();
    let rows = all.iter().skip(skip).take(api::HOSTS_MAX).map(|host| seen.row(host));
    api::MemberPage { hosts: rows.collect(), total: all.len() as u32 }
}

impl MemberView<'_> {
    fn row(&self, host: &ListedHost) -> api::MemberStatus {
        let MemberView { parts, now, .. } = self;
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
        api::MemberStatus {
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

    /// Path of traffic from this node to a member, and the reason for it if there is a choice.
    fn path(
        &self,
        host: &ListedHost,
        id: Option<HostId>,
        link: Option<&LinkView>,
    ) -> (Option<&'static str>, Option<String>) {
        let WorkerParts { node, config, names, .. } = self.parts;
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
            let why = BoundReason::from(self.parts.circuits.bound_by(host)).words(&host.name);
            return (Some("circuits"), Some(why));
        }
        let why = anonymity::direct_refusal(config, names.hosts()).unwrap_or_else(|| {
            let idle = "no traffic asked for a direct link";
            match node.edge.direct_terms(id) {
                Some(_) => "a direct link is being made".into(),
                None => node.edge.direct_relayed(id).map_or(idle, NoDirectReason::words).into(),
            }
        });
        (Some("relayed"), Some(why))
    }

    /// True if a member is online, as far as this node can tell. A host has a link with its router,
    /// which sees it. Other nodes know only if it has sent something lately or its router is
    /// unreachable. A host at two routers is offline only if that is so for both.
    fn online(&self, host: &ListedHost, link: Option<&LinkView>, recent: bool) -> Option<bool> {
        if recent || link.is_some_and(|link| link.up_since.is_some()) {
            return Some(true);
        }
        let own = self.parts.config.address();
        let at = |router: u32| match &self.routed {
            None if own.router == router && host.address.is_router() => Some(false),
            None => None,
            Some(_) if router == own.router => Some(false),
            Some(routed) if !routed.contains(&router) => Some(false),
            Some(_) => host.address.is_router().then_some(true),
        };
        let first = at(host.address.router);
        host.second.map_or(first, |second| first.filter(|known| at(second.router) == Some(*known)))
    }
}
