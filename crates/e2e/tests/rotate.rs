//! Another secret for the network, with the real programs: announced, switched to, and the old one
//! retired, under traffic; who was revoked, who was away, and who joins afterwards.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts real programs")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};

use serde_json::Value;
use shoal_e2e::joining::World;
use shoal_e2e::{end_of, shoal, text};

/// Runs a command of the authority: its exit code and what was said.
fn authority(world: &World, words: &[&str]) -> (Option<i32>, String) {
    let mut command = shoal(&["authority", words[0]]);
    let output = command.arg("--dir").arg(world.path("authority")).args(&words[1..]).output();
    let output = output.unwrap();
    let (out, err) = text(&output);
    (output.status.code(), out + &err)
}

/// Runs a command of the authority, which must succeed, and puts its list on r1.
#[track_caller]
fn publish(world: &World, words: &[&str]) {
    let (code, said) = authority(world, words);
    assert_eq!(code, Some(0), "{said}");
    fs::copy(world.path("authority/network.list"), world.path("r1/network.list")).unwrap();
}

/// Announces another secret, and gives it to r1.
fn announce(world: &World) {
    let secret = world.path("r1/network.key");
    publish(world, &["rotate", "announce", "--secret", secret.to_str().unwrap()]);
    fs::copy(world.path("authority/network.key.next"), world.path("r1/network.key.next")).unwrap();
}

/// What a node says of the secret.
fn secret(world: &World, name: &str) -> Value {
    let config = world.path(name).join("node.toml");
    let output = shoal(&["status", "--json", "-c"]).arg(config).output().unwrap();
    let (out, _) = text(&output);
    let Some(last) = out.lines().last() else { return Value::Null };
    serde_json::from_str::<Value>(last).unwrap()["status"]["authority"]["secret"].take()
}

fn has_newest(world: &World, name: &str, state: &str) -> bool {
    let secret = secret(world, name);
    secret["state"] == state && secret["has_newest"] == true
}

/// Pings all the time, ten times a second, until it is told to stop.
fn pings(world: &World, from: &str, to: &str) -> Child {
    let config = world.path(from).join("node.toml");
    let words = ["ping", "-i", "0.1", "-W", "2", "-n", "100000", to, "-c"];
    let mut command = shoal(&words);
    command.arg(config).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn restart(world: &mut World, name: &str, signal: &str) {
    world.end(name, signal);
    world.start(name);
}

#[test]
fn the_secret_changes_under_traffic_and_nothing_is_lost() {
    let mut world = World::new();
    let invite = world.invite(&["--uses", "4"]);
    for name in ["alice", "bob", "carol"] {
        world.joins(name, &invite);
        world.start(name);
    }
    world.until(|world| world.pings("alice", "bob") && world.pings("carol", "bob"));
    let stream = pings(&world, "alice", "bob");
    // Carol is revoked before the next secret exists.
    let carol = world.ask(&["registrar", "remove", "carol"]);
    assert!(carol.is_some(), "{}", world.logs());
    world.until(|world| !world.pings("carol", "bob"));

    announce(&world);
    world.until(|world| {
        ["r1", "alice", "bob"].iter().all(|name| has_newest(world, name, "announced"))
    });
    for name in ["alice", "bob"] {
        world.until(|world| world.path(name).join("network.secrets").exists());
        let kept = fs::metadata(world.path(name).join("network.secrets")).unwrap();
        assert_eq!(kept.permissions().mode() & 0o777, 0o600);
    }
    assert!(!world.path("carol/network.secrets").exists());

    publish(&world, &["rotate", "switch"]);
    world.until(|world| {
        ["r1", "alice", "bob"].iter().all(|name| has_newest(world, name, "switched"))
    });
    publish(&world, &["rotate", "retire"]);
    world.until(|world| {
        ["r1", "alice", "bob"].iter().all(|name| has_newest(world, name, "settled"))
    });
    shoal_e2e::send_signal(&stream, "-INT");
    let (out, _) = text(&end_of(stream, "ping"));
    let answered = |(number, line): (usize, &str)| line.starts_with(&format!("bob {number}: "));
    assert!((1..).zip(out.lines()).all(answered) && out.lines().count() > 10, "{out}");
    assert!(out.lines().all(|line| line.ends_with(" ms")), "an echo was lost: {out}");

    // Handshakes of nodes that start anew: with the new secret, from the disk.
    for (name, signal) in [("r1", "-KILL"), ("alice", "-TERM"), ("bob", "-KILL")] {
        restart(&mut world, name, signal);
    }
    world.until(|world| world.pings("alice", "bob") && world.pings("bob", "alice"));

    // A newcomer gets the new one, by the invite of before.
    world.joins("dave", &invite);
    world.start("dave");
    world.until(|world| world.pings("dave", "alice"));
    let newest = fs::read(world.path("authority/network.key")).unwrap();
    assert_eq!(fs::read(world.path("dave/network.key")).unwrap(), newest);
    assert!(!world.path("carol/network.secrets").exists());
    assert!(!world.pings("carol", "bob"));
}
