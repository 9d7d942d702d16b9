//! The folder of a run: in memory if it has room, and removed afterwards.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// Prefix of the folders' names.
const PREFIX: &str = "shoal-demo-";
/// A locked file in each folder. If the lock is free, the folder's owner has ended.
const OWNER: &str = "owner";
/// Space for keys, logs and sockets beside the files, in bytes.
const SPARE_BYTES: u64 = 64 << 20;
/// Younger folders are not removed: their owners may not have locked them yet.
const STALE_AGE: Duration = Duration::from_secs(10);

/// A folder with a lock.
#[derive(Debug)]
pub struct Workspace {
    folder: TempDir,
    _lock: File,
    /// Path and medium of the folder, for messages.
    pub place: String,
}

impl Workspace {
    /// Makes a folder with room for files of `bytes` in all. Removes the folders of crashed runs.
    pub fn new(bytes: u64) -> Result<Workspace> {
        let need = bytes + SPARE_BYTES;
        let memory = Path::new("/dev/shm");
        let disk = std::env::temp_dir();
        for base in [memory, &disk] {
            remove_stale(base);
        }
        let (base, kind) =
            if room(memory) >= need { (memory, "memory") } else { (disk.as_path(), "disk") };
        anyhow::ensure!(
            room(base) >= need,
            "{} has no room for two copies of every file; use smaller files, or set TMPDIR",
            base.display()
        );
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(base);
        let folder = folder.with_context(|| format!("a folder in {}", base.display()))?;
        let lock = File::create(folder.path().join(OWNER))?;
        lock.lock().context("locking the folder")?;
        let place = format!("{} ({kind})", folder.path().display());
        Ok(Workspace { folder, _lock: lock, place })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Keeps the folder for the user, and returns its path.
    pub fn keep(mut self) -> PathBuf {
        self.folder.disable_cleanup(true);
        self.folder.path().to_path_buf()
    }
}

/// Bytes that this user may still write in `folder`.
fn room(folder: &Path) -> u64 {
    let stat = nix::sys::statvfs::statvfs(folder);
    stat.map_or(0, |s| s.blocks_available() * s.fragment_size())
}

fn remove_stale(base: &Path) {
    let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
    for entry in entries.filter(|e| e.file_name().to_string_lossy().starts_with(PREFIX)) {
        let mine = entry.metadata().is_ok_and(|m| m.uid() == nix::unistd::geteuid().as_raw());
        let Ok(owner) = File::open(entry.path().join(OWNER)) else { continue };
        let made = owner.metadata().and_then(|m| m.modified());
        let age = made.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        if mine && age > Some(STALE_AGE) && owner.try_lock().is_ok() {
            // Another run may be removing it too.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_folders_go_and_live_ones_stay() {
        let live = Workspace::new(0).unwrap();
        let base = live.path().parent().unwrap().to_path_buf();
        let stale = base.join(format!("{PREFIX}test-{}", std::process::id()));
        std::fs::create_dir(&stale).unwrap();
        let owner = File::create(stale.join(OWNER)).unwrap();
        owner.set_modified(SystemTime::now() - 2 * STALE_AGE).unwrap();
        drop(owner);
        remove_stale(&base);
        assert!(!stale.exists() && live.path().exists());
        let path = live.path().to_path_buf();
        drop(live);
        assert!(!path.exists());
    }
}
