//! What a run breaks on purpose, to see that a checker notices.
//!
//! Either nodes do something wrong ([`Flaw`]), or what a checker is shown differs from what they
//! did, or what happens between them and programs, disks and wires does.

use serde::{Deserialize, Serialize};
use shoal_crypto::Flaw;

/// Something broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Plant {
    /// A piece of a file stands in a frame.
    Plaintext,
    /// A frame is a byte short.
    OddSize,
    /// A frame ends in zeros.
    Zeros,
    /// Counters start again.
    Counter,
    /// Two routers point at each other.
    Loop,
    /// A router has forgotten a route at the end.
    BlackHole,
    /// A disk flips a bit of what arrived.
    DiskBit,
    /// A disk shows a file that nobody sent there.
    Ghost,
    /// A sender is not told how its file ended.
    Silence,
    /// A frame vanishes between the wire and the machine.
    Vanish,
    /// A frame vanishes between the machine and the wire.
    VanishOut,
    /// A frame vanishes on a wire.
    VanishOnWire,
    /// A cell vanishes in a hold.
    VanishHeld,
    /// An egress or a hold lets a cell past what waits.
    Overtake,
    /// An egress holds more than it may.
    Queue,
    /// A table has more sessions than it may.
    Table,
    /// An idle host never answers.
    Deaf,
    /// A machine always has something due.
    Busy,
    /// A ring between workers delivers a parcel twice.
    RingTwice,
    /// A worker is told once more what held before.
    StaleOrder,
    /// A program is given a packet twice.
    PacketTwice,
    /// A program is given a packet of which a bit was flipped.
    PacketChanged,
    /// A program is given nothing any more.
    PacketLost,
    /// A firewall lets everything pass.
    PacketAllowed,
    /// Cells of a pair of hosts that is not hidden count as those of one that is.
    Named,
    /// A node has the keys of all others.
    Keys,
    /// A node has more circuits than it may.
    Circuits,
    /// Hosts wait for a millisecond for packets that others overtook.
    ShortHold,
    /// Hosts wait for five seconds for them.
    LongHold,
    /// A crash breaks a rule, but only where at least three files are sent: something for the
    /// shrinking of failures to find.
    CrashLosesFile,
    /// Hosts build circuits of one relay, whatever they were asked for.
    OneRelay,
    /// Nodes take handshakes under the old secret of the network no more as soon as there is a
    /// newer one.
    SecretDropped,
    /// Nodes give the next secret to whoever asks, and keep links with a member that was removed.
    SecretGiven,
    /// Nodes keep no secret for their next start.
    SecretForgotten,
    /// A node does this wrong itself. What is kept for a replay has none: a flaw that a checker
    /// notices is no failure.
    #[serde(skip)]
    Node(Flaw),
}

impl Plant {
    /// What nodes do wrong themselves; none where a checker, a wire or a program is lied to.
    pub(crate) fn flaw(self) -> Option<Flaw> {
        match self {
            Plant::Node(flaw) => Some(flaw),
            _ => None,
        }
    }
}
