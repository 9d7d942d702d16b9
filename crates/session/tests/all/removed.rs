//! The id of a removed peer names nobody, not even the next owner of its number.

use crate::world::{Knobs, SMALL, World, addr, identity, link};
use shoal_session::PeerId;
use shoal_wire::{DropReason, Id};

/// Three nodes with two workers each; the first has a session with the second.
fn world() -> World {
    let mut config = link();
    (config.lanes, config.workers) = (4, 2);
    let mut world = World::new(3, &config, Knobs::default());
    world.connect(0, 1);
    world.run_ms(100);
    assert_eq!(world.established(0), 1);
    world
}

/// At the first node, the third node takes the second one's number.
fn succeed(world: &mut World) -> [PeerId; 2] {
    let [old, other] = [1, 2].map(|n| world.peer(0, n));
    let sessions = &mut world.nodes[0].sessions;
    sessions.remove_peer(old);
    sessions.remove_peer(other);
    let new = sessions.add_peer(identity(2).public()).unwrap();
    sessions.set_endpoint(new, Some(addr(2)));
    assert_eq!((new.number(), new == old), (old.number(), false));
    [old, new]
}

fn connect(world: &mut World, peer: PeerId) {
    world.nodes[0].sessions.connect(world.now, peer);
    world.drain(0);
    world.run_ms(100);
    assert!(world.nodes[0].sessions.is_live(world.now, peer));
}

#[test]
fn nothing_is_sealed_for_a_removed_peer_under_the_keys_of_the_next() {
    let mut world = world();
    let [old, new] = succeed(&mut world);
    connect(&mut world, new);
    let (now, node) = (world.now, &mut world.nodes[0]);
    let share = &mut node.shares[0];
    let lane = share.seal_lanes(now, new).start;
    let mut frame = [0; SMALL];
    for (peer, sealed, lanes) in [(old, Err(DropReason::NoSession), 0), (new, Ok(()), 4)] {
        assert_eq!(node.sessions.lanes(now, peer), lanes);
        assert_eq!(share.lanes(now, peer), lanes);
        let own = node.sessions.seal_batch(now, peer, 0, &mut frame, &[0], SMALL);
        let other = share.seal_batch(now, peer, lane, &mut frame, &[0], SMALL);
        assert_eq!((own, other), (sealed, sealed));
    }
    let sessions = &mut node.sessions;
    sessions.set_endpoint(old, Some(addr(9)));
    sessions.end(now, old, true);
    sessions.remove_peer(old);
    assert!(sessions.is_live(now, new) && sessions.endpoint(new) == Some(addr(2)));
}

#[test]
fn a_note_of_a_removed_peers_session_says_nothing_of_the_next() {
    let mut world = world();
    // On lane 1, which the second worker opens.
    let (now, to) = (world.now, world.peer(1, 0));
    let mut frame = [0; SMALL];
    world.nodes[1].sessions.seal_batch(now, to, 1, &mut frame, &[0], SMALL).unwrap();
    let (old, mut openings) = (world.peer(0, 1), Vec::new());
    let node = &mut world.nodes[0];
    node.shares[0].open_batch(now, &mut frame, &[0], SMALL, &mut openings);
    assert_eq!(openings[0].opened().map(|opened| opened.peer), Ok(old));
    let mut told = None;
    node.shares[0].tell(|note| told.replace(note).is_none());
    let note = told.unwrap();
    assert_eq!(node.sessions.heard(&note), Some(old));
    let [_, new] = succeed(&mut world);
    connect(&mut world, new);
    let sessions = &mut world.nodes[0].sessions;
    assert_eq!(sessions.heard(&note), None);
    sessions.handle_note(world.now, &note);
    assert!(sessions.poll_event().is_none());
}

#[test]
fn handshake_work_for_a_removed_peer_comes_to_nothing() {
    let mut world = world();
    let (now, old) = (world.now, world.peer(0, 1));
    world.nodes[0].runs_jobs = false;
    world.nodes[0].sessions.reconnect(now, old);
    let start = world.nodes[0].sessions.poll_job().unwrap();
    world.nodes[0].sessions.handle_done(now, start.run());
    world.drain(0);
    world.run_ms(50);
    // The answer has come. Its job, and that of another request, ends after the peer is gone.
    let finish = world.nodes[0].sessions.poll_job().unwrap();
    let [old, new] = succeed(&mut world);
    let sessions = &mut world.nodes[0].sessions;
    sessions.connect(now, new);
    let start = sessions.poll_job().unwrap();
    let unexpected = sessions.drops()[DropReason::UnexpectedReply as usize];
    sessions.handle_done(now, finish.run());
    assert_eq!(sessions.drops()[DropReason::UnexpectedReply as usize], unexpected + 1);
    assert!(!sessions.is_live(now, new) && !sessions.is_live(now, old));
    sessions.remove_peer(new);
    let newer = sessions.add_peer(identity(1).public()).unwrap();
    sessions.set_endpoint(newer, Some(addr(1)));
    sessions.handle_done(now, start.run());
    assert!(sessions.poll_transmit(now, &mut [0; 1_440]).is_none(), "nobody is called");
}
