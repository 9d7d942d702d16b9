//! What lists of hosts say of cover: which links of this node carry frames by a schedule, what that
//! costs, and among whom a covered host hides (docs/cover.md).

use std::collections::BTreeSet;

use anyhow::Context;
use shoal_directory::Tier;
use shoal_wire::{CoverKind, CoverTier, SizeClass};

use crate::config::{Config, LinkPeer, LoopPolicy};
use crate::membership::hosts::{Host, Hosts};
use crate::worker::first::{Parts, Worker};

/// Fewer hosts of one tier than this are few to hide among.
pub const SET_MIN: usize = 8;
/// Headers of UDP and IPv4 of each frame, in bytes.
const HEADERS: u64 = 28;
const DAY_NS: u128 = 86_400 * 1_000_000_000;

/// What frames of this schedule amount to in a day, in bytes in each direction, with headers of
/// UDP and IPv4.
pub fn bytes_per_day(tier: CoverTier) -> u64 {
    let frames = (DAY_NS / tier.frame_gap().as_nanos()) as u64;
    frames * (SizeClass::Full.frame_len() as u64 + HEADERS)
}

/// The schedule of the link of `config`'s node with its router, if that node is a host with one.
pub fn own(config: &Config, hosts: &Hosts) -> Option<CoverTier> {
    hosts.cover_of(hosts.by_name(&config.node.name)?)
}

/// The schedule of a link of the node called `me`: that of the list, or between two routers the one
/// that the link's section names.
///
/// # Errors
/// The section names a tier that the list does not have, or its link is not one of two routers.
pub fn of_link(me: &str, link: &LinkPeer, hosts: &Hosts) -> anyhow::Result<Option<CoverTier>> {
    let Some((me, far)) = hosts.by_name(me).zip(hosts.by_name(&link.peer)) else {
        return Ok(None);
    };
    let Some(name) = &link.cover else { return Ok(hosts.cover_between(me, far)) };
    anyhow::ensure!(
        me.address.is_router() && far.address.is_router(),
        "[[link]] of {:?}: cover is for links between two routers; a host's tier stands in the \
         network's list (`shoal authority sign NAME --cover TIER`)",
        link.peer
    );
    let tier = hosts.tiers().by_name(name);
    let unknown = || format!("[[link]] of {:?}: cover: {}", link.peer, hosts.tiers().unknown(name));
    tier.map(Some).with_context(unknown)
}

/// Mistakes in the tiers that sections of links name.
pub fn faults(config: &Config, hosts: &Hosts) -> Vec<String> {
    let fault = |link| of_link(&config.node.name, link, hosts).err();
    config.links.iter().filter_map(fault).map(|fault| fault.to_string()).collect()
}

/// Whether loops are sent along the circuits of `config`'s host.
pub fn has_loops(config: &Config, hosts: &Hosts) -> bool {
    let is_poisson = |tier: CoverTier| tier.kind() == CoverKind::Poisson;
    match config.anonymity.loops {
        LoopPolicy::Auto => own(config, hosts).is_some_and(is_poisson),
        LoopPolicy::On => true,
        LoopPolicy::Off => false,
    }
}

/// A tier that links of a node have, and among whom its hosts hide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Its name in the list.
    pub tier: String,
    /// When frames leave.
    pub schedule: CoverTier,
    /// Links of the node that have it.
    pub links: usize,
    /// Hosts in the list that have it: who watches the wires can't tell them apart by what their
    /// links carry.
    pub hosts: usize,
}

impl Set {
    /// Whether its hosts are fewer than [`SET_MIN`]. A tier of links between routers has none.
    pub fn is_small(&self) -> bool {
        (1..SET_MIN).contains(&self.hosts)
    }

    /// What to say while its hosts are fewer than [`SET_MIN`].
    pub fn warning(&self) -> String {
        let Set { tier, hosts, .. } = self;
        format!(
            "cover {tier:?}: hosts that have it in the list: {hosts}. Fewer than {SET_MIN} are few \
             to hide among from who watches the wires"
        )
    }
}

/// Tiers of the covered links that `config`'s node has, in the list's order.
pub fn sets(config: &Config, hosts: &Hosts) -> Vec<Set> {
    let Some(me) = hosts.by_name(&config.node.name) else { return Vec::new() };
    let named = |host: &Host, tier: &Tier| host.cover.as_ref() == Some(&tier.name);
    let schedule = |link: &LinkPeer| of_link(&me.name, link, hosts).ok().flatten();
    let of = |tier: &Tier| {
        let covered = config.links.iter().filter(|link| schedule(link) == Some(tier.schedule));
        Set {
            tier: tier.name.clone(),
            schedule: tier.schedule,
            links: covered.count(),
            hosts: hosts.iter().filter(|host| named(host, tier)).count(),
        }
    };
    hosts.tiers().iter().map(of).filter(|set| set.links > 0).collect()
}

impl Worker {
    /// Ends direct links of a covered host, and lets it make none: they would pass its schedule by.
    pub(crate) fn apply_cover(&mut self) {
        let Parts { node, names, config, authority, .. } = &mut self.parts;
        let hosts = names.hosts();
        if own(config, hosts).is_some() {
            node.edge.set_partners(BTreeSet::new());
        } else if authority.is_none() {
            // An authority's rights have said who may be one.
            let all = hosts.iter().filter_map(|host| names.host_id(&host.name));
            node.edge.set_partners(all.collect());
        }
    }
}

#[cfg(test)]
mod tests;
