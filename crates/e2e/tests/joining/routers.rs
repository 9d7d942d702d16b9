//! Routers that join by invites with the real programs.

use std::collections::BTreeSet;
use std::process::Stdio;

use serde_json::Value;
use shoal_e2e::joining::JoiningNetwork;
use shoal_e2e::{shoal, text};

const CIRCUITS: &str = "\n[circuits]\npolicy = \"require\"\nrelays = 3\n";

/// Runs `shoal up` of a router at the address of the network's first one.
#[track_caller]
fn joins_as_router(world: &JoiningNetwork, name: &str, invite: &str, words: &[&str]) {
    let at = world.endpoint().to_string();
    let (code, said) = world.up(name, invite, &[&["--endpoint", &at], words].concat());
    assert_eq!(code, Some(0), "{said}{}", world.logs());
    assert!(said.contains("the registrar reached it"), "{said}");
}

/// JSON that a command prints about a node.
fn json(world: &JoiningNetwork, name: &str, command: &str) -> Option<Value> {
    let config = world.path(name).join("node.toml");
    let output = shoal(&[command, "--json", "-c"]).arg(config).output().unwrap();
    let line: Value = serde_json::from_str(text(&output).0.lines().last()?).ok()?;
    line.get(command).cloned()
}

/// Names of the relays of all circuits in use.
fn relays(world: &JoiningNetwork, name: &str) -> Vec<Vec<String>> {
    let names = |circuit: &Value| {
        let relays = circuit["relays"].as_array().unwrap().iter();
        relays.map(|relay| relay.as_str().unwrap().to_owned()).collect()
    };
    let Some(all) = json(world, name, "circuits") else { return Vec::new() };
    let hosts = all["hosts"].as_array().cloned().unwrap_or_default();
    let circuits = hosts.iter().flat_map(|host| host["circuits"].as_array().unwrap());
    circuits.filter(|circuit| circuit["state"] == "in use").map(names).collect()
}

#[test]
fn routers_join_by_invites_and_carry_circuits() {
    let mut world = JoiningNetwork::new();
    // Before there are other routers, both hosts have the first one alone.
    let hosts = world.invite(&["--uses", "2"]);
    for name in ["alice", "carol"] {
        world.joins(name, &hosts);
        world.configure(name, CIRCUITS);
    }
    let families = [("r2", "friends"), ("r3", "third"), ("r4", "fourth"), ("r5", "fifth")];
    for (name, family) in families {
        let invite = world.invite(&["--router", "--family", family]);
        joins_as_router(&world, name, &invite, &[]);
        world.start(name);
        // The first other router becomes the second one of both hosts, and stays it.
        let hosts = ["alice", "carol"];
        world.until(|world| hosts.iter().all(|name| world.addresses(name).len() == 2));
    }
    let routers = ["r1", "r2", "r3", "r4", "r5"];
    world.until(|world| routers.iter().all(|name| world.status(name).links_up == 4));
    ["alice", "carol"].into_iter().for_each(|name| world.start(name));
    world.until(|world| world.pings("alice", "carol"));
    // Only these three are of operators that neither see the hosts nor each other.
    let three = || ["r3", "r4", "r5"].map(str::to_owned).into_iter().collect::<BTreeSet<_>>();
    world.until(|world| {
        let mut circuits = relays(world, "alice").into_iter();
        circuits.any(|relays| relays.into_iter().collect::<BTreeSet<_>>() == three())
    });
    // A router that is removed loses its links, and circuits do without it.
    let listed = world.ask(&["invite", "list"]).unwrap();
    let invites = listed["invites"].as_array().unwrap();
    let of_r4 = invites.iter().find(|invite| invite["router"]["family"] == "fourth").unwrap();
    let id = of_r4["id"].as_str().unwrap();
    world.ask(&["invite", "withdraw", id, "--members"]).unwrap();
    world.until(|world| ["r3", "r5"].iter().all(|name| world.status(name).links_up == 3));
    world.until(|world| world.pings("alice", "carol"));
    assert!(!world.members().contains(&"r4".to_owned()));
}

#[test]
fn an_invite_for_a_router_needs_an_endpoint_that_answers() {
    let world = JoiningNetwork::new();
    let invite = world.invite(&["--router", "--uses", "9"]);
    let (code, said) = world.up("r2", &invite, &[]);
    assert!(code == Some(1) && said.contains("--endpoint IP:PORT"), "{code:?} {said}");
    // Nothing arrives at an address of documentation.
    let (code, said) = world.up("r2", &invite, &["--endpoint", "192.0.2.77"]);
    assert!(code == Some(5) && said.contains("came back"), "{code:?} {said}");
    let host = world.invite(&[]);
    let at = world.endpoint().to_string();
    let (code, said) = world.up("r2", &host, &["--endpoint", &at]);
    assert!(code == Some(1) && said.contains("invite is for a host"), "{code:?} {said}");
    // The port of the network's first router is taken, on this machine and in the network.
    let first = json(&world, "r1", "status").unwrap()["listen"][0].as_str().unwrap().to_owned();
    let (code, said) = world.up("r2", &invite, &["--endpoint", &first]);
    assert!(code != Some(0), "{said}");
    assert!(world.members().is_empty());
    let mut up = shoal(&["up", &invite, "--no-start", "--no-relay", "--dir"]);
    let output = up.arg(world.path("r2")).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "no relay without an endpoint");
    joins_as_router(&world, "r2", &invite, &["--no-relay", "--capacity", "100"]);
    assert_eq!(world.members(), ["r2"]);
}
