//! Numbers of transfers, and the tables that they point into.

use shoal_wire::transfer::TransferEnd;

use crate::types::TransferId;

/// Bits of the slot number in an id; the bit below them is the role.
const SLOT_BITS: u32 = 16;

impl TransferId {
    pub(crate) fn new(serial: u64, slot: usize, role: TransferEnd) -> TransferId {
        TransferId(serial << (SLOT_BITS + 1) | (slot as u64) << 1 | role as u64)
    }

    pub(crate) fn slot(self) -> usize {
        (self.0 >> 1) as usize & ((1 << SLOT_BITS) - 1)
    }

    /// This node's role in the transfer.
    pub fn role(self) -> TransferEnd {
        if self.0 & 1 == TransferEnd::Receiver as u64 {
            TransferEnd::Receiver
        } else {
            TransferEnd::Sender
        }
    }
}

/// The lowest free slot, or a new one if `max` allows it.
pub(crate) fn place<T>(slots: &mut Vec<Option<Box<T>>>, max: usize) -> Option<usize> {
    if let Some(free) = slots.iter().position(Option::is_none) {
        return Some(free);
    }
    (slots.len() < max.min(1 << SLOT_BITS)).then(|| {
        slots.push(None);
        slots.len() - 1
    })
}
