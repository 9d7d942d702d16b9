//! Supplements: what a registrar adds to the authority's list, step by step (docs/authority.md
//! section 6).
//!
//! ```text
//! "SHS1" | mandate 32 | number 8 | previous 32 | issued 8 | count 1 | entries | signature 64
//! entry  = kind 1 | length 2 | value
//!          1 a member's descriptor without its signature: added, or renewed
//!          2 BLAKE3 of a member's key: removed for good
//! ```
//!
//! `previous` is the BLAKE3 of the supplement before, without its signature; that of the first is
//! the mandate's id. So whoever has the last one knows whether it has all of them, and a registrar
//! can't say different things to different nodes without leaving two supplements with one number.

use shoal_crypto::{Identity, PublicKey, hash};
use shoal_wire::{ParseError, Reader};

use crate::codec::magic;
use crate::mandate::MandateId;
use crate::{Error, Member};

/// Longest supplement in bytes: one message between neighbours carries it.
pub const SUPPLEMENT_LEN_MAX: usize = 1_024;
/// Most entries of one supplement.
pub const ENTRIES_MAX: usize = 4;
/// Ties a signature to this use and version.
const LABEL: &[u8] = b"shoal supplement 1";
const MAGIC: &[u8; 4] = b"SHS1";
const SIGNATURE_LEN: usize = 64;
const WHAT: &str = "supplement";

/// One thing that a registrar says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Somebody is a member, by this descriptor.
    Member(Box<Member>),
    /// The member with this digest of its key is none any more, and never will be again.
    Removed([u8; 32]),
}

impl Entry {
    /// Removes the member with this key.
    pub fn remove(key: &PublicKey) -> Entry {
        Entry::Removed(hash(&key.to_bytes()))
    }
}

/// What a step says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Whose chain it is part of.
    pub mandate: MandateId,
    /// Where it stands there, from 1 on.
    pub number: u64,
    /// The hash of the step before.
    pub previous: [u8; 32],
    /// When it was signed, in seconds since 1970.
    pub issued_unix_s: u64,
    /// What changes; 1 to [`ENTRIES_MAX`].
    pub entries: Vec<Entry>,
}

/// A step with its registrar's signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Supplement {
    step: Step,
    bytes: Vec<u8>,
}

impl Step {
    /// Signs it.
    ///
    /// Errors: it has no entry or too many, or is longer than a message carries.
    pub fn sign(self, registrar: &Identity) -> Result<Supplement, Error> {
        if !(1..=ENTRIES_MAX).contains(&self.entries.len()) {
            return Err(Error::Range("a supplement has 1 to 4 entries"));
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&self.mandate.0);
        bytes.extend_from_slice(&self.number.to_be_bytes());
        bytes.extend_from_slice(&self.previous);
        bytes.extend_from_slice(&self.issued_unix_s.to_be_bytes());
        bytes.push(self.entries.len() as u8);
        for entry in &self.entries {
            let (kind, value) = match entry {
                Entry::Member(member) => (1, member.body()?),
                Entry::Removed(digest) => (2, digest.to_vec()),
            };
            let len = u16::try_from(value.len());
            let len = len.map_err(|_| Error::Range("a supplement has at most 1024 bytes"))?;
            bytes.push(kind);
            bytes.extend_from_slice(&len.to_be_bytes());
            bytes.extend_from_slice(&value);
        }
        let signature = registrar.sign(&labelled(&bytes));
        bytes.extend_from_slice(&signature);
        if bytes.len() > SUPPLEMENT_LEN_MAX {
            return Err(Error::Range("a supplement has at most 1024 bytes"));
        }
        Ok(Supplement { step: self, bytes })
    }
}

impl Supplement {
    /// Decodes a supplement and checks its signature; `registrar` is the key of its mandate.
    pub fn open(registrar: &PublicKey, bytes: &[u8]) -> Result<Supplement, Error> {
        let (step, signed) = Supplement::decode(bytes)?;
        let signature = bytes[signed..].first_chunk().ok_or(Error::Signature)?;
        if !registrar.verify(&labelled(&bytes[..signed]), signature) {
            return Err(Error::Signature);
        }
        Ok(Supplement { step, bytes: bytes.to_vec() })
    }

    /// Whose chain these bytes say that they are part of, and where they stand there; nothing about
    /// them is known.
    pub fn peek(bytes: &[u8]) -> Result<(MandateId, u64), Error> {
        let mut reader = Reader::new(bytes);
        magic(&mut reader, MAGIC, WHAT)?;
        Ok((MandateId(reader.array(WHAT)?), reader.u64(WHAT)?))
    }

    /// What [`Supplement::digest`] of these bytes would be; none if they are too short.
    pub(crate) fn digest_of(bytes: &[u8]) -> Option<[u8; 32]> {
        Some(hash(&bytes[..bytes.len().checked_sub(SIGNATURE_LEN)?]))
    }

    /// The step, and the length of what its signature covers.
    fn decode(bytes: &[u8]) -> Result<(Step, usize), Error> {
        let (max, have) = (SUPPLEMENT_LEN_MAX, bytes.len());
        if have > max {
            return Err(ParseError::TooLong { what: WHAT, max, have }.into());
        }
        let mut reader = Reader::new(bytes);
        magic(&mut reader, MAGIC, WHAT)?;
        let mandate = MandateId(reader.array(WHAT)?);
        let number = reader.u64(WHAT)?;
        let previous = reader.array(WHAT)?;
        let issued_unix_s = reader.u64(WHAT)?;
        let count = usize::from(reader.u8(WHAT)?);
        if number == 0 || !(1..=ENTRIES_MAX).contains(&count) {
            return Err(ParseError::Invalid { what: WHAT }.into());
        }
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            entries.push(entry(&mut reader)?);
        }
        let signed = bytes.len() - reader.rest().len();
        reader.bytes("signature", SIGNATURE_LEN)?;
        reader.finish(WHAT)?;
        Ok((Step { mandate, number, previous, issued_unix_s, entries }, signed))
    }

    /// What it says.
    pub fn step(&self) -> &Step {
        &self.step
    }

    /// The bytes that stand in files and messages, signature included.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What the step behind it names as its `previous`.
    pub fn digest(&self) -> [u8; 32] {
        hash(&self.bytes[..self.bytes.len() - SIGNATURE_LEN])
    }
}

fn entry(reader: &mut Reader<'_>) -> Result<Entry, Error> {
    let kind = reader.u8(WHAT)?;
    let len = usize::from(reader.u16(WHAT)?);
    let mut value = Reader::new(reader.bytes(WHAT, len)?);
    let entry = match kind {
        1 => Entry::Member(Box::new(Member::read(&mut value)?)),
        2 => Entry::Removed(value.array(WHAT)?),
        value => return Err(ParseError::Unknown { what: WHAT, value: value.into() }.into()),
    };
    value.finish(WHAT)?;
    Ok(entry)
}

fn labelled(body: &[u8]) -> Vec<u8> {
    [LABEL, body].concat()
}

#[cfg(test)]
mod tests;
