//! Hosts that join by invites get an address at two routers, and go on when one of them dies.

use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use shoal_daemon::control::api::{Command, ControlReply};
use shoal_daemon::control::socket::ControlConnection;
use shoal_e2e::joining::JoiningNetwork;
use shoal_e2e::{shoal, text};

const ROUTERS: [&str; 3] = ["r1", "r2", "r3"];
const HOSTS: [&str; 2] = ["alice", "carol"];
/// Interval of echoes.
const EVERY: Duration = Duration::from_millis(10);
/// Longest time without an answer after a router died.
const GAP_MAX: Duration = Duration::from_secs(1);

/// Option of hosts: a direct link would do without routers.
const NO_DIRECT: &[&str] = &["--no-direct"];

#[track_caller]
fn joins(world: &JoiningNetwork, name: &str, invite: &str, words: &[&str]) {
    let (code, said) = world.up(name, invite, words);
    assert_eq!(code, Some(0), "{said}{}", world.logs());
}

/// Longest time without an answer to echoes, from the first answer until `is_over`.
fn longest_gap(socket: &Path, to: &str, is_over: &AtomicBool) -> Duration {
    let mut node = ControlConnection::connect(socket).unwrap();
    let (mut last, mut longest) = (None::<Instant>, Duration::ZERO);
    while !is_over.load(Ordering::Relaxed) {
        let command = Command::Ping { host: to.to_owned(), timeout_ms: 100 };
        if let Ok(ControlReply::Pong { .. }) = node.call(command, &[]) {
            longest = longest.max(last.map_or(Duration::ZERO, |last| last.elapsed()));
            last = Some(Instant::now());
        }
        std::thread::sleep(EVERY);
    }
    longest.max(last.map_or(Duration::MAX, |last| last.elapsed()))
}

/// Name of the router behind which this address is.
fn router(world: &JoiningNetwork, address: &str) -> &'static str {
    let number = address.split('.').next().unwrap();
    let is_at = |name: &&str| {
        let config = std::fs::read_to_string(world.path(name).join("node.toml")).unwrap();
        config.contains(&format!("address = \"{number}.0\""))
    };
    ROUTERS.into_iter().find(is_at).expect("a router of the network")
}

#[test]
fn hosts_get_two_routers_and_go_on_within_a_second_when_one_dies() {
    let mut world = JoiningNetwork::new();
    let hosts = world.invite(&["--uses", "2"]);
    joins(&world, "alice", &hosts, NO_DIRECT);
    assert_eq!(world.addresses("alice").len(), 1, "there is one router");
    for (name, family) in [("r2", "b"), ("r3", "c")] {
        let invite = world.invite(&["--router", "--family", family]);
        let at = world.endpoint().to_string();
        joins(&world, name, &invite, &["--endpoint", &at]);
        world.start(name);
    }
    world.until(|world| ROUTERS.iter().all(|name| world.status(name).links_up == 2));
    joins(&world, "carol", &hosts, NO_DIRECT);
    assert_eq!(world.addresses("carol").len(), 2, "a newcomer has both at once");
    world.until(|world| world.addresses("alice").len() == 2);
    HOSTS.into_iter().for_each(|name| world.start(name));
    let both_up =
        |world: &JoiningNetwork| HOSTS.iter().all(|name| world.status(name).links_up == 2);
    world.until(both_up);
    world.until(|world| world.pings("alice", "carol"));
    let addresses = world.addresses("alice");
    let of_alice: Vec<&str> = addresses.iter().map(|address| router(&world, address)).collect();
    assert_ne!(of_alice[0], of_alice[1]);
    let socket = world.path("alice").join("control.sock");
    for name in of_alice {
        let flag = AtomicBool::new(false);
        let gap = std::thread::scope(|scope| {
            let echoes = scope.spawn(|| longest_gap(&socket, "carol", &flag));
            std::thread::sleep(Duration::from_secs(1));
            world.end(name, "-KILL");
            std::thread::sleep(Duration::from_secs(3));
            flag.store(true, Ordering::Relaxed);
            echoes.join().unwrap()
        });
        println!("without {name}: {gap:?}");
        assert!(gap <= GAP_MAX, "{name}: {gap:?}\n{}", world.logs());
        world.start(name);
        world.until(both_up);
    }
    assert_eq!(world.addresses("alice"), addresses, "nobody's addresses change by it");
    let mut shown = shoal(&["registrar", "members", "-c", &world.registrar()]);
    let output = shown.stdin(Stdio::null()).output().unwrap();
    let (table, _) = text(&output);
    assert!(table.contains(&addresses.join(" ")), "{table}");
    // The authority takes the hosts over with both addresses.
    let mut adopt = shoal(&["authority", "adopt", "registrar", "--socket"]);
    let adopt = adopt.arg(world.path("r1/control.sock")).arg("--dir").arg(world.path("authority"));
    let adopted = adopt.output().unwrap();
    assert!(adopted.status.success(), "{:?}", text(&adopted));
    let (code, listed) = world.authority(&["list"]);
    assert!(code == Some(0) && listed.contains(&addresses.join(" ")), "{listed}");
}
