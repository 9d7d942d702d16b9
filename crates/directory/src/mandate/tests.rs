use super::*;
use crate::DoorEndpoint;
use crate::ListContent;
use crate::list::List;
use crate::member::tests::authority;
use shoal_crypto::Identity;

/// A registrar's key.
pub(crate) fn registrar(seed: u8) -> Identity {
    Identity::from_seed([100 + seed; 32])
}

/// A mandate with hosts and a key of its own.
pub(crate) fn mandate(name: &str, seed: u8) -> Mandate {
    let first = 100 * u16::from(seed);
    Mandate {
        name: name.into(),
        serial: 1,
        key: registrar(seed).public(),
        groups: vec!["staff".into()],
        hosts: vec![HostRange { router: 1, first, last: first + 99 }],
        ipv4: Some(format!("10.9.{seed}.0/24").parse().unwrap()),
        most: 3,
        longest_s: 1_000,
        until_unix_s: 2_000_000,
        rights: MandateRights::default(),
    }
}

/// Rights to admit routers 10 to 19 and 30, of two families, and hosts behind all routers.
pub(crate) fn rights() -> MandateRights {
    MandateRights {
        routers: vec![RouterRange { first: 10, last: 19 }, RouterRange { first: 30, last: 30 }],
        numbers: Some(NumberRange { first: 5_000, last: 5_999 }),
        relay: true,
        mix: true,
        cover: true,
        tiers: Vec::new(),
        routers_most: 3,
        families_most: 2,
        family: Some("acme".into()),
        door: Vec::new(),
        registrars: 0,
    }
}

fn sign(mandates: Vec<Mandate>) -> Result<List, Error> {
    ListContent { version: 1, mandates, ..ListContent::default() }.sign(&authority())
}

#[test]
fn a_list_holds_its_mandates_in_one_form() {
    let (a, b) = (mandate("a", 1), mandate("b", 2));
    let more = Mandate { ipv4: None, groups: Vec::new(), ..b.clone() };
    let list = sign(vec![a.clone(), more.clone()]).unwrap();
    let other = sign(vec![more.clone(), a.clone()]).unwrap();
    assert_eq!(list.bytes(), other.bytes(), "the order leaves no trace");
    let read = List::open(&authority().public(), list.bytes()).unwrap();
    let mut both = vec![a, more];
    both.sort_by_key(Mandate::id);
    assert_eq!(read.content().mandates, both);
}

#[test]
fn an_id_follows_from_key_and_serial_alone() {
    let one = mandate("a", 1);
    let longer = Mandate { until_unix_s: 3_000_000, most: 9, ..one.clone() };
    assert_eq!(one.id(), longer.id());
    assert_ne!(one.id(), Mandate { serial: 2, ..one.clone() }.id());
    assert_ne!(one.id(), Mandate { key: registrar(9).public(), ..one }.id());
}

#[test]
fn what_a_mandate_may_not_say_is_not_signed() {
    let refused = |change: &dyn Fn(&mut Mandate)| {
        let mut changed = mandate("a", 1);
        change(&mut changed);
        sign(vec![changed]).unwrap_err().to_string()
    };
    assert!(refused(&|m| m.name = "two words".into()).starts_with("a mandate and its groups"));
    assert!(refused(&|m| m.groups = vec![String::new()]).starts_with("a mandate and its groups"));
    let groups = (0..=GROUPS_MAX).map(|i| format!("g{i}")).collect::<Vec<_>>();
    assert!(refused(&|m| m.groups.clone_from(&groups)).contains("at most 32 groups"));
    assert!(refused(&|m| m.hosts.clear()).contains("1 to 16 ranges"));
    assert!(refused(&|m| m.hosts[0].first = 0).contains("from 1 on"));
    assert!(refused(&|m| m.hosts[0].last = 1).contains("the first before the last"));
    assert!(refused(&|m| m.hosts.push(m.hosts[0])).contains("overlap"));
    let v6 = "fd00::/64".parse().ok();
    assert!(refused(&|m| m.ipv4 = v6).contains("IPv4 addresses must be a network"));
    assert!(refused(&|m| m.most = 0).contains("admits 1 to 65536 keys"));
    assert!(refused(&|m| m.most = ADMITTED_MAX + 1).contains("admits 1 to 65536 keys"));
    assert!(refused(&|m| m.longest_s = 0).contains("for at least one second"));
    let none = PublicKey::from_bytes(&[0; 64]);
    assert!(refused(&|m| m.key = none).contains("key is invalid"));
}

#[test]
fn rights_beyond_hosts_have_a_critical_field() {
    let (first, second) = (mandate("a", 1), Mandate { rights: rights(), ..mandate("b", 2) });
    let numbers = MandateRights { numbers: rights().numbers, ..MandateRights::default() };
    let hosts_of_all = Mandate { hosts: Vec::new(), rights: numbers, ..mandate("c", 3) };
    for (mandates, tag) in [
        (vec![first.clone()], [0, 3]),
        (vec![first.clone(), second], [0x80, 5]),
        (vec![hosts_of_all], [0x80, 5]),
    ] {
        let list = sign(mandates.clone()).unwrap();
        let head = list.bytes();
        // Magic, version, issued, revoked, policy and the count of fields come before the tag.
        let at = 4 + 8 + 8 + 4 + 4 + 1;
        assert_eq!(&head[at..at + 2], &tag);
        let read = List::open(&authority().public(), head).unwrap();
        assert_eq!(read.content().mandates.len(), mandates.len());
        assert!(mandates.iter().all(|mandate| read.content().mandates.contains(mandate)));
    }
    // The second format has no place for mandates that the first one can hold.
    let mut bytes = Vec::new();
    put_all(&mut bytes, &[first]);
    MandateRights::default().put(&mut bytes);
    let read = read_all(&mut Reader::new(&bytes), MandateFormat::Second);
    assert_eq!(read, Err(ParseError::Invalid { what: WHAT }.into()));
}

#[test]
fn unknown_rights_refuse_the_list() {
    let mut bytes = Vec::new();
    put_all(&mut bytes, &[Mandate { rights: rights(), ..mandate("a", 1) }]);
    // Behind the bits are both limits, and a name of four letters.
    let at = bytes.len() - 2 - 1 - 5 - 1;
    assert_eq!(bytes[at], RELAY_MIX_COVER);
    let read = |bytes: &[u8]| read_all(&mut Reader::new(bytes), MandateFormat::Second);
    assert!(read(&bytes).is_ok());
    bytes[at] |= 64;
    assert_eq!(read(&bytes), Err(ParseError::Invalid { what: WHAT }.into()));
}

/// All bits of these rights.
const RELAY_MIX_COVER: u8 = 7;

#[test]
fn named_tiers_come_last_and_have_one_form() {
    let named = |tiers: &[&str]| {
        let tiers = tiers.iter().map(|tier| tier.to_string()).collect();
        Mandate { rights: MandateRights { tiers, ..rights() }, ..mandate("a", 1) }
    };
    let bytes = |mandate: Mandate| {
        let mut bytes = Vec::new();
        put_all(&mut bytes, &[mandate]);
        bytes
    };
    let read = |bytes: &[u8]| read_all(&mut Reader::new(bytes), MandateFormat::Second);
    let (plain, two) = (bytes(named(&[])), bytes(named(&["home", "work"])));
    let at = plain.len() - 2 - 1 - 5 - 1;
    assert_eq!((two[at], &two[..at]), (RELAY_MIX_COVER | 8, &plain[..at]));
    assert!(two.ends_with(b"\x02\x04home\x04work"));
    assert_eq!(read(&two).unwrap()[0].rights.tiers, ["home", "work"]);
    // The other order, a repetition and an empty set are other forms of the same content.
    for tail in [&b"\x02\x04work\x04home"[..], b"\x02\x04home\x04home", b"\x00"] {
        let bad = [&two[..plain.len()], tail].concat();
        assert!(read(&bad).is_err(), "{tail:?}");
    }
}

#[test]
fn rights_that_do_not_agree_are_not_signed() {
    let refused = |change: &dyn Fn(&mut MandateRights)| {
        let mut changed = rights();
        change(&mut changed);
        sign(vec![Mandate { rights: changed, ..mandate("a", 1) }]).unwrap_err().to_string()
    };
    let range = |first, last| RouterRange { first, last };
    let many = (1..18).map(|n| range(n, n)).collect::<Vec<_>>();
    assert!(refused(&|r| r.routers.clone_from(&many)).contains("at most 16 ranges of routers"));
    assert!(refused(&|r| r.routers = vec![range(0, 9)]).contains("from 1 on"));
    assert!(refused(&|r| r.routers = vec![range(9, 8)]).contains("the first before the last"));
    assert!(refused(&|r| r.routers.push(range(19, 20))).contains("ranges of routers overlap"));
    assert!(refused(&|r| r.numbers = Some(NumberRange { first: 0, last: 9 })).contains("host num"));
    assert!(refused(&|r| r.numbers = Some(NumberRange { first: 9, last: 8 })).contains("host num"));
    assert!(refused(&|r| r.routers_most = 0).contains("a limit of routers"));
    assert!(refused(&|r| r.families_most = 0).contains("a limit of families"));
    assert!(refused(&|r| r.family = None).contains("and a family"));
    assert!(refused(&|r| r.routers.clear()).contains("has none of them"));
    assert!(refused(&|r| r.routers_most = 12).contains("no more than it has numbers"));
    let all = range(1, u32::MAX);
    assert!(
        refused(&|r| (r.routers, r.routers_most) = (vec![all], 4_097)).contains("at most 4096")
    );
    let no_routers = MandateRights { mix: true, ..MandateRights::default() };
    assert!(refused(&|r| r.clone_from(&no_routers)).contains("no relays and no mixes"));
    assert!(refused(&|r| r.family = Some("-".into())).contains("a family is"));
    let tiers = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    assert!(refused(&|r| r.tiers = tiers(&["a", "b", "c", "d", "e"])).contains("at most 4 tiers"));
    assert!(refused(&|r| r.tiers = tiers(&["a tier"])).contains("at most 4 tiers"));
    let no_cover = |r: &mut MandateRights| (r.cover, r.tiers) = (false, tiers(&["home"]));
    assert!(refused(&no_cover).contains("only if it allows hosts with a tier"));
    let at = |text: &str| vec![DoorEndpoint::At(text.parse().unwrap())];
    assert!(refused(&|r| r.door = at("0.0.0.0:7")).contains("1 to 3 different endpoints"));
    assert!(refused(&|r| r.door = at("10.9.1.7:7")).contains("outside the network's IPv4"));
    let cover = MandateRights { cover: true, ..MandateRights::default() };
    let no_hosts = Mandate { hosts: Vec::new(), rights: cover, ..mandate("a", 1) };
    assert!(sign(vec![no_hosts]).unwrap_err().to_string().contains("1 to 16 ranges of hosts"));
}

#[test]
fn two_mandates_share_no_router_and_no_host_number() {
    let both = |one: MandateRights, other: MandateRights| {
        let one = Mandate { rights: one, ..mandate("a", 1) };
        sign(vec![one, Mandate { rights: other, ..mandate("b", 2) }]).map_err(|e| e.to_string())
    };
    let range = |first, last| vec![RouterRange { first, last }];
    let numbers = |first, last| Some(NumberRange { first, last });
    let far = || MandateRights { routers: range(50, 59), numbers: None, ..rights() };
    assert!(both(rights(), far()).is_ok());
    let near = MandateRights { routers: range(19, 29), ..far() };
    assert!(both(rights(), near).unwrap_err().contains("the routers overlap"));
    // Router 1 has hosts of the other mandate.
    for [one, other] in [[range(1, 9), range(50, 59)], [range(50, 59), range(1, 9)]] {
        let one = MandateRights { routers: one, ..far() };
        let overlap = both(one, MandateRights { routers: other, ..far() }).unwrap_err();
        assert!(overlap.contains("the routers overlap"), "{overlap}");
    }
    let same = MandateRights { numbers: numbers(5_999, 6_000), ..far() };
    assert!(both(rights(), same).unwrap_err().contains("the hosts overlap"));
    // Hosts 1.100 to 1.299 belong to the two mandates.
    for first in [150, 250] {
        let hosts = MandateRights { numbers: numbers(first, first), ..MandateRights::default() };
        let own = |mine: bool| if mine { hosts.clone() } else { MandateRights::default() };
        assert_eq!(both(own(true), own(false)).is_ok(), first == 150);
        assert_eq!(both(own(false), own(true)).is_ok(), first == 250);
    }
}

#[test]
fn ranges_of_routers_are_read_and_shown() {
    assert_eq!("2-999".parse::<RouterRange>().unwrap().to_string(), "2-999");
    assert_eq!("7".parse::<RouterRange>().unwrap(), RouterRange { first: 7, last: 7 });
    for text in ["", "0", "0-9", "9-8", "1.0-2.0", "-", "4294967296"] {
        assert!(text.parse::<RouterRange>().is_err(), "{text}");
    }
}

#[test]
fn ranges_of_host_numbers_are_read_and_shown() {
    assert_eq!("100-999".parse::<NumberRange>().unwrap().to_string(), "100-999");
    assert_eq!("7".parse::<NumberRange>().unwrap(), NumberRange { first: 7, last: 7 });
    for text in ["", "0", "0-9", "9-8", "1.1-9", "-", "65536"] {
        assert!(text.parse::<NumberRange>().is_err(), "{text}");
    }
}

#[test]
fn two_mandates_share_nothing() {
    let refused = |change: &dyn Fn(&mut Mandate)| {
        let mut other = mandate("b", 2);
        change(&mut other);
        sign(vec![mandate("a", 1), other]).unwrap_err().to_string()
    };
    assert!(refused(&|m| m.name = "a".into()).contains("two mandates have this name"));
    assert!(refused(&|m| m.key = registrar(1).public()).contains("also that of another mandate"));
    assert!(refused(&|m| m.hosts[0].first = 199).contains("hosts overlap another"));
    let around = "10.9.0.0/16".parse().ok();
    assert!(refused(&|m| m.ipv4 = around).contains("IPv4 addresses overlap another"));
    let revoked = vec![crate::RevokedKey::new("a", &registrar(1).public())];
    let content =
        ListContent { revoked, mandates: vec![mandate("a", 1)], ..ListContent::default() };
    let refused = content.sign(&authority()).unwrap_err().to_string();
    assert_eq!(refused, "mandate \"a\": the key is revoked");
    let many = (0..=MANDATES_MAX as u8).map(|i| Mandate { ipv4: None, ..mandate("m", i + 1) });
    let many = many.enumerate().map(|(i, m)| Mandate { name: format!("m{i}"), ..m });
    assert!(sign(many.collect()).unwrap_err().to_string().contains("at most 16 mandates"));
    let making = |registrars| {
        let rights = MandateRights { registrars, ..MandateRights::default() };
        sign(vec![Mandate { rights, ..mandate("a", 1) }, mandate("b", 2)])
    };
    let list = making(14).unwrap();
    let read = List::open(&authority().public(), list.bytes()).unwrap();
    assert!(read.content().mandates.iter().any(|mandate| mandate.rights.registrars == 14));
    assert!(making(15).unwrap_err().to_string().contains("at most 16 together"));
}

#[test]
fn ranges_are_read_and_shown() {
    for text in ["1.100-1.999", "2.1-2.1"] {
        assert_eq!(text.parse::<HostRange>().unwrap().to_string(), text);
    }
    assert_eq!("1.100-999".parse::<HostRange>().unwrap().to_string(), "1.100-1.999");
    assert_eq!("1.7".parse::<HostRange>().unwrap().to_string(), "1.7-1.7");
    for text in ["", "1", "1.0-1.9", "1.9-1.1", "1.1-2.9", "1.1-", "1.1-70000", "x"] {
        assert!(text.parse::<HostRange>().is_err(), "{text}");
    }
    let range: HostRange = "1.100-1.999".parse().unwrap();
    let holds = [99, 100, 999, 1_000].map(|host| range.holds(Address::new(1, host)));
    assert_eq!((holds, range.holds(Address::new(2, 100))), ([false, true, true, false], false));
}
