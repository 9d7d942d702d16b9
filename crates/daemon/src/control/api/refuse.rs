//! Reasons why an offered file was declined, or a transfer given up.

use serde::{Deserialize, Serialize};

/// Reason why an offered file was declined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefuseReason {
    /// Nobody at the receiver accepts files of this sender at present.
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
                "the network's policy, in the receiver's list, does not allow it; compare that \
                 list with the one here"
            }
        }
    }
}

/// Reason why a transfer was given up or broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelReason {
    /// The person at this or the other end stopped it.
    Stopped,
    /// The source file changed, shrank or could not be read while it was sent.
    SourceChanged,
    /// The receiver could not write (disk full, quota, device error).
    WriteFailed,
    /// The hash of what arrived is not the hash of what was sent.
    HashMismatch,
    /// The other end went silent for too long.
    TimedOut,
    /// A file of that name with other content exists.
    Exists,
    /// The other node shut down or lost the session.
    PeerLost,
    /// A newer transfer of this file replaces this one.
    Superseded,
    /// The receiver gave the slot to another sender that waited; the file may be offered again.
    PutOff,
}

impl CancelReason {
    /// The reason in words.
    pub const fn words(self) -> &'static str {
        match self {
            CancelReason::Stopped => "stopped by the user",
            CancelReason::SourceChanged => {
                "the file changed or could not be read while it was being sent"
            }
            CancelReason::WriteFailed => "the receiver could not write it",
            CancelReason::HashMismatch => "the hash of what arrived differs from the source's",
            CancelReason::TimedOut => "the other end went silent",
            CancelReason::Exists => "another file of that name exists at the receiver",
            CancelReason::PeerLost => "the other node went away",
            CancelReason::Superseded => {
                "replaced: this file was sent again, and the newer transfer continues instead"
            }
            CancelReason::PutOff => "put off: the receiver takes another sender's file first",
        }
    }
}
