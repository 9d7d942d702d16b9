//! Colluding relays that feign death in the middle, so that an end seems to fail.

use super::*;

/// Colluders, the end that they frame, and the times at which they feign death.
#[derive(Default)]
pub(super) struct Colluders {
    relays: Vec<Address>,
    /// Relay next to which colluders feign death.
    victim: Option<Address>,
    play: Play,
}

/// Times at which colluders feign death.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Play {
    /// Always.
    #[default]
    Always,
    /// All together, for the first seconds of each period: (seconds, period).
    Together(u64, u64),
    /// One after the other, for this many seconds each.
    InTurn(u64),
}

impl Colluders {
    /// The first hop, counted from 1, that is not reached because a colluder feigns death.
    pub(super) fn broken(&self, now: Time, path: &[Address]) -> Option<usize> {
        let victim = self.victim?;
        let now_s = now.since(Time::ZERO).as_secs();
        let plays = |at: &Address| {
            let Some(n) = self.relays.iter().position(|liar| liar == at) else { return false };
            match self.play {
                Play::Always => true,
                Play::Together(span, period) => now_s % period < span,
                Play::InTurn(span) => (now_s / span) as usize % self.relays.len() == n,
            }
        };
        let (first, last) = (path.first()?, path.get(path.len().checked_sub(2)?)?);
        let is_beside = |n: usize| *first == victim && n == 1 && n + 2 < path.len();
        let hides = |n: usize| *last == victim && n + 2 == path.len() && n > 1;
        (0..path.len())
            .find(|n| (is_beside(*n) && plays(&path[*n])) || (hides(*n) && plays(&path[n - 1])))
            .map(|n| n + 1)
    }
}

/// Ends of a host in many networks.
#[derive(Debug, Default)]
struct Figures {
    networks: u32,
    /// Guards of all hosts, including the first ones.
    guards: usize,
    /// Networks in which a colluder became a guard.
    colluding_guards: u32,
    lasts: usize,
    colluding_lasts: u32,
    /// Longest time without a circuit to one of the peers.
    gap: Duration,
}

/// Ends in the stored text.
fn ends(world: &World) -> [Vec<Address>; 2] {
    let kept = Vanguards::parse(&world.pool.kept.text()).unwrap();
    kept.ends()
}

fn routers(from: u32, to: u32) -> Vec<Address> {
    (from..=to).map(|n| Address::new(n, 0)).collect()
}

/// A host with four busy peers. Of its `relays` small sites, `count` feign death next to its guard
/// or its last relay, once they are in the middle.
fn framed(seed: u8, relays: u32, count: usize, play: Play, end: usize) -> World {
    let mut world = World::of_small_sites(seed, relays);
    world.is_quick = seed.is_multiple_of(2);
    // Each peer gets three echoes a second instead of nine, and a packet each half second, so that
    // hours are simulated in seconds.
    world.tick = SEC / 2;
    let tier = shoal_wire::CoverTier::new(2, shoal_wire::CoverKind::Constant);
    world.pool.set_tiers(tier, BTreeMap::new());
    (2..6).for_each(|n| world.want(host(n)));
    world.run(SEC * 10);
    let (victim, [guards, lasts]) = (ends(&world)[end][0], ends(&world));
    let between = world.circuits.values().flat_map(|path| &path[1..path.len() - 2]);
    let between: BTreeSet<Address> = between.copied().collect();
    let mut rng = Rng::new([seed; 32]);
    let mut rest = routers(2, relays);
    let drawn = (2..=relays).map(|_| rest.swap_remove(rng.below(rest.len() as u64) as usize));
    let drawn: Vec<Address> = drawn.filter(|at| !between.contains(at)).collect();
    let all = between.into_iter().chain(drawn);
    let colluders = all.filter(|at| !guards.contains(at) && !lasts.contains(at)).take(count);
    world.colluders = Colluders { relays: colluders.collect(), victim: Some(victim), play };
    world
}

fn figures(relays: u32, count: usize, play: Play, end: usize, span: Duration) -> Figures {
    let mut all = Figures::default();
    for seed in 0..12 {
        let mut world = framed(seed, relays, count, play, end);
        world.run(span);
        let [guards, lasts] = ends(&world);
        let is_colluder = |at: &Address| world.colluders.relays.contains(at);
        all.networks += 1;
        all.guards += guards.len();
        all.lasts += lasts.len();
        all.colluding_guards += u32::from(guards.iter().any(is_colluder));
        all.colluding_lasts += u32::from(lasts.iter().any(is_colluder));
        let lost = world.switched.iter().enumerate().filter(|(_, (.., id))| id.is_none());
        let back = lost.map(|(n, (at, to, _))| {
            let next =
                world.switched[n..].iter().find(|(_, other, id)| other == to && id.is_some());
            next.map_or(world.now, |next| next.0).since(*at)
        });
        all.gap = back.max().unwrap_or_default().max(all.gap);
    }
    all
}

const PLAYS: [Play; 3] = [Play::Always, Play::Together(20, 120), Play::InTurn(10)];

#[test]
fn two_or_three_relays_that_play_dead_in_the_middle_move_no_guard_and_no_last_relay() {
    let plays = [(2, PLAYS[0]), (2, PLAYS[1]), (3, PLAYS[1])];
    for (end, (count, play)) in [0, 1].into_iter().flat_map(|end| plays.map(|play| (end, play))) {
        let all = figures(12, count, play, end, SEC * 600);
        // Some need a second one, since the first is the router of one of the peers.
        assert_eq!((all.guards, all.lasts), (13, 16), "{end} {count} {play:?}: {all:?}");
        let colluding = (all.colluding_guards, all.colluding_lasts);
        assert_eq!(
            (colluding, all.gap),
            ((0, 0), Duration::ZERO),
            "{end} {count} {play:?}: {all:?}"
        );
    }
}

/// The figures of docs/evidence/anonymity.md. For other figures, set FRAMES to relays, `guard` or
/// `last`, and the numbers of colluders.
#[test]
#[ignore = "hundreds of hosts for two hours take minutes"]
fn frames_of_two_hours() {
    let asked = std::env::var("FRAMES").unwrap_or_else(|_| "12 guard 0 2 3 4 5".to_owned());
    let [relays, end, counts @ ..] = &asked.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{asked}")
    };
    let (relays, end) = (relays.parse().unwrap(), usize::from(*end == "last"));
    for count in counts.iter().map(|count| count.parse().unwrap()) {
        for play in PLAYS.into_iter().take(if count == 0 { 1 } else { 3 }) {
            let all = figures(relays, count, play, end, SEC * 7_200);
            println!("{relays} relays, {count} play dead {play:?}: {all:?}");
        }
    }
}

/// Time that host 2 is without a circuit that avoids `dead`; none if it is more than two minutes.
fn took(world: &mut World, dead: Address) -> Option<Duration> {
    let died = world.now;
    while world.now < died + SEC * 120 {
        world.run(SEC / 10);
        if world.pool.in_use(host(2)).is_some_and(|(_, path)| !path.contains(&dead)) {
            return Some(world.now.since(died));
        }
    }
    None
}

/// A host that speaks with host 2, or has just stopped.
fn speaking(seed: u8, relays: u32, hosts: u32, is_idle: bool) -> (World, Vec<Address>) {
    let mut world = World::new(seed, relays, 64);
    world.pool.set_routers(NOW, sites(relays, hosts));
    world.is_quick = false;
    world.want(host(2));
    world.run(SEC * 10);
    let path = world.pool.in_use(host(2)).unwrap().1[..3].to_vec();
    if is_idle {
        world.pool.forget(world.now, host(2));
        world.drain();
    }
    (world, path)
}

#[test]
fn a_guard_that_goes_on_to_nobody_and_a_dead_last_relay_are_replaced_in_any_network() {
    for (relays, is_idle) in (6..=12).flat_map(|relays| [(relays, false), (relays, true)]) {
        for (seed, n) in (0..8).flat_map(|seed| [(seed, 0), (seed, 2)]) {
            let (mut world, path) = speaking(seed, relays, 1, is_idle);
            if n == 0 {
                let (relays, victim) = (routers(2, relays), Some(path[0]));
                world.colluders = Colluders { relays, victim, play: Play::Always };
            } else {
                world.dead.insert(path[2]);
            }
            let took = took(&mut world, path[n]);
            assert!(took.is_some_and(|took| took < SEC * 15), "{relays} {is_idle} {n}: {took:?}");
        }
    }
}

#[test]
fn small_networks_go_on_with_one_dead_relay_and_a_dead_middle_moves_no_end() {
    // Small sites need their own two routers and three others. Large sites need one other relay,
    // and can't do without their own routers.
    let small = (6..=9).flat_map(|relays| [0, 1, 2].map(|n| (relays, 1, n)));
    let large = (4..=7).map(|relays| (relays, 100, 1));
    for (relays, hosts, n) in small.chain(large) {
        for (seed, is_idle) in (0..8).flat_map(|seed| [(seed, false), (seed, true)]) {
            let (mut world, path) = speaking(seed, relays, hosts, is_idle);
            let kept = ends(&world);
            world.dead.insert(path[n]);
            let took = took(&mut world, path[n]);
            assert!(took.is_some_and(|took| took < SEC * 15), "{relays} {hosts} {n}: {took:?}");
            if n == 1 {
                world.run(SEC * 300);
                assert_eq!(ends(&world), kept, "{relays} {hosts} {is_idle} {seed}");
            }
        }
    }
}
