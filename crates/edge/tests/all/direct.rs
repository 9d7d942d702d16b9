//! Direct links between two machines whose messages may get lost: which hosts get a link, when, and
//! at which level.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use proptest::prelude::*;
use shoal_edge::{
    DirectConfig, DirectEvent, DirectMachine, HostId, HostSecurity, LevelReason, agree,
};
use shoal_wire::{DirectKind, DirectMessage, DropReason, Level, Time};

const HOST: HostId = HostId::from_bits(1);

fn config() -> DirectConfig {
    DirectConfig {
        proactive: false,
        endpoint: Some("192.0.2.1:7400".parse().unwrap()),
        weakest: Level::Encrypt,
        groups: Vec::new(),
        idle: Duration::from_secs(60),
        links_max: 4,
    }
}

/// One end: its machine, and the link that its owner made.
struct DirectEnd {
    direct: DirectMachine,
    link: Option<(Option<SocketAddr>, Level, LevelReason)>,
    closed: bool,
    removed: u32,
}

struct Pair {
    now: Time,
    ends: [DirectEnd; 2],
    lose: bool,
}

impl Pair {
    fn new(configs: [DirectConfig; 2]) -> Pair {
        let end = |config| DirectEnd {
            direct: DirectMachine::new(config, [5; 32]),
            link: None,
            closed: false,
            removed: 0,
        };
        Pair { now: Time::from_millis(1_000), ends: configs.map(end), lose: false }
    }

    /// Delivers all messages. A link comes up if both ends made it and one of them calls.
    fn settle(&mut self) {
        for round in 0..20 {
            let mut silent = true;
            for i in [0, 1] {
                while let Some((host, said)) = self.ends[i].direct.poll_message() {
                    assert_eq!(host, HOST);
                    silent = false;
                    if !self.lose {
                        let there = &mut self.ends[1 - i].direct;
                        let _ = there.handle_message(self.now, HOST, &said, None);
                    }
                }
                let end = &mut self.ends[i];
                while let Some(event) = end.direct.poll_event() {
                    silent = false;
                    match event {
                        DirectEvent::Open { endpoint, level, why, .. } => {
                            let before = end.link.and_then(|link| link.0);
                            end.link = Some((endpoint.or(before), level, why));
                            end.closed = false;
                        }
                        DirectEvent::Meet { .. } => {}
                        DirectEvent::Close(_) => end.closed = true,
                        DirectEvent::Remove(_) => {
                            end.link = None;
                            end.removed += 1;
                        }
                    }
                }
            }
            if silent {
                break;
            }
            assert!(round < 19, "the exchange of messages never ends");
        }
        let calls = |end: &DirectEnd| end.link.is_some_and(|link| link.0.is_some());
        if self.ends.iter().all(|end| end.link.is_some()) && self.ends.iter().any(calls) {
            self.ends.iter_mut().for_each(|end| end.direct.link_changed(self.now, HOST, true));
        }
    }

    fn run(&mut self, seconds: u64, mut each: impl FnMut(&mut Pair)) {
        for _ in 0..seconds {
            self.now = self.now + Duration::from_secs(1);
            each(self);
            self.ends.iter_mut().for_each(|end| end.direct.handle_timeout(self.now));
            self.settle();
        }
    }

    fn up(&self) -> bool {
        self.ends.iter().all(|end| end.link.is_some() && !end.closed)
    }

    fn want(&mut self, i: usize) {
        self.ends[i].direct.wanted(self.now, HOST);
        self.settle();
    }
}

#[test]
fn traffic_makes_a_link_and_idleness_ends_it_at_both_ends_together() {
    for both_ask in [false, true] {
        let mut pair = Pair::new([config(), config()]);
        pair.ends[0].direct.wanted(pair.now, HOST);
        if both_ask {
            pair.ends[1].direct.wanted(pair.now, HOST);
        }
        pair.settle();
        assert!(pair.up());
        let used = |pair: &mut Pair| {
            pair.ends.iter_mut().for_each(|end| end.direct.used(pair.now, HOST));
        };
        pair.run(100, used);
        assert!(pair.up(), "a link in use stays up");
        pair.run(59, |_| {});
        assert!(pair.up());
        pair.run(2, |_| {});
        assert!(pair.ends.iter().all(|end| end.closed && end.link.is_some()));
        pair.run(6, |_| {});
        assert!(pair.ends.iter().all(|end| end.link.is_none() && end.removed == 1));
        pair.want(1);
        assert!(pair.up(), "traffic makes a new link at once");
    }
}

#[test]
fn only_hosts_with_an_endpoint_are_called() {
    for (first, second) in [(true, true), (true, false), (false, true), (false, false)] {
        let endpoint = |has: bool| config().endpoint.filter(|_| has);
        let configs =
            [first, second].map(|has| DirectConfig { endpoint: endpoint(has), ..config() });
        let mut pair = Pair::new(configs);
        pair.want(0);
        assert_eq!(pair.up(), first || second, "{first} {second}");
        let called = pair.ends.iter().filter_map(|end| end.link.and_then(|link| link.0));
        assert_eq!(called.count(), usize::from(first || second));
    }
}

#[test]
fn a_host_that_does_not_answer_is_asked_ever_more_rarely() {
    let mut pair = Pair::new([config(), config()]);
    pair.lose = true;
    pair.run(3_600, |pair| pair.ends[0].direct.wanted(pair.now, HOST));
    let stats = pair.ends[0].direct.stats();
    assert!((12..=20).contains(&stats.asked), "{stats:?}");
    assert_eq!((stats.asked - stats.failed, pair.ends[0].removed), (0, 0));
    pair.lose = false;
    pair.run(400, |pair| pair.ends[0].direct.wanted(pair.now, HOST));
    assert!(pair.up());
}

#[test]
fn a_link_that_does_not_come_back_is_given_up_and_tried_again() {
    let mut pair = Pair::new([config(), config()]);
    pair.want(0);
    for end in &mut pair.ends {
        end.direct.link_changed(pair.now, HOST, false);
        let later = pair.now + Duration::from_secs(11);
        end.direct.handle_timeout(later);
        assert_eq!(end.direct.poll_event(), Some(DirectEvent::Remove(HOST)));
        assert_eq!(end.direct.terms(HOST), None);
        end.link = None;
    }
    pair.now = pair.now + Duration::from_secs(12);
    pair.want(0);
    assert!(!pair.up(), "the host waits before the next attempt");
    pair.run(6, |_| {});
    pair.want(0);
    assert!(pair.up());
}

#[test]
fn links_are_bounded_and_unasked_answers_are_refused() {
    let mut direct = DirectMachine::new(config(), [5; 32]);
    let now = Time::from_millis(5);
    let mut asking = DirectMachine::new(config(), [5; 32]);
    asking.wanted(now, HOST);
    let (_, ask) = asking.poll_message().unwrap();
    for host in 0..4 {
        assert_eq!(direct.handle_message(now, HostId::from_bits(host), &ask, None), Ok(()));
    }
    let full = direct.handle_message(now, HostId::from_bits(4), &ask, None);
    assert_eq!((full, direct.stats().full), (Err(DropReason::TableFull), 1));
    direct.wanted(now, HostId::from_bits(5));
    assert_eq!(direct.stats().asked, 0);
    let yes = shoal_wire::DirectMessage { kind: shoal_wire::DirectKind::Yes, ..ask.clone() };
    for host in [0, 7] {
        let end = shoal_wire::DirectMessage { kind: shoal_wire::DirectKind::End, ..ask.clone() };
        let said = direct.handle_message(now, HostId::from_bits(host), &end, None);
        assert_eq!(said.is_ok(), host == 0);
        assert!(direct.handle_message(now, HostId::from_bits(host), &yes, None).is_err());
    }
    direct.forget(HostId::from_bits(1));
    let events: Vec<_> = std::iter::from_fn(|| direct.poll_event()).collect();
    assert!(events.contains(&DirectEvent::Remove(HostId::from_bits(1))));
}

#[test]
fn a_proactive_host_has_links_at_once_and_the_other_end_keeps_them() {
    let keeps = DirectConfig { proactive: true, ..config() };
    let mut pair = Pair::new([keeps, config()]);
    pair.want(0);
    assert!(pair.up());
    pair.run(1_000, |_| {});
    assert!(pair.up());
    assert_eq!(pair.ends[1].direct.stats().trimmed, 0);
    for end in &mut pair.ends {
        end.direct.link_changed(pair.now, HOST, false);
    }
    pair.lose = true;
    pair.ends.iter_mut().for_each(|end| end.link = None);
    pair.run(60, |_| {});
    assert!(!pair.up());
    pair.lose = false;
    pair.run(400, |_| {});
    assert!(pair.up(), "the link is there without another request");
}

/// Neither end loses its place: the other end returns to routers as after an idle link.
#[test]
fn a_host_that_may_not_goes_back_to_routers_and_asks_anew_when_it_may() {
    for proactive in [false, true] {
        let keeps = DirectConfig { proactive, ..config() };
        let mut pair = Pair::new([keeps, config()]);
        pair.want(0);
        assert!(pair.up());
        pair.ends[0].direct.allow(pair.now, false);
        pair.settle();
        assert!(pair.ends.iter().all(|end| end.closed && end.link.is_some()), "both ends know");
        pair.run(6, |_| {});
        assert!(pair.ends.iter().all(|end| end.link.is_none() && end.removed == 1));
        let before = pair.ends.each_ref().map(|end| end.direct.stats());
        pair.run(600, |pair| {
            // A proactive host has no timer of its own now.
            assert!(pair.ends[0].direct.poll_timeout().is_none_or(|(at, _)| at > pair.now));
            pair.ends.iter_mut().for_each(|end| end.direct.wanted(pair.now, HOST));
            assert_eq!(pair.ends[0].direct.poll_message(), None);
        });
        let after = pair.ends.each_ref().map(|end| end.direct.stats());
        assert_eq!(after[0], before[0], "the first host neither asks nor agrees");
        assert!(after[1].asked > before[1].asked && pair.ends[1].link.is_none());
        pair.ends[0].direct.allow(pair.now, true);
        pair.want(0);
        assert!(pair.up(), "proactive: {proactive}");
    }
}

#[test]
fn attempts_of_a_host_that_may_not_end_at_once() {
    let now = Time::from_millis(5);
    let others: Vec<HostId> = (0..3).map(HostId::from_bits).collect();
    let mut direct = DirectMachine::new(config(), [5; 32]);
    let mut asking = DirectMachine::new(config(), [6; 32]);
    asking.wanted(now, HOST);
    let (_, ask) = asking.poll_message().unwrap();
    let yes = DirectMessage { kind: DirectKind::Yes, ..ask.clone() };
    let end = DirectMessage { kind: DirectKind::End, ..ask.clone() };
    // One host was asked, one agreed, one was answered.
    direct.wanted(now, others[0]);
    direct.wanted(now, others[1]);
    assert_eq!(direct.handle_message(now, others[1], &yes, None), Ok(()));
    assert_eq!(direct.handle_message(now, others[2], &ask, None), Ok(()));
    direct.allow(now, false);
    assert_eq!(direct.poll_message(), None, "nothing is said");
    let events: Vec<_> = std::iter::from_fn(|| direct.poll_event()).collect();
    for host in &others[1..] {
        assert!(events.contains(&DirectEvent::Remove(*host)), "{events:?}");
    }
    for (host, said) in [(others[0], &yes), (others[1], &yes), (others[2], &ask), (HOST, &end)] {
        let refused = direct.handle_message(now, host, said, None);
        assert_eq!(refused, Err(DropReason::NotAllowed), "{said:?}");
    }
    direct.handle_timeout(now + Duration::from_secs(600));
    assert_eq!((direct.poll_timeout(), direct.poll_event()), (None, None));
}

/// A host whose link is up sends further answers, so that the other end calls the endpoints in
/// them.
#[test]
fn a_host_that_changes_its_mind_has_few_places_called() {
    let lower = DirectConfig { weakest: Level::None, ..config() };
    let mut pair = Pair::new([DirectConfig { endpoint: None, ..lower.clone() }, lower]);
    pair.want(0);
    assert!(pair.up());
    let mut called = std::collections::BTreeSet::new();
    let mut refused = 0;
    for n in 0..1_000_u16 {
        pair.now = pair.now + Duration::from_millis(10);
        let said = DirectMessage {
            kind: if n % 2 == 0 { DirectKind::Ask } else { DirectKind::Yes },
            level: Level::ALL[usize::from(n / 2 % 3)],
            keep: true,
            endpoint: Some(SocketAddr::from(([198, 51, 100, 7], 1_000 + n))),
            groups: vec![[0; 8]; usize::from(n % 3 == 0)],
            meeting: None,
        };
        let direct = &mut pair.ends[0].direct;
        let answer = direct.handle_message(pair.now, HOST, &said, None);
        refused += u32::from(answer == Err(DropReason::DirectBudget));
        direct.link_changed(pair.now, HOST, true);
        while let Some(event) = direct.poll_event() {
            if let DirectEvent::Open { endpoint: Some(at), .. } = event {
                called.insert(at);
            }
        }
    }
    println!("{} endpoints called in 10 s, {refused} refused", called.len());
    assert!(called.len() <= 4 && refused > 400, "{called:?} {refused}");
}

#[test]
fn another_reason_for_the_same_level_leaves_the_link_alone() {
    let mut pair = Pair::new([config(), config()]);
    pair.want(0);
    let said = DirectMessage {
        kind: DirectKind::Ask,
        level: Level::None,
        keep: false,
        endpoint: Some(SocketAddr::from(([198, 51, 100, 7], 1_000))),
        groups: Vec::new(),
        meeting: None,
    };
    let direct = &mut pair.ends[0].direct;
    assert_eq!(direct.terms(HOST), Some((Level::Encrypt, LevelReason::Both)));
    assert_eq!(direct.handle_message(pair.now, HOST, &said, None), Ok(()));
    assert_eq!(direct.poll_event(), None, "the level is the same");
    assert_eq!(direct.terms(HOST), Some((Level::Encrypt, LevelReason::Ours)));
}

#[test]
fn another_level_makes_another_link() {
    let lower = DirectConfig { weakest: Level::None, ..config() };
    let mut pair = Pair::new([lower.clone(), lower]);
    pair.want(0);
    assert_eq!(pair.ends[0].link.unwrap().1, Level::None);
    // The other end restarts with another weakest level.
    pair.ends[1].direct = DirectMachine::new(config(), [5; 32]);
    pair.ends[1].link = None;
    pair.want(1);
    assert!(pair.up());
    assert_eq!(pair.ends[0].removed, 1, "the old session must not carry on");
    assert_eq!(pair.ends.each_ref().map(|end| end.link.unwrap().1), [Level::Encrypt; 2]);
    assert_eq!(
        pair.ends.each_ref().map(|e| e.link.unwrap().2),
        [LevelReason::Theirs, LevelReason::Ours]
    );
}

fn group(name: u8) -> [u8; 8] {
    [name; 8]
}

/// Groups from the list count as well as claimed ones. If the lists of both ends differ, the newer
/// one decides.
#[test]
fn the_list_and_the_file_make_a_link_stronger_and_a_change_makes_another_link() {
    let lower = DirectConfig { weakest: Level::None, ..config() };
    let claims = |name| DirectConfig { groups: vec![group(name)], ..lower.clone() };
    let listed = |name| HostSecurity { groups: vec![group(name)], encrypt: false };
    let levels = |pair: &Pair| pair.ends.each_ref().map(|end| end.link.unwrap().1);
    let say = |pair: &mut Pair, end: usize, own: Vec<[u8; 8]>, other: HostSecurity| {
        let now = pair.now;
        pair.ends[end].direct.set_security(now, own, BTreeMap::from([(HOST, other)]));
    };
    // The group is only in the list.
    let mut pair = Pair::new([lower.clone(), lower.clone()]);
    say(&mut pair, 0, vec![group(1)], listed(1));
    say(&mut pair, 1, vec![group(1)], listed(1));
    pair.want(0);
    assert_eq!(levels(&pair), [Level::Encrypt; 2]);
    // One end claims the group, and the list assigns it to the other end. One or both ends have
    // that list.
    for both in [true, false] {
        let mut pair = Pair::new([claims(1), lower.clone()]);
        say(&mut pair, 0, Vec::new(), listed(1));
        if both {
            say(&mut pair, 1, vec![group(1)], HostSecurity::default());
        }
        pair.want(0);
        assert_eq!(pair.ends[0].link.unwrap().1, Level::Encrypt);
        assert_eq!(pair.ends[1].link.unwrap().1 == Level::Encrypt, both);
    }
    // After a newer list, the link at the lower level ends, and the next link is encrypted.
    let mut pair = Pair::new([lower.clone(), lower.clone()]);
    pair.want(0);
    assert_eq!(levels(&pair), [Level::None; 2]);
    say(&mut pair, 0, vec![group(1)], HostSecurity::default());
    assert_eq!(
        pair.ends[0].direct.terms(HOST),
        Some((Level::None, LevelReason::Both)),
        "no other host has the group"
    );
    say(&mut pair, 0, vec![group(1)], listed(1));
    assert_eq!(pair.ends[0].direct.terms(HOST), None);
    assert_eq!(pair.ends[0].direct.poll_event(), Some(DirectEvent::Remove(HOST)));
    pair.ends[0].link = None;
    say(&mut pair, 1, vec![group(1)], listed(1));
    pair.want(0);
    assert_eq!(levels(&pair), [Level::Encrypt; 2]);
    // The file of one end names the other host.
    let mut pair = Pair::new([lower.clone(), lower]);
    say(&mut pair, 1, Vec::new(), HostSecurity { groups: Vec::new(), encrypt: true });
    pair.want(0);
    assert_eq!(levels(&pair), [Level::Encrypt; 2]);
    assert_eq!(
        pair.ends.each_ref().map(|e| e.link.unwrap().2),
        [LevelReason::Theirs, LevelReason::Named]
    );
    // The claim of the forgotten host is gone, but not the requirement in this host's file.
    pair.ends[1].direct.forget(HOST);
    while pair.ends[1].direct.poll_event().is_some() {}
    pair.ends[1].link = None;
    pair.want(1);
    assert_eq!(levels(&pair), [Level::Encrypt; 2]);
}

fn level() -> impl Strategy<Value = Level> {
    (0_usize..3).prop_map(|i| Level::ALL[i])
}

/// A change at one end, or time that passes.
#[derive(Clone, Debug)]
enum PermissionStep {
    Allow(usize, bool),
    Want(usize),
    Lose(bool),
    Seconds(u64),
}

fn permission_step() -> impl Strategy<Value = PermissionStep> {
    prop_oneof![
        (0_usize..2, any::<bool>()).prop_map(|(end, may)| PermissionStep::Allow(end, may)),
        (0_usize..2).prop_map(PermissionStep::Want),
        any::<bool>().prop_map(PermissionStep::Lose),
        (1_u64..8).prop_map(PermissionStep::Seconds),
    ]
}

proptest! {
    /// After the time of closing, an end that may not has no link, and never a timer that is due
    /// again and again. Between two ends that may, traffic makes a link again.
    #[test]
    fn links_follow_permission(
        steps in proptest::collection::vec(permission_step(), 0..40),
        proactive in any::<[bool; 2]>(),
    ) {
        let keeps = |proactive| DirectConfig { proactive, ..config() };
        let mut pair = Pair::new(proactive.map(keeps));
        let mut may = [true; 2];
        for step in steps {
            match step {
                PermissionStep::Allow(end, allowed) => {
                    pair.ends[end].direct.allow(pair.now, allowed);
                    may[end] = allowed;
                    pair.settle();
                }
                PermissionStep::Want(end) => pair.want(end),
                PermissionStep::Lose(lose) => pair.lose = lose,
                PermissionStep::Seconds(seconds) => pair.run(seconds, |_| {}),
            }
            for (end, _) in pair.ends.iter().zip(may).filter(|(_, may)| !may) {
                prop_assert!(end.link.is_none() || end.closed);
            }
        }
        let stopped = may;
        pair.run(6, |_| {});
        for (end, _) in pair.ends.iter().zip(stopped).filter(|(_, may)| !may) {
            prop_assert!(end.link.is_none());
            prop_assert!(end.direct.poll_timeout().is_none_or(|(at, _)| at > pair.now));
        }
        pair.lose = false;
        for end in 0..2 {
            pair.ends[end].direct.allow(pair.now, true);
        }
        pair.run(400, |pair| pair.ends.iter_mut().for_each(|end| {
            end.direct.wanted(pair.now, HOST);
        }));
        prop_assert!(pair.up());
    }
}

proptest! {
    #[test]
    fn both_ends_come_to_one_level_and_it_is_never_weaker_than_either_asks(
        one in level(), other in level(),
        ours in proptest::collection::vec(0_u8..6, 0..4),
        theirs in proptest::collection::vec(0_u8..6, 0..4),
    ) {
        let shared = ours.iter().any(|group| theirs.contains(group));
        let name = |groups: &[u8]| groups.iter().map(|&g| [g; 8]).collect::<Vec<_>>();
        let (ours, theirs) = (name(&ours), name(&theirs));
        let (here, why) = agree((one, &ours), (other, &theirs));
        let (there, reason) = agree((other, &theirs), (one, &ours));
        prop_assert_eq!(here, there);
        prop_assert!(here <= one && here <= other);
        prop_assert_eq!(here == Level::Encrypt, shared || one.min(other) == Level::Encrypt);
        prop_assert_eq!(why == LevelReason::SharedGroup, shared);
        prop_assert_eq!((why == LevelReason::Ours, why == LevelReason::Theirs),
            (reason == LevelReason::Theirs, reason == LevelReason::Ours));
        // The machines reach the same result as the function.
        let config = |weakest, groups| DirectConfig { weakest, groups, ..config() };
        let mut pair = Pair::new([config(one, ours), config(other, theirs)]);
        pair.want(0);
        prop_assert_eq!(pair.ends.each_ref().map(|end| end.link.unwrap().1), [here; 2]);
    }
}
