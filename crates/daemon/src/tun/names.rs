//! Names of the nodes that the state machines number.

use std::collections::{BTreeMap, BTreeSet};

use shoal_directory::NetworkPreset;
use shoal_edge::HostId;
use shoal_ip::Prefix;
use shoal_wire::LinkId;

use crate::control::api::{ControlReply, ErrorCode};
use crate::control::journal;
use crate::membership::hosts::HostList;

/// Names of neighbours and hosts, both ways.
#[derive(Debug)]
pub struct NodeNames {
    hosts: HostList,
    by_name: BTreeMap<String, HostId>,
    by_id: BTreeMap<HostId, String>,
    links: BTreeMap<LinkId, String>,
    /// Links by name: a direct link and a configured one may lead to the same neighbour.
    links_by_name: BTreeMap<String, BTreeSet<LinkId>>,
    /// The nodes that links lead to, if they differ from `hosts`.
    linked: Option<HostList>,
    /// Hosts whose names lead to earlier members, as logged last.
    nameless: Vec<String>,
    overlay: Prefix,
}

impl NodeNames {
    /// Begins without numbers. `overlay` is the prefix of all hosts' IPv6 addresses at the start.
    pub fn new(hosts: HostList, overlay: Prefix) -> NodeNames {
        NodeNames {
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

    pub fn hosts(&self) -> &HostList {
        &self.hosts
    }

    /// The prefix of all hosts' IPv6 addresses.
    pub fn overlay(&self) -> &Prefix {
        &self.overlay
    }

    /// The nodes that links lead to: [`NodeNames::hosts`], unless links carry only lists.
    pub fn linked(&self) -> &HostList {
        self.linked.as_ref().unwrap_or(&self.hosts)
    }

    /// Replaces the nodes that links lead to.
    pub fn set_linked(&mut self, linked: Option<HostList>) {
        self.linked = linked;
    }

    /// Replaces the network's preset in both lists.
    pub fn set_preset(&mut self, preset: Option<NetworkPreset>) {
        self.linked.iter_mut().for_each(|linked| linked.set_preset(preset.clone()));
        self.hosts.set_preset(preset);
    }

    /// Replaces the list of hosts. The new hosts have no numbers yet.
    pub fn replace_hosts(&mut self, hosts: HostList) {
        self.hosts = hosts;
        self.by_name.clear();
        self.by_id.clear();
    }

    pub fn add_host(&mut self, id: HostId, name: &str) {
        self.by_name.insert(name.to_string(), id);
        self.by_id.insert(id, name.to_string());
    }

    pub fn add_link(&mut self, id: LinkId, name: &str) {
        self.remove_link(id);
        self.links.insert(id, name.to_string());
        self.links_by_name.entry(name.to_string()).or_default().insert(id);
    }

    pub fn remove_link(&mut self, id: LinkId) {
        let Some(name) = self.links.remove(&id) else { return };
        if let Some(links) = self.links_by_name.get_mut(&name) {
            links.remove(&id);
            if links.is_empty() {
                self.links_by_name.remove(&name);
            }
        }
    }

    pub fn link_id(&self, name: &str) -> Option<LinkId> {
        self.links_by_name.get(name)?.first().copied()
    }

    pub fn host_id(&self, name: &str) -> Option<HostId> {
        self.by_name.get(name).copied()
    }

    /// Number of the host that owns `name`, in any capitals.
    pub fn find(&self, name: &str) -> Option<HostId> {
        self.host_id(&self.hosts.holder(name)?.name)
    }

    /// Logs the number of hosts whose names lead to earlier members, if these hosts changed since
    /// the last call.
    pub fn warn_of_nameless(&mut self) {
        let nameless = self.hosts.nameless();
        if nameless != self.nameless && !nameless.is_empty() {
            let what = format!("{} hosts have names that lead to earlier members", nameless.len());
            tracing::warn!("{}", journal::unnamed(&what, journal::STATUS, &nameless));
        }
        self.nameless = nameless;
    }

    /// Warnings about hosts whose names lead to earlier members.
    pub fn nameless(&self) -> &[String] {
        &self.nameless
    }

    pub fn host(&self, id: HostId) -> String {
        self.by_id.get(&id).cloned().unwrap_or_default()
    }

    pub fn link(&self, id: LinkId) -> String {
        self.links.get(&id).cloned().unwrap_or_default()
    }

    pub fn router(&self, number: u32) -> Option<String> {
        let address = shoal_wire::Address::new(number, 0);
        self.hosts.by_address(address).map(|host| host.name.clone())
    }

    /// The answer to a request with an unknown name.
    pub fn unknown(&self, name: &str) -> ControlReply {
        if self.hosts.holder(name).is_some() {
            let text = format!("{name:?} is this node itself");
            return ControlReply::error(ErrorCode::BadRequest, text);
        }
        let near = self.hosts.similar(name).join(" or ");
        let hint = if near.is_empty() { near } else { format!("; did you mean {near}?") };
        let text = format!("there is no host {name:?} in the hosts file of this node{hint}");
        ControlReply::error(ErrorCode::UnknownHost, text)
    }
}
