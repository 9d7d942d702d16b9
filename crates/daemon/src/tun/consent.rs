//! Decides which addresses of a network the interface may take without the owner's consent.
//!
//! In: addresses from a list that somebody else signed, this machine's routes, and the addresses
//! that its owner accepted. Out: a reason for a refusal.
//!
//! ```text
//! list: 8.0.0.0/8       public, and not in accept_ipv4       --> refused
//! list: 192.168.1.0/24  eth0 has a route to 192.168.0.0/16   --> refused, unless accepted
//! list: 10.9.0.0/24     private, and not used here           --> taken
//! ```

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::bail;
use nix::ifaddrs::getifaddrs;
use shoal_directory::Prefix;

use crate::config::{InterfaceConfig, NodeSetup};
use crate::membership::authority::AuthorityState;
use crate::tun::subnets;

/// Least length of a route's prefix, in bits. Shorter ones count as default routes.
const BITS_MIN: u8 = 8;
/// Flag of a route over a gateway (`RTF_GATEWAY` in the kernel's `route.h`).
const GATEWAY: u32 = 2;
/// Start of a refusal.
pub const DECLINED: &str = "[interface]: no IPv4 address of the network is taken";
/// Most bytes read of one of the kernel's tables: some 60,000 routes.
const TABLE_MAX: u64 = 8 << 20;

/// Prefixes of addresses that no public machine has (IANA's special-purpose registries).
const NOT_PUBLIC: [&str; 13] = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "198.18.0.0/15",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "fc00::/7",
    "2001:db8::/32",
    "2001:2::/48",
    "3fff::/20",
];

/// True if a prefix holds addresses of machines on the Internet.
pub fn is_public(prefix: &Prefix) -> bool {
    !NOT_PUBLIC.iter().any(|text| text.parse().is_ok_and(|net: Prefix| net.covers(prefix)))
}

/// A part of the address space that this machine reaches without Shoal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineRoute {
    pub prefix: Prefix,
    pub device: String,
    has_gateway: bool,
}

#[cfg(test)]
impl MachineRoute {
    /// A route without a gateway.
    pub(crate) fn of_test(prefix: &str, device: &str) -> MachineRoute {
        MachineRoute { prefix: prefix.parse().unwrap(), device: device.into(), has_gateway: false }
    }
}

/// Routes and addresses of this machine. Left out are those of the interface `own`, of the
/// loopback, and of other nodes whose network has the addresses `overlay`.
pub fn routes(own: &str, overlay: &Prefix) -> Vec<MachineRoute> {
    let mut all: Vec<MachineRoute> = table("route").lines().filter_map(ipv4_route).collect();
    all.extend(table("ipv6_route").lines().filter_map(ipv6_route));
    all.extend(addresses());
    ordinary(all, own, overlay)
}

/// One of the kernel's tables as text, from this thread's network namespace.
fn table(file: &str) -> String {
    let mut text = Vec::new();
    let opened = File::open(format!("/proc/thread-self/net/{file}"));
    // A machine without the table, such as one without IPv6, has no such routes.
    let _read = opened.and_then(|file| file.take(TABLE_MAX).read_to_end(&mut text));
    String::from_utf8_lossy(&text).into_owned()
}

/// Removes default and local routes, and those of this network's nodes.
fn ordinary(mut all: Vec<MachineRoute>, own: &str, overlay: &Prefix) -> Vec<MachineRoute> {
    let is_node = |route: &&MachineRoute| route.prefix == *overlay && !route.has_gateway;
    let nodes: Vec<String> = all.iter().filter(is_node).map(|r| r.device.clone()).collect();
    all.retain(|route| {
        let MachineRoute { prefix, device, .. } = route;
        let is_local = device == "lo" || device == "*" || prefix.misuse().is_some();
        !is_local && prefix.bits() >= BITS_MIN && device != own && !nodes.contains(device)
    });
    all
}

/// Addresses of this machine's interfaces, each as a prefix of one address.
fn addresses() -> Vec<MachineRoute> {
    let Ok(all) = getifaddrs() else { return Vec::new() };
    let one = |entry: nix::ifaddrs::InterfaceAddress| {
        let address = entry.address?;
        let four = address.as_sockaddr_in().map(|at| IpAddr::from(at.ip()));
        let ip = four.or_else(|| address.as_sockaddr_in6().map(|at| at.ip().into()))?;
        let prefix = Prefix::new(ip, if ip.is_ipv4() { 32 } else { 128 })?;
        Some(MachineRoute { prefix, device: entry.interface_name, has_gateway: false })
    };
    all.filter_map(one).collect()
}

/// Parses a line of the kernel's table of IPv4 routes.
fn ipv4_route(line: &str) -> Option<MachineRoute> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| u32::from_str_radix(words.get(at)?, 16).ok();
    // The table prints addresses in the machine's byte order.
    let address = |at: usize| number(at).map(|raw| Ipv4Addr::from(raw.to_ne_bytes()));
    let (network, mask, flags) = (address(1)?, address(7)?, number(3)?);
    let bits = u32::from(mask).count_ones() as u8;
    let prefix = Prefix::new(network.into(), bits)?;
    Some(MachineRoute { prefix, device: words[0].into(), has_gateway: flags & GATEWAY != 0 })
}

/// Parses a line of the kernel's table of IPv6 routes.
fn ipv6_route(line: &str) -> Option<MachineRoute> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let network = u128::from_str_radix(words.first()?, 16).ok()?;
    let bits = u8::from_str_radix(words.get(1)?, 16).ok()?;
    let flags = u32::from_str_radix(words.get(8)?, 16).ok()?;
    let prefix = Prefix::new(Ipv6Addr::from(network).into(), bits)?;
    let device = words.get(9)?.to_string();
    Some(MachineRoute { prefix, device, has_gateway: flags & GATEWAY != 0 })
}

/// Reason why the interface must not take `prefix`: it is public, or one of `routes` leads to a
/// part of it.
pub fn objection(prefix: &Prefix, routes: &[MachineRoute]) -> Option<String> {
    if is_public(prefix) {
        return Some(format!(
            "{prefix} is public: this machine would send packets for the Internet into the network"
        ));
    }
    let overlaps =
        |route: &&MachineRoute| route.prefix.covers(prefix) || prefix.covers(&route.prefix);
    routes.iter().find(overlaps).map(|MachineRoute { prefix: other, device, .. }| {
        format!("{prefix} overlaps {other}, which this machine has at {device}")
    })
}

/// True if the file accepts these IPv4 addresses, whatever the machine uses them for.
pub fn is_named(config: &InterfaceConfig, prefix: &Prefix) -> bool {
    config.accept_ipv4.iter().any(|accepted| accepted.0.0.covers(prefix))
}

/// Refusal of the IPv4 addresses `prefix` from an authority's list, with advice. `overlay` holds
/// the network's own IPv6 addresses.
fn refusal(config: &InterfaceConfig, prefix: &Prefix, overlay: &Prefix) -> Option<String> {
    if is_named(config, prefix) {
        return None;
    }
    let why = objection(prefix, &routes(config.name.as_str(), overlay))?;
    Some(format!(
        "{DECLINED}: {why}; if that is wanted, set accept_ipv4 = [\"{prefix}\"] in [interface], \
         and restart the node"
    ))
}

/// Checks that this machine does not use the network's own IPv6 addresses.
fn check_overlay(config: &InterfaceConfig, overlay: &Prefix) -> anyhow::Result<()> {
    match objection(overlay, &routes(config.name.as_str(), overlay)) {
        None => Ok(()),
        Some(why) => bail!(
            "[interface]: the network's own addresses are in use on this machine: {why}; join \
             another network, or run the node without [interface] (`shoal up --no-interface`)"
        ),
    }
}

impl NodeSetup {
    /// The IPv4 address that the interface takes, and the reason if it refuses the one from the
    /// authority's list.
    pub fn ipv4(&self) -> (Option<Ipv4Addr>, Option<String>) {
        let own = || self.hosts.by_key(&self.identity.public()).and_then(|own| own.ipv4);
        if self.authority.is_none() {
            return (own(), None);
        }
        let listed = self.authority.as_ref().and_then(AuthorityState::own_ipv4);
        let Some((address, section)) = listed.zip(self.config.interface.as_ref()) else {
            return (None, None);
        };
        let net = Prefix::around(address.into(), section.ipv4_bits);
        let both = net.zip(subnets::listed(&self.overlay()));
        let refusal = both.and_then(|(net, overlay)| refusal(section, &net, &overlay));
        (refusal.is_none().then_some(address), refusal)
    }

    /// Refuses an authority's network if this machine uses its IPv6 addresses for another network.
    pub fn check_overlay(&self) -> anyhow::Result<()> {
        let Some(section) = self.config.interface.as_ref().filter(|_| self.authority.is_some())
        else {
            return Ok(());
        };
        let overlay = subnets::listed(&self.overlay());
        overlay.map_or(Ok(()), |overlay| check_overlay(section, &overlay))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    fn route(net: &str, device: &str) -> MachineRoute {
        MachineRoute::of_test(net, device)
    }

    #[test]
    fn public_and_used_addresses_are_not_taken() {
        let here = [route("192.168.1.0/24", "eth0"), route("10.20.0.0/16", "eth0")];
        let refused = |net: &str| objection(&prefix(net), &here);
        for net in ["8.0.0.0/8", "0.0.0.0/1", "172.0.0.0/8", "2000::/3", "1.1.1.1", "fa00::/7"] {
            assert!(refused(net).is_some_and(|why| why.contains("is public")), "{net}");
        }
        for net in ["192.168.0.0/16", "192.168.1.128/25", "10.20.7.0/24", "10.0.0.0/8"] {
            assert!(refused(net).is_some_and(|why| why.contains("at eth0")), "{net}");
        }
        for net in ["10.9.0.0/24", "192.168.2.0/24", "100.64.0.0/16", "fd12:3456:789a::/48"] {
            assert_eq!(refused(net), None, "{net}");
        }
    }

    #[test]
    fn the_kernels_tables_are_read() {
        let four = "eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0";
        if cfg!(target_endian = "little") {
            assert_eq!(ipv4_route(four), Some(route("192.168.1.0/24", "eth0")));
        }
        let six = "fd420000000000000000000000000000 40 00000000000000000000000000000000 00 \
                   00000000000000000000000000000000 00000100 00000001 00000000 00000001 eth0";
        assert_eq!(ipv6_route(six), Some(route("fd42::/64", "eth0")));
        assert_eq!(ipv4_route("Iface\tDestination\tGateway\tFlags"), None);
        assert_eq!((ipv6_route(""), ipv4_route("")), (None, None));
    }

    #[test]
    fn default_routes_and_other_nodes_of_the_network_do_not_count() {
        let overlay = prefix("fd77:1:2::/48");
        let mut far = route("fd77:1:2::/48", "eth1");
        far.has_gateway = true;
        let all = vec![
            route("0.0.0.0/1", "tun0"),
            route("10.9.0.0/24", "shoal0"),
            route("fd77:1:2::/48", "shoal0"),
            route("10.8.0.0/24", "shoal1"),
            route("127.0.0.0/8", "lo"),
            route("fe80::/64", "eth0"),
            far.clone(),
            route("10.9.7.0/24", "eth0"),
        ];
        let kept = ordinary(all, "shoal1", &overlay);
        assert_eq!(kept, [far, route("10.9.7.0/24", "eth0")]);
    }
}
