//! Two honest machines over a faulty network.

use std::time::Duration;

use crate::world::{self, Knobs, World, link, machine};
use shoal_crypto::Suite;
use shoal_session::SessionEvent;
use shoal_wire::{DropReason, SizeClass};

#[test]
fn a_session_in_one_round_trip_then_data_both_ways() {
    let mut world = World::new(2, &link(), Knobs { delay_ms: 10, ..Knobs::default() });
    world.connect(0, 1);
    world.run_ms(21);
    let want = SessionEvent::Established {
        peer: world.peer(0, 1),
        initiator: true,
        suite: Suite::Aegis256X4,
        level: shoal_wire::Level::Encrypt,
        new: true,
    };
    assert_eq!(world.nodes[0].events[0], want);
    world.run_ms(10);
    assert_eq!(world.established(1), 1);
    for number in 0..10 {
        world.send(0, 1, number).unwrap();
        world.send(1, 0, number).unwrap();
    }
    world.run_ms(100);
    let want: Vec<u32> = (0..10).collect();
    assert_eq!((&world.nodes[0].got, &world.nodes[1].got), (&want, &want));
    assert!(world.trace.iter().all(|p| SizeClass::of_frame(p.bytes.len()).is_some()));
    assert!(world.nodes.iter().all(|n| n.drops.is_empty()));
}

#[test]
fn another_suite_where_one_end_asks_for_it() {
    for asked in Suite::ALL {
        agrees_on(asked);
    }
}

fn agrees_on(asked: Suite) {
    let mut config = link();
    config.means.suites = [asked].into_iter().collect();
    let mut world = World::new(2, &link(), Knobs::default());
    world.nodes[1].sessions = {
        let mut sessions = machine(1, config, 1, 9, world.now, 0);
        let peer = sessions.add_peer(world::identity(0).public()).unwrap();
        sessions.set_endpoint(peer, Some(world::addr(0)));
        sessions
    };
    world.connect(0, 1);
    world.run_ms(100);
    let agreed = |event: &SessionEvent| match event {
        SessionEvent::Established { suite, .. } => *suite == asked,
        _ => false,
    };
    assert!(world.nodes.iter().all(|n| agreed(&n.events[0])));
    world.send(0, 1, 7).unwrap();
    world.run_ms(100);
    assert_eq!(world.nodes[1].got, [7]);
}

#[test]
fn a_handshake_gets_through_heavy_loss_and_slow_paths() {
    for seed in 0..20 {
        let knobs =
            Knobs { loss: 400, duplicate: 100, delay_ms: 50, jitter_ms: 100, ..Knobs::default() };
        let mut world = World::new(2, &link(), knobs);
        world.rng = shoal_crypto::Rng::new([seed; 32]);
        world.connect(0, 1);
        world.run_ms(20_000);
        world.knobs.loss = 0;
        world.run_ms(3_000);
        assert!(world.established(0) >= 1 && world.established(1) >= 1, "seed {seed}");
        world.send(0, 1, 1).unwrap();
        world.send(1, 0, 2).unwrap();
        world.run_ms(1_000);
        assert_eq!((&world.nodes[0].got[..], &world.nodes[1].got[..]), (&[2][..], &[1][..]));
    }
    // Slower than the first three retries: the reply to an older request must count.
    let mut world = World::new(2, &link(), Knobs { delay_ms: 700, ..Knobs::default() });
    world.connect(0, 1);
    world.run_ms(10_000);
    assert_eq!((world.established(0), world.established(1)), (1, 1));
}

#[test]
fn both_begin_at_once_and_one_session_comes_of_it() {
    for delay_ms in [0, 5, 100, 400] {
        let mut world = World::new(2, &link(), Knobs { delay_ms, ..Knobs::default() });
        world.connect(0, 1);
        world.connect(1, 0);
        world.run_ms(2_500);
        assert_eq!((world.established(0), world.established(1)), (1, 1), "{delay_ms}");
        for number in 0..5 {
            world.send(0, 1, number).unwrap();
            world.send(1, 0, number).unwrap();
        }
        world.run_ms(1_000);
        assert_eq!((world.nodes[0].got.len(), world.nodes[1].got.len()), (5, 5));
        // On a slow path a repeated request was answered too, and that session is not used.
        world.run_ms(60_000);
        assert_eq!(world.nodes[0].sessions.session_count(), 1);
    }
}

#[test]
fn crossed_requests_on_a_one_way_path_still_end_in_a_session() {
    // Node 1's first requests are lost, so node 0 must answer by itself in the end. The test runs
    // in both directions, whichever key is smaller.
    for silent in [0, 1] {
        let mut world = World::new(2, &link(), Knobs { delay_ms: 5, ..Knobs::default() });
        world.connect(0, 1);
        world.connect(1, 0);
        let deaf = world::addr(silent);
        for _ in 0..200 {
            world.wire.retain(|_, p| p.from != deaf || p.bytes.len() != 1_440);
            world.run_ms(10);
        }
        world.run_ms(12_000);
        assert!(world.established(0) >= 1 && world.established(1) >= 1, "{silent}");
    }
}

#[test]
fn new_keys_under_traffic_lose_no_frame() {
    for (seed, jitter_ms) in [(1, 0), (2, 20), (3, 60)] {
        let mut config = link();
        config.rekey_after = Duration::from_millis(1_000);
        config.reject_after = Duration::from_millis(40_000);
        let knobs = Knobs { delay_ms: 20, jitter_ms, duplicate: 20, loss: 0, ..Knobs::default() };
        let mut world = World::pair(&config, knobs);
        world.rng = shoal_crypto::Rng::new([seed; 32]);
        for number in 0..8_000 {
            world.send(0, 1, number).unwrap();
            world.send(1, 0, number).unwrap();
            world.run_ms(1);
        }
        world.run_ms(1_000);
        for i in 0..2 {
            assert!(world.established(i) >= 6, "{} sessions", world.established(i));
            let mut got = world.nodes[i].got.clone();
            got.sort_unstable();
            assert_eq!(got, (0..8_000).collect::<Vec<_>>(), "each exactly once, seed {seed}");
        }
        assert_eq!(world.drops(0, DropReason::UnknownIndex), 0);
        assert!(world.drops(0, DropReason::Replayed) > 0, "duplicates were counted");
    }
}

#[test]
fn new_keys_by_frame_count() {
    let mut config = link();
    config.rekey_frames = 100;
    let mut world = World::pair(&config, Knobs { delay_ms: 1, ..Knobs::default() });
    for number in 0..1_000 {
        world.send(0, 1, number).unwrap();
        world.run_ms(1);
    }
    world.run_ms(100);
    assert_eq!(world.nodes[1].got, (0..1_000).collect::<Vec<_>>());
    assert!(world.established(0) >= 5);
}

#[test]
fn new_keys_in_one_direction_only_traffic_with_loss() {
    let mut config = link();
    config.rekey_after = Duration::from_millis(500);
    config.reject_after = Duration::from_millis(8_000);
    let knobs = Knobs { delay_ms: 20, jitter_ms: 5, duplicate: 0, loss: 100, ..Knobs::default() };
    let mut world = World::new(2, &config, knobs);
    world.connect(0, 1);
    world.run_ms(5_000);
    let before = world.trace.len();
    for number in 0..10_000 {
        world.send(0, 1, number).unwrap();
        world.run_ms(1);
    }
    assert!(world.trace.len() > before);
    let got = world.nodes[1].got.len();
    assert!(
        (8_700..9_300).contains(&got),
        "only frames that the network lost may be missing: {got}"
    );
}

#[test]
fn idle_sessions_end_and_come_back() {
    let mut world = World::pair(&link(), Knobs { delay_ms: 1, ..Knobs::default() });
    world.run_ms(170_000);
    assert_eq!(world.established(0), 1, "an idle session must not rekey");
    let peer = world.peer(0, 1);
    assert!(world.nodes[0].sessions.is_live(world.now, peer));
    world.run_ms(20_000);
    assert!(!world.nodes[0].sessions.is_live(world.now, peer));
    assert!(world.nodes[0].events.contains(&SessionEvent::Expired { peer }));
    assert_eq!(world.nodes[0].sessions.session_count(), 0);
    assert_eq!(world.nodes[0].sessions.poll_timeout(), None, "no timer is left");
    assert_eq!(world.send(0, 1, 1), Err(DropReason::NoSession));
    world.connect(0, 1);
    world.run_ms(100);
    world.send(0, 1, 1).unwrap();
    world.run_ms(100);
    assert_eq!(world.nodes[1].got, [1]);
}

#[test]
fn kept_sessions_rekey_without_traffic() {
    let mut config = link();
    config.keep_idle = true;
    let mut world = World::pair(&config, Knobs { delay_ms: 1, ..Knobs::default() });
    world.run_ms(1_000_000);
    assert!((9..=11).contains(&world.established(0)), "{}", world.established(0));
    assert!(world.nodes[0].sessions.is_live(world.now, world.peer(0, 1)));
}

#[test]
fn nobody_there() {
    let mut world = World::new(2, &link(), Knobs { loss: 1_000, ..Knobs::default() });
    let peer = world.peer(0, 1);
    world.connect(0, 1);
    world.run_ms(60_000);
    assert_eq!(world.nodes[0].events, [SessionEvent::Failed { peer }]);
    assert_eq!(world.nodes[0].sessions.stats().requests_sent, 13);
    assert_eq!(world.nodes[0].sessions.poll_timeout(), None);
    world.knobs.loss = 0;
    world.connect(0, 1);
    world.run_ms(1_000);
    assert_eq!(world.established(0), 1);
}

#[test]
fn the_endpoint_follows_the_newest_frame_only() {
    let mut world = World::pair(&link(), Knobs { delay_ms: 1, ..Knobs::default() });
    world.send(0, 1, 1).unwrap();
    let (_, early) = world.wire.pop_first().unwrap();
    let moved = "192.0.2.9:99".parse().unwrap();
    world.nodes[0].addr = moved;
    world.send(0, 1, 2).unwrap();
    world.run_ms(10);
    let peer = world.peer(1, 0);
    assert_eq!(world.nodes[1].sessions.endpoint(peer), Some(moved));
    // The frame from before the move comes late: it is accepted, but does not move the endpoint
    // back.
    world.deliver(early);
    assert_eq!(world.nodes[1].got, [2, 1]);
    assert_eq!(world.nodes[1].sessions.endpoint(peer), Some(moved));
}

#[test]
fn a_restarted_peer_gets_a_session_also_with_its_clock_set_back() {
    let mut world = World::pair(&link(), Knobs { delay_ms: 1, ..Knobs::default() });
    for (round, unix_ms) in [(0, 1_000_000), (1, 5_000), (2, 0)] {
        let mut sessions = machine(0, link(), 1, 100 + round, world.now, unix_ms);
        let peer = sessions.add_peer(world::identity(1).public()).unwrap();
        sessions.set_endpoint(peer, Some(world::addr(1)));
        world.nodes[0].sessions = sessions;
        world.connect(0, 1);
        world.run_ms(100);
        world.nodes[1].got.clear();
        world.send(0, 1, 5).unwrap();
        world.send(1, 0, 6).unwrap();
        world.run_ms(100);
        assert_eq!((world.nodes[1].got.len(), world.nodes[0].got.len()), (1, 1 + round as usize));
    }
}

#[test]
fn a_call_goes_on_while_the_peers_is_answered() {
    // Each calls the other. The answer is lost, and the caller forgets everything, including the
    // other's address.
    for (caller, other) in [(0, 1), (1, 0)] {
        let mut world = World::new(2, &link(), Knobs { delay_ms: 5, ..Knobs::default() });
        world.knobs.loss = 1_000;
        world.connect(caller, other);
        world.run_ms(2_500);
        world.knobs.loss = 0;
        world.connect(other, caller);
        let mute = world::addr(caller);
        for _ in 0..100 {
            world.wire.retain(|_, p| p.from != mute);
            world.run_ms(1);
        }
        assert_eq!(world.nodes[caller].sessions.stats().responses_sent, 1);
        let mut sessions = machine(other, link(), 1, 99, world.now, 2_000_000);
        sessions.add_peer(world::identity(caller).public()).unwrap();
        world.nodes[other].sessions = sessions;
        world.run_ms(5_000);
        assert!(world.established(0) >= 1 && world.established(1) >= 1, "{caller} calls");
    }
}

#[test]
fn the_same_seeds_give_the_same_story() {
    let story = || {
        let knobs =
            Knobs { loss: 200, duplicate: 50, delay_ms: 10, jitter_ms: 30, ..Knobs::default() };
        let mut world = World::new(2, &link(), knobs);
        world.connect(0, 1);
        world.run_ms(10_000);
        let lens: Vec<_> = world.trace.iter().map(|p| (p.from, p.bytes.len())).collect();
        (lens, world.nodes[0].events.clone(), world.nodes[1].events.clone())
    };
    assert_eq!(story(), story());
}

#[test]
fn a_path_without_room_for_a_full_frame_is_found_out_and_left_again() {
    let medium = SizeClass::Medium.frame_len();
    let mut world =
        World::new(2, &link(), Knobs { delay_ms: 10, longest: Some(medium), ..Knobs::default() });
    world.connect(0, 1);
    world.run_ms(2_000);
    let small = |world: &World| {
        let is_small = |i: usize| world.nodes[i].sessions.is_small_path(world.peer(i, 1 - i));
        (is_small(0), is_small(1))
    };
    assert_eq!((world.established(0), world.established(1)), (1, 1), "at the third request");
    assert_eq!(small(&world), (true, true));
    world.send(0, 1, 5).unwrap();
    world.run_ms(100);
    assert_eq!(world.nodes[1].got, [5]);
    // The path is tested again at growing intervals, and is unchanged.
    world.run_ms(117_000);
    assert_eq!((world.established(0), small(&world)), (1, (true, true)));
    let full = |p: &&world::Packet| p.bytes.len() == SizeClass::Full.frame_len();
    assert_eq!(
        world.trace.iter().filter(full).count(),
        2 + 8 * 4,
        "two requests, then four a time"
    );
    // New keys on the same path.
    let (peer, now) = (world.peer(0, 1), world.now);
    world.nodes[0].sessions.reconnect(now, peer);
    world.drain(0);
    world.run_ms(1_000);
    assert_eq!((world.established(0), small(&world)), (2, (true, true)));
    // The path carries full frames again.
    world.knobs.longest = None;
    let (peer, now) = (world.peer(0, 1), world.now);
    world.nodes[0].sessions.reconnect(now, peer);
    world.drain(0);
    world.run_ms(100);
    assert_eq!((world.established(0), small(&world)), (3, (false, false)));
    assert!(world.nodes.iter().all(|n| n.drops.is_empty()));
}

#[test]
fn loss_is_not_taken_for_a_small_path_for_long() {
    // Number of 0.1 s steps, of 15 s, in which at least one end took the path for small.
    let small = |seed: u8, loss: u64| {
        let knobs = Knobs { loss, delay_ms: 40, ..Knobs::default() };
        let mut world = World::new(2, &link(), knobs);
        world.rng = shoal_crypto::Rng::new([seed; 32]);
        world.connect(0, 1);
        world.connect(1, 0);
        let mut look = |_: &i32| {
            world.run_ms(100);
            (0..2).any(|i| world.nodes[i].sessions.is_small_path(world.peer(i, 1 - i)))
        };
        (0..150).filter(&mut look).count()
    };
    for (loss, long) in [(200, 20), (300, 90)] {
        let steps: Vec<_> = (0..200).map(|seed| small(seed, loss)).collect();
        let seeds = steps.iter().filter(|n| **n > 0).count();
        // A confirmation tells the other end; at 30% loss four in a row may get lost.
        let longer = steps.iter().filter(|n| **n > long).count();
        assert!(seeds > 0, "nothing was tried: no handshake went in parts");
        assert!(seeds < 20 && longer <= 2, "{seeds} of 200, {longer} for more than {long} steps");
    }
}

#[test]
fn parts_of_handshakes_bear_loss_reordering_and_copies() {
    let knobs = Knobs { delay_ms: 5, jitter_ms: 40, loss: 100, duplicate: 200, longest: Some(576) };
    let mut world = World::new(2, &link(), knobs);
    let peer = world.peer(0, 1);
    world.nodes[0].sessions.set_small_path(peer, true);
    for round in 1..=10 {
        let now = world.now;
        world.nodes[0].sessions.reconnect(now, peer);
        world.drain(0);
        world.run_ms(20_000);
        assert!(world.established(0) >= round, "round {round}");
    }
    assert!(world.trace.iter().all(|p| p.bytes.len() <= 576), "no full frame is tried");
}

#[test]
fn a_frame_that_is_too_long_for_the_device_goes_in_parts_at_once() {
    let mut world = World::new(2, &link(), Knobs { longest: Some(576), ..Knobs::default() });
    world.connect(0, 1);
    let full = world.trace.pop().expect("a request").bytes;
    assert_eq!(full.len(), SizeClass::Full.frame_len());
    let peer = world.peer(0, 1);
    world.nodes[0].sessions.handle_too_long(peer, world::addr(1), &full);
    world.drain(0);
    world.run_ms(50);
    assert_eq!((world.established(0), world.established(1)), (1, 1));
}
