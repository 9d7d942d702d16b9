use super::*;
use crate::mandate::tests::{mandate, registrar};
use crate::member::tests::{self, unknown};
use crate::{Field, Prefix};
use proptest::prelude::*;
use shoal_wire::Address;

const NOW: u64 = 10_000;

/// Host `number` of the mandate, by the key of that seed.
fn member(name: &str, seed: u8, number: u16) -> Member {
    Member {
        address: Address::new(1, 100 + number),
        expires_unix_s: NOW + 500,
        ..tests::member(name, seed, &["staff"])
    }
}

fn add(member: Member) -> Entry {
    Entry::Member(Box::new(member))
}

fn remove(seed: u8) -> Entry {
    Entry::remove(&tests::member("", seed, &[]).key)
}

fn next(register: &Register, issued_unix_s: u64, entries: Vec<Entry>) -> Supplement {
    let (mandate, number, previous) = (register.id(), register.len() + 1, register.head());
    Step { mandate, number, previous, issued_unix_s, entries }.sign(&registrar(1)).unwrap()
}

fn say(register: &mut Register, entries: Vec<Entry>) -> Result<Applied, Unapplied> {
    let supplement = next(register, NOW, entries);
    let before = (names(register), register.admitted(), register.head());
    let checked = register.check(NOW, &supplement);
    assert_eq!(before, (names(register), register.admitted(), register.head()));
    let applied = register.apply(NOW, &supplement);
    assert_eq!(checked, applied.map(|_| ()), "a check says what would be");
    applied
}

fn names(register: &Register) -> Vec<String> {
    let mut names: Vec<String> = register.members().map(|member| member.name.clone()).collect();
    names.sort();
    names
}

fn with_bob() -> Register {
    let mut register = Register::new(mandate("a", 1));
    assert_eq!(say(&mut register, vec![add(member("bob", 2, 2))]), Ok(Applied::Changed));
    register
}

#[test]
fn members_come_are_renewed_and_go() {
    let mut register = with_bob();
    let newer = Member { version: 2, groups: Vec::new(), ..member("robert", 2, 3) };
    let entries = vec![add(newer.clone()), add(member("carol", 3, 2))];
    assert_eq!(say(&mut register, entries), Ok(Applied::Changed));
    assert_eq!(names(&register), ["carol", "robert"], "a renewal leaves its name and address");
    assert!(register.members().any(|member| *member == newer));
    assert_eq!(say(&mut register, vec![remove(2)]), Ok(Applied::Changed));
    assert_eq!(
        (names(&register), register.admitted(), register.len()),
        (vec!["carol".into()], 2, 3)
    );
    assert!(register.is_removed(&newer.key));
}

#[test]
fn one_violation_refuses_the_whole_step() {
    let violation = |entry: Entry| {
        let mut register = with_bob();
        let head = register.head();
        let found = say(&mut register, vec![add(member("dave", 4, 4)), entry]);
        assert_eq!((names(&register), register.admitted()), (vec!["bob".into()], 1));
        assert_eq!((register.head(), register.len()), (head, 1));
        assert_eq!(say(&mut register, vec![add(member("dave", 4, 4))]), Ok(Applied::Changed));
        match found {
            Err(Unapplied::Bad(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    let of = |change: &dyn Fn(&mut Member)| {
        let mut changed = member("carol", 3, 3);
        change(&mut changed);
        violation(add(changed))
    };
    assert_eq!(of(&|m| m.address = Address::new(1, 99)), BadMandate::Address);
    assert_eq!(of(&|m| m.address = Address::new(2, 100)), BadMandate::Address);
    assert_eq!(of(&|m| m.address = Address::new(1, 0)), BadMandate::Address);
    assert_eq!(of(&|m| m.ipv4 = Some([10, 8, 0, 1].into())), BadMandate::Ipv4);
    assert_eq!(of(&|m| m.groups = vec!["admins".into()]), BadMandate::Group);
    assert_eq!(of(&|m| m.expires_unix_s = NOW + 1_001), BadMandate::TooLong);
    assert_eq!(of(&|m| m.endpoint = "192.0.2.1:1".parse().ok()), BadMandate::Beyond);
    assert_eq!(of(&|m| m.security_groups = vec!["staff".into()]), BadMandate::Beyond);
    let subnet: Prefix = "10.1.0.0/16".parse().unwrap();
    assert_eq!(of(&|m| m.prefixes = vec![subnet]), BadMandate::Beyond);
    assert_eq!(of(&|m| m.cover = Some("home".into())), BadMandate::Beyond);
    assert_eq!(of(&|m| m.unknown = vec![unknown(false)]), BadMandate::Beyond);
    assert_eq!(of(&|m| m.key = registrar(1).public()), BadMandate::Beyond);
    assert_eq!(of(&|m| m.key.dh = [0; 32]), BadMandate::Descriptor);
    assert_eq!(of(&|m| m.key.dh = member("bob", 2, 2).key.dh), BadMandate::Descriptor);
    assert_eq!(of(&|m| m.name = "bob".into()), BadMandate::Name);
    assert_eq!(of(&|m| m.address = Address::new(1, 102)), BadMandate::Taken);
    assert_eq!(violation(add(member("bob", 2, 2))), BadMandate::Version);
    assert_eq!(violation(remove(3)), BadMandate::Stranger);
}

#[test]
fn a_name_or_an_address_is_free_once_its_membership_has_expired() {
    let mut register = with_bob();
    let other = Member { expires_unix_s: NOW + 600, ..member("bob", 3, 2) };
    let early = next(&register, NOW + 499, vec![add(other.clone())]);
    assert_eq!(register.apply(NOW + 700, &early), Err(Unapplied::Bad(BadMandate::Name)));
    let late = next(&register, NOW + 500, vec![add(other.clone())]);
    // What counts is when it was signed, not when it came.
    assert_eq!(register.apply(NOW, &late), Ok(Applied::Changed));
    assert_eq!(register.members().collect::<Vec<_>>(), [&other]);
    assert_eq!(register.admitted(), 2);
    // Who was forgotten can be removed for good all the same.
    let gone = next(&register, NOW + 500, vec![remove(2)]);
    assert_eq!(register.apply(NOW + 500, &gone), Ok(Applied::Changed));
    let back = Member { version: 9, ..member("rob", 2, 7) };
    let back = next(&register, NOW + 500, vec![add(back)]);
    assert_eq!(register.apply(NOW + 500, &back), Err(Unapplied::Bad(BadMandate::Returned)));
    let twice = next(&register, NOW + 500, vec![remove(2)]);
    assert_eq!(register.apply(NOW + 500, &twice), Err(Unapplied::Bad(BadMandate::Stranger)));
}

#[test]
fn keys_that_were_ever_admitted_count() {
    let mut register = with_bob();
    assert!(say(&mut register, vec![remove(2), add(member("c", 3, 3))]).is_ok());
    assert!(say(&mut register, vec![add(member("d", 4, 4))]).is_ok());
    let full = say(&mut register, vec![add(member("e", 5, 5))]);
    assert_eq!(full, Err(Unapplied::Bad(BadMandate::Most)));
    let renewed = Member { version: 2, ..member("d", 4, 4) };
    assert!(say(&mut register, vec![add(renewed)]).is_ok(), "a renewal admits nobody");
}

#[test]
fn a_mandate_ends() {
    let mut register = with_bob();
    let carol = |expires_unix_s| add(Member { expires_unix_s, ..member("c", 3, 3) });
    let end = mandate("a", 1).until_unix_s;
    let late = next(&register, end - 10, vec![carol(end + 1)]);
    assert_eq!(register.apply(end, &late), Err(Unapplied::Bad(BadMandate::TooLong)));
    let over = next(&register, end, vec![carol(end)]);
    assert_eq!(register.apply(end, &over), Err(Unapplied::Bad(BadMandate::Over)));
    let last = next(&register, end - 10, vec![carol(end)]);
    assert_eq!(register.apply(end, &last), Ok(Applied::Changed));
    let earlier = next(&register, end - 11, vec![remove(3)]);
    assert_eq!(register.apply(end, &earlier), Err(Unapplied::Bad(BadMandate::Backwards)));
}

#[test]
fn steps_count_in_their_order() {
    let mut register = with_bob();
    let second = next(&register, NOW, vec![add(member("c", 3, 3))]);
    let mut ahead = register.clone();
    ahead.apply(NOW, &second).unwrap();
    let third = next(&ahead, NOW, vec![add(member("d", 4, 4))]);
    assert_eq!(register.apply(NOW, &third), Err(Unapplied::Missing(2)));
    assert_eq!(register.apply(NOW, &second), Ok(Applied::Changed));
    assert_eq!(register.apply(NOW, &second), Ok(Applied::Known));
    assert_eq!(register.apply(NOW, &third), Ok(Applied::Changed));
    let future = next(&register, NOW + CLOCK_SKEW_S + 1, vec![remove(3)]);
    assert_eq!(register.apply(NOW, &future), Err(Unapplied::Future(CLOCK_SKEW_S + 1)));
    let unchained = Step { previous: [1; 32], ..future.step().clone() };
    let unchained = unchained.sign(&registrar(1)).unwrap();
    assert_eq!(register.apply(NOW + 900, &unchained), Err(Unapplied::Unchained));
    let foreign = Register::new(mandate("b", 2));
    let foreign = next(&foreign, NOW, vec![remove(3)]);
    assert_eq!(register.apply(NOW, &foreign), Err(Unapplied::Foreign));
}

#[test]
fn two_steps_with_one_number_freeze_the_chain_before_them() {
    let first = with_bob();
    let [one, other] =
        [member("c", 3, 3), member("d", 4, 4)].map(|m| next(&first, NOW, vec![add(m)]));
    let mut a = first.clone();
    a.apply(NOW, &one).unwrap();
    let third = next(&a, NOW, vec![add(member("e", 5, 5))]);
    a.apply(NOW, &third).unwrap();
    assert_eq!(names(&a), ["bob", "c", "e"]);
    assert_eq!(a.apply(NOW, &other), Ok(Applied::Frozen));
    assert_eq!((names(&a), a.admitted(), a.len()), (vec!["bob".into()], 1, 1));
    for step in [&one, &other, &third] {
        assert_eq!(a.apply(NOW, step), Err(Unapplied::Frozen(2)));
    }
    // One that has seen neither believes both together, and ends up the same.
    let mut b = Register::new(mandate("a", 1));
    let fork = a.fork().unwrap().clone();
    assert_eq!(b.show_fork(fork.clone()), Ok(Applied::Frozen));
    assert_eq!(b.apply(NOW, first.step(1).unwrap()), Ok(Applied::Changed));
    assert_eq!(b.apply(NOW, &one), Err(Unapplied::Frozen(2)));
    assert_eq!((names(&b), b.head()), (names(&a), a.head()));
    assert_eq!(b.show_fork(fork.clone()), Ok(Applied::Known));
    // An earlier fork counts more, a later one less.
    let empty = Register::new(mandate("a", 1));
    let early = [member("x", 6, 6), member("y", 7, 7)].map(|m| next(&empty, NOW, vec![add(m)]));
    assert_eq!(a.show_fork(early), Ok(Applied::Frozen));
    assert_eq!(a.show_fork(fork.clone()), Err(Unapplied::Frozen(1)));
    assert!(a.is_empty() && names(&a).is_empty());
    let same = [fork[0].clone(), fork[0].clone()];
    assert_eq!(b.show_fork(same), Err(Unapplied::Unchained));
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

    /// Whatever a registrar signs, all nodes that have its steps have the same members, and no
    /// member is outside of the mandate.
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
            prop_assert_eq!(later.apply(NOW + 5_000, supplement), Ok(Applied::Changed));
        }
        let members: Vec<_> = register.members().collect();
        prop_assert_eq!(later.members().collect::<Vec<_>>(), members);
    }
}

#[test]
fn unknown_fields_are_the_authoritys_to_say() {
    let critical = Field { is_critical: true, ..unknown(true) };
    let mut register = with_bob();
    let carol = Member { unknown: vec![critical], ..member("c", 3, 3) };
    let refused = say(&mut register, vec![add(carol)]);
    assert_eq!(refused, Err(Unapplied::Bad(BadMandate::Descriptor)));
}
