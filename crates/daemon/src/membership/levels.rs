//! Security groups: what the list and this node's file say of the levels of direct links.
//!
//! In: `[direct]` of node.toml, and the list of hosts. Out: for each host its groups by the list,
//! and whether `encrypt_with` has it. The edge decides with that (`shoal_edge::agree`).

use std::net::IpAddr;

use shoal_crypto::kdf;
use shoal_directory::Prefix;
use shoal_edge::{GroupHash, Security};

use super::hosts::{Host, Hosts};
use crate::config::{Config, DirectLevel, DirectMode, EncryptWith};

/// Most names of `encrypt_with` that no host has and that a warning tells.
const SHOWN: usize = 5;

/// How the [`warning`] about them begins.
pub(crate) const NOBODY: &str = "[direct] encrypt_with: no host of the list is called";

/// The name of a security group as it stands in messages. It depends on the name alone: hosts that
/// know different secrets of one network, while it changes, find their common groups.
pub fn group_hash(name: &str) -> GroupHash {
    let hash = kdf(&[0; 32], "shoal v1 security group", &[name.as_bytes()]);
    core::array::from_fn(|i| hash[i])
}

fn hashes(names: &[String]) -> Vec<GroupHash> {
    names.iter().map(|name| group_hash(name)).collect()
}

/// This node's security groups by the list.
pub fn own(config: &Config, hosts: &Hosts) -> Vec<GroupHash> {
    hosts.by_name(&config.node.name).map(|me| hashes(&me.security_groups)).unwrap_or_default()
}

/// What the list and the file say of another host. `overlay` is the prefix of all hosts' IPv6
/// addresses.
pub fn of(config: &Config, host: &Host, overlay: &shoal_ip::Prefix) -> Security {
    let encrypt = config.direct.encrypt_with.iter().any(|text| has(text, host, overlay));
    Security { groups: hashes(&host.security_groups), encrypt }
}

/// Whether an entry of `encrypt_with` has the host: its name, one of its addresses, or a network
/// behind it of which a part is in the entry.
fn has(entry: &EncryptWith, host: &Host, overlay: &shoal_ip::Prefix) -> bool {
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

/// Names of the hosts with which this node's file asks for encryption, in the order of the list.
pub fn encrypted<'a>(
    config: &'a Config,
    hosts: &'a Hosts,
    overlay: &'a shoal_ip::Prefix,
) -> impl Iterator<Item = &'a str> {
    let others = hosts.iter().filter(|host| host.name != config.node.name);
    let others = others.filter(|host| !host.address.is_router());
    others.filter(|host| of(config, host, overlay).encrypt).map(|host| host.name.as_str())
}

/// Names of `encrypt_with` that no host of the list has: with the host that is meant nothing is
/// asked for.
pub fn warning(config: &Config, hosts: &Hosts) -> Option<String> {
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
