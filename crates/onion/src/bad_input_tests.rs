//! Effects of bad input, row by row: a drop or a refusal with its name, and no other effect.
//!
//! Other test files cover further rows:
//!
//! - nodes that are no neighbours, junk and replays: `tests`;
//! - too many circuits of a neighbour, or half-open ones: `places_tests`, `setup_tests`;
//! - a list without relays, and a relay that vanished: `pool`;
//! - strangers' cells at a whole node: `shoal-node`.

use super::*;
use crate::hop::take_numbers;
use crate::leg::CELLS_MAX;

const EXTEND: u8 = 1;
const EXTENDED: u8 = 2;
const ECHO: u8 = 5;
const ECHOED: u8 = 6;

/// Changes a control message before it is sealed: the one of this type after `skip` others, from
/// this offset on. Offset 0 is its flag, offset 1 its type.
fn bend(kind: u8, skip: usize, at: usize, bytes: &[u8]) {
    BEND.set(Some((kind, skip, at, bytes.to_vec())));
}

/// Result of a set-up over three relays in which a hop, counted from 2, is requested with another
/// address.
fn asked_for(hop: usize, tags: u8, relays: &[Address], to: Address) -> Option<(u8, SetupFailure)> {
    let mut world = World::new();
    bend(EXTEND, hop - 2, 2, &to.to_bytes());
    let id = world.begin(relays, tags);
    world.run();
    assert!(BEND.take().is_none(), "the message was sealed");
    let failed = world.events.iter().find_map(|(_, event)| match event {
        OnionEvent::Failed(of, hop, why) if *of == id => Some((*hop, *why)),
        _ => None,
    });
    let is_refused = matches!(failed, Some((_, SetupFailure::Refused(_))));
    let counted = [(relays[hop - 2], DropReason::NotAllowed)];
    assert_eq!(world.drops, counted[..usize::from(is_refused)]);
    world.pass(Duration::from_secs(72));
    assert_eq!(world.circuits(), 0, "no circuit is left");
    failed
}

#[test]
fn a_relay_extends_neither_to_itself_nor_back_nor_to_strangers() {
    let refused = |hop: u8| Some((hop, SetupFailure::Refused(ExtendRefusal::NotAllowed)));
    let path = relays(3);
    for (hop, to) in [
        (2, relay(1)),
        (2, A),
        (3, relay(2)),
        (3, relay(1)),
        (3, Address::new(77, 0)),
        (4, Address::new(77, 1)),
        (4, relay(2)),
    ] {
        assert_eq!(asked_for(hop.into(), 5, &path, to), refused(hop), "{hop} {to}");
    }
    // After the last place there can only be a host.
    assert_eq!(asked_for(4, 3, &path, relay(5)), refused(4));
}

#[test]
fn a_node_that_is_no_relay_extends_nowhere() {
    let mut world = World::new();
    world.node(relay(2)).set_relay(false);
    let id = world.begin(&relays(3), 3);
    world.run();
    assert_eq!(
        world.events,
        [(A, OnionEvent::Failed(id, 3, SetupFailure::Refused(ExtendRefusal::NotAllowed)))]
    );
}

/// The address does not belong to the node whose key the origin used, so the hop can't read the
/// message.
#[test]
fn a_hop_that_is_not_the_one_meant_ends_the_set_up() {
    let mut world = World::new();
    bend(EXTEND, 0, 2, &relay(5).to_bytes());
    let id = world.begin(&relays(3), 3);
    world.run();
    assert_eq!(world.drops, [(relay(5), DropReason::BadHandshake)]);
    world.pass(Duration::from_secs(12));
    assert_eq!(world.events, [(A, OnionEvent::Failed(id, 2, SetupFailure::Silent))]);
}

#[test]
fn reserved_values_are_malformed_where_they_are_read() {
    for (at, byte) in [(0, 2), (0, 255), (1, 0), (1, 8), (1, EXTENDED), (1, 3), (1, ECHOED)] {
        let mut world = World::new();
        let id = world.built(&relays(3), 3);
        bend(ECHO, 0, at, &[byte]);
        world.node(A).echo(id, 2, 9).unwrap();
        world.run();
        let dropped = core::mem::take(&mut world.drops);
        assert_eq!(dropped, [(relay(2), DropReason::Malformed)], "{at} {byte}");
        assert_eq!(world.events, []);
        // An answer on its way back.
        bend(ECHOED, 0, at, &[if byte == ECHOED { ECHO } else { byte }]);
        world.node(A).echo(id, 2, 9).unwrap();
        world.run();
        let why = match (at, byte) {
            // An answer that was not asked for.
            (1, EXTENDED) => DropReason::UnknownCircuit,
            _ => DropReason::Malformed,
        };
        let dropped = core::mem::take(&mut world.drops);
        assert_eq!(dropped, [(A, why)], "{at} {byte}");
        assert_eq!(world.events, []);
        world.node(A).echo(id, 4, 10).unwrap();
        world.run();
        let answered = OnionEvent::Echoed(id, 4, 10, EchoDelays::default());
        assert_eq!(world.events, [(A, answered)], "the circuit goes on");
    }
}

/// A node on the path flips a bit of an echo on any leg. On its way out the next node drops it; on
/// its way back the origin does, at the latest. If the next node overwrites the bit, nothing
/// happens.
#[test]
fn a_changed_control_cell_dies_by_name() {
    let mut world = World::new();
    let (id, shape) = (world.built(&relays(3), 3), CellShape::new(3).unwrap());
    let flips = (0..40).step_by(3).chain((40..1_320).step_by(211)).chain((1_320..1_400).step_by(7));
    for at in flips {
        for leg in 0..8 {
            let number = (at * 8 + leg + 1) as u64;
            world.node(A).echo(id, 4, number).unwrap();
            world.collect();
            for _ in 0..leg {
                let seen = world.wire.pop().unwrap();
                world.hand(&seen);
                world.collect();
            }
            let mut bad = world.wire.pop().unwrap();
            bad.cell[at] ^= 0x10;
            let died = world.hand(&bad);
            world.run();
            // Place of the node that opens it, or that sealed it.
            let place = if leg < 4 { 3 - leg } else { leg - 4 } as u8;
            let covered = shape.flag_at(place)..shape.tag_at(place) + 16;
            let heard = world.events.drain(..).count();
            let drops = core::mem::take(&mut world.drops);
            let context = format!("{at} on leg {leg}: {drops:?}");
            if at >= BODY_AT + 16 && !covered.contains(&at) {
                assert_eq!((heard, drops.len()), (1, 0), "{context}");
                continue;
            }
            assert_eq!((heard, drops.len()), (0, 1), "{context}");
            let is_at_next = at < BODY_AT + 16 || leg < 4;
            assert_eq!(drops[0].0, if is_at_next { bad.to } else { A }, "{context}");
            assert_eq!(died.is_some(), drops[0].0 == bad.to, "{context}");
            let wrong_leg = [DropReason::BadLeg, DropReason::UnknownCircuit].contains(&drops[0].1);
            assert!(wrong_leg == (at < BODY_AT + 16), "{context}");
            assert!(wrong_leg || drops[0].1 == DropReason::BadLayer, "{context}");
        }
    }
    no_nonce_twice();
}

/// A cell is repeated, late, or put in another's place, in both directions and on both lanes.
#[test]
fn cells_that_come_again_or_elsewhere_die_by_name() {
    let mut world = World::new();
    let id = world.built(&relays(3), 3);
    let other = world.built(&[relay(4), relay(2), relay(3), B], 3);
    world.unit(A, id, 3, 1);
    let mut all = world.run();
    let (_, there, _) = world.units.pop().unwrap();
    world.unit(B, there, 3, 2);
    all.extend(world.run());
    world.node(A).echo(id, 3, 5).unwrap();
    all.extend(world.run());
    world.units.clear();
    world.events.clear();
    for seen in &all {
        assert_eq!(world.hand(seen), Some(DropReason::Replayed));
        // Sent to another node, from another node, and as another circuit's cell.
        let elsewhere = CarriedCell { to: relay(6), ..seen.clone() };
        assert_eq!(world.hand(&elsewhere), Some(DropReason::UnknownCircuit));
        let forged = CarriedCell { from: relay(6), ..seen.clone() };
        assert_eq!(world.hand(&forged), Some(DropReason::UnknownCircuit));
    }
    assert_eq!(world.run().len() + world.units.len() + world.events.len(), 0);
    world.drops.clear();
    world.unit(A, other, 3, 3);
    world.run();
    assert_eq!((world.units.len(), world.drops.len()), (1, 0), "the other circuit goes on");
    no_nonce_twice();
}

/// A hop's answer has the number of a request. A number ahead of all requests would move the
/// windows of the hops before it, so that their own answers would be too late.
#[test]
fn an_answer_to_what_nobody_asked_moves_no_window() {
    for (from, dropped_at, heard) in
        [(relay(3), relay(2), &[1, 2][..]), (relay(2), relay(1), &[1]), (relay(1), A, &[])]
    {
        let mut world = World::new();
        let id = world.built(&relays(3), 3);
        let there = world.node(from).ids_of_test()[0];
        world.node(from).reply_of_test(there, 100_000).unwrap();
        world.run();
        assert_eq!(world.drops.pop(), Some((dropped_at, DropReason::UnexpectedReply)));
        for &hop in heard {
            world.node(A).echo(id, hop, 9).unwrap();
            world.run();
            let answered = OnionEvent::Echoed(id, hop, 9, EchoDelays::default());
            assert_eq!(world.events.pop(), Some((A, answered)), "{from}, {hop}");
        }
        assert_eq!((&world.events[..], &world.drops[..]), (&[][..], &[][..]));
        no_nonce_twice();
    }
}

#[test]
fn what_is_over_or_full_is_refused_by_name() {
    // No numbers are left.
    let mut next = CELLS_MAX - 3;
    assert_eq!(take_numbers(&mut next, 4), Err(DropReason::CircuitExpired));
    assert_eq!(take_numbers(&mut next, 3), Ok(CELLS_MAX - 3), "none was taken");

    // The circuit is over, at its origin and at its first relay.
    let mut world = World::new();
    let id = world.built(&relays(3), 3);
    world.unit(A, id, 3, 1);
    let late = world.wire.pop().unwrap();
    world.pass(Duration::from_secs(62));
    assert_eq!(world.circuits(), 0);
    assert_eq!(world.hand(&late), Some(DropReason::UnknownCircuit));
    let (now, mut cell) = (world.now, [0; CELL_LEN]);
    let sent = world.node(A).seal_units(now, id, &mut cell, &[0]);
    assert_eq!(sent, Err(DropReason::UnknownCircuit));
    assert_eq!(world.node(A).echo(id, 1, 1), Err(DropReason::UnknownCircuit));

    // This node has as many circuits as it may.
    let mut world = World::new();
    let shape = CellShape::new(1).unwrap();
    let begin = |world: &mut World| {
        let built = world.node(A).build(Time::ZERO, &relays(1), shape, Duration::from_secs(60));
        while let Some(job) = world.node(A).poll_job() {
            world.node(A).handle_done(Time::ZERO, job.run()).unwrap();
        }
        built.map(|_| ())
    };
    for _ in 0..256 {
        assert_eq!(begin(&mut world), Ok(()));
    }
    assert_eq!(begin(&mut world), Err(DropReason::CircuitLimit));
    for (what, holds, most) in world.node(A).fills() {
        assert!(holds <= most, "{what}: {holds}, at most {most}");
    }
}

#[test]
fn events_that_nobody_takes_are_bounded_and_those_lost_are_counted() {
    let mut world = World::new();
    let origin = world.node(A);
    (0..2_000).for_each(|n| origin.tell_of_test(OnionEvent::Ended(CircuitId::from_bits(n))));
    assert_eq!((origin.take_lost(), origin.take_lost()), (2_000 - 1_024, 0));
    assert_eq!(core::iter::from_fn(|| origin.poll_event()).count(), 1_024);
}
