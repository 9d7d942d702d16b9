//! Messages about supplements: golden vectors, round trips, and no panic on any input.

use crate::vectors;
use proptest::prelude::*;
use shoal_wire::{
    CHAINS_MAX, CONTROL_BODY_MAX, ChainInventory, ChainMark, ChainMessage, ControlMessage,
    ControlMessages, ControlWriter, ParseError, STEP_LEN_MAX, SizeClass,
};

fn vector(name: &str) -> Vec<u8> {
    vectors::vector("chains", name)
}

fn encode(message: &ChainMessage) -> Vec<u8> {
    let mut body = Vec::new();
    message.encode(&mut body);
    body
}

fn read(bytes: &[u8]) -> Result<ControlMessage, ParseError> {
    let item = ControlMessages::new(bytes).next().unwrap();
    item.and_then(|(kind, body)| ControlMessage::parse(kind, body))
}

fn mark(number: u8, steps: u32, fork: u32) -> ChainMark {
    ChainMark { mandate: [0xa0 + number; 32], steps, head: [0xb0 + number; 32], fork }
}

fn have() -> ChainMessage {
    let chains = vec![mark(1, 0x102, 0), mark(2, 7, 8)];
    ChainMessage::Have(ChainInventory { ask: true, chains })
}

#[test]
fn golden_vectors_decode_and_encode() {
    let want = ChainMessage::Want { mandate: [0xa1; 32], first: 0x103, count: 64 };
    let steps = ChainMessage::Steps(vec![b"SHS1".to_vec(), vec![1, 2, 3]]);
    for (name, expected) in [("have", have()), ("want", want), ("steps", steps)] {
        let bytes = vector(name);
        assert_eq!(read(&bytes), Ok(ControlMessage::Chain(expected.clone())), "{name}");
        let mut packed = vec![0; bytes.len()];
        assert!(ControlWriter::new(&mut packed).push(expected.kind(), &encode(&expected)));
        assert_eq!(packed, bytes, "{name}");
    }
}

#[test]
fn golden_vectors_are_refused_with_the_reason() {
    let invalid = |what| ParseError::Invalid { what };
    let too_many = ParseError::TooLong { what: "chains", max: 16, have: 17 };
    for (name, expected) in [
        ("bad-ask", invalid("ask")),
        ("bad-count", too_many),
        ("bad-order", invalid("order of chains")),
        ("bad-steps", invalid("steps of a chain")),
        ("bad-fork", invalid("steps of a chain")),
        ("bad-trailing", ParseError::TooLong { what: "chain message", max: 0, have: 1 }),
        ("bad-want", invalid("wanted steps")),
        ("bad-first", invalid("wanted steps")),
        ("bad-none", ParseError::TooShort { what: "length of a step", need: 2, have: 0 }),
        ("bad-empty", invalid("length of a step")),
    ] {
        assert_eq!(read(&vector(name)), Err(expected), "{name}");
    }
    let long = encode(&ChainMessage::Steps(vec![vec![7; STEP_LEN_MAX + 1]]));
    assert_eq!(ChainMessage::parse(37, &long), Err(invalid("length of a step")));
    let body = vec![0; CONTROL_BODY_MAX + 1];
    assert!(ChainMessage::parse(37, &body).is_err());
}

#[test]
fn every_message_fits_a_frame() {
    let all = (0..CHAINS_MAX as u8).map(|number| mark(number, 9, 0)).collect();
    let full = ChainMessage::Have(ChainInventory { ask: false, chains: all });
    let want = ChainMessage::Want { mandate: [1; 32], first: 1, count: 1 };
    let step = ChainMessage::Steps(vec![vec![7; STEP_LEN_MAX]]);
    let member = ChainMessage::Steps(vec![vec![7; 300]]);
    for (message, class) in [
        (have(), SizeClass::Small),
        (full, SizeClass::Full),
        (want, SizeClass::Small),
        (step, SizeClass::Full),
        (member, SizeClass::Medium),
    ] {
        let mut out = [0xff; 1_415];
        let mut writer = ControlWriter::new(&mut out);
        assert!(writer.push(message.kind(), &encode(&message)));
        assert_eq!(writer.finish(), Some(class));
    }
}

fn any_message() -> impl Strategy<Value = ChainMessage> {
    let one = (any::<[u8; 32]>(), 0..=65_536u32, any::<[u8; 32]>());
    let one = one.prop_map(|(mandate, steps, head)| ChainMark { mandate, steps, head, fork: 0 });
    let have = (any::<bool>(), prop::collection::vec(one, 0..=CHAINS_MAX));
    let have = have.prop_map(|(ask, mut chains)| {
        chains.sort_by_key(|mark| mark.mandate);
        chains.dedup_by_key(|mark| mark.mandate);
        ChainMessage::Have(ChainInventory { ask, chains })
    });
    let want = (any::<[u8; 32]>(), 1..=65_536u32, 1..=64u8);
    let want =
        want.prop_map(|(mandate, first, count)| ChainMessage::Want { mandate, first, count });
    let step = prop::collection::vec(any::<u8>(), 1..=300);
    let steps = prop::collection::vec(step, 1..=4).prop_map(ChainMessage::Steps);
    prop_oneof![have, want, steps]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn messages_come_back(message in any_message()) {
        let read = ControlMessage::parse(message.kind(), &encode(&message));
        prop_assert_eq!(read, Ok(ControlMessage::Chain(message)));
    }

    #[test]
    fn decoded_messages_encode_to_the_same_bytes(
        kind in 34u8..39,
        body in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        if let Ok(message) = ChainMessage::parse(kind, &body) {
            prop_assert_eq!(message.kind(), kind);
            prop_assert_eq!(encode(&message), body);
        }
    }
}
