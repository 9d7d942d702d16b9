//! Presets of a network, and the routers of its hosts, with the real programs.

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;

use shoal_daemon::control::api::PresetStatus;
use shoal_e2e::joining::JoiningNetwork;
use shoal_e2e::{shoal, text};

/// Lets a router join at the address of the network's first one, and starts it.
#[track_caller]
fn adds_router(world: &mut JoiningNetwork, name: &str, invite: &str) {
    let at = world.endpoint().to_string();
    let (code, said) = world.up(name, invite, &["--endpoint", &at]);
    assert_eq!(code, Some(0), "{said}{}", world.logs());
    world.start(name);
}

/// Runs `shoal network preset` with the authority's folder.
fn preset(world: &JoiningNetwork, words: &[&str]) -> (Option<i32>, String) {
    let mut command = shoal(&["network", "preset"]);
    let command = command.args(words).arg("--dir").arg(world.path("authority"));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let (out, err) = text(&output);
    (output.status.code(), out + &err)
}

/// Puts the authority's list on the first router.
fn publish(world: &JoiningNetwork) {
    let list = world.path("authority/network.list");
    fs::copy(list, world.path("r1/network.list")).unwrap();
}

#[track_caller]
fn followed(world: &JoiningNetwork, name: &str) -> PresetStatus {
    world.status(name).preset.expect("a preset")
}

/// Number of the router that a node is behind, or is.
#[track_caller]
fn router(world: &JoiningNetwork, name: &str) -> u32 {
    let config = fs::read_to_string(world.path(name).join("node.toml")).unwrap();
    let line = config.lines().find_map(|line| line.strip_prefix("address = \"")).unwrap();
    line.split('.').next().unwrap().parse().unwrap()
}

#[test]
fn hosts_follow_the_preset_of_their_network_up_and_down_without_a_restart() {
    let mut world = JoiningNetwork::create(&["--preset", "hidden", "--no-router-cover"]);
    world.start("r1");
    world.start_registrar();
    let lacks = followed(&world, "r1").missing;
    let counted = "hidden needs 5 relays of 3 families, there are 1 of 1: invite four more with \
                   `shoal invite --router --family NAME`";
    assert_eq!(lacks, [counted]);
    let families = [("b", &["r2", "r3"][..]), ("c", &["r4", "r5"][..]), ("d", &["r6"][..])];
    for (family, names) in families {
        let invite = world.invite(&["--router", "--family", family, "--uses", "2"]);
        names.iter().for_each(|name| adds_router(&mut world, name, &invite));
    }
    let routers = ["r1", "r2", "r3", "r4", "r5", "r6"];
    world.until(|world| routers.iter().all(|name| world.status(name).links_up == 5));
    assert!(followed(&world, "r1").missing.is_empty());
    let hosts = world.invite(&["--uses", "2"]);
    for name in ["alice", "carol"] {
        world.joins(name, &hosts);
        world.start(name);
    }
    assert_ne!(router(&world, "alice"), router(&world, "carol"), "hosts are spread");
    world.until(|world| world.pings("alice", "carol"));
    for name in ["alice", "carol"] {
        let status = world.status(name);
        let preset = status.preset.unwrap();
        assert_eq!((preset.level.as_str(), preset.by.as_str()), ("hidden", "list"));
        assert!(preset.missing.is_empty() && !preset.is_closed, "{preset:?}");
        let own = status.cover.and_then(|cover| cover.own).expect("a covered link");
        assert_eq!(own.state, "running");
        assert_eq!(status.circuits.bound, 1, "the other host is reached over circuits only");
    }
    // A lower preset needs a confirmation, and an older list changes nothing.
    let older = fs::read(world.path("authority/network.list")).unwrap();
    let (code, said) = preset(&world, &["fast"]);
    assert!(code == Some(2) && said.contains("falls from hidden to fast"), "{code:?} {said}");
    let (code, said) = preset(&world, &["fast", "--yes"]);
    assert_eq!(code, Some(0), "{said}");
    publish(&world);
    let is_fast = |world: &JoiningNetwork, name: &str| {
        let status = world.status(name);
        status.preset.is_none() && status.cover.is_none() && status.circuits.bound == 0
    };
    world.until(|world| ["alice", "carol"].iter().all(|name| is_fast(world, name)));
    world.until(|world| world.pings("alice", "carol") && world.pings("carol", "alice"));
    fs::write(world.path("r1/network.list"), older).unwrap();
    world.until(|world| {
        world.status("r1").authority.is_some_and(|authority| authority.refused.is_some())
    });
    assert!(is_fast(&world, "alice"), "lists only go forward");
    // And up again.
    let (code, said) = preset(&world, &["hidden", "--no-router-cover"]);
    assert_eq!(code, Some(0), "{said}");
    publish(&world);
    world.until(|world| {
        let is_hidden = |name: &&str| {
            let status = world.status(name);
            let own = status.cover.and_then(|cover| cover.own);
            let is_covered = own.is_some_and(|own| own.state == "running");
            is_covered && status.preset.is_some_and(|preset| preset.missing.is_empty())
        };
        ["alice", "carol"].iter().all(is_hidden)
    });
    world.until(|world| world.pings("alice", "carol"));
}

#[test]
fn hosts_of_a_network_that_lacks_relays_send_only_if_their_owners_say_so() {
    let mut world = JoiningNetwork::create(&["--preset", "balanced"]);
    world.start("r1");
    world.start_registrar();
    let invite = world.invite(&["--uses", "4"]);
    for name in ["alice", "bob", "carol", "dave"] {
        let more: &[&str] =
            if ["carol", "dave"].contains(&name) { &["--as-far-as-possible"] } else { &[] };
        let (code, said) = world.up(name, &invite, more);
        assert_eq!(code, Some(0), "{said}");
        world.start(name);
    }
    world.until(|world| world.pings("carol", "dave"));
    let far = followed(&world, "carol");
    assert!(far.as_far_as_possible && !far.is_closed && !far.missing.is_empty(), "{far:?}");
    assert!(!world.pings("alice", "bob"));
    let closed = followed(&world, "alice");
    assert!(closed.is_closed, "{closed:?}");
    let said = &closed.missing[0];
    assert!(said.starts_with("balanced needs 5 relays of 3 families, there are 1 of 1"), "{said}");
    let mut check = shoal(&["check", "-c"]);
    let output = check.arg(world.path("alice/node.toml")).output().unwrap();
    let out = text(&output).0;
    assert!(out.contains("preset balanced (by the list)") && out.contains(said), "{out}");
}

#[test]
fn a_host_leaves_a_router_that_does_not_answer() {
    let mut world = JoiningNetwork::new();
    let routers = world.invite(&["--router", "--family", "b"]);
    adds_router(&mut world, "r2", &routers);
    world.until(|world| world.status("r1").links_up == 1);
    let hosts = world.invite(&["--uses", "2"]);
    let names = ["alice", "carol"];
    names.iter().for_each(|name| world.joins(name, &hosts));
    let both: BTreeSet<u32> = names.iter().map(|name| router(&world, name)).collect();
    assert_eq!(both.len(), 2, "one host behind each router");
    let second = router(&world, "r2");
    let stuck = names.into_iter().find(|name| router(&world, name) == second).unwrap();
    world.end("r2", "-KILL");
    let mut up = shoal(&["up", "--another-router", "--dir"]);
    let output = up.arg(world.path(stuck)).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{:?}\n{}", text(&output), world.logs());
    assert_eq!(router(&world, stuck), 1);
    world.start(stuck);
    world.until(|world| world.pings(stuck, "r1"));
}
