//! Routers of a mandate: numbers, families, endpoints and rights.

use super::*;
use crate::mandate::tests::{mandate, registrar, rights};
use crate::member::tests;
use crate::{MandateRights, fold};
use proptest::prelude::*;
use shoal_wire::Address;

const NOW: u64 = 10_000;

/// A mandate with routers 10 to 19 and 30, at most three of two families.
fn with_rights() -> Mandate {
    Mandate { most: 9, rights: rights(), ..mandate("a", 1) }
}

/// A relay with the key of this seed.
fn router(name: &str, seed: u8, number: u32) -> Member {
    let family = Some("acme".into());
    Member {
        address: Address::new(number, 0),
        expires_unix_s: NOW + 500,
        endpoint: Some(([192, 0, 2, seed], 7_400).into()),
        interface: false,
        carrier: CircuitRole { relay: true, family, ..CircuitRole::default() },
        ..tests::member(name, seed, &["staff"])
    }
}

fn family(router: Member, family: &str) -> Member {
    let carrier = CircuitRole { family: Some(family.into()), ..router.carrier };
    Member { carrier, ..router }
}

fn add(member: Member) -> StepEntry {
    StepEntry::Member(Box::new(member))
}

fn remove(seed: u8) -> StepEntry {
    StepEntry::remove(&tests::member("", seed, &[]).key)
}

fn say(register: &mut Register, entries: Vec<StepEntry>) -> Result<(), MandateViolation> {
    let (mandate, number, previous) = (register.id(), register.len() + 1, register.head());
    let step = Step { mandate, number, previous, issued_unix_s: NOW, entries };
    let step = step.sign(&registrar(1)).unwrap();
    let before = (register.routers_given(), register.families().clone(), register.head());
    let checked = register.check(NOW, &step);
    assert_eq!(
        before,
        (register.routers_given(), register.families().clone(), register.head()),
        "a check leaves no trace"
    );
    let applied = register.apply(NOW, &step).map(|_| ());
    assert_eq!(checked, applied, "check() predicts the result of apply()");
    if applied.is_err() {
        let after = (register.routers_given(), register.families().clone(), register.head());
        assert_eq!(before, after, "a refused step leaves no trace");
    }
    applied.map_err(|why| match why {
        StepRejection::Bad(why) => why,
        other => panic!("{other:?}"),
    })
}

fn with_r10() -> Register {
    let mut register = Register::new(with_rights());
    assert_eq!(say(&mut register, vec![add(router("r10", 10, 10))]), Ok(()));
    register
}

#[test]
fn a_router_needs_what_routers_have_and_the_right_to_it() {
    let under = |rights: MandateRights, change: &dyn Fn(&mut Member)| {
        let mut register = Register::new(Mandate { rights, ..with_rights() });
        say(&mut register, vec![add(router("r10", 10, 10))]).ok();
        let mut changed = router("r11", 11, 11);
        change(&mut changed);
        // An entry before the bad one is undone, too.
        say(&mut register, vec![add(router("r30", 30, 30)), add(changed)])
    };
    let of = |change: &dyn Fn(&mut Member)| under(rights(), change).unwrap_err();
    assert_eq!(under(rights(), &|_| {}), Ok(()));
    assert_eq!(of(&|m| m.address = Address::new(9, 0)), MandateViolation::Number);
    assert_eq!(of(&|m| m.address = Address::new(31, 0)), MandateViolation::Number);
    assert_eq!(of(&|m| m.address = Address::new(30, 0)), MandateViolation::Taken);
    assert_eq!(of(&|m| m.carrier.family = None), MandateViolation::Family);
    assert_eq!(of(&|m| m.carrier.exit = true), MandateViolation::Beyond);
    assert_eq!(of(&|m| m.cover = Some("home".into())), MandateViolation::Descriptor);
    assert_eq!(of(&|m| m.endpoint = None), MandateViolation::Endpoint);
    for at in [
        "0.0.0.0:1",
        "192.0.2.1:0",
        "224.0.0.1:1",
        "255.255.255.255:1",
        "169.254.169.254:1",
        "10.9.1.7:1",
        "[::]:1",
        "[ff02::1]:1",
        "[fe80::1]:1",
        "[::ffff:192.0.2.1]:1",
    ] {
        assert_eq!(of(&|m| m.endpoint = at.parse().ok()), MandateViolation::Endpoint, "{at}");
    }
    let taken = router("r10", 10, 10).endpoint;
    assert_eq!(of(&|m| m.endpoint = taken), MandateViolation::TakenEndpoint);
    let mix = |m: &mut Member| m.carrier.mix = Some("slow".into());
    assert_eq!(under(rights(), &mix), Ok(()));
    let no_mix = MandateRights { mix: false, ..rights() };
    assert_eq!(under(no_mix, &mix), Err(MandateViolation::Mix));
    let no_relay = MandateRights { relay: false, ..rights() };
    assert_eq!(under(no_relay.clone(), &|_| {}), Err(MandateViolation::Relay));
    let plain = |m: &mut Member| m.carrier.relay = false;
    let mut register = Register::new(Mandate { rights: no_relay, ..with_rights() });
    let mut r10 = router("r10", 10, 10);
    plain(&mut r10);
    assert_eq!(say(&mut register, vec![add(r10)]), Ok(()), "a router needs not be a relay");
}

#[test]
fn hosts_behind_any_router_and_tiers_need_their_rights() {
    let host = |number, cover: Option<&str>| Member {
        address: Address::new(77, number),
        expires_unix_s: NOW + 500,
        cover: cover.map(Into::into),
        ..tests::member("bob", 2, &["staff"])
    };
    let under = |rights: MandateRights, member| {
        say(&mut Register::new(Mandate { rights, ..with_rights() }), vec![add(member)])
    };
    assert_eq!(under(rights(), host(5_000, Some("home"))), Ok(()));
    assert_eq!(under(rights(), host(4_999, None)), Err(MandateViolation::Address));
    let no_cover = MandateRights { cover: false, ..rights() };
    assert_eq!(under(no_cover.clone(), host(5_000, None)), Ok(()));
    assert_eq!(under(no_cover, host(5_000, Some("home"))), Err(MandateViolation::Cover));
    let named = || MandateRights { tiers: vec!["home".into()], ..rights() };
    assert_eq!(under(named(), host(5_000, Some("home"))), Ok(()));
    assert_eq!(under(named(), host(5_000, None)), Ok(()));
    for other in ["work", "Home", "hom"] {
        assert_eq!(under(named(), host(5_000, Some(other))), Err(MandateViolation::Cover));
    }
}

#[test]
fn a_second_address_is_taken_and_freed_with_its_host() {
    let host = |name: &str, seed, first, second| Member {
        address: Address::new(77, first),
        second: Some(Address::new(78, second)),
        expires_unix_s: NOW + 500,
        ..tests::member(name, seed, &["staff"])
    };
    let mut register = Register::new(with_rights());
    let low = host("bob", 2, 5_000, 4_999);
    assert_eq!(say(&mut register, vec![add(low)]), Err(MandateViolation::Address));
    assert_eq!(say(&mut register, vec![add(host("bob", 2, 5_000, 5_000))]), Ok(()));
    let clash = host("carol", 3, 5_001, 5_000);
    assert_eq!(say(&mut register, vec![add(clash.clone())]), Err(MandateViolation::Taken));
    let first = Member { address: Address::new(78, 5_000), second: None, ..clash.clone() };
    assert_eq!(say(&mut register, vec![add(first)]), Err(MandateViolation::Taken));
    let newer = Member { version: 2, second: None, ..host("bob", 2, 5_000, 5_000) };
    assert_eq!(say(&mut register, vec![add(newer), add(clash)]), Ok(()));
}

#[test]
fn a_second_address_is_that_of_a_host_at_another_router_within_the_mandate() {
    let of = |change: &dyn Fn(&mut Member)| {
        let mut host = Member {
            address: Address::new(77, 5_000),
            second: Some(Address::new(78, 5_999)),
            expires_unix_s: NOW + 500,
            ..tests::member("bob", 2, &["staff"])
        };
        change(&mut host);
        say(&mut with_r10(), vec![add(host)])
    };
    let at = |router, host| move |m: &mut Member| m.second = Some(Address::new(router, host));
    assert_eq!(of(&|_| {}), Ok(()));
    assert_eq!(of(&at(10, 5_000)), Ok(()), "at a router of the mandate, too");
    for host in [1, 4_999, 6_000, u16::MAX] {
        assert_eq!(of(&at(78, host)), Err(MandateViolation::Address), "{host}");
    }
    // Numbers 1.100 to 1.199 are the mandate's behind that router alone.
    assert_eq!(of(&at(1, 100)), Ok(()));
    assert_eq!(of(&at(2, 100)), Err(MandateViolation::Address));
    assert_eq!(of(&at(77, 5_001)), Err(MandateViolation::Descriptor), "the first one's router");
    assert_eq!(of(&at(77, 5_000)), Err(MandateViolation::Descriptor), "the first address");
    assert_eq!(of(&at(78, 0)), Err(MandateViolation::Descriptor), "a router's address");
    let outside = |m: &mut Member| m.address = Address::new(77, 4_999);
    assert_eq!(of(&outside), Err(MandateViolation::Address), "a good second one is not enough");
    let mut r11 = router("r11", 11, 11);
    r11.second = Some(Address::new(78, 5_000));
    assert_eq!(say(&mut with_r10(), vec![add(r11)]), Err(MandateViolation::Descriptor));
}

#[test]
fn a_router_number_goes_to_no_second_router() {
    let mut register = with_r10();
    assert_eq!(say(&mut register, vec![remove(10)]), Ok(()));
    let other = |seed| router("other", seed, 10);
    assert_eq!(say(&mut register, vec![add(other(11))]), Err(MandateViolation::Number));
    // A renewal keeps the number, and a new key in the step that removes the old one takes it over.
    let mut register = with_r10();
    let newer = Member { version: 2, endpoint: other(77).endpoint, ..router("r10", 10, 10) };
    assert_eq!(say(&mut register, vec![add(newer)]), Ok(()));
    assert_eq!(say(&mut register, vec![remove(10), add(other(11))]), Ok(()));
    assert_eq!((register.routers_given(), register.is_given(10)), (1, true));
    // A membership that expired frees no number.
    let mut register = with_r10();
    let (mandate, previous) = (register.id(), register.head());
    let entries = vec![add(Member { expires_unix_s: NOW + 900, ..other(11) })];
    let late = Step { mandate, number: 2, previous, issued_unix_s: NOW + 600, entries };
    let late = register.apply(NOW + 600, &late.sign(&registrar(1)).unwrap());
    assert_eq!(late, Err(StepRejection::Bad(MandateViolation::Number)));
}

#[test]
fn routers_and_families_ever_given_are_limited() {
    let mut register = with_r10();
    assert_eq!(say(&mut register, vec![add(router("r11", 11, 11)), remove(11)]), Ok(()));
    assert_eq!(say(&mut register, vec![add(router("r12", 12, 12))]), Ok(()));
    let more = vec![add(router("r13", 13, 13))];
    assert_eq!(say(&mut register, more), Err(MandateViolation::Routers));
    let mut register = with_r10();
    let r11 = |name: &str| vec![add(family(router("r11", 11, 11), name))];
    assert_eq!(say(&mut register, r11("zoo")), Ok(()));
    let r12 = |name: &str| vec![add(family(router("r12", 12, 12), name))];
    assert_eq!(say(&mut register, r12("other")), Err(MandateViolation::Family));
    assert_eq!(say(&mut register, r12("ZOO.")), Ok(()), "one family by the rules of names");
    assert_eq!(register.families().iter().collect::<Vec<_>>(), ["acme", "zoo"]);
    // Neither a renewal with another number nor a removal brings a number back.
    let moved = Member { version: 2, ..router("r12", 12, 13) };
    assert_eq!(say(&mut register, vec![add(moved)]), Err(MandateViolation::Routers));
}

#[test]
fn a_mandate_without_routers_ends_the_chain_at_the_first_one() {
    let mut register = with_r10();
    let bob = Member { expires_unix_s: NOW + 500, ..tests::member("bob", 2, &[]) };
    let bob = Member { address: Address::new(1, 102), ..bob };
    assert_eq!(say(&mut register, vec![add(bob)]), Ok(()));
    let narrow = register.under(Mandate { rights: MandateRights::default(), ..with_rights() });
    assert_eq!(narrow.len(), 0);
    let fewer = MandateRights { routers_most: 1, families_most: 1, ..rights() };
    assert_eq!(register.under(Mandate { rights: fewer, ..with_rights() }).len(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// No register holds a router, a family or an endpoint beyond its mandate, whatever a registrar
    /// signs. Nodes with the same steps have the same routers.
    #[test]
    fn no_router_is_beyond_the_mandate(
        steps in prop::collection::vec(
            prop::collection::vec((0u8..8, 8u32..22, 0u8..4, 0u8..16), 1..4),
            1..16,
        ),
    ) {
        let mut register = Register::new(with_rights());
        let mut owners = std::collections::BTreeMap::new();
        for (i, entries) in steps.into_iter().enumerate() {
            let entry = |(seed, number, name, bits): (u8, u32, u8, u8)| {
                if bits & 3 == 3 {
                    return remove(seed);
                }
                let named = ["acme", "ACME", "zoo", "third"][usize::from(name)];
                let mut member = family(router(&format!("n{seed}"), seed, number), named);
                member.version = i as u64;
                member.carrier.relay = bits & 4 == 0;
                if bits & 8 != 0 {
                    member.endpoint = Some(([192, 0, 2, 99], 1).into());
                }
                add(member)
            };
            let _ = say(&mut register, entries.into_iter().map(entry).collect());
            let rights = rights();
            prop_assert!(register.routers_given() <= usize::from(rights.routers_most));
            prop_assert!(register.families().len() <= usize::from(rights.families_most));
            for member in register.members() {
                prop_assert!(rights.may_number(member.address.router));
                let folded = fold(member.carrier.family.as_deref().unwrap());
                prop_assert!(register.families().contains(&folded));
                let same = |other: &&Member| other.endpoint == member.endpoint;
                prop_assert_eq!(register.members().filter(same).count(), 1);
                // A number changes its key only if the key before is removed.
                let before = owners.insert(member.address.router, member.key);
                prop_assert!(before.is_none_or(|k| k == member.key || register.is_removed(&k)));
            }
        }
        let again = register.under(with_rights());
        prop_assert!(again.members().eq(register.members()));
        prop_assert_eq!(again.families(), register.families());
    }

    /// No register holds an address beyond its mandate or one address twice, as first or second
    /// one, whatever a registrar signs.
    #[test]
    fn no_second_address_is_beyond_the_mandate_or_anothers(
        hosts in prop::collection::vec(
            (0u8..5, 77u32..80, 4_998u16..5_003, prop::option::of((77u32..80, 0usize..3)), 0u8..8),
            1..24,
        ),
    ) {
        let mut register = Register::new(with_rights());
        for (i, (seed, router, number, second, bits)) in hosts.into_iter().enumerate() {
            let entry = if bits == 0 {
                remove(seed)
            } else {
                let second = second.map(|(at, n)| Address::new(at, [0, 5_000, 5_001][n]));
                add(Member {
                    version: i as u64 + 1,
                    address: Address::new(router, number),
                    second,
                    expires_unix_s: NOW + 500,
                    ..tests::member(&format!("h{seed}"), seed, &[])
                })
            };
            let _ = say(&mut register, vec![entry]);
            let mandate = with_rights();
            let mut all = std::collections::BTreeSet::new();
            for member in register.members() {
                let addresses = member.addresses();
                prop_assert_eq!(addresses.check(), Ok(()));
                for address in addresses.iter() {
                    prop_assert!(mandate.may_give(address) && !address.is_router());
                    prop_assert!(all.insert(address), "{} is given twice", address);
                }
            }
        }
        let again = register.under(with_rights());
        prop_assert!(again.members().eq(register.members()));
    }

    /// No register holds a tier that its mandate does not name, and narrower tiers end the chain
    /// before the first member beyond them.
    #[test]
    fn no_tier_is_beyond_the_mandate(
        tiers in prop::collection::vec(0u8..4, 1..12),
        named in prop::collection::btree_set(0u8..3, 0..3),
    ) {
        const NAMES: [&str; 3] = ["home", "work", "road"];
        let named: Vec<String> =
            named.into_iter().map(|at| NAMES[usize::from(at)].to_owned()).collect();
        let cover = MandateRights { tiers: named, ..rights() };
        let mandate = Mandate { rights: cover.clone(), ..with_rights() };
        let mut register = Register::new(mandate);
        for (i, tier) in tiers.into_iter().enumerate() {
            let seed = (i % 6) as u8;
            let host = Member {
                version: i as u64 + 1,
                address: Address::new(77, 5_000 + u16::from(seed)),
                expires_unix_s: NOW + 500,
                cover: NAMES.get(usize::from(tier)).map(|name| name.to_string()),
                ..tests::member(&format!("h{seed}"), seed, &[])
            };
            let is_allowed = host.cover.as_ref().is_none_or(|tier| cover.may_cover(tier));
            let said = say(&mut register, vec![add(host)]);
            prop_assert_eq!(said, if is_allowed { Ok(()) } else { Err(MandateViolation::Cover) });
        }
        let narrow = MandateRights { tiers: vec!["none".into()], ..cover };
        let narrow = register.under(Mandate { rights: narrow, ..with_rights() });
        prop_assert!(narrow.members().all(|member| member.cover.is_none()));
    }
}
