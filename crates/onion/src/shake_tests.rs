//! Handshakes of the two hosts over circuits.

use super::*;

/// Handshakes that the events of a node report.
fn handshakes(world: &mut World) -> Vec<(Address, CircuitId, Vec<u8>)> {
    let told = core::mem::take(&mut world.events).into_iter().map(|(at, event)| match event {
        OnionEvent::Handshake(id, bytes) => (at, id, bytes.into_vec()),
        other => panic!("{other:?}"),
    });
    told.collect()
}

#[test]
fn a_handshake_passes_both_ways_over_every_number_of_relays() {
    for tags in 1..=5 {
        for k in 1..=tags {
            let mut world = World::new();
            let id = world.built(&relays(k), tags);
            // A request and its cookie reply, then a request and its response.
            for (n, answer_len) in [(1, shake::EDGE_COOKIE_LEN), (2, shake::EDGE_LEN)] {
                let (request, answer) = (unit(n, shake::EDGE_LEN), unit(n + 10, answer_len));
                world.node(A).send_handshake(id, &request).unwrap();
                let cells = world.run();
                assert_eq!(cells.len(), 2 * (usize::from(k) + 1), "two cells on each leg");
                let told = handshakes(&mut world);
                let (_, there, _) = told[0];
                assert_eq!(told, [(B, there, request)]);
                world.node(B).send_handshake(there, &answer).unwrap();
                let twice = world.node(B).send_handshake(there, &answer);
                assert_eq!(twice, Err(DropReason::UnexpectedReply));
                assert_eq!(world.run().len(), 2 * (usize::from(k) + 1));
                assert_eq!(handshakes(&mut world), [(A, id, answer)]);
            }
            assert_eq!(world.drops, []);
            no_nonce_twice();
        }
    }
}

/// The destination sends only when asked, and only once under each number.
#[test]
fn a_request_is_answered_once_however_its_cells_come() {
    let mut world = World::new();
    let id = world.built(&relays(2), 3);
    let frames = [1, 2].map(|n| unit(n, shake::EDGE_LEN));
    world.node(A).send_handshake(id, &frames[0]).unwrap();
    world.run();
    let (_, there, _) = handshakes(&mut world).remove(0);
    // The second request comes before the first is answered.
    world.node(A).send_handshake(id, &frames[1]).unwrap();
    let cells = world.run();
    assert_eq!(handshakes(&mut world), [(B, there, frames[1].clone())]);
    world.node(B).send_handshake(there, &frames[0]).unwrap();
    assert_eq!(world.run().len(), 6);
    for seen in cells {
        assert_eq!(world.hand(&seen), Some(DropReason::Replayed));
    }
    world.drops.clear();
    assert_eq!(handshakes(&mut world).len(), 1);
    let again = world.node(B).send_handshake(there, &frames[0]);
    assert_eq!(again, Err(DropReason::UnexpectedReply));
    for bad in [&[][..], &[0; shake::EDGE_LEN + 1]] {
        assert_eq!(world.node(A).send_handshake(id, bad), Err(DropReason::Malformed));
    }
    no_nonce_twice();
}

#[test]
fn half_a_handshake_is_forgotten() {
    let mut world = World::new();
    let id = world.built(&relays(1), 1);
    world.node(A).send_handshake(id, &unit(1, shake::EDGE_LEN)).unwrap();
    world.collect();
    let late = world.wire.pop().unwrap();
    world.run();
    world.pass(Duration::from_secs(11));
    world.hand(&late);
    world.run();
    assert_eq!((world.events.len(), &world.drops[..]), (0, &[][..]));
    // Only an end of the circuit may send a handshake.
    let carried = world.node(relay(1)).ids_of_test()[0];
    let refused = world.node(relay(1)).send_handshake(carried, &[1; 100]);
    assert_eq!(refused, Err(DropReason::UnknownCircuit));
}

/// A host may take all events only at the end of a turn. It then gets the newest handshake of each
/// circuit, and all events of its own circuits.
#[test]
fn handshakes_without_end_push_nothing_out() {
    let mut world = World::new();
    let id = world.built(&relays(1), 1);
    let (now, shape) = (world.now, CellShape::new(1).unwrap());
    let path = [relay(5), A];
    world.dead.insert(relay(5));
    let own = world.node(B).build(now, &path, shape, Duration::from_secs(60)).unwrap();
    world.run();
    for _ in 0..3 {
        for n in 0..500_u32 {
            world.node(A).send_handshake(id, &unit(n as u8, 100)).unwrap();
        }
        while let Some(crate::OriginatedCell { to, cell, .. }) = world.node(A).poll_transmit() {
            world.hand(&CarriedCell { from: A, to, cell });
            let seen = world.wire.pop().unwrap();
            world.hand(&seen);
        }
    }
    let later = now + Duration::from_secs(11);
    world.node(B).handle_timeout(later);
    let told: Vec<OnionEvent> = core::iter::from_fn(|| world.node(B).poll_event()).collect();
    assert_eq!(told[0], OnionEvent::Failed(own, 1, SetupFailure::Silent));
    assert!(matches!(&told[1..], [OnionEvent::Handshake(_, bytes)] if bytes[..] == unit(243, 100)));
    let lost = world.drops.iter().filter(|drop| **drop == (B, DropReason::QueueFull)).count();
    assert_eq!(lost, 1_499);
}
