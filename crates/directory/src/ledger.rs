//! What each neighbour has had of the list, and how often its transfers failed.
//!
//! It is kept by neighbour, not by link: a link that goes and comes, or is made anew under another
//! number, earns nothing.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_wire::{Address, Time};

/// Copies of the list that a neighbour may have at once, so that lost parts can be sent again.
const COPIES: u64 = 4;
/// Time in which a neighbour earns so many copies anew.
const COPIES_TIME: Duration = Duration::from_secs(120);
/// Parts added to every such allowance: short lists are asked for as often.
const PARTS_MIN: u64 = 64;
/// Wait before a neighbour whose transfer failed is asked again, doubling with each failure.
const AGAIN_FIRST: Duration = Duration::from_secs(1);
/// Longest such wait.
const AGAIN_MAX: Duration = Duration::from_secs(30);
/// Neighbours that are remembered: more than a list has members.
const NEIGHBOURS_MAX: usize = 65_536;

/// Parts of the list in force that a neighbour had.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    spent: u64,
    at: Time,
}

impl Allowance {
    /// Whether one more part of a list of `count` may be sent, after what was earned until `now`.
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

/// How a neighbour's transfers to this node went.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conduct {
    pub(crate) failures: u32,
    /// Time before which it is not asked for its list.
    pub(crate) not_before: Time,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    allowances: BTreeMap<Address, Allowance>,
    /// Of neighbours whose last transfer failed.
    conducts: BTreeMap<Address, Conduct>,
}

impl Ledger {
    /// Another list is in force, of which nobody had anything yet.
    pub(crate) fn begin_list(&mut self) {
        self.allowances.clear();
    }

    /// Whether one more part of a list of `count` may go to a neighbour.
    pub(crate) fn may_have(&mut self, now: Time, neighbour: Address, count: u32) -> bool {
        self.allowance(now, neighbour).has(now, count)
    }

    /// A part went to a neighbour.
    pub(crate) fn spend(&mut self, now: Time, neighbour: Address) {
        self.allowance(now, neighbour).spent += 1;
    }

    fn allowance(&mut self, now: Time, neighbour: Address) -> &mut Allowance {
        make_room(&mut self.allowances, neighbour, |allowance| allowance.at);
        self.allowances.entry(neighbour).or_insert(Allowance { spent: 0, at: now })
    }

    pub(crate) fn conduct(&self, neighbour: Address) -> Conduct {
        self.conducts.get(&neighbour).copied().unwrap_or_default()
    }

    /// A neighbour's transfer failed: it is not asked again for a while, for `least` at least.
    pub(crate) fn punish(&mut self, now: Time, neighbour: Address, least: Duration) {
        make_room(&mut self.conducts, neighbour, |conduct| conduct.not_before);
        let conduct = self.conducts.entry(neighbour).or_default();
        let again = AGAIN_FIRST * 2u32.pow(conduct.failures.min(5));
        conduct.failures = conduct.failures.saturating_add(1);
        let until = now + again.min(AGAIN_MAX).max(least);
        conduct.not_before = conduct.not_before.max(until);
    }

    /// A neighbour's list counted.
    pub(crate) fn forgive(&mut self, neighbour: Address) {
        self.conducts.remove(&neighbour);
    }
}

/// Forgets the oldest entry where there is no room for a new one. Neighbours are members: lists of
/// the authority alone bring so many.
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
        let mut ledger = Ledger::default();
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
