//! Several workers hold the lanes of one machine: together they behave like a single worker.

use crate::world::{Knobs, SMALL, World, link};
use proptest::prelude::*;
use shoal_session::{OpenResult, OpenedSessionFrame};
use shoal_wire::DropReason;
use std::time::Duration;

const LANES: u8 = 9;

fn pair(workers: u8, knobs: Knobs) -> World {
    let mut config = link();
    (config.lanes, config.workers) = (LANES, workers);
    World::pair(&config, knobs)
}

/// Seals one frame, on the worker of node 0 that holds the lane.
fn seal(world: &mut World, lane: u8) -> Vec<u8> {
    let (now, peer) = (world.now, world.peer(0, 1));
    let mut frame = vec![0; SMALL];
    let node = &mut world.nodes[0];
    let mut sealed = node.sessions.seal_batch(now, peer, lane, &mut frame, &[0], SMALL);
    for share in &mut node.shares {
        let here = share.seal_lanes(now, peer).contains(&lane);
        let result = share.seal_batch(now, peer, lane, &mut frame, &[0], SMALL);
        assert_eq!(result.is_ok(), here, "{result:?}");
        assert!(!(here && sealed.is_ok()), "two workers seal on lane {lane}");
        sealed = sealed.or(result);
    }
    assert_eq!(sealed, Ok(()));
    frame
}

/// The result of one of node 1's workers for a frame.
fn open_at(world: &mut World, worker: u8, frame: &mut [u8]) -> OpenResult {
    let (now, node) = (world.now, &mut world.nodes[1]);
    let (mut out, at) = (Vec::new(), [0]);
    match worker {
        0 => node.sessions.open_batch(now, frame, &at, SMALL, &mut out),
        _ => {
            let share = &mut node.shares[usize::from(worker) - 1];
            share.open_batch(now, frame, &at, SMALL, &mut out);
        }
    }
    out[0]
}

/// Gives a frame to a worker, which passes it on until one accepts it.
fn arrive(world: &mut World, worker: u8, frame: &[u8]) -> Result<OpenedSessionFrame, DropReason> {
    let mut at = worker;
    for _ in 0..3 {
        let mut copy = frame.to_vec();
        let opening = open_at(world, at, &mut copy);
        let next = match opening {
            OpenResult::Worker(next) => next,
            OpenResult::Handshake => 0,
            opening => return opening.opened(),
        };
        assert!(copy == frame, "a frame for another worker is touched");
        assert_ne!(at, next, "a worker hands a frame to itself");
        at = next;
    }
    panic!("a frame that no worker takes");
}

/// Passes the other workers' notes to the first workers.
fn tell(world: &mut World) {
    let now = world.now;
    for node in &mut world.nodes {
        for share in &mut node.shares {
            share.tell(|note| {
                node.sessions.handle_note(now, &note);
                true
            });
        }
    }
    world.drain(0);
    world.drain(1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24.min(ProptestConfig::default().cases)))]

    /// Whatever lanes are used, and wherever frames and copies arrive, each is opened once.
    #[test]
    fn a_frame_is_opened_once_wherever_it_and_its_copies_arrive(
        workers in 1u8..5,
        frames in prop::collection::vec((0..LANES, any::<[u8; 3]>()), 1..60),
    ) {
        let mut world = pair(workers, Knobs::default());
        let mut counters = [0; LANES as usize];
        // Lane 0 has already sealed the confirming keepalive.
        counters[0] = 1;
        for (lane, arrivals) in frames {
            let frame = seal(&mut world, lane);
            let counter = &mut counters[usize::from(lane)];
            for (copy, at) in arrivals.into_iter().enumerate() {
                let result = arrive(&mut world, at % workers, &frame);
                if copy == 0 {
                    let opened = result.unwrap();
                    prop_assert_eq!((opened.lane, opened.counter), (lane, *counter));
                    prop_assert!(opened.newest);
                } else {
                    prop_assert_eq!(result, Err(DropReason::Replayed));
                }
            }
            *counter += 1;
            tell(&mut world);
        }
    }
}

#[test]
fn keys_change_under_traffic_of_other_workers_and_no_frame_is_lost() {
    let mut world = pair(2, Knobs { delay_ms: 3, ..Knobs::default() });
    let (lane, before) = (LANES - 1, world.established(1));
    for _ in 0..2_600 {
        // Sealed before, and arriving after all events of the next 100 ms, including a change of
        // keys.
        let frame = seal(&mut world, lane);
        tell(&mut world);
        world.run_ms(100);
        let opened = arrive(&mut world, 1, &frame);
        assert!(opened.is_ok(), "{opened:?} at {:?}", world.now);
        tell(&mut world);
    }
    assert!(world.established(1) - before >= 2, "the keys did not change in 260 s");
}

#[test]
fn frames_of_new_keys_that_only_another_worker_saw_confirm_them() {
    let mut world = pair(2, Knobs::default());
    let (to_1, to_0) = (world.peer(0, 1), world.peer(1, 0));
    let before = world.established(1);
    // No frame of the new session arrives at the first worker.
    world.nodes[0].sessions.reconnect(world.now, to_1);
    world.drain(0);
    while let Some((_, packet)) = world.wire.pop_first() {
        if packet.bytes.len() != SMALL {
            world.deliver(packet);
        }
    }
    assert_eq!(world.established(1), before);
    let frame = seal(&mut world, 1);
    assert!(
        arrive(&mut world, 1, &frame).unwrap().newest,
        "the session is not older than the one in use"
    );
    tell(&mut world);
    assert_eq!(world.established(1), before + 1);
    let frame = seal(&mut world, 1);
    assert!(arrive(&mut world, 0, &frame).unwrap().newest);
    assert!(world.nodes[1].sessions.is_live(world.now, to_0));
}

#[test]
fn frames_that_another_worker_sealed_use_keys_up() {
    let mut config = link();
    (config.lanes, config.workers, config.rekey_frames) = (4, 2, 100);
    let mut world = World::pair(&config, Knobs::default());
    let before = world.established(0);
    for _ in 0..150 {
        seal(&mut world, 3);
        tell(&mut world);
        world.run_ms(1);
    }
    assert!(world.established(0) > before);
}

#[test]
fn what_is_refused_is_told_again_and_what_is_over_is_forgotten() {
    let mut world = pair(2, Knobs::default());
    seal(&mut world, LANES - 1);
    let mut told = 0;
    for accept in [false, false, true, true] {
        world.nodes[0].shares[0].tell(|_| {
            told += 1;
            accept
        });
    }
    assert_eq!(told, 3);
    let frame = seal(&mut world, 1);
    let gone = world.peer(1, 0);
    world.nodes[1].sessions.remove_peer(gone);
    world.drain(1);
    assert_eq!(open_at(&mut world, 1, &mut frame.clone()), OpenResult::Handshake);
    // At the age limit no worker seals.
    world.now = world.now + Duration::from_secs(180);
    let (now, peer) = (world.now, world.peer(0, 1));
    assert!(world.nodes[0].shares[0].seal_lanes(now, peer).is_empty());
}
