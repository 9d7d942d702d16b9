use super::*;
use proptest::prelude::*;
use shoal_crypto::Identity;

pub(crate) fn authority() -> SigningKey {
    SigningKey::from_seed([9; 32])
}

/// A member with key and address of its own.
pub(crate) fn member(name: &str, number: u8, groups: &[&str]) -> Member {
    Member {
        version: 1,
        name: name.into(),
        key: Identity::from_seed([number; 32]).public(),
        address: Address::new(1, number.into()),
        second: None,
        expires_unix_s: 2_000_000,
        endpoint: None,
        groups: groups.iter().map(|group| group.to_string()).collect(),
        security_groups: Vec::new(),
        prefixes: Vec::new(),
        interface: true,
        ipv4: None,
        cover: None,
        carrier: CircuitRole::default(),
        unknown: Vec::new(),
    }
}

/// A field of a future version.
pub(crate) fn unknown(is_critical: bool) -> Field {
    Field { number: 777, is_critical, value: b"later".to_vec() }
}

/// A member's descriptor with a critical field that this version does not know.
pub(crate) fn of_later(member: Member) -> SignedMember {
    let member = member.checked().unwrap();
    Member { unknown: vec![unknown(true)], ..member }.seal(&authority()).unwrap()
}

fn full() -> Member {
    let relay = relay("bob", 0, Some("acme"));
    Member {
        endpoint: Some("[2001:db8::1]:7400".parse().unwrap()),
        security_groups: vec!["vault".into()],
        prefixes: vec!["fd00:1::/64".parse().unwrap(), "10.1.0.0/16".parse().unwrap()],
        ipv4: Some([10, 9, 0, 7].into()),
        unknown: vec![unknown(false)],
        carrier: CircuitRole { mix: Some("slow".into()), ..relay.carrier.clone() },
        ..relay
    }
}

/// A router that carries circuits.
pub(crate) fn relay(name: &str, number: u8, family: Option<&str>) -> Member {
    let family = family.map(Into::into);
    let (capacity, near) = (Some(1_000), Some("berlin".into()));
    Member {
        address: Address::new(1 + u32::from(number), 0),
        carrier: CircuitRole { relay: true, exit: true, family, capacity, near, mix: None },
        ..member(name, number, &["staff", "admins", "staff"])
    }
}

#[test]
fn a_descriptor_holds_what_was_signed_in_one_form() {
    let signed = full().sign(&authority()).unwrap();
    assert_eq!(signed.member.groups, ["admins", "staff"]);
    assert_eq!(signed.member.prefixes[0].to_string(), "10.1.0.0/16");
    let read = SignedMember::open(&authority().public(), signed.bytes()).unwrap();
    assert_eq!(read, signed);
}

#[test]
fn a_host_has_a_tier_of_cover_that_nobody_may_ignore() {
    let covered = |member: Member| Member { cover: Some("home".into()), ..member };
    let signed = covered(member("bob", 2, &[])).sign(&authority()).unwrap();
    let read = SignedMember::open(&authority().public(), signed.bytes()).unwrap();
    assert_eq!(read.member.cover.as_deref(), Some("home"));
    let field = [0x80, 12, 0, 5, 4, b'h', b'o', b'm', b'e'];
    assert!(signed.bytes().windows(field.len()).any(|bytes| bytes == field), "critical, number 12");
    let refused = |member: Member| member.sign(&authority()).unwrap_err().to_string();
    assert!(refused(covered(full())).starts_with("only a host has a tier of cover"));
    let long = Member { cover: Some("x".repeat(17)), ..member("bob", 2, &[]) };
    assert!(refused(long).starts_with("the name of a tier of cover is 1 to 16"));
    // An older version treats this field like this version treats fields of later ones.
    let uncritical = FieldKind { is_critical: false, ..COVER };
    let all = vec![uncritical.field(|out| put_name(out, "home"))];
    let error = Member { unknown: all, ..member("bob", 2, &[]) }.seal(&authority()).unwrap_err();
    assert_eq!(error, ParseError::Invalid { what: "cover" }.into());
}

#[test]
fn a_host_may_have_an_address_at_another_router() {
    let with = |second| Member { second: Some(second), ..member("bob", 2, &[]) };
    let signed = with(Address::new(7, 9)).sign(&authority()).unwrap();
    let read = SignedMember::open(&authority().public(), signed.bytes()).unwrap();
    assert_eq!(read.member.second, Some(Address::new(7, 9)));
    let field = [0, 14, 0, 6, 0, 0, 0, 7, 0, 9];
    assert!(signed.bytes().windows(field.len()).any(|bytes| bytes == field), "number 14");
    let refused = |member: Member| member.sign(&authority()).unwrap_err().to_string();
    assert!(refused(with(Address::new(1, 9))).contains("must be at another router"));
    assert!(refused(with(Address::new(7, 0))).contains("host 0 is the router"));
    let router = Member { second: Some(Address::new(7, 9)), ..full() };
    assert_eq!(refused(router), "a router has no second address");
}

#[test]
fn any_changed_byte_is_noticed() {
    let signed = full().sign(&authority()).unwrap();
    let other = SigningKey::from_seed([8; 32]).public();
    assert_eq!(SignedMember::open(&other, signed.bytes()), Err(Error::Signature));
    for at in 0..signed.bytes().len() {
        let mut bytes = signed.bytes().to_vec();
        bytes[at] ^= 1;
        assert!(SignedMember::open(&authority().public(), &bytes).is_err(), "byte {at}");
    }
    for len in 0..signed.bytes().len() {
        assert!(SignedMember::open(&authority().public(), &signed.bytes()[..len]).is_err());
    }
}

#[test]
fn an_unknown_field_survives_what_this_version_signs() {
    let signed = full().sign(&authority()).unwrap();
    let read = SignedMember::open(&authority().public(), signed.bytes()).unwrap();
    assert_eq!((&read.member.unknown[..], read.unknown_critical()), (&[unknown(false)][..], None));
    let later = Member { version: 2, endpoint: None, prefixes: Vec::new(), ..read.member };
    let later = Member { interface: false, ipv4: None, ..later }.sign(&authority()).unwrap();
    let read = SignedMember::open(&authority().public(), later.bytes()).unwrap().member;
    assert_eq!((read.unknown, read.interface), (vec![unknown(false)], false));
}

#[test]
fn an_unknown_critical_field_refuses_its_descriptor_by_number() {
    let signed = of_later(full());
    assert_eq!(signed.unknown_critical(), Some(777));
    let refused = SignedMember::open(&authority().public(), signed.bytes()).unwrap_err();
    let text =
        "has the critical field 777, which this version of shoal does not know: update shoal";
    assert_eq!(refused.to_string(), text);
    // This version can't know the meaning of such a field, so it does not sign it.
    assert_eq!(signed.member.sign(&authority()), Err(refused));
    // The signature is checked first.
    let other = SigningKey::from_seed([8; 32]).public();
    let bytes = of_later(full()).bytes().to_vec();
    assert_eq!(SignedMember::open(&other, &bytes), Err(Error::Signature));
}

#[test]
fn a_descriptor_in_the_first_format_says_what_to_do() {
    let refused =
        SignedMember::open(&authority().public(), b"SHM1 and more").unwrap_err().to_string();
    assert!(refused.starts_with("is a member's descriptor in format 1"), "{refused}");
}

#[test]
fn what_the_format_has_no_room_for_is_not_signed() {
    let refused = |member: Member| member.sign(&authority()).unwrap_err();
    let everything = vec!["0.0.0.0/0".parse().unwrap()];
    let error = refused(Member { prefixes: everything, ..member("a", 1, &[]) });
    assert!(error.to_string().contains("default route"), "{error}");
    let groups = (0..=GROUPS_MAX).map(|i| format!("g{i}")).collect();
    assert!(matches!(refused(Member { groups, ..full() }), Error::Range(_)));
    let groups = vec!["two words".into()];
    assert!(matches!(refused(Member { groups, ..full() }), Error::Range(_)));
    assert!(matches!(refused(Member { name: String::new(), ..full() }), Error::Range(_)));
    let many = (0..=PREFIXES_MAX as u8).map(|i| Prefix::new([10, i, 0, 0].into(), 16).unwrap());
    assert!(matches!(refused(Member { prefixes: many.collect(), ..full() }), Error::Range(_)));
    let error = refused(Member { interface: false, ..full() });
    assert_eq!(error.to_string(), "a member without an interface has no prefixes");
    let error = refused(Member { interface: false, prefixes: Vec::new(), ..full() });
    assert_eq!(error.to_string(), "a member without an interface has no IPv4 address");
    for special in [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 1], [255; 4], [169, 254, 0, 1]] {
        let error = refused(Member { ipv4: Some(special.into()), ..full() });
        assert_eq!(
            error.to_string(),
            "a member's IPv4 address must be a unicast address of a host"
        );
    }
    let host = Member { address: Address::new(1, 7), ..full() };
    assert!(refused(host).to_string().contains("only a router"));
    let with = |change: &dyn Fn(&mut CircuitRole)| {
        let mut member = full();
        change(&mut member.carrier);
        refused(member).to_string()
    };
    assert!(with(&|c| c.family = Some("two words".into())).starts_with("a family is 1 to 63"));
    assert!(with(&|c| c.near = Some(String::new())).starts_with("a place is 1 to 63"));
    assert!(with(&|c| c.mix = Some("x".repeat(17))).starts_with("the name of a mix is 1 to 16"));
    assert!(with(&|c| c.relay = false).starts_with("only a relay of circuits has a mix"));
    assert!(with(&|c| c.capacity = Some(0)).starts_with("a capacity is 1 to 10000000"));
    let long = Field { value: vec![0; DESCRIPTOR_LEN_MAX], ..unknown(false) };
    let error = refused(Member { unknown: vec![long], ..full() });
    assert!(error.to_string().contains("at most 16384"), "{error}");
    let known = |kind: &FieldKind, value: &[u8]| {
        let (number, is_critical) = (kind.number, kind.is_critical);
        let unknown = vec![Field { number, is_critical, value: value.to_vec() }];
        Member { unknown, ..member("a", 1, &[]) }
    };
    assert!(matches!(refused(known(&NO_INTERFACE, b"")), Error::Range(_)));
    // An empty value has no field: no set is empty.
    for kind in [GROUPS, PREFIXES, SECURITY_GROUPS] {
        let error = known(&kind, &[0]).seal(&authority()).unwrap_err();
        assert_eq!(error, ParseError::Invalid { what: kind.what }.into());
    }
    // The longest descriptor of this version leaves room for unknown fields.
    let name = |i: usize| format!("{i:02}{}", "x".repeat(61));
    let groups: Vec<String> = (0..GROUPS_MAX).map(name).collect();
    let prefixes = (0..PREFIXES_MAX as u16).map(|i| {
        Prefix::new(core::net::Ipv6Addr::from([0xfd, i, 0, 0, 0, 0, 0, 0]).into(), 64).unwrap()
    });
    let most = Member {
        name: name(0),
        security_groups: groups.clone(),
        groups,
        prefixes: prefixes.collect(),
        ..full()
    };
    assert!(most.sign(&authority()).unwrap().bytes().len() < DESCRIPTOR_LEN_MAX / 2);
}

#[test]
fn prefixes_have_no_bits_behind_them() {
    for text in ["10.1.0.0/16", "0.0.0.0/0", "fd00::/8", "::/0", "10.0.0.1/32", "fd00::1/128"] {
        assert_eq!(text.parse::<Prefix>().unwrap().to_string(), text);
    }
    assert_eq!("10.0.0.1".parse::<Prefix>().unwrap().bits(), 32);
    for text in ["10.1.0.0/15", "10.0.0.0/33", "fd00::1/64", "fd00::/129", "x/8", "10.0.0.0/", ""] {
        assert!(text.parse::<Prefix>().is_err(), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn decoded_members_encode_to_the_same_bytes(at in 0usize..400, value: u8, cut in 0usize..400) {
        let mut bytes = full().sign(&authority()).unwrap().bytes().to_vec();
        let len = bytes.len();
        bytes[at % len] = value;
        bytes.truncate(len - cut % 3);
        if let Ok(signed) = SignedMember::decode(&bytes) {
            let body = signed.member.body().unwrap();
            prop_assert_eq!(&body[..], &bytes[..bytes.len() - SIGNATURE_LEN]);
        }
    }

    #[test]
    fn each_value_has_one_encoding(
        groups in prop::collection::btree_set("[a-z]{1,5}", 0..4),
        prefixes in prop::collection::btree_set(1u8..100, 0..4),
        endpoint: Option<(u32, u16)>,
        interface: bool,
        ipv4: Option<u16>,
        second: Option<u16>,
        carrier: (bool, bool, Option<u32>),
        names in prop::collection::vec(prop::option::of("[a-z]{1,5}"), 4),
        unknown in prop::collection::btree_map(15u16..0x8000, ".{0,5}", 0..5),
    ) {
        let has_prefixes = !prefixes.is_empty();
        let prefix = |n| Prefix::new([10, n, 0, 0].into(), 16).unwrap();
        let field = |(number, text): (u16, String)| {
            Field { number, is_critical: false, value: text.into() }
        };
        let cover = names[3].clone().filter(|_| !carrier.0);
        let said = Member {
            groups: groups.into_iter().collect(),
            prefixes: prefixes.into_iter().map(prefix).collect(),
            endpoint: endpoint.map(|(ip, port)| (ip.to_be_bytes(), port).into()),
            interface: interface || has_prefixes,
            ipv4: ipv4.filter(|_| interface).map(|n| (u32::from(n) | 0x0a09_0000).into()),
            address: Address::new(1, cover.is_some().into()),
            second: second.filter(|_| cover.is_some()).map(|n| Address::new(2, n.max(1))),
            cover,
            carrier: CircuitRole {
                relay: carrier.0,
                exit: carrier.1,
                family: names[0].clone(),
                capacity: carrier.2.map(|n| 1 + n % crate::CAPACITY_MAX),
                near: names[1].clone(),
                mix: names[2].clone().filter(|_| carrier.0),
            },
            unknown: unknown.into_iter().map(field).collect(),
            ..member("bob", 2, &[])
        };
        let signed = said.clone().sign(&authority()).unwrap();
        let read = SignedMember::open(&authority().public(), signed.bytes()).unwrap();
        prop_assert_eq!(&read.member, &said);
        prop_assert_eq!(&read.member.sign(&authority()).unwrap(), &signed);
    }

    #[test]
    fn random_bytes_never_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = SignedMember::open(&authority().public(), &bytes);
        let _ = SignedMember::open(&authority().public(), &[MAGIC.as_slice(), &bytes].concat());
    }
}
