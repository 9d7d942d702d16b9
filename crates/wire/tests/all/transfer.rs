//! Segments and transfer messages: golden vectors, round trips, and no panic on any input.

use crate::vectors;
use proptest::prelude::*;
use shoal_wire::leg::{CellShape, RELAYS_MAX};
use shoal_wire::transfer::{
    ACCEPT_RANGES_MAX, CHUNK_BITMAP_LEN, CancelReason, FileAcceptance, FileOffer, NACK_CHUNKS_MAX,
    Nack, RefuseReason, SEGMENT_HEADER_LEN, SEGMENT_LEN, Segment, SegmentLen, SenderClock,
    TransferEnd, TransferMessage, name_is_sound,
};
use shoal_wire::{ParseError, SizeClass};

fn vector(name: &str) -> Vec<u8> {
    vectors::vector("transfer", name)
}

const PORT: u16 = 0xbeef;
const NONCE: u32 = 0x0102_0304;

fn nack(bitmap: &[u8]) -> Nack<'_> {
    Nack {
        port: PORT,
        number: 42,
        floor: 1_350,
        limit: 40_000,
        echo: SenderClock::new(0xff_fffe),
        hold: SenderClock::new(5),
        arrived: SenderClock::new(0x12_3456),
        delay: SenderClock::new(0x12_3458),
        reorder: SenderClock::new(25),
        received: 1_400,
        duplicates: 2,
        marked: 3,
        first: 7,
        bitmap,
    }
}

fn offer(name: &str) -> TransferMessage<'_> {
    offer_of(name, SegmentLen::FULL)
}

fn offer_of(name: &str, segment: SegmentLen) -> TransferMessage<'_> {
    TransferMessage::Offer(FileOffer {
        port: PORT,
        nonce: NONCE,
        size: 500_000_000,
        modified_ns: -2,
        file_id: core::array::from_fn(|i| i as u8),
        executable: true,
        segment,
        name,
    })
}

#[test]
fn golden_vectors_decode_and_encode() {
    let mut bitmap = [0; CHUNK_BITMAP_LEN];
    (bitmap[0], bitmap[23]) = (0x3f, 0x80);
    let accept = FileAcceptance {
        port: PORT,
        nonce: NONCE,
        part: 0,
        parts: 2,
        have: vec![(0, 3), (1_000, 1)],
    };
    let hash = core::array::from_fn(|i| i as u8);
    let refuse = TransferMessage::Refuse { port: PORT, nonce: NONCE, reason: RefuseReason::Exists };
    let role = TransferEnd::Receiver;
    let cancel = TransferMessage::Cancel { port: PORT, role, reason: CancelReason::NoSpace };
    let cases = [
        ("offer", vector("offer"), offer("photos/2026/a b.jpg")),
        (
            "offer-short",
            vector("offer-short"),
            offer_of("photos/2026/a b.jpg", SegmentLen::new(1_308).unwrap()),
        ),
        ("accept", vector("accept"), TransferMessage::Accept(accept)),
        ("refuse", vector("refuse"), refuse),
        ("nack", vector("nack"), TransferMessage::Nack(nack(&bitmap))),
        ("cadence", vector("cadence"), TransferMessage::Cadence { port: PORT, interval_us: 4_000 }),
        ("fin", vector("fin"), TransferMessage::Fin { port: PORT, nonce: NONCE, hash }),
        ("done", vector("done"), TransferMessage::Done { port: PORT, nonce: NONCE }),
        ("cancel", vector("cancel"), cancel),
    ];
    for (name, bytes, expected) in cases {
        assert_eq!(TransferMessage::parse(&bytes), Ok(expected.clone()), "{name}");
        let mut out = [0; 1_376];
        assert_eq!(expected.encode(&mut out), Some(bytes.len()), "{name}");
        assert_eq!(out[..bytes.len()], bytes, "{name}");
        assert_eq!(expected.encode(&mut out[..bytes.len() - 1]), None, "{name}");
    }
}

#[test]
fn golden_vectors_are_refused_with_the_reason() {
    let unknown = |what, value| ParseError::Unknown { what, value };
    let invalid = |what| ParseError::Invalid { what };
    let cases = [
        ("type", vector("bad-type"), unknown("transfer type", 99)),
        (
            "length",
            vector("bad-length"),
            ParseError::TooShort { what: "transfer message", need: 8, have: 7 },
        ),
        ("padding", vector("bad-padding"), invalid("transfer padding")),
        (
            "trailing",
            vector("bad-trailing"),
            ParseError::TooLong { what: "transfer message", max: 0, have: 1 },
        ),
        ("name", vector("bad-name"), invalid("name")),
        ("mode", vector("bad-mode"), unknown("mode", 4)),
        ("segment length", vector("bad-segment"), invalid("segment length")),
        ("the usual length", vector("bad-full-segment"), invalid("segment length")),
        ("part", vector("bad-part"), invalid("part")),
        ("range", vector("bad-range"), invalid("range")),
        ("bitmap", vector("bad-bitmap"), invalid("bitmap length")),
        ("reason", vector("bad-reason"), unknown("refuse reason", 255)),
        ("role", vector("bad-role"), unknown("role", 2)),
    ];
    for (name, bytes, expected) in cases {
        assert_eq!(TransferMessage::parse(&bytes), Err(expected), "{name}");
    }
}

#[test]
fn segments_decode_and_encode() {
    let mut body = vector("segment");
    let segment = Segment { port: PORT, sent: SenderClock::new(0xff_fffe), segment: 365_999 };
    assert_eq!(segment.to_bytes()[..], body);
    body.resize(SizeClass::Full.edge_len(), 0x5a);
    let (parsed, data) = Segment::parse(&body).unwrap();
    assert_eq!((parsed, data[..].to_vec()), (segment, vec![0x5a; SEGMENT_LEN]));
    let shortest = SEGMENT_HEADER_LEN + SegmentLen::MIN.get();
    assert_eq!(Segment::parse(&body[..shortest]).unwrap().1.len(), SegmentLen::MIN.get());
    assert!(Segment::parse(&body[..shortest - 1]).is_err());
    body[0] = 2;
    assert!(Segment::parse(&body).is_err());
    assert_eq!(SEGMENT_HEADER_LEN + SEGMENT_LEN, SizeClass::Full.edge_len());
}

#[test]
fn stamps_compare_across_the_wrap() {
    assert_eq!(SenderClock::new(2).after(SenderClock::new(0xff_fffe)), 4);
    assert_eq!(SenderClock::new(0xff_fffe).after(SenderClock::new(2)), -4);
    assert_eq!(SenderClock::new(0x0100_0007), SenderClock::new(7));
}

#[test]
fn the_fullest_messages_fit_a_full_cell() {
    let mut out = [0; 1_376];
    let bitmap = [0xff; NACK_CHUNKS_MAX * CHUNK_BITMAP_LEN];
    assert!(TransferMessage::Nack(nack(&bitmap)).encode(&mut out).is_some());
    let have = vec![(1, 1); ACCEPT_RANGES_MAX];
    let accept = FileAcceptance { port: 1, nonce: 2, part: 15, parts: 16, have };
    assert!(TransferMessage::Accept(accept).encode(&mut out).is_some());
    let long = "n".repeat(400);
    assert!(offer(&long).encode(&mut out).is_some());
    assert!(offer(&"n".repeat(401)).encode(&mut out).is_none());
    // Accepts and NACKs must fit the units of all circuits, whatever circuit the segments use.
    let shortest = CellShape::MOST.unit_len() - shoal_wire::edge::OVERHEAD;
    for tags in 1..=RELAYS_MAX {
        let plain = CellShape::new(tags).unwrap().unit_len() - shoal_wire::edge::OVERHEAD;
        let segment = SegmentLen::in_plain(plain).unwrap();
        let mut out = vec![0; shortest];
        let bitmap = &bitmap[..segment.nack_chunks() * CHUNK_BITMAP_LEN];
        assert!(TransferMessage::Nack(nack(bitmap)).encode(&mut out).is_some(), "{tags}");
        let have = vec![(1, 1); ACCEPT_RANGES_MAX];
        let accept = FileAcceptance { port: 1, nonce: 2, part: 15, parts: 16, have };
        assert!(TransferMessage::Accept(accept).encode(&mut out).is_some(), "{tags}");
        assert!(offer_of(&long, segment).encode(&mut out).is_some(), "{tags}");
    }
    let lens = [1, 3, 5].map(|tags| {
        let plain = CellShape::new(tags).unwrap().unit_len() - shoal_wire::edge::OVERHEAD;
        SegmentLen::in_plain(plain).unwrap().get()
    });
    assert_eq!(lens, [1_340, 1_308, SegmentLen::MIN.get()]);
    assert!(SegmentLen::in_plain(0).is_err() && SegmentLen::in_plain(1_377).is_err());
    // A NACK about a window of up to three chunks fits a small cell.
    let len =
        TransferMessage::Nack(nack(&bitmap[..3 * CHUNK_BITMAP_LEN])).encode(&mut out).unwrap();
    assert_eq!(SizeClass::for_edge(len), Some(SizeClass::Small));
}

#[test]
fn names_that_leave_the_directory_are_refused() {
    for name in ["a", "a/b c/ü.txt", "...", ".hidden"] {
        assert!(name_is_sound(name), "{name}");
    }
    for name in ["", "/etc", "a//b", "a/", "..", "a/../b", "./a", "a\0b", "a\nb", "a\u{85}b"] {
        assert!(!name_is_sound(name), "{name:?}");
    }
}

#[test]
fn debug_hides_the_name() {
    assert!(!format!("{:?}", offer("secret-plan")).contains("secret"));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn never_panics_and_what_parses_encodes_back(
        kind in 0u8..10,
        body in prop::collection::vec(any::<u8>(), 0..200),
        padding in 0usize..20,
    ) {
        let mut bytes = vec![2];
        bytes.extend(((body.len() + 1) as u16).to_be_bytes());
        bytes.push(kind);
        bytes.extend(&body);
        let len = bytes.len();
        bytes.resize(len + padding, 0);
        if let Ok(message) = TransferMessage::parse(&bytes) {
            let mut out = [0; 1_376];
            prop_assert_eq!(message.encode(&mut out), Some(len));
            prop_assert_eq!(&out[..len], &bytes[..len]);
        }
    }

    #[test]
    fn nacks_round_trip(
        numbers in prop::array::uniform8(any::<u32>()),
        stamps in prop::array::uniform5(any::<u32>()),
        chunks in 0..=NACK_CHUNKS_MAX,
        byte in any::<u8>(),
    ) {
        let bitmap = vec![byte; chunks * CHUNK_BITMAP_LEN];
        let [number, floor, limit, received, duplicates, marked, first, port] = numbers;
        let [echo, hold, arrived, delay, reorder] = stamps.map(SenderClock::new);
        let port = port as u16;
        let message = TransferMessage::Nack(Nack {
            port, number, floor, limit, echo, hold, arrived, delay, reorder,
            received, duplicates, marked, first, bitmap: &bitmap,
        });
        let mut out = [0; 1_376];
        let len = message.encode(&mut out).unwrap();
        prop_assert_eq!(TransferMessage::parse(&out), Ok(message.clone()));
        prop_assert_eq!(TransferMessage::parse(&out[..len]), Ok(message));
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..1_500)) {
        let _ = TransferMessage::parse(&bytes);
        let _ = Segment::parse(&bytes);
    }
}
