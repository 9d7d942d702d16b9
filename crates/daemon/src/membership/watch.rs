//! Watches the authority's list: a thread reads and checks it whenever its file changes.
//!
//! A changed file is read once two successive checks find it unchanged, so that no list is read
//! half written. The worker gets only the result, and never waits for the disk. The thread also
//! checks lists from neighbours, and writes files for the worker.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shoal_crypto::{NetworkSecret, VerifyKey};
use shoal_directory::{Error, List, ListMark, SIZE_MAX};
use zeroize::Zeroizing;

use crate::membership::chains::{ChainFile, CheckedSupplements, UncheckedSupplements};
use crate::membership::secrets::SecretFiles;
use crate::membership::seen::{self, ListMarkFile};
use crate::worker::wake::WakingOutlet;

/// Time between two checks of the file. A change is read after at most twice this, which leaves the
/// node time to apply it within the 5 s of docs/guide/authority.md.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Maximum number of requests that wait for the thread.
const WORK: usize = 4;

/// A result of the thread.
pub enum WatcherEvent {
    /// A list from the watched file.
    File(Result<List, String>),
    /// A list from a neighbour.
    Neighbour(Result<List, Error>),
    /// Supplements whose signatures were checked.
    Steps(CheckedSupplements),
    /// The network's secrets were written, or could not be.
    KeptSecrets {
        /// The secret that was not stored before.
        new: Option<NetworkSecret>,
        /// True if the secrets are on the disk.
        is_written: bool,
    },
    /// The operator's next secret; none once its file is gone.
    NextSecret(Result<Option<NetworkSecret>, String>),
}

/// A request of the worker.
enum WatcherTask {
    /// Checks that this is a list of the authority.
    Check(Vec<u8>),
    /// Stores the mark of the newest list, and the list itself if no other file has it.
    Keep(ListMark, Option<Arc<[u8]>>),
    /// Checks the registrar's signatures.
    CheckSteps(Box<UncheckedSupplements>),
    /// Stores supplements: all of them if `whole`, otherwise those to be appended.
    KeepSteps { bytes: Vec<u8>, whole: bool },
    /// Stores these secrets, one of which may be new.
    KeepSecrets(Zeroizing<String>, Option<NetworkSecret>),
    /// Stores the end of the registrar's ledger in this file.
    KeepLedger(PathBuf, String),
}

/// Files that outlast the process.
#[derive(Clone, Debug)]
pub struct StateFiles {
    /// Mark of the newest list.
    pub seen: ListMarkFile,
    /// The list itself, if it came from a neighbour.
    pub file: PathBuf,
    pub chains: ChainFile,
    pub secrets: SecretFiles,
}

impl StateFiles {
    /// Writes the list before its mark: a mark without its list would bar every start.
    fn write(&self, mark: &ListMark, list: Option<&[u8]>) -> Result<(), String> {
        if let Some(list) = list {
            seen::replace(&self.file, list).map_err(|e| {
                format!(
                    "{}: can't be written ({e}): the list from a neighbour is gone after a \
                     restart; set [authority] kept_file to a place that this node's user may write",
                    self.file.display()
                )
            })?;
        }
        self.seen.write(mark)
    }
}

/// Metadata that tells two states of a file apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
}

impl FileStamp {
    /// The current stamp of the file; none if there is no file.
    pub fn of(file: &Path) -> Option<FileStamp> {
        let meta = std::fs::metadata(file).ok()?;
        Some(FileStamp {
            device: meta.dev(),
            inode: meta.ino(),
            len: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
        })
    }
}

/// Stamps of a file at successive checks. The file is read once two checks agree.
#[derive(Default)]
struct FileStability {
    read: Option<FileStamp>,
    last: Option<FileStamp>,
}

impl FileStability {
    /// Checks again; true if the file must be read.
    fn has_changed(&mut self, file: &Path) -> bool {
        let stamp = FileStamp::of(file);
        let still = std::mem::replace(&mut self.last, stamp) == stamp;
        let changed = still && stamp != self.read;
        if changed {
            self.read = stamp;
        }
        changed
    }
}

/// Handle of the thread, which ends when this value is dropped.
pub struct Watcher {
    work: SyncSender<WatcherTask>,
    faults: Arc<Mutex<WriteFaults>>,
}

/// Error of the last write of each kind.
#[derive(Clone, Debug, Default)]
struct WriteFaults {
    list: Option<String>,
    steps: Option<String>,
    secrets: Option<String>,
}

impl WriteFaults {
    /// Stores the result of a write, and logs an error.
    fn note(fault: &mut Option<String>, kept: Result<(), String>) {
        *fault = kept.err();
        if let Some(why) = fault {
            tracing::error!("{why}");
        }
    }

    /// Like [`WriteFaults::note`] for a write that is retried: one fault is logged once.
    fn note_once(fault: &mut Option<String>, kept: Result<(), String>) {
        if fault.as_ref() != kept.as_ref().err() {
            WriteFaults::note(fault, kept);
        }
    }
}

impl Watcher {
    /// Watches `file`. The caller has already read its state `stamp`.
    pub fn start(
        file: PathBuf,
        key: VerifyKey,
        stamp: Option<FileStamp>,
        kept: StateFiles,
        outlet: WakingOutlet<WatcherEvent>,
    ) -> std::io::Result<Watcher> {
        let (work, asked) = sync_channel::<WatcherTask>(WORK);
        let faults = Arc::<Mutex<WriteFaults>>::default();
        let theirs = faults.clone();
        let watch = move || {
            let mut list = FileStability { read: stamp, last: stamp };
            let mut next = FileStability::default();
            let noted = || theirs.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                let news = match asked.recv_timeout(LOOK_EVERY) {
                    Ok(WatcherTask::Check(bytes)) => {
                        WatcherEvent::Neighbour(List::open(&key, &bytes))
                    }
                    Ok(WatcherTask::CheckSteps(unchecked)) => {
                        WatcherEvent::Steps(unchecked.check())
                    }
                    Ok(WatcherTask::Keep(mark, list)) => {
                        let written = kept.write(&mark, list.as_deref());
                        WriteFaults::note(&mut noted().list, written);
                        continue;
                    }
                    Ok(WatcherTask::KeepSteps { bytes, whole }) => {
                        let written = kept.chains.write(&bytes, whole);
                        WriteFaults::note(&mut noted().steps, written);
                        continue;
                    }
                    Ok(WatcherTask::KeepLedger(file, text)) => {
                        write_ledger_end(&file, &text);
                        continue;
                    }
                    Ok(WatcherTask::KeepSecrets(text, new)) => {
                        let written = kept.secrets.write(&text);
                        let is_written = written.is_ok();
                        WriteFaults::note_once(&mut noted().secrets, written);
                        if is_written && new.is_none() {
                            continue;
                        }
                        WatcherEvent::KeptSecrets { new, is_written }
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        if next.has_changed(&kept.secrets.next) {
                            let news = WatcherEvent::NextSecret(kept.secrets.read_next());
                            if outlet.send(news).is_err() {
                                return;
                            }
                        }
                        if !list.has_changed(&file) {
                            continue;
                        }
                        // An absent file counts as an unreadable list: the list in force stays.
                        WatcherEvent::File(self::read(&file, &key))
                    }
                };
                if outlet.send(news).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("shoal-list".into()).spawn(watch)?;
        Ok(Watcher { work, faults })
    }

    /// Stores `mark`, and the list if no file has it. False if the thread's queue is full: the
    /// caller must try again later.
    pub fn keep(&self, mark: ListMark, list: Option<Arc<[u8]>>) -> bool {
        self.work.try_send(WatcherTask::Keep(mark, list)).is_ok()
    }

    /// Checks bytes of a neighbour. The result comes as [`WatcherEvent`]. Returns the bytes if the
    /// thread's queue is full: the caller must try again later.
    pub fn check(&self, bytes: Vec<u8>) -> Result<(), Vec<u8>> {
        match self.work.try_send(WatcherTask::Check(bytes)) {
            Err(TrySendError::Full(WatcherTask::Check(bytes))) => Err(bytes),
            // The thread is gone only when the node is about to end.
            _ => Ok(()),
        }
    }

    /// Checks supplements. The result comes as [`WatcherEvent`]. Returns them if the thread's queue
    /// is full: the caller must try again later.
    pub(crate) fn check_steps(
        &self,
        unchecked: Box<UncheckedSupplements>,
    ) -> Result<(), Box<UncheckedSupplements>> {
        match self.work.try_send(WatcherTask::CheckSteps(unchecked)) {
            Err(TrySendError::Full(WatcherTask::CheckSteps(unchecked))) => Err(unchecked),
            // The thread is gone only when the node is about to end.
            _ => Ok(()),
        }
    }

    /// Stores supplements: in place of all stored ones if `whole`, otherwise behind them. False if
    /// the thread's queue is full: the caller must try again later.
    pub(crate) fn keep_steps(&self, bytes: Vec<u8>, whole: bool) -> bool {
        self.work.try_send(WatcherTask::KeepSteps { bytes, whole }).is_ok()
    }

    /// Replaces the stored secrets. A failure, or success with a `new` secret, comes as
    /// [`WatcherEvent`]. False if the thread's queue is full: the caller must try again later.
    pub(crate) fn keep_secrets(&self, text: Zeroizing<String>, new: Option<NetworkSecret>) -> bool {
        self.work.try_send(WatcherTask::KeepSecrets(text, new)).is_ok()
    }

    /// Stores the end of the registrar's ledger. False if the thread's queue is full.
    pub(crate) fn keep_ledger(&self, file: &Path, text: String) -> bool {
        self.work.try_send(WatcherTask::KeepLedger(file.to_path_buf(), text)).is_ok()
    }

    /// True if the last supplements could not be stored, so that the file is incomplete.
    pub(crate) fn lost_steps(&self) -> bool {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).steps.is_some()
    }

    /// Errors of the last writes of the list with its mark, of supplements, and of secrets.
    pub fn faults(&self) -> Vec<String> {
        let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone();
        faults.list.into_iter().chain(faults.steps).chain(faults.secrets).collect()
    }
}

/// Writes the end of the ledger. If that fails, the end is gone after a restart until the registrar
/// gives it again.
fn write_ledger_end(file: &Path, text: &str) {
    if let Err(error) = seen::replace(file, text.as_bytes()) {
        tracing::warn!("the end of the registrar's ledger is not kept: {error}");
    }
}

/// Reads a list and checks it. The error names the file.
pub fn read(file: &Path, key: &VerifyKey) -> Result<List, String> {
    let wrong = |why: String| format!("{}: {why}", file.display());
    let bytes = crate::files::reading::read(file, SIZE_MAX as u64);
    let bytes = bytes.map_err(|e| wrong(format!("can't be read: {e}")))?;
    List::open(key, &bytes).map_err(|e| wrong(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::wake::{Waker, channel};
    use shoal_crypto::SigningKey;
    use shoal_directory::ListContent;

    fn news(inbox: &mut crate::worker::wake::WakingInbox<WatcherEvent>) -> Result<List, String> {
        let began = std::time::Instant::now();
        loop {
            if let Some(news) = inbox.take() {
                return match news {
                    WatcherEvent::File(read) => read,
                    WatcherEvent::Neighbour(read) => read.map_err(|e| e.to_string()),
                    _ => panic!("nobody asked for anything else"),
                };
            }
            assert!(began.elapsed() < Duration::from_secs(10), "no news");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_pipe_in_the_place_of_a_list_or_a_mark_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        let key = SigningKey::from_seed([1; 32]);
        let refused = read(&pipe, &key.public()).unwrap_err();
        assert!(refused.ends_with("is a pipe; expected a regular file"), "{refused}");
        let seen = ListMarkFile::new(pipe, key.public());
        assert!(seen.read().unwrap_err().ends_with("is a pipe; expected a regular file"));
        let beside = folder.path().join("seen.new");
        nix::unistd::mkfifo(&beside, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        assert!(seen::replace(&folder.path().join("seen"), b"mark").is_err());
    }

    #[test]
    fn each_state_of_the_file_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("network.list");
        let key = SigningKey::from_seed([1; 32]);
        let waker = Waker::new().unwrap();
        let (outlet, mut inbox) = channel(4, &waker);
        let seen = ListMarkFile::new(folder.path().join("seen"), key.public());
        let chains = ChainFile::new(folder.path().join("chains"));
        let secrets =
            SecretFiles { kept: folder.path().join("secrets"), next: folder.path().join("next") };
        let kept =
            StateFiles { seen: seen.clone(), file: folder.path().join("kept"), chains, secrets };
        let watcher = Watcher::start(file.clone(), key.public(), None, kept, outlet).unwrap();
        let list = |version| ListContent { version, ..ListContent::default() }.sign(&key).unwrap();
        std::fs::write(&file, list(1).bytes()).unwrap();
        assert_eq!(news(&mut inbox).unwrap().content().version, 1);
        std::fs::write(&file, b"noise").unwrap();
        let refused = news(&mut inbox).unwrap_err();
        assert!(refused.contains("network.list: is no list of an authority"), "{refused}");
        std::fs::write(&file, list(2).bytes()).unwrap();
        assert_eq!(news(&mut inbox).unwrap().content().version, 2);
        std::thread::sleep(LOOK_EVERY * 3);
        assert!(inbox.take().is_none());
        watcher.check(list(3).bytes().to_vec()).unwrap();
        assert_eq!(news(&mut inbox).unwrap().content().version, 3);
        watcher.check(list(4).bytes()[1..].to_vec()).unwrap();
        assert!(news(&mut inbox).is_err());
        let mark = ListMark { version: 2, digest: [1; 32] };
        assert!(watcher.keep(mark, Some(list(3).shared())));
        let began = std::time::Instant::now();
        while seen.read() != Ok(Some(mark)) {
            assert!(began.elapsed() < Duration::from_secs(10), "the mark is not kept");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(std::fs::read(folder.path().join("kept")).unwrap(), list(3).bytes());
        drop(watcher);
    }
}
