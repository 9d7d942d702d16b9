//! Text that people paste, and files that a registrar reads from its disk.

use shoal_joining::{End, Invite, Ledger};

/// An invite in any text: what is found says the same when it is written and read again.
pub fn invite(data: &[u8]) {
    let Ok(text) = core::str::from_utf8(data) else { return };
    let Ok(invite) = text.parse::<Invite>() else { return };
    let Ok(again) = invite.to_text() else { return };
    assert!(again.parse() == Ok(invite), "what was found reads as another invite");
}

/// A registrar's ledger: what was read of it reads again, and ends where it said.
pub fn ledger(data: &[u8]) {
    let Ok(ledger) = Ledger::read(data) else { return };
    let whole = &data[..ledger.end.len()];
    assert!(Ledger::read(whole).as_ref() == Ok(&ledger), "whole records read as others");
    assert!(End::was(data, ledger.end.len(), &ledger.end.sum()));
}
