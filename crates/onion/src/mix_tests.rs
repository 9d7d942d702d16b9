//! Relays that delay cells: which cells wait, how long, and which nodes know it.

use shoal_wire::{MixStrategy, MixTime};

use super::*;

fn ms(ms: u64) -> MixTime {
    MixTime::from_duration(Duration::from_millis(ms)).unwrap()
}

fn stop() -> MixStrategy {
    MixStrategy::StopAndGo { mean: ms(5), most: ms(25) }
}

fn timed() -> MixStrategy {
    MixStrategy::Timed { every: ms(10) }
}

/// Nodes whose list offers both strategies.
fn world() -> World {
    let mut world = World::new();
    world.nodes.values_mut().for_each(|node| node.set_mixes(Time::ZERO, vec![stop(), timed()]));
    // This time is not the end of a quantum.
    world.now = Time(1_000_000_100);
    world
}

fn begin(world: &mut World, mixes: &[MixStrategy]) -> CircuitId {
    let (now, shape) = (world.now, CellShape::new(3).unwrap());
    let life = Duration::from_secs(600);
    world.node(A).build_mixed(now, &relays(3), mixes, shape, life).unwrap()
}

/// Number of cells that left a node at once, and number that waited.
fn left(world: &World, at: Address) -> (usize, usize) {
    let of = |waits: bool| {
        world.left.iter().filter(|(node, due)| *node == at && due.is_some() == waits).count()
    };
    (of(false), of(true))
}

#[test]
fn every_cell_of_a_mixed_circuit_waits_at_its_relays_and_no_other_does() {
    let mut world = world();
    let id = begin(&mut world, &[stop(), MixStrategy::Pass, timed()]);
    world.run();
    let at_destination = world.events.iter().find_map(|(at, event)| match event {
        OnionEvent::Mixed(there) if *at == B => Some(*there),
        _ => None,
    });
    let there = at_destination.expect("the destination is told");
    assert!(world.events.contains(&(A, OnionEvent::Built(id))));
    for hop in 1..=4 {
        world.node(A).echo(id, hop, 9).unwrap();
    }
    world.unit(A, id, 3, 0xa1);
    world.run();
    world.unit(B, there, 3, 0xb2);
    world.node(A).send_handshake(id, &[7; 1_400]).unwrap();
    world.run();
    world.node(B).send_handshake(there, &[8; 1_400]).unwrap();
    world.run();
    world.node(A).close(id);
    world.run();
    assert_eq!((world.units.len(), &world.drops[..]), (2, &[][..]));
    for (at, waits) in [(relay(1), true), (relay(2), false), (relay(3), true), (B, false)] {
        let (at_once, waited) = left(&world, at);
        assert!(at_once + waited >= 5, "{at}: {at_once} and {waited}");
        assert_eq!(if waits { at_once } else { waited }, 0, "{at}: {at_once} and {waited}");
    }
    let ended =
        world.events.iter().any(|(at, event)| (*at, event) == (B, &OnionEvent::Ended(there)));
    assert!(ended, "the destination is told that it is over");
}

#[test]
fn both_ends_know_what_the_path_adds() {
    let mut world = world();
    let id = begin(&mut world, &[stop(), MixStrategy::Pass, timed()]);
    world.run();
    let there = *world.node(B).ids_of_test().first().unwrap();
    let (here, there) = (world.node(A).waits(id).unwrap(), world.node(B).waits(there).unwrap());
    assert_eq!((here.mean, here.hold), (there.mean, there.hold));
    assert!((9.7..10.0).contains(&(here.mean.duration().as_secs_f64() * 1e3)), "{here:?}");
    assert!(ms(20) < here.hold && here.hold <= ms(35), "{here:?}");
    let plain = world.built(&relays(2), 3);
    assert!(world.node(A).waits(plain).unwrap().most.is_zero());
}

/// The origin can compute how long an echo waits at each relay, since the delays follow from keys
/// that it shares with them.
#[test]
fn the_origin_knows_how_long_each_echo_is_to_wait() {
    let mut world = world();
    let id = begin(&mut world, &[stop(), stop(), timed()]);
    world.run();
    let now = world.now;
    for (number, hop) in (1..=20).flat_map(|n| [(n, 1), (n, 2), (n, 3)]) {
        world.left.clear();
        world.events.clear();
        world.node(A).echo(id, hop, number).unwrap();
        world.run();
        let [(A, OnionEvent::Echoed(_, _, _, delays))] = world.events[..] else {
            panic!("no answer")
        };
        let waits = delays.total();
        if hop == 3 {
            assert_eq!((waits, delays.at(3)), (None, None), "a timed mix goes by its own clock");
            assert!(delays.at(2).is_some(), "the others are known nevertheless");
            continue;
        }
        let waited: Duration =
            world.left.iter().filter_map(|(_, due)| Some((*due)?.since(now))).sum();
        let quanta = Duration::from_micros(250 * (2 * u64::from(hop) - 1));
        let waits = waits.unwrap();
        assert!(waited.abs_diff(waits) <= quanta, "hop {hop}: {waited:?} and not {waits:?}");
    }
}

#[test]
fn a_relay_takes_only_strategies_of_the_list_and_its_own_counts_more() {
    let mut world = world();
    let now = world.now;
    world.node(relay(2)).set_mixes(now, vec![timed()]);
    // Other nodes may still have the previous list for a while.
    let id = begin(&mut world, &[stop(); 3]);
    world.run();
    assert!(world.events.contains(&(A, OnionEvent::Built(id))));
    world.pass(Duration::from_secs(12 * 60));
    world.drops.clear();
    begin(&mut world, &[stop(); 3]);
    world.run();
    assert!(world.drops.contains(&(relay(2), DropReason::NotAllowed)), "{:?}", world.drops);

    let mut world = self::world();
    world.node(relay(2)).set_own_mix(Some(timed()));
    let id = begin(&mut world, &[]);
    world.run();
    assert!(world.events.contains(&(A, OnionEvent::Built(id))));
    let counts = [1, 2, 3].map(|n| left(&world, relay(n)));
    assert!(counts[1].0 == 0 && counts[1].1 > 0 && counts[0].1 + counts[2].1 == 0, "{counts:?}");
}

/// Otherwise an origin could make a relay carry its cells without that relay's own mix.
#[test]
fn a_relay_that_was_called_a_destination_carries_nothing_on() {
    let mut world = world();
    world.node(relay(2)).set_own_mix(Some(timed()));
    let (now, shape, life) = (world.now, CellShape::new(3).unwrap(), Duration::from_secs(600));
    let path = [relay(1), relay(2)];
    let id = world.node(A).build_mixed(now, &path, &[stop()], shape, life).unwrap();
    world.run();
    assert!(world.events.contains(&(A, OnionEvent::Built(id))));
    assert_eq!(core::mem::take(&mut world.drops), []);
    world.node(A).extend_of_test(id, 2, relay(3), &[7; shoal_wire::leg::FIRST_LEN]);
    world.run();
    // The origin, which asked for nothing, does not recognize the answer.
    let answer = (A, DropReason::UnknownCircuit);
    assert_eq!(world.drops, [(relay(2), DropReason::NotAllowed), answer]);
    assert_eq!(world.node(relay(2)).carried().count(), 0);
}
