//! Hosts that nobody can call: the messages between them, and when probes can't succeed.

use std::net::SocketAddr;
use std::time::Duration;

use shoal_edge::{DirectConfig, DirectEvent, DirectMachine, HostId, NoDirectReason, Reachability};
use shoal_wire::{
    CandidateKind, DirectKind, DirectMessage, DropReason, EndpointCandidate, Level, Mapping,
    Meeting, MeetingId, Time,
};

const HOST: HostId = HostId::from_bits(1);
const NOW: Time = Time::from_millis(1_000);

fn config() -> DirectConfig {
    DirectConfig {
        proactive: false,
        endpoint: None,
        weakest: Level::Encrypt,
        groups: Vec::new(),
        idle: Duration::from_secs(60),
        links_max: 4,
    }
}

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an endpoint")
}

/// A host that is seen at this endpoint and has a private address.
fn reach(mapping: Mapping, seen: &str) -> Reachability {
    let seen = EndpointCandidate { kind: CandidateKind::Seen, at: at(seen) };
    Reachability { mapping, candidates: vec![seen], private: vec![at("192.168.0.1:7400")] }
}

fn host(reach: Reachability, seed: u8) -> DirectMachine {
    let mut direct = DirectMachine::new(config(), [seed; 32]);
    direct.set_reach(reach);
    direct
}

/// An attempt as reported to the owner of the links: its id, whether this end asked, and the
/// endpoints to probe.
type MeetReport = (MeetingId, bool, Vec<SocketAddr>);

/// Delivers messages until there are none. Returns the attempts that each end reported.
fn settle(ends: &mut [DirectMachine; 2]) -> [Vec<MeetReport>; 2] {
    let mut met = [Vec::new(), Vec::new()];
    for _ in 0..10 {
        for i in [0, 1] {
            while let Some((_, said)) = ends[i].poll_message() {
                let taken = ends[1 - i].handle_message(NOW, HOST, &said, None);
                assert_eq!(taken, Ok(()), "{said:?}");
            }
            while let Some(event) = ends[i].poll_event() {
                if let DirectEvent::Meet { id, asker, places, .. } = event {
                    met[i].push((id, asker, places));
                }
            }
        }
    }
    met
}

#[test]
fn both_are_told_of_one_attempt_and_only_the_asker_calls() {
    let mut ends = [
        host(reach(Mapping::Easy, "198.51.100.1:7400"), 1),
        host(reach(Mapping::Hard, "203.0.113.2:9999"), 2),
    ];
    ends[0].wanted(NOW, HOST);
    let [first, second] = settle(&mut ends);
    assert_eq!(first.len(), 1, "addresses differ, so no private ones are told");
    let id = first[0].0;
    assert_eq!(first, [(id, true, vec![at("203.0.113.2:9999")])]);
    assert_eq!(second, [(id, false, vec![at("198.51.100.1:7400")])]);
    let later = NOW + Duration::from_secs(11);
    for end in &mut ends {
        end.handle_timeout(later);
        assert_eq!(end.relayed(HOST), Some(NoDirectReason::OneHard));
    }
}

/// Lost requests and answers are repeated for the same attempt. A duplicate changes nothing.
#[test]
fn lost_requests_and_answers_cost_time_and_no_attempt() {
    let seen = ["198.51.100.1:7400", "203.0.113.2:9999"];
    let met = |end: &mut DirectMachine| {
        let events = std::iter::from_fn(|| end.poll_event());
        events.filter(|event| matches!(event, DirectEvent::Meet { .. })).count()
    };
    for (lost_asks, lost_answers) in [(0, 0), (1, 0), (5, 0), (0, 5), (2, 3), (9, 0)] {
        let mut ends = [1, 2].map(|n| host(reach(Mapping::Easy, seen[usize::from(n) - 1]), n));
        let [one, other] = &mut ends;
        one.wanted(NOW, HOST);
        let (mut asks, mut answers) = (Vec::new(), 0);
        for ms in 0..4_900 {
            let now = NOW + Duration::from_millis(ms);
            one.handle_timeout(now);
            other.handle_timeout(now);
            while let Some((_, said)) = one.poll_message() {
                assert_eq!(said.kind, DirectKind::Ask);
                asks.push(said.meeting.as_ref().expect("a meeting").id);
                if asks.len() > lost_asks {
                    assert_eq!(other.handle_message(now, HOST, &said, None), Ok(()));
                }
            }
            while let Some((_, said)) = other.poll_message() {
                answers += 1;
                if answers > lost_answers {
                    assert_eq!(one.handle_message(now, HOST, &said, None), Ok(()));
                    // The network may also duplicate a message.
                    assert_eq!(one.handle_message(now, HOST, &said, None), Ok(()));
                }
            }
        }
        asks.dedup();
        let hears = lost_asks < 9;
        let count = usize::from(hears);
        assert_eq!((asks.len(), met(one), met(other)), (1, count, count));
        assert_eq!(answers, if hears { lost_answers + 1 } else { 0 });
        assert_eq!((one.stats().asked, other.stats().agreed), (1, u64::from(hears)));
        assert!(one.poll_timeout().is_some_and(|(at, _)| at >= NOW + Duration::from_secs(5)));
    }
}

/// No message confirms private addresses: they are told four times while there is no link.
#[test]
fn private_addresses_are_told_again_and_looked_at_once() {
    let seen = ["198.51.100.1:7400", "198.51.100.1:61000"];
    for stands in [false, true] {
        let mut ends = [1, 2].map(|n| host(reach(Mapping::Hard, seen[usize::from(n) - 1]), n));
        ends[0].wanted(NOW, HOST);
        let mut met = settle(&mut ends);
        if stands {
            ends.iter_mut().for_each(|end| end.link_changed(NOW, HOST, true));
        }
        let mut told = 0;
        for ms in 0..3_000 {
            let now = NOW + Duration::from_millis(ms);
            ends.iter_mut().for_each(|end| end.handle_timeout(now));
            while let Some((_, said)) = ends[0].poll_message() {
                assert_eq!(said.kind, DirectKind::Near);
                assert_eq!(ends[1].handle_message(now, HOST, &said, None), Ok(()));
                told += 1;
            }
            for (end, met) in ends.iter_mut().zip(&mut met) {
                while let Some(event) = end.poll_event() {
                    if let DirectEvent::Meet { id, asker, places, .. } = event {
                        met.push((id, asker, places));
                    }
                }
            }
        }
        assert_eq!(told, if stands { 0 } else { 3 });
        assert_eq!(
            met.map(|met| met.len()),
            [2, 2],
            "endpoints of the first message, and of the second"
        );
    }
}

/// Both hosts ask at once. Each learns one attempt from the other's request. The answers bring the
/// second attempt, and requests are repeated until an answer comes.
#[test]
fn two_that_ask_at_once_meet_though_answers_are_lost() {
    let seen = ["198.51.100.1:7400", "203.0.113.2:9999"];
    for lost_answers in [0, 1, 3, 6] {
        let mut ends = [1, 2].map(|n| host(reach(Mapping::Easy, seen[usize::from(n) - 1]), n));
        ends.iter_mut().for_each(|end| end.wanted(NOW, HOST));
        let (mut answers, mut met) = ([0; 2], [Vec::new(), Vec::new()]);
        for ms in 0..4_900 {
            let now = NOW + Duration::from_millis(ms);
            ends.iter_mut().for_each(|end| end.handle_timeout(now));
            for i in [0, 1] {
                let all: Vec<_> = std::iter::from_fn(|| ends[i].poll_message()).collect();
                for (_, said) in all {
                    answers[i] += usize::from(said.kind == DirectKind::Yes);
                    if said.kind == DirectKind::Ask || answers[i] > lost_answers {
                        assert_eq!(ends[1 - i].handle_message(now, HOST, &said, None), Ok(()));
                    }
                }
            }
            for (end, met) in ends.iter_mut().zip(&mut met) {
                while let Some(event) = end.poll_event() {
                    if let DirectEvent::Meet { id, asker, .. } = event {
                        met.push((id, asker));
                    }
                }
            }
        }
        let [one, other] = &met;
        assert_eq!(one.len(), 2, "every attempt once: {one:?}");
        let both = |(id, asker): &(MeetingId, bool)| other.contains(&(*id, !*asker));
        assert!(one.iter().all(both), "{lost_answers} lost: {one:?} {other:?}");
        assert_eq!(answers, [lost_answers + 1; 2], "no further answers");
    }
}

#[test]
fn two_that_ask_at_once_make_two_attempts() {
    let seen = ["198.51.100.1:7400", "203.0.113.2:9999"];
    let mut ends = [1, 2].map(|n| host(reach(Mapping::Easy, seen[usize::from(n) - 1]), n));
    ends.iter_mut().for_each(|end| end.wanted(NOW, HOST));
    let [first, second] = settle(&mut ends);
    assert_eq!((first.len(), second.len()), (2, 2));
    for (id, asker, _) in &first {
        assert!(second.iter().any(|(other, other_asks, _)| other == id && other_asks != asker));
    }
    assert!(first[0].0 != first[1].0);
    ends[0].link_changed(NOW, HOST, true);
    assert_eq!(ends[0].relayed(HOST), None);
}

#[test]
fn hosts_seen_at_one_address_exchange_private_addresses() {
    for mapping in [Mapping::Easy, Mapping::Hard, Mapping::Unknown] {
        let seen = ["198.51.100.1:7400", "198.51.100.1:61000"];
        let mut ends = [1, 2].map(|n| host(reach(mapping, seen[usize::from(n) - 1]), n));
        ends[0].wanted(NOW, HOST);
        let [first, second] = settle(&mut ends);
        for met in [&first, &second] {
            assert_eq!(met[1].2, [at("192.168.0.1:7400")], "{mapping:?}");
            assert_eq!((met[0].0, met[0].1), (met[1].0, met[1].1));
        }
    }
}

#[test]
fn attempts_without_hope_are_not_made() {
    let hard = |n: u8, seen| host(reach(Mapping::Hard, seen), n);
    let blind = |n| host(Reachability::default(), n);
    let easy = |n| host(reach(Mapping::Easy, "192.0.2.9:7400"), n);
    let loopback = |n| host(reach(Mapping::Easy, "127.0.0.1:7400"), n);
    let cases = [
        ([hard(1, "192.0.2.1:1"), hard(2, "192.0.2.2:1")], NoDirectReason::BothHard),
        ([blind(1), easy(2)], NoDirectReason::NotSeen),
        ([easy(1), blind(2)], NoDirectReason::NotSeen),
        ([easy(1), loopback(2)], NoDirectReason::NotSeen),
    ];
    for (mut ends, why) in cases {
        ends[0].wanted(NOW, HOST);
        let [first, _] = settle(&mut ends);
        assert_eq!((first.len(), ends[0].relayed(HOST)), (0, Some(why)));
        assert_eq!(ends[0].stats().failed, 1);
    }
    let mut alone = easy(1);
    alone.wanted(NOW, HOST);
    alone.handle_timeout(NOW + Duration::from_secs(6));
    assert_eq!(alone.relayed(HOST), Some(NoDirectReason::NoAnswer));
}

/// A forwarded port accepts frames from any address, however the translator treats other ports.
#[test]
fn an_open_port_is_tried_first_and_gives_hope_to_two_hard_ones() {
    let hard = |to: &str| reach(Mapping::Hard, to);
    let open = |to: &str| EndpointCandidate { kind: CandidateKind::Configured, at: at(to) };
    for opened in [0, 1] {
        let mut both = [hard("192.0.2.1:1"), hard("192.0.2.2:2")];
        both[opened].candidates.insert(0, open("192.0.2.9:9"));
        let [first, second] = both;
        let mut ends = [host(first, 1), host(second, 2)];
        ends[0].wanted(NOW, HOST);
        let met = settle(&mut ends);
        assert_eq!((met[0].len(), met[1].len()), (1, 1), "{met:?}");
        assert_eq!(met[1 - opened][0].2[0], at("192.0.2.9:9"), "{met:?}");
    }
    // A hopeless attempt is retried at once when a port is forwarded.
    let mut ends = [host(hard("192.0.2.1:1"), 1), host(hard("192.0.2.2:2"), 2)];
    ends[0].wanted(NOW, HOST);
    settle(&mut ends);
    assert_eq!(ends[0].relayed(HOST), Some(NoDirectReason::BothHard));
    let mut opened = hard("192.0.2.1:1");
    opened.candidates.push(open("192.0.2.1:9"));
    ends[0].set_reach(opened);
    ends[0].handle_timeout(NOW);
    ends[0].wanted(NOW, HOST);
    assert_eq!(settle(&mut ends)[0].len(), 1);
}

fn message(kind: DirectKind, id: MeetingId, kind_of: CandidateKind, to: &str) -> DirectMessage {
    let candidates = vec![EndpointCandidate { kind: kind_of, at: at(to) }];
    let meeting = Some(Meeting { id, mapping: Mapping::Easy, candidates });
    DirectMessage {
        kind,
        level: Level::Encrypt,
        keep: false,
        endpoint: None,
        groups: vec![],
        meeting,
    }
}

#[test]
fn answers_to_other_requests_and_addresses_of_others_are_refused() {
    let mut one = host(reach(Mapping::Easy, "198.51.100.1:7400"), 1);
    one.wanted(NOW, HOST);
    let (_, ask) = one.poll_message().expect("a request");
    let id = ask.meeting.expect("a meeting").id;
    let seen = CandidateKind::Seen;
    let mut say = |said: DirectMessage| one.handle_message(NOW, HOST, &said, None);

    let stale = message(DirectKind::Yes, [9; 16], seen, "203.0.113.2:1");
    assert_eq!(say(stale), Err(DropReason::UnexpectedReply));
    let near = |id, to| message(DirectKind::Near, id, CandidateKind::Private, to);
    assert_eq!(say(near(id, "192.168.0.2:1")), Err(DropReason::NotAllowed), "not agreed yet");
    // Private addresses are accepted from a host seen at the same address, for this attempt only.
    assert_eq!(say(message(DirectKind::Yes, id, seen, "198.51.100.1:2")), Ok(()));
    assert_eq!(say(near(id, "192.168.0.2:1")), Ok(()));
    assert_eq!(say(near([9; 16], "192.168.0.2:1")), Err(DropReason::NotAllowed));
    for public in ["203.0.113.7:53", "[2001:db8::1]:53", "127.0.0.1:53"] {
        assert_eq!(say(near(id, public)), Err(DropReason::NotAllowed), "{public}");
    }
    let seen = message(DirectKind::Near, id, seen, "192.168.0.2:1");
    assert_eq!(say(seen), Err(DropReason::NotAllowed));
}

#[test]
fn a_host_that_is_seen_elsewhere_takes_no_private_addresses() {
    let mut one = host(reach(Mapping::Easy, "198.51.100.1:7400"), 1);
    let seen = CandidateKind::Seen;
    let ask = message(DirectKind::Ask, [7; 16], seen, "203.0.113.2:1");
    assert_eq!(one.handle_message(NOW, HOST, &ask, None), Ok(()));
    let near = message(DirectKind::Near, [7; 16], CandidateKind::Private, "192.168.0.2:1");
    assert_eq!(one.handle_message(NOW, HOST, &near, None), Err(DropReason::NotAllowed));
}

#[test]
fn a_host_that_changes_its_places_has_few_attempts() {
    let mut one = host(reach(Mapping::Easy, "198.51.100.1:7400"), 1);
    let mut met = 0;
    for n in 0..200_u16 {
        let to = format!("203.0.113.2:{}", 1_000 + n);
        let id = [1 + (n % 250) as u8; 16];
        let _ = one.handle_message(
            NOW,
            HOST,
            &message(DirectKind::Ask, id, CandidateKind::Seen, &to),
            None,
        );
        while let Some(event) = one.poll_event() {
            met += u32::from(matches!(event, DirectEvent::Meet { .. }));
        }
    }
    assert_eq!(met, 4, "no more attempts than requests allowed");
}

/// Two hosts with a link that was found by probes.
fn linked() -> [DirectMachine; 2] {
    let seen = ["198.51.100.1:7400", "203.0.113.2:9999"];
    let mut ends = [1, 2].map(|n| host(reach(Mapping::Easy, seen[usize::from(n) - 1]), n));
    ends[0].wanted(NOW, HOST);
    settle(&mut ends);
    ends.iter_mut().for_each(|end| end.link_changed(NOW, HOST, true));
    ends
}

#[test]
fn a_host_that_is_seen_elsewhere_meets_those_again_that_probes_found() {
    let mut ends = linked();
    // A further endpoint beside the known one is not a move.
    let mut more = reach(Mapping::Easy, "198.51.100.1:7400");
    more.candidates.push(reach(Mapping::Easy, "198.51.100.1:7401").candidates[0]);
    ends[0].set_reach(more);
    ends[0].handle_timeout(NOW);
    assert_eq!(settle(&mut ends), [vec![], vec![]]);
    ends[0].set_reach(reach(Mapping::Easy, "192.0.2.77:5000"));
    assert!(ends[0].poll_timeout().is_some_and(|(at, _)| at <= NOW), "due at once");
    ends[0].handle_timeout(NOW);
    let [first, second] = settle(&mut ends);
    assert_eq!((first.len(), second.len()), (1, 1));
    assert_eq!((first[0].1, second[0].1), (true, false), "the host that moved calls");
    assert_eq!(second[0].2, [at("192.0.2.77:5000")]);
    for end in &mut ends {
        end.handle_timeout(NOW + Duration::from_secs(30));
        assert_eq!(end.relayed(HOST), None, "the link is still up");
    }
}

#[test]
fn a_link_of_probes_that_is_lost_is_made_again_at_once() {
    let mut ends = linked();
    ends[0].link_changed(NOW, HOST, false);
    let [first, second] = settle(&mut ends);
    assert_eq!((first.len(), second.len()), (1, 1), "{first:?} {second:?}");
    assert!(first[0].0 == second[0].0 && first[0].1 && !second[0].1);
    ends[0].link_changed(NOW, HOST, true);
    ends[0].handle_timeout(NOW + Duration::from_secs(30));
    assert_eq!(ends[0].relayed(HOST), None);
}

#[test]
fn an_answer_that_nobody_asked_for_again_changes_nothing() {
    let mut ends = linked();
    let said = DirectMessage {
        kind: DirectKind::Yes,
        level: Level::Encrypt,
        keep: false,
        endpoint: None,
        groups: Vec::new(),
        meeting: None,
    };
    let taken = ends[0].handle_message(NOW, HOST, &said, None);
    assert_eq!(taken, Err(DropReason::NotAllowed));
    assert_eq!(ends[0].poll_event(), None);
}

#[test]
fn a_move_ends_the_wait_after_failures() {
    let mut ends = [host(reach(Mapping::Hard, "198.51.100.1:7400"), 1), {
        host(reach(Mapping::Hard, "203.0.113.2:9999"), 2)
    }];
    ends[0].wanted(NOW, HOST);
    settle(&mut ends);
    assert_eq!(ends[0].relayed(HOST), Some(NoDirectReason::BothHard));
    ends[0].wanted(NOW, HOST);
    assert!(ends[0].poll_message().is_none(), "it waits");
    ends[0].set_reach(reach(Mapping::Easy, "192.0.2.77:5000"));
    ends[0].handle_timeout(NOW);
    ends[0].wanted(NOW, HOST);
    let [first, _] = settle(&mut ends);
    assert_eq!(first.len(), 1);
}
