//! Joining with the real programs: a network of one command, machines with invites, wrong invites,
//! a killed registrar and a full disk.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use shoal_e2e::joining::JoiningNetwork;
use shoal_e2e::{shoal, text};

#[test]
fn machines_join_by_an_invite_and_leave() {
    let mut world = JoiningNetwork::new();
    let invite = world.invite(&["--uses", "2"]);
    for name in ["alice", "carol"] {
        world.joins(name, &invite);
        world.start(name);
    }
    world.until(|world| world.pings("alice", "carol") && world.pings("carol", "r1"));
    assert_eq!(world.members(), ["alice", "carol"]);
    // A repeated command changes nothing. Another machine comes too late.
    let (code, said) = world.up("alice", &invite, &[]);
    assert!(code == Some(0) && said.contains("member already"), "{said}");
    let (code, said) = world.up("dave", &invite, &[]);
    assert!(code == Some(5) && said.contains("used up"), "{said}");
    // The registrar is killed, and continues with the same members.
    world.end("registrar", "-KILL");
    world.start_registrar();
    assert_eq!(world.members(), ["alice", "carol"]);
    // Files of circuits name other hosts and relays, and the next secret is a secret.
    for name in ["circuits.guard", "circuits.met", "network.key.next"] {
        std::fs::write(world.path("carol").join(name), "").unwrap();
    }
    let output = shoal(&["leave", "--dir"]).arg(world.path("carol")).output().unwrap();
    assert!(output.status.success(), "{:?}", text(&output));
    assert_eq!(world.members(), ["alice"]);
    let written = ["node.toml", "node.key", "circuits.guard", "circuits.met", "network.key.next"];
    for name in written {
        assert!(!world.path("carol").join(name).exists(), "{name} stayed");
    }
    world.until(|world| !world.pings("carol", "r1") && !world.pings("alice", "carol"));
    assert!(world.pings("alice", "r1"));
}

#[test]
fn newcomers_have_direct_links_on_demand_unless_they_decline() {
    let world = JoiningNetwork::new();
    let invite = world.invite(&["--uses", "2"]);
    let joined = |name: &str, words: &[&str]| {
        let (code, said) = world.up(name, &invite, words);
        assert_eq!(code, Some(0), "{said}");
        let file = fs::read_to_string(world.path(name).join("node.toml")).unwrap();
        let section = file.split("[direct]\n").nth(1).unwrap_or("").to_owned();
        (said, section)
    };
    let (said, section) = joined("alice", &[]);
    assert!(said.contains("hosts that speak with this one learn its IP address"), "{said}");
    assert!(section.starts_with("mode = \"auto\"\n"), "{section}");
    let (said, section) = joined("carol", &["--no-direct"]);
    assert!(!said.contains("direct links"), "{said}");
    assert!(section.starts_with("mode = \"off\"\n"), "{section}");
    let router = fs::read_to_string(world.path("r1").join("node.toml")).unwrap();
    assert!(!router.contains("[direct]"), "{router}");
}

#[test]
fn wrong_invites_get_a_reason_and_spend_nothing() {
    let world = JoiningNetwork::new();
    let invite = world.invite(&[]);
    let says = |invite: &str, code: i32, hint: &str| {
        let (found, said) = world.up("alice", invite, &[]);
        assert!(found == Some(code) && said.contains(hint), "{found:?}: {said}");
        assert!(!world.path("alice").join("node.toml").exists());
    };
    let mut mistyped = invite.clone().into_bytes();
    mistyped[40] = if mistyped[40] == b'A' { b'B' } else { b'A' };
    says(&String::from_utf8(mistyped).unwrap(), 2, "copy the invite again");
    says(&invite[..100], 2, "part of it is missing");
    says("hello", 2, "no invite");
    // Withdrawn, and expired.
    let ids = || -> BTreeSet<String> {
        let listed = world.ask(&["invite", "list"]).unwrap();
        let invites = listed["invites"].as_array().unwrap();
        invites.iter().map(|invite| invite["id"].as_str().unwrap().to_owned()).collect()
    };
    let before = ids();
    let gone = world.invite(&[]);
    let id = ids().difference(&before).next().unwrap().clone();
    assert!(world.ask(&["invite", "withdraw", ""]).is_none());
    world.ask(&["invite", "withdraw", &id]).unwrap();
    says(&gone, 5, "withdrawn");
    let short = world.invite(&["--expires", "1s"]);
    std::thread::sleep(Duration::from_millis(2_100));
    says(&short, 5, "expired");
    // A name that another member has.
    let two = world.invite(&["--uses", "3"]);
    world.joins("bob", &two);
    let mut other = shoal(&["up", &two, "--no-start", "--no-interface", "--name", "bob", "--dir"]);
    let output = other.arg(world.path("other")).output().unwrap();
    let said = text(&output).1;
    assert!(
        output.status.code() == Some(5) && said.contains("choose another with --name"),
        "{said}"
    );
    // The refused machine joins with the same key under another name.
    let key = fs::read(world.path("other/.joining/node.key")).unwrap();
    let (code, said) = world.up("other", &two, &[]);
    assert_eq!((code, fs::read(world.path("other/node.key")).unwrap()), (Some(0), key), "{said}");
    // A second network's invite does not move a machine.
    let foreign = JoiningNetwork::new();
    let (code, said) = world.up("bob", &foreign.invite(&[]), &[]);
    assert!(code == Some(4) && said.contains("another network already"), "{said}");
}

#[test]
fn a_newcomer_waits_for_approval_and_both_ends_show_the_same_words() {
    let mut world = JoiningNetwork::new();
    let invite = world.invite(&["--approve"]);
    let dir = world.path("erin");
    let words = ["up", &invite, "--no-start", "--no-interface", "--name", "erin", "--dir"];
    world.spawn("erin", &[&words[..], &[dir.to_str().unwrap()]].concat());
    let waiting = |world: &JoiningNetwork| {
        let waiting = world.ask(&["invite", "approve"])?;
        let first = waiting["waiting"].as_array()?.first()?.clone();
        Some((first["name"].as_str()?.to_owned(), first["words"].as_str()?.to_owned()))
    };
    world.until(|world| waiting(world).is_some());
    let (name, six) = waiting(&world).unwrap();
    assert_eq!(name, "erin");
    world.until(|world| fs::read_to_string(world.path("erin.log")).unwrap().contains(&six));
    let wrong = six.split(' ').rev().collect::<Vec<_>>();
    assert!(world.ask(&[&["invite", "approve"], &wrong[..]].concat()).is_none());
    let right = six.split(' ').collect::<Vec<_>>();
    assert!(world.ask(&[&["invite", "approve"], &right[..]].concat()).is_some());
    world.until(|world| world.path("erin/node.toml").exists());
    assert_eq!(world.members(), ["erin"]);
}

#[test]
fn a_registrar_that_can_write_no_more_grants_nothing_and_says_so() {
    let mut world = JoiningNetwork::new();
    let invite = world.invite(&[]);
    world.end("registrar", "-TERM");
    // Files of this process may not grow beyond the ledger's current length. The kernel also sends
    // a signal, which ends a process that does not handle it.
    let ledger = world.path("r1/registrar/ledger");
    let len = fs::metadata(&ledger).unwrap().len();
    let mut command = std::process::Command::new("prlimit");
    command.args([&format!("--fsize={len}"), "--", shoal_e2e::program(), "registrar", "run", "-c"]);
    command.arg(world.registrar()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().unwrap();
    world.running.push(("registrar".into(), child));
    world.until(|world| world.ask(&["registrar", "status"]).is_some());
    let (code, said) = world.up("alice", &invite, &[]);
    assert!(
        code == Some(5) && said.contains("`shoal registrar status` say why"),
        "{said}{}",
        world.logs()
    );
    assert!(world.members().is_empty() && fs::metadata(&ledger).unwrap().len() == len);
    // With room again, the same invite is accepted, for the same key.
    world.end("registrar", "-TERM");
    world.start_registrar();
    world.joins("alice", &invite);
    assert_eq!(world.members(), ["alice"]);
}

/// True if the file exists and only its owner can read it.
fn is_private(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(file).is_ok_and(|meta| meta.permissions().mode() & 0o077 == 0)
}

#[test]
fn secrets_are_their_owners_and_the_registrar_has_neither_authority_nor_node() {
    let world = JoiningNetwork::new();
    world.joins("alice", &world.invite(&[]));
    for file in ["r1/node.key", "r1/network.key", "alice/node.key", "alice/door.key"] {
        assert!(is_private(&world.path(file)), "{file}");
    }
    let registrar = world.path("r1/registrar");
    for file in ["registrar.key", "door.key", "network.key", "ledger", "registrar.toml"] {
        assert!(is_private(&registrar.join(file)), "{file}");
    }
    assert!(!registrar.join("authority.key").exists() && !registrar.join("node.key").exists());
    let status = world.ask(&["registrar", "status"]).unwrap();
    let warned = |status: &Value| status["registrar"]["warnings"].to_string().contains("move the");
    assert!(warned(&status), "{status}");
    fs::rename(world.path("authority"), world.path("medium")).unwrap();
    assert!(!warned(&world.ask(&["registrar", "status"]).unwrap()));
}

/// Every user of the machine can list processes with their arguments.
#[test]
fn an_invite_among_the_arguments_is_hidden_while_the_command_waits() {
    let mut world = JoiningNetwork::new();
    let invite = world.invite(&["--approve"]);
    let dir = world.path("alice").to_str().unwrap().to_owned();
    world.spawn("alice", &["up", &invite, "--no-start", "--no-interface", "--dir", &dir]);
    let said = |world: &JoiningNetwork| fs::read_to_string(world.path("alice.log")).unwrap();
    world.until(|world| said(world).contains("six words"));
    let pid = world.running.last().unwrap().1.id();
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    assert!(!line.contains("SHOAL:") && !line.contains(&invite[20..40]), "{line}");
    assert!(line.contains(" up xxx") && line.contains("--no-start --no-interface"), "{line}");
}

#[test]
fn a_registrar_that_does_not_answer_is_named_with_its_port_within_seconds() {
    let mut world = JoiningNetwork::new();
    let invite = world.invite(&[]);
    world.end("registrar", "-KILL");
    let mut up = std::process::Command::new("timeout");
    up.args(["6", shoal_e2e::program(), "up", &invite, "--no-start", "--no-interface", "--dir"]);
    let output = up.arg(world.path("alice")).stdin(Stdio::null()).output().unwrap();
    let said = text(&output).1;
    assert!(said.contains("no answer yet from the registrar at 127."), "{said}");
    assert!(said.contains("firewall"), "{said}");
}
