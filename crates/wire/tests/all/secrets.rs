//! Messages about the network's secret: golden vectors, round trips, and no panic on any input.

use crate::vectors;
use proptest::prelude::*;
use shoal_wire::{
    ControlMessage, ControlMessages, ControlWriter, ParseError, SecretInventory, SecretMessage,
    SizeClass,
};

fn vector(name: &str) -> Vec<u8> {
    vectors::vector("secrets", name)
}

fn encode(message: &SecretMessage) -> Vec<u8> {
    let mut body = Vec::new();
    message.encode(&mut body);
    body
}

fn read(bytes: &[u8]) -> Result<ControlMessage, ParseError> {
    let item = ControlMessages::new(bytes).next().unwrap();
    item.and_then(|(kind, body)| ControlMessage::parse(kind, body))
}

fn secret() -> [u8; 32] {
    let mut secret = [0; 32];
    for n in 0..16 {
        (secret[n], secret[16 + n]) = (n as u8 * 0x11, n as u8);
    }
    secret
}

#[test]
fn golden_vectors_decode_and_encode() {
    let have = |ask, has| SecretMessage::Have(SecretInventory { ask, has, name: [0xa1; 32] });
    let give = SecretMessage::Give(secret());
    for (name, expected) in
        [("have", have(true, false)), ("kept", have(false, true)), ("give", give)]
    {
        let bytes = vector(name);
        assert_eq!(read(&bytes), Ok(ControlMessage::Secret(expected.clone())), "{name}");
        let mut packed = vec![0; bytes.len()];
        assert!(ControlWriter::new(&mut packed).push(expected.kind(), &encode(&expected)));
        assert_eq!(packed, bytes, "{name}");
        let mut out = [0xff; 1_415];
        let mut writer = ControlWriter::new(&mut out);
        assert!(writer.push(expected.kind(), &encode(&expected)));
        assert_eq!(writer.finish(), Some(SizeClass::Small));
    }
}

#[test]
fn golden_vectors_are_refused_with_the_reason() {
    let short = ParseError::TooShort { what: "secret", need: 32, have: 31 };
    for (name, expected) in [
        ("bad-ask", ParseError::Invalid { what: "ask" }),
        ("bad-has", ParseError::Invalid { what: "has" }),
        ("bad-short", short),
        ("bad-trailing", ParseError::TooLong { what: "secret message", max: 0, have: 1 }),
    ] {
        assert_eq!(read(&vector(name)), Err(expected), "{name}");
    }
}

#[test]
fn no_log_shows_a_secret() {
    let said = format!("{:?}", SecretMessage::Give([0x5a; 32]));
    assert_eq!(said, "Give(hidden)");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn messages_come_back(ask in any::<bool>(), has in any::<bool>(), name in any::<[u8; 32]>()) {
        for message in [
            SecretMessage::Have(SecretInventory { ask, has, name }),
            SecretMessage::Give(name),
        ] {
            let read = ControlMessage::parse(message.kind(), &encode(&message));
            prop_assert_eq!(read, Ok(ControlMessage::Secret(message)));
        }
    }

    #[test]
    fn decoded_messages_encode_to_the_same_bytes(
        kind in 37u8..41,
        body in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        if let Ok(message) = SecretMessage::parse(kind, &body) {
            prop_assert_eq!(message.kind(), kind);
            prop_assert_eq!(encode(&message), body);
        }
    }
}
