//! Messages by which neighbours pass the authority's list on (docs/design/wire/join.md).
//!
//! Each message is the body of one [`ControlMessages`](crate::ControlMessages) item, whose head has
//! the type byte. All integers are big-endian.

use crate::{CONTROL_BODY_MAX, ParseError, Reader};

/// Longest list in bytes.
pub const LIST_LEN_MAX: usize = 64 << 20;
/// Bytes of a list in one part, which fills a full frame. The last part may be shorter.
pub const LIST_PART_LEN: usize = CONTROL_BODY_MAX - PART_HEAD_LEN;

const KIND_HAVE: u8 = 32;
const KIND_WANT: u8 = 33;
const KIND_PART: u8 = 34;
const PART_HEAD_LEN: usize = 12;

/// The list that the sender has.
///
/// ```text
///  0     1         9                    41      45
/// +-----+---------+--------------------+-------+
/// | ask | version | digest             | len   |   without a list: zeroes behind ask
/// +-----+---------+--------------------+-------+
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListInventory {
    /// True if the sender wants to hear that the receiver has this list or a newer one, and has not
    /// heard it yet.
    pub ask: bool,
    /// The list's version; 0 if the sender has none.
    pub version: u64,
    /// BLAKE3 of the list.
    pub digest: [u8; 32],
    /// The list's length in bytes.
    pub len: u32,
}

impl ListInventory {
    /// Length of the body in bytes.
    pub const LEN: usize = 45;

    fn parse(r: &mut Reader<'_>) -> Result<ListInventory, ParseError> {
        let have = ListInventory {
            ask: r.flag("ask")?,
            version: r.u64("list version")?,
            digest: r.array("list digest")?,
            len: r.u32("list length")?,
        };
        let len = have.len as usize;
        if len > LIST_LEN_MAX {
            let (what, max) = ("list length", LIST_LEN_MAX);
            return Err(ParseError::TooLong { what, max, have: len });
        }
        let none = have.version == 0;
        if none != (len == 0) || (none && have.digest != [0; 32]) {
            return Err(ParseError::Invalid { what: "list length" });
        }
        Ok(have)
    }
}

/// Messages between neighbours about the authority's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListMessage {
    Have(ListInventory),
    /// Asks for parts of the receiver's list.
    Want {
        /// Version of that list.
        version: u64,
        /// Number of the part that the lowest bit of `bits` stands for.
        first: u32,
        /// Bitmap of the wanted parts, from `first` on; not zero.
        bits: u64,
    },
    /// A part of the sender's list.
    Part {
        /// Version of that list.
        version: u64,
        /// Number of the part, counted from 0.
        number: u32,
        /// At least one byte, at most [`LIST_PART_LEN`].
        bytes: Vec<u8>,
    },
}

impl ListMessage {
    /// Type bytes of these messages.
    pub const KINDS: core::ops::RangeInclusive<u8> = KIND_HAVE..=KIND_PART;

    /// The type byte.
    pub fn kind(&self) -> u8 {
        match self {
            ListMessage::Have(_) => KIND_HAVE,
            ListMessage::Want { .. } => KIND_WANT,
            ListMessage::Part { .. } => KIND_PART,
        }
    }

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            ListMessage::Have(have) => {
                out.push(u8::from(have.ask));
                out.extend_from_slice(&have.version.to_be_bytes());
                out.extend_from_slice(&have.digest);
                out.extend_from_slice(&have.len.to_be_bytes());
            }
            ListMessage::Want { version, first, bits } => {
                out.extend_from_slice(&version.to_be_bytes());
                out.extend_from_slice(&first.to_be_bytes());
                out.extend_from_slice(&bits.to_be_bytes());
            }
            ListMessage::Part { version, number, bytes } => {
                out.extend_from_slice(&version.to_be_bytes());
                out.extend_from_slice(&number.to_be_bytes());
                out.extend_from_slice(bytes);
            }
        }
    }

    /// Decodes the body of a message of type `kind`.
    pub fn parse(kind: u8, body: &[u8]) -> Result<ListMessage, ParseError> {
        let mut r = Reader::new(body);
        let message = match kind {
            KIND_HAVE => ListMessage::Have(ListInventory::parse(&mut r)?),
            KIND_WANT => {
                let (version, first) = (r.u64("list version")?, r.u32("first part")?);
                let bits = r.u64("wanted parts")?;
                if bits == 0 {
                    return Err(ParseError::Invalid { what: "wanted parts" });
                }
                ListMessage::Want { version, first, bits }
            }
            KIND_PART => return parse_part(r),
            _ => return Err(ParseError::Unknown { what: "control type", value: u32::from(kind) }),
        };
        r.finish("list message")?;
        Ok(message)
    }
}

fn parse_part(mut r: Reader<'_>) -> Result<ListMessage, ParseError> {
    let (version, number) = (r.u64("list version")?, r.u32("part number")?);
    match r.rest().len() {
        0 => Err(ParseError::TooShort { what: "part", need: 1, have: 0 }),
        have if have > LIST_PART_LEN => {
            Err(ParseError::TooLong { what: "part", max: LIST_PART_LEN, have })
        }
        _ => Ok(ListMessage::Part { version, number, bytes: r.rest().to_vec() }),
    }
}
