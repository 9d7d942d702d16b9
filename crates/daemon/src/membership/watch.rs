//! Watches the authority's list: a thread that reads and checks it whenever its file changes.
//!
//! A changed file is read once it is the same at two looks, so that none is read half written.
//! Nothing but the result reaches the worker, which never waits for the disk. The same thread
//! checks the lists that come from neighbours, and keeps in files what the worker took in.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shoal_crypto::{NetworkSecret, VerifyKey};
use shoal_directory::{Error, List, Mark, SIZE_MAX};
use zeroize::Zeroizing;

use crate::membership::chains::{ChainFile, Checked, Unchecked};
use crate::membership::secrets::SecretFiles;
use crate::membership::seen::{self, Seen};
use crate::worker::wake::Outlet;

/// How often the file is looked at. A change is read after at most twice this, which leaves the
/// node time to put it in force within the 5 s of docs/authority.md.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Lists to be checked or kept that may wait for the thread.
const WORK: usize = 4;

/// A list that was read, or why it could not be.
pub enum News {
    /// From the file that is watched.
    File(Result<List, String>),
    /// From a neighbour.
    Neighbour(Result<List, Error>),
    /// What a registrar signed, or did not.
    Steps(Checked),
    /// The network's secrets were written, or could not be.
    KeptSecrets {
        /// The one that was not kept before.
        new: Option<NetworkSecret>,
        /// They are on the disk.
        is_written: bool,
    },
    /// What the operator put there as the next secret; none once it is gone.
    NextSecret(Result<Option<NetworkSecret>, String>),
}

/// What the worker asks for.
enum Work {
    /// Is this a list of the authority?
    Check(Vec<u8>),
    /// Keep for after a restart which list was the newest, and the list itself if no file has it.
    Keep(Mark, Option<Arc<[u8]>>),
    /// Did the registrar sign these?
    CheckSteps(Box<Unchecked>),
    /// Keep supplements for after a restart: all of them, or those to be appended.
    KeepSteps { bytes: Vec<u8>, whole: bool },
    /// Keep these secrets for after a restart, of which one is new.
    KeepSecrets(Zeroizing<String>, Option<NetworkSecret>),
    /// Keep the end of the registrar's ledger for after a restart, in this file.
    KeepLedger(PathBuf, String),
}

/// Files that outlast the node.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Which list was the newest.
    pub seen: Seen,
    /// The list itself, if it came from a neighbour.
    pub file: PathBuf,
    /// What registrars signed.
    pub chains: ChainFile,
    /// The network's secrets.
    pub secrets: SecretFiles,
}

impl Kept {
    /// Keeps the list before its mark: a mark without its list would bar every start.
    fn write(&self, mark: &Mark, list: Option<&[u8]>) -> Result<(), String> {
        if let Some(list) = list {
            seen::replace(&self.file, list).map_err(|e| {
                format!(
                    "{}: can't be written ({e}): the list that came from a neighbour is gone after \
                     a restart; set [authority] kept_file to a place that this node's user may \
                     write",
                    self.file.display()
                )
            })?;
        }
        self.seen.write(mark)
    }
}

/// What tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
}

impl Stamp {
    /// The stamp of the file as it is now; none if there is no file.
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

/// What was seen of a file. It is read once it is the same at two looks.
#[derive(Default)]
struct Looks {
    read: Option<Stamp>,
    last: Option<Stamp>,
}

impl Looks {
    /// Looks again; says whether the file is to be read.
    fn has_changed(&mut self, file: &Path) -> bool {
        let stamp = Stamp::of(file);
        let still = std::mem::replace(&mut self.last, stamp) == stamp;
        let changed = still && stamp != self.read;
        if changed {
            self.read = stamp;
        }
        changed
    }
}

/// Ends its thread when it is dropped.
pub struct Watcher {
    work: SyncSender<Work>,
    faults: Arc<Mutex<Faults>>,
}

/// Why the last of each could not be kept.
#[derive(Clone, Debug, Default)]
struct Faults {
    list: Option<String>,
    steps: Option<String>,
    secrets: Option<String>,
}

impl Faults {
    /// Does what keeps something, and notes why it could not.
    fn note(fault: &mut Option<String>, kept: Result<(), String>) {
        *fault = kept.err();
        if let Some(why) = fault {
            tracing::error!("{why}");
        }
    }
}

impl Watcher {
    /// Watches `file`, whose state `stamp` was read already.
    pub fn start(
        file: PathBuf,
        key: VerifyKey,
        stamp: Option<Stamp>,
        kept: Kept,
        outlet: Outlet<News>,
    ) -> std::io::Result<Watcher> {
        let (work, asked) = sync_channel::<Work>(WORK);
        let faults = Arc::<Mutex<Faults>>::default();
        let theirs = faults.clone();
        let watch = move || {
            let mut list = Looks { read: stamp, last: stamp };
            let mut next = Looks::default();
            let noted = || theirs.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                let news = match asked.recv_timeout(LOOK_EVERY) {
                    Ok(Work::Check(bytes)) => News::Neighbour(List::open(&key, &bytes)),
                    Ok(Work::CheckSteps(unchecked)) => News::Steps(unchecked.check()),
                    Ok(Work::Keep(mark, list)) => {
                        let written = kept.write(&mark, list.as_deref());
                        Faults::note(&mut noted().list, written);
                        continue;
                    }
                    Ok(Work::KeepSteps { bytes, whole }) => {
                        let written = kept.chains.write(&bytes, whole);
                        Faults::note(&mut noted().steps, written);
                        continue;
                    }
                    Ok(Work::KeepLedger(file, text)) => {
                        write_ledger_end(&file, &text);
                        continue;
                    }
                    Ok(Work::KeepSecrets(text, new)) => {
                        let written = kept.secrets.write(&text);
                        let is_written = written.is_ok();
                        // It is tried again and again: the same fault is logged once.
                        let fault = &mut noted().secrets;
                        if fault.as_ref() != written.as_ref().err() {
                            Faults::note(fault, written);
                        }
                        if is_written && new.is_none() {
                            continue;
                        }
                        News::KeptSecrets { new, is_written }
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        if next.has_changed(&kept.secrets.next) {
                            let news = News::NextSecret(kept.secrets.read_next());
                            if outlet.send(news).is_err() {
                                return;
                            }
                        }
                        if !list.has_changed(&file) {
                            continue;
                        }
                        // A list that vanished is one that can't be read: the one in force stays.
                        News::File(self::read(&file, &key))
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

    /// Keeps `mark`, and the list if no file has it, for after a restart; false if the thread's
    /// queue is full: then ask again later.
    pub fn keep(&self, mark: Mark, list: Option<Arc<[u8]>>) -> bool {
        self.work.try_send(Work::Keep(mark, list)).is_ok()
    }

    /// Has bytes of a neighbour checked; the result comes as [`News`]. Gives the bytes back if the
    /// thread's queue is full: then try again later.
    pub fn check(&self, bytes: Vec<u8>) -> Result<(), Vec<u8>> {
        match self.work.try_send(Work::Check(bytes)) {
            Err(TrySendError::Full(Work::Check(bytes))) => Err(bytes),
            // Without its thread the node is about to end.
            _ => Ok(()),
        }
    }

    /// Has supplements checked; the result comes as [`News`]. Gives them back if the thread's queue
    /// is full: then try again later.
    pub(crate) fn check_steps(&self, unchecked: Box<Unchecked>) -> Result<(), Box<Unchecked>> {
        match self.work.try_send(Work::CheckSteps(unchecked)) {
            Err(TrySendError::Full(Work::CheckSteps(unchecked))) => Err(unchecked),
            // Without its thread the node is about to end.
            _ => Ok(()),
        }
    }

    /// Keeps supplements for after a restart, in place of all that are kept if `whole`, behind them
    /// otherwise; false if the thread's queue is full: then ask again later.
    pub(crate) fn keep_steps(&self, bytes: Vec<u8>, whole: bool) -> bool {
        self.work.try_send(Work::KeepSteps { bytes, whole }).is_ok()
    }

    /// Keeps secrets for after a restart, in place of those that are kept; the new one comes back
    /// as [`News`] then, and so does a failure. False if the thread's queue is full: then ask again
    /// later.
    pub(crate) fn keep_secrets(&self, text: Zeroizing<String>, new: Option<NetworkSecret>) -> bool {
        self.work.try_send(Work::KeepSecrets(text, new)).is_ok()
    }

    /// Keeps the end of the registrar's ledger. False if the thread's queue is full.
    pub(crate) fn keep_ledger(&self, file: &Path, text: String) -> bool {
        self.work.try_send(Work::KeepLedger(file.to_path_buf(), text)).is_ok()
    }

    /// Whether the last supplements could not be kept, so that the file is not what it should be.
    pub(crate) fn lost_steps(&self) -> bool {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).steps.is_some()
    }

    /// Why the last mark, list or supplements could not be kept.
    pub fn faults(&self) -> Vec<String> {
        let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone();
        faults.list.into_iter().chain(faults.steps).chain(faults.secrets).collect()
    }
}

/// Without it the end is gone after a restart, until the registrar gives it again.
fn write_ledger_end(file: &Path, text: &str) {
    if let Err(error) = seen::replace(file, text.as_bytes()) {
        tracing::warn!("the end of the registrar's ledger is not kept: {error}");
    }
}

/// Reads a list and checks it; the error names the file.
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
    use shoal_directory::Content;

    fn news(inbox: &mut crate::worker::wake::Inbox<News>) -> Result<List, String> {
        let began = std::time::Instant::now();
        loop {
            if let Some(news) = inbox.take() {
                return match news {
                    News::File(read) => read,
                    News::Neighbour(read) => read.map_err(|e| e.to_string()),
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
        let seen = Seen::new(pipe, key.public());
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
        let seen = Seen::new(folder.path().join("seen"), key.public());
        let chains = ChainFile::new(folder.path().join("chains"));
        let secrets =
            SecretFiles { kept: folder.path().join("secrets"), next: folder.path().join("next") };
        let kept = Kept { seen: seen.clone(), file: folder.path().join("kept"), chains, secrets };
        let watcher = Watcher::start(file.clone(), key.public(), None, kept, outlet).unwrap();
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
        watcher.check(list(3).bytes().to_vec()).unwrap();
        assert_eq!(news(&mut inbox).unwrap().content().version, 3);
        watcher.check(list(4).bytes()[1..].to_vec()).unwrap();
        assert!(news(&mut inbox).is_err());
        let mark = Mark { version: 2, digest: [1; 32] };
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
