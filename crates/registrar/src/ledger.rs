//! The ledger's file: one process at a time opens it, and a record is on the disk before it is
//! told.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nix::fcntl::{Flock, FlockArg};
use shoal_crypto::encoding::hex;
use shoal_daemon::files::reading;
use shoal_daemon::worker::clock::unix_ms;
use shoal_joining::{Disk, LEDGER_MAX, Ledger, LedgerRecord, LedgerTail, SUM_LEN};

/// The file, locked until this is dropped.
pub struct LedgerFile {
    file: Flock<File>,
    note: LedgerEndNote,
    len: u64,
    /// Length of the ledger when it was opened.
    opened: u64,
    /// True if bytes of a failed write, which could not be cut off, remain after `len`.
    is_torn: bool,
}

impl LedgerFile {
    /// Opens a ledger, or makes an empty one; cuts off a last record that was not written whole.
    ///
    /// # Errors
    ///
    /// Another process uses the file, it can't be read or written, or it is damaged.
    pub fn open(path: &Path) -> anyhow::Result<(LedgerFile, Ledger, LedgerHistory)> {
        let at = || path.display().to_string();
        let is_new = !path.exists();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        // Opening a pipe of that name must not block.
        let file = options.custom_flags(nix::libc::O_NONBLOCK).open(path).with_context(at)?;
        if !file.metadata().with_context(at)?.is_file() {
            bail!("{}: expected a regular file", at());
        }
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|_| anyhow::anyhow!("{}: another registrar uses this ledger", at()))?;
        if is_new {
            sync_folder(path).with_context(at)?;
        }
        let bytes = reading::read_open(&file, LEDGER_MAX as u64).with_context(at)?;
        let ledger = Ledger::read(&bytes).with_context(at)?;
        let len = ledger.end.len() as u64;
        let mut note = LedgerEndNote::of(path);
        let past = note.read(&bytes[..ledger.end.len()], &ledger);
        note.is_settled = past.is_recent;
        let is_torn = bytes.len() as u64 > len;
        let mut opened = LedgerFile { file, note, len, opened: len, is_torn };
        opened.mend().with_context(at)?;
        if past.older.is_none() {
            opened.note.write(ledger.end.len() as u64, ledger.end.sum());
        }
        Ok((opened, ledger, past))
    }

    /// Notes that the ledger is still in use, so that a start soon afterwards need not wait.
    pub fn touch(&mut self) {
        self.note.touch();
    }

    /// Records if the ledger is known to be the newest one. If not, its note has no time, so the
    /// next start waits for the network's word, however soon it is.
    pub fn settle(&mut self, is_settled: bool) {
        if std::mem::replace(&mut self.note.is_settled, is_settled) != is_settled {
            self.note.touch();
        }
    }

    /// Length of the ledger, and its last sum as hex; none for a ledger that is an older copy.
    pub fn end(&self) -> Option<(u64, String)> {
        let (len, sum) = self.note.end?;
        Some((len, hex(&sum)))
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if the ledger had this end when it was opened, or before; `sum` is hex.
    pub fn had(&self, len: u64, sum: &str) -> bool {
        let mut last = [0; SUM_LEN];
        let at = len.checked_sub(SUM_LEN as u64);
        let read = at.map(|at| self.file.read_exact_at(&mut last, at));
        let is_there = len <= self.opened && read.is_some_and(|read| read.is_ok());
        len == 0 || (is_there && hex(&last) == sum)
    }

    /// Cuts off the bytes after the end.
    fn mend(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.file.set_len(self.len)?;
            self.file.sync_all()?;
            self.is_torn = false;
        }
        Ok(())
    }
}

/// Facts about the ledger besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerHistory {
    /// Present and former length in bytes, if this is an older copy or another ledger.
    pub older: Option<(usize, usize)>,
    /// True if a note of its end exists. The owner removes the note of a ledger whose newest copy
    /// is lost.
    pub is_noted: bool,
    /// True if the ledger is new, or was in use a moment ago, so that no backup was put back
    /// meanwhile.
    pub is_recent: bool,
}

/// A start within this many seconds of the ledger's last use needs no word of the network.
const RECENT_S: u64 = 30;

/// Note of the ledger's end, in a file `ledger.end` beside it. Its words are the length, the time
/// of the last use in seconds since 1970, and the last sum as hex.
struct LedgerEndNote {
    path: PathBuf,
    /// True if the ledger is known to be the newest one. Until then the note's time is 0.
    is_settled: bool,
    /// None while the ledger is an older copy, whose end is not noted.
    end: Option<(u64, [u8; SUM_LEN])>,
}

impl LedgerEndNote {
    fn of(ledger: &Path) -> LedgerEndNote {
        let mut path = ledger.to_path_buf().into_os_string();
        path.push(".end");
        LedgerEndNote { path: path.into(), is_settled: false, end: None }
    }

    fn read(&self, bytes: &[u8], ledger: &Ledger) -> LedgerHistory {
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        let mut words = text.split_whitespace();
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
        let (len, used) = (number(), number());
        let sum =
            text.split_whitespace().nth(2).and_then(|word| u64::from_str_radix(word, 16).ok());
        let (Some(len), Some(used), Some(sum)) = (len, used, sum) else {
            // A ledger without steps and without a note is a new one.
            let is_step = |record: &LedgerRecord| matches!(record, LedgerRecord::Step { .. });
            let is_recent = !ledger.records.iter().any(is_step);
            return LedgerHistory { older: None, is_noted: false, is_recent };
        };
        let had = usize::try_from(len).unwrap_or(usize::MAX);
        let was = LedgerTail::was(bytes, had, &sum.to_be_bytes());
        let age_s = (unix_ms() / 1_000).checked_sub(used);
        let is_recent = was && age_s.is_some_and(|age_s| age_s <= RECENT_S);
        LedgerHistory { older: (!was).then_some((bytes.len(), had)), is_noted: true, is_recent }
    }

    fn write(&mut self, len: u64, sum: [u8; SUM_LEN]) {
        self.end = Some((len, sum));
        self.touch();
    }

    fn touch(&self) {
        let Some((len, sum)) = self.end else { return };
        let used = if self.is_settled { unix_ms() / 1_000 } else { 0 };
        let fresh = self.path.with_extension("end.new");
        let text = format!("{len} {used} {}\n", hex(&sum));
        // If this fails, the next start waits for word of the network.
        let _unwritten =
            std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, &self.path));
    }
}

/// Syncs a file's folder: before that a new file's name may be lost with the power.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

impl Disk for LedgerFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.mend()?;
        let Self { file, len, .. } = self;
        file.seek(SeekFrom::Start(*len))?;
        let written = file.write_all(bytes).and_then(|()| file.sync_data());
        match written {
            Ok(()) => {
                self.len += bytes.len() as u64;
                if let Some(sum) = bytes.last_chunk() {
                    self.note.write(self.len, *sum);
                }
            }
            Err(_) => {
                self.is_torn = true;
                // If this fails, the next write tries it again first.
                let _torn = self.mend();
            }
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_joining::TokenHash;

    fn record(n: u8) -> LedgerRecord {
        LedgerRecord::Withdrawn(TokenHash([n; 32]))
    }

    #[test]
    fn what_was_appended_is_read_and_a_torn_end_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let (mut file, ledger, _) = LedgerFile::open(&path).unwrap();
        assert!(ledger.records.is_empty() && ledger.end == LedgerTail::EMPTY);
        let (first, end) = ledger.end.append(&record(1));
        file.append(&first).unwrap();
        let said = LedgerFile::open(&path).err().unwrap();
        assert!(format!("{said:#}").contains("another registrar uses"), "{said:#}");
        drop(file);
        let (second, _) = end.append(&record(2));
        let half = [&first[..], &second[..second.len() - 3]].concat();
        std::fs::write(&path, half).unwrap();
        let (mut file, ledger, _) = LedgerFile::open(&path).unwrap();
        assert_eq!((ledger.records, ledger.end), (vec![record(1)], end));
        assert_eq!(std::fs::read(&path).unwrap(), first);
        file.append(&second).unwrap();
        drop(file);
        let (_, ledger, _) = LedgerFile::open(&path).unwrap();
        assert_eq!(ledger.records, [record(1), record(2)]);
    }

    #[test]
    fn an_older_copy_is_told_by_the_note_of_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let (mut file, ledger, past) = LedgerFile::open(&path).unwrap();
        assert_eq!(
            past,
            LedgerHistory { older: None, is_noted: false, is_recent: true },
            "a new ledger"
        );
        let (first, end) = ledger.end.append(&record(1));
        let (second, _) = end.append(&record(2));
        file.append(&first).unwrap();
        file.append(&second).unwrap();
        drop(file);
        let past = || LedgerFile::open(&path).unwrap().2;
        assert_eq!(past(), LedgerHistory { older: None, is_noted: true, is_recent: true });
        std::fs::write(&path, &first).unwrap();
        let older = LedgerHistory {
            older: Some((first.len(), first.len() + second.len())),
            is_noted: true,
            is_recent: false,
        };
        assert_eq!((past(), past()), (older, older), "also the next time");
        let (other, _) = end.append(&record(3));
        std::fs::write(&path, [&first[..], &other].concat()).unwrap();
        assert!(past().older.is_some(), "another record in its place");
        let (third, _) = end.append(&record(2)).1.append(&record(3));
        std::fs::write(&path, [&first[..], &second, &third].concat()).unwrap();
        assert_eq!(past().older, None, "killed before it was noted");
        let note = folder.path().join("ledger.end");
        let text = std::fs::read_to_string(&note).unwrap();
        let used = text.split_whitespace().nth(1).unwrap();
        let long_ago = text.replace(used, "1700000000");
        std::fs::write(&note, long_ago).unwrap();
        assert_eq!(past(), LedgerHistory { older: None, is_noted: true, is_recent: false });
    }

    #[test]
    fn a_start_before_the_network_has_spoken_makes_the_next_one_wait_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let open = || LedgerFile::open(&path).unwrap();
        let is_recent = || open().2.is_recent;
        let (mut file, ledger, _) = open();
        let (first, end) = ledger.end.append(&record(1));
        file.append(&first).unwrap();
        drop(file);
        assert!(is_recent(), "in use a moment ago");
        let (mut file, ..) = open();
        // The node knows more than this ledger has, or has not told yet what it knows.
        file.settle(false);
        file.touch();
        file.append(&end.append(&record(2)).0).unwrap();
        drop(file);
        assert_eq!([is_recent(), is_recent()], [false; 2]);
        let (mut file, ..) = open();
        file.settle(true);
        drop(file);
        assert!(is_recent());
    }

    #[test]
    fn ends_that_the_ledger_had_are_told_from_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let (mut file, ledger, _) = LedgerFile::open(&path).unwrap();
        let (first, end) = ledger.end.append(&record(1));
        file.append(&first).unwrap();
        let of_first = file.end().unwrap();
        file.append(&end.append(&record(2)).0).unwrap();
        let of_second = file.end().unwrap();
        drop(file);
        let had = |(len, sum): &(u64, String)| LedgerFile::open(&path).unwrap().0.had(*len, sum);
        assert_eq!([had(&of_first), had(&of_second)], [true; 2]);
        assert!(!had(&(of_first.0, of_second.1.clone())));
        std::fs::write(&path, &first).unwrap();
        assert_eq!([had(&of_first), had(&of_second)], [true, false]);
    }

    #[test]
    fn damage_and_other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |path: &Path| format!("{:#}", LedgerFile::open(path).err().unwrap());
        assert!(refused(folder.path()).contains("s a directory"));
        let other = folder.path().join("other");
        std::fs::write(&other, "[node]\n").unwrap();
        assert!(refused(&other).contains("no registrar's ledger"));
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        assert!(refused(&pipe).contains("regular file"));
    }
}
