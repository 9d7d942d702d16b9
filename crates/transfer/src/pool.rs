//! Chunk buffers that wait for their next use.

use shoal_wire::transfer::CHUNK_LEN;

/// Most spare buffers (8 MiB); further ones are freed.
const SPARE_MAX: usize = 32;

/// Recycled chunk buffers.
#[derive(Default)]
pub(crate) struct ChunkPool {
    spare: Vec<Box<[u8]>>,
}

impl ChunkPool {
    /// A buffer of [`CHUNK_LEN`] bytes, with any content.
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
