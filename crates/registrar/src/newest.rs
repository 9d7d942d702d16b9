//! The newest list of the authority, kept in the registrar's `list_file` for its next start.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use shoal_wire::Time;

use crate::again::WriteRetry;

/// Keeper of the newest list.
pub struct ListKeeper {
    file: PathBuf,
    /// List that is not in the file yet.
    list: Option<Arc<[u8]>>,
    again: WriteRetry,
}

impl ListKeeper {
    /// Keeps the list in this file.
    pub fn new(file: PathBuf) -> ListKeeper {
        ListKeeper { file, list: None, again: WriteRetry::default() }
    }

    /// Replaces the kept list by a newer one.
    pub fn keep(&mut self, list: Arc<[u8]>, now: Time) {
        self.list = Some(list);
        self.save(now);
    }

    /// Time at which [`ListKeeper::handle_timeout`] has work.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.again.poll_timeout()
    }

    /// Repeats a write that failed, if it is time.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.again.is_due(now) {
            self.save(now);
        }
    }

    /// Reason why the list is not on the disk, in words for the owner.
    pub fn fault(&self) -> Option<&str> {
        self.again.fault()
    }

    fn save(&mut self, now: Time) {
        let Some(list) = &self.list else { return };
        let written = self.replace(list).map_err(|error| {
            format!(
                "{}: the list can't be kept for the next start: {error}; make room there, and let \
                 this registrar's user write beside its list_file: the registrar tries again, once \
                 a minute at least",
                self.file.display()
            )
        });
        if written.is_ok() {
            self.list = None;
        }
        self.again.note(now, "the authority's list", written);
    }

    /// Replaces the file in one step.
    fn replace(&self, bytes: &[u8]) -> anyhow::Result<()> {
        let Some(name) = self.file.file_name() else { bail!("list_file names no file") };
        let mut name = name.to_os_string();
        name.push(".new");
        let fresh = self.file.with_file_name(name);
        fs::write(&fresh, bytes)?;
        fs::File::open(&fresh)?.sync_all()?;
        fs::rename(&fresh, &self.file)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_list_that_could_not_be_kept_is_kept_later_and_only_the_newest() {
        let folder = tempfile::tempdir().unwrap();
        // The folder does not exist yet.
        let file = folder.path().join("state").join("network.list");
        let mut newest = ListKeeper::new(file.clone());
        let now = Time::from_millis(7);
        newest.keep(b"one".as_slice().into(), now);
        assert!(newest.fault().unwrap().contains("tries again"), "{:?}", newest.fault());
        newest.keep(b"two".as_slice().into(), now);
        fs::create_dir(folder.path().join("state")).unwrap();
        newest.handle_timeout(now + Duration::from_millis(900));
        assert!(!file.exists(), "not before its time");
        let next = newest.poll_timeout().unwrap();
        newest.handle_timeout(next);
        assert_eq!((newest.poll_timeout(), newest.fault()), (None, None));
        assert_eq!(fs::read(&file).unwrap(), b"two");
        newest.keep(b"three".as_slice().into(), next);
        assert_eq!(fs::read(&file).unwrap(), b"three");
    }
}
