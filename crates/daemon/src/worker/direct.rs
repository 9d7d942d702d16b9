//! Direct links: what the files ask for, where this host can be reached, and what operators are
//! told.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use shoal_crypto::PublicKey;
use shoal_edge::{DirectConfig, DirectEvent};
use shoal_wire::{LinkId, Time};

use crate::config::{Config, DirectMode};
use crate::control::api;
use crate::membership::cover;
use crate::membership::hosts::Hosts;
use crate::membership::levels;
use crate::net::mapping::PortMapping;
use crate::tun::interface::Interface;
use crate::tun::subnets;
use crate::worker::first::{Parts, Worker};
use crate::worker::hopping::Hopping;

/// What the files say about direct links; none where there are to be none.
pub fn config(config: &Config, hosts: &Hosts) -> Option<DirectConfig> {
    let section = &config.direct;
    if section.mode == DirectMode::Off || config.is_router() {
        return None;
    }
    let listed = || hosts.by_name(&config.node.name).and_then(|me| me.endpoint);
    Some(DirectConfig {
        proactive: section.mode == DirectMode::Proactive,
        endpoint: section.endpoint().or_else(listed),
        weakest: section.level.into(),
        groups: section.security_groups.iter().map(|name| levels::group_hash(name)).collect(),
        idle: Duration::from_secs(section.idle_s),
        links_max: section.max_links as usize,
    })
}

/// Whether this node may have direct links, as far as its file says.
fn are_wanted(config: &Config) -> bool {
    config.direct.mode != DirectMode::Off && !config.is_router()
}

/// Routers that may be asked where they see this host; none where it wants no direct links.
pub fn mirrors(config: &Config, hosts: &Hosts) -> Vec<(PublicKey, SocketAddr)> {
    if !are_wanted(config) {
        return Vec::new();
    }
    let routers = hosts.iter().filter(|host| host.address.is_router());
    let callable = routers.filter_map(|router| Some((router.key, router.endpoint?)));
    let mut mirrors: Vec<(PublicKey, SocketAddr)> = callable.collect();
    // Not all hosts ask the same ones.
    let first = usize::from(config.address().host) % mirrors.len().max(1);
    mirrors.rotate_left(first);
    mirrors
}

/// Public servers that are asked the same; none where this node wants no direct links.
pub fn servers(config: &Config) -> Vec<SocketAddr> {
    if are_wanted(config) { config.direct.stun() } else { Vec::new() }
}

/// Whether a translator is to keep a port open for this node: not for a covered host, whose link
/// would carry what it asks beside its schedule.
pub fn maps_ports(config: &Config, hosts: &Hosts) -> bool {
    are_wanted(config) && config.direct.map_ports && cover::own(config, hosts).is_none()
}

/// Endpoints of this machine at which the sockets take datagrams. Interfaces of nodes are not among
/// them, nor are addresses that hop: a link inside another network could lead back into this one.
fn locals(
    bound: impl Iterator<Item = SocketAddr>,
    own: Option<&str>,
    hopping: Option<&Hopping>,
) -> Vec<SocketAddr> {
    let Ok(all) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let nodes = subnets::of_nodes();
    let is_nodes = |name: &str| own == Some(name) || nodes.contains(name);
    let others = all.filter(|entry| !is_nodes(&entry.interface_name));
    let address = |entry: nix::ifaddrs::InterfaceAddress| -> Option<IpAddr> {
        let address = entry.address?;
        let four = address.as_sockaddr_in().map(|at| IpAddr::V4(at.ip()));
        four.or_else(|| address.as_sockaddr_in6().map(|at| IpAddr::V6(at.ip())))
    };
    let passes = |ip: IpAddr| hopping.is_some_and(|hopping| hopping.is_passing(ip));
    let here = others.filter_map(address).filter(|ip| !ip.is_loopback() && !passes(*ip));
    let here: Vec<IpAddr> = here.collect();
    let at = |bound: SocketAddr| match bound.ip().is_unspecified() {
        false => vec![bound],
        true => {
            let fits = here.iter().filter(|ip| ip.is_ipv4() == bound.is_ipv4());
            fits.map(|&ip| SocketAddr::new(ip, bound.port())).collect()
        }
    };
    bound.flat_map(at).collect()
}

impl Worker {
    /// Looks which addresses this machine has, for direct links.
    pub(crate) fn look_at_reach(&mut self) {
        self.look_at_networks();
        let Parts { node, ports, interface, hopping, config, names, .. } = &mut self.parts;
        if cover::own(config, names.hosts()).is_some() {
            ports.give_back();
        }
        if node.edge.direct_stats().is_some() {
            let own = interface.as_ref().map(Interface::name);
            let bound = ports.views().map(|port| port.local);
            node.set_locals(locals(bound, own, hopping.as_ref()));
        }
    }

    /// Takes in what other threads found out: where neighbours with names are, and whether a
    /// translator keeps a port open here.
    pub(crate) fn take_reach(&mut self, now: Time) {
        self.take_addresses(now);
        let Parts { node, ports, .. } = &mut self.parts;
        if let Some(mapped) = ports.mapping().and_then(PortMapping::take) {
            node.set_mapped(mapped.map(SocketAddr::V4));
        }
    }

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

/// Hosts with which this one wants a direct link and has none, and why.
pub fn relayed(parts: &Parts) -> impl Iterator<Item = api::Peer> + '_ {
    let hosts = parts.names.hosts().iter();
    hosts.filter_map(|host| {
        let why = parts.node.edge.direct_relayed(parts.names.host_id(&host.name)?)?;
        Some(api::Peer {
            name: host.name.clone(),
            address: host.address.to_string(),
            state: "relayed".into(),
            direct: Some(api::DirectPeer { level: "routers".into(), why: why.words().into() }),
            ..api::Peer::default()
        })
    })
}

/// Where this host is seen, and what that says of translators on its way out.
pub fn netcheck(parts: &Parts) -> api::Netcheck {
    let Parts { node, config, names, .. } = parts;
    let servers = config.direct.stun();
    let name = |at: SocketAddr| {
        let by = names.hosts().iter().find(|host| host.endpoint == Some(at));
        match by {
            Some(host) => host.name.clone(),
            None if servers.contains(&at) => format!("STUN {at}"),
            None => at.to_string(),
        }
    };
    let seen = node.relay.seen();
    api::Netcheck {
        direct: config.direct.mode.as_str().into(),
        endpoint: node.edge.direct_endpoint().map(|at| at.to_string()),
        mapping: node.mapping().name().into(),
        seen: seen.map(|(by, at)| api::SeenBy { by: name(by), at: at.to_string() }).collect(),
        locals: node.locals().iter().map(ToString::to_string).collect(),
        port_mapping: parts.ports.mapping_view(),
    }
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
