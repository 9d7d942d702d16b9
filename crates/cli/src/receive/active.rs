//! A file on its way in, as `shoal receive` sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use shoal_daemon::control::api::SendFile;

use super::places::Pace;
use crate::chunks::Chunks;
use crate::inbox::{Existing, Incoming};
use crate::units::Bytes;

/// Pause between two records of what has arrived.
const RECORD_EVERY: Duration = Duration::from_secs(2);

/// An accepted offer, until its file has its name or has failed.
pub struct Active {
    pub from: String,
    pub file: SendFile,
    pub what: What,
    pub chunks: Chunks,
    /// Bytes of existing files that are hashed for it before it has sent any.
    pub hashes: u64,
    /// A byte of it has arrived.
    pub moved: bool,
    pub pace: Pace,
    pub began: Instant,
    pub recorded: Instant,
    /// True while a thread writes the record.
    pub recording: Arc<AtomicBool>,
    /// It is whole, and a thread syncs and renames it.
    pub finishing: bool,
}

/// How an accepted offer is received.
pub enum What {
    New(Incoming),
    /// By comparison with an existing file.
    There(Existing),
}

impl Active {
    /// Bytes that are still to come.
    pub fn bytes_missing(&self) -> u64 {
        match self.what {
            What::New(_) => self.file.size - self.chunks.bytes(self.file.size),
            What::There(_) => 0,
        }
    }

    /// Has a thread record what has arrived, if it is time and the last record is done.
    pub fn record_now_and_then(&mut self) {
        let What::New(incoming) = &self.what else { return };
        let due = !self.chunks.ranges().is_empty() && self.recorded.elapsed() >= RECORD_EVERY;
        if !due || self.recording.swap(true, Ordering::AcqRel) {
            return;
        }
        self.recorded = Instant::now();
        let (incoming, chunks) = (incoming.clone(), self.chunks.clone());
        let recording = self.recording.clone();
        std::thread::spawn(move || {
            // Without a record the transfer goes on and merely can't resume.
            let _ = incoming.record(&chunks);
            recording.store(false, Ordering::Release);
        });
    }

    /// Keeps what has arrived of an incomplete file, if there is any; returns a clause about it
    /// for the message.
    pub fn put_away(&self) -> String {
        let What::New(incoming) = &self.what else { return String::new() };
        match if incoming.waits() { self.keep(incoming) } else { 0 } {
            0 => {
                incoming.discard();
                String::new()
            }
            kept => format!("; {} are kept and the transfer can resume", Bytes(kept)),
        }
    }

    /// Records what has arrived; returns its bytes.
    fn keep(&self, incoming: &Incoming) -> u64 {
        // A record that is being written is older: it must not overwrite this one.
        let began = Instant::now();
        while self.recording.swap(true, Ordering::AcqRel) && began.elapsed() < RECORD_EVERY * 5 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let bytes = self.chunks.bytes(self.file.size);
        if bytes > 0 && incoming.record(&self.chunks).is_err() {
            return 0;
        }
        // If this fails, the file holds no more room than what arrived.
        let _ = incoming.trim(&self.chunks);
        bytes
    }
}
