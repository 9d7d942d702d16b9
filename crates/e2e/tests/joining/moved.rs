//! A registrar that moves, and one whose endpoint is a name.

use std::fs;

use shoal_daemon::control::api::{Command, ControlReply};
use shoal_e2e::joining::JoiningNetwork;
use shoal_e2e::{shoal, text};
use shoal_joining::Invite;

/// Endpoints of the registrar, as a node knows them.
fn endpoints(world: &JoiningNetwork, name: &str) -> Vec<String> {
    match world.call(name, Command::Directory) {
        Some(ControlReply::Directory(has)) => has.mandates[0].endpoints.clone(),
        other => panic!("{other:?}\n{}", world.logs()),
    }
}

/// Runs `shoal network fetch` for a machine. Returns its exit code and its output.
fn fetch(world: &JoiningNetwork, name: &str) -> (Option<i32>, String) {
    let output = shoal(&["network", "fetch", "--dir"]).arg(world.path(name)).output().unwrap();
    let (out, err) = text(&output);
    (output.status.code(), out + &err)
}

#[test]
fn members_and_invites_follow_a_registrar_that_moves() {
    let mut world = JoiningNetwork::new();
    world.joins("alice", &world.invite(&[]));
    world.start("alice");
    world.until(|world| world.pings("alice", "r1"));
    let before = endpoints(&world, "alice");
    let old = world.endpoint();
    let [a, b, c, _] = old.octets();
    let new = std::net::Ipv4Addr::new(a, b, c, 250);
    world.end("registrar", "-TERM");
    let file = world.registrar();
    let config = fs::read_to_string(&file).unwrap();
    assert!(config.contains(&format!("endpoints = [\"{old}:")), "{config}");
    fs::write(&file, config.replace(&old.to_string(), &new.to_string())).unwrap();
    world.start_registrar();
    world.until(|world| {
        let now = endpoints(world, "alice");
        now != before && now[0].starts_with(&format!("{new}:"))
    });
    // The member's file has the old address, at which nobody answers.
    let own = fs::read_to_string(world.path("alice/node.toml")).unwrap();
    assert!(own.contains(&before[0]) && !own.contains(&new.to_string()), "{own}");
    let (code, said) = fetch(&world, "alice");
    assert_eq!(code, Some(0), "{said}{}", world.logs());
    let invite = world.invite(&[]);
    let named: Vec<_> =
        invite.parse::<Invite>().unwrap().endpoints.iter().map(ToString::to_string).collect();
    assert_eq!(named, endpoints(&world, "alice"));
    world.joins("bob", &invite);
    // A second start signs nothing: nothing changed.
    let steps = |world: &JoiningNetwork| {
        world.ask(&["registrar", "status"]).unwrap()["registrar"]["steps"].as_u64()
    };
    let signed = steps(&world);
    world.end("registrar", "-TERM");
    world.start_registrar();
    world.joins("carol", &world.invite(&[]));
    assert_eq!(steps(&world), signed.map(|steps| steps + 1));
}

#[test]
fn a_registrar_is_called_by_its_name() {
    let mut world = JoiningNetwork::create(&["--registrar", "localhost"]);
    world.start("r1");
    world.start_registrar();
    let invite = world.invite(&[]);
    assert!(invite.starts_with("SHOAL:2/"), "{invite}");
    world.joins("alice", &invite);
    let own = fs::read_to_string(world.path("alice/node.toml")).unwrap();
    assert!(own.contains("\"localhost:"), "{own}");
    world.start("alice");
    world.until(|world| world.pings("alice", "r1"));
    assert!(endpoints(&world, "alice")[0].starts_with("localhost:"));
    let (code, said) = fetch(&world, "alice");
    assert_eq!(code, Some(0), "{said}{}", world.logs());
    // A wrong name in the file: the signed one is called.
    let wrong = format!("{}.{}", "x".repeat(63), "y".repeat(63));
    let broken = own.replace("\"localhost:", &format!("\"{wrong}.invalid:"));
    fs::write(world.path("alice/node.toml"), broken).unwrap();
    let (code, said) = fetch(&world, "alice");
    assert_eq!(code, Some(0), "{said}{}", world.logs());
}
