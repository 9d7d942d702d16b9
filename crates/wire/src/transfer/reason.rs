//! Why a transfer didn't start or ended early.

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

            /// For people, in the middle of a sentence.
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
    /// Why a receiver refuses an offer.
    RefuseReason, "refuse reason" {
        /// Nobody there waits for files from this host.
        NoReceiver = 1: "nobody is receiving there",
        /// The name is taken, and the receiver overwrites nothing.
        Exists = 2: "the file exists there already",
        /// Larger than the receiver allows.
        TooLarge = 3: "the file is larger than the receiver allows",
        /// Not enough room.
        NoSpace = 4: "the receiver's disk is full",
        /// The name is not one a receiver would create.
        BadName = 5: "the receiver doesn't accept this name",
        /// This host may not send there.
        Denied = 6: "the receiver doesn't accept files from this host",
        /// Too many transfers at once.
        Busy = 7: "the receiver has too many transfers",
        /// The policy of the network does not allow it.
        Policy = 8: "the network's policy, as the receiver has it, does not allow it",
    }
}

reasons! {
    /// Why a transfer ended early.
    CancelReason, "cancel reason" {
        /// Somebody stopped it.
        Cancelled = 1: "cancelled",
        /// The source file could not be read.
        SourceFailed = 2: "the file could not be read",
        /// The source file changed or shrank while it was sent.
        SourceChanged = 3: "the file changed while it was being sent",
        /// The receiver could not write.
        SinkFailed = 4: "the receiver could not write the file",
        /// The receiver's disk is full.
        NoSpace = 5: "the receiver's disk is full",
        /// The file arrived, but it is not the one that was sent.
        HashMismatch = 6: "the file that arrived is not the one that was sent",
        /// The other end doesn't know this transfer (any more).
        Unknown = 7: "the other end doesn't know this transfer any more",
        /// Nothing was heard for too long.
        Timeout = 8: "nothing was heard from the other end",
        /// The session with the peer is gone.
        PeerLost = 9: "the session with the other end was lost",
        /// The final name appeared while the file was on its way.
        Exists = 10: "the file exists there already",
        /// The same file was offered once more, and that transfer goes on in place of this one.
        Superseded = 11: "the same file was sent again meanwhile",
        /// The receiver gave its place to another sender; it may be offered again.
        PutOff = 12: "the receiver gives its place to another sender",
    }
}
