use super::*;
use crate::member::tests::{authority, member, of_later};
use crate::{ListContent, SignedMember};

const DAY_S: u64 = 86_400;
const ISSUED: u64 = 1_000_000;

fn list(version: u64, members: &[(&str, u8, u64)]) -> List {
    let sign = |&(name, number, version): &(&str, u8, u64)| -> SignedMember {
        Member { version, ..member(name, number, &["all"]) }.sign(&authority()).unwrap()
    };
    let members = members.iter().map(sign).collect();
    let content = ListContent { version, issued_unix_s: ISSUED, members, ..ListContent::default() };
    content.sign(&authority()).unwrap()
}

fn directory() -> Directory {
    Directory::new(Duration::from_secs(DAY_S))
}

fn names(directory: &Directory, now: Time, unix_s: u64) -> Vec<String> {
    directory.members(now, unix_s).map(|member| member.name.clone()).collect()
}

fn at(seconds: u64) -> Time {
    Time::from_millis(seconds * 1_000)
}

#[test]
fn a_newer_list_counts_and_an_older_one_does_not() {
    let mut directory = directory();
    assert_eq!(directory.standing(at(0), ISSUED), Freshness::Missing);
    assert_eq!(directory.accept(at(0), ISSUED, list(2, &[("bob", 2, 1)])), Ok(true));
    assert_eq!(names(&directory, at(0), ISSUED), ["bob"]);
    assert_eq!(directory.accept(at(1), ISSUED, list(2, &[("bob", 2, 1)])), Ok(false));
    let older = directory.accept(at(1), ISSUED, list(1, &[("eve", 3, 1)]));
    assert_eq!(older, Err(ListRejection::Older { found: 1, known: 2 }));
    let twin = directory.accept(at(1), ISSUED, list(2, &[("eve", 3, 1)]));
    assert_eq!(twin, Err(ListRejection::Twin(2)));
    assert_eq!(names(&directory, at(1), ISSUED), ["bob"]);
    assert_eq!(directory.accept(at(2), ISSUED, list(3, &[])), Ok(true));
    assert!(names(&directory, at(2), ISSUED).is_empty());
}

#[test]
fn a_newer_list_can_not_bring_back_an_older_descriptor() {
    let mut directory = directory();
    directory.accept(at(0), ISSUED, list(1, &[("bob", 2, 5)])).unwrap();
    let refused = directory.accept(at(0), ISSUED, list(2, &[("bob", 2, 4)]));
    assert!(matches!(refused, Err(ListRejection::OlderMember { found: 4, known: 5, .. })));
    assert_eq!(directory.list().unwrap().content().version, 1);
    assert_eq!(directory.accept(at(0), ISSUED, list(2, &[("bob", 2, 5)])), Ok(true));
}

#[test]
fn a_list_that_is_too_old_means_no_members() {
    let mut directory = directory();
    directory.accept(at(0), ISSUED + 100, list(1, &[("bob", 2, 1)])).unwrap();
    let left = directory.next_change(at(0), ISSUED + 100);
    assert_eq!(left, Some(Duration::from_secs(DAY_S - 100)));
    assert_eq!(names(&directory, at(0), ISSUED + DAY_S - 1), ["bob"]);
    assert!(names(&directory, at(0), ISSUED + DAY_S).is_empty());
    assert!(directory.policy(at(0), ISSUED + DAY_S).is_none());
    assert_eq!(directory.standing(at(0), ISSUED + DAY_S), Freshness::Stale);
    // Members of a stale list are still listed, until their membership expires.
    let last = |unix_s| directory.last_members(at(0), unix_s).count();
    assert_eq!((last(ISSUED + DAY_S), last(1_999_999), last(2_000_000)), (1, 1, 0));
    assert_eq!(directory.next_change(at(0), ISSUED + DAY_S), None);
    // A newer list that is itself too old is accepted, and gives nobody rights.
    assert_eq!(directory.accept(at(0), ISSUED + DAY_S, list(2, &[("bob", 2, 1)])), Ok(true));
    assert!(names(&directory, at(0), ISSUED + DAY_S).is_empty());
}

/// Time advances by the monotonic clock when the wall clock is set back. A wall clock that was
/// ahead and is corrected does not close the network for good.
#[test]
fn a_wall_clock_that_is_set_back_makes_nothing_valid_again() {
    let mut directory = directory();
    directory.accept(at(0), ISSUED, list(1, &[("bob", 2, 1)])).unwrap();
    assert!(names(&directory, at(DAY_S), ISSUED - 5_000).is_empty());
    assert_eq!(names(&directory, at(DAY_S - 1), ISSUED - 5_000), ["bob"]);
    assert!(names(&directory, at(10), ISSUED + 10 * DAY_S).is_empty());
    assert_eq!(names(&directory, at(20), ISSUED + 20), ["bob"]);
}

/// Expiry of every `member`, in seconds.
const EXPIRED: u64 = 2_000_000;

#[test]
fn a_list_that_is_read_again_brings_nobody_back() {
    let mut directory = Directory::new(Duration::from_secs(100 * DAY_S));
    directory.accept(at(0), ISSUED, list(1, &[("bob", 2, 1)])).unwrap();
    let late = EXPIRED - ISSUED;
    assert!(names(&directory, at(late), EXPIRED).is_empty());
    // The wall clock is set back, and the file copied once more.
    for wall in [ISSUED, EXPIRED - 1] {
        assert_eq!(directory.accept(at(late), wall, list(1, &[("bob", 2, 1)])), Ok(false));
        assert!(names(&directory, at(late + 1), wall).is_empty(), "bob is back");
    }
    // A newer list with the same descriptor does not bring him back either.
    let newer = directory.accept(at(late + 2), ISSUED, list(2, &[("bob", 2, 1)]));
    assert_eq!(newer, Ok(true));
    assert!(names(&directory, at(late + 2), ISSUED).is_empty(), "bob is back");
}

/// Looks every ten seconds; the wall clock starts at `wall` and runs evenly.
fn look(directory: &mut Directory, from: u64, wall: u64, seconds: u64) {
    (0..=seconds).step_by(10).for_each(|s| directory.look(at(from + s), wall + s));
}

#[test]
fn a_wall_clock_that_ran_evenly_for_an_hour_is_believed() {
    for (believed, seconds) in [(false, 3_590), (true, 3_600)] {
        let mut directory = Directory::new(Duration::from_secs(100 * DAY_S));
        // The node starts long after the list was issued.
        directory.accept(at(0), EXPIRED, list(1, &[("bob", 2, 1)])).unwrap();
        look(&mut directory, 0, EXPIRED, seconds);
        let (now, wall) = (at(seconds + 5), ISSUED + 5_000);
        let again = directory.accept(now, wall, list(1, &[("bob", 2, 1)]));
        assert_eq!((again, names(&directory, now, wall).is_empty()), (Ok(false), believed));
        assert_eq!(directory.behind_s(now, wall) >= EXPIRED - wall, believed);
    }
}

#[test]
fn a_clock_that_was_far_ahead_and_is_set_right_closes_nothing() {
    let mut directory = directory();
    let ahead = 30 * DAY_S;
    directory.accept(at(0), ISSUED + ahead, list(1, &[("bob", 2, 1)])).unwrap();
    look(&mut directory, 0, ISSUED + ahead, 3_000);
    assert_eq!(directory.standing(at(3_000), ISSUED + ahead + 3_000), Freshness::Stale);
    assert_eq!(names(&directory, at(3_010), ISSUED + 3_010), ["bob"], "at once");
    // A step of the clock restarts the hour.
    look(&mut directory, 3_010, ISSUED + ahead, 3_000);
    assert_eq!(names(&directory, at(7_000), ISSUED + 7_000), ["bob"]);
    assert_eq!(directory.behind_s(at(7_000), ISSUED + 7_000), 0);
}

#[test]
fn a_network_whose_clocks_were_ahead_for_long_heals_by_one_newer_list() {
    let mut directory = directory();
    let ahead = 30 * DAY_S;
    directory.accept(at(0), ISSUED, list(1, &[("bob", 2, 1)])).unwrap();
    look(&mut directory, 10, ISSUED + ahead, 5_000);
    let (now, wall) = (at(5_020), ISSUED + 5_020);
    assert_eq!(directory.standing(now, wall), Freshness::Stale, "the wrong clock was trusted");
    assert!(directory.behind_s(now, wall) > 29 * DAY_S);
    assert_eq!(directory.accept(now, wall, list(1, &[("bob", 2, 1)])), Ok(false));
    assert_eq!(directory.standing(now, wall), Freshness::Stale, "a repeated list changes nothing");
    assert_eq!(directory.accept(now, wall, list(2, &[("bob", 2, 1)])), Ok(true));
    assert_eq!(
        (names(&directory, now, wall), directory.behind_s(now, wall)),
        (vec!["bob".into()], 0)
    );
}

#[test]
fn members_expire_one_by_one() {
    let mut directory = Directory::new(Duration::from_secs(100 * DAY_S));
    directory.accept(at(0), ISSUED, list(1, &[("bob", 2, 1)])).unwrap();
    // Expiry of every `member`, in seconds.
    assert_eq!(directory.next_change(at(0), ISSUED), Some(Duration::from_secs(1_000_000)));
    assert_eq!(names(&directory, at(999_999), ISSUED), ["bob"]);
    assert!(names(&directory, at(1_000_000), ISSUED).is_empty());
}

#[test]
fn a_list_from_the_future_waits_for_its_time() {
    let mut directory = directory();
    let early = ISSUED - CLOCK_SKEW_S - 1;
    let refused = directory.accept(at(0), early, list(1, &[]));
    assert_eq!(refused, Err(ListRejection::Future(CLOCK_SKEW_S + 1)));
    assert_eq!(directory.accept(at(0), early + 1, list(1, &[])), Ok(true));
    assert_eq!(directory.standing(at(0), early + 1), Freshness::Fresh);
}

#[test]
fn what_was_seen_before_a_restart_counts_after_it() {
    let mut before = directory();
    before.accept(at(0), ISSUED, list(5, &[("bob", 2, 1)])).unwrap();
    let mark = before.mark();
    assert_eq!(mark.map(|mark| mark.version), Some(5));
    let resume = || Directory::resume(Duration::from_secs(DAY_S), mark);
    let mut after = resume();
    assert_eq!(after.standing(at(0), ISSUED), Freshness::Missing, "a mark is no list");
    let older = after.accept(at(0), ISSUED, list(4, &[("bob", 2, 1)]));
    assert_eq!(older, Err(ListRejection::Older { found: 4, known: 5 }));
    assert_eq!(after.accept(at(0), ISSUED, list(5, &[])), Err(ListRejection::Twin(5)));
    assert_eq!(after.accept(at(0), ISSUED, list(5, &[("bob", 2, 1)])), Ok(true));
    assert_eq!(after.accept(at(0), ISSUED, list(5, &[("bob", 2, 1)])), Ok(false));
    assert_eq!(resume().accept(at(0), ISSUED, list(6, &[])), Ok(true));
    // A refused list leaves no mark.
    let mut early = resume();
    assert!(early.accept(at(0), ISSUED - CLOCK_SKEW_S - 1, list(9, &[])).is_err());
    assert_eq!(early.mark(), mark);
}

#[test]
fn who_has_an_unknown_critical_field_is_left_out_and_said() {
    let bob = member("bob", 2, &["all"]).sign(&authority()).unwrap();
    let members = vec![bob, of_later(Member { version: 4, ..member("carol", 3, &["all"]) })];
    let content =
        ListContent { version: 1, issued_unix_s: ISSUED, members, ..ListContent::default() };
    let mut directory = directory();
    directory.accept(at(0), ISSUED, content.sign(&authority()).unwrap()).unwrap();
    assert_eq!(names(&directory, at(0), ISSUED), ["bob"]);
    assert_eq!(directory.last_members(at(0), ISSUED).count(), 1);
    let left_out: Vec<_> = directory.left_out().map(|(m, number)| (&m.name[..], number)).collect();
    assert_eq!(left_out, [("carol", 777)]);
    // An older descriptor of that member does not count either.
    let refused = directory.accept(at(0), ISSUED, list(2, &[("carol", 3, 3)]));
    assert!(matches!(refused, Err(ListRejection::OlderMember { found: 3, known: 4, .. })));
}

mod mandates {
    use super::*;
    use crate::mandate::Mandate;
    use crate::mandate::tests::{mandate, registrar, rights};
    use crate::member::tests::relay;
    use crate::supplement::{Step, StepEntry};
    use crate::{CircuitRole, MandateRights, RevokedKey, StepRejection};

    const EXPIRES: u64 = ISSUED + 900;

    fn guest(name: &str, seed: u8) -> Member {
        let address = Address::new(1, 100 + u16::from(seed));
        Member { address, expires_unix_s: EXPIRES, ..member(name, seed, &["staff"]) }
    }

    fn signed(version: u64, change: impl FnOnce(&mut ListContent)) -> List {
        let mandates = vec![mandate("desk", 1)];
        let mut content =
            ListContent { version, issued_unix_s: ISSUED, mandates, ..ListContent::default() };
        change(&mut content);
        content.sign(&authority()).unwrap()
    }

    fn supplement(directory: &Directory, entries: Vec<StepEntry>) -> Supplement {
        let register = directory.register(&mandate("desk", 1).id()).unwrap();
        let step = Step {
            mandate: register.id(),
            number: register.len() + 1,
            previous: register.head(),
            issued_unix_s: ISSUED,
            entries,
        };
        step.sign(&registrar(1)).unwrap()
    }

    /// A directory with a list and its mandate, under which bob was admitted.
    fn with_bob() -> Directory {
        let mut directory = directory();
        directory.accept(at(0), ISSUED, signed(1, |_| {})).unwrap();
        let bob = supplement(&directory, vec![StepEntry::Member(Box::new(guest("bob", 2)))]);
        assert_eq!(directory.supplement(at(0), ISSUED, &bob), Ok(StepEffect::Changed));
        assert_eq!(directory.supplement(at(0), ISSUED, &bob), Ok(StepEffect::Known));
        assert_eq!(names(&directory, at(0), ISSUED), ["bob"]);
        directory
    }

    fn with(content: &mut ListContent, member: Member) {
        content.members.push(member.sign(&authority()).unwrap());
    }

    #[test]
    fn members_of_a_mandate_are_members_until_they_expire_or_the_list_is_too_old() {
        let directory = with_bob();
        assert_eq!(directory.next_change(at(0), ISSUED), Some(Duration::from_secs(900)));
        assert_eq!(names(&directory, at(900), EXPIRES), [""; 0]);
        let mut directory = with_bob();
        directory
            .accept(at(0), ISSUED, signed(2, |content| with(content, member("al", 1, &[]))))
            .unwrap();
        assert_eq!(names(&directory, at(0), ISSUED), ["al", "bob"]);
        assert!(names(&directory, at(DAY_S), ISSUED + DAY_S).is_empty());
    }

    #[test]
    fn a_list_without_the_mandate_ends_its_members() {
        let mut directory = with_bob();
        directory.accept(at(0), ISSUED, signed(2, |content| content.mandates.clear())).unwrap();
        assert!(names(&directory, at(0), ISSUED).is_empty());
        let other = with_bob();
        let late = supplement(&other, vec![StepEntry::remove(&guest("bob", 2).key)]);
        assert_eq!(directory.supplement(at(0), ISSUED, &late), Err(StepRejection::Foreign));
    }

    #[test]
    fn the_authoritys_word_counts_more() {
        let after = |change: &dyn Fn(&mut ListContent)| {
            let mut directory = with_bob();
            directory.accept(at(0), ISSUED, signed(2, change)).unwrap();
            directory.members(at(0), ISSUED).map(|member| member.address.host).collect::<Vec<_>>()
        };
        assert_eq!(after(&|_| {}), [102]);
        let bob = || guest("bob", 2);
        assert_eq!(
            after(&|content| content.revoked.push(RevokedKey::new("bob", &bob().key))),
            [0; 0]
        );
        // The list's member takes his name, his address, or his key.
        assert_eq!(after(&|content| with(content, member("bob", 9, &[]))), [9]);
        let at_his = Member { address: bob().address, ..member("al", 9, &[]) };
        assert_eq!(after(&|content| with(content, at_his.clone())), [102]);
        let adopted = Member { version: 7, address: Address::new(1, 55), ..bob() };
        assert_eq!(after(&|content| with(content, adopted.clone())), [55]);
        assert_eq!(after(&|content| with(content, member("al", 9, &[]))), [9, 102]);
    }

    #[test]
    fn a_router_of_a_mandate_has_no_endpoint_of_the_list() {
        let mut directory = with_bob();
        let endpoint = |last: u8| Some(([192, 0, 2, last], 7_400).into());
        let list = signed(2, |content| {
            content.mandates = vec![Mandate { rights: rights(), ..mandate("desk", 1) }];
            // Two routers of the list may be behind one translator.
            for (name, number) in [("r1", 1), ("r3", 3)] {
                let router = Member { endpoint: endpoint(1), ..relay(name, number, None) };
                with(content, Member { address: Address::new(number.into(), 0), ..router });
            }
        });
        directory.accept(at(0), ISSUED, list).unwrap();
        let router = |name: &str, number: u8, last| {
            let router = Member { endpoint: endpoint(last), ..relay(name, number, Some("acme")) };
            let carrier = CircuitRole { exit: false, ..router.carrier };
            let groups = vec!["staff".into()];
            let address = Address::new(number.into(), 0);
            let router = Member { address, groups, carrier, ..router };
            StepEntry::Member(Box::new(Member { expires_unix_s: EXPIRES, ..router }))
        };
        let step = supplement(&directory, vec![router("r10", 10, 1), router("r11", 11, 2)]);
        assert_eq!(directory.supplement(at(0), ISSUED, &step), Ok(StepEffect::Changed));
        let mut all = names(&directory, at(0), ISSUED);
        all.sort();
        assert_eq!(all, ["bob", "r1", "r11", "r3"]);
        let mut by_list: Vec<_> = directory.members(at(0), ISSUED).collect();
        by_list.retain(|member| directory.is_in_list(&member.key));
        assert_eq!(by_list.len(), 2);
    }

    #[test]
    fn a_name_in_other_capitals_leads_to_the_earlier_member() {
        let mut directory = with_bob();
        let more = || vec![Mandate { most: 9, ..mandate("desk", 1) }];
        let list = signed(2, |content| content.mandates = more());
        directory.accept(at(0), ISSUED, list).unwrap();
        let mut say = |entries| {
            let step = supplement(&directory, entries);
            assert_eq!(directory.supplement(at(0), ISSUED, &step), Ok(StepEffect::Changed));
        };
        let add = |name, seed| StepEntry::Member(Box::new(guest(name, seed)));
        // An older registrar gave names that differ only in case: all stay members.
        say(vec![add("BOB", 1)]);
        say(vec![add("carl", 9), add("Carl", 3)]);
        say(vec![StepEntry::remove(&guest("carl", 9).key), add("carl", 4)]);
        let nameless = |directory: &Directory| {
            let members = directory.members(at(0), ISSUED);
            let nameless = members.filter(|member| directory.is_nameless(&member.key));
            let mut names: Vec<String> = nameless.map(|member| member.name.clone()).collect();
            names.sort();
            names
        };
        assert_eq!(nameless(&directory), ["BOB", "Carl"], "another key keeps the name");
        let list = signed(3, |content| {
            content.mandates = more();
            with(content, member("Bob", 8, &[]));
        });
        directory.accept(at(0), ISSUED, list).unwrap();
        assert_eq!(nameless(&directory), ["BOB", "Carl", "bob"], "the list's member has it");
        assert_eq!(names(&directory, at(0), ISSUED).len(), 5);
    }

    #[test]
    fn a_longer_mandate_keeps_its_members_and_a_narrower_one_those_that_it_allows() {
        let after = |mandate: Mandate| {
            let mut directory = with_bob();
            let changed = signed(2, |content| content.mandates = vec![mandate]);
            directory.accept(at(0), ISSUED, changed).unwrap();
            names(&directory, at(0), ISSUED)
        };
        assert_eq!(after(Mandate { most: 9, ..mandate("desk", 1) }), ["bob"]);
        assert!(after(Mandate { groups: Vec::new(), ..mandate("desk", 1) }).is_empty());
        assert!(after(Mandate { serial: 2, ..mandate("desk", 1) }).is_empty());
    }

    /// A step of any registrar.
    fn step_of(
        directory: &Directory,
        of: &Mandate,
        seed: u8,
        entries: Vec<StepEntry>,
    ) -> Supplement {
        let register = directory.register(&of.id()).unwrap();
        let (mandate, number, previous) = (register.id(), register.len() + 1, register.head());
        let step = Step { mandate, number, previous, issued_unix_s: ISSUED, entries };
        step.sign(&registrar(seed)).unwrap()
    }

    /// A list whose registrar may make another one.
    fn with_registrars(version: u64, change: impl FnOnce(&mut ListContent)) -> List {
        signed(version, |content| {
            let rights = MandateRights { registrars: 1, ..MandateRights::default() };
            content.mandates = vec![Mandate { most: 9, rights, ..mandate("desk", 1) }];
            change(content);
        })
    }

    /// A second registrar, with hosts 1.190 to 1.199.
    fn second() -> Mandate {
        let hosts = vec!["1.190-1.199".parse().unwrap()];
        Mandate { name: "second".into(), hosts, ipv4: None, most: 3, ..mandate("desk", 2) }
    }

    fn second_member(name: &str, seed: u8) -> StepEntry {
        let address = Address::new(1, 190 + u16::from(seed & 7));
        StepEntry::Member(Box::new(Member { address, ..guest(name, seed) }))
    }

    /// Applies steps of both registrars. The second one's member is called `name`.
    fn with_second(name: &str) -> Directory {
        let mut directory = directory();
        directory.accept(at(0), ISSUED, with_registrars(1, |_| {})).unwrap();
        let made = StepEntry::Registrar(Box::new(second()));
        let bob = StepEntry::Member(Box::new(guest("bob", 2)));
        let first = supplement(&directory, vec![bob, made]);
        assert_eq!(directory.supplement(at(0), ISSUED, &first), Ok(StepEffect::Changed));
        assert_eq!(directory.parent_of(&second().id()), Some(mandate("desk", 1).id()));
        let step = step_of(&directory, &second(), 2, vec![second_member(name, 9)]);
        assert_eq!(directory.supplement(at(0), ISSUED, &step), Ok(StepEffect::Changed));
        directory
    }

    #[test]
    fn members_of_a_second_registrar_count_until_it_is_withdrawn() {
        let mut directory = with_second("carl");
        assert_eq!(names(&directory, at(0), ISSUED), ["bob", "carl"]);
        // A newer list keeps what both signed.
        directory.accept(at(0), ISSUED, with_registrars(2, |_| {})).unwrap();
        assert_eq!(names(&directory, at(0), ISSUED), ["bob", "carl"]);
        let beyond =
            step_of(&directory, &second(), 2, vec![StepEntry::Member(guest("x", 5).into())]);
        let refused = Err(StepRejection::Bad(crate::MandateViolation::Address));
        assert_eq!(directory.supplement(at(0), ISSUED, &beyond), refused);
        let third = Mandate { name: "third".into(), ..mandate("third", 3) };
        let more = step_of(&directory, &second(), 2, vec![StepEntry::Registrar(Box::new(third))]);
        let refused = Err(StepRejection::Bad(crate::MandateViolation::Registrars));
        assert_eq!(directory.supplement(at(0), ISSUED, &more), refused);
        let gone = supplement(&directory, vec![StepEntry::Withdrawn(second().id())]);
        assert_eq!(directory.supplement(at(0), ISSUED, &gone), Ok(StepEffect::Changed));
        assert_eq!(names(&directory, at(0), ISSUED), ["bob"]);
        assert!(directory.register(&second().id()).is_none());
    }

    #[test]
    fn the_authority_ends_a_second_registrar_by_its_key_or_with_the_first_one() {
        let after = |change: &dyn Fn(&mut ListContent)| {
            let mut directory = with_second("carl");
            directory.accept(at(0), ISSUED, with_registrars(2, change)).unwrap();
            names(&directory, at(0), ISSUED)
        };
        let revoked = RevokedKey::new("second", &second().key);
        assert_eq!(after(&|content| content.revoked.push(revoked.clone())), ["bob"]);
        assert!(after(&|content| content.mandates.clear()).is_empty());
        assert!(after(&|content| content.mandates[0].rights.registrars = 0).is_empty());
    }

    #[test]
    fn two_registrars_that_give_one_name_leave_two_members_with_two_names() {
        let directory = with_second("bob");
        let shown = |directory: &Directory| {
            let members = directory.members(at(0), ISSUED);
            let mut all: Vec<_> = members
                .map(|member| (directory.shown_name(member).to_owned(), member.address.host))
                .collect();
            all.sort();
            all
        };
        let want = [("bob".to_owned(), 102), ("bob-2".to_owned(), 191)];
        assert_eq!(shown(&directory), want, "the first registrar's member keeps the name");
        assert_eq!(directory.alias_of(&guest("bob", 9).key), Some("bob-2"));
        assert!(directory.members(at(0), ISSUED).all(|m| !directory.is_nameless(&m.key)));
        // The order of arrival changes nothing: the second one's member came first here.
        let mut other = self::directory();
        other.accept(at(0), ISSUED, with_registrars(1, |_| {})).unwrap();
        let made = supplement(&other, vec![StepEntry::Registrar(Box::new(second()))]);
        other.supplement(at(0), ISSUED, &made).unwrap();
        let step = step_of(&other, &second(), 2, vec![second_member("bob", 9)]);
        other.supplement(at(0), ISSUED, &step).unwrap();
        assert_eq!(shown(&other), [("bob".to_owned(), 191)]);
        let bob = supplement(&other, vec![StepEntry::Member(Box::new(guest("bob", 2)))]);
        other.supplement(at(0), ISSUED, &bob).unwrap();
        assert_eq!(shown(&other), want);
        // A name of the list is nobody else's.
        let mut listed = with_second("al");
        let list = with_registrars(2, |content| with(content, member("al", 1, &[])));
        listed.accept(at(0), ISSUED, list).unwrap();
        assert_eq!(names(&listed, at(0), ISSUED), ["al", "bob"]);
    }

    #[test]
    fn a_registrar_that_says_two_things_ends_what_it_said_since() {
        let mut directory = with_bob();
        let two = ["c", "d"].map(|name| {
            supplement(
                &directory,
                vec![StepEntry::Member(Box::new(guest(name, name.as_bytes()[0] - 90)))],
            )
        });
        directory.supplement(at(0), ISSUED, &two[0]).unwrap();
        assert_eq!(names(&directory, at(0), ISSUED).len(), 2);
        assert_eq!(directory.supplement(at(0), ISSUED, &two[1]), Ok(StepEffect::Frozen));
        assert_eq!(names(&directory, at(0), ISSUED), ["bob"]);
        let mut other = with_bob();
        assert_eq!(other.show_fork(two.clone()), Ok(StepEffect::Frozen));
        assert_eq!(other.show_fork(two), Ok(StepEffect::Known));
        assert_eq!(names(&other, at(0), ISSUED), ["bob"]);
    }
}
