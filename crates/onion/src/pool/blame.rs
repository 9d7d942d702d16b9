//! Whom failures are put down to.
//!
//! A set-up or a circuit ends on a leg: one relay should have gone on, the other should have
//! answered, and which of the two is at fault can't be told from outside. So both are suspected:
//!
//! - A relay that was on one failed leg is left out of the middle of paths, where others fit.
//! - One that was on failed legs with two others failed: it explains these legs, and the others are
//!   no longer suspected for them.
//! - An end of paths, a guard or a last relay, is left out only after failed legs with four others.
//!   Two relays that work together could else play dead beside it to have another end drawn. An end
//!   that failed with every relay that can stand beside it is left out, too, since small networks
//!   have fewer than four ([`Blame::accused`]). While it does not work, two are enough again.
//! - An end that works within the two minutes refutes the relays that it failed with. For a day two
//!   refuted relays count as much as one other, against this end alone.
//! - One over which a circuit is built meanwhile is suspected of nothing that was seen before.
//! - Where no middle is left that is not suspected, one that failed before takes its place: whether
//!   it gets further tells the two suspects apart.
//!
//! Before relay 1 is this host's own uplink. If relay 1 is silent while something else answers, it
//! failed at the second time in a row. If nothing answers, the uplink may be down: that is *doubt*.
//! In doubt another relay 1 is tried as well; when two were silent the uplink is at fault, nobody
//! is avoided, and all of them are tried in turn. Doubt ends when anything answers. If that is
//! another relay 1, the silent one is suspected: the leg before it may be what failed.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use shoal_wire::{Address, Time};

/// What is suspected of a relay counts for so long.
const AVOID: Duration = Duration::from_secs(120);
/// Failed legs that are remembered, counted from both ends.
const LEGS_MAX: usize = 512;
/// Relays that were silent as relay 1, at most.
const FIRSTS_MAX: usize = 64;
/// Failures after which a relay failed: legs with so many others, or so many in a row as relay 1.
const FAILED: usize = 2;
/// Failed legs with so many others after which an end failed.
const END_FAILED: usize = 4;
/// A relay that an end refuted counts half against it for so long.
const REFUTED: Duration = Duration::from_secs(86_400);
/// Refuted relays that are remembered, counted for each end.
const REFUTED_MAX: usize = 128;

/// A relay that was silent as relay 1.
#[derive(Clone, Copy)]
struct Silent {
    at: Address,
    /// How often in a row.
    times: usize,
    last: Time,
}

impl Silent {
    /// Counts a set-up that began at `began`, if it did so after the last that was counted: those
    /// that run at once fail together.
    fn count(&mut self, now: Time, began: Time) {
        if began >= self.last {
            (self.times, self.last) = (self.times + 1, now);
        }
    }
}

/// A relay that failed or may have failed, as people see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avoided {
    /// Which.
    pub relay: Address,
    /// It failed, and is left out wherever others fit; else it may have failed, and is left out of
    /// the middle of paths.
    pub failed: bool,
    /// A path leads through it all the same, since none that keeps the rules does without it.
    pub needed: bool,
    /// For so long.
    pub left: Duration,
}

/// Relays that failed, or may have failed.
pub(super) struct Blame {
    /// This host's router: no path does without it.
    own: Address,
    /// Each relay with each other that it was on a failed leg with, and until when that counts.
    legs: BTreeMap<(Address, Address), Time>,
    /// Guards and last relays that stay or are on trial, where relays stand between them.
    ends: BTreeSet<Address>,
    /// Ends that failed and did not work since.
    condemned: BTreeSet<Address>,
    /// Each end with each relay that it refuted, and until when that counts.
    refuted: BTreeMap<(Address, Address), Time>,
    /// When a circuit over a relay was last built.
    worked: BTreeMap<Address, Time>,
    /// Relays that were silent as relay 1 while something else answered.
    firsts: Vec<Silent>,
    /// Relays that were silent as relay 1 since anything answered: the last one last.
    doubted: Vec<Silent>,
    /// When anything last answered.
    heard: Option<Time>,
    /// Relays that failed, or may have, and were taken all the same.
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

    /// Sets the guards and last relays that other relays may accuse, none in paths without middles:
    /// four others are too many there.
    pub(super) fn set_ends(&mut self, ends: BTreeSet<Address>) {
        self.condemned.retain(|at| ends.contains(at));
        self.ends = ends;
    }

    /// Something came over a circuit whose relay 1 is `first`.
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

    /// All hops of a circuit over these relays are there.
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

    /// Relay 1 of a set-up that began then did not answer.
    pub(super) fn note_silent(&mut self, now: Time, began: Time, at: Address) {
        if self.heard.is_some_and(|heard| heard >= began) {
            if at == self.own {
                return;
            }
            if let Some(silent) = self.firsts.iter_mut().find(|silent| silent.at == at) {
                silent.count(now, began);
            } else if self.firsts.len() < FIRSTS_MAX {
                self.firsts.push(Silent { at, times: 1, last: now });
            }
            return;
        }
        let known = self.doubted.iter().position(|silent| silent.at == at);
        let mut silent = match known {
            Some(known) => self.doubted.remove(known),
            None => Silent { at, times: 0, last: began },
        };
        silent.count(now, began);
        if self.doubted.len() < FIRSTS_MAX {
            self.doubted.push(silent);
        }
        if self.is_cut() {
            // What failed just before was cut off, too.
            self.legs.clear();
            self.condemned.clear();
        }
    }

    /// Relay 1 answered something wrong.
    pub(super) fn note_wrong(&mut self, now: Time, began: Time, at: Address) {
        self.note_heard(now, self.own);
        self.note_silent(now, began, at);
    }

    /// A circuit whose hops were asked at `asked` ended between these two relays. One over which
    /// another was built since then is not suspected.
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

    /// Others that `at` was on failed legs with, and until when each leg counts.
    fn others(&self, now: Time, at: Address) -> impl Iterator<Item = (Address, Time)> {
        let all = [Address::new(0, 0), Address::new(u32::MAX, u16::MAX)];
        let legs = self.legs.range((at, all[0])..=(at, all[1]));
        legs.filter(move |(_, until)| **until > now).map(|((_, other), until)| (*other, *until))
    }

    /// Until when failed legs of `at` with others are enough to leave it out of all places.
    fn failed_until(&self, now: Time, at: Address) -> Option<Time> {
        let is_trusted = self.ends.contains(&at) && !self.condemned.contains(&at);
        let is_half = |other| is_trusted && self.refuted.contains_key(&(at, other));
        let halves = |other| if is_half(other) { 1 } else { 2 };
        let mut all: Vec<_> =
            self.others(now, at).map(|(other, until)| (until, halves(other))).collect();
        // Until one leg too few counts.
        all.sort_unstable_by(|a, b| b.cmp(a));
        let mut left = 2 * if is_trusted { END_FAILED } else { FAILED };
        let last = all.iter().find(|(_, halves)| {
            left = left.saturating_sub(*halves);
            left == 0
        });
        last.map(|(until, _)| *until)
    }

    /// Ends that have not failed and were on failed legs with two others or more, with these.
    pub(super) fn accused(&self, now: Time) -> Vec<(Address, Vec<Address>)> {
        let failed = self.failed(now);
        let ends = self.ends.iter().filter(|at| **at != self.own && !failed.contains(at));
        let all = ends.map(|at| (*at, self.others(now, *at).map(|(other, _)| other).collect()));
        all.filter(|(_, others): &(_, Vec<_>)| others.len() >= FAILED).collect()
    }

    /// Notes that an end failed with every relay that can stand beside it.
    pub(super) fn condemn(&mut self, end: Address) {
        self.condemned.insert(end);
    }

    /// Whether it is this host's uplink that is silent.
    pub(super) fn is_cut(&self) -> bool {
        self.doubted.len() >= FAILED || self.doubted.iter().any(|silent| silent.at == self.own)
    }

    /// Whether it may be.
    pub(super) fn is_doubtful(&self) -> bool {
        !self.doubted.is_empty()
    }

    /// Forgets what counts no more.
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

    /// Relays that failed, and until when they are avoided, the oldest failure first.
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

    /// Relays that a path had better do without, the oldest failure first.
    pub(super) fn failed(&self, now: Time) -> Vec<Address> {
        let least = if self.is_cut() { 1 } else { FAILED };
        let doubted = self.doubted.iter().filter(|silent| silent.times >= least);
        let doubted: Vec<Address> = doubted.map(|silent| silent.at).collect();
        let mut all: Vec<Address> = self.known(now).into_iter().map(|(_, at)| at).collect();
        all.retain(|at| !doubted.contains(at));
        all.extend(doubted);
        all
    }

    /// Relays that may have failed, and until when they are left out of the middle.
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

    /// Notes through which of the relays that had better be left out a path leads all the same.
    pub(super) fn note_chosen(&mut self, now: Time, relays: &[Address]) {
        let between = relays.get(1..relays.len().saturating_sub(1)).unwrap_or_default();
        let failed = self.known(now).into_iter().map(|(_, at)| at);
        let failed: Vec<Address> = failed.filter(|at| relays.contains(at)).collect();
        let doubtful: Vec<Address> = self.doubtful(now).filter(|at| between.contains(at)).collect();
        self.needed.extend(failed.into_iter().chain(doubtful));
    }

    /// Relays that are avoided, as people see them.
    pub(super) fn avoided(&self, now: Time) -> Vec<Avoided> {
        let failed = self.known(now).into_iter().map(|(until, relay)| (relay, until, true));
        let suspected = self.suspected(now).into_iter().map(|(relay, until)| (relay, until, false));
        let all = failed.chain(suspected).map(|(relay, until, failed)| {
            let needed = self.needed.contains(&relay);
            Avoided { relay, failed, needed, left: until.since(now) }
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

    /// Circuits end between the guard and each of these.
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
        assert_eq!(blame.doubtful(at(41)).count(), 0, "it explains them all");
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
        assert_eq!(blame.failed(at(130)), [], "it is tried again");
        accuse(&mut blame, at(131), 3..5);
        assert_eq!(blame.failed(at(132)), [GUARD]);
        blame.note_built(at(140), &relays([2, 8, 9]));
        accuse(&mut blame, at(150), 10..13);
        assert_eq!(blame.failed(at(151)), []);
        // One that failed with all that can stand beside it.
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
