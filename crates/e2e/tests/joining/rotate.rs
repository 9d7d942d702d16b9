//! A change of the network's secret with the real programs, under traffic: it is announced and
//! switched to, and the old one is retired. Also revoked members, absent members, and newcomers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};

use serde_json::Value;
use shoal_e2e::joining::JoiningNetwork;
use shoal_e2e::{bytes, end_of, shoal, text};

/// The transfer takes 16 s at 20 Mbit/s.
const FILE_LEN: usize = 40_000_000;

/// The secret's state in a node's status.
fn secret(world: &JoiningNetwork, name: &str) -> Value {
    let config = world.path(name).join("node.toml");
    let output = shoal(&["status", "--json", "-c"]).arg(config).output().unwrap();
    let (out, _) = text(&output);
    let Some(last) = out.lines().last() else { return Value::Null };
    serde_json::from_str::<Value>(last).unwrap()["status"]["authority"]["secret"].take()
}

/// Pings ten times a second until it is told to stop.
fn pings(world: &JoiningNetwork, from: &str, to: &str) -> Child {
    let config = world.path(from).join("node.toml");
    let words = ["ping", "-i", "0.1", "-W", "2", "-n", "100000", to, "-c"];
    let mut command = shoal(&words);
    command.arg(config).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// A file transfer that takes longer than all steps: sender and receiver.
fn transfer(world: &JoiningNetwork, from: &str, to: &str) -> (Child, Child) {
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

fn restart(world: &mut JoiningNetwork, name: &str, signal: &str) {
    world.end(name, signal);
    world.start(name);
}

#[test]
fn the_secret_changes_under_traffic_and_nothing_is_lost() {
    let mut world = JoiningNetwork::new();
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

    world.announce();
    world.until(|world| {
        ["r1", "alice", "bob"].iter().all(|name| world.is_rotated(name, "announced"))
    });
    for name in ["alice", "bob"] {
        world.until(|world| world.path(name).join("network.secrets").exists());
        let kept = fs::metadata(world.path(name).join("network.secrets")).unwrap();
        assert_eq!(kept.permissions().mode() & 0o777, 0o600);
    }
    assert!(!world.path("carol/network.secrets").exists());

    world.publish(&["rotate", "switch"], "r1");
    world.until(|world| {
        ["r1", "alice", "bob"].iter().all(|name| world.is_rotated(name, "switched"))
    });
    world.publish(&["rotate", "retire"], "r1");
    world
        .until(|world| ["r1", "alice", "bob"].iter().all(|name| world.is_rotated(name, "settled")));
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

    // Handshakes of restarted nodes use the new secret, from the disk.
    for (name, signal) in [("r1", "-KILL"), ("alice", "-TERM"), ("bob", "-KILL")] {
        restart(&mut world, name, signal);
    }
    world.until(|world| world.pings("alice", "bob") && world.pings("bob", "alice"));

    // A newcomer with an older invite gets the new secret.
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
    let mut world = JoiningNetwork::new();
    let invite = world.invite(&["--uses", "5"]);
    for name in ["alice", "bob", "away", "gone"] {
        world.joins(name, &invite);
    }
    world.start("alice");
    world.start("bob");
    world.until(|world| world.pings("alice", "bob"));
    // Announced while bob is down. r1 is killed as soon as it has the list.
    world.end("bob", "-KILL");
    world.announce();
    world.until(|world| secret(world, "r1")["state"] == "announced");
    restart(&mut world, "r1", "-KILL");
    world.until(|world| world.is_rotated("alice", "announced"));
    restart(&mut world, "alice", "-KILL");
    assert!(world.is_rotated("alice", "announced"), "alice stored it: {}", world.logs());
    // A second announcement, or a step that does not fit, is refused with what to do.
    let (code, said) = world.authority(&["rotate", "announce"]);
    assert!(code == Some(2) && said.contains("is announced already"), "{code:?} {said}");
    let (code, said) = world.authority(&["rotate", "retire"]);
    assert!(code == Some(2) && said.contains("no old secret is in force"), "{code:?} {said}");
    // Switched while bob is still down: he knows only the old secret, which is still accepted.
    world.publish(&["rotate", "switch"], "r1");
    world.until(|world| world.is_rotated("alice", "switched"));
    restart(&mut world, "r1", "-KILL");
    world.start("bob");
    world.until(|world| world.is_rotated("bob", "switched"));
    world.until(|world| world.pings("alice", "bob") && world.pings("bob", "alice"));
    // Retired: nobody answers a member that missed all steps, and the member learns how to return.
    world.publish(&["rotate", "retire"], "r1");
    world
        .until(|world| ["r1", "alice", "bob"].iter().all(|name| world.is_rotated(name, "settled")));
    restart(&mut world, "r1", "-KILL");
    world.until(|world| world.pings("alice", "bob"));
    world.start("away");
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(!world.pings("away", "bob"));
    world.end("away", "-TERM");
    // With the newest list but not the secret, the status says what to do.
    fs::copy(world.path("authority/network.list"), world.path("away/network.list")).unwrap();
    world.start("away");
    let config = world.path("away/node.toml");
    let status = text(&shoal(&["status", "-c"]).arg(&config).output().unwrap()).0;
    assert!(status.contains("this node does not have the new one"), "{status}");
    world.end("away", "-TERM");
    // The operator copies the file.
    fs::copy(world.path("authority/network.key"), world.path("away/network.key")).unwrap();
    world.start("away");
    world.until(|world| world.pings("away", "bob"));
    // Or the same name joins again: the registrar's door is sealed with its own secret.
    let leave = shoal(&["leave", "--dir"]).arg(world.path("gone")).output().unwrap();
    assert!(leave.status.success(), "{:?}", text(&leave));
    world.joins("gone", &invite);
    world.start("gone");
    world.until(|world| world.pings("gone", "bob"));
}

#[test]
fn a_member_that_is_revoked_too_late_is_shut_out_by_another_announcement() {
    let mut world = JoiningNetwork::new();
    let invite = world.invite(&["--uses", "2"]);
    for name in ["alice", "eve"] {
        world.joins(name, &invite);
        world.start(name);
    }
    world.announce();
    world.until(|world| world.is_rotated("eve", "announced"));
    let first = fs::read(world.path("authority/network.key.next")).unwrap();
    let key = shoal(&["pubkey"]).arg(world.path("eve/node.key")).output().unwrap();
    let key = text(&key).0.trim().to_owned();
    let (code, said) = world.authority(&["revoke", "eve", "--key", &key]);
    assert!(code == Some(0) && said.contains("may know the announced next secret"), "{said}");
    world.publish(&["rotate", "cancel"], "r1");
    world.until(|world| world.is_rotated("alice", "settled"));
    fs::remove_file(world.path("r1/network.key.next")).unwrap();
    assert!(!world.path("authority/network.key.next").exists());
    world.announce();
    assert_ne!(fs::read(world.path("authority/network.key.next")).unwrap(), first);
    world.until(|world| world.is_rotated("alice", "announced"));
    world.publish(&["rotate", "switch", "--grace", "0"], "r1");
    world.until(|world| world.is_rotated("alice", "settled"));
    assert_ne!(secret(&world, "eve")["state"], "settled");
    let kept = fs::read_to_string(world.path("eve/network.secrets")).unwrap_or_default();
    let newest = fs::read_to_string(world.path("authority/network.key")).unwrap();
    assert!(!kept.contains(newest.trim()), "eve was given it");
    assert!(!world.pings("eve", "alice"));
    restart(&mut world, "alice", "-TERM");
    world.until(|world| world.pings("alice", "r1"));
}

/// A small file system in memory.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new() -> SmallDisk {
        let disk = SmallDisk(tempfile::tempdir().unwrap());
        let words = ["-t", "tmpfs", "-o", "size=32k,mode=0700", "none"];
        let mut mount = std::process::Command::new("mount");
        assert!(mount.args(words).arg(disk.0.path()).status().unwrap().success());
        disk
    }

    /// Leaves no room for another byte.
    fn fill(&self) {
        let mut file = fs::File::create(self.0.path().join("filler")).unwrap();
        while std::io::Write::write_all(&mut file, &[7; 1_024]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_registrar_whose_disk_is_full_says_so_and_keeps_the_secret_once_there_is_room() {
    if !shoal_e2e::namespaces() {
        return;
    }
    // Declared before the world, so that it is dropped after the processes.
    let disk = SmallDisk::new();
    let mut world = JoiningNetwork::create(&[]);
    let config = world.registrar();
    let text = fs::read_to_string(&config).unwrap();
    let ledger = disk.0.path().join("ledger");
    let with_disk = text.replace("\"ledger\"", &format!("\"{}\"", ledger.display()));
    assert_ne!(text, with_disk);
    fs::write(&config, with_disk).unwrap();
    world.start("r1");
    world.start_registrar();
    let invite = world.invite(&[]);
    disk.fill();
    world.announce();
    let warnings = |world: &JoiningNetwork| {
        world.ask(&["registrar", "status"]).unwrap()["registrar"]["warnings"].to_string()
    };
    world.until(|world| warnings(world).contains("network.secrets: can't be written"));
    assert!(warnings(&world).contains("tries again"), "{}", warnings(&world));
    assert!(world.logs().contains("network.secrets: can't be written"), "{}", world.logs());
    let kept = disk.0.path().join("network.secrets");
    assert!(!kept.exists());
    let lines =
        |world: &JoiningNetwork| world.logs().matches("network.secrets: can't be written").count();
    fs::remove_file(disk.0.path().join("filler")).unwrap();
    world.until(|_| kept.exists());
    assert_eq!(lines(&world), 1, "one line, however often it was tried: {}", world.logs());
    world.until(|world| !warnings(world).contains("network.secrets"));
    assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    // The registrar has the secret after a power failure, without the node: newcomers get it.
    world.publish(&["rotate", "switch"], "r1");
    world.until(|world| world.is_rotated("r1", "switched"));
    let version = world.status("r1").authority.unwrap().list_version;
    world.until(|world| {
        world.ask(&["registrar", "status"]).unwrap()["registrar"]["list_version"] == version
    });
    world.end("registrar", "-KILL");
    world.end("r1", "-KILL");
    world.start_registrar();
    world.joins("alice", &invite);
    let newest = fs::read(world.path("authority/network.key")).unwrap();
    assert_eq!(fs::read(world.path("alice/network.key")).unwrap(), newest);
}
