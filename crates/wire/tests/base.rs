//! Fixed headers and handshake contents: golden vectors, round trips, and no panic on any input.

use proptest::prelude::*;
use shoal_wire::{
    Address, DropReason, FirstPayload, HandshakePart, Mark, ParseError, Reply, Request,
    RoutedHeader, SecondPayload, SizeClass, TrafficClass, shake,
};
use zerocopy::IntoBytes;

/// Bytes of a vector file: `#` starts a comment, white space is ignored.
fn unhex(text: &str) -> Vec<u8> {
    let digits: String = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or(""))
        .flat_map(|line| line.chars().filter(|c| !c.is_whitespace()))
        .collect();
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|p| u8::from_str_radix(core::str::from_utf8(p).unwrap(), 16).unwrap()).collect()
}

macro_rules! vector {
    ($name:literal) => {
        unhex(include_str!(concat!("../vectors/base/", $name, ".hex")))
    };
}

fn first() -> FirstPayload {
    FirstPayload {
        index: 0xab00_0007,
        mask_key: [0x11; 32],
        incarnation: 0x0102_0304_0506_0708,
        timestamp: 0x19a_bcde_f012,
        suites: 3,
        lanes: 4,
    }
}

fn second() -> SecondPayload {
    SecondPayload { index: 0xab00_0007, mask_key: [0x22; 32], suite: 2, lanes: 1 }
}

#[test]
fn golden_routed_headers() {
    let header = RoutedHeader::parse(&vector!("routed")).unwrap();
    assert_eq!((header.dst(), header.src()), (Address::new(2, 17), Address::new(1, 3)));
    assert_eq!((header.class(), header.mark()), (TrafficClass::Control, Mark::Congested));
    assert_eq!(header.hop_limit(), 31);

    let fresh = RoutedHeader::new(Address::new(2, 17), Address::new(1, 3), TrafficClass::Control);
    let mut bytes = fresh.as_bytes().to_vec();
    bytes[RoutedHeader::MARK_AT] = Mark::Congested as u8;
    bytes[RoutedHeader::HOP_LIMIT_AT] -= 1;
    assert_eq!(bytes, vector!("routed"));

    for bad in [vector!("bad-mark"), vector!("bad-class"), vector!("bad-routed-short")] {
        assert_eq!(RoutedHeader::parse(&bad).err(), Some(DropReason::Malformed));
    }
}

#[test]
fn golden_handshake_payloads() {
    assert_eq!(FirstPayload::parse(&vector!("first-payload")), Ok(first()));
    assert_eq!(first().to_bytes().to_vec(), vector!("first-payload"));
    assert_eq!(SecondPayload::parse(&vector!("second-payload")), Ok(second()));
    assert_eq!(second().to_bytes().to_vec(), vector!("second-payload"));

    let lanes = |value| Err(ParseError::Unknown { what: "lanes", value });
    assert_eq!(FirstPayload::parse(&vector!("bad-no-lanes")), lanes(0));
    assert_eq!(FirstPayload::parse(&vector!("bad-many-lanes")), lanes(17));
    let trailing = Err(ParseError::TooLong { what: "first payload", max: 0, have: 1 });
    assert_eq!(FirstPayload::parse(&vector!("bad-first-trailing")), trailing);
    assert!(matches!(
        SecondPayload::parse(&vector!("bad-second-short")),
        Err(ParseError::TooShort { what: "mask key", .. })
    ));
    assert!(!format!("{:?}{:?}", first(), second()).contains("17"), "keys stay out of Debug");
}

#[test]
fn golden_handshake_parts() {
    let bytes = [0x44; shake::PART_LEN];
    let part = HandshakePart { number: 0x0102_0304_0506_0708, place: 2, bytes: &bytes };
    assert_eq!(HandshakePart::parse(&vector!("part-body")), Ok(part));
    let mut written = vec![0xff; vector!("part-body").len()];
    part.write(&mut written).unwrap();
    assert_eq!(written, vector!("part-body"));
    let invalid = |what| Err(ParseError::Invalid { what });
    assert_eq!(HandshakePart::parse(&vector!("bad-part-place")), invalid("part place"));
    assert_eq!(HandshakePart::parse(&vector!("bad-part-padding")), invalid("handshake padding"));
    let cookie = vector!("cookie-body");
    assert!(matches!(HandshakePart::parse(&cookie), Err(ParseError::Unknown { value: 3, .. })));
}

#[test]
fn golden_handshake_bodies() {
    let body = vector!("cookie-body");
    assert_eq!(Reply::parse(&body), Ok(Reply::Cookie([0x33; 16])));
    let mut out = vec![0xff; body.len()];
    Reply::Cookie([0x33; 16]).write(&mut out).unwrap();
    assert_eq!(out, body);

    let unknown = |what, value| Err(ParseError::Unknown { what, value });
    assert_eq!(Reply::parse(&vector!("bad-reply-type")), unknown("handshake type", 1));
    assert_eq!(Reply::parse(&vector!("bad-reply-version")), unknown("version", 2));
    let padding = Err(ParseError::Invalid { what: "handshake padding" });
    assert_eq!(Reply::parse(&vector!("bad-reply-padding")), padding);
    assert!(matches!(
        Request::parse(&vector!("bad-request-short")),
        Err(ParseError::TooShort { what: "first noise message", .. })
    ));
    assert!(Reply::Cookie([0; 16]).write(&mut [0; 17]).is_err());
}

#[test]
fn lengths_are_those_of_the_text() {
    assert_eq!((shake::FIRST_LEN, shake::SECOND_LEN), (1_350, 1_190));
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
        let _ = Request::parse(&bytes);
        let _ = Reply::parse(&bytes);
        let _ = FirstPayload::parse(&bytes);
        let _ = SecondPayload::parse(&bytes);
    }

    #[test]
    fn what_parses_is_written_again(
        kind in 1_u8..4, cookie: [u8; 16], fill: u8, zeroes in 0_usize..50,
    ) {
        let noise_1 = [fill; shake::FIRST_LEN];
        let noise_2 = [fill; shake::SECOND_LEN];
        let mut body = match kind {
            1 => [&[1, 1][..], &cookie, &noise_1].concat(),
            2 => [&[2, 1][..], &noise_2].concat(),
            _ => [&[3, 1][..], &cookie].concat(),
        };
        body.resize(body.len() + zeroes, 0);
        let mut again = vec![0xff; body.len()];
        if kind == 1 {
            prop_assert!(Reply::parse(&body).is_err());
            Request::parse(&body).unwrap().write(&mut again).unwrap();
        } else {
            prop_assert!(Request::parse(&body).is_err());
            Reply::parse(&body).unwrap().write(&mut again).unwrap();
        }
        prop_assert_eq!(again, body);
    }

    #[test]
    fn payloads_round_trip(
        index: u32, mask_key: [u8; 32], incarnation: u64, timestamp: u64,
        suites: u8, lanes in 1_u8..17,
    ) {
        let one = FirstPayload { index, mask_key, incarnation, timestamp, suites, lanes };
        prop_assert!(FirstPayload::parse(&one.to_bytes()) == Ok(one));
        let two = SecondPayload { index, mask_key, suite: suites, lanes };
        prop_assert!(SecondPayload::parse(&two.to_bytes()) == Ok(two));
    }
}
