//! Memory for cells that wait: slots of one length, used again.

/// Slots of equal length. Grows to what was needed, until it is dropped.
#[derive(Default)]
pub(crate) struct Pool {
    bytes: Vec<u8>,
    free: Vec<u32>,
}

impl Pool {
    /// Copies a cell into a slot of `len` bytes, the length of all slots of this pool.
    pub(crate) fn store(&mut self, len: usize, cell: &[u8]) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            let next = self.bytes.len() / len;
            self.bytes.resize(self.bytes.len() + len, 0);
            next as u32
        });
        let at = slot as usize * len;
        self.bytes[at..at + cell.len()].copy_from_slice(cell);
        slot
    }

    /// Copies the first bytes of a slot of `len` bytes to `cell`, and frees the slot.
    pub(crate) fn take(&mut self, len: usize, slot: u32, cell: &mut [u8]) {
        let at = slot as usize * len;
        cell.copy_from_slice(&self.bytes[at..at + cell.len()]);
        self.free.push(slot);
    }

    /// Bytes of all slots.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}
