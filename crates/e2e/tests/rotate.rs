//! Another secret for the network, with the real programs: announced, switched to, and the old one
//! retired, under traffic; who was revoked, who was away, and who joins afterwards.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts real programs")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};

use serde_json::Value;
use shoal_e2e::joining::World;
use shoal_e2e::{bytes, end_of, shoal, text};

/// At 20 Mbit/s it takes 16 s.
const FILE_LEN: usize = 40_000_000;

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

/// A file on its way that takes longer than all steps: what is sent and what is received.
fn transfer(world: &World, from: &str, to: &str) -> (Child, Child) {
    let (file, inbox) = (world.path("file"), world.path("inbox"));
    fs::write(&file, bytes(3, FILE_LEN)).unwrap();
    fs::create_dir(&inbox).unwrap();
    let begin = |words: &[&str], config: &str| {
        let mut command = shoal(words);
        command.arg("-c").arg(world.path(config).join("node.toml"));
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let receive = ["receive", "--from", from, "--once", "--dir", inbox.to_str().unwrap()];
    let receive = begin(&receive, to);
    (begin(&["send", "--wait", "10", file.to_str().unwrap(), to], from), receive)
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
        let config = world.path(name).join("node.toml");
        let text = fs::read_to_string(&config).unwrap();
        fs::write(&config, text + "\n[transfer]\nmax_rate_mbit = 20\n").unwrap();
        world.start(name);
    }
    world.until(|world| world.pings("alice", "bob") && world.pings("carol", "bob"));
    let stream = pings(&world, "alice", "bob");
    let (send, receive) = transfer(&world, "alice", "bob");
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
    shoal_e2e::send_signal(&stream, "-TERM");
    let (out, _) = text(&end_of(stream, "ping"));
    let answered = |(number, line): (usize, &str)| line.starts_with(&format!("bob {number}: "));
    assert!((1..).zip(out.lines()).all(answered) && out.lines().count() > 10, "{out}");
    assert!(out.lines().all(|line| line.ends_with(" ms")), "an echo was lost: {out}");

    for (child, what) in [(send, "send"), (receive, "receive")] {
        let output = end_of(child, what);
        assert!(output.status.success(), "{what}: {:?}", text(&output));
    }
    assert!(fs::read(world.path("inbox/file")).unwrap() == bytes(3, FILE_LEN));

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

#[test]
fn every_step_survives_a_kill_and_who_was_away_is_told() {
    let mut world = World::new();
    let invite = world.invite(&["--uses", "5"]);
    for name in ["alice", "bob", "away", "gone"] {
        world.joins(name, &invite);
    }
    world.start("alice");
    world.start("bob");
    world.until(|world| world.pings("alice", "bob"));
    // Announced while bob is down, and r1 is killed as soon as it has the list.
    world.end("bob", "-KILL");
    announce(&world);
    world.until(|world| secret(world, "r1")["state"] == "announced");
    restart(&mut world, "r1", "-KILL");
    world.until(|world| has_newest(world, "alice", "announced"));
    restart(&mut world, "alice", "-KILL");
    assert!(has_newest(&world, "alice", "announced"), "it was kept: {}", world.logs());
    // A second announcement, or a step that does not fit, is refused with what to do.
    let (code, said) = authority(&world, &["rotate", "announce"]);
    assert!(code == Some(2) && said.contains("is announced already"), "{code:?} {said}");
    let (code, said) = authority(&world, &["rotate", "retire"]);
    assert!(code == Some(2) && said.contains("there is no old secret"), "{code:?} {said}");
    // Switched while bob is still down: he knows the old secret alone, which is taken.
    publish(&world, &["rotate", "switch"]);
    world.until(|world| has_newest(world, "alice", "switched"));
    restart(&mut world, "r1", "-KILL");
    world.start("bob");
    world.until(|world| has_newest(world, "bob", "switched"));
    world.until(|world| world.pings("alice", "bob") && world.pings("bob", "alice"));
    // Retired: who never was in touch is answered by nobody, and hears how to come back.
    publish(&world, &["rotate", "retire"]);
    world.until(|world| {
        ["r1", "alice", "bob"].iter().all(|name| has_newest(world, name, "settled"))
    });
    restart(&mut world, "r1", "-KILL");
    world.until(|world| world.pings("alice", "bob"));
    world.start("away");
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(!world.pings("away", "bob"));
    world.end("away", "-TERM");
    // With the newest list but not the secret its status says what to do.
    fs::copy(world.path("authority/network.list"), world.path("away/network.list")).unwrap();
    world.start("away");
    let config = world.path("away/node.toml");
    let status = text(&shoal(&["status", "-c"]).arg(&config).output().unwrap()).0;
    assert!(status.contains("this node does not have the new one"), "{status}");
    world.end("away", "-TERM");
    // The file, as the operator copies it.
    fs::copy(world.path("authority/network.key"), world.path("away/network.key")).unwrap();
    world.start("away");
    world.until(|world| world.pings("away", "bob"));
    // Or the same name anew: the registrar's door is sealed with a secret of its own.
    let leave = shoal(&["leave", "--dir"]).arg(world.path("gone")).output().unwrap();
    assert!(leave.status.success(), "{:?}", text(&leave));
    world.joins("gone", &invite);
    world.start("gone");
    world.until(|world| world.pings("gone", "bob"));
}

#[test]
fn a_member_that_is_revoked_too_late_is_shut_out_by_another_announcement() {
    let mut world = World::new();
    let invite = world.invite(&["--uses", "2"]);
    for name in ["alice", "eve"] {
        world.joins(name, &invite);
        world.start(name);
    }
    announce(&world);
    world.until(|world| has_newest(world, "eve", "announced"));
    let first = fs::read(world.path("authority/network.key.next")).unwrap();
    let key = shoal(&["pubkey"]).arg(world.path("eve/node.key")).output().unwrap();
    let key = text(&key).0.trim().to_owned();
    let (code, said) = authority(&world, &["revoke", "eve", "--key", &key]);
    assert!(code == Some(0) && said.contains("may have the secret that is announced"), "{said}");
    publish(&world, &["rotate", "cancel"]);
    world.until(|world| has_newest(world, "alice", "settled"));
    fs::remove_file(world.path("r1/network.key.next")).unwrap();
    assert!(!world.path("authority/network.key.next").exists());
    announce(&world);
    assert_ne!(fs::read(world.path("authority/network.key.next")).unwrap(), first);
    world.until(|world| has_newest(world, "alice", "announced"));
    publish(&world, &["rotate", "switch", "--grace", "0"]);
    world.until(|world| has_newest(world, "alice", "settled"));
    assert_ne!(secret(&world, "eve")["state"], "settled");
    let kept = fs::read_to_string(world.path("eve/network.secrets")).unwrap_or_default();
    let newest = fs::read_to_string(world.path("authority/network.key")).unwrap();
    assert!(!kept.contains(newest.trim()), "eve was given it");
    assert!(!world.pings("eve", "alice"));
    restart(&mut world, "alice", "-TERM");
    world.until(|world| world.pings("alice", "r1"));
}
