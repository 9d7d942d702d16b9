//! Former members are told of their removal, and nobody else is.

use std::sync::Arc;
use std::time::Duration;

use crate::world::{Knobs, Packet, World, addr, identity, link, machine};
use shoal_crypto::{NetworkSecret, NetworkSecrets};
use shoal_session::noise::{NoisePattern, Responder};
use shoal_session::outer::OuterSeal;
use shoal_session::{
    Endpoint, FormerKeys, FormerPeer, SessionConfig, SessionEvent, SessionRole, Sessions,
};
use shoal_wire::{
    Address, DropReason, HandshakeReply, HandshakeRequest, Removal, RemovalReason, Time, VERSION,
    shake,
};

const REMOVAL: Removal = Removal { reason: RemovalReason::Registrar, day: 20_785 };

fn quiet() -> Knobs {
    Knobs { delay_ms: 1, ..Knobs::default() }
}

fn former(nodes: &[usize]) -> Arc<FormerKeys> {
    let peer = |n: &usize| FormerPeer { key: identity(*n).public(), removal: REMOVAL };
    Arc::new(FormerKeys::new(nodes.iter().map(peer)))
}

/// Removes node 0 at node 1.
fn remove(world: &mut World) {
    let gone = world.peer(1, 0);
    let sessions = &mut world.nodes[1].sessions;
    sessions.remove_peer(gone);
    sessions.set_former(former(&[0]));
}

/// Two nodes; the second one has removed the first.
fn removed(knobs: Knobs) -> World {
    let mut world = World::new(2, &link(), knobs);
    remove(&mut world);
    world
}

/// Number of times that node 0 was told.
fn told(world: &World) -> usize {
    let peer = world.peer(0, 1);
    let told = SessionEvent::Removed { peer, removal: REMOVAL };
    let is_event = |event: &&SessionEvent| matches!(event, SessionEvent::Removed { .. });
    let events: Vec<_> = world.nodes[0].events.iter().filter(is_event).collect();
    assert!(events.iter().all(|event| **event == told));
    events.len()
}

/// Bytes that a node sent, and that were sent to it.
fn bytes(world: &World, n: usize) -> (usize, usize) {
    let sum = |is: fn(&Packet, usize) -> bool| {
        world.trace.iter().filter(|p| is(p, n)).map(|p| p.bytes.len()).sum()
    };
    (sum(|p, n| p.from == addr(n)), sum(|p, n| p.to == addr(n)))
}

#[test]
fn a_former_peer_is_told_once_an_hour() {
    let mut world = removed(quiet());
    world.connect(0, 1);
    world.run_ms(5);
    assert_eq!((told(&world), bytes(&world, 1)), (1, (1_440, 1_440)));
    // The call goes on, in vain.
    world.run_ms(60_000);
    let failed = SessionEvent::Failed { peer: world.peer(0, 1) };
    assert_eq!(world.nodes[0].events.last(), Some(&failed));
    for _ in 0..59 {
        world.connect(0, 1);
        world.run_ms(60_000);
    }
    assert_eq!((told(&world), bytes(&world, 1).0), (1, 1_440));
    world.connect(0, 1);
    world.run_ms(60_000);
    assert_eq!((told(&world), bytes(&world, 1).0), (2, 2_880));
    let stats = world.nodes[1].sessions.stats();
    assert_eq!((stats.removed_told, stats.responses_sent), (2, 0));
    assert_eq!(world.drops(1, DropReason::UnknownPeer), stats.refused);
    assert_eq!(world.nodes[1].sessions.session_count(), 0);
}

#[test]
fn on_any_path_no_more_is_answered_than_was_asked() {
    for seed in 0..40 {
        let narrow = (seed % 3 == 0).then_some(1_000);
        let knobs = Knobs { loss: 200, duplicate: 200, jitter_ms: 400, longest: narrow, ..quiet() };
        let mut world = removed(knobs);
        world.rng = shoal_crypto::Rng::new([seed; 32]);
        let peer = world.peer(0, 1);
        for hour in 1..=3 {
            world.nodes[0].sessions.set_small_path(peer, seed % 2 == 0);
            world.connect(0, 1);
            world.run_ms(3_700_000);
            let (sent, got) = bytes(&world, 1);
            assert!(sent <= got.min(hour * 3 * 576), "seed {seed}: {sent} of {got}");
            let told_there = world.nodes[1].sessions.stats().removed_told;
            assert!(told_there <= hour as u64 && told(&world) <= hour);
        }
    }
}

#[test]
fn strangers_draw_no_byte_from_a_node_that_tells_former_peers() {
    for (secret, n, what) in [(2, 0, DropReason::BadHandshake), (1, 7, DropReason::UnknownPeer)] {
        let mut world = removed(quiet());
        let mut stranger = machine(n, link(), secret, 50, world.now, 1_000_000);
        let peer = stranger.add_peer(identity(1).public()).unwrap();
        stranger.set_endpoint(peer, Some(addr(1)));
        world.nodes[0].sessions = stranger;
        world.connect(0, 1);
        world.run_ms(60_000);
        assert!(world.drops(1, what) >= 1, "{what:?}");
        assert_eq!((world.nodes[1].sent, told(&world)), (0, 0));
    }
}

#[test]
fn a_request_in_parts_is_answered_in_parts_under_either_secret() {
    let secrets = |first, other: Option<u8>| NetworkSecrets {
        first: NetworkSecret([first; 32]),
        other: other.map(|other| NetworkSecret([other; 32])),
    };
    for (caller, small) in [(1, false), (1, true), (2, false), (2, true)] {
        let longest = small.then_some(1_000);
        let mut world = removed(Knobs { longest, ..quiet() });
        world.nodes[0].sessions.set_secrets(secrets(caller, None));
        world.nodes[1].sessions.set_secrets(secrets(2, Some(1)));
        let peer = world.peer(0, 1);
        world.nodes[0].sessions.set_small_path(peer, small);
        world.connect(0, 1);
        world.run_ms(60_000);
        let sent = if small { 3 * 576 } else { 1_440 };
        assert_eq!((told(&world), bytes(&world, 1).0), (1, sent), "{caller} {small}");
    }
}

#[test]
fn a_loaded_node_tells_nobody() {
    let config = SessionConfig { handshake_queue: 4, ..link() };
    let mut world = World::new(2, &config, quiet());
    remove(&mut world);
    world.nodes[1].runs_jobs = false;
    for n in [7, 8] {
        let mut stranger = machine(n, link(), 1, n as u8, world.now, 1_000_000);
        let peer = stranger.add_peer(identity(1).public()).unwrap();
        let bytes = request(&mut stranger, peer, addr(1), world.now);
        world.deliver(Packet { from: addr(n), to: addr(1), bytes });
    }
    world.connect(0, 1);
    world.run_ms(100);
    assert_eq!(world.nodes[0].sessions.stats().cookies_taken, 1);
    world.nodes[1].runs_jobs = true;
    world.drain(1);
    world.run_ms(100);
    assert_eq!((told(&world), world.drops(1, DropReason::UnknownPeer)), (0, 3));
    world.run_ms(5_000);
    assert_eq!(told(&world), 1);
}

/// A request to `peer`, which is then forgotten by the caller.
fn request<E: Endpoint>(
    caller: &mut Sessions<E>,
    peer: shoal_session::PeerId,
    to: E,
    now: Time,
) -> Vec<u8> {
    caller.set_endpoint(peer, Some(to));
    caller.connect(now, peer);
    let job = caller.poll_job().unwrap();
    caller.handle_done(now, job.run());
    let mut frame = vec![0; 1_440];
    let (_, _, len) = caller.poll_transmit(now, &mut frame).unwrap();
    frame.truncate(len);
    frame
}

#[test]
fn a_captured_request_from_elsewhere_draws_one_answer_at_most_and_an_old_one_none() {
    // The request was captured and did not arrive.
    for (age_s, answers) in [(0, 1), (590, 1), (610, 0)] {
        let mut world = removed(quiet());
        let (now, peer) = (world.now, world.peer(0, 1));
        let bytes = request(&mut world.nodes[0].sessions, peer, addr(1), now);
        world.now = now + Duration::from_secs(age_s);
        for port in 0..64 {
            let from = ([172, 16, 0, 1], 9_000 + port).into();
            world.deliver(Packet { from, to: addr(1), bytes: bytes.clone() });
        }
        assert_eq!(world.nodes[1].sent, answers, "{age_s} s");
        assert!(world.trace.iter().all(|p| p.bytes.len() <= bytes.len()));
    }
    // The node has started since.
    let mut world = removed(quiet());
    let (now, peer) = (world.now, world.peer(0, 1));
    let bytes = request(&mut world.nodes[0].sessions, peer, addr(1), now);
    world.now = now + Duration::from_secs(5);
    world.nodes[1].sessions = machine(1, link(), 1, 60, world.now, 1_005_000);
    world.nodes[1].sessions.set_former(former(&[0]));
    world.deliver(Packet { from: addr(0), to: addr(1), bytes });
    assert_eq!((world.nodes[1].sent, world.drops(1, DropReason::UnknownPeer)), (0, 1));
}

#[test]
fn a_peer_that_was_told_in_error_gets_its_session() {
    let mut world = removed(quiet());
    world.connect(0, 1);
    world.run_ms(100);
    assert_eq!((told(&world), world.established(0)), (1, 0));
    // A member again: the same call succeeds.
    world.nodes[1].sessions.add_peer(identity(0).public()).unwrap();
    world.run_ms(2_000);
    assert_eq!((world.established(0), world.established(1)), (1, 1));
    // A peer is never a former one.
    world.nodes[1].sessions.set_former(former(&[0]));
    let peer = world.peer(0, 1);
    world.nodes[0].sessions.reconnect(world.now, peer);
    world.drain(0);
    world.run_ms(100);
    assert_eq!((world.established(0), told(&world)), (2, 1));
}

/// "Removed" as the answer to a request, sealed under the response key if `knows_key`.
fn answer(role: SessionRole, request: &[u8], knows_key: bool) -> Vec<u8> {
    let label: &[u8] = if role == SessionRole::Link { b"link" } else { b"edge" };
    let own = identity(1);
    let seal = OuterSeal::new(label, &NetworkSecret([1; 32]), &own.public());
    let mut frame = request.to_vec();
    let (lead, body) = seal.open_request(&mut frame).unwrap();
    let read = HandshakeRequest::parse(body).unwrap();
    let prologue = [b"shoal ", &[VERSION][..], label, &lead, &read.cookie].concat();
    let noise = &read.noise[..];
    let responder = Responder::read(NoisePattern::Known, &prologue, own.dh(), noise).unwrap();
    let key = Some(responder.response_key()).filter(|_| knows_key);
    let mut frame = vec![0; request.len()];
    let end = frame.len() - 16;
    HandshakeReply::Removed(REMOVAL).write(&mut frame[shake::REPLY_AT..end]).unwrap();
    seal.seal_reply(&lead, &[9; 16], key.as_ref(), &mut frame);
    frame
}

#[test]
fn only_the_called_node_can_say_that_a_caller_was_removed() {
    let mut world = World::new(2, &link(), quiet());
    world.nodes[1].runs_jobs = false;
    let (now, peer) = (world.now, world.peer(0, 1));
    let request = request(&mut world.nodes[0].sessions, peer, addr(1), now);
    let mut deliver = |knows_key| {
        let bytes = answer(SessionRole::Link, &request, knows_key);
        world.deliver(Packet { from: addr(1), to: addr(0), bytes });
        (told(&world), world.drops(0, DropReason::BadHandshake))
    };
    // Another member has the network's secret, but not the response key.
    assert_eq!(deliver(false), (0, 1));
    assert_eq!(deliver(true), (1, 1));
    // A repeated frame tells nothing new.
    assert_eq!(deliver(true), (1, 1));
    assert_eq!(world.drops(0, DropReason::ReplayedHandshake), 1);
}

#[test]
fn hosts_tell_each_other_nothing_and_believe_nothing() {
    let now = Time::from_millis(5);
    let host = |n: usize| {
        let config = SessionConfig::new(SessionRole::Edge);
        let secret = NetworkSecret([1; 32]);
        Sessions::<Address>::new(config, identity(n), secret, [n as u8; 32], now, 0)
    };
    let (mut caller, mut called) = (host(0), host(1));
    called.set_former(former(&[0]));
    let peer = caller.add_peer(identity(1).public()).unwrap();
    let mut frame = request(&mut caller, peer, Address::new(2, 1), now);
    let mut told = answer(SessionRole::Edge, &frame, true);
    called.handle_handshake(now, Address::new(1, 1), &mut frame).unwrap();
    let job = called.poll_job().unwrap();
    called.handle_done(now, job.run());
    assert!(called.poll_transmit(now, &mut [0; 1_440]).is_none());
    assert_eq!(called.drops()[DropReason::UnknownPeer as usize], 1);
    let refused = caller.handle_handshake(now, Address::new(2, 1), &mut told);
    assert_eq!((refused, caller.poll_event()), (Err(DropReason::Malformed), None));
}
