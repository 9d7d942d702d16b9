//! Neighbours that this node can't reach, whatever they do: what their endpoints need and it lacks.

use std::net::{IpAddr, SocketAddr};

use super::hop::HopMode;
use super::{Config, LinkPeer};
use crate::membership::hosts::Hosts;

/// Where neighbours are called: their links' names, and endpoints.
fn called<'a>(config: &'a Config, hosts: &Hosts) -> Vec<(&'a str, SocketAddr)> {
    let known = |link: &LinkPeer| hosts.by_name(&link.peer).and_then(|host| host.endpoint);
    let called = |link: &LinkPeer| link.endpoint().or_else(|| known(link));
    config.links.iter().filter_map(|link| Some((&*link.peer, called(link)?))).collect()
}

/// Sentences for the operator.
pub(super) fn warnings(config: &Config, hosts: &Hosts) -> Vec<String> {
    let called = called(config, hosts);
    let mut warnings = Vec::new();
    warnings.extend(other_family(config, &called));
    if config.hop.as_ref().is_some_and(|hop| hop.mode == HopMode::Routed) {
        warnings.extend(under_own_prefix(config, hosts));
    }
    // With an authority, links of nodes that are no members now are left out.
    let complete = config.authority.is_none();
    if complete && config.hop.is_some() && config.links.iter().all(|link| link.hop.is_none()) {
        warnings.push(
            "[hop]: no address hops: add hop = \"10s\", say, to each [[link]] that is to".into(),
        );
    }
    warnings
}

/// A node without a `listen` line is at addresses of both families.
fn other_family(config: &Config, called: &[(&str, SocketAddr)]) -> Option<String> {
    let own = config.listen();
    let has = |six: bool| own.iter().any(|at| at.is_ipv6() == six) || own.is_empty();
    let (peer, at) = called.iter().find(|(_, at)| !has(at.is_ipv6()))?;
    let (family, any) = if at.is_ipv6() { ("IPv6", "[::]") } else { ("IPv4", "0.0.0.0") };
    Some(format!(
        "link {peer:?}: it is called by {family}, and this node listens at no such address: add \
         \"{any}:PORT\" to [node] listen"
    ))
}

/// What is wrong with an endpoint under the prefix if that is routed to this machine: the kernel
/// takes in whatever goes there. Whether `auto` means that depends on the addresses of interfaces,
/// which stand in no file.
pub(crate) fn under_own_prefix(config: &Config, hosts: &Hosts) -> Option<String> {
    let prefix = config.hop_prefix()?;
    let is_under = |at: &SocketAddr| matches!(at.ip(), IpAddr::V6(ip) if prefix.holds(ip));
    let (peer, _) = called(config, hosts).into_iter().find(|(_, at)| is_under(at))?;
    Some(format!(
        "[hop] prefix: link {peer:?} is called at an address of it, where nothing is reached while \
         the node runs, since all its addresses are this machine's: expected a prefix \
         that is routed to this machine and that nothing else uses"
    ))
}
