//! Memory for packets that wait for earlier ones.

use shoal_wire::{CircuitId, SizeClass, Time};

/// Bytes per packet.
pub(crate) const SLOT: usize = SizeClass::Full.edge_len();
/// Largest number of packets: 32 MiB.
pub(crate) const SLOTS_MAX: usize = (32 << 20) / SLOT;
/// Largest number of bytes that is kept when no packet waits.
const KEPT: usize = 1 << 20;
pub(crate) const NONE: u16 = u16::MAX;

const _: () = assert!(SLOTS_MAX < NONE as usize);

/// A packet that waits, without its bytes.
#[derive(Clone, Copy)]
pub(crate) struct HeldPacket {
    pub(crate) circuit: CircuitId,
    /// Length in bytes.
    pub(crate) len: u16,
    pub(crate) congested: bool,
    /// Time of sending, as far as it is known; zero if not.
    pub(crate) sent: Time,
}

/// Waiting packets, by slot.
#[derive(Default)]
pub(crate) struct PacketPool {
    /// [`SLOT`] bytes for each packet. Memory for all slots is reserved at once, so that it never
    /// moves.
    pub(crate) buf: Vec<u8>,
    held: Vec<HeldPacket>,
    free: Vec<u16>,
}

impl PacketPool {
    /// Copies a packet into a slot. None if there is no room.
    pub(crate) fn put(&mut self, bytes: &[u8], held: HeldPacket) -> Option<u16> {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.held[usize::from(slot)] = held;
                slot
            }
            None if self.held.len() < SLOTS_MAX => {
                if self.held.is_empty() {
                    self.buf.reserve_exact(SLOTS_MAX * SLOT);
                }
                self.held.push(held);
                self.buf.resize(self.held.len() * SLOT, 0);
                (self.held.len() - 1) as u16
            }
            None => return None,
        };
        self.buf[usize::from(slot) * SLOT..][..bytes.len()].copy_from_slice(bytes);
        Some(slot)
    }

    pub(crate) fn get(&self, slot: u16) -> HeldPacket {
        self.held[usize::from(slot)]
    }

    pub(crate) fn free(&mut self, slot: u16) {
        self.free.push(slot);
    }

    /// Frees memory if no packet waits.
    pub(crate) fn trim(&mut self) {
        if self.free.len() == self.held.len() && self.buf.len() > KEPT {
            *self = PacketPool::default();
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.buf.len()
    }

    /// Number of occupied slots.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.held.len() - self.free.len()
    }
}
