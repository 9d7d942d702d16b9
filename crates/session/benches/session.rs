//! Cost of a frame at a relay, without sockets and routing, and of a handshake.
//!
//! Run: `cargo bench -p shoal-session`. The relay figure is for a batch of 44 frames of 1,440
//! bytes: opened under one neighbour's session, sealed under another's.
#![allow(missing_docs)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use shoal_crypto::{Identity, NetworkSecret, Suite};
use shoal_session::{HandshakeTask, OpenResult, PeerId, SessionConfig, SessionRole, Sessions};
use shoal_wire::Time;
use std::net::SocketAddr;
use std::time::Duration;

const LEN: usize = 1_440;
const BATCH: usize = 44;

fn machine(n: u8, suites: &[Suite]) -> Sessions<SocketAddr> {
    let mut config = SessionConfig::new(SessionRole::Link);
    config.means.suites = suites.iter().copied().collect();
    config.rekey_frames = u32::MAX;
    let identity = Identity::from_seed([n; 32]);
    Sessions::new(config, identity, NetworkSecret([1; 32]), [n; 32], Time::ZERO, 0)
}

fn addr(n: u8) -> SocketAddr {
    ([10, 0, 0, n], 4_000).into()
}

fn know(from: &mut Sessions<SocketAddr>, n: u8) -> PeerId {
    let peer = from.add_peer(Identity::from_seed([n; 32]).public()).expect("room for a peer");
    from.set_endpoint(peer, Some(addr(n)));
    peer
}

fn work(machine: &mut Sessions<SocketAddr>) {
    while let Some(job) = machine.poll_job() {
        machine.handle_done(Time::ZERO, job.run());
    }
    while machine.poll_event().is_some() {}
}

fn hand_over(from: &mut Sessions<SocketAddr>, n: u8, to: &mut Sessions<SocketAddr>) {
    let mut frame = [0; LEN];
    while let Some((_, _, len)) = from.poll_transmit(Time::ZERO, &mut frame) {
        to.handle_handshake(Time::ZERO, addr(n), &mut frame[..len]).expect("a good handshake");
    }
}

/// Machines `a` and `b` with a confirmed session.
fn join(
    a: (&mut Sessions<SocketAddr>, u8),
    b: (&mut Sessions<SocketAddr>, u8),
) -> (PeerId, PeerId) {
    let (to_b, to_a) = (know(a.0, b.1), know(b.0, a.1));
    a.0.connect(Time::ZERO, to_b);
    work(a.0);
    hand_over(a.0, a.1, b.0);
    work(b.0);
    hand_over(b.0, b.1, a.0);
    work(a.0);
    let mut frame = vec![0; 192];
    a.0.seal_batch(Time::ZERO, to_b, 0, &mut frame, &[0], 192).expect("a session");
    let mut out = Vec::new();
    b.0.open_batch(Time::ZERO, &mut frame, &[0], 192, &mut out);
    work(b.0);
    (to_b, to_a)
}

/// A sender and a relay, for one measured round at a time.
fn relay_round(suites: &[Suite]) -> impl FnMut() -> Duration {
    let (mut a, mut r, mut b) = (machine(1, suites), machine(2, suites), machine(3, suites));
    let (a_to_r, _) = join((&mut a, 1), (&mut r, 2));
    let (r_to_b, _) = join((&mut r, 2), (&mut b, 3));
    let offsets: Vec<u32> = (0..BATCH as u32).map(|i| i * LEN as u32).collect();
    let mut buf = vec![0; BATCH * LEN];
    let mut out: Vec<OpenResult> = Vec::new();
    move || {
        a.seal_batch(Time::ZERO, a_to_r, 0, &mut buf, &offsets, LEN).expect("a session");
        let start = now();
        out.clear();
        r.open_batch(Time::ZERO, &mut buf, &offsets, LEN, &mut out);
        r.seal_batch(Time::ZERO, r_to_b, 0, &mut buf, &offsets, LEN).expect("a session");
        let spent = start.elapsed();
        assert!(out.iter().all(|opening| opening.opened().is_ok()));
        spent
    }
}

fn relay(c: &mut Criterion, name: &str, suites: &[Suite]) {
    let mut round = relay_round(suites);
    let mut group = c.benchmark_group("relay");
    group.throughput(Throughput::Bytes((BATCH * LEN) as u64));
    group.bench_function(name, |bench| {
        bench.iter_custom(|rounds| (0..rounds).map(|_| round()).sum());
    });
    group.finish();
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

/// An initiator and a responder, for one measured answer at a time.
fn responder_round(suites: &[Suite]) -> impl FnMut() -> Duration {
    let (mut a, mut b) = (machine(1, suites), machine(2, suites));
    know(&mut b, 1);
    let mut frame = [0; LEN];
    move || {
        let to_b = know(&mut a, 2);
        a.remove_peer(to_b);
        let to_b = know(&mut a, 2);
        a.connect(Time::ZERO, to_b);
        work(&mut a);
        let (_, _, len) = a.poll_transmit(Time::ZERO, &mut frame).expect("a request");
        let start = now();
        b.handle_handshake(Time::ZERO, addr(1), &mut frame[..len]).expect("good");
        let done = b.poll_job().map(HandshakeTask::run).expect("a job");
        b.handle_done(Time::ZERO, done);
        b.poll_transmit(Time::ZERO, &mut frame).expect("a response");
        start.elapsed()
    }
}

/// The best of many rounds: the cost of the work when nothing else uses the core.
fn best(name: &str, units: usize, rounds: usize, mut round: impl FnMut() -> Duration) {
    let best = (0..rounds).map(|_| round()).min().unwrap_or_default();
    let each = best.as_nanos() as f64 / units as f64;
    println!("best of {rounds}: {name}: {each:.0} ns, {:.0}/s", 1e9 / each);
}

fn handshake(c: &mut Criterion) {
    let suites = [Suite::Aes256Gcm];
    let mut group = c.benchmark_group("handshake");
    let mut round = responder_round(&suites);
    group.bench_function("responder", |bench| {
        bench.iter_custom(|rounds| (0..rounds).map(|_| round()).sum());
    });
    let mut b = machine(2, &suites);
    group.bench_function("refuse a stranger", |bench| {
        let mut frame = [7_u8; LEN];
        bench.iter(|| {
            frame[0] ^= 1;
            b.handle_handshake(Time::ZERO, addr(1), &mut frame)
        });
    });
    group.finish();
}

fn all(c: &mut Criterion) {
    for suite in Suite::ALL {
        let rounds = if suite == Suite::ChaCha20Poly1305 { 5_000 } else { 20_000 };
        best(&format!("relay one frame, {}", suite.name()), BATCH, rounds, relay_round(&[suite]));
    }
    best("answer one handshake", 1, 5_000, responder_round(&[Suite::Aes256Gcm]));
    for suite in Suite::ALL {
        relay(c, suite.name(), &[suite]);
    }
    handshake(c);
}

criterion_group!(benches, all);
criterion_main!(benches);
