//! IPv6 addresses of hosts, derived from their keys (docs/design/ip.md).
//!
//! ```text
//!  0    1              6                                      16
//! +----+--------------+--------------------------------------+
//! | fd | network [40] | host [80]                            |
//! +----+--------------+--------------------------------------+
//! ```
//!
//! The first 48 bits are a unique local prefix (RFC 4193), stated in the authority's list or
//! derived from the network secret. So two networks on one machine have different prefixes. The
//! rest is a hash of the host's public key. To take another host's address, an attacker must find a
//! key with the same 80 bits.

use core::net::Ipv6Addr;

use shoal_crypto::{NetworkSecret, PublicKey, kdf};

/// Length of the prefix common to all hosts of a network, in bits.
const PREFIX_BITS: u8 = 48;
/// The hash needs no secret key: the address is public.
const NO_KEY: [u8; 32] = [0; 32];

/// An IPv6 prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// First address of the prefix.
    pub address: Ipv6Addr,
    /// Length in bits.
    pub bits: u8,
}

/// The last 80 bits of a host's address. They must be unique in a network.
pub fn host_part(key: &PublicKey) -> [u8; 10] {
    let drawn = kdf(&NO_KEY, "shoal v1 overlay host", &[&key.to_bytes()]);
    let mut part = [0; 10];
    part.copy_from_slice(&drawn[..10]);
    part
}

/// The prefix of a network, derived from its secret.
pub fn overlay_prefix(secret: &NetworkSecret) -> Prefix {
    let drawn = kdf(&secret.0, "shoal v1 overlay prefix", &[]);
    let mut address = [0; 16];
    address[0] = 0xfd;
    address[1..6].copy_from_slice(&drawn[..5]);
    Prefix { address: address.into(), bits: PREFIX_BITS }
}

/// The prefix of the network that holds `address`.
pub fn network_prefix(address: Ipv6Addr) -> Prefix {
    let mut network = [0; 16];
    network[..6].copy_from_slice(&address.octets()[..6]);
    Prefix { address: network.into(), bits: PREFIX_BITS }
}

/// The address of a host in a network.
pub fn overlay_address(prefix: &Prefix, key: &PublicKey) -> Ipv6Addr {
    let mut address = prefix.address.octets();
    address[6..].copy_from_slice(&host_part(key));
    address.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_crypto::Identity;

    #[test]
    fn addresses_follow_from_keys_and_never_change() {
        let prefix = overlay_prefix(&NetworkSecret([7; 32]));
        let key = Identity::from_seed([1; 32]).public();
        let address = overlay_address(&prefix, &key);
        // Golden: a change here gives every host another address.
        assert_eq!(address.to_string(), "fd6e:5f96:b8dc:dc49:2e56:77a7:f79d:ecd");
        assert!(address.is_unique_local());
        let other = overlay_prefix(&NetworkSecret([8; 32]));
        assert_ne!(prefix, other);
        assert_eq!(overlay_address(&other, &key).octets()[6..], address.octets()[6..]);
        assert_eq!(network_prefix(address), prefix);
        let stranger = Identity::from_seed([2; 32]).public();
        assert_ne!(overlay_address(&prefix, &stranger), address);
    }
}
