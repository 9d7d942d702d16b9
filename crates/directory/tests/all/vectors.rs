//! Golden vectors (docs/design/wire/join.md): made by this code from fixed seeds, so that no
//! change of a byte goes unnoticed.
//!
//! `SHOAL_WRITE_VECTORS=1 cargo test -p shoal-directory --test all vectors::` writes new ones. A
//! change means a new version of the format.

use std::path::Path;
use std::time::Duration;

use shoal_crypto::encoding::hex;
use shoal_crypto::{Identity, NetworkSecret, SigningKey};
use shoal_directory::{
    CircuitRole, DoorEndpoint, Field, List, ListContent, Mandate, MandateRights, Member,
    NumberRange, Register, RevokedKey, SecretChange, SecretNames, SignedMember, Step, StepEffect,
    StepEntry, Supplement,
};
use shoal_wire::{Address, CoverKind, CoverTier, MixStrategy, MixTime};

fn authority() -> SigningKey {
    SigningKey::from_seed([42; 32])
}

fn member(name: &str, seed: u8, host: u16) -> Member {
    Member {
        version: 3,
        name: name.into(),
        key: Identity::from_seed([seed; 32]).public(),
        address: Address::new(1, host),
        second: None,
        expires_unix_s: 1_800_000_000,
        endpoint: None,
        groups: vec!["staff".into()],
        security_groups: Vec::new(),
        prefixes: Vec::new(),
        interface: true,
        ipv4: None,
        cover: None,
        carrier: CircuitRole::default(),
        unknown: Vec::new(),
    }
}

/// A field of a later version.
fn later(number: u16, value: &[u8]) -> Vec<Field> {
    vec![Field { number, is_critical: false, value: value.to_vec() }]
}

fn descriptor() -> SignedMember {
    let member = Member {
        endpoint: Some("192.0.2.2:7400".parse().unwrap()),
        groups: vec!["servers".into(), "staff".into()],
        security_groups: vec!["vault".into()],
        prefixes: vec!["10.1.0.0/16".parse().unwrap(), "fd00:1::/64".parse().unwrap()],
        unknown: later(1_000, b"later"),
        ..member("r1", 1, 0)
    };
    member.sign(&authority()).unwrap()
}

fn relay() -> SignedMember {
    let carrier = CircuitRole {
        relay: true,
        exit: true,
        family: Some("acme".into()),
        capacity: Some(1_000),
        near: Some("berlin".into()),
        mix: None,
    };
    Member { carrier, ..member("r2", 3, 0) }.sign(&authority()).unwrap()
}

fn list() -> List {
    let content = ListContent {
        version: 12,
        issued_unix_s: 1_790_000_000,
        revoked: vec![RevokedKey::new("eve", &Identity::from_seed([66; 32]).public())],
        policy: "[[allow]]\nfrom = \"staff\"\nto = \"servers\"\nproto = \"tcp\"\nports = [22]\n"
            .into(),
        unknown: later(2_000, b"later still"),
        members: vec![
            descriptor(),
            Member { interface: false, ..member("bob", 2, 2) }.sign(&authority()).unwrap(),
        ],
        ..ListContent::default()
    };
    content.sign(&authority()).unwrap()
}

/// A network with an overlay prefix, and a host with an IPv4 address.
fn addressed() -> List {
    let ipv4 = Some([10, 9, 0, 7].into());
    let content = ListContent {
        version: 15,
        issued_unix_s: 1_790_000_000,
        overlay: Some("fd6e:5f96:b8dc::/48".parse().unwrap()),
        members: vec![Member { ipv4, ..member("bob", 2, 2) }.sign(&authority()).unwrap()],
        ..ListContent::default()
    };
    content.sign(&authority()).unwrap()
}

/// A host with an address at another router.
fn at_two_routers() -> SignedMember {
    let second = Some(Address::new(7, 9));
    Member { second, ..member("bob", 2, 2) }.sign(&authority()).unwrap()
}

/// A registrar's mandate.
fn mandate() -> Mandate {
    Mandate {
        name: "desk".into(),
        serial: 2,
        key: Identity::from_seed([7; 32]).public(),
        groups: vec!["guests".into(), "staff".into()],
        hosts: vec!["1.100-1.999".parse().unwrap(), "2.5".parse().unwrap()],
        ipv4: Some("10.9.0.0/24".parse().unwrap()),
        most: 200,
        longest_s: 7_776_000,
        until_unix_s: 1_900_000_000,
        rights: MandateRights::default(),
    }
}

/// A network with a registrar.
fn mandated() -> List {
    let content = ListContent {
        version: 16,
        issued_unix_s: 1_790_000_000,
        mandates: vec![mandate()],
        ..ListContent::default()
    };
    content.sign(&authority()).unwrap()
}

/// A registrar's mandate with rights to admit routers.
fn router_mandate() -> Mandate {
    let rights = MandateRights {
        routers: vec!["2-99".parse().unwrap(), "200".parse().unwrap()],
        numbers: Some(NumberRange { first: 1_000, last: 9_999 }),
        relay: true,
        mix: false,
        cover: true,
        tiers: Vec::new(),
        routers_most: 64,
        families_most: 16,
        family: Some("acme".into()),
        door: Vec::new(),
        registrars: 0,
    };
    let hosts = vec!["1.100-1.999".parse().unwrap()];
    Mandate { hosts, rights, ..mandate() }
}

/// A network with a registrar that admits routers.
fn with_routers() -> List {
    let content = ListContent {
        version: 18,
        issued_unix_s: 1_790_000_000,
        mandates: vec![router_mandate()],
        ..ListContent::default()
    };
    content.sign(&authority()).unwrap()
}

/// A step that adds a router.
fn router_step() -> Supplement {
    let family = Some("friends".into());
    let carrier =
        CircuitRole { relay: true, family, capacity: Some(100), ..CircuitRole::default() };
    let router = Member {
        address: Address::new(57, 0),
        second: None,
        expires_unix_s: 1_797_000_000,
        endpoint: Some("[2001:db8::57]:7400".parse().unwrap()),
        groups: Vec::new(),
        interface: false,
        carrier,
        ..member("r57", 6, 0)
    };
    let step = Step {
        mandate: router_mandate().id(),
        number: 1,
        previous: router_mandate().id().0,
        issued_unix_s: 1_790_000_100,
        entries: vec![StepEntry::Member(Box::new(router))],
    };
    step.sign(&Identity::from_seed([7; 32])).unwrap()
}

fn door(texts: &[&str]) -> Vec<DoorEndpoint> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A registrar's mandate with its first endpoints.
fn door_mandate() -> Mandate {
    let door = door(&["my.example.org:7401", "192.0.2.1:7401"]);
    Mandate { rights: MandateRights { door, ..MandateRights::default() }, ..mandate() }
}

/// A network whose registrar may move.
fn with_door() -> List {
    let content = ListContent {
        version: 19,
        issued_unix_s: 1_790_000_000,
        mandates: vec![door_mandate()],
        ..ListContent::default()
    };
    content.sign(&authority()).unwrap()
}

/// A step that states other endpoints.
fn door_step() -> Supplement {
    let step = Step {
        mandate: door_mandate().id(),
        number: 1,
        previous: door_mandate().id().0,
        issued_unix_s: 1_790_000_100,
        entries: vec![StepEntry::Door(door(&["192.0.2.2:7401", "[2001:db8::2]:7401"]))],
    };
    step.sign(&Identity::from_seed([7; 32])).unwrap()
}

/// A registrar's mandate with which it may make two others.
fn making_mandate() -> Mandate {
    let rights = MandateRights { registrars: 2, ..router_mandate().rights };
    Mandate { rights, ..router_mandate() }
}

/// A network whose registrar may make others.
fn with_registrars() -> List {
    let content = ListContent {
        version: 20,
        issued_unix_s: 1_790_000_000,
        mandates: vec![making_mandate()],
        ..ListContent::default()
    };
    content.sign(&authority()).unwrap()
}

/// The part of a second registrar.
fn second() -> Mandate {
    let rights = MandateRights {
        routers: vec!["80-99".parse().unwrap()],
        relay: true,
        routers_most: 8,
        families_most: 4,
        family: Some("friends".into()),
        door: door(&["my.example.org:7401"]),
        ..MandateRights::default()
    };
    Mandate {
        name: "r57".into(),
        serial: 1,
        key: Identity::from_seed([77; 32]).public(),
        hosts: vec!["57.1000-57.9999".parse().unwrap()],
        ipv4: Some("10.9.0.192/26".parse().unwrap()),
        most: 99,
        rights,
        ..making_mandate()
    }
}

/// Steps that make a second registrar, and withdraw it.
fn registrar_steps() -> [Supplement; 2] {
    let step = |number, previous, entry| Step {
        mandate: making_mandate().id(),
        number,
        previous,
        issued_unix_s: 1_790_000_100,
        entries: vec![entry],
    };
    let registrar = Identity::from_seed([7; 32]);
    let make = StepEntry::Registrar(Box::new(second()));
    let make = step(1, making_mandate().id().0, make).sign(&registrar).unwrap();
    let withdraw = step(2, make.digest(), StepEntry::Withdrawn(second().id()));
    [make, withdraw.sign(&registrar).unwrap()]
}

/// A network after a switch of its secret.
fn switched() -> List {
    let name = |n| NetworkSecret([n; 32]).name();
    let secrets =
        SecretNames { current: name(2), change: SecretChange::Previous(name(1), 1_790_604_800) };
    let content = ListContent {
        version: 17,
        issued_unix_s: 1_790_000_000,
        secrets: Some(secrets),
        ..ListContent::default()
    };
    content.sign(&authority()).unwrap()
}

/// A step that adds a member.
fn supplement() -> Supplement {
    let ipv4 = Some([10, 9, 0, 7].into());
    let carol = Member { ipv4, ..member("carol", 5, 100) };
    let step = Step {
        mandate: mandate().id(),
        number: 1,
        previous: mandate().id().0,
        issued_unix_s: 1_790_000_100,
        entries: vec![
            StepEntry::Member(Box::new(carol)),
            StepEntry::remove(&Identity::from_seed([66; 32]).public()),
        ],
    };
    step.sign(&Identity::from_seed([7; 32])).unwrap()
}

/// A network with mixes, and a relay with its own mix.
fn mixes() -> List {
    let carrier = CircuitRole { relay: true, mix: Some("steps".into()), ..CircuitRole::default() };
    let content = ListContent {
        version: 13,
        issued_unix_s: 1_790_000_000,
        policy: "[[mix]]\nname = \"slow\"\nkind = \"stop-and-go\"\nmean_ms = 5.0\n\
                 [[mix]]\nname = \"steps\"\nkind = \"timed\"\nevery_ms = 10\n"
            .into(),
        members: vec![Member { carrier, ..member("r2", 3, 0) }.sign(&authority()).unwrap()],
        ..ListContent::default()
    };
    content.sign(&authority()).unwrap()
}

/// A network with tiers of cover, and a host of one of them.
fn covered() -> List {
    let cover = Some("home".into());
    let content = ListContent {
        version: 14,
        issued_unix_s: 1_790_000_000,
        policy: "[[cover]]\nname = \"home\"\nmbit = 10\n\
                 [[cover]]\nname = \"irregular\"\nmbit = 2\nschedule = \"poisson\"\n"
            .into(),
        members: vec![Member { cover, ..member("bob", 2, 2) }.sign(&authority()).unwrap()],
        ..ListContent::default()
    };
    content.sign(&authority()).unwrap()
}

fn check(name: &str, bytes: &[u8]) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors").join(name);
    let hex: String = bytes.chunks(32).map(|line| hex(line) + "\n").collect();
    if std::env::var_os("SHOAL_WRITE_VECTORS").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, &hex).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(kept, hex, "{name} changed: that is a new version of the format");
}

#[test]
fn a_descriptor_keeps_its_bytes() {
    let signed = descriptor();
    check("descriptor.hex", signed.bytes());
    assert_eq!(SignedMember::open(&authority().public(), signed.bytes()).unwrap(), signed);
}

#[test]
fn a_relay_keeps_its_bytes() {
    let signed = relay();
    check("relay.hex", signed.bytes());
    assert_eq!(SignedMember::open(&authority().public(), signed.bytes()).unwrap(), signed);
}

#[test]
fn a_host_at_two_routers_keeps_its_bytes() {
    let signed = at_two_routers();
    check("second.hex", signed.bytes());
    assert_eq!(SignedMember::open(&authority().public(), signed.bytes()).unwrap(), signed);
}

#[test]
fn a_list_with_mixes_keeps_its_bytes() {
    let list = mixes();
    check("mixes.hex", list.bytes());
    let read = List::open(&authority().public(), list.bytes()).unwrap();
    assert_eq!(read, list);
    let time = |ms| MixTime::from_duration(Duration::from_millis(ms)).unwrap();
    let slow = MixStrategy::StopAndGo { mean: time(5), most: time(25) };
    assert_eq!(read.policy().mixes().offer(), [slow, MixStrategy::Timed { every: time(10) }]);
}

#[test]
fn a_list_with_cover_keeps_its_bytes() {
    let list = covered();
    check("cover.hex", list.bytes());
    let read = List::open(&authority().public(), list.bytes()).unwrap();
    assert_eq!(read, list);
    let tiers: Vec<_> = read.policy().tiers().iter().map(|tier| tier.schedule).collect();
    let tier = |mbit, kind| CoverTier::new(mbit, kind).unwrap();
    assert_eq!(tiers, [tier(10, CoverKind::Constant), tier(2, CoverKind::Poisson)]);
}

#[test]
fn a_list_with_addresses_keeps_its_bytes() {
    let list = addressed();
    check("addressed.hex", list.bytes());
    assert_eq!(List::open(&authority().public(), list.bytes()).unwrap(), list);
}

#[test]
fn a_list_with_a_mandate_keeps_its_bytes() {
    let list = mandated();
    check("mandated.hex", list.bytes());
    assert_eq!(List::open(&authority().public(), list.bytes()).unwrap(), list);
}

#[test]
fn a_list_with_routers_of_a_mandate_keeps_its_bytes() {
    let list = with_routers();
    check("routers.hex", list.bytes());
    assert_eq!(List::open(&authority().public(), list.bytes()).unwrap(), list);
    let step = router_step();
    check("router-step.hex", step.bytes());
    let read = Supplement::open(&router_mandate().key, step.bytes()).unwrap();
    let mut register = Register::new(router_mandate());
    assert_eq!(register.apply(1_790_000_100, &read), Ok(StepEffect::Changed));
}

#[test]
fn a_registrars_endpoints_keep_their_bytes() {
    let list = with_door();
    check("door.hex", list.bytes());
    assert_eq!(List::open(&authority().public(), list.bytes()).unwrap(), list);
    let step = door_step();
    check("door-step.hex", step.bytes());
    let read = Supplement::open(&door_mandate().key, step.bytes()).unwrap();
    let mut register = Register::new(door_mandate());
    assert_eq!(register.apply(1_790_000_100, &read), Ok(StepEffect::Changed));
    assert_eq!(register.door(), door(&["192.0.2.2:7401", "[2001:db8::2]:7401"]));
}

#[test]
fn a_second_registrar_keeps_its_bytes() {
    let list = with_registrars();
    check("registrars.hex", list.bytes());
    assert_eq!(List::open(&authority().public(), list.bytes()).unwrap(), list);
    let mut register = Register::new(making_mandate());
    for (name, step) in ["registrar-step.hex", "withdrawal-step.hex"].iter().zip(registrar_steps())
    {
        check(name, step.bytes());
        let read = Supplement::open(&making_mandate().key, step.bytes()).unwrap();
        assert_eq!(register.apply(1_790_000_100, &read), Ok(StepEffect::Changed));
    }
    assert_eq!((register.delegated().count(), register.remainder().registrars), (0, 1));
}

#[test]
fn a_list_with_secrets_keeps_its_bytes() {
    let list = switched();
    check("secrets.hex", list.bytes());
    assert_eq!(List::open(&authority().public(), list.bytes()).unwrap(), list);
}

#[test]
fn a_supplement_keeps_its_bytes() {
    let supplement = supplement();
    check("supplement.hex", supplement.bytes());
    let read = Supplement::open(&mandate().key, supplement.bytes()).unwrap();
    assert_eq!(read, supplement);
}

#[test]
fn a_list_keeps_its_bytes() {
    let list = list();
    check("list.hex", list.bytes());
    assert_eq!(List::open(&authority().public(), list.bytes()).unwrap(), list);
}
