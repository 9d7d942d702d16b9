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
        expires_unix_s: 2_000_000,
        endpoint: None,
        groups: groups.iter().map(|group| group.to_string()).collect(),
        security_groups: Vec::new(),
        prefixes: Vec::new(),
    }
}

fn full() -> Member {
    Member {
        endpoint: Some("[2001:db8::1]:7400".parse().unwrap()),
        security_groups: vec!["vault".into()],
        prefixes: vec!["fd00:1::/64".parse().unwrap(), "10.1.0.0/16".parse().unwrap()],
        ..member("bob", 2, &["staff", "admins", "staff"])
    }
}

#[test]
fn a_descriptor_holds_what_was_signed_in_one_form() {
    let signed = full().sign(&authority()).unwrap();
    assert_eq!(signed.member.groups, ["admins", "staff"]);
    assert_eq!(signed.member.prefixes[0].to_string(), "10.1.0.0/16");
    let read = Signed::open(&authority().public(), signed.bytes()).unwrap();
    assert_eq!(read, signed);
}

#[test]
fn any_changed_byte_is_noticed() {
    let signed = full().sign(&authority()).unwrap();
    let other = SigningKey::from_seed([8; 32]).public();
    assert_eq!(Signed::open(&other, signed.bytes()), Err(Error::Signature));
    for at in 0..signed.bytes().len() {
        let mut bytes = signed.bytes().to_vec();
        bytes[at] ^= 1;
        assert!(Signed::open(&authority().public(), &bytes).is_err(), "byte {at}");
    }
    for len in 0..signed.bytes().len() {
        assert!(Signed::open(&authority().public(), &signed.bytes()[..len]).is_err());
    }
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
    // The longest that may be fits the two bytes of its length in a list.
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
    assert!(most.sign(&authority()).unwrap().bytes().len() < usize::from(u16::MAX));
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
    fn what_decodes_encodes_to_the_same_bytes(at in 0usize..400, value: u8, cut in 0usize..400) {
        let mut bytes = full().sign(&authority()).unwrap().bytes().to_vec();
        let len = bytes.len();
        bytes[at % len] = value;
        bytes.truncate(len - cut % 3);
        if let Ok(signed) = Signed::decode(&bytes) {
            let body = signed.member.body();
            prop_assert_eq!(&body[..], &bytes[..bytes.len() - SIGNATURE_LEN]);
        }
    }

    #[test]
    fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Signed::open(&authority().public(), &bytes);
        let _ = Signed::open(&authority().public(), &[MAGIC.as_slice(), &bytes].concat());
    }
}
