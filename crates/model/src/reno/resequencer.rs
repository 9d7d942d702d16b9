//! What stands in front of the receiver and restores the order in which packets were sent.
//!
//! It knows the order of sending, not TCP's numbers, as an edge of the network would. A missing
//! packet is waited for from the arrival of the first later one, for the hold and no longer.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_wire::Time;

use super::line::Packet;

pub(super) struct Resequencer {
    hold: Duration,
    /// Place of the next packet in the order of sending.
    next: u64,
    /// Packets behind it, by place, each with the time when it need wait no longer.
    early: BTreeMap<u64, (Time, Packet)>,
    /// A packet that came after its wait was over; it passes at once.
    late: Option<Packet>,
}

impl Resequencer {
    pub(super) fn new(hold: Duration) -> Resequencer {
        Resequencer { hold, next: 0, early: BTreeMap::new(), late: None }
    }

    /// Takes a packet. Call `poll` now until it gives none, and again at the returned time.
    pub(super) fn take(&mut self, now: Time, packet: Packet) -> Option<Time> {
        if packet.order < self.next {
            self.late = Some(packet);
            return None;
        }
        let over = now + self.hold;
        self.early.insert(packet.order, (over, packet));
        (packet.order > self.next).then_some(over)
    }

    /// The next packet that may pass.
    pub(super) fn poll(&mut self, now: Time) -> Option<Packet> {
        if let Some(packet) = self.late.take() {
            return Some(packet);
        }
        let (&first, _) = self.early.first_key_value()?;
        // A gap ends when any packet behind it has waited for the hold.
        if first > self.next && !self.early.values().any(|&(over, _)| over <= now) {
            return None;
        }
        let (_, packet) = self.early.remove(&first)?;
        self.next = first + 1;
        Some(packet)
    }
}
