//! Names of the network's secrets in the list, during a change of the secret
//! (docs/design/membership.md).
//!
//! The list names secrets and does not contain them: a name is a hash. At most two count at a time,
//! so that a node tries no more than two seals per handshake.

use shoal_wire::{ParseError, Reader};

use crate::Error;
use crate::fields::FieldKind;

/// A node that ignores this field keeps its old secret. After the change it reaches nobody and
/// admits nobody.
pub(crate) const SECRETS: FieldKind = FieldKind { number: 4, is_critical: false, what: "secrets" };

const SETTLED: u8 = 0;
const NEXT: u8 = 1;
const PREVIOUS: u8 = 2;

/// Name of a secret in the list: [`shoal_crypto::NetworkSecret::name`].
pub type SecretName = [u8; 32];

/// The network secrets that count.
///
/// ```text
/// current 32 | change 1 (0: none; 1: next; 2: previous) | next or previous 32 | until 8 (previous)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretNames {
    /// The secret for own handshakes.
    pub current: SecretName,
    /// The next or previous secret, if any.
    pub change: SecretChange,
}

/// State of a change in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretChange {
    /// There is one secret.
    Settled,
    /// The next current secret, which neighbours pass on.
    Next(SecretName),
    /// The former secret, accepted until this time in seconds since 1970.
    Previous(SecretName, u64),
}

/// State of a change at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationStage {
    /// One secret counts.
    Settled,
    /// Another secret is announced.
    Announced,
    /// The former secret is accepted until this time in seconds since 1970.
    Switched(u64),
}

impl RotationStage {
    /// Word for people and programs.
    pub fn word(self) -> &'static str {
        match self {
            RotationStage::Settled => "settled",
            RotationStage::Announced => "announced",
            RotationStage::Switched(_) => "switched",
        }
    }

    /// End of the acceptance of the former secret, in seconds since 1970; `None` if there is no
    /// former secret.
    pub fn old_until_unix_s(self) -> Option<u64> {
        match self {
            RotationStage::Switched(until) => Some(until),
            RotationStage::Settled | RotationStage::Announced => None,
        }
    }
}

impl SecretNames {
    /// The state of the change at `unix_s`.
    pub fn stage(&self, unix_s: u64) -> RotationStage {
        match self.change {
            SecretChange::Next(_) => RotationStage::Announced,
            SecretChange::Previous(_, until) if unix_s < until => RotationStage::Switched(until),
            SecretChange::Settled | SecretChange::Previous(..) => RotationStage::Settled,
        }
    }

    /// The newest named secret, which neighbours pass on.
    pub fn newest(&self) -> SecretName {
        match self.change {
            SecretChange::Next(next) => next,
            SecretChange::Settled | SecretChange::Previous(..) => self.current,
        }
    }

    /// The other secret accepted in handshakes at `unix_s`.
    pub fn other(&self, unix_s: u64) -> Option<SecretName> {
        match self.change {
            SecretChange::Settled => None,
            SecretChange::Next(next) => Some(next),
            SecretChange::Previous(previous, until) => (unix_s < until).then_some(previous),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let (SecretChange::Next(other) | SecretChange::Previous(other, _)) = self.change else {
            return Ok(());
        };
        if other == self.current {
            return Err(Error::Range(
                "the next or previous secret must differ from the current one",
            ));
        }
        Ok(())
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.current);
        match self.change {
            SecretChange::Settled => out.push(SETTLED),
            SecretChange::Next(next) => {
                out.push(NEXT);
                out.extend_from_slice(&next);
            }
            SecretChange::Previous(previous, until) => {
                out.push(PREVIOUS);
                out.extend_from_slice(&previous);
                out.extend_from_slice(&until.to_be_bytes());
            }
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<SecretNames, Error> {
        let what = SECRETS.what;
        let current = reader.array(what)?;
        let change = match reader.u8(what)? {
            SETTLED => SecretChange::Settled,
            NEXT => SecretChange::Next(reader.array(what)?),
            PREVIOUS => SecretChange::Previous(reader.array(what)?, reader.u64(what)?),
            _ => return Err(ParseError::Invalid { what }.into()),
        };
        Ok(SecretNames { current, change })
    }
}
