//! Event queue, and the line that all data passes.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::BinaryHeap;

use shoal_wire::Time;

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PacketDirection {
    /// To the receiver.
    Data = 0,
    /// To the sender.
    Back = 1,
}

/// A packet in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ModelPacket {
    /// For data: number of the packet, from 0. For an acknowledgement: number of the awaited
    /// packet.
    pub number: u64,
    /// Position in the order of sending. A retransmission has its own.
    pub order: u64,
    /// Time of sending. An acknowledgement carries that of the data that caused it.
    pub sent: Time,
    /// For an acknowledgement: the data that caused it. None for data.
    pub cause: Option<AckCause>,
}

/// Content of a selective acknowledgement about the data that caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AckCause {
    /// Number of the packet.
    pub number: u64,
    /// True if the receiver had the packet before (RFC 2883: DSACK).
    pub again: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RenoEvent {
    /// A packet reaches mix number `mix`, or the end of its path if there is no such mix.
    Arrive { way: PacketDirection, mix: u32, packet: ModelPacket },
    /// A timed mix releases its packets in one direction.
    Flush { way: PacketDirection, mix: u32 },
    /// An acknowledgement reaches the sender.
    Reply(ModelPacket),
    /// The resequencer's wait for a packet ends.
    HoldOver,
    /// The sender's retransmission timer may be due.
    Timer,
    /// The second half of the run begins.
    Half,
    /// The window is sampled.
    Sample,
}

/// Pending events. Events of one time happen in the order in which they were pushed.
#[derive(Default)]
pub(super) struct EventQueue {
    heap: BinaryHeap<Reverse<(Time, u64, RenoEvent)>>,
    pushed: u64,
}

impl EventQueue {
    pub(super) fn push(&mut self, at: Time, event: RenoEvent) {
        self.heap.push(Reverse((at, self.pushed, event)));
        self.pushed += 1;
    }

    pub(super) fn next(&mut self) -> Option<(Time, RenoEvent)> {
        self.heap.pop().map(|Reverse((at, _, event))| (at, event))
    }
}

/// A line with an unlimited queue.
pub(super) struct BottleneckLine {
    transmission: Duration,
    /// Time at which all accepted packets are sent.
    free: Time,
    taken: u64,
}

impl BottleneckLine {
    pub(super) fn new(transmission: Duration) -> BottleneckLine {
        BottleneckLine { transmission, free: Time::ZERO, taken: 0 }
    }

    /// Accepts a packet. Returns its position in the order of sending, and the time when its last
    /// bit leaves.
    pub(super) fn take(&mut self, now: Time) -> (u64, Time) {
        self.free = self.free.max(now) + self.transmission;
        self.taken += 1;
        (self.taken - 1, self.free)
    }
}
