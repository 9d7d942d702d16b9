//! What a registrar does not sign: with an older ledger, and about the authority's own members.

mod world;

use std::time::Duration;

use shoal_crypto::Identity;
use shoal_joining::{Contact, Event, Goal, OwnerError, Refusal};

use world::{DAY_S, File, START, World, authority, list, open, terms, unix_s};

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
    // What the node has never makes the newest ledger wait.
    let head = |world: &World, n| world.desk.register().unwrap().step(n).unwrap().digest();
    let second = head(&world, 2);
    world.desk.set_known(id, 2, second);
    let third = world.join(11, &contact);
    world.run(1_000);
    world.joined(third);
    // The ledger of the time before any of them is put back.
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
    // What the node has of another mandate says nothing of this one.
    world.desk.set_known(shoal_directory::MandateId([1; 32]), 9, [1; 32]);
    let n = world.join(12, &contact);
    world.run(1_000);
    assert!(world.joined(n).chain.len() == 1 && world.desk.doubt().is_none());
    // As many steps as the node has, and others.
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
    // For a while after the start there is no answer, and then a machine joins that waited.
    world.desk.set_early(true);
    let n = world.join(9, &contact);
    world.run(29_000);
    assert!(world.ends[n].is_none() && world.published == 0, "{:?}", world.ends[n]);
    let said = world.desk.remove("nobody", (world.now, unix_s(world.now))).unwrap_err();
    assert!(matches!(said, OwnerError::NoMember), "{said}");
    world.desk.set_early(false);
    world.run(5_000);
    world.joined(n);
    // A ledger that was longer lets nobody in, whatever its invites say.
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
    let asked = [world.ask(9, &own, Goal::Renew), world.ask(9, &own, Goal::Leave)];
    let renewed = world.ask(10, &own, Goal::Renew);
    world.run(1_000);
    for n in asked {
        assert_eq!(world.refused(n), Refusal::Adopted);
    }
    assert!(Refusal::Adopted.to_string().contains("shoal authority sign"));
    // Another member of the mandate goes on as before, and nothing was signed of the adopted one.
    assert!(world.joined(renewed).member.version == 2 && world.published == 3);
    let said = world.desk.remove(&mine.name, (world.now, unix_s(world.now))).unwrap_err();
    assert!(matches!(said, OwnerError::Adopted), "{said}");
    // The same machine with its invite once more: a member as the authority has it.
    let again = world.join(9, &contact);
    world.run(1_000);
    assert_eq!(world.joined(again).member, mine);
    assert!(world.ends.iter().all(|end| !matches!(end, Some(Event::Left))));
    assert_ne!(mine.key, Identity::from_seed([10; 32]).public());
}
