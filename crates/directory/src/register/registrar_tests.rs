//! Registrars that a registrar makes: each violation, and what is left to both.

use super::*;
use crate::mandate::tests::{mandate, registrar, rights};
use crate::member::tests;
use crate::{HostRange, MandateRights, NumberRange, RouterRange};
use proptest::prelude::*;
use shoal_wire::Address;

const NOW: u64 = 10_000;

/// A mandate with routers 10 to 19 and 30, that may make two registrars.
fn first() -> Mandate {
    let rights = MandateRights { registrars: 2, routers_most: 6, families_most: 4, ..rights() };
    Mandate { most: 9, rights, ..mandate("a", 1) }
}

/// A registrar's part: hosts behind router 30 and routers 15 to 17.
fn part(seed: u8) -> Mandate {
    let rights = MandateRights {
        routers: vec![RouterRange { first: 15, last: 17 }],
        relay: true,
        routers_most: 2,
        families_most: 1,
        family: Some("friends".into()),
        ..MandateRights::default()
    };
    Mandate {
        name: "second".into(),
        key: registrar(seed).public(),
        hosts: vec![HostRange { router: 30, first: 5_000, last: 5_999 }],
        ipv4: Some("10.9.1.128/25".parse().unwrap()),
        most: 4,
        rights,
        ..mandate("a", 1)
    }
}

fn say(register: &mut Register, entries: Vec<StepEntry>) -> Result<(), MandateViolation> {
    let (mandate, number, previous) = (register.id(), register.len() + 1, register.head());
    let step = Step { mandate, number, previous, issued_unix_s: NOW, entries };
    let step = step.sign(&registrar(1)).unwrap();
    let trace = |register: &Register| {
        let made: Vec<_> = register.delegated().map(|made| made.id()).collect();
        (made, register.remainder(), register.head())
    };
    let before = trace(register);
    let checked = register.check(NOW, &step);
    assert_eq!(before, trace(register), "a check leaves no trace");
    let applied = register.apply(NOW, &step).map(|_| ());
    assert_eq!(checked, applied, "check() predicts the result of apply()");
    if applied.is_err() {
        assert_eq!(before, trace(register), "a refused step leaves no trace");
    }
    applied.map_err(|why| match why {
        StepRejection::Bad(why) => why,
        other => panic!("{other}"),
    })
}

fn make(part: Mandate) -> StepEntry {
    StepEntry::Registrar(Box::new(part))
}

fn add(member: Member) -> StepEntry {
    StepEntry::Member(Box::new(member))
}

fn host(name: &str, seed: u8, router: u32, number: u16) -> Member {
    Member {
        address: Address::new(router, number),
        expires_unix_s: NOW + 500,
        ..tests::member(name, seed, &["staff"])
    }
}

fn router(name: &str, seed: u8, number: u32, family: &str) -> Member {
    let carrier =
        CircuitRole { relay: true, family: Some(family.into()), ..CircuitRole::default() };
    Member {
        endpoint: Some(([192, 0, 2, seed], 7_400).into()),
        interface: false,
        carrier,
        ..host(name, seed, number, 0)
    }
}

#[test]
fn a_part_of_the_mandate_is_no_longer_the_first_registrars() {
    let mut register = Register::new(first());
    let all = register.remainder();
    assert_eq!((all.keys, all.routers, all.families, all.registrars), (9, 6, 4, 2));
    let both = vec![add(router("second", 5, 30, "friends")), make(part(2))];
    assert_eq!(say(&mut register, both), Ok(()));
    let left = register.remainder();
    assert_eq!((left.keys, left.routers, left.families, left.registrars), (4, 3, 2, 1));
    assert_eq!(register.delegated_by_name("second"), Some(part(2).id()));
    // Members with the second one's addresses are refused, others are not.
    let given = Err(MandateViolation::Given);
    assert_eq!(say(&mut register, vec![add(host("x", 6, 30, 5_001))]), given);
    assert_eq!(say(&mut register, vec![add(router("x", 6, 16, "acme"))]), given);
    let at = Some([10, 9, 1, 200].into());
    let member = Member { ipv4: at, ..host("x", 6, 1, 101) };
    assert_eq!(say(&mut register, vec![add(member)]), given);
    assert_eq!(say(&mut register, vec![add(host("x", 6, 11, 5_001))]), Ok(()));
    assert_eq!(say(&mut register, vec![add(router("y", 7, 18, "acme"))]), Ok(()));
    // The key of the other registrar is no member's.
    let own = Member { key: part(2).key, ..host("z", 8, 1, 102) };
    assert_eq!(say(&mut register, vec![add(own)]), Err(MandateViolation::Beyond));
    // The second one's limits are not the first one's.
    let more = [8, 9, 10].map(|n: u8| add(host(&format!("h{n}"), n, 1, 100 + u16::from(n))));
    assert_eq!(say(&mut register, more[..2].to_vec()), Ok(()));
    assert_eq!(register.remainder().keys, 0);
    assert_eq!(say(&mut register, more[2..3].to_vec()), Err(MandateViolation::Most));
    assert_eq!(register.under(first()).remainder(), register.remainder());
}

#[test]
fn each_violation_has_its_name() {
    let refused = |change: &dyn Fn(&mut Mandate)| {
        let mut register = Register::new(first());
        let entries = vec![add(host("x", 6, 1, 150)), add(router("r", 7, 10, "acme"))];
        say(&mut register, entries).unwrap();
        let mut part = part(2);
        change(&mut part);
        say(&mut register, vec![make(part)])
    };
    assert_eq!(refused(&|_| {}), Ok(()));
    let exceeds = Err(MandateViolation::Exceeds);
    let range = |router, first, last| HostRange { router, first, last };
    assert_eq!(refused(&|part| part.hosts = vec![range(30, 4_999, 5_010)]), exceeds);
    assert_eq!(refused(&|part| part.hosts = vec![range(1, 190, 200)]), exceeds);
    assert_eq!(refused(&|part| part.rights.routers[0].last = 20), exceeds);
    assert_eq!(refused(&|part| part.ipv4 = Some("10.9.0.0/16".parse().unwrap())), exceeds);
    assert_eq!(refused(&|part| part.groups.push("wheel".into())), exceeds);
    assert_eq!(refused(&|part| part.longest_s += 1), exceeds);
    assert_eq!(refused(&|part| part.until_unix_s += 1), exceeds);
    // Two of nine keys, one of six routers and one of four families are given.
    assert_eq!(refused(&|part| part.most = 7), Ok(()));
    assert_eq!(refused(&|part| part.most = 8), exceeds);
    let wide = |part: &mut Mandate, most| {
        part.rights.routers = vec![RouterRange { first: 12, last: 19 }];
        part.rights.routers_most = most;
    };
    assert_eq!(refused(&|part| wide(part, 5)), Ok(()));
    assert_eq!(refused(&|part| wide(part, 6)), exceeds);
    assert_eq!(refused(&|part| part.rights.families_most = 4), exceeds);
    let numbers = Some(NumberRange { first: 5_000, last: 5_001 });
    assert_eq!(refused(&|part| part.rights.numbers = numbers), exceeds);
    let inside = || vec!["10.9.1.7:7401".parse().unwrap()];
    assert_eq!(refused(&|part| (part.ipv4, part.rights.door) = (None, inside())), exceeds);
    let given = Err(MandateViolation::Given);
    assert_eq!(refused(&|part| part.hosts = vec![range(1, 150, 160)]), given);
    assert_eq!(refused(&|part| part.rights.routers[0].first = 10), given);
    let sub = Err(MandateViolation::SubRegistrar);
    assert_eq!(refused(&|part| part.rights.registrars = 1), sub);
    let key = Err(MandateViolation::RegistrarKey);
    assert_eq!(refused(&|part| part.key = registrar(1).public()), key);
    assert_eq!(refused(&|part| part.key = host("x", 6, 1, 150).key), key);
    assert_eq!(refused(&|part| part.name = "a".into()), Err(MandateViolation::Name));
    // Without the right, or once all are made.
    let none = MandateRights { registrars: 0, ..first().rights };
    let mut register = Register::new(Mandate { rights: none, ..first() });
    let registrars = Err(MandateViolation::Registrars);
    assert_eq!(say(&mut register, vec![make(part(2))]), registrars);
}

#[test]
fn two_registrars_share_nothing_and_a_withdrawn_one_stays_away() {
    let mut register = Register::new(first());
    say(&mut register, vec![make(part(2))]).unwrap();
    let other = |change: &dyn Fn(&mut Mandate)| {
        let mut part = Mandate {
            name: "third".into(),
            hosts: vec![HostRange { router: 31, first: 5_000, last: 5_999 }],
            ipv4: None,
            most: 1,
            rights: MandateRights::default(),
            ..part(3)
        };
        change(&mut part);
        vec![make(part)]
    };
    let mut again = |change: &dyn Fn(&mut Mandate)| say(&mut register, other(change));
    let same_hosts = |mandate: &mut Mandate| mandate.hosts = part(2).hosts;
    assert_eq!(again(&same_hosts), Err(MandateViolation::Given));
    let behind = |mandate: &mut Mandate| mandate.hosts[0].router = 16;
    assert_eq!(again(&behind), Err(MandateViolation::Given), "behind a router of the second");
    let same_key = |mandate: &mut Mandate| (mandate.key, mandate.serial) = (part(2).key, 7);
    assert_eq!(again(&same_key), Err(MandateViolation::RegistrarKey));
    let same_name = |mandate: &mut Mandate| mandate.name = "second".into();
    assert_eq!(again(&same_name), Err(MandateViolation::Name));
    assert_eq!(again(&|_| {}), Ok(()));
    let fourth = |mandate: &mut Mandate| {
        (mandate.name, mandate.key) = ("fourth".into(), registrar(4).public());
    };
    assert_eq!(again(&fourth), Err(MandateViolation::Registrars));
    let withdraw = |register: &mut Register, id| say(register, vec![StepEntry::Withdrawn(id)]);
    let stranger = withdraw(&mut register, mandate("x", 9).id());
    assert_eq!(stranger, Err(MandateViolation::NoRegistrar));
    assert_eq!(withdraw(&mut register, part(2).id()), Ok(()));
    assert_eq!(withdraw(&mut register, part(2).id()), Err(MandateViolation::NoRegistrar));
    assert_eq!((register.delegated().count(), register.remainder().registrars), (1, 0));
    let back = vec![add(host("x", 6, 30, 5_001))];
    assert_eq!(say(&mut register, back), Err(MandateViolation::Given), "nobody gets its part");
}

#[test]
fn a_second_address_is_judged_as_a_first_one() {
    let at_two = |seed: u8, router, number| {
        let second = Some(Address::new(router, number));
        Member { second, ..host(&format!("h{seed}"), seed, 1, 100 + u16::from(seed)) }
    };
    let mut register = Register::new(first());
    say(&mut register, vec![add(at_two(6, 11, 5_001)), make(part(2))]).unwrap();
    let given = Err(MandateViolation::Given);
    assert_eq!(say(&mut register, vec![add(at_two(7, 30, 5_001))]), given);
    assert_eq!(say(&mut register, vec![add(at_two(7, 11, 5_002))]), Ok(()));
    let mut early = Register::new(first());
    say(&mut early, vec![add(at_two(6, 30, 5_001))]).unwrap();
    assert_eq!(say(&mut early, vec![make(part(2))]), given, "a member has it");
    // The second registrar gives none outside its part.
    let mut second = Register::new(part(2));
    let own = host("x", 8, 30, 5_003);
    let beyond = Member { second: Some(Address::new(11, 5_003)), ..own.clone() };
    assert_eq!(say(&mut second, vec![add(beyond)]), Err(MandateViolation::Address));
    assert_eq!(say(&mut second, vec![add(own)]), Ok(()));
}

/// Makes a registrar with the tiers `theirs`, under a mandate with the tiers `ours`.
fn made(ours: &[&str], theirs: Option<&[&str]>) -> Result<(), MandateViolation> {
    let named = |tiers: &[&str]| tiers.iter().map(|tier| tier.to_string()).collect::<Vec<_>>();
    let rights = MandateRights { cover: true, tiers: named(ours), ..first().rights };
    let mut register = Register::new(Mandate { rights, ..first() });
    let (cover, tiers) = (theirs.is_some(), named(theirs.unwrap_or_default()));
    let rights = MandateRights { cover, tiers, ..part(2).rights };
    say(&mut register, vec![make(Mandate { rights, ..part(2) })])
}

#[test]
fn a_part_has_no_tier_that_the_mandate_lacks() {
    let exceeds = Err(MandateViolation::Exceeds);
    assert_eq!(made(&["home"], None), Ok(()));
    assert_eq!(made(&["home"], Some(&["home"])), Ok(()));
    assert_eq!(made(&["home"], Some(&["home", "work"])), exceeds);
    assert_eq!(made(&["home"], Some(&[])), exceeds, "every tier");
    assert_eq!(made(&[], Some(&[])), Ok(()));
    assert_eq!(made(&[], Some(&["work"])), Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever a registrar signs, no address belongs to two registrars, and no limit is exceeded.
    #[test]
    fn parts_are_disjoint_and_within_the_mandate(
        steps in prop::collection::vec(
            (any::<bool>(), 2_u8..9, 10_u32..20, 0_u32..4, 1_u32..6), 0..24,
        ),
    ) {
        let mut register = Register::new(first());
        for (n, (makes, seed, number, width, most)) in steps.into_iter().enumerate() {
            let name = format!("n{n}");
            let entry = if makes {
                let routers = vec![RouterRange { first: number, last: number + width }];
                let routers_most = (width + 1).min(most) as u16;
                let rights = MandateRights { routers, routers_most, ..part(2).rights };
                let hosts = vec![HostRange { router: number, first: 5_000, last: 5_100 }];
                make(Mandate { name, hosts, most, rights, ipv4: None, ..part(seed) })
            } else {
                add(router(&name, 20 + n as u8, number, "acme"))
            };
            let _refused = say(&mut register, vec![entry]);
            let made: Vec<_> = register.delegated().cloned().collect();
            for (i, one) in made.iter().enumerate() {
                for other in &made[..i] {
                    prop_assert_eq!(crate::mandate::overlap(one, other), None);
                }
                for member in register.members() {
                    prop_assert!(!member.addresses().iter().any(|at| one.may_give(at)));
                }
            }
            let keys: u32 = made.iter().map(|made| made.most).sum();
            prop_assert!(register.admitted() as u32 + keys <= 9);
            let routers: usize = made.iter().map(|m| usize::from(m.rights.routers_most)).sum();
            prop_assert!(register.routers_given() + routers <= 6);
        }
    }
}
