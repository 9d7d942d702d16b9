//! Stores a mark of the newest list of the authority, so that an older one is refused after a
//! restart, too.
//!
//! ```text
//! shoal-seen-1:<the authority's key>:<version>:<BLAKE3 of the list, hex>
//! ```

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use shoal_crypto::VerifyKey;
use shoal_crypto::encoding::{from_hex, hex};
use shoal_directory::ListMark;

const LABEL: &str = "shoal-seen-1";
/// Longest file in bytes; a real one has less than 200.
const MAX_LEN: u64 = 1_024;

/// The file of one node.
#[derive(Clone, Debug)]
pub struct ListMarkFile {
    file: PathBuf,
    key: VerifyKey,
}

impl ListMarkFile {
    pub fn new(file: PathBuf, key: VerifyKey) -> ListMarkFile {
        ListMarkFile { file, key }
    }

    /// The mark in the file; none if the file is missing or belongs to another authority.
    ///
    /// Errors, with advice: the file can't be read, others may write it, or it is damaged.
    pub fn read(&self) -> Result<Option<ListMark>, String> {
        let wrong = |why: String| format!("{}: {why}", self.file.display());
        let unread = |e: std::io::Error| wrong(format!("can't be read: {e}"));
        let file = match crate::files::reading::open(&self.file) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(unread(e)),
        };
        let mode = file.metadata().map_err(unread)?.mode();
        if mode & 0o022 != 0 {
            let mode = mode & 0o777;
            return Err(wrong(format!("mode {mode:04o} lets others write it; expected 0600")));
        }
        let mut text = String::new();
        let read = file.take(MAX_LEN).read_to_string(&mut text);
        let damaged = || {
            wrong(
                "is damaged, so that an older list could pass for the newest: make sure that the \
                 list here is the authority's newest, then delete this file"
                    .into(),
            )
        };
        read.map_err(|_| damaged())?;
        let (key, mark) = parse(&text).ok_or_else(damaged)?;
        Ok((key == self.key).then_some(mark))
    }

    /// Replaces the mark, whole or not at all.
    ///
    /// Errors: a message that says what to do.
    pub fn write(&self, mark: &ListMark) -> Result<(), String> {
        replace(&self.file, self.text(mark).as_bytes()).map_err(|e| {
            format!(
                "{}: can't be written ({e}): after a restart an older list could pass for the \
                 newest; set [authority] seen_file to a place that this node's user may write",
                self.file.display()
            )
        })
    }

    fn text(&self, mark: &ListMark) -> String {
        format!("{LABEL}:{}:{}:{}\n", self.key, mark.version, hex(&mark.digest))
    }
}

/// Replaces the content of `file`, whole or not at all, readable only for this node's user.
pub(crate) fn replace(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    // The open must not block if a pipe has that name.
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let mut new = options.open(&name)?;
    let written = new.write_all(bytes).and_then(|()| new.sync_all());
    if let Err(error) = written.and_then(|()| std::fs::rename(&name, file)) {
        // On a full disk a part of a secret would otherwise remain and use space.
        let _gone = std::fs::remove_file(&name);
        return Err(error);
    }
    File::open(folder)?.sync_all()
}

fn parse(text: &str) -> Option<(VerifyKey, ListMark)> {
    let mut parts = text.strip_suffix('\n')?.split(':');
    let mut next = || parts.next();
    if next()? != LABEL {
        return None;
    }
    let (key, version) = (next()?.parse().ok()?, next()?.parse().ok()?);
    let digest = from_hex(next()?)?;
    parts.next().is_none().then_some((key, ListMark { version, digest }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_crypto::SigningKey;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_was_seen_is_kept_and_damage_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("network.seen");
        let key = |n| SigningKey::from_seed([n; 32]).public();
        let seen = ListMarkFile::new(file.clone(), key(1));
        assert_eq!(seen.read(), Ok(None));
        for version in [7, u64::MAX] {
            let mark = ListMark { version, digest: [0xa5; 32] };
            seen.write(&mark).unwrap();
            assert_eq!(seen.read(), Ok(Some(mark)));
        }
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside");
        assert_eq!(ListMarkFile::new(file.clone(), key(2)).read(), Ok(None), "another authority's");
        let whole = std::fs::read_to_string(&file).unwrap();
        for len in 0..whole.len() {
            std::fs::write(&file, &whole[..len]).unwrap();
            let said = seen.read().unwrap_err();
            assert!(said.contains("is damaged") && said.contains("delete this file"), "{said}");
        }
        std::fs::write(&file, [0xff; 10]).unwrap();
        assert!(seen.read().unwrap_err().contains("is damaged"));
        std::fs::write(&file, &whole).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o660)).unwrap();
        assert!(seen.read().unwrap_err().contains("mode 0660 lets others write it"));
        let nowhere = ListMarkFile::new(folder.path().join("none/network.seen"), key(1));
        assert!(nowhere.write(&ListMark { version: 1, digest: [0; 32] }).is_err());
    }
}
