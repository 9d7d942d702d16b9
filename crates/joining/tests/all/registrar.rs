//! Supplements that a registrar must not sign: with an older ledger, and about the authority's own
//! members.

use std::time::Duration;

use shoal_crypto::Identity;
use shoal_joining::{Contact, JoinEvent, JoinGoal, OwnerError, Refusal};

use crate::world::{DAY_S, File, START, World, authority, list, open, terms, unix_s};

#[test]
fn an_older_ledger_signs_nothing_while_the_node_knows_more() {
    let mut world = World::new(1);
    let contact = world.invite(terms(9));
    let (before, first) = (world.file.bytes(), world.join(9, &contact));
    world.run(1_000);
    let second = world.join(10, &contact);
    world.run(1_000);
    let id = world.desk.register().unwrap().id();
    assert_eq!((world.joined(first).chain.len(), world.joined(second).chain.len()), (1, 2));
    // A node that has the whole chain does not suspend signing.
    let head = |world: &World, n| world.desk.register().unwrap().step(n).unwrap().digest();
    let second = head(&world, 2);
    world.desk.set_known(id, 2, second);
    let third = world.join(11, &contact);
    world.run(1_000);
    world.joined(third);
    // A ledger from before these steps is put back.
    world.file = File::of(&before);
    world.desk = open(&world.file, world.now);
    world.desk.set_known(id, 2, second);
    let n = world.join(12, &contact);
    world.run(1_000);
    assert_eq!((world.refused(n), world.published), (Refusal::Registrar, 3));
    assert_eq!(world.file.bytes(), before);
    let said = world.desk.invite(terms(1), START).unwrap_err();
    assert!(matches!(said, OwnerError::Behind { ledger: 0, node: 2 }), "{said}");
    let said = said.to_string();
    assert!(said.contains("has 0 steps") && said.contains("put the newest ledger back"), "{said}");
    // Steps of another mandate have no effect on this one.
    world.desk.set_known(shoal_directory::MandateId([1; 32]), 9, [1; 32]);
    let n = world.join(12, &contact);
    world.run(1_000);
    assert!(world.joined(n).chain.len() == 1 && world.desk.doubt().is_none());
    // As many steps as at the node, but a different last one.
    world.desk.set_known(id, 1, second);
    let k = world.join(13, &contact);
    world.run(1_000);
    assert_eq!((world.refused(k), world.published), (Refusal::Registrar, 4));
    let said = world.desk.doubt().unwrap().to_string();
    assert!(said.contains("number 1") && said.contains("--anew"), "{said}");
}

#[test]
fn what_the_node_refuses_or_nobody_has_confirmed_yet_is_not_followed_by_more() {
    let mut world = World::new(3);
    let contact = world.invite(terms(9));
    world.desk.set_refused(Some("a step before it is another one".into()));
    let n = world.join(9, &contact);
    world.run(1_000);
    assert_eq!((world.refused(n), world.published), (Refusal::Registrar, 0));
    let said = world.desk.doubt().unwrap().to_string();
    assert!(said.contains("refuses") && said.contains("another one"), "{said}");
    world.desk.set_refused(None);
    // While the network's state is unknown nobody gets an answer; then a waiting machine joins.
    world.desk.set_early(true);
    let n = world.join(9, &contact);
    world.run(29_000);
    assert!(world.ends[n].is_none() && world.published == 0, "{:?}", world.ends[n]);
    let said = world.desk.remove("nobody", (world.now, unix_s(world.now))).unwrap_err();
    assert!(matches!(said, OwnerError::NoMember), "{said}");
    world.desk.set_early(false);
    world.run(5_000);
    world.joined(n);
    // An older ledger lets nobody in, even by an open invite.
    world.desk.set_older(10, 20);
    let n = world.join(10, &contact);
    world.run(1_000);
    assert_eq!((world.refused(n), world.published), (Refusal::Registrar, 1));
}

#[test]
fn what_the_authority_adopted_is_its_own() {
    let mut world = World::new(2);
    let contact = world.invite(terms(2));
    let (n, other) = (world.join(9, &contact), world.join(10, &contact));
    world.run(1_000);
    let mine = world.joined(n).member.clone();
    world.joined(other);
    let adopted = list(2, |content| {
        content.issued_unix_s = START + 60 * DAY_S;
        content.members.push(mine.clone().sign(&authority()).unwrap());
    });
    world.now = world.now + Duration::from_secs(60 * DAY_S);
    world.desk.set_list(adopted, (world.now, unix_s(world.now))).unwrap();
    let own = Contact { token: None, ..contact.clone() };
    let asked = [world.ask(9, &own, JoinGoal::Renew), world.ask(9, &own, JoinGoal::Leave)];
    let renewed = world.ask(10, &own, JoinGoal::Renew);
    world.run(1_000);
    for n in asked {
        assert_eq!(world.refused(n), Refusal::Adopted);
    }
    assert!(Refusal::Adopted.to_string().contains("shoal authority sign --dir DIR"));
    // Another member of the mandate is renewed, and no step about the adopted one was signed.
    assert!(world.joined(renewed).member.version == 2 && world.published == 3);
    let said = world.desk.remove(&mine.name, (world.now, unix_s(world.now))).unwrap_err();
    assert!(matches!(said, OwnerError::Adopted), "{said}");
    // The machine uses its invite again: it gets the membership that the authority signed.
    let again = world.join(9, &contact);
    world.run(1_000);
    assert_eq!(world.joined(again).member, mine);
    assert!(world.ends.iter().all(|end| !matches!(end, Some(JoinEvent::Left))));
    assert_ne!(mine.key, Identity::from_seed([10; 32]).public());
}
