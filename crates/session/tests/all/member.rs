//! Attacks by a member that has the network's secret, sees the handshakes of two other nodes and is
//! faster than they are. It has none of their keys. It neither blocks a handshake nor gets an
//! answer.

use std::net::SocketAddr;

use crate::world::{Knobs, Packet, World, addr, identity, link, machine};
use shoal_crypto::{AeadKey, Rng, Suite, kdf};
use shoal_wire::DropReason;

const FULL: usize = 1_440;
const LEAD: usize = 16;
/// Offsets of cookie, shown time and Noise message in an opened request.
const COOKIE_AT: usize = 2;
const SHOWN_AT: usize = 14;
const NOISE_AT: usize = 18;

fn slow() -> Knobs {
    Knobs { delay_ms: 20, ..Knobs::default() }
}

fn member() -> SocketAddr {
    ([172, 16, 0, 1], 9).into()
}

/// Answers that were sent to the member.
fn answers(world: &World) -> usize {
    let is = |p: &&Packet| p.to == member() && p.bytes.len() != 192;
    world.trace.iter().filter(is).count()
}

/// The keys K, L and P of docs/design/wire/session.md, for a node.
fn outer_key(what: &str, responder: usize) -> [u8; 32] {
    let key = identity(responder).public().to_bytes();
    kdf(&[1; 32], &format!("shoal v1 handshake {what}"), &[b"link", &key])
}

fn sealed(key: &[u8; 32], body: &[u8]) -> Vec<u8> {
    let (mut body, mut tag) = (body.to_vec(), [0; 16]);
    AeadKey::new(Suite::Aes256Gcm, key).seal(0, &[], &mut body, &mut tag);
    body.extend(tag);
    body
}

fn opened(key: &[u8; 32], sealed: &[u8]) -> Vec<u8> {
    let mut body = sealed.to_vec();
    AeadKey::new(Suite::Aes256Gcm, key).open(0, &[], &mut body).unwrap();
    body.truncate(sealed.len() - 16);
    body
}

/// The body of a request to node 1, or of a part.
fn body_of(what: &str, frame: &[u8]) -> Vec<u8> {
    opened(&kdf(&outer_key(what, 1), "seal", &[&frame[..LEAD]]), &frame[LEAD..])
}

fn led(what: &str, lead: &[u8], body: &[u8]) -> Vec<u8> {
    [lead, &sealed(&kdf(&outer_key(what, 1), "seal", &[lead]), body)].concat()
}

/// The best response of node 1 that the member can forge for a request.
fn forged_response(request: &[u8], salt: &[u8], rng: &mut Rng) -> Vec<u8> {
    let lead = &request[..LEAD];
    let key = outer_key("reply", 1);
    let mut body = vec![0; FULL - 48];
    rng.fill(&mut body[2..1_192]);
    body[..2].copy_from_slice(&[2, 2]);
    let seal = sealed(&kdf(&key, "seal", &[lead, salt]), &body);
    [&kdf(&key, "token", &[lead])[..LEAD], salt, &seal].concat()
}

/// Node 0 calls node 1, and the member acts on each frame before it arrives. Returns the
/// milliseconds until the caller has a session, at most ten seconds.
fn up_ms(world: &mut World, mut race: impl FnMut(&mut World, &Packet)) -> Option<u32> {
    let mut seen = world.trace.len();
    world.connect(0, 1);
    for ms in 0..10_000 {
        while seen < world.trace.len() {
            let Packet { from, to, bytes } = &world.trace[seen];
            let packet = Packet { from: *from, to: *to, bytes: bytes.clone() };
            seen += 1;
            if [packet.from, packet.to].iter().all(|at| [addr(0), addr(1)].contains(at)) {
                race(world, &packet);
            }
        }
        if world.established(0) > 0 {
            return Some(ms);
        }
        world.run_ms(1);
    }
    None
}

fn deliver(world: &mut World, from: SocketAddr, to: usize, bytes: Vec<u8>) {
    world.deliver(Packet { from, to: addr(to), bytes });
}

fn is_request(packet: &Packet) -> bool {
    (packet.from, packet.bytes.len()) == (addr(0), FULL)
}

#[test]
fn a_request_that_is_sealed_anew_and_comes_first_takes_nobodys_answer() {
    type Change = fn(&mut [u8; LEAD], &mut [u8], &mut Rng);
    let changes: [(&str, Change); 5] = [
        ("another lead", |lead, _, rng| rng.fill(lead)),
        ("another cookie", |_, body, rng| rng.fill(&mut body[COOKIE_AT..SHOWN_AT])),
        ("another time", |_, body, _| body[NOISE_AT - 1] ^= 1),
        ("another message", |_, body, rng| rng.fill(&mut body[NOISE_AT..NOISE_AT + 1_350])),
        ("another key", |_, body, rng| rng.fill(&mut body[NOISE_AT..NOISE_AT + 32])),
    ];
    let results = changes.map(|(what, change)| {
        let (mut world, mut rng) = (World::new(2, &link(), slow()), Rng::new([8; 32]));
        let up = up_ms(&mut world, |world, packet| {
            if is_request(packet) {
                let mut lead = *packet.bytes.first_chunk().unwrap();
                let mut body = body_of("request", &packet.bytes);
                change(&mut lead, &mut body, &mut rng);
                deliver(world, member(), 1, led("request", &lead, &body));
            }
        });
        println!("{what}: up after {up:?} ms, {} answers to the member", answers(&world));
        (up, answers(&world))
    });
    assert_eq!(results, [(Some(40), 0); 5]);
}

/// Enough unknown callers that node 1 asks for cookies; returns the member's own cookie.
fn load(world: &mut World) -> Vec<u8> {
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
        let from = if n == 128 { member() } else { ([10, 9, n, 1], 1).into() };
        deliver(world, from, 1, request.clone());
    }
    world.nodes[1].runs_jobs = true;
    world.drain(1);
    assert_eq!(world.nodes[1].sessions.stats().cookies_sent, 1);
    let reply = world.trace.iter().rfind(|p| p.to == member()).unwrap();
    let key = kdf(&outer_key("reply", 1), "seal", &[&request[..LEAD], &reply.bytes[LEAD..32]]);
    opened(&key, &reply.bytes[32..])[COOKIE_AT..SHOWN_AT].to_vec()
}

#[test]
fn under_load_a_request_counts_only_with_the_cookie_of_its_sender() {
    let results =
        [("copies", true), ("requests with its own cookie", false)].map(|(what, copies)| {
            let mut world = World::new(2, &link(), slow());
            let cookie = load(&mut world);
            let up = up_ms(&mut world, |world, packet| {
                let body = is_request(packet).then(|| body_of("request", &packet.bytes));
                match body {
                    Some(body) if copies && body[COOKIE_AT..SHOWN_AT] != [0; 12] => {
                        deliver(world, member(), 1, packet.bytes.clone());
                    }
                    Some(mut body) if !copies => {
                        body[COOKIE_AT..SHOWN_AT].copy_from_slice(&cookie);
                        deliver(world, member(), 1, led("request", &packet.bytes[..LEAD], &body));
                    }
                    _ => {}
                }
            });
            println!("{what}: up after {up:?} ms, {} answers to the member", answers(&world));
            (up, answers(&world))
        });
    assert_eq!(results, [(Some(80), 0); 2]);
}

#[test]
fn a_true_response_counts_after_hundreds_of_forged_ones() {
    let (mut world, mut rng) = (World::new(2, &link(), slow()), Rng::new([8; 32]));
    let mut request = Vec::new();
    let mut forged = 0;
    let up = up_ms(&mut world, |world, packet| {
        if is_request(packet) {
            request = packet.bytes.clone();
            for _ in 0..400 {
                let response = forged_response(&request, &rng.array::<16>(), &mut rng);
                deliver(world, addr(1), 0, response);
                forged += 1;
            }
        } else if packet.bytes.len() == FULL {
            // With the salt of the true response, too.
            let salt = packet.bytes[LEAD..32].to_vec();
            deliver(world, addr(1), 0, forged_response(&request, &salt, &mut rng));
            forged += 1;
        }
    });
    let node = &world.nodes[0];
    let work = node.sessions.drops()[DropReason::BadHandshake as usize];
    println!("{forged} forged: up after {up:?} ms, {work} cost public-key work");
    assert_eq!((up, work), (Some(40), 0));
    assert_eq!(node.drops.get(&DropReason::BadHandshake), Some(&forged));
}

#[test]
fn a_part_that_is_sealed_anew_and_comes_first_takes_no_place_of_the_true_one() {
    let (mut world, mut rng) = (World::new(2, &link(), slow()), Rng::new([8; 32]));
    let to_1 = world.peer(0, 1);
    world.nodes[0].sessions.set_small_path(to_1, true);
    let up = up_ms(&mut world, |world, packet| {
        if (packet.from, packet.bytes.len()) == (addr(0), 576) {
            let mut body = body_of("part", &packet.bytes);
            rng.fill(&mut body[11..491]);
            deliver(world, member(), 1, led("part", &packet.bytes[..LEAD], &body));
        }
    });
    println!("up after {up:?} ms, {} answers to the member", answers(&world));
    assert_eq!((up, answers(&world)), (Some(40), 0));
}

#[test]
fn the_same_request_by_two_ways_is_answered_once_where_it_came_from_first() {
    // Two copies from its sender have no effect.
    let mut world = World::new(2, &link(), Knobs { duplicate: 1_000, ..slow() });
    assert_eq!(up_ms(&mut world, |_, _| {}), Some(40));
    assert_eq!(world.drops(1, DropReason::ReplayedHandshake), 1);
    assert_eq!(world.nodes[1].sessions.stats().responses_sent, 1);
    // A copy from elsewhere arrives first: it gets the answer, and the true sender is asked for a
    // cookie.
    let mut world = World::new(2, &link(), slow());
    let mut raced = false;
    let up = up_ms(&mut world, |world, packet| {
        if is_request(packet) && !std::mem::replace(&mut raced, true) {
            deliver(world, member(), 1, packet.bytes.clone());
        }
    });
    assert_eq!(answers(&world), 1);
    assert_eq!(up, Some(80));
}

/// A cookie that the member forges as node 1's answer to a request.
fn forged_cookie(request: &[u8], rng: &mut Rng) -> Vec<u8> {
    let (lead, salt) = (&request[..LEAD], rng.array::<16>());
    let key = outer_key("reply", 1);
    let mut body = [0; 192 - 48];
    rng.fill(&mut body[COOKIE_AT..SHOWN_AT]);
    body[..2].copy_from_slice(&[3, 2]);
    let seal = sealed(&kdf(&key, "seal", &[lead, &salt]), &body);
    [&kdf(&key, "token", &[lead])[..LEAD], &salt, &seal].concat()
}

#[test]
fn forged_cookies_delay_a_call_by_a_second_at_most() {
    let results = [false, true].map(|loaded| {
        let (mut world, mut rng) = (World::new(2, &link(), slow()), Rng::new([8; 32]));
        if loaded {
            load(&mut world);
        }
        let mut ups = Vec::new();
        for _ in 0..2 {
            let mut forged = |world: &mut World, packet: &Packet| {
                for _ in 0..if is_request(packet) { 20 } else { 0 } {
                    deliver(world, addr(1), 0, forged_cookie(&packet.bytes, &mut rng));
                }
            };
            ups.extend(up_ms(&mut world, &mut forged));
            world.nodes[0].events.clear();
            let to_1 = world.peer(0, 1);
            let now = world.now;
            world.run_ms(100);
            world.nodes[0].sessions.end(now, to_1, false);
        }
        let small = world.nodes[0].sessions.is_small_path(world.peer(0, 1));
        println!("loaded {loaded}: up after {ups:?} ms, small {small}");
        (ups, small)
    });
    for (ups, small) in results {
        assert!(ups.len() == 2 && ups.iter().all(|&ms| ms < 1_300) && !small, "{ups:?}");
    }
}
