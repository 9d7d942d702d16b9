//! Reasons against a newcomer: no free address, a wrong clock, a taken name. Also a very long list.

use std::fs;
use std::path::Path;
use std::time::Instant;

use shoal_crypto::Identity;
use shoal_daemon::config::keys;
use shoal_directory::{CircuitRole, List, Member};
use shoal_e2e::clock::ClockOffset;
use shoal_e2e::joining::JoiningNetwork;
use shoal_e2e::{shoal, text};
use shoal_wire::Address;

const YEAR_S: i64 = 365 * 86_400;

/// Runs a command of the authority.
fn authority(world: &JoiningNetwork, words: &[&str]) {
    let mut command = shoal(&["authority"]);
    let output = command.args(words).arg("--dir").arg(world.path("authority")).output().unwrap();
    assert!(output.status.success(), "{:?}", text(&output));
}

/// Gives the node and the registrar, which don't run yet, the authority's newest list.
fn give(world: &JoiningNetwork) {
    for place in ["r1/network.list", "r1/registrar/network.list"] {
        fs::copy(world.path("authority/network.list"), world.path(place)).unwrap();
    }
}

#[test]
fn a_range_without_a_free_address_lets_nobody_in() {
    let mut world = JoiningNetwork::create(&["--ipv4", "10.9.0.0/24"]);
    let ranges = ["--hosts", "1.7-1.8", "--no-numbers", "--ipv4", "10.9.0.128/29"];
    // Narrower limits alone are refused, since they could end memberships.
    let mut command = shoal(&["authority", "mandate", "registrar"]);
    let refused = command.args(ranges).arg("--dir").arg(world.path("authority")).output().unwrap();
    let (_, said) = text(&refused);
    assert!(refused.status.code() == Some(2) && said.contains("--anew"), "{said}");
    authority(&world, &[&["mandate", "registrar", "--anew"], &ranges[..]].concat());
    give(&world);
    world.start("r1");
    world.start_registrar();
    let invite = world.invite(&["--uses", "3"]);
    world.joins("alice", &invite);
    world.joins("bob", &invite);
    let (code, said) = world.up("carol", &invite, &[]);
    assert!(code == Some(5) && said.contains("has no place left"), "{code:?}: {said}");
    assert_eq!(world.members(), ["alice", "bob"]);
    // Nothing was spent: once an address is free, the same invite is accepted.
    let removed = shoal(&["registrar", "remove", "alice", "-c", &world.registrar()]).output();
    assert!(removed.unwrap().status.success());
    world.joins("carol", &invite);
    assert_eq!(world.members(), ["bob", "carol"]);
}

#[test]
fn a_clock_that_is_a_year_off_is_named_and_spends_nothing() {
    let world = JoiningNetwork::new();
    let folder = tempfile::tempdir().unwrap();
    let Some(offset) = ClockOffset::new(folder.path()) else { return };
    let invite = world.invite(&[]);
    for (ahead_s, words) in [(YEAR_S, "365 days ahead of"), (-YEAR_S, "365 days behind")] {
        offset.set(ahead_s);
        let mut up = shoal(&["up", &invite, "--no-start", "--no-interface", "--name", "alice"]);
        let output = up.arg("--dir").arg(world.path("alice")).envs(offset.env()).output().unwrap();
        let said = text(&output).1;
        assert!(!output.status.success() && said.contains(words), "{said}");
        assert!(said.contains("set the one that is wrong"), "{said}");
        assert!(!world.path("alice/node.toml").exists());
    }
    world.joins("alice", &invite);
    assert_eq!(world.members(), ["alice"]);
}

#[test]
fn a_name_is_given_once_whether_the_machine_or_its_invite_says_it() {
    let world = JoiningNetwork::new();
    let (first, second) = (world.invite(&["--name", "bob"]), world.invite(&[]));
    assert!(world.ask(&["invite", "--name", "Bob"]).is_none(), "an open invite reserves the name");
    // The invite's name counts, whatever the machine requests.
    world.joins("alice", &first);
    assert_eq!(world.members(), ["bob"]);
    let (code, said) = world.up("bob", &second, &[]);
    assert!(code == Some(5) && said.contains("another member has this name"), "{said}");
    // The router's name belongs to the authority's member.
    let mut up = shoal(&["up", &world.invite(&[]), "--no-start", "--no-interface", "--name", "r1"]);
    let output = up.arg("--dir").arg(world.path("dave")).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{:?}", text(&output));
    assert_eq!(world.members(), ["bob"]);
}

/// Makes the authority's list at least `len` bytes long, with members that never run.
fn lengthen(world: &JoiningNetwork, len: usize) {
    let key = keys::load_authority(&world.path("authority/authority.key")).unwrap();
    let file = world.path("authority/network.list");
    let list = List::open(&key.public(), &fs::read(&file).unwrap()).unwrap();
    let mut content = list.content().clone();
    content.version += 1;
    let groups: Vec<String> = (0..32).map(|n| format!("{n:02}-{}", "g".repeat(60))).collect();
    for n in 0..(len / 2_200) as u32 + 1 {
        let mut seed = [9; 32];
        seed[..4].copy_from_slice(&n.to_be_bytes());
        let member = Member {
            version: 1,
            name: format!("far-{n}"),
            key: Identity::from_seed(seed).public(),
            address: Address::new(2, n as u16 + 1),
            second: None,
            expires_unix_s: content.issued_unix_s + 86_400,
            endpoint: None,
            groups: groups.clone(),
            security_groups: Vec::new(),
            prefixes: Vec::new(),
            interface: false,
            ipv4: None,
            cover: None,
            carrier: CircuitRole::default(),
            unknown: Vec::new(),
        };
        content.members.push(member.sign(&key).unwrap());
    }
    fs::write(&file, content.sign(&key).unwrap().bytes()).unwrap();
}

fn size(file: &Path) -> u64 {
    fs::metadata(file).unwrap().len()
}

#[test]
fn a_list_of_ten_megabytes_comes_whole() {
    let mut world = JoiningNetwork::create(&[]);
    lengthen(&world, 10_000_000);
    give(&world);
    world.start("r1");
    world.start_registrar();
    let invite = world.invite(&[]);
    let began = Instant::now();
    world.joins("alice", &invite);
    let (len, took) = (size(&world.path("alice/network.list")), began.elapsed());
    eprintln!("a list of {len} bytes came in {} ms", took.as_millis());
    assert!(len > 10_000_000 && took.as_secs() < 30);
    let list = fs::read(world.path("authority/network.list")).unwrap();
    assert!(fs::read(world.path("alice/network.list")).unwrap() == list);
    world.start("alice");
    world.until(|world| world.pings("alice", "r1"));
}
