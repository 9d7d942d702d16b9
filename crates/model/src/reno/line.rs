//! Events in the order of time, and the line that all data passes.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::BinaryHeap;

use shoal_wire::Time;

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// To the receiver.
    Data = 0,
    /// To the sender.
    Back = 1,
}

/// A packet on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Packet {
    /// Of data: which packet, from 0. Of an acknowledgement: the packet that is awaited.
    pub number: u64,
    /// Place among all that was sent, so that a retransmission has a place of its own.
    pub order: u64,
    /// When the data was sent; an acknowledgement carries that of the data that caused it.
    pub sent: Time,
    /// Of an acknowledgement: the data that caused it. Of data: none.
    pub cause: Option<Cause>,
}

/// What a selective acknowledgement tells of the data that caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cause {
    /// Which packet.
    pub number: u64,
    /// Whether the receiver had it before (RFC 2883: DSACK).
    pub again: bool,
}

/// What happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A packet reaches mix number `mix`, or the end of its way if there is none such.
    Arrive { way: Way, mix: u32, packet: Packet },
    /// A timed mix lets go what it holds in one direction.
    Flush { way: Way, mix: u32 },
    /// An acknowledgement reaches the sender.
    Reply(Packet),
    /// The resequencer has waited long enough for a packet.
    HoldOver,
    /// The sender's retransmission timer may be due.
    Timer,
    /// The second half of the run begins.
    Half,
    /// The window is noted.
    Sample,
}

/// Events to come. Those of one time happen in the order in which they were pushed.
#[derive(Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<(Time, u64, Event)>>,
    pushed: u64,
}

impl Events {
    pub(super) fn push(&mut self, at: Time, event: Event) {
        self.heap.push(Reverse((at, self.pushed, event)));
        self.pushed += 1;
    }

    pub(super) fn next(&mut self) -> Option<(Time, Event)> {
        self.heap.pop().map(|Reverse((at, _, event))| (at, event))
    }
}

/// A line with an endless queue.
pub(super) struct Line {
    transmission: Duration,
    /// When it has sent all that it took.
    free: Time,
    taken: u64,
}

impl Line {
    pub(super) fn new(transmission: Duration) -> Line {
        Line { transmission, free: Time::ZERO, taken: 0 }
    }

    /// Takes a packet; says which one it is on this line, and when its last bit has left.
    pub(super) fn take(&mut self, now: Time) -> (u64, Time) {
        self.free = self.free.max(now) + self.transmission;
        self.taken += 1;
        (self.taken - 1, self.free)
    }
}
