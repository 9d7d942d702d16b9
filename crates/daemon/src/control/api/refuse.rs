//! Why an offered file was declined.

use serde::{Deserialize, Serialize};

/// Why an offered file was declined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefuseReason {
    /// Nobody there receives from this sender now.
    NoReceiver,
    /// A file of that name exists.
    Exists,
    /// Larger than the receiver accepts.
    TooLarge,
    /// The receiver's disk has no room.
    NoSpace,
    /// The name may not be used (absolute, `..`, control characters, too long).
    BadName,
    /// The receiver may not write there.
    Denied,
    /// Too many transfers at once.
    Busy,
    /// The policy of the network, in the receiver's list, does not allow it.
    Policy,
}

impl RefuseReason {
    /// The reason in words for the person who sent the file.
    pub const fn words(self) -> &'static str {
        match self {
            RefuseReason::NoReceiver => {
                "nobody receives there: start `shoal receive` on that host, with --from naming you"
            }
            RefuseReason::Exists => "a file of that name exists at the receiver",
            RefuseReason::TooLarge => "larger than the receiver's --max-size",
            RefuseReason::NoSpace => "the receiver's disk has no room for it",
            RefuseReason::BadName => "the receiver does not allow that file name",
            RefuseReason::Denied => "the receiver may not write into its directory",
            RefuseReason::Busy => "the receiver has too many transfers at once; try again later",
            RefuseReason::Policy => {
                "the network's policy does not allow it by the list that the receiver has; does \
                 this node have the same?"
            }
        }
    }
}
