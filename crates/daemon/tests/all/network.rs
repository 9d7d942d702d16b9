//! Whole nodes on loopback: a router and its hosts, with the commands of programs.

mod rig;

use std::time::{Duration, Instant};

use rig::{StarNetwork, content};
use shoal_daemon::control::api::{CancelReason, Command, ControlEvent, ControlReply, RefuseReason};

#[test]
fn hosts_behind_one_router_hear_each_other() {
    let net = StarNetwork::star(2);
    net.ping("h1", "h2");
    // Echoes already pass before the second report, with which a link counts as up.
    let began = Instant::now();
    let status = loop {
        let ControlReply::Status(status) = net.ask("r1", Command::Status) else {
            panic!("no status")
        };
        if status.links_up == 2 || began.elapsed() > Duration::from_secs(5) {
            break status;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!((status.links, status.links_up, status.role.as_str()), (2, 2, "router"));
    assert!(status.traffic.frames_in > 0 && status.cpu_s > 0.0 && status.memory_bytes > 0);
    let ControlReply::Peers(peers) = net.ask("h1", Command::Peers) else { panic!("no peers") };
    assert_eq!((peers[0].name.as_str(), peers[0].state.as_str()), ("r1", "up"));
    assert_eq!(peers[0].traffic, None, "per-peer counters are opt-in");
    let ControlReply::Metrics(text) = net.ask("h1", Command::Metrics) else { panic!("no metrics") };
    assert!(text.contains("shoal_frames_received_total"), "{text}");
    assert!(!text.contains("r1"), "metrics name a peer: {text}");
}

#[test]
fn files_cross_a_router_and_arrive_whole() {
    let net = StarNetwork::star(2);
    net.ping("h1", "h2");
    for size in [0, 1, 1_366, 262_272, 3_000_001] {
        let bytes = content(size);
        let done = net.transfer("h1", "h2", &bytes).expect("the file arrives");
        assert!(done.bytes == bytes, "{size} bytes arrive as they were sent");
        assert_eq!(done.hash, done.sender_hash);
    }
}

#[test]
fn an_interrupted_file_resumes_with_the_chunks_that_are_there() {
    let net = StarNetwork::star(2);
    net.ping("h1", "h2");
    let bytes = content(2_000_000);
    let done = net.transfer_with("h1", "h2", &bytes, &[(0, 3), (5, 6)]).expect("it arrives");
    assert!(done.bytes == bytes);
    assert_eq!(done.resumed_bytes, 4 * 262_272);
}

#[test]
fn refusals_reach_the_sender_with_their_reason() {
    let net = StarNetwork::star(3);
    net.ping("h1", "h2");
    net.ping("h3", "h2");
    let refused = |net: &StarNetwork, from: &str| match net.offer(from, "h2", 1_000) {
        ControlEvent::Refused { reason, .. } => reason,
        other => panic!("expected a refusal, got {other:?}"),
    };
    assert_eq!(refused(&net, "h1"), RefuseReason::NoReceiver);
    let _inbox = net.inbox("h2", &["h3"], Some(999));
    assert_eq!(refused(&net, "h1"), RefuseReason::NoReceiver);
    assert_eq!(refused(&net, "h3"), RefuseReason::TooLarge);
}

#[test]
fn a_file_that_shrinks_fails_at_both_ends() {
    let net = StarNetwork::star(2);
    net.ping("h1", "h2");
    let mut inbox = net.inbox("h2", &["h1"], None);
    let source = tempfile::tempfile().expect("a temporary file");
    source.set_len(5_000_000).expect("room");
    let mut sender = net.send_file("h1", "h2", &source, 5_000_000);
    let transfer = rig::offered(&mut inbox);
    source.set_len(1_000_000).expect("a file can shrink");
    rig::accept(&mut inbox, transfer, &tempfile::tempfile().expect("a temporary file"), &[]);
    for end in [&mut sender, &mut inbox] {
        let reason = rig::wait(end, |event| match event {
            ControlEvent::Failed { reason, .. } => Some(reason),
            _ => None,
        });
        assert_eq!(reason, CancelReason::SourceChanged);
    }
}

#[test]
fn a_program_that_goes_away_takes_its_transfer_along() {
    let net = StarNetwork::star(2);
    net.ping("h1", "h2");
    let mut inbox = net.inbox("h2", &["h1"], None);
    let source = tempfile::tempfile().expect("a temporary file");
    source.set_len(1_000).expect("room");
    let sender = net.send_file("h1", "h2", &source, 1_000);
    rig::offered(&mut inbox);
    drop(sender);
    let failed = rig::wait(&mut inbox, |event| match event {
        ControlEvent::Failed { reason, .. } => Some(reason),
        _ => None,
    });
    assert_eq!(failed, CancelReason::Stopped);
}

#[test]
fn a_router_that_restarts_is_found_again() {
    let mut net = StarNetwork::star(2);
    net.ping("h1", "h2");
    net.stop("r1");
    net.start("r1");
    net.ping("h1", "h2");
}

#[test]
fn a_host_that_restarts_is_found_again() {
    let mut net = StarNetwork::star(2);
    net.ping("h1", "h2");
    net.stop("h2");
    let reply = net.try_ping("h1", "h2", Duration::from_millis(300));
    assert!(!matches!(reply, Ok(ControlReply::Pong { .. })), "{reply:?}");
    net.start("h2");
    net.ping("h1", "h2");
}

#[test]
fn a_reload_takes_hosts_in_and_lets_them_go() {
    let net = StarNetwork::star(2);
    net.ping("h1", "h2");
    let all = net.hosts();
    let without = all.split("[[host]]").filter(|entry| !entry.contains("\"h2\""));
    net.set_hosts(&without.collect::<Vec<_>>().join("[[host]]"));
    let reply = net.ask("h1", Command::Reload);
    let removed = ["host h2 (removed)"];
    assert!(
        matches!(&reply, ControlReply::Reloaded { applied, .. } if applied == &removed),
        "{reply:?}"
    );
    let error = net.try_ping("h1", "h2", Duration::from_millis(300)).expect_err("h2 is gone");
    assert!(error.contains("h2"), "{error}");
    net.set_hosts("[[host]]\nname = 3\n");
    assert!(net.connect("h1").call(Command::Reload, &[]).is_err(), "a faulty list is refused");
    net.set_hosts(&all);
    net.ask("h1", Command::Reload);
    net.ping("h1", "h2");
}

#[test]
fn unknown_hosts_and_transfers_are_named() {
    let net = StarNetwork::star(2);
    let error = net.try_ping("h1", "h22", Duration::from_millis(100)).expect_err("no such host");
    assert!(error.contains("h22") && error.contains("h2?"), "{error}");
    let error = net.try_ping("h1", "h1", Duration::from_millis(100)).expect_err("itself");
    assert!(error.contains("itself"), "{error}");
    let command = Command::Confirm { transfer: 7 };
    assert!(net.connect("h1").call(command, &[]).is_err());
}
