//! Direct links: their settings, this host's public endpoints, and their state for operators.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use shoal_crypto::PublicKey;
use shoal_edge::{DirectConfig, DirectEvent};
use shoal_wire::{LinkId, Time};

use crate::config::{DirectMode, NodeConfig};
use crate::control::{api, journal};
use crate::membership::anonymity;
use crate::membership::hosts::HostList;
use crate::membership::levels;
use crate::net::mapping::PortMapper;
use crate::tun::interface::VirtualInterface;
use crate::tun::subnets;
use crate::worker::first::{FirstWorker, WorkerParts};
use crate::worker::shifting::KernelShifts;

/// Settings of direct links; none if the file turns them off, or on a router.
pub fn config(config: &NodeConfig, hosts: &HostList) -> Option<DirectConfig> {
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

/// Routers that a host with direct links asks for its public endpoint.
fn mirrors(config: &NodeConfig, hosts: &HostList) -> Vec<(PublicKey, SocketAddr)> {
    let routers = hosts.iter().filter(|host| host.address.is_router());
    let callable = routers.filter_map(|router| Some((router.key, router.endpoint?)));
    let mut mirrors: Vec<(PublicKey, SocketAddr)> = callable.collect();
    // The first router differs between hosts, which spreads the questions.
    let first = usize::from(config.address().host) % mirrors.len().max(1);
    mirrors.rotate_left(first);
    mirrors
}

/// Endpoints of this machine at which the sockets receive datagrams. Interfaces of nodes don't
/// count: a link inside another network could lead back into this one. Shifting addresses don't
/// count, either.
fn locals(
    bound: impl Iterator<Item = SocketAddr>,
    own: Option<&str>,
    shifting: Option<&KernelShifts>,
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
    let passes = |ip: IpAddr| shifting.is_some_and(|shifting| shifting.is_passing(ip));
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

impl FirstWorker {
    /// Allows or forbids direct links, as the preset, the file and the list say. While they are
    /// forbidden, and while circuits are required with every host, this host asks nobody for its
    /// public endpoint.
    pub(crate) fn apply_direct(&mut self, now: Time) {
        let WorkerParts { node, config, names, .. } = &mut self.parts;
        let hosts = names.hosts();
        let may = anonymity::direct_refusal(config, hosts).is_none();
        node.edge.allow_direct(now, may);
        let others = hosts.iter().filter(|host| !host.address.is_router());
        let others: Vec<_> = others.filter_map(|host| names.host_id(&host.name)).collect();
        let are_hidden = others.iter().all(|host| node.edge.is_hidden(*host));
        let asks = may && (others.is_empty() || !are_hidden);
        let (servers, mirrors) = match asks {
            true => (config.direct.stun(), mirrors(config, hosts)),
            false => (Vec::new(), Vec::new()),
        };
        node.relay.set_stun(now, servers);
        node.relay.set_mirrors(now, mirrors);
        if may && config.direct.mode == DirectMode::Proactive {
            node.edge.want_all_direct(now);
        }
        self.map_port(asks);
    }

    /// Asks a translator to keep a port open if the file says so and direct links are allowed, else
    /// gives the port back.
    fn map_port(&mut self, asks: bool) {
        let WorkerParts { node, ports, config, waker, .. } = &mut self.parts;
        match (asks && config.direct.map_ports, ports.mapping().is_some()) {
            (true, false) => {
                if let Err(error) = ports.keep_open(waker) {
                    let (what, why) = ("no port is kept open", format!("{error:#}"));
                    tracing::error!("{}", journal::unnamed(what, journal::DEBUG, &[why]));
                }
            }
            (false, true) => {
                ports.give_back();
                node.set_mapped(None);
            }
            (true, true) | (false, false) => {}
        }
    }

    /// Collects this machine's addresses, for direct links.
    pub(crate) fn look_at_reach(&mut self) {
        self.look_at_networks();
        let WorkerParts { node, ports, interface, shifting, .. } = &mut self.parts;
        if node.edge.direct_stats().is_some() {
            let own = interface.as_ref().map(VirtualInterface::name);
            let bound = ports.views().map(|port| port.local);
            node.set_locals(locals(bound, own, shifting.as_ref()));
        }
    }

    /// Handles results of other threads: addresses of neighbours with names, and a translator's
    /// port.
    pub(crate) fn take_reach(&mut self, now: Time) {
        self.take_addresses(now);
        let WorkerParts { node, ports, .. } = &mut self.parts;
        if let Some(mapped) = ports.mapping().and_then(PortMapper::take) {
            node.set_mapped(mapped.map(SocketAddr::V4));
        }
    }

    /// Updates the names of direct links. An ended link keeps its name until its last events are
    /// reported.
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

/// Level of a direct link's protection, and the reason.
pub fn peer(parts: &WorkerParts, link: &shoal_relay::LinkView) -> Option<api::DirectLinkStatus> {
    let (agreed, why) = parts.node.edge.direct_terms(parts.node.direct_host(link.link)?)?;
    let why = match link.level == agreed {
        true => why.words(),
        false => "the session protects more than agreed",
    };
    Some(api::DirectLinkStatus { level: link.level.name().into(), why: why.into() })
}

/// Hosts with which this one wants a direct link and has none, and the reasons.
pub fn relayed(parts: &WorkerParts) -> impl Iterator<Item = api::NeighbourStatus> + '_ {
    let hosts = parts.names.hosts().iter();
    hosts.filter_map(|host| {
        let why = parts.node.edge.direct_relayed(parts.names.host_id(&host.name)?)?;
        Some(api::NeighbourStatus {
            name: host.name.clone(),
            address: host.address.to_string(),
            state: "relayed".into(),
            direct: Some(api::DirectLinkStatus {
                level: "routers".into(),
                why: why.words().into(),
            }),
            ..api::NeighbourStatus::default()
        })
    })
}

/// This host's public endpoints, and the kind of translator that they imply.
pub fn netcheck(parts: &WorkerParts) -> api::Netcheck {
    let WorkerParts { node, config, names, .. } = parts;
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
        refusal: anonymity::direct_refusal(config, names.hosts()),
        endpoint: node.edge.direct_endpoint().map(|at| at.to_string()),
        mapping: node.mapping().name().into(),
        seen: seen
            .map(|(by, at)| api::ObservedEndpoint { by: name(by), at: at.to_string() })
            .collect(),
        locals: node.locals().iter().map(ToString::to_string).collect(),
        port_mapping: parts.ports.mapping_view(),
    }
}

/// Counters of direct links.
pub fn status(parts: &WorkerParts) -> Option<api::DirectLinks> {
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
