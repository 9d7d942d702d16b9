//! `shoal rekey` with the real programs: the member stays, the key changes. Also those who may not
//! use it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::Value;
use shoal_e2e::joining::JoiningNetwork;
use shoal_e2e::{shoal, text};

/// Runs `shoal rekey` for a node. Returns exit code and output.
fn rekey(world: &JoiningNetwork, name: &str) -> (Option<i32>, String) {
    let output = shoal(&["rekey", "--dir"]).arg(world.path(name)).output().unwrap();
    let (out, err) = text(&output);
    (output.status.code(), out + &err)
}

/// Runs [`rekey`], which must succeed.
#[track_caller]
fn rekeys(world: &JoiningNetwork, name: &str) -> String {
    let (code, said) = rekey(world, name);
    assert_eq!(code, Some(0), "{said}{}", world.logs());
    said
}

fn key(world: &JoiningNetwork, name: &str) -> String {
    fs::read_to_string(world.path(name).join("node.key")).unwrap()
}

/// A node's status.
fn status(world: &JoiningNetwork, name: &str) -> Value {
    let config = world.path(name).join("node.toml");
    let output = shoal(&["status", "--json", "-c"]).arg(config).output().unwrap();
    serde_json::from_str::<Value>(text(&output).0.lines().last().unwrap()).unwrap()["status"].take()
}

/// Copies a node's folder: somebody has its key and all its files.
fn copy(world: &JoiningNetwork, from: &str, to: &str) -> PathBuf {
    let to = world.path(to);
    fs::create_dir(&to).unwrap();
    for entry in fs::read_dir(world.path(from)).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
    to
}

#[test]
fn a_member_gets_another_key_and_the_old_one_is_refused() {
    let mut world = JoiningNetwork::new();
    let invite = world.invite(&["--uses", "2"]);
    for name in ["alice", "bob"] {
        world.joins(name, &invite);
        world.start(name);
    }
    world.until(|world| world.pings("alice", "bob"));
    copy(&world, "alice", "thief");
    let (before, old) = (status(&world, "alice"), key(&world, "alice"));
    let said = rekeys(&world, "alice");
    assert!(said.contains("restart it"), "{said}");
    assert!(said.contains("the IPv6 address follows from the key"), "{said}");
    let new = key(&world, "alice");
    assert_ne!(new, old);
    let mode = fs::metadata(world.path("alice/node.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!world.path("alice/node.key.next").exists());
    // The node with the old key is no member for any other node.
    world.until(|world| !world.pings("alice", "bob") && !world.pings("bob", "alice"));
    world.end("alice", "-TERM");
    world.start("alice");
    world.until(|world| world.pings("alice", "bob") && world.pings("bob", "alice"));
    let after = status(&world, "alice");
    for same in ["name", "address"] {
        assert!(!before[same].is_null() && before[same] == after[same], "{same}: {after}");
    }
    assert_ne!(before["public_key"], after["public_key"]);
    assert_eq!(world.members(), ["alice", "bob"]);
    // The registrar and all nodes refuse a thief with the old key and all files of that time.
    world.end("alice", "-TERM");
    let (code, said) = rekey(&world, "thief");
    assert!(code == Some(5) && said.contains("was replaced by another one"), "{said}");
    world.start("thief");
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(!world.pings("thief", "bob") && !world.pings("bob", "alice"));
    world.end("thief", "-TERM");
    world.start("alice");
    world.until(|world| world.pings("bob", "alice"));
    let (code, said) = rekey(&world, "alice");
    assert!(code == Some(5) && said.contains("less than a week ago"), "{said}");
    assert_eq!(key(&world, "alice"), new);
}

#[test]
fn an_interrupted_rekey_continues_with_the_same_new_key() {
    let mut world = JoiningNetwork::new();
    world.joins("alice", &world.invite(&[]));
    let old = key(&world, "alice");
    // Without a registrar the new key waits, and the old one stays in use.
    world.end("registrar", "-KILL");
    let (code, said) = rekey(&world, "alice");
    assert!(code == Some(3) && said.contains("no answer from the registrar"), "{said}");
    assert_eq!(key(&world, "alice"), old);
    let waiting = fs::read_to_string(world.path("alice/node.key.next")).unwrap();
    world.start("alice");
    world.until(|world| world.pings("alice", "r1"));
    world.end("alice", "-TERM");
    world.start_registrar();
    // The registrar has signed. The machine loses power before it learns of that, and again before
    // it has installed the new key.
    let before = copy(&world, "alice", "before");
    let said = rekeys(&world, "alice");
    assert!(said.contains("start the node with"), "{said}");
    assert_eq!(key(&world, "alice"), waiting);
    for file in ["node.key", "node.key.next", "network.chains"] {
        fs::copy(before.join(file), world.path("alice").join(file)).unwrap();
    }
    rekeys(&world, "alice");
    // The node knows of its new key, and does not have it.
    fs::copy(before.join("node.key"), world.path("alice/node.key")).unwrap();
    fs::copy(before.join("node.key.next"), world.path("alice/node.key.next")).unwrap();
    let check = shoal(&["check", "-c"]).arg(world.path("alice/node.toml")).output().unwrap();
    let said = text(&check).1;
    assert!(!check.status.success() && said.contains("`shoal rekey` was interrupted"), "{said}");
    rekeys(&world, "alice");
    assert_eq!(key(&world, "alice"), waiting);
    let status = world.ask(&["registrar", "status"]).unwrap();
    let counts = ["members", "steps", "admitted"].map(|name| &status["registrar"][name]);
    assert_eq!(counts, [&1.into(), &2.into(), &2.into()] as [&Value; 3]);
    world.start("alice");
    world.until(|world| world.pings("alice", "r1") && world.pings("r1", "alice"));
}

#[test]
fn members_that_may_not_rekey_are_told_whom_to_ask() {
    let world = JoiningNetwork::new();
    world.joins("alice", &world.invite(&[]));
    // A router is the authority's own member.
    let (code, said) = rekey(&world, "r1");
    assert!(code == Some(4) && said.contains("ask the owner of the authority's key"), "{said}");
    // A member that the authority adopted must ask there, too.
    let authority = world.path("authority");
    let mut adopt = shoal(&["authority", "adopt", "registrar", "--socket"]);
    adopt.arg(world.path("r1/control.sock")).arg("--dir").arg(&authority);
    world.until(|world| world.ask(&["registrar", "status"]).unwrap()["registrar"]["node_has"] == 1);
    let output = adopt.output().unwrap();
    assert!(output.status.success(), "{:?}", text(&output));
    let list = |world: &JoiningNetwork| {
        let status = world.ask(&["registrar", "status"]).unwrap();
        status["registrar"]["list_version"].as_u64().unwrap()
    };
    let before = list(&world);
    fs::copy(authority.join("network.list"), world.path("r1/network.list")).unwrap();
    world.until(|world| list(world) > before);
    let old = key(&world, "alice");
    let (code, said) = rekey(&world, "alice");
    assert!(code == Some(5) && said.contains("ask the owner of the authority's key"), "{said}");
    // Another machine's key, which nobody admitted, changes nothing.
    fs::remove_file(world.path("alice/node.key")).unwrap();
    // The refused command has removed its new key.
    assert!(!world.path("alice/node.key.next").exists());
    let output = shoal(&["genkey", "-o"]).arg(world.path("alice/node.key")).output().unwrap();
    assert!(output.status.success(), "{:?}", text(&output));
    let (code, said) = rekey(&world, "alice");
    assert!(code == Some(3) && said.contains("no answer"), "{said}");
    // Another command has the lock, so this one does nothing.
    fs::write(world.path("alice/node.key"), old).unwrap();
    let folder = fs::File::open(world.path("alice")).unwrap();
    folder.lock().unwrap();
    let (code, said) = rekey(&world, "alice");
    assert!(code == Some(1) && said.contains("another command replaces the key"), "{said}");
}
