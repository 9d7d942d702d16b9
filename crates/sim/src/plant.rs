//! Faults that are planted to test the checkers.
//!
//! There are three kinds. A node shows a [`PlantedFault`]. A checker is shown something that did
//! not happen. Something goes wrong between nodes and programs, disks or wires.

use serde::{Deserialize, Serialize};
use shoal_crypto::PlantedFault;

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InjectedFault {
    /// A frame contains a piece of a file.
    Plaintext,
    /// A frame is one byte short.
    OddSize,
    /// A frame ends in zeros.
    Zeros,
    /// Counters start again.
    Counter,
    /// Two routers point at each other.
    Loop,
    /// A router has lost a route at the end.
    BlackHole,
    /// A disk flips a bit of an arrived file.
    DiskBit,
    /// A disk has a file that nobody sent to it.
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
    /// An egress or a hold lets a cell overtake waiting ones.
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
    /// A worker gets an outdated order again.
    StaleOrder,
    /// A program is given a packet twice.
    PacketTwice,
    /// A program gets a packet with a flipped bit.
    PacketChanged,
    /// A program gets no further packets.
    PacketLost,
    /// A firewall lets everything pass.
    PacketAllowed,
    /// Cells between two hosts that are not hidden from each other count as cells of a hidden pair.
    Named,
    /// A node has the keys of all others.
    Keys,
    /// A node has more circuits than it may.
    Circuits,
    /// Hosts wait for only 1 ms for overtaken packets.
    ShortHold,
    /// Hosts wait for 5 s for overtaken packets.
    LongHold,
    /// A crash breaks a rule, but only if at least three files are sent. Tests the shrinking of
    /// failures.
    CrashLosesFile,
    /// Hosts build circuits of one relay, whatever the options say.
    OneRelay,
    /// Nodes refuse handshakes under the old network secret as soon as there is a newer one.
    SecretDropped,
    /// Nodes give the next secret to any node, and keep links with a removed member.
    SecretGiven,
    /// Nodes do not store the secret for their next start.
    SecretForgotten,
    /// Hosts go on with direct links while they may have none.
    BanIgnored,
    /// Nodes show this flaw. It is not serialized: a replay file has no flaw, since a flaw that a
    /// checker notices is no failure.
    #[serde(skip)]
    Node(PlantedFault),
}

impl InjectedFault {
    /// The flaw of nodes. None if a checker, a wire or a program is affected instead.
    pub(crate) fn flaw(self) -> Option<PlantedFault> {
        match self {
            InjectedFault::Node(flaw) => Some(flaw),
            _ => None,
        }
    }
}
