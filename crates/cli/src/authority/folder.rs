//! The authority's folder: locked for one command at a time; each list is replaced in one step.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Result;
use nix::fcntl::{Flock, FlockArg};
use shoal_crypto::{PublicKey, SigningKey, VerifyKey};
use shoal_daemon::config::keys;
use shoal_daemon::files::reading;
use shoal_directory::{List, ListContent, Mandate, Prefix, SIZE_MAX};

use crate::failure::{self, ExitError};

pub const KEY: &str = "authority.key";
pub const LIST: &str = "network.list";
/// Withdrawn and restarted mandates: one line each, with the registrar's key and the serial.
const ENDED: &str = "mandates.ended";
/// Longest `mandates.ended`, in bytes.
const ENDED_MAX: u64 = 1 << 20;

/// An error about a file.
pub fn wrong(path: &Path, why: impl core::fmt::Display) -> anyhow::Error {
    ExitError::of(failure::CONFIG, format!("{}: {why}", path.display()))
}

/// Seconds since 1970.
pub fn now_s() -> u64 {
    shoal_daemon::worker::clock::unix_ms() / 1_000
}

/// An authority, locked against other commands until it is dropped.
pub struct AuthorityFolder {
    dir: PathBuf,
    key: SigningKey,
    /// Content of the list, which [`AuthorityFolder::save`] signs.
    pub content: ListContent,
    _lock: Flock<File>,
}

/// Makes the folder with a new key, and a list without members for a network with this prefix.
pub fn create(dir: &Path, key: &SigningKey, overlay: Prefix) -> Result<List> {
    // Other users of this machine must not read the list of members.
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|e| wrong(dir, e))?;
    let file = dir.join(KEY);
    let list = dir.join(LIST);
    if list.exists() {
        return Err(wrong(&list, "exists already: choose another folder"));
    }
    let text = keys::authority_text(key);
    keys::create(&file, &text).map_err(|e| ExitError::of(failure::FAILED, e.to_string()))?;
    let content = ListContent {
        version: 1,
        issued_unix_s: now_s(),
        overlay: Some(overlay),
        ..ListContent::default()
    };
    let signed = content.sign(key).map_err(|e| wrong(&list, e))?;
    write(&list, signed.bytes())?;
    Ok(signed)
}

/// Removes what [`create`] has made, as far as possible, if a network could not be made whole. A
/// folder with other files stays.
pub fn unmake(dir: &Path) {
    for name in [LIST, "network.list.new", KEY] {
        // A file that remains is named when the command is repeated.
        let _left = std::fs::remove_file(dir.join(name));
    }
    let _left = std::fs::remove_dir(dir);
}

impl AuthorityFolder {
    /// Opens the folder.
    pub fn open(dir: &Path) -> Result<AuthorityFolder> {
        let file = dir.join(KEY);
        let key = keys::load_authority(&file);
        let key = key.map_err(|e| ExitError::of(failure::CONFIG, e.to_string()))?;
        let lock = reading::open(&file).map_err(|e| wrong(&file, e))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock)
            .map_err(|_| wrong(dir, "another command is changing this authority"))?;
        let content = read(&dir.join(LIST), &key.public())?.content().clone();
        Ok(AuthorityFolder { dir: dir.to_path_buf(), key, content, _lock: lock })
    }

    pub fn list(&self) -> PathBuf {
        self.dir.join(LIST)
    }

    pub fn key(&self) -> &SigningKey {
        &self.key
    }

    /// Records a mandate that ends with the next list, so that no later chain has its id.
    pub fn note_ended(&self, mandate: &Mandate) -> Result<()> {
        let (key, serial) = (mandate.key.to_string(), mandate.serial);
        if self.last_serial(&mandate.key)? < serial {
            let text = format!("{}{key} {serial}\n", self.ended()?);
            write(&self.dir.join(ENDED), text.as_bytes())?;
        }
        Ok(())
    }

    /// The highest serial of a mandate for this key that has ended; 0 if there was none.
    pub fn last_serial(&self, key: &PublicKey) -> Result<u32> {
        let key = key.to_string();
        let serial = |line: &str| line.strip_prefix(&key)?.trim().parse().ok();
        Ok(self.ended()?.lines().filter_map(serial).max().unwrap_or(0))
    }

    fn ended(&self) -> Result<String> {
        let file = self.dir.join(ENDED);
        if !file.exists() {
            return Ok(String::new());
        }
        let bytes = reading::read(&file, ENDED_MAX).map_err(|e| wrong(&file, e))?;
        String::from_utf8(bytes).map_err(|e| wrong(&file, e))
    }

    /// Signs the content as the next version of the list, and replaces the file.
    pub fn save(mut self) -> Result<List> {
        let file = self.list();
        self.content.version += 1;
        self.content.issued_unix_s = now_s();
        let list = self.content.sign(&self.key).map_err(|e| wrong(&file, e))?;
        write(&file, list.bytes())?;
        Ok(list)
    }
}

/// Reads a list and checks it.
pub fn read(file: &Path, authority: &VerifyKey) -> Result<List> {
    let bytes = reading::read(file, SIZE_MAX as u64).map_err(|e| wrong(file, e))?;
    List::open(authority, &bytes).map_err(|e| wrong(file, e))
}

/// Replaces a file in one step.
pub fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = file.file_name().unwrap_or_default().to_os_string();
    name.push(".new");
    let fresh = file.with_file_name(name);
    let written = (|| {
        let mut options = OpenOptions::new();
        let mut out = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            // Opening a pipe of that name must not block.
            .custom_flags(libc::O_NONBLOCK)
            .open(&fresh)?;
        out.write_all(bytes)?;
        out.sync_all()?;
        std::fs::rename(&fresh, file)?;
        // After a power cut the former list would come back, and two lists would get one version.
        match file.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            Some(dir) => File::open(dir)?.sync_all(),
            None => File::open(".")?.sync_all(),
        }
    })();
    written.map_err(|e| wrong(file, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_other_user_reads_what_an_authority_has() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("net");
        create(&dir, &SigningKey::from_seed([1; 32]), "fd00::/48".parse().unwrap()).unwrap();
        AuthorityFolder::open(&dir).unwrap().save().unwrap();
        let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(dir.join(LIST)), mode(dir.join(KEY)), mode(dir)), (0o600, 0o600, 0o700));
    }

    #[test]
    fn a_mandate_that_ended_leaves_its_serial() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("net");
        let key = SigningKey::from_seed([1; 32]);
        create(&dir, &key, "fd00::/48".parse().unwrap()).unwrap();
        let authority = AuthorityFolder::open(&dir).unwrap();
        let desk = |seed: u8| shoal_crypto::Identity::from_seed([seed; 32]).public();
        let mandate = |seed: u8, serial: u32| Mandate {
            name: "desk".into(),
            serial,
            key: desk(seed),
            groups: Vec::new(),
            hosts: vec!["1.100-1.199".parse().unwrap()],
            ipv4: None,
            most: 9,
            longest_s: 86_400,
            until_unix_s: 2_000_000_000,
            rights: shoal_directory::MandateRights::default(),
        };
        assert_eq!(authority.last_serial(&desk(7)).unwrap(), 0);
        for (seed, serial) in [(7, 1), (8, 5), (7, 3), (7, 2)] {
            authority.note_ended(&mandate(seed, serial)).unwrap();
        }
        assert_eq!([7, 8, 9].map(|seed| authority.last_serial(&desk(seed)).unwrap()), [3, 5, 0]);
        let lines = std::fs::read_to_string(dir.join(ENDED)).unwrap();
        assert_eq!(lines.lines().count(), 3, "{lines}");
    }
}
