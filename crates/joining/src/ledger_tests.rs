use super::*;
use crate::record::{SUPPLEMENT_MAX, StepCause};
use crate::tokens::{TokenHash, TokenKind, TokenTerms};
use proptest::prelude::*;
use shoal_crypto::{Identity, Rng};

fn terms(name: Option<&str>) -> TokenTerms {
    let groups = ["servers", "staff"].map(str::to_owned).to_vec();
    let name = name.map(str::to_owned);
    let kind = TokenKind::Host;
    TokenTerms { uses: 1, expires_unix_s: 1_790_086_400, name, groups, approve: true, kind }
}

fn records() -> Vec<LedgerRecord> {
    let (token, key) = (TokenHash([7; 32]), Identity::from_seed([5; 32]).public());
    let router = |hash, family: Option<&str>, relay| {
        let kind = TokenKind::Router { family: family.map(str::to_owned), relay };
        let terms = TokenTerms { kind, ..terms(None) };
        LedgerRecord::Issued { token: TokenHash([hash; 32]), unix_s: 1, terms }
    };
    let step = |cause, len| LedgerRecord::Step { cause, key, supplement: vec![9; len] };
    vec![
        LedgerRecord::Issued { token, unix_s: 1_790_000_000, terms: terms(Some("bob")) },
        LedgerRecord::Issued { token: TokenHash([8; 32]), unix_s: 1, terms: terms(None) },
        router(9, Some("acme"), true),
        router(10, None, true),
        router(11, None, false),
        step(StepCause::Joined(token), SUPPLEMENT_MAX),
        step(StepCause::Renewed, 0),
        LedgerRecord::Denied { token, key },
        LedgerRecord::Withdrawn(token),
        step(StepCause::Left, 200),
        step(StepCause::Rekeyed, 201),
        step(StepCause::Removed, 202),
        step(StepCause::Moved, 203),
        step(StepCause::Covered, 204),
        step(StepCause::SecondRouter, 205),
        step(StepCause::Door, 206),
    ]
}

fn file(records: &[LedgerRecord]) -> Vec<u8> {
    let mut end = LedgerTail::EMPTY;
    let mut file = Vec::new();
    for record in records {
        let (bytes, next) = end.append(record);
        file.extend_from_slice(&bytes);
        assert_eq!(next.len(), file.len());
        end = next;
    }
    file
}

/// Offsets at which the records begin, and the end of the last one.
fn starts(records: &[LedgerRecord]) -> Vec<usize> {
    (0..=records.len()).map(|n| if n == 0 { 4 } else { file(&records[..n]).len() }).collect()
}

#[test]
fn an_encoded_ledger_decodes_to_itself() {
    let (records, file) = (records(), file(&records()));
    let ledger = Ledger::read(&file).unwrap();
    assert_eq!((&ledger.records, ledger.end.len()), (&records, file.len()));
    assert_eq!(Ledger::read(&[]).unwrap().end, LedgerTail::EMPTY);
    assert_eq!(Ledger::read(b"SHL2....").unwrap_err(), LedgerError::Kind);
}

#[test]
fn a_record_that_was_cut_short_is_left_out_wherever_it_was_cut() {
    let (records, file) = (records(), file(&records()));
    let starts = starts(&records);
    for len in 0..file.len() {
        let ledger = Ledger::read(&file[..len]).unwrap();
        let whole = starts[1..].iter().take_while(|&&end| end <= len).count();
        assert_eq!(ledger.records, records[..whole], "{len}");
        let end = if whole == 0 { 0 } else { starts[whole] };
        assert_eq!(ledger.end.len(), end);
        // A record appended at this end makes a whole ledger again.
        let (bytes, _) = ledger.end.append(&records[0]);
        let again = Ledger::read(&[&file[..end], &bytes].concat()).unwrap();
        assert_eq!(again.records.len(), whole + 1);
    }
}

/// A disk may have reserved space for the record without writing its bytes.
#[test]
fn an_end_of_zeroes_is_a_record_that_was_cut_short() {
    let (records, file) = (records(), file(&records()));
    let last = starts(&records)[records.len() - 1];
    for kept in [last, last + 1, last + 30] {
        let mut torn = file.clone();
        torn[kept..].fill(0);
        assert_eq!(Ledger::read(&torn).unwrap().end.len(), last);
    }
}

#[test]
fn damage_before_the_last_record_is_refused_and_nothing_is_forgotten() {
    let (records, file) = (records(), file(&records()));
    let starts = starts(&records);
    let last = starts[records.len() - 1];
    for at in 0..file.len() {
        let mut wrong = file.clone();
        wrong[at] ^= 0x10;
        match Ledger::read(&wrong) {
            Err(LedgerError::Kind) => assert!(at < 4),
            Err(LedgerError::Damaged(found)) => {
                assert!(at < last && found == *starts.iter().rfind(|&&s| s <= at).unwrap());
            }
            Ok(ledger) => assert!(at >= last && ledger.end.len() == last, "{at}"),
            Err(other) => panic!("{at}: {other}"),
        }
    }
    // One record removed from the middle, and two swapped.
    let cut = [&file[..starts[1]], &file[starts[2]..]].concat();
    assert_eq!(Ledger::read(&cut), Err(LedgerError::Damaged(starts[1])));
    let parts = [0..starts[3], starts[4]..starts[5], starts[3]..starts[4], starts[5]..file.len()];
    let swapped = parts.map(|part| file[part].to_vec()).concat();
    assert_eq!(Ledger::read(&swapped), Err(LedgerError::Damaged(starts[3])));
}

/// Otherwise the registrar would forget records of a newer version.
#[test]
fn a_whole_record_of_an_unknown_kind_is_refused() {
    let mut file = file(&records()[..1]);
    let before = Ledger::read(&file).unwrap().end.sum;
    let framed = [0, 3, 9, 1, 2];
    file.extend_from_slice(&framed);
    file.extend_from_slice(&sum(&before, &framed));
    let refused = Ledger::read(&file).unwrap_err();
    assert!(
        matches!(refused, LedgerError::Record { .. }) && refused.to_string().contains("update")
    );
}

#[test]
fn the_longest_record_has_room() {
    let long = |n: usize| format!("{n:0>63}");
    let groups = (0..32).map(long).collect();
    let name = Some(long(99));
    let terms = TokenTerms { groups, name, ..terms(None) }.checked().unwrap();
    let record = LedgerRecord::Issued { token: TokenHash([1; 32]), unix_s: 0, terms };
    let (bytes, _) = LedgerTail::EMPTY.append(&record);
    assert!(bytes.len() <= RECORD_MAX);
    assert_eq!(Ledger::read(&bytes).unwrap().records, [record]);
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(seed: [u8; 32], len in 0..600_usize, keep in 0..600_usize) {
        let mut bytes = file(&records()[..4]);
        bytes.truncate(keep);
        let mut noise = vec![0; len];
        Rng::new(seed).fill(&mut noise);
        bytes.extend_from_slice(&noise);
        if let Ok(ledger) = Ledger::read(&bytes) {
            prop_assert_eq!(&file(&ledger.records)[..], &bytes[..ledger.end.len()]);
        }
        let _ = LedgerRecord::read(&noise);
    }
}
