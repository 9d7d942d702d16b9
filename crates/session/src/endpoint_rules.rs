//! Rules for endpoints that a node may send to. Every source of endpoints passes this check.
//!
//! ```text
//! own file ---------------- Configured --+
//! source of a datagram ---- Source ------+
//! router, mirror, STUN ---- View --------+--> EndpointRules::check --> known, or a counted drop
//! answer of DNS ----------- Named -------+
//! member, list, shift ----- Told --------+
//! ```
//!
//! A frame to an address inside the network's own prefixes enters this node's own interface. The
//! node sends it on as a longer frame to that address, until one frame fills the line. Other
//! endpoints that members name could make this node call services of its machine or provider.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use shoal_wire::DropReason;

/// Source of a claim that a node can be reached at an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointOrigin {
    /// This node's own file, or the signed list for a neighbour that the file names.
    Configured,
    /// A datagram that came from the endpoint.
    Source,
    /// A node that sees this node at the endpoint, or a neighbour whose addresses shift under its
    /// prefix.
    View,
    /// The DNS answer for a configured name.
    Named,
    /// A host at this node's own public address, which names private addresses of its machine.
    Near,
    /// A member or the list.
    Told,
}

/// A prefix of mapped addresses: its value, and its length in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MappedPrefix {
    value: u128,
    bits: u32,
}

impl MappedPrefix {
    /// A length beyond that of the family's addresses counts as a single address.
    fn new((ip, bits): (IpAddr, u8)) -> MappedPrefix {
        let bits = match ip {
            IpAddr::V4(_) => 96 + u32::from(bits).min(32),
            IpAddr::V6(_) => u32::from(bits).min(128),
        };
        MappedPrefix { value: kept(as_bits(ip), bits), bits }
    }

    fn holds(&self, address: u128) -> bool {
        kept(address, self.bits) == self.value
    }
}

fn kept(address: u128, bits: u32) -> u128 {
    address & u128::MAX.checked_shl(128 - bits).unwrap_or(0)
}

fn as_bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// Networks of a node and its machine, each as an address and a prefix length in bits.
#[derive(Clone, Debug, Default)]
pub struct NodeNetworks {
    /// Prefixes whose packets the kernel routes to the node's own interface, and the overlay's
    /// prefixes.
    pub inside: Vec<(IpAddr, u8)>,
    /// Networks behind this node, for which it forwards packets.
    pub served: Vec<(IpAddr, u8)>,
    /// Addresses of the machine's other interfaces.
    pub connected: Vec<(IpAddr, u8)>,
    /// Addresses of interfaces of other nodes on this machine, with their networks' prefixes.
    pub nested: Vec<(IpAddr, u8)>,
    /// Addresses at which the node's sockets are bound, and configured endpoints of neighbours.
    pub configured: Vec<IpAddr>,
}

/// Endpoint rules of one node. Without networks, only endpoints that no node may use are refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointRules {
    inside: Vec<MappedPrefix>,
    /// Networks of the machine's other interfaces with longer prefixes, which the kernel prefers.
    nearer: Vec<MappedPrefix>,
    served: Vec<MappedPrefix>,
    /// Networks of other nodes on this machine without a configured neighbour. Two links, each
    /// inside the other node's network, would pass each frame back and forth without end.
    nested: Vec<MappedPrefix>,
    own: Vec<u128>,
    /// True if this node's own configuration uses the loopback, as in a network on one machine.
    loopback: bool,
}

impl EndpointRules {
    /// Rules of a node with these networks.
    pub fn new(networks: &NodeNetworks) -> EndpointRules {
        let nets =
            |of: &[(IpAddr, u8)]| of.iter().copied().map(MappedPrefix::new).collect::<Vec<_>>();
        let (inside, mut nearer) = (nets(&networks.inside), nets(&networks.connected));
        nearer
            .retain(|net| inside.iter().any(|wide| wide.bits < net.bits && wide.holds(net.value)));
        let is_own = |ip: &IpAddr| !ip.is_loopback() && !is_link_local(*ip);
        let mut nested = nets(&networks.nested);
        nested.retain(|net| !networks.configured.iter().any(|ip| net.holds(as_bits(*ip))));
        let own = networks.connected.iter().map(|(ip, _)| *ip).filter(is_own);
        EndpointRules {
            inside,
            nearer,
            served: nets(&networks.served),
            nested,
            own: own.map(as_bits).collect(),
            loopback: networks.configured.iter().any(IpAddr::is_loopback),
        }
    }

    /// True if frames to the address would enter this node's own interface.
    pub fn is_inside(&self, ip: IpAddr) -> bool {
        let address = as_bits(ip);
        let widest = self.inside.iter().filter(|net| net.holds(address)).map(|net| net.bits).max();
        widest.is_some_and(|bits| {
            !self.nearer.iter().any(|near| near.bits > bits && near.holds(address))
        })
    }

    /// Checks if this node may send to an endpoint from this origin.
    ///
    /// # Errors
    ///
    /// `endpoint_inside` for an address that leads into this node's own interface.
    /// `endpoint_refused` for an address that can't belong to another machine. The less the origin
    /// is trusted, the more addresses are refused.
    pub fn check(&self, at: SocketAddr, origin: EndpointOrigin) -> Result<(), DropReason> {
        let ip = at.ip().to_canonical();
        if self.is_inside(ip) {
            return Err(DropReason::EndpointInside);
        }
        let scoped = matches!(at, SocketAddr::V6(v6) if v6.scope_id() != 0);
        let holds = |nets: &[MappedPrefix]| nets.iter().any(|net| net.holds(as_bits(ip)));
        let is_own = || self.own.contains(&as_bits(ip));
        let refused = at.port() == 0
            || !is_machine(ip)
            || match origin {
                EndpointOrigin::Configured => false,
                _ if holds(&self.nested) => true,
                EndpointOrigin::Source => is_metadata(ip),
                EndpointOrigin::View | EndpointOrigin::Named => self.is_local(ip, scoped),
                EndpointOrigin::Near => self.is_local(ip, scoped) || is_own(),
                EndpointOrigin::Told => {
                    self.is_local(ip, scoped) || is_own() || holds(&self.served)
                }
            };
        if refused { Err(DropReason::EndpointRefused) } else { Ok(()) }
    }

    /// True if the address means something else on each machine, so that others can't know it.
    fn is_local(&self, ip: IpAddr, scoped: bool) -> bool {
        let hidden = match ip {
            IpAddr::V4(_) => None,
            IpAddr::V6(ip) => embedded(ip).map(IpAddr::V4),
        };
        (ip.is_loopback() && !self.loopback)
            || (is_link_local(ip) && !scoped)
            || is_metadata(ip)
            || hidden.is_some_and(|ip| {
                ip.is_loopback() || is_link_local(ip) || is_metadata(ip) || !is_machine(ip)
            })
    }
}

/// True if the address can belong to a single machine.
fn is_machine(ip: IpAddr) -> bool {
    match ip {
        // "This network" (RFC 1122), multicast, and reserved addresses up to the broadcast.
        IpAddr::V4(ip) => !matches!(ip.octets()[0], 0 | 224..),
        IpAddr::V6(ip) => !ip.is_unspecified() && !ip.is_multicast(),
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Addresses at which cloud providers give a machine its own secrets.
const METADATA: [IpAddr; 10] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)),
];

fn is_metadata(ip: IpAddr) -> bool {
    METADATA.contains(&ip)
}

/// IPv4 address inside an IPv6 address that a translator would unpack. Covered are NAT64's
/// well-known prefix (RFC 6052) and the last 32 bits of its local prefixes (RFC 8215). Also covered
/// are 6to4 (RFC 3056) and an address after 96 zero bits (RFC 4291 section 2.5.5.1).
fn embedded(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = ip.segments();
    let of = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match [a, b, c, d, e, f] {
        [0x64, 0xff9b, 0, 0, 0, 0] | [0x64, 0xff9b, 1, ..] => Some(of(g, h)),
        [0x2002, ..] => Some(of(b, c)),
        [0, 0, 0, 0, 0, 0] if !ip.is_loopback() => Some(of(g, h)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use EndpointOrigin::{Configured, Named, Near, Source, Told, View};

    fn rules() -> EndpointRules {
        let net = |text: &str| {
            let (ip, bits) = text.split_once('/').unwrap();
            (ip.parse::<IpAddr>().unwrap(), bits.parse::<u8>().unwrap())
        };
        let nets = |all: &[&str]| all.iter().map(|text| net(text)).collect::<Vec<_>>();
        EndpointRules::new(&NodeNetworks {
            inside: nets(&["fd11:2233:4455::/48", "10.98.0.7/16", "172.20.0.0/16"]),
            served: nets(&["192.168.7.0/24"]),
            connected: nets(&["192.0.2.9/24", "172.20.5.9/24", "127.0.0.1/8"]),
            configured: vec!["192.0.2.9".parse().unwrap()],
            ..NodeNetworks::default()
        })
    }

    fn check(rules: &EndpointRules, at: &str, origin: EndpointOrigin) -> &'static str {
        let at = at.parse().unwrap_or_else(|_| SocketAddr::new(at.parse().unwrap(), 7_400));
        rules.check(at, origin).map_or_else(DropReason::label, |()| "ok")
    }

    #[test]
    fn no_origin_leads_into_the_nodes_own_interface() {
        let rules = rules();
        for at in ["fd11:2233:4455::7", "10.98.200.1", "::ffff:10.98.0.1", "172.20.4.1"] {
            for origin in [Configured, Source, View, Named, Near, Told] {
                assert_eq!(check(&rules, at, origin), "endpoint_inside", "{at} {origin:?}");
            }
        }
        // The kernel prefers the longer prefix of another interface.
        assert_eq!(check(&rules, "172.20.5.1", Told), "ok");
        for at in ["fd11:2233:4456::7", "10.99.0.1", "2001:db8::1", "198.51.100.1"] {
            assert_eq!(check(&rules, at, Told), "ok", "{at}");
        }
    }

    #[test]
    fn others_can_name_no_address_of_this_machine_or_its_providers() {
        let (rules, no) = (rules(), "endpoint_refused");
        for at in [
            "127.0.0.1:9999",
            "127.8.8.8",
            "::1",
            "::ffff:127.0.0.1",
            "169.254.169.254",
            "169.254.7.7",
            "fe80::1",
            "100.100.100.200",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fd00:42::42",
            "64:ff9b::7f00:1",
            "64:ff9b:1:abcd::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::1",
            "::7f00:1",
            "192.0.2.9",
            "192.168.7.1",
        ] {
            assert_eq!(check(&rules, at, Told), no, "{at}");
        }
        for at in ["0.0.0.0", "0.1.2.3", "255.255.255.255", "240.0.0.1", "224.0.0.1", "::"] {
            for origin in [Configured, Source, View, Named, Near, Told] {
                assert_eq!(check(&rules, at, origin), no, "{at} {origin:?}");
            }
        }
        assert_eq!(check(&rules, "192.0.2.1:0", Configured), no);
        for at in ["10.0.0.1", "192.168.8.1", "fd77::1", "64:ff9b::c000:201", "[fe80::1%2]:7400"] {
            assert_eq!(check(&rules, at, Told), "ok", "{at}");
        }
    }

    #[test]
    fn an_origin_is_asked_no_more_than_it_can_know() {
        let (rules, no) = (rules(), "endpoint_refused");
        for at in ["127.0.0.1", "fe80::1", "169.254.7.7", "192.0.2.9", "192.168.7.1"] {
            assert_eq!(check(&rules, at, Configured), "ok", "{at}");
            assert_eq!(check(&rules, at, Source), "ok", "{at}");
        }
        assert_eq!(check(&rules, "169.254.169.254", Source), no);
        assert_eq!(check(&rules, "192.0.2.9", View), "ok", "the node has no translator");
        assert_eq!(check(&rules, "192.168.7.1", Near), "ok", "a machine of the same network");
        assert_eq!([check(&rules, "127.0.0.1", View), check(&rules, "::1", Named)], [no; 2]);
    }

    #[test]
    fn no_link_goes_through_the_network_of_another_node_here_unless_it_is_configured() {
        let nested = vec![("fd99::7".parse().unwrap(), 48), ("10.50.0.7".parse().unwrap(), 16)];
        let networks = NodeNetworks { nested, ..NodeNetworks::default() };
        let rules = EndpointRules::new(&networks);
        for origin in [Source, View, Named, Near, Told] {
            for at in ["fd99::1", "10.50.200.1", "::ffff:10.50.0.1"] {
                assert_eq!(check(&rules, at, origin), "endpoint_refused", "{at} {origin:?}");
            }
            assert_eq!(check(&rules, "fd98::1", origin), "ok");
        }
        assert_eq!(check(&rules, "fd99::1", Configured), "ok");
        let configured = vec!["fd99::1".parse().unwrap()];
        let rules = EndpointRules::new(&NodeNetworks { configured, ..networks });
        assert_eq!(check(&rules, "fd99::1", Source), "ok", "the configured neighbour answers");
    }

    #[test]
    fn a_network_on_one_machine_speaks_over_the_loopback() {
        let configured = vec!["127.77.0.1".parse().unwrap()];
        let rules = EndpointRules::new(&NodeNetworks { configured, ..NodeNetworks::default() });
        for origin in [Configured, Source, View, Named, Near, Told] {
            assert_eq!(check(&rules, "127.77.0.2", origin), "ok", "{origin:?}");
        }
        assert_eq!(check(&rules, "169.254.169.254", Told), "endpoint_refused");
    }
}
