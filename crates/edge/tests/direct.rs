//! Which hosts get a direct link, when, at which level: two machines whose messages may get lost.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use proptest::prelude::*;
use shoal_edge::{Direct, DirectConfig, DirectEvent, HostId, Security, Why, agree};
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

/// One end: its machine, and the link as its owner made it.
struct End {
    direct: Direct,
    link: Option<(Option<SocketAddr>, Level, Why)>,
    closed: bool,
    removed: u32,
}

struct Pair {
    now: Time,
    ends: [End; 2],
    lose: bool,
}

impl Pair {
    fn new(configs: [DirectConfig; 2]) -> Pair {
        let end = |config| End {
            direct: Direct::new(config, [5; 32]),
            link: None,
            closed: false,
            removed: 0,
        };
        Pair { now: Time::from_millis(1_000), ends: configs.map(end), lose: false }
    }

    /// Delivers messages; a link comes up if both ends have made it and one of them calls.
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
            assert!(round < 19, "they talk for ever");
        }
        let calls = |end: &End| end.link.is_some_and(|link| link.0.is_some());
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
        assert!(pair.up(), "it is used");
        pair.run(59, |_| {});
        assert!(pair.up());
        pair.run(2, |_| {});
        assert!(pair.ends.iter().all(|end| end.closed && end.link.is_some()));
        pair.run(6, |_| {});
        assert!(pair.ends.iter().all(|end| end.link.is_none() && end.removed == 1));
        pair.want(1);
        assert!(pair.up(), "traffic makes another at once");
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
    assert!(!pair.up(), "it waits first");
    pair.run(6, |_| {});
    pair.want(0);
    assert!(pair.up());
}

#[test]
fn links_are_bounded_and_unasked_answers_are_refused() {
    let mut direct = Direct::new(config(), [5; 32]);
    let now = Time::from_millis(5);
    let mut asking = Direct::new(config(), [5; 32]);
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
    assert!(pair.up(), "nobody had to ask for it again");
}

/// A host with a link up sends further answers, so that the other end calls the endpoints in them.
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
    println!("{} places called in 10 s, {refused} refused", called.len());
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
    assert_eq!(direct.terms(HOST), Some((Level::Encrypt, Why::Both)));
    assert_eq!(direct.handle_message(pair.now, HOST, &said, None), Ok(()));
    assert_eq!(direct.poll_event(), None, "the level is the same");
    assert_eq!(direct.terms(HOST), Some((Level::Encrypt, Why::Ours)));
}

#[test]
fn another_level_makes_another_link() {
    let lower = DirectConfig { weakest: Level::None, ..config() };
    let mut pair = Pair::new([lower.clone(), lower]);
    pair.want(0);
    assert_eq!(pair.ends[0].link.unwrap().1, Level::None);
    // The other end restarts with a demand of its own.
    pair.ends[1].direct = Direct::new(config(), [5; 32]);
    pair.ends[1].link = None;
    pair.want(1);
    assert!(pair.up());
    assert_eq!(pair.ends[0].removed, 1, "the old session must not carry on");
    assert_eq!(pair.ends.each_ref().map(|end| end.link.unwrap().1), [Level::Encrypt; 2]);
    assert_eq!(pair.ends.each_ref().map(|e| e.link.unwrap().2), [Why::Theirs, Why::Ours]);
}

fn group(name: u8) -> [u8; 8] {
    [name; 8]
}

/// Groups of the list count beside those that hosts claim, and whoever has the newer list decides.
#[test]
fn the_list_and_the_file_make_a_link_stronger_and_a_change_makes_another_link() {
    let lower = DirectConfig { weakest: Level::None, ..config() };
    let claims = |name| DirectConfig { groups: vec![group(name)], ..lower.clone() };
    let listed = |name| Security { groups: vec![group(name)], encrypt: false };
    let levels = |pair: &Pair| pair.ends.each_ref().map(|end| end.link.unwrap().1);
    let say = |pair: &mut Pair, end: usize, own: Vec<[u8; 8]>, other: Security| {
        let now = pair.now;
        pair.ends[end].direct.set_security(now, own, BTreeMap::from([(HOST, other)]));
    };
    // Only the list has the group.
    let mut pair = Pair::new([lower.clone(), lower.clone()]);
    say(&mut pair, 0, vec![group(1)], listed(1));
    say(&mut pair, 1, vec![group(1)], listed(1));
    pair.want(0);
    assert_eq!(levels(&pair), [Level::Encrypt; 2]);
    // One end claims it, and the list gives it to the other; also where only one end has that list.
    for both in [true, false] {
        let mut pair = Pair::new([claims(1), lower.clone()]);
        say(&mut pair, 0, Vec::new(), listed(1));
        if both {
            say(&mut pair, 1, vec![group(1)], Security::default());
        }
        pair.want(0);
        assert_eq!(pair.ends[0].link.unwrap().1, Level::Encrypt);
        assert_eq!(pair.ends[1].link.unwrap().1 == Level::Encrypt, both);
    }
    // A newer list: the link at the lower level ends, and the next one is encrypted.
    let mut pair = Pair::new([lower.clone(), lower.clone()]);
    pair.want(0);
    assert_eq!(levels(&pair), [Level::None; 2]);
    say(&mut pair, 0, vec![group(1)], Security::default());
    assert_eq!(pair.ends[0].direct.terms(HOST), Some((Level::None, Why::Both)), "no other has it");
    say(&mut pair, 0, vec![group(1)], listed(1));
    assert_eq!(pair.ends[0].direct.terms(HOST), None);
    assert_eq!(pair.ends[0].direct.poll_event(), Some(DirectEvent::Remove(HOST)));
    pair.ends[0].link = None;
    say(&mut pair, 1, vec![group(1)], listed(1));
    pair.want(0);
    assert_eq!(levels(&pair), [Level::Encrypt; 2]);
    // The file of one end names the other.
    let mut pair = Pair::new([lower.clone(), lower]);
    say(&mut pair, 1, Vec::new(), Security { groups: Vec::new(), encrypt: true });
    pair.want(0);
    assert_eq!(levels(&pair), [Level::Encrypt; 2]);
    assert_eq!(pair.ends.each_ref().map(|e| e.link.unwrap().2), [Why::Theirs, Why::Named]);
    // The host is forgotten as one with which there was a link, not what the file asks for.
    pair.ends[1].direct.forget(HOST);
    while pair.ends[1].direct.poll_event().is_some() {}
    pair.ends[1].link = None;
    pair.want(1);
    assert_eq!(levels(&pair), [Level::Encrypt; 2]);
}

fn level() -> impl Strategy<Value = Level> {
    (0_usize..3).prop_map(|i| Level::ALL[i])
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
        prop_assert_eq!(why == Why::SharedGroup, shared);
        prop_assert_eq!((why == Why::Ours, why == Why::Theirs),
            (reason == Why::Theirs, reason == Why::Ours));
        // The machines agree with the function.
        let config = |weakest, groups| DirectConfig { weakest, groups, ..config() };
        let mut pair = Pair::new([config(one, ours), config(other, theirs)]);
        pair.want(0);
        prop_assert_eq!(pair.ends.each_ref().map(|end| end.link.unwrap().1), [here; 2]);
    }
}
