//! What people call the nodes that the machines number.

use std::collections::{BTreeMap, BTreeSet};

use shoal_edge::HostId;
use shoal_ip::Prefix;
use shoal_wire::LinkId;

use crate::control::api::{ErrorCode, Reply};
use crate::control::journal;
use crate::membership::hosts::Hosts;

/// Names of neighbours and hosts, both ways.
#[derive(Debug)]
pub struct Names {
    hosts: Hosts,
    by_name: BTreeMap<String, HostId>,
    by_id: BTreeMap<HostId, String>,
    links: BTreeMap<LinkId, String>,
    /// A direct link and one of the configuration may lead to the same neighbour.
    links_by_name: BTreeMap<String, BTreeSet<LinkId>>,
    /// The nodes that links lead to, if they are not those of `hosts`.
    linked: Option<Hosts>,
    /// Hosts whose names lead to earlier members, as they were logged last.
    nameless: Vec<String>,
    overlay: Prefix,
}

impl Names {
    /// No numbers yet. `overlay` is the prefix of all hosts' IPv6 addresses, as it was at the
    /// start.
    pub fn new(hosts: Hosts, overlay: Prefix) -> Names {
        Names {
            hosts,
            by_name: BTreeMap::new(),
            by_id: BTreeMap::new(),
            links: BTreeMap::new(),
            links_by_name: BTreeMap::new(),
            linked: None,
            nameless: Vec::new(),
            overlay,
        }
    }

    /// The list that the names come from.
    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// The prefix of all hosts' IPv6 addresses.
    pub fn overlay(&self) -> &Prefix {
        &self.overlay
    }

    /// The list of nodes that links lead to: [`Names::hosts`], unless this node waits for a newer
    /// one.
    pub fn linked(&self) -> &Hosts {
        self.linked.as_ref().unwrap_or(&self.hosts)
    }

    /// Puts another list for links in place.
    pub fn set_linked(&mut self, linked: Option<Hosts>) {
        self.linked = linked;
    }

    /// Puts another list in place; its hosts have no numbers yet.
    pub fn replace_hosts(&mut self, hosts: Hosts) {
        self.hosts = hosts;
        self.by_name.clear();
        self.by_id.clear();
    }

    /// Numbers a host.
    pub fn add_host(&mut self, id: HostId, name: &str) {
        self.by_name.insert(name.to_string(), id);
        self.by_id.insert(id, name.to_string());
    }

    /// Numbers a neighbour.
    pub fn add_link(&mut self, id: LinkId, name: &str) {
        self.remove_link(id);
        self.links.insert(id, name.to_string());
        self.links_by_name.entry(name.to_string()).or_default().insert(id);
    }

    /// Forgets a neighbour.
    pub fn remove_link(&mut self, id: LinkId) {
        let Some(name) = self.links.remove(&id) else { return };
        if let Some(links) = self.links_by_name.get_mut(&name) {
            links.remove(&id);
            if links.is_empty() {
                self.links_by_name.remove(&name);
            }
        }
    }

    /// Number of the neighbour called `name`.
    pub fn link_id(&self, name: &str) -> Option<LinkId> {
        self.links_by_name.get(name)?.first().copied()
    }

    /// Number of the host called `name`.
    pub fn host_id(&self, name: &str) -> Option<HostId> {
        self.by_name.get(name).copied()
    }

    /// Number of the host that somebody means by `name`, in whatever capitals.
    pub fn find(&self, name: &str) -> Option<HostId> {
        self.host_id(&self.hosts.holder(name)?.name)
    }

    /// Logs how many hosts have names that lead to earlier members, if these are others than at the
    /// last call.
    pub fn warn_of_nameless(&mut self) {
        let nameless = self.hosts.nameless();
        if nameless != self.nameless && !nameless.is_empty() {
            let what = format!("{} hosts have names that lead to earlier members", nameless.len());
            tracing::warn!("{}", journal::unnamed(&what, journal::STATUS, &nameless));
        }
        self.nameless = nameless;
    }

    /// Hosts whose names lead to earlier members, in words for the operator.
    pub fn nameless(&self) -> &[String] {
        &self.nameless
    }

    /// Name of a host.
    pub fn host(&self, id: HostId) -> String {
        self.by_id.get(&id).cloned().unwrap_or_default()
    }

    /// Name of a neighbour.
    pub fn link(&self, id: LinkId) -> String {
        self.links.get(&id).cloned().unwrap_or_default()
    }

    /// Name of a router, if the list has one.
    pub fn router(&self, number: u32) -> Option<String> {
        let address = shoal_wire::Address::new(number, 0);
        self.hosts.by_address(address).map(|host| host.name.clone())
    }

    /// The answer to an unknown name.
    pub fn unknown(&self, name: &str) -> Reply {
        if self.hosts.holder(name).is_some() {
            let text = format!("{name:?} is this node itself");
            return Reply::error(ErrorCode::BadRequest, text);
        }
        let near = self.hosts.similar(name).join(" or ");
        let hint = if near.is_empty() { near } else { format!("; did you mean {near}?") };
        let text = format!("there is no host {name:?} in the hosts file of this node{hint}");
        Reply::error(ErrorCode::UnknownHost, text)
    }
}
