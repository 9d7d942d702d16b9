//! `shoal up INVITE` on a machine that joined before: a member spends nothing, and a removed
//! machine joins anew with another key and its own settings.

use std::fs;
use std::path::PathBuf;

use shoal_e2e::joining::JoiningNetwork;
use shoal_e2e::{shoal, text};

/// Number of machines that have used each invite.
fn used(world: &JoiningNetwork) -> Vec<u64> {
    let listed = world.ask(&["invite", "list"]).unwrap();
    let invites = listed["invites"].as_array().unwrap();
    invites.iter().map(|invite| invite["used"].as_u64().unwrap()).collect()
}

fn file(world: &JoiningNetwork, name: &str, file: &str) -> PathBuf {
    world.path(name).join(file)
}

fn read(world: &JoiningNetwork, name: &str, what: &str) -> String {
    fs::read_to_string(file(world, name, what)).unwrap()
}

#[test]
fn a_removed_machine_joins_anew_and_keeps_its_settings() {
    let mut world = JoiningNetwork::new();
    let first = world.invite(&["--uses", "2"]);
    for name in ["alice", "bob"] {
        world.joins(name, &first);
    }
    world.configure("bob", "\n[anonymity]\npreset = \"fast\"\n");
    for name in ["alice", "bob"] {
        world.start(name);
    }
    world.until(|world| world.pings("alice", "bob"));
    // A member spends nothing of a fresh invite, whether its node runs or not.
    let fresh = world.invite(&["--uses", "3"]);
    let before = used(&world);
    let toml = read(&world, "alice", "node.toml");
    let (code, said) = world.up("alice", &fresh, &[]);
    assert!(code == Some(0) && said.contains("a member already"), "{said}");
    world.end("alice", "-TERM");
    let (code, said) = world.up("alice", &fresh, &[]);
    assert!(code == Some(0) && said.contains("a member already"), "{said}");
    assert_eq!((used(&world), read(&world, "alice", "node.toml")), (before, toml));
    world.start("alice");

    world.ask(&["registrar", "remove", "bob"]).unwrap();
    world.until(|world| world.status("bob").authority.is_some_and(|a| a.removed.is_some()));
    // While the node runs nothing is spent. The old invite is used up.
    let (code, said) = world.up("bob", &fresh, &[]);
    assert!(code == Some(1) && said.contains("node still runs"), "{code:?} {said}");
    world.end("bob", "-TERM");
    fs::write(file(&world, "bob", "circuits.guard"), "").unwrap();
    let files = ["node.toml", "node.key", "network.key", "network.list", "door.key"];
    let old = files.map(|name| read_bytes(&world, "bob", name));
    let (code, said) = world.up("bob", &first, &[]);
    assert!(code == Some(5) && said.contains("used up"), "{code:?} {said}");
    assert_eq!(files.map(|name| read_bytes(&world, "bob", name)), old, "nothing changed");
    // A key that waits for `shoal rekey` may be a member's.
    fs::write(file(&world, "bob", "node.key.next"), "").unwrap();
    let (code, said) = world.up("bob", &fresh, &[]);
    assert!(code == Some(1) && said.contains("`shoal rekey` was interrupted"), "{code:?} {said}");
    fs::remove_file(file(&world, "bob", "node.key.next")).unwrap();
    // Without an answer nothing changes either.
    world.end("registrar", "-TERM");
    let (code, said) = world.up("bob", &fresh, &[]);
    assert!(code == Some(0) && said.contains("can't say if this machine is still"), "{said}");
    assert!(!said.contains("a member already"), "{said}");
    assert_eq!(files.map(|name| read_bytes(&world, "bob", name)), old, "nothing changed");
    world.start_registrar();
    world.until(|world| world.ask(&["invite"]).is_some());

    let (code, said) = world.up("bob", &fresh, &[]);
    assert!(code == Some(0) && said.contains("joined anew"), "{code:?} {said}{}", world.logs());
    assert!(said.contains("this machine is bob at "), "{said}");
    assert_ne!(read_bytes(&world, "bob", "node.key"), old[1]);
    assert!(read(&world, "bob", "node.toml").contains("\n[anonymity]\npreset = \"fast\"\n"));
    assert!(file(&world, "bob", "circuits.guard").exists());
    assert!(!file(&world, "bob", ".joining").exists());
    assert_eq!(world.members(), ["alice", "bob"]);
    fs::remove_file(file(&world, "bob", "circuits.guard")).unwrap();
    world.start("bob");
    world.until(|world| world.pings("alice", "bob") && world.pings("bob", "r1"));
    assert!(world.status("bob").authority.is_some_and(|a| a.removed.is_none()));
}

fn read_bytes(world: &JoiningNetwork, name: &str, what: &str) -> Vec<u8> {
    fs::read(file(world, name, what)).unwrap()
}

#[test]
fn a_command_that_was_interrupted_among_its_files_goes_on() {
    let mut world = JoiningNetwork::new();
    let invite = world.invite(&["--uses", "3"]);
    for name in ["alice", "bob"] {
        world.joins(name, &invite);
    }
    let old = world.path("old");
    fs::create_dir(&old).unwrap();
    for entry in fs::read_dir(world.path("bob")).unwrap().flatten() {
        fs::copy(entry.path(), old.join(entry.file_name())).unwrap();
    }
    world.ask(&["registrar", "remove", "bob"]).unwrap();
    let (code, said) = world.up("bob", &invite, &[]);
    assert!(code == Some(0) && said.contains("joined anew"), "{said}{}", world.logs());
    // As if the machine had stopped between the new key and the new configuration.
    let waiting = file(&world, "bob", ".joining");
    fs::create_dir(&waiting).unwrap();
    fs::rename(file(&world, "bob", "node.toml"), waiting.join("node.toml")).unwrap();
    fs::copy(old.join("node.toml"), file(&world, "bob", "node.toml")).unwrap();
    fs::write(waiting.join("anew"), "").unwrap();
    let (code, said) = world.up("bob", &invite, &[]);
    assert!(code == Some(0) && said.contains("joined anew"), "{said}");
    assert!(!waiting.exists());
    for name in ["alice", "bob"] {
        world.start(name);
    }
    world.until(|world| world.pings("alice", "bob"));
    assert_eq!(world.members(), ["alice", "bob"]);
}

#[test]
fn an_invite_with_one_use_serves_a_command_that_failed_after_the_new_key() {
    let world = JoiningNetwork::new();
    world.joins("bob", &world.invite(&[]));
    world.ask(&["registrar", "remove", "bob"]).unwrap();
    // Without an invite nobody is asked.
    let plain = shoal(&["up", "--no-start", "--dir"]).arg(world.path("bob")).output().unwrap();
    let (out, said) = text(&plain);
    assert!(
        plain.status.success() && said.contains("this machine has joined before"),
        "{out}{said}"
    );
    // An invite for a router does not serve a host.
    let router = world.invite(&["--router"]);
    let (code, said) = world.up("bob", &router, &[]);
    assert!(code == Some(1) && said.contains("joined as a host"), "{code:?} {said}");
    assert!(!said.contains("a member already"), "{said}");
    let invite = world.invite(&["--uses", "1"]);
    let before = used(&world);
    let good = read(&world, "bob", "node.toml");
    let write = |text: &str| fs::write(file(&world, "bob", "node.toml"), text).unwrap();
    // A file that can't be edited is refused before the invite is used.
    write(&good.replace("\nname = ", "\n\"name\" = "));
    let (code, said) = world.up("bob", &invite, &[]);
    let remedy = "[node] name: write it as `name = …` on one line below [node], and repeat";
    assert!(code == Some(4) && said.contains(remedy), "{code:?} {said}");
    assert_eq!(used(&world), before);
    // The new key is granted, and only then the node turns out not to start.
    let bad = good.replace("[node]\n", "[node]\ncontrol_group = \"no-such-group\"\n");
    write(&bad);
    let key = read_bytes(&world, "bob", "node.key");
    for _ in 0..2 {
        let (code, said) = world.up("bob", &invite, &[]);
        assert!(code == Some(4) && said.contains("there is no group"), "{code:?} {said}");
        assert_eq!(read(&world, "bob", "node.toml"), bad);
        assert_eq!(read_bytes(&world, "bob", "node.key"), key);
        assert!(!file(&world, "bob", ".joining/node.toml").exists());
    }
    assert_eq!(used(&world).iter().sum::<u64>(), before.iter().sum::<u64>() + 1);
    // A staged file that was cut is made again.
    write(&good);
    fs::write(file(&world, "bob", ".joining/node.toml"), "[no").unwrap();
    let (code, said) = world.up("bob", &invite, &[]);
    assert!(code == Some(0) && said.contains("joined anew"), "{code:?} {said}");
    assert!(read(&world, "bob", "node.toml").starts_with("[node]\nname = \"bob\"\n"));
    assert_ne!(read_bytes(&world, "bob", "node.key"), key);
    assert_eq!(world.members(), ["bob"]);
}

#[test]
fn a_node_that_runs_on_under_its_old_name_is_told_of() {
    let mut world = JoiningNetwork::new();
    let invite = world.invite(&["--uses", "2"]);
    world.joins("alice", &invite);
    world.start("alice");
    world.until(|world| world.pings("alice", "r1"));
    let before = used(&world);
    // As if the membership had begun anew with another name since the node's start.
    let text = read(&world, "alice", "node.toml").replace("\nname = \"alice\"", "\nname = \"old\"");
    fs::write(file(&world, "alice", "node.toml"), text).unwrap();
    let (code, said) = world.up("alice", &invite, &[]);
    assert!(code == Some(0) && said.contains("this machine is alice at "), "{code:?} {said}");
    let dir = world.path("alice").display().to_string();
    let want = format!("run `shoal down --dir {dir}`, then `shoal up --dir {dir}`");
    assert!(said.contains("still runs under its old name") && said.contains(&want), "{said}");
    assert!(read(&world, "alice", "node.toml").contains("\nname = \"alice\"\n"));
    assert_eq!(used(&world), before);
}
