//! Supplements: a registrar's changes to the members, step by step (docs/design/membership.md).
//!
//! ```text
//! "SHS1" | mandate 32 | number 8 | previous 32 | issued 8 | count 1 | entries | signature 64
//! entry  = kind 1 | length 2 | value
//!          1 a member's descriptor without its signature: added, or renewed
//!          2 BLAKE3 of a member's key: removed for good
//!          3 the registrar's endpoints from now on (`door.rs`)
//!          4 a mandate with its rights: another registrar that has this part of the mandate
//!          5 id of such a mandate: withdrawn for good
//! ```
//!
//! `previous` is the BLAKE3 of the last supplement without its signature; for the first it is the
//! mandate's id. So a node with the last step knows whether it has all of them. A registrar that
//! tells different nodes different things leaves two supplements with one number.

use shoal_crypto::{Identity, PublicKey, hash};
use shoal_wire::{ParseError, Reader};

use crate::codec::magic;
use crate::mandate::{Mandate, MandateId};
use crate::{DoorEndpoint, Error, Member, door};

/// Maximum length of a supplement in bytes: it must fit in one message between neighbours.
pub const SUPPLEMENT_LEN_MAX: usize = 1_024;
/// Maximum number of entries in a supplement.
pub const ENTRIES_MAX: usize = 4;
/// Domain separation of signatures.
const LABEL: &[u8] = b"shoal supplement 1";
const MAGIC: &[u8; 4] = b"SHS1";
const SIGNATURE_LEN: usize = 64;
const WHAT: &str = "supplement";

/// One change of the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepEntry {
    /// Adds or renews a member.
    Member(Box<Member>),
    /// Removes for good the member whose key has this digest.
    Removed([u8; 32]),
    /// Endpoints at which the registrar is called from now on, best first.
    Door(Vec<DoorEndpoint>),
    /// Makes another registrar, with a part of the mandate that is this one's no longer.
    Registrar(Box<Mandate>),
    /// Withdraws a registrar that this one made; its memberships end.
    Withdrawn(MandateId),
}

impl StepEntry {
    /// An entry that removes the member with this key.
    pub fn remove(key: &PublicKey) -> StepEntry {
        StepEntry::Removed(hash(&key.to_bytes()))
    }
}

/// The content of a supplement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The mandate of the chain.
    pub mandate: MandateId,
    /// Position in the chain, from 1.
    pub number: u64,
    /// Hash of the last step.
    pub previous: [u8; 32],
    /// Time of the signature in seconds since 1970.
    pub issued_unix_s: u64,
    /// The changes; 1 to [`ENTRIES_MAX`].
    pub entries: Vec<StepEntry>,
}

/// A step with its registrar's signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Supplement {
    step: Step,
    bytes: Vec<u8>,
}

impl Step {
    /// Signs the step.
    ///
    /// Errors: the step has no entry or too many, or is too long.
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
                StepEntry::Member(member) => (1, member.body()?),
                StepEntry::Removed(digest) => (2, digest.to_vec()),
                StepEntry::Door(endpoints) => (3, door_value(endpoints)?),
                StepEntry::Registrar(mandate) => (4, registrar_value(mandate)?),
                StepEntry::Withdrawn(id) => (5, id.0.to_vec()),
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

    /// Mandate and number that these bytes claim; nothing else is checked.
    pub fn peek(bytes: &[u8]) -> Result<(MandateId, u64), Error> {
        let mut reader = Reader::new(bytes);
        magic(&mut reader, MAGIC, WHAT)?;
        Ok((MandateId(reader.array(WHAT)?), reader.u64(WHAT)?))
    }

    /// The [`Supplement::digest`] of encoded bytes; `None` if they are too short.
    pub(crate) fn digest_of(bytes: &[u8]) -> Option<[u8; 32]> {
        Some(hash(&bytes[..bytes.len().checked_sub(SIGNATURE_LEN)?]))
    }

    /// The step, and the number of signed bytes.
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

    pub fn step(&self) -> &Step {
        &self.step
    }

    /// The encoded supplement, with signature.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The hash that the next step must have as `previous`.
    pub fn digest(&self) -> [u8; 32] {
        hash(&self.bytes[..self.bytes.len() - SIGNATURE_LEN])
    }
}

fn entry(reader: &mut Reader<'_>) -> Result<StepEntry, Error> {
    let kind = reader.u8(WHAT)?;
    let len = usize::from(reader.u16(WHAT)?);
    let mut value = Reader::new(reader.bytes(WHAT, len)?);
    let entry = match kind {
        1 => StepEntry::Member(Box::new(Member::read(&mut value)?)),
        2 => StepEntry::Removed(value.array(WHAT)?),
        3 => StepEntry::Door(door::read_all(&mut value)?),
        4 => StepEntry::Registrar(Box::new(Mandate::read_delegated(&mut value)?)),
        5 => StepEntry::Withdrawn(MandateId(value.array(WHAT)?)),
        value => return Err(ParseError::Unknown { what: WHAT, value: value.into() }.into()),
    };
    value.finish(WHAT)?;
    Ok(entry)
}

/// The value of an entry with these endpoints.
fn door_value(endpoints: &[DoorEndpoint]) -> Result<Vec<u8>, Error> {
    if !door::is_valid(endpoints) {
        return Err(Error::Range("a registrar has 1 to 3 different endpoints that can be called"));
    }
    let mut out = Vec::new();
    door::put_all(&mut out, endpoints);
    Ok(out)
}

/// The value of an entry that makes a registrar.
fn registrar_value(mandate: &Mandate) -> Result<Vec<u8>, Error> {
    let checked = mandate.clone().checked()?;
    if checked != *mandate {
        return Err(Error::Range("a mandate's sets are sorted"));
    }
    let mut out = Vec::new();
    mandate.put_delegated(&mut out);
    Ok(out)
}

fn labelled(body: &[u8]) -> Vec<u8> {
    [LABEL, body].concat()
}

#[cfg(test)]
mod tests;
