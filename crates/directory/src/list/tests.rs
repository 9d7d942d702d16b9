use super::*;
use crate::member::tests::{authority, member, of_later, unknown};
use crate::{Member, RotationStage, SecretChange};
use shoal_wire::Address;

fn content() -> ListContent {
    let sign = |member: Member| member.sign(&authority()).unwrap();
    ListContent {
        version: 7,
        issued_unix_s: 1_000_000,
        revoked: vec![RevokedKey::new("eve", &member("eve", 66, &[]).key)],
        policy: "[[allow]]\nfrom = \"a\"\nto = \"b\"\nproto = \"tcp\"\nports = [22]\n".into(),
        overlay: Some("fd00:1:2::/48".parse().unwrap()),
        secrets: None,
        mandates: vec![crate::mandate::tests::mandate("desk", 1)],
        preset: None,
        unknown: vec![unknown(false), Field { number: 1_000, ..unknown(false) }],
        members: vec![sign(member("bob", 2, &["b"])), sign(member("alice", 1, &["a"]))],
    }
}

#[test]
fn a_list_holds_what_was_signed() {
    let list = content().sign(&authority()).unwrap();
    let read = List::open(&authority().public(), list.bytes()).unwrap();
    assert_eq!(read, list);
    assert_eq!((read.content().version, read.content().members.len()), (7, 2));
    assert_eq!(read.policy().len(), 1);
    // The order of members does not affect the encoding.
    let mut other = content();
    other.members.reverse();
    other.unknown.reverse();
    assert_eq!(other.sign(&authority()).unwrap().bytes(), list.bytes());
}

#[test]
fn any_changed_byte_is_noticed() {
    let key = authority().public();
    let list = content().sign(&authority()).unwrap();
    let stranger = SigningKey::from_seed([1; 32]).public();
    assert_eq!(List::open(&stranger, list.bytes()), Err(Error::Signature));
    for at in 0..list.bytes().len() {
        let mut bytes = list.bytes().to_vec();
        bytes[at] ^= 0x10;
        assert!(List::open(&key, &bytes).is_err(), "byte {at}");
    }
    for len in 0..list.bytes().len() {
        assert!(List::open(&key, &list.bytes()[..len]).is_err(), "{len} bytes");
    }
    assert!(List::open(&key, &[list.bytes(), b"x"].concat()).is_err());
}

#[test]
fn members_of_another_list_are_not_taken() {
    let key = authority().public();
    let list = content().sign(&authority()).unwrap();
    let mut fewer = content();
    fewer.members.truncate(1);
    let fewer = fewer.sign(&authority()).unwrap();
    let head = |list: &List| list.bytes().len() - tail(list).len();
    let mixed = [&list.bytes()[..head(&list)], &tail(&fewer)].concat();
    assert_eq!(List::open(&key, &mixed), Err(Error::Signature));
}

fn tail(list: &List) -> Vec<u8> {
    let part = |m: &SignedMember| [&(m.bytes().len() as u16).to_be_bytes(), m.bytes()].concat();
    list.content().members.iter().flat_map(part).collect()
}

#[test]
fn contradictions_are_not_signed() {
    let wrong = |change: &dyn Fn(&mut ListContent)| {
        let mut content = content();
        change(&mut content);
        content.sign(&authority()).unwrap_err().to_string()
    };
    let add = |member: Member| {
        move |content: &mut ListContent| {
            content.members.push(member.clone().sign(&authority()).unwrap());
        }
    };
    let same_name = member("bob", 3, &[]);
    assert!(wrong(&add(same_name)).contains("\"bob\": two members have this name"));
    let same_key = Member { key: member("", 2, &[]).key, ..member("carol", 3, &[]) };
    assert!(wrong(&add(same_key)).contains("key is also that of \""));
    let same_address = Member { address: member("", 1, &[]).address, ..member("carol", 3, &[]) };
    let said = wrong(&add(same_address));
    assert!(said.contains("\"carol\"") && said.contains("\"alice\""), "both are named: {said}");
    let second = Some(member("", 1, &[]).address);
    let far = Member { address: Address::new(9, 9), second, ..member("carol", 3, &[]) };
    let said = wrong(&add(far));
    assert!(said.contains("\"alice\"") && said.contains("address 1.1"), "{said}");
    assert!(wrong(&add(member("eve", 66, &[]))).contains("\"eve\": the key is revoked"));
    let text = wrong(&|content| content.policy = "\n[[allow]]\nfrom = \"a\"\n".into());
    assert!(text.starts_with("policy: line 2: missing field `to`"), "{text}");
    let text = wrong(&|content| content.policy = "#".repeat(POLICY_MAX + 1));
    assert!(text.contains("65536 bytes"), "{text}");
}

const MIXES: &str = "[[mix]]\nname = \"slow\"\nkind = \"stop-and-go\"\nmean_ms = 5.0\n\
                     [[mix]]\nname = \"steps\"\nkind = \"timed\"\nevery_ms = 10\n";

#[test]
fn a_relay_has_a_strategy_that_the_policy_has() {
    let relay = |mix: &str| {
        let mut relay = crate::member::tests::relay("r1", 3, None);
        relay.carrier.mix = Some(mix.into());
        relay.sign(&authority()).unwrap()
    };
    let with = |policy: &str, mix: &str| {
        let mut content = content();
        content.policy += policy;
        content.members.push(relay(mix));
        content
    };
    let list = with(MIXES, "steps").sign(&authority()).unwrap();
    let read = List::open(&authority().public(), list.bytes()).unwrap();
    assert_eq!((&read, read.policy().mixes().iter().count()), (&list, 2));
    let mix = |signed: &SignedMember| signed.member.carrier.mix.clone();
    assert_eq!(read.content().members.iter().filter_map(mix).collect::<Vec<_>>(), ["steps"]);
    let refused = |policy, mix| with(policy, mix).sign(&authority()).unwrap_err().to_string();
    let said = "member \"r1\": no [[mix]] is called \"fast\": expected \"slow\" or \"steps\"";
    assert_eq!(refused(MIXES, "fast"), said);
    assert!(refused("", "slow").contains("there is none yet"));
}

#[test]
fn a_host_has_a_tier_that_the_policy_has() {
    let tiers = "[[cover]]\nname = \"home\"\nmbit = 10\n";
    let with = |policy: &str, tier: &str| {
        let mut content = content();
        content.policy += policy;
        let cover = Some(tier.to_owned());
        content
            .members
            .push(Member { cover, ..member("dave", 4, &[]) }.sign(&authority()).unwrap());
        content
    };
    let list = with(tiers, "home").sign(&authority()).unwrap();
    let read = List::open(&authority().public(), list.bytes()).unwrap();
    assert_eq!((&read, read.policy().tiers().iter().count()), (&list, 1));
    let refused = |policy, tier| with(policy, tier).sign(&authority()).unwrap_err().to_string();
    let said = "member \"dave\": no [[cover]] is called \"office\": expected \"home\"";
    assert_eq!(refused(tiers, "office"), said);
    assert!(refused("", "home").contains("there is none yet"));
    let text = refused("\n[[cover]]\nname = \"home\"\nmbit = 0\n", "home");
    assert!(text.starts_with("policy: line ") && text.contains("1 to 100 Mbit/s"), "{text}");
}

#[test]
fn unknown_fields_survive_what_this_version_signs() {
    let key = authority().public();
    let later = of_later(member("carol", 3, &[]));
    let mut content = content();
    content.members.push(later.clone());
    let list = content.sign(&authority()).unwrap();
    // A member is removed and the list signed again.
    let mut content = List::open(&key, list.bytes()).unwrap().content().clone();
    content.version += 1;
    content.members.retain(|signed| signed.member.name != "bob");
    let list = content.sign(&authority()).unwrap();
    let read = List::open(&key, list.bytes()).unwrap();
    assert_eq!(read.content().unknown, self::content().unknown);
    assert!(read.content().members.contains(&later), "byte for byte");
    // A member that this version ignores still holds its name, key and address.
    let mut content = read.content().clone();
    content.members.push(member("carol", 4, &[]).sign(&authority()).unwrap());
    let refused = content.sign(&authority()).unwrap_err().to_string();
    assert!(refused.contains("\"carol\": two members have this name"), "{refused}");
}

#[test]
fn an_unknown_critical_field_in_the_head_refuses_the_list() {
    let critical = ListContent { unknown: vec![unknown(true)], ..content() };
    assert_eq!(critical.clone().sign(&authority()).unwrap_err(), Error::Critical(777));
    // A list as a later version signs it: this version may be unable to read its members.
    let mut bytes = ListContent { members: Vec::new(), ..critical }.head(b"later").unwrap();
    let signature = authority().sign(&[LABEL, &bytes].concat());
    bytes.extend_from_slice(&signature);
    bytes.extend_from_slice(b"later");
    assert_eq!(List::open(&authority().public(), &bytes), Err(Error::Critical(777)));
    // A list with a wrong signature is refused for that, regardless of its fields.
    let stranger = SigningKey::from_seed([1; 32]).public();
    assert_eq!(List::open(&stranger, &bytes), Err(Error::Signature));
}

#[test]
fn a_list_in_the_first_format_says_what_to_do() {
    let refused = List::open(&authority().public(), b"SHL1 and more").unwrap_err().to_string();
    assert!(refused.starts_with("is a list of an authority in format 1"), "{refused}");
    assert!(refused.contains("sign every member anew"), "{refused}");
    let noise = List::open(&authority().public(), b"SHOUT").unwrap_err();
    assert_eq!(noise.to_string(), "is no list of an authority");
}

/// A count that is too high must cost nothing.
#[test]
fn great_counts_are_refused_early() {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&[0; 16]);
    bytes.extend_from_slice(&(REVOKED_MAX as u32 + 1).to_be_bytes());
    assert!(matches!(
        List::open(&authority().public(), &bytes),
        Err(Error::Parse(ParseError::TooLong { what: "revoked keys", .. }))
    ));
}

#[test]
fn one_prefix_has_one_member() {
    let with = |member: Member, prefix: &str| {
        let member = Member { prefixes: vec![prefix.parse().unwrap()], ..member };
        member.sign(&authority()).unwrap()
    };
    let list = |one: &str, other: &str| {
        let members = vec![with(member("a", 1, &[]), one), with(member("b", 2, &[]), other)];
        ListContent { members, ..content() }.sign(&authority())
    };
    assert!(list("10.1.0.0/16", "10.1.2.0/24").is_ok(), "the longer one decides");
    let refused = list("10.1.0.0/16", "10.1.0.0/16").unwrap_err().to_string();
    assert_eq!(refused, "member \"b\": its prefix 10.1.0.0/16 is also that of \"a\"");
}

#[test]
fn a_list_states_one_prefix_and_each_ipv4_address_once() {
    let of = |prefix: &str| ListContent { overlay: Some(prefix.parse().unwrap()), ..content() };
    let read = of("fdff:ffff:ffff::/48").sign(&authority()).unwrap();
    let read = List::open(&authority().public(), read.bytes()).unwrap();
    assert_eq!(read.content().overlay, Some("fdff:ffff:ffff::/48".parse().unwrap()));
    for prefix in ["fd00::/40", "fc00::/48", "2001:db8::/48", "10.0.0.0/8"] {
        let refused = of(prefix).sign(&authority()).unwrap_err().to_string();
        assert_eq!(refused, "the hosts' prefix must have 48 bits and be in fd00::/8");
    }
    let with = |name: &str, number, ipv4: [u8; 4]| {
        let member = Member { ipv4: Some(ipv4.into()), ..member(name, number, &[]) };
        member.sign(&authority()).unwrap()
    };
    let two = |ipv4| vec![with("alice", 1, [10, 9, 0, 1]), with("bob", 2, ipv4)];
    assert!(ListContent { members: two([10, 9, 0, 2]), ..content() }.sign(&authority()).is_ok());
    let twice = ListContent { members: two([10, 9, 0, 1]), ..content() };
    let refused = twice.sign(&authority()).unwrap_err().to_string();
    assert!(refused.contains("address 10.9.0.1"), "{refused}");
}

#[test]
fn a_list_names_secrets_of_which_two_count_at_most() {
    let (a, b) = ([1; 32], [2; 32]);
    let of = |current, change| {
        let secrets = Some(SecretNames { current, change });
        ListContent { secrets, ..content() }.sign(&authority())
    };
    let switched = RotationStage::Switched(1_000);
    for (change, newest, others, stages) in [
        (SecretChange::Settled, a, [None, None], [RotationStage::Settled; 2]),
        (SecretChange::Next(b), b, [Some(b), Some(b)], [RotationStage::Announced; 2]),
        (SecretChange::Previous(b, 1_000), a, [Some(b), None], [switched, RotationStage::Settled]),
    ] {
        let list = of(a, change).unwrap();
        let read = List::open(&authority().public(), list.bytes()).unwrap();
        assert_eq!(read, list);
        let names = read.content().secrets.unwrap();
        assert_eq!(names, SecretNames { current: a, change });
        assert_eq!(names.newest(), newest);
        assert_eq!([999, 1_000].map(|unix_s| names.other(unix_s)), others);
        assert_eq!([999, 1_000].map(|unix_s| names.stage(unix_s)), stages);
    }
    for change in [SecretChange::Next(a), SecretChange::Previous(a, 1)] {
        let refused = of(a, change).unwrap_err().to_string();
        assert_eq!(refused, "the next or previous secret must differ from the current one");
    }
}

#[test]
fn names_of_secrets_have_one_encoding() {
    let read = |bytes: &[u8]| {
        let mut reader = Reader::new(bytes);
        let names = SecretNames::read(&mut reader)?;
        reader.finish("secrets")?;
        Ok::<_, Error>(names)
    };
    let name = [7; 32];
    let whole = [&name[..], &[2], &[8; 32], &5u64.to_be_bytes()].concat();
    let change = SecretChange::Previous([8; 32], 5);
    assert_eq!(read(&whole), Ok(SecretNames { current: name, change }));
    for len in 0..whole.len() {
        assert!(read(&whole[..len]).is_err(), "{len} bytes");
    }
    assert!(read(&[&whole[..], &[0]].concat()).is_err());
    for kind in 3..=255 {
        let bytes = [&name[..], &[kind], &[8; 40]].concat();
        assert_eq!(read(&bytes), Err(ParseError::Invalid { what: "secrets" }.into()));
    }
}
