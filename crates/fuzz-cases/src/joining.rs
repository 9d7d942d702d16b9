//! Pasted texts, and files that a registrar reads.

use shoal_joining::{Invite, Ledger, LedgerTail};

/// An invite in any text: it stays the same when written and read again.
pub fn invite(data: &[u8]) {
    let Ok(text) = core::str::from_utf8(data) else { return };
    let Ok(invite) = text.parse::<Invite>() else { return };
    let Ok(again) = invite.to_text() else { return };
    assert!(again.parse() == Ok(invite), "the invite reads as another one");
}

/// A registrar's ledger: the records that were read can be read again, and end at the same offset.
pub fn ledger(data: &[u8]) {
    let Ok(ledger) = Ledger::read(data) else { return };
    let whole = &data[..ledger.end.len()];
    assert!(Ledger::read(whole).as_ref() == Ok(&ledger), "whole records read as others");
    assert!(LedgerTail::was(data, ledger.end.len(), &ledger.end.sum()));
}
