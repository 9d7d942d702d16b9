use super::*;
use crate::Content;
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
    }
}

fn sign(mandates: Vec<Mandate>) -> Result<List, Error> {
    Content { version: 1, mandates, ..Content::default() }.sign(&authority())
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
    assert!(refused(&|m| m.ipv4 = v6).contains("IPv4 addresses are a network"));
    assert!(refused(&|m| m.most = 0).contains("admits 1 to 65536 keys"));
    assert!(refused(&|m| m.most = ADMITTED_MAX + 1).contains("admits 1 to 65536 keys"));
    assert!(refused(&|m| m.longest_s = 0).contains("for a second or more"));
    let none = PublicKey::from_bytes(&[0; 64]);
    assert!(refused(&|m| m.key = none).contains("no key"));
}

#[test]
fn two_mandates_share_nothing() {
    let refused = |change: &dyn Fn(&mut Mandate)| {
        let mut other = mandate("b", 2);
        change(&mut other);
        sign(vec![mandate("a", 1), other]).unwrap_err().to_string()
    };
    assert!(refused(&|m| m.name = "a".into()).contains("two mandates have this name"));
    assert!(refused(&|m| m.key = registrar(1).public()).contains("its key is that of another"));
    assert!(refused(&|m| m.hosts[0].first = 199).contains("its hosts are those of another"));
    let around = "10.9.0.0/16".parse().ok();
    assert!(refused(&|m| m.ipv4 = around).contains("its IPv4 addresses are those of another"));
    let revoked = vec![crate::Revoked::new("a", &registrar(1).public())];
    let content = Content { revoked, mandates: vec![mandate("a", 1)], ..Content::default() };
    let refused = content.sign(&authority()).unwrap_err().to_string();
    assert_eq!(refused, "mandate \"a\": its key is revoked");
    let many = (0..=MANDATES_MAX as u8).map(|i| Mandate { ipv4: None, ..mandate("m", i + 1) });
    let many = many.enumerate().map(|(i, m)| Mandate { name: format!("m{i}"), ..m });
    assert!(sign(many.collect()).unwrap_err().to_string().contains("at most 16 mandates"));
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
