use super::*;
use crate::mandate::tests::{mandate, registrar};
use crate::member::tests::member;
use proptest::prelude::*;

fn step() -> Step {
    Step {
        mandate: mandate("a", 1).id(),
        number: 7,
        previous: [3; 32],
        issued_unix_s: 1_000,
        entries: vec![
            StepEntry::Member(Box::new(member("bob", 2, &["staff"]))),
            StepEntry::remove(&member("eve", 66, &[]).key),
            StepEntry::Door(vec!["my.example.org:7401".parse().unwrap()]),
        ],
    }
}

#[test]
fn a_supplement_holds_what_was_signed() {
    let signed = step().sign(&registrar(1)).unwrap();
    let read = Supplement::open(&registrar(1).public(), signed.bytes()).unwrap();
    assert_eq!(read, signed);
    assert_eq!(read.step(), &step());
    assert_eq!(Supplement::peek(signed.bytes()), Ok((step().mandate, 7)));
}

#[test]
fn any_changed_byte_is_noticed() {
    let signed = step().sign(&registrar(1)).unwrap();
    let key = registrar(1).public();
    assert_eq!(Supplement::open(&registrar(2).public(), signed.bytes()), Err(Error::Signature));
    for at in 0..signed.bytes().len() {
        let mut bytes = signed.bytes().to_vec();
        bytes[at] ^= 1;
        assert!(Supplement::open(&key, &bytes).is_err(), "byte {at}");
        assert!(Supplement::open(&key, &signed.bytes()[..at]).is_err(), "length {at}");
    }
}

#[test]
fn empty_steps_and_steps_longer_than_a_message_are_not_signed() {
    let with = |entries| Step { entries, ..step() }.sign(&registrar(1));
    assert!(with(Vec::new()).is_err());
    assert!(with(vec![StepEntry::Removed([0; 32]); ENTRIES_MAX + 1]).is_err());
    assert!(with(vec![StepEntry::Removed([0; 32]); ENTRIES_MAX]).is_ok());
    assert!(with(vec![StepEntry::Door(Vec::new())]).is_err(), "an endpoint at least");
    let (registrar, withdrawn) = (mandate("b", 2), StepEntry::Withdrawn(mandate("b", 2).id()));
    assert!(with(vec![StepEntry::Registrar(Box::new(registrar.clone())), withdrawn]).is_ok());
    let unsorted = Mandate { groups: vec!["b".into(), "a".into()], ..registrar };
    assert!(with(vec![StepEntry::Registrar(Box::new(unsorted))]).is_err());
    let long = |n| StepEntry::Member(Box::new(member(&"x".repeat(63), n, &["y"; 1])));
    assert!(with(vec![long(1), long(2), long(3), long(4)]).is_ok());
    let groups: Vec<String> = (0..32).map(|i| format!("{i:063}")).collect();
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let full = StepEntry::Member(Box::new(member("bob", 2, &groups)));
    assert_eq!(with(vec![full]), Err(Error::Range("a supplement has at most 1024 bytes")));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn decoded_steps_encode_to_the_same_bytes(at in 0usize..500, value: u8) {
        let mut bytes = step().sign(&registrar(1)).unwrap().bytes().to_vec();
        let len = bytes.len();
        bytes[at % len] = value;
        if let Ok((step, signed)) = Supplement::decode(&bytes) {
            let again = step.sign(&registrar(1)).unwrap();
            prop_assert_eq!(&again.bytes()[..signed], &bytes[..signed]);
        }
    }

    #[test]
    fn random_bytes_never_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Supplement::peek(&bytes);
        let _ = Supplement::open(&registrar(1).public(), &[MAGIC.as_slice(), &bytes].concat());
    }
}
