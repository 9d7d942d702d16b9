//! Endpoints of a registrar in its chain.

use super::*;
use crate::MandateRights;
use crate::mandate::tests::{mandate, registrar};
use crate::member::tests;
use proptest::prelude::*;

const NOW: u64 = 10_000;
const HOUR: u64 = 3_600;

fn all(texts: &[&str]) -> Vec<DoorEndpoint> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A mandate whose registrar begins at 192.0.2.1:7401.
fn with_door() -> Mandate {
    let rights = MandateRights { door: all(&["192.0.2.1:7401"]), ..MandateRights::default() };
    Mandate { rights, ..mandate("a", 1) }
}

fn say(
    register: &mut Register,
    at: u64,
    entries: Vec<StepEntry>,
) -> Result<StepEffect, StepRejection> {
    let (mandate, number, previous) = (register.id(), register.len() + 1, register.head());
    let step = Step { mandate, number, previous, issued_unix_s: at, entries };
    let step = step.sign(&registrar(1)).unwrap();
    let before = (register.door().to_vec(), register.head());
    let checked = register.check(at, &step);
    assert_eq!(before, (register.door().to_vec(), register.head()), "a check leaves no trace");
    let applied = register.apply(at, &step);
    assert_eq!(checked, applied.map(|_| ()), "check() predicts the result of apply()");
    applied
}

fn door(texts: &[&str]) -> Vec<StepEntry> {
    vec![StepEntry::Door(all(texts))]
}

#[test]
fn the_newest_endpoints_count_and_changes_are_an_hour_apart() {
    let mut register = Register::new(with_door());
    assert_eq!(register.door(), all(&["192.0.2.1:7401"]));
    let moved = ["my.example.org:7401", "192.0.2.2:7401"];
    assert_eq!(say(&mut register, NOW, door(&moved)), Ok(StepEffect::Changed));
    assert_eq!(register.door(), all(&moved));
    let soon = Err(StepRejection::Bad(MandateViolation::DoorSoon));
    let again = ["192.0.2.3:7401"];
    assert_eq!(say(&mut register, NOW + HOUR - 1, door(&again)), soon);
    assert_eq!(register.door(), all(&moved));
    assert_eq!(register.next_door_unix_s(), Some(NOW + HOUR));
    assert_eq!(say(&mut register, NOW + HOUR, door(&again)), Ok(StepEffect::Changed));
    assert_eq!(register.door(), all(&again));
    // A register that reads these steps anew has these endpoints.
    assert_eq!(register.under(with_door()).door(), all(&again));
}

#[test]
fn endpoints_beyond_the_mandate_are_refused() {
    let refused = Err(StepRejection::Bad(MandateViolation::Door));
    let mut none = Register::new(mandate("a", 1));
    assert_eq!(say(&mut none, NOW, door(&["192.0.2.2:7401"])), refused);
    assert_eq!((none.door(), none.next_door_unix_s()), (&[][..], None));
    let mut register = Register::new(with_door());
    assert_eq!(say(&mut register, NOW, door(&["10.9.1.7:7401"])), refused);
    // A refused entry undoes those before it.
    let stranger = StepEntry::remove(&tests::member("", 9, &[]).key);
    let both = [door(&["192.0.2.2:7401"]), vec![stranger]].concat();
    let gone = Err(StepRejection::Bad(MandateViolation::Stranger));
    assert_eq!(say(&mut register, NOW, both), gone);
    assert_eq!(register.door(), all(&["192.0.2.1:7401"]));
    assert_eq!(say(&mut register, NOW, door(&["192.0.2.2:7401"])), Ok(StepEffect::Changed));
    assert!(say(&mut register, NOW, door(&["192.0.2.2:7401"])).is_err());
}

proptest! {
    /// Whatever a registrar states, the endpoints in force are valid, and an hour apart.
    #[test]
    fn endpoints_in_force_keep_the_rules(
        steps in prop::collection::vec((0_u8..8, 0_u64..5_000), 0..12),
    ) {
        let mut register = Register::new(with_door());
        let (mut at, mut last) = (NOW, None::<u64>);
        for (n, wait) in steps {
            at += wait;
            let text = if n < 4 { format!("192.0.2.{n}:7401") } else { format!("10.9.1.{n}:7401") };
            let before = register.door().to_vec();
            match say(&mut register, at, door(&[&text])) {
                Ok(_) => {
                    prop_assert!(n < 4 && last.is_none_or(|last| at >= last + HOUR));
                    last = Some(at);
                }
                Err(_) => prop_assert_eq!(register.door(), before),
            }
        }
    }
}
