//! Memory for waiting cells: reusable slots of one length.

/// Slots of equal length. The pool only grows until it is dropped.
#[derive(Default)]
pub(crate) struct FramePool {
    bytes: Vec<u8>,
    free: Vec<u32>,
}

impl FramePool {
    /// Copies a cell into a slot of `len` bytes. All slots of a pool have this length.
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

    /// Allocated bytes.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}
