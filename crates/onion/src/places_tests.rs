//! Number of circuits that nodes keep, which ones are closed for others, and cleanup after circuits
//! end.

use shoal_crypto::{Processor, Suites};
use shoal_crypto::{Secret, StandardCiphers};
use shoal_wire::HopDelay;
use shoal_wire::leg::HopOffer;

use super::*;
use crate::setup;

const LIFE: Duration = Duration::from_secs(900);

/// Limits that tests can reach: two neighbours' shares fill a router.
fn few(address: Address) -> CircuitLimits {
    match address.is_router() {
        true => CircuitLimits { own: 4, others: 8, of_relay: 8, of_host: 8 },
        false => CircuitLimits { own: 32, others: 8, of_relay: 8, of_host: 8 },
    }
}

impl World {
    /// Builds a circuit over one relay, if there is room for it.
    fn try_build(&mut self, from: Address, path: &[Address]) -> Option<CircuitId> {
        let (now, shape) = (self.now, CellShape::new(1).unwrap());
        let id = self.node(from).build(now, path, shape, LIFE).unwrap();
        self.run();
        self.events.contains(&(from, OnionEvent::Built(id))).then_some(id)
    }

    /// True if the last hop of a circuit of A still answers.
    fn answers(&mut self, id: CircuitId) -> bool {
        self.events.clear();
        let _ = self.node(A).echo(id, 2, 5);
        self.run();
        self.events.contains(&(A, OnionEvent::Echoed(id, 2, 5, EchoDelays::default())))
    }

    fn wait(&mut self, s: u64) {
        self.now = self.now + Duration::from_secs(s);
    }

    fn fits(&mut self) {
        for node in self.nodes.values() {
            for (what, holds, most) in node.fills() {
                assert!(holds <= most, "{what}: {holds}, at most {most}");
            }
        }
    }
}

#[test]
fn circuits_are_limited_per_neighbour_and_in_speed() {
    let limits = |at: Address| CircuitLimits { own: 512, ..CircuitLimits::of(at) };
    let mut world = World::with_limits(limits);
    let path = relays(1);
    let shape = CellShape::new(1).unwrap();
    for _ in 0..40 {
        world.node(A).build(Time::ZERO, &path, shape, Duration::from_secs(60)).unwrap();
    }
    world.run();
    let budget = world.drops.iter().filter(|(_, why)| *why == DropReason::HandshakeBudget);
    assert_eq!(budget.count(), 8, "a host may have 32 at once");
    for _ in 0..60 {
        world.now = world.now + Duration::from_millis(130);
        let now = world.now;
        let _ = world.node(A).build(now, &path, shape, LIFE);
        world.run();
    }
    assert_eq!(world.node(relay(1)).len(), 64, "as many as a host has of its own");
    assert!(world.drops.contains(&(relay(1), DropReason::CircuitLimit)));
    world.fits();
}

/// Places that one host keeps with echoes only go to others, the oldest first. Circuits that
/// carried data stay.
#[test]
fn circuits_that_carried_nothing_make_room() {
    let mut world = World::with_limits(few);
    let first = world.try_build(A, &relays(1)).unwrap();
    let at_relay = world.node(relay(1)).ids_of_test()[0];
    world.unit(A, first, 1, 3);
    world.run();
    let rest: Vec<_> = (1..8).map(|_| world.try_build(A, &relays(1)).unwrap()).collect();
    assert_eq!(world.node(relay(1)).len(), 8);
    let back = [relay(1), A];
    assert_eq!(world.try_build(B, &back), None, "all are young");
    assert_eq!(world.drops, [(relay(1), DropReason::CircuitLimit)]);
    world.drops.clear();
    world.wait(11);
    assert!(world.try_build(B, &back).is_some());
    // Closed circuits are counted.
    assert_eq!(world.drops, [(relay(1), DropReason::CircuitLimit)]);
    world.fits();
    assert!(world.node(relay(1)).ids_of_test().contains(&at_relay));
    assert!(world.answers(first), "the circuit carried data");
    let answer: Vec<bool> = rest.into_iter().map(|id| world.answers(id)).collect();
    assert_eq!(answer, [false, true, true, true, true, true, true], "the oldest went");
    no_nonce_twice();
}

/// The flood comes over four last relays, so that each has only a part of it.
#[test]
fn a_host_whose_places_are_taken_stays_within_reach_and_may_begin_circuits() {
    let mut world = World::with_limits(few);
    let taken: Vec<_> =
        (0..8).map(|n| world.try_build(A, &[relay(n % 4 + 1), B]).unwrap()).collect();
    assert_eq!(world.node(B).len(), 8);
    // For all that the machine knows, any node on the path may have made this one.
    world.unit(A, taken[0], 1, 3);
    world.run();
    world.units.clear();
    // The owner opened this one.
    world.unit(A, taken[1], 1, 4);
    world.run();
    let (_, there, _) = world.units.pop().unwrap();
    world.node(B).note_sender(there, 77);
    assert!(world.try_build(B, &[relay(5), A]).is_some(), "places of own circuits are free");
    assert_eq!(world.try_build(A, &[relay(6), B]), None);
    world.wait(11);
    assert!(world.try_build(A, &[relay(6), B]).is_some());
    assert!(!world.answers(taken[0]) && world.answers(taken[1]));
    assert!(world.try_build(A, &[relay(6), B]).is_some());
    assert!(world.answers(taken[1]) && !world.answers(taken[2]));
    world.fits();
}

/// A host of a network that can't hold its preset sends nothing, not even an answer.
#[test]
fn a_closed_node_neither_answers_set_ups_nor_keeps_circuits_of_others() {
    let mut world = World::with_limits(few);
    let before = world.try_build(A, &[relay(1), B]).unwrap();
    let own = world.try_build(B, &[relay(2), A]).unwrap();
    assert!(world.answers(before));
    world.node(B).set_closed(true);
    assert!(!world.answers(before));
    world.unit(A, before, 1, 3);
    let (now, shape) = (world.now, CellShape::new(1).unwrap());
    world.node(A).build(now, &[relay(3), B], shape, LIFE).unwrap();
    assert!(world.run().iter().all(|sent| sent.from != B), "nothing leaves");
    assert_eq!(world.units.len(), 0);
    assert!(world.drops.contains(&(B, DropReason::CircuitLimit)));
    assert!(world.node(B).progress(own).is_some(), "the owner of own circuits ends them");
    // Open again, for a neighbour that is not slowed down.
    world.node(B).set_closed(false);
    assert!(world.try_build(A, &[relay(4), B]).is_some());
    world.fits();
}

/// Circuits of one peer keep eight places, however many bring its units.
#[test]
fn one_peer_keeps_few_places() {
    let limits = |at: Address| CircuitLimits { others: 12, of_relay: 12, ..few(at) };
    let mut world = World::with_limits(limits);
    let all: Vec<_> =
        (0..12).map(|n| world.try_build(A, &[relay(n % 4 + 1), B]).unwrap()).collect();
    for there in world.node(B).ids_of_test() {
        world.node(B).note_sender(there, 77);
    }
    world.wait(11);
    let more = (0..5).filter(|_| world.try_build(A, &[relay(6), B]).is_some()).count();
    assert_eq!(more, 4);
    let stay: Vec<bool> = all.into_iter().map(|id| world.answers(id)).collect();
    assert_eq!(stay, (0..12).map(|n| n >= 4).collect::<Vec<_>>());
    world.fits();
}

/// Hops that never get a first cell.
#[test]
fn one_neighbour_has_an_eighth_of_the_half_open_places() {
    let limits = |_| CircuitLimits { own: 512, others: 2_048, of_relay: 512, of_host: 512 };
    let mut world = World::with_limits(limits);
    let ask = |world: &mut World, from: Address| {
        let (now, shape) = (world.now, CellShape::new(1).unwrap());
        let id = world.node(from).build(now, &relays(1), shape, LIFE).unwrap();
        for node in [from, relay(1)] {
            while let Some(job) = world.node(node).poll_job() {
                world.node(node).handle_done(now, job.run()).unwrap();
            }
            while let Some(crate::OriginatedCell { to, cell, .. }) =
                world.node(node).poll_transmit()
            {
                if node == from {
                    world.hand(&CarriedCell { from, to, cell });
                }
            }
        }
        world.node(from).close(id);
    };
    for _ in 0..140 {
        ask(&mut world, relay(2));
    }
    assert_eq!(world.node(relay(1)).len(), 128);
    let refused = (relay(1), DropReason::CircuitLimit);
    assert!(world.drops.len() == 12 && world.drops.iter().all(|drop| *drop == refused));
    ask(&mut world, relay(3));
    assert_eq!(world.node(relay(1)).len(), 129);
    world.fits();
}

/// A relay whose queue is full can't ask the next node. No trace of that attempt may end a later
/// one.
#[test]
fn a_relay_that_could_not_ask_the_next_node_forgets_that_it_wanted_to() {
    let mut world = World::new();
    let id = world.begin(&relays(2), 3);
    // To the first relay, back, and with the request to extend.
    for _ in 0..2 {
        world.collect();
        let seen = world.wire.pop().unwrap();
        world.hand(&seen);
    }
    world.collect();
    let first = relay(1);
    let asks = world.wire.pop().unwrap();
    let own = |_| crate::OriginatedCell {
        home: None,
        to: A,
        cell: Box::new([0; CELL_LEN]),
        wait: None,
        circuit: None,
    };
    let full = (0..1_024).map(own);
    world.node(first).transmits_of_test().extend(full);
    assert_eq!(world.hand(&asks), Some(DropReason::QueueFull));
    world.node(first).transmits_of_test().clear();
    assert_eq!(world.node(first).told_of_test(relay(2)), 0);
    world.fits();

    // A second attempt.
    let (leg, key) = (world.node(A).next_leg_of_test(id), world.node(A).nodes_of_test()[&relay(2)]);
    let shape = CellShape::new(3).unwrap();
    let (leg, suites, processor) = (*leg.expose(), Suites::ALL.bits(), Processor::Aes as u8);
    let mixing = HopDelay::default();
    let offer = HopOffer { leg, suites, processor, shape, place: 2, lifetime: 60, mixing };
    let (_, noise) =
        setup::begin::<StandardCiphers>(&key.dh, &offer, &Secret::new([9; 32])).unwrap();
    world.node(A).extend_of_test(id, 1, relay(2), &noise);
    world.run();
    world.now = world.now + Duration::from_millis(10_500);
    let now = world.now;
    world.node(first).handle_timeout(now);
    assert_eq!(
        world.node(first).carried().collect::<Vec<_>>(),
        [(A, relay(2))],
        "the circuit was extended"
    );
    assert_eq!(world.node(first).told_of_test(relay(2)), 1);
    world.pass(Duration::from_secs(70));
    assert_eq!((world.node(first).len(), world.node(first).told_of_test(relay(2))), (0, 0));
    world.fits();
    no_nonce_twice();
}

/// Warm places go to the circuits with the most traffic, whichever came first.
#[test]
fn a_busy_circuit_takes_the_warm_place_of_a_slow_one() {
    let mut world = World::new();
    let (slow, busy) = (world.built(&relays(1), 1), world.built(&relays(1), 1));
    let ids = world.node(relay(1)).ids_of_test();
    *world.node(relay(1)).warm_left_of_test() = 1;
    let warm = |world: &mut World| [0, 1].map(|n| world.node(relay(1)).is_warm_of_test(ids[n]));
    let go = |world: &mut World, id, cells| {
        (0..cells).for_each(|n| world.unit(A, id, 1, n));
        world.run();
    };
    go(&mut world, slow, 2);
    go(&mut world, busy, 4);
    world.pass(Duration::from_secs(1));
    assert_eq!(warm(&mut world), [true, false], "twice as many are not enough");
    go(&mut world, slow, 1);
    go(&mut world, busy, 20);
    world.pass(Duration::from_secs(1));
    assert_eq!(warm(&mut world), [false, true]);
    assert_eq!(*world.node(relay(1)).warm_left_of_test(), 0);
    // The place is given back only once.
    world.pass(Duration::from_secs(12));
    assert_eq!((warm(&mut world), *world.node(relay(1)).warm_left_of_test()), ([false; 2], 1));
}
