//! The folder for received files.
//!
//! A file is written beneath the folder under a temporary name, with a record of its arrived chunks
//! beside it. The file gets its own name when it is whole and synced. Temporary file and record
//! belong to one sender: an offer of the same name by another sender touches neither. A file takes
//! only the room of its arrived data, so a transfer that ends early reserves nothing. Every step is
//! relative to a descriptor of the folder, and no symbolic link beneath it is followed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{
    AtFlags, FallocateFlags, OFlag, OpenHow, RenameFlags, ResolveFlag, fallocate, open, openat,
    openat2, renameat, renameat2,
};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat, mkdirat};
use nix::unistd::{AccessFlags, UnlinkatFlags, faccessat, unlinkat};
use serde::{Deserialize, Serialize};
use shoal_daemon::control::api::{CHUNK_LEN, RefuseReason, SendFile};

use crate::chunks::Chunks;
use crate::names::{self, PART, STATE};

/// Longest record of arrived chunks, in bytes; the worst pattern of a large file fits.
const MAX_STATE: u64 = 16 << 20;
/// Greatest time by which a modification time may be ahead: clocks and time zones may be wrong.
const AHEAD_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Most folders made for offers that are remembered, to be removed if they stay empty.
const MAX_MADE: usize = 4_096;
/// Numbers tried to find a free name.
const MAX_NUMBER: u32 = 9_999;

/// Action if the name of a new file exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameConflict {
    Refuse,
    Overwrite,
    Number,
}

/// Reason for declining an offer.
#[derive(Debug)]
pub struct OfferRefusal {
    /// For the sender.
    pub reason: RefuseReason,
    /// Message for the user of this host.
    pub detail: String,
}

pub struct ReceiveFolder {
    dir: Arc<OwnedFd>,
    path: PathBuf,
    taken: NameConflict,
    made: MadeFolders,
}

/// Paths, relative to the receive folder, of the folders that were made for offers.
type MadeFolders = Arc<Mutex<BTreeSet<String>>>;

/// Handling of an offered file.
pub enum OfferPlan {
    /// Receive it; an earlier transfer left these chunks.
    New(IncomingFile, Chunks),
    /// Compare it with this file, which has the same name and size.
    There(ExistingFile),
}

impl OfferPlan {
    /// Bytes to hash before the sender has sent any. `size` if the whole file exists, else 0: an
    /// incomplete file is hashed while the rest arrives.
    pub fn hashes(&self, size: u64) -> u64 {
        match self {
            OfferPlan::New(_, have) if have.bytes(size) < size => 0,
            _ => size,
        }
    }
}

/// An existing file with the name of an offer.
pub struct ExistingFile {
    /// Open for reading only.
    pub file: File,
    parent: OwnedFd,
    part_name: String,
    state_name: String,
}

/// A file that is being received.
#[derive(Clone)]
pub struct IncomingFile(Arc<IncomingFileState>);

struct IncomingFileState {
    /// Folder that will hold the file.
    parent: OwnedFd,
    part: File,
    /// Final name.
    name: String,
    /// Temporary names of the data and of the record.
    part_name: String,
    state_name: String,
    /// Name from the network, for messages.
    shown: String,
    taken: NameConflict,
    state: ResumeRecord,
    /// True once the file has its name or was given up. The lock is held while the record is
    /// written or removed, so no record is written after the end.
    ended: Mutex<bool>,
    /// The receive folder, the folders in the offered name, and all folders that were made.
    root: Arc<OwnedFd>,
    folders: Vec<String>,
    made: MadeFolders,
}

/// Record beside an incomplete file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ResumeRecord {
    version: u32,
    from: String,
    file_id: String,
    size: u64,
    /// Bytes of every chunk except the last.
    #[serde(default = "usual_len")]
    chunk: u64,
    chunks: Vec<(u32, u32)>,
}

fn usual_len() -> u64 {
    CHUNK_LEN
}

impl ReceiveFolder {
    /// Opens the folder, which must exist.
    ///
    /// # Errors
    /// A message: what is wrong with the folder, and what to do.
    pub fn open(path: &Path, taken: NameConflict) -> Result<ReceiveFolder, String> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_RDONLY;
        let dir = open(path, flags, Mode::empty()).map_err(|e| match e {
            Errno::ENOENT => {
                format!("{0}: no such folder; fix: mkdir -p {0}, or --create", path.display())
            }
            e => format!("{}: {}", path.display(), e.desc()),
        })?;
        let may = AccessFlags::W_OK | AccessFlags::X_OK;
        faccessat(&dir, ".", may, AtFlags::AT_EACCESS)
            .map_err(|e| format!("{}: can't be written to: {}", path.display(), e.desc()))?;
        let (dir, path) = (Arc::new(dir), path.to_path_buf());
        Ok(ReceiveFolder { dir, path, taken, made: MadeFolders::default() })
    }

    /// Path of a received file, for messages.
    pub fn shown(&self, name: &str) -> String {
        crate::output::shown(&self.path.join(name).display().to_string())
    }

    /// Makes the folders and the temporary file of an offer. Returns the file with the chunks that
    /// an interrupted transfer left, if they have `chunk` bytes too. `promised` bytes of this
    /// sender's other files are still to come.
    pub fn prepare(
        &self,
        from: &str,
        file: &SendFile,
        chunk: u64,
        promised: u64,
    ) -> Result<OfferPlan, OfferRefusal> {
        let parts = names::parts(&file.name)
            .map_err(|why| refusal(RefuseReason::BadName, why.to_string()))?;
        let (name, folders) = parts.split_last().expect("parts() returns at least one part");
        let parent = self.folder(folders)?;
        let [part_name, state_name] = [PART, STATE].map(|end| names::beside(name, from, end));
        if self.taken == NameConflict::Refuse && exists(&parent, name)? {
            let file = existing(&parent, name, file.size).ok_or_else(|| {
                let detail = "exists already (see --overwrite and --rename)".to_string();
                refusal(RefuseReason::Exists, detail)
            })?;
            return Ok(OfferPlan::There(ExistingFile { file, parent, part_name, state_name }));
        }
        let inner = IncomingFileState {
            part: open_part(&parent, &part_name)?,
            part_name,
            state_name,
            name: (*name).to_string(),
            shown: file.name.clone(),
            taken: self.taken,
            parent,
            state: ResumeRecord {
                version: 1,
                from: from.to_string(),
                file_id: file.file_id.clone(),
                size: file.size,
                chunk,
                chunks: Vec::new(),
            },
            ended: Mutex::new(false),
            root: self.dir.clone(),
            folders: folders.iter().map(|folder| (*folder).to_string()).collect(),
            made: self.made.clone(),
        };
        let have = inner.resumable();
        inner.check_room(&have, promised)?;
        Ok(OfferPlan::New(IncomingFile(Arc::new(inner)), have))
    }

    /// Opens the folder with these names beneath the receive folder; makes missing ones.
    fn folder(&self, names: &[&str]) -> Result<OwnedFd, OfferRefusal> {
        let mut at = self.dir.try_clone().map_err(|e| denied(&e.to_string()))?;
        for (depth, name) in names.iter().enumerate() {
            match mkdirat(&at, *name, Mode::from_bits_truncate(0o777)) {
                Ok(()) => {
                    let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
                    if made.len() < MAX_MADE {
                        made.insert(names[..=depth].join("/"));
                    }
                }
                Err(Errno::EEXIST) => {}
                Err(e) => return Err(errno(e, &format!("folder {name}"))),
            }
            let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY;
            at = open_beneath(&at, name, flags, Mode::empty())
                .map_err(|e| errno(e, &format!("folder {name}")))?;
        }
        Ok(at)
    }
}

impl IncomingFile {
    pub fn file(&self) -> &File {
        &self.0.part
    }

    /// Syncs the data, then records the chunks for a resumed transfer. Does nothing once the file
    /// has its name or was given up.
    pub fn record(&self, chunks: &Chunks) -> std::io::Result<()> {
        let inner = &*self.0;
        inner.part.sync_data()?;
        let state = ResumeRecord { chunks: chunks.ranges().to_vec(), ..inner.state.clone() };
        let text = serde_json::to_vec(&state)?;
        let ended = inner.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if *ended {
            return Ok(());
        }
        let new = format!("{}~", inner.state_name);
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC | OFlag::O_NONBLOCK;
        let mode = Mode::from_bits_truncate(0o600);
        let mut out = File::from(open_beneath(&inner.parent, &new, flags, mode)?);
        out.write_all(&text)?;
        out.sync_data()?;
        renameat(&inner.parent, new.as_str(), &inner.parent, inner.state_name.as_str())?;
        Ok(())
    }

    /// Frees disk space outside of these chunks after a transfer has ended: it may be resumed much
    /// later or never.
    pub fn trim(&self, chunks: &Chunks) -> std::io::Result<()> {
        let size = self.0.state.size;
        let mut at = 0;
        for (from, to) in chunks.spans(size) {
            if let (Ok(hole), Ok(len)) = (i64::try_from(at), i64::try_from(from - at))
                && len > 0
            {
                let how =
                    FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                // Some file systems can't punch holes; there less than a window stays allocated.
                let _ = fallocate(&self.0.part, how, hole, len);
            }
            at = to;
        }
        self.0.part.set_len(at)
    }

    /// Syncs the whole file, gives it its final name, and returns that name.
    pub fn finish(&self, executable: bool, modified_ns: i64) -> Result<String, String> {
        let inner = &*self.0;
        let failed =
            |what: &str, e: &dyn std::fmt::Display| format!("{}: {what}: {e}", inner.shown);
        let mode = std::fs::Permissions::from_mode(final_mode(executable));
        inner.part.set_permissions(mode).map_err(|e| failed("can't set its mode", &e))?;
        if let Some(modified) = sane_time(modified_ns, SystemTime::now()) {
            // A file system without such times keeps the file nevertheless.
            let _ = inner.part.set_modified(modified);
        }
        inner.part.sync_all().map_err(|e| failed("can't be synced", &e))?;
        let mut ended = inner.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let name = inner.rename().map_err(|e| match e {
            Errno::EEXIST => format!("{}: exists already; a new file appeared", inner.shown),
            e => failed("can't get its name", &e.desc()),
        })?;
        *ended = true;
        inner.remove_record();
        drop(ended);
        // The name is on disk only after the folder is synced.
        nix::unistd::fsync(&inner.parent).map_err(|e| failed("folder can't be synced", &e))?;
        Ok(match inner.shown.rsplit_once('/') {
            Some((folder, _)) => format!("{folder}/{name}"),
            None => name,
        })
    }

    /// True while the data has its temporary name: it was neither renamed nor removed.
    pub fn waits(&self) -> bool {
        let named = stat(&self.0.parent, &self.0.part_name).map(|found| found.st_ino);
        named.ok() == fstat(&self.0.part).map(|found| found.st_ino).ok()
    }

    /// Removes the arrived data: it can't be trusted, or it is empty.
    pub fn discard(&self) {
        let inner = &*self.0;
        let mut ended = inner.ended.lock().unwrap_or_else(PoisonError::into_inner);
        *ended = true;
        if self.waits() {
            let _ = unlinkat(&inner.parent, inner.part_name.as_str(), UnlinkatFlags::NoRemoveDir);
        }
        inner.remove_record();
        inner.remove_folders();
    }
}

impl ExistingFile {
    /// Confirms that the existing file is the offered one. Removes a record without data, which a
    /// crash right after the rename leaves.
    pub fn settle(&self) {
        if stat(&self.parent, &self.part_name) == Err(Errno::ENOENT) {
            let _ = unlinkat(&self.parent, self.state_name.as_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

impl IncomingFileState {
    fn remove_record(&self) {
        for name in [self.state_name.clone(), format!("{}~", self.state_name)] {
            let _ = unlinkat(&self.parent, name.as_str(), UnlinkatFlags::NoRemoveDir);
        }
    }

    /// Removes empty folders that were made for offers, innermost first, so that an offer without
    /// data leaves nothing.
    fn remove_folders(&self) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        for depth in (0..self.folders.len()).rev() {
            let above = match depth {
                0 => ".".to_string(),
                depth => self.folders[..depth].join("/"),
            };
            let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY;
            let removed = made.contains(&self.folders[..=depth].join("/"))
                && open_beneath(&self.root, &above, flags, Mode::empty())
                    .and_then(|dir| {
                        unlinkat(&dir, self.folders[depth].as_str(), UnlinkatFlags::RemoveDir)
                    })
                    .is_ok();
            if !removed {
                return;
            }
            made.remove(&self.folders[..=depth].join("/"));
        }
    }

    /// Renames to a free name; overwrites, or numbers the name, if the user asked for that.
    fn rename(&self) -> Result<String, Errno> {
        let to = |name: &str, flags| {
            renameat2(&self.parent, self.part_name.as_str(), &self.parent, name, flags)
        };
        match self.taken {
            NameConflict::Overwrite => to(&self.name, RenameFlags::empty())?,
            NameConflict::Refuse => to(&self.name, RenameFlags::RENAME_NOREPLACE)?,
            NameConflict::Number => {
                let mut name = self.name.clone();
                for n in 1..=MAX_NUMBER {
                    match to(&name, RenameFlags::RENAME_NOREPLACE) {
                        Err(Errno::EEXIST) => name = names::numbered(&self.name, n),
                        Err(e) => return Err(e),
                        Ok(()) => return Ok(name),
                    }
                }
                return Err(Errno::EEXIST);
            }
        }
        Ok(self.name.clone())
    }

    /// Chunks that an earlier transfer of the same file recorded. Without a matching record this
    /// sender's temporary file is emptied.
    fn resumable(&self) -> Chunks {
        let none = Chunks::of_len(self.state.chunk);
        let count = none.count(self.state.size);
        let found = self.read_state().and_then(|found| {
            let same = ResumeRecord { chunks: found.chunks.clone(), ..self.state.clone() } == found;
            let chunks = Chunks::from_ranges(&found.chunks, count, found.chunk);
            let end = chunks.spans(self.state.size).last().map_or(0, |span| span.1);
            let there = self.part.metadata().is_ok_and(|meta| meta.len() >= end);
            (same && there).then_some((chunks, end))
        });
        let (chunks, end) = found.unwrap_or((none, 0));
        if chunks.ranges().is_empty() {
            self.remove_record();
        }
        // Bytes after the last recorded chunk were not synced, or belong to another file.
        let _ = self.part.set_len(end);
        chunks
    }

    fn read_state(&self) -> Option<ResumeRecord> {
        let file = open_regular(&self.parent, &self.state_name).ok()?;
        let mut text = Vec::new();
        file.take(MAX_STATE).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Checks that the disk has room for the missing bytes and for this sender's other files. Files
    /// of other senders don't count, so that offers alone keep no sender out.
    fn check_room(&self, have: &Chunks, promised: u64) -> Result<(), OfferRefusal> {
        let size = self.state.size;
        let missing = size - have.bytes(size);
        let free = free_bytes(&self.parent);
        if free.is_some_and(|free| free < missing.saturating_add(promised)) {
            let detail = format!(
                "needs {}, but the disk has {} left",
                crate::units::Bytes(missing.saturating_add(promised)),
                crate::units::Bytes(free.unwrap_or(0))
            );
            self.give_back(have);
            return Err(refusal(RefuseReason::NoSpace, detail));
        }
        if i64::try_from(size).is_err() {
            self.give_back(have);
            return Err(refusal(RefuseReason::TooLarge, "larger than any file can be".into()));
        }
        Ok(())
    }

    /// Removes an empty temporary file after a refusal.
    fn give_back(&self, have: &Chunks) {
        if have.ranges().is_empty() {
            let _ = unlinkat(&self.parent, self.part_name.as_str(), UnlinkatFlags::NoRemoveDir);
            self.remove_folders();
        }
    }
}

/// Opens the temporary file and takes its lock, so that two transfers never share it.
fn open_part(parent: &OwnedFd, name: &str) -> Result<File, OfferRefusal> {
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NONBLOCK;
    let fd = open_beneath(parent, name, flags, Mode::from_bits_truncate(0o600))
        .map_err(|e| errno(e, "can't be written"))?;
    let file = File::from(fd);
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return Err(denied(&format!("{name} is no regular file")));
    }
    if file.try_lock().is_err() {
        let detail = "another transfer of this sender writes a file of that name".to_string();
        return Err(refusal(RefuseReason::Busy, detail));
    }
    Ok(file)
}

/// Opens one name beneath a folder, following no link. On kernels without openat2(2), O_NOFOLLOW
/// does the same, since the name is a single part of a path.
fn open_beneath(dir: &OwnedFd, name: &str, flags: OFlag, mode: Mode) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
    let mut how = OpenHow::new().flags(flags).resolve(resolve);
    if flags.contains(OFlag::O_CREAT) {
        how = how.mode(mode);
    }
    match openat2(dir, name, how) {
        Err(Errno::ENOSYS) if !name.contains('/') => openat(dir, name, flags, mode),
        result => result,
    }
}

/// Opens a regular file for reading; never blocks on a pipe of that name.
fn open_regular(dir: &OwnedFd, name: &str) -> Result<File, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = File::from(open_beneath(dir, name, flags, Mode::empty())?);
    if file.metadata().is_ok_and(|meta| meta.is_file()) { Ok(file) } else { Err(Errno::EINVAL) }
}

/// Opens the existing file with the name and size of an offer.
fn existing(dir: &OwnedFd, name: &str, size: u64) -> Option<File> {
    let file = open_regular(dir, name).ok()?;
    file.metadata().is_ok_and(|meta| meta.len() == size).then_some(file)
}

/// The sender's modification time, unless it is before 1970 or too far in the future.
fn sane_time(modified_ns: i64, now: SystemTime) -> Option<SystemTime> {
    let since = Duration::from_nanos(u64::try_from(modified_ns).ok()?);
    let time = SystemTime::UNIX_EPOCH.checked_add(since)?;
    (time <= now + AHEAD_MAX).then_some(time)
}

fn exists(dir: &OwnedFd, name: &str) -> Result<bool, OfferRefusal> {
    match stat(dir, name) {
        Ok(_) => Ok(true),
        Err(Errno::ENOENT) => Ok(false),
        Err(e) => Err(errno(e, "can't be looked up")),
    }
}

fn stat(dir: &OwnedFd, name: &str) -> Result<FileStat, Errno> {
    fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW)
}

fn free_bytes(dir: &OwnedFd) -> Option<u64> {
    let found = nix::sys::statvfs::fstatvfs(dir).ok()?;
    found.blocks_available().checked_mul(found.fragment_size())
}

/// Mode of a new file under the user's umask.
fn final_mode(executable: bool) -> u32 {
    let wanted = if executable { 0o777 } else { 0o666 };
    wanted & !umask()
}

/// The process's umask; the system call can only read it by setting it.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(0o022)
}

fn refusal(reason: RefuseReason, detail: String) -> OfferRefusal {
    OfferRefusal { reason, detail }
}

fn denied(detail: &str) -> OfferRefusal {
    refusal(RefuseReason::Denied, detail.to_string())
}

fn errno(e: Errno, what: &str) -> OfferRefusal {
    let reason = match e {
        Errno::ENOSPC | Errno::EDQUOT => RefuseReason::NoSpace,
        Errno::EFBIG => RefuseReason::TooLarge,
        Errno::ENAMETOOLONG | Errno::EINVAL => RefuseReason::BadName,
        _ => RefuseReason::Denied,
    };
    refusal(reason, format!("{what}: {}", e.desc()))
}

#[cfg(test)]
mod tests;
