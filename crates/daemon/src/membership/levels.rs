//! Security groups: the levels of direct links, from the list and from this node's file.
//!
//! In: `[direct]` of node.toml, and the list of hosts. Out: each host's groups in the list, and
//! whether `encrypt_with` includes the host. The edge decides from both (`shoal_edge::agree`).

use std::net::IpAddr;

use shoal_crypto::kdf;
use shoal_directory::Prefix;
use shoal_edge::{GroupHash, HostSecurity};

use super::hosts::{HostList, ListedHost};
use crate::config::{DirectLevel, DirectMode, EncryptWith, NodeConfig};

/// Most unknown names of `encrypt_with` in one warning.
const SHOWN: usize = 5;

/// Start of the [`warning`].
pub(crate) const NOBODY: &str = "[direct] encrypt_with: no host of the list is called";

/// Hash of a security group's name, as messages carry it. It depends only on the name: hosts with
/// different secrets of one network, during a change, find their common groups.
pub fn group_hash(name: &str) -> GroupHash {
    let hash = kdf(&[0; 32], "shoal v1 security group", &[name.as_bytes()]);
    core::array::from_fn(|i| hash[i])
}

fn hashes(names: &[String]) -> Vec<GroupHash> {
    names.iter().map(|name| group_hash(name)).collect()
}

/// This node's security groups in the list.
pub fn own(config: &NodeConfig, hosts: &HostList) -> Vec<GroupHash> {
    hosts.by_name(&config.node.name).map(|me| hashes(&me.security_groups)).unwrap_or_default()
}

/// Settings of another host in the list and the file. `overlay` is the prefix of all hosts' IPv6
/// addresses.
pub fn of(config: &NodeConfig, host: &ListedHost, overlay: &shoal_ip::Prefix) -> HostSecurity {
    let encrypt = config.direct.encrypt_with.iter().any(|text| has(text, host, overlay));
    HostSecurity { groups: hashes(&host.security_groups), encrypt }
}

/// True if an entry of `encrypt_with` includes the host: its name, one of its addresses, or a part
/// of a network behind it.
fn has(entry: &EncryptWith, host: &ListedHost, overlay: &shoal_ip::Prefix) -> bool {
    match entry {
        EncryptWith::Named(name) => host.name == *name,
        EncryptWith::In(prefix) => {
            let own = shoal_ip::overlay_address(overlay, &host.key);
            let addresses = [Some(IpAddr::from(own)), host.ipv4.map(IpAddr::from)];
            let meets = |behind: &Prefix| behind.covers(prefix) || prefix.covers(behind);
            addresses.into_iter().flatten().any(|ip| prefix.holds(ip))
                || host.prefixes.iter().any(meets)
        }
    }
}

/// Names of the hosts with which this node's file requires encryption, in the order of the list.
pub fn encrypted<'a>(
    config: &'a NodeConfig,
    hosts: &'a HostList,
    overlay: &'a shoal_ip::Prefix,
) -> impl Iterator<Item = &'a str> {
    let others = hosts.iter().filter(|host| host.name != config.node.name);
    let others = others.filter(|host| !host.address.is_router());
    others.filter(|host| of(config, host, overlay).encrypt).map(|host| host.name.as_str())
}

/// Warning about names of `encrypt_with` that no host of the list has. Direct links with the hosts
/// meant may be unencrypted.
pub fn warning(config: &NodeConfig, hosts: &HostList) -> Option<String> {
    let section = &config.direct;
    if section.mode == DirectMode::Off || section.level == DirectLevel::Encrypt {
        return None;
    }
    let unknown = section.encrypt_with.iter().filter_map(|entry| match &**entry {
        EncryptWith::Named(name) if hosts.by_name(name).is_none() => Some(name.as_str()),
        _ => None,
    });
    let unknown: Vec<&str> = unknown.collect();
    let more = match unknown.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let shown = unknown[..unknown.len().min(SHOWN)].join(", ");
    (!unknown.is_empty()).then(|| format!("{NOBODY} {shown}{more}: check the spelling"))
}

#[cfg(test)]
mod tests;
