//! A host's disk: what survives a crash, and what a shell does for transfers.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_transfer::{ChunkSet, OfferInfo, TransferId};

/// How long a read, a write or a hash takes.
pub(crate) const DISK_TIME: Duration = Duration::from_micros(200);

/// A file that is arriving or there.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) data: Vec<u8>,
    /// Chunks that are written: the journal.
    pub(crate) have: ChunkSet,
    pub(crate) named: bool,
}

/// Work that the disk does in its own time.
#[derive(Debug)]
pub(crate) enum Work {
    Read { id: TransferId, index: u32, buffer: Box<[u8]> },
    Write { id: TransferId, index: u32, offset: u64, len: usize, data: Box<[u8]> },
    Hash { id: TransferId },
}

/// Files on the disk, by the identity that senders give them.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    pub(crate) stored: BTreeMap<[u8; 16], Stored>,
}

impl Disk {
    /// Opens the file that is on offer, new or resumed; what of it is there.
    pub(crate) fn open(&mut self, info: &OfferInfo) -> ChunkSet {
        let fresh = || Stored {
            data: vec![0; info.size as usize],
            have: ChunkSet::new(info.chunks()),
            named: false,
        };
        self.stored.entry(info.file_id).or_insert_with(fresh).have.clone()
    }

    /// Writes one chunk and notes it in the journal.
    pub(crate) fn write(&mut self, file: &[u8; 16], index: u32, offset: u64, bytes: &[u8]) {
        let Some(stored) = self.stored.get_mut(file) else { return };
        let at = offset as usize;
        stored.data[at..at + bytes.len()].copy_from_slice(bytes);
        stored.have.insert(index);
    }
}
