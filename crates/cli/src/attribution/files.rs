//! Files of groups: the modes of secret files are checked, and all lengths are bounded.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use shoal_attribution::{EpochNotice, Group, GroupVerifier, NoticeMemory};
use shoal_crypto::Rng;
use shoal_daemon::files::reading;
use shoal_daemon::worker::clock;
use zeroize::Zeroizing;

use crate::failure::{self, ExitError};

/// Longest secret file, in bytes.
const SECRET_MAX: u64 = 4_096;
/// Longest public file, in bytes: a registry of a million members.
const PUBLIC_MAX: u64 = 400 << 20;

/// An error about a file.
pub fn wrong(path: &Path, why: impl core::fmt::Display) -> anyhow::Error {
    ExitError::of(failure::CONFIG, format!("{}: {why}", path.display()))
}

/// Reads a public file.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    reading::read(path, PUBLIC_MAX).map_err(|e| wrong(path, e))
}

/// Reads a secret file that only its owner can read.
pub fn read_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    let file = reading::open(path).map_err(|e| wrong(path, e))?;
    // The open file is checked, not the path, which could change in between.
    let meta = file.metadata().map_err(|e| wrong(path, e))?;
    let mode = meta.mode() & 0o7777;
    if mode & 0o077 != 0 {
        let fix = format!("mode {mode:04o} lets others access the secret; fix: chmod 600");
        return Err(wrong(path, format!("{fix} {}", path.display())));
    }
    let bytes = reading::read_open(&file, SECRET_MAX).map_err(|e| wrong(path, e))?;
    Ok(Zeroizing::new(bytes))
}

/// Writes a new secret file, mode 600; an existing one is left alone.
pub fn create_secret(path: &Path, bytes: &[u8]) -> Result<()> {
    create(path, bytes, 0o600)
}

/// Writes a new public file; an existing one is left alone.
pub fn create_public(path: &Path, bytes: &[u8]) -> Result<()> {
    create(path, bytes, 0o644)
}

fn create(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let mut options = OpenOptions::new();
    let mut file =
        options.write(true).create_new(true).mode(mode).open(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::AlreadyExists => wrong(path, "exists already"),
            _ => wrong(path, e),
        })?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|e| wrong(path, e))
}

/// Replaces a public file in one step.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    replace_with(path, bytes, create_public)
}

/// Replaces, in one step, a file that only its owner may read.
pub fn replace_private(path: &Path, bytes: &[u8]) -> Result<()> {
    replace_with(path, bytes, create_secret)
}

fn replace_with(
    path: &Path,
    bytes: &[u8],
    create: impl FnOnce(&Path, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".new");
    let fresh = path.with_file_name(name);
    match std::fs::remove_file(&fresh) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(wrong(&fresh, e)),
        _ => create(&fresh, bytes)?,
    }
    std::fs::rename(&fresh, path).map_err(|e| wrong(path, e))
}

/// Reads the group from a public file.
pub fn group(path: &Path) -> Result<Group> {
    Group::decode(&read(path)?).map_err(|e| wrong(path, e))
}

/// A verifier that accepts one epoch.
pub fn verifier(group: &Group, epoch: u32) -> GroupVerifier {
    let mut verifier = GroupVerifier::new(group);
    verifier.accept_epoch(epoch);
    verifier
}

/// A generator from the operating system's randomness.
pub fn rng() -> Result<Rng> {
    Ok(Rng::new(seed()?))
}

/// 32 bytes of the operating system's randomness.
pub fn seed() -> Result<[u8; 32]> {
    crate::keys::random()
}

/// Reads the issuer's notice of an epoch, without verifying it.
pub fn notice(path: &Path) -> Result<EpochNotice> {
    EpochNotice::decode(&read(path)?).map_err(|e| wrong(path, e))
}

/// Accepts a notice from the file `source` and records it in `seen`. Refuses it if `seen` has a
/// later epoch, or another notice of the same epoch.
pub fn take_notice(seen: &Path, group: &Group, notice: &EpochNotice, source: &Path) -> Result<()> {
    let mut all = match seen.exists() {
        true => NoticeMemory::decode(&read(seen)?).map_err(|e| wrong(seen, e))?,
        false => NoticeMemory::new(),
    };
    if all.take(group, notice, clock::unix_ms() / 1_000).map_err(|e| wrong(source, e))? {
        replace(seen, &all.encode()).context("the newest notice could not be recorded (--seen)")?;
    }
    Ok(())
}

/// The given path, or `path` with `ending` appended.
pub fn beside(path: &Path, ending: &str, given: Option<&PathBuf>) -> PathBuf {
    given.cloned().unwrap_or_else(|| {
        let mut name = path.as_os_str().to_os_string();
        name.push(ending);
        PathBuf::from(name)
    })
}

/// `FILE.stamps`, unless another path is given.
pub fn stamps_of(file: &Path, given: Option<&PathBuf>) -> PathBuf {
    beside(file, ".stamps", given)
}
