//! Control framing and routing messages: golden vectors, round trips, and no panic on any input.

use crate::vectors;
use proptest::prelude::*;
use shoal_wire::{
    CONTROL_BODY_MAX, CONTROL_CLOCK, CONTROL_COVER, CONTROL_GOODBYE, CONTROL_PATH_CHALLENGE,
    CONTROL_PATH_RESPONSE, CONTROL_REPORT, CONTROL_SEEN, CONTROL_SHIFT_PLACE, CONTROL_SHIFT_PROBE,
    CONTROL_SHIFT_STEP, CONTROL_TWIN, ControlMessage, ControlMessages, ControlWriter, Instances,
    LaneReport, METRIC_INFINITE, OriginProof, ParseError, RouteEntry, RouteUpdate, RoutingMessage,
    SeqnoRequest, ShiftAnnouncement, ShiftProbe, ShiftProbeStage, ShiftStage, ShiftStep, SizeClass,
    place_bytes,
};

const INSTANCES: Instances = Instances { from: 0x0102_0304, to: 0xa0b0_c0d0 };

fn proof() -> OriginProof {
    OriginProof { seqno: 1_700_000_000_000, expiry_unix_s: 1_700_003_600, signature: [0x5a; 64] }
}

fn entry(router: u32, metric: u32, proved: bool) -> RouteEntry {
    RouteEntry { router, metric, seqno: proof().seqno, proof: proved.then(proof) }
}

fn encode(control: &ControlMessage) -> (u8, Vec<u8>) {
    match control {
        ControlMessage::Report(report) => (CONTROL_REPORT, report.to_bytes().to_vec()),
        ControlMessage::PathChallenge(token) => (CONTROL_PATH_CHALLENGE, token.to_vec()),
        ControlMessage::PathResponse(token) => (CONTROL_PATH_RESPONSE, token.to_vec()),
        ControlMessage::Goodbye => (CONTROL_GOODBYE, Vec::new()),
        ControlMessage::Routing(message) => {
            let mut body = Vec::new();
            message.encode(&mut body);
            assert_eq!(body.len(), message.encoded_len());
            (message.kind(), body)
        }
        ControlMessage::List(message) => panic!("{message:?}: see lists.rs"),
        ControlMessage::Chain(message) => panic!("{message:?}: see chains.rs"),
        ControlMessage::Secret(message) => panic!("{message:?}: see secrets.rs"),
        ControlMessage::Clock(unix_ms) => (CONTROL_CLOCK, unix_ms.to_be_bytes().to_vec()),
        ControlMessage::Twin => (CONTROL_TWIN, Vec::new()),
        ControlMessage::Cover(ends) => (CONTROL_COVER, ends.to_be_bytes().to_vec()),
        ControlMessage::Seen(at) => (CONTROL_SEEN, place_bytes(Some(*at)).to_vec()),
        ControlMessage::ShiftPlace(place) => {
            (CONTROL_SHIFT_PLACE, ShiftAnnouncement::to_bytes(*place).to_vec())
        }
        ControlMessage::ShiftStep(step) => (CONTROL_SHIFT_STEP, step.to_bytes().to_vec()),
        ControlMessage::ShiftProbe(probe) => (CONTROL_SHIFT_PROBE, probe.to_bytes().to_vec()),
    }
}

fn vector(name: &str) -> Vec<u8> {
    vectors::vector("routing", name)
}

fn accepted() -> Vec<(&'static str, Vec<u8>, ControlMessage)> {
    let report = LaneReport {
        lane: 3,
        received: 0x0102_0304_0506_0708,
        highest: 0x1112_1314,
        interval_us: 100_000,
        sent_us: 5_000_000,
        echoed_us: 4_900_000,
        hold_us: 99_000,
        full: 0x0102_0304_0506_0007,
    };
    let request = SeqnoRequest { router: 3, hops: 31, proof: proof() };
    let update = RouteUpdate {
        instances: INSTANCES,
        number: 7,
        entries: vec![entry(2, 200, true), entry(3, METRIC_INFINITE, false)],
    };
    let ack = RoutingMessage::Ack { instances: INSTANCES, number: 7 };
    let nonce = 0x1122_3344_5566_7788;
    let token = [0xa1, 0xb2, 0xc3, 0xd4, 0xe5, 0xf6, 0x07, 0x18];
    let routing = ControlMessage::Routing;
    let prefix = [0x20, 0x01, 0x0d, 0xb8, 0, 1, 0, 2];
    let place = ShiftAnnouncement { prefix, port: 7_400, interval_ms: 10_000 };
    let step = ShiftStep {
        stage: ShiftStage::Answer,
        tag: [0xa1, 0xb2, 0xc3, 0xd4],
        epoch: 7,
        token: core::array::from_fn(|at| 0x11 + at as u8),
        echo: core::array::from_fn(|at| 0x21 + at as u8),
    };
    let probe = ShiftProbe { stage: ShiftProbeStage::Come, identifier: 0x0102_0304_0506_0708 };
    vec![
        ("shift-place", vector("shift-place"), ControlMessage::ShiftPlace(Some(place))),
        ("shift-none", vector("shift-none"), ControlMessage::ShiftPlace(None)),
        ("shift-step", vector("shift-step"), ControlMessage::ShiftStep(step)),
        ("shift-probe", vector("shift-probe"), ControlMessage::ShiftProbe(probe)),
        ("report", vector("report"), ControlMessage::Report(report)),
        ("challenge", vector("path-challenge"), ControlMessage::PathChallenge(token)),
        ("response", vector("path-response"), ControlMessage::PathResponse(token)),
        ("goodbye", vector("goodbye"), ControlMessage::Goodbye),
        ("clock", vector("clock"), ControlMessage::Clock(1_795_922_445_123)),
        ("twin", vector("twin"), ControlMessage::Twin),
        ("cover", vector("cover"), ControlMessage::Cover(1_800_000_000)),
        ("cover-kept", vector("cover-kept"), ControlMessage::Cover(shoal_wire::COVER_KEPT)),
        ("seen", vector("seen"), ControlMessage::Seen("203.0.113.7:7400".parse().unwrap())),
        ("seen-6", vector("seen-6"), ControlMessage::Seen("[2001:db8::7]:7400".parse().unwrap())),
        ("hello", vector("hello"), routing(RoutingMessage::Hello(INSTANCES))),
        ("query", vector("query"), routing(RoutingMessage::Query { nonce })),
        ("query-reply", vector("query-reply"), routing(RoutingMessage::QueryReply { nonce })),
        ("update", vector("update"), routing(RoutingMessage::Update(update))),
        ("ack", vector("ack"), routing(ack)),
        ("request", vector("request"), routing(RoutingMessage::SeqnoRequest(request))),
        ("dump-request", vector("dump-request"), routing(RoutingMessage::DumpRequest(INSTANCES))),
    ]
}

#[test]
fn golden_vectors_decode_and_encode() {
    for (name, bytes, expected) in accepted() {
        let (kind, body) = ControlMessages::new(&bytes).next().unwrap().unwrap();
        assert_eq!(ControlMessage::parse(kind, body), Ok(expected.clone()), "{name}");
        let (kind, body) = encode(&expected);
        let mut packed = vec![0; bytes.len()];
        assert!(ControlWriter::new(&mut packed).push(kind, &body), "{name}");
        assert_eq!(packed, bytes, "{name}");
    }
}

#[test]
fn golden_vectors_are_refused_with_the_reason() {
    let short = |what, need, have| ParseError::TooShort { what, need, have };
    let cases = [
        ("framing", vector("bad-framing"), short("control body", 9, 8)),
        ("type", vector("bad-type"), ParseError::Unknown { what: "control type", value: 99 }),
        ("instance", vector("bad-instance"), ParseError::Invalid { what: "instance" }),
        ("lane", vector("bad-lane"), ParseError::Invalid { what: "report lane" }),
        ("flag", vector("bad-flag"), ParseError::Unknown { what: "route entry flag", value: 2 }),
        ("empty", vector("bad-empty"), ParseError::Invalid { what: "update without entries" }),
        (
            "trailing",
            vector("bad-trailing"),
            ParseError::TooLong { what: "routing message", max: 0, have: 1 },
        ),
        (
            "challenge",
            vector("bad-challenge"),
            ParseError::TooLong { what: "path token", max: 0, have: 1 },
        ),
        (
            "goodbye",
            vector("bad-goodbye"),
            ParseError::TooLong { what: "goodbye", max: 0, have: 1 },
        ),
        ("seen nowhere", vector("bad-seen-none"), ParseError::Invalid { what: "endpoint" }),
        ("seen at many", vector("bad-seen-multicast"), ParseError::Invalid { what: "endpoint" }),
        (
            "seen and more",
            vector("bad-seen"),
            ParseError::TooLong { what: "seen", max: 0, have: 1 },
        ),
        (
            "shift interval",
            vector("bad-shift-interval"),
            ParseError::Invalid { what: "shift place" },
        ),
        ("shift prefix", vector("bad-shift-prefix"), ParseError::Invalid { what: "shift place" }),
        (
            "shift stage",
            vector("bad-shift-stage"),
            ParseError::Unknown { what: "shift stage", value: 4 },
        ),
        ("shift call", vector("bad-shift-call"), ParseError::Invalid { what: "shift step" }),
        ("shift done", vector("bad-shift-done"), ParseError::Invalid { what: "shift step" }),
        (
            "probe stage",
            vector("bad-probe-stage"),
            ParseError::Unknown { what: "probe stage", value: 6 },
        ),
        ("cut proof", vector("bad-cut-proof"), short("proof signature", 64, 3)),
    ];
    for (name, bytes, expected) in cases {
        let item = ControlMessages::new(&bytes).next().unwrap();
        let result = item.and_then(|(kind, body)| ControlMessage::parse(kind, body));
        assert_eq!(result, Err(expected), "{name}");
    }
}

#[test]
fn the_fullest_update_fits_a_full_frame() {
    let fit = RouteUpdate::ENTRIES_MAX_LEN / RouteEntry::SIGNED_LEN;
    let entries = (0..fit as u32).map(|n| entry(n, 1, true)).collect();
    let update = RouteUpdate { instances: INSTANCES, number: 1, entries };
    let (kind, body) = encode(&ControlMessage::Routing(RoutingMessage::Update(update)));
    assert!(body.len() <= CONTROL_BODY_MAX);
    let mut out = [0xff; 1_415];
    let mut writer = ControlWriter::new(&mut out);
    assert!(writer.push(kind, &body));
    assert_eq!(writer.finish(), Some(SizeClass::Full));
}

#[test]
fn finish_zeroes_the_padding_of_the_smallest_class() {
    let mut out = [0xff; 1_415];
    let mut writer = ControlWriter::new(&mut out);
    assert!(writer.push(17, &[1; 8]));
    assert_eq!(writer.used(), 11);
    assert_eq!(writer.finish(), Some(SizeClass::Small));
    assert!(out[11..SizeClass::Small.link_body_len()].iter().all(|b| *b == 0));
    assert_eq!(ControlMessages::new(&out[..SizeClass::Small.link_body_len()]).count(), 1);
}

fn any_proof() -> impl Strategy<Value = OriginProof> {
    (any::<u64>(), any::<u64>(), any::<u8>()).prop_map(|(seqno, expiry_unix_s, fill)| OriginProof {
        seqno,
        expiry_unix_s,
        signature: [fill; 64],
    })
}

fn any_entry() -> impl Strategy<Value = RouteEntry> {
    (any::<u32>(), any::<u32>(), any_proof(), any::<bool>()).prop_map(
        |(router, metric, p, proved)| RouteEntry {
            router,
            metric,
            seqno: p.seqno,
            proof: proved.then_some(p),
        },
    )
}

fn any_message() -> impl Strategy<Value = RoutingMessage> {
    let instances =
        (1u32.., any::<u32>()).prop_map(|(from, to): (u32, u32)| Instances { from, to }).boxed();
    let update = (instances.clone(), any::<u32>(), prop::collection::vec(any_entry(), 1..16))
        .prop_map(|(instances, number, entries)| RouteUpdate { instances, number, entries });
    let request = (any::<u32>(), any::<u8>(), any_proof())
        .prop_map(|(router, hops, proof)| SeqnoRequest { router, hops, proof });
    let ack = (instances.clone(), any::<u32>())
        .prop_map(|(instances, number)| RoutingMessage::Ack { instances, number });
    prop_oneof![
        instances.clone().prop_map(RoutingMessage::Hello),
        any::<u64>().prop_map(|nonce| RoutingMessage::Query { nonce }),
        any::<u64>().prop_map(|nonce| RoutingMessage::QueryReply { nonce }),
        update.prop_map(RoutingMessage::Update),
        request.prop_map(RoutingMessage::SeqnoRequest),
        ack,
        instances.prop_map(RoutingMessage::DumpRequest),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn messages_come_back_from_a_frame(messages in prop::collection::vec(any_message(), 0..4)) {
        let mut out = [0; 1_415];
        let mut writer = ControlWriter::new(&mut out);
        let mut packed = Vec::new();
        for message in messages {
            let mut body = Vec::new();
            message.encode(&mut body);
            if writer.push(message.kind(), &body) {
                packed.push(message);
            }
        }
        let class = writer.finish().unwrap();
        let read: Vec<_> = ControlMessages::new(&out[..class.link_body_len()])
            .map(|item| item.and_then(|(kind, body)| RoutingMessage::parse(kind, body)).unwrap())
            .collect();
        prop_assert_eq!(read, packed);
    }

    #[test]
    fn decoded_messages_encode_to_the_same_bytes(
        kind in 14u8..24,
        body in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        if let Ok(message) = RoutingMessage::parse(kind, &body) {
            let mut again = Vec::new();
            message.encode(&mut again);
            prop_assert_eq!(message.kind(), kind);
            prop_assert_eq!(again, body);
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..1_500)) {
        for (kind, body) in ControlMessages::new(&bytes).flatten() {
            let _ = ControlMessage::parse(kind, body);
        }
    }
}
