//! Who was away while the network's secret changed: `shoal network fetch`, with the real programs.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts real programs")]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use shoal_e2e::joining::World;
use shoal_e2e::{shoal, text};

/// `shoal network fetch` of a node: exit code and what was said.
fn fetch(world: &World, name: &str) -> (Option<i32>, String) {
    let output = shoal(&["network", "fetch", "--dir"]).arg(world.path(name)).output().unwrap();
    let (out, err) = text(&output);
    (output.status.code(), out + &err)
}

/// What a node says to a command.
fn asks(world: &World, name: &str, verb: &str) -> String {
    let config = world.path(name).join("node.toml");
    text(&shoal(&[verb, "-c"]).arg(config).output().unwrap()).0
}

/// The whole rotation, which these nodes, all that run, go through.
fn rotate(world: &World, running: &[&str]) {
    world.announce();
    world.all_rotated(running, "announced");
    world.publish(&["rotate", "switch"], "r1");
    world.all_rotated(running, "switched");
    world.publish(&["rotate", "retire"], "r1");
    world.all_rotated(running, "settled");
    // The registrar gives out what it has.
    world.until(|world| {
        let status = world.ask(&["registrar", "status"]).unwrap();
        let list = status["registrar"]["list_version"].as_u64();
        list == world.status("r1").authority.map(|authority| authority.list_version)
            && world.path("r1/registrar/network.secrets").exists()
    });
}

#[test]
fn a_member_that_was_away_for_the_whole_rotation_comes_back_by_one_command() {
    let mut world = World::new();
    let invite = world.invite(&["--uses", "4"]);
    for name in ["alice", "away", "off", "eve"] {
        world.joins(name, &invite);
    }
    world.start("alice");
    world.until(|world| world.pings("alice", "r1"));
    rotate(&world, &["r1", "alice"]);
    assert!(world.ask(&["registrar", "remove", "eve"]).is_some());

    // Nobody answers it, and it is told of the command.
    world.start("away");
    world.until(|world| {
        world.drops("r1", "bad_handshake") > 0
            && asks(world, "away", "peers").contains("`shoal network fetch`")
    });
    assert!(!world.pings("away", "alice"));
    // While it runs: without a restart.
    let (code, said) = fetch(&world, "away");
    assert!(code == Some(0) && said.contains("a newer list, and another secret"), "{said}");
    assert!(said.contains("without a restart"), "{said}");
    world.until(|world| world.pings("away", "alice") && world.pings("alice", "away"));
    let next = world.path("away/network.key.next");
    let newest = fs::read(world.path("authority/network.key")).unwrap();
    assert_eq!(fs::read(&next).unwrap(), newest);
    assert_eq!(fs::metadata(&next).unwrap().permissions().mode() & 0o777, 0o600);
    // It is there after a restart, also without the file that the command left.
    world.until(|world| world.path("away/network.secrets").exists());
    fs::remove_file(&next).unwrap();
    world.end("away", "-KILL");
    world.start("away");
    world.until(|world| world.pings("away", "alice"));
    let (code, said) = fetch(&world, "away");
    assert!(code == Some(0) && said.contains("nothing that was not here"), "{said}");

    // While it does not run.
    let (code, said) = fetch(&world, "off");
    assert!(code == Some(0) && said.contains("start the node with: shoal run"), "{said}");
    world.start("off");
    world.until(|world| world.pings("off", "alice"));

    // Who was removed meanwhile is given nothing.
    let before = fs::read(world.path("eve/network.list")).unwrap();
    let (code, said) = fetch(&world, "eve");
    assert!(code == Some(3) && said.contains("who is no member any more: join anew"), "{said}");
    assert!(!world.path("eve/network.key.next").exists());
    assert_eq!(fs::read(world.path("eve/network.list")).unwrap(), before);
}

#[test]
fn who_gets_nothing_by_it_is_told_what_to_do() {
    let mut world = World::new();
    let invite = world.invite(&[]);
    world.joins("alice", &invite);
    // The authority's own member.
    let (code, said) = fetch(&world, "r1");
    assert!(code == Some(4) && said.contains("network.key.next"), "{said}");
    // With the list and without the secret the status names the command.
    rotate(&world, &["r1"]);
    fs::copy(world.path("authority/network.list"), world.path("alice/network.list")).unwrap();
    world.start("alice");
    world.until(|world| {
        let warnings = world.status("alice").warnings;
        warnings.iter().any(|text| text.contains("`shoal network fetch` gets it"))
    });
    world.end("registrar", "-KILL");
    let (code, said) = fetch(&world, "alice");
    assert!(code == Some(3) && said.contains("no answer from the registrar"), "{said}");
    assert!(!world.path("alice/network.key.next").exists());
    world.start_registrar();
    // The list alone is of no use, and the secret is what it lacks.
    let (code, said) = fetch(&world, "alice");
    assert!(code == Some(0) && said.contains("fetched another secret"), "{said}");
    world.until(|world| world.pings("alice", "r1"));
    assert!(!asks(&world, "alice", "status").contains("network fetch"));
}
