//! The folder that received files go into.
//!
//! A file is written beneath it under a temporary name, with a record beside it of what has
//! arrived, and gets its own name only when it is whole and synced. Every step is relative to a
//! descriptor of the folder, and no symbolic link is followed beneath it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{
    AtFlags, FallocateFlags, OFlag, OpenHow, RenameFlags, ResolveFlag, fallocate, open, openat,
    openat2, renameat, renameat2,
};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat, mkdirat};
use nix::unistd::{AccessFlags, UnlinkatFlags, faccessat, unlinkat};
use serde::{Deserialize, Serialize};
use shoal_node::api::{RefuseReason, SendFile};

use crate::chunks::Chunks;
use crate::names::{self, PART, STATE};

/// Longest record of what has arrived, in bytes; the worst pattern of a large file fits.
const MAX_STATE: u64 = 16 << 20;
/// Most numbers that are tried for a name that is taken.
const MAX_NUMBER: u32 = 9_999;

/// What happens when a name is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    Refuse,
    Overwrite,
    Number,
}

/// Why an offer was declined.
#[derive(Debug)]
pub struct Refusal {
    /// What the sender is told.
    pub reason: RefuseReason,
    /// What the user here is told.
    pub detail: String,
}

/// The folder.
pub struct Inbox {
    dir: OwnedFd,
    path: PathBuf,
    taken: Taken,
}

/// A file on its way in.
#[derive(Clone)]
pub struct Incoming(Arc<Inner>);

struct Inner {
    /// The folder that will hold it.
    parent: OwnedFd,
    /// Its data.
    part: File,
    /// Its last name and its temporary ones.
    name: String,
    part_name: String,
    state_name: String,
    /// Its name from the network, for messages.
    shown: String,
    taken: Taken,
    state: State,
}

/// Record beside a file that is not whole yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct State {
    version: u32,
    from: String,
    file_id: String,
    size: u64,
    chunks: Vec<(u32, u32)>,
}

impl Inbox {
    /// Opens the folder, which must exist.
    pub fn open(path: &Path, taken: Taken) -> Result<Inbox, String> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_RDONLY;
        let dir = open(path, flags, Mode::empty()).map_err(|e| match e {
            Errno::ENOENT => {
                format!("{0}: no such folder; fix: mkdir -p {0}", path.display())
            }
            e => format!("{}: {}", path.display(), e.desc()),
        })?;
        let may = AccessFlags::W_OK | AccessFlags::X_OK;
        faccessat(&dir, ".", may, AtFlags::AT_EACCESS)
            .map_err(|e| format!("{}: can't be written to: {}", path.display(), e.desc()))?;
        Ok(Inbox { dir, path: path.to_path_buf(), taken })
    }

    /// Where a received file stands, for messages.
    pub fn shown(&self, name: &str) -> String {
        crate::output::shown(&self.path.join(name).display().to_string())
    }

    /// Makes ready for a file: its folders, its temporary file with room on the disk. Returns it
    /// with the chunks that an earlier, interrupted transfer of the same file left.
    pub fn prepare(&self, from: &str, file: &SendFile) -> Result<(Incoming, Chunks), Refusal> {
        let parts = names::parts(&file.name)
            .map_err(|why| refusal(RefuseReason::BadName, why.to_string()))?;
        let (name, folders) = parts.split_last().expect("parts() returns at least one part");
        let parent = self.folder(folders)?;
        if self.taken == Taken::Refuse && exists(&parent, name)? {
            let detail = "exists already (see --overwrite and --rename)".to_string();
            return Err(refusal(RefuseReason::Exists, detail));
        }
        let inner = Inner {
            part: open_part(&parent, &names::beside(name, PART))?,
            part_name: names::beside(name, PART),
            state_name: names::beside(name, STATE),
            name: (*name).to_string(),
            shown: file.name.clone(),
            taken: self.taken,
            parent,
            state: State {
                version: 1,
                from: from.to_string(),
                file_id: file.file_id.clone(),
                size: file.size,
                chunks: Vec::new(),
            },
        };
        let have = inner.resumable();
        inner.reserve(&have)?;
        Ok((Incoming(Arc::new(inner)), have))
    }

    /// The folder beneath ours with these names, made if need be.
    fn folder(&self, names: &[&str]) -> Result<OwnedFd, Refusal> {
        let mut at = self.dir.try_clone().map_err(|e| denied(&e.to_string()))?;
        for name in names {
            match mkdirat(&at, *name, Mode::from_bits_truncate(0o777)) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(e) => return Err(errno(e, &format!("folder {name}"))),
            }
            let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY;
            at = open_beneath(&at, name, flags, Mode::empty())
                .map_err(|e| errno(e, &format!("folder {name}")))?;
        }
        Ok(at)
    }
}

impl Incoming {
    /// The data file.
    pub fn file(&self) -> &File {
        &self.0.part
    }

    /// Makes what was written so far safe, and then records it for a resumed transfer.
    pub fn record(&self, chunks: &Chunks) -> std::io::Result<()> {
        self.0.part.sync_data()?;
        let state = State { chunks: chunks.ranges().to_vec(), ..self.0.state.clone() };
        let text = serde_json::to_vec(&state)?;
        let new = format!("{}~", self.0.state_name);
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC;
        let mode = Mode::from_bits_truncate(0o600);
        let mut out = File::from(open_beneath(&self.0.parent, &new, flags, mode)?);
        out.write_all(&text)?;
        out.sync_data()?;
        renameat(&self.0.parent, new.as_str(), &self.0.parent, self.0.state_name.as_str())?;
        Ok(())
    }

    /// Syncs the whole file and gives it its name; returns that name.
    pub fn finish(&self, executable: bool) -> Result<String, String> {
        let inner = &*self.0;
        let failed =
            |what: &str, e: &dyn std::fmt::Display| format!("{}: {what}: {e}", inner.shown);
        let mode = std::fs::Permissions::from_mode(final_mode(executable));
        inner.part.set_permissions(mode).map_err(|e| failed("can't set its mode", &e))?;
        inner.part.sync_all().map_err(|e| failed("can't be synced", &e))?;
        let name = inner.rename().map_err(|e| match e {
            Errno::EEXIST => format!("{}: exists already; it came up meanwhile", inner.shown),
            e => failed("can't get its name", &e.desc()),
        })?;
        let _ = unlinkat(&inner.parent, inner.state_name.as_str(), UnlinkatFlags::NoRemoveDir);
        // The name itself is safe only once the folder is.
        nix::unistd::fsync(&inner.parent).map_err(|e| failed("folder can't be synced", &e))?;
        Ok(match inner.shown.rsplit_once('/') {
            Some((folder, _)) => format!("{folder}/{name}"),
            None => name,
        })
    }

    /// Whether the data is still there under its temporary name: it has neither got its own nor
    /// been taken away.
    pub fn waits(&self) -> bool {
        let named = stat(&self.0.parent, &self.0.part_name).map(|found| found.st_ino);
        named.ok() == fstat(&self.0.part).map(|found| found.st_ino).ok()
    }

    /// Removes what has arrived: it can't be trusted, or nothing has.
    pub fn discard(&self) {
        let data = self.waits().then_some(&self.0.part_name);
        for name in [&self.0.state_name].into_iter().chain(data) {
            let _ = unlinkat(&self.0.parent, name.as_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

impl Inner {
    /// Renames onto nothing; or over what is there, or past what is there, if the user said so.
    fn rename(&self) -> Result<String, Errno> {
        let to = |name: &str, flags| {
            renameat2(&self.parent, self.part_name.as_str(), &self.parent, name, flags)
        };
        match self.taken {
            Taken::Overwrite => to(&self.name, RenameFlags::empty())?,
            Taken::Refuse => to(&self.name, RenameFlags::RENAME_NOREPLACE)?,
            Taken::Number => {
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

    /// What an earlier transfer of the same file from the same host recorded; else nothing, and
    /// the temporary file is emptied.
    fn resumable(&self) -> Chunks {
        let found = self.read_state().filter(|found| {
            let same = State { chunks: found.chunks.clone(), ..self.state.clone() };
            let len = self.part.metadata().map(|m| m.len());
            *found == same && len.is_ok_and(|len| len == self.state.size)
        });
        match found {
            Some(found) => Chunks::from_ranges(&found.chunks, Chunks::count(self.state.size)),
            None => {
                let _ =
                    unlinkat(&self.parent, self.state_name.as_str(), UnlinkatFlags::NoRemoveDir);
                let _ = self.part.set_len(0);
                Chunks::default()
            }
        }
    }

    fn read_state(&self) -> Option<State> {
        let fd =
            open_beneath(&self.parent, &self.state_name, OFlag::O_RDONLY, Mode::empty()).ok()?;
        let mut text = Vec::new();
        File::from(fd).take(MAX_STATE).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Makes the temporary file as long as the file, with room on the disk where that can be asked.
    fn reserve(&self, have: &Chunks) -> Result<(), Refusal> {
        let size = self.state.size;
        let missing = size - have.bytes(size);
        let free = free_bytes(&self.parent);
        if free.is_some_and(|free| free < missing) {
            let detail = format!(
                "{} are missing, the disk has {} left",
                crate::units::Bytes(missing),
                crate::units::Bytes(free.unwrap_or(0))
            );
            self.give_back(have);
            return Err(refusal(RefuseReason::NoSpace, detail));
        }
        let Ok(len) = i64::try_from(size) else {
            self.give_back(have);
            return Err(refusal(RefuseReason::TooLarge, "larger than any file can be".into()));
        };
        let reserved = match len {
            0 => Ok(()),
            // In memory, reserving means filling with zeros now: slow, and no fragment is avoided.
            _ if in_memory(&self.part) => Ok(()),
            len => match fallocate(&self.part, FallocateFlags::empty(), 0, len) {
                Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINTR) => Ok(()),
                result => result,
            },
        };
        let sized = reserved.and_then(|()| {
            let raw = |e: std::io::Error| Errno::from_raw(e.raw_os_error().unwrap_or(libc::EIO));
            self.part.set_len(size).map_err(raw)
        });
        sized.map_err(|e| {
            self.give_back(have);
            errno(e, "can't be written")
        })
    }

    /// After a refusal: an empty temporary file is of no use to anybody.
    fn give_back(&self, have: &Chunks) {
        if have.ranges().is_empty() {
            let _ = unlinkat(&self.parent, self.part_name.as_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// Opens the temporary file and takes its lock, so that two transfers never share it.
fn open_part(parent: &OwnedFd, name: &str) -> Result<File, Refusal> {
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NONBLOCK;
    let fd = open_beneath(parent, name, flags, Mode::from_bits_truncate(0o600))
        .map_err(|e| errno(e, "can't be written"))?;
    let file = File::from(fd);
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return Err(denied(&format!("{name} is no regular file")));
    }
    if file.try_lock().is_err() {
        let detail = "another transfer writes a file of that name".to_string();
        return Err(refusal(RefuseReason::Busy, detail));
    }
    Ok(file)
}

/// Opens one name beneath a folder, following no link. Where the kernel has no openat2(2), one
/// plain part of a path with O_NOFOLLOW comes to the same.
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

fn exists(dir: &OwnedFd, name: &str) -> Result<bool, Refusal> {
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

fn in_memory(file: &File) -> bool {
    use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
    fstatfs(file.as_fd()).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC)
}

/// Mode of a new file as the user's umask wants it.
fn final_mode(executable: bool) -> u32 {
    let wanted = if executable { 0o777 } else { 0o666 };
    wanted & !umask()
}

/// The process's umask, which can otherwise only be read by setting it.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(0o022)
}

fn refusal(reason: RefuseReason, detail: String) -> Refusal {
    Refusal { reason, detail }
}

fn denied(detail: &str) -> Refusal {
    refusal(RefuseReason::Denied, detail.to_string())
}

fn errno(e: Errno, what: &str) -> Refusal {
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
