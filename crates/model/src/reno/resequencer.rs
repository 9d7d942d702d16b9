//! A resequencer in front of the receiver that restores the order of sending.
//!
//! The resequencer knows the order of sending, as an edge of the network would, but not TCP's
//! sequence numbers. A missing packet is waited for during one hold, from the arrival of the first
//! later packet.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_wire::Time;

use super::line::ModelPacket;

pub(super) struct Resequencer {
    hold: Duration,
    /// Position of the next packet in the order of sending.
    next: u64,
    /// Packets behind it, by position, each with the end of its wait.
    early: BTreeMap<u64, (Time, ModelPacket)>,
    /// A packet that came after its wait was over; it passes at once.
    late: Option<ModelPacket>,
}

impl Resequencer {
    pub(super) fn new(hold: Duration) -> Resequencer {
        Resequencer { hold, next: 0, early: BTreeMap::new(), late: None }
    }

    /// Accepts a packet. Call `poll` afterwards until it returns none, and again at the returned
    /// time.
    pub(super) fn take(&mut self, now: Time, packet: ModelPacket) -> Option<Time> {
        if packet.order < self.next {
            self.late = Some(packet);
            return None;
        }
        let over = now + self.hold;
        self.early.insert(packet.order, (over, packet));
        (packet.order > self.next).then_some(over)
    }

    /// The next packet that may pass.
    pub(super) fn poll(&mut self, now: Time) -> Option<ModelPacket> {
        if let Some(packet) = self.late.take() {
            return Some(packet);
        }
        let (&first, _) = self.early.first_key_value()?;
        // A gap ends when any packet behind it has waited for the whole hold.
        if first > self.next && !self.early.values().any(|&(over, _)| over <= now) {
            return None;
        }
        let (_, packet) = self.early.remove(&first)?;
        self.next = first + 1;
        Some(packet)
    }
}
