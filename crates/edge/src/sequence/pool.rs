//! Where packets lie that wait for others.

use shoal_wire::{CircuitId, SizeClass, Time};

/// Bytes that a packet takes.
pub(crate) const SLOT: usize = SizeClass::Full.edge_len();
/// Packets that lie here at most: 32 MiB.
pub(crate) const SLOTS_MAX: usize = (32 << 20) / SLOT;
/// Bytes that are kept when nothing waits.
const KEPT: usize = 1 << 20;
/// No slot.
pub(crate) const NONE: u16 = u16::MAX;

const _: () = assert!(SLOTS_MAX < NONE as usize);

/// What is known of a packet that waits.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub(crate) circuit: CircuitId,
    /// Its bytes.
    pub(crate) len: u16,
    pub(crate) congested: bool,
    /// When it was sent, as far as is known.
    pub(crate) sent: Time,
}

/// Packets by slot.
#[derive(Default)]
pub(crate) struct Pool {
    /// [`SLOT`] bytes for each; room for all is asked for at once, so that it never moves.
    pub(crate) buf: Vec<u8>,
    held: Vec<Held>,
    free: Vec<u16>,
}

impl Pool {
    /// Copies a packet; None where there is no room.
    pub(crate) fn put(&mut self, bytes: &[u8], held: Held) -> Option<u16> {
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

    pub(crate) fn get(&self, slot: u16) -> Held {
        self.held[usize::from(slot)]
    }

    pub(crate) fn free(&mut self, slot: u16) {
        self.free.push(slot);
    }

    /// Gives memory back if nothing waits.
    pub(crate) fn trim(&mut self) {
        if self.free.len() == self.held.len() && self.buf.len() > KEPT {
            *self = Pool::default();
        }
    }

    /// Bytes that it takes.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.buf.len()
    }

    /// Packets that lie here.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.held.len() - self.free.len()
    }
}
