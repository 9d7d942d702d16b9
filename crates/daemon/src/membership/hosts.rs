//! The list of the network's nodes: `hosts.toml`.
//!
//! In: a file of `[[host]]` entries. Out: [`HostList`], in which every name, address and key is
//! unique, or a [`ConfigError`] that names the line. Routers are entries whose address has host
//! number 0.
//!
//! Three other sections have the same meaning as in an authority's policy. `[[circuits]]` requires
//! circuits between hosts, `[[mix]]` sets the delays that relays add to cells, and `[[cover]]` sets
//! the schedules of covered links. The file is the same on every node. It holds no secret, but
//! names the members of the network.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use serde::Deserialize;
use shoal_crypto::PublicKey;
use shoal_directory::{
    CircuitRole, CircuitRules, CircuitText, EntryError, GROUPS_MAX, MixText, Mixes, NetworkPreset,
    PREFIXES_MAX, Prefix, Preset, RuleSubject, TierText, Tiers, check_cover, fold, is_host,
};
use shoal_wire::{Address, CoverTier, MixStrategy, NodeAddresses};

use crate::config::{ConfigError, ConfigSource, can_be_called, read_text};

/// Rule for names, for error messages.
pub const NAME_RULE: &str = "expected a name of 1 to 63 letters, digits, '-', '_' or '.', \
                             beginning with a letter or digit";
/// Most entries of one list.
pub const MAX_HOSTS: usize = 65_536;

pub use shoal_directory::is_name;

/// One node of the network.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedHost {
    pub name: String,
    pub address: Address,
    /// Overlay address of the same host at another router.
    pub second: Option<Address>,
    pub key: PublicKey,
    /// Endpoint at which others may call the node, if they may.
    pub endpoint: Option<SocketAddr>,
    /// True if the node has a virtual interface, according to the list.
    pub interface: bool,
    /// IPv4 address on virtual interfaces, if the node has one beside the address of its key.
    pub ipv4: Option<Ipv4Addr>,
    /// Networks behind the node, from which it may send; ascending.
    pub prefixes: Vec<Prefix>,
    /// Name of the schedule of the link with its router; hosts only.
    pub cover: Option<String>,
    /// Security groups (docs/guide/direct.md), ascending; hosts only.
    pub security_groups: Vec<String>,
    /// Settings for circuits: relay, exit, family, capacity, place and mix.
    pub carrier: CircuitRole,
    /// True if a registrar made the entry, so that nobody whom this node trusts vouches for the
    /// endpoint.
    pub by_registrar: bool,
}

/// The checked list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostList {
    entries: Vec<ListedHost>,
    by_name: BTreeMap<String, usize>,
    /// Owner of each folded name. If several members share it, the earliest one.
    holders: BTreeMap<String, usize>,
    by_address: BTreeMap<Address, usize>,
    by_key: BTreeMap<PublicKey, usize>,
    by_ipv4: BTreeMap<Ipv4Addr, usize>,
    by_prefix: BTreeMap<Prefix, usize>,
    circuits: CircuitRules,
    mixes: Mixes,
    tiers: Tiers,
    preset: Option<NetworkPreset>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostsFile {
    #[serde(default)]
    host: Vec<HostEntry>,
    #[serde(default)]
    circuits: Vec<CircuitText>,
    #[serde(default)]
    mix: Vec<MixText>,
    #[serde(default)]
    cover: Vec<TierText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostEntry {
    name: String,
    address: String,
    second: Option<String>,
    key: String,
    endpoint: Option<String>,
    interface: Option<bool>,
    ipv4: Option<String>,
    #[serde(default)]
    prefixes: Vec<String>,
    #[serde(default)]
    relay: bool,
    #[serde(default)]
    exit: bool,
    family: Option<String>,
    capacity: Option<u32>,
    near: Option<String>,
    mix: Option<String>,
    cover: Option<String>,
    #[serde(default)]
    security_groups: Vec<String>,
}

impl HostList {
    /// Reads and checks `file`.
    pub fn load(file: &Path) -> Result<HostList, ConfigError> {
        let text = read_text(file).map_err(|e| ConfigError::unreadable(file, &e))?;
        HostList::parse(file, &text)
    }

    /// Checks `text` as the content of `file`, which need not exist.
    pub fn parse(file: &Path, text: &str) -> Result<HostList, ConfigError> {
        let source = ConfigSource::new(file, text);
        let list: HostsFile = toml::from_str(text).map_err(|e| source.syntax(&e))?;
        if list.host.len() > MAX_HOSTS {
            let text = format!("expected at most {MAX_HOSTS} entries, found {}", list.host.len());
            return Err(source.wrong("host", Some(MAX_HOSTS), "name", text));
        }
        let mut hosts = HostList::default();
        for (i, entry) in list.host.into_iter().enumerate() {
            let wrong = |key, text: String| source.wrong("host", Some(i), key, text);
            let taken =
                |other: usize| format!("belongs to {:?} already", hosts.entries[other].name);
            let key_text = entry.key.clone();
            let host = entry.checked().map_err(|(key, text)| wrong(key, text))?;
            if hosts.by_name.contains_key(&host.name) {
                return Err(wrong("name", format!("{:?} is twice in the list", host.name)));
            }
            if let Some(other) = hosts.holders.insert(fold(&host.name), i) {
                let (name, other) = (&host.name, &hosts.entries[other].name);
                let text = format!(
                    "{name:?} and {other:?} are one name, since DNS tells neither capitals nor a \
                     last dot apart: give one of them another name"
                );
                return Err(wrong("name", text));
            }
            for (key, address) in [("address", Some(host.address)), ("second", host.second)] {
                let other = address.and_then(|at| Some((at, hosts.by_address.get(&at)?)));
                if let Some((at, other)) = other {
                    return Err(wrong(key, format!("{at} {}", taken(*other))));
                }
            }
            if let Some(other) = hosts.by_key.get(&host.key) {
                return Err(wrong("key", format!("{key_text} {}", taken(*other))));
            }
            if let Some(ipv4) = host.ipv4
                && let Some(other) = hosts.by_ipv4.insert(ipv4, i)
            {
                return Err(wrong("ipv4", format!("{ipv4} {}", taken(other))));
            }
            for prefix in &host.prefixes {
                if let Some(other) = hosts.by_prefix.insert(*prefix, i) {
                    return Err(wrong("prefixes", format!("{prefix} {}", taken(other))));
                }
            }
            hosts.by_name.insert(host.name.clone(), i);
            hosts.by_address.extend(host.addresses().iter().map(|at| (at, i)));
            hosts.by_key.insert(host.key, i);
            hosts.entries.push(host);
        }
        hosts.read_circuits(list.circuits, &source)?;
        hosts.read_mixes(list.mix, &source)?;
        hosts.read_tiers(list.cover, &source)?;
        Ok(hosts)
    }

    /// Checks and stores the rules that require circuits.
    fn read_circuits(
        &mut self,
        texts: Vec<CircuitText>,
        source: &ConfigSource<'_>,
    ) -> Result<(), ConfigError> {
        let rules = CircuitRules::check(texts).map_err(|error| {
            let EntryError { index, key, message, .. } = error;
            source.wrong("circuits", Some(index), key, message)
        })?;
        let wrong = |key, text| Err(source.wrong("circuits", None, key, text));
        if let Some(group) = rules.groups().first() {
            let text = format!(
                "{group:?}: a hosts file has no groups: expected [\"*\", \"*\"], or members = [two \
                 names]"
            );
            return wrong("between", text);
        }
        if let Some(name) = rules.members().into_iter().find(|name| self.by_name(name).is_none()) {
            return wrong("members", format!("{name:?} is not in the list"));
        }
        self.circuits = rules;
        Ok(())
    }

    /// Checks and stores the mixes of relays.
    fn read_mixes(
        &mut self,
        texts: Vec<MixText>,
        source: &ConfigSource<'_>,
    ) -> Result<(), ConfigError> {
        self.mixes = Mixes::check(texts).map_err(|error| {
            let EntryError { index, key, message, .. } = error;
            source.wrong("mix", Some(index), key, message)
        })?;
        for (i, host) in self.entries.iter().enumerate() {
            let mix = host.carrier.mix.as_deref();
            if let Some(mix) = mix.filter(|mix| self.mixes.by_name(mix).is_none()) {
                return Err(source.wrong("host", Some(i), "mix", self.mixes.unknown(mix)));
            }
        }
        Ok(())
    }

    /// Checks and stores the schedules of links between hosts and their routers.
    fn read_tiers(
        &mut self,
        texts: Vec<TierText>,
        source: &ConfigSource<'_>,
    ) -> Result<(), ConfigError> {
        self.tiers = Tiers::check(texts).map_err(|error| {
            let EntryError { index, key, message, .. } = error;
            source.wrong("cover", Some(index), key, message)
        })?;
        for (i, host) in self.entries.iter().enumerate() {
            let tier = host.cover.as_deref();
            if let Some(tier) = tier.filter(|tier| self.tiers.by_name(tier).is_none()) {
                return Err(source.wrong("host", Some(i), "cover", self.tiers.unknown(tier)));
            }
        }
        Ok(())
    }

    /// Makes a list of nodes whose names, addresses and keys are known to be unique, sorted by
    /// name. If names differ only in capitals, the first node owns the name.
    pub fn from_checked(all: impl IntoIterator<Item = ListedHost>) -> HostList {
        HostList::from_members(all.into_iter().map(|host| (host, true)))
    }

    /// [`HostList::from_checked`] with a flag for each node: true if the node may own its name.
    /// False if an earlier member, present or not, has the name in other capitals.
    pub fn from_members(all: impl IntoIterator<Item = (ListedHost, bool)>) -> HostList {
        let mut hosts = HostList::default();
        let mut all: Vec<(ListedHost, bool)> = all.into_iter().collect();
        let mut holders = BTreeMap::new();
        for (host, _) in all.iter().filter(|(_, holds_name)| *holds_name) {
            holders.entry(fold(&host.name)).or_insert(host.key);
        }
        all.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        for (i, (host, _)) in all.into_iter().enumerate() {
            let folded = fold(&host.name);
            if holders.get(&folded) == Some(&host.key) {
                hosts.holders.insert(folded, i);
            }
            hosts.by_name.insert(host.name.clone(), i);
            hosts.by_address.extend(host.addresses().iter().map(|at| (at, i)));
            hosts.by_key.insert(host.key, i);
            hosts.entries.push(host);
        }
        hosts
    }

    /// Replaces the network's mixes.
    pub fn with_mixes(self, mixes: Mixes) -> HostList {
        HostList { mixes, ..self }
    }

    /// Replaces the network's tiers of cover.
    pub fn with_tiers(self, tiers: Tiers) -> HostList {
        HostList { tiers, ..self }
    }

    /// Replaces the network's preset.
    pub fn with_preset(self, preset: Option<NetworkPreset>) -> HostList {
        HostList { preset, ..self }
    }

    /// Replaces the network's preset in place.
    pub fn set_preset(&mut self, preset: Option<NetworkPreset>) {
        self.preset = preset;
    }

    /// The preset that the network asks of all hosts.
    pub fn preset(&self) -> Preset {
        self.preset.as_ref().map_or(Preset::Fast, |preset| preset.level)
    }

    /// Schedules of links between hosts and their routers.
    pub fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    /// The schedule of the link between this host and its router, if the link is covered.
    pub fn cover_of(&self, host: &ListedHost) -> Option<CoverTier> {
        let cover = host.cover.as_deref().filter(|_| !host.address.is_router());
        self.tiers.by_name(cover?)
    }

    /// The schedule of links between routers, if the network's preset covers them.
    fn router_cover(&self) -> Option<CoverTier> {
        self.tiers.by_name(self.preset.as_ref()?.router_tier.as_deref()?)
    }

    /// The schedule of the link between two nodes: a covered host and one of its own routers, or
    /// two routers.
    pub fn cover_between(&self, one: &ListedHost, other: &ListedHost) -> Option<CoverTier> {
        let is_router = |node: &ListedHost| node.address.is_router();
        let (router, host) = match (is_router(one), is_router(other)) {
            (true, false) => (one, other),
            (false, true) => (other, one),
            (true, true) => return self.router_cover(),
            (false, false) => return None,
        };
        self.cover_of(host).filter(|_| host.addresses().at(router.address.router).is_some())
    }

    /// The network's mixes.
    pub fn mixes(&self) -> &Mixes {
        &self.mixes
    }

    /// The mix of this router for the cells of all circuits, if it is a relay with its own mix.
    pub fn mix_of(&self, host: &ListedHost) -> Option<MixStrategy> {
        let CircuitRole { relay, mix, .. } = &host.carrier;
        self.mixes.by_name(mix.as_deref().filter(|_| *relay)?)
    }

    /// Rules that require circuits, from this file.
    pub fn circuits(&self) -> &CircuitRules {
        &self.circuits
    }

    /// All nodes, in the order of the file, or sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &ListedHost> {
        self.entries.iter()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn by_name(&self, name: &str) -> Option<&ListedHost> {
        self.by_name.get(name).map(|i| &self.entries[*i])
    }

    /// The node that owns `name`, in any capitals.
    pub fn holder(&self, name: &str) -> Option<&ListedHost> {
        self.holders.get(&fold(name)).map(|i| &self.entries[*i])
    }

    /// True if this node's name leads to it, and not to an earlier member.
    pub fn holds_name(&self, host: &ListedHost) -> bool {
        self.holder(&host.name).is_some_and(|holder| holder.key == host.key)
    }

    /// Warnings about nodes whose names lead to an earlier member, or to no node if that member is
    /// absent.
    pub fn nameless(&self) -> Vec<String> {
        let nameless = self.entries.iter().filter(|host| !self.holds_name(host));
        let words = |host: &ListedHost| {
            let ListedHost { name, address, .. } = host;
            let holder = match self.holder(name) {
                Some(holder) => format!("{:?} ({})", holder.name, holder.address),
                None => "an earlier member that is not in force now".into(),
            };
            format!(
                "the name {name:?} ({address}) differs only by capitals or a last dot from that of \
                 {holder}, so the name leads to the earlier member: end the membership of \
                 {address}, and let it join again under another name"
            )
        };
        nameless.map(words).collect()
    }

    pub fn by_address(&self, address: Address) -> Option<&ListedHost> {
        self.by_address.get(&address).map(|i| &self.entries[*i])
    }

    pub fn by_key(&self, key: &PublicKey) -> Option<&ListedHost> {
        self.by_key.get(key).map(|i| &self.entries[*i])
    }

    /// Names that differ little from `name`, for "did you mean".
    pub fn similar(&self, name: &str) -> Vec<&str> {
        let near = |other: &str| {
            other.eq_ignore_ascii_case(name)
                || (!name.is_empty() && (other.starts_with(name) || name.starts_with(other)))
                || distance_at_most_one(other, name)
        };
        self.entries.iter().map(|host| host.name.as_str()).filter(|n| near(n)).take(3).collect()
    }
}

impl HostEntry {
    fn checked(self) -> Result<ListedHost, (&'static str, String)> {
        if !is_name(&self.name) {
            return Err(("name", NAME_RULE.into()));
        }
        let address = self.address.parse::<Address>().map_err(|e| ("address", e.to_string()))?;
        let second = self.second.map(|text| text.parse::<Address>()).transpose();
        let second = second.map_err(|e| ("second", e.to_string()))?;
        let addresses = NodeAddresses { first: address, second };
        addresses.check().map_err(|why| ("second", why.to_owned()))?;
        let key = self.key.parse::<PublicKey>().map_err(|e| ("key", e.to_string()))?;
        let endpoint = match self.endpoint.map(|text| text.parse::<SocketAddr>()) {
            None => None,
            Some(Ok(endpoint)) if can_be_called(endpoint) => Some(endpoint),
            Some(_) => {
                let text = "expected IP:PORT of one host, such as 192.0.2.2:23871";
                return Err(("endpoint", text.into()));
            }
        };
        let ipv4 = self.ipv4.map(|text| text.parse().ok().filter(is_host));
        if ipv4 == Some(None) {
            return Err(("ipv4", "expected the IPv4 address of a host, such as 10.9.0.1".into()));
        }
        let prefixes = prefixes(&self.prefixes).map_err(|text| ("prefixes", text))?;
        let interface = self.interface.unwrap_or(true);
        if !interface && (ipv4.is_some() || !prefixes.is_empty()) {
            let text = "false: a host without an interface has no ipv4 and no prefixes";
            return Err(("interface", text.into()));
        }
        let ipv4 = ipv4.flatten();
        let security_groups = security_groups(self.security_groups, address)
            .map_err(|why| ("security_groups", why))?;
        let HostEntry { relay, exit, family, capacity, near, mix, cover, name, .. } = self;
        let carrier = CircuitRole { relay, exit, family, capacity, near, mix };
        carrier.check(address).map_err(|(key, why)| (key, why.to_owned()))?;
        check_cover(cover.as_deref(), address).map_err(|why| ("cover", why.to_owned()))?;
        Ok(ListedHost {
            name,
            address,
            second,
            key,
            endpoint,
            interface,
            ipv4,
            prefixes,
            cover,
            security_groups,
            carrier,
            by_registrar: false,
        })
    }
}

impl ListedHost {
    /// Both overlay addresses.
    pub fn addresses(&self) -> NodeAddresses {
        NodeAddresses { first: self.address, second: self.second }
    }

    /// The host as rules about circuits see it. A hosts file has no groups.
    pub fn party(&self) -> RuleSubject<'_> {
        RuleSubject { name: &self.name, groups: &[] }
    }
}

/// Checks and sorts the security groups of a node.
fn security_groups(mut names: Vec<String>, address: Address) -> Result<Vec<String>, String> {
    if address.is_router() && !names.is_empty() {
        return Err("a router has no direct links, and so no security groups".into());
    }
    if names.len() > GROUPS_MAX {
        return Err(format!("expected at most {GROUPS_MAX} names, found {}", names.len()));
    }
    if let Some(wrong) = names.iter().find(|name| !is_name(name)) {
        return Err(format!("{wrong:?}: {NAME_RULE}"));
    }
    names.sort();
    names.dedup();
    Ok(names)
}

/// Checks and sorts the prefixes of networks behind a host.
///
/// Errors, for the operator: a text is no prefix, or its network can't be behind a host.
pub fn prefixes(texts: &[String]) -> Result<Vec<Prefix>, String> {
    if texts.len() > PREFIXES_MAX {
        return Err(format!("expected at most {PREFIXES_MAX} prefixes, found {}", texts.len()));
    }
    let mut all = texts.iter().map(|text| prefix(text)).collect::<Result<Vec<_>, _>>()?;
    all.sort();
    all.dedup();
    Ok(all)
}

/// Checks the prefix of a network behind a host.
///
/// Errors: see [`prefixes`].
pub fn prefix(text: &str) -> Result<Prefix, String> {
    let prefix: Prefix = text.parse().map_err(|e| format!("{text:?}: {e}"))?;
    prefix.misuse().map_or(Ok(prefix), |why| Err(format!("{text:?}: {why}")))
}

/// True if at most one letter is changed, added or left out.
fn distance_at_most_one(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let same_front = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let (a, b) = (&a[same_front..], &b[same_front..]);
    let same_back = a.iter().rev().zip(b.iter().rev()).take_while(|(x, y)| x == y).count();
    a.len() - same_back <= 1 && b.len() - same_back <= 1
}

#[cfg(test)]
mod tests;
