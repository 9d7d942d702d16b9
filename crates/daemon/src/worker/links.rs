//! The neighbours in a node's files, and the change from one set of neighbours to another.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use shoal_relay::LinkConfig;
use shoal_session::EndpointOrigin;
use shoal_wire::{CoverTier, LinkId, Time};

use crate::config::{LinkPeer, NodeConfig};
use crate::membership::cover;
use crate::membership::hosts::HostList;
use crate::tun::names::NodeNames;
use crate::worker::build::link_policies;
use crate::worker::shell::DaemonNode;

/// Settings of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct NeighbourSettings {
    link: LinkConfig,
    /// True if the endpoint is a registrar's word alone.
    told: bool,
    /// True if the path carries no full frames, according to the file.
    pub small: bool,
    /// Schedule of the link's frames.
    pub cover: Option<CoverTier>,
    /// Time for which each end uses one address, if addresses shift.
    pub shift: Option<Duration>,
    /// The neighbour's prefix and port, if both ends meet at addresses that depend on the time.
    pub rendezvous: Option<([u8; 8], u16)>,
}

/// Settings of a link of the node called `me`. The far endpoint is the link's own, else the one in
/// the list. If both ends meet at addresses that depend on the time, only the link's own counts.
pub fn wanted(me: &str, link: &LinkPeer, hosts: &HostList) -> anyhow::Result<NeighbourSettings> {
    let host = hosts.by_name(&link.peer);
    let host = host.with_context(|| format!("link to {:?}: unknown", link.peer))?;
    // The address of a name is not known yet: `lookups` sets it.
    let listed = host.endpoint.filter(|_| link.place().is_none() && link.rendezvous.is_none());
    let endpoint = link.endpoint().or(listed);
    // A router knows a host by the address behind itself.
    let router = hosts.by_name(me).map(|me| me.address).filter(|me| me.is_router());
    let behind = router.and_then(|me| host.addresses().at(me.router));
    let address = behind.unwrap_or(host.address);
    Ok(NeighbourSettings {
        link: LinkConfig { key: host.key, address, endpoint },
        told: host.by_registrar && link.endpoint().is_none(),
        small: link.is_small(endpoint),
        // The start and the warnings name wrong tiers. A newer list counts anyway.
        cover: cover::of_link(me, link, hosts).unwrap_or_default(),
        shift: link.shift.map(|shift| shift.0.0),
        rendezvous: link.rendezvous.map(|at| (at.0.prefix.0, at.0.port)),
    })
}

impl NeighbourSettings {
    /// The endpoint to call. One that a registrar names may not be this machine's, or an address
    /// that means another machine to each node.
    fn endpoint(&self, node: &DaemonNode) -> Option<SocketAddr> {
        let rules = node.relay.endpoint_rules();
        let may_call = |at: &SocketAddr| rules.check(*at, EndpointOrigin::Told).is_ok();
        self.link.endpoint.filter(|at| !self.told || may_call(at))
    }
}

/// Adds a link to the node.
pub fn add(
    now: Time,
    name: &str,
    wanted: &NeighbourSettings,
    node: &mut DaemonNode,
    names: &mut NodeNames,
) -> anyhow::Result<()> {
    let link = LinkConfig { endpoint: wanted.endpoint(node), ..wanted.link };
    let id = node
        .relay
        .add_link(now, &link)
        .map_err(|reason| anyhow::anyhow!("link to {name:?}: {}", reason.label()))?;
    node.relay.set_small_path(id, wanted.small);
    node.relay.set_cover(now, id, wanted.cover);
    node.relay.set_shift(now, id, wanted.shift);
    node.relay.set_rendezvous(now, id, wanted.rendezvous);
    names.add_link(id, name);
    Ok(())
}

/// One change of the links.
#[derive(Clone, Debug, PartialEq)]
enum LinkChange {
    Remove,
    Add(NeighbourSettings),
    /// The neighbour stays. The names are those of the changed settings.
    Change(Vec<&'static str>, NeighbourSettings),
}

/// The change from the current links to the wanted ones: [`LinkPlan::remove`], then
/// [`LinkPlan::finish`].
pub struct LinkPlan {
    steps: BTreeMap<String, LinkChange>,
    gone: Vec<LinkId>,
}

impl LinkPlan {
    /// Compares the links of `older` and the known hosts with those of `newer` and `hosts`. Links
    /// that are equal in both keep their sessions and their queued cells.
    pub fn new(
        older: &NodeConfig,
        names: &NodeNames,
        newer: &NodeConfig,
        hosts: &HostList,
    ) -> anyhow::Result<LinkPlan> {
        Ok(LinkPlan { steps: steps(older, names, newer, hosts)?, gone: Vec::new() })
    }

    /// Removes old links, and those that must be created anew. This comes first, since an address
    /// may pass from one link to another. Names are kept until [`LinkPlan::finish`], so that the
    /// last events can be reported.
    pub fn remove(&mut self, now: Time, node: &mut DaemonNode, names: &NodeNames) {
        let goes = |(name, step): (&String, &LinkChange)| match step {
            LinkChange::Change(..) => None,
            LinkChange::Remove | LinkChange::Add(_) => names.link_id(name),
        };
        self.gone = self.steps.iter().filter_map(goes).collect();
        for &id in &self.gone {
            node.relay.remove_link(now, id);
        }
    }

    /// Creates the new links, and changes those that stay. Returns the changes, for the operator.
    ///
    /// Errors: the table of neighbours is full. Links before the named one are in place.
    pub fn finish(
        self,
        now: Time,
        newer: &NodeConfig,
        hosts: &HostList,
        node: &mut DaemonNode,
        names: &mut NodeNames,
    ) -> anyhow::Result<Vec<String>> {
        for id in self.gone {
            names.remove_link(id);
        }
        let mut done = Vec::new();
        for (name, step) in &self.steps {
            done.push(match step {
                LinkChange::Remove => format!("link {name} (removed)"),
                LinkChange::Add(wanted) => {
                    add(now, name, wanted, node, names)?;
                    format!("link {name} (added)")
                }
                LinkChange::Change(what, wanted) => {
                    if let Some(id) = names.link_id(name) {
                        if what.contains(&"endpoint") {
                            let endpoint = wanted.endpoint(node);
                            node.relay.set_endpoint(now, id, endpoint);
                        }
                        node.relay.set_small_path(id, wanted.small);
                        node.relay.set_shift(now, id, wanted.shift);
                        node.relay.set_rendezvous(now, id, wanted.rendezvous);
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
        // Unchanged links are included: an abandoned schedule begins anew.
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
    older: &NodeConfig,
    names: &NodeNames,
    newer: &NodeConfig,
    hosts: &HostList,
) -> anyhow::Result<BTreeMap<String, LinkChange>> {
    let by_name = |config: &NodeConfig| -> BTreeMap<String, LinkPeer> {
        config.links.iter().map(|link| (link.peer.clone(), link.clone())).collect()
    };
    let (olds, news) = (by_name(older), by_name(newer));
    let gone = olds.keys().filter(|old| !news.contains_key(*old));
    let mut steps: BTreeMap<String, LinkChange> =
        gone.map(|old| (old.clone(), LinkChange::Remove)).collect();
    for link in &newer.links {
        let to = wanted(&newer.node.name, link, hosts)?;
        let old = olds.get(&link.peer);
        // A link that found no room before is tried again.
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
                        (from.link.endpoint, from.told) != (to.link.endpoint, to.told)
                            || old.place() != link.place(),
                    ),
                    ("mtu", old.mtu != link.mtu),
                    ("shift", from.shift != to.shift),
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
                LinkChange::Change(what, to)
            }
            _ => LinkChange::Add(to),
        };
        steps.insert(link.peer.clone(), step);
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::hosts::ListedHost;

    /// A router, as the authority or a registrar lists it.
    fn router(name: &str, number: u32, by_registrar: bool) -> ListedHost {
        ListedHost {
            name: name.into(),
            address: shoal_wire::Address::new(number, 0),
            second: None,
            key: shoal_crypto::Identity::from_seed([number as u8; 32]).public(),
            endpoint: Some(([192, 0, 2, number as u8], 7_400).into()),
            interface: false,
            ipv4: None,
            prefixes: Vec::new(),
            cover: None,
            security_groups: Vec::new(),
            carrier: Default::default(),
            by_registrar,
        }
    }

    #[test]
    fn an_endpoint_by_a_registrar_is_told_unless_the_file_names_one() {
        let hosts = [router("me", 1, false), router("r2", 2, false), router("r3", 3, true)];
        let hosts = HostList::from_checked(hosts);
        let told = |link: &LinkPeer| wanted("me", link, &hosts).unwrap().told;
        assert_eq!(["r2", "r3"].map(|name| told(&LinkPeer::named(name))), [false, true]);
        let text = "[node]\nname = \"me\"\naddress = \"1.0\"\nkey_file = \"k\"\n\
                    network_secret_file = \"n\"\n[[link]]\npeer = \"r3\"\n\
                    endpoint = \"192.0.2.9:1\"\n";
        let config = NodeConfig::parse(std::path::Path::new("node.toml"), text).unwrap();
        assert!(!told(&config.links[0]), "the operator vouches for it");
    }

    #[test]
    fn a_router_knows_a_host_by_the_address_behind_itself() {
        let host = ListedHost {
            address: shoal_wire::Address::new(1, 7),
            second: Some(shoal_wire::Address::new(2, 9)),
            ..router("bob", 9, false)
        };
        let hosts = HostList::from_checked([router("r1", 1, false), router("r2", 2, false), host]);
        let at = |me: &str| {
            let wanted = wanted(me, &LinkPeer::named("bob"), &hosts).unwrap();
            wanted.link.address.to_string()
        };
        assert_eq!(["r1", "r2"].map(at), ["1.7", "2.9"]);
    }

    #[test]
    fn an_endpoint_is_taken_up_when_the_authority_vouches_for_it() {
        let text = "[node]\nname = \"me\"\naddress = \"1.0\"\nkey_file = \"k\"\n\
                    network_secret_file = \"n\"\n[[link]]\npeer = \"r2\"\n";
        let config = NodeConfig::parse(std::path::Path::new("node.toml"), text).unwrap();
        let hosts = |by_registrar| {
            HostList::from_checked([router("me", 1, false), router("r2", 2, by_registrar)])
        };
        let overlay = shoal_ip::overlay_prefix(&shoal_crypto::NetworkSecret([1; 32]));
        let mut names = NodeNames::new(hosts(true), overlay);
        names.add_link(LinkId::from_bits(7), "r2");
        assert!(steps(&config, &names, &config, &hosts(true)).unwrap().is_empty());
        let steps = steps(&config, &names, &config, &hosts(false)).unwrap();
        let Some(LinkChange::Change(what, _)) = steps.get("r2") else { panic!("{steps:?}") };
        assert_eq!(*what, ["endpoint"]);
    }
}
