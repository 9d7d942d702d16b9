//! The section of links without a `[[link]]` of their own: neighbours that follow from the list.

use std::collections::BTreeSet;

use serde::Deserialize;
use shoal_wire::Address;

use super::section::{Shown, optional_section};
use super::{Config, LinkPeer};
use crate::membership::hosts::{Host, Hosts};

/// Which nodes of the list are neighbours without a `[[link]]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accept {
    /// None.
    #[default]
    Configured,
    /// A router's hosts; a host's router.
    Members,
}

impl Shown for Accept {
    fn shown(&self) -> String {
        format!("{:?}", format!("{self:?}").to_lowercase())
    }
}

optional_section! {
    /// Neighbours that follow from the list of nodes and need no `[[link]]`. Where one has a
    /// `[[link]]` all the same, its keys count.
    pub struct Links {
        /// "configured": only neighbours with a `[[link]]`. "members": on a router also every host
        /// of the list whose address names it (host 1.7 names router 1.0), and on a host its router
        /// where the list says. Links come and go with the list.
        accept: Accept = Accept::Configured, reload yes;
        /// With accept = "members" on a router: the other routers of the list, too.
        accept_routers: bool = false, reload yes;
        /// Most neighbours of a router that follow from the list; those that come first by name
        /// have links.
        max_members: u32 = 4_096, in 1 ..= 65_536, reload yes;
    }
}

impl Links {
    /// Whether the node at `me` has a link with the one at `other` without a `[[link]]`.
    pub(crate) fn admits(&self, me: Address, other: Address) -> bool {
        let is_near = other.router == me.router && other != me;
        self.accept == Accept::Members
            && match (me.is_router(), other.is_router()) {
                (true, true) => self.accept_routers && other != me,
                (true, false) | (false, true) => is_near,
                (false, false) => false,
            }
    }
}

impl LinkPeer {
    /// A neighbour of whom nothing is said but its name.
    pub(crate) fn named(peer: &str) -> LinkPeer {
        LinkPeer {
            peer: peer.to_owned(),
            endpoint: None,
            mtu: None,
            hop: None,
            rendezvous: None,
            cover: None,
            default_cost: None,
            import: None,
            pin: Vec::new(),
        }
    }
}

impl Config {
    /// `links`, and the neighbours that follow from the list.
    pub(crate) fn all_links(&self, links: &[LinkPeer], hosts: &Hosts) -> Vec<LinkPeer> {
        let has_one: BTreeSet<&str> = links.iter().map(|link| link.peer.as_str()).collect();
        let following = self.following(hosts).filter(|host| !has_one.contains(host.name.as_str()));
        let following = following.take(self.accept.max_members as usize);
        let following = following.map(|host| LinkPeer::named(&host.name));
        links.iter().cloned().chain(following).collect()
    }

    /// How many neighbours follow from the list and have no link, as they are too many.
    pub(crate) fn links_left_out(&self, hosts: &Hosts) -> usize {
        let has_one: BTreeSet<&str> = self.links.iter().map(|link| link.peer.as_str()).collect();
        self.following(hosts).filter(|host| !has_one.contains(host.name.as_str())).count()
    }

    fn following<'a>(&self, hosts: &'a Hosts) -> impl Iterator<Item = &'a Host> {
        let (me, rules) = (self.address(), self.accept.clone());
        hosts.iter().filter(move |host| rules.admits(me, host.address))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(address: &str, more: &str) -> Config {
        let text = format!(
            "[node]\nname = \"me\"\naddress = \"{address}\"\nkey_file = \"k\"\n\
             network_secret_file = \"n\"\n{more}"
        );
        Config::parse(Path::new("node.toml"), &text).unwrap()
    }

    fn hosts() -> Hosts {
        let entry = |(i, (name, address)): (usize, (&str, &str))| {
            let key = shoal_crypto::Identity::from_seed([i as u8; 32]).public();
            format!("[[host]]\nname = \"{name}\"\naddress = \"{address}\"\nkey = \"{key}\"\n")
        };
        let all = [("r1", "1.0"), ("r2", "2.0"), ("a", "1.1"), ("b", "1.2"), ("c", "2.1")];
        let text: String = all.into_iter().enumerate().map(entry).collect();
        Hosts::parse(Path::new("hosts.toml"), &text).unwrap()
    }

    fn peers(config: &Config) -> Vec<String> {
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
