//! The registrar's ledger: a file to which records are appended, and nothing else.
//!
//! ```text
//! "SHJ1" | record | record | ...
//! record = length of its content 2 | content | sum 8
//! sum    = first bytes of BLAKE3 of the sum before (of the first record: "SHJ1SHJ1"), length and
//!          content
//! ```
//!
//! A registrar says nothing about a thing before its record is on the disk. So a record that was
//! cut short, when the machine lost its power, speaks of nothing that anybody was told: a reader
//! leaves out the last one. Whatever else does not read is damage, and is refused: a ledger without
//! its middle would give out twice what it forgot.

use shoal_crypto::hash;
use shoal_wire::ParseError;

use crate::record::Record;

/// Longest record in bytes, with length and sum.
pub const RECORD_MAX: usize = 4_096;
/// Longest ledger in bytes that is read: far more than 65,536 steps take.
pub const LEDGER_MAX: usize = 256 << 20;
const MAGIC: &[u8; 4] = b"SHJ1";
const LEN_LEN: usize = 2;
/// Length of a record's sum.
pub const SUM_LEN: usize = 8;

type Sum = [u8; SUM_LEN];

/// Why a file can't be used as a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// It begins with something else.
    #[error("this is no registrar's ledger, or one of another version")]
    Kind,
    /// It is longer than [`LEDGER_MAX`].
    #[error("the ledger is longer than 256 MiB")]
    TooLong,
    /// A record in its middle does not read.
    #[error(
        "the ledger is damaged at byte {0}: put back a copy of it, or the registrar could grant \
         twice what it granted before"
    )]
    Damaged(usize),
    /// A record that was written whole says what this version does not know.
    #[error("the ledger's record at byte {at} can't be read ({error}): update shoal here")]
    Record {
        /// Where it begins.
        at: usize,
        /// What is wrong with it.
        error: ParseError,
    },
}

/// The end of a ledger: what a record is appended to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    len: usize,
    sum: Sum,
}

impl End {
    /// The end of a file of no bytes.
    pub const EMPTY: End = End { len: 0, sum: *b"SHJ1SHJ1" };

    /// How long the file is, in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The sum of its last record, over all records before it, too.
    pub fn sum(&self) -> [u8; SUM_LEN] {
        self.sum
    }

    /// Whether a ledger with these bytes once ended with this sum, when it had so many bytes.
    pub fn was(bytes: &[u8], len: usize, sum: &[u8; SUM_LEN]) -> bool {
        match bytes.get(..len) {
            Some([]) => *sum == End::EMPTY.sum,
            Some(before) => before.ends_with(sum),
            None => false,
        }
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What to append to the file for a record, and the end it has then. Until the bytes are on the
    /// disk the file has the old end.
    pub fn append(&self, record: &Record) -> (Vec<u8>, End) {
        let mut out = if self.is_empty() { MAGIC.to_vec() } else { Vec::new() };
        let start = out.len();
        out.extend_from_slice(&[0; LEN_LEN]);
        record.write(&mut out);
        let len = out.len() - start - LEN_LEN;
        debug_assert!(LEN_LEN + len + SUM_LEN <= RECORD_MAX, "no record has so much to say");
        out[start..start + LEN_LEN].copy_from_slice(&(len as u16).to_be_bytes());
        let sum = sum(&self.sum, &out[start..]);
        out.extend_from_slice(&sum);
        let end = End { len: self.len + out.len(), sum };
        (out, end)
    }
}

fn sum(before: &Sum, record: &[u8]) -> Sum {
    let long = hash(&[before.as_slice(), record].concat());
    let mut short = [0; SUM_LEN];
    short.copy_from_slice(&long[..SUM_LEN]);
    short
}

/// A ledger that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Its records, in their order.
    pub records: Vec<Record>,
    /// Where it ends. Bytes behind that are a record that was cut short: cut them off.
    pub end: End,
}

impl Ledger {
    /// Reads a ledger.
    ///
    /// # Errors
    ///
    /// It is none, too long, or damaged elsewhere than at its end.
    pub fn read(bytes: &[u8]) -> Result<Ledger, LedgerError> {
        let mut ledger = Ledger { records: Vec::new(), end: End::EMPTY };
        if bytes.len() > LEDGER_MAX {
            return Err(LedgerError::TooLong);
        }
        if MAGIC.starts_with(bytes) {
            return Ok(ledger);
        }
        if !bytes.starts_with(MAGIC) {
            return Err(LedgerError::Kind);
        }
        let (mut at, mut before) = (MAGIC.len(), End::EMPTY.sum);
        while at < bytes.len() {
            let Some((content, len, sum)) = content_at(bytes, at, &before) else {
                if is_cut_short(bytes, at, &before) {
                    return Ok(ledger);
                }
                return Err(LedgerError::Damaged(at));
            };
            let record = Record::read(content);
            ledger.records.push(record.map_err(|error| LedgerError::Record { at, error })?);
            (at, before) = (at + len, sum);
            ledger.end = End { len: at, sum };
        }
        Ok(ledger)
    }
}

/// The content of the record that begins at `at`, its whole length and its sum.
fn content_at<'a>(bytes: &'a [u8], at: usize, before: &Sum) -> Option<(&'a [u8], usize, Sum)> {
    let rest = bytes.get(at..)?;
    let len = usize::from(u16::from_be_bytes(*rest.first_chunk()?));
    let (framed, rest) = rest.split_at_checked(LEN_LEN + len)?;
    let found: Sum = *rest.first_chunk()?;
    let whole = framed.len() + SUM_LEN;
    (sum(before, framed) == found).then_some((&framed[LEN_LEN..], whole, found))
}

/// Whether what begins at `at` can be the end of a record whose writing was broken off: there is no
/// more of it than one record, and no other record stands behind it.
fn is_cut_short(bytes: &[u8], at: usize, before: &Sum) -> bool {
    let reads = |next: usize, before: &Sum| content_at(bytes, next, before).is_some();
    // If its sum alone is wrong, the record behind it was made with the right one.
    let len = bytes[at..].first_chunk().map_or(0, |len| usize::from(u16::from_be_bytes(*len)));
    let framed = bytes.get(at..at + LEN_LEN + len);
    let follows =
        framed.is_some_and(|framed| reads(at + framed.len() + SUM_LEN, &sum(before, framed)));
    // Else the sum that it was made with stands in front of it.
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
