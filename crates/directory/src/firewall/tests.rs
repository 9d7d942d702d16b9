use super::*;
use crate::Policy;
use crate::member::tests::member;
use proptest::prelude::*;

const BOB: u32 = 4;
const SYN: PacketKind = PacketKind::Tcp(TcpSegment::Begins);
const DATA: PacketKind = PacketKind::Tcp(TcpSegment::Goes);
const FIN: PacketKind = PacketKind::Tcp(TcpSegment::Leaves);
const RST: PacketKind = PacketKind::Tcp(TcpSegment::Resets);

fn access(rules: &str) -> Arc<Access> {
    let text: String = rules
        .split(';')
        .filter(|rule| !rule.is_empty())
        .map(|rule| format!("[[allow]]\nfrom = \"b\"\nto = \"a\"\n{}\n", rule.replace(',', "\n")))
        .collect();
    let policy = Policy::parse(&text).unwrap();
    Arc::new(policy.access(&member("bob", 2, &["b"]), &member("alice", 1, &["a"])))
}

fn wall(rules: &str) -> Firewall {
    let mut wall = Firewall::new(Limits::default());
    wall.set_access(BTreeMap::from([(BOB, access(rules))]));
    wall
}

fn tuple(opening: PacketKind, ours: u16, theirs: u16) -> Tuple {
    let protocol = match opening {
        PacketKind::Tcp { .. } => 6,
        PacketKind::Udp => 17,
        PacketKind::Other => 132,
        _ => 58,
    };
    let address = |last: u16| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
    Tuple { protocol, ours: (address(1), ours), theirs: (address(2), theirs), opening }
}

fn at(ms: u64) -> Time {
    Time::from_millis(1_000_000 + ms)
}

const DENIED: Result<(), DropReason> = Err(DropReason::PolicyDenied);
const STRAY: Result<(), DropReason> = Err(DropReason::IpStrayError);

#[test]
fn only_allowed_ports_and_answers_pass() {
    let mut wall = wall("proto = \"tcp\",ports = [22]");
    assert_eq!(wall.inbound(at(0), BOB, &tuple(SYN, 22, 5_000)), Ok(()));
    assert_eq!(wall.inbound(at(0), BOB, &tuple(SYN, 23, 5_000)), DENIED);
    assert_eq!(wall.inbound(at(0), BOB, &tuple(PacketKind::Udp, 22, 5_000)), DENIED);
    assert_eq!(wall.inbound(at(0), BOB, &tuple(PacketKind::Question, 7, 7)), DENIED);
    assert_eq!(wall.inbound(at(0), 5, &tuple(SYN, 22, 5_000)), DENIED, "not a member");
    // Answers to a flow of this host pass, from its far end only.
    assert_eq!(wall.inbound(at(1), BOB, &tuple(DATA, 6_000, 80)), DENIED);
    wall.outbound(at(2), BOB, &tuple(SYN, 6_000, 80)).unwrap();
    assert_eq!(wall.inbound(at(3), BOB, &tuple(DATA, 6_000, 80)), Ok(()));
    assert_eq!(wall.inbound(at(3), BOB, &tuple(DATA, 6_000, 81)), DENIED);
    assert_eq!(wall.inbound(at(3), BOB, &tuple(DATA, 6_001, 80)), DENIED);
    wall.outbound(at(4), BOB, &tuple(PacketKind::Question, 9, 9)).unwrap();
    assert_eq!(wall.inbound(at(5), BOB, &tuple(PacketKind::Answer, 9, 9)), Ok(()));
    assert_eq!(wall.inbound(at(5), BOB, &tuple(PacketKind::Answer, 8, 8)), DENIED);
    assert_eq!(wall.inbound(at(5), BOB, &tuple(PacketKind::Trouble, 9, 9)), Ok(()), "about a flow");
    assert_eq!(wall.inbound(at(5), BOB, &tuple(PacketKind::Trouble, 8, 8)), STRAY, "about nothing");
}

#[test]
fn an_error_passes_while_its_flow_lives() {
    let about = |opening, ours, theirs| Tuple {
        opening: PacketKind::Trouble,
        ..tuple(opening, ours, theirs)
    };
    let mut wall = wall("proto = \"any\"");
    assert_eq!(wall.inbound(at(0), BOB, &about(SYN, 6_000, 80)), STRAY, "whatever bob may begin");
    wall.outbound(at(0), BOB, &tuple(SYN, 6_000, 80)).unwrap();
    assert_eq!(wall.inbound(at(1), BOB, &about(SYN, 6_000, 80)), Ok(()));
    assert_eq!(wall.inbound(at(1), BOB, &about(SYN, 6_000, 81)), STRAY);
    assert_eq!(wall.inbound(at(1), BOB, &about(PacketKind::Udp, 6_000, 80)), STRAY);
    assert_eq!(wall.inbound(at(1), 5, &about(SYN, 6_000, 80)), DENIED, "no member");
    assert_eq!(
        wall.inbound(at(60_001), BOB, &about(SYN, 6_000, 80)),
        STRAY,
        "the flow has expired"
    );
    // Errors about a flow that bob began pass while he may begin it.
    assert_eq!(wall.inbound(at(0), BOB, &tuple(PacketKind::Udp, 53, 5_000)), Ok(()));
    assert_eq!(wall.inbound(at(1), BOB, &about(PacketKind::Udp, 53, 5_000)), Ok(()));
    wall.set_access(BTreeMap::from([(BOB, access(""))]));
    assert_eq!(wall.inbound(at(2), BOB, &about(PacketKind::Udp, 53, 5_000)), STRAY);
}

#[test]
fn the_middle_of_a_connection_of_ours_does_not_begin_one() {
    let mut wall = wall("");
    wall.outbound(at(0), BOB, &tuple(DATA, 6_000, 80)).unwrap();
    assert_eq!(wall.inbound(at(1), BOB, &tuple(DATA, 6_000, 80)), DENIED);
}

/// A program that still answers must not turn the sender's flow into its own.
#[test]
fn taking_a_right_away_ends_flows_although_they_are_still_answered() {
    for opening in [PacketKind::Udp, DATA] {
        let mut wall = wall("proto = \"any\"");
        let here = tuple(opening, 53, 5_000);
        assert_eq!(wall.inbound(at(0), BOB, &here), Ok(()));
        wall.outbound(at(1), BOB, &here).unwrap();
        assert_eq!(wall.inbound(at(2), BOB, &here), Ok(()));
        wall.set_access(BTreeMap::from([(BOB, access(""))]));
        for ms in 3..2_000 {
            wall.outbound(at(ms * 100), BOB, &here).unwrap();
            assert_eq!(wall.inbound(at(ms * 100), BOB, &here), DENIED);
        }
        // With the right restored, the flow passes again.
        wall.set_access(BTreeMap::from([(BOB, access("proto = \"any\""))]));
        assert_eq!(wall.inbound(at(200_001), BOB, &here), Ok(()));
    }
}

#[test]
fn our_own_flows_outlive_a_change_of_rights_and_end_with_the_member() {
    let mut wall = wall("proto = \"any\"");
    let ours = tuple(SYN, 6_000, 80);
    wall.outbound(at(0), BOB, &ours).unwrap();
    wall.set_access(BTreeMap::from([(BOB, access(""))]));
    assert_eq!(wall.inbound(at(1), BOB, &tuple(DATA, 6_000, 80)), Ok(()));
    wall.set_access(BTreeMap::new());
    assert!(wall.is_empty());
    assert_eq!(wall.inbound(at(2), BOB, &tuple(DATA, 6_000, 80)), DENIED);
}

#[test]
fn a_closed_connection_may_be_begun_anew_by_us() {
    let mut wall = wall("proto = \"any\"");
    assert_eq!(wall.inbound(at(0), BOB, &tuple(SYN, 80, 5_000)), Ok(()));
    wall.set_access(BTreeMap::from([(BOB, access(""))]));
    wall.outbound(at(1), BOB, &tuple(SYN, 80, 5_000)).unwrap();
    assert_eq!(wall.inbound(at(2), BOB, &tuple(DATA, 80, 5_000)), Ok(()));
}

#[test]
fn flows_run_out() {
    let mut wall = wall("");
    wall.outbound(at(0), BOB, &tuple(PacketKind::Udp, 6_000, 53)).unwrap();
    assert_eq!(wall.inbound(at(59_000), BOB, &tuple(PacketKind::Udp, 6_000, 53)), Ok(()));
    // Both ends sent packets: five minutes more.
    assert_eq!(wall.inbound(at(358_000), BOB, &tuple(PacketKind::Udp, 6_000, 53)), Ok(()));
    assert_eq!(wall.inbound(at(659_000), BOB, &tuple(PacketKind::Udp, 6_000, 53)), DENIED);
    wall.outbound(at(0), BOB, &tuple(SYN, 6_000, 80)).unwrap();
    assert_eq!(wall.inbound(at(1), BOB, &tuple(DATA, 6_000, 80)), Ok(()));
    assert_eq!(wall.inbound(at(7_000_000), BOB, &tuple(DATA, 6_000, 80)), Ok(()));
    assert_eq!(wall.inbound(at(7_000_001), BOB, &tuple(FIN, 6_000, 80)), Ok(()));
    assert_eq!(wall.inbound(at(7_050_000), BOB, &tuple(DATA, 6_000, 80)), Ok(()));
    assert_eq!(wall.inbound(at(7_111_000), BOB, &tuple(DATA, 6_000, 80)), DENIED);
}

#[test]
fn one_member_fills_its_own_share_only() {
    let limits = Limits { flows: 20, flows_per_member: 8, ..Limits::default() };
    let mut wall = Firewall::new(limits);
    let all = access("proto = \"any\"");
    wall.set_access(BTreeMap::from([(BOB, all.clone()), (5, all)]));
    let begin = |wall: &mut Firewall, ms, member, port| {
        wall.inbound(at(ms), member, &tuple(PacketKind::Udp, 53, port))
    };
    for port in 0..8 {
        assert_eq!(begin(&mut wall, 0, BOB, port), Ok(()));
    }
    assert_eq!(begin(&mut wall, 1, BOB, 8), Err(DropReason::IpFlows));
    assert_eq!(begin(&mut wall, 1, BOB, 3), Ok(()), "a known flow");
    assert_eq!(begin(&mut wall, 1, 5, 8), Ok(()));
    // Expired flows make room, and are removed as others begin.
    for port in 9..13 {
        assert_eq!(begin(&mut wall, 60_500, BOB, port), Ok(()));
    }
    assert_eq!(wall.len(), 4);
    assert_eq!(wall.displaced(), 0);
}

#[test]
fn those_that_are_over_make_room_first_and_then_those_that_are_silent() {
    let limits = Limits { flows: 20, flows_per_member: 3, ..Limits::default() };
    let mut wall = Firewall::new(limits);
    wall.set_access(BTreeMap::from([(BOB, access("proto = \"any\""))]));
    let answered = |wall: &mut Firewall, ms, opening, port| {
        wall.inbound(at(ms), BOB, &tuple(opening, 53, port)).unwrap();
        wall.outbound(at(ms), BOB, &tuple(opening, 53, port)).unwrap();
    };
    let knows = |wall: &Firewall, ms, opening, port| {
        wall.alive(at(ms), &key(BOB, &tuple(opening, 53, port))).is_some()
    };
    answered(&mut wall, 0, DATA, 1);
    answered(&mut wall, 1, PacketKind::Udp, 2);
    answered(&mut wall, 2, DATA, 3);
    let new = |wall: &mut Firewall, ms, port| {
        let begun = wall.inbound(at(ms), BOB, &tuple(SYN, 53, port));
        wall.table.check();
        begun
    };
    assert_eq!(new(&mut wall, 3, 4), Err(DropReason::IpFlows), "all are in use");
    wall.inbound(at(4), BOB, &tuple(RST, 53, 3)).unwrap();
    assert_eq!((new(&mut wall, 5, 4), knows(&wall, 5, DATA, 3)), (Ok(()), false));
    assert_eq!(wall.displaced(), 0, "the displaced flow had ended");
    assert_eq!(new(&mut wall, 6, 5), Err(DropReason::IpFlows), "an answer may come yet");
    assert_eq!((new(&mut wall, 2_005, 5), knows(&wall, 2_005, SYN, 4)), (Ok(()), false));
    answered(&mut wall, 2_006, SYN, 5);
    assert_eq!(
        (new(&mut wall, 10_001, 6), knows(&wall, 10_001, PacketKind::Udp, 2)),
        (Ok(()), false)
    );
    answered(&mut wall, 10_002, SYN, 6);
    assert_eq!((new(&mut wall, 60_000, 7), knows(&wall, 60_000, DATA, 1)), (Ok(()), false));
    assert_eq!((wall.displaced(), wall.len()), (3, 3));
}

/// Otherwise packets of this host's programs would reopen closed flows as its own.
#[test]
fn closed_flows_stay_closed_and_take_no_room() {
    let limits = Limits { flows: 3, flows_per_member: 3, ..Limits::default() };
    let mut wall = Firewall::new(limits);
    let all = access("proto = \"any\"");
    wall.set_access(BTreeMap::from([(BOB, all.clone()), (5, all.clone())]));
    for port in 0..3 {
        assert_eq!(wall.inbound(at(0), BOB, &tuple(PacketKind::Udp, 53, port)), Ok(()));
    }
    let rest = access("proto = \"tcp\",ports = [22]");
    wall.set_access(BTreeMap::from([(BOB, rest), (5, all)]));
    for ms in 1..500 {
        for port in 0..3 {
            wall.outbound(at(ms * 100), BOB, &tuple(PacketKind::Udp, 53, port)).unwrap();
            assert_eq!(wall.inbound(at(ms * 100), BOB, &tuple(PacketKind::Udp, 53, port)), DENIED);
        }
        assert_eq!(wall.inbound(at(ms * 100), BOB, &tuple(SYN, 22, 7)), Ok(()));
        assert_eq!(wall.inbound(at(ms * 100), 5, &tuple(SYN, 22, 7)), Ok(()));
    }
    wall.table.check();
    // A flow from another port of this host passes meanwhile.
    wall.outbound(at(50_000), BOB, &tuple(PacketKind::Udp, 6_000, 0)).unwrap();
    assert_eq!(wall.inbound(at(50_001), BOB, &tuple(PacketKind::Udp, 6_000, 0)), Ok(()));
    // After five minutes of silence of its program the port is like any other.
    wall.outbound(at(351_000), BOB, &tuple(PacketKind::Udp, 53, 0)).unwrap();
    assert_eq!(wall.inbound(at(351_001), BOB, &tuple(PacketKind::Udp, 53, 0)), Ok(()));
    assert_eq!(wall.closed.len(), 0, "and forgotten");
}

/// Members fill the table with connections that last for hours, and lose their rights.
#[test]
fn closed_flows_of_many_members_leave_room_for_another() {
    for opening in [DATA, PacketKind::Udp] {
        let limits = Limits { flows: 400, flows_per_member: 100, ..Limits::default() };
        let mut wall = Firewall::new(limits);
        let (all, none) = (access("proto = \"any\""), access(""));
        wall.set_access((0..5).map(|member| (member, all.clone())).collect());
        let answered = |wall: &mut Firewall, ms, member, port| {
            let flow = tuple(opening, port, 5_000);
            let passed = wall.inbound(at(ms), member, &flow);
            wall.outbound(at(ms), member, &flow).unwrap();
            passed
        };
        for (member, port) in (0..4).flat_map(|member| (0..100).map(move |port| (member, port))) {
            assert_eq!(answered(&mut wall, 0, member, port), Ok(()));
        }
        let mut rights = BTreeMap::from([0, 1, 2, 3].map(|member| (member, none.clone())));
        rights.insert(4, all.clone());
        wall.set_access(rights);
        for (member, port) in (0..4).flat_map(|member| (0..100).map(move |port| (member, port))) {
            assert_eq!(answered(&mut wall, 1, member, port), DENIED, "the program still answers");
        }
        for port in 0..100 {
            assert_eq!(answered(&mut wall, 2, 4, port), Ok(()), "{opening:?} {port}");
        }
        assert_eq!((wall.len(), wall.displaced()), (100, 0));
    }
}

#[test]
fn what_is_closed_is_bounded_and_closed_none_the_less() {
    let mut wall = wall("proto = \"any\"");
    for port in 1..=2_000 {
        wall.inbound(at(0), BOB, &tuple(PacketKind::Udp, port, 5_000)).unwrap();
    }
    wall.set_access(BTreeMap::from([(BOB, access("proto = \"udp\",ports = [7]"))]));
    assert_eq!((wall.closed.len(), wall.len()), (1, 1));
    for port in 1..=2_000 {
        let flow = tuple(PacketKind::Udp, port, 5_000);
        wall.outbound(at(1), BOB, &flow).unwrap();
        let may = if port == 7 { Ok(()) } else { DENIED };
        assert_eq!(wall.inbound(at(2), BOB, &flow), may, "{port}");
    }
    // TCP is not affected.
    wall.outbound(at(3), BOB, &tuple(SYN, 6_000, 80)).unwrap();
    assert_eq!(wall.inbound(at(4), BOB, &tuple(DATA, 6_000, 80)), Ok(()));
}

#[test]
fn a_connection_that_is_over_is_begun_by_whoever_may() {
    let mut wall = wall("");
    short_connection(&mut wall, 0, BOB, (6_000, 80));
    assert_eq!(wall.inbound(at(1), BOB, &tuple(DATA, 6_000, 80)), Ok(()), "a delayed packet");
    assert_eq!(wall.inbound(at(2), BOB, &tuple(SYN, 6_000, 80)), DENIED, "bob may not call");
    wall.outbound(at(3), BOB, &tuple(SYN, 6_000, 80)).unwrap();
    assert_eq!(wall.inbound(at(60_000), BOB, &tuple(DATA, 6_000, 80)), Ok(()), "a new one");
    short_connection(&mut wall, 100_000, BOB, (6_001, 80));
    assert_eq!(wall.inbound(at(105_002), BOB, &tuple(DATA, 6_001, 80)), DENIED, "seconds later");
    // A reset that this host's kernel ignores ends nothing.
    wall.outbound(at(200_000), BOB, &tuple(SYN, 6_002, 80)).unwrap();
    wall.inbound(at(200_000), BOB, &tuple(DATA, 6_002, 80)).unwrap();
    wall.inbound(at(200_000), BOB, &tuple(RST, 6_002, 80)).unwrap();
    wall.outbound(at(200_001), BOB, &tuple(DATA, 6_002, 80)).unwrap();
    assert_eq!(wall.inbound(at(900_000), BOB, &tuple(DATA, 6_002, 80)), Ok(()));
}

#[test]
fn a_full_table_takes_what_the_limits_say() {
    let bytes = FlowTable::FLOW_BYTES;
    assert!(bytes <= 190, "{bytes} bytes per flow: Limits says 190");
    let limits = Limits::default();
    assert!(limits.flows * bytes <= 25_000_000, "docs/design/firewall.md says 25 MB");
    assert!(limits.flows_per_member * 4 <= limits.flows, "one member leaves room for others");
}

/// A short connection: `theirs` is the member's port. The firewall must pass all its packets.
fn short_connection(wall: &mut Firewall, ms: u64, member: u32, (ours, theirs): (u16, u16)) {
    let of = |opening| tuple(opening, ours, theirs);
    let calls = ours > theirs;
    for (opening, from_caller) in
        [(SYN, true), (DATA, false), (DATA, true), (FIN, true), (FIN, false), (DATA, true)]
    {
        let passed = match calls == from_caller {
            true => wall.outbound(at(ms), member, &of(opening)),
            false => wall.inbound(at(ms), member, &of(opening)),
        };
        assert_eq!(passed, Ok(()), "{opening:?} after {ms} ms, {} flows", wall.len());
    }
}

#[test]
fn a_thousand_short_connections_a_second_pass_for_minutes() {
    for (ours, theirs) in [(1_024, 80), (80, 1_024)] {
        let mut wall = wall("proto = \"tcp\",ports = [80]");
        for ms in 0..180_000 {
            let next = |port| if port == 80 { 80 } else { port + (ms % 60_000) as u16 };
            short_connection(&mut wall, ms, BOB, (next(ours), next(theirs)));
        }
    }
}

#[test]
fn members_that_open_flows_without_end_do_not_stop_another() {
    let mut wall = Firewall::new(Limits::default());
    let all = access("proto = \"any\"");
    wall.set_access((0..50).map(|member| (member, all.clone())).collect());
    for ms in 0..3_000u64 {
        for flow in 0..100 {
            let n = ms * 100 + flow;
            let begun = tuple(SYN, (n % 50_000) as u16, (n / 50_000) as u16);
            // Some are refused, which must not affect others.
            let _ = wall.inbound(at(ms), (n % 40) as u32, &begun);
        }
        if ms % 10 == 0 {
            short_connection(&mut wall, ms, 45, (1_024 + (ms % 60_000) as u16, 80));
            let asked = tuple(PacketKind::Udp, 2_000, 53);
            assert_eq!(wall.outbound(at(ms), 46, &asked), Ok(()));
            assert_eq!(wall.inbound(at(ms), 46, &asked), Ok(()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// A member without rights can only answer this host's flows, and the table is bounded.
    #[test]
    fn without_rights_only_answers_pass(
        steps in prop::collection::vec((0u8..3, 0u8..7, 0u16..4, 0u16..4, 0u64..90_000), 1..200),
    ) {
        let limits = Limits { flows: 6, flows_per_member: 6, ..Limits::default() };
        let mut wall = Firewall::new(limits);
        wall.set_access(BTreeMap::from([(BOB, access(""))]));
        use PacketKind::{Answer, Question, Udp};
        let openings = [SYN, DATA, FIN, RST, Udp, Question, Answer];
        let mut begun = std::collections::BTreeSet::new();
        let mut now = 0;
        for (way, opening, ours, theirs, wait) in steps {
            now += wait;
            let tuple = tuple(openings[usize::from(opening)], ours, theirs);
            let flow = (tuple.protocol, ours, theirs);
            if way == 0 {
                if wall.outbound(at(now), BOB, &tuple).is_ok() {
                    begun.insert(flow);
                }
            } else if wall.inbound(at(now), BOB, &tuple).is_ok() {
                prop_assert!(begun.contains(&flow), "{flow:?} was never begun");
            }
            prop_assert!(wall.len() <= 6);
            wall.table.check();
        }
    }
}
