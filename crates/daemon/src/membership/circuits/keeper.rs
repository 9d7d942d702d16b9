//! A thread that writes one file, so that the worker waits for a disk only at an owner's command.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::membership::seen;

/// Time between two attempts to write a text: a disk that was full may have room.
const AGAIN: Duration = Duration::from_secs(10);

/// A file that is replaced as a whole, readable for this node's user only.
pub struct FileWriter {
    texts: SyncSender<String>,
    /// The newest text, while the thread's queue is full.
    unkept: Option<String>,
    fault: Arc<Mutex<Option<String>>>,
    file: PathBuf,
    /// Held by the one who writes the file.
    writing: Arc<Mutex<()>>,
}

impl FileWriter {
    /// Starts the thread that writes `file`. `lost` says what follows if the file can't be written,
    /// and what to do.
    pub fn start(name: &str, file: PathBuf, lost: &'static str) -> std::io::Result<FileWriter> {
        let (texts, asked) = sync_channel::<String>(1);
        let fault = Arc::new(Mutex::new(None));
        let writing = Arc::new(Mutex::new(()));
        let (theirs, turn, target) = (fault.clone(), writing.clone(), file.clone());
        let write = move || {
            let mut pending: Option<String> = None;
            loop {
                let text = match (asked.recv_timeout(AGAIN), pending.take()) {
                    (Ok(newer), _) => newer,
                    (Err(RecvTimeoutError::Timeout), Some(older)) => older,
                    (Err(RecvTimeoutError::Timeout), None) => continue,
                    (Err(RecvTimeoutError::Disconnected), _) => return,
                };
                let wrong = replace(&turn, &target, &text).err();
                let wrong = wrong.map(|e| format!("{}: {lost}", unwritten(&target, &e)));
                let mut told = theirs.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(why) = wrong.as_ref().filter(|_| told.is_none()) {
                    tracing::error!("{why}");
                }
                pending = wrong.is_some().then_some(text);
                *told = wrong;
            }
        };
        std::thread::Builder::new().name(name.into()).spawn(write)?;
        Ok(FileWriter { texts, unkept: None, fault, file, writing })
    }

    /// Queues `newer`, or else the text for which the queue had no room before.
    pub fn keep(&mut self, newer: Option<String>) {
        let Some(text) = newer.or_else(|| self.unkept.take()) else { return };
        self.unkept = match self.texts.try_send(text) {
            Err(TrySendError::Full(text)) => Some(text),
            // The thread is gone only when the node is about to end.
            _ => None,
        }
    }

    /// Writes `text` at once, and waits for the disk. Returns the reason if that fails; the thread
    /// then tries again.
    pub fn write_now(&mut self, text: String) -> Option<String> {
        let written = replace(&self.writing, &self.file, &text);
        // The thread may be about to write an older text, so it writes this one after that.
        self.keep(Some(text));
        written.err().map(|e| unwritten(&self.file, &e))
    }

    /// Reason why the newest text could not be written.
    pub fn fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Replaces the file while nobody else writes it: two writers would share one temporary file.
fn replace(turn: &Mutex<()>, file: &Path, text: &str) -> io::Result<()> {
    let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
    seen::replace(file, text.as_bytes())
}

fn unwritten(file: &Path, why: &io::Error) -> String {
    format!("{}: can't be written ({why})", file.display())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Instant;

    use super::*;

    #[test]
    fn an_immediate_write_reports_its_own_fault_and_no_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let (place, file) = (folder.path().join("state"), folder.path().join("state/met"));
        let mut writer = FileWriter::start("test", file.clone(), "then all is lost").unwrap();
        writer.keep(Some("old".into()));
        let began = Instant::now();
        while writer.fault().is_none() {
            assert!(began.elapsed() < Duration::from_secs(10), "no fault");
            std::thread::sleep(Duration::from_millis(5));
        }
        let said = writer.write_now("new".into()).unwrap();
        let name = format!("{}: can't be written (", file.display());
        assert!(said.starts_with(&name) && !said.contains("all is lost"), "{said}");
        // A disk that has room again takes the newest text.
        fs::create_dir(place).unwrap();
        assert_eq!(writer.write_now("newest".into()), None);
        while writer.fault().is_some() || fs::read_to_string(&file).unwrap() != "newest" {
            assert!(began.elapsed() < Duration::from_secs(10), "an older text stays");
            writer.keep(None);
            std::thread::sleep(Duration::from_millis(5));
        }
        // The file is there when the call returns.
        let other = folder.path().join("state/other");
        let mut writer = FileWriter::start("test", other.clone(), "").unwrap();
        assert_eq!(writer.write_now("text".into()), None);
        assert_eq!(fs::read_to_string(other).unwrap(), "text");
    }
}
