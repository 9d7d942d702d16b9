//! A thread that writes one file, so that the worker never waits for a disk.

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::membership::seen;

/// When a text that could not be written is tried again: a disk that was full may have room.
const AGAIN: Duration = Duration::from_secs(10);

/// A file that is replaced as a whole, readable for this node's user only.
pub struct Keeper {
    texts: SyncSender<String>,
    /// The newest text, while the thread has another to write first.
    unkept: Option<String>,
    fault: Arc<Mutex<Option<String>>>,
}

impl Keeper {
    /// Starts the thread that writes `file`. `lost` is what follows from a file that can't be
    /// written, and what to do.
    pub fn start(name: &str, file: PathBuf, lost: &'static str) -> std::io::Result<Keeper> {
        let (texts, asked) = sync_channel::<String>(1);
        let fault = Arc::new(Mutex::new(None));
        let theirs = fault.clone();
        let write = move || {
            let mut unwritten: Option<String> = None;
            loop {
                let text = match (asked.recv_timeout(AGAIN), unwritten.take()) {
                    (Ok(newer), _) => newer,
                    (Err(RecvTimeoutError::Timeout), Some(older)) => older,
                    (Err(RecvTimeoutError::Timeout), None) => continue,
                    (Err(RecvTimeoutError::Disconnected), _) => return,
                };
                let wrong = seen::replace(&file, text.as_bytes()).err();
                let wrong =
                    wrong.map(|e| format!("{}: can't be written ({e}): {lost}", file.display()));
                let mut told = theirs.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(why) = wrong.as_ref().filter(|_| told.is_none()) {
                    tracing::error!("{why}");
                }
                unwritten = wrong.is_some().then_some(text);
                *told = wrong;
            }
        };
        std::thread::Builder::new().name(name.into()).spawn(write)?;
        Ok(Keeper { texts, unkept: None, fault })
    }

    /// Has `newer` written, or else what the thread had no time for before.
    pub fn keep(&mut self, newer: Option<String>) {
        let Some(text) = newer.or_else(|| self.unkept.take()) else { return };
        self.unkept = match self.texts.try_send(text) {
            Err(TrySendError::Full(text)) => Some(text),
            // Without its thread the node is about to end.
            _ => None,
        }
    }

    /// Why the newest text that was to be written was not.
    pub fn fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
