//! The neighbours that a node's files ask for, and the way from one set of them to another.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use shoal_relay::LinkConfig;
use shoal_wire::{CoverTier, LinkId, Time};

use crate::config::{Config, LinkPeer};
use crate::membership::cover;
use crate::membership::hosts::Hosts;
use crate::tun::names::Names;
use crate::worker::build::link_policies;
use crate::worker::shell::Node;

/// What a link is to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    link: LinkConfig,
    /// Its path is said to carry no full frame.
    pub small: bool,
    /// By which schedule its frames leave.
    pub cover: Option<CoverTier>,
    /// How long each address of its ends is used, if they hop.
    pub hop: Option<Duration>,
    /// The neighbour's prefix and port, if both ends meet at addresses that follow from the time.
    pub rendezvous: Option<([u8; 8], u16)>,
}

/// What files say about a link of the node called `me`. The endpoint of its far end is the link's
/// own, else the list's; where both ends meet at addresses that follow from the time, there is none
/// but its own.
pub fn wanted(me: &str, link: &LinkPeer, hosts: &Hosts) -> anyhow::Result<Wanted> {
    let host = hosts.by_name(&link.peer);
    let host = host.with_context(|| format!("link to {:?}: unknown", link.peer))?;
    // A name's address is not known yet: `lookups` sets it.
    let listed = host.endpoint.filter(|_| link.place().is_none() && link.rendezvous.is_none());
    let endpoint = link.endpoint().or(listed);
    Ok(Wanted {
        link: LinkConfig { key: host.key, address: host.address, endpoint },
        small: link.is_small(endpoint),
        // The start and the warnings name its mistakes; a newer list counts anyway.
        cover: cover::of_link(me, link, hosts).unwrap_or_default(),
        hop: link.hop.map(|hop| hop.0.0),
        rendezvous: link.rendezvous.map(|at| (at.0.prefix.0, at.0.port)),
    })
}

/// Adds a link to the node.
pub fn add(
    now: Time,
    name: &str,
    wanted: &Wanted,
    node: &mut Node,
    names: &mut Names,
) -> anyhow::Result<()> {
    let id = node
        .relay
        .add_link(now, &wanted.link)
        .map_err(|reason| anyhow::anyhow!("link to {name:?}: {}", reason.label()))?;
    node.relay.set_small_path(id, wanted.small);
    node.relay.set_cover(now, id, wanted.cover);
    node.relay.set_hop(now, id, wanted.hop);
    node.relay.set_rendezvous(now, id, wanted.rendezvous);
    names.add_link(id, name);
    Ok(())
}

/// One step from the links in force to those that are wanted.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Remove,
    Add(Wanted),
    /// The neighbour stays; these are the names of what differs.
    Change(Vec<&'static str>, Wanted),
}

/// The way from the links in force to those that are wanted: [`Plan::remove`], then
/// [`Plan::finish`].
pub struct Plan {
    steps: BTreeMap<String, Step>,
    gone: Vec<LinkId>,
}

impl Plan {
    /// From the links of `older` and of the hosts known so far to those of `newer` and `hosts`.
    /// Links that are the same in both are left alone, with their sessions and what waits in them.
    pub fn new(
        older: &Config,
        names: &Names,
        newer: &Config,
        hosts: &Hosts,
    ) -> anyhow::Result<Plan> {
        Ok(Plan { steps: steps(older, names, newer, hosts)?, gone: Vec::new() })
    }

    /// Ends the links that go, and those to be made anew. They go first, since an address may pass
    /// from one to another, and keep their names until [`Plan::finish`], so that their last events
    /// can be told.
    pub fn remove(&mut self, now: Time, node: &mut Node, names: &Names) {
        let goes = |(name, step): (&String, &Step)| match step {
            Step::Change(..) => None,
            Step::Remove | Step::Add(_) => names.link_id(name),
        };
        self.gone = self.steps.iter().filter_map(goes).collect();
        for &id in &self.gone {
            node.relay.remove_link(now, id);
        }
    }

    /// Makes the new links and changes those that stay. Returns what was done, in words for the
    /// operator.
    ///
    /// Errors: the table of neighbours is full; those before the one named are in place.
    pub fn finish(
        self,
        now: Time,
        newer: &Config,
        hosts: &Hosts,
        node: &mut Node,
        names: &mut Names,
    ) -> anyhow::Result<Vec<String>> {
        for id in self.gone {
            names.remove_link(id);
        }
        let mut done = Vec::new();
        for (name, step) in &self.steps {
            done.push(match step {
                Step::Remove => format!("link {name} (removed)"),
                Step::Add(wanted) => {
                    add(now, name, wanted, node, names)?;
                    format!("link {name} (added)")
                }
                Step::Change(what, Wanted { link, small, cover: _, hop, rendezvous }) => {
                    if let Some(id) = names.link_id(name) {
                        if what.contains(&"endpoint") {
                            node.relay.set_endpoint(now, id, link.endpoint);
                        }
                        node.relay.set_small_path(id, *small);
                        node.relay.set_hop(now, id, *hop);
                        node.relay.set_rendezvous(now, id, *rendezvous);
                    }
                    format!("link {name} ({})", what.join(", "))
                }
            });
        }
        for link in newer.links.iter().filter(|link| !self.steps.contains_key(&link.peer)) {
            let id = names.link_id(&link.peer);
            if id.is_some_and(|id| node.relay.call_home(now, id)) {
                done.push(format!("link {} (called at its configured endpoint)", link.peer));
            }
        }
        // Also where nothing differs: a schedule that was given up begins anew.
        for link in &newer.links {
            if let (Some(id), Ok(wanted)) =
                (names.link_id(&link.peer), wanted(&newer.node.name, link, hosts))
            {
                node.relay.set_cover(now, id, wanted.cover);
            }
        }
        let (links, pins) = link_policies(newer, hosts);
        node.relay.set_policies(now, links, pins);
        Ok(done)
    }
}

fn steps(
    older: &Config,
    names: &Names,
    newer: &Config,
    hosts: &Hosts,
) -> anyhow::Result<BTreeMap<String, Step>> {
    let by_name = |config: &Config| -> BTreeMap<String, LinkPeer> {
        config.links.iter().map(|link| (link.peer.clone(), link.clone())).collect()
    };
    let (olds, news) = (by_name(older), by_name(newer));
    let gone = olds.keys().filter(|old| !news.contains_key(*old));
    let mut steps: BTreeMap<String, Step> = gone.map(|old| (old.clone(), Step::Remove)).collect();
    for link in &newer.links {
        let to = wanted(&newer.node.name, link, hosts)?;
        let old = olds.get(&link.peer);
        // One that found no room before is tried again.
        let old = old.filter(|_| names.link_id(&link.peer).is_some());
        let from = old.and_then(|old| wanted(&older.node.name, old, names.linked()).ok());
        let step = match (old, from) {
            (Some(old), Some(from))
                if from.link.key == to.link.key && from.link.address == to.link.address =>
            {
                let mut what = Vec::new();
                for (name, differs) in [
                    (
                        "endpoint",
                        from.link.endpoint != to.link.endpoint || old.place() != link.place(),
                    ),
                    ("mtu", old.mtu != link.mtu),
                    ("hop", from.hop != to.hop),
                    ("rendezvous", from.rendezvous != to.rendezvous),
                    ("cover", from.cover != to.cover),
                    ("default_cost", old.default_cost != link.default_cost),
                    ("import", old.import != link.import),
                    ("pin", old.pin != link.pin),
                ] {
                    if differs {
                        what.push(name);
                    }
                }
                if what.is_empty() {
                    continue;
                }
                Step::Change(what, to)
            }
            _ => Step::Add(to),
        };
        steps.insert(link.peer.clone(), step);
    }
    Ok(steps)
}
