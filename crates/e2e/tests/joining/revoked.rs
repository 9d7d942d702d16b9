//! A mandate that the authority removes: its members are out at all nodes within 5 s.
//!
//! ```text
//!   alice --- r1 --- r2 --- r3 --- carol      alice and bob are the registrar's members;
//!                             \--- bob        the list without the mandate is put on carol
//! ```

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shoal_daemon::control::api::{Command, ControlReply};
use shoal_e2e::joining::JoiningNetwork;
use shoal_e2e::shoal;

/// The promise of docs/guide/authority.md for running nodes.
const MOST: Duration = Duration::from_secs(5);

/// Continuous pings, and the time of the last answer.
struct PingStream {
    child: Child,
    answered: Arc<Mutex<Option<Instant>>>,
}

impl PingStream {
    fn new(world: &JoiningNetwork, from: &str, to: &str) -> PingStream {
        let config = world.path(from).join("node.toml");
        let words = ["ping", "-i", "0.1", "-W", "0.5", "-n", "100000", to, "-c"];
        let mut command = shoal(&words);
        command.arg(config).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let answered = Arc::new(Mutex::new(None));
        let (lines, noted) = (BufReader::new(child.stdout.take().unwrap()), answered.clone());
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                if line.ends_with(" ms") {
                    *noted.lock().unwrap() = Some(Instant::now());
                }
            }
        });
        PingStream { child, answered }
    }

    fn last(&self) -> Option<Instant> {
        *self.answered.lock().unwrap()
    }
}

impl Drop for PingStream {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the authority's nodes r1, r2, r3 and carol, and the registrar's members alice and bob.
/// Waits until all are connected.
fn start() -> JoiningNetwork {
    let mut world = JoiningNetwork::create(&[]);
    // The routers are a chain: r1 has no link to r3.
    let config = world.path("r1/node.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("accept_routers = true\n", "")).unwrap();
    world.signs("r2", "2.0", "r1");
    world.signs("r3", "3.0", "r2");
    world.signs("carol", "3.1", "r3");
    // One range at each end of the chain.
    let ranges = ["--hosts", "1.2-1.2", "--hosts", "3.2-3.9", "--no-numbers"];
    let mandate = [&["mandate", "registrar", "--anew"], &ranges[..]].concat();
    world.publish(&mandate, "r1");
    let list = world.path("authority/network.list");
    for place in ["r2", "r3", "carol", "r1/registrar"] {
        std::fs::copy(&list, world.path(&format!("{place}/network.list"))).unwrap();
    }
    for name in ["r1", "r2", "r3", "carol"] {
        world.start(name);
    }
    world.start_registrar();
    let invite = world.invite(&["--uses", "2"]);
    for name in ["alice", "bob"] {
        world.joins(name, &invite);
        world.start(name);
    }
    world.until(|world| {
        ["carol", "bob"].iter().all(|to| world.pings("alice", to)) && world.pings("bob", "carol")
    });
    world
}

/// True if a node does not know alice and bob, and has no link and no session with them.
fn is_rid(world: &JoiningNetwork, name: &str) -> bool {
    let links = match name {
        "r1" | "carol" => 1,
        _ => 2,
    };
    let Some(ControlReply::Hosts(hosts)) = world.call(name, Command::Hosts { skip: 0 }) else {
        return false;
    };
    let known = hosts.hosts.iter().any(|host| ["alice", "bob"].contains(&host.name.as_str()));
    let status = world.status(name);
    !known && status.links == links && (name != "carol" || status.host_sessions == 0)
}

#[test]
fn members_of_a_mandate_that_is_taken_back_are_out_within_5_s_at_every_node() {
    let world = start();
    let streams: Vec<(&str, &str, PingStream)> =
        [("alice", "carol"), ("alice", "r1"), ("bob", "carol"), ("bob", "r2"), ("carol", "alice")]
            .map(|(from, to)| (from, to, PingStream::new(&world, from, to)))
            .into();
    world.until(|_| streams.iter().all(|(.., stream)| stream.last().is_some()));
    for name in ["r1", "r2", "r3", "carol"] {
        assert!(!is_rid(&world, name), "{name}");
    }
    let dropped = ["r1", "r3"].map(|name| world.drops(name, "unknown_peer"));

    world.publish(&["mandate", "registrar", "--remove"], "carol");
    let began = Instant::now();
    let mut left = vec!["r1", "r2", "r3", "carol"];
    let mut took = Vec::new();
    while !left.is_empty() && began.elapsed() < 2 * MOST {
        left.retain(|name| {
            let rid = is_rid(&world, name);
            took.extend(rid.then(|| (*name, began.elapsed())));
            !rid
        });
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(left.is_empty(), "{left:?} have them still\n{}", world.logs());
    // Everything that a member sends afterwards is dropped where it arrives, with a named reason.
    world.until(|world| {
        let now = ["r1", "r3"].map(|name| world.drops(name, "unknown_peer"));
        now.iter().zip(dropped).all(|(now, before)| *now > before)
    });
    std::thread::sleep(MOST.saturating_sub(began.elapsed()) + Duration::from_secs(2));
    for (from, to, stream) in &streams {
        let last = stream.last().unwrap().saturating_duration_since(began);
        eprintln!("{from} reached {to} for the last time after {} ms", last.as_millis());
        assert!(last < MOST, "{from} reached {to} {last:?} after the list was put on carol");
    }
    for (name, took) in took {
        eprintln!("{name} was rid of them after {} ms", took.as_millis());
        assert!(took < MOST, "{name} took {took:?}");
    }
    // The others continue, and the registrar hands out nothing more.
    assert!(world.pings("carol", "r1"));
    world.until(|world| world.ask(&["invite"]).is_none());
}
