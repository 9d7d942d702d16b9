//! Effects of bad input: a counted drop, no state, no answer.

use std::time::Duration;

use crate::world::{self, Knobs, Packet, World, identity, link, machine};
use proptest::prelude::*;
use shoal_session::{OpenResult, PeerId, SessionConfig, SessionRole, Sessions};
use shoal_wire::{Address, DropReason, RoutedHeader, Time, TrafficClass};

fn quiet() -> Knobs {
    Knobs { delay_ms: 1, ..Knobs::default() }
}

/// State that bad input must not change: sessions, sent frames, received frames.
fn state(world: &World, i: usize) -> (usize, u64, usize) {
    let node = &world.nodes[i];
    (node.sessions.session_count(), node.sent, node.got.len())
}

#[test]
fn a_captured_frame_from_64_source_ports_counts_once() {
    let mut world = World::pair(&link(), quiet());
    world.send(0, 1, 9).unwrap();
    let (_, frame) = world.wire.pop_first().unwrap();
    for port in 0..64 {
        let from = ([10, 0, 0, 1], 5_000 + port).into();
        world.deliver(Packet { from, to: frame.to, bytes: frame.bytes.clone() });
    }
    assert_eq!(world.nodes[1].got, [9]);
    assert_eq!(world.drops(1, DropReason::Replayed), 63);
}

#[test]
fn a_frame_that_comes_back_is_dropped() {
    let mut world = World::pair(&link(), quiet());
    world.send(0, 1, 9).unwrap();
    let (_, frame) = world.wire.pop_first().unwrap();
    let before = state(&world, 0);
    world.deliver(Packet { from: frame.to, to: frame.from, bytes: frame.bytes });
    assert_eq!(state(&world, 0), before);
    assert_eq!(world.nodes[0].drops.values().sum::<u32>(), 1);

    // A handshake frame of the node itself, while the handshake is open.
    let mut world = World::new(2, &link(), quiet());
    world.connect(0, 1);
    let (_, request) = world.wire.pop_first().unwrap();
    let back = Packet { from: request.to, to: request.from, bytes: request.bytes };
    world.deliver(back);
    assert_eq!(world.drops(0, DropReason::Reflected), 1);
}

#[test]
fn captured_handshakes_are_not_answered_again() {
    let mut world = World::pair(&link(), quiet());
    let copies: Vec<_> = world
        .trace
        .iter()
        .filter(|p| p.bytes.len() == 1_440)
        .map(|p| (p.to, p.bytes.clone()))
        .collect();
    world.run_ms(1_000);
    let before = [state(&world, 0), state(&world, 1)];
    for (to, bytes) in copies {
        for port in 0..10 {
            let from = ([172, 16, 0, 1], 9_000 + port).into();
            world.deliver(Packet { from, to, bytes: bytes.clone() });
        }
    }
    assert_eq!([state(&world, 0), state(&world, 1)], before);
    assert_eq!(world.drops(1, DropReason::ReplayedHandshake), 10);
    world.send(0, 1, 1).unwrap();
    world.run_ms(100);
    assert_eq!(world.nodes[1].got, [1]);
}

#[test]
fn strangers_get_no_byte() {
    for (secret, n, what) in [(2, 0, DropReason::BadHandshake), (1, 7, DropReason::UnknownPeer)] {
        // Another network's secret; then the right secret with an unknown key.
        let mut world = World::new(2, &link(), quiet());
        let mut stranger = machine(n, link(), secret, 50, world.now, 0);
        let peer = stranger.add_peer(identity(1).public()).unwrap();
        stranger.set_endpoint(peer, Some(world::addr(1)));
        world.nodes[0].sessions = stranger;
        world.nodes[0].sessions.connect(world.now, peer);
        world.drain(0);
        world.run_ms(1_000);
        assert!(world.drops(1, what) >= 1, "{what:?}");
        assert_eq!(state(&world, 1), (0, 0, 0));
    }
    // The right secret, but the wrong responder key: no answer either.
    let mut world = World::new(3, &link(), quiet());
    let wrong = world.peer(0, 2);
    world.nodes[0].sessions.set_endpoint(wrong, Some(world::addr(1)));
    world.connect(0, 2);
    world.run_ms(1_000);
    assert_eq!(state(&world, 1), (0, 0, 0));
    assert!(world.drops(1, DropReason::BadHandshake) >= 1);
}

/// A flood of well-sealed requests from unknown keys and many addresses.
#[test]
fn a_flood_costs_its_sender_a_cookie_round_and_memory_stays_bounded() {
    let mut world = World::new(2, &link(), quiet());
    world.nodes[1].runs_jobs = false;
    let mut flood = machine(9, link(), 1, 60, world.now, 1_000_000);
    let mut victim = flood.add_peer(identity(1).public()).unwrap();
    let mut refused = 0;
    for n in 0..2_000_u32 {
        flood.set_endpoint(victim, Some(world::addr(1)));
        flood.connect(world.now, victim);
        let job = flood.poll_job().unwrap();
        flood.handle_done(world.now, job.run());
        let mut frame = [0; 1_440];
        let (_, to, len) = flood.poll_transmit(world.now, &mut frame).unwrap();
        flood.remove_peer(victim);
        victim = flood.add_peer(identity(1).public()).unwrap();
        let from = (n.to_be_bytes(), 1).into();
        let result = world.nodes[1].sessions.handle_handshake(world.now, from, &mut frame[..len]);
        assert_eq!(to, world::addr(1));
        refused += u32::from(result == Err(DropReason::CookieRequired));
    }
    assert!(refused == 256, "cookie replies are bounded too: {refused}");
    let mut reply = [0; 1_440];
    while let Some((_, _, len)) = world.nodes[1].sessions.poll_transmit(world.now, &mut reply) {
        assert!(len == 192, "a cookie reply is smaller than its request");
    }
    // An honest peer needs one more round and then gets its turn.
    world.connect(0, 1);
    world.run_ms(200);
    assert_eq!(world.nodes[0].sessions.stats().cookies_taken, 1);
    assert_eq!(world.established(0), 0);
    world.nodes[1].runs_jobs = true;
    world.drain(1);
    world.run_ms(200);
    assert_eq!(world.established(0), 1);
    assert!(world.drops(1, DropReason::UnknownPeer) > 100);
    assert_eq!(world.nodes[1].sessions.session_count(), 1);
    // The queue is empty again, but the flood may continue: its requests get no public-key work
    // yet.
    let mut request = |now| {
        flood.set_endpoint(victim, Some(world::addr(1)));
        flood.connect(now, victim);
        let job = flood.poll_job().unwrap();
        flood.handle_done(now, job.run());
        let mut frame = [0; 1_440];
        let (_, _, len) = flood.poll_transmit(now, &mut frame).unwrap();
        flood.remove_peer(victim);
        victim = flood.add_peer(identity(1).public()).unwrap();
        world.nodes[1].sessions.handle_handshake(now, ([9; 4], 1).into(), &mut frame[..len])
    };
    let start = world.now;
    assert_eq!(request(start), Err(DropReason::CookieRequired));
    assert_eq!(request(start + Duration::from_secs(2)), Ok(()));
}

#[test]
fn jobs_that_never_come_back_stay_bounded() {
    let mut world = World::new(2, &link(), quiet());
    let mut flood = machine(9, link(), 1, 60, world.now, 1_000_000);
    let victim = flood.add_peer(identity(1).public()).unwrap();
    flood.set_endpoint(victim, Some(world::addr(1)));
    flood.connect(world.now, victim);
    let job = flood.poll_job().unwrap();
    flood.handle_done(world.now, job.run());
    let mut frame = [0; 1_440];
    flood.poll_transmit(world.now, &mut frame).unwrap();
    let node = &mut world.nodes[1].sessions;
    let from = world::addr(0);
    assert_eq!(node.handle_handshake(world.now, from, &mut frame.clone()), Ok(()));
    let again = node.handle_handshake(world.now, from, &mut frame.clone());
    assert_eq!(again, Err(DropReason::ReplayedHandshake));
}

#[test]
fn cut_and_flipped_frames_are_counted_and_leave_nothing() {
    let mut world = World::pair(&link(), quiet());
    world.send(0, 1, 1).unwrap();
    let (_, frame) = world.wire.pop_first().unwrap();
    let mut request = None;
    let mut other = World::new(2, &link(), quiet());
    other.connect(0, 1);
    for packet in &other.trace {
        request = Some(packet.bytes.clone());
    }
    let request = request.unwrap();
    let before = state(&world, 1);
    let mut deliver = |bytes: Vec<u8>| {
        let (from, to) = (world::addr(0), world::addr(1));
        world.deliver(Packet { from, to, bytes });
    };
    for len in (0..192).step_by(7) {
        deliver(frame.bytes[..len].to_vec());
    }
    for len in [0, 1, 15, 16, 31, 32, 191, 192, 576, 1_439] {
        deliver(request[..len].to_vec());
    }
    for bit in (0..192 * 8).step_by(5) {
        let mut bytes = frame.bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        deliver(bytes);
    }
    for bit in (0..1_440 * 8).step_by(97) {
        let mut bytes = request.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        deliver(bytes);
    }
    deliver([request, vec![0]].concat());
    assert_eq!(state(&world, 1), before);
    deliver_ok(&mut world, frame);
}

fn deliver_ok(world: &mut World, frame: Packet) {
    world.deliver(frame);
    assert_eq!(world.nodes[1].got, [1]);
}

/// One host pair: machines with overlay addresses, and a sealed small cell payload.
fn hosts() -> (Sessions<Address>, Sessions<Address>, PeerId, PeerId, Time) {
    let now = Time::from_millis(5);
    let make = |n: usize| {
        let secret = shoal_crypto::NetworkSecret([1; 32]);
        Sessions::new(
            SessionConfig::new(SessionRole::Edge),
            identity(n),
            secret,
            [n as u8; 32],
            now,
            0,
        )
    };
    let (mut a, mut b) = (make(0), make(1));
    let (to_b, to_a) =
        (a.add_peer(identity(1).public()).unwrap(), b.add_peer(identity(0).public()).unwrap());
    a.set_endpoint(to_b, Some(Address::new(2, 1)));
    a.connect(now, to_b);
    let mut buf = [0; 1_440];
    let job = a.poll_job().unwrap();
    a.handle_done(now, job.run());
    let (_, to, len) = a.poll_transmit(now, &mut buf).unwrap();
    assert_eq!((to, len), (Address::new(2, 1), 1_400));
    b.handle_handshake(now, Address::new(1, 1), &mut buf[..len]).unwrap();
    let job = b.poll_job().unwrap();
    b.handle_done(now, job.run());
    let (_, to, len) = b.poll_transmit(now, &mut buf).unwrap();
    assert_eq!((to, len), (Address::new(1, 1), 1_400));
    a.handle_handshake(now, Address::new(2, 1), &mut buf[..len]).unwrap();
    let job = a.poll_job().unwrap();
    a.handle_done(now, job.run());
    assert!(a.is_live(now, to_b));
    (a, b, to_b, to_a, now)
}

#[test]
fn host_frames_are_bound_to_the_routed_header_but_not_to_mark_and_hop_limit() {
    let (mut a, mut b, to_b, to_a, now) = hosts();
    let header = RoutedHeader::new(Address::new(2, 1), Address::new(1, 1), TrafficClass::Bulk);
    let mut buf = [0; 15 + 152];
    buf[..15].copy_from_slice(zerocopy_bytes(&header).as_slice());
    a.seal_batch(now, to_b, 0, &mut buf, &[15], 152).unwrap();
    for at in 0..RoutedHeader::IMMUTABLE {
        let (mut bad, mut out) = (buf, Vec::new());
        bad[at] ^= 1;
        b.open_batch(now, &mut bad, &[15], 152, &mut out);
        assert_eq!(out, [OpenResult::Drop(DropReason::BadTag)], "byte {at}");
    }
    buf[RoutedHeader::MARK_AT] = 1;
    buf[RoutedHeader::HOP_LIMIT_AT] -= 1;
    let mut out = Vec::new();
    b.open_batch(now, &mut buf, &[15], 152, &mut out);
    assert_eq!(out[0].opened().map(|o| (o.peer, o.counter, o.newest)), Ok((to_a, 0, true)));
    assert!(b.is_live(now, to_a), "the first frame confirms");
    // Without room for the header before it, a frame is refused.
    let mut out = Vec::new();
    b.open_batch(now, &mut buf, &[14], 152, &mut out);
    assert_eq!(out, [OpenResult::Drop(DropReason::BadSize)]);
}

fn zerocopy_bytes(header: &RoutedHeader) -> Vec<u8> {
    let (dst, src) = (header.dst().to_bytes(), header.src().to_bytes());
    [&dst[..], &src[..], &[header.class() as u8, header.mark() as u8, header.hop_limit()]].concat()
}

#[test]
fn lanes_have_keys_and_windows_of_their_own() {
    let mut config = link();
    config.lanes = 4;
    let mut world = World::pair(&config, quiet());
    let (to_1, now) = (world.peer(0, 1), world.now);
    assert_eq!(world.nodes[0].sessions.lanes(now, to_1), 4);
    let mut buf = vec![0; 4 * 192];
    for lane in 0..4_u8 {
        let at = [u32::from(lane) * 192];
        world.nodes[0].sessions.seal_batch(now, to_1, lane, &mut buf, &at, 192).unwrap();
    }
    let offsets = [0, 192, 384, 576];
    let mut out = Vec::new();
    world.nodes[1].sessions.open_batch(now, &mut buf.clone(), &offsets, 192, &mut out);
    // Lane 0 has already sealed the confirming keepalive.
    let seen: Vec<_> = out.iter().map(|o| o.opened().map(|o| (o.lane, o.counter))).collect();
    assert_eq!(seen, [Ok((0, 1)), Ok((1, 0)), Ok((2, 0)), Ok((3, 0))]);
    let mut again = Vec::new();
    world.nodes[1].sessions.open_batch(now, &mut buf, &offsets, 192, &mut again);
    assert!(again.iter().all(|o| *o == OpenResult::Drop(DropReason::Replayed)));
    let sealed = world.nodes[0].sessions.seal_batch(now, to_1, 4, &mut buf, &[0], 192);
    assert_eq!(sealed, Err(DropReason::NotAllowed));
}

#[test]
fn removed_peers_are_strangers() {
    let mut world = World::pair(&link(), quiet());
    let gone = world.peer(1, 0);
    world.nodes[1].sessions.remove_peer(gone);
    world.send(0, 1, 3).unwrap();
    world.run_ms(10);
    assert_eq!(state(&world, 1).2, 0);
    assert_eq!(world.nodes[1].sessions.session_count(), 0);
    let (now, to_1) = (world.now, world.peer(0, 1));
    world.nodes[0].sessions.reconnect(now, to_1);
    world.drain(0);
    world.run_ms(10);
    assert_eq!(world.drops(1, DropReason::UnknownPeer), 1);
    world.now = world.now + Duration::from_secs(1_000);
    world.run_ms(1);
}

/// A machine with so few slots that losing one per round would soon fail the test.
fn few_slots() -> SessionConfig {
    let mut config = link();
    (config.max_peers, config.handshake_queue) = (2, 4);
    config
}

#[test]
fn peers_removed_in_mid_handshake_leak_nothing() {
    let mut world = World::new(2, &few_slots(), quiet());
    for _ in 0..100 {
        let (now, to_1) = (world.now, world.peer(0, 1));
        let sessions = &mut world.nodes[0].sessions;
        sessions.connect(now, to_1);
        let job = sessions.poll_job().unwrap();
        sessions.remove_peer(to_1);
        sessions.handle_done(now, job.run());
        assert!(sessions.poll_transmit(now, &mut [0; 1_440]).is_none());
        let to_1 = sessions.add_peer(identity(1).public()).unwrap();
        sessions.set_endpoint(to_1, Some(world::addr(1)));
    }
    world.connect(0, 1);
    world.run_ms(100);
    assert_eq!((world.established(0), world.established(1)), (1, 1));
}

#[test]
fn refused_requests_and_failed_calls_leak_nothing() {
    let mut world = World::new(2, &few_slots(), quiet());
    let mut stranger = machine(7, link(), 1, 50, world.now, 0);
    let mut victim = stranger.add_peer(identity(1).public()).unwrap();
    for round in 0..30 {
        // A stranger's request, and an unanswered call of this node.
        stranger.set_endpoint(victim, Some(world::addr(1)));
        stranger.reconnect(world.now, victim);
        let job = stranger.poll_job().unwrap();
        stranger.handle_done(world.now, job.run());
        let mut bytes = vec![0; 1_440];
        stranger.poll_transmit(world.now, &mut bytes).unwrap();
        world.deliver(Packet { from: world::addr(7), to: world::addr(1), bytes });
        stranger.remove_peer(victim);
        victim = stranger.add_peer(identity(1).public()).unwrap();
        world.knobs.loss = 1_000;
        world.connect(1, 0);
        world.run_ms(60_000);
        assert_eq!(world.drops(1, DropReason::UnknownPeer), round + 1);
        assert_eq!(world.nodes[1].sessions.stats().failed, round + 1);
    }
    world.knobs.loss = 0;
    world.connect(1, 0);
    world.run_ms(100);
    assert_eq!((world.established(0), world.established(1)), (1, 1));
}

#[test]
fn jobs_may_come_back_late_and_in_any_order() {
    let mut world = World::new(3, &link(), quiet());
    for i in 0..3 {
        world.nodes[i].runs_jobs = false;
    }
    for (i, j) in [(0, 1), (0, 2), (1, 2), (2, 0)] {
        world.connect(i, j);
    }
    for _ in 0..40 {
        let jobs: Vec<Vec<_>> = world
            .nodes
            .iter_mut()
            .map(|node| std::iter::from_fn(|| node.sessions.poll_job()).collect())
            .collect();
        world.run_ms(150);
        for (i, jobs) in jobs.into_iter().enumerate() {
            for job in jobs.into_iter().rev() {
                let now = world.now;
                world.nodes[i].sessions.handle_done(now, job.run());
            }
            world.drain(i);
        }
    }
    for (i, j) in [(0, 1), (0, 2), (1, 2)] {
        world.send(i, j, 100 + j as u32).unwrap();
        world.send(j, i, 200 + i as u32).unwrap();
    }
    world.run_ms(100);
    let got: Vec<usize> = world.nodes.iter().map(|node| node.got.len()).collect();
    assert_eq!(got, [2, 2, 2]);
}

#[test]
fn opening_after_the_index_mask_key_changed() {
    let mut config = link();
    config.keep_idle = true;
    let mut world = World::pair(&config, quiet());
    for number in 0..2_000 {
        world.send(0, 1, number).unwrap();
        world.send(1, 0, number).unwrap();
        world.run_ms(1_000);
    }
    assert_eq!((world.nodes[0].got.len(), world.nodes[1].got.len()), (2_000, 2_000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200.min(ProptestConfig::default().cases)))]

    #[test]
    fn garbage_never_panics_and_changes_nothing(
        bytes in proptest::collection::vec(any::<u8>(), 0..1_500), class in 0_usize..4,
    ) {
        thread_local! {
            static WORLD: std::cell::RefCell<World> =
                std::cell::RefCell::new(World::pair(&link(), quiet()));
        }
        WORLD.with_borrow_mut(|world| {
            let mut bytes = bytes;
            if let Some(len) = [192, 576, 1_440].get(class) {
                bytes.resize(*len, 3);
            }
            let before = state(world, 1);
            world.deliver(Packet { from: world::addr(0), to: world::addr(1), bytes });
            assert_eq!(state(world, 1), before);
        });
    }
}
