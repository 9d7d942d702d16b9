//! Fixed headers and handshake contents: golden vectors, round trips, and no panic on any input.

use crate::vectors;
use core::time::Duration;

use proptest::prelude::*;
use shoal_wire::{
    Address, CandidateKind, CongestionMark, DirectKind, DirectMessage, DropReason,
    EndpointCandidate, FirstPayload, HandshakePart, HandshakeReply, HandshakeRequest, Level,
    LinkKind, Mapping, Meeting, MirrorAnswer, MirrorRequest, ParseError, Removal, RemovalReason,
    RoutedHeader, SecondPayload, SizeClass, Time, TrafficClass, VERSION, ip, shake,
};
use zerocopy::IntoBytes;

fn vector(name: &str) -> Vec<u8> {
    vectors::vector("base", name)
}

fn first() -> FirstPayload {
    FirstPayload {
        index: 0xab00_0007,
        mask_key: [0x11; 32],
        incarnation: 0x0102_0304_0506_0708,
        timestamp: 0x19a_bcde_f012,
        weakest: Level::Encrypt,
        suites: 3,
        processor: 2,
        lanes: 4,
    }
}

fn second() -> SecondPayload {
    SecondPayload {
        index: 0xab00_0007,
        mask_key: [0x22; 32],
        level: Level::Encrypt,
        suite: 2,
        processor: 4,
        lanes: 1,
        suites: 31,
    }
}

#[test]
fn link_kinds_have_their_bytes() {
    let kinds = [
        LinkKind::Keepalive,
        LinkKind::Cell,
        LinkKind::Control,
        LinkKind::Part,
        LinkKind::Direct,
        LinkKind::Leg,
        LinkKind::SmallCell,
        LinkKind::MediumCell,
        LinkKind::Cover,
    ];
    for (byte, kind) in (0..).zip(kinds) {
        assert_eq!((kind as u8, LinkKind::from_byte(byte)), (byte, Ok(kind)));
    }
    assert!(LinkKind::from_byte(kinds.len() as u8).is_err());
}

#[test]
fn golden_routed_headers() {
    let header = RoutedHeader::parse(&vector("routed")).unwrap();
    assert_eq!((header.dst(), header.src()), (Address::new(2, 17), Address::new(1, 3)));
    assert_eq!((header.class(), header.mark()), (TrafficClass::Control, CongestionMark::Congested));
    assert_eq!(header.hop_limit(), 31);

    let fresh = RoutedHeader::new(Address::new(2, 17), Address::new(1, 3), TrafficClass::Control);
    let mut bytes = fresh.as_bytes().to_vec();
    bytes[RoutedHeader::MARK_AT] = CongestionMark::Congested as u8;
    bytes[RoutedHeader::HOP_LIMIT_AT] -= 1;
    assert_eq!(bytes, vector("routed"));

    for bad in [vector("bad-mark"), vector("bad-class"), vector("bad-routed-short")] {
        assert_eq!(RoutedHeader::parse(&bad).err(), Some(DropReason::Malformed));
    }
}

#[test]
fn golden_stream_numbers() {
    let golden = vector("stream-number");
    let number = ip::StreamNumber { stream: 0xabc, number: 0xf_0102 };
    assert_eq!(number.to_bytes().to_vec(), golden);
    assert_eq!(ip::StreamNumber::from_bytes(golden.try_into().unwrap()), number);
    let ahead = |number, other| ip::StreamNumber { stream: 0, number }.ahead_of(other);
    assert_eq!([ahead(3, 7), ahead(7, 3), ahead(7, 7)], [-4, 4, 0]);
    assert_eq!([ahead(2, ip::NUMBERS - 1), ahead(ip::NUMBERS - 1, 2)], [3, -3], "around the end");
    assert_eq!([ahead(ip::NUMBERS / 2 - 1, 0), ahead(ip::NUMBERS / 2, 0)], [524_287, -524_288]);
}

/// docs/design/wire/frame.md: steps of 2^20 ns or longer, modulo 64, in the six high bits of the
/// flags.
#[test]
fn times_of_sending_stand_above_the_flags() {
    for (wait_ms, bits) in [(0, 20), (50, 20), (51, 21), (201, 22), (202, 23), (1_505, 25)] {
        let in_steps = ip::SendSteps::of(Duration::from_millis(wait_ms));
        let step = 1 << bits;
        assert_eq!(in_steps.round(), 64 * step, "{wait_ms}");
        for (steps, flags) in [(0, 0), (1, 4), (63, 252), (64, 0), (1_000_037, 148)] {
            let now = Time(steps * step + 17);
            let sent = in_steps.at(now);
            assert_eq!(sent.to_flags(), flags, "{steps}");
            assert_eq!(ip::SendTime::from_flags(flags | ip::PARTIAL | ip::FIRST), sent);
            let later = |steps| in_steps.ns_before(sent, Time(now.0 + steps * step));
            assert_eq!([later(0), later(63), later(64)], [17, 17 + 63 * step, 17]);
        }
    }
}

#[test]
fn golden_handshake_payloads() {
    assert_eq!(FirstPayload::parse(&vector("first-payload")), Ok(first()));
    assert_eq!(first().to_bytes().to_vec(), vector("first-payload"));
    assert_eq!(SecondPayload::parse(&vector("second-payload")), Ok(second()));
    assert_eq!(second().to_bytes().to_vec(), vector("second-payload"));

    let trailing = Err(ParseError::TooLong { what: "first payload", max: 0, have: 1 });
    assert_eq!(FirstPayload::parse(&vector("bad-first-trailing")), trailing);
    assert!(matches!(
        SecondPayload::parse(&vector("bad-second-short")),
        Err(ParseError::TooShort { what: "mask key", .. })
    ));
    assert!(!format!("{:?}{:?}", first(), second()).contains("17"), "keys stay out of Debug");
}

#[test]
fn golden_levels() {
    let one = FirstPayload { weakest: Level::None, ..first() };
    assert_eq!(FirstPayload::parse(&vector("first-payload-none")), Ok(one));
    assert_eq!(one.to_bytes().to_vec(), vector("first-payload-none"));
    let two = SecondPayload { level: Level::Authenticate, ..second() };
    assert_eq!(SecondPayload::parse(&vector("second-payload-authenticate")), Ok(two));
    assert_eq!(two.to_bytes().to_vec(), vector("second-payload-authenticate"));
    let level = |value| ParseError::Unknown { what: "level", value };
    assert_eq!(FirstPayload::parse(&vector("bad-first-level")), Err(level(3)));
    assert_eq!(SecondPayload::parse(&vector("bad-second-level")), Err(level(15)));
}

#[test]
fn golden_meetings() {
    let id = [0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8];
    let id = [id, id.map(|byte| byte + 0x10)].concat().try_into().unwrap();
    let candidate = |kind, at: &str| EndpointCandidate { kind, at: at.parse().unwrap() };
    let said = |kind, mapping, candidates| DirectMessage {
        kind,
        level: Level::Encrypt,
        keep: false,
        endpoint: None,
        groups: Vec::new(),
        meeting: Some(Meeting { id, mapping, candidates }),
    };
    let public = vec![
        candidate(CandidateKind::Ipv6, "[2001:db8::7]:7400"),
        candidate(CandidateKind::Seen, "203.0.113.7:7400"),
    ];
    let ask = said(DirectKind::Ask, Mapping::Easy, public);
    let golden = vector("direct-meeting");
    assert_eq!(DirectMessage::parse(&golden), Ok(ask.clone()));
    assert_eq!(ask.to_bytes(), golden[..golden.len() - 4]);
    let private = vec![candidate(CandidateKind::Private, "192.168.0.7:7400")];
    let near = said(DirectKind::Near, Mapping::Unknown, private);
    assert_eq!(DirectMessage::parse(&vector("direct-near")), Ok(near.clone()));
    assert_eq!(near.to_bytes(), vector("direct-near"));

    let unknown = |what, value| ParseError::Unknown { what, value };
    let invalid = |what| ParseError::Invalid { what };
    let many = ParseError::TooLong { what: "candidates", max: 7, have: 8 };
    for (name, expected) in [
        ("bad-meeting-mapping", unknown("mapping", 3)),
        ("bad-meeting-kind", unknown("candidate", 5)),
        ("bad-meeting-many", many),
        ("bad-meeting-nowhere", invalid("endpoint")),
        ("bad-meeting-zero", invalid("meeting")),
        ("bad-meeting-short", ParseError::TooShort { what: "address", need: 16, have: 2 }),
        ("bad-meeting-padding", invalid("padding")),
    ] {
        assert_eq!(DirectMessage::parse(&vector(name)), Err(expected), "{name}");
    }
}

#[test]
fn golden_mirrors() {
    let request = MirrorRequest { shown_s: 1_795_919_229 };
    let golden = vector("mirror-request");
    assert_eq!(MirrorRequest::parse(&golden), Ok(request));
    assert_eq!(request.to_bytes(), golden[..MirrorRequest::LEN]);
    let answer = MirrorAnswer { seen: "203.0.113.7:7400".parse().unwrap() };
    let golden = vector("mirror-answer");
    assert_eq!(MirrorAnswer::parse(&golden), Ok(answer));
    assert_eq!(answer.to_bytes(), golden[..MirrorAnswer::LEN]);

    let unknown = |what, value| Err(ParseError::Unknown { what, value });
    let padding = Err(ParseError::Invalid { what: "mirror padding" });
    assert_eq!(MirrorRequest::parse(&vector("bad-mirror-padding")), padding);
    assert_eq!(MirrorRequest::parse(&vector("bad-mirror-version")), unknown("version", 1));
    assert_eq!(MirrorRequest::parse(&vector("bad-mirror-type")), unknown("mirror type", 6));
    let nowhere = Err(ParseError::Invalid { what: "endpoint" });
    assert_eq!(MirrorAnswer::parse(&vector("bad-mirror-nowhere")), nowhere);
}

#[test]
fn golden_direct_messages() {
    let said = DirectMessage {
        kind: DirectKind::Yes,
        level: Level::Authenticate,
        keep: true,
        endpoint: Some("203.0.113.7:7400".parse().unwrap()),
        groups: vec![[1, 2, 3, 4, 5, 6, 7, 8], [17, 18, 19, 20, 21, 22, 23, 24]],
        meeting: None,
    };
    let golden = vector("direct");
    assert_eq!(DirectMessage::parse(&golden), Ok(said.clone()));
    assert_eq!(said.to_bytes(), golden[..golden.len() - 4]);
    let invalid = |what| Err(ParseError::Invalid { what });
    let level = Err(ParseError::Unknown { what: "level", value: 3 });
    assert_eq!(DirectMessage::parse(&vector("bad-direct-level")), level);
    assert_eq!(DirectMessage::parse(&vector("bad-direct-keep")), invalid("keep"));
    for name in
        [vector("bad-direct-family"), vector("bad-direct-port"), vector("bad-direct-multicast")]
    {
        assert_eq!(DirectMessage::parse(&name), invalid("endpoint"));
    }
    let meeting = Err(ParseError::TooShort { what: "meeting", need: 16, have: 4 });
    assert_eq!(DirectMessage::parse(&vector("bad-direct-padding")), meeting);
    let short = DirectMessage::parse(&vector("bad-direct-short"));
    assert!(matches!(short, Err(ParseError::TooShort { what: "group", .. })), "{short:?}");
}

#[test]
fn golden_handshake_parts() {
    let bytes = [0x44; shake::PART_LEN];
    let part = HandshakePart { number: 0x0102_0304_0506_0708, place: 2, bytes: &bytes };
    assert_eq!(HandshakePart::parse(&vector("part-body")), Ok(part));
    let mut written = vec![0xff; vector("part-body").len()];
    part.write(&mut written).unwrap();
    assert_eq!(written, vector("part-body"));
    let invalid = |what| Err(ParseError::Invalid { what });
    assert_eq!(HandshakePart::parse(&vector("bad-part-place")), invalid("part place"));
    assert_eq!(HandshakePart::parse(&vector("bad-part-padding")), invalid("handshake padding"));
    let cookie = vector("cookie-body");
    assert!(matches!(HandshakePart::parse(&cookie), Err(ParseError::Unknown { value: 3, .. })));
}

#[test]
fn golden_handshake_bodies() {
    let body = vector("cookie-body");
    assert_eq!(HandshakeReply::parse(&body), Ok(HandshakeReply::Cookie([0x33; 12])));
    let mut out = vec![0xff; body.len()];
    HandshakeReply::Cookie([0x33; 12]).write(&mut out).unwrap();
    assert_eq!(out, body);

    let unknown = |what, value| Err(ParseError::Unknown { what, value });
    assert_eq!(HandshakeReply::parse(&vector("bad-reply-type")), unknown("handshake type", 1));
    assert_eq!(HandshakeReply::parse(&vector("bad-reply-version")), unknown("version", 1));
    let padding = Err(ParseError::Invalid { what: "handshake padding" });
    assert_eq!(HandshakeReply::parse(&vector("bad-reply-padding")), padding);
    assert!(matches!(
        HandshakeRequest::parse(&vector("bad-request-short")),
        Err(ParseError::TooShort { what: "first noise message", .. })
    ));
    assert!(HandshakeReply::Cookie([0; 12]).write(&mut [0; 13]).is_err());
}

#[test]
fn golden_bodies_of_a_removal() {
    let removal = Removal { reason: RemovalReason::Authority, day: 20_785 };
    let body = vector("removed-body");
    assert_eq!(HandshakeReply::parse(&body), Ok(HandshakeReply::Removed(removal)));
    let mut out = vec![0xff; body.len()];
    HandshakeReply::Removed(removal).write(&mut out).unwrap();
    assert_eq!(out, body);

    let reason = Err(ParseError::Unknown { what: "removal reason", value: 3 });
    assert_eq!(HandshakeReply::parse(&vector("bad-removed-reason")), reason);
    let padding = Err(ParseError::Invalid { what: "handshake padding" });
    assert_eq!(HandshakeReply::parse(&vector("bad-removed-padding")), padding);
    let short = Err(ParseError::TooShort { what: "removal day", need: 4, have: 3 });
    assert_eq!(HandshakeReply::parse(&vector("bad-removed-short")), short);
    assert!(HandshakeReply::Removed(removal).write(&mut [0; 6]).is_err());
}

#[test]
fn lengths_are_those_of_docs_wire_md() {
    assert_eq!((shake::FIRST_LEN, shake::SECOND_LEN), (1_350, 1_191));
    assert_eq!((shake::LINK_LEN, shake::EDGE_LEN), (1_440, 1_400));
    assert_eq!((shake::LINK_COOKIE_LEN, shake::EDGE_COOKIE_LEN), (192, 152));
    let lens = |c: SizeClass| (c.frame_len(), c.link_body_len(), c.cell_len(), c.edge_len());
    let want = [(192, 167, 152, 128), (576, 551, 536, 512), (1_440, 1_415, 1_400, 1_376)];
    assert_eq!(SizeClass::ALL.map(lens), want);
}

proptest! {
    #[test]
    fn parsing_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..1_500)) {
        let _ = RoutedHeader::parse(&bytes);
        let _ = HandshakeRequest::parse(&bytes);
        let _ = HandshakeReply::parse(&bytes);
        let _ = FirstPayload::parse(&bytes);
        let _ = SecondPayload::parse(&bytes);
        let _ = DirectMessage::parse(&bytes);
        let _ = MirrorRequest::parse(&bytes);
        let _ = MirrorAnswer::parse(&bytes);
    }

    #[test]
    fn what_mirrors_say_round_trips(shown_s: u32, to: u16, ip: std::net::IpAddr) {
        let request = MirrorRequest { shown_s };
        prop_assert_eq!(MirrorRequest::parse(&request.to_bytes()), Ok(request));
        let answer = MirrorAnswer { seen: (ip, to).into() };
        match MirrorAnswer::parse(&answer.to_bytes()) {
            Ok(read) => prop_assert_eq!(read, answer),
            Err(_) => prop_assert!(to == 0 || ip.is_multicast() || ip.is_unspecified()),
        }
    }

    #[test]
    fn direct_messages_round_trip(
        kind in 0_usize..4, level in 0_usize..3, keep: bool, to: u16, mapping in 0_usize..3,
        address in proptest::option::of(any::<std::net::IpAddr>()),
        groups in proptest::collection::vec(any::<[u8; 8]>(), 0..=DirectMessage::GROUPS_MAX),
        id: [u8; 16], meets: bool,
        tried in proptest::collection::vec(any::<std::net::IpAddr>(), 0..=Meeting::CANDIDATES_MAX),
    ) {
        let kind = [DirectKind::Ask, DirectKind::Yes, DirectKind::End, DirectKind::Near][kind];
        let usable = |ip: &std::net::IpAddr| !ip.is_multicast() && !ip.is_unspecified();
        let endpoint = address.filter(usable).map(|ip| (ip, to.max(1)).into());
        let at = |ip| EndpointCandidate { kind: CandidateKind::Seen, at: (ip, to.max(1)).into() };
        let candidates = tried.into_iter().filter(usable).map(at).collect();
        let mapping = [Mapping::Unknown, Mapping::Easy, Mapping::Hard][mapping];
        let meeting = Meeting { id, mapping, candidates };
        let meeting = Some(meeting).filter(|_| meets && id != [0; 16]);
        let level = Level::ALL[level];
        let said = DirectMessage { kind, level, keep, endpoint, groups, meeting };
        let mut bytes = said.to_bytes();
        prop_assert!(bytes.len() <= DirectMessage::LEN_MAX);
        bytes.resize(SizeClass::Medium.edge_len(), 0);
        prop_assert_eq!(DirectMessage::parse(&bytes), Ok(said));
    }

    #[test]
    fn what_parses_is_written_again(
        kind in 1_u8..5, cookie: [u8; 12], shown: [u8; 4], fill: u8, zeroes in 0_usize..50,
    ) {
        let noise_1 = [fill; shake::FIRST_LEN];
        let noise_2 = [fill; shake::SECOND_LEN];
        let mut body = match kind {
            1 => [&[1, VERSION][..], &cookie, &shown, &noise_1].concat(),
            2 => [&[2, VERSION][..], &noise_2].concat(),
            3 => [&[3, VERSION][..], &cookie].concat(),
            _ => [&[8, VERSION, 1 + fill % 2][..], &shown].concat(),
        };
        body.resize(body.len() + zeroes, 0);
        let mut again = vec![0xff; body.len()];
        if kind == 1 {
            prop_assert!(HandshakeReply::parse(&body).is_err());
            HandshakeRequest::parse(&body).unwrap().write(&mut again).unwrap();
        } else {
            prop_assert!(HandshakeRequest::parse(&body).is_err());
            HandshakeReply::parse(&body).unwrap().write(&mut again).unwrap();
        }
        prop_assert_eq!(again, body);
    }

    #[test]
    fn payloads_round_trip(
        index: u32, mask_key: [u8; 32], incarnation: u64, timestamp: u64,
        level in 0_usize..3, suites in 0_u8..64, processor in 0_u8..16, lanes in 1_u8..17,
    ) {
        let weakest = Level::ALL[level];
        let one = FirstPayload {
            index, mask_key, incarnation, timestamp, weakest, suites, processor, lanes,
        };
        prop_assert!(FirstPayload::parse(&one.to_bytes()) == Ok(one));
        let (level, suite) = (weakest, suites & 0x0f);
        let two = SecondPayload { index, mask_key, level, suite, processor, lanes, suites };
        prop_assert!(SecondPayload::parse(&two.to_bytes()) == Ok(two));
    }
}
