use super::*;
use crate::Policy;
use crate::member::tests::member;
use proptest::prelude::*;

const BOB: u32 = 4;
const SYN: Opening = Opening::Tcp { begins: true, ends: false };
const DATA: Opening = Opening::Tcp { begins: false, ends: false };
const FIN: Opening = Opening::Tcp { begins: false, ends: true };

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

fn tuple(opening: Opening, ours: u16, theirs: u16) -> Tuple {
    let protocol = match opening {
        Opening::Tcp { .. } => 6,
        Opening::Udp => 17,
        Opening::Other => 132,
        _ => 58,
    };
    let address = |last: u16| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
    Tuple { protocol, ours: (address(1), ours), theirs: (address(2), theirs), opening }
}

fn at(ms: u64) -> Time {
    Time::from_millis(1_000_000 + ms)
}

const DENIED: Result<(), DropReason> = Err(DropReason::PolicyDenied);

#[test]
fn only_allowed_ports_and_answers_pass() {
    let mut wall = wall("proto = \"tcp\",ports = [22]");
    assert_eq!(wall.inbound(at(0), BOB, &tuple(SYN, 22, 5_000)), Ok(()));
    assert_eq!(wall.inbound(at(0), BOB, &tuple(SYN, 23, 5_000)), DENIED);
    assert_eq!(wall.inbound(at(0), BOB, &tuple(Opening::Udp, 22, 5_000)), DENIED);
    assert_eq!(wall.inbound(at(0), BOB, &tuple(Opening::Question, 7, 7)), DENIED);
    assert_eq!(wall.inbound(at(0), 5, &tuple(SYN, 22, 5_000)), DENIED, "not a member");
    // What this host began is answered, from there only.
    assert_eq!(wall.inbound(at(1), BOB, &tuple(DATA, 6_000, 80)), DENIED);
    wall.outbound(at(2), BOB, &tuple(SYN, 6_000, 80)).unwrap();
    assert_eq!(wall.inbound(at(3), BOB, &tuple(DATA, 6_000, 80)), Ok(()));
    assert_eq!(wall.inbound(at(3), BOB, &tuple(DATA, 6_000, 81)), DENIED);
    assert_eq!(wall.inbound(at(3), BOB, &tuple(DATA, 6_001, 80)), DENIED);
    wall.outbound(at(4), BOB, &tuple(Opening::Question, 9, 9)).unwrap();
    assert_eq!(wall.inbound(at(5), BOB, &tuple(Opening::Answer, 9, 9)), Ok(()));
    assert_eq!(wall.inbound(at(5), BOB, &tuple(Opening::Answer, 8, 8)), DENIED);
    assert_eq!(wall.inbound(at(5), BOB, &tuple(Opening::Trouble, 0, 0)), Ok(()), "about a flow");
}

#[test]
fn errors_about_nothing_do_not_pass() {
    let mut wall = wall("proto = \"tcp\",ports = [22]");
    assert_eq!(wall.inbound(at(0), BOB, &tuple(Opening::Trouble, 0, 0)), DENIED);
}

#[test]
fn the_middle_of_a_connection_of_ours_does_not_begin_one() {
    let mut wall = wall("");
    wall.outbound(at(0), BOB, &tuple(DATA, 6_000, 80)).unwrap();
    assert_eq!(wall.inbound(at(1), BOB, &tuple(DATA, 6_000, 80)), DENIED);
}

/// The heart of it: a program that goes on answering must not turn the sender's flow into its own.
#[test]
fn taking_a_right_away_ends_flows_although_they_are_still_answered() {
    for opening in [Opening::Udp, DATA] {
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
        // With the right it goes on.
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
    wall.outbound(at(0), BOB, &tuple(Opening::Udp, 6_000, 53)).unwrap();
    assert_eq!(wall.inbound(at(59_000), BOB, &tuple(Opening::Udp, 6_000, 53)), Ok(()));
    // Both spoke: five minutes more.
    assert_eq!(wall.inbound(at(358_000), BOB, &tuple(Opening::Udp, 6_000, 53)), Ok(()));
    assert_eq!(wall.inbound(at(659_000), BOB, &tuple(Opening::Udp, 6_000, 53)), DENIED);
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
        wall.inbound(at(ms), member, &tuple(Opening::Udp, 53, port))
    };
    for port in 0..8 {
        assert_eq!(begin(&mut wall, 0, BOB, port), Ok(()));
    }
    assert_eq!(begin(&mut wall, 1, BOB, 8), Err(DropReason::IpFlows));
    assert_eq!(begin(&mut wall, 1, BOB, 3), Ok(()), "a known flow");
    assert_eq!(begin(&mut wall, 1, 5, 8), Ok(()));
    // Those that ran out make room.
    assert_eq!(begin(&mut wall, 60_500, BOB, 9), Ok(()));
    assert!(wall.len() < 4, "{}", wall.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Whatever happens, a member without rights gets through only to what this host began, and
    /// the table is bounded.
    #[test]
    fn without_rights_only_answers_pass(
        steps in prop::collection::vec((0u8..3, 0u8..5, 0u16..4, 0u16..4, 0u64..90_000), 1..200),
    ) {
        let limits = Limits { flows: 6, flows_per_member: 6, ..Limits::default() };
        let mut wall = Firewall::new(limits);
        wall.set_access(BTreeMap::from([(BOB, access(""))]));
        let openings = [SYN, DATA, Opening::Udp, Opening::Question, Opening::Answer];
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
            prop_assert_eq!(wall.per_member.values().sum::<usize>(), wall.len());
        }
    }
}
