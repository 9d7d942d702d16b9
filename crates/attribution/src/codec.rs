//! Encoding of the structures stored in files (docs/design/wire/attribution.md).

use shoal_crypto::PublicKey;
use shoal_crypto::bls::{G1, Scalar};
use shoal_wire::Reader;

use crate::Error;

/// Maximum length of a group's or member's name in bytes.
pub const NAME_MAX: usize = 64;

pub(crate) fn point(reader: &mut Reader<'_>, what: &'static str) -> Result<G1, Error> {
    G1::decode(&reader.array(what)?).map_err(|why| Error::Element { what, why })
}

pub(crate) fn scalar(reader: &mut Reader<'_>, what: &'static str) -> Result<Scalar, Error> {
    Scalar::decode(&reader.array(what)?).map_err(|why| Error::Element { what, why })
}

pub(crate) fn public_key(reader: &mut Reader<'_>, what: &'static str) -> Result<PublicKey, Error> {
    Ok(PublicKey::from_bytes(&reader.array(what)?))
}

/// Reads a name: 1 to [`NAME_MAX`] bytes of printable ASCII, without spaces at its ends.
pub(crate) fn name(reader: &mut Reader<'_>, what: &'static str) -> Result<String, Error> {
    let len = usize::from(reader.u8(what)?);
    let bytes = reader.bytes(what, len)?;
    let text = core::str::from_utf8(bytes).map_err(|_| Error::Range(what))?;
    check_name(text, what)?;
    Ok(text.to_owned())
}

pub(crate) fn check_name(text: &str, what: &'static str) -> Result<(), Error> {
    let printable = text.bytes().all(|b| (0x20..0x7f).contains(&b));
    if text.is_empty() || text.len() > NAME_MAX || !printable || text.trim() != text {
        return Err(Error::Name(what));
    }
    Ok(())
}

pub(crate) fn put_name(out: &mut Vec<u8>, name: &str) {
    out.push(name.len() as u8);
    out.extend_from_slice(name.as_bytes());
}

/// Reads a whole file of one kind: its magic bytes and the content that `read` decodes, with
/// nothing behind.
pub(crate) fn file<T>(
    bytes: &[u8],
    want: &[u8; 4],
    kind: &'static str,
    read: impl FnOnce(&mut Reader<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut reader = Reader::new(bytes);
    magic(&mut reader, want, kind)?;
    let content = read(&mut reader)?;
    reader.finish(kind)?;
    Ok(content)
}

/// Checks the four magic bytes of a file.
pub(crate) fn magic(
    reader: &mut Reader<'_>,
    want: &[u8; 4],
    kind: &'static str,
) -> Result<(), Error> {
    if reader.array::<4>("kind of file")? != *want {
        return Err(Error::Kind(kind));
    }
    Ok(())
}
