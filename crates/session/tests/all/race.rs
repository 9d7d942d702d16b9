//! Attacks by a stranger who sees the requests of a handshake and sends copies from other addresses
//! that arrive first. The stranger delays the call by a round trip, and draws fewer bytes than it
//! sends.

use std::net::SocketAddr;
use std::time::Duration;

use crate::world::{Knobs, Packet, World, addr, identity, link, machine};
use shoal_session::SessionConfig;

const FULL: usize = 1_440;
const MEDIUM: usize = 576;

fn slow() -> Knobs {
    Knobs { delay_ms: 20, ..Knobs::default() }
}

fn stranger(n: usize) -> SocketAddr {
    ([172, 16, 0, n as u8], 9).into()
}

/// The caller's own address, with another port.
fn beside(n: usize) -> SocketAddr {
    (addr(0).ip(), 9_000 + n as u16).into()
}

fn is_named(at: SocketAddr) -> bool {
    at == addr(0) || at == addr(1)
}

/// The stranger's copies of frames from node 0 to node 1: their lengths and sources.
struct Race {
    lens: &'static [usize],
    from: Vec<SocketAddr>,
}

impl Race {
    fn whole(from: Vec<SocketAddr>) -> Race {
        Race { lens: &[FULL], from }
    }
}

/// Runs `ms` milliseconds, in which copies overtake the originals; `each` may end it.
fn run(world: &mut World, race: &Race, ms: u32, mut each: impl FnMut(&mut World) -> bool) -> u32 {
    let mut seen = world.trace.len();
    for ms in 0..ms {
        if each(world) {
            return ms;
        }
        world.drain(0);
        while seen < world.trace.len() {
            let Packet { from, to, bytes } = &world.trace[seen];
            seen += 1;
            if (*from, *to) != (addr(0), addr(1)) || !race.lens.contains(&bytes.len()) {
                continue;
            }
            let bytes = bytes.clone();
            for &from in &race.from {
                world.deliver(Packet { from, to: addr(1), bytes: bytes.clone() });
            }
        }
        world.run_ms(1);
    }
    ms
}

/// Node 0 calls node 1 like a link that is down. Returns the time until both have a session, at
/// most 60 s.
fn up_ms(world: &mut World, race: &Race) -> u32 {
    let to_1 = world.peer(0, 1);
    run(world, race, 60_000, |world| {
        let now = world.now;
        world.nodes[0].sessions.connect(now, to_1);
        world.established(0) > 0 && world.established(1) > 0
    })
}

fn is_small(world: &World) -> [bool; 2] {
    [0, 1].map(|i| world.nodes[i].sessions.is_small_path(world.peer(i, 1 - i)))
}

/// Bytes sent to others than the two nodes.
fn drawn(world: &World) -> usize {
    let others = world.trace.iter().filter(|p| !is_named(p.to));
    others.map(|p| p.bytes.len()).sum()
}

#[test]
fn a_call_comes_through_whoever_races_all_of_its_requests() {
    let strangers = |n| (0..n).map(stranger).collect::<Vec<_>>();
    let both = &[FULL, MEDIUM];
    let races = [
        ("whole requests", Race::whole(strangers(1)), false),
        ("whole requests, nine copies", Race::whole(strangers(9)), false),
        ("in the caller's own name", Race::whole((0..9).map(beside).collect()), false),
        ("also parts", Race { lens: both, from: strangers(1) }, false),
        ("parts alone", Race { lens: &[MEDIUM], from: strangers(1) }, false),
        ("parts where nothing longer passes", Race { lens: both, from: strangers(3) }, true),
    ];
    let results = races.map(|(what, race, small)| {
        let mut world = World::new(2, &link(), slow());
        for i in [0, 1] {
            let peer = world.peer(i, 1 - i);
            world.nodes[i].sessions.set_small_path(peer, small);
        }
        let up = up_ms(&mut world, &race);
        let endpoint = world.nodes[1].sessions.endpoint(world.peer(1, 0));
        println!("{what}: up after {up} ms, small {:?}", is_small(&world));
        up <= 100 && is_small(&world) == [small; 2] && endpoint == Some(addr(0))
    });
    assert_eq!(results, [true; 6]);
}

#[test]
fn a_path_whose_full_requests_are_raced_never_counts_as_small() {
    let config = SessionConfig { rekey_after: Duration::from_secs(5), ..link() };
    for loss in [0, 100] {
        let mut world = World::new(2, &config, Knobs { loss, ..slow() });
        let race = Race::whole((0..3).map(stranger).collect());
        let up = up_ms(&mut world, &race);
        let (mut small_ms, mut number) = (0, 0);
        run(&mut world, &race, 30_000, |world| {
            small_ms += u32::from(is_small(world) != [false; 2]);
            number += 1;
            if number % 100 == 0 {
                let _ = world.send(0, 1, number);
                let _ = world.send(1, 0, number);
            }
            false
        });
        let keys = world.established(0);
        println!("loss {loss}: up after {up} ms, {keys} sessions, {small_ms} ms small");
        assert!(up <= 2_000 && keys >= 5);
        assert!(small_ms <= 5 * loss as u32, "{small_ms}");
    }
}

#[test]
fn a_race_draws_less_than_it_sends_and_is_over_within_a_second() {
    let mut world = World::new(2, &link(), slow());
    let race = Race::whole((0..100).map(stranger).collect());
    run(&mut world, &race, 1, |world| {
        world.connect(0, 1);
        false
    });
    world.run_ms(15);
    let drawn_at_once = drawn(&world);
    println!("{drawn_at_once} bytes drawn by 100 copies of a request");
    assert!(drawn_at_once <= FULL + 32 * 192, "{drawn_at_once}");
    world.run_ms(2_000);
    assert!(world.established(0) > 0);
    let is_request = |p: &&Packet| (p.from, p.to, p.bytes.len()) == (addr(0), addr(1), FULL);
    let requests: Vec<_> = world.trace.iter().filter(is_request).collect();
    let requests: Vec<_> = requests.into_iter().map(|p| p.bytes.clone()).collect();
    let before = drawn(&world);
    for n in 0..200 {
        for bytes in &requests {
            world.deliver(Packet { from: stranger(n), to: addr(1), bytes: bytes.clone() });
        }
        world.run_ms(10);
    }
    assert_eq!(drawn(&world), before, "replays draw nothing");
}

/// Enough unknown callers that node 1 asks for cookies.
fn load(world: &mut World) {
    world.nodes[1].runs_jobs = false;
    let now = world.now;
    let mut request = vec![0; FULL];
    for n in 0..=128 {
        let mut caller = machine(9, link(), 1, n, now, 1_000_000);
        let to_1 = caller.add_peer(identity(1).public()).unwrap();
        caller.set_endpoint(to_1, Some(addr(1)));
        caller.connect(now, to_1);
        let job = caller.poll_job().unwrap();
        caller.handle_done(now, job.run());
        caller.poll_transmit(now, &mut request).unwrap();
        let from = ([10, 9, n, 1], 1).into();
        world.deliver(Packet { from, to: addr(1), bytes: request.clone() });
    }
}

#[test]
fn under_load_a_call_comes_through_whoever_races_all_of_its_requests() {
    let mut world = World::new(2, &link(), slow());
    load(&mut world);
    let race = Race::whole((0..3).map(stranger).collect());
    let asked = |world: &World| world.nodes[1].sessions.stats().cookies_sent;
    let to_1 = world.peer(0, 1);
    let before = asked(&world);
    // Node 1 answers the last remaining job only after the caller has its cookie.
    run(&mut world, &race, 50, |world| {
        let now = world.now;
        world.nodes[0].sessions.connect(now, to_1);
        false
    });
    assert!(asked(&world) > before);
    world.nodes[1].runs_jobs = true;
    world.drain(1);
    let up = up_ms(&mut world, &race);
    println!("up {up} ms after the load");
    assert!(up <= 100, "{up}");
}
