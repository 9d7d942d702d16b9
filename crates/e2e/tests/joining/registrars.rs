//! A second registrar by invite: joining survives the loss of the first machine.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;
use shoal_daemon::control::api::{Command, ControlReply};
use shoal_e2e::joining::JoiningNetwork;
use shoal_e2e::{shoal, text};

/// Time for a machine to join without the first machine.
const SOON: Duration = Duration::from_secs(10);

/// Asks the registrar beside a node; none if it does not answer.
fn ask(world: &JoiningNetwork, name: &str, words: &[&str]) -> Option<Value> {
    let config = world.path(name).join("registrar/registrar.toml");
    let output = shoal(words).arg("-c").arg(config).arg("--json").output().unwrap();
    let last = text(&output).0.lines().last()?.to_owned();
    output.status.success().then(|| serde_json::from_str(&last).unwrap())
}

/// True if the registrar beside a node runs and has a mandate.
fn has_mandate(world: &JoiningNetwork, name: &str) -> bool {
    let status = ask(world, name, &["registrar", "status"]);
    status.is_some_and(|status| status["registrar"]["mandate"].is_string())
}

fn invite(world: &JoiningNetwork, name: &str, words: &[&str]) -> String {
    let made = ask(world, name, &[&["invite"], words].concat());
    let made = made.unwrap_or_else(|| panic!("{}", world.logs()));
    made["invite"]["text"].as_str().unwrap().to_owned()
}

/// A network whose second machine is a router with a registrar of its own. Both run.
fn with_second(create: &[&str], terms: &[&str]) -> JoiningNetwork {
    let mut world = JoiningNetwork::create(create);
    world.start("r1");
    world.start_registrar();
    let invite = world.invite(&[&["--registrar", "--family", "friends"], terms].concat());
    let at = world.endpoint().to_string();
    let (code, said) = world.up("r2", &invite, &["--endpoint", &at]);
    assert_eq!(code, Some(0), "{said}{}", world.logs());
    assert!(said.contains("a registrar of its own answers at"), "{said}");
    world.start("r2");
    let config = world.path("r2/registrar/registrar.toml");
    world.spawn("registrar2", &["registrar", "run", "-c", config.to_str().unwrap()]);
    world.until(|world| has_mandate(world, "r2"));
    world
}

/// Names of the members that a node knows.
fn members(world: &JoiningNetwork, name: &str) -> Vec<String> {
    let config = world.path(name).join("node.toml");
    let output = shoal(&["hosts", "--json", "-c"]).arg(config).output().unwrap();
    let line: Value = serde_json::from_str(text(&output).0.lines().last().unwrap()).unwrap();
    let hosts = line["hosts"].as_array().cloned().unwrap_or_default();
    hosts.iter().filter_map(|host| host["name"].as_str().map(str::to_owned)).collect()
}

#[test]
fn machines_join_and_reach_each_other_after_the_first_machine_is_lost() {
    let mut world = with_second(&["--ipv4", "10.9.0.0/24"], &[]);
    let invites = invite(&world, "r2", &["--uses", "9"]);
    for name in ["alice", "bob"] {
        world.joins(name, &invites);
        world.start(name);
    }
    world.until(|world| world.pings("alice", "bob"));
    let listed = world.ask(&["registrar", "status"]).unwrap();
    assert!(listed["registrar"]["registrars"][0].as_str().unwrap().starts_with("r2 at "));
    // The first machine dies for good.
    for name in ["registrar", "r1"] {
        world.end(name, "-KILL");
    }
    fs::remove_dir_all(world.path("r1")).unwrap();
    assert!(world.pings("alice", "bob"), "{}", world.logs());
    let began = Instant::now();
    world.joins("carol", &invites);
    world.start("carol");
    world.until(|world| world.pings("carol", "alice"));
    let took = began.elapsed();
    println!("joined without the first machine within {took:?}");
    assert!(took < SOON, "{took:?}");
    // A membership goes on there, too, and so does a change of its key.
    let fetch = shoal(&["network", "fetch", "--dir"]).arg(world.path("bob")).output().unwrap();
    assert!(fetch.status.success(), "{:?}", text(&fetch));
    // A restart of both services on the second machine keeps its members.
    for name in ["registrar2", "r2"] {
        world.end(name, "-TERM");
    }
    let dir = world.path("r2");
    world.spawn("up2", &["up", "--dir", dir.to_str().unwrap()]);
    world.until(|world| has_mandate(world, "r2"));
    world.until(|world| world.pings("carol", "bob"));
    world.joins("dave", &invite(&world, "r2", &[]));
}

#[test]
fn a_withdrawn_registrar_ends_its_members_and_admits_nobody() {
    let mut world = with_second(&[], &["--range", "40000-40099"]);
    let second = invite(&world, "r2", &["--uses", "9"]);
    world.joins("alice", &second);
    world.joins("bob", &world.invite(&[]));
    for name in ["alice", "bob"] {
        world.start(name);
    }
    world.until(|world| world.pings("bob", "alice"));
    world.ask(&["registrar", "withdraw", "r2"]).unwrap();
    world.until(|world| !members(world, "bob").contains(&"alice".to_owned()));
    world.until(|world| !has_mandate(world, "r2"));
    let (code, said) = world.up("carol", &second, &[]);
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("mandate has ended"), "{said}");
    assert!(world.pings("bob", "r1") && world.members().contains(&"r2".to_owned()));
    let directory = world.call("bob", Command::Directory);
    let Some(ControlReply::Directory(has)) = directory else { panic!("{directory:?}") };
    assert_eq!(has.mandates.len(), 1);
}

#[test]
fn a_second_registrar_makes_no_third_one() {
    let world = with_second(&[], &[]);
    let config = world.path("r2/registrar/registrar.toml");
    let output = shoal(&["invite", "--registrar", "-c"]).arg(config).output().unwrap();
    let said = text(&output).1;
    assert!(!output.status.success() && said.contains("make 0 registrars"), "{said}");
}
