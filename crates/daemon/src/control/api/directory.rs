//! State of the network's list and the registrars' supplements at a node. Programs that follow
//! them, such as a registrar, ask for it.

use serde::{Deserialize, Serialize};

use super::MandateStatus;

/// Most bytes of the list in one reply.
pub const LIST_PART_MAX: usize = 1 << 20;
/// Most supplements in one reply.
pub const STEPS_REPLY_MAX: usize = 1_024;

/// Summary of the list in force and the chains of its mandates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DirectoryStatus {
    /// See [`super::AuthorityStatus::state`].
    pub state: String,
    /// Version of the newest accepted list.
    pub version: u64,
    /// BLAKE3 of the list's bytes, as hex.
    pub digest: String,
    /// Length of the list in bytes.
    pub len: u64,
    /// Time of the signature, in seconds since 1970.
    pub issued_unix_s: u64,
    /// Mandates of the list, with this node's part of each chain.
    pub mandates: Vec<MandateStatus>,
    /// True if a neighbour has said since the start which supplements it has, and this node has
    /// them all.
    #[serde(default)]
    pub has_caught_up: bool,
    /// End of the ledger, as the registrar beside this node reported it last.
    #[serde(default)]
    pub ledger: Option<LedgerEnd>,
}

/// The end of a registrar's ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEnd {
    /// The id of the registrar's mandate, as hex.
    pub mandate: String,
    /// Length of the ledger in bytes.
    pub len: u64,
    /// Checksum of the last record, as 16 hex digits.
    pub sum: String,
}

/// A part of the list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListPart {
    /// Version of the list.
    pub version: u64,
    /// Length of the whole list in bytes.
    pub len: u64,
    /// Offset at which the part begins.
    pub skip: u64,
    /// Bytes of the part, at most [`LIST_PART_MAX`], as base64.
    pub bytes: String,
}

/// Supplements of one mandate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SupplementPage {
    /// Number of the first supplement.
    pub first: u64,
    /// Supplements as base64; at most [`STEPS_REPLY_MAX`].
    pub steps: Vec<String>,
}

/// A secret as base64; logs show only the type's name.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct RedactedText {
    /// Base64 of the secret.
    pub text: String,
}

impl std::fmt::Debug for RedactedText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hidden")
    }
}

impl Drop for RedactedText {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.text);
    }
}

/// Proof that a program knows this secret of the network.
pub fn secret_proof(secret: &shoal_crypto::NetworkSecret) -> String {
    let proof: [u8; 32] = shoal_crypto::kdf(&secret.0, "shoal v1 secret for a program", &[]);
    shoal_crypto::encoding::base64(&proof)
}
