//! The section `[links]`: neighbours from the list of nodes, without a `[[link]]`.

use std::collections::BTreeSet;

use serde::Deserialize;
use shoal_wire::{Address, NodeAddresses};

use super::section::{ReferenceValue, optional_section};
use super::{LinkPeer, NodeConfig};
use crate::membership::hosts::{HostList, ListedHost};

/// Nodes of the list that are neighbours without a `[[link]]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NeighbourPolicy {
    /// No node.
    #[default]
    Configured,
    /// The hosts behind a router, and the router of a host.
    Members,
}

impl ReferenceValue for NeighbourPolicy {
    fn shown(&self) -> String {
        format!("{:?}", format!("{self:?}").to_lowercase())
    }
}

optional_section! {
    /// Neighbours from the list of nodes that need no `[[link]]`. If one has a `[[link]]` too, the
    /// keys of its `[[link]]` count.
    pub struct LinksConfig {
        /// "configured": only neighbours with a `[[link]]`. "members": a router also has links to
        /// the list's hosts behind it (host 1.7 is behind router 1.0). A host also has a link to
        /// its router, or to both, at the list's endpoint. Links come and go with the list.
        accept: NeighbourPolicy = NeighbourPolicy::Configured, reload yes;
        /// With accept = "members" on a router: links to the list's other routers, too. Up to 16
        /// routers all have links to each other. In a larger network each router has links to 4 to
        /// 8 others. Their numbers decide which.
        accept_routers: bool = false, reload yes;
        /// Most neighbours that a router takes from the list: the first ones in its order.
        max_members: u32 = 4_096, in 1 ..= 65_536, reload yes;
    }
}

impl LinksConfig {
    /// The routers to which the node at `me` may have links, among those at these addresses.
    pub(crate) fn near_routers(
        &self,
        me: Address,
        all: impl Iterator<Item = Address>,
    ) -> BTreeSet<u32> {
        if !me.is_router() || !self.accept_routers {
            return BTreeSet::new();
        }
        let routers = all.filter(|address| address.is_router()).map(|address| address.router);
        shoal_directory::neighbours(&routers.chain([me.router]).collect(), me.router)
    }

    /// True if the node at `me` has a link to the one at `other` without a `[[link]]`; `near` comes
    /// from [`LinksConfig::near_routers`].
    pub(crate) fn admits(
        &self,
        me: NodeAddresses,
        other: NodeAddresses,
        near: &BTreeSet<u32>,
    ) -> bool {
        self.accept == NeighbourPolicy::Members
            && match (me.first.is_router(), other.first.is_router()) {
                (true, true) => near.contains(&other.first.router),
                (true, false) => other.at(me.first.router).is_some(),
                (false, true) => me.at(other.first.router).is_some(),
                (false, false) => false,
            }
    }
}

impl LinkPeer {
    /// A neighbour with a name and no other keys.
    pub(crate) fn named(peer: &str) -> LinkPeer {
        LinkPeer {
            peer: peer.to_owned(),
            endpoint: None,
            mtu: None,
            shift: None,
            rendezvous: None,
            cover: None,
            default_cost: None,
            import: None,
            pin: Vec::new(),
        }
    }
}

impl NodeConfig {
    /// This node's addresses. The list alone says if it has a second one.
    pub fn addresses(&self, hosts: &HostList) -> NodeAddresses {
        let me = hosts.by_name(&self.node.name).filter(|me| me.address == self.address());
        NodeAddresses { first: self.address(), second: me.and_then(|me| me.second) }
    }

    /// Adds the neighbours that come from the list to `links`.
    pub(crate) fn all_links(&self, links: &[LinkPeer], hosts: &HostList) -> Vec<LinkPeer> {
        let has_one: BTreeSet<&str> = links.iter().map(|link| link.peer.as_str()).collect();
        let following = self.following(hosts).filter(|host| !has_one.contains(host.name.as_str()));
        let following = following.take(self.accept.max_members as usize);
        let following = following.map(|host| LinkPeer::named(&host.name));
        links.iter().cloned().chain(following).collect()
    }

    /// Number of neighbours in the list that have no link, since they exceed `max_members`.
    pub(crate) fn links_left_out(&self, hosts: &HostList) -> usize {
        let has_one: BTreeSet<&str> = self.links.iter().map(|link| link.peer.as_str()).collect();
        self.following(hosts).filter(|host| !has_one.contains(host.name.as_str())).count()
    }

    fn following<'a>(&self, hosts: &'a HostList) -> impl Iterator<Item = &'a ListedHost> {
        let (me, rules) = (self.addresses(hosts), self.accept.clone());
        let near = rules.near_routers(me.first, hosts.iter().map(|host| host.address));
        hosts.iter().filter(move |host| rules.admits(me, host.addresses(), &near))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(address: &str, more: &str) -> NodeConfig {
        let text = format!(
            "[node]\nname = \"me\"\naddress = \"{address}\"\nkey_file = \"k\"\n\
             network_secret_file = \"n\"\n{more}"
        );
        NodeConfig::parse(Path::new("node.toml"), &text).unwrap()
    }

    fn hosts() -> HostList {
        let entry = |(i, (name, address)): (usize, (&str, &str))| {
            let key = shoal_crypto::Identity::from_seed([i as u8; 32]).public();
            format!("[[host]]\nname = \"{name}\"\naddress = \"{address}\"\nkey = \"{key}\"\n")
        };
        let all = [("r1", "1.0"), ("r2", "2.0"), ("a", "1.1"), ("b", "1.2"), ("c", "2.1")];
        let text: String = all.into_iter().enumerate().map(entry).collect();
        HostList::parse(Path::new("hosts.toml"), &text).unwrap()
    }

    fn peers(config: &NodeConfig) -> Vec<String> {
        let all = config.all_links(&config.links, &hosts());
        all.into_iter().map(|link| link.peer).collect()
    }

    #[test]
    fn neighbours_follow_from_the_list_where_the_file_says_so() {
        let members = "[links]\naccept = \"members\"\n";
        assert!(peers(&config("1.0", "")).is_empty());
        assert_eq!(peers(&config("1.0", members)), ["a", "b"]);
        assert_eq!(peers(&config("1.2", members)), ["r1"]);
        let routers = format!("{members}accept_routers = true\n");
        assert_eq!(peers(&config("1.0", &routers)), ["r2", "a", "b"]);
        assert_eq!(peers(&config("1.1", &routers)), ["r1"]);
        assert!(peers(&config("1.0", "[links]\naccept_routers = true\n")).is_empty());
    }

    #[test]
    fn a_host_at_two_routers_has_links_to_both() {
        let entry = |number: u8, name: &str, addresses: &str| {
            let key = shoal_crypto::Identity::from_seed([number; 32]).public();
            format!("[[host]]\nname = \"{name}\"\nkey = \"{key}\"\n{addresses}\n")
        };
        let text = [
            entry(1, "r1", "address = \"1.0\""),
            entry(2, "r2", "address = \"2.0\""),
            entry(3, "r3", "address = \"3.0\""),
            entry(4, "me", "address = \"1.1\"\nsecond = \"2.9\""),
        ];
        let hosts = HostList::parse(Path::new("hosts.toml"), &text.concat()).unwrap();
        let peers = |name: &str, address: &str| {
            let mut config = config(address, "[links]\naccept = \"members\"\n");
            config.node.name = name.into();
            let all = config.all_links(&[], &hosts);
            all.into_iter().map(|link| link.peer).collect::<Vec<_>>()
        };
        assert_eq!(peers("me", "1.1"), ["r1", "r2"]);
        assert_eq!([peers("r1", "1.0"), peers("r2", "2.0")], [["me"]; 2]);
        assert!(peers("r3", "3.0").is_empty());
    }

    #[test]
    fn routers_of_a_large_network_have_links_to_few() {
        let entry = |number: u8| {
            let key = shoal_crypto::Identity::from_seed([number; 32]).public();
            format!("[[host]]\nname = \"r{number}\"\naddress = \"{number}.0\"\nkey = \"{key}\"\n")
        };
        let peers = |count: u8, address: &str| {
            let text: String = (1..=count).map(entry).collect();
            let hosts = HostList::parse(Path::new("hosts.toml"), &text).unwrap();
            let rules = "[links]\naccept = \"members\"\naccept_routers = true\n";
            config(address, rules).all_links(&[], &hosts).len()
        };
        assert_eq!(peers(16, "7.0"), 15);
        assert!((4..=8).contains(&peers(40, "7.0")));
    }

    #[test]
    fn a_section_of_a_neighbour_counts_before_the_list() {
        let text = "[links]\naccept = \"members\"\n[[link]]\npeer = \"b\"\nmtu = 1280\n";
        let config = config("1.0", text);
        let all = config.all_links(&config.links, &hosts());
        assert_eq!(peers(&config), ["b", "a"]);
        assert_eq!((all[0].mtu, all[1].mtu), (Some(1_280), None));
    }

    #[test]
    fn neighbours_beyond_the_bound_have_no_link() {
        let text = "[links]\naccept = \"members\"\nmax_members = 1\n";
        let mut config = config("1.0", text);
        assert_eq!(peers(&config), ["a"]);
        config.links = config.all_links(&[], &hosts());
        assert_eq!(config.links_left_out(&hosts()), 1);
    }
}
