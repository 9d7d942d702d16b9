//! Why there can be no desk.

use shoal_directory::Refused;

/// Why there can be no desk.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    /// The list is refused.
    #[error("the list: {0}")]
    List(#[from] Refused),
    /// The ledger's chain does not fit the list's mandate.
    #[error(
        "the ledger's step {number} does not fit the mandate: {why}; let the authority adopt the \
         members and sign a mandate with another serial, and begin another ledger; or, if the \
         mandate was narrowed, let it give the limits of before again"
    )]
    Chain {
        /// Which step.
        number: u64,
        /// What is wrong.
        why: String,
    },
}
