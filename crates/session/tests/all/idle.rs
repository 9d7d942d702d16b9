//! Ten thousand idle peers: the memory they use, and the work they cause.
//!
//! The handshakes take some seconds, so the full number runs only on request: `cargo test --release
//! -p shoal-session --test all ten_thousand -- --ignored --nocapture`.

use std::net::SocketAddr;
use std::time::Duration;

use shoal_crypto::{Identity, NetworkSecret};
use shoal_session::{SessionConfig, SessionRole, Sessions};
use shoal_wire::Time;

fn machine(identity: Identity, seed: u32) -> Sessions<SocketAddr> {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&seed.to_le_bytes());
    let config = SessionConfig::new(SessionRole::Link);
    Sessions::new(config, identity, NetworkSecret([1; 32]), bytes, Time::ZERO, 0)
}

fn identity(n: u32) -> Identity {
    let mut seed = [0; 32];
    seed[..4].copy_from_slice(&n.to_le_bytes());
    Identity::from_seed(seed)
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}

fn work(sessions: &mut Sessions<SocketAddr>, now: Time) {
    while let Some(job) = sessions.poll_job() {
        sessions.handle_done(now, job.run());
    }
    while sessions.poll_event().is_some() {}
}

/// Lets `n` callers make a session with one hub and fall silent. Returns bytes per peer after a
/// minute.
fn weigh(n: u32) -> u64 {
    let hub_identity = identity(u32::MAX);
    let mut hub = machine(hub_identity.clone(), u32::MAX);
    let addr = SocketAddr::from(([10, 0, 0, 1], 1));
    let mut now = Time::from_millis(1);
    let mut frame = vec![0; 1_440];
    let before = resident();
    for i in 0..n {
        // Two hundred callers a second: the first ones cool while others still come.
        now = now + Duration::from_millis(5);
        hub.handle_timeout(now);
        while hub.poll_event().is_some() {}
        hub.add_peer(identity(i).public()).unwrap();
        let mut caller = machine(identity(i), i);
        let to_hub = caller.add_peer(hub_identity.public()).unwrap();
        caller.set_endpoint(to_hub, Some(addr));
        caller.connect(now, to_hub);
        work(&mut caller, now);
        let (_, _, len) = caller.poll_transmit(now, &mut frame).unwrap();
        hub.handle_handshake(now, addr, &mut frame[..len]).unwrap();
        work(&mut hub, now);
        let (_, _, len) = hub.poll_transmit(now, &mut frame).unwrap();
        caller.handle_handshake(now, addr, &mut frame[..len]).unwrap();
        work(&mut caller, now);
        caller.seal_batch(now, to_hub, 0, &mut frame[..192], &[0], 192).unwrap();
        let mut out = Vec::new();
        hub.open_batch(now, &mut frame[..192], &[0], 192, &mut out);
        assert!(out[0].opened().is_ok());
    }
    assert_eq!(hub.session_count(), n as usize);
    let mut wakes = 0;
    let end = now + Duration::from_secs(60);
    while let Some((at, _)) = hub.poll_timeout().filter(|(at, _)| *at <= end) {
        now = now.max(at);
        hub.handle_timeout(now);
        while hub.poll_event().is_some() {}
        wakes += 1;
        assert!(wakes < 10 * u64::from(n) + 100, "an idle machine must not spin");
    }
    assert_eq!(hub.session_count(), n as usize, "idle, not gone");
    assert!(wakes > 0);
    (resident() - before) / u64::from(n)
}

#[test]
fn five_hundred_idle_peers_are_quiet() {
    weigh(500);
}

#[test]
#[ignore = "ten thousand handshakes take seconds"]
fn ten_thousand_idle_peers_weigh_little() {
    let each = weigh(10_000);
    println!("{each} bytes per idle peer with a session");
    assert!(each < 2_048, "{each}");
}
