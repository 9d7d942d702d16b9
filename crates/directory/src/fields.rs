//! Optional fields of descriptors and lists (docs/design/wire/join.md).
//!
//! ```text
//! fields = count 1, then each, ascending by number: number 2, length 2, value
//! ```
//!
//! The highest bit of a number marks a critical field. A node that does not know a critical field
//! must not act on the descriptor or list that has it. Other unknown fields have no effect; they
//! are kept byte for byte.
//!
//! Invariant: each content has one encoding. A number appears once, a known field has the critical
//! bit of its kind, and an empty value has no field.

use shoal_wire::{ParseError, Reader};

use crate::Error;

/// Maximum number of fields in a descriptor or in the head of a list.
pub const FIELDS_MAX: usize = 64;
/// The bit of a number that marks a critical field.
const CRITICAL: u16 = 1 << 15;

/// A field that this version does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The number, from 1 to 32,767.
    pub number: u16,
    /// True if a node that does not know the field must not act on its descriptor or list.
    pub is_critical: bool,
    /// The value, at most 65,535 bytes.
    pub value: Vec<u8>,
}

/// A field that this version knows.
pub(crate) struct FieldKind {
    pub(crate) number: u16,
    pub(crate) is_critical: bool,
    pub(crate) what: &'static str,
}

impl FieldKind {
    /// Builds a field of this kind with the value that `write` appends.
    pub(crate) fn field(&self, write: impl FnOnce(&mut Vec<u8>)) -> Field {
        let mut value = Vec::new();
        write(&mut value);
        Field { number: self.number, is_critical: self.is_critical, value }
    }
}

/// Fields read but not taken yet: number, critical bit, value.
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

    /// Takes and decodes the field of this kind; `None` if it is absent. `read` must consume the
    /// whole value.
    pub(crate) fn take<T>(
        &mut self,
        kind: &FieldKind,
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

    /// The remaining fields, which this version does not know.
    pub(crate) fn unknown(self) -> Vec<Field> {
        let own = |(number, is_critical, value): (u16, bool, &[u8])| Field {
            number,
            is_critical,
            value: value.to_vec(),
        };
        self.0.into_iter().map(own).collect()
    }
}

/// Writes fields, sorted by number.
///
/// Errors: too many fields, a repeated or invalid number, or too long a value.
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
            return Err(Error::Range("a field must have a unique number from 1 to 32767"));
        }
        last = number;
        let tag = if is_critical { number | CRITICAL } else { number };
        out.extend_from_slice(&tag.to_be_bytes());
        out.extend_from_slice(&len.to_be_bytes());
        out.extend_from_slice(&value);
    }
    Ok(())
}

/// The number of the first critical field among the unknown ones.
pub(crate) fn first_critical(unknown: &[Field]) -> Option<u16> {
    unknown.iter().find(|field| field.is_critical).map(|field| field.number)
}

/// Refuses unknown fields that are critical.
pub(crate) fn refuse_critical(unknown: &[Field]) -> Result<(), Error> {
    first_critical(unknown).map_or(Ok(()), |number| Err(Error::Critical(number)))
}

#[cfg(test)]
mod tests;
