//! What can go wrong, by whose fault.

use shoal_crypto::bls::BadElement;
use shoal_wire::ParseError;

/// Why a signature is refused, cheapest reason first. Nothing was changed by the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    /// Bytes that encode no signature.
    #[error("malformed signature: {0}")]
    Malformed(BadElement),
    /// Not as long as a signature is.
    #[error("malformed signature: wrong length")]
    Length,
    /// Made for an epoch that is not, or no longer, accepted.
    #[error("signed for another epoch")]
    Epoch,
    /// The proof of knowledge doesn't hold: corrupted, or for another message, group or epoch.
    #[error("the proof does not hold")]
    Proof,
    /// The proof holds, but over no credential of this group's issuer.
    #[error("no credential of this group's issuer")]
    Credential,
}

/// Why a key, request, credential, share or opening is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Bytes that can't be decoded.
    #[error("malformed: {0}")]
    Parse(#[from] ParseError),
    /// A file of another kind; this one was expected.
    #[error("not a file of this kind: expected {0}")]
    Kind(&'static str),
    /// Bytes that are no group element.
    #[error("malformed: {what}: {why}")]
    Element {
        /// The field.
        what: &'static str,
        /// What is wrong with it.
        why: BadElement,
    },
    /// Belongs to another group.
    #[error("made for another group")]
    OtherGroup,
    /// A proof or signature inside doesn't hold.
    #[error("{0} does not hold")]
    Proof(&'static str),
    /// The signature that is to be opened is not valid.
    #[error("the signature is not valid: {0}")]
    Signature(#[from] Reject),
    /// A name or key that is registered already.
    #[error("{0} is registered already")]
    Duplicate(&'static str),
    /// A name that is not registered.
    #[error("no such member")]
    UnknownMember,
    /// The member is revoked.
    #[error("the member is revoked since epoch {0}")]
    Revoked(u32),
    /// A point of small order, under which signatures hold that nobody made.
    #[error("{0} is of small order, and so nobody's")]
    WeakKey(&'static str),
    /// Made for another epoch than the signature.
    #[error("the notice is not of the signature's epoch")]
    OtherEpoch,
    /// The issuer signed a notice of a later epoch, which begins when it is published.
    #[error("the notice is of an epoch that is over: a notice of epoch {0} was seen")]
    EpochOver(u32),
    /// The issuer signed two notices for one epoch, which together prove it.
    #[error("the issuer signed two different notices for epoch {0}: keep both, they prove it")]
    TwoNotices(u32),
    /// A stamp's time, which is the signer's word, is not of its epoch.
    #[error("the stamp's time lies outside epoch {0}")]
    OutsideEpoch(u32),
    /// The trustee's shares are of other dealings than the group's opening key.
    #[error("the group's opening key is not the sum of these dealings")]
    OtherDealings,
    /// The opened identity is not in the registry.
    #[error("the signer is not in the registry")]
    UnknownSigner,
    /// Fewer valid shares of different trustees than the threshold.
    #[error("{have} valid shares where {need} are needed")]
    TooFewShares {
        /// The threshold.
        need: usize,
        /// Shares that hold.
        have: usize,
    },
    /// A parameter outside its range.
    #[error("{0} is out of range")]
    Range(&'static str),
    /// A name that can't be written down unmistakably, or is too long.
    #[error("{0}: expected 1 to {max} printable ASCII characters, no space first or last",
        max = crate::codec::NAME_MAX)]
    Name(&'static str),
    /// A table is full.
    #[error("{0} is full")]
    Full(&'static str),
    /// The process was forked or restored since the pool was seeded; nonces could repeat.
    #[error("forked since the nonces were seeded: reseed first")]
    Forked,
}
