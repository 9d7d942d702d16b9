//! IPv4 or IPv6: the addresses of nodes and links, and the sizes of headers.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

/// Port of every node in a namespace.
const PORT: u16 = 7400;
/// Limit of nodes, and of links, in one network, and of concurrent IPv4 runs over the loopback.
/// Each must fit an octet of an address, or a block of ports.
pub const COUNT_MAX: usize = 99;
/// First port over the IPv6 loopback, which has only one address.
const PORTS_FROM: u16 = 10_000;
/// Number of ports of one run: one per node, and two per link.
const PORTS: u16 = 300;
/// Limit of concurrent IPv6 runs over the loopback. Their ports stay below the kernel's ephemeral
/// ports (32768).
const PORT_BLOCKS: u16 = 75;

/// Address family of links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IpFamily {
    /// IPv4: a /30 per link.
    #[default]
    Ipv4,
    /// IPv6: a /64 per link.
    Ipv6,
}

impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IpFamily::Ipv4 => "IPv4",
            IpFamily::Ipv6 => "IPv6",
        })
    }
}

impl IpFamily {
    /// Bytes of the Ethernet, IP and UDP headers, as `tc` counts them.
    pub fn headers_bytes(self) -> u64 {
        match self {
            IpFamily::Ipv4 => 14 + 20 + 8,
            IpFamily::Ipv6 => 14 + 40 + 8,
        }
    }

    /// Bytes on the wire of a packet with a full frame.
    pub fn packet_bytes(self) -> u64 {
        shoal_wire::SizeClass::Full.frame_len() as u64 + self.headers_bytes()
    }

    /// Payload of a full TCP segment as a share of its packet on the wire: 1,500 bytes of IP, with
    /// timestamps.
    pub fn tcp_share(self) -> f64 {
        match self {
            IpFamily::Ipv4 => 1_448.0 / 1_514.0,
            IpFamily::Ipv6 => 1_428.0 / 1_514.0,
        }
    }

    /// Length of the prefix that both ends of a link share.
    pub fn prefix_len(self) -> u8 {
        match self {
            IpFamily::Ipv4 => 30,
            IpFamily::Ipv6 => 64,
        }
    }

    /// Address of one end (0 or 1) of a link between namespaces.
    pub fn address(self, link: usize, end: usize) -> IpAddr {
        match self {
            IpFamily::Ipv4 => Ipv4Addr::new(10, 77, link as u8, 1 + end as u8).into(),
            IpFamily::Ipv6 => {
                Ipv6Addr::new(0xfd77, 0, 0, link as u16, 0, 0, 0, 1 + end as u16).into()
            }
        }
    }

    /// Address of the router next to an end, on a link through routers.
    pub(super) fn router(self, link: usize, end: usize) -> IpAddr {
        match self {
            IpFamily::Ipv4 => self.address(link, end),
            IpFamily::Ipv6 => {
                Ipv6Addr::new(0xfd77, 0, 1 + end as u16, link as u16, 0, 0, 0, 0xfe).into()
            }
        }
    }

    /// First address of a link's prefix.
    pub fn prefix(self, link: usize) -> IpAddr {
        match self.address(link, 0) {
            IpAddr::V4(first) => Ipv4Addr::from(u32::from(first) - 1).into(),
            IpAddr::V6(first) => Ipv6Addr::from(u128::from(first) - 1).into(),
        }
    }

    /// Address of the node at one end of a link between namespaces.
    pub(super) fn at(self, link: usize, end: usize) -> SocketAddr {
        (self.address(link, end), PORT).into()
    }

    /// Listen address of nodes in namespaces.
    pub(super) fn anywhere(self) -> SocketAddr {
        match self {
            IpFamily::Ipv4 => (Ipv4Addr::UNSPECIFIED, PORT).into(),
            IpFamily::Ipv6 => (Ipv6Addr::UNSPECIFIED, PORT).into(),
        }
    }

    /// The blocks of loopback addresses, one for each run over the loopback.
    pub(super) fn blocks(self) -> impl Iterator<Item = Block> {
        let count = match self {
            IpFamily::Ipv4 => COUNT_MAX as u16,
            IpFamily::Ipv6 => PORT_BLOCKS,
        };
        (0..count).map(move |run| Block { family: self, run })
    }
}

/// Loopback addresses and ports of one run: addresses of 127.77.0.0/16 over IPv4, ports of ::1 over
/// IPv6.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    family: IpFamily,
    run: u16,
}

impl Block {
    /// Address at which a node listens.
    pub fn node(self, node: usize) -> SocketAddr {
        match self.family {
            IpFamily::Ipv4 => self.v4(1 + node, 0),
            IpFamily::Ipv6 => self.v6(node),
        }
    }

    /// Address of a forwarder that faces one end (0 or 1) of its link.
    pub fn facing(self, link: usize, end: usize) -> SocketAddr {
        match self.family {
            IpFamily::Ipv4 => self.v4(101 + link, end),
            IpFamily::Ipv6 => self.v6(100 + 2 * link + end),
        }
    }

    /// All addresses of a network with this number of nodes and links. Forwarders come first, since
    /// they are bound before any node. A run that tries the addresses in this order fails before it
    /// binds an address at which another run's nodes are about to listen.
    pub fn all(self, nodes: usize, links: usize) -> impl Iterator<Item = SocketAddr> {
        let facing = (0..links).flat_map(move |link| [0, 1].map(|end| self.facing(link, end)));
        facing.chain((0..nodes).map(move |node| self.node(node)))
    }

    fn v4(self, last: usize, port: usize) -> SocketAddr {
        (Ipv4Addr::new(127, 77, self.run as u8, last as u8), PORT + port as u16).into()
    }

    fn v6(self, port: usize) -> SocketAddr {
        (Ipv6Addr::LOCALHOST, PORTS_FROM + self.run * PORTS + port as u16).into()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_of_a_loopback_runs_places_are_the_same() {
        for family in [IpFamily::Ipv4, IpFamily::Ipv6] {
            let mut seen = BTreeSet::new();
            for block in family.blocks() {
                for at in block.all(COUNT_MAX, COUNT_MAX) {
                    assert!(at.ip().is_loopback() && at.port() < 32_768, "{at}");
                    assert!(seen.insert(at), "{at} twice");
                }
            }
        }
    }

    #[test]
    fn a_links_ends_are_in_its_prefix_and_no_other() {
        let four = (IpFamily::Ipv4.prefix(3).to_string(), IpFamily::Ipv4.address(3, 1).to_string());
        assert_eq!(four, ("10.77.3.0".into(), "10.77.3.2".into()));
        let six = (IpFamily::Ipv6.prefix(3).to_string(), IpFamily::Ipv6.address(3, 1).to_string());
        assert_eq!(six, ("fd77:0:0:3::".into(), "fd77:0:0:3::2".into()));
        assert_eq!([1_482, 1_502], [IpFamily::Ipv4, IpFamily::Ipv6].map(IpFamily::packet_bytes));
    }
}
