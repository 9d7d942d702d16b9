//! Parts of the list sent to each neighbour, and failures of its transfers.
//!
//! The counts belong to neighbours, not links: a neighbour gains nothing by a new link.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_wire::{Address, Time};

/// Maximum burst of copies of the list per neighbour, so that lost parts can be repeated.
const COPIES: u64 = 4;
/// Time in which a neighbour may get [`COPIES`] more.
const COPIES_TIME: Duration = Duration::from_secs(120);
/// Parts added to each allowance, so that short lists allow enough requests.
const PARTS_MIN: u64 = 64;
/// Time until a neighbour that failed is asked again; it doubles with each failure.
const AGAIN_FIRST: Duration = Duration::from_secs(1);
/// Maximum of that time.
const AGAIN_MAX: Duration = Duration::from_secs(30);
/// Maximum number of neighbours: more than a list has members.
const NEIGHBOURS_MAX: usize = 65_536;

/// A neighbour's allowance of parts of the list in force.
#[derive(Clone, Copy, Debug)]
struct SendAllowance {
    spent: u64,
    at: Time,
}

impl SendAllowance {
    /// True if one more part of a list with `count` parts may be sent at `now`.
    fn has(&mut self, now: Time, count: u32) -> bool {
        let most = COPIES * u64::from(count) + PARTS_MIN;
        let elapsed_us = u64::try_from(now.since(self.at).as_micros()).unwrap_or(u64::MAX);
        let time_us = u64::try_from(COPIES_TIME.as_micros()).unwrap_or(u64::MAX);
        let earned = elapsed_us.saturating_mul(most) / time_us;
        if earned > 0 {
            (self.spent, self.at) = (self.spent.saturating_sub(earned), now);
        }
        self.spent < most
    }
}

/// Record of a neighbour's transfers to this node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TransferRecord {
    pub(crate) failures: u32,
    /// Earliest time of the next request to the neighbour.
    pub(crate) not_before: Time,
}

#[derive(Debug, Default)]
pub(crate) struct PeerLedger {
    allowances: BTreeMap<Address, SendAllowance>,
    /// Records of neighbours whose last transfer failed.
    conducts: BTreeMap<Address, TransferRecord>,
}

impl PeerLedger {
    /// Resets all allowances for a new list.
    pub(crate) fn begin_list(&mut self) {
        self.allowances.clear();
    }

    /// True if one more part of a list with `count` parts may go to a neighbour.
    pub(crate) fn may_have(&mut self, now: Time, neighbour: Address, count: u32) -> bool {
        self.allowance(now, neighbour).has(now, count)
    }

    /// Counts a part sent to a neighbour.
    pub(crate) fn spend(&mut self, now: Time, neighbour: Address) {
        self.allowance(now, neighbour).spent += 1;
    }

    fn allowance(&mut self, now: Time, neighbour: Address) -> &mut SendAllowance {
        make_room(&mut self.allowances, neighbour, |allowance| allowance.at);
        self.allowances.entry(neighbour).or_insert(SendAllowance { spent: 0, at: now })
    }

    pub(crate) fn conduct(&self, neighbour: Address) -> TransferRecord {
        self.conducts.get(&neighbour).copied().unwrap_or_default()
    }

    /// Records a failure: the neighbour is not asked again for a while, at least for `least`.
    pub(crate) fn punish(&mut self, now: Time, neighbour: Address, least: Duration) {
        make_room(&mut self.conducts, neighbour, |conduct| conduct.not_before);
        let conduct = self.conducts.entry(neighbour).or_default();
        let again = AGAIN_FIRST * 2u32.pow(conduct.failures.min(5));
        conduct.failures = conduct.failures.saturating_add(1);
        let until = now + again.min(AGAIN_MAX).max(least);
        conduct.not_before = conduct.not_before.max(until);
    }

    /// Forgets a neighbour's failures after a success.
    pub(crate) fn forgive(&mut self, neighbour: Address) {
        self.conducts.remove(&neighbour);
    }
}

/// Removes the oldest entry if there is no room for a new one. Neighbours are members, so only
/// lists of the authority can bring that many.
fn make_room<T>(entries: &mut BTreeMap<Address, T>, new: Address, age: impl Fn(&T) -> Time) {
    if entries.len() >= NEIGHBOURS_MAX && !entries.contains_key(&new) {
        let oldest = entries.iter().min_by_key(|(_, entry)| age(entry)).map(|(at, _)| *at);
        oldest.map(|oldest| entries.remove(&oldest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ledger_is_bounded_and_the_oldest_entry_goes_first() {
        let mut ledger = PeerLedger::default();
        let at = |n: usize| Address::new(n as u32, 1);
        for n in 0..=NEIGHBOURS_MAX {
            let now = Time::from_millis(n as u64);
            ledger.punish(now, at(n), Duration::ZERO);
            ledger.spend(now, at(n));
        }
        assert_eq!((ledger.conducts.len(), ledger.allowances.len()), (65_536, 65_536));
        assert_eq!((ledger.conduct(at(0)).failures, ledger.conduct(at(1)).failures), (0, 1));
    }
}
