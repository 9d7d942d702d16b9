//! Echo between hosts: `shoal ping`.
//!
//! ```text
//!  0      1       2    6     10
//! +------+-------+----+-----+   padding to the small class
//! | kind | reply | id | seq |
//! +------+-------+----+-----+
//! ```

use shoal_wire::{EdgeKind, ParseError, Reader};

/// One echo request or reply (docs/design/wire/frame.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Echo {
    pub(crate) reply: bool,
    pub(crate) id: u32,
    pub(crate) seq: u32,
}

impl Echo {
    pub(crate) const LEN: usize = 10;

    pub(crate) fn to_bytes(self) -> [u8; Echo::LEN] {
        let mut out = [0; Echo::LEN];
        out[0] = EdgeKind::Echo as u8;
        out[1] = u8::from(self.reply);
        out[2..6].copy_from_slice(&self.id.to_be_bytes());
        out[6..].copy_from_slice(&self.seq.to_be_bytes());
        out
    }

    /// Decodes `body`, kind byte first, padding allowed.
    pub(crate) fn parse(body: &[u8]) -> Result<Echo, ParseError> {
        let mut reader = Reader::new(body);
        reader.u8("echo kind")?;
        let reply = match reader.u8("echo reply flag")? {
            0 => false,
            1 => true,
            value => {
                return Err(ParseError::Unknown { what: "echo reply flag", value: value.into() });
            }
        };
        Ok(Echo { reply, id: reader.u32("echo id")?, seq: reader.u32("echo sequence")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_refusals() {
        let echo = Echo { reply: true, id: 7, seq: 9 };
        let mut bytes = echo.to_bytes().to_vec();
        bytes.resize(128, 0);
        assert_eq!(Echo::parse(&bytes), Ok(echo));
        bytes[1] = 2;
        assert!(Echo::parse(&bytes).is_err());
        assert!(Echo::parse(&bytes[..9]).is_err());
    }
}
