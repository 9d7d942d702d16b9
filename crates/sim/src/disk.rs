//! A host's disk, which survives a crash, and the disk work of a shell for transfers.

use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;

use shoal_transfer::{ChunkSet, OfferInfo, TransferId};

/// Duration of a read, a write or a hash.
pub(crate) const DISK_TIME: Duration = Duration::from_micros(200);

/// A file that is arriving or complete. A chunk equal to the sent one is not stored again: touching
/// memory for it cost a fifth of a fast run.
#[derive(Debug)]
pub(crate) struct StoredFile {
    sent: Rc<[u8]>,
    /// Length of every chunk but the last, in bytes.
    chunk: usize,
    /// Chunks that differ from the sent ones, by offset.
    other: BTreeMap<usize, Box<[u8]>>,
    /// Chunks that are written (the journal).
    pub(crate) have: ChunkSet,
    pub(crate) named: bool,
}

impl StoredFile {
    /// True if all chunks are there and equal to the sent ones.
    pub(crate) fn is_as_sent(&self) -> bool {
        self.have.is_full() && self.other.is_empty()
    }

    /// Content of the file, zero where nothing was written.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.sent.len()];
        for (first, count) in self.have.ranges() {
            let span = first as usize * self.chunk..(first + count) as usize * self.chunk;
            let span = span.start..span.end.min(bytes.len());
            bytes[span.clone()].copy_from_slice(&self.sent[span]);
        }
        for (&at, chunk) in &self.other {
            bytes[at..at + chunk.len()].copy_from_slice(chunk);
        }
        bytes
    }

    /// Plants a fault: changes the last byte.
    pub(crate) fn flip(&mut self) {
        let mut bytes = self.bytes();
        if let Some(last) = bytes.last_mut() {
            *last ^= 1;
            let at = (bytes.len() - 1) / self.chunk * self.chunk;
            self.other.insert(at, bytes[at..].into());
        }
    }
}

/// Work that the disk does asynchronously.
#[derive(Debug)]
pub(crate) enum DiskWork {
    Read { id: TransferId, index: u32, offset: u64, len: usize, buffer: Box<[u8]> },
    Write { id: TransferId, index: u32, offset: u64, len: usize, data: Box<[u8]> },
    Hash { id: TransferId },
}

/// Files by the identity that their senders give them.
#[derive(Debug, Default)]
pub(crate) struct SimulatedDisk {
    pub(crate) stored: BTreeMap<[u8; 16], StoredFile>,
}

impl SimulatedDisk {
    /// Opens an offered file, new or resumed, and returns the chunks that are there. `sent` is the
    /// whole content.
    pub(crate) fn open(&mut self, info: &OfferInfo, sent: &Rc<[u8]>) -> ChunkSet {
        let fresh = || StoredFile {
            sent: Rc::clone(sent),
            chunk: info.chunk_len(),
            other: BTreeMap::new(),
            have: ChunkSet::new(info.chunks()),
            named: false,
        };
        let stored = self.stored.entry(info.file_id).or_insert_with(fresh);
        if stored.chunk != info.chunk_len() {
            // The journal counts chunks of another length.
            *stored = fresh();
        }
        stored.have.clone()
    }

    /// Writes one chunk and notes it in the journal.
    pub(crate) fn write(&mut self, file: &[u8; 16], index: u32, offset: u64, bytes: &[u8]) {
        let Some(stored) = self.stored.get_mut(file) else { return };
        let at = offset as usize;
        if stored.sent[at..at + bytes.len()] == *bytes {
            stored.other.remove(&at);
        } else {
            stored.other.insert(at, bytes.into());
        }
        stored.have.insert(index);
    }
}

#[cfg(test)]
mod tests {
    use shoal_transfer::{CHUNK_LEN, SegmentLen};

    use super::*;

    #[test]
    fn what_is_there_is_what_was_written() {
        let sent: Rc<[u8]> = (0..CHUNK_LEN * 2 + 9).map(|i| (i % 251) as u8).collect();
        let info = OfferInfo {
            name: "file".to_string(),
            size: sent.len() as u64,
            modified_ns: 0,
            file_id: [1; 16],
            executable: false,
            segment: SegmentLen::FULL,
        };
        let mut disk = SimulatedDisk::default();
        assert_eq!(disk.open(&info, &sent).ranges().count(), 0);
        disk.write(&[1; 16], 0, 0, &sent[..CHUNK_LEN]);
        disk.write(&[1; 16], 2, 2 * CHUNK_LEN as u64, &[7; 9]);
        let stored = &disk.stored[&[1; 16]];
        assert!(!stored.is_as_sent());
        let bytes = stored.bytes();
        assert_eq!(bytes[..CHUNK_LEN], sent[..CHUNK_LEN]);
        assert!(bytes[CHUNK_LEN..2 * CHUNK_LEN].iter().all(|&byte| byte == 0));
        assert_eq!(bytes[2 * CHUNK_LEN..], [7; 9]);
        disk.write(&[1; 16], 1, CHUNK_LEN as u64, &sent[CHUNK_LEN..2 * CHUNK_LEN]);
        disk.write(&[1; 16], 2, 2 * CHUNK_LEN as u64, &sent[2 * CHUNK_LEN..]);
        let stored = disk.stored.get_mut(&[1; 16]).expect("an open file");
        assert!(stored.is_as_sent() && stored.bytes() == *sent);
        stored.flip();
        assert!(!stored.is_as_sent() && stored.bytes() != *sent);
    }
}
