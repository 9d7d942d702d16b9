//! Numbers of transfers, and the tables that they point into.

use shoal_wire::transfer::Role;

use crate::types::TransferId;

/// Slots an id can name; the bit below them is the role.
const SLOT_BITS: u32 = 16;

impl TransferId {
    pub(crate) fn new(serial: u64, slot: usize, role: Role) -> TransferId {
        TransferId(serial << (SLOT_BITS + 1) | (slot as u64) << 1 | role as u64)
    }

    pub(crate) fn slot(self) -> usize {
        (self.0 >> 1) as usize & ((1 << SLOT_BITS) - 1)
    }

    /// Whether this node sends or receives.
    pub fn role(self) -> Role {
        if self.0 & 1 == Role::Receiver as u64 { Role::Receiver } else { Role::Sender }
    }
}

/// The lowest free slot, a new one if there may be one more.
pub(crate) fn place<T>(slots: &mut Vec<Option<Box<T>>>, max: usize) -> Option<usize> {
    if let Some(free) = slots.iter().position(Option::is_none) {
        return Some(free);
    }
    (slots.len() < max.min(1 << SLOT_BITS)).then(|| {
        slots.push(None);
        slots.len() - 1
    })
}
