//! New keys: when they are made, and the randomness of a copied machine.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::world::{Knobs, Packet, World, addr, identity, link, machine};
use shoal_session::{SessionEvent, Sessions};
use shoal_wire::{DropReason, Time};

/// True if the event reports a new session.
fn established(event: &SessionEvent) -> bool {
    matches!(event, SessionEvent::Established { .. })
}

#[test]
fn new_keys_come_at_no_fixed_age() {
    let mut config = link();
    config.keep_idle = true;
    let mut world = World::pair(&config, Knobs { delay_ms: 5, ..Knobs::default() });
    let (mut ages, mut last, mut seen) = (Vec::new(), world.now, 1);
    for _ in 0..36_000 {
        world.run_ms(100);
        let count = world.nodes[0].events.iter().filter(|e| established(e)).count();
        if count > seen {
            ages.push(world.now.since(last).as_millis() / 100);
            (last, seen) = (world.now, count);
        }
    }
    println!("ages in tenths of a second: {ages:?}");
    // The first age is counted from two seconds after the session.
    let ages = &ages[1..];
    assert!(ages.len() >= 29, "{}", ages.len());
    assert!(ages.iter().all(|age| (999..=1_202).contains(age)), "{ages:?}");
    let (least, most) = (ages.iter().min(), ages.iter().max());
    assert!(least < Some(&1_040) && most > Some(&1_160), "{ages:?}");
    assert!(ages.iter().collect::<BTreeSet<_>>().len() > ages.len() / 2, "{ages:?}");
    let requests = world.nodes[1].sessions.stats().requests_sent;
    assert_eq!(requests, 0, "the responder leaves it to the initiator");
}

#[test]
fn sessions_that_nobody_uses_end_without_new_keys() {
    let mut world = World::pair(&link(), Knobs { delay_ms: 5, ..Knobs::default() });
    world.run_ms(200_000);
    let asked: u64 = world.nodes.iter().map(|n| n.sessions.stats().requests_sent).sum();
    assert_eq!(asked, 1);
    assert!(world.nodes.iter().all(|n| n.sessions.session_count() == 0));
}

/// The first request of a caller, with or without fresh randomness for its job, and the machine's
/// next draw.
fn calls(fresh: Option<u8>) -> [Vec<u8>; 2] {
    let now = Time::from_millis(5);
    let mut caller = machine(0, link(), 1, 9, now, 1_000_000);
    let mut victim = caller.add_peer(identity(1).public()).unwrap();
    let mut call = |fresh: Option<u8>| {
        caller.set_endpoint(victim, Some(addr(1)));
        caller.reconnect(now, victim);
        let mut job = caller.poll_job().unwrap();
        if let Some(fresh) = fresh {
            job.freshen(&[fresh; 32]);
        }
        caller.handle_done(now, job.run());
        let mut frame = vec![0; 1_440];
        caller.poll_transmit(now, &mut frame).unwrap();
        caller.remove_peer(victim);
        victim = caller.add_peer(identity(1).public()).unwrap();
        frame
    };
    // The second job gets no fresh randomness, so its draws come from the machine.
    [call(fresh), call(None)]
}

/// The leading random bytes: if they are equal, all draws were equal.
fn drawn(frame: &[u8]) -> [u8; 16] {
    *frame.first_chunk().unwrap()
}

#[test]
fn copies_of_a_machine_draw_differently_once_their_jobs_are_freshened() {
    let (one, other) = (calls(None), calls(None));
    assert_eq!(drawn(&one[0]), drawn(&other[0]), "a machine is deterministic");
    let (one, other) = (calls(Some(1)), calls(Some(2)));
    assert_ne!(drawn(&one[0]), drawn(&other[0]));
    assert_ne!(
        drawn(&one[1]),
        drawn(&other[1]),
        "the machine's generator got fresh randomness too"
    );
    assert_eq!(calls(Some(1)).map(|f| drawn(&f)), one.map(|f| drawn(&f)));
}

#[test]
fn all_keys_are_forgotten_at_once_and_made_anew() {
    let mut world = World::pair(&link(), Knobs { delay_ms: 20, ..Knobs::default() });
    world.send(0, 1, 1).unwrap();
    world.send(1, 0, 2).unwrap();
    let (now, to_1) = (world.now, world.peer(0, 1));
    // A call by the copy is open; its reply must have no effect.
    world.nodes[0].sessions.reconnect(now, to_1);
    world.drain(0);
    world.run_ms(25);
    for node in &mut world.nodes {
        node.events.clear();
    }
    let copy = |p: &Packet| Packet { from: p.from, to: p.to, bytes: p.bytes.clone() };
    let before: Vec<Packet> = world.trace.iter().map(copy).collect();
    let now = world.now;
    world.nodes[0].sessions.rekey_all(now, &[7; 32]);
    let mut frame = [0; 192];
    let sealed = world.nodes[0].sessions.seal_batch(now, to_1, 0, &mut frame, &[0], 192);
    assert_eq!(sealed, Err(DropReason::NoSession), "nothing is sealed under the old keys");
    assert_eq!(world.nodes[0].sessions.session_count(), 0);
    world.drain(0);
    assert_eq!(world.nodes[0].events.first(), Some(&SessionEvent::Expired { peer: to_1 }));
    world.run_ms(100);
    assert!(world.nodes.iter().all(|n| n.events.iter().filter(|e| established(e)).count() == 1));
    let got = [world.nodes[0].got.len(), world.nodes[1].got.len()];
    for packet in before {
        world.deliver(packet);
    }
    assert_eq!([world.nodes[0].got.len(), world.nodes[1].got.len()], got);
    world.send(0, 1, 3).unwrap();
    world.send(1, 0, 4).unwrap();
    world.run_ms(100);
    assert_eq!((world.nodes[0].got.last(), world.nodes[1].got.last()), (Some(&4), Some(&3)));
}

#[test]
fn an_answer_that_is_being_made_when_all_keys_go_comes_to_nothing() {
    let mut world = World::new(2, &link(), Knobs { delay_ms: 5, ..Knobs::default() });
    world.nodes[1].runs_jobs = false;
    world.connect(0, 1);
    world.run_ms(10);
    let job = world.nodes[1].sessions.poll_job().unwrap();
    let now = world.now;
    world.nodes[1].sessions.rekey_all(now, &[7; 32]);
    world.nodes[1].sessions.handle_done(now, job.run());
    let answering: &mut Sessions<_> = &mut world.nodes[1].sessions;
    assert_eq!((answering.session_count(), answering.stats().responses_sent), (0, 0));
    assert!(answering.poll_transmit(now, &mut [0; 1_440]).is_none());
    // The next request is answered.
    world.nodes[1].runs_jobs = true;
    world.run_ms(1_000);
    assert_eq!((world.established(0), world.established(1)), (1, 1));
}

#[test]
fn a_clock_that_is_set_while_the_node_runs_makes_another_incarnation() {
    let mut world = World::pair(&link(), Knobs { delay_ms: 5, ..Knobs::default() });
    // One hour back; then three days ahead, first alone and then together.
    for (both, unix_ms) in [(false, 0), (true, 259_200_000)] {
        let now = world.now;
        world.nodes[0].sessions.set_unix_time(now, unix_ms);
        if both {
            world.nodes[1].sessions.set_unix_time(now, unix_ms + 2_000);
        }
        let (to_1, count) = (world.peer(0, 1), world.established(0));
        world.nodes[0].sessions.reconnect(now, to_1);
        world.drain(0);
        world.run_ms(200);
        assert_eq!(world.established(0), count + 1, "{unix_ms}");
        assert!(world.established(1) > count);
    }
    let now = world.now + Duration::from_secs(1);
    world.nodes[0].sessions.set_unix_time(now, 900_000_000);
    let (to_1, count) = (world.peer(0, 1), world.established(0));
    world.nodes[0].sessions.reconnect(now, to_1);
    world.drain(0);
    world.run_ms(20_000);
    assert_eq!(world.established(0), count);
    assert!(world.drops(1, DropReason::WrongClock) >= 1);
}
