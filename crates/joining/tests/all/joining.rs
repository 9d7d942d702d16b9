//! Newcomers and a registrar under a virtual clock, over a network that loses, repeats and reorders
//! datagrams.

use std::net::SocketAddr;
use std::time::Duration;

use shoal_crypto::Identity;
use shoal_directory::{Member, RevokedKey};
use shoal_joining::{
    Contact, DeskOutput, DoorSecret, Invite, JoinError, JoinEvent, JoinGoal, NameRequest, Newcomer,
    OwnerError, Refusal, TokenTerms,
};
use shoal_wire::{Address, DropReason};

use crate::world::{DAY_S, START, World, at, authority, door, list, open, router, terms, unix_s};

#[test]
fn a_machine_joins_by_an_invite_and_verifies_what_it_gets() {
    let mut world = World::new(1);
    let contact = world.invite(TokenTerms { groups: vec!["staff".into()], ..terms(1) });
    let wish = NameRequest { name: Some("bob".into()), or_another: false };
    let n = world.ask(9, &contact, JoinGoal::Join(wish));
    world.run(1_000);
    let joined = world.joined(n);
    assert_eq!(
        (joined.member.name.as_str(), joined.member.groups.join(" ")),
        ("bob", "staff".into())
    );
    assert_eq!(joined.member.address, Address::new(1, 100));
    assert_eq!(joined.member.ipv4, Some([10, 9, 0, 1].into()));
    assert_eq!(joined.member.expires_unix_s, START + 1 + 90 * DAY_S);
    assert_eq!((joined.secret.expose(), joined.ipv4_bits), (&[5; 32], Some(24)));
    assert_eq!(joined.router, router().endpoint);
    assert_eq!((joined.chain.len(), world.published, world.desk.stats().joined), (1, 1, 1));
}

#[test]
fn a_token_is_spent_by_another_key_and_repeated_by_its_own() {
    let mut world = World::new(2);
    let contact = world.invite(terms(1));
    let first = world.join(9, &contact);
    world.run(500);
    let (again, thief) = (world.join(9, &contact), world.join(10, &contact));
    world.run(500);
    assert_eq!(world.joined(again).member, world.joined(first).member);
    assert_eq!(world.refused(thief), Refusal::Spent);
    assert_eq!((world.members(), world.published), (1, 1));
}

#[test]
fn a_token_that_ended_hears_why() {
    let mut world = World::new(3);
    let early = world.invite(TokenTerms { expires_unix_s: START + 30, ..terms(1) });
    let (text, token) = world.desk.invite(terms(1), START).unwrap();
    let withdrawn: Contact =
        Contact::new(text.parse::<Invite>().unwrap(), Duration::from_secs(7 * DAY_S));
    world.desk.withdraw(&token).unwrap();
    world.run(40_000);
    let (n, m) = (world.join(9, &early), world.join(10, &withdrawn));
    world.run(500);
    assert_eq!((world.refused(n), world.refused(m)), (Refusal::Expired, Refusal::Withdrawn));
    assert_eq!(world.members(), 0);
}

#[test]
fn strangers_get_no_byte() {
    let mut world = World::new(4);
    let contact = world.invite(terms(1));
    let foreign = Contact { door: DoorSecret::new([9; 16]), ..contact.clone() };
    let unknown = Contact { token: None, ..contact.clone() };
    let other = Contact { registrar: Identity::from_seed([8; 32]).public(), ..contact };
    let all = [world.join(9, &foreign), world.join(10, &unknown), world.join(11, &other)];
    for len in [0, 1, 16, 192, 576, 577, 1_400] {
        let mut noise = vec![7; len];
        let dropped = world.desk.handle_datagram((world.now, START), at(77), &mut noise);
        assert!(dropped.is_err() && world.desk.poll_output().is_none());
    }
    world.run(60_000);
    assert_eq!(world.desk.stats().welcomed, 0);
    for n in all {
        let end = &world.ends[n];
        assert!(
            matches!(end, Some(JoinEvent::Failed(JoinError::Silent { welcomed: false }))),
            "{end:?}"
        );
    }
    let count = |reason| world.desk.drops().get(&reason).copied().unwrap_or_default();
    assert!(count(DropReason::BadHandshake) > 20);
    // A sender who knows only the door secret gets cookies and nothing else.
    assert!(count(DropReason::UnknownPeer) > 6, "{:?}", world.desk.drops());
}

/// An attacker who saw one knock sends copies from many addresses: they get no answer and take no
/// place, and newcomers still join.
#[test]
fn copies_of_a_knock_draw_no_answer_and_shut_nobody_out() {
    let mut world = World::new(6);
    let contact = world.invite(terms(9));
    let n = world.join(31, &contact);
    world.machines[n].handle_timeout(world.now, START);
    let (_, hello) = world.machines[n].poll_transmit().unwrap();
    let _ = world.desk.handle_datagram((world.now, START), at(n as u8), &mut hello.clone());
    let Some(DeskOutput::Send(_, cookie)) = world.desk.poll_output() else { panic!("no cookie") };
    world.machines[n].handle_datagram(world.now, START, door(), &cookie);
    let mut knock = Vec::new();
    while let Some((_, bytes)) = world.machines[n].poll_transmit() {
        knock.push(bytes);
    }
    assert_eq!(knock.len(), 3);
    let mut answers = 0;
    for copy in 0..20_000_u32 {
        let [_, _, high, low] = copy.to_be_bytes();
        let from = SocketAddr::from(([203, 0, 113, high], 10_000 + u16::from(low)));
        world.now = world.now + Duration::from_millis(1);
        let unix = unix_s(world.now);
        let mut part = knock[copy as usize % 3].clone();
        let _ = world.desk.handle_datagram((world.now, unix), from, &mut part);
        while world.desk.poll_output().is_some() {
            answers += 1;
        }
    }
    let refused = world.desk.drops()[&DropReason::CookieRequired];
    assert_eq!((answers, refused), (0, 20_000), "{:?}", world.desk.drops());
    let all = [n, world.join(31, &contact), world.join(32, &contact)];
    world.run(10_000);
    for n in all {
        world.joined(n);
    }
}

/// An attacker waits under many keys with one invite. Holders of other invites still find a place,
/// and so does the next holder of that invite once the attacker is gone.
#[test]
fn one_invite_does_not_take_all_places_of_those_who_wait() {
    let mut world = World::new(7);
    let leaked = world.invite(TokenTerms { approve: true, ..terms(9) });
    let other = world.invite(TokenTerms { approve: true, ..terms(9) });
    let many: Vec<usize> = (20..60).map(|seed| world.join(seed, &leaked)).collect();
    world.run(3_000);
    assert_eq!(world.desk.waiting().count(), 32);
    let full = |n: &&usize| matches!(world.ends[**n], Some(JoinEvent::Refused(Refusal::Crowded)));
    assert_eq!(many.iter().filter(full).count(), 8);
    let n = world.join(9, &other);
    world.run(3_000);
    assert!(world.words[n].is_some(), "another invite has places");
    // All their datagrams are lost.
    world.loss = 256;
    world.run(70_000);
    world.loss = 0;
    let n = world.join(10, &leaked);
    world.run(3_000);
    assert!(world.words[n].is_some(), "machines that stopped asking are replaced");
    assert_eq!(world.desk.waiting().count(), 33);
}

#[test]
fn somebody_approves_or_does_not() {
    let mut world = World::new(6);
    let contact = world.invite(TokenTerms { approve: true, ..terms(2) });
    let (n, m) = (world.join(9, &contact), world.join(10, &contact));
    world.run(3_000);
    let waiting: Vec<_> = world.desk.waiting().cloned().collect();
    assert_eq!(waiting.len(), 2);
    let key = |seed| Identity::from_seed([seed; 32]).public();
    for (seed, n) in [(9, n), (10, m)] {
        let theirs = waiting.iter().find(|waiting| waiting.key == key(seed)).unwrap();
        assert_eq!(world.words[n], Some(theirs.words.to_string()), "both ends see one text");
    }
    assert_eq!(world.members(), 0);
    world.desk.approve(&key(9), None, true).unwrap();
    world.desk.approve(&key(10), None, false).unwrap();
    assert!(matches!(world.desk.approve(&key(10), None, true), Err(OwnerError::NotWaiting)));
    world.run(5_000);
    assert_eq!((world.joined(n).member.key, world.refused(m)), (key(9), Refusal::NotApproved));
    // The denial survives a restart of the registrar.
    world.desk = open(&world.file, world.now);
    let again = world.join(10, &contact);
    world.run(5_000);
    assert_eq!(world.refused(again), Refusal::NotApproved);
}

#[test]
fn a_registrar_may_die_at_any_point() {
    for crash in 1..14 {
        for seed in 0..4 {
            let mut world = World::new(seed);
            let contact = world.invite(terms(1));
            (world.loss, world.twice) = (40, 40);
            world.crashes = vec![crash, crash + 1, crash + 7];
            let (n, thief) = (world.join(9, &contact), world.join(10, &contact));
            world.run(90_000);
            let won: Vec<_> = [n, thief]
                .into_iter()
                .filter(|n| matches!(world.ends[*n], Some(JoinEvent::Joined(_))))
                .collect();
            let ends = &world.ends;
            assert_eq!(won.len(), 1, "one use; crash {crash}, seed {seed}, {ends:?}");
            let lost = if won[0] == n { thief } else { n };
            assert_eq!(world.refused(lost), Refusal::Spent);
            assert_eq!((world.members(), world.desk.register().unwrap().len()), (1, 1));
        }
    }
}

#[test]
fn a_full_disk_grants_nothing_and_costs_nothing() {
    let mut world = World::new(8);
    let contact = world.invite(terms(1));
    world.file.set_full(true);
    assert!(matches!(world.desk.invite(terms(1), START), Err(OwnerError::Disk(_))));
    let n = world.join(9, &contact);
    world.run(1_000);
    assert_eq!((world.refused(n), world.members()), (Refusal::Registrar, 0));
    assert!(world.desk.fault().is_some_and(|why| why.contains("the ledger can't be written")));
    world.file.set_full(false);
    let n = world.join(9, &contact);
    world.run(1_000);
    assert_eq!(world.joined(n).member.address, Address::new(1, 100));
    world.desk = open(&world.file, world.now);
    assert_eq!(world.members(), 1);
    assert_eq!(world.desk.fault(), None, "a successful write clears the fault");
}

#[test]
fn names_are_given_once() {
    let mut world = World::new(9);
    let contact = world.invite(terms(9));
    let wish = |or_another| JoinGoal::Join(NameRequest { name: Some("r1".into()), or_another });
    let (n, m) = (world.ask(9, &contact, wish(false)), world.ask(10, &contact, wish(true)));
    let named = world.invite(TokenTerms { name: Some("guest".into()), ..terms(1) });
    let k = world.ask(11, &named, wish(false));
    world.run(1_000);
    assert_eq!(world.refused(n), Refusal::NameTaken);
    assert_eq!(world.joined(m).member.name, "r1-2");
    assert_eq!(world.joined(k).member.name, "guest", "the invite's name counts");
    // An invite with a member's name is refused.
    let again = TokenTerms { name: Some("guest".into()), ..terms(1) };
    let said = world.desk.invite(again.clone(), START).unwrap_err();
    assert!(matches!(&said, OwnerError::NameTaken(name) if name == "guest"), "{said}");
    world.desk.remove("guest", (world.now, unix_s(world.now))).unwrap();
    world.desk.invite(again, START).unwrap();
    let bad = TokenTerms { groups: vec!["admins".into()], ..terms(1) };
    assert!(matches!(world.desk.invite(bad, START), Err(OwnerError::Group { .. })));
}

#[test]
fn names_are_compared_as_dns_compares_them() {
    let mut world = World::new(21);
    let contact = world.invite(terms(9));
    let wish = |name: &str, or_another| {
        JoinGoal::Join(NameRequest { name: Some(name.into()), or_another })
    };
    let ask = |world: &mut World, n: u8, name, or| world.ask(n, &contact, wish(name, or));
    // The router of the list is r1.
    let (upper, dotted) = (ask(&mut world, 9, "R1", false), ask(&mut world, 10, "r1.", false));
    let other = ask(&mut world, 11, "R1", true);
    let meant = ["1.0", "10.9.0.1", "localhost", "anon"];
    let meant = [0, 1, 2, 3].map(|i| ask(&mut world, 12 + i as u8, meant[i], false));
    let any = ask(&mut world, 16, "localhost", true);
    world.run(3_000);
    for n in [upper, dotted].iter().chain(&meant) {
        assert_eq!(world.refused(*n), Refusal::NameTaken);
    }
    assert_eq!(world.joined(other).member.name, "R1-2");
    let any = &world.joined(any).member;
    assert_eq!(any.name, format!("host-{}", any.address.host));
    for name in ["R1", "1.0", "localhost", "guest."] {
        let said = world.desk.invite(TokenTerms { name: Some(name.into()), ..terms(1) }, START);
        let refused = matches!(said, Err(OwnerError::Name { .. } | OwnerError::NameTaken(_)));
        assert!(refused, "{name}: an invite gives no such name");
    }
}

#[test]
fn the_name_of_an_open_invite_is_free_for_nobody_else() {
    let mut world = World::new(22);
    let contact = world.invite(terms(9));
    let named = world.invite(TokenTerms { name: Some("fileserver".into()), ..terms(1) });
    let wish =
        |or_another| JoinGoal::Join(NameRequest { name: Some("FileServer".into()), or_another });
    let (thief, other) = (world.ask(9, &contact, wish(false)), world.ask(10, &contact, wish(true)));
    world.run(3_000);
    assert_eq!(world.refused(thief), Refusal::NameTaken);
    assert_eq!(world.joined(other).member.name, "FileServer-2");
    let twice = TokenTerms { name: Some("FILESERVER".into()), ..terms(1) };
    assert!(matches!(world.desk.invite(twice, START), Err(OwnerError::NameKept(_))));
    let meant = world.join(11, &named);
    world.run(3_000);
    assert_eq!(world.joined(meant).member.name, "fileserver");
    // A withdrawn invite reserves no name.
    let gone = world.invite(TokenTerms { name: Some("printer".into()), ..terms(1) });
    world.desk.withdraw(&gone.token.unwrap().hash()).unwrap();
    let printer = JoinGoal::Join(NameRequest { name: Some("printer".into()), or_another: false });
    let n = world.ask(12, &contact, printer);
    world.run(3_000);
    assert_eq!(world.joined(n).member.name, "printer");
}

#[test]
fn an_approval_is_of_the_name_beside_the_words() {
    let mut world = World::new(23);
    let contact = world.invite(TokenTerms { approve: true, ..terms(2) });
    let wish =
        |name: &str| JoinGoal::Join(NameRequest { name: Some(name.into()), or_another: false });
    let first = world.ask(9, &contact, wish("bobs-laptop"));
    world.run(3_000);
    let key = Identity::from_seed([9; 32]).public();
    let shown = world.desk.waiting().next().unwrap().clone();
    assert_eq!(shown.name.as_deref(), Some("bobs-laptop"));
    let said = world.desk.approve(&key, Some("other words than those"), true);
    assert!(matches!(said, Err(OwnerError::NotWaiting)), "{said:?}");
    world.desk.approve(&key, Some(&shown.words.to_string()), true).unwrap();
    // The machine sends another request, with another name, before it learns that it is approved.
    let second = world.ask(9, &contact, wish("fileserver"));
    world.run(3_000);
    let names = [first, second].map(|n| world.joined(n).member.name.clone());
    assert_eq!(names, ["bobs-laptop", "bobs-laptop"]);
    // Two visits of one machine: a name never appears beside the words of the other visit.
    let (a, b) = (world.ask(10, &contact, wish("a")), world.ask(10, &contact, wish("b")));
    for _ in 0..40 {
        world.run(100);
        for waiting in world.desk.waiting() {
            let n = if waiting.name.as_deref() == Some("a") { a } else { b };
            // The answer may still be in flight.
            let shown = world.words[n].clone().unwrap_or(waiting.words.to_string());
            assert_eq!(shown, waiting.words.to_string());
        }
    }
}

#[test]
fn members_renew_and_leave_without_a_token() {
    let mut world = World::new(10);
    let contact = world.invite(terms(1));
    let n = world.join(9, &contact);
    world.run(1_000);
    let first = world.joined(n).member.expires_unix_s;
    let own = Contact { token: None, ..contact };
    let early = world.ask(9, &own, JoinGoal::Renew);
    world.run(1_000);
    assert_eq!((world.joined(early).member.expires_unix_s, world.published), (first, 1));
    world.now = world.now + Duration::from_secs(60 * DAY_S);
    let fresh = list(2, |content| content.issued_unix_s = START + 60 * DAY_S);
    world.desk.set_list(fresh, (world.now, unix_s(world.now))).unwrap();
    let late = world.ask(9, &own, JoinGoal::Renew);
    world.run(1_000);
    let renewed = &world.joined(late).member;
    assert!(renewed.expires_unix_s > first + 59 * DAY_S && renewed.version == 2);
    let stranger = world.ask(12, &own, JoinGoal::Leave);
    let gone = world.ask(9, &own, JoinGoal::Leave);
    world.run(40_000);
    assert!(matches!(world.ends[gone], Some(JoinEvent::Left)));
    assert!(matches!(world.ends[stranger], Some(JoinEvent::Failed(JoinError::Silent { .. }))));
    assert_eq!(world.members(), 0);
}

#[test]
fn who_was_away_until_its_membership_ended_joins_anew() {
    let mut world = World::new(12);
    let contact = world.invite(terms(1));
    let n = world.join(9, &contact);
    world.run(1_000);
    let first = world.joined(n).member.clone();
    let later = first.expires_unix_s - START;
    world.now = world.now + Duration::from_secs(later);
    let fresh = list(2, |content| content.issued_unix_s = START + later);
    world.desk.set_list(fresh, (world.now, unix_s(world.now))).unwrap();
    let own = Contact { token: None, ..contact };
    let late = world.ask(9, &own, JoinGoal::Renew);
    world.run(1_000);
    assert_eq!(world.refused(late), Refusal::Ended);
    let terms = |name| TokenTerms { name, expires_unix_s: START + later + 60, ..terms(1) };
    // Another machine gets the free name.
    let other = world.invite(terms(Some(first.name.clone())));
    let m = world.join(10, &other);
    world.run(1_000);
    assert_eq!(world.joined(m).member.name, first.name);
    let again = world.invite(terms(None));
    let k = world.join(9, &again);
    world.run(1_000);
    let anew = &world.joined(k).member;
    assert!(anew.expires_unix_s > first.expires_unix_s);
    assert_ne!((&anew.name, anew.address), (&first.name, first.address));
}

#[test]
fn the_authority_ends_what_a_registrar_may_do() {
    let mut world = World::new(11);
    let contact = world.invite(TokenTerms { expires_unix_s: START + 30 * DAY_S, ..terms(9) });
    let now = (world.now, unix_s(world.now));
    world.desk.set_list(list(2, |content| content.mandates.clear()), now).unwrap();
    let n = world.join(9, &contact);
    world.run(1_000);
    assert_eq!(world.refused(n), Refusal::MandateEnded);
    let revoked = Identity::from_seed([10; 32]).public();
    let newer = list(3, |content| content.revoked.push(RevokedKey::new("x", &revoked)));
    world.desk.set_list(newer, (world.now, unix_s(world.now))).unwrap();
    let (n, m) = (world.join(10, &contact), world.join(11, &contact));
    world.run(1_000);
    assert_eq!(world.refused(n), Refusal::Key);
    assert_eq!(world.joined(m).member.address, Address::new(1, 100));
    let old = world.desk.set_list(list(2, |_| {}), (world.now, unix_s(world.now)));
    assert!(old.is_err());
    world.now = world.now + Duration::from_secs(8 * DAY_S);
    let n = world.join(12, &contact);
    world.run(1_000);
    assert_eq!(world.refused(n), Refusal::Registrar, "the registrar's list is too old");
}

/// Revoked members, and expired members of the list, keep name and address. The next machine gets
/// others, and joins.
#[test]
fn a_member_who_is_revoked_or_has_expired_stops_nobody() {
    let mut world = World::new(13);
    let contact = world.invite(terms(9));
    let named = |name: &str| {
        JoinGoal::Join(NameRequest { name: Some(name.to_string()), or_another: false })
    };
    let n = world.ask(9, &contact, named("carol"));
    world.run(1_000);
    let carol = world.joined(n).member.clone();
    let old = Member {
        name: "laptop".into(),
        key: Identity::from_seed([50; 32]).public(),
        address: Address::new(1, 101),
        ipv4: None,
        expires_unix_s: START + 1,
        ..carol.clone()
    };
    let newer = list(2, |content| {
        content.revoked.push(RevokedKey::new("carol", &carol.key));
        content.members.push(old.sign(&authority()).unwrap());
    });
    world.desk.set_list(newer, (world.now, unix_s(world.now))).unwrap();
    let taken = ["carol", "laptop"].map(|name| world.ask(10, &contact, named(name)));
    let next = world.join(11, &contact);
    world.run(1_000);
    assert_eq!(taken.map(|n| world.refused(n)), [Refusal::NameTaken; 2]);
    assert_eq!(carol.address, Address::new(1, 100));
    assert_eq!(world.joined(next).member.address, Address::new(1, 102));
}

#[test]
fn a_clock_that_is_wrong_is_named() {
    let mut world = World::new(12);
    let contact = world.invite(terms(1));
    let mut machine = Newcomer::new(
        Identity::from_seed([9; 32]),
        contact,
        JoinGoal::Join(NameRequest::default()),
        [1; 32],
        world.now,
    );
    let year = 365 * DAY_S;
    machine.handle_timeout(world.now, START + year);
    let mut end = None;
    for _ in 0..50 {
        while let Some((_, mut bytes)) = machine.poll_transmit() {
            let _ = world.desk.handle_datagram((world.now, START), at(1), &mut bytes);
        }
        while let Some(DeskOutput::Send(_, bytes)) = world.desk.poll_output() {
            machine.handle_datagram(world.now, START + year, door(), &bytes);
        }
        while let Some(event) = machine.poll_event() {
            end = Some(event);
        }
    }
    let Some(JoinEvent::Failed(fault)) = end else { panic!("{end:?}") };
    let said = fault.to_string();
    assert!(said.contains("clock is 365 days ahead of the registrar's"), "{said}");
}

#[test]
fn many_join_through_a_bad_network() {
    let mut world = World::new(13);
    let contact = world.invite(terms(60));
    (world.loss, world.twice) = (13, 13);
    let all: Vec<usize> = (0..60).map(|n| world.join(20 + n, &contact)).collect();
    world.run(30_000);
    let mut places: Vec<_> = all.iter().map(|n| world.joined(*n).member.address).collect();
    places.sort();
    places.dedup();
    assert_eq!((places.len(), world.members(), world.published), (60, 60, 60));
    let more = world.invite(terms(1));
    let n = world.join(200, &more);
    world.run(5_000);
    assert_eq!(world.refused(n), Refusal::Full, "the mandate has admitted as many as it may");
}

/// Loss of one in 20 and of one in ten datagrams. The time until links and sessions are up is
/// measured by `shoal-sim`'s test of losses.
#[test]
fn a_machine_has_joined_soon_though_datagrams_are_lost() {
    for (loss, most_ms) in [(13, 1_500), (26, 3_000)] {
        let mut took = Vec::new();
        for seed in 0..200 {
            let mut world = World::new(seed);
            let contact = world.invite(terms(1));
            world.loss = loss;
            let (n, began) = (world.join(9, &contact), world.now);
            while world.ends[n].is_none() {
                world.run(10);
            }
            assert!(!world.joined(n).member.address.is_router());
            took.push(world.now.since(began).as_millis());
        }
        took.sort_unstable();
        let of = |percent: usize| took[took.len() * percent / 100 - 1];
        println!("{loss} of 256 lost: {} ms, 95% {}, all {}", of(50), of(95), of(100));
        assert!(of(95) <= most_ms && of(100) <= 10_000, "{took:?}");
    }
}
