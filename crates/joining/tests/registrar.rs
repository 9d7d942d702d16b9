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
    world.desk.set_known(id, 2);
    let third = world.join(11, &contact);
    world.run(1_000);
    world.joined(third);
    // The ledger of the time before any of them is put back.
    world.file = File::of(&before);
    world.desk = open(&world.file, world.now);
    world.desk.set_known(id, 2);
    let n = world.join(12, &contact);
    world.run(1_000);
    assert_eq!((world.refused(n), world.published), (Refusal::Registrar, 3));
    assert_eq!((world.desk.behind(), world.file.bytes()), (Some((0, 2)), before.clone()));
    let said = world.desk.invite(terms(1), START).unwrap_err();
    assert!(matches!(said, OwnerError::Behind { ledger: 0, node: 2 }), "{said}");
    let said = said.to_string();
    assert!(said.contains("has 0 steps") && said.contains("put the newest ledger back"), "{said}");
    // What the node has of another mandate says nothing of this one.
    world.desk.set_known(shoal_directory::MandateId([1; 32]), 9);
    let n = world.join(12, &contact);
    world.run(1_000);
    assert_eq!((world.joined(n).chain.len(), world.desk.behind()), (1, None));
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
