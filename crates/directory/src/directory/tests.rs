use super::*;
use crate::member::tests::{authority, member};
use crate::{Content, Signed};

const DAY_S: u64 = 86_400;
const ISSUED: u64 = 1_000_000;

fn list(version: u64, members: &[(&str, u8, u64)]) -> List {
    let sign = |&(name, number, version): &(&str, u8, u64)| -> Signed {
        Member { version, ..member(name, number, &["all"]) }.sign(&authority()).unwrap()
    };
    let members = members.iter().map(sign).collect();
    let content = Content { version, issued_unix_s: ISSUED, members, ..Content::default() };
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
    assert_eq!(directory.standing(at(0), ISSUED), Standing::Missing);
    assert_eq!(directory.accept(at(0), ISSUED, list(2, &[("bob", 2, 1)])), Ok(true));
    assert_eq!(names(&directory, at(0), ISSUED), ["bob"]);
    assert_eq!(directory.accept(at(1), ISSUED, list(2, &[("bob", 2, 1)])), Ok(false));
    let older = directory.accept(at(1), ISSUED, list(1, &[("eve", 3, 1)]));
    assert_eq!(older, Err(Refused::Older { found: 1, known: 2 }));
    let twin = directory.accept(at(1), ISSUED, list(2, &[("eve", 3, 1)]));
    assert_eq!(twin, Err(Refused::Twin(2)));
    assert_eq!(names(&directory, at(1), ISSUED), ["bob"]);
    assert_eq!(directory.accept(at(2), ISSUED, list(3, &[])), Ok(true));
    assert!(names(&directory, at(2), ISSUED).is_empty());
}

#[test]
fn a_newer_list_can_not_bring_back_an_older_descriptor() {
    let mut directory = directory();
    directory.accept(at(0), ISSUED, list(1, &[("bob", 2, 5)])).unwrap();
    let refused = directory.accept(at(0), ISSUED, list(2, &[("bob", 2, 4)]));
    assert!(matches!(refused, Err(Refused::OlderMember { found: 4, known: 5, .. })));
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
    assert_eq!(directory.standing(at(0), ISSUED + DAY_S), Standing::Stale);
    // They are still known by name; until their membership expires.
    let last = |unix_s| directory.last_members(at(0), unix_s).count();
    assert_eq!((last(ISSUED + DAY_S), last(1_999_999), last(2_000_000)), (1, 1, 0));
    assert_eq!(directory.next_change(at(0), ISSUED + DAY_S), None);
    // A newer list that is too old itself is known, and gives nobody rights.
    assert_eq!(directory.accept(at(0), ISSUED + DAY_S, list(2, &[("bob", 2, 1)])), Ok(true));
    assert!(names(&directory, at(0), ISSUED + DAY_S).is_empty());
}

/// Time goes on by the one clock even when the other is set back; one that was ahead and is put
/// right doesn't close the network for good.
#[test]
fn a_wall_clock_that_is_set_back_makes_nothing_valid_again() {
    let mut directory = directory();
    directory.accept(at(0), ISSUED, list(1, &[("bob", 2, 1)])).unwrap();
    assert!(names(&directory, at(DAY_S), ISSUED - 5_000).is_empty());
    assert_eq!(names(&directory, at(DAY_S - 1), ISSUED - 5_000), ["bob"]);
    assert!(names(&directory, at(10), ISSUED + 10 * DAY_S).is_empty());
    assert_eq!(names(&directory, at(20), ISSUED + 20), ["bob"]);
}

#[test]
fn members_expire_one_by_one() {
    let mut directory = Directory::new(Duration::from_secs(100 * DAY_S));
    directory.accept(at(0), ISSUED, list(1, &[("bob", 2, 1)])).unwrap();
    // `member` expires at 2,000,000.
    assert_eq!(directory.next_change(at(0), ISSUED), Some(Duration::from_secs(1_000_000)));
    assert_eq!(names(&directory, at(999_999), ISSUED), ["bob"]);
    assert!(names(&directory, at(1_000_000), ISSUED).is_empty());
}

#[test]
fn a_list_from_the_future_waits_for_its_time() {
    let mut directory = directory();
    let early = ISSUED - CLOCK_SKEW_S - 1;
    let refused = directory.accept(at(0), early, list(1, &[]));
    assert_eq!(refused, Err(Refused::Future(CLOCK_SKEW_S + 1)));
    assert_eq!(directory.accept(at(0), early + 1, list(1, &[])), Ok(true));
    assert_eq!(directory.standing(at(0), early + 1), Standing::Fresh);
}

#[test]
fn what_was_seen_before_a_restart_counts_after_it() {
    let mut before = directory();
    before.accept(at(0), ISSUED, list(5, &[("bob", 2, 1)])).unwrap();
    let mark = before.mark();
    assert_eq!(mark.map(|mark| mark.version), Some(5));
    let resume = || Directory::resume(Duration::from_secs(DAY_S), mark);
    let mut after = resume();
    assert_eq!(after.standing(at(0), ISSUED), Standing::Missing, "a mark is no list");
    let older = after.accept(at(0), ISSUED, list(4, &[("bob", 2, 1)]));
    assert_eq!(older, Err(Refused::Older { found: 4, known: 5 }));
    assert_eq!(after.accept(at(0), ISSUED, list(5, &[])), Err(Refused::Twin(5)));
    assert_eq!(after.accept(at(0), ISSUED, list(5, &[("bob", 2, 1)])), Ok(true));
    assert_eq!(after.accept(at(0), ISSUED, list(5, &[("bob", 2, 1)])), Ok(false));
    assert_eq!(resume().accept(at(0), ISSUED, list(6, &[])), Ok(true));
    // What is refused leaves no mark.
    let mut early = resume();
    assert!(early.accept(at(0), ISSUED - CLOCK_SKEW_S - 1, list(9, &[])).is_err());
    assert_eq!(early.mark(), mark);
}
