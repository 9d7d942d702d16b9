//! A file that `shoal receive` is receiving.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use shoal_daemon::control::api::SendFile;

use super::places::RecentRate;
use crate::chunks::Chunks;
use crate::inbox::{ExistingFile, IncomingFile};
use crate::units::Bytes;

/// Pause between two records of arrived chunks.
const RECORD_EVERY: Duration = Duration::from_secs(2);

/// An accepted offer, until its file has its name or has failed.
pub struct ActiveReceive {
    pub from: String,
    pub file: SendFile,
    pub what: ReceiveKind,
    pub chunks: Chunks,
    /// Bytes of existing files that are hashed for the offer before the sender has sent any.
    pub hashes: u64,
    /// True once a byte of the file has arrived.
    pub moved: bool,
    pub pace: RecentRate,
    pub began: Instant,
    pub recorded: Instant,
    /// True while a thread writes the record.
    pub recording: Arc<AtomicBool>,
    /// True if the file is whole, and a thread syncs and renames it.
    pub finishing: bool,
}

/// Handling of an accepted offer.
pub enum ReceiveKind {
    New(IncomingFile),
    /// Comparison with an existing file.
    There(ExistingFile),
}

impl ActiveReceive {
    pub fn bytes_missing(&self) -> u64 {
        match self.what {
            ReceiveKind::New(_) => self.file.size - self.chunks.bytes(self.file.size),
            ReceiveKind::There(_) => 0,
        }
    }

    /// Has a thread record the arrived chunks, if it is time and the last record is done.
    pub fn record_now_and_then(&mut self) {
        let ReceiveKind::New(incoming) = &self.what else { return };
        let due = !self.chunks.ranges().is_empty() && self.recorded.elapsed() >= RECORD_EVERY;
        if !due || self.recording.swap(true, Ordering::AcqRel) {
            return;
        }
        self.recorded = Instant::now();
        let (incoming, chunks) = (incoming.clone(), self.chunks.clone());
        let recording = self.recording.clone();
        std::thread::spawn(move || {
            // Without a record the transfer continues, but can't resume.
            let _ = incoming.record(&chunks);
            recording.store(false, Ordering::Release);
        });
    }

    /// Keeps the data of an incomplete file, if there is any. Returns a clause about it for the
    /// message.
    pub fn put_away(&self) -> String {
        let ReceiveKind::New(incoming) = &self.what else { return String::new() };
        match if incoming.waits() { self.keep(incoming) } else { 0 } {
            0 => {
                incoming.discard();
                String::new()
            }
            kept => format!("; {} are kept and the transfer can resume", Bytes(kept)),
        }
    }

    /// Records the arrived chunks; returns their bytes.
    fn keep(&self, incoming: &IncomingFile) -> u64 {
        // A record that is being written is older, and must not overwrite this one.
        let began = Instant::now();
        while self.recording.swap(true, Ordering::AcqRel) && began.elapsed() < RECORD_EVERY * 5 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let bytes = self.chunks.bytes(self.file.size);
        if bytes > 0 && incoming.record(&self.chunks).is_err() {
            return 0;
        }
        // If this fails, the file takes no more room than the data that arrived.
        let _ = incoming.trim(&self.chunks);
        bytes
    }
}
