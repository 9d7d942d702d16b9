//! What a registrar writes down: one record for each thing that it must not forget.
//!
//! ```text
//! 1 issued    | token's hash 32 | issued 8 | uses 4 | expires 8 | bits 1 | [name] | groups
//!               bits: 1 approve, 2 name; name = length 1, bytes; groups = count 1, names ascending
//! 2 withdrawn | token's hash 32
//! 3 step      | cause 1 | [token's hash 32] | key 64 | supplement
//!               cause: 1 joined by a token, 2 renewed, 3 left, 4 changed its key, 5 removed
//! 4 denied    | token's hash 32 | key 64
//! ```

use shoal_crypto::PublicKey;
use shoal_directory::{GROUPS_MAX, is_name};
use shoal_wire::{ParseError, Reader};

use crate::tokens::{Terms, TokenHash};

/// Longest supplement in bytes: one control message carries it.
pub const SUPPLEMENT_MAX: usize = 1_024;

const ISSUED: u8 = 1;
const WITHDRAWN: u8 = 2;
const STEP: u8 = 3;
const DENIED: u8 = 4;

const APPROVE: u8 = 1;
const NAMED: u8 = 2;

/// Why a supplement was signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A machine joined by a token.
    Joined(TokenHash),
    /// A member has its membership renewed.
    Renewed,
    /// A member left.
    Left,
    /// A member has another key in the place of the one that the record names.
    Rekeyed,
    /// The registrar's owner removed a member.
    Removed,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A token was given out.
    Issued {
        /// Its hash.
        token: TokenHash,
        /// When, in seconds since 1970.
        unix_s: u64,
        /// What it is good for.
        terms: Terms,
    },
    /// A token was taken back.
    Withdrawn(TokenHash),
    /// A supplement was signed.
    Step {
        /// Why.
        cause: Cause,
        /// Of the member that it is about; of one that has another key now, the one before.
        key: PublicKey,
        /// Its bytes.
        supplement: Vec<u8>,
    },
    /// Somebody said no to a machine that waited for approval.
    Denied {
        /// The token that it showed.
        token: TokenHash,
        /// Who it is.
        key: PublicKey,
    },
}

pub(crate) fn put_name(out: &mut Vec<u8>, name: &str) {
    out.push(name.len() as u8);
    out.extend_from_slice(name.as_bytes());
}

fn name(reader: &mut Reader<'_>, what: &'static str) -> Result<String, ParseError> {
    let len = usize::from(reader.u8(what)?);
    let bytes = reader.bytes(what, len)?;
    let name = core::str::from_utf8(bytes).ok().filter(|name| is_name(name));
    name.map(str::to_owned).ok_or(ParseError::Invalid { what })
}

fn token(reader: &mut Reader<'_>) -> Result<TokenHash, ParseError> {
    reader.array("token's hash").map(TokenHash)
}

fn key(reader: &mut Reader<'_>) -> Result<PublicKey, ParseError> {
    Ok(PublicKey::from_bytes(&reader.array("key")?))
}

impl Record {
    /// Appends the record, its kind first. Terms must have been checked.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Record::Issued { token, unix_s, terms } => {
                out.push(ISSUED);
                out.extend_from_slice(&token.0);
                out.extend_from_slice(&unix_s.to_be_bytes());
                out.extend_from_slice(&terms.uses.to_be_bytes());
                out.extend_from_slice(&terms.expires_unix_s.to_be_bytes());
                let approve = if terms.approve { APPROVE } else { 0 };
                let named = if terms.name.is_some() { NAMED } else { 0 };
                out.push(approve | named);
                terms.name.iter().for_each(|name| put_name(out, name));
                out.push(terms.groups.len() as u8);
                terms.groups.iter().for_each(|group| put_name(out, group));
            }
            Record::Withdrawn(token) => {
                out.push(WITHDRAWN);
                out.extend_from_slice(&token.0);
            }
            Record::Step { cause, key, supplement } => {
                out.push(STEP);
                match cause {
                    Cause::Joined(token) => {
                        out.push(1);
                        out.extend_from_slice(&token.0);
                    }
                    Cause::Renewed => out.push(2),
                    Cause::Left => out.push(3),
                    Cause::Rekeyed => out.push(4),
                    Cause::Removed => out.push(5),
                }
                out.extend_from_slice(&key.to_bytes());
                out.extend_from_slice(supplement);
            }
            Record::Denied { token, key } => {
                out.push(DENIED);
                out.extend_from_slice(&token.0);
                out.extend_from_slice(&key.to_bytes());
            }
        }
    }

    /// Reads a record to its end.
    pub(crate) fn read(bytes: &[u8]) -> Result<Record, ParseError> {
        let mut reader = Reader::new(bytes);
        let record = match reader.u8("kind of a record")? {
            ISSUED => Record::Issued {
                token: token(&mut reader)?,
                unix_s: reader.u64("time")?,
                terms: terms(&mut reader)?,
            },
            WITHDRAWN => Record::Withdrawn(token(&mut reader)?),
            STEP => {
                let cause = cause(&mut reader)?;
                let key = key(&mut reader)?;
                let supplement = reader.rest().to_vec();
                if supplement.len() > SUPPLEMENT_MAX {
                    let have = supplement.len();
                    let (what, max) = ("supplement", SUPPLEMENT_MAX);
                    return Err(ParseError::TooLong { what, max, have });
                }
                return Ok(Record::Step { cause, key, supplement });
            }
            DENIED => Record::Denied { token: token(&mut reader)?, key: key(&mut reader)? },
            other => {
                return Err(ParseError::Unknown { what: "kind of a record", value: other.into() });
            }
        };
        reader.finish("record")?;
        Ok(record)
    }
}

fn cause(reader: &mut Reader<'_>) -> Result<Cause, ParseError> {
    match reader.u8("cause")? {
        1 => Ok(Cause::Joined(token(reader)?)),
        2 => Ok(Cause::Renewed),
        3 => Ok(Cause::Left),
        4 => Ok(Cause::Rekeyed),
        5 => Ok(Cause::Removed),
        other => Err(ParseError::Unknown { what: "cause", value: other.into() }),
    }
}

fn terms(reader: &mut Reader<'_>) -> Result<Terms, ParseError> {
    let (uses, expires_unix_s) = (reader.u32("uses")?, reader.u64("expiry")?);
    let bits = reader.u8("bits")?;
    if bits & !(APPROVE | NAMED) != 0 {
        return Err(ParseError::Unknown { what: "bits", value: bits.into() });
    }
    let named = bits & NAMED != 0;
    let name = if named { Some(self::name(reader, "name")?) } else { None };
    let count = usize::from(reader.u8("groups")?);
    if count > GROUPS_MAX {
        return Err(ParseError::TooLong { what: "groups", max: GROUPS_MAX, have: count });
    }
    let mut groups = Vec::with_capacity(count);
    for _ in 0..count {
        groups.push(self::name(reader, "group")?);
    }
    let terms = Terms { uses, expires_unix_s, name, groups, approve: bits & APPROVE != 0 };
    match terms.clone().checked() {
        Ok(checked) if checked == terms => Ok(terms),
        _ => Err(ParseError::Invalid { what: "terms of a token" }),
    }
}
