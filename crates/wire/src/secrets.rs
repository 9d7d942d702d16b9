//! Messages by which neighbours hand a network's next secret on (docs/design/wire/join.md).
//!
//! Each message is the body of one [`ControlMessages`](crate::ControlMessages) item, whose head has
//! the type byte.

use core::fmt;

use crate::{ParseError, Reader};

const KIND_HAVE: u8 = 38;
const KIND_GIVE: u8 = 39;

/// A node's state for the newest secret that its list names.
///
/// ```text
///  0     1     2           34
/// +-----+-----+-----------+
/// | ask | has | name 32   |
/// +-----+-----+-----------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretInventory {
    /// True if the sender has not yet heard that the receiver has the secret.
    pub ask: bool,
    /// True if the sender has stored the secret.
    pub has: bool,
    /// The secret's name in the sender's list.
    pub name: [u8; 32],
}

/// Messages between neighbours about the network's secret.
#[derive(Clone, PartialEq, Eq)]
pub enum SecretMessage {
    /// The secret that the sender's list names, and if the sender has it.
    Have(SecretInventory),
    /// The secret itself, for a neighbour that said it does not have it.
    Give([u8; 32]),
}

impl fmt::Debug for SecretMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretMessage::Have(have) => have.fmt(f),
            SecretMessage::Give(_) => f.write_str("Give(hidden)"),
        }
    }
}

impl SecretMessage {
    /// Type bytes of these messages.
    pub const KINDS: core::ops::RangeInclusive<u8> = KIND_HAVE..=KIND_GIVE;

    /// The type byte.
    pub fn kind(&self) -> u8 {
        match self {
            SecretMessage::Have(_) => KIND_HAVE,
            SecretMessage::Give(_) => KIND_GIVE,
        }
    }

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            SecretMessage::Have(SecretInventory { ask, has, name }) => {
                out.extend_from_slice(&[u8::from(*ask), u8::from(*has)]);
                out.extend_from_slice(name);
            }
            SecretMessage::Give(secret) => out.extend_from_slice(secret),
        }
    }

    /// Decodes the body of a message of type `kind`.
    pub fn parse(kind: u8, body: &[u8]) -> Result<SecretMessage, ParseError> {
        let mut r = Reader::new(body);
        let message = match kind {
            KIND_HAVE => SecretMessage::Have(SecretInventory {
                ask: r.flag("ask")?,
                has: r.flag("has")?,
                name: r.array("name of a secret")?,
            }),
            KIND_GIVE => SecretMessage::Give(r.array("secret")?),
            _ => return Err(ParseError::Unknown { what: "control type", value: u32::from(kind) }),
        };
        r.finish("secret message")?;
        Ok(message)
    }
}
