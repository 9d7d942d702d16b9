//! Circuits over other ends that are built while it is uncertain if those in use are dead.

use super::*;

const MS: Duration = Duration::from_millis(1);

/// A world whose host 2 is in use, with a standby. Set-ups over dead relays take the full time.
fn in_use(seed: u8, routers: u32) -> World {
    let mut world = World::of_small_sites(seed, routers);
    world.is_quick = false;
    world.want(host(2));
    world.run(SEC * 10 + MS * 13 * u32::from(seed));
    assert_eq!(world.states(host(2)), [CircuitState::InUse, CircuitState::Standby]);
    world
}

fn relay(world: &World, n: usize) -> Address {
    world.pool.in_use(host(2)).unwrap().1[n]
}

/// Time that host 2 is without a working circuit, once `at` is dead.
fn outage(world: &mut World, at: Address) -> Duration {
    let died = world.now;
    world.dead.insert(at);
    while world.pool.in_use(host(2)).is_none_or(|(_, path)| path.contains(&at)) {
        world.run(MS * 5);
        assert!(world.now < died + SEC * 60, "nothing replaces {at}");
    }
    world.now.since(died)
}

/// Makes `at` forward nothing for a while.
fn stall(world: &mut World, at: Address, span: Duration) {
    world.dead.insert(at);
    world.run(span);
    world.dead.remove(&at);
}

/// The first relays of all set-ups from number `since` on.
fn firsts(world: &World, since: usize) -> BTreeSet<Address> {
    world.builds[since..].iter().map(|(.., path)| path[0]).collect()
}

#[test]
fn whichever_relay_dies_another_circuit_is_in_use_within_600_ms() {
    for n in 0..3 {
        let all = (0..30).map(|seed| {
            let mut world = in_use(seed, 10);
            let dead = relay(&world, n);
            let took = outage(&mut world, dead);
            assert!(world.builds.iter().all(|(_, _, path)| path.len() == 3));
            assert_eq!(world.warnings, BTreeSet::new());
            // In the end it is over the usual ends, except the dead one.
            world.run(SEC * 40);
            assert_eq!(world.states(host(2)), [CircuitState::InUse, CircuitState::Standby]);
            took
        });
        let slowest = all.max().unwrap();
        assert!(slowest < MS * 600, "relay {n}: {slowest:?}");
    }
}

#[test]
fn a_try_changes_the_end_that_is_silent_and_no_other() {
    for (seed, n) in (0..20).flat_map(|seed| [(seed, 0), (seed, 2)]) {
        let mut world = in_use(seed, 10);
        let (dead, kept) = (relay(&world, n), relay(&world, 2 - n));
        outage(&mut world, dead);
        assert_eq!(relay(&world, 2 - n), kept, "{seed} {n}");
        // The usual relay is used again once it works.
        world.dead.clear();
        world.run(SEC * 1_200);
        assert_eq!([relay(&world, n), relay(&world, 2 - n)], [dead, kept], "{seed} {n}");
    }
}

#[test]
fn an_end_that_answers_late_again_and_again_is_kept_and_meets_two_stand_ins_at_most() {
    for (seed, n) in (0..10).flat_map(|seed| [(seed, 0), (seed, 2)]) {
        let mut world = in_use(seed, 12);
        let late = relay(&world, n);
        let begun = world.builds.len();
        let is_tried = |(.., path): &&(Time, Address, Vec<Address>)| path[n] != late;
        for stalled in 0..600u32 {
            stall(&mut world, late, MS * (210 + 20 * (stalled % 5)));
            world.run(SEC * 5);
        }
        let tried = world.builds[begun..].iter().filter(is_tried);
        let ends: BTreeSet<Address> = tried.clone().map(|(.., path)| path[n]).collect();
        assert!(ends.len() <= 2, "{ends:?}");
        let count = tried.count();
        assert!((1..=20).contains(&count), "{count} in 50 minutes");
        assert_eq!(world.pool.in_use(host(2)).unwrap().1[n], late);
        let live = world.circuits.len();
        assert!(live <= 4, "tried circuits are closed: {live}");
    }
}

#[test]
fn a_stand_in_that_was_tried_is_the_next_one_too_after_a_restart() {
    for seed in 0..20 {
        let mut world = in_use(seed, 12);
        let guard = relay(&world, 0);
        let begun = world.builds.len();
        outage(&mut world, guard);
        let first = firsts(&world, begun);
        let kept = Vanguards::parse(&world.pool.kept.text()).unwrap();
        let mut world = World::of_small_sites(seed + 100, 12);
        (world.pool.kept, world.is_quick) = (kept, false);
        world.want(host(2));
        world.run(SEC * 20);
        assert_eq!(relay(&world, 0), guard, "the guard stays the first");
        let begun = world.builds.len();
        outage(&mut world, guard);
        assert!(firsts(&world, begun).is_subset(&first), "seed {seed}");
    }
}

#[test]
fn a_silent_uplink_begins_few_tries_and_costs_no_guard() {
    for seed in 0..20 {
        let mut world = World::of_small_sites(seed, 12);
        world.is_quick = false;
        (2..10).for_each(|n| world.want(host(n)));
        world.run(SEC * 20);
        let guards = world.guards();
        for _ in 0..5 {
            let begun = world.builds.len();
            world.cut = true;
            world.run(SEC * 3);
            let tried = world.builds[begun..].iter().filter(|(.., path)| path[0] != guards[0]);
            assert!(tried.count() <= 2 * BUILDING_MAX);
            world.cut = false;
            world.run(SEC * 60);
        }
        assert_eq!(world.guards(), guards, "seed {seed}");
        assert!(world.builds.iter().map(|(.., path)| path[0]).collect::<BTreeSet<_>>().len() <= 3);
    }
}

/// True if a try to host 2 ever began.
fn has_tried(world: &World) -> bool {
    world.pool.hosts[&host(2)].tries.again_at > Time::ZERO
}

#[test]
fn a_host_that_is_silent_a_middle_that_dies_and_an_idle_circuit_begin_no_try() {
    for (seed, case) in (0..20).flat_map(|seed| [(seed, 0), (seed, 1), (seed, 2)]) {
        let mut world = in_use(seed, 12);
        let dead = [host(2), relay(&world, 1), relay(&world, 0)][case];
        if case == 2 {
            world.busy.clear();
            world.run(SEC * 2);
        }
        world.dead.insert(dead);
        world.run(SEC * 30);
        assert!(!has_tried(&world), "seed {seed}, case {case}");
    }
}

#[test]
fn a_guard_that_is_silent_on_one_circuit_alone_begins_no_try() {
    for seed in 0..20 {
        let mut world = in_use(seed, 12);
        let (used, silent) = (world.used(host(2)).unwrap(), Address::new(99, 0));
        world.dead.insert(silent);
        world.circuits.get_mut(&used).unwrap()[0] = silent;
        world.run(SEC * 5);
        assert!(world.used(host(2)) != Some(used) && !has_tried(&world), "seed {seed}");
    }
}

#[test]
fn two_middles_that_die_at_once_begin_no_try() {
    for seed in 0..20 {
        let mut world = in_use(seed, 12);
        let middles = world.circuits.values().map(|path| path[1]).collect::<BTreeSet<_>>();
        world.dead.extend(middles);
        world.run(SEC * 20);
        assert!(!has_tried(&world), "seed {seed}");
        assert_eq!(world.states(host(2)), [CircuitState::InUse, CircuitState::Standby]);
    }
}

#[test]
fn three_echoes_that_are_lost_at_once_end_no_circuit() {
    for seed in 0..20 {
        let mut world = in_use(seed, 12);
        let (used, middle) = (world.used(host(2)), relay(&world, 1));
        for _ in 0..50 {
            stall(&mut world, middle, MS * 150);
            world.run(SEC);
            assert_eq!(world.used(host(2)), used, "seed {seed}");
        }
    }
}

#[test]
fn where_nothing_can_stand_in_nothing_is_tried_and_no_rule_is_broken() {
    for seed in 0..20 {
        let mut world = in_use(seed, 5);
        let begun = world.builds.len();
        let guard = relay(&world, 0);
        world.dead.insert(guard);
        world.run(SEC / 2);
        assert_eq!(world.pool.hosts[&host(2)].tries.building.iter().count(), 0);
        world.run(SEC * 20);
        assert!(world.builds[begun..].iter().all(|(.., path)| path.len() == 3));
        assert_eq!(world.warnings, BTreeSet::new());
    }
}
