//! A stranger with recorded handshakes can do nothing with them.

use std::net::SocketAddr;
use std::time::Duration;

use crate::world::{Knobs, Packet, World, addr, identity, link, machine};
use shoal_session::{SessionConfig, SessionEvent, Sessions};
use shoal_wire::{DropReason, Time};

/// Unix time at the world's time 0.
const UNIX_MS: u64 = 999_000;

fn slow() -> Knobs {
    Knobs { delay_ms: 20, ..Knobs::default() }
}

fn stranger(port: u16) -> SocketAddr {
    ([172, 16, 0, 1], port).into()
}

/// Restarts node `i` with this clock error.
fn restart(world: &mut World, i: usize, config: &SessionConfig, life: u8, off_ms: i64) {
    let unix_ms = (UNIX_MS + world.now.as_micros() / 1_000).saturating_add_signed(off_ms);
    let mut sessions = machine(i, config.clone(), 1, 100 + life, world.now, unix_ms);
    for j in (0..world.nodes.len()).filter(|&j| j != i) {
        let peer = sessions.add_peer(identity(j).public()).unwrap();
        sessions.set_endpoint(peer, Some(addr(j)));
    }
    world.nodes[i].sessions = sessions;
}

/// Handshake frames of node `i` to node `j` so far.
fn recorded(world: &World, i: usize, j: usize) -> Vec<Vec<u8>> {
    let between = |p: &&Packet| (p.from, p.to, p.bytes.len()) == (addr(i), addr(j), 1_440);
    world.trace.iter().filter(between).map(|p| p.bytes.clone()).collect()
}

/// Bytes sent to a stranger.
fn leaked(world: &World) -> usize {
    let to_stranger = |p: &&Packet| p.to.ip() == stranger(0).ip();
    world.trace.iter().filter(to_stranger).map(|p| p.bytes.len()).sum()
}

/// Two nodes, of which the first has restarted `n` times, each time with a session; and its
/// requests.
fn lives(config: &SessionConfig, n: u8) -> (World, Vec<Vec<u8>>) {
    let mut world = World::new(2, config, slow());
    for life in 0..n {
        restart(&mut world, 0, config, life, 0);
        world.connect(0, 1);
        world.run_ms(500);
    }
    assert!(world.established(1) >= usize::from(n));
    let requests = recorded(&world, 0, 1);
    assert!(requests.len() >= usize::from(n));
    (world, requests)
}

/// The first node returns while all its earlier requests are replayed a hundred times a second.
/// Both ends send for this time, with new keys every two seconds. Returns the frames that arrived,
/// the frames sent, and the bytes that the stranger got.
fn under_replay(n: u8, seconds: u32) -> (usize, usize, usize) {
    let mut config = link();
    config.rekey_after = Duration::from_secs(2);
    config.reject_after = Duration::from_secs(6);
    let (mut world, requests) = lives(&config, n);
    restart(&mut world, 0, &config, n, 0);
    world.nodes[1].got.clear();
    world.connect(0, 1);
    let mut sent = 0;
    for tick in 0..seconds * 100 {
        let bytes = requests[tick as usize % requests.len()].clone();
        world.schedule(Packet { from: stranger(9), to: addr(1), bytes });
        if tick > 100 && tick % 10 == 0 {
            let _ = world.send(0, 1, tick);
            let _ = world.send(1, 0, tick);
            sent += 2;
        }
        let to_1 = world.peer(0, 1);
        let now = world.now;
        world.nodes[0].sessions.connect(now, to_1);
        world.drain(0);
        world.run_ms(10);
    }
    world.run_ms(100);
    let arrived = world.nodes[0].got.len() + world.nodes[1].got.len();
    (arrived, sent, leaked(&world))
}

#[test]
fn requests_of_17_lives_replayed_in_a_cycle_change_nothing() {
    let (arrived, sent, leaked) = under_replay(17, 20);
    println!("17 lives: {arrived} of {sent} frames arrived, {leaked} bytes to the stranger");
    assert_eq!((arrived, leaked), (sent, 0));
}

#[test]
fn requests_of_64_lives_replayed_in_a_cycle_change_nothing() {
    let (arrived, sent, leaked) = under_replay(64, 20);
    println!("64 lives: {arrived} of {sent} frames arrived, {leaked} bytes to the stranger");
    assert_eq!((arrived, leaked), (sent, 0));
}

#[test]
fn requests_of_more_lives_than_are_remembered_change_nothing() {
    let (arrived, sent, leaked) = under_replay(100, 20);
    println!("100 lives: {arrived} of {sent} frames arrived, {leaked} bytes to the stranger");
    assert_eq!((arrived, leaked), (sent, 0));
}

/// The node with the greater key, whose request loses when both begin; then the other node.
fn greater() -> (usize, usize) {
    match identity(0).public().dh < identity(1).public().dh {
        true => (1, 0),
        false => (0, 1),
    }
}

#[test]
fn a_replay_delays_no_call_of_ones_own() {
    let (me, other) = greater();
    let mut world = World::new(2, &link(), slow());
    world.connect(other, me);
    world.run_ms(500);
    let old = recorded(&world, other, me).remove(0);
    // This process has never seen the request.
    restart(&mut world, me, &link(), 1, 0);
    world.nodes[me].events.clear();
    let start = world.now;
    world.connect(me, other);
    world.knobs.delay_ms = 1;
    world.schedule(Packet { from: stranger(1), to: addr(me), bytes: old.clone() });
    world.knobs.delay_ms = 20;
    let mut up = None;
    for _ in 0..5_000 {
        world.run_ms(1);
        let established = |e: &SessionEvent| matches!(e, SessionEvent::Established { .. });
        if world.nodes[me].events.iter().any(established) {
            up = Some(world.now.since(start));
            break;
        }
    }
    println!("up after {up:?}");
    assert!(up.is_some_and(|after| after <= Duration::from_millis(42)), "{up:?}");
    // As above, before a call is made: it waits a third of a second for the peer to confirm.
    restart(&mut world, me, &link(), 2, 0);
    world.nodes[me].events.clear();
    for n in 0..50 {
        world.schedule(Packet { from: stranger(n), to: addr(me), bytes: old.clone() });
    }
    world.run_ms(30);
    world.connect(me, other);
    world.run_ms(345);
    assert_eq!(world.established(me), 1);
}

#[test]
fn recorded_requests_fill_no_queue_and_draw_no_cookie() {
    for restarted in [false, true] {
        let mut world = World::new(2, &link(), slow());
        for _ in 0..160 {
            let (now, to_1) = (world.now, world.peer(0, 1));
            world.nodes[0].sessions.reconnect(now, to_1);
            world.drain(0);
            world.run_ms(1_000);
        }
        let requests = recorded(&world, 0, 1);
        assert!(requests.len() >= 160);
        if restarted {
            restart(&mut world, 1, &link(), 1, 0);
        }
        world.nodes[1].runs_jobs = false;
        for bytes in requests {
            world.deliver(Packet { from: stranger(1), to: addr(1), bytes });
        }
        let mut jobs = Vec::new();
        while let Some(job) = world.nodes[1].sessions.poll_job() {
            jobs.push(job);
        }
        println!("restarted {restarted}: {} jobs", jobs.len());
        // The peer itself is not asked for anything either.
        world.nodes[0].events.clear();
        let (now, to_1) = (world.now, world.peer(0, 1));
        world.nodes[0].sessions.reconnect(now, to_1);
        world.drain(0);
        world.run_ms(30);
        let cookies = world.nodes[1].sessions.stats().cookies_sent;
        assert_eq!((leaked(&world), cookies), (0, 0), "restarted {restarted}");
        assert!(jobs.len() <= if restarted { 64 } else { 0 }, "{}", jobs.len());
    }
}

#[test]
fn requests_that_never_arrived_take_no_place_of_the_peers_own() {
    // Sixty lives, whose requests were recorded and lost. All are replayed while the peer calls.
    let mut world = World::new(2, &link(), slow());
    world.knobs.loss = 1_000;
    for life in 0..60 {
        restart(&mut world, 0, &link(), life, 0);
        world.connect(0, 1);
        world.run_ms(100);
    }
    let requests = recorded(&world, 0, 1);
    world.knobs.loss = 0;
    restart(&mut world, 0, &link(), 60, 0);
    let start = world.now;
    world.connect(0, 1);
    for bytes in requests {
        world.schedule(Packet { from: stranger(1), to: addr(1), bytes });
        world.run_ms(1);
    }
    world.run_ms(40);
    let up = world.established(1);
    assert_eq!(up, 1, "after {:?}", world.now.since(start));
}

#[test]
fn what_was_recorded_before_new_keys_does_nothing_after_them() {
    let mut config = link();
    config.rekey_after = Duration::from_secs(2);
    let mut world = World::pair(&config, slow());
    for number in 0..20 {
        world.send(0, 1, number).unwrap();
        world.send(1, 0, number).unwrap();
        world.run_ms(10);
    }
    let copy = |p: &Packet| Packet { from: p.from, to: p.to, bytes: p.bytes.clone() };
    let before: Vec<Packet> = world.trace.iter().map(copy).collect();
    for number in 20..80 {
        world.send(0, 1, number).unwrap();
        world.send(1, 0, number).unwrap();
        world.run_ms(100);
    }
    assert!(world.established(0) >= 3, "new keys came");
    let state = |world: &World| {
        let of = |i: usize| {
            let node = &world.nodes[i];
            (node.got.len(), node.opened.len(), node.sessions.endpoint(world.peer(i, 1 - i)))
        };
        [of(0), of(1)]
    };
    let was = state(&world);
    for packet in &before {
        for port in 0..64 {
            world.deliver(Packet { from: stranger(port), ..copy(packet) });
        }
        // Reflected.
        world.deliver(Packet { from: packet.to, to: packet.from, bytes: packet.bytes.clone() });
    }
    assert_eq!((leaked(&world), state(&world)), (0, was));
    world.send(0, 1, 99).unwrap();
    world.run_ms(100);
    assert_eq!(world.nodes[1].got.last(), Some(&99));
}

#[test]
fn a_clock_that_was_set_back_by_minutes_lets_its_node_in() {
    let (mut world, _) = lives(&link(), 20);
    for (life, off_ms) in [(20, -600_000), (21, -1_200_000), (22, 0), (23, -600_000)] {
        restart(&mut world, 0, &link(), life, off_ms);
        world.nodes[0].events.clear();
        world.connect(0, 1);
        world.run_ms(500);
        assert_eq!(world.established(0), 1, "{off_ms}");
    }
}

#[test]
fn a_captured_response_is_looked_at_once() {
    let mut world = World::new(2, &link(), slow());
    world.connect(0, 1);
    world.run_ms(20);
    let response = recorded(&world, 1, 0).remove(0);
    world.wire.clear();
    world.nodes[0].runs_jobs = false;
    for port in 0..1_100 {
        let from = if port == 0 { addr(1) } else { stranger(port) };
        world.deliver(Packet { from, to: addr(0), bytes: response.clone() });
    }
    let jobs = std::iter::from_fn(|| world.nodes[0].sessions.poll_job()).count();
    println!("{jobs} jobs for one response");
    assert_eq!(jobs, 1);
}

/// Recorded parts of four other requests arrive in the sender's name, while its own three are on
/// their way. If accepted, they would displace those three.
#[test]
fn recorded_parts_keep_no_handshake_out() {
    let mut world = World::new(2, &link(), Knobs { delay_ms: 20, jitter_ms: 20, ..slow() });
    let begin = |world: &mut World, life| {
        restart(world, 0, &link(), life, 0);
        let to_1 = world.peer(0, 1);
        world.nodes[0].sessions.set_small_path(to_1, true);
        world.nodes[0].events.clear();
        world.connect(0, 1);
    };
    for life in 0..8 {
        begin(&mut world, life);
        world.run_ms(500);
        assert!(world.established(0) > 0);
    }
    let is_part = |p: &&Packet| (p.from, p.to, p.bytes.len()) == (addr(0), addr(1), 576);
    let parts: Vec<_> = world.trace.iter().filter(is_part).step_by(3).collect();
    let parts: Vec<_> = parts.into_iter().map(|p| p.bytes.clone()).collect();
    assert!(parts.len() >= 8);
    begin(&mut world, 8);
    let mut up_ms = None;
    for ms in 0..5_000 {
        for n in 0..4 {
            let bytes = parts[(4 * ms + n) % parts.len()].clone();
            world.deliver(Packet { from: addr(0), to: addr(1), bytes });
        }
        world.run_ms(1);
        if world.established(0) > 0 {
            up_ms = Some(ms);
            break;
        }
    }
    println!("up after {up_ms:?} ms");
    assert!(up_ms.is_some_and(|ms| ms < 100), "{up_ms:?}");
}

/// The next request of a caller.
fn next_request(caller: &mut Sessions<SocketAddr>, now: Time) -> Vec<u8> {
    while let Some(job) = caller.poll_job() {
        caller.handle_done(now, job.run());
    }
    let mut frame = vec![0; 1_440];
    caller.poll_transmit(now, &mut frame).unwrap();
    frame
}

#[test]
fn one_address_has_one_share_of_the_queue_whatever_its_ports() {
    let mut world = World::new(2, &link(), slow());
    let (now, victim) = (world.now, &mut world.nodes[1].sessions);
    let caller = |seed| {
        let mut caller = machine(9, link(), 1, seed, now, UNIX_MS + 2_000);
        let to_victim = caller.add_peer(identity(1).public()).unwrap();
        caller.set_endpoint(to_victim, Some(addr(1)));
        caller.connect(now, to_victim);
        caller
    };
    // Half the queue is taken by many addresses, and the handshake thread has their jobs.
    for n in 0..128 {
        let mut frame = next_request(&mut caller(n), now);
        victim.handle_handshake(now, ([10, 9, n, 1], 1).into(), &mut frame).unwrap();
        assert!(victim.poll_job().is_some());
    }
    let mut taken = 0;
    for port in 0..32 {
        let mut caller = caller(128 + port as u8);
        let mut frame = next_request(&mut caller, now);
        let first = victim.handle_handshake(now, stranger(port), &mut frame);
        assert_eq!(first, Err(DropReason::CookieRequired));
        let mut reply = vec![0; 1_440];
        let (_, _, len) = victim.poll_transmit(now, &mut reply).unwrap();
        caller.handle_handshake(now, addr(1), &mut reply[..len]).unwrap();
        let mut frame = next_request(&mut caller, now);
        taken += u32::from(victim.handle_handshake(now, stranger(port), &mut frame).is_ok());
        let _running = victim.poll_job();
    }
    println!("{taken} requests of one address accepted");
    assert_eq!(taken, 8);
}
