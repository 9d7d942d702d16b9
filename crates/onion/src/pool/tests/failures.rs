//! Changes that failures cause, and changes that they must not cause.

use super::*;

#[test]
fn a_first_relay_that_refuses_everything_is_replaced_and_shortens_no_path() {
    for seed in 0..20 {
        let mut world = World::of_small_sites(seed, 10);
        world.want(host(2));
        world.run(SEC * 10);
        let [guard] = world.guards()[..] else { panic!("{:?}", world.guards()) };
        world.refusing.insert(guard);
        world.pool.forget(world.now, host(2));
        let begun = world.builds.len();
        world.run(SEC * 300);
        assert!(world.builds.iter().all(|(_, _, path)| path.len() == 3), "{:?}", world.builds);
        assert_eq!(world.warnings, BTreeSet::new(), "failures cause no warning");
        assert_eq!(world.states(host(2)), [CircuitState::InUse, CircuitState::Standby]);
        let used = world.pool.in_use(host(2)).unwrap().1;
        assert_ne!(used[0], guard);
        let failing = world.builds[begun..].iter().filter(|(.., path)| path[0] == guard);
        assert!(failing.count() < 10);
        let guards = world.guards();
        assert!(guards.len() == 2 && guards[0] == guard, "{guards:?}");
        // The guard is used again once it works.
        world.refusing.clear();
        world.run(SEC * 1_200);
        assert_eq!(world.pool.in_use(host(2)).unwrap().1[0], guard);
        assert_eq!(world.guards(), guards);
    }
}

#[test]
fn a_first_relay_that_dies_is_replaced_and_shortens_no_path() {
    for seed in 0..20 {
        let mut world = World::of_small_sites(seed, 10);
        world.want(host(2));
        world.run(SEC * 10);
        let guard = world.guards()[0];
        world.dead.insert(guard);
        world.run(SEC * 60);
        assert!(world.builds.iter().all(|(_, _, path)| path.len() == 3), "{:?}", world.builds);
        assert_eq!(world.warnings, BTreeSet::new());
        let used = world.pool.in_use(host(2)).unwrap().1;
        assert_ne!(used[0], guard);
        assert_eq!(world.states(host(2)), [CircuitState::InUse, CircuitState::Standby]);
        let guards = world.guards();
        assert!(guards.len() == 2 && guards[0] == guard, "seed {seed}: {guards:?}");
        let lost = world.switched.windows(2).map(|pair| (pair[0].2, pair[1].0.since(pair[0].0)));
        let without = lost.filter(|(id, _)| id.is_none()).map(|(_, span)| span).max();
        assert!(without.is_none_or(|span| span < SEC * 8), "{without:?}");
    }
}

#[test]
fn a_silent_uplink_shortens_no_path_and_costs_no_guard() {
    for (seed, span) in (0..24).zip([3, 8, 20, 60, 180].into_iter().cycle()) {
        let mut world = World::of_small_sites(seed, 10);
        world.want(host(2));
        world.run(SEC * 10);
        let first = world.guards();
        assert_eq!(first.len(), 1);
        world.cut = true;
        world.run(SEC * span);
        if span >= 20 {
            assert!(matches!(world.view(host(2)).problem, Some(CircuitProblem::Cut { .. })));
            assert_eq!(world.avoided(), [], "no relay is avoided");
        }
        assert_eq!(world.guards(), first, "a failed set-up adds no guard");
        let (back, count) = (world.now, world.builds.len());
        world.cut = false;
        world.run(SEC * 30);
        assert!(world.builds.iter().all(|(_, _, path)| path.len() == 3), "{:?}", world.builds);
        assert_eq!(world.warnings, BTreeSet::new());
        let guards = world.guards();
        assert_eq!(guards, first, "seed {seed}: {span} s");
        assert_eq!(
            world.pool.in_use(host(2)).unwrap().1[0],
            first[0],
            "host 2's circuits use the first guard"
        );
        assert_eq!(world.states(host(2)), [CircuitState::InUse, CircuitState::Standby]);
        let built = world.switched.iter().find(|(at, _, id)| *at >= back && id.is_some());
        let quick = |at: &Time| at.since(back) < SEC * 8;
        assert!(built.is_none_or(|(at, ..)| quick(at)), "{built:?} {:?}", &world.builds[count..]);
    }
}

#[test]
fn a_circuit_in_use_that_stops_answering_is_shown_as_silent() {
    let mut world = World::of_small_sites(1, 10);
    world.want(host(2));
    world.run(SEC * 10);
    world.cut = true;
    let mut is_silent = |_| {
        world.run(SEC / 10);
        world.states(host(2)).first() == Some(&CircuitState::Silent)
    };
    assert!((0..400).any(&mut is_silent));
    assert!((0..100).any(|n| !is_silent(n)), "the circuit stays silent");
    world.cut = false;
    world.run(SEC * 30);
    assert_eq!(world.states(host(2)), [CircuitState::InUse, CircuitState::Standby]);
}

#[test]
fn one_lost_cell_leaves_the_guard_in_its_place() {
    for seed in 0..20 {
        let mut world = World::of_small_sites(seed, 10);
        world.want(host(if seed % 2 == 0 { 2 } else { 3 }));
        world.run(SEC * 10);
        let guard = world.guards();
        // While another circuit works, an unanswered set-up points at relay 1. Otherwise the uplink
        // may be down.
        world.pool.forget(world.now, host(2));
        world.lose = 1;
        world.want(host(2));
        let begun = world.builds.len();
        world.run(SEC * 10);
        assert_eq!((world.lose, world.guards()), (0, guard.clone()));
        assert!(world.pool.in_use(host(2)).is_some());
        assert!(world.builds[begun..].iter().all(|(.., path)| path[0] == guard[0]), "seed {seed}");
    }
}

#[test]
fn a_host_that_starts_without_an_uplink_gets_one_guard() {
    for seed in 0..20 {
        let mut world = World::of_small_sites(seed, 10);
        world.cut = true;
        world.want(host(2));
        world.run(SEC * 180);
        assert_eq!(world.guards(), []);
        let tried: BTreeSet<Address> = world.builds.iter().map(|(.., path)| path[0]).collect();
        assert!(tried.len() <= 3, "{tried:?}");
        world.cut = false;
        world.run(SEC * 1_800);
        assert_eq!(world.guards().len(), 1, "seed {seed}");
        assert!(tried.contains(&world.guards()[0]));
    }
}

#[test]
fn two_dead_guards_are_not_taken_for_a_silent_uplink() {
    let mut world = World::of_small_sites(3, 10);
    world.want(host(2));
    world.run(SEC * 10);
    world.dead.insert(world.guards()[0]);
    world.run(SEC * 60);
    world.dead.extend(world.guards());
    assert_eq!(world.dead.len(), 2);
    world.run(SEC * 60);
    assert_eq!(world.states(host(2)), [CircuitState::InUse, CircuitState::Standby]);
    assert_eq!(world.guards().len(), 3);
}

#[test]
fn a_last_relay_that_does_not_reach_the_host_is_replaced_for_this_host() {
    let mut world = World::of_small_sites(4, 10);
    world.want(host(2));
    world.run(SEC * 10);
    let last = *world.pool.in_use(host(2)).unwrap().1.iter().rev().nth(1).unwrap();
    world.refusing.insert(last);
    world.is_quick = false;
    world.run(SEC * 60);
    let used = world.pool.in_use(host(2)).unwrap().1;
    assert!(used.len() == 4 && !used.contains(&last), "{used:?}");
    assert!(world.builds.iter().all(|(_, _, path)| path.len() == 3));
}

#[test]
fn forged_answers_blame_no_other_relay_and_keep_no_circuit_alive() {
    for seed in 0..20 {
        let mut world = World::new(seed, 12, 64);
        world.want(host(2));
        world.run(SEC * 20);
        let (id, path) = world.pool.in_use(host(2)).unwrap();
        let middle = path[1];
        world.dead.insert(middle);
        // The forged answers are those of the dead relay (hop 2) or of the destination (hop 4).
        world.forges = Some(if seed % 2 == 0 { 2 } else { 4 });
        world.run(SEC * 10);
        assert_ne!(world.pool.in_use(host(2)).unwrap().0, id, "the circuit still counts as dead");
        assert_eq!(world.avoided(), [middle]);
    }
}

#[test]
fn a_guards_end_follows_the_wall_clock_after_it_is_set() {
    const DAY_S: u64 = 86_400;
    let mut world = World::of_small_sites(5, 10);
    let set = |world: &mut World, day: u64| {
        let now = world.now;
        world.pool.set_unix_time(now, day * DAY_S * 1_000);
        world.pool.forget(now, host(2));
        world.run(SEC * 10);
        world.pool.kept.text()
    };
    world.want(host(2));
    let first = set(&mut world, 20_000);
    let until: u64 = first.lines().next().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert!((20_120 * DAY_S..20_120 * DAY_S + 20).contains(&until), "{first}");
    // A clock that is wrong by years changes no guard: correct nodes refuse the host's set-ups, so
    // no circuit is built.
    world.cut = true;
    assert_eq!(set(&mut world, 30_000), first);
    assert_eq!(set(&mut world, 100), first);
    world.cut = false;
    let guard = world.guards();
    set(&mut world, 20_100);
    assert_eq!(world.guards(), guard);
    set(&mut world, 20_121);
    assert_ne!(world.guards(), guard);
}

#[test]
fn a_failed_set_up_says_where_and_why() {
    let mut world = World::of_small_sites(6, 10);
    world.want(host(2));
    world.dead.insert(host(2));
    world.run(SEC * 30);
    let Some(CircuitProblem::Failed { times: 3.., last: Some(last), .. }) =
        world.view(host(2)).problem
    else {
        panic!("{:?}", world.view(host(2)))
    };
    assert_eq!((last.hop, last.node, last.why), (4, host(2), SetupFailure::Silent));
    let path = &world.builds.last().unwrap().2;
    assert!(last.before == Some(path[2]) || world.view(host(2)).circuits.len() == 1);
}

#[test]
fn failed_relays_that_every_path_needs_are_used_and_reported() {
    let mut world = World::of_small_sites(7, 5);
    world.want(host(5));
    world.run(SEC * 5);
    let path = world.pool.in_use(host(5)).unwrap().1[..3].to_vec();
    assert_eq!(world.builds[0].2.len(), 3);
    world.dead.insert(path[1]);
    world.run(SEC * 60);
    assert!(world.pool.in_use(host(5)).is_none(), "nothing replaces it");
    assert!(world.builds.iter().all(|(_, _, path)| path.len() == 3));
    assert_eq!(world.warnings, BTreeSet::new());
    let needed = world.pool.avoided(world.now);
    assert!(needed.iter().any(|avoided| avoided.needed), "{needed:?}");
    world.dead.clear();
    world.run(SEC * 45);
    assert!(world.pool.in_use(host(5)).is_some());
}

/// Time that host 2 is without a working circuit, once `at` is dead.
fn outage(world: &mut World, at: Address) -> Duration {
    let died = world.now;
    world.dead.insert(at);
    while world.now < died + SEC * 60 {
        world.run(SEC / 10);
        if world.pool.in_use(host(2)).is_some_and(|(_, path)| !path.contains(&at)) {
            return world.now.since(died);
        }
    }
    let built: Vec<_> = world.builds.iter().filter(|(since, ..)| *since > died).collect();
    panic!("nothing replaces {at}: {built:?}");
}

/// A world with a circuit to host 2 in use. Set-ups over dead relays fail only after the full time.
fn world_in_use(seed: u8, routers: u32, relays: u8) -> World {
    let mut world = World::of_small_sites(seed, routers);
    world.pool.config.relays = relays;
    world.is_quick = false;
    world.want(host(2));
    world.run(SEC * 10);
    world
}

fn relay_in_use(world: &World, n: usize) -> Address {
    world.pool.in_use(host(2)).unwrap().1[n]
}

#[test]
fn an_end_relay_that_dies_breaks_the_standby_too_and_is_soon_replaced() {
    let slowest = |n: usize| {
        let all = (0..20).map(|seed| {
            let mut world = world_in_use(seed, 10, 3);
            let dead = relay_in_use(&world, n);
            outage(&mut world, dead)
        });
        all.max().unwrap()
    };
    // Telling a silent relay 1 from a silent uplink takes longer.
    let (first, last) = (slowest(0), slowest(2));
    assert!(first < SEC * 7 && last < SEC * 7 / 2, "{first:?} {last:?}");
}

#[test]
fn an_end_relay_that_dies_is_replaced_even_if_that_needs_one_that_failed_before() {
    for (seed, first, second) in (0..20).flat_map(|seed| [(seed, 0, 2), (seed, 2, 0), (seed, 2, 2)])
    {
        // Two of the six routers are the hosts' own.
        let mut world = world_in_use(seed, 6, 3);
        world.dead.insert(relay_in_use(&world, first));
        world.run(SEC * 20);
        world.dead.clear();
        world.run(SEC * 10);
        let dead = relay_in_use(&world, second);
        let took = outage(&mut world, dead);
        assert!(took < SEC * 8, "{seed} {first} {second}: {took:?}");
    }
}

#[test]
fn the_second_of_two_relays_is_replaced_when_it_dies() {
    for seed in 0..20 {
        let mut world = world_in_use(seed, 8, 2);
        world.is_quick = seed % 2 == 0;
        let dead = relay_in_use(&world, 1);
        let took = outage(&mut world, dead);
        assert!(took < SEC * 25, "{took:?}");
    }
}
