//! Relays that drop or hold some of the cells that pass.

use super::*;

/// Faults that affect echoes.
pub(super) struct Spoil {
    rng: Rng,
    /// This relay drops this share of echoes, in percent.
    drops: Option<(Address, u64)>,
    /// This relay holds this share of echoes for half a second, in percent.
    holds: Option<(Address, u64)>,
    /// Share of echoes that lines lose, in percent.
    lines: u64,
    /// Time at the start of each minute in which lines lose all echoes.
    outage: Duration,
}

impl Default for Spoil {
    fn default() -> Spoil {
        let rng = Rng::new([9; 32]);
        Spoil { rng, drops: None, holds: None, lines: 0, outage: Duration::ZERO }
    }
}

impl Spoil {
    /// Extra delay of its answer; none if it never comes.
    pub(super) fn echo(&mut self, now: Time, path: &[Address]) -> Option<Duration> {
        let mut happens = |of_100: u64| self.rng.below(100) < of_100;
        let by = |what: Option<(Address, u64)>| what.filter(|(at, _)| path.contains(at));
        let is_out = now.0 % 60_000_000_000 < self.outage.as_nanos() as u64;
        let dropped = happens(by(self.drops).map_or(0, |(_, share)| share)) || happens(self.lines);
        let held = happens(by(self.holds).map_or(0, |(_, share)| share));
        let wait = if held { Duration::from_millis(500) } else { Duration::ZERO };
        (!dropped && !is_out).then_some(wait)
    }
}

/// A world with loops whose host 2 is in use, with a standby.
fn looping(seed: u8) -> World {
    let mut world = World::new(seed, 10, 64);
    world.pool.set_loops(NOW, true);
    world.busy.insert(host(2));
    world.want(host(2));
    world.run(SEC * 10 + Duration::from_millis(17) * u32::from(seed));
    assert_eq!(world.states(host(2)), [CircuitState::InUse, CircuitState::Standby]);
    world
}

fn middle(world: &World) -> Address {
    world.pool.in_use(host(2)).unwrap().1[1]
}

/// Time for which host 2's circuit leads over `at`, at most ten minutes.
fn until_left(world: &mut World, at: Address) -> Duration {
    let from = world.now;
    while world.pool.in_use(host(2)).is_none_or(|(_, path)| path.contains(&at)) {
        world.run(SEC);
        if world.now.since(from) > SEC * 600 {
            break;
        }
    }
    world.now.since(from)
}

#[test]
fn a_relay_that_drops_a_fifth_is_noticed_and_left() {
    let mut took = Vec::new();
    for seed in 0..12 {
        let mut world = looping(seed);
        let bad = middle(&world);
        world.spoil.drops = Some((bad, 20));
        took.push(until_left(&mut world, bad));
        world.run(SEC * 5);
        let totals = world.pool.loop_totals();
        let verdict = world.pool.views(world.now)[0].verdict.map(|(verdict, _)| verdict);
        assert!(totals.lossy > 0 && totals.lost > 8, "{seed}: {totals:?}");
        assert_eq!((totals.held, verdict), (0, Some(LoopVerdict::Lossy)));
    }
    took.sort_unstable();
    println!("left after {took:?}");
    assert!(took[6] < SEC * 240, "{took:?}");
}

#[test]
fn a_relay_that_holds_a_quarter_is_noticed_and_left() {
    let mut found = 0;
    for seed in 0..12 {
        let mut world = looping(seed);
        let bad = middle(&world);
        world.spoil.holds = Some((bad, 25));
        // Some are replaced sooner, since several echoes in a row were late.
        assert!(until_left(&mut world, bad) < SEC * 240, "{seed}");
        world.run(SEC * 5);
        let totals = world.pool.loop_totals();
        assert_eq!(totals.lossy, 0, "{seed}: {totals:?}");
        found += u32::from(totals.held > 0 && totals.late > 8);
    }
    assert!(found >= 5, "{found}");
}

#[test]
fn lines_that_lose_cells_or_are_down_for_a_while_are_no_relays_fault() {
    let (mut over, mut found) = (0, 0);
    for seed in 0..12 {
        let mut world = looping(seed);
        (world.spoil.lines, world.spoil.outage) = match seed % 4 {
            0 => (0, Duration::ZERO),
            1 => (3, Duration::ZERO),
            2 => (8, Duration::ZERO),
            _ => (1, SEC * 4),
        };
        world.run(SEC * 3_600);
        let LoopTotals { back, late, lost, lossy, held } = world.pool.loop_totals();
        (over, found) = (over + back + late + lost, found + lossy + held);
        // One in two seconds, over two circuits; fewer while one is silent.
        assert!((3_000..3_900).contains(&(back + late + lost)), "{seed}: {back} {late} {lost}");
        assert_eq!((late, held), (0, 0), "{seed}");
    }
    println!("{found} found in {over} loops");
    assert!(found <= 1, "{found} of some 170 circuits, {over} loops");
}

#[test]
fn loops_are_sent_only_where_they_are_switched_on() {
    let mut world = looping(3);
    world.run(SEC * 100);
    let before = world.pool.loop_totals();
    assert!(before.back > 60, "{before:?}");
    world.pool.set_loops(world.now, false);
    world.run(SEC * 100);
    assert_eq!(world.pool.loop_totals(), before);
    assert!(!world.pool.has_loops());
}

#[test]
fn answers_that_nobody_asked_for_are_no_loops() {
    let mut world = looping(4);
    world.run(SEC * 30);
    let before = world.pool.loop_totals();
    let (id, path) = world.pool.in_use(host(2)).unwrap();
    let hops = path.len() as u8;
    for number in 0..1_000 {
        world.pool.note_echoed(world.now, id, hops, number);
    }
    assert_eq!(world.pool.loop_totals(), before);
}
