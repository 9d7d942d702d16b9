//! Errors.

use shoal_crypto::bls::BadElement;
use shoal_wire::ParseError;

/// Reasons why a signature is refused, in the order of the checks, cheapest first. Nothing has
/// changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The bytes encode no signature.
    #[error("malformed signature: {0}")]
    Malformed(BadElement),
    /// The length is not that of a signature.
    #[error("malformed signature: wrong length")]
    Length,
    /// The signature's epoch is not accepted, or no longer.
    #[error("signed for another epoch")]
    Epoch,
    /// The proof of knowledge is wrong: corrupted, or for another message, group or epoch.
    #[error("the proof does not hold")]
    Proof,
    /// The proof is right, but not over a credential of this group's issuer.
    #[error("no credential of this group's issuer")]
    Credential,
}

/// Reasons why a key, request, credential, share or opening is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes can't be decoded.
    #[error("malformed: {0}")]
    Parse(#[from] ParseError),
    /// The file is of another kind than this expected one.
    #[error("not a file of this kind: expected {0}")]
    Kind(&'static str),
    /// The bytes are no group element.
    #[error("malformed: {what}: {why}")]
    Element { what: &'static str, why: BadElement },
    #[error("made for another group")]
    OtherGroup,
    /// A proof or signature in the structure is wrong.
    #[error("{0} does not hold")]
    Proof(&'static str),
    /// The signature to open is invalid.
    #[error("the signature is not valid: {0}")]
    Signature(#[from] SignatureError),
    #[error("{0} is registered already")]
    Duplicate(&'static str),
    #[error("no such member")]
    UnknownMember,
    #[error("the member is revoked since epoch {0}")]
    Revoked(u32),
    /// A key is of small order: under such a key signatures verify that nobody made.
    #[error("{0} has small order, so it belongs to nobody")]
    WeakKey(&'static str),
    /// The notice belongs to another epoch than the signature.
    #[error("the notice is not of the signature's epoch")]
    OtherEpoch,
    /// The issuer signed a notice of a later epoch; each notice ends earlier epochs.
    #[error("the notice is of an epoch that is over: a notice of epoch {0} was seen")]
    EpochOver(u32),
    /// The issuer signed two different notices for one epoch, which together prove that.
    #[error("the issuer signed two different notices for epoch {0}: keep both as proof")]
    TwoNotices(u32),
    /// A stamp's time, as its signer states it, is outside its epoch.
    #[error("the stamp's time lies outside epoch {0}")]
    OutsideEpoch(u32),
    /// The trustee's shares come from other dealings than the group's opening key.
    #[error("the group's opening key is not the sum of these dealings")]
    OtherDealings,
    /// The opened point is not in the registry.
    #[error("the signer is not in the registry")]
    UnknownSigner,
    /// There are fewer valid shares of different trustees than the threshold.
    #[error("{have} valid shares where {need} are needed")]
    TooFewShares { need: usize, have: usize },
    #[error("{0} is out of range")]
    Range(&'static str),
    /// The name has other characters than printable ASCII, spaces at its ends, or is empty or too
    /// long.
    #[error("{0}: expected 1 to {max} printable ASCII characters, no space first or last",
        max = crate::codec::NAME_MAX)]
    Name(&'static str),
    #[error("{0} is full")]
    Full(&'static str),
    /// The process was forked, or restored from a snapshot, since the pool was seeded: nonces could
    /// repeat.
    #[error("forked since the nonces were seeded: reseed first")]
    Forked,
}
