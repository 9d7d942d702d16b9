//! Policy rules by source address, for two nodes of one network on one machine.
//!
//! Both interfaces have a route to the whole network, and the kernel uses one of the two for all
//! packets. Packets from the other node's address would then leave by the wrong node, which drops
//! them (`ip_spoofed_source`). Each address therefore gets a routing table with the network's route
//! by its own interface. A rule makes the kernel search that table first for packets from the
//! address.
//!
//! The node that starts last sets the rules of both. A route ends with its interface. An abandoned
//! rule leads to an empty table, and the kernel continues with the next rule.

use std::net::IpAddr;

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use rtnetlink::packet_route::route::RouteScope;
use rtnetlink::packet_route::rule::RuleAction;
use rtnetlink::{Handle, RouteMessageBuilder};
use shoal_directory::Prefix;

/// Priority of the rules: before the main table (32,766), and behind VPNs that take all packets.
const PRIORITY: u32 = 32_500;
/// First number of the tables. They use 65,536 numbers.
const TABLES: u32 = 0x5368_0000;

/// An address of an interface of this machine, with its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LocalAddress {
    address: IpAddr,
    network: Prefix,
    index: u32,
}

/// Sets rules for this node's addresses and for those of other interfaces in the same networks.
/// Without such interfaces nothing changes. A refusal is logged: the node runs without rules.
pub(super) async fn add(handle: &Handle, index: u32, own: &[(IpAddr, u8)]) {
    let own = own.iter().filter_map(|&(address, bits)| place(address, bits, index));
    for place in to_set(&own.collect::<Vec<_>>(), &all()) {
        if let Err(e) = set(handle, &place).await {
            tracing::warn!(
                "[interface]: no rule by source ({e}): if two nodes of one network run on this \
                 machine, one of them can't be reached at some of its addresses"
            );
        }
    }
}

/// Addresses that need rules: those of one network at two interfaces.
fn to_set(own: &[LocalAddress], all: &[LocalAddress]) -> Vec<LocalAddress> {
    let mut places = Vec::new();
    for own in own {
        let others = all.iter().filter(|other| {
            other.network == own.network && other.index != own.index && other.address != own.address
        });
        let before = places.len();
        places.extend(others.copied());
        if places.len() > before {
            places.push(*own);
        }
    }
    places
}

fn place(address: IpAddr, bits: u8, index: u32) -> Option<LocalAddress> {
    Some(LocalAddress { address, network: Prefix::around(address, bits)?, index })
}

/// The addresses of all interfaces.
fn all() -> Vec<LocalAddress> {
    let Ok(all) = getifaddrs() else { return Vec::new() };
    let places = all.filter_map(|found| {
        let (address, mask) = (found.address?, found.netmask?);
        let ipv4 = || Some((address.as_sockaddr_in()?.ip(), mask.as_sockaddr_in()?.ip()));
        let ipv6 = || Some((address.as_sockaddr_in6()?.ip(), mask.as_sockaddr_in6()?.ip()));
        let (address, bits) = match (ipv4(), ipv6()) {
            (Some((ip, mask)), _) => (ip.into(), u32::from(mask).count_ones()),
            (_, Some((ip, mask))) => (ip.into(), u128::from(mask).count_ones()),
            _ => return None,
        };
        let index = nix::net::if_::if_nametoindex(found.interface_name.as_str()).ok()?;
        place(address, bits as u8, index)
    });
    places.collect()
}

/// The table of an address: the same number whichever node sets it.
fn table(address: IpAddr) -> u32 {
    let bytes = match address {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let hash = shoal_crypto::hash(&bytes);
    TABLES | u32::from(u16::from_be_bytes([hash[0], hash[1]]))
}

async fn set(handle: &Handle, place: &LocalAddress) -> Result<(), rtnetlink::Error> {
    let (table, bits) = (table(place.address), place.network.bits());
    let rule = handle.rule().add().table_id(table).priority(PRIORITY);
    let rule = rule.action(RuleAction::ToTable);
    let (route, ruled) = match (place.address, place.network.ip()) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let route = RouteMessageBuilder::<std::net::Ipv4Addr>::new();
            let route = route.destination_prefix(network, bits).pref_source(address);
            let route = route.scope(RouteScope::Link);
            let route = route.output_interface(place.index).table_id(table).build();
            (route, rule.v4().source_prefix(address, 32).execute().await)
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let route = RouteMessageBuilder::<std::net::Ipv6Addr>::new();
            let route = route.destination_prefix(network, bits);
            let route = route.output_interface(place.index).table_id(table).build();
            (route, rule.v6().source_prefix(address, 128).execute().await)
        }
        // An address and its network are of one family.
        _ => return Ok(()),
    };
    let is_there = |e: &rtnetlink::Error| match e {
        rtnetlink::Error::NetlinkError(e) => e.raw_code().abs() == Errno::EEXIST as i32,
        _ => false,
    };
    match ruled {
        Err(e) if !is_there(&e) => return Err(e),
        _ => {}
    }
    handle.route().add(route).replace().execute().await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str, bits: u8, index: u32) -> LocalAddress {
        place(address.parse().unwrap(), bits, index).unwrap()
    }

    #[test]
    fn rules_are_for_two_interfaces_in_one_network() {
        let own = [at("fd00::1", 48, 5), at("10.9.0.1", 24, 5)];
        let alone = [own[0], own[1], at("192.0.2.1", 24, 2), at("10.9.1.1", 24, 2)];
        assert!(to_set(&own, &alone).is_empty());
        let other = at("10.9.0.3", 24, 7);
        let both = [alone.to_vec(), vec![other, at("10.9.0.9", 16, 8)]].concat();
        assert_eq!(to_set(&own, &both), [other, own[1]]);
        assert_ne!(table(other.address), table(own[1].address));
    }
}
