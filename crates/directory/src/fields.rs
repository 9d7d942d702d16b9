//! Optional fields of descriptors and lists (docs/authority.md section 2).
//!
//! ```text
//! fields = count 1, then each, ascending by number: number 2, length 2, value
//! ```
//!
//! The highest bit of a number says that the field is critical: a node that does not know the field
//! must not act on what has it. Other unknown fields have no effect, and are kept byte for byte.
//!
//! Invariant: one content has one encoding. A number stands once, a known field has the critical
//! bit of its kind, and what is empty has no field.

use shoal_wire::{ParseError, Reader};

use crate::Error;

/// Most fields of one descriptor, and of the head of one list.
pub const FIELDS_MAX: usize = 64;
/// The bit of a number that says that the field is critical.
const CRITICAL: u16 = 1 << 15;

/// A field that this version does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// From 1 to 32,767.
    pub number: u16,
    /// Whether a node that does not know the field must not act on what has it.
    pub is_critical: bool,
    /// What it says; at most 65,535 bytes.
    pub value: Vec<u8>,
}

/// A field that this version knows.
pub(crate) struct Kind {
    pub(crate) number: u16,
    pub(crate) is_critical: bool,
    pub(crate) what: &'static str,
}

impl Kind {
    /// The field of this kind with the value that `write` appends.
    pub(crate) fn field(&self, write: impl FnOnce(&mut Vec<u8>)) -> Field {
        let mut value = Vec::new();
        write(&mut value);
        Field { number: self.number, is_critical: self.is_critical, value }
    }
}

/// The fields that were read, and not taken yet: number, critical bit, value.
pub(crate) struct Fields<'a>(Vec<(u16, bool, &'a [u8])>);

impl<'a> Fields<'a> {
    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Fields<'a>, Error> {
        let what = "fields";
        let count = usize::from(reader.u8(what)?);
        if count > FIELDS_MAX {
            return Err(ParseError::TooLong { what, max: FIELDS_MAX, have: count }.into());
        }
        let mut all: Vec<(u16, bool, &[u8])> = Vec::with_capacity(count);
        for _ in 0..count {
            let tag = reader.u16(what)?;
            let len = usize::from(reader.u16(what)?);
            let value = reader.bytes(what, len)?;
            let number = tag & !CRITICAL;
            if number <= all.last().map_or(0, |last| last.0) {
                return Err(ParseError::Invalid { what }.into());
            }
            all.push((number, tag & CRITICAL != 0, value));
        }
        Ok(Fields(all))
    }

    /// Takes the field of this kind, which `read` decodes to its end; none where it is absent.
    pub(crate) fn take<T>(
        &mut self,
        kind: &Kind,
        read: impl FnOnce(&mut Reader<'a>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let Some(at) = self.0.iter().position(|field| field.0 == kind.number) else {
            return Ok(None);
        };
        let (_, is_critical, value) = self.0.remove(at);
        if is_critical != kind.is_critical {
            return Err(ParseError::Invalid { what: kind.what }.into());
        }
        let mut reader = Reader::new(value);
        let out = read(&mut reader)?;
        reader.finish(kind.what)?;
        Ok(Some(out))
    }

    /// What nobody has taken: fields that this version does not know.
    pub(crate) fn unknown(self) -> Vec<Field> {
        let own = |(number, is_critical, value): (u16, bool, &[u8])| Field {
            number,
            is_critical,
            value: value.to_vec(),
        };
        self.0.into_iter().map(own).collect()
    }
}

/// Writes fields in the one order that they have.
///
/// Errors: too many, one number twice, or one that the format has no room for.
pub(crate) fn put(out: &mut Vec<u8>, mut fields: Vec<Field>) -> Result<(), Error> {
    if fields.len() > FIELDS_MAX {
        return Err(Error::Range("a descriptor, or the head of a list, has at most 64 fields"));
    }
    fields.sort_by_key(|field| field.number);
    out.push(fields.len() as u8);
    let mut last = 0;
    for Field { number, is_critical, value } in fields {
        let len = u16::try_from(value.len());
        let len = len.map_err(|_| Error::Range("a field has at most 65535 bytes"))?;
        if number <= last || number >= CRITICAL {
            return Err(Error::Range("a field has a number of its own, from 1 to 32767"));
        }
        last = number;
        let tag = if is_critical { number | CRITICAL } else { number };
        out.extend_from_slice(&tag.to_be_bytes());
        out.extend_from_slice(&len.to_be_bytes());
        out.extend_from_slice(&value);
    }
    Ok(())
}

/// The number of the first critical one of fields that this version does not know.
pub(crate) fn first_critical(unknown: &[Field]) -> Option<u16> {
    unknown.iter().find(|field| field.is_critical).map(|field| field.number)
}

/// Refuses unknown fields that are critical.
pub(crate) fn refuse_critical(unknown: &[Field]) -> Result<(), Error> {
    first_critical(unknown).map_or(Ok(()), |number| Err(Error::Critical(number)))
}

#[cfg(test)]
mod tests;
