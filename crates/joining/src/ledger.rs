//! The registrar's ledger: an append-only file of records.
//!
//! ```text
//! "SHJ1" | record | record | ...
//! record = length of its content 2 | content | sum 8
//! sum    = first bytes of BLAKE3 of the sum before (of the first record: "SHJ1SHJ1"), length and
//!          content
//! ```
//!
//! A registrar writes a record to disk before it answers. So a record cut short by a power failure
//! was never announced to anybody, and a reader drops it if it is the last one. Any other
//! unreadable record is damage, and the ledger is refused: without its middle the registrar would
//! grant some uses twice.

use shoal_crypto::hash;
use shoal_wire::ParseError;

use crate::record::LedgerRecord;

/// Maximum length of a record in bytes, with length and sum.
pub const RECORD_MAX: usize = 4_096;
/// Maximum length of a ledger in bytes: far more than 65,536 steps take.
pub const LEDGER_MAX: usize = 256 << 20;
const MAGIC: &[u8; 4] = b"SHJ1";
const LEN_LEN: usize = 2;
/// Length of a record's sum in bytes.
pub const SUM_LEN: usize = 8;

type RecordSum = [u8; SUM_LEN];

/// Reasons why a file is no usable ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// The file does not begin with the ledger's magic bytes.
    #[error("this is no registrar's ledger, or one of another version")]
    Kind,
    /// The file is longer than [`LEDGER_MAX`].
    #[error("the ledger is longer than 256 MiB")]
    TooLong,
    /// A record before the end has a wrong sum.
    #[error(
        "the ledger is damaged at byte {0}: restore a copy of it; without the damaged records the \
         registrar could grant the same use twice"
    )]
    Damaged(usize),
    /// A record is intact, but this version can't read it.
    #[error("the ledger's record at byte {at} can't be read ({error}): update shoal here")]
    Record {
        /// Offset of the record in bytes.
        at: usize,
        error: ParseError,
    },
}

/// Length and last sum of a ledger, to which the next record is appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerTail {
    len: usize,
    sum: RecordSum,
}

impl LedgerTail {
    /// The end of an empty file.
    pub const EMPTY: LedgerTail = LedgerTail { len: 0, sum: *b"SHJ1SHJ1" };

    /// Length of the file in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The sum of the last record, which covers all records before it.
    pub fn sum(&self) -> [u8; SUM_LEN] {
        self.sum
    }

    /// True if a ledger with these bytes had this sum when it was `len` bytes long.
    pub fn was(bytes: &[u8], len: usize, sum: &[u8; SUM_LEN]) -> bool {
        match bytes.get(..len) {
            Some([]) => *sum == LedgerTail::EMPTY.sum,
            Some(before) => before.ends_with(sum),
            None => false,
        }
    }

    /// True if the ledger has no records.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes to append for a record, and the end after that. Until the bytes are on disk the
    /// old end holds.
    pub fn append(&self, record: &LedgerRecord) -> (Vec<u8>, LedgerTail) {
        let mut out = if self.is_empty() { MAGIC.to_vec() } else { Vec::new() };
        let start = out.len();
        out.extend_from_slice(&[0; LEN_LEN]);
        record.write(&mut out);
        let len = out.len() - start - LEN_LEN;
        debug_assert!(LEN_LEN + len + SUM_LEN <= RECORD_MAX, "no record is longer");
        out[start..start + LEN_LEN].copy_from_slice(&(len as u16).to_be_bytes());
        let sum = sum(&self.sum, &out[start..]);
        out.extend_from_slice(&sum);
        let end = LedgerTail { len: self.len + out.len(), sum };
        (out, end)
    }
}

fn sum(before: &RecordSum, record: &[u8]) -> RecordSum {
    let long = hash(&[before.as_slice(), record].concat());
    let mut short = [0; SUM_LEN];
    short.copy_from_slice(&long[..SUM_LEN]);
    short
}

/// A ledger as read from its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    pub records: Vec<LedgerRecord>,
    /// End of the last whole record. Bytes behind it belong to a record that was cut short:
    /// truncate the file.
    pub end: LedgerTail,
}

impl Ledger {
    /// Reads a ledger.
    ///
    /// # Errors
    ///
    /// The file is no ledger, too long, or damaged elsewhere than at its end.
    pub fn read(bytes: &[u8]) -> Result<Ledger, LedgerError> {
        let mut ledger = Ledger { records: Vec::new(), end: LedgerTail::EMPTY };
        if bytes.len() > LEDGER_MAX {
            return Err(LedgerError::TooLong);
        }
        if MAGIC.starts_with(bytes) {
            return Ok(ledger);
        }
        if !bytes.starts_with(MAGIC) {
            return Err(LedgerError::Kind);
        }
        let (mut at, mut before) = (MAGIC.len(), LedgerTail::EMPTY.sum);
        while at < bytes.len() {
            let Some((content, len, sum)) = content_at(bytes, at, &before) else {
                if is_cut_short(bytes, at, &before) {
                    return Ok(ledger);
                }
                return Err(LedgerError::Damaged(at));
            };
            let record = LedgerRecord::read(content);
            ledger.records.push(record.map_err(|error| LedgerError::Record { at, error })?);
            (at, before) = (at + len, sum);
            ledger.end = LedgerTail { len: at, sum };
        }
        Ok(ledger)
    }
}

/// Content, total length and sum of the record at `at`; `None` if its sum is wrong.
fn content_at<'a>(
    bytes: &'a [u8],
    at: usize,
    before: &RecordSum,
) -> Option<(&'a [u8], usize, RecordSum)> {
    let rest = bytes.get(at..)?;
    let len = usize::from(u16::from_be_bytes(*rest.first_chunk()?));
    let (framed, rest) = rest.split_at_checked(LEN_LEN + len)?;
    let found: RecordSum = *rest.first_chunk()?;
    let whole = framed.len() + SUM_LEN;
    (sum(before, framed) == found).then_some((&framed[LEN_LEN..], whole, found))
}

/// True if the bytes at `at` can be a record whose writing was interrupted. They are no longer than
/// one record then, and no intact record follows.
fn is_cut_short(bytes: &[u8], at: usize, before: &RecordSum) -> bool {
    let reads = |next: usize, before: &RecordSum| content_at(bytes, next, before).is_some();
    // If only this record's sum is wrong, the next record was made with the right sum.
    let len = bytes[at..].first_chunk().map_or(0, |len| usize::from(u16::from_be_bytes(*len)));
    let framed = bytes.get(at..at + LEN_LEN + len);
    let follows =
        framed.is_some_and(|framed| reads(at + framed.len() + SUM_LEN, &sum(before, framed)));
    // Otherwise the sum before the next record is the one that it was made with.
    let first = at + LEN_LEN + SUM_LEN;
    bytes.len() - at <= RECORD_MAX
        && !follows
        && !(first..bytes.len()).any(|next| {
            let before = bytes[next - SUM_LEN..next].first_chunk();
            before.is_some_and(|before| reads(next, before))
        })
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
