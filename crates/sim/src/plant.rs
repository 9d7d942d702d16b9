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
    /// See [`Flaw::LayerUnverified`].
    LayerUnverified,
    /// See [`Flaw::LayerReplayed`].
    LayerReplayed,
    /// See [`Flaw::BackReplayed`].
    BackReplayed,
    /// See [`Flaw::NumberTwice`].
    NumberTwice,
    /// See [`Flaw::LayerOpen`].
    LayerOpen,
    /// See [`Flaw::NoFiller`].
    NoFiller,
    /// See [`Flaw::CircuitKept`].
    CircuitKept,
    /// See [`Flaw::LegShort`].
    LegShort,
    /// See [`Flaw::PastCircuit`].
    PastCircuit,
    /// See [`Flaw::ControlUnmixed`].
    ControlUnmixed,
    /// See [`Flaw::MixHasty`].
    MixHasty,
    /// See [`Flaw::MixEarly`].
    MixEarly,
    /// See [`Flaw::MixLate`].
    MixLate,
    /// See [`Flaw::MixInOrder`].
    MixInOrder,
    /// See [`Flaw::MixMoves`].
    MixMoves,
    /// See [`Flaw::MixOverflows`].
    MixOverflows,
    /// See [`Flaw::MixNoShare`].
    MixNoShare,
    /// See [`Flaw::CoverPauses`].
    CoverPauses,
    /// See [`Flaw::CoverPassesGaps`].
    CoverPassesGaps,
    /// See [`Flaw::CoverExtra`].
    CoverExtra,
    /// See [`Flaw::CoverReports`].
    CoverReports,
}

impl Plant {
    /// What nodes do wrong themselves; none where a checker, a wire or a program is lied to.
    pub(crate) fn flaw(self) -> Option<Flaw> {
        Some(match self {
            Plant::LayerUnverified => Flaw::LayerUnverified,
            Plant::LayerReplayed => Flaw::LayerReplayed,
            Plant::BackReplayed => Flaw::BackReplayed,
            Plant::NumberTwice => Flaw::NumberTwice,
            Plant::LayerOpen => Flaw::LayerOpen,
            Plant::NoFiller => Flaw::NoFiller,
            Plant::CircuitKept => Flaw::CircuitKept,
            Plant::LegShort => Flaw::LegShort,
            Plant::PastCircuit => Flaw::PastCircuit,
            Plant::ControlUnmixed => Flaw::ControlUnmixed,
            Plant::MixHasty => Flaw::MixHasty,
            Plant::MixEarly => Flaw::MixEarly,
            Plant::MixLate => Flaw::MixLate,
            Plant::MixInOrder => Flaw::MixInOrder,
            Plant::MixMoves => Flaw::MixMoves,
            Plant::MixOverflows => Flaw::MixOverflows,
            Plant::MixNoShare => Flaw::MixNoShare,
            Plant::CoverPauses => Flaw::CoverPauses,
            Plant::CoverPassesGaps => Flaw::CoverPassesGaps,
            Plant::CoverExtra => Flaw::CoverExtra,
            Plant::CoverReports => Flaw::CoverReports,
            _ => return None,
        })
    }
}
