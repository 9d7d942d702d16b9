//! Why bytes, or a list, have no effect.

use shoal_wire::ParseError;

use crate::span::span;

/// Why bytes are no descriptor or list of this authority.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// They can't be decoded.
    #[error("{0}")]
    Parse(#[from] ParseError),
    /// They are something else.
    #[error("is no {0}")]
    Kind(&'static str),
    /// They are of the format before this one.
    #[error(
        "is a {0} in format 1, which this version of shoal does not read: make a new authority \
         (`shoal authority init`), sign every member anew, and give all nodes its key and list"
    )]
    Old(&'static str),
    /// They have a field that nobody may ignore.
    #[error("has the critical field {0}, which this version of shoal does not know: update shoal")]
    Critical(u16),
    /// The signature is not the authority's.
    #[error("not signed by this network's authority: another network's, or changed on its way")]
    Signature,
    /// A value that the format rules out.
    #[error("{0}")]
    Range(&'static str),
    /// Two members have one name, or one that is revoked is a member.
    #[error("member {name:?}: {why}")]
    Member {
        /// Which.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Two members have one key, address or prefix.
    #[error("member {name:?}: its {what} is that of {other:?} too")]
    Shared {
        /// The one.
        name: String,
        /// The other.
        other: String,
        /// What they share.
        what: String,
    },
    /// A member names a mix or a tier of cover that the policy does not have.
    #[error("member {name:?}: {why}")]
    Unknown {
        /// Which.
        name: String,
        /// What it names, and what there is.
        why: String,
    },
    /// A mandate has what another one has.
    #[error("mandate {name:?}: {why}")]
    Mandate {
        /// Which.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The policy in the list can't be read.
    #[error("policy: {0}")]
    Policy(#[from] crate::PolicyError),
}

/// What is wrong with an entry of a file that people write, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryError {
    /// Which entry of its kind, from 0 on.
    pub index: usize,
    /// The key at fault.
    pub key: &'static str,
    /// The byte of the file's text at which it stands.
    pub offset: usize,
    /// What was expected, and what was found.
    pub message: String,
}

/// Why a list that the authority did sign has no effect. The one in force stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A newer one was seen.
    #[error("version {found} is older than version {known}, which was seen before")]
    Older {
        /// Its version.
        found: u64,
        /// The newest version seen.
        known: u64,
    },
    /// Two lists with one version: the authority's key or folder is used in two places.
    #[error("another list with version {0} was seen before: is the authority's key in two places?")]
    Twin(u64),
    /// A newer list with an older descriptor of a member.
    #[error(
        "member {name:?}: version {found} is older than version {known}, which was seen before"
    )]
    OlderMember {
        /// Which.
        name: String,
        /// Version of its descriptor there.
        found: u64,
        /// The newest version seen.
        known: u64,
    },
    /// Issued later than now.
    #[error("it was issued {} in the future: is this machine's clock right?", span(*.0))]
    Future(u64),
}
