//! How a network's secret changes (docs/authority.md section 7): what the list says of it.
//!
//! The list names secrets, and holds none: a name is a hash. At most two count at once, so that a
//! node that takes handshakes under both tries no more than two seals.

use shoal_wire::{ParseError, Reader};

use crate::Error;
use crate::fields::Kind;

/// A node that ignores it keeps the secret that it has, and reaches nobody once that is gone: it
/// lets nobody in.
pub(crate) const SECRETS: Kind = Kind { number: 4, is_critical: false, what: "secrets" };

const SETTLED: u8 = 0;
const NEXT: u8 = 1;
const PREVIOUS: u8 = 2;

/// What the list calls a secret by: [`shoal_crypto::NetworkSecret::name`].
pub type SecretName = [u8; 32];

/// Which secrets of the network count.
///
/// ```text
/// current 32 | change 1 (0: none; 1: next; 2: previous) | next or previous 32 | until 8 (previous)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretNames {
    /// Handshakes begin with it.
    pub current: SecretName,
    /// The one that comes or goes.
    pub change: SecretChange,
}

/// How far a change of the secret is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretChange {
    /// There is one secret.
    Settled,
    /// This one will be the current one: neighbours hand it on.
    Next(SecretName),
    /// This one was the current one, and is taken until then, in seconds since 1970.
    Previous(SecretName, u64),
}

/// What a change of the secret has come to at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// One secret counts.
    Settled,
    /// Another one comes.
    Announced,
    /// The one before is taken until then, in seconds since 1970.
    Switched(u64),
}

impl Stage {
    /// Its word in what people and programs read.
    pub fn word(self) -> &'static str {
        match self {
            Stage::Settled => "settled",
            Stage::Announced => "announced",
            Stage::Switched(_) => "switched",
        }
    }

    /// Until when the secret before is taken, in seconds since 1970; none unless there is one.
    pub fn old_until_unix_s(self) -> Option<u64> {
        match self {
            Stage::Switched(until) => Some(until),
            Stage::Settled | Stage::Announced => None,
        }
    }
}

impl SecretNames {
    /// How far the change is at this time.
    pub fn stage(&self, unix_s: u64) -> Stage {
        match self.change {
            SecretChange::Next(_) => Stage::Announced,
            SecretChange::Previous(_, until) if unix_s < until => Stage::Switched(until),
            SecretChange::Settled | SecretChange::Previous(..) => Stage::Settled,
        }
    }

    /// The newest secret that is named, which neighbours hand on.
    pub fn newest(&self) -> SecretName {
        match self.change {
            SecretChange::Next(next) => next,
            SecretChange::Settled | SecretChange::Previous(..) => self.current,
        }
    }

    /// The secret beside the current one that handshakes are taken under at this time.
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
            return Err(Error::Range("the secret that comes or goes is not the current one"));
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
