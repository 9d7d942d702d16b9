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

/// One offer that was accepted, until it has its name or has failed.
pub struct Active {
    pub from: String,
    pub file: SendFile,
    pub what: What,
    pub chunks: Chunks,
    /// Bytes of what is there that are hashed for it before it has sent any.
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

/// What an accepted offer goes into.
pub enum What {
    New(Incoming),
    /// Nothing: it is compared with what is there.
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

    /// Records what has arrived, if anything has, off the loop, if it is time and the last record
    /// is done.
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

    /// Keeps what has arrived of a file that won't be whole now, if it is of use; returns a clause
    /// about it for the message.
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
        // A record under way is of older news: it must not come after this one.
        let began = Instant::now();
        while self.recording.swap(true, Ordering::AcqRel) && began.elapsed() < RECORD_EVERY * 5 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let bytes = self.chunks.bytes(self.file.size);
        if bytes > 0 && incoming.record(&self.chunks).is_err() {
            return 0;
        }
        // What can't be cut off holds no more room than what came in.
        let _ = incoming.trim(&self.chunks);
        bytes
    }
}
