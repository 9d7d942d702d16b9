//! A node and its secrets through all steps of a change, with a restart at each.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use shoal_crypto::{Identity, SigningKey};
use shoal_directory::{CircuitRole, List, ListContent, Member, SecretChange};
use shoal_wire::Address;

use super::*;
use crate::config::NodeConfig;
use crate::membership::authority::StartupList;
use crate::membership::chains::ChainFile;
use crate::membership::seen::ListMarkFile;
use crate::membership::watch::{StateFiles, WatcherEvent};
use crate::worker::wake::{Waker, WakingInbox, channel};

const NOW: Time = Time::from_millis(1);

fn signer() -> SigningKey {
    SigningKey::from_seed([42; 32])
}

fn secret(n: u8) -> NetworkSecret {
    NetworkSecret([n; 32])
}

fn names(current: u8, change: SecretChange) -> SecretNames {
    SecretNames { current: secret(current).name(), change }
}

fn next(n: u8) -> SecretChange {
    SecretChange::Next(secret(n).name())
}

fn previous(n: u8, until: u64) -> SecretChange {
    SecretChange::Previous(secret(n).name(), until)
}

fn list(version: u64, secrets: Option<SecretNames>) -> List {
    let member = Member {
        version: 1,
        name: "r1".into(),
        key: Identity::from_seed([1; 32]).public(),
        address: Address::new(1, 0),
        second: None,
        expires_unix_s: unix_s() + 50_000,
        endpoint: None,
        groups: Vec::new(),
        security_groups: Vec::new(),
        prefixes: Vec::new(),
        interface: true,
        ipv4: None,
        cover: None,
        carrier: CircuitRole::default(),
        unknown: Vec::new(),
    };
    let members = vec![member.sign(&signer()).unwrap()];
    let content = ListContent {
        version,
        issued_unix_s: unix_s(),
        secrets,
        members,
        ..ListContent::default()
    };
    content.sign(&signer()).unwrap()
}

/// A node that starts with this list, its own secret 1, and the folder's files.
fn start(folder: &Path, list: List) -> (AuthorityState, WakingInbox<WatcherEvent>) {
    let public = signer().public();
    let text = format!(
        "[node]\nname = \"r1\"\naddress = \"1.0\"\nkey_file = \"key\"\n\
         network_secret_file = \"network.key\"\n[authority]\nkey = \"{public}\"\n\
         list_file = \"network.list\"\n"
    );
    let config = NodeConfig::parse(&folder.join("node.toml"), &text).unwrap();
    let files =
        SecretFiles { kept: folder.join("network.secrets"), next: folder.join("network.key.next") };
    let reading = StartupList {
        key: public,
        file: folder.join("network.list"),
        stamp: None,
        list,
        kept: StateFiles {
            seen: ListMarkFile::new(folder.join("seen"), public),
            file: folder.join("kept"),
            chains: ChainFile::new(folder.join("chains")),
            secrets: files,
        },
        mark: None,
        from_neighbour: false,
        fault: None,
        steps: Vec::new(),
        steps_fault: None,
        secrets: known::read_kept(&folder.join("network.secrets"), None),
    };
    let keys = (Identity::from_seed([1; 32]).public(), secret(1));
    let mut authority = AuthorityState::new(&config, keys, reading, NOW).unwrap();
    let (outlet, inbox) = channel(4, &Waker::new().unwrap());
    authority.watch(outlet).unwrap();
    (authority, inbox)
}

/// The secrets in use: the first byte of each.
fn counts(authority: &AuthorityState) -> (u8, Option<u8>) {
    let secrets = authority.secrets();
    (secrets.first.0[0], secrets.other.map(|other| other.0[0]))
}

/// Handles news until `done`.
#[track_caller]
fn until(
    node: &mut (AuthorityState, WakingInbox<WatcherEvent>),
    done: impl Fn(&AuthorityState) -> bool,
) {
    let began = std::time::Instant::now();
    while !done(&node.0) {
        while let Some(news) = node.1.take() {
            node.0.take(NOW, news);
        }
        assert!(began.elapsed() < Duration::from_secs(10), "the expected state never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn offer(folder: &Path, n: u8) {
    let file = folder.join("network.key.next");
    let _ = std::fs::remove_file(&file);
    keys::create(&file, &keys::network_secret_text(&secret(n))).unwrap();
}

fn kept(folder: &Path) -> Vec<u8> {
    let file = folder.join("network.secrets");
    if !file.exists() {
        return Vec::new();
    }
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    keys::load_network_secrets(&file, None).unwrap().iter().map(|kept| kept.0[0]).collect()
}

#[test]
fn every_step_holds_after_a_start_anew() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let fixed = start(folder, list(1, None));
    assert_eq!((counts(&fixed.0), fixed.0.secret_status(NOW)), ((1, None), None));
    drop(fixed);
    // Announced: the operator's file is read, stored, and still known after a restart.
    let announced = || list(2, Some(names(1, next(2))));
    let mut node = start(folder, announced());
    assert_eq!(counts(&node.0), (1, None));
    assert!(node.0.secret_warnings()[0].contains("next secret was announced"));
    offer(folder, 2);
    until(&mut node, |node| counts(node) == (1, Some(2)));
    assert_eq!(kept(folder), [2]);
    assert!(node.0.secret_warnings().is_empty());
    drop(node);
    std::fs::remove_file(folder.join("network.key.next")).unwrap();
    let node = start(folder, announced());
    assert_eq!(counts(&node.0), (1, Some(2)));
    let status = node.0.secret_status(NOW).unwrap();
    assert_eq!((status.state.as_str(), status.has_newest), ("announced", true));
    drop(node);
    // Switched, with a restart before and after. The old secret ends by itself.
    let until_s = unix_s() + 1_000;
    let switched = |until| list(3, Some(names(2, previous(1, until))));
    let mut node = start(folder, announced());
    node.0.take(NOW, WatcherEvent::File(Ok(switched(until_s))));
    assert_eq!(counts(&node.0), (2, Some(1)));
    assert_eq!(node.0.secret_status(NOW).unwrap().old_until_unix_s, until_s);
    drop(node);
    assert_eq!(counts(&start(folder, switched(until_s)).0), (2, Some(1)));
    assert_eq!(counts(&start(folder, switched(unix_s())).0), (2, None));
    // Settled. Then a second change, to a third secret.
    let mut node = start(folder, list(4, Some(names(2, SecretChange::Settled))));
    assert_eq!((counts(&node.0), kept(folder)), ((2, None), vec![2]));
    node.0.take(NOW, WatcherEvent::File(Ok(list(5, Some(names(2, next(3)))))));
    offer(folder, 3);
    until(&mut node, |node| counts(node) == (2, Some(3)));
    node.0.take(NOW, WatcherEvent::File(Ok(list(6, Some(names(3, SecretChange::Settled))))));
    assert_eq!(counts(&node.0), (3, None));
    let began = std::time::Instant::now();
    while kept(folder) != [3] {
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", kept(folder));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_was_taken_back_counts_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut node = start(folder, list(1, Some(names(1, next(2)))));
    offer(folder, 2);
    until(&mut node, |node| counts(node) == (1, Some(2)));
    node.0.take(NOW, WatcherEvent::File(Ok(list(2, Some(names(1, SecretChange::Settled))))));
    assert_eq!(counts(&node.0), (1, None));
    until(&mut node, |_| kept(folder).is_empty());
}

#[test]
fn a_secret_that_the_list_does_not_name_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    offer(folder, 9);
    let mut node = start(folder, list(1, Some(names(1, next(2)))));
    until(&mut node, |node| node.secrets.rotation.is_offered());
    assert_eq!(counts(&node.0), (1, None));
    assert!(!folder.join("network.secrets").exists());
    // The list that names the secret comes later than the file.
    node.0.take(NOW, WatcherEvent::File(Ok(list(2, Some(names(1, next(9)))))));
    until(&mut node, |node| counts(node) == (1, Some(9)));
    // Without the current secret the node continues with its old one, and warns.
    let node = start(tempfile::tempdir().unwrap().path(), list(3, Some(names(5, next(6)))));
    assert_eq!(counts(&node.0), (1, None));
    assert!(node.0.secret_warnings()[0].contains("does not have the new one"));
    // A member that was away knows only the old secret. It calls with that while others accept it.
    let away = list(4, Some(names(5, previous(1, unix_s() + 100))));
    let node = start(tempfile::tempdir().unwrap().path(), away);
    assert_eq!(counts(&node.0), (1, None));
}

#[test]
fn files_that_are_damaged_or_open_to_others_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let file = folder.join("network.secrets");
    keys::create(&file, &keys::network_secret_text(&secret(2))).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let announced = || list(1, Some(names(1, next(2))));
    let node = start(folder, announced());
    assert_eq!(counts(&node.0), (1, None));
    let said = node.0.secret_warnings().join("\n");
    assert!(said.contains("network.secrets") && said.contains("mode 0644"), "{said}");
    drop(node);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&file, "shoal-network-secret-1:AAAA\n").unwrap();
    let mut node = start(folder, announced());
    let said = node.0.secret_warnings().join("\n");
    assert!(said.contains("network.secrets: expected one line"), "{said}");
    // The next secret that comes replaces the damaged file.
    std::fs::write(folder.join("network.key.next"), "x").unwrap();
    until(&mut node, |node| {
        node.secret_warnings().iter().any(|said| said.contains("network.key.next"))
    });
    offer(folder, 2);
    until(&mut node, |node| counts(node) == (1, Some(2)));
    assert_eq!(kept(folder), [2]);
    assert!(node.0.secret_warnings().is_empty(), "both faults are over");
}

#[test]
fn an_offer_that_is_gone_again_is_no_fault() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let file = folder.join("network.key.next");
    std::fs::write(&file, "x").unwrap();
    let mut node = start(folder, list(1, Some(names(1, SecretChange::Settled))));
    until(&mut node, |node| !node.secret_warnings().is_empty());
    std::fs::remove_file(&file).unwrap();
    until(&mut node, |node| node.secret_warnings().is_empty());
    offer(folder, 2);
    until(&mut node, |node| node.secrets.rotation.is_offered());
    std::fs::remove_file(&file).unwrap();
    until(&mut node, |node| !node.secrets.rotation.is_offered());
    node.0.take(NOW, WatcherEvent::File(Ok(list(2, Some(names(1, next(2)))))));
    assert_eq!((counts(&node.0), node.0.secrets.offered_fault.as_ref()), ((1, None), None));
}

#[test]
fn what_could_not_be_written_counts_and_is_written_later() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // Nothing can be written, since a folder has the name of the new file.
    let barred = folder.join("network.secrets.new");
    std::fs::create_dir(&barred).unwrap();
    let mut node = start(folder, list(1, Some(names(1, next(2)))));
    offer(folder, 2);
    until(&mut node, |node| {
        counts(node) == (1, Some(2)) && node.secrets.rotation.to_keep().is_some()
    });
    let faults = node.0.watcher.as_ref().unwrap().faults();
    assert!(faults.iter().any(|why| why.contains("network.secrets: can't be written")));
    std::fs::remove_dir(&barred).unwrap();
    let began = std::time::Instant::now();
    while kept(folder) != [2] {
        // Each check of the worker does this.
        node.0.look_at_secrets(NOW);
        until(&mut node, |_| true);
        assert!(began.elapsed() < Duration::from_secs(10), "the write is not tried again");
        std::thread::sleep(Duration::from_millis(20));
    }
    until(&mut node, |node| node.watcher.as_ref().unwrap().faults().is_empty());
}

#[test]
fn a_program_gets_the_newest_secret_for_another_that_it_knows() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let proof = |n| api::secret_proof(&secret(n));
    let node = start(folder, list(1, None));
    assert!(node.0.secret_for(&proof(1)).is_err(), "the list names none");
    drop(node);
    let mut node = start(folder, list(2, Some(names(1, next(2)))));
    assert!(node.0.secret_for(&proof(1)).is_err(), "the newest secret is not known yet");
    offer(folder, 2);
    until(&mut node, |node| counts(node) == (1, Some(2)));
    assert_eq!(node.0.secret_for(&proof(1)).unwrap().name(), secret(2).name());
    for wrong in [proof(3), String::new(), "x".repeat(1_000)] {
        assert!(node.0.secret_for(&wrong).is_err());
    }
}
