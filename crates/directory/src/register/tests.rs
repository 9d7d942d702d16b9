use super::*;
use crate::mandate::tests::{mandate, registrar};
use crate::member::tests::{self, unknown};
use crate::{Field, Prefix};
use proptest::prelude::*;
use shoal_wire::Address;

const NOW: u64 = 10_000;

/// Host `number` of the mandate, with the key of this seed.
fn member(name: &str, seed: u8, number: u16) -> Member {
    Member {
        address: Address::new(1, 100 + number),
        expires_unix_s: NOW + 500,
        ..tests::member(name, seed, &["staff"])
    }
}

fn add(member: Member) -> StepEntry {
    StepEntry::Member(Box::new(member))
}

fn remove(seed: u8) -> StepEntry {
    StepEntry::remove(&tests::member("", seed, &[]).key)
}

fn next(register: &Register, issued_unix_s: u64, entries: Vec<StepEntry>) -> Supplement {
    let (mandate, number, previous) = (register.id(), register.len() + 1, register.head());
    Step { mandate, number, previous, issued_unix_s, entries }.sign(&registrar(1)).unwrap()
}

fn say(register: &mut Register, entries: Vec<StepEntry>) -> Result<StepEffect, StepRejection> {
    let supplement = next(register, NOW, entries);
    let before = (names(register), register.admitted(), register.head());
    let checked = register.check(NOW, &supplement);
    assert_eq!(before, (names(register), register.admitted(), register.head()));
    let applied = register.apply(NOW, &supplement);
    assert_eq!(checked, applied.map(|_| ()), "check() predicts the result of apply()");
    applied
}

fn names(register: &Register) -> Vec<String> {
    let mut names: Vec<String> = register.members().map(|member| member.name.clone()).collect();
    names.sort();
    names
}

fn with_bob() -> Register {
    let mut register = Register::new(mandate("a", 1));
    assert_eq!(say(&mut register, vec![add(member("bob", 2, 2))]), Ok(StepEffect::Changed));
    register
}

#[test]
fn members_are_added_renewed_and_removed() {
    let mut register = with_bob();
    let newer = Member { version: 2, groups: Vec::new(), ..member("robert", 2, 3) };
    let entries = vec![add(newer.clone()), add(member("carol", 3, 2))];
    assert_eq!(say(&mut register, entries), Ok(StepEffect::Changed));
    assert_eq!(names(&register), ["carol", "robert"], "a renewal frees the old name and address");
    assert!(register.members().any(|member| *member == newer));
    assert_eq!(say(&mut register, vec![remove(2)]), Ok(StepEffect::Changed));
    assert_eq!(
        (names(&register), register.admitted(), register.len()),
        (vec!["carol".into()], 2, 3)
    );
    assert!(register.is_removed(&newer.key));
}

#[test]
fn one_violation_refuses_the_whole_step() {
    let violation = |entry: StepEntry| {
        let mut register = with_bob();
        let head = register.head();
        let found = say(&mut register, vec![add(member("dave", 4, 4)), entry]);
        assert_eq!((names(&register), register.admitted()), (vec!["bob".into()], 1));
        assert_eq!((register.head(), register.len()), (head, 1));
        assert_eq!(say(&mut register, vec![add(member("dave", 4, 4))]), Ok(StepEffect::Changed));
        match found {
            Err(StepRejection::Bad(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    let of = |change: &dyn Fn(&mut Member)| {
        let mut changed = member("carol", 3, 3);
        change(&mut changed);
        violation(add(changed))
    };
    assert_eq!(of(&|m| m.address = Address::new(1, 99)), MandateViolation::Address);
    assert_eq!(of(&|m| m.address = Address::new(2, 100)), MandateViolation::Address);
    assert_eq!(of(&|m| m.address = Address::new(1, 0)), MandateViolation::Number);
    assert_eq!(of(&|m| m.second = Some(Address::new(2, 100))), MandateViolation::Address);
    assert_eq!(of(&|m| m.second = Some(Address::new(1, 104))), MandateViolation::Descriptor);
    assert_eq!(of(&|m| m.ipv4 = Some([10, 8, 0, 1].into())), MandateViolation::Ipv4);
    assert_eq!(of(&|m| m.groups = vec!["admins".into()]), MandateViolation::Group);
    assert_eq!(of(&|m| m.expires_unix_s = NOW + 1_001), MandateViolation::TooLong);
    assert_eq!(of(&|m| m.endpoint = "192.0.2.1:1".parse().ok()), MandateViolation::Endpoint);
    assert_eq!(of(&|m| m.security_groups = vec!["staff".into()]), MandateViolation::Beyond);
    let subnet: Prefix = "10.1.0.0/16".parse().unwrap();
    assert_eq!(of(&|m| m.prefixes = vec![subnet]), MandateViolation::Beyond);
    assert_eq!(of(&|m| m.cover = Some("home".into())), MandateViolation::Cover);
    assert_eq!(of(&|m| m.carrier.family = Some("a".into())), MandateViolation::Family);
    assert_eq!(of(&|m| m.carrier.near = Some("a".into())), MandateViolation::Beyond);
    assert_eq!(of(&|m| m.carrier.capacity = Some(1)), MandateViolation::Beyond);
    assert_eq!(of(&|m| m.carrier.exit = true), MandateViolation::Beyond);
    assert_eq!(of(&|m| m.carrier.relay = true), MandateViolation::Descriptor);
    assert_eq!(of(&|m| m.unknown = vec![unknown(false)]), MandateViolation::Beyond);
    assert_eq!(of(&|m| m.key = registrar(1).public()), MandateViolation::Beyond);
    assert_eq!(of(&|m| m.key.dh = [0; 32]), MandateViolation::Descriptor);
    assert_eq!(of(&|m| m.key.dh = member("bob", 2, 2).key.dh), MandateViolation::Descriptor);
    assert_eq!(of(&|m| m.name = "bob".into()), MandateViolation::Name);
    assert_eq!(of(&|m| m.address = Address::new(1, 102)), MandateViolation::Taken);
    assert_eq!(violation(add(member("bob", 2, 2))), MandateViolation::Version);
    assert_eq!(violation(remove(3)), MandateViolation::Stranger);
}

#[test]
fn a_name_or_an_address_is_free_once_its_membership_has_expired() {
    let mut register = with_bob();
    let other = Member { expires_unix_s: NOW + 600, ..member("bob", 3, 2) };
    let early = next(&register, NOW + 499, vec![add(other.clone())]);
    assert_eq!(register.apply(NOW + 700, &early), Err(StepRejection::Bad(MandateViolation::Name)));
    let late = next(&register, NOW + 500, vec![add(other.clone())]);
    // The time of the signature counts, not the time of arrival.
    assert_eq!(register.apply(NOW, &late), Ok(StepEffect::Changed));
    assert_eq!(register.members().collect::<Vec<_>>(), [&other]);
    assert_eq!(register.admitted(), 2);
    // A member that lost its name can still be removed for good.
    let gone = next(&register, NOW + 500, vec![remove(2)]);
    assert_eq!(register.apply(NOW + 500, &gone), Ok(StepEffect::Changed));
    let back = Member { version: 9, ..member("rob", 2, 7) };
    let back = next(&register, NOW + 500, vec![add(back)]);
    assert_eq!(
        register.apply(NOW + 500, &back),
        Err(StepRejection::Bad(MandateViolation::Returned))
    );
    let twice = next(&register, NOW + 500, vec![remove(2)]);
    assert_eq!(
        register.apply(NOW + 500, &twice),
        Err(StepRejection::Bad(MandateViolation::Stranger))
    );
}

#[test]
fn removed_keys_are_known_with_the_time_of_their_removal() {
    let mut register = with_bob();
    let removed =
        |register: &Register| register.removed().map(|(key, at)| (*key, at)).collect::<Vec<_>>();
    let key = |seed| tests::member("", seed, &[]).key;
    // A step that is refused removes nobody, and a check changes nothing.
    let refused = say(&mut register, vec![remove(2), add(member("rob", 2, 3))]);
    assert_eq!(refused, Err(StepRejection::Bad(MandateViolation::Returned)));
    assert_eq!((removed(&register), register.removed_at(&key(2))), (vec![], None));
    // A new key for a member removes the old one.
    let entries = vec![remove(2), add(member("bob", 3, 2))];
    let step = next(&register, NOW + 7, entries);
    assert_eq!(register.apply(NOW + 7, &step), Ok(StepEffect::Changed));
    assert_eq!(removed(&register), [(key(2), NOW + 7)]);
    assert_eq!(register.removed_at(&key(2)), Some(NOW + 7));
    assert_eq!(register.removed_at(&key(3)), None);
    // The key of a membership that expired and lost its name is not known any more.
    let other = Member { expires_unix_s: NOW + 900, ..member("bob", 4, 2) };
    let step = next(&register, NOW + 501, vec![add(other)]);
    assert_eq!(register.apply(NOW + 501, &step), Ok(StepEffect::Changed));
    let step = next(&register, NOW + 502, vec![remove(3)]);
    assert_eq!(register.apply(NOW + 502, &step), Ok(StepEffect::Changed));
    assert_eq!(removed(&register), [(key(2), NOW + 7)]);
    assert_eq!(register.removed_at(&key(3)), Some(NOW + 502));
    // A newer mandate leaves the removals of the chain as they are.
    let again = register.under(register.mandate().clone());
    assert_eq!(removed(&again), removed(&register));
}

#[test]
fn every_key_ever_admitted_counts_towards_the_limit() {
    let mut register = with_bob();
    assert!(say(&mut register, vec![remove(2), add(member("c", 3, 3))]).is_ok());
    assert!(say(&mut register, vec![add(member("d", 4, 4))]).is_ok());
    let full = say(&mut register, vec![add(member("e", 5, 5))]);
    assert_eq!(full, Err(StepRejection::Bad(MandateViolation::Most)));
    let renewed = Member { version: 2, ..member("d", 4, 4) };
    assert!(say(&mut register, vec![add(renewed)]).is_ok(), "a renewal admits nobody");
}

#[test]
fn a_mandate_ends() {
    let mut register = with_bob();
    let carol = |expires_unix_s| add(Member { expires_unix_s, ..member("c", 3, 3) });
    let end = mandate("a", 1).until_unix_s;
    let late = next(&register, end - 10, vec![carol(end + 1)]);
    assert_eq!(register.apply(end, &late), Err(StepRejection::Bad(MandateViolation::TooLong)));
    let over = next(&register, end, vec![carol(end)]);
    assert_eq!(register.apply(end, &over), Err(StepRejection::Bad(MandateViolation::Over)));
    let last = next(&register, end - 10, vec![carol(end)]);
    assert_eq!(register.apply(end, &last), Ok(StepEffect::Changed));
    let earlier = next(&register, end - 11, vec![remove(3)]);
    assert_eq!(register.apply(end, &earlier), Err(StepRejection::Bad(MandateViolation::Backwards)));
}

#[test]
fn steps_are_applied_in_order() {
    let mut register = with_bob();
    let second = next(&register, NOW, vec![add(member("c", 3, 3))]);
    let mut ahead = register.clone();
    ahead.apply(NOW, &second).unwrap();
    let third = next(&ahead, NOW, vec![add(member("d", 4, 4))]);
    assert_eq!(register.apply(NOW, &third), Err(StepRejection::Missing(2)));
    assert_eq!(register.apply(NOW, &second), Ok(StepEffect::Changed));
    assert_eq!(register.apply(NOW, &second), Ok(StepEffect::Known));
    assert_eq!(register.apply(NOW, &third), Ok(StepEffect::Changed));
    let future = next(&register, NOW + CLOCK_SKEW_S + 1, vec![remove(3)]);
    assert_eq!(register.apply(NOW, &future), Err(StepRejection::Future(CLOCK_SKEW_S + 1)));
    let unchained = Step { previous: [1; 32], ..future.step().clone() };
    let unchained = unchained.sign(&registrar(1)).unwrap();
    assert_eq!(register.apply(NOW + 900, &unchained), Err(StepRejection::Unchained));
    let foreign = Register::new(mandate("b", 2));
    let foreign = next(&foreign, NOW, vec![remove(3)]);
    assert_eq!(register.apply(NOW, &foreign), Err(StepRejection::Foreign));
}

#[test]
fn two_steps_with_one_number_freeze_the_register_before_that_number() {
    let first = with_bob();
    let [one, other] =
        [member("c", 3, 3), member("d", 4, 4)].map(|m| next(&first, NOW, vec![add(m)]));
    let mut a = first.clone();
    a.apply(NOW, &one).unwrap();
    let third = next(&a, NOW, vec![add(member("e", 5, 5))]);
    a.apply(NOW, &third).unwrap();
    assert_eq!(names(&a), ["bob", "c", "e"]);
    assert_eq!(a.apply(NOW, &other), Ok(StepEffect::Frozen));
    assert_eq!((names(&a), a.admitted(), a.len()), (vec!["bob".into()], 1, 1));
    for step in [&one, &other, &third] {
        assert_eq!(a.apply(NOW, step), Err(StepRejection::Frozen(2)));
    }
    // A register without either step accepts both together, with the same result.
    let mut b = Register::new(mandate("a", 1));
    let fork = a.fork().unwrap().clone();
    assert_eq!(b.show_fork(fork.clone()), Ok(StepEffect::Frozen));
    assert_eq!(b.apply(NOW, first.step(1).unwrap()), Ok(StepEffect::Changed));
    assert_eq!(b.apply(NOW, &one), Err(StepRejection::Frozen(2)));
    assert_eq!((names(&b), b.head()), (names(&a), a.head()));
    assert_eq!(b.show_fork(fork.clone()), Ok(StepEffect::Known));
    // An earlier fork replaces a later one.
    let empty = Register::new(mandate("a", 1));
    let early = [member("x", 6, 6), member("y", 7, 7)].map(|m| next(&empty, NOW, vec![add(m)]));
    assert_eq!(a.show_fork(early), Ok(StepEffect::Frozen));
    assert_eq!(a.show_fork(fork.clone()), Err(StepRejection::Frozen(1)));
    assert!(a.is_empty() && names(&a).is_empty());
    let same = [fork[0].clone(), fork[0].clone()];
    assert_eq!(b.show_fork(same), Err(StepRejection::Unchained));
}

#[test]
fn a_narrower_mandate_keeps_the_steps_that_it_allows() {
    let mut register = with_bob();
    say(&mut register, vec![add(member("c", 3, 3))]).unwrap();
    let wider = Mandate { most: 9, until_unix_s: 3_000_000, ..mandate("a", 1) };
    assert_eq!(register.under(wider).len(), 2);
    let narrow = Mandate { most: 1, ..mandate("a", 1) };
    let narrow = register.under(narrow);
    assert_eq!((narrow.len(), names(&narrow)), (1, vec!["bob".into()]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// All nodes with the same steps have the same members, regardless of what a registrar signs.
    /// No member is outside the mandate.
    #[test]
    fn nobody_gets_more_than_the_mandate_allows(
        steps in prop::collection::vec(
            prop::collection::vec((0u8..6, 0u16..120, 0u8..5, 0u64..1_200, 0u8..4), 1..4),
            1..12,
        ),
    ) {
        let mut register = Register::new(mandate("a", 1));
        let mut said = Vec::new();
        for (i, entries) in steps.into_iter().enumerate() {
            let at = NOW + i as u64;
            let entry = |(seed, number, name, life, what): (u8, u16, u8, u64, u8)| {
                if what == 0 {
                    return remove(seed);
                }
                let group = if what == 1 { "admins" } else { "staff" };
                add(Member {
                    version: i as u64,
                    expires_unix_s: at + life,
                    groups: vec![group.into()],
                    ipv4: (name == 0).then(|| [10, 9, 1, number as u8].into()),
                    ..member(&format!("n{name}"), seed, number)
                })
            };
            let supplement = next(&register, at, entries.into_iter().map(entry).collect());
            if register.apply(at, &supplement).is_ok() {
                said.push(supplement);
            }
        }
        let mandate = mandate("a", 1);
        prop_assert!(register.admitted() <= mandate.most as usize);
        for member in register.members() {
            prop_assert!(mandate.may_give(member.address) && !register.is_removed(&member.key));
            prop_assert_eq!(&member.groups[..], &["staff".to_owned()][..]);
            let twins = register.members().filter(|other| {
                other.name == member.name || other.address == member.address
            });
            prop_assert_eq!(twins.count(), 1);
        }
        let mut later = Register::new(mandate);
        for supplement in &said {
            prop_assert_eq!(later.apply(NOW + 5_000, supplement), Ok(StepEffect::Changed));
        }
        let members: Vec<_> = register.members().collect();
        prop_assert_eq!(later.members().collect::<Vec<_>>(), members);
    }
}

#[test]
fn a_member_with_a_critical_unknown_field_is_refused() {
    let critical = Field { is_critical: true, ..unknown(true) };
    let mut register = with_bob();
    let carol = Member { unknown: vec![critical], ..member("c", 3, 3) };
    let refused = say(&mut register, vec![add(carol)]);
    assert_eq!(refused, Err(StepRejection::Bad(MandateViolation::Descriptor)));
}
