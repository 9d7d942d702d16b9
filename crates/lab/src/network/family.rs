//! IPv4 or IPv6: the addresses of nodes and links, and the sizes of headers.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

/// Port that every node of the namespaces kind listens on.
const PORT: u16 = 7400;
/// Most nodes, and most links, of one network; and most concurrent runs of the loopback kind over
/// IPv4. Each must fit an octet of an address, or a block of ports.
pub const COUNT_MAX: usize = 99;
/// First port of the loopback kind over IPv6, which has one address only ...
const PORTS_FROM: u16 = 10_000;
/// ... and the ports of one run: its nodes', and two for each of its links.
const PORTS: u16 = 300;
/// Most of these runs at once: their ports stay below those that the kernel gives out (32768).
const PORT_BLOCKS: u16 = 75;

/// The family of the addresses that links have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4: a /30 per link.
    #[default]
    Ipv4,
    /// IPv6: a /64 per link.
    Ipv6,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Ipv4 => "IPv4",
            Family::Ipv6 => "IPv6",
        })
    }
}

impl Family {
    /// Bytes of Ethernet's, IP's and UDP's headers, as `tc` counts them.
    pub fn headers_bytes(self) -> u64 {
        match self {
            Family::Ipv4 => 14 + 20 + 8,
            Family::Ipv6 => 14 + 40 + 8,
        }
    }

    /// Bytes on the wire of a packet that carries a full frame.
    pub fn packet_bytes(self) -> u64 {
        shoal_wire::SizeClass::Full.frame_len() as u64 + self.headers_bytes()
    }

    /// Payload of a full TCP segment as a share of its packet on the wire: 1,500 bytes of IP, with
    /// timestamps.
    pub fn tcp_share(self) -> f64 {
        match self {
            Family::Ipv4 => 1_448.0 / 1_514.0,
            Family::Ipv6 => 1_428.0 / 1_514.0,
        }
    }

    /// Length of the prefix that both ends of a link share.
    pub fn prefix_len(self) -> u8 {
        match self {
            Family::Ipv4 => 30,
            Family::Ipv6 => 64,
        }
    }

    /// Address of one end (0 or 1) of a link between namespaces.
    pub fn address(self, link: usize, end: usize) -> IpAddr {
        match self {
            Family::Ipv4 => Ipv4Addr::new(10, 77, link as u8, 1 + end as u8).into(),
            Family::Ipv6 => {
                Ipv6Addr::new(0xfd77, 0, 0, link as u16, 0, 0, 0, 1 + end as u16).into()
            }
        }
    }

    /// Where the router next to an end is reached, on a link that has one.
    pub(super) fn router(self, link: usize, end: usize) -> IpAddr {
        match self {
            Family::Ipv4 => self.address(link, end),
            Family::Ipv6 => {
                Ipv6Addr::new(0xfd77, 0, 1 + end as u16, link as u16, 0, 0, 0, 0xfe).into()
            }
        }
    }

    /// The address with which a link's prefix begins.
    pub fn prefix(self, link: usize) -> IpAddr {
        match self.address(link, 0) {
            IpAddr::V4(first) => Ipv4Addr::from(u32::from(first) - 1).into(),
            IpAddr::V6(first) => Ipv6Addr::from(u128::from(first) - 1).into(),
        }
    }

    /// Where the node at one end of a link between namespaces is reached.
    pub(super) fn at(self, link: usize, end: usize) -> SocketAddr {
        (self.address(link, end), PORT).into()
    }

    /// Where nodes in namespaces listen.
    pub(super) fn anywhere(self) -> SocketAddr {
        match self {
            Family::Ipv4 => (Ipv4Addr::UNSPECIFIED, PORT).into(),
            Family::Ipv6 => (Ipv6Addr::UNSPECIFIED, PORT).into(),
        }
    }

    /// The blocks of loopback addresses, one for each run of the loopback kind.
    pub(super) fn blocks(self) -> impl Iterator<Item = Block> {
        let count = match self {
            Family::Ipv4 => COUNT_MAX as u16,
            Family::Ipv6 => PORT_BLOCKS,
        };
        (0..count).map(move |run| Block { family: self, run })
    }
}

/// The loopback addresses and ports of one run: addresses of 127.77.0.0/16 over IPv4, ports of ::1
/// over IPv6.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    family: Family,
    run: u16,
}

impl Block {
    /// Where a node listens.
    pub fn node(self, node: usize) -> SocketAddr {
        match self.family {
            Family::Ipv4 => self.v4(1 + node, 0),
            Family::Ipv6 => self.v6(node),
        }
    }

    /// Where a forwarder listens, facing one end (0 or 1) of its link.
    pub fn facing(self, link: usize, end: usize) -> SocketAddr {
        match self.family {
            Family::Ipv4 => self.v4(101 + link, end),
            Family::Ipv6 => self.v6(100 + 2 * link + end),
        }
    }

    /// All addresses that a network of so many nodes and links uses. Forwarders come first, since
    /// they are bound before any node: a run that tries a block in this order fails before it takes
    /// an address where another run's nodes are about to listen.
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
        for family in [Family::Ipv4, Family::Ipv6] {
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
        let four = (Family::Ipv4.prefix(3).to_string(), Family::Ipv4.address(3, 1).to_string());
        assert_eq!(four, ("10.77.3.0".into(), "10.77.3.2".into()));
        let six = (Family::Ipv6.prefix(3).to_string(), Family::Ipv6.address(3, 1).to_string());
        assert_eq!(six, ("fd77:0:0:3::".into(), "fd77:0:0:3::2".into()));
        assert_eq!([1_482, 1_502], [Family::Ipv4, Family::Ipv6].map(Family::packet_bytes));
    }
}
