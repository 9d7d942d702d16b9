//! A table of prefixes with longest-prefix match.

use core::cmp::Reverse;
use core::net::Ipv6Addr;
use std::collections::BTreeMap;

/// Length of `::ffff:0:0/96`, the prefix of mapped IPv4 addresses.
const MAPPED_BITS: u8 = 96;

/// A table of prefixes with owners of type `T`.
#[derive(Clone, Debug)]
pub(crate) struct Subnets<T> {
    /// Owners by prefix length, the longest first, then by address.
    lengths: BTreeMap<Reverse<u8>, BTreeMap<u128, T>>,
}

impl<T> Default for Subnets<T> {
    fn default() -> Subnets<T> {
        Subnets { lengths: BTreeMap::new() }
    }
}

fn mask(bits: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0)
}

impl<T: Copy + PartialEq> Subnets<T> {
    /// Adds a prefix. Returns false, without a change, if it has another owner.
    pub fn insert(&mut self, address: Ipv6Addr, bits: u8, whose: T) -> bool {
        let nets = self.lengths.entry(Reverse(bits.min(128))).or_default();
        *nets.entry(u128::from(address) & mask(bits)).or_insert(whose) == whose
    }

    /// Owner of the longest prefix that holds `address`. An IPv6 prefix holds no IPv4 address.
    pub fn find(&self, address: Ipv6Addr) -> Option<T> {
        let v4 = address.to_ipv4_mapped().is_some();
        let lengths = self.lengths.iter().take_while(|(bits, _)| !v4 || bits.0 >= MAPPED_BITS);
        let mut found = lengths.map(|(bits, nets)| nets.get(&(u128::from(address) & mask(bits.0))));
        found.find_map(|whose| whose.copied())
    }

    pub fn clear(&mut self) {
        self.lengths.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The expected result of [`Subnets::find`], by a search of all prefixes.
    fn slowly(all: &[(Ipv6Addr, u8, u32)], address: Ipv6Addr) -> Option<u32> {
        let same = |a: Ipv6Addr, bits: u8| {
            let differ = u128::from(a) ^ u128::from(address);
            differ.leading_zeros() >= u32::from(bits)
        };
        let family = |bits: u8| address.to_ipv4_mapped().is_none() || bits >= 96;
        let holds = all.iter().filter(|(a, bits, _)| family(*bits) && same(*a, *bits));
        holds.max_by_key(|(_, bits, _)| bits).map(|(.., whose)| *whose)
    }

    /// Addresses near each other, of both families.
    fn address() -> impl Strategy<Value = Ipv6Addr> {
        (any::<bool>(), 0u32..8, any::<[bool; 2]>()).prop_map(|(v4, low, high)| {
            let low = low << 29 | low;
            let top = u128::from(high[0]) << 127 | u128::from(high[1]) << 64;
            if v4 {
                core::net::Ipv4Addr::from(low).to_ipv6_mapped()
            } else {
                Ipv6Addr::from(top | 1 << 100 | u128::from(low))
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]
        #[test]
        fn the_longest_decides(
            all in prop::collection::vec((address(), 0u8..=128), 0..12),
            probe in address(),
        ) {
            let (mut table, mut kept) = (Subnets::default(), Vec::new());
            for (i, (at, bits)) in all.into_iter().enumerate() {
                // A prefix within `::ffff:0:0/96` has at least 96 bits.
                let bits = if at.to_ipv4_mapped().is_some() { bits.max(96) } else { bits };
                if table.insert(at, bits, i as u32) {
                    kept.push((at, bits, i as u32));
                }
            }
            prop_assert_eq!(table.find(probe), slowly(&kept, probe));
        }
    }

    #[test]
    fn one_prefix_is_one_hosts() {
        let mut table = Subnets::default();
        let at = |text: &str| text.parse::<Ipv6Addr>().unwrap();
        assert!(table.insert(at("fd00:1::"), 32, 1) && table.insert(at("fd00:1::"), 32, 1));
        assert!(!table.insert(at("fd00:1::7"), 32, 2), "bits behind the prefix don't count");
        assert!(table.insert(at("fd00:1:2::"), 48, 2) && table.insert(at("::"), 0, 3));
        assert_eq!(table.find(at("fd00:1:1::1")), Some(1));
        assert_eq!(table.find(at("fd00:1:2::1")), Some(2));
        assert_eq!(table.find(at("2001::1")), Some(3));
        assert_eq!(table.find(at("::ffff:10.0.0.1")), None, "::/0 is an IPv6 prefix");
        table.clear();
        assert_eq!(table.find(at("fd00:1:1::1")), None);
    }
}
