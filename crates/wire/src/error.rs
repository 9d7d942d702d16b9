//! Errors of decoding, and the cursor that reports them.

use core::fmt;

/// Reason why a message from the network could not be decoded. The attempt changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// Fewer bytes than the field needs.
    TooShort {
        /// The field.
        what: &'static str,
        /// Bytes that the field needs.
        need: usize,
        /// Bytes found.
        have: usize,
    },
    /// More bytes or entries than the format allows.
    TooLong {
        /// The field.
        what: &'static str,
        /// The limit.
        max: usize,
        /// Bytes or entries found.
        have: usize,
    },
    /// A type byte or enumerated field has a value that this version doesn't define.
    Unknown {
        what: &'static str,
        /// The value found.
        value: u32,
    },
    /// A field has a value that the format forbids (not zero where reserved, not UTF-8, ...).
    Invalid {
        /// The field.
        what: &'static str,
    },
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseError::TooShort { what, need, have } => {
                write!(f, "{what}: needs {need} bytes, has {have}")
            }
            ParseError::TooLong { what, max, have } => {
                write!(f, "{what}: {have} where at most {max} are allowed")
            }
            ParseError::Unknown { what, value } => write!(f, "{what}: unknown value {value}"),
            ParseError::Invalid { what } => write!(f, "{what}: value not allowed"),
        }
    }
}

impl std::error::Error for ParseError {}

/// A cursor over a received message. Every read names its field, for the error.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the first byte of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// The bytes not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Reads `n` bytes.
    pub fn bytes(&mut self, what: &'static str, n: usize) -> Result<&'a [u8], ParseError> {
        let short = ParseError::TooShort { what, need: n, have: self.rest.len() };
        let (head, tail) = self.rest.split_at_checked(n).ok_or(short)?;
        self.rest = tail;
        Ok(head)
    }

    /// Reads a fixed number of bytes.
    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], ParseError> {
        let short = ParseError::TooShort { what, need: N, have: self.rest.len() };
        let (head, tail) = self.rest.split_first_chunk::<N>().ok_or(short)?;
        self.rest = tail;
        Ok(*head)
    }

    /// Reads one byte.
    pub fn u8(&mut self, what: &'static str) -> Result<u8, ParseError> {
        Ok(self.array::<1>(what)?[0])
    }

    /// Reads one byte that is 0 or 1.
    pub fn flag(&mut self, what: &'static str) -> Result<bool, ParseError> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(ParseError::Invalid { what }),
        }
    }

    /// Reads a big-endian `u16`.
    pub fn u16(&mut self, what: &'static str) -> Result<u16, ParseError> {
        Ok(u16::from_be_bytes(self.array(what)?))
    }

    /// Reads a big-endian `u32`.
    pub fn u32(&mut self, what: &'static str) -> Result<u32, ParseError> {
        Ok(u32::from_be_bytes(self.array(what)?))
    }

    /// Reads a big-endian `u64`.
    pub fn u64(&mut self, what: &'static str) -> Result<u64, ParseError> {
        Ok(u64::from_be_bytes(self.array(what)?))
    }

    /// Refuses bytes that nothing has read.
    pub fn finish(self, what: &'static str) -> Result<(), ParseError> {
        match self.rest.len() {
            0 => Ok(()),
            have => Err(ParseError::TooLong { what, max: 0, have }),
        }
    }
}
