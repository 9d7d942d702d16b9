//! A removed machine is told so by its router, sealed to its key. Strangers draw no byte.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use shoal_crypto::Identity;
use shoal_daemon::config::keys;
use shoal_daemon::control::api::{Command, ControlReply, RemovedStatus};
use shoal_daemon::worker::clock::unix_ms;
use shoal_e2e::joining::JoiningNetwork;
use shoal_e2e::{shoal, text};
use shoal_session::{Endpoints, SessionConfig, SessionEvent, SessionRole, Sessions};
use shoal_wire::Time;

/// The promise of docs/guide/members.md.
const MOST: Duration = Duration::from_secs(10);

/// A node's word about its own removal.
fn removed(world: &JoiningNetwork, name: &str) -> Option<RemovedStatus> {
    world.status(name).authority?.removed
}

fn is_told(world: &JoiningNetwork, name: &str) -> bool {
    removed(world, name).is_some_and(|removed| removed.said_by.as_deref() == Some("r1"))
}

/// Handshakes of r1 with this outcome.
fn handshakes(world: &JoiningNetwork, outcome: &str) -> u64 {
    let Some(ControlReply::Metrics(text)) = world.call("r1", Command::Metrics) else {
        panic!("{}", world.logs())
    };
    let is_of = |line: &&str| {
        line.starts_with("shoal_handshakes_total{")
            && line.contains("with=\"link\"")
            && line.contains(&format!("outcome=\"{outcome}\""))
    };
    let line = text.lines().find(is_of).unwrap_or_else(|| panic!("{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Calls r1 once with a key. Returns the lengths of all answers within a second, and true if one of
/// them tells of a removal.
fn calls(world: &JoiningNetwork, identity: Identity) -> (Vec<usize>, bool) {
    let secret = keys::load_network_secret(&world.path("r1/network.key"), None).unwrap();
    let now = Time::from_millis(1_000);
    let config = SessionConfig::new(SessionRole::Link);
    let mut sessions: Sessions<Endpoints> =
        Sessions::new(config, identity, secret, [7; 32], now, unix_ms());
    let status = world.status("r1");
    let router = status.public_key.parse().unwrap();
    let peer = sessions.add_peer(router).unwrap();
    let listens = status.listen.iter().map(|at| at.parse::<SocketAddr>().unwrap());
    let port = listens.map(|at| at.port()).next().unwrap();
    let at = SocketAddr::new(world.endpoint().into(), port);
    sessions.set_endpoint(peer, Some(at.into()));
    sessions.connect(now, peer);
    let job = sessions.poll_job().unwrap();
    sessions.handle_done(now, job.run());
    let mut frame = [0; 2_048];
    let (_, to, len) = sessions.poll_transmit(now, &mut frame).unwrap();
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    socket.send_to(&frame[..len], to.remote).unwrap();
    let mut lengths = Vec::new();
    while let Ok(len) = socket.recv(&mut frame) {
        lengths.push(len);
        let _ = sessions.handle_handshake(now, at.into(), &mut frame[..len]);
    }
    let is_removal = |event| matches!(event, SessionEvent::Removed { .. });
    let told = std::iter::from_fn(|| sessions.poll_event()).any(is_removal);
    (lengths, told)
}

#[test]
fn a_removed_machine_says_so_within_10_s_and_a_stranger_draws_no_byte() {
    let mut world = JoiningNetwork::new();
    let invite = world.invite(&["--uses", "4"]);
    for name in ["alice", "bob", "carol", "dave"] {
        world.joins(name, &invite);
    }
    for name in ["alice", "bob"] {
        world.start(name);
    }
    world.until(|world| world.pings("alice", "bob") && world.pings("bob", "r1"));
    assert_eq!(removed(&world, "bob"), None);
    for name in ["bob", "carol", "dave"] {
        world.ask(&["registrar", "remove", name]).unwrap();
    }
    let began = Instant::now();
    // The removing supplement may come before the link ends. Then no neighbour has to tell.
    world.until(|world| removed(world, "bob").is_some());
    assert!(began.elapsed() < MOST, "{:?}", began.elapsed());
    // The router hands the supplement on before its own sessions end.
    world.until(|world| world.status("r1").authority.is_some_and(|found| found.members == 2));
    // A call of bob's may be on its way, and would count later.
    world.end("bob", "-TERM");
    let told = handshakes(&world, "removed_told");
    assert!(told <= 1, "{told}");

    // A machine that was off is told at its start.
    world.start("carol");
    let began = Instant::now();
    world.until(|world| is_told(world, "carol"));
    assert!(began.elapsed() < MOST, "{:?}", began.elapsed());
    let found = removed(&world, "carol").unwrap();
    let on = found.on.unwrap();
    assert_eq!((found.by.as_str(), on.len()), ("registrar", "2026-11-28".len()));
    let status = world.status("carol");
    let is_named = |line: &&String| line.starts_with("the neighbour \"r1\" says that this machine");
    let said = status.warnings.iter().find(is_named).unwrap_or_else(|| panic!("{status:?}"));
    assert!(said.contains(&on) && said.contains("`shoal up INVITE`"), "{said}");
    let config = world.path("carol").join("node.toml");
    let output = shoal(&["status", "-c"]).arg(&config).output().unwrap();
    let said = text(&output).0;
    let want = format!("on {on}, by the registrar, as r1 says");
    assert!(output.status.success() && said.contains(&want), "{said}");
    // The log names nobody.
    world.until(|world| {
        let log = std::fs::read_to_string(world.path("carol.log")).unwrap();
        log.contains("a neighbour says that this machine was removed from the network")
    });
    let log = std::fs::read_to_string(world.path("carol.log")).unwrap();
    assert!(!log.contains("r1") && !log.contains("alice"), "{log}");
    assert_eq!(handshakes(&world, "removed_told"), told + 1);

    // One answer per key and hour, as long as the request. A stranger with the secret draws none.
    let dave = || keys::load_identity(&world.path("dave/node.key")).unwrap();
    assert_eq!(calls(&world, dave()), (vec![1_440], true));
    assert_eq!(calls(&world, dave()), (vec![], false));
    assert_eq!(calls(&world, Identity::from_seed([9; 32])), (vec![], false));
    assert_eq!(handshakes(&world, "removed_told"), told + 2);
    assert!(world.drops("r1", "unknown_peer") >= 4);
    // Members go on.
    assert!(world.pings("alice", "r1"));
    assert_eq!(removed(&world, "alice"), None);
}

#[test]
fn a_restarted_router_still_tells_and_the_signed_removal_outweighs_its_word() {
    let mut world = JoiningNetwork::new();
    let invite = world.invite(&["--uses", "2"]);
    for name in ["alice", "bob"] {
        world.joins(name, &invite);
        world.start(name);
    }
    world.until(|world| world.pings("alice", "bob"));
    world.end("bob", "-TERM");
    world.ask(&["registrar", "remove", "bob"]).unwrap();
    world.until(|world| !world.pings("r1", "bob") && world.pings("alice", "r1"));
    let has_removal = |world: &JoiningNetwork| {
        let chains = |name: &str| std::fs::read(world.path(name).join("network.chains")).unwrap();
        chains("r1") == chains("alice")
    };
    world.until(has_removal);
    world.end("r1", "-TERM");
    world.start("r1");
    world.start("bob");
    world.until(|world| is_told(world, "bob"));
    // With the chain here, the node refuses its start and says why.
    world.end("bob", "-TERM");
    let chains = ["alice", "bob"].map(|name| world.path(name).join("network.chains"));
    std::fs::copy(&chains[0], &chains[1]).unwrap();
    let config = world.path("bob").join("node.toml");
    let output = shoal(&["check", "-c"]).arg(&config).output().unwrap();
    let (out, err) = text(&output);
    let said = out + &err;
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("this machine was removed from the network on 20"), "{said}");
    assert!(said.contains("`shoal up INVITE`") && !said.contains("shoal authority"), "{said}");
}

#[test]
fn the_former_key_of_a_member_is_told_and_the_member_is_not() {
    let mut world = JoiningNetwork::new();
    let invite = world.invite(&[]);
    world.joins("alice", &invite);
    let former = keys::load_identity(&world.path("alice/node.key")).unwrap();
    let output = shoal(&["rekey", "--dir"]).arg(world.path("alice")).output().unwrap();
    assert!(output.status.success(), "{:?}", text(&output));
    world.start("alice");
    world.until(|world| world.pings("alice", "r1"));
    // A thief of the former key.
    assert_eq!(calls(&world, former), (vec![1_440], true));
    assert_eq!(removed(&world, "alice"), None);
    assert!(world.pings("alice", "r1"));
}
