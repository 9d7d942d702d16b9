//! The ledger's file: opened by one process at a time, and on the disk before anything is said.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, bail};
use nix::fcntl::{Flock, FlockArg};
use shoal_daemon::files::reading;
use shoal_joining::{Disk, LEDGER_MAX, Ledger};

/// The file, locked until this is dropped.
pub struct LedgerFile {
    file: Flock<File>,
    len: u64,
    /// Bytes of a failed write that could not be cut off again stand behind `len`.
    is_torn: bool,
}

impl LedgerFile {
    /// Opens a ledger, or makes an empty one; cuts off a last record that was not written whole.
    ///
    /// # Errors
    ///
    /// Another process has it, or it can't be read or written, or is damaged.
    pub fn open(path: &Path) -> anyhow::Result<(LedgerFile, Ledger)> {
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
        let mut opened = LedgerFile { file, len, is_torn: bytes.len() as u64 > len };
        opened.mend().with_context(at)?;
        Ok((opened, ledger))
    }

    /// Cuts off what stands behind the end.
    fn mend(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.file.set_len(self.len)?;
            self.file.sync_all()?;
            self.is_torn = false;
        }
        Ok(())
    }
}

/// A new file's name outlasts a loss of power once its folder is synced.
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
            Ok(()) => self.len += bytes.len() as u64,
            Err(_) => {
                self.is_torn = true;
                // If it fails, the next write tries again first.
                let _torn = self.mend();
            }
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_joining::{End, Record, TokenHash};

    fn record(n: u8) -> Record {
        Record::Withdrawn(TokenHash([n; 32]))
    }

    #[test]
    fn what_was_appended_is_read_and_a_torn_end_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let (mut file, ledger) = LedgerFile::open(&path).unwrap();
        assert!(ledger.records.is_empty() && ledger.end == End::EMPTY);
        let (first, end) = ledger.end.append(&record(1));
        file.append(&first).unwrap();
        let said = LedgerFile::open(&path).err().unwrap();
        assert!(format!("{said:#}").contains("another registrar uses"), "{said:#}");
        drop(file);
        let (second, _) = end.append(&record(2));
        let half = [&first[..], &second[..second.len() - 3]].concat();
        std::fs::write(&path, half).unwrap();
        let (mut file, ledger) = LedgerFile::open(&path).unwrap();
        assert_eq!((ledger.records, ledger.end), (vec![record(1)], end));
        assert_eq!(std::fs::read(&path).unwrap(), first);
        file.append(&second).unwrap();
        drop(file);
        let (_, ledger) = LedgerFile::open(&path).unwrap();
        assert_eq!(ledger.records, [record(1), record(2)]);
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
