//! Replacement of a member's key.

use std::time::Duration;

use shoal_crypto::Identity;
use shoal_directory::RevokedKey;
use shoal_joining::{Contact, JoinError, JoinEvent, JoinGoal, Refusal};

use crate::world::{DAY_S, World, authority, list, open, terms, unix_s};

fn key(seed: u8) -> Identity {
    Identity::from_seed([seed; 32])
}

/// A world with a member whose key has this seed, and contacts without and with the invite's token.
fn with_member(seed: u8) -> (World, Contact, Contact) {
    let mut world = World::new(seed);
    let invite = world.invite(terms(60));
    let n = world.join(seed, &invite);
    world.run(1_000);
    world.joined(n);
    let own = Contact { token: None, ..invite.clone() };
    (world, own, invite)
}

fn later(world: &mut World, days: u64) {
    world.now = world.now + Duration::from_secs(days * DAY_S);
}

/// Sets a freshly signed list, so that the list does not become too old.
fn new_list(
    world: &mut World,
    version: u64,
    change: impl FnOnce(&mut shoal_directory::ListContent),
) {
    let issued_unix_s = unix_s(world.now);
    let list = list(version, |content| {
        content.issued_unix_s = issued_unix_s;
        change(content);
    });
    world.desk.set_list(list, (world.now, issued_unix_s)).unwrap();
}

#[test]
fn a_member_has_another_key_and_is_the_same_otherwise() {
    let (mut world, own, invite) = with_member(9);
    let before = world.desk.register().unwrap().members().next().unwrap().clone();
    let n = world.ask(9, &own, JoinGoal::Rekey(key(10)));
    world.run(1_000);
    let joined = world.joined(n).clone();
    assert_eq!(joined.member.key, key(10).public());
    let renamed = shoal_directory::Member { key: before.key, ..joined.member.clone() };
    assert_eq!(renamed, before, "name, addresses, groups and end stay");
    assert_eq!((world.members(), joined.chain.len(), world.desk.stats().rekeyed), (1, 2, 1));
    // One step holds both changes, so nobody sees two members of the name, or none.
    assert_eq!(joined.chain[1].step().entries.len(), 2);
    // The old key can't renew, leave, join or be replaced any more.
    for (goal, why) in [
        (JoinGoal::Renew, Refusal::Replaced),
        (JoinGoal::Leave, Refusal::Replaced),
        (JoinGoal::Rekey(key(11)), Refusal::Replaced),
    ] {
        let n = world.ask(9, &own, goal);
        world.run(1_000);
        assert_eq!(world.refused(n), why);
    }
    let n = world.join(9, &invite);
    world.run(1_000);
    assert_eq!(world.refused(n), Refusal::Key);
    // The new key can do all of these.
    let n = world.ask(10, &own, JoinGoal::Renew);
    world.run(1_000);
    assert_eq!(world.joined(n).member, joined.member);
    let n = world.ask(10, &own, JoinGoal::Leave);
    world.run(1_000);
    assert!(matches!(world.ends[n], Some(JoinEvent::Left)) && world.members() == 0);
}

#[test]
fn what_is_repeated_is_answered_as_the_first_time() {
    let (mut world, own, _) = with_member(9);
    for _ in 0..3 {
        let n = world.ask(9, &own, JoinGoal::Rekey(key(10)));
        world.run(1_000);
        assert_eq!(world.joined(n).member.key, key(10).public());
        // The answer survives a restart.
        world.desk = open(&world.file, world.now);
    }
    assert_eq!((world.published, world.desk.register().unwrap().admitted()), (2, 2));
    // At most one new key a week.
    let n = world.ask(10, &own, JoinGoal::Rekey(key(11)));
    world.run(1_000);
    assert_eq!(world.refused(n), Refusal::Soon);
    later(&mut world, 7);
    new_list(&mut world, 2, |_| {});
    let n = world.ask(10, &own, JoinGoal::Rekey(key(11)));
    world.run(1_000);
    assert_eq!(world.joined(n).member.key, key(11).public());
    let n = world.ask(9, &own, JoinGoal::Rekey(key(10)));
    world.run(1_000);
    assert_eq!((world.refused(n), world.members()), (Refusal::Replaced, 1));
}

#[test]
fn a_registrar_may_die_at_any_point_of_it() {
    for crash in 1..14 {
        for seed in 0..4 {
            let (mut world, own, _) = with_member(9);
            world.rng = shoal_crypto::Rng::new([seed; 32]);
            (world.loss, world.twice) = (40, 40);
            world.crashes = [crash, crash + 1, crash + 7].map(|n| world.heard + n).to_vec();
            // The machine also restarts and asks twice.
            let asked = [0, 1].map(|_| world.ask(9, &own, JoinGoal::Rekey(key(10))));
            world.run(90_000);
            for n in asked {
                assert_eq!(world.joined(n).member.key, key(10).public(), "{crash} {seed}");
            }
            let register = world.desk.register().unwrap();
            assert_eq!((world.members(), register.len(), register.admitted()), (1, 2, 2));
        }
    }
}

#[test]
fn a_full_disk_or_mandate_changes_nothing() {
    let (mut world, own, invite) = with_member(9);
    world.file.set_full(true);
    let n = world.ask(9, &own, JoinGoal::Rekey(key(10)));
    world.run(1_000);
    assert_eq!((world.refused(n), world.published), (Refusal::Registrar, 1));
    world.file.set_full(false);
    let others: Vec<usize> = (0..59).map(|n| world.join(100 + n, &invite)).collect();
    world.run(20_000);
    assert!(others.iter().all(|n| world.joined(*n).chain.len() > 1));
    let n = world.ask(9, &own, JoinGoal::Rekey(key(10)));
    world.run(1_000);
    assert_eq!((world.refused(n), world.members()), (Refusal::Full, 60));
    let n = world.ask(9, &own, JoinGoal::Renew);
    world.run(1_000);
    assert_eq!(world.joined(n).member.key, key(9).public(), "the old key stays valid");
}

#[test]
fn who_may_not_hears_why() {
    let (mut world, own, invite) = with_member(9);
    let other = world.join(20, &invite);
    world.run(1_000);
    let adopted = world.joined(other).member.clone();
    // Keys of another member, of a router, and the present key.
    let third = world.join(21, &invite);
    world.run(1_000);
    world.joined(third);
    for taken in [21, 1, 9] {
        let n = world.ask(9, &own, JoinGoal::Rekey(key(taken)));
        world.run(1_000);
        assert_eq!(world.refused(n), Refusal::Key, "{taken}");
    }
    new_list(&mut world, 2, |content| {
        content.members.push(adopted.sign(&authority()).unwrap());
        let revoked = RevokedKey::new("x", &key(21).public());
        content.revoked.push(revoked);
    });
    for (who, why) in [(20, Refusal::Adopted), (21, Refusal::Key)] {
        let n = world.ask(who, &own, JoinGoal::Rekey(key(10)));
        world.run(1_000);
        assert_eq!(world.refused(n), why);
    }
    let n = world.ask(9, &own, JoinGoal::Rekey(key(21)));
    world.run(1_000);
    assert_eq!(world.refused(n), Refusal::Key);
    // A stranger gets no byte.
    let n = world.ask(99, &own, JoinGoal::Rekey(key(10)));
    world.run(60_000);
    assert!(matches!(
        world.ends[n],
        Some(JoinEvent::Failed(JoinError::Silent { welcomed: false }))
    ));
    // The membership has expired.
    later(&mut world, 91);
    new_list(&mut world, 3, |_| {});
    let n = world.ask(9, &own, JoinGoal::Rekey(key(10)));
    world.run(1_000);
    assert_eq!(world.refused(n), Refusal::Ended);
    later(&mut world, 120);
    new_list(&mut world, 4, |_| {});
    let n = world.ask(9, &own, JoinGoal::Rekey(key(10)));
    world.run(1_000);
    assert_eq!(world.refused(n), Refusal::MandateEnded);
}
