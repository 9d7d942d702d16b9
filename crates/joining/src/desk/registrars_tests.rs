use shoal_crypto::{Identity, SigningKey};
use shoal_directory::NumberRange;

use super::*;
use crate::desk::members::tests::{START, key, list};
use crate::desk::moves::tests::{join, move_from};
use crate::desk::places::NameChoice;
use crate::desk::routers::tests::{Street, granted};

fn register(change: impl FnOnce(&mut Mandate)) -> Register {
    let mut mandate = Mandate {
        name: "desk".into(),
        serial: 1,
        key: key(7).public(),
        groups: vec!["staff".into()],
        hosts: vec!["1.100-1.199".parse().unwrap()],
        ipv4: Some("10.9.0.0/24".parse().unwrap()),
        most: 100,
        longest_s: 86_400,
        until_unix_s: START + 900_000,
        rights: MandateRights {
            routers: vec!["2-65535".parse().unwrap()],
            numbers: Some(NumberRange { first: 1, last: 65_535 }),
            relay: true,
            routers_most: 64,
            families_most: 16,
            family: Some("home".into()),
            registrars: 2,
            ..MandateRights::default()
        },
    };
    change(&mut mandate);
    Register::new(mandate.checked().unwrap())
}

fn wish() -> RegistrarWish {
    RegistrarWish {
        key: Identity::from_seed([77; 32]).public(),
        door: "my.example.org:7401".parse().unwrap(),
    }
}

fn made(register: &Register, range: Option<RouterRange>) -> Option<Mandate> {
    let at = ("r2", Address::new(300, 0));
    let part = part(register, at, Some("friends"), &wish())?;
    Some(with_routers(register, part, range, 300))
}

#[test]
fn a_part_is_permitted_and_leaves_half() {
    let register = register(|_| {});
    let part = made(&register, None).unwrap();
    assert_eq!(register.permits_registrar(&part), Ok(()));
    assert_eq!(part.rights.routers, ["64512-65535".parse().unwrap()]);
    assert_eq!((part.most, part.rights.routers_most, part.rights.families_most), (49, 31, 7));
    assert_eq!(part.hosts[0].to_string(), "300.1-300.65535");
    assert_eq!(part.ipv4, Some("10.9.0.192/26".parse().unwrap()));
    assert_eq!(part.rights.family.as_deref(), Some("friends"));
    let named = made(&register, "400-499".parse().ok()).unwrap();
    assert_eq!(register.permits_registrar(&named), Ok(()));
    assert_eq!(named.rights.routers, ["400-499".parse().unwrap()]);
}

#[test]
fn a_part_without_routers_admits_hosts_alone_and_some_mandates_have_none_left() {
    let few = register(|mandate| mandate.rights.routers_most = 2);
    let part = made(&few, None).unwrap();
    assert!(part.rights.routers.is_empty() && part.rights.family.is_none());
    assert_eq!(few.permits_registrar(&part), Ok(()));
    assert!(made(&register(|mandate| mandate.most = 2), None).is_none());
    assert!(made(&register(|mandate| mandate.rights.numbers = None), None).is_none());
    let small = register(|mandate| mandate.ipv4 = Some("10.9.0.0/31".parse().unwrap()));
    assert_eq!(made(&small, None).unwrap().ipv4, None);
    // The block of the router itself is not free.
    let narrow = register(|mandate| {
        mandate.rights.routers = vec!["297-300".parse().unwrap()];
        mandate.rights.routers_most = 4;
    });
    assert_eq!(made(&narrow, None).unwrap().rights.routers, ["299".parse().unwrap()]);
}

#[test]
fn a_part_has_the_tiers_of_the_mandate_and_numbers_behind_its_own_router_alone() {
    let register = register(|mandate| {
        (mandate.rights.cover, mandate.rights.tiers) = (true, vec!["home".into()]);
    });
    let part = made(&register, None).unwrap();
    assert_eq!(register.permits_registrar(&part), Ok(()));
    assert!(part.rights.may_cover("home") && !part.rights.may_cover("work"));
    let may_give = |router| part.may_give(Address::new(router, 7));
    assert!(may_give(300) && !may_give(301) && !may_give(64_512));
}

#[test]
fn another_registrar_gets_nothing_of_a_withdrawn_one() {
    let identity = key(7);
    let mut register = register(|_| {});
    let say = |register: &mut Register, entry: StepEntry| {
        let step = shoal_directory::Step {
            mandate: register.id(),
            number: register.len() + 1,
            previous: register.head(),
            issued_unix_s: START,
            entries: vec![entry],
        };
        register.apply(START, &step.sign(&identity).unwrap()).unwrap();
    };
    let first = made(&register, None).unwrap();
    let id = first.id();
    say(&mut register, StepEntry::Registrar(Box::new(first)));
    say(&mut register, StepEntry::Withdrawn(id));
    // Another key joins as a router with the same name.
    let other = RegistrarWish { key: key(78).public(), ..wish() };
    let part = part(&register, ("r2", Address::new(301, 0)), None, &other).unwrap();
    let part = with_routers(&register, part, None, 301);
    assert_eq!(register.permits_registrar(&part), Ok(()));
    assert_eq!(part.name, "r2-2");
    assert_eq!(part.ipv4, Some("10.9.0.128/26".parse().unwrap()));
    assert_eq!(part.rights.routers, ["63488-64511".parse().unwrap()]);
    // An invite may not name router numbers of the withdrawn one.
    let check = |range: &str| super::super::owner::check_registrar(&register, range.parse().ok());
    assert!(check("64512-64999").is_err() && check("63488-64511").is_ok());
}

/// Two routers by invite, the first of which has a registrar of its own. Returns its number.
fn street() -> (Street, u32) {
    let mut street = Street::new();
    let rights = street.desk.register().unwrap().mandate().rights.clone();
    let authority = SigningKey::from_seed([42; 32]);
    let rights = MandateRights { registrars: 1, ..rights };
    let mut content = list(&authority, rights).content().clone();
    (content.version, content.issued_unix_s) = (2, START);
    let at = street.at();
    assert!(street.desk.set_list(content.sign(&authority).unwrap(), at).unwrap());
    let routers = street.router(None, true);
    for seed in [20, 21] {
        granted(&street.join(&routers, seed, seed));
    }
    let address = street.member(20).address;
    let register = street.desk.register().unwrap();
    let new = part(register, ("r2", address), None, &wish()).unwrap();
    let new = with_routers(register, new, None, address.router);
    let entries = vec![StepEntry::Registrar(Box::new(new))];
    street.desk.step(StepCause::Removed, wish().key, entries, at).unwrap();
    while street.desk.poll_output().is_some() {}
    (street, address.router)
}

#[test]
fn the_first_registrars_hosts_are_not_behind_the_second_ones_router() {
    let (mut street, second) = street();
    let hosts = street.invite(TokenKind::Host).0;
    let other = 5 - second;
    for seed in 30..32 {
        granted(&join(&mut street, &hosts, seed).1);
        let host = street.member(seed);
        assert_eq!((host.address.router, host.second), (other, None));
    }
    let at = street.at();
    assert_eq!(street.desk.follow_routers(at).unwrap(), 0);
    let (mut visitor, answer) = join(&mut street, &hosts, 32);
    granted(&answer);
    let refused = move_from(&mut street, &mut visitor, other);
    assert_eq!(refused, Answer::Refused(Refusal::NoRouter));
    // A withdrawn registrar's router stays closed.
    let at = street.at();
    street.desk.withdraw_registrar("r2", at).unwrap();
    while street.desk.poll_output().is_some() {}
    let refused = move_from(&mut street, &mut visitor, other);
    assert_eq!(refused, Answer::Refused(Refusal::NoRouter));
}

#[test]
fn a_router_that_is_removed_loses_its_registrar_whatever_its_name() {
    let (mut street, _) = street();
    let (name, at) = (street.member(20).name, street.at());
    assert_ne!(name, "r2");
    street.desk.remove(&name, at).unwrap();
    assert_eq!(street.desk.registrars().count(), 0);
    assert!(street.desk.withdraw_registrar("r2", at).is_err());
}

#[test]
fn a_registrar_is_withdrawn_by_its_routers_name_too() {
    let (mut street, _) = street();
    let (name, at) = (street.member(20).name, street.at());
    street.desk.withdraw_registrar(&name, at).unwrap();
    assert_eq!(street.desk.registrars().count(), 0);
}

#[test]
fn the_name_of_a_withdrawn_registrar_goes_to_no_other() {
    let mut with = register(|_| {});
    let first = made(&with, None).unwrap();
    let step = |register: &Register, entry| shoal_directory::Step {
        mandate: register.id(),
        number: register.len() + 1,
        previous: register.head(),
        issued_unix_s: START,
        entries: vec![entry],
    };
    let id = first.id();
    for entry in [StepEntry::Registrar(Box::new(first)), StepEntry::Withdrawn(id)] {
        let signed = step(&with, entry).sign(&key(7)).unwrap();
        with.apply(START, &signed).unwrap();
    }
    let again = RegistrarWish { key: Identity::from_seed([78; 32]).public(), ..wish() };
    let at = ("r2", Address::new(301, 0));
    let part = part(&with, at, Some("friends"), &again).unwrap();
    assert_eq!(part.name, "r2-2");
    let part = with_routers(&with, part, None, 301);
    assert_eq!(with.permits_registrar(&part), Ok(()));
}

#[test]
fn the_number_of_a_registrars_router_is_none_of_its_range() {
    let mut street = Street::new();
    let mandate = street.desk.register().unwrap().mandate().clone();
    let kind = TokenKind::Registrar { family: None, relay: true, range: "2".parse().ok() };
    for seed in 30..40 {
        let naming = NameChoice::Given("r2".into());
        let place = street.desk.place_router(&mandate, naming, (&kind, &key(seed).public(), START));
        assert_eq!(place.unwrap().1, Address::new(3, 0));
    }
}
