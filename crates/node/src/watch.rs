//! Watches the authority's list: a thread that reads and checks it whenever its file changes.
//!
//! A file that is being written is read when it has stood still for one look. Nothing but the
//! result reaches the worker, which never waits for the disk; which list it took in is kept in a
//! file by the same thread.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shoal_crypto::VerifyKey;
use shoal_directory::{List, Mark, SIZE_MAX};

use crate::seen::Seen;
use crate::wake::Outlet;

/// How often the file is looked at: a change is in force after twice this and what the rest of the
/// node takes, which leaves room within the 5 s that are promised.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A list that was read, or why it could not be.
pub type News = Result<List, String>;

/// What tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
}

impl Stamp {
    /// Of the file as it is now; none if there is none.
    pub fn of(file: &Path) -> Option<Stamp> {
        let meta = std::fs::metadata(file).ok()?;
        Some(Stamp {
            device: meta.dev(),
            inode: meta.ino(),
            len: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
        })
    }
}

/// Ends its thread when it is dropped.
pub struct Watcher {
    marks: SyncSender<Mark>,
    fault: Arc<Mutex<Option<String>>>,
}

impl Watcher {
    /// Watches `file`, whose state `seen` was read already.
    pub fn start(
        file: PathBuf,
        key: VerifyKey,
        stamp: Option<Stamp>,
        seen: Seen,
        outlet: Outlet<News>,
    ) -> std::io::Result<Watcher> {
        let (marks, to_keep) = sync_channel::<Mark>(1);
        let fault = Arc::new(Mutex::new(None));
        let theirs = fault.clone();
        let watch = move || {
            let (mut read, mut last) = (stamp, stamp);
            loop {
                match to_keep.recv_timeout(LOOK_EVERY) {
                    Ok(mark) => {
                        let fault = seen.write(&mark).err();
                        if let Some(why) = &fault {
                            tracing::error!("{why}");
                        }
                        *theirs.lock().unwrap_or_else(PoisonError::into_inner) = fault;
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {}
                }
                let stamp = Stamp::of(&file);
                let still = stamp == last;
                last = stamp;
                if !still || stamp == read {
                    continue;
                }
                read = stamp;
                // A list that vanished is one that can't be read: the one in force stays.
                if outlet.send(self::read(&file, &key)).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("shoal-list".into()).spawn(watch)?;
        Ok(Watcher { marks, fault })
    }

    /// Keeps `mark` for after a restart; false if it must be asked again, since the disk is slow.
    pub fn keep(&self, mark: Mark) -> bool {
        self.marks.try_send(mark).is_ok()
    }

    /// Why the last one could not be kept.
    pub fn fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Reads a list and checks it; the error names the file.
pub fn read(file: &Path, key: &VerifyKey) -> News {
    let wrong = |why: String| format!("{}: {why}", file.display());
    let input = File::open(file).map_err(|e| wrong(format!("can't be read: {e}")))?;
    let mut bytes = Vec::new();
    let bounded = input.take(SIZE_MAX as u64 + 1).read_to_end(&mut bytes);
    bounded.map_err(|e| wrong(format!("can't be read: {e}")))?;
    List::open(key, &bytes).map_err(|e| wrong(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wake::{Bell, channel};
    use shoal_crypto::SigningKey;
    use shoal_directory::Content;

    fn news(inbox: &mut crate::wake::Inbox<News>) -> News {
        let began = std::time::Instant::now();
        loop {
            if let Some(news) = inbox.take() {
                return news;
            }
            assert!(began.elapsed() < Duration::from_secs(10), "no news");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn each_state_of_the_file_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("network.list");
        let key = SigningKey::from_seed([1; 32]);
        let bell = Bell::new().unwrap();
        let (outlet, mut inbox) = channel(4, &bell);
        let seen = Seen::new(folder.path().join("seen"), key.public());
        let watcher =
            Watcher::start(file.clone(), key.public(), None, seen.clone(), outlet).unwrap();
        let list = |version| Content { version, ..Content::default() }.sign(&key).unwrap();
        std::fs::write(&file, list(1).bytes()).unwrap();
        assert_eq!(news(&mut inbox).unwrap().content().version, 1);
        std::fs::write(&file, b"noise").unwrap();
        let refused = news(&mut inbox).unwrap_err();
        assert!(refused.contains("network.list: is no list of an authority"), "{refused}");
        std::fs::write(&file, list(2).bytes()).unwrap();
        assert_eq!(news(&mut inbox).unwrap().content().version, 2);
        std::thread::sleep(LOOK_EVERY * 3);
        assert!(inbox.take().is_none());
        let mark = Mark { version: 2, digest: [1; 32] };
        assert!(watcher.keep(mark));
        let began = std::time::Instant::now();
        while seen.read() != Ok(Some(mark)) {
            assert!(began.elapsed() < Duration::from_secs(10), "the mark is not kept");
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(watcher);
    }
}
