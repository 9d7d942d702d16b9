//! Stores the end of the ledger of the registrar on this machine. The registrar compares its ledger
//! with this end. It so notices an old backup of the ledger, even if its own note of the end was
//! restored with it.
//!
//! ```text
//! shoal-ledger-1:<id of the mandate, hex>:<length in bytes>:<last sum, hex>
//! ```

use std::path::{Path, PathBuf};

use crate::control::api::LedgerEnd;
use crate::files::reading;

const LABEL: &str = "shoal-ledger-1";
/// Longest content of the file, in bytes.
const MAX_LEN: u64 = 256;

/// The file, and the end in it.
pub struct LedgerMemory {
    file: PathBuf,
    end: Option<LedgerEnd>,
}

impl LedgerMemory {
    /// Opens the file. If it is missing or damaged, there is no end until the registrar gives one.
    pub fn open(file: PathBuf) -> LedgerMemory {
        let bytes = reading::read(&file, MAX_LEN).unwrap_or_default();
        let end = std::str::from_utf8(&bytes).ok().and_then(parse);
        LedgerMemory { file, end }
    }

    pub fn end(&self) -> Option<&LedgerEnd> {
        self.end.as_ref()
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the text to store for this end, or none if it is already known. The registrar
    /// compares its ledger with the known end before it gives a new one.
    ///
    /// Errors: the new end is malformed.
    pub fn check(&self, new: &LedgerEnd) -> Result<Option<String>, String> {
        let text = format!("{LABEL}:{}:{}:{}\n", new.mandate, new.len, new.sum);
        if parse(&text).as_ref() != Some(new) {
            return Err("a ledger's end has a mandate of 64 hex digits and a sum of 16".into());
        }
        Ok((self.end.as_ref() != Some(new)).then_some(text))
    }

    pub fn set(&mut self, end: LedgerEnd) {
        self.end = Some(end);
    }
}

fn parse(text: &str) -> Option<LedgerEnd> {
    let mut parts = text.strip_suffix('\n')?.split(':');
    let label = parts.next()?;
    let (mandate, len, sum) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
    let is_hex = |text: &str, len| text.len() == len && text.bytes().all(|b| b.is_ascii_hexdigit());
    let is_whole = label == LABEL && is_hex(mandate, 64) && is_hex(sum, 16);
    let end = LedgerEnd { mandate: mandate.into(), len, sum: sum.into() };
    (is_whole && parts.next().is_none()).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(mandate: char, len: u64, sum: char) -> LedgerEnd {
        let hex = |digit: char, len| digit.to_string().repeat(len);
        LedgerEnd { mandate: hex(mandate, 64), len, sum: hex(sum, 16) }
    }

    #[test]
    fn the_end_outlasts_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("network.ledger");
        let mut memory = LedgerMemory::open(file.clone());
        assert_eq!(memory.end(), None);
        let text = memory.check(&end('a', 90, '1')).unwrap().unwrap();
        memory.set(end('a', 90, '1'));
        std::fs::write(&file, text).unwrap();
        let memory = LedgerMemory::open(file.clone());
        assert_eq!(memory.end(), Some(&end('a', 90, '1')));
        assert_eq!(memory.check(&end('a', 90, '1')), Ok(None));
        assert!(memory.check(&end('a', 91, '2')).unwrap().is_some());
        assert!(memory.check(&end('b', 4, '2')).unwrap().is_some(), "an end of another mandate");
        assert!(memory.check(&end('g', 91, '2')).is_err());
        for damaged in ["", "shoal-ledger-1:aa:9:11\n", "shoal-ledger-1\n"] {
            std::fs::write(&file, damaged).unwrap();
            assert_eq!(LedgerMemory::open(file.clone()).end(), None, "{damaged:?}");
        }
    }
}
