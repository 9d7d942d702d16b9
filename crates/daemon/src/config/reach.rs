//! Warnings about neighbours that this node can't reach, since it lacks what their endpoints need.

use std::net::{IpAddr, SocketAddr};

use shoal_wire::Address;

use super::shift::ShiftMode;
use super::{LinkPeer, NodeConfig};
use crate::membership::hosts::HostList;

/// Names of links, with the endpoints at which this node calls them.
fn called<'a>(config: &'a NodeConfig, hosts: &HostList) -> Vec<(&'a str, SocketAddr)> {
    let known = |link: &LinkPeer| hosts.by_name(&link.peer).and_then(|host| host.endpoint);
    let called = |link: &LinkPeer| link.endpoint().or_else(|| known(link));
    config.links.iter().filter_map(|link| Some((&*link.peer, called(link)?))).collect()
}

/// Warnings for the operator.
pub(super) fn warnings(config: &NodeConfig, hosts: &HostList) -> Vec<String> {
    let called = called(config, hosts);
    let mut warnings = Vec::new();
    warnings.extend(without_first(config, hosts));
    warnings.extend(other_family(config, &called));
    if config.shift.as_ref().is_some_and(|shift| shift.mode == ShiftMode::Routed) {
        warnings.extend(under_own_prefix(config, hosts));
    }
    // With an authority, links to nodes that are not members are left out of `config`.
    let complete = config.authority.is_none();
    if complete && config.shift.is_some() && config.links.iter().all(|link| link.shift.is_none()) {
        warnings.push(
            "[shift]: no link uses it: add shift, such as shift = \"10s\", to a [[link]]".into(),
        );
    }
    warnings
}

/// Warns of a host whose first router is no member any more, while the second one carries it.
fn without_first(config: &NodeConfig, hosts: &HostList) -> Option<String> {
    let own = config.addresses(hosts);
    let is_listed = |at: Address| hosts.by_address(Address::new(at.router, 0)).is_some();
    let is_carried = own.second.is_some_and(is_listed) && !is_listed(own.first);
    is_carried.then(|| {
        "this host's first router is no member any more, so one router alone carries it: `shoal up \
         --another-router` gets another one; if the authority signed this host, `shoal authority \
         sign --dir DIR NAME --address ADDRESS` names another one"
            .into()
    })
}

/// Warns of an endpoint whose IP family this node does not listen in. A node without a `listen`
/// line listens in both.
fn other_family(config: &NodeConfig, called: &[(&str, SocketAddr)]) -> Option<String> {
    let own = config.listen();
    let has = |six: bool| own.iter().any(|at| at.is_ipv6() == six) || own.is_empty();
    let (peer, at) = called.iter().find(|(_, at)| !has(at.is_ipv6()))?;
    let (family, any) = if at.is_ipv6() { ("IPv6", "[::]") } else { ("IPv4", "0.0.0.0") };
    Some(format!(
        "link {peer:?}: its endpoint is {family}, but this node listens at no {family} address: \
         add \"{any}:PORT\" to [node] listen"
    ))
}

/// Warns of an endpoint under this node's own prefix, if that prefix is routed to this machine: the
/// kernel takes in all packets to it. For the mode `auto` the caller checks this, as it depends on
/// addresses of interfaces.
pub(crate) fn under_own_prefix(config: &NodeConfig, hosts: &HostList) -> Option<String> {
    let prefix = config.shift_prefix()?;
    let is_under = |at: &SocketAddr| matches!(at.ip(), IpAddr::V6(ip) if prefix.holds(ip));
    let (peer, _) = called(config, hosts).into_iter().find(|(_, at)| is_under(at))?;
    Some(format!(
        "[shift] prefix: the endpoint of link {peer:?} is under it and can't be reached: while the \
         node runs, all addresses of the prefix are this machine's. Expected a prefix \
         that is routed to this machine and that nothing else uses"
    ))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_host_hears_that_its_first_router_is_gone() {
        let host = |seed: u8, name: &str, addresses: &str| {
            let key = shoal_crypto::Identity::from_seed([seed; 32]).public();
            format!("[[host]]\nname = \"{name}\"\nkey = \"{key}\"\n{addresses}\n")
        };
        let me = host(9, "me", "address = \"1.1\"\nsecond = \"2.9\"");
        let [one, two] = [(1, "r1"), (2, "r2")]
            .map(|(number, name)| host(number, name, &format!("address = \"{number}.0\"")));
        let text = "[node]\nname = \"me\"\naddress = \"1.1\"\nkey_file = \"k\"\n\
                    network_secret_file = \"n\"\n[links]\naccept = \"members\"\n";
        let config = NodeConfig::parse(Path::new("node.toml"), text).unwrap();
        let said = |all: &[&str]| {
            let hosts = HostList::parse(Path::new("hosts.toml"), &all.concat()).unwrap();
            without_first(&config, &hosts)
        };
        assert_eq!(said(&[&me, &one, &two]), None);
        assert_eq!(said(&[&me, &one]), None);
        assert_eq!(said(&[&me]), None, "neither router is known");
        assert!(said(&[&me, &two]).unwrap().contains("--another-router"));
    }
}
