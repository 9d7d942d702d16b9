//! Rules that paths keep in any network, and limits of small networks.

use std::collections::BTreeSet;

use super::*;

const NOW_S: u64 = 1_800_000_000;
const DAY_S: u64 = 86_400;

fn router(number: u32) -> Address {
    Address::new(number, 0)
}

/// `count` routers, all relays, each with `hosts` hosts.
fn network(count: u32, hosts: u32) -> RouterList {
    let one = ListedRouter { relay: true, hosts, ..ListedRouter::default() };
    RouterList::new((1..=count).map(|n| (router(n), one.clone())))
}

/// A random network: some routers are no relays, some families have several.
fn random_network(rng: &mut Rng) -> RouterList {
    let count = 1 + rng.below(30) as u32;
    let families = 1 + rng.below(30);
    RouterList::new((1..=count).map(|n| {
        let family = (rng.below(3) > 0).then(|| format!("f{}", rng.below(families)));
        let capacity = (rng.below(3) > 0).then(|| 1 + rng.below(10_000) as u32);
        let (relay, hosts) = (rng.below(4) > 0, rng.below(16) as u32);
        (router(n), ListedRouter { relay, family, capacity, hosts, mix: None })
    }))
}

/// A path from a host behind router `from` to one behind `to`.
fn ask(from: u32, to: u32, relays: u8) -> PathRequest<'static> {
    let (from, to) = (Address::new(from, 1), Address::new(to, 2));
    let none: &[Address] = &[];
    let (failed, beside, doubtful, also) = (none, none, none, none);
    PathRequest { from, to, relays, unix_s: NOW_S, failed, beside, doubtful, also }
}

fn chosen(relays: &RouterList, ask: &PathRequest<'_>) -> RelayPath {
    choose(relays, ask, &mut Vanguards::default(), &mut Rng::new([7; 32])).unwrap()
}

/// A path whose circuit was built.
fn built(
    relays: &RouterList,
    ask: &PathRequest<'_>,
    kept: &mut Vanguards,
    rng: &mut Rng,
) -> RelayPath {
    let path = choose(relays, ask, kept, rng).unwrap();
    let PathRequest { from, to, unix_s, .. } = *ask;
    let built = BuiltCircuit { from, to, relays: &path.relays, unix_s, is_doubtful: false };
    kept.note_built(relays, &built, rng);
    path
}

/// Guards and last relays in a text, in order.
fn ends(kept: &Vanguards) -> [Vec<Address>; 2] {
    ["guard", "last"].map(|kind| {
        let text = kept.text();
        let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines.filter(|words| words[0] == kind).map(|words| words[1].parse().unwrap()).collect()
    })
}

#[test]
fn any_network_gives_a_path_that_keeps_the_rules_or_says_which_it_does_not() {
    let mut rng = Rng::new([1; 32]);
    let (mut strict, mut without) = (0, 0);
    for _ in 0..3_000 {
        let relays = random_network(&mut rng);
        let count = relays.len() as u64;
        let mut any = || 1 + rng.below(count) as u32;
        let (from, to) = (any(), any());
        let ask = ask(from, to, 1 + rng.below(5) as u8);
        let Ok(RelayPath { relays: path, warnings }) =
            choose(&relays, &ask, &mut Vanguards::default(), &mut rng)
        else {
            assert_eq!(relays.relays().count(), 0);
            without += 1;
            continue;
        };
        let [here, there] = ask.routers();
        let different: BTreeSet<_> = path.iter().copied().collect();
        assert_eq!(different.len(), path.len(), "a router is in the path twice");
        assert!(path.iter().all(|at| relays.is_relay(*at)));
        let have = path.len().min(relays.relays().count());
        assert_eq!(path.len(), have.min(ask.relays.into()), "as long as can be");
        let is_short = path.len() < usize::from(ask.relays);
        assert_eq!(warnings.iter().any(|w| matches!(w, PathWarning::Short { .. })), is_short);
        if !warnings.contains(&PathWarning::Families) {
            let (near, far) = ([here, path[0]], [there, path[path.len() - 1]]);
            let meets = |a: Address| far.iter().any(|b| a != *b && relays.are_related(a, *b));
            assert!(!near.into_iter().any(meets), "a family is on both sides");
        }
        let ends = [PathWarning::SmallSiteHere, PathWarning::SmallSiteThere, PathWarning::OneRelay];
        if !warnings.iter().any(|warning| ends.contains(warning)) {
            let (first, last) = (path[0], path[path.len() - 1]);
            assert!(first != here || relays.is_large(here));
            assert!(last != there || relays.is_large(there));
        }
        strict += u32::from(warnings.is_empty());
    }
    assert!(strict > 500 && without > 10, "{strict} {without}: the networks test little");
}

#[test]
fn own_routers_of_large_sites_are_the_ends_and_others_of_small_ones() {
    let ends = |hosts| {
        let relays = network(9, hosts);
        let path = chosen(&relays, &ask(1, 2, 3)).relays;
        (path[0] == router(1), path[2] == router(2), path.contains(&router(1)))
    };
    assert_eq!(ends(SITE), (true, true, true));
    assert_eq!(ends(SITE - 1), (false, false, false));
    // With a host behind the same router, neither end is that router.
    let path = chosen(&network(9, 100), &ask(1, 1, 3));
    assert!(!path.relays.contains(&router(1)));
    assert_eq!(path.warnings, [PathWarning::SameRouter]);
}

#[test]
fn a_host_stays_with_its_guard_and_with_few_middles() {
    let relays = network(40, 1);
    let (mut kept, mut rng) = (Vanguards::default(), Rng::new([3; 32]));
    let mut firsts = BTreeSet::new();
    let mut daily = Vec::new();
    for day in 0..240 {
        let mut middles = BTreeSet::new();
        for n in 0..20 {
            let ask = PathRequest { unix_s: NOW_S + day * DAY_S + n, ..ask(1, 2 + n as u32, 3) };
            let RelayPath { relays: path, warnings } = built(&relays, &ask, &mut kept, &mut rng);
            assert!(warnings.is_empty());
            if n == 1 {
                firsts.insert((day / 120, path[0]));
            }
            middles.insert(path[1]);
            // The kept relays are read back from their text.
            kept = Vanguards::parse(&kept.text()).unwrap();
        }
        assert!((2..=4).contains(&middles.len()), "{}", middles.len());
        daily.push(middles);
    }
    assert_eq!(firsts.len(), 2, "one guard for 120 days");
    let all: BTreeSet<_> = daily.iter().flatten().collect();
    assert!((20..=39).contains(&all.len()), "middles change: {}", all.len());
    let stayed = daily.windows(2).filter(|days| !days[0].is_disjoint(&days[1])).count();
    assert!(stayed > 200, "and do not change at once: {stayed}");
}

#[test]
fn what_does_not_fit_one_destination_is_kept_for_others() {
    let relays = network(12, 1);
    let (mut kept, mut rng) = (Vanguards::default(), Rng::new([4; 32]));
    let mut first = |relays: &RouterList, ask: PathRequest<'_>| {
        let first = built(relays, &ask, &mut kept, &mut rng).relays[0];
        assert!(ends(&kept)[0].len() <= 4);
        first
    };
    let guard = first(&relays, ask(1, 2, 3));
    // A host behind the guard needs another first relay. After that, the guard is used again.
    assert_ne!(first(&relays, ask(1, guard.router, 3)), guard);
    let to = (2..).find(|n| router(*n) != guard).unwrap();
    assert_eq!(first(&relays, ask(1, to, 3)), guard);
    // A guard that failed, or is missing from the list for a while, is also replaced only
    // meanwhile.
    assert_ne!(first(&relays, PathRequest { failed: &[guard], ..ask(1, to, 3) }), guard);
    let without = relays.routers.iter().filter(|(at, _)| **at != guard);
    let without = RouterList::new(without.map(|(at, router)| (*at, router.clone())));
    assert_ne!(first(&without, ask(1, to, 3)), guard);
    assert_eq!(first(&relays, ask(1, to, 3)), guard);
}

#[test]
fn a_second_circuit_goes_through_other_middles_and_failed_relays_wait() {
    let relays = network(9, 100);
    let (mut kept, mut rng) = (Vanguards::default(), Rng::new([5; 32]));
    let first = built(&relays, &ask(1, 2, 4), &mut kept, &mut rng).relays;
    let beside = PathRequest { beside: &first, ..ask(1, 2, 4) };
    let second = built(&relays, &beside, &mut kept, &mut rng).relays;
    assert_eq!((first[0], first[3]), (second[0], second[3]));
    assert!(first[1..3].iter().all(|at| !second[1..3].contains(at)));
    // If all have failed, those that failed longest ago are used.
    let failed: Vec<_> = (3..=9).rev().map(router).collect();
    let again = PathRequest { failed: &failed, ..ask(1, 2, 4) };
    assert_eq!(built(&relays, &again, &mut kept, &mut rng).relays, [1, 9, 8, 2].map(router));
}

/// Rules that a path keeps, the best first: number of missing relays, the site rule, families. Own
/// routers of small sites may be at their own end, or anywhere.
fn rules_of(relays: &RouterList, ask: &PathRequest<'_>, path: &RelayPath) -> (usize, u8, bool) {
    let [here, there] = ask.routers();
    let last = path.relays.len() - 1;
    let breach = |(slot, at): (usize, &Address)| {
        let is_own_end = (slot == 0 && *at == here) || (slot == last && *at == there);
        match *at == here || *at == there {
            true if is_own_end && here != there && relays.is_large(*at) => 0,
            true if is_own_end => 1,
            true => 2,
            false => 0,
        }
    };
    let breach = path.relays.iter().enumerate().map(breach).max().unwrap();
    let missing = usize::from(ask.relays) - path.relays.len();
    (missing, if last == 0 { 0 } else { breach }, path.warnings.contains(&PathWarning::Families))
}

#[test]
fn failures_change_neither_the_length_of_a_path_nor_the_rules_that_it_keeps() {
    let mut rng = Rng::new([11; 32]);
    let (mut spared, mut strict) = (0, 0);
    for _ in 0..3_000 {
        let relays = random_network(&mut rng);
        let count = relays.len() as u64;
        let mut any = || 1 + rng.below(count) as u32;
        let (from, to) = (any(), any());
        let calm = ask(from, to, 1 + rng.below(5) as u8);
        let mut kept = Vanguards::default();
        let Ok(path) = choose(&relays, &calm, &mut kept, &mut rng) else { continue };
        let mut failed: Vec<_> = relays.relays().filter(|_| rng.below(3) > 0).collect();
        failed.retain(|at| !calm.routers().contains(at));
        let failing = PathRequest { failed: &failed, ..calm };
        for kept in [&mut kept, &mut Vanguards::default()] {
            let other = choose(&relays, &failing, kept, &mut rng).unwrap();
            let rules = |path: &RelayPath| rules_of(&relays, &calm, path);
            assert_eq!(rules(&other), rules(&path), "{failed:?}: {path:?} {other:?}");
            let is_own =
                |path: &RelayPath| path.relays.len() > 1 && path.relays[0] == calm.routers()[0];
            assert!(!is_own(&path) || is_own(&other) || rules(&path).1 == 2, "{path:?} {other:?}");
            spared += u32::from(other.relays.iter().all(|at| !failed.contains(at)));
            strict += u32::from(rules(&path) == (0, 0, false));
        }
    }
    assert!(spared > 500 && strict > 500, "{spared} {strict}: the networks test little");
}

#[test]
fn a_dead_relay_that_all_good_paths_need_is_used_again() {
    let relays = network(5, 1);
    let (mut kept, mut rng) = (Vanguards::default(), Rng::new([7; 32]));
    let first = built(&relays, &ask(1, 5, 3), &mut kept, &mut rng);
    assert_eq!(first.warnings, []);
    // Any path without it would begin or end at the router of a small site.
    for dead in first.relays {
        let failing = PathRequest { failed: &[dead], ..ask(1, 5, 3) };
        let again = built(&relays, &failing, &mut kept, &mut rng);
        assert!(again.relays.contains(&dead) && again.warnings.is_empty(), "{again:?}");
    }
}

#[test]
fn middles_that_may_have_failed_move_no_end_and_it_shows_when_none_is_left() {
    let relays = network(7, 1);
    for seed in 0..40 {
        let (mut kept, mut rng) = (Vanguards::default(), Rng::new([seed; 32]));
        let first = built(&relays, &ask(1, 2, 3), &mut kept, &mut rng).relays;
        let [guard, last] = [first[0], first[2]];
        let middles: Vec<_> =
            (3..=7).map(router).filter(|at| ![guard, last].contains(at)).collect();
        let doubtful = [&middles[..], &[guard]].concat();
        let asked = PathRequest { doubtful: &doubtful, ..ask(1, 2, 3) };
        let again = choose(&relays, &asked, &mut kept, &mut rng).unwrap().relays;
        assert_eq!([again[0], again[2]], [guard, last], "seed {seed}: {again:?}");
        for end in [guard, last] {
            let mut leads_past = |doubtful: &[Address]| {
                let asked = PathRequest { doubtful, ..ask(1, 2, 3) };
                leads_past(&relays, &asked, &kept, &mut rng, end)
            };
            assert!(leads_past(&middles[..2]) && !leads_past(&middles));
        }
        let asked = PathRequest { doubtful: &middles, ..ask(1, 2, 3) };
        assert!(leads_past(&relays, &asked, &kept, &mut rng, middles[0]), "a middle is no end");
    }
}

#[test]
fn ends_are_drawn_slowly_whatever_fails_and_none_is_pushed_out() {
    let relays = network(40, 1);
    let (mut kept, mut rng) = (Vanguards::default(), Rng::new([12; 32]));
    let path = built(&relays, &ask(1, 2, 3), &mut kept, &mut rng).relays;
    let first = [vec![path[0]], vec![path[2]]];
    assert_eq!(ends(&kept), first);
    let (mut seen, mut failed) = ([BTreeSet::new(), BTreeSet::new()], Vec::new());
    let mut fail = |kept: &mut Vanguards, unix_s: u64, is_built: bool, times: u32| {
        for _ in 0..times {
            let ask = PathRequest { unix_s, failed: &failed, ..ask(1, 2, 3) };
            let path = match is_built {
                true => built(&relays, &ask, kept, &mut rng).relays,
                false => choose(&relays, &ask, kept, &mut rng).unwrap().relays,
            };
            seen[0].insert(path[0]);
            seen[1].insert(path[2]);
            failed.retain(|at| ![path[0], path[2]].contains(at));
            failed.extend([path[0], path[2]]);
        }
        seen.each_ref().map(BTreeSet::len)
    };
    // No circuit is built: nothing is recorded, and few relays are tried.
    assert_eq!(fail(&mut kept, NOW_S, false, 100), [3, 3]);
    assert_eq!(ends(&kept), first);
    // Others work while the first ones fail.
    assert_eq!(fail(&mut kept, NOW_S + 60, true, 100), [3, 3]);
    assert_eq!(fail(&mut kept, NOW_S + 29 * DAY_S, true, 100), [3, 3]);
    assert_eq!(fail(&mut kept, NOW_S + 31 * DAY_S, true, 100), [4, 4]);
    assert_eq!(fail(&mut kept, NOW_S + 100 * DAY_S, true, 100), [4, 4]);
    let all = ends(&kept);
    assert!(all.iter().zip(&first).all(|(all, first)| all.len() == 4 && all[0] == first[0]));
    // The first ones' time is over, and others replace them.
    assert_eq!(fail(&mut kept, NOW_S + 121 * DAY_S, true, 100), [6, 6]);
}

#[test]
fn middles_that_stand_in_push_none_out() {
    let relays = network(20, 100);
    let (mut kept, mut rng) = (Vanguards::default(), Rng::new([15; 32]));
    let mut all = Vec::new();
    while kept.relays().count() < 4 {
        all = built(&relays, &ask(1, 2, 5), &mut kept, &mut rng).relays;
    }
    let text = kept.text();
    for _ in 0..20 {
        let failed: Vec<Address> = kept.relays().collect();
        let others =
            built(&relays, &PathRequest { failed: &failed, ..ask(1, 2, 5) }, &mut kept, &mut rng);
        assert_ne!(others.relays, all);
        assert_eq!(kept.text(), text);
    }
}

#[test]
fn a_clock_that_steps_deletes_nothing_before_a_circuit_is_built_under_it() {
    let relays = network(12, 1);
    let (mut kept, mut rng) = (Vanguards::default(), Rng::new([13; 32]));
    let path = built(&relays, &ask(1, 2, 3), &mut kept, &mut rng).relays;
    let text = kept.text();
    for unix_s in [0, NOW_S - 900 * DAY_S, NOW_S + 900 * DAY_S, NOW_S] {
        let ask = PathRequest { unix_s, ..ask(1, 2, 3) };
        for _ in 0..20 {
            assert_eq!(choose(&relays, &ask, &mut kept, &mut rng).unwrap().relays[0], path[0]);
        }
        assert_eq!(kept.text(), text, "at {unix_s}");
    }
    // A correct clock ends it in time, and a clock far ahead made nothing stay forever.
    let late = PathRequest { unix_s: NOW_S + 121 * DAY_S, ..ask(1, 2, 3) };
    built(&relays, &late, &mut kept, &mut rng);
    assert!(!ends(&kept)[0].contains(&path[0]));
    built(&relays, &late, &mut kept, &mut rng);
    let back = PathRequest { unix_s: NOW_S, ..ask(1, 2, 3) };
    built(&relays, &back, &mut kept, &mut rng);
    built(&relays, &back, &mut kept, &mut rng);
    let most = NOW_S + 120 * DAY_S;
    let text = kept.text();
    let ends = text.lines().filter(|line| !line.starts_with("middle"));
    let untils: Vec<u64> =
        ends.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert!(untils.iter().all(|until| *until <= most), "{text}");
}

#[test]
fn what_is_built_in_doubt_stays_on_trial_unless_nothing_is_kept() {
    let relays = network(12, 1);
    let (mut kept, mut rng) = (Vanguards::default(), Rng::new([14; 32]));
    let mut doubt = |kept: &mut Vanguards, failed: &[Address]| {
        let ask = PathRequest { failed, ..ask(1, 2, 3) };
        let path = choose(&relays, &ask, kept, &mut rng).unwrap().relays;
        let PathRequest { from, to, unix_s, .. } = ask;
        let built = BuiltCircuit { from, to, relays: &path, unix_s, is_doubtful: true };
        kept.note_built(&relays, &built, &mut rng);
        path[0]
    };
    let first = doubt(&mut kept, &[]);
    assert_eq!(ends(&kept)[0], [first]);
    let other = doubt(&mut kept, &[first]);
    assert_ne!(other, first);
    assert_eq!(ends(&kept)[0], [first]);
    assert_eq!(doubt(&mut kept, &[first]), other, "no other relay is tried");
}

#[test]
fn capacity_decides_and_no_relay_is_taken_by_more_than_its_share() {
    let capacities = [10_000, 100, 100, 100, 50, 50, 50, 50, 50, 50];
    let relays = RouterList::new((1..).zip(capacities).map(|(n, capacity)| {
        let capacity = Some(capacity);
        (router(n), ListedRouter { relay: true, capacity, ..ListedRouter::default() })
    }));
    let weights = relays.weights();
    let all: u64 = weights.iter().map(|(_, weight)| weight).sum();
    // 600 of the others are 8/10 of all.
    assert_eq!((weights[0].1, all), (150, 750));
    assert_eq!((weights[1].1, weights[9].1), (100, 50));
    let mut rng = Rng::new([6; 32]);
    let mut taken = BTreeMap::<Address, u32>::new();
    for _ in 0..20_000 {
        let drawn = search::draw(&mut weights.clone(), &mut rng).unwrap();
        *taken.entry(drawn).or_default() += 1;
    }
    for (at, weight) in &weights {
        let share = f64::from(taken[at]) / 20_000.0;
        let expected = *weight as f64 / all as f64;
        assert!((share - expected).abs() < 0.01, "{at}: {share} for {expected}");
    }
    // In any network.
    for _ in 0..500 {
        let weights = random_network(&mut rng).weights();
        let all: u64 = weights.iter().map(|(_, weight)| weight).sum();
        let most = weights.iter().map(|(_, weight)| *weight).max().unwrap_or(0);
        let count = weights.len() as u64;
        assert!(count < 3 || most * count <= 2 * all + 2 * count, "{weights:?}");
    }
    assert_eq!(RouterList::new([(router(1), ListedRouter::default())]).weights(), []);
}

#[test]
fn families_differ_wherever_they_can() {
    let mut rng = Rng::new([10; 32]);
    for hosts in [1, 100] {
        // Seven families of three: five relays and both ends need all of them.
        let one = |n: u32| ListedRouter {
            relay: true,
            hosts,
            family: Some(format!("f{}", n % 7)),
            ..ListedRouter::default()
        };
        let relays = RouterList::new((1..=21).map(|n| (router(n), one(n))));
        for to in (2..=21).filter(|to| to % 7 != 1) {
            let ask = ask(1, to, 5);
            let path = choose(&relays, &ask, &mut Vanguards::default(), &mut rng).unwrap();
            assert_eq!((path.relays.len(), &path.warnings[..]), (5, &[][..]));
        }
    }
}

#[test]
fn small_networks_say_in_words_what_they_can_not_hide() {
    let said = |relays: &RouterList, from, to, asked| {
        let path = chosen(relays, &ask(from, to, asked));
        let words: Vec<_> = path.warnings.iter().map(ToString::to_string).collect();
        (path.relays, path.warnings, words.join("; "))
    };
    let (path, _, words) = said(&network(2, 100), 1, 2, 3);
    assert_eq!(path, [router(1), router(2)]);
    assert!(words.starts_with("two routers: nobody is hidden from them; 2 of 3 relays"), "{words}");
    let (path, warnings, words) = said(&network(3, 1), 1, 3, 3);
    assert_eq!(path, [1, 2, 3].map(router));
    let ends = [PathWarning::SmallSiteHere, PathWarning::SmallSiteThere];
    assert_eq!(warnings, [&[PathWarning::FewRouters(3)][..], &ends].concat());
    assert!(words.contains("relay 2 can tell who begins"), "{words}");
    assert_eq!(said(&network(3, 100), 1, 3, 3).1, []);
    let (path, warnings, words) = said(&network(9, 100), 1, 3, 2);
    assert_eq!((path.len(), &warnings[..]), (2, &[PathWarning::TwoRelays][..]));
    assert!(words.starts_with("two relays: together they know both hosts"), "{words}");
    assert_eq!(said(&network(9, 100), 1, 3, 1).1, [PathWarning::OneRelay]);
    let (path, warnings, words) = said(&network(1, 100), 1, 1, 3);
    assert_eq!(path, [router(1)]);
    let short = PathWarning::Short { asked: 3, have: 1 };
    let expected =
        [PathWarning::FewRouters(1), PathWarning::SameRouter, PathWarning::OneRelay, short];
    assert_eq!(warnings, expected);
    assert!(words.contains("both hosts are behind one router"), "{words}");
    // Five routers of one operator.
    let family = Some("acme".to_owned());
    let one = ListedRouter { relay: true, family, hosts: 100, ..ListedRouter::default() };
    let relays = RouterList::new((1..=5).map(|n| (router(n), one.clone())));
    let (path, warnings, words) = said(&relays, 1, 2, 3);
    assert_eq!((path.len(), &warnings[..]), (3, &[PathWarning::Families][..]));
    assert!(words.contains("one operator (family) runs routers near both hosts"), "{words}");
    // A router that is not in the list has no known hosts.
    assert_eq!(said(&network(9, 100), 77, 2, 3).0.len(), 3);
}

#[test]
fn a_network_without_relays_has_no_path_and_says_what_to_do() {
    let relays = RouterList::new([(router(1), ListedRouter::default())]);
    let none = choose(&relays, &ask(1, 1, 3), &mut Vanguards::default(), &mut Rng::new([8; 32]));
    assert!(none.unwrap_err().to_string().contains("--relay"));
    let hosts = RouterList::new([(
        Address::new(1, 4),
        ListedRouter { relay: true, ..ListedRouter::default() },
    )]);
    assert!(hosts.is_empty(), "a host is no relay");
}

#[test]
fn a_damaged_file_names_its_line() {
    let text = "guard 3.0 1800000000\nlast 5.0 1\nmiddle 4.0 9\nmiddle 6.0 9\n";
    assert_eq!(Vanguards::parse(text).unwrap().text(), text);
    assert_eq!(Vanguards::parse("").unwrap(), Vanguards::default());
    for (text, line) in [
        ("guard 3.0", 1),
        ("guard 3.0 1\nguard 3.1 1", 2),
        ("guard 3.0 1\nguard 3.0 1", 2),
        ("guard 3.0 1\n\n", 2),
        ("friend 3.0 1", 1),
        ("last 3.0 -1", 1),
        ("middle 1.0 1\nmiddle 2.0 1\nmiddle 3.0 1\nmiddle 4.0 1\nmiddle 5.0 1", 5),
    ] {
        assert_eq!(Vanguards::parse(text), Err(VanguardsError::Line(line)), "{text}");
    }
    let long = Vanguards::parse(&"guard 3.0 1\n".repeat(200)).unwrap_err();
    assert_eq!(
        (long, long.to_string()),
        (VanguardsError::TooLong, "longer than 1024 bytes".into())
    );
}

/// True if the `bad` routers together know both hosts of a path: at least one on each side.
fn is_exposed(path: &[Address], ask: &PathRequest<'_>, bad: &BTreeSet<Address>) -> bool {
    let [here, there] = ask.routers();
    let knows = |side: [Address; 2]| side.iter().any(|at| bad.contains(at));
    knows([here, path[0]]) && knows([there, path[path.len() - 1]])
}

/// The table of docs/evidence/anonymity.md, for large and small sites, in percent.
#[test]
fn colluding_routers_know_as_many_pairs_as_the_table_says() {
    let mut rng = Rng::new([9; 32]);
    let table = [
        (5, [(1, 0.0, 0.0), (2, 10.0, 40.0), (3, 30.0, 80.0)]),
        (7, [(1, 0.0, 0.0), (2, 4.8, 19.0), (3, 14.3, 45.7)]),
        (10, [(1, 0.0, 0.0), (2, 2.2, 8.9), (3, 6.7, 23.3)]),
    ];
    for (routers, row) in table {
        for (hosts, is_large) in [(100, true), (1, false)] {
            let relays = network(routers, hosts);
            let ask = ask(1, 2, 3);
            let mut exposed = [0; 3];
            const RUNS: u32 = 4_000;
            for _ in 0..RUNS {
                let path =
                    choose(&relays, &ask, &mut Vanguards::default(), &mut rng).unwrap().relays;
                assert_eq!(path.len(), 3);
                let mut all: Vec<_> = relays.relays().map(|at| (at, 1)).collect();
                let mut bad = BTreeSet::new();
                for count in &mut exposed {
                    bad.extend(search::draw(&mut all, &mut rng));
                    *count += u32::from(is_exposed(&path, &ask, &bad));
                }
            }
            for ((c, large, small), count) in row.into_iter().zip(exposed) {
                let found = 100.0 * f64::from(count) / f64::from(RUNS);
                let expected = if is_large { large } else { small };
                let text = format!("{routers} routers, {c} bad: {found}% for {expected}%");
                assert!((found - expected).abs() < 2.5, "{text}");
            }
        }
    }
}

/// Five relays of three operators, with hosts behind routers of two of them: each operator can be
/// kept away from one of both hosts.
#[test]
fn five_relays_of_three_families_keep_each_family_away_from_one_host() {
    let family = |n: u32| Some(["a", "b", "b", "c", "c"][n as usize - 1].to_owned());
    let relay =
        |n| ListedRouter { relay: true, hosts: 1, family: family(n), ..ListedRouter::default() };
    let relays = RouterList::new((1..=5).map(|n| (router(n), relay(n))));
    for seed in 0..50 {
        for (from, to) in [(3, 4), (2, 5), (1, 2), (4, 1)] {
            let mut rng = Rng::new([seed; 32]);
            let own = [router(from), router(to)];
            let ask = PathRequest { also: &own, ..ask(from, to, 3) };
            let path = choose(&relays, &ask, &mut Vanguards::default(), &mut rng).unwrap();
            assert_eq!((path.relays.len(), &path.warnings[..]), (3, &[][..]), "{from} {to}");
        }
    }
}
