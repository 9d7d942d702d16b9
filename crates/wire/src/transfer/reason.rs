//! Reasons why a transfer didn't start or ended early.

use crate::ParseError;

macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident, $what:literal {
        $($(#[$d:meta])* $v:ident = $n:literal: $t:literal),+ $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$d])* $v = $n),+ }

        impl $name {
            /// Every reason.
            pub const ALL: &'static [$name] = &[$($name::$v),+];

            /// From the wire's byte.
            pub const fn from_byte(byte: u8) -> Result<$name, ParseError> {
                match byte {
                    $($n => Ok($name::$v),)+
                    _ => Err(ParseError::Unknown { what: $what, value: byte as u32 }),
                }
            }

            /// Text for people, in the middle of a sentence.
            pub const fn text(self) -> &'static str {
                match self { $($name::$v => $t),+ }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.text())
            }
        }
    };
}

reasons! {
    /// Reason why a receiver refuses an offer.
    RefuseReason, "refuse reason" {
        /// No program at the receiver waits for files from this host.
        NoReceiver = 1: "nobody is receiving there",
        /// The name exists, and the receiver doesn't overwrite files.
        Exists = 2: "the file exists there already",
        /// The file is larger than the receiver allows.
        TooLarge = 3: "the file is larger than the receiver allows",
        /// The receiver's disk has too little room.
        NoSpace = 4: "the receiver's disk is full",
        /// The receiver would not create a file of this name.
        BadName = 5: "the receiver doesn't accept this name",
        /// The receiver doesn't accept files from this host.
        Denied = 6: "the receiver doesn't accept files from this host",
        /// The receiver has too many transfers at once.
        Busy = 7: "the receiver has too many transfers",
        /// The network's policy does not allow it.
        Policy = 8: "the network's policy, as the receiver has it, does not allow it",
    }
}

reasons! {
    /// Reason why a transfer ended early.
    CancelReason, "cancel reason" {
        /// A user or program stopped it.
        Cancelled = 1: "cancelled",
        /// The source file could not be read.
        SourceFailed = 2: "the file could not be read",
        /// The source file changed or shrank while it was sent.
        SourceChanged = 3: "the file changed while it was being sent",
        /// The receiver could not write the file.
        SinkFailed = 4: "the receiver could not write the file",
        /// The receiver's disk is full.
        NoSpace = 5: "the receiver's disk is full",
        /// The file arrived, but it is not the one that was sent.
        HashMismatch = 6: "the file that arrived is not the one that was sent",
        /// The other end doesn't know this transfer, or has forgotten it.
        Unknown = 7: "the other end doesn't know this transfer any more",
        /// The other end was silent for too long.
        Timeout = 8: "nothing was heard from the other end",
        /// The session with the peer ended.
        PeerLost = 9: "the session with the other end was lost",
        /// A file with the final name appeared during the transfer.
        Exists = 10: "the file exists there already",
        /// Another offer of this file came, and that transfer replaces this one.
        Superseded = 11: "another transfer of this file replaced this one",
        /// The receiver gave this transfer's slot to another sender. The sender may offer the file
        /// again.
        PutOff = 12: "the receiver gave its place to another sender",
    }
}
