//! What lists and files say of circuits.

use std::fs::Permissions;
use std::path::Path;
use std::time::{Duration, Instant};

use super::*;
use shoal_crypto::Identity;

fn host(name: &str, address: &str, more: &str) -> String {
    let seed = name.bytes().fold(0u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    let key = Identity::from_seed([seed; 32]).public();
    format!("[[host]]\nname = {name:?}\naddress = {address:?}\nkey = \"{key}\"\n{more}\n")
}

fn hosts(more: &str) -> Hosts {
    let all = host("r1", "1.0", "relay = true\nfamily = \"acme\"\ncapacity = 50")
        + &host("r2", "2.0", "")
        + &host("alice", "1.1", "")
        + &host("bob", "1.2", "")
        + &host("carol", "2.1", "");
    Hosts::parse(Path::new("hosts.toml"), &(all + more)).unwrap()
}

fn config(folder: &Path, name: &str, address: &str, more: &str) -> Config {
    let text = format!(
        "[node]\nname = {name:?}\naddress = {address:?}\nkey_file = \"key\"\n\
         network_secret_file = \"secret\"\n[circuits]\n{more}\n"
    );
    Config::parse(&folder.join("node.toml"), &text).unwrap()
}

#[test]
fn paths_are_chosen_by_what_the_list_says_and_lead_to_relays_and_hosts() {
    let hosts = hosts("");
    let relays = relays(&hosts);
    let (r1, r2) = (Address::new(1, 0), Address::new(2, 0));
    assert_eq!((relays.len(), relays.relays().collect::<Vec<_>>()), (2, vec![r1]));
    let router = Router { relay: true, family: Some("acme".into()), capacity: Some(50), hosts: 2 };
    let other = Router { hosts: 1, ..Router::default() };
    assert_eq!(relays, Relays::new([(r1, router), (r2, other)]));
    let nodes = nodes(&hosts);
    assert_eq!((nodes.len(), nodes.contains_key(&r2)), (4, false));
}

#[test]
fn the_stricter_of_the_list_and_the_hosts_own_file_counts() {
    let folder = tempfile::tempdir().unwrap();
    let names = |more: &str, rules: &str| {
        let config = config(folder.path(), "alice", "1.1", more);
        hidden(&config, &hosts(rules), None, Time::ZERO).into_iter().collect::<Vec<_>>()
    };
    let rule = "[[circuits]]\nmembers = [\"carol\", \"alice\"]\nmode = \"require\"\n";
    let none: [&str; 0] = [];
    assert_eq!(names("", ""), none);
    assert_eq!(names("", rule), ["carol"], "the file can't be laxer");
    assert_eq!(names("policy = \"require\"", ""), ["bob", "carol"], "neither itself nor routers");
    assert_eq!(names("policy = \"require\"\npeers = [\"bob\"]", rule), ["bob", "carol"]);
    let router = config(folder.path(), "r1", "1.0", "policy = \"require\"");
    assert!(hidden(&router, &hosts(rule), None, Time::ZERO).is_empty());
}

#[test]
fn what_changes_nothing_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let said = |name: &str, address: &str, more: &str| {
        without_effect(&config(folder.path(), name, address, more))
    };
    let peers = "peers = [\"bob\"]";
    let require = "policy = \"require\"";
    assert!(said("alice", "1.1", peers).is_some_and(|text| text.contains("write policy")));
    assert!(said("r1", "1.0", require).is_some_and(|text| text.contains("is a router")));
    assert_eq!(said("alice", "1.1", &format!("{require}\n{peers}")), None);
    assert_eq!(said("alice", "1.1", ""), None);
}

#[test]
fn the_guard_outlasts_the_node_in_a_file_that_others_can_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), "alice", "1.1", "guard_file = \"guard\"");
    let file = folder.path().join("guard");
    let read = || {
        let mut warnings = Vec::new();
        let kept = Guard::read(&config, &hosts(""), &mut warnings);
        (kept.map_or_else(|e| e.to_string(), |kept| kept.text()), warnings)
    };
    assert_eq!(read(), (String::new(), Vec::new()), "none yet");
    let guard = Guard::start(file.clone()).unwrap();
    let text = "guard 2.0 1900000000\n";
    assert_eq!(guard.keep(text.into()), None);
    let began = Instant::now();
    while !file.exists() {
        assert!(began.elapsed() < Duration::from_secs(10), "not written");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(read(), (text.into(), Vec::new()));
    let write = |text: &str, mode| {
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let (kept, warnings) = read();
        assert!(warnings.len() < 2, "{warnings:?}");
        (kept, warnings.concat())
    };
    assert_eq!(write("", 0o600), (String::new(), String::new()));
    for (bad, mode, why) in [
        ("guard 2.0", 0o600, "line 1: expected guard"),
        (text, 0o622, "mode 0622 lets others choose the guard: this host chooses"),
        ("guard 7.0 1900000000\n", 0o600, "none of its relays: of another network?"),
    ] {
        let (kept, said) = write(bad, mode);
        assert!(kept.is_empty() && said.contains(why), "{kept}: {said}");
    }
    let (kept, said) = write(text, 0o644);
    assert!(kept == text && said.contains("mode 0644 lets others read"), "{said}");
    // Nothing else is replaced, such as a key.
    let (said, _) = write("shoal-node-key:AAAA\n", 0o600);
    assert!(said.contains("guard: is no guard file: remove it"), "{said}");
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let (kept, warnings) = read();
    assert!(kept.is_empty() && warnings[0].contains("is a folder"), "{warnings:?}");
    let nowhere = Guard::start(folder.path().join("none/guard")).unwrap();
    nowhere.keep(text.into());
    while nowhere.fault.lock().unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_secs(10), "no fault");
        std::thread::sleep(Duration::from_millis(5));
    }
}
