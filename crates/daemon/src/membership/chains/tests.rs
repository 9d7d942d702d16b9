//! Registrars' supplements, from files and from programs.

use std::path::Path;

use shoal_crypto::{Identity, SigningKey};
use shoal_directory::{
    CircuitRole, HostRange, List, ListContent, Mandate, MandateRights, Member, Step, StepEntry,
};
use shoal_wire::Address;

use super::*;
use crate::config::NodeConfig;
use crate::membership::authority::StartupList;
use crate::membership::secrets::SecretFiles;
use crate::membership::seen::ListMarkFile;
use crate::membership::watch::{StateFiles, WatcherEvent};
use crate::worker::wake::{Waker, WakingInbox, channel};

fn signer() -> SigningKey {
    SigningKey::from_seed([42; 32])
}

fn registrar() -> Identity {
    Identity::from_seed([7; 32])
}

fn mandate() -> Mandate {
    Mandate {
        name: "desk".into(),
        serial: 1,
        key: registrar().public(),
        groups: Vec::new(),
        hosts: vec![HostRange { router: 1, first: 100, last: 199 }],
        ipv4: None,
        most: 50,
        longest_s: 100_000,
        until_unix_s: u64::MAX,
        rights: MandateRights::default(),
    }
}

fn member(host: u16, key: u8) -> Member {
    Member {
        version: 1,
        name: format!("h{host}"),
        key: Identity::from_seed([key; 32]).public(),
        address: Address::new(1, host),
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
    }
}

fn list(version: u64, mandates: Vec<Mandate>) -> List {
    let router = member(0, 1).sign(&signer()).unwrap();
    let (members, issued_unix_s) = (vec![router], unix_s());
    let content =
        ListContent { version, issued_unix_s, members, mandates, ..ListContent::default() };
    content.sign(&signer()).unwrap()
}

fn sign(number: u64, previous: [u8; 32], member: Member) -> Supplement {
    let entries = vec![StepEntry::Member(Box::new(member))];
    let step =
        Step { mandate: mandate().id(), number, previous, issued_unix_s: unix_s() - 100, entries };
    step.sign(&registrar()).unwrap()
}

fn chain(len: u16) -> Vec<Supplement> {
    let mut all: Vec<Supplement> = Vec::new();
    for n in 0..len {
        let previous = all.last().map_or(mandate().id().0, Supplement::digest);
        all.push(sign(u64::from(n) + 1, previous, member(100 + n, 100 + n as u8)));
    }
    all
}

/// A node at `address` that has list 1 and the supplements of the file.
fn authority(folder: &Path, address: &str, key: u8) -> AuthorityState {
    let public = signer().public();
    let host = address.split_once('.').unwrap().1;
    let text = format!(
        "[node]\nname = \"h{host}\"\naddress = {address:?}\nkey_file = \"key\"\n\
         network_secret_file = \"secret\"\n[authority]\nkey = \"{public}\"\n\
         list_file = \"network.list\"\n"
    );
    let config = NodeConfig::parse(&folder.join("node.toml"), &text).unwrap();
    let chains = ChainFile::new(folder.join("network.chains"));
    let (steps, steps_fault) = chains.read();
    let reading = StartupList {
        key: public,
        file: folder.join("network.list"),
        stamp: None,
        list: list(1, vec![mandate()]),
        kept: StateFiles {
            seen: ListMarkFile::new(folder.join("seen"), public),
            file: folder.join("k"),
            chains,
            secrets: SecretFiles { kept: folder.join("secrets"), next: folder.join("next") },
        },
        mark: None,
        from_neighbour: false,
        fault: None,
        steps,
        steps_fault,
        secrets: (Vec::new(), None),
    };
    let key = Identity::from_seed([key; 32]).public();
    let keys = (key, shoal_crypto::NetworkSecret([1; 32]));
    AuthorityState::new(&config, keys, reading, Time::from_millis(1)).unwrap()
}

fn watched(folder: &Path) -> (AuthorityState, WakingInbox<WatcherEvent>) {
    let mut authority = authority(folder, "1.0", 1);
    let (outlet, inbox) = channel(4, &Waker::new().unwrap());
    authority.watch(outlet).unwrap();
    (authority, inbox)
}

fn wait<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let began = std::time::Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "nothing came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The answer to a program that hands over these steps.
fn submit(
    (authority, inbox): &mut (AuthorityState, WakingInbox<WatcherEvent>),
    now: Time,
    steps: &[Supplement],
) -> ControlReply {
    let (pending, replies) = PendingReply::of_test();
    authority.submit(pending, steps.iter().map(|step| step.bytes().to_vec()).collect());
    let body = wait(|| {
        if let Some(news) = inbox.take() {
            authority.take(now, news);
        }
        replies.try_recv().ok()
    });
    match body {
        crate::control::api::NodeFrameBody::Reply { reply, .. } => reply,
        other => panic!("{other:?}"),
    }
}

fn message(reply: ControlReply) -> String {
    match reply {
        ControlReply::Error(error) => error.message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_newcomers_name_in_other_capitals_leads_to_the_lists_member() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = watched(folder.path());
    let now = Time::from_millis(2_000);
    // The router of the list is called h0.
    let thief = Member { name: "H0".into(), ..member(100, 100) };
    let step = sign(1, mandate().id().0, thief);
    assert_eq!(submit(&mut node, now, &[step]), ControlReply::Supplements { steps: 1 });
    let hosts = node.0.hosts(now);
    assert_eq!(hosts.len(), 2);
    for name in ["h0", "H0", "H0."] {
        assert_eq!(hosts.holder(name).map(|host| host.address), Some(Address::new(1, 0)), "{name}");
    }
    assert_eq!(hosts.nameless().len(), 1);
}

#[test]
fn what_a_program_hands_over_counts_by_signature_and_mandate_and_outlasts_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = watched(folder.path());
    let (steps, now) = (chain(5), Time::from_millis(2_000));
    assert_eq!(submit(&mut node, now, &steps[..2]), ControlReply::Supplements { steps: 2 });
    assert!(node.0.hosts(now).by_name("h101").is_some());
    assert_eq!(
        submit(&mut node, now, &steps[1..2]),
        ControlReply::Supplements { steps: 2 },
        "again"
    );
    // The first change of members takes effect at once, later ones at most twice a second.
    assert_eq!(submit(&mut node, now, &steps[2..3]), ControlReply::Supplements { steps: 3 });
    assert!(!node.0.is_apply_due(now) && !node.0.is_apply_due(now + Duration::from_millis(499)));
    assert!(node.0.is_apply_due(now + APPLY_EVERY) && !node.0.is_apply_due(now + APPLY_EVERY));

    let gap = message(submit(&mut node, now, &steps[4..]));
    assert!(gap.contains("steps from 4 on are missing"), "{gap}");
    let outside = sign(4, steps[2].digest(), member(99, 9));
    let outside = message(submit(&mut node, now, &[outside]));
    assert!(outside.contains("address is not one of the mandate's hosts"), "{outside}");
    let stranger = Step { entries: steps[3].step().entries.clone(), ..steps[3].step().clone() };
    let stranger = stranger.sign(&Identity::from_seed([8; 32])).unwrap();
    let stranger = message(submit(&mut node, now, &[stranger]));
    assert!(stranger.contains("not signed by the mandate's registrar"), "{stranger}");
    assert!(message(submit(&mut node, now, &[])).contains("expected 1 to 64"));
    let status = node.0.status(now);
    let mandate = &status.mandates[0];
    assert_eq!((mandate.steps, mandate.members, mandate.frozen_at), (3, 3, None));

    // Steps that arrive one by one are appended: the file has them all.
    let file = ChainFile::new(folder.path().join("network.chains"));
    node.0.look(now);
    wait(|| (file.read().0.len() == 3).then_some(()));
    let first = std::fs::metadata(folder.path().join("network.chains")).unwrap();
    assert_eq!(submit(&mut node, now, &steps[3..]), ControlReply::Supplements { steps: 5 });
    node.0.look(now);
    wait(|| (file.read().0.len() == 5).then_some(()));
    use std::os::unix::fs::MetadataExt;
    let second = std::fs::metadata(folder.path().join("network.chains")).unwrap();
    assert_eq!((first.ino(), second.mode() & 0o777), (second.ino(), 0o600));
    drop(node);
    let again = authority(folder.path(), "1.103", 103);
    assert!(again.has_me() && again.is_member(now), "a member by a mandate starts by the file");
    assert_eq!(again.supplements.fault, None);
    assert!(again.supplements.saved.is_some());
}

#[test]
fn a_fork_is_kept_over_restarts_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = watched(folder.path());
    let (steps, now) = (chain(4), Time::from_millis(2_000));
    submit(&mut node, now, &steps);
    node.0.look(now);
    let file = ChainFile::new(folder.path().join("network.chains"));
    wait(|| (file.read().0.len() == 4).then_some(()));
    let other = sign(3, steps[1].digest(), member(150, 150));
    assert_eq!(submit(&mut node, now, &[other]), ControlReply::Supplements { steps: 2 });
    assert_eq!(node.0.status(now).mandates[0].frozen_at, Some(3));
    let said = node.0.warnings(now);
    assert!(said.iter().any(|w| w.contains("two different supplements with the number 3")));
    let frozen = message(submit(&mut node, now, &steps[2..3]));
    assert!(frozen.contains("signed two different steps with the number 3"), "{frozen}");
    node.0.look(now);
    wait(|| (file.read().0.len() == 4 && file.read().0[2] != file.read().0[3]).then_some(()));
    wait(|| {
        let again = authority(folder.path(), "1.0", 1);
        (again.status(now).mandates[0].frozen_at == Some(3)).then_some(())
    });
    drop(node);
}

#[test]
fn a_damaged_file_counts_as_far_as_it_is_whole_and_is_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("network.chains");
    let (file, steps) = (ChainFile::new(path.clone()), chain(3));
    let whole = chain_file(&steps);
    assert_eq!(file.read(), (Vec::new(), None));
    let len = |n: usize| 4 + steps[..n].iter().map(|s| 2 + s.bytes().len()).sum::<usize>();
    for cut in (4..whole.len()).step_by(37).chain([len(1), len(2)]) {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let (read, fault) = file.read();
        let complete = (0..=3).rev().find(|n| len(*n) <= cut).unwrap();
        assert_eq!(read.len(), complete, "{cut}");
        let is_even = len(complete) == cut;
        assert_eq!(fault.is_none(), is_even, "{cut}: {fault:?}");
        let node = authority(folder.path(), "1.0", 1);
        assert_eq!(node.status(Time::ZERO).mandates[0].steps, complete as u64);
        assert_eq!(node.supplements.saved.is_some(), is_even, "else it is written anew");
    }
    let mut damaged = whole.clone();
    damaged[len(2) + 100] ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    let node = authority(folder.path(), "1.0", 1);
    let said = node.warnings(Time::ZERO).join(" ");
    assert!(said.contains("do not count from some place"), "{said}");
    std::fs::write(&path, b"SHL2 and more").unwrap();
    let (read, fault) = file.read();
    assert!(read.is_empty() && fault.unwrap().contains("is something else"));
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(authority(folder.path(), "1.0", 1).status(Time::ZERO).mandates[0].steps, 3);
    // Another mandate's steps are no fault, and the next write removes them.
    let mut node = watched(folder.path());
    node.0.take(Time::ZERO, WatcherEvent::File(Ok(list(2, Vec::new()))));
    node.0.look(Time::ZERO);
    wait(|| file.read().0.is_empty().then_some(()));
    assert!(
        node.0.hosts(Time::ZERO).by_name("h100").is_none(),
        "a mandate taken back ends its memberships"
    );
}

#[test]
fn a_long_file_of_junk_and_a_clock_that_is_off_by_a_year_are_named_and_change_nothing() {
    const YEAR_S: u64 = 365 * 86_400;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("network.chains");
    let mut junk = b"SHC1".to_vec();
    junk.resize(10 << 20, 7);
    std::fs::write(&path, &junk).unwrap();
    let node = authority(folder.path(), "1.0", 1);
    assert_eq!(node.status(Time::ZERO).mandates[0].steps, 0);
    assert!(node.warnings(Time::ZERO).join(" ").contains("until a neighbour sends them"));
    std::fs::write(&path, vec![7; (64 << 20) + 1]).unwrap();
    let (read, fault) = ChainFile::new(path.clone()).read();
    assert!(read.is_empty() && fault.unwrap().contains("can't be read"));
    std::fs::remove_file(&path).unwrap();

    let mut node = watched(folder.path());
    let now = Time::from_millis(2_000);
    let (issued_unix_s, number) = (unix_s() + YEAR_S, 1);
    let entries = vec![StepEntry::Member(Box::new(member(100, 100)))];
    let (mandate, previous) = (mandate().id(), mandate().id().0);
    let ahead = Step { mandate, number, previous, issued_unix_s, entries }.sign(&registrar());
    let ahead = message(submit(&mut node, now, &[ahead.unwrap()]));
    assert!(ahead.contains("in the future: is this machine's clock right?"), "{ahead}");
    assert_eq!(node.0.status(now).mandates[0].steps, 0);
    // Supplements that counted before a start count after it, though the clock is a year behind by
    // then.
    let mut directory = Directory::new(Duration::from_secs(1 << 30));
    directory.accept(now, unix_s(), list(1, vec![super::tests::mandate()])).unwrap();
    let steps: Vec<Vec<u8>> = chain(2).iter().map(|step| step.bytes().to_vec()).collect();
    assert_eq!(file::load(&mut directory, (now, unix_s() - YEAR_S), &steps), None);
    assert_eq!(directory.registers().next().unwrap().len(), 2);
}
