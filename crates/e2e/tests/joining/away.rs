//! Members that were away while the network's secret changed use `shoal network fetch`.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use shoal_e2e::joining::JoiningNetwork;
use shoal_e2e::{shoal, text};

/// Runs `shoal network fetch` for a node. Returns exit code and output.
fn fetch(world: &JoiningNetwork, name: &str) -> (Option<i32>, String) {
    let output = shoal(&["network", "fetch", "--dir"]).arg(world.path(name)).output().unwrap();
    let (out, err) = text(&output);
    (output.status.code(), out + &err)
}

/// A node's answer to a command.
fn asks(world: &JoiningNetwork, name: &str, verb: &str) -> String {
    let config = world.path(name).join("node.toml");
    text(&shoal(&[verb, "-c"]).arg(config).output().unwrap()).0
}

/// Runs the whole rotation. `running` names all running nodes.
fn rotate(world: &JoiningNetwork, running: &[&str]) {
    world.announce();
    world.all_rotated(running, "announced");
    world.publish(&["rotate", "switch"], "r1");
    world.all_rotated(running, "switched");
    world.publish(&["rotate", "retire"], "r1");
    world.all_rotated(running, "settled");
    // The registrar hands out its own copies, so it must have the newest list and secret.
    world.until(|world| {
        let status = world.ask(&["registrar", "status"]).unwrap();
        let list = status["registrar"]["list_version"].as_u64();
        list == world.status("r1").authority.map(|authority| authority.list_version)
            && world.path("r1/registrar/network.secrets").exists()
    });
}

#[test]
fn a_member_that_was_away_for_the_whole_rotation_comes_back_by_one_command() {
    let mut world = JoiningNetwork::new();
    let invite = world.invite(&["--uses", "4"]);
    for name in ["alice", "away", "off", "eve"] {
        world.joins(name, &invite);
    }
    world.start("alice");
    world.until(|world| world.pings("alice", "r1"));
    rotate(&world, &["r1", "alice"]);
    assert!(world.ask(&["registrar", "remove", "eve"]).is_some());

    // No node answers it, and its status names the command.
    world.start("away");
    world.until(|world| {
        world.drops("r1", "bad_handshake") > 0
            && asks(world, "away", "peers").contains("`shoal network fetch`")
    });
    assert!(!world.pings("away", "alice"));
    // A running node needs no restart.
    let (code, said) = fetch(&world, "away");
    assert!(code == Some(0) && said.contains("a newer list, and another secret"), "{said}");
    assert!(said.contains("without a restart"), "{said}");
    world.until(|world| world.pings("away", "alice") && world.pings("alice", "away"));
    let next = world.path("away/network.key.next");
    let newest = fs::read(world.path("authority/network.key")).unwrap();
    assert_eq!(fs::read(&next).unwrap(), newest);
    assert_eq!(fs::metadata(&next).unwrap().permissions().mode() & 0o777, 0o600);
    // The secret survives a restart, even without the file that the command wrote.
    world.until(|world| world.path("away/network.secrets").exists());
    fs::remove_file(&next).unwrap();
    world.end("away", "-KILL");
    world.start("away");
    world.until(|world| world.pings("away", "alice"));
    let (code, said) = fetch(&world, "away");
    assert!(code == Some(0) && said.contains("nothing new"), "{said}");

    // A stopped node.
    let (code, said) = fetch(&world, "off");
    assert!(code == Some(0) && said.contains("start the node with: shoal run"), "{said}");
    world.start("off");
    world.until(|world| world.pings("off", "alice"));

    // A member that was removed meanwhile gets nothing.
    let before = fs::read(world.path("eve/network.list")).unwrap();
    let (code, said) = fetch(&world, "eve");
    assert!(code == Some(3) && said.contains("are not members: join anew"), "{said}");
    assert!(!world.path("eve/network.key.next").exists());
    assert_eq!(fs::read(world.path("eve/network.list")).unwrap(), before);
}

#[test]
fn a_fetch_without_effect_says_what_to_do() {
    let mut world = JoiningNetwork::new();
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
    // The node has the list, and lacks only the secret.
    let (code, said) = fetch(&world, "alice");
    assert!(code == Some(0) && said.contains("fetched another secret"), "{said}");
    world.until(|world| world.pings("alice", "r1"));
    assert!(!asks(&world, "alice", "status").contains("network fetch"));
}
