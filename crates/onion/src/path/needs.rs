//! Relays that circuits need, and relays that a network has.
//!
//! A path over `n` relays avoids the relays of small sites at both ends ([`super::SITE`]), so a
//! network with small sites needs up to two relays more than a path has. A relay with few hosts
//! that joins a network of large sites adds one to both counts, so it closes no host. The relays of
//! a path have different operators.

use std::collections::BTreeSet;

use super::RouterList;

/// A number of relays, and of the families that run them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayCount {
    pub relays: usize,
    /// Number of families. A relay without one counts as a family of its own.
    pub families: usize,
}

/// Relays that a network needs for circuits of a length, and relays that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayNeeds {
    pub needed: RelayCount,
    pub have: RelayCount,
}

impl RelayNeeds {
    /// Needs of circuits over `relays` relays among these routers, for hosts behind any of them.
    pub fn of(routers: &RouterList, relays: u8) -> RelayNeeds {
        let path = usize::from(relays);
        let sites = routers.routers.iter().filter(|(_, router)| router.relay && router.hosts > 0);
        let (large, small): (Vec<_>, Vec<_>) = sites.partition(|(at, _)| routers.is_large(**at));
        // Hosts of a network without large sites will be spread over further small ones.
        let ends = if large.is_empty() { 2 } else { small.len().min(2) };
        let relays: Vec<_> = routers.routers.iter().filter(|(_, router)| router.relay).collect();
        let named: BTreeSet<&str> =
            relays.iter().filter_map(|(_, router)| router.family.as_deref()).collect();
        let alone = relays.iter().filter(|(_, router)| router.family.is_none()).count();
        RelayNeeds {
            needed: RelayCount { relays: path + ends, families: path },
            have: RelayCount { relays: relays.len(), families: named.len() + alone },
        }
    }

    /// Number of further relays that are needed, each of another family if families lack; 0 if the
    /// network has enough.
    pub fn missing(&self) -> usize {
        let RelayNeeds { needed, have } = self;
        let relays = needed.relays.saturating_sub(have.relays);
        relays.max(needed.families.saturating_sub(have.families))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ListedRouter, SITE};
    use super::*;
    use shoal_wire::Address;

    /// Routers with these families and numbers of hosts; an empty family is none.
    fn needs(routers: &[(&str, u32)], relays: u8) -> RelayNeeds {
        let router = |(n, (family, hosts)): (usize, &(&str, u32))| {
            let family = Some(family.to_string()).filter(|family| !family.is_empty());
            let router = ListedRouter { relay: true, family, hosts: *hosts, ..Default::default() };
            (Address::new(n as u32 + 1, 0), router)
        };
        RelayNeeds::of(&RouterList::new(routers.iter().enumerate().map(router)), relays)
    }

    fn counts(needs: RelayNeeds) -> [usize; 5] {
        let RelayNeeds { needed, have } = needs;
        [needed.relays, needed.families, have.relays, have.families, needs.missing()]
    }

    #[test]
    fn small_sites_need_two_relays_more_than_a_path_has() {
        assert_eq!(counts(needs(&[("a", 1)], 3)), [5, 3, 1, 1, 4]);
        assert_eq!(counts(needs(&[("a", 1), ("a", 0), ("b", 0)], 3)), [5, 3, 3, 2, 2]);
        let five = [("a", 1), ("a", 0), ("b", 1), ("b", 0), ("c", 0)];
        assert_eq!(counts(needs(&five, 3)), [5, 3, 5, 3, 0]);
        let one_family = [("a", 1), ("a", 1), ("a", 1), ("a", 1), ("a", 1)];
        assert_eq!(counts(needs(&one_family, 3)), [5, 3, 5, 1, 2], "relays of two more families");
        assert_eq!(counts(needs(&[], 3)), [5, 3, 0, 0, 5]);
    }

    #[test]
    fn large_sites_need_a_path_alone_and_each_small_one_its_relay() {
        let large = |n| (["a", "b", "c"][n], SITE);
        assert_eq!(counts(needs(&[large(0), large(1), large(2)], 3)), [3, 3, 3, 3, 0]);
        assert_eq!(counts(needs(&[large(0), large(1), ("c", 0)], 3)), [3, 3, 3, 3, 0]);
        let one_small = [large(0), large(1), ("c", SITE - 1)];
        assert_eq!(counts(needs(&one_small, 3)), [4, 3, 3, 3, 1]);
        let joined = [large(0), large(1), large(2), ("d", 1)];
        assert_eq!(counts(needs(&joined, 3)), [4, 3, 4, 4, 0], "a newcomer closes no host");
        let two_joined = [large(0), large(1), large(2), ("d", 1), ("e", 1)];
        assert_eq!(counts(needs(&two_joined, 3)), [5, 3, 5, 5, 0]);
        let plain = ListedRouter { relay: false, hosts: 1, ..Default::default() };
        let relay = || ListedRouter { relay: true, hosts: SITE, ..Default::default() };
        let relays = (1..=3).map(|n| (Address::new(n, 0), relay()));
        let with_plain = RouterList::new(relays.chain([(Address::new(4, 0), plain)]));
        assert_eq!(
            RelayNeeds::of(&with_plain, 3).missing(),
            0,
            "a router that is no relay takes none away"
        );
    }

    #[test]
    fn relays_without_a_family_count_alone_and_routers_without_the_right_not_at_all() {
        assert_eq!(counts(needs(&[("", 1), ("", 1), ("a", 1)], 2)), [4, 2, 3, 3, 1]);
        let plain = ListedRouter { relay: false, hosts: 1, ..Default::default() };
        let routers = RouterList::new([(Address::new(1, 0), plain)]);
        assert_eq!(RelayNeeds::of(&routers, 3).have, RelayCount { relays: 0, families: 0 });
    }
}
