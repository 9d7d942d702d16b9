//! Mix strategies of circuits when lists change.

use super::*;

#[test]
fn people_see_what_mixes_add_beyond_a_second() {
    let mut world = World::new(1, 9, 64);
    world.pool.set_mixes(world.now, vec![MixStrategy::Timed { every: MixTime::MAX }]);
    world.run(SEC * 60);
    world.want(host(2));
    world.run(LEG * 20);
    let circuit = &world.view(host(2)).circuits[0];
    assert_eq!((circuit.mixes.len(), circuit.added), (3, SEC * 3 / 2));
}

#[test]
fn circuits_get_the_strategies_of_a_newer_list_when_relays_have_it() {
    let mut world = World::new(4, 9, 64);
    let strategy = |ms: u16| MixStrategy::Timed { every: MixTime::from_units(ms * 10).unwrap() };
    world.pool.set_mixes(world.now, vec![strategy(1)]);
    // The delay holds also if there are no circuits yet.
    world.want(host(2));
    world.run(SEC * 30);
    assert_ne!(world.view(host(2)).circuits[0].mixes[0], strategy(1));
    world.run(SEC * 100);
    let used = |world: &World| {
        let circuits = world.view(host(2)).circuits;
        circuits.iter().map(|circuit| circuit.mixes[0]).collect::<Vec<_>>()
    };
    assert_eq!(used(&world), [strategy(1); 2]);
    let built = world.builds.len();
    world.pool.set_mixes(world.now, vec![strategy(2)]);
    // The strategies are set again, as with each list.
    world.run(SEC * 50);
    world.pool.set_mixes(world.now, vec![strategy(2)]);
    assert_eq!((used(&world), world.builds.len()), (vec![strategy(1); 2], built));
    world.run(SEC * 90);
    assert_eq!(used(&world), [strategy(2); 2]);
    let gaps = world.switched.iter().filter(|(_, _, id)| id.is_none()).count();
    assert_eq!(gaps, 0, "there is always one");
    // A list that is withdrawn within the minute changes nothing.
    let built = world.builds.len();
    world.pool.set_mixes(world.now, Vec::new());
    world.run(SEC * 5);
    world.pool.set_mixes(world.now, vec![strategy(2)]);
    world.run(SEC * 90);
    assert_eq!((used(&world), world.builds.len()), (vec![strategy(2); 2], built));
}
