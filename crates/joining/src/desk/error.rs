//! Reasons why a desk can't be opened.

use shoal_directory::ListRejection;

/// Reasons why a desk can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    #[error("the list: {0}")]
    List(#[from] ListRejection),
    /// The ledger's supplements do not fit the mandate in the list.
    #[error(
        "the ledger's step {number} does not fit the mandate: {why}. If the mandate was narrowed, \
         the authority must restore its limits. Otherwise the authority must adopt the members and \
         sign a mandate with another serial; then begin a new ledger"
    )]
    Chain { number: u64, why: String },
}
