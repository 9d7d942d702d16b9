//! Relays to which failures are attributed.
//!
//! A set-up or circuit ends on a leg: one relay should have forwarded, the other should have
//! answered. Which of the two is at fault can't be told from outside, so both are suspected:
//!
//! - A relay that was on one failed leg is left out of the middle of paths, if others fit.
//! - A relay that was on failed legs with two others has failed. It explains these legs, and the
//!   others are not suspected for them any more.
//! - An end of paths (a guard or a last relay) is left out only after failed legs with four others.
//!   Otherwise two colluding relays could feign death next to it to force a new draw of the end. An
//!   end that failed with every relay that can be next to it is left out too, since small networks
//!   have fewer than four ([`Blame::accused`]). Until it works again, two are enough.
//! - An end that works within two minutes refutes the relays that it failed with. For a day two
//!   refuted relays count as one other, against this end only.
//! - If a circuit is built over a relay, the relay is not suspected for earlier failures.
//! - If all middles are suspected, one that failed before is used. Whether the set-up gets further
//!   tells the two suspects apart.
//!
//! Before relay 1 comes this host's own uplink. If relay 1 is silent while another node answers, it
//! has failed at the second time in a row. If nothing answers, the uplink may be down: that is
//! *doubt*. In doubt another relay 1 is tried too. If two were silent, the uplink is at fault: no
//! relay is avoided, and all are tried in turn. Doubt ends when anything answers. If another relay
//! 1 answers, the silent one is suspected, since the leg before it may have failed.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use shoal_wire::{Address, Time};

/// Time for which a suspicion counts.
const AVOID: Duration = Duration::from_secs(120);
/// Failed legs that are remembered, counted from both ends.
const LEGS_MAX: usize = 512;
/// Most relays that are remembered as silent in the place of relay 1.
const FIRSTS_MAX: usize = 64;
/// Failures after which a relay has failed: legs with this many others, or this many in a row as
/// relay 1.
const FAILED: usize = 2;
/// Number of others with whom an end must be on failed legs before it has failed.
const END_FAILED: usize = 4;
/// Time for which a relay that an end refuted counts half against it.
const REFUTED: Duration = Duration::from_secs(86_400);
/// Refuted relays that are remembered, counted per end.
const REFUTED_MAX: usize = 128;

/// A relay that was silent as relay 1.
#[derive(Clone, Copy)]
struct SilentRelay {
    at: Address,
    /// Number of times in a row.
    times: usize,
    last: Time,
}

impl SilentRelay {
    /// Counts a set-up that began at `began`, if that is after the last one counted. Set-ups that
    /// run at once fail together.
    fn count(&mut self, now: Time, began: Time) {
        if began >= self.last {
            (self.times, self.last) = (self.times + 1, now);
        }
    }
}

/// A relay that failed or may have failed, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuspectedRelay {
    pub relay: Address,
    /// True if it failed, and is left out if others fit. False if it may have failed, and is left
    /// out of the middle of paths.
    pub failed: bool,
    /// True if a path still uses it, since no path without it keeps the rules.
    pub needed: bool,
    /// Time for which it is still avoided.
    pub left: Duration,
}

/// Relays that failed, or may have failed.
pub(super) struct Blame {
    /// This host's router, which every path needs.
    own: Address,
    /// Pairs of a relay and another relay on a failed leg with it, and the time until which each
    /// counts.
    legs: BTreeMap<(Address, Address), Time>,
    /// Guards and last relays that are kept or on trial, in paths with middles.
    ends: BTreeSet<Address>,
    /// Ends that failed and have not worked since.
    condemned: BTreeSet<Address>,
    /// Pairs of an end and a relay that it refuted, and the time until which each counts.
    refuted: BTreeMap<(Address, Address), Time>,
    /// Last time at which a circuit over each relay was built.
    worked: BTreeMap<Address, Time>,
    /// Relays that were silent as relay 1 while another node answered.
    firsts: Vec<SilentRelay>,
    /// Relays that were silent as relay 1 since anything answered, the latest last.
    doubted: Vec<SilentRelay>,
    /// Last time at which anything answered.
    heard: Option<Time>,
    /// Relays that failed, or may have, but were used.
    needed: BTreeSet<Address>,
}

impl Blame {
    pub(super) fn new(own: Address) -> Blame {
        Blame {
            own,
            legs: BTreeMap::new(),
            ends: BTreeSet::new(),
            condemned: BTreeSet::new(),
            refuted: BTreeMap::new(),
            worked: BTreeMap::new(),
            firsts: Vec::new(),
            doubted: Vec::new(),
            heard: None,
            needed: BTreeSet::new(),
        }
    }

    /// Sets the router of this host that new paths begin at.
    pub(super) fn set_own(&mut self, own: Address) {
        self.own = own;
    }

    /// Sets the guards and last relays that need four accusers. Paths without middles have none,
    /// since four would be too many for them.
    pub(super) fn set_ends(&mut self, ends: BTreeSet<Address>) {
        self.condemned.retain(|at| ends.contains(at));
        self.ends = ends;
    }

    /// Notes that a cell came over a circuit whose relay 1 is `first`.
    pub(super) fn note_heard(&mut self, now: Time, first: Address) {
        self.heard = Some(now);
        let is_cut = self.is_cut();
        for silent in core::mem::take(&mut self.doubted) {
            if silent.times >= FAILED && silent.at != first && !is_cut {
                self.note_end(now, (silent.at, self.own));
            }
        }
        self.firsts.retain(|silent| silent.at != first);
    }

    /// Notes that a circuit over these relays was built.
    pub(super) fn note_built(&mut self, now: Time, relays: &[Address]) {
        let cleared = self.legs.extract_if(.., |(at, _), _| relays.contains(at));
        let is_wrong = |(at, other): &(Address, Address)| {
            self.ends.contains(at) && *other != self.own && !relays.contains(other)
        };
        for (leg, _) in cleared.filter(|(leg, _)| is_wrong(leg)) {
            if self.refuted.len() < REFUTED_MAX || self.refuted.contains_key(&leg) {
                self.refuted.insert(leg, now + REFUTED);
            }
        }
        self.condemned.retain(|at| !relays.contains(at));
        for relay in relays {
            if self.worked.len() < LEGS_MAX || self.worked.contains_key(relay) {
                self.worked.insert(*relay, now);
            }
        }
    }

    /// Notes that relay 1 of a set-up that began at `began` did not answer.
    pub(super) fn note_silent(&mut self, now: Time, began: Time, at: Address) {
        if self.heard.is_some_and(|heard| heard >= began) {
            if at == self.own {
                return;
            }
            if let Some(silent) = self.firsts.iter_mut().find(|silent| silent.at == at) {
                silent.count(now, began);
            } else if self.firsts.len() < FIRSTS_MAX {
                self.firsts.push(SilentRelay { at, times: 1, last: now });
            }
            return;
        }
        let known = self.doubted.iter().position(|silent| silent.at == at);
        let mut silent = match known {
            Some(known) => self.doubted.remove(known),
            None => SilentRelay { at, times: 0, last: began },
        };
        silent.count(now, began);
        if self.doubted.len() < FIRSTS_MAX {
            self.doubted.push(silent);
        }
        if self.is_cut() {
            // Earlier failures were due to the uplink too.
            self.legs.clear();
            self.condemned.clear();
        }
    }

    /// Notes that relay 1 sent a wrong answer.
    pub(super) fn note_wrong(&mut self, now: Time, began: Time, at: Address) {
        self.note_heard(now, self.own);
        self.note_silent(now, began, at);
    }

    /// Notes that a circuit whose hops were asked at `asked` ended between these two relays. A
    /// relay over which a circuit was built since then is not suspected.
    pub(super) fn note_leg(&mut self, now: Time, asked: Time, a: Address, b: Address) {
        for leg in [(a, b), (b, a)] {
            if self.worked.get(&leg.0).is_none_or(|worked| *worked <= asked) {
                self.note_end(now, leg);
            }
        }
    }

    fn note_end(&mut self, now: Time, leg: (Address, Address)) {
        if self.legs.len() < LEGS_MAX || self.legs.contains_key(&leg) {
            self.legs.insert(leg, now + AVOID);
        }
        if self.ends.contains(&leg.0) && self.failed_until(now, leg.0).is_some() {
            self.condemned.insert(leg.0);
        }
    }

    /// Other relays that `at` was on failed legs with, and the time until which each leg counts.
    fn others(&self, now: Time, at: Address) -> impl Iterator<Item = (Address, Time)> {
        let all = [Address::new(0, 0), Address::new(u32::MAX, u16::MAX)];
        let legs = self.legs.range((at, all[0])..=(at, all[1]));
        legs.filter(move |(_, until)| **until > now).map(|((_, other), until)| (*other, *until))
    }

    /// Time until which `at` is left out everywhere, because of failed legs with enough others.
    fn failed_until(&self, now: Time, at: Address) -> Option<Time> {
        let is_trusted = self.ends.contains(&at) && !self.condemned.contains(&at);
        let is_half = |other| is_trusted && self.refuted.contains_key(&(at, other));
        let halves = |other| if is_half(other) { 1 } else { 2 };
        let mut all: Vec<_> =
            self.others(now, at).map(|(other, until)| (until, halves(other))).collect();
        // The latest time at which enough legs still count.
        all.sort_unstable_by(|a, b| b.cmp(a));
        let mut left = 2 * if is_trusted { END_FAILED } else { FAILED };
        let last = all.iter().find(|(_, halves)| {
            left = left.saturating_sub(*halves);
            left == 0
        });
        last.map(|(until, _)| *until)
    }

    /// Ends that have not failed but were on failed legs with at least two others, and those
    /// others.
    pub(super) fn accused(&self, now: Time) -> Vec<(Address, Vec<Address>)> {
        let failed = self.failed(now);
        let ends = self.ends.iter().filter(|at| **at != self.own && !failed.contains(at));
        let all = ends.map(|at| (*at, self.others(now, *at).map(|(other, _)| other).collect()));
        all.filter(|(_, others): &(_, Vec<_>)| others.len() >= FAILED).collect()
    }

    /// Notes that an end failed with every relay that can be next to it.
    pub(super) fn condemn(&mut self, end: Address) {
        self.condemned.insert(end);
    }

    /// True if this host's uplink is silent.
    pub(super) fn is_cut(&self) -> bool {
        self.doubted.len() >= FAILED || self.doubted.iter().any(|silent| silent.at == self.own)
    }

    /// True if this host's uplink may be silent.
    pub(super) fn is_doubtful(&self) -> bool {
        !self.doubted.is_empty()
    }

    /// Forgets entries that don't count any more.
    pub(super) fn forget_old(&mut self, now: Time) {
        self.legs.retain(|_, until| *until > now);
        self.refuted.retain(|_, until| *until > now);
        self.worked.retain(|_, at| *at + AVOID > now);
        self.firsts.retain(|silent| silent.last + AVOID > now);
        let legs = &self.legs;
        let failed: Vec<Address> = self.firsts.iter().map(|silent| silent.at).collect();
        let counts = |at: &Address| failed.contains(at) || legs.keys().any(|(end, _)| end == at);
        self.needed.retain(counts);
    }

    /// Relays that failed, and the time until which they are avoided, the oldest failure first.
    fn known(&self, now: Time) -> Vec<(Time, Address)> {
        let suspects: BTreeSet<Address> = self.legs.keys().map(|(at, _)| *at).collect();
        let until = |at: Address| Some((at, self.failed_until(now, at)?));
        let mut failed: BTreeMap<Address, Time> = suspects.into_iter().filter_map(until).collect();
        for silent in self.firsts.iter().filter(|silent| silent.times >= FAILED) {
            let until = failed.entry(silent.at).or_insert(Time::ZERO);
            *until = (*until).max(silent.last + AVOID);
        }
        failed.remove(&self.own);
        let mut all: Vec<_> = failed.into_iter().map(|(at, until)| (until, at)).collect();
        all.retain(|(until, _)| *until > now);
        all.sort_unstable();
        all
    }

    /// Relays that a path should avoid, the oldest failure first.
    pub(super) fn failed(&self, now: Time) -> Vec<Address> {
        let least = if self.is_cut() { 1 } else { FAILED };
        let doubted = self.doubted.iter().filter(|silent| silent.times >= least);
        let doubted: Vec<Address> = doubted.map(|silent| silent.at).collect();
        let mut all: Vec<Address> = self.known(now).into_iter().map(|(_, at)| at).collect();
        all.retain(|at| !doubted.contains(at));
        all.extend(doubted);
        all
    }

    /// Relays that may have failed, and the time until which they are left out of the middle.
    fn suspected(&self, now: Time) -> BTreeMap<Address, Time> {
        let failed = self.known(now);
        let is_failed = |at: &Address| failed.iter().any(|(_, known)| known == at);
        let mut all = BTreeMap::new();
        for ((at, other), until) in self.legs.iter().filter(|(_, until)| **until > now) {
            if *at != self.own && !is_failed(at) && !is_failed(other) {
                let known = all.entry(*at).or_insert(*until);
                *known = (*known).max(*until);
            }
        }
        all
    }

    /// Relays that may have failed.
    pub(super) fn doubtful(&self, now: Time) -> impl Iterator<Item = Address> {
        self.suspected(now).into_keys()
    }

    /// Records which of the avoided relays a path still uses.
    pub(super) fn note_chosen(&mut self, now: Time, relays: &[Address]) {
        let between = relays.get(1..relays.len().saturating_sub(1)).unwrap_or_default();
        let failed = self.known(now).into_iter().map(|(_, at)| at);
        let failed: Vec<Address> = failed.filter(|at| relays.contains(at)).collect();
        let doubtful: Vec<Address> = self.doubtful(now).filter(|at| between.contains(at)).collect();
        self.needed.extend(failed.into_iter().chain(doubtful));
    }

    /// Relays that are avoided, for display.
    pub(super) fn avoided(&self, now: Time) -> Vec<SuspectedRelay> {
        let failed = self.known(now).into_iter().map(|(until, relay)| (relay, until, true));
        let suspected = self.suspected(now).into_iter().map(|(relay, until)| (relay, until, false));
        let all = failed.chain(suspected).map(|(relay, until, failed)| {
            let needed = self.needed.contains(&relay);
            SuspectedRelay { relay, failed, needed, left: until.since(now) }
        });
        all.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_that_works_again_is_not_suspected_for_what_was_asked_before() {
        let [own, first, middle, last] = [1, 2, 3, 4].map(|n| Address::new(n, 0));
        let mut blame = Blame::new(own);
        blame.note_leg(at(10), at(9), first, middle);
        assert_eq!(blame.doubtful(at(10)).collect::<Vec<_>>(), [first, middle]);
        // A circuit over both was built after the hops of the old one were asked.
        blame.note_built(at(12), &[first, middle, last]);
        blame.note_leg(at(13), at(11), first, middle);
        assert_eq!(blame.doubtful(at(13)).count(), 0);
        blame.note_leg(at(15), at(14), first, middle);
        assert_eq!(blame.doubtful(at(15)).collect::<Vec<_>>(), [first, middle]);
        blame.forget_old(at(15) + AVOID);
        assert!(blame.worked.is_empty() && blame.legs.is_empty());
    }

    const OWN: Address = Address::new(1, 0);
    const GUARD: Address = Address::new(2, 0);

    fn at(s: u64) -> Time {
        Time::from_millis(1_000 * s)
    }

    fn relays(numbers: impl IntoIterator<Item = u32>) -> Vec<Address> {
        numbers.into_iter().map(|n| Address::new(n, 0)).collect()
    }

    fn with_a_guard() -> Blame {
        let mut blame = Blame::new(OWN);
        blame.set_ends([GUARD].into());
        blame
    }

    /// Ends circuits between the guard and each of these relays.
    fn accuse(blame: &mut Blame, now: Time, others: impl IntoIterator<Item = u32>) {
        relays(others).into_iter().for_each(|other| blame.note_leg(now, now, GUARD, other));
    }

    #[test]
    fn an_end_is_left_out_after_failed_legs_with_four_others_and_a_middle_after_two() {
        let mut blame = with_a_guard();
        accuse(&mut blame, at(10), 3..6);
        assert_eq!(blame.failed(at(20)), []);
        assert_eq!(blame.accused(at(20)), [(GUARD, relays(3..6))]);
        accuse(&mut blame, at(30), [5]);
        assert_eq!(blame.failed(at(31)), [], "the third again");
        accuse(&mut blame, at(40), [6]);
        assert_eq!(blame.failed(at(41)), [GUARD]);
        assert_eq!(blame.doubtful(at(41)).count(), 0, "the guard explains all suspicions");
        // A middle, or an end of paths without middles.
        let mut blame = Blame::new(OWN);
        accuse(&mut blame, at(10), 3..5);
        assert_eq!(blame.failed(at(20)), [GUARD]);
    }

    #[test]
    fn an_end_that_failed_needs_two_others_until_it_works_again() {
        let mut blame = with_a_guard();
        accuse(&mut blame, at(10), 3..7);
        blame.forget_old(at(130));
        assert_eq!(blame.failed(at(130)), [], "the guard is tried again");
        accuse(&mut blame, at(131), 3..5);
        assert_eq!(blame.failed(at(132)), [GUARD]);
        blame.note_built(at(140), &relays([2, 8, 9]));
        accuse(&mut blame, at(150), 10..13);
        assert_eq!(blame.failed(at(151)), []);
        // An end that failed with all relays that can be next to it.
        blame.condemn(GUARD);
        assert_eq!(blame.failed(at(151)), [GUARD]);
    }

    #[test]
    fn two_relays_that_an_end_refuted_count_as_one_for_a_day() {
        let mut blame = with_a_guard();
        accuse(&mut blame, at(10), 3..6);
        // The guard works, and so does one of them.
        blame.note_built(at(20), &relays([2, 5, 9]));
        accuse(&mut blame, at(30), [3, 4, 6, 7]);
        assert_eq!(blame.failed(at(31)), [], "three in all");
        accuse(&mut blame, at(30), [5]);
        assert_eq!(blame.failed(at(31)), [GUARD]);
        let mut blame = with_a_guard();
        accuse(&mut blame, at(10), 3..6);
        blame.note_built(at(20), &relays([2, 8, 9]));
        blame.forget_old(at(21) + REFUTED);
        accuse(&mut blame, at(30) + REFUTED, 3..7);
        assert_eq!(blame.failed(at(31) + REFUTED), [GUARD], "the day is over");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut blame = with_a_guard();
        for n in 0..4_000u32 {
            let now = Time::from_millis(u64::from(n) * 10);
            accuse(&mut blame, now, [n + 3]);
            if n % 7 == 0 {
                blame.note_built(now, &relays([2, n + 4]));
            }
        }
        assert!(blame.legs.len() <= LEGS_MAX && blame.refuted.len() == REFUTED_MAX);
        blame.set_ends(BTreeSet::new());
        assert!(blame.condemned.is_empty());
    }
}
