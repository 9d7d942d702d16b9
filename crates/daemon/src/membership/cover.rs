//! Cover settings of lists of hosts (docs/design/cover.md): covered links of this node, their
//! traffic per day, and the sizes of anonymity sets.

use anyhow::Context;
use shoal_directory::Tier;
use shoal_wire::{CoverKind, CoverTier, SizeClass};

use crate::config::{LinkPeer, LoopPolicy, NodeConfig};
use crate::membership::hosts::{HostList, ListedHost};

/// Least number of hosts of one tier without a warning about a small anonymity set.
pub const SET_MIN: usize = 8;
/// Headers of UDP and IPv4 of each frame, in bytes.
const HEADERS: u64 = 28;
const DAY_NS: u128 = 86_400 * 1_000_000_000;

/// Bytes per day in each direction of a link with this schedule, with headers of UDP and IPv4.
pub fn bytes_per_day(tier: CoverTier) -> u64 {
    let frames = (DAY_NS / tier.frame_gap().as_nanos()) as u64;
    frames * (SizeClass::Full.frame_len() as u64 + HEADERS)
}

/// The schedule of the link between `config`'s host and its router, if the link is covered.
pub fn own(config: &NodeConfig, hosts: &HostList) -> Option<CoverTier> {
    hosts.cover_of(hosts.by_name(&config.node.name)?)
}

/// The schedule of a link of the node called `me`. The list decides it for a host; for a link of
/// two routers the link's section may name a tier.
///
/// # Errors
/// The section names a tier that the list lacks, or its link is not one between two routers.
pub fn of_link(me: &str, link: &LinkPeer, hosts: &HostList) -> anyhow::Result<Option<CoverTier>> {
    let Some((me, far)) = hosts.by_name(me).zip(hosts.by_name(&link.peer)) else {
        return Ok(None);
    };
    let Some(name) = &link.cover else { return Ok(hosts.cover_between(me, far)) };
    anyhow::ensure!(
        me.address.is_router() && far.address.is_router(),
        "[[link]] of {:?}: cover is for links between two routers; the network's list names a \
         host's tier (`shoal authority sign --dir DIR NAME --cover TIER`)",
        link.peer
    );
    let tier = hosts.tiers().by_name(name);
    let unknown = || format!("[[link]] of {:?}: cover: {}", link.peer, hosts.tiers().unknown(name));
    tier.map(Some).with_context(unknown)
}

/// Faults of the tiers that link sections name.
pub fn faults(config: &NodeConfig, hosts: &HostList) -> Vec<String> {
    let fault = |link| of_link(&config.node.name, link, hosts).err();
    config.links.iter().filter_map(fault).map(|fault| fault.to_string()).collect()
}

/// True if `config`'s host sends loops along its circuits.
pub fn has_loops(config: &NodeConfig, hosts: &HostList) -> bool {
    let is_poisson = |tier: CoverTier| tier.kind() == CoverKind::Poisson;
    match config.anonymity.loops {
        LoopPolicy::Auto => own(config, hosts).is_some_and(is_poisson),
        LoopPolicy::On => true,
        LoopPolicy::Off => false,
    }
}

/// A tier that links of a node have, and the size of its anonymity set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnonymitySet {
    pub tier: String,
    pub schedule: CoverTier,
    /// Links of the node that have it.
    pub links: usize,
    /// Hosts in the list that have the tier. An observer of the wires can't tell them apart by the
    /// traffic of their links.
    pub hosts: usize,
}

impl AnonymitySet {
    /// True for 1 to [`SET_MIN`] - 1 hosts. A tier of links between routers has no hosts.
    pub fn is_small(&self) -> bool {
        (1..SET_MIN).contains(&self.hosts)
    }

    /// Warning for a set with fewer hosts than [`SET_MIN`].
    pub fn warning(&self) -> String {
        let AnonymitySet { tier, hosts, .. } = self;
        format!(
            "cover {tier:?}: hosts that have it in the list: {hosts}. Fewer than {SET_MIN} are a \
             small anonymity set against observers of the wires"
        )
    }
}

/// Tiers of the covered links of `config`'s node, in the list's order.
pub fn sets(config: &NodeConfig, hosts: &HostList) -> Vec<AnonymitySet> {
    let Some(me) = hosts.by_name(&config.node.name) else { return Vec::new() };
    let named = |host: &ListedHost, tier: &Tier| host.cover.as_ref() == Some(&tier.name);
    let schedule = |link: &LinkPeer| of_link(&me.name, link, hosts).ok().flatten();
    let of = |tier: &Tier| {
        let covered = config.links.iter().filter(|link| schedule(link) == Some(tier.schedule));
        AnonymitySet {
            tier: tier.name.clone(),
            schedule: tier.schedule,
            links: covered.count(),
            hosts: hosts.iter().filter(|host| named(host, tier)).count(),
        }
    };
    hosts.tiers().iter().map(of).filter(|set| set.links > 0).collect()
}

#[cfg(test)]
mod tests;
