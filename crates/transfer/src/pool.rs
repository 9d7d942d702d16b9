//! Chunk buffers that wait for their next use.

use shoal_wire::transfer::CHUNK_LEN;

/// Buffers kept; more are given back to the allocator (8 MiB stay).
const SPARE_MAX: usize = 32;

/// Recycled chunk buffers.
#[derive(Default)]
pub(crate) struct Pool {
    spare: Vec<Box<[u8]>>,
}

impl Pool {
    /// A buffer of [`CHUNK_LEN`] bytes, holding anything.
    pub(crate) fn take(&mut self) -> Box<[u8]> {
        self.spare.pop().unwrap_or_else(|| vec![0; CHUNK_LEN].into_boxed_slice())
    }

    /// Takes a buffer back.
    pub(crate) fn put(&mut self, buffer: Box<[u8]>) {
        if self.spare.len() < SPARE_MAX && buffer.len() == CHUNK_LEN {
            self.spare.push(buffer);
        }
    }
}
