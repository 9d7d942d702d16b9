//! Messages about the authority's list: golden vectors, round trips, and no panic on any input.

use crate::vectors;
use proptest::prelude::*;
use shoal_wire::{
    CONTROL_BODY_MAX, ControlMessage, ControlMessages, ControlWriter, LIST_LEN_MAX, LIST_PART_LEN,
    ListInventory, ListMessage, ParseError, SizeClass,
};

const HAVE: ListInventory =
    ListInventory { ask: true, version: 12, digest: [0xd1; 32], len: 0x0123_4567 };

fn vector(name: &str) -> Vec<u8> {
    vectors::vector("lists", name)
}

fn encode(message: &ListMessage) -> Vec<u8> {
    let mut body = Vec::new();
    message.encode(&mut body);
    body
}

fn read(bytes: &[u8]) -> Result<ControlMessage, ParseError> {
    let item = ControlMessages::new(bytes).next().unwrap();
    item.and_then(|(kind, body)| ControlMessage::parse(kind, body))
}

#[test]
fn golden_vectors_decode_and_encode() {
    let none = ListInventory::default();
    for (name, bytes, expected) in [
        ("have", vector("have"), ListMessage::Have(HAVE)),
        ("have-none", vector("have-none"), ListMessage::Have(none)),
        (
            "want",
            vector("want"),
            ListMessage::Want { version: 12, first: 0x0102, bits: 0x8000_0000_0000_0005 },
        ),
        (
            "part",
            vector("part"),
            ListMessage::Part { version: 12, number: 0x0103, bytes: b"SHL1".to_vec() },
        ),
    ] {
        assert_eq!(read(&bytes), Ok(ControlMessage::List(expected.clone())), "{name}");
        let mut packed = vec![0; bytes.len()];
        let body = encode(&expected);
        assert!(ControlWriter::new(&mut packed).push(expected.kind(), &body), "{name}");
        assert_eq!(packed, bytes, "{name}");
    }
}

#[test]
fn golden_vectors_are_refused_with_the_reason() {
    let invalid = |what| ParseError::Invalid { what };
    let long = |what, max, have| ParseError::TooLong { what, max, have };
    let too_long = long("list length", LIST_LEN_MAX, LIST_LEN_MAX + 1);
    let part = long("part", LIST_PART_LEN, LIST_PART_LEN + 1);
    for (name, bytes, expected) in [
        ("ask", vector("bad-ask"), invalid("ask")),
        ("length of none", vector("bad-none"), invalid("list length")),
        ("empty", vector("bad-empty"), invalid("list length")),
        ("length", vector("bad-length"), too_long),
        ("trailing", vector("bad-trailing"), long("list message", 0, 1)),
        ("nothing wanted", vector("bad-want"), invalid("wanted parts")),
        ("no bytes", vector("bad-part"), ParseError::TooShort { what: "part", need: 1, have: 0 }),
    ] {
        assert_eq!(read(&bytes), Err(expected), "{name}");
    }
    let body = vec![0; CONTROL_BODY_MAX + 1];
    assert_eq!(ListMessage::parse(34, &body), Err(part));
}

#[test]
fn a_part_fills_a_full_frame_and_other_messages_fit_a_small_one() {
    let part = ListMessage::Part { version: 1, number: 0, bytes: vec![7; LIST_PART_LEN] };
    let want = ListMessage::Want { version: 1, first: 0, bits: 1 };
    let classes = [
        (part, SizeClass::Full),
        (want, SizeClass::Small),
        (ListMessage::Have(HAVE), SizeClass::Small),
    ];
    for (message, class) in classes {
        let mut out = [0xff; 1_415];
        let mut writer = ControlWriter::new(&mut out);
        assert!(writer.push(message.kind(), &encode(&message)));
        assert_eq!(writer.finish(), Some(class));
    }
}

fn any_message() -> impl Strategy<Value = ListMessage> {
    let have = (any::<bool>(), 1u64.., any::<[u8; 32]>(), 1..=LIST_LEN_MAX as u32);
    let have = have.prop_map(|(ask, version, digest, len)| {
        ListMessage::Have(ListInventory { ask, version, digest, len })
    });
    let want = (any::<u64>(), any::<u32>(), 1u64..);
    let want = want.prop_map(|(version, first, bits)| ListMessage::Want { version, first, bits });
    let bytes = prop::collection::vec(any::<u8>(), 1..=LIST_PART_LEN);
    let part = (any::<u64>(), any::<u32>(), bytes);
    let part =
        part.prop_map(|(version, number, bytes)| ListMessage::Part { version, number, bytes });
    prop_oneof![have, want, part]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn messages_come_back(message in any_message()) {
        let read = ControlMessage::parse(message.kind(), &encode(&message));
        prop_assert_eq!(read, Ok(ControlMessage::List(message)));
    }

    #[test]
    fn decoded_messages_encode_to_the_same_bytes(
        kind in 31u8..36,
        body in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        if let Ok(message) = ListMessage::parse(kind, &body) {
            prop_assert_eq!(message.kind(), kind);
            prop_assert_eq!(encode(&message), body);
        }
    }
}
