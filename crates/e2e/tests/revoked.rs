//! A mandate that the authority takes back: its members are out everywhere, within 5 s.
//!
//! ```text
//!   alice --- r1 --- r2 --- r3 --- carol      alice and bob are the registrar's members;
//!                             \--- bob        the list without the mandate is put on carol
//! ```

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts real programs")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shoal_daemon::control::api::{Command, Reply};
use shoal_e2e::joining::World;
use shoal_e2e::shoal;

/// What docs/authority.md promises, for nodes in force.
const MOST: Duration = Duration::from_secs(5);

/// Pings all the time, and when the last one was answered.
struct Stream {
    child: Child,
    answered: Arc<Mutex<Option<Instant>>>,
}

impl Stream {
    fn new(world: &World, from: &str, to: &str) -> Stream {
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
        Stream { child, answered }
    }

    fn last(&self) -> Option<Instant> {
        *self.answered.lock().unwrap()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Five nodes of the authority's and the registrar's making, and carol, all in touch.
fn start() -> World {
    let mut world = World::create(&[]);
    world.signs("r2", "2.0", "r1");
    world.signs("r3", "3.0", "r2");
    world.signs("carol", "3.1", "r3");
    // One place at each end of the chain.
    let ranges = ["--hosts", "1.2-1.2", "--hosts", "3.2-3.9"];
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

/// Whether a node knows alice and bob no more, and has no link and no session with them.
fn is_rid(world: &World, name: &str) -> bool {
    let links = match name {
        "r1" | "carol" => 1,
        _ => 2,
    };
    let Some(Reply::Hosts(hosts)) = world.call(name, Command::Hosts { skip: 0 }) else {
        return false;
    };
    let known = hosts.hosts.iter().any(|host| ["alice", "bob"].contains(&host.name.as_str()));
    let status = world.status(name);
    !known && status.links == links && (name != "carol" || status.host_sessions == 0)
}

#[test]
fn members_of_a_mandate_that_is_taken_back_are_out_within_5_s_at_every_node() {
    let world = start();
    let streams: Vec<(&str, &str, Stream)> =
        [("alice", "carol"), ("alice", "r1"), ("bob", "carol"), ("bob", "r2"), ("carol", "alice")]
            .map(|(from, to)| (from, to, Stream::new(&world, from, to)))
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
    // Whatever a member sends afterwards is dropped where it arrives, by name.
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
    // Who stays goes on, and the registrar gives out nothing more.
    assert!(world.pings("carol", "r1"));
    world.until(|world| world.ask(&["invite"]).is_none());
}
