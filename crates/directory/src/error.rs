//! Reasons why bytes or lists are refused.

use shoal_wire::ParseError;

use crate::span::span;

/// Reasons why bytes are no descriptor or list of this authority.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Parse(#[from] ParseError),
    /// The magic bytes are wrong.
    #[error("is no {0}")]
    Kind(&'static str),
    /// The bytes have format 1.
    #[error(
        "is a {0} in format 1, which this version of shoal does not read: make a new authority \
         (`shoal authority init --dir DIR`), sign every member anew, and give all nodes its key \
         and list"
    )]
    Old(&'static str),
    /// An unknown field is critical.
    #[error("has the critical field {0}, which this version of shoal does not know: update shoal")]
    Critical(u16),
    /// The signature is not the authority's.
    #[error(
        "not signed by this network's authority: it belongs to another network, or was changed on \
         its way"
    )]
    Signature,
    /// A value is outside the format's limits.
    #[error("{0}")]
    Range(&'static str),
    /// A member's name is taken or its key is revoked.
    #[error("member {name:?}: {why}")]
    Member { name: String, why: &'static str },
    #[error("member {name:?}: its {what} is also that of {other:?}")]
    Shared {
        /// Name of one member.
        name: String,
        /// Name of the other member.
        other: String,
        /// The shared key, address or prefix.
        what: String,
    },
    /// A member refers to an undefined mix or tier.
    #[error("member {name:?}: {why}")]
    Unknown {
        name: String,
        /// The undefined name, and the defined ones.
        why: String,
    },
    /// Two mandates conflict, or a mandate's key is revoked.
    #[error("mandate {name:?}: {why}")]
    Mandate { name: String, why: &'static str },
    /// The preset is incomplete, or names a tier that the policy lacks.
    #[error("preset: {0}")]
    Preset(String),
    /// The policy in the list can't be read.
    #[error("policy: {0}")]
    Policy(#[from] crate::PolicyError),
}

/// A fault in an entry of a file that people write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryError {
    /// Index of the entry among those of its kind, from 0.
    pub index: usize,
    /// The key at fault.
    pub key: &'static str,
    /// Offset in the file's text in bytes.
    pub offset: usize,
    /// The expected and the found value.
    pub message: String,
}

/// Reasons why a list with a valid signature is refused. The list in force stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListRejection {
    #[error("version {found} is older than version {known}, which was seen before")]
    Older {
        found: u64,
        /// The newest version seen before.
        known: u64,
    },
    /// Another list has the same version: the authority's key or folder is used in two places.
    #[error("another list with version {0} was seen before: is the authority's key in two places?")]
    Twin(u64),
    /// The list has an older descriptor of a member than a list before.
    #[error(
        "member {name:?}: version {found} is older than version {known}, which was seen before"
    )]
    OlderMember {
        name: String,
        /// Version of the descriptor in this list.
        found: u64,
        /// The newest version seen before.
        known: u64,
    },
    #[error("the list was issued {} in the future: is this machine's clock right?", span(*.0))]
    Future(u64),
}
