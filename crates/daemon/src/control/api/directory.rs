//! What a node has of its network's list and of the registrars' supplements, for programs that
//! follow them: a registrar's, for instance.

use serde::{Deserialize, Serialize};

use super::Mandate;

/// Most bytes of the list in one reply.
pub const LIST_PART_MAX: usize = 1 << 20;
/// Most supplements in one reply.
pub const STEPS_REPLY_MAX: usize = 1_024;

/// The list in force and the chains of its mandates, in short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Directory {
    /// As in [`super::Authority::state`].
    pub state: String,
    /// Version of the list that was accepted last.
    pub version: u64,
    /// BLAKE3 of its bytes, as hex.
    pub digest: String,
    /// Length in bytes.
    pub len: u64,
    /// When it was signed, in seconds since 1970.
    pub issued_unix_s: u64,
    /// Its mandates, and how much of each chain is here.
    pub mandates: Vec<Mandate>,
    /// True if a neighbour has said since the start what supplements it has, and none of them is
    /// missing here.
    #[serde(default)]
    pub has_caught_up: bool,
    /// The end of the ledger as the registrar beside this node gave it last.
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
    /// The last sum, as 16 hex digits.
    pub sum: String,
}

/// A part of the list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListPart {
    /// Version of the list.
    pub version: u64,
    /// Length of the whole list in bytes.
    pub len: u64,
    /// Where the part begins.
    pub skip: u64,
    /// Its bytes, at most [`LIST_PART_MAX`], as base64.
    pub bytes: String,
}

/// Supplements of one mandate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Steps {
    /// Number of the first one.
    pub first: u64,
    /// Their bytes, as base64; at most [`STEPS_REPLY_MAX`].
    pub steps: Vec<String>,
}

/// A secret as base64, which no log shows.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Hidden {
    /// The text.
    pub text: String,
}

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hidden")
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.text);
    }
}

/// Shows that a program knows this secret of the network.
pub fn secret_proof(secret: &shoal_crypto::NetworkSecret) -> String {
    use base64::Engine;
    let proof = shoal_crypto::kdf(&secret.0, "shoal v1 secret for a program", &[]);
    base64::engine::general_purpose::STANDARD.encode(proof)
}
