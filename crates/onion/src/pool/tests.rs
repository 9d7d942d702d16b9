//! A pool under a virtual clock, with relays that die.

use std::collections::BTreeSet;

use shoal_wire::MixTime;
use shoal_wire::leg::ExtendRefusal;

use super::*;
use crate::path::ListedRouter;

/// A host with a schedule of 2 Mbit/s, 174 frames a second, that speaks with 19 others.
#[test]
fn echoes_of_many_circuits_take_a_tenth_of_a_covered_link() {
    let mut world = World::new(7, 24, 64);
    let tier = shoal_wire::CoverTier::new(2, shoal_wire::CoverKind::Constant);
    world.pool.set_tiers(tier, BTreeMap::new());
    (2..21).for_each(|n| world.want(host(n)));
    world.run(20 * SEC);
    let before = world.echoes;
    world.run(20 * SEC);
    let per_s = (world.echoes - before) / 20;
    // A standby gets few echoes: one in 17 s.
    assert!((8..=19).contains(&per_s), "{per_s} echoes a second");
    let busy = (2..21).filter(|n| world.used(host(*n)).is_some()).count();
    assert_eq!(busy, 19);
}

mod colluders;
mod failures;
mod loops;
mod mixes;
mod tries;

const NOW: Time = Time::from_millis(1_000);
const LEG: Duration = Duration::from_millis(5);
const SEC: Duration = Duration::from_secs(1);

enum Happens {
    Built(CircuitId),
    Failed(CircuitId, u8, SetupFailure),
    Echoed(CircuitId, u8, u64),
    Ended(CircuitId),
}

/// A pool whose circuits are only names, over relays that may be dead.
struct World {
    pool: CircuitPool,
    now: Time,
    /// Paths of the existing circuits.
    circuits: BTreeMap<CircuitId, Vec<Address>>,
    /// Number of hops of a circuit that was broken when it was begun.
    stuck: BTreeMap<CircuitId, usize>,
    next: u32,
    dead: BTreeSet<Address>,
    /// Relays that exist but extend to no other node.
    refusing: BTreeSet<Address>,
    /// True if nothing passes this host's uplink.
    cut: bool,
    /// Number of further set-ups whose first cell is lost.
    lose: u32,
    /// Hop of circuits that answers echoes which it was not sent.
    forges: Option<u8>,
    /// True if a dead node's neighbour reports at once that it is silent.
    is_quick: bool,
    queue: BTreeMap<(Time, u64), Happens>,
    queued: u64,
    /// Circuit of each host, with the time of the switch.
    switched: Vec<(Time, Address, Option<CircuitId>)>,
    builds: Vec<(Time, Address, Vec<Address>)>,
    /// Warnings of all paths.
    warnings: BTreeSet<PathWarning>,
    closed: Vec<(Time, CircuitId)>,
    echoes: u32,
    /// Hosts to which data goes once in each `tick`.
    busy: BTreeSet<Address>,
    tick: Duration,
    spoil: loops::Spoil,
    colluders: colluders::Colluders,
}

/// Routers, each a relay with `hosts` hosts behind it.
fn sites(count: u32, hosts: u32) -> RouterList {
    let one = ListedRouter { relay: true, hosts, ..ListedRouter::default() };
    RouterList::new((1..=count).map(|n| (Address::new(n, 0), one.clone())))
}

fn relays(count: u32) -> RouterList {
    sites(count, 100)
}

fn host(n: u32) -> Address {
    Address::new(n, 7)
}

impl World {
    fn new(seed: u8, routers: u32, circuits_max: usize) -> World {
        let config =
            PoolConfig { address: Address::new(1, 1), relays: 3, circuits_max, max_added: None };
        let mut pool = CircuitPool::new(config, Vanguards::default(), [seed; 32], NOW, 0).unwrap();
        pool.set_routers(NOW, relays(routers));
        World {
            pool,
            now: NOW,
            circuits: BTreeMap::new(),
            stuck: BTreeMap::new(),
            next: 0,
            dead: BTreeSet::new(),
            refusing: BTreeSet::new(),
            cut: false,
            lose: 0,
            forges: None,
            is_quick: true,
            queue: BTreeMap::new(),
            queued: 0,
            switched: Vec::new(),
            builds: Vec::new(),
            warnings: BTreeSet::new(),
            closed: Vec::new(),
            echoes: 0,
            busy: BTreeSet::new(),
            tick: SEC / 10,
            spoil: loops::Spoil::default(),
            colluders: colluders::Colluders::default(),
        }
    }

    fn after(&mut self, wait: Duration, what: Happens) {
        self.queued += 1;
        self.queue.insert((self.now + wait, self.queued), what);
    }

    /// A world with small sites.
    fn of_small_sites(seed: u8, routers: u32) -> World {
        let mut world = World::new(seed, routers, 64);
        world.pool.set_routers(NOW, sites(routers, 1));
        world
    }

    /// The first hop, counted from 1, that nothing reaches.
    fn broken(&self, path: &[Address]) -> Option<usize> {
        let is_behind = |n: usize| n > 0 && self.refusing.contains(&path[n - 1]);
        let is_broken = |n: usize| self.cut || self.dead.contains(&path[n]) || is_behind(n);
        let broken = (0..path.len()).find(|n| is_broken(*n)).map(|n| n + 1);
        let played = self.colluders.broken(self.now, path);
        broken.into_iter().chain(played).min()
    }

    /// Takes all output of the pool.
    fn drain(&mut self) {
        let mut steps = 0;
        loop {
            steps += 1;
            assert!(steps < 1_000, "draining does not end");
            if let Some((to, id)) = self.pool.poll_switch() {
                assert!(id.is_none_or(|id| self.circuits.contains_key(&id)), "a circuit is gone");
                self.switched.push((self.now, to, id));
            } else if let Some((id, hop, number)) = self.pool.poll_echo() {
                self.echoes += 1;
                let path = self.circuits.get(&id).cloned().unwrap_or_default();
                let path = &path[..usize::from(hop).min(path.len())];
                if self.broken(path).is_none()
                    && let Some(more) = self.spoil.echo(self.now, path)
                {
                    self.after(LEG * 2 * u32::from(hop) + more, Happens::Echoed(id, hop, number));
                }
            } else if let Some(id) = self.pool.poll_close() {
                assert!(self.circuits.remove(&id).is_some(), "closed twice");
                self.closed.push((self.now, id));
            } else if let Some(build) = self.pool.poll_build(self.now) {
                self.build(build);
            } else {
                break;
            }
        }
        assert!(self.pool.poll_timeout().is_none_or(|due| due > self.now), "left undone");
        assert!(self.circuits.len() <= self.pool.config.circuits_max);
        assert_eq!(self.circuits.len(), self.pool.len());
    }

    fn build(&mut self, CircuitPlan { to, path, shape, life, .. }: CircuitPlan) {
        assert_eq!((path.last(), shape.tags()), (Some(&to), 3));
        let usual = self.pool.life;
        assert!((usual * 4 / 5..=usual * 6 / 5).contains(&life));
        self.next += 1;
        let id = CircuitId::from_bits(self.next);
        self.circuits.insert(id, path.clone());
        self.builds.push((self.now, to, path[..path.len() - 1].to_vec()));
        let DestinationCircuits { building, tries, .. } = &self.pool.hosts[&to];
        let mut new = building.iter().chain(&tries.building).filter(|new| new.id.is_none());
        self.warnings.extend(&new.next().unwrap().warnings);
        assert!(new.next().is_none(), "one is begun at a time");
        let is_lost = self.lose > 0;
        self.lose -= u32::from(is_lost);
        match if is_lost { Some(1) } else { self.broken(&path) } {
            None => {
                let hops = path.len() as u32;
                self.after(LEG * hops * (hops + 1), Happens::Built(id));
                self.after(life, Happens::Ended(id));
            }
            Some(hop) => {
                self.stuck.insert(id, hop - 1);
                let refuses = hop > 1 && self.refusing.contains(&path[hop - 2]);
                let is_quick = refuses || (self.is_quick && hop > 1);
                let wait = if is_quick { SEC / 10 } else { SEC * 10 };
                let refused = SetupFailure::Refused(ExtendRefusal::NotAllowed);
                let why = if refuses { refused } else { SetupFailure::Silent };
                self.after(wait, Happens::Failed(id, hop as u8, why));
            }
        }
        self.pool.note_begun(self.now, to, Ok(id));
    }

    fn run(&mut self, span: Duration) {
        let until = self.now + span;
        self.drain();
        loop {
            let queued = self.queue.first_key_value().map(|((at, _), _)| *at);
            let tick = (!self.busy.is_empty()).then(|| self.now + self.tick);
            let all = [queued, self.pool.poll_timeout(), tick, Some(until)];
            self.now = all.into_iter().flatten().min().unwrap();
            while let Some(entry) = self.queue.first_entry().filter(|e| e.key().0 <= self.now) {
                let now = self.now;
                match entry.remove() {
                    Happens::Built(id) if self.circuits.contains_key(&id) && !self.cut => {
                        self.pool.note_built(now, id);
                    }
                    Happens::Failed(id, hop, why) if self.circuits.remove(&id).is_some() => {
                        self.pool.note_failed(now, id, hop, why);
                    }
                    Happens::Ended(id) if self.circuits.remove(&id).is_some() => {
                        self.pool.note_ended(now, id);
                    }
                    Happens::Echoed(id, hop, number) if !self.cut => {
                        self.pool.note_echoed(now, id, hop, number);
                    }
                    _ => {}
                }
            }
            for to in self.busy.clone() {
                self.pool.want(self.now, to);
            }
            let busy: BTreeSet<_> = self.busy.iter().filter_map(|to| self.used(*to)).collect();
            let now = self.now;
            self.pool.note_carried(now, |id| busy.contains(&id).then_some(now));
            let hops = |(id, path): (&CircuitId, &Vec<Address>)| {
                let passable = self.broken(path).map_or(path.len(), |hop| hop - 1);
                (*id, self.stuck.get(id).map_or(passable, |stuck| passable.min(*stuck)))
            };
            let hops: BTreeMap<_, _> = self.circuits.iter().map(hops).collect();
            self.pool.note_progress(self.now, |id| hops.get(&id).copied());
            if let Some(hop) = self.forges {
                let number = self.queued;
                let all: Vec<_> = self.circuits.keys().copied().collect();
                all.into_iter().for_each(|id| self.pool.note_echoed(now, id, hop, number));
            }
            self.pool.handle_timeout(self.now);
            self.drain();
            if self.now >= until {
                return;
            }
        }
    }

    /// Circuit in use to a host.
    fn used(&self, to: Address) -> Option<CircuitId> {
        self.switched.iter().rev().find(|(_, at, _)| *at == to)?.2
    }

    fn want(&mut self, to: Address) {
        self.busy.insert(to);
        assert!(self.pool.want(self.now, to));
    }

    /// Relays that failed, or may have.
    fn avoided(&self) -> Vec<Address> {
        self.pool.avoided(self.now).iter().map(|avoided| avoided.relay).collect()
    }

    /// Guards in the stored text.
    fn guards(&self) -> Vec<Address> {
        let text = self.pool.kept.text();
        let guards = text.lines().filter_map(|line| line.strip_prefix("guard "));
        guards.map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect()
    }

    fn view(&self, to: Address) -> HostView {
        self.pool.views(self.now).into_iter().find(|view| view.to == to).unwrap()
    }

    fn states(&self, to: Address) -> Vec<CircuitState> {
        self.view(to).circuits.iter().map(|circuit| circuit.state).collect()
    }
}

#[test]
fn a_wanted_host_has_a_circuit_at_once_and_another_soon() {
    let mut world = World::new(1, 9, 64);
    assert_eq!(world.pool.poll_timeout(), None);
    world.want(host(2));
    assert_eq!(world.pool.poll_timeout(), Some(NOW));
    world.run(LEG * 20);
    assert_eq!(world.switched.len(), 1);
    assert_eq!(world.states(host(2)), [CircuitState::InUse, CircuitState::Building]);
    world.run(SEC);
    assert_eq!(world.states(host(2)), [CircuitState::InUse, CircuitState::Standby]);
    let [(_, _, first), (_, _, second)] = &world.builds[..] else { panic!("{:?}", world.builds) };
    assert!(first[1] != second[1], "the standby has another middle");
    assert!(!world.pool.want(world.now, Address::new(2, 0)), "no circuit ends at a router");
    assert!(!world.pool.want(world.now, Address::new(1, 1)), "nor at this host");
}

#[test]
fn circuits_are_replaced_before_they_end_without_a_gap() {
    let mut world = World::new(2, 9, 64);
    world.want(host(2));
    world.run(SEC * 4 * 3_600);
    let switched = &world.switched;
    assert!((30..=60).contains(&switched.len()), "{} in four hours", switched.len());
    assert!(switched.iter().all(|(_, _, id)| id.is_some()), "there is always one");
    for pair in switched.windows(2) {
        let (old, at) = (pair[0].2.unwrap(), pair[1].0);
        let closed = world.closed.iter().find(|(_, id)| *id == old).map(|(at, _)| *at);
        let has_time = closed.is_some_and(|closed| closed >= at + SEC * 10);
        assert!(has_time || at + SEC * 15 > world.now, "cells on their way arrive");
        assert!(at.since(pair[0].0) >= SEC * 150, "not too often");
    }
    assert!(world.builds.len() < 110, "{} circuits in four hours", world.builds.len());
    // Lives differ from each other.
    let gaps: BTreeSet<u64> = switched.windows(2).map(|p| p[1].0.since(p[0].0).as_secs()).collect();
    assert!(gaps.len() > 15, "{gaps:?}");
}

#[test]
fn an_experiments_circuits_live_as_long_as_it_says() {
    let mut world = World::new(2, 9, 64);
    world.pool.set_life(SEC * 3 / 2);
    world.want(host(2));
    world.run(SEC * 120);
    let switched = &world.switched;
    assert!((100..=180).contains(&switched.len()), "{} in two minutes", switched.len());
    assert!(switched.iter().all(|(_, _, id)| id.is_some()), "there is always one");
}

#[test]
fn the_standby_takes_over_within_a_second_and_the_dead_relay_is_found() {
    let mut slowest = Duration::ZERO;
    for seed in 0..30 {
        let mut world = World::new(seed, 12, 64);
        world.want(host(2));
        world.run(SEC * (20 + u32::from(seed)));
        let (old, count) = (world.used(host(2)).unwrap(), world.switched.len());
        let middle = world.circuits[&old][1];
        world.dead.insert(middle);
        let died = world.now;
        world.run(SEC * 10);
        let (at, _, new) = world.switched[count];
        assert!(new.is_some_and(|new| new != old), "to the standby");
        slowest = slowest.max(at.since(died));
        assert_eq!(world.avoided(), [middle]);
        assert!(!world.circuits.contains_key(&old), "the old circuit is closed");
        assert_eq!(world.states(host(2)), [CircuitState::InUse, CircuitState::Standby]);
        let later = world.builds.iter().filter(|(at, ..)| *at > died + SEC * 5);
        assert!(later.flat_map(|(_, _, path)| path).all(|at| *at != middle));
    }
    assert!(slowest < SEC, "{slowest:?}");
}

#[test]
fn a_dead_standby_is_replaced_before_it_is_needed() {
    let mut world = World::new(4, 12, 64);
    world.want(host(2));
    world.run(SEC * 5);
    let standby = &world.view(host(2)).circuits[1];
    assert_eq!(standby.state, CircuitState::Standby);
    let (middle, used) = (standby.relays[1], world.used(host(2)));
    world.dead.insert(middle);
    world.run(SEC * 40);
    assert_eq!(world.used(host(2)), used, "the one in use stays");
    let view = world.view(host(2));
    assert_eq!(view.circuits[1].state, CircuitState::Standby);
    assert_ne!(view.circuits[1].relays[1], middle);
    assert_eq!(world.avoided(), [middle]);
}

#[test]
fn a_host_that_is_gone_is_tried_with_growing_waits_and_found_when_it_is_back() {
    let mut world = World::new(5, 9, 64);
    world.want(host(2));
    world.run(SEC * 5);
    let (count, died) = (world.builds.len(), world.now);
    world.dead.insert(host(2));
    world.run(SEC * 300);
    let last = world.switched.last().unwrap();
    assert!(last.2.is_none() && last.0 > died + SEC * 5 && last.0 < died + SEC * 20);
    let tried: Vec<Time> = world.builds[count..].iter().map(|(at, ..)| *at).collect();
    assert!((12..40).contains(&tried.len()), "{} attempts", tried.len());
    let longest = tried.windows(2).map(|pair| pair[1].since(pair[0])).max().unwrap();
    assert!(longest > SEC * 20 && longest < SEC * 45, "{longest:?}");
    assert!(matches!(world.view(host(2)).problem, Some(CircuitProblem::Failed { times: 8.., .. })));
    assert_eq!(world.avoided(), [], "no relay is at fault");
    world.dead.clear();
    world.run(SEC * 40);
    assert!(world.used(host(2)).is_some());
    assert_eq!((world.states(host(2)).len(), world.view(host(2)).problem), (2, None));
}

#[test]
fn a_path_that_can_not_be_set_up_gives_way_to_another() {
    for is_quick in [true, false] {
        let mut world = World::new(6, 12, 64);
        world.is_quick = is_quick;
        // Five of ten middles.
        world.dead.extend((3..8).map(|n| Address::new(n, 0)));
        world.want(host(2));
        world.run(SEC * 60);
        assert_eq!(
            world.states(host(2)),
            [CircuitState::InUse, CircuitState::Standby],
            "{is_quick}"
        );
        assert!(world.builds.len() <= 12, "{} attempts", world.builds.len());
    }
}

#[test]
fn hosts_that_nothing_goes_to_lose_their_circuits() {
    let mut world = World::new(7, 9, 64);
    world.want(host(2));
    world.run(SEC * 30);
    world.busy.clear();
    world.run(SEC * 500);
    assert_eq!(
        world.states(host(2)),
        [CircuitState::InUse, CircuitState::Standby],
        "built ahead for a while"
    );
    let idle = world.echoes;
    world.run(SEC * 95);
    // Two circuits with an echo in 17 s each, so that hops don't forget them, and one that was new.
    assert!((8..=32).contains(&(world.echoes - idle)), "{}", world.echoes - idle);
    world.run(SEC * 10);
    assert!(world.pool.is_empty() && world.circuits.is_empty());
    assert_eq!((world.used(host(2)), world.pool.poll_timeout()), (None, None));
}

#[test]
fn circuits_are_bounded_and_an_idle_host_makes_room() {
    let mut world = World::new(8, 40, 16);
    for n in 2..10 {
        world.want(host(n));
    }
    assert!(!world.pool.want(world.now, host(10)), "eight hosts in use");
    world.run(SEC * 30);
    assert!((2..10).all(|n| world.used(host(n)).is_some()), "each has one, whatever stands by");
    world.busy.remove(&host(5));
    world.run(SEC * 5);
    assert!(world.pool.want(world.now, host(10)));
    world.busy.insert(host(10));
    world.run(SEC * 5);
    assert!(world.used(host(5)).is_none() && world.used(host(10)).is_some());
}

#[test]
fn a_router_that_is_no_relay_any_more_is_left_and_none_is_said() {
    let mut world = World::new(9, 9, 64);
    world.want(host(2));
    world.run(SEC * 5);
    let middle = world.circuits[&world.used(host(2)).unwrap()][1];
    let without = relays(9);
    let without = without.relays().filter(|at| *at != middle).collect::<Vec<_>>();
    let one = ListedRouter { relay: true, hosts: 100, ..ListedRouter::default() };
    world.pool.set_routers(world.now, RouterList::new(without.iter().map(|at| (*at, one.clone()))));
    world.run(SEC * 15);
    assert!(!world.circuits.values().any(|path| path.contains(&middle)));
    assert_eq!(world.states(host(2)), [CircuitState::InUse, CircuitState::Standby]);

    let mut world = World::new(9, 0, 64);
    world.want(host(2));
    world.run(SEC * 5);
    assert_eq!(world.view(host(2)).problem, Some(CircuitProblem::NoRelays));
    world.pool.set_routers(world.now, relays(9));
    world.run(SEC);
    assert!(world.used(host(2)).is_some());
    assert!(world.pool.poll_kept().is_some_and(|kept| kept.text().contains("middle")));
    assert!(world.pool.poll_kept().is_none(), "written down once");
}

#[test]
fn a_circuit_that_hides_less_gives_way_when_the_list_allows_more() {
    let mut world = World::new(9, 4, 64);
    world.pool.set_routers(world.now, sites(4, 1));
    world.want(host(2));
    world.run(SEC * 5);
    assert!(!world.view(host(2)).warnings.is_empty());
    let before = world.used(host(2));
    world.pool.set_routers(world.now, sites(4, 1));
    world.run(SEC * 5);
    assert_eq!(world.used(host(2)), before, "nothing changed");
    world.pool.set_routers(world.now, sites(9, 1));
    world.run(SEC * 5);
    assert_eq!(world.view(host(2)).warnings, []);
    assert_eq!(world.states(host(2))[..2], [CircuitState::InUse, CircuitState::Standby]);
}

#[test]
fn a_circuit_gives_way_when_two_of_its_routers_turn_out_to_be_of_one_family() {
    let mut world = World::new(9, 9, 64);
    world.pool.set_routers(NOW, sites(9, 1));
    world.want(host(2));
    world.run(SEC * 5);
    let path = world.pool.in_use(host(2)).unwrap().1;
    // The standby has these too.
    let related = [path[0], path[2]];
    let family = |at: Address| related.contains(&at).then(|| "one".to_owned());
    let router =
        |at| ListedRouter { relay: true, hosts: 1, family: family(at), ..ListedRouter::default() };
    let all = (1..=9).map(|n| Address::new(n, 0)).map(|at| (at, router(at)));
    world.pool.set_routers(world.now, RouterList::new(all));
    assert_eq!(world.view(host(2)).warnings, [PathWarning::Families], "the warning is given");
    world.run(SEC * 5);
    let path = world.pool.in_use(host(2)).unwrap().1;
    assert!(!related.iter().all(|at| path.contains(at)), "{path:?}");
    assert_eq!(world.view(host(2)).warnings, []);
}

#[test]
fn each_hop_of_the_circuit_in_use_can_be_asked_and_no_other() {
    let mut world = World::new(11, 9, 64);
    world.want(host(2));
    world.run(SEC);
    let (id, path) = world.pool.in_use(host(2)).unwrap();
    assert_eq!((path.len(), path.last()), (4, Some(&host(2))));
    assert!(world.pool.ask(id, 0).is_none() && world.pool.ask(id, 5).is_none());
    let numbers: BTreeSet<u64> = (1..=4).map(|hop| world.pool.ask(id, hop).unwrap()).collect();
    assert!(numbers.len() == 4 && !numbers.contains(&0));
    assert!(world.pool.poll_timeout().is_some_and(|due| due <= world.now));
    let sent: Vec<_> = std::iter::from_fn(|| world.pool.poll_echo()).collect();
    assert!(sent.iter().zip(1..).all(|(echo, hop)| (echo.0, echo.1) == (id, hop)));
    let queued = (0..1_000).filter(|_| world.pool.ask(id, 1).is_some()).count();
    assert_eq!(queued, echoes::ECHOES_MAX);
    world.drain();
    world.pool.forget(world.now, host(2));
    assert!(world.pool.ask(id, 1).is_none() && world.pool.in_use(host(2)).is_none());
    world.drain();
}

#[test]
fn a_set_up_whose_cell_is_lost_is_soon_begun_anew_and_a_slow_one_gets_more_time() {
    let mut world = World::new(12, 9, 64);
    (world.is_quick, world.dead) = (false, [host(2)].into());
    world.want(host(2));
    world.run(SEC * 20);
    let began: Vec<Time> = world.builds.iter().map(|(at, ..)| *at).collect();
    let took = |n: usize| began[n + 1].since(began[n]).as_millis();
    // A short wait precedes each set-up.
    assert!((1_500..2_000).contains(&took(0)), "{began:?}");
    assert!((3_000..4_000).contains(&took(1)), "{began:?}");
    assert!((5_000..6_500).contains(&took(2)), "{began:?}");
}

/// Relays and hosts die and recover, and hosts are wanted or not. The world's checks hold at any
/// time, and in the end all circuits work.
#[test]
fn whatever_dies_the_pool_keeps_its_bounds_and_comes_back() {
    let seeds = proptest::test_runner::Config::default().cases.min(40) as u8;
    for seed in 0..seeds {
        let mut world = World::new(seed, 10, 12);
        let mut rng = Rng::new([seed; 32]);
        for _ in 0..60 {
            let to = host(2 + rng.below(8) as u32);
            match rng.below(8) {
                0 => drop(world.dead.insert(Address::new(1 + rng.below(10) as u32, 0))),
                1 => drop(world.dead.insert(to)),
                2 | 3 => {
                    world.dead.clear();
                    world.refusing.clear();
                    world.cut = rng.below(4) == 0;
                    world.refusing.extend((rng.below(3) == 0).then_some(Address::new(2, 0)));
                }
                4 => drop(world.busy.remove(&to)),
                5 | 6 => world.pool.forget(world.now, to),
                _ if world.busy.len() < 4 && world.pool.want(world.now, to) => {
                    world.busy.insert(to);
                }
                _ => world.is_quick = !world.is_quick,
            }
            world.run(SEC / 20 * (1 + rng.below(2_000) as u32));
        }
        world.dead.clear();
        world.refusing.clear();
        world.cut = false;
        world.run(SEC * 60);
        let all_well = world.busy.iter().all(|to| world.used(*to).is_some());
        assert!(all_well, "seed {seed}: {:?}", world.pool.views(world.now));
    }
}
