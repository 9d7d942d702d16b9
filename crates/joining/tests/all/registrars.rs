//! A second registrar: it is made by an invite of the first one, and admits machines without it.

use std::net::SocketAddr;

use shoal_crypto::Identity;
use shoal_directory::{DoorEndpoint, Register};
use shoal_joining::{
    Contact, Desk, JoinError, JoinEvent, JoinGoal, NameRequest, Refusal, RouterRequest, TokenKind,
    TokenTerms,
};
use shoal_wire::Time;

use crate::world::{File, World, open_as, terms, unix_s};

fn endpoint() -> SocketAddr {
    "203.0.113.20:7400".parse().unwrap()
}

fn door_of_second() -> DoorEndpoint {
    "second.example.org:7401".parse().unwrap()
}

fn second() -> Identity {
    Identity::from_seed([77; 32])
}

fn of_registrar() -> TokenTerms {
    let (family, range) = (Some("friends".into()), None);
    TokenTerms { kind: TokenKind::Registrar { family, relay: true, range }, ..terms(1) }
}

fn router() -> RouterRequest {
    let name = NameRequest { name: Some("r2".into()), or_another: false };
    RouterRequest { name, endpoint: endpoint(), relay: true, capacity: None }
}

fn goal() -> JoinGoal {
    JoinGoal::Registrar(router(), second(), door_of_second())
}

/// A network whose second registrar has just joined.
fn with_second(seed: u8) -> (World, Contact, usize) {
    let mut world = World::new(seed);
    let contact = world.invite(of_registrar());
    let n = world.ask(20, &contact, goal());
    world.endpoints.insert(endpoint(), n);
    world.run(20_000);
    (world, contact, n)
}

/// Hands a desk the steps of another one that it lacks.
fn teach(desk: &mut Desk<File>, of: &Desk<File>, now: Time) {
    let steps = of.register().map(Register::steps).unwrap_or_default().to_vec();
    steps.iter().for_each(|step| desk.learn(step.bytes(), (now, unix_s(now))));
}

#[test]
fn an_invite_makes_a_registrar_with_a_part_of_the_mandate() {
    let (world, _, n) = with_second(1);
    let joined = world.joined(n);
    assert!(joined.member.address.is_router() && joined.member.carrier.relay);
    let own = joined.member.address.router;
    let made: Vec<_> = world.desk.registrars().cloned().collect();
    let [made] = made.as_slice() else { panic!("{made:?}") };
    assert_eq!((made.key, made.name.as_str()), (second().public(), "r2"));
    assert_eq!(made.rights.door, [door_of_second()]);
    assert_eq!(made.hosts[0].router, own, "members of r2 are behind r2");
    assert!(made.most > 0 && made.rights.routers_most > 0 && made.rights.registrars == 0);
    assert!(!made.rights.may_number(own));
}

#[test]
fn machines_join_by_the_second_registrar_when_the_first_is_gone() {
    let (mut world, _, n) = with_second(2);
    let before = world.invite(terms(1));
    let alice = world.join(30, &before);
    world.run(10_000);
    let taken = world.joined(alice).member.clone();
    let own = world.joined(n).member.address.router;
    let file = File::default();
    let mut desk = open_as(second(), &file, world.now);
    assert!(desk.register().is_none());
    teach(&mut desk, &world.desk, world.now);
    assert!(desk.register().is_some(), "the first one's chain makes it a registrar");
    // The first registrar is silent from here on.
    let mut later = World::new(3);
    (later.desk, later.now) = (desk, world.now);
    let contact = later.invite(terms(9));
    assert_eq!(contact.registrar, second().public());
    let wish = NameRequest { name: Some(taken.name.clone()), or_another: true };
    let all = [40, 41].map(|seed| later.ask(seed, &contact, JoinGoal::Join(wish.clone())));
    later.run(10_000);
    for n in all {
        let member = &later.joined(n).member;
        assert_eq!(member.address.router, own);
        assert_eq!(later.joined(n).ipv4_bits, Some(24), "the whole network is reached");
        assert_ne!((&member.name, member.ipv4), (&taken.name, taken.ipv4));
    }
    // A restart replays what the first one signed, and then its own steps.
    let steps = later.desk.register().unwrap().len();
    later.desk = open_as(second(), &file, later.now);
    assert_eq!(later.desk.register().unwrap().len(), steps);
    let again = later.join(42, &contact);
    later.run(10_000);
    assert_eq!(later.joined(again).member.address.router, own);
    // The first one's members and this one's share no address.
    teach(&mut world.desk, &later.desk, later.now);
    let bob = world.invite(terms(1));
    let bob = world.join(50, &bob);
    world.run(10_000);
    assert_eq!(world.joined(bob).member.address.router, 1);
}

#[test]
fn a_withdrawn_registrar_admits_nobody() {
    let (mut world, _, _) = with_second(4);
    let mut desk = open_as(second(), &File::default(), world.now);
    teach(&mut desk, &world.desk, world.now);
    let mut later = World::new(5);
    (later.desk, later.now) = (desk, world.now);
    let contact = later.invite(terms(9));
    let at = (world.now, unix_s(world.now));
    assert!(world.desk.withdraw_registrar("r1", at).is_err());
    world.desk.withdraw_registrar("r2", at).unwrap();
    assert_eq!(world.members(), 1, "r2 stays as a router");
    assert_eq!(world.desk.registrars().count(), 0);
    teach(&mut later.desk, &world.desk, world.now);
    let n = later.join(40, &contact);
    later.run(10_000);
    assert_eq!(later.refused(n), Refusal::MandateEnded);
    // The first one makes no other: its mandate allows one, withdrawn ones included.
    let at = unix_s(world.now);
    let said = world.desk.invite(of_registrar(), at).unwrap_err().to_string();
    assert!(said.contains("1 registrars, withdrawn ones included"), "{said}");
}

#[test]
fn a_machine_that_is_removed_loses_its_registrar() {
    let (mut world, _, n) = with_second(9);
    let key = world.joined(n).member.key;
    world.desk.remove("r2", (world.now, unix_s(world.now))).unwrap();
    assert_eq!((world.desk.registrars().count(), world.members()), (0, 0));
    assert!(world.desk.register().unwrap().is_removed(&key));
}

#[test]
fn kinds_of_invites_are_told_apart() {
    let mut world = World::new(6);
    let contact = world.invite(of_registrar());
    let as_router = world.ask(20, &contact, JoinGoal::Router(router()));
    let as_host = world.join(21, &contact);
    let plain = TokenKind::Router { family: None, relay: true };
    let other = world.invite(TokenTerms { kind: plain, ..terms(1) });
    let wrong = world.ask(22, &other, goal());
    world.endpoints.insert(endpoint(), wrong);
    world.run(5_000);
    let failed = |n: usize| match &world.ends[n] {
        Some(JoinEvent::Failed(why)) => why.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(failed(as_router), JoinError::ForRegistrar);
    assert_eq!(failed(as_host), JoinError::ForRouter);
    assert_eq!(world.refused(wrong), Refusal::OtherKind);
    assert_eq!(world.members(), 0);
}

#[test]
fn a_range_that_is_not_free_is_refused_at_the_invite() {
    let (mut world, ..) = with_second(7);
    let ranges = ["1-5", "90-120"].map(|range| range.parse().unwrap());
    let at = unix_s(world.now);
    let mut fresh = World::new(8);
    for range in ranges {
        let kind = TokenKind::Registrar { family: None, relay: true, range: Some(range) };
        let said = fresh.desk.invite(TokenTerms { kind, ..terms(1) }, at).unwrap_err().to_string();
        assert!(said.contains("--range"), "{said}");
    }
    let kind = TokenKind::Registrar { family: None, relay: true, range: "50-59".parse().ok() };
    assert!(fresh.desk.invite(TokenTerms { kind, ..terms(1) }, at).is_ok());
    assert!(world.desk.invite(of_registrar(), at).is_err(), "one is made already");
}
