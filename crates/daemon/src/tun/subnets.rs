//! Networks behind hosts: decides which ones this node serves and which ones it routes to, and
//! gives the reasons against the others.
//!
//! In: the configuration, the grants in the list of hosts, and this machine's networks. Out: a
//! [`SubnetPlan`] for the gate and the kernel's routes.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use shoal_directory::Prefix;

use crate::config::{InterfaceConfig, NodeConfig, PROTECTED_MAX};
use crate::membership::hosts::HostList;
use crate::tun::changes;
use crate::tun::consent::{self, MachineRoute};
use crate::tun::shift_inside::InsideMachines;

/// The networks in force.
#[derive(Debug, Default, PartialEq)]
pub struct SubnetPlan {
    /// Networks behind this node.
    pub served: Vec<Prefix>,
    /// Networks behind other hosts, with the hosts' names.
    pub reached: Vec<(Prefix, String)>,
    /// Reasons why requested or granted networks are not in force.
    pub warnings: Vec<String>,
}

/// This machine's networks and routes without Shoal.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Networks of its interfaces, with its own addresses in them.
    pub connected: Vec<(Prefix, IpAddr)>,
    /// Configured endpoints of neighbours, to which frames go.
    pub endpoints: Vec<IpAddr>,
    /// The prefix under which this node's addresses shift.
    pub shift_prefix: Option<Prefix>,
    /// Machines behind this node with addresses of that prefix.
    pub protected: Vec<Prefix>,
    /// Routes of this machine to other networks.
    pub routes: Vec<MachineRoute>,
}

impl Surroundings {
    /// Collects the surroundings of a node with this configuration and list. Hosts have addresses
    /// in `overlay`.
    pub fn look(config: &NodeConfig, hosts: &HostList, overlay: &shoal_ip::Prefix) -> Surroundings {
        let endpoints = config.links.iter().filter_map(|link| {
            // A router that a registrar added can't keep a network from another router: the link
            // to it is refused instead. A host would lose the network with its only link.
            let peer = hosts.by_name(&link.peer);
            let listed = peer.filter(|peer| !peer.by_registrar || !config.is_router());
            let listed = listed.and_then(|peer| peer.endpoint);
            link.endpoint().or(listed).map(|endpoint| endpoint.ip())
        });
        let own = config.interface.as_ref().map_or("", |interface| interface.name.as_str());
        let asks = config.interface.as_ref().is_some_and(InterfaceConfig::accepts_all);
        Surroundings {
            connected: connected(own),
            endpoints: endpoints.collect(),
            shift_prefix: config
                .shift_prefix()
                .and_then(|shift| Prefix::new(shift.address().into(), 64)),
            protected: config.protected().filter_map(|machine| machine.prefix()).collect(),
            routes: if asks { around(own, overlay) } else { Vec::new() },
        }
    }

    /// True if a prefix lies in the shifting prefix.
    pub fn is_inside(&self, prefix: &Prefix) -> bool {
        self.shift_prefix.is_some_and(|shift| shift.covers(prefix))
    }

    /// Number of the prefix's addresses that lie in the shifting prefix.
    fn addresses_inside(&self, prefix: &Prefix) -> usize {
        if self.is_inside(prefix) { 1 << (128 - prefix.bits()).min(16) } else { 0 }
    }

    /// Source address of IPv4 packets into the network if the interface has no IPv4 address. It
    /// lies in a network that this machine serves, so that others accept it.
    pub fn source(&self, served: &[Prefix]) -> Option<Ipv4Addr> {
        self.connected.iter().find_map(|(_, address)| match address {
            IpAddr::V4(v4) if served.iter().any(|prefix| prefix.holds(*address)) => Some(*v4),
            _ => None,
        })
    }

    /// Reason against a route to `prefix`. `names`: this machine's own file names a part of the
    /// shifting prefix that contains it.
    fn objection(&self, prefix: &Prefix, names: bool) -> Option<String> {
        let is_inside = self.is_inside(prefix);
        if is_inside && !names {
            return Some(
                "the prefix lies in [shift] prefix: name it in accept_prefixes, or a larger part \
                 of [shift] prefix, if a machine there is behind that host"
                    .into(),
            );
        }
        if is_inside && prefix.bits() < INSIDE_BITS_MIN {
            return Some(format!("a part of [shift] prefix has at least {INSIDE_BITS_MIN} bits"));
        }
        let own = self.connected.iter().map(|(_, address)| *address);
        let mut own = own.chain(self.protected.iter().map(Prefix::ip)).filter(|_| is_inside);
        if let Some(address) = own.find(|address| prefix.holds(*address)) {
            return Some(format!("{address} is this machine's, or behind it"));
        }
        let same = |net: &&(Prefix, IpAddr)| net.0.covers(prefix) && !is_inside;
        if let Some((net, address)) = self.connected.iter().find(same) {
            return Some(format!(
                "the prefix lies in {net}, where this machine has the address {address}"
            ));
        }
        let longer = |at: &IpAddr| {
            let nets = self.connected.iter().filter(|(net, _)| net.holds(*at));
            nets.map(|(net, _)| net.bits()).max().is_some_and(|bits| bits >= prefix.bits())
        };
        let inside = |at: &&IpAddr| prefix.holds(**at) && !longer(at);
        let at = self.endpoints.iter().find(|at| match is_inside {
            true => prefix.holds(**at),
            false => inside(at),
        })?;
        Some(format!("a neighbour's endpoint, {at}, lies in the prefix: frames to it would loop"))
    }

    /// Reason against a route to `prefix` unless this machine's own file names it.
    fn unasked(&self, prefix: &Prefix) -> Option<String> {
        if self.is_inside(prefix) {
            return None;
        }
        if consent::is_public(prefix) {
            return Some("the prefix is public: name it in accept_prefixes if it is meant".into());
        }
        let route = self.routes.iter().find(|route| route.prefix.covers(prefix))?;
        let MachineRoute { prefix: other, device, .. } = route;
        Some(format!(
            "the prefix lies in {other}, which this machine has at {device}: name it in \
             accept_prefixes if it is meant"
        ))
    }
}

/// Fewest bits of a routed part of the shifting prefix: it has at most as many addresses as a node
/// protects.
const INSIDE_BITS_MIN: u8 = 120;

/// The IPv4 network of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Network {
    pub address: Ipv4Addr,
    pub bits: u8,
}

impl Ipv4Network {
    /// True if the kernel routes packets to `other` into the interface.
    pub fn holds(self, other: Ipv4Addr) -> bool {
        let kept = |ip: Ipv4Addr| u32::from(ip) >> 32_u32.saturating_sub(self.bits.into()).min(31);
        kept(self.address) == kept(other)
    }
}

/// Most hosts in one warning.
const NAMED_MAX: usize = 8;

/// Warning about hosts whose IPv4 addresses programs of the node `me` can't reach over Shoal.
pub fn ipv4_unreached(config: &InterfaceConfig, me: &str, hosts: &HostList) -> Option<String> {
    let own = hosts.by_name(me).and_then(|me| me.ipv4);
    let own = own.map(|address| Ipv4Network { address, bits: config.ipv4_bits });
    let beyond = |ipv4: &Ipv4Addr| !own.is_some_and(|own| own.holds(*ipv4));
    let all = hosts.iter().filter_map(|host| Some((host, host.ipv4.filter(beyond)?)));
    let all: Vec<String> = all.map(|(host, ipv4)| format!("{} ({ipv4})", host.name)).collect();
    if all.is_empty() {
        return None;
    }
    let more = match all.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = all[..all.len().min(NAMED_MAX)].join(", ");
    let why = match own {
        None => "this node has no ipv4 in the hosts file".into(),
        Some(own) => format!("some hosts are outside {}/{}", own.address, own.bits),
    };
    Some(format!(
        "[interface] ipv4_bits: {why}, so packets to these IPv4 addresses don't go over Shoal, and \
         names don't resolve to them: {named}{more}"
    ))
}

/// Routes of this machine to other networks.
fn around(own: &str, overlay: &shoal_ip::Prefix) -> Vec<MachineRoute> {
    listed(overlay).map_or_else(Vec::new, |overlay| consent::routes(own, &overlay))
}

/// Networks of this machine's other interfaces.
fn connected(own: &str) -> Vec<(Prefix, IpAddr)> {
    let networks = addresses(own).into_iter();
    let networks = networks.filter_map(|(ip, bits)| Some((Prefix::around(ip, bits)?, ip)));
    networks.filter(|(net, _)| net.misuse().is_none()).collect()
}

/// Alias of each node's interface, by which other nodes on the machine recognise it.
pub const ALIAS: &str = "Shoal";

/// Names of the interfaces of all nodes on this machine.
pub fn of_nodes() -> BTreeSet<String> {
    changes::with_alias(ALIAS).unwrap_or_default()
}

/// Addresses of the interfaces of other nodes on this machine, with the lengths of their prefixes.
pub fn of_other_nodes(own: &str) -> Vec<(IpAddr, u8)> {
    let mut nodes = of_nodes();
    nodes.remove(own);
    if nodes.is_empty() { Vec::new() } else { addresses_where(|name| nodes.contains(name)) }
}

/// Addresses of this machine's other interfaces, with the lengths of their prefixes.
pub fn addresses(own: &str) -> Vec<(IpAddr, u8)> {
    addresses_where(|name| name != own)
}

fn addresses_where(wanted: impl Fn(&str) -> bool) -> Vec<(IpAddr, u8)> {
    let Ok(all) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let others = all.filter(|entry| wanted(&entry.interface_name));
    let network = |entry: nix::ifaddrs::InterfaceAddress| {
        let (address, mask) = (entry.address?, entry.netmask?);
        let (address, bits): (IpAddr, u32) = match (address.as_sockaddr_in(), mask.as_sockaddr_in())
        {
            (Some(address), Some(mask)) => (address.ip().into(), u32::from(mask.ip()).count_ones()),
            _ => {
                let mask = mask.as_sockaddr_in6()?.ip();
                (address.as_sockaddr_in6()?.ip().into(), u128::from(mask).count_ones())
            }
        };
        Some((address, u8::try_from(bits).ok()?))
    };
    others.filter_map(network).collect()
}

/// Decides which networks are in force. `overlay` is the prefix of the network's own addresses,
/// `me` this node's name.
pub fn plan(
    config: &InterfaceConfig,
    me: &str,
    hosts: &HostList,
    overlay: &shoal_ip::Prefix,
    around: &Surroundings,
) -> SubnetPlan {
    let mut plan = SubnetPlan::default();
    let granted = hosts.by_name(me).map_or(&[][..], |me| &me.prefixes);
    let mut wanted = config.served();
    wanted.extend(&around.protected);
    for prefix in wanted {
        if granted.iter().any(|granted| granted.covers(&prefix)) {
            plan.served.push(prefix);
        } else {
            plan.warnings.push(format!(
                "{}: {prefix} was not granted to this node: nothing is forwarded for it",
                if around.is_inside(&prefix) { "[shift] protect" } else { "[interface] prefixes" }
            ));
        }
    }
    let mut room = PROTECTED_MAX;
    for host in hosts.iter().filter(|host| host.name != me) {
        for prefix in host.prefixes.iter().filter(|prefix| config.accepts(prefix)) {
            let objection = match prefix.misuse() {
                Some(why) => Some(why.to_string()),
                None if overlaps(prefix, overlay) => {
                    Some("the prefix overlaps the addresses of this network's own hosts".into())
                }
                None => around.objection(prefix, config.names_part_with(prefix)),
            };
            let objection = objection.or_else(|| {
                let unsaid = !config.names(prefix);
                unsaid.then(|| around.unasked(prefix))?
            });
            let objection = objection.or_else(|| {
                let left = room.checked_sub(around.addresses_inside(prefix));
                room = left.unwrap_or(room);
                let many =
                    || format!("at most {PROTECTED_MAX} addresses of [shift] prefix are routed");
                left.is_none().then(many)
            });
            match objection {
                None => plan.reached.push((*prefix, host.name.clone())),
                Some(why) => plan.warnings.push(format!(
                    "[interface] accept_prefixes: {prefix} behind {:?} is not routed: {why}",
                    host.name
                )),
            }
        }
    }
    plan
}

/// The addresses of the network's own hosts, in the list's type of prefix.
pub fn listed(overlay: &shoal_ip::Prefix) -> Option<Prefix> {
    Prefix::new(overlay.address.into(), overlay.bits)
}

fn overlaps(prefix: &Prefix, overlay: &shoal_ip::Prefix) -> bool {
    listed(overlay).is_some_and(|overlay| overlay.covers(prefix) || prefix.covers(&overlay))
}

/// Warnings about missing kernel settings: forwarding for networks behind this node.
pub fn not_forwarded(served: &[Prefix]) -> Vec<String> {
    let off = |v4: bool, key: &str| {
        let file = format!("/proc/sys/{}", key.replace('.', "/"));
        let needed = served.iter().any(|prefix| prefix.ip().is_ipv4() == v4);
        let set = std::fs::read_to_string(file).is_ok_and(|text| text.trim() != "0");
        (needed && !set).then(|| {
            format!(
                "[interface] prefixes: the kernel does not forward packets: set {key} = 1 with \
                 sysctl"
            )
        })
    };
    let keys = [(true, "net.ipv4.ip_forward"), (false, "net.ipv6.conf.all.forwarding")];
    keys.into_iter().filter_map(|(v4, key)| off(v4, key)).collect()
}

/// Kernel entries for machines behind gateways with addresses of the shifting prefix, if the file
/// names their interface.
pub fn inside(config: &NodeConfig, plan: &SubnetPlan) -> Option<InsideMachines> {
    let (interface, prefix) = config.inside().zip(config.shift_prefix())?;
    let granted = |ip: &Ipv6Addr| plan.served.iter().any(|served| served.holds((*ip).into()));
    let near = config.protected().map(|machine| machine.0).filter(granted).collect();
    let parts = plan.reached.iter().map(|(part, _)| part).filter(|part| prefix.covers(part));
    let far = parts.filter_map(|part| match part.ip() {
        IpAddr::V6(first) => Some((u128::from(first), 1 << (128 - part.bits()).min(8))),
        IpAddr::V4(_) => None,
    });
    let far = far.flat_map(|(first, count): (u128, u128)| first..first + count);
    let far = far.map(Ipv6Addr::from).collect();
    Some(InsideMachines { interface: interface.into(), prefix, near, far })
}

/// Warning about missing kernel settings for proxy answers about machines behind other nodes.
pub fn not_proxied(inside: &InsideMachines) -> Option<String> {
    let set = |interface: &str, key: &str| {
        let file = format!("/proc/sys/net/ipv6/conf/{interface}/{key}");
        std::fs::read_to_string(file).is_ok_and(|text| text.trim() != "0")
    };
    let name = &inside.interface;
    let answers = set(name, "forwarding") && (set(name, "proxy_ndp") || set("all", "proxy_ndp"));
    (!inside.far.is_empty() && !answers).then(|| {
        format!(
            "[shift] inside: the kernel answers no solicitations for machines behind other nodes: \
             set net.ipv6.conf.all.forwarding = 1 and net.ipv6.conf.{name}.proxy_ndp = 1 with \
             sysctl"
        )
    })
}

/// A prefix in the form that the gate uses.
pub fn mapped(prefix: &Prefix) -> (Ipv6Addr, u8) {
    match prefix.ip() {
        IpAddr::V4(ip) => (ip.to_ipv6_mapped(), 96 + prefix.bits()),
        IpAddr::V6(ip) => (ip, prefix.bits()),
    }
}

#[cfg(test)]
mod tests;
