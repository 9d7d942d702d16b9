//! Circuit settings of lists and files.

use std::fs::Permissions;
use std::path::Path;
use std::time::{Duration, Instant};

use super::*;
use crate::membership::authority::{StartupList, unix_s};
use crate::membership::chains::ChainFile;
use crate::membership::secrets::SecretFiles;
use crate::membership::seen::ListMarkFile;
use crate::membership::watch::{self, WatcherEvent};
use shoal_crypto::{Identity, SigningKey};
use shoal_directory::{CircuitRole, List, ListContent, Member, NetworkPreset};

fn host(name: &str, address: &str, more: &str) -> String {
    let seed = name.bytes().fold(0u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    let key = Identity::from_seed([seed; 32]).public();
    format!("[[host]]\nname = {name:?}\naddress = {address:?}\nkey = \"{key}\"\n{more}\n")
}

fn hosts(more: &str) -> HostList {
    let all = host("r1", "1.0", "relay = true\nfamily = \"Acme\"\ncapacity = 50")
        + &host("r2", "2.0", "")
        + &host("alice", "1.1", "")
        + &host("bob", "1.2", "")
        + &host("carol", "2.1", "");
    HostList::parse(Path::new("hosts.toml"), &(all + more)).unwrap()
}

fn config(folder: &Path, name: &str, address: &str, more: &str) -> NodeConfig {
    let text = format!(
        "[node]\nname = {name:?}\naddress = {address:?}\nkey_file = \"key\"\n\
         network_secret_file = \"secret\"\n[circuits]\n{more}\n"
    );
    NodeConfig::parse(&folder.join("node.toml"), &text).unwrap()
}

#[test]
fn paths_are_chosen_by_what_the_list_says_and_lead_to_relays_and_hosts() {
    let hosts = hosts("");
    let routers = routers(&hosts);
    let (r1, r2) = (Address::new(1, 0), Address::new(2, 0));
    assert_eq!((routers.len(), routers.relays().collect::<Vec<_>>()), (2, vec![r1]));
    let family = Some("acme".into());
    let router = ListedRouter { relay: true, family, capacity: Some(50), hosts: 2, mix: None };
    let other = ListedRouter { hosts: 1, ..ListedRouter::default() };
    assert_eq!(routers, RouterList::new([(r1, router), (r2, other)]));
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
    let file = config(folder.path(), "alice", "1.1", "policy = \"require\"");
    let required = RequiredHosts::new(&file, &hosts(rule), None, Time::ZERO);
    let by = ["alice", "bob", "carol"].map(|name| required.by(name));
    assert_eq!(by, [None, Some(BoundBy::File), Some(BoundBy::List)]);
    let router = config(folder.path(), "r1", "1.0", "policy = \"require\"");
    assert!(hidden(&router, &hosts(rule), None, Time::ZERO).is_empty());
}

#[test]
fn the_preset_of_the_list_requires_circuits_with_every_host() {
    let folder = tempfile::tempdir().unwrap();
    let preset = NetworkPreset { level: Preset::Balanced, tier: None, router_tier: None };
    let hosts = hosts("").with_preset(Some(preset));
    let by = |more: &str| {
        let config = config(folder.path(), "alice", "1.1", more);
        let required = RequiredHosts::new(&config, &hosts, None, Time::ZERO);
        ["alice", "bob", "carol"].map(|name| required.by(name))
    };
    let all = [None, Some(BoundBy::List), Some(BoundBy::List)];
    assert_eq!((by(""), by("policy = \"off\"")), (all, all), "the file can't be laxer");
    assert_eq!(by("policy = \"require\"\npeers = [\"bob\"]"), all);
    let router = config(folder.path(), "r1", "1.0", "");
    assert!(hidden(&router, &hosts, None, Time::ZERO).is_empty());
}

#[test]
fn a_lower_preset_keeps_hosts_that_files_hide_and_notes_none_that_it_hid_itself() {
    let folder = tempfile::tempdir().unwrap();
    let file = config(folder.path(), "alice", "1.1", "policy = \"require\"\npeers = [\"bob\"]");
    let hosts = hosts("");
    let mut records = CircuitRecords {
        required: RequiredHosts::default(),
        unmixed: None,
        is_closed: false,
        preset: Preset::Hidden,
        open: RoundedCount::default(),
        met: MetHostsFile::default(),
        keepers: None,
    };
    let carol = hosts.by_name("carol");
    assert!(!records.is_noted(carol) && !records.is_noted(None), "a stale list has no hosts");
    // Required hosts were all gone, too, when the list was stale.
    let (gone, bob) = (Identity::from_seed([200; 32]).public(), hosts.by_name("bob").unwrap().key);
    records.met.note(gone, None, |_| true);
    let newer = RequiredHosts::new(&file, &hosts, None, Time::ZERO);
    assert_eq!(records.kept(&newer, &hosts), [bob, gone]);
    records.preset = Preset::Fast;
    assert!(records.is_noted(carol) && records.is_noted(None));
}

fn signer() -> SigningKey {
    SigningKey::from_seed([42; 32])
}

/// A list of r1 and of the hosts behind it. Each host keeps its key and address under a new name.
fn signed(version: u64, names: [&str; 3]) -> List {
    let all = ["r1"].into_iter().chain(names).enumerate();
    let members = all.map(|(at, name)| Member {
        version,
        name: name.into(),
        key: Identity::from_seed([at as u8; 32]).public(),
        address: Address::new(1, at as u16),
        second: None,
        // Carol's membership is over.
        expires_unix_s: if name == "carol" { 1 } else { u64::MAX },
        endpoint: None,
        groups: Vec::new(),
        security_groups: Vec::new(),
        prefixes: Vec::new(),
        interface: true,
        ipv4: None,
        cover: None,
        carrier: CircuitRole::default(),
        unknown: Vec::new(),
    });
    let members = members.map(|member| member.sign(&signer()).unwrap()).collect();
    let content =
        ListContent { version, issued_unix_s: unix_s(), members, ..ListContent::default() };
    content.sign(&signer()).unwrap()
}

/// The configuration of alice, whose network has an authority.
fn listed(folder: &Path, circuits: &str) -> NodeConfig {
    let key = signer().public();
    let more = format!(
        "{circuits}\n[authority]\nkey = \"{key}\"\nlist_file = \"network.list\"\n\
         max_staleness_s = 1000"
    );
    config(folder, "alice", "1.1", &more)
}

/// Alice's authority state with `list`.
fn authority(config: &NodeConfig, list: List, now: Time) -> AuthorityState {
    let (key, file) = (signer().public(), |name: &str| config.path(Path::new(name)));
    let reading = StartupList {
        key,
        file: file("network.list"),
        stamp: None,
        list,
        kept: watch::StateFiles {
            seen: ListMarkFile::new(file("seen"), key),
            file: file("kept"),
            chains: ChainFile::new(file("chains")),
            secrets: SecretFiles { kept: file("secrets"), next: file("next") },
        },
        mark: None,
        from_neighbour: false,
        fault: None,
        steps: Vec::new(),
        steps_fault: None,
        secrets: (Vec::new(), None),
    };
    let keys = (Identity::from_seed([1; 32]).public(), shoal_crypto::NetworkSecret([1; 32]));
    AuthorityState::new(config, keys, reading, now).unwrap()
}

const MIXES: &str = "[[mix]]\nname = \"slow\"\nkind = \"stop-and-go\"\nmean_ms = 5\n\
                     [[mix]]\nname = \"steps\"\nkind = \"timed\"\nevery_ms = 2.5\n";

#[test]
fn mixes_of_a_signed_list_count_until_it_is_too_old() {
    let folder = tempfile::tempdir().unwrap();
    let mut content = signed(2, ["alice", "bob", "carol"]).content().clone();
    content.policy = MIXES.into();
    let r1 = content.members.iter_mut().find(|signed| signed.member.name == "r1").unwrap();
    let carrier = CircuitRole { relay: true, mix: Some("steps".into()), ..CircuitRole::default() };
    *r1 = Member { carrier, ..r1.member.clone() }.sign(&signer()).unwrap();
    let list = content.sign(&signer()).unwrap();

    let now = Time::from_millis(1);
    let config = listed(folder.path(), "");
    let mut authority = authority(&config, signed(1, ["alice", "bob", "carol"]), now);
    let told = |authority: &AuthorityState, now| {
        let hosts = authority.hosts(now);
        (hosts.mixes().offer(), routers(&hosts).mix(Address::new(1, 0)))
    };
    assert_eq!(told(&authority, now), (Vec::new(), None));
    // A neighbour passed it on.
    let list = List::open(&signer().public(), list.bytes());
    assert!(authority.take(now, WatcherEvent::Neighbour(list)));
    let (offer, of_r1) = told(&authority, now);
    let words: Vec<String> = offer.iter().map(ToString::to_string).collect();
    assert_eq!(words, ["stop-and-go 5 ms, at most 25 ms", "timed 2.5 ms"]);
    assert_eq!(of_r1, Some(offer[1]));
    assert_eq!(told(&authority, now + Duration::from_secs(2_000)), (Vec::new(), None));
}

#[test]
fn who_wants_less_delay_than_any_mix_adds_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let said = |address: &str, more: &str| {
        unmixed(&config(folder.path(), "alice", address, more), hosts(MIXES).mixes())
    };
    for more in ["", "max_added_ms = 0", "max_added_ms = 4", "max_added_ms = 2\nrelays = 1"] {
        assert_eq!(said("1.1", more), None, "{more}");
    }
    let text = said("1.1", "max_added_ms = 3").unwrap();
    assert!(text.contains("max_added_ms = 3: circuits of this host go without mixes"), "{text}");
    assert!(
        text.contains("over 3 relays each") && text.contains("4 or more (\"steps\")"),
        "{text}"
    );
    assert_eq!(said("1.0", "max_added_ms = 3"), None, "a router begins no circuits");
    let router = config(folder.path(), "r1", "1.0", "max_added_ms = 3");
    assert!(without_effect(&router).is_some_and(|text| text.contains("] max_added_ms: this node")));
    let none = config(folder.path(), "alice", "1.1", "max_added_ms = 3");
    assert_eq!(unmixed(&none, hosts("").mixes()), None, "the network has none");
}

#[test]
fn a_host_that_a_new_list_renames_stays_hidden() {
    let folder = tempfile::tempdir().unwrap();
    let config =
        |peers: &str| listed(folder.path(), &format!("policy = \"require\"\npeers = [{peers}]"));
    let named = config("\"bob\", \"carol\"");
    let now = Time::from_millis(1);
    let mut authority = authority(&named, signed(1, ["alice", "bob", "dave"]), now);
    let look = |config: &NodeConfig, authority: &AuthorityState, now| {
        let hosts = authority.hosts(now);
        let hidden = hidden(config, &hosts, Some(authority), now).into_iter().collect::<Vec<_>>();
        (hidden, unlisted_words(&unlisted(config, &hosts, Some(authority))))
    };
    let (hidden, said) = look(&named, &authority, now);
    assert_eq!(hidden, ["bob", "dave"], "nobody is called carol");
    assert!(
        said.is_some_and(|text| text.contains("is called carol: circuits are required with e"))
    );

    assert!(authority.take(now, WatcherEvent::File(Ok(signed(2, ["alice", "bob", "carol"])))));
    assert_eq!(look(&named, &authority, now), (vec!["bob".into()], None), "carol is in the list");

    assert!(authority.take(now, WatcherEvent::File(Ok(signed(3, ["alice", "robert", "dave"])))));
    let (hidden, said) = look(&named, &authority, now);
    assert_eq!(hidden, ["dave", "robert"], "robert was bob");
    assert!(said.is_some_and(|text| text.contains("is called bob or carol: ")));
    assert_eq!(look(&config("\"robert\""), &authority, now), (vec!["robert".into()], None));
    let (hidden, said) = look(&config("\"r1\""), &authority, now);
    assert!(hidden.len() == 2 && said.is_some(), "a router is no host: {hidden:?}");

    // The list is too old: nobody is known, and the names are no fault.
    let later = now + Duration::from_secs(2_000);
    assert_eq!(look(&config("\"robert\""), &authority, later), (Vec::new(), None));
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
        let kept = GuardFile::read(&config, &hosts(""), &mut warnings);
        (kept.map_or_else(|e| e.to_string(), |kept| kept.text()), warnings)
    };
    assert_eq!(read(), (String::new(), Vec::new()), "none yet");
    let mut guard = FileWriter::start("test", file.clone(), GuardFile::LOST).unwrap();
    let text = "guard 2.0 1900000000\n";
    guard.keep(Some(text.into()));
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
        ("guard 7.0 1900000000\n", 0o600, "none of its relays (is it from another network?)"),
    ] {
        let (kept, said) = write(bad, mode);
        assert!(kept.is_empty() && said.contains(why), "{kept}: {said}");
    }
    let (kept, said) = write(text, 0o644);
    assert!(kept == text && said.contains("mode 0644 lets others read"), "{said}");
    // A file with other content is not replaced, such as a key.
    let (said, _) = write("shoal-node-key:AAAA\n", 0o600);
    assert!(said.contains("guard: is no guard file: remove it"), "{said}");
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let (kept, warnings) = read();
    assert!(kept.is_empty() && warnings[0].contains("is a folder"), "{warnings:?}");
    let nowhere = folder.path().join("none/guard");
    let mut nowhere = FileWriter::start("test", nowhere, GuardFile::LOST).unwrap();
    nowhere.keep(Some(text.into()));
    while !nowhere.fault().is_some_and(|why| why.contains("another guard")) {
        assert!(began.elapsed() < Duration::from_secs(10), "no fault");
        std::thread::sleep(Duration::from_millis(5));
    }
}
